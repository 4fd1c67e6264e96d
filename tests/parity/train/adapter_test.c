/* adapter: factors of low rank, bottlenecks and prefixes beside frozen weights. A fresh adapter
 * changes no bit of the model (but for a prefix), training it changes nothing else, and every
 * layout trains alike. (The numbers themselves: tests/golden, against PEFT and PyTorch.)
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { STEPS = 4 };

struct adapted {
    const char *family, *precision, *targets, *also; /* targets NULL: no adapter */
    const char *type;                                /* NULL: lora */
    int dp, tp, pp, cp, ep, zero;
    bool sequence, gather; /* cp_exchange: all_gather */
    const char *recompute;
    bool split_backward;
    double dropout;
    bool dora;
    const char *weights; /* model.quantization; NULL: plain */
};

static struct hd_job job_of(const struct harness *h, const struct adapted *a)
{
    struct hd_job job = harness_job(h, a->family, a->dp);

    job.precision = hd_job_find_word(hd_job_precision_words, a->precision);
    job.adapter = hd_job_find_word(hd_job_adapter_words, a->type      ? a->type
                                                         : a->targets ? "lora"
                                                                      : "none");
    job.adapter_targets = job_text("%s", a->targets ? a->targets : "");
    job.adapter_also = job_text("%s", a->also ? a->also : "");
    job.adapter_rank = 4;
    job.adapter_alpha = 6;
    job.adapter_b_lr = 4;
    job.adapter_width = 6;
    job.adapter_tokens = 7;
    job.adapter_dropout = a->dropout;
    job.adapter_dora = a->dora;
    if (a->weights)
        job.model_weights = hd_job_find_word(hd_job_model_weights_words, a->weights);
    job.tp = a->tp ? a->tp : 1;
    job.pp = a->pp ? a->pp : 1;
    job.cp = a->cp ? a->cp : 1;
    job.ep = a->ep ? a->ep : 1;
    job.sequence = a->sequence;
    if (a->gather)
        job.cp_exchange = HD_JOB_CP_EXCHANGE_ALL_GATHER;
    job.zero = a->zero;
    (void)snprintf(job.schedule, sizeof job.schedule, "%s",
                   a->pp < 2           ? "none"
                   : a->split_backward ? "zb-h1"
                                       : "1f1b");
    if (a->recompute)
        (void)snprintf(job.recompute, sizeof job.recompute, "%s", a->recompute);
    job.micro_batch = job.global_batch / a->dp / 2;
    return job;
}

struct visited {
    const struct run *run, *base;
    int64_t base_first; /* of the base's arrays, which have no adapter */
};

static void check_moved(const struct hd_param *p, int64_t first, void *context)
{
    const struct visited *v = context;
    const size_t bytes = (size_t)param_elements(p) * sizeof(float);
    const bool same = memcmp(v->run->initial + first, v->run->weights + first, bytes) == 0;

    if (same == p->trainable)
        fail_msg("%s, which %s, %s", p->name, p->trainable ? "trains" : "does not train",
                 same ? "has not changed" : "has changed");
    if (p->adapter && !p->trainable)
        fail_msg("%s does not train", p->name);
}

/* Goal: the adapter trains, and what is named beside it; the base keeps its bits; a fresh adapter
 * leaves the loss as it was. Method: weights before and after; the first loss against that of a run
 * without adapter. */
