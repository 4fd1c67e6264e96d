/* The members of `parallel` that are auto are chosen so that a layout fits. Each rung's memory is
 * asked of hd_plan_build, for a layout that is written out here.
 */
#include <stdio.h>
#include <string.h>

#include "plan/best.h"
#include "tests/program/test.h"

static const struct hd_traits traits = {.backend = "cpu",
                                        .isa = "avx2",
                                        .library = "own",
                                        .threads = 1,
                                        .vector_bytes = 32,
                                        .page_bytes = 4096};

static void set(char *member, const char *word)
{
    (void)snprintf(member, HD_JOB_WORD_MAX, "%s", word);
}

/* 8 blocks of 12 x 256^2 and more parameters: several chunks of the norm in each part. */
static struct hd_job spec_of(int64_t zero, int64_t pp)
{
    struct hd_job job =
        HD_JOB(.layers = 8, .hidden = 256, .heads = 8, .kv_heads = 8, .head_width = 32,
               .rope_factor = 1, .ffn_hidden = 768, .vocab = 512, .context = 64, .rope_theta = 1e4,
               .norm_eps = 1e-5, .steps = 10, .global_batch = 16, .lr_peak = 1e-3, .beta1 = 0.9,
               .beta2 = 0.95, .adam_eps = 1e-8, .clip = 1, .zero = zero, .pp = pp, .sequence = -1,
               .micro_batch = 1);

    job.name = "fit";
    job.family = "llama";
    job.order = HD_JOB_ORDER_SEQUENTIAL;
    job.rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    job.positions = HD_JOB_POSITIONS_ROPE;
    job.documents = HD_JOB_DOCUMENTS_JOINED;
    job.lr_decay = HD_JOB_LR_DECAY_CONSTANT;
    job.device = HD_JOB_DEVICE_CPU;
    job.precision = HD_JOB_PRECISION_FP32;
    set(job.stages, "auto");
    set(job.schedule, "auto");
    set(job.recompute, "auto");
    job.cp_exchange = HD_JOB_CP_EXCHANGE_AUTO;
    return job;
}

static struct hd_plan_request request_of(const struct hd_job *job)
{
    return (struct hd_plan_request){.sizes = job->layout,
                                    .global_batch = job->global_batch,
                                    .layers = job->layers,
                                    .heads = job->heads,
                                    .kv_heads = job->kv_heads,
                                    .ffn_hidden = job->ffn_hidden,
                                    .context = job->context,
                                    .vocab = job->vocab};
}

static struct hd_fit choose(const struct hd_job *spec, int32_t devices, int64_t memory_bytes,
                            struct hd_text *line)
{
    const struct hd_plan_request request = request_of(spec);
    const struct hd_fit_asked asked = {.spec = spec,
                                       .request = &request,
                                       .devices = devices,
                                       .threads = 1,
                                       .traits = &traits,
                                       .memory_bytes = memory_bytes};
    struct hd_fit fit;

    if (hd_fit_choose(&asked, &fit))
        fail_msg("%s", hd_err_message());
    if (line)
        hd_fit_explain(&asked, &fit, line);
    return fit;
}

/* Returns the bytes of the rank that takes most, with these members written down. */
static int64_t bytes_of(int32_t devices, int64_t zero, int64_t pp)
{
    struct hd_job job = spec_of(zero, pp);
    const struct hd_plan_request request = request_of(&job);
    struct hd_arena arena;
    struct hd_plan plan;
    int64_t most = 0;

    assert_int_equal(hd_plan_decide(&request, devices, &job.layout), HD_OK);
    hd_plan_decide_device(HD_JOB_DEVICE_CPU, false, 1, &job.layout);
    hd_arena_init(&arena, 0);
    if (hd_plan_build(&job, &traits, &arena, &plan))
        fail_msg("%s", hd_err_message());
    for (int32_t r = 0; r < plan.mesh.world; r++)
        if (hd_memory_total(&hd_plan_rank(&plan, r)->memory) > most)
            most = hd_memory_total(&hd_plan_rank(&plan, r)->memory);
    hd_arena_done(&arena);
    return most;
}

static void takes(const struct hd_fit *fit, int64_t zero, int64_t pp, int64_t dp)
{
    assert_true(fit->fits);
    assert_int_equal(fit->sizes.zero, zero);
    assert_int_equal(fit->sizes.pp, pp);
    assert_int_equal(fit->sizes.dp, dp);
}