static void the_adapter_trains_and_begins_as_nothing(void **state)
{
    static const struct adapted cases[] = {
        {"llama", "fp32", "all-linear", .dp = 1},
        {"llama", "bf16", "all-linear", .dp = 2},
        {"llama", "fp32", "q_proj,v_proj", .dp = 1},
        {"llama", "bf16", "self_attn.k_proj,up_proj", "norms,head", .dp = 1},
        {"llama", "fp8", "all-linear", .dp = 1},
        {"gpt2", "bf16", "all-linear", .dp = 1},
        {"gpt2", "fp32", "c_attn,mlp.c_proj", "embedding", .dp = 1},
        {"qwen3", "fp32", "all-linear", .dp = 1},
        {"mixtral", "fp32", "q_proj,k_proj,v_proj,o_proj", .dp = 1},
        {"llama", "fp32", .type = "bottleneck", .dp = 1},
        {"gpt2", "bf16", .type = "bottleneck", .dp = 2},
        {"llama", "fp8", .also = "norms", .type = "bottleneck", .dp = 1},
        {"mixtral", "bf16", .type = "bottleneck", .dp = 1},
        {"llama", "bf16", .type = "prefix", .dp = 1},
        {"gpt2", "fp32", .type = "prefix", .dp = 2},
        {"mixtral", "bf16", "experts.w1,w2", .dp = 1},
        {"mixtral", "fp32", "all-linear", .dp = 1},
        {"llama", "bf16", "all-linear", .dp = 2, .dora = true},
        {"qwen3", "bf16", "k_proj,v_proj,down_proj", .dp = 1, .dora = true, .weights = "nf4"},
        {"llama", "fp8", "all-linear", .dp = 1, .dora = true},
        {"gpt2", "fp32", "all-linear", .dp = 1, .dora = true},
        {"mixtral", "fp32", "q_proj,o_proj", .dp = 1, .dora = true},
        {"phi3", "fp32", "qkv_proj,gate_up_proj", .dp = 1},
        {"phi3", "bf16", "all-linear", .dp = 1, .dora = true}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct adapted without = cases[i];
        const struct hd_job job = job_of(&h, &cases[i]);
        struct run *run = run_new(STEPS), *base = run_new(1);
        struct visited v = {run, base, 0};

        without.dora = false;
        if (!without.weights) /* codes do not train */
            without.targets = without.also = without.type = NULL;
        run_threads(job, cases[i].dp, run);
        run_threads(job_of(&h, &without), cases[i].dp, base);
        (void)printf("%s %s %s\n", cases[i].family, cases[i].precision,
                     cases[i].type ? cases[i].type : cases[i].targets);
        run_for_params(&job, check_moved, &v);
        if (cases[i].dora && strcmp(cases[i].precision, "fp32") == 0) /* a factor of 1 is rounded */
            assert_true(fabs(run->loss[0] - base->loss[0]) <= 1e-6 * base->loss[0]);
        else if (!cases[i].type || strcmp(cases[i].type, "prefix") != 0)
            assert_true(run->loss[0] == base->loss[0]);
        run_free(run);
        run_free(base);
    }
    harness_teardown(&h);
}

/* Each expert has factors of its own: they are on the rank that has the expert, and tp splits one
 * of the two. */
static void layouts_of_experts(const struct harness *h)
{
    static const struct adapted layouts[] = {
        {.dp = 2, .ep = 2},
        {.dp = 1, .tp = 2},
        {.dp = 2, .tp = 2, .ep = 2, .zero = 1},
        {.dp = 1, .cp = 2, .ep = 2},
        {.dp = 1, .pp = 2, .split_backward = true},
        {.dp = 2, .zero = 3, .recompute = "full"},
        {.dp = 2, .ep = 2, .zero = 2, .recompute = "selective"}};
    const struct adapted one = {"mixtral", "fp32", "all-linear", "norms", .dp = 1, .dropout = 0.2};
    struct run *reference = run_new(STEPS);

    run_threads(job_of(h, &one), 1, reference);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct adapted a = layouts[i];
        struct hd_job job;

        a.family = "mixtral";
        a.precision = "fp32";
        a.targets = "all-linear";
        a.also = "norms";
        a.dropout = 0.2;
        job = job_of(h, &a);
        if (compare_with(&job, reference, NULL))
            fail_msg("experts, layout %zu: %s", i, hd_err_message());
    }
    run_free(reference);
}

/* Goal: what a family has for itself trains alike in every layout, also with dropout before A: gpt2
 * has one A for q, k and v, phi3 also one for gate and up, qwen3 norms between a factor and the
 * attention. (All layouts of all
 * kinds of adapters: the tuned models of the grid.) */
static void layouts_agree_with_one_rank(void **state)
{
    static const struct adapted layouts[] = {
        {.dp = 1, .tp = 2}, {.dp = 1, .tp = 4, .recompute = "full"}, {.dp = 2, .tp = 2, .zero = 3}};
    static const char *const families[] = {"gpt2", "qwen3", "phi3"};
    struct harness h;

    harness_setup(&h, 20000);
    layouts_of_experts(&h);
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const double dropout = f ? 0 : 0.2;
        const struct adapted one = {families[f], "fp32",  "all-linear",
                                    "norms",     .dp = 1, .dropout = dropout};
        struct run *reference = run_new(STEPS);

        run_threads(job_of(&h, &one), 1, reference);
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            struct adapted a = layouts[i];
            struct hd_job job;

            a.family = families[f];
            a.precision = "fp32";
            a.targets = "all-linear";
            a.also = "norms";
            a.dropout = dropout;
            job = job_of(&h, &a);
            if (compare_with(&job, reference, NULL))
                fail_msg("%s, layout %zu: %s", families[f], i, hd_err_message());
        }
        run_free(reference);
    }
    harness_teardown(&h);
}

/* Each layout of the table against one rank, for the model and adapter of `one`. */
static void compare_layouts(const struct harness *h, struct hd_job one,
                            struct hd_job (*make)(const struct harness *h,
                                                  const struct adapted *layout),
                            const struct adapted *layouts, size_t count)
{
    struct run *reference = run_new(2);

    reference->noise = 0.05F; /* U is not zero */
    run_threads(one, 1, reference);
    for (size_t i = 0; i < count; i++) {
        const struct hd_job job = make(h, &layouts[i]);

        if (compare_with(&job, reference, NULL))
            fail_msg("layout %zu: %s", i, hd_err_message());
    }
    run_free(reference);
}

static struct hd_job behind_experts(const struct harness *h, const struct adapted *layout)
{
    struct adapted a = *layout;

    a.family = "mixtral";
    a.precision = "fp32";
    a.type = "bottleneck";
    a.also = "norms";
    a.dropout = 0.2;
    return job_of(h, &a);
}

/* Goal: the same of bottlenecks, which stand behind attention and behind experts, on rows that
 * sequence parallelism and cp share out. Method: each axis against one rank; dropout on. */
static void bottlenecks_train_alike_in_every_layout(void **state)
{
    static const struct adapted layouts[] = {{.dp = 1, .tp = 2},
                                             {.dp = 1, .tp = 4, .sequence = true},
                                             {.dp = 1, .cp = 2, .recompute = "selective"},
                                             {.dp = 2, .ep = 2, .zero = 1},
                                             {.dp = 2, .tp = 2, .sequence = true, .zero = 3},
                                             {.dp = 1, .pp = 2, .split_backward = true},
                                             {.dp = 1, .cp = 2, .zero = 2, .recompute = "full"}};
    struct harness h;

    harness_setup(&h, 20000);
    compare_layouts(&h, behind_experts(&h, &(struct adapted){.dp = 1}), behind_experts, layouts,
                    sizeof layouts / sizeof layouts[0]);
    harness_teardown(&h);
}

static struct hd_job with_magnitudes(const struct harness *h, const struct adapted *layout)
{
    struct adapted a = *layout;

    a.precision = "fp32";
    a.also = "norms";
    a.dropout = 0.2;
    a.dora = true;
    return job_of(h, &a);
}

/* Goal: the same of magnitudes, whose norms tp ranks share or add up: of all linears, with biases;
 * of keys and values alone, whose columns are between others, and of which two ranks have one head
 * at tp = 4; of codes. Method: each axis against one rank; the factors are not zero. */