/* fp32 on 4 devices takes 16, 8 + 8/4, 4 + 12/4, 16/4 bytes per parameter, so each stage of ZeRO
 * is taken with exactly what it needs, and the next one with a byte less. */
static void each_stage_of_zero_is_taken_when_it_is_the_first_that_fits(void **state)
{
    const struct hd_job spec = spec_of(-1, 1);

    for (int64_t zero = 0; zero <= 3; zero++) {
        const int64_t bytes = bytes_of(4, zero, 1);
        struct hd_fit fit = choose(&spec, 4, bytes, NULL);

        takes(&fit, zero, 1, 4);
        assert_int_equal(fit.needed_bytes, bytes);
        assert_int_equal(fit.tried, zero > 0);
        if (zero < 3) {
            fit = choose(&spec, 4, bytes - 1, NULL);
            takes(&fit, zero + 1, 1, 4);
        }
    }
}

/* With zero written down only the stages of a pipeline are left; each halves the layers. */
static void stages_double_where_zero_is_written_down(void **state)
{
    const struct hd_job spec = spec_of(0, 0);

    for (int64_t pp = 1; pp <= 4; pp *= 2) {
        const struct hd_fit fit = choose(&spec, 4, bytes_of(4, 0, pp), NULL);

        takes(&fit, 0, pp, 4 / pp);
        assert_string_equal(fit.sizes.schedule, pp > 1 ? "1f1b" : "none");
    }
}

/* On 8 devices, every rung in the order of the ladder: with exactly its memory the first one that
 * takes no more is taken. */
static void the_first_rung_that_fits_is_taken(void **state)
{
    const struct hd_job spec = spec_of(-1, 0);
    int64_t bytes[16];
    int rungs = 0, later_stages = 0;

    for (int64_t pp = 1; pp <= 8; pp *= 2)
        for (int64_t zero = 0; zero <= (pp == 8 ? 0 : 3); zero++)
            bytes[rungs++] = bytes_of(8, zero, pp);
    for (int limit = 0; limit < rungs; limit++) {
        const struct hd_fit fit = choose(&spec, 8, bytes[limit], NULL);
        int first = 0;

        while (bytes[first] > bytes[limit])
            first++;
        takes(&fit, first % 4, 1 << first / 4, 8 >> first / 4);
        later_stages += fit.sizes.pp > 1;
    }
    assert_true(later_stages > 0);
}

static void what_is_written_down_stays(void **state)
{
    struct hd_job spec = spec_of(2, 2);
    struct hd_fit fit;

    fit = choose(&spec, 4, bytes_of(4, 2, 2), NULL);
    takes(&fit, 2, 2, 2);
    fit = choose(&spec, 4, bytes_of(4, 2, 2) - 1, NULL);
    assert_false(fit.fits);
    assert_int_equal(fit.sizes.zero, 2);
    assert_int_equal(fit.sizes.pp, 2);
    spec = spec_of(1, 0);
    fit = choose(&spec, 4, bytes_of(4, 1, 2), NULL);
    takes(&fit, 1, 2, 2);
    spec = spec_of(-1, 2);
    fit = choose(&spec, 4, bytes_of(4, 3, 2), NULL);
    takes(&fit, 3, 2, 2);
}

static void without_a_known_memory_it_is_plain_data_parallelism(void **state)
{
    const struct hd_job spec = spec_of(-1, 0);
    struct hd_text line = {0};
    const struct hd_fit fit = choose(&spec, 4, 0, &line);

    takes(&fit, 0, 1, 4);
    assert_int_equal(line.len_bytes, 0);
}

/* Every number of devices on which a job may run has a layout that is measured, and fits where
 * memory is plenty: also 3, on which the batch of 16 has no data parallelism, and 15, on which 8
 * layers and 8 heads leave tp 5 alone with pp 3 out of the ladder's own rungs. */