static void magnitudes_train_alike_in_every_layout(void **state)
{
    static const struct adapted layouts[] = {
        {.dp = 1, .tp = 2},
        {.dp = 1, .tp = 4, .sequence = true, .recompute = "selective"},
        {.dp = 1, .cp = 2, .zero = 2},
        {.dp = 1, .pp = 2, .split_backward = true},
        {.dp = 2, .tp = 2, .sequence = true, .zero = 3, .recompute = "full"},
        {.dp = 2, .zero = 1, .recompute = "full"}};
    enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };
    static const struct adapted models[] = {{"gpt2", .targets = "all-linear"},
                                            {"llama", .targets = "k_proj,v_proj,o_proj,down_proj"},
                                            {"llama", .targets = "all-linear", .weights = "int8"}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        struct adapted all[LAYOUTS], one = models[m];

        one.dp = 1;
        for (int i = 0; i < LAYOUTS; i++) {
            all[i] = layouts[i];
            all[i].family = one.family;
            all[i].targets = one.targets;
            all[i].weights = one.weights;
        }
        (void)printf("%s %s\n", one.family, one.targets);
        compare_layouts(&h, with_magnitudes(&h, &one), with_magnitudes, all,
                        one.weights ? 2 : LAYOUTS);
    }
    harness_teardown(&h);
}

/* A window of 5 on documents, and attention drops weights, those of the prefix too. */
static struct hd_job behind_a_prefix(const struct harness *h, const struct adapted *layout)
{
    struct adapted a = *layout;
    struct hd_job job;

    a.family = "mistral";
    a.precision = "fp32";
    a.type = "prefix";
    a.also = "norms";
    job = job_of(h, &a);
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.end_of_text = '\n';
    job.dropout_attention = 0.2;
    return job;
}

/* Goal: within a window every query sees a prefix once, whatever rank has its document's keys. */
static void prefixes_train_alike_in_every_layout(void **state)
{
    static const struct adapted layouts[] = {
        {.dp = 1, .cp = 2}, {.dp = 1, .cp = 4, .gather = true, .recompute = "full"}};
    struct harness h;

    harness_setup(&h, 20000);
    compare_layouts(&h, behind_a_prefix(&h, &(struct adapted){.dp = 1}), behind_a_prefix, layouts,
                    sizeof layouts / sizeof layouts[0]);
    harness_teardown(&h);
}

/* Goal: a stop changes no bit, and layouts read each other's. */
static void resume_bit_for_bit(const struct adapted *one, const struct adapted *two)
{
    struct run *saving = run_new(2), *loading = run_new(2), *crossing = run_new(0);
    struct hd_saved saved;
    struct harness h;
    struct hd_job job, other;

    harness_setup(&h, 20000);
    job = job_of(&h, one);
    other = job_of(&h, two);
    run_save(&job, 2, saving, &saved);
    run_load(&job, &saved, loading);
    run_load(&other, &saved, crossing);
    run_compare_state(saving, loading);
    run_compare_state(saving, crossing);
    for (int i = 0; i < 2; i++)
        assert_true(saving->loss[i] == loading->loss[i] && saving->loss[i] > 0);
    run_free(saving);
    run_free(loading);
    run_free(crossing);
    harness_teardown(&h);
}

static void a_checkpoint_is_resumed_bit_for_bit(void **state)
{
    const struct adapted one = {"llama", "bf16", "all-linear", .dp = 1};
    const struct adapted two = {"llama", "bf16", "all-linear", .dp = 1, .tp = 2};
    const struct adapted behind = {"mixtral", "bf16", .type = "bottleneck", .dp = 1};
    const struct adapted split = {
        "mixtral", "bf16", .type = "bottleneck", .dp = 2, .tp = 2, .sequence = true, .zero = 3};
    const struct adapted rows = {"llama", "bf16", "all-linear", .dp = 1, .dora = true};
    const struct adapted cut = {"llama", "bf16",           "all-linear", .dp = 2,
                                .tp = 4, .sequence = true, .zero = 3,    .dora = true};
    const struct adapted prefix = {"llama", "bf16", .type = "prefix", .dp = 1};
    const struct adapted copied = {"llama", "bf16", .type = "prefix", .dp = 2, .tp = 4, .zero = 1};

    resume_bit_for_bit(&one, &two);
    resume_bit_for_bit(&behind, &split);
    resume_bit_for_bit(&prefix, &copied);
    resume_bit_for_bit(&rows, &cut);
}

/* Goal: dropout drops what the adapter sees, in training alone. Method: against a run without it:
 * the first loss is that of the base, the second, when B is no longer zero, is another; validation,
 * at equal weights, is the same. */
static void check_dropout(struct adapted a)
{
    struct run *without = run_new(STEPS), *with = run_new(STEPS), *still[2];
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    run_threads(job_of(&h, &a), 1, without);
    a.dropout = 0.5;
    run_threads(job_of(&h, &a), 1, with);
    assert_true(with->loss[0] == without->loss[0]);
    assert_true(with->loss[1] != without->loss[1]);
    for (int i = 0; i < 2; i++) { /* nothing moves */
        a.dropout = i ? 0.5 : 0;
        job = job_of(&h, &a);
        job.lr_peak = job.lr_min = 0;
        still[i] = run_new(1);
        still[i]->noise = 0.1F; /* B is not zero */
        run_threads(job, 1, still[i]);
    }
    assert_true(still[0]->loss[0] != still[1]->loss[0]);
    assert_true(still[0]->validation_loss == still[1]->validation_loss);
    run_free(still[0]);
    run_free(still[1]);
    run_free(without);
    run_free(with);
    harness_teardown(&h);
}

static void dropout_is_of_training_alone(void **state)
{
    check_dropout((struct adapted){"llama", "fp32", "all-linear", .dp = 1});
    check_dropout((struct adapted){"mixtral", "fp32", "w1,w2", .dp = 1});
}

static enum hd_status declare(const struct hd_job *job, struct hd_arena *arena,
                              struct hd_registry *registry)
{
    struct hd_model_config config;
    struct hd_model model;
    const enum hd_status st = hd_model_config_from_job(job, &config);

    hd_registry_init(registry, arena, NULL, 0);
    return st ? st : hd_model_declare(&config, registry, arena, &model);
}

/* Goal: names, shapes and first values are those of the paper. Method: A within its bound and
 * filling it, B zero, in shapes by hand. */