static void every_number_of_devices_that_is_allowed_gets_a_layout(void **state)
{
    static const struct {
        int64_t batch, layers, heads;
    } shapes[] = {{16, 8, 8}, {64, 2, 6}, {7, 1, 5}, {1, 3, 7}};
    int32_t odd = 0;

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int32_t devices = 1; devices <= 16; devices++) {
            struct hd_job spec = spec_of(0, 0);
            struct hd_plan_request request;
            struct hd_fit_asked asked = {.spec = &spec,
                                         .request = &request,
                                         .devices = devices,
                                         .threads = 1,
                                         .traits = &traits,
                                         .memory_bytes = (int64_t)1 << 40};
            struct hd_layout_sizes decided;
            struct hd_text line = {0};
            struct hd_fit fit;

            spec.global_batch = shapes[i].batch;
            spec.layers = shapes[i].layers;
            spec.heads = spec.kv_heads = shapes[i].heads;
            spec.hidden = 32 * shapes[i].heads;
            spec.ffn_hidden = 96 * shapes[i].heads;
            spec.micro_batch = 0;
            request = request_of(&spec);
            request.searched = true;
            if (hd_plan_decide(&request, devices, &decided))
                continue;
            assert_int_equal(hd_fit_choose(&asked, &fit), HD_OK);
            assert_true(fit.fits);
            assert_true(fit.needed_bytes > 0);
            assert_int_equal(fit.sizes.dp * fit.sizes.tp * fit.sizes.cp * fit.sizes.pp, devices);
            asked.memory_bytes = fit.needed_bytes - 1; /* and where it is not, nothing takes 0 B */
            assert_int_equal(hd_fit_choose(&asked, &fit), HD_OK);
            hd_fit_explain(&asked, &fit, &line);
            assert_null(strstr(line.data ? line.data : "", " 0 B"));
            hd_text_free(&line);
            odd += devices == 3 || devices == 5 || devices == 7;
        }
    }
    assert_true(odd >= 6); /* counts that do not divide a batch of 16 or 64 were among them */
}

static void the_line_says_what_was_chosen_or_would_help(void **state)
{
    const struct hd_job all = spec_of(-1, 0), fixed = spec_of(0, 1);
    struct hd_job cut = spec_of(-1, 0);
    struct hd_text chosen = {0}, none = {0}, pinned = {0}, unlaid = {0};
    char numbers[96], first[32], has[32];

    (void)choose(&all, 4, bytes_of(4, 1, 1), &chosen);
    hd_text_format_bytes(bytes_of(4, 0, 1), first);
    hd_text_format_bytes(bytes_of(4, 1, 1), has);
    (void)snprintf(numbers, sizeof numbers, "pp 1 and zero 0 would take %s of a device's %s, ",
                   first, has);
    assert_non_null(strstr(chosen.data, "pp 1 and zero 1 chosen to fit: "));
    assert_non_null(strstr(chosen.data, numbers));
    (void)choose(&all, 4, 1000, &none);
    assert_non_null(strstr(none.data, "no layout fits 4 devices: "));
    assert_non_null(strstr(none.data, " of a device's 1000 B; "));
    assert_non_null(strstr(none.data, "parallel.recompute: full"));
    assert_null(strstr(none.data, "parallel.zero"));
    (void)choose(&fixed, 4, 1000, &pinned);
    assert_non_null(strstr(pinned.data, "write parallel.zero: auto, write parallel.pp: auto, "));
    /* 8 heads of 8: two ranks have 32 columns each of blocks of 64 */
    cut.model_weights = HD_JOB_MODEL_WEIGHTS_NF4;
    cut.adapter = HD_JOB_ADAPTER_LORA;
    cut.adapter_targets = "all-linear";
    cut.adapter_rank = 4;
    cut.tp = 2;
    cut.hidden = 64;
    cut.head_width = 8;
    (void)choose(&cut, 4, 1000, &unlaid);
    assert_non_null(strstr(unlaid.data, "there is no layout on 4 devices: "));
    assert_non_null(strstr(unlaid.data, "cuts through a block of 64 weights"));
    assert_null(strstr(unlaid.data, "0 B"));
    hd_text_free(&chosen);
    hd_text_free(&none);
    hd_text_free(&pinned);
    hd_text_free(&unlaid);
}

/* 3 ranks cannot share a batch of 16: the line tells which key made the pipeline. */
static void a_pipeline_that_the_batch_forces_is_explained(void **state)
{
    const struct hd_job spec = spec_of(0, 0);
    struct hd_plan_request request = request_of(&spec);
    const struct hd_fit_asked asked = {.spec = &spec,
                                       .request = &request,
                                       .devices = 3,
                                       .threads = 1,
                                       .traits = &traits,
                                       .memory_bytes = (int64_t)1 << 40};
    struct hd_text line = {0};
    struct hd_fit fit;

    request.searched = true;
    assert_int_equal(hd_fit_choose(&asked, &fit), HD_OK);
    hd_fit_explain(&asked, &fit, &line);
    assert_int_equal(fit.sizes.pp, 3);
    assert_non_null(strstr(line.data, "pp 3 chosen"));
    assert_non_null(strstr(line.data, "resources.devices: 3 does not divide train.global_batch"));
    hd_text_free(&line);
}