static void factors_are_declared_as_in_the_paper(void **state)
{
    const struct adapted a = {"llama", "fp32", "v_proj,down_proj", .dp = 1};
    struct hd_registry r;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;
    int factors = 0;

    harness_setup(&h, 20000);
    job = job_of(&h, &a);
    hd_arena_init(&arena, 0);
    assert_int_equal(declare(&job, &arena, &r), HD_OK);
    for (int i = 0; i < r.param_count; i++) {
        const struct hd_param *p = &r.params[i];
        const bool is_a = strstr(p->name, "lora_a") != NULL, down = strstr(p->name, "mlp.") != NULL;
        const int64_t in = down ? 48 : 32, out = down ? 32 : 16;
        float values[48 * 4], most = 0;

        if (!p->adapter)
            continue;
        factors++;
        assert_int_equal(p->shape[0], is_a ? 4 : out);
        assert_int_equal(p->shape[1], is_a ? in : 4);
        assert_false(p->decay);
        assert_true(p->lr_scale == (is_a ? 1 : 4));
        hd_param_init_values(p, 7, 0, p->count, values);
        for (int64_t k = 0; k < p->count; k++)
            most = values[k] > most ? values[k] : -values[k] > most ? -values[k] : most;
        if (is_a) {
            assert_true(most * most * (float)in <= 1);
            assert_true(most * most * (float)in > 0.9F);
        } else {
            assert_true(most == 0);
        }
    }
    assert_int_equal(factors, 2 * 2 * 2);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

struct magnitudes {
    const float *values;
    int64_t first[64];
    int count, found;
};

static void note(const struct hd_param *p, int64_t first, void *context)
{
    struct magnitudes *m = context;

    assert_true(m->count < 64);
    m->first[m->count++] = first;
    if (p->init != HD_INIT_NORMS)
        return;
    assert_true(p->trainable && p->adapter && !p->decay && p->dim_count == 1);
    for (int64_t n = 0; n < p->shape[0]; n++) {
        const int64_t K = strstr(p->name, "down") ? 48 : 32;
        const float *w = m->values + m->first[p->norms_of] + n * K;
        double squares = 0;

        for (int64_t k = 0; k < K; k++)
            squares += (double)w[k] * (double)w[k];
        assert_true(m->values[first + n] == (float)sqrt(squares));
    }
    m->found++;
}

/* Goal: magnitudes begin as the norms of the rows that compute. Method: by hand, of the weights
 * that a run begins with; in bf16 these are rounded. */
static void magnitudes_begin_as_norms(void **state)
{
    static const char *const precisions[] = {"fp32", "bf16"};
    struct harness h;

    harness_setup(&h, 20000);
    for (int i = 0; i < 2; i++) {
        const struct adapted a = {"llama", precisions[i], "q_proj,v_proj,down_proj", .dp = 1,
                                  .dora = true};
        const struct hd_job job = job_of(&h, &a);
        struct run *run = run_new(1);
        struct magnitudes m = {0};

        run_threads(job, 1, run);
        m.values = run->initial;
        run_for_params(&job, note, &m);
        assert_int_equal(m.found, 3 * 2);
        run_free(run);
    }
    harness_teardown(&h);
}

/* Goal: MFU counts the products of bottlenecks, whose weights train, and not the gradients of
 * frozen ones; one A of gate and up once. Method: by hand. Weights of a block: q, out 32 x 32, k, v 16 x 32, MLP 3 x 48 x 32,
 * together 7680; D and U twice, 4 x 6 x 32 = 768; (16 + 1) / 2 visible tokens; the head is frozen.
 */
static void the_work_of_adapters_is_counted(void **state)
{
    const struct adapted a = {"llama", "fp32", .type = "bottleneck", .dp = 1};
    const struct adapted prefix = {"llama", "fp32", .type = "prefix", .dp = 1};
    const struct adapted stack = {"gpt_oss", "fp32", "experts.gate_up_proj", .dp = 1};
    struct hd_model_config config;
    double flops[2];
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, &a);
    assert_int_equal(hd_model_config_from_job(&job, &config), HD_OK);
    assert_true(hd_model_flops_per_token(&config) ==
                2 * (4 * (7680 + 768) + 2 * 768 + 12 * 4 * 8 * 8.5) + 4 * 32 * 256);
    job = job_of(&h, &stack);
    for (int i = 0; i < 2; i++, job.adapter_rank *= 2) {
        assert_int_equal(hd_model_config_from_job(&job, &config), HD_OK);
        flops[i] = hd_model_flops_per_token(&config);
    }
    /* four more rows of A and columns of B in each block's chosen experts */
    assert_true(flops[1] - flops[0] == 2 * 6 * 4 * (double)job.experts_per_token *
                                           (double)(job.hidden + 2 * job.ffn_hidden));
    job = job_of(&h, &prefix); /* each token sees 7 keys more */
    assert_int_equal(hd_model_config_from_job(&job, &config), HD_OK);
    assert_true(hd_model_flops_per_token(&config) ==
                2 * (4 * 7680 + 12 * 4 * 8 * (8.5 + 7)) + 4 * 32 * 256);
    harness_teardown(&h);
}

/* Goal: D [width, C] is uniform within 1 / sqrt(C) and fills it, U [C, width] is zero, behind both
 * halves of each block, whole on every tp rank. Method: by hand; C = 32, two blocks. */
static void bottlenecks_are_declared_as_the_header_says(void **state)
{
    const struct adapted a = {"llama", "fp32", .type = "bottleneck", .dp = 1};
    struct hd_registry r;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;
    int found = 0;

    harness_setup(&h, 20000);
    job = job_of(&h, &a);
    hd_arena_init(&arena, 0);
    assert_int_equal(declare(&job, &arena, &r), HD_OK);
    for (int i = 0; i < r.param_count; i++) {
        const struct hd_param *p = &r.params[i];
        const bool down = strstr(p->name, ".down") != NULL;
        float values[32 * 6], most = 0;

        if (!p->adapter)
            continue;
        found++;
        assert_true(strstr(p->name, "adapter1.") || strstr(p->name, "adapter2."));
        assert_int_equal(p->shape[0], down ? 6 : 32);
        assert_int_equal(p->shape[1], down ? 32 : 6);
        assert_true(p->trainable && !p->decay);
        hd_param_init_values(p, 7, 0, p->count, values);
        for (int64_t k = 0; k < p->count; k++)
            most = values[k] > most ? values[k] : -values[k] > most ? -values[k] : most;
        assert_true(down ? most * most * 32 <= 1 && most * most * 32 > 0.9F : most == 0);
    }
    assert_int_equal(found, 2 * 2 * 2);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* Goal: a wrong text is refused with the choices that exist. */
static void wrong_texts_are_refused_by_name(void **state)
{
    static const struct {
        const char *family, *targets, *only, *message, *also;
    } wrong[] = {
        {"llama", "c_attn", "all", "llama has no module 'c_attn'; its modules are self_attn.q_proj",
         NULL},
        {"llama", "proj", "all", "llama has no module 'proj'", NULL},
        {"gpt2", "q_proj", "all", "gpt2 has no module 'q_proj'; its modules are attn.c_attn", NULL},
        {"llama", "", "all", "train.adapter.targets: is empty", NULL},
        {"llama", "q_proj", "norms", "train.trainable: with train.adapter the adapter trains",
         NULL},
        {"mixtral", "gate_proj", "all",
         "mixtral has no module 'gate_proj'; its modules are self_attn.q_proj", NULL},
        /* a stack is named with a point: a dense layer may have a down_proj, too */
        {"gpt_oss", "down_proj", "all",
         "gpt_oss has no module 'down_proj'; its modules are self_attn.q_proj, self_attn.k_proj, "
         "self_attn.v_proj, self_attn.o_proj, mlp.experts.gate_up_proj, mlp.experts.down_proj",
         NULL},
        {"llama", "q_proj", "all", "train.adapter.trainable: 'lm_head' names no parameter",
         "lm_head"},
        {"gpt2", "alibi", "all", "a prefix has no position", NULL},
        {"mixtral", "q_proj,w2", "dora",
         "train.adapter.dora: the adapters of experts have no magnitudes", NULL}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct adapted a = {wrong[i].family, "fp32", wrong[i].targets, wrong[i].also,
                                  .dp = 1};
        struct hd_job job = job_of(&h, &a);
        struct hd_registry r;
        struct hd_arena arena;

        job.adapter_dora = strcmp(wrong[i].only, "dora") == 0;
        job.only = job_text("%s", job.adapter_dora ? "all" : wrong[i].only);
        if (strcmp(wrong[i].targets, "alibi") == 0) {
            job.positions = HD_JOB_POSITIONS_ALIBI;
            job.adapter = HD_JOB_ADAPTER_PREFIX;
        }
        hd_arena_init(&arena, 0);
        assert_int_not_equal(declare(&job, &arena, &r), HD_OK);
        if (!strstr(hd_err_message(), wrong[i].message))
            fail_msg("%s: %s", wrong[i].targets, hd_err_message());
        hd_arena_done(&arena);
    }
    harness_teardown(&h);
}

RUN_CASES()