/* ---- best.h: where it is known how fast devices are
 * --------------------------------------------*/

static struct hd_best best_of(const struct hd_job *spec, const struct hd_cluster *cluster,
                              int64_t memory_bytes, struct hd_text *why)
{
    struct hd_plan_request request = request_of(spec);
    const struct hd_best_asked asked = {.fit = {.spec = spec,
                                                .request = &request,
                                                .devices = 4,
                                                .threads = 1,
                                                .traits = cluster ? &cluster->traits : &traits,
                                                .memory_bytes = memory_bytes},
                                        .cluster = cluster};
    struct hd_best best;

    if (cluster)
        request.sizes.device = HD_JOB_DEVICE_CUDA;
    hd_text_clear(why);
    if (hd_best_choose(&asked, &best, why))
        fail_msg("%s", hd_err_message());
    return best;
}

/* A search that may take no time is answered by the ladder, which says so. */
static void a_search_that_takes_too_long_is_answered_by_memory(void **state)
{
    struct hd_job spec = spec_of(-1, 0);
    struct hd_plan_request request = request_of(&spec);
    struct hd_cluster cluster;
    const struct hd_best_asked asked = {.fit = {.spec = &spec,
                                                .request = &request,
                                                .devices = 4,
                                                .threads = 1,
                                                .traits = &cluster.traits,
                                                .memory_bytes = (int64_t)80 << 30},
                                        .cluster = &cluster,
                                        .deadline_ns = 1};
    struct hd_text why = {0};
    struct hd_best best;

    hd_cluster_of_gpus(hd_gpu_kind_find("h100"), 4, 4, false, &cluster);
    request.sizes.device = HD_JOB_DEVICE_CUDA;
    assert_int_equal(hd_best_choose(&asked, &best, &why), HD_OK);
    assert_true(best.fits);
    assert_int_equal(best.sizes.dp, 4); /* the ladder's first rung */
    assert_true(best.step_s == 0);      /* not priced */
    assert_non_null(strstr(why.data, "took too long, so it is chosen by memory"));
    hd_text_free(&why);
}

/* The search decides where there is a cluster, the ladder elsewhere. */
static void the_fastest_layout_is_taken_where_rates_are_known(void **state)
{
    const struct hd_gpu_kind *kind = hd_gpu_kind_find("h100");
    struct hd_job spec = spec_of(-1, 0);
    struct hd_search_plan plan;
    struct hd_plan_request request;
    struct hd_search_asked priced = {.spec = &spec, .request = &request, .devices = 4};
    struct hd_cluster near, far;
    struct hd_text why = {0};
    struct hd_arena arena;
    struct hd_best best;
    double dp_s;

    spec.micro_batch = 0;
    spec.global_batch = 4;
    hd_cluster_of_gpus(kind, 4, 4, false, &near);
    hd_cluster_of_gpus(kind, 4, 1, false, &far);
    far.levels[1].bytes_per_s = 1e6; /* between nodes: next to nothing */
    best = best_of(&spec, &far, near.traits.memory_bytes, &why);
    assert_true(best.fits);
    assert_true(best.step_s > 0 && best.needed_bytes > 0);
    assert_int_equal(best.sizes.dp, 1); /* gradients would travel for minutes */
    assert_non_null(strstr(why.data, "pp 4"));
    assert_non_null(strstr(why.data, " s a step, "));
    request = request_of(&spec);
    request.sizes.device = HD_JOB_DEVICE_CUDA;
    priced.cluster = &far;
    assert_int_equal(hd_plan_decide(&request, 4, &best.sizes), HD_OK); /* data parallelism */
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_search_cost(&priced, &best.sizes, &arena, &plan), HD_OK);
    dp_s = plan.cost.step_s;
    hd_arena_done(&arena);
    assert_true(best.step_s < dp_s);

    best = best_of(&spec, NULL, 0, &why);
    assert_int_equal(best.sizes.dp, 4);
    assert_true(best.step_s == 0);
    best = best_of(&spec, &near, 1 << 20, &why);
    assert_false(best.fits);
    assert_non_null(strstr(why.data, "no layout fits 4 devices: the one that takes least ("));
    assert_non_null(strstr(why.data, " of a device's 1"));
    assert_non_null(strstr(why.data, " on stage "));
    hd_text_free(&why);
}

RUN_CASES()
