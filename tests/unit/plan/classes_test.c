/* Ranks of one class cannot differ: what a plan says of a rank is what the rank has, laid out by
 * itself as a rank does it.
 */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

enum { CASES = HD_TEST_SANITIZED ? 25 : 220, SEED = 20261123, WORLD_MAX = 64 };

static uint32_t random_state;

static int below(int n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (uint32_t)n);
}

static const char *word_of(const char *const *words, int count)
{
    return words[below(count)];
}

static void set(char *member, const char *word)
{
    (void)snprintf(member, HD_JOB_WORD_MAX, "%s", word);
}

/* A model whose parts are of several chunks of the norm (64 Ki elements), so that shards cut them
 * anywhere and the last ones may be empty. */
static void choose_model(struct hd_job *job)
{
    static const char *const families[] = {"gpt2",    "llama", "mistral",      "mixtral",
                                           "mixtral", "qwen3", "qwen3_5_text", "lfm2"};
    const char *family = word_of(families, 8);

    job->family = family;
    job->positions =
        hd_job_find_word(hd_job_positions_words, strcmp(family, "gpt2") == 0 ? "learned" : "rope");
    job->layers = 2 + below(6);
    job->heads = 8;
    job->head_width = 32;
    job->hidden = 256;
    job->kv_heads = strcmp(family, "gpt2") == 0 ? 8 : 1 << below(4);
    job->ffn_hidden = 512;
    job->vocab = 1000 + below(40);
    job->context = 96;
    job->tie_embeddings = below(2);
    if (strcmp(family, "mistral") == 0) {
        job->window = 8 + below(40);
        job->window_from = below(3);
    }
    if (strcmp(family, "qwen3_5_text") == 0) {
        job->delta_layers = "1:1";
        job->delta_key_heads = 8;
        job->delta_value_heads = 16;
        job->delta_key_width = 32;
        job->delta_value_width = 16;
        job->delta_conv_width = 4;
    }
    if (strcmp(family, "lfm2") == 0) {
        job->conv_layers = "1:1";
        job->conv_width = 4;
    }
    if (strcmp(family, "mixtral") == 0) {
        job->experts = 4;
        job->experts_per_token = 2;
        job->capacity = below(2) ? 1.25 : 0;
    }
}

/* Makes blocks of up to eight kinds. */
static void mix_kinds(struct hd_job *job)
{
    static const char *const rules[] = {"all", "1:1", "0:1:2", "2:1"};

    if (strcmp(job->family, "mixtral") != 0)
        return;
    job->window = below(2) ? 8 + below(40) : 0;
    job->dense_ffn_hidden = 512;
    job->window_layers = job_text("%s", word_of(rules, 4));
    job->rope_layers = job_text("%s", word_of(rules, 4));
    job->experts_layers = job_text("%s", word_of(rules, 4));
}

static void choose_layout(struct hd_job *job)
{
    static const char *const recompute[] = {"none", "selective", "full", "full:2"};
    static const char *const schedules[] = {"1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"};

    do {
        job->pp = 1 + below(4);
        job->dp = 1 + below(6);
        job->cp = 1 + below(4);
        job->tp = 1 << below(4);
    } while (job->pp * job->dp * job->cp * job->tp > WORLD_MAX);
    job->ep = job->experts ? 1 << below(3) : 1;
    job->zero = below(4);
    job->zero_shard = job->zero && below(2) ? job->ep * (1 + below(3)) : 0;
    job->sequence = job->tp > 1 && below(2);
    job->micro_batch = 1 + below(2);
    job->global_batch = job->dp * job->micro_batch * (1 + below(5));
    job->virtual_stages = 1;
    set(job->recompute, word_of(recompute, 4));
    job->cp_exchange = below(2) ? HD_JOB_CP_EXCHANGE_RING : HD_JOB_CP_EXCHANGE_ALL_GATHER;
    set(job->schedule, job->pp > 1 ? word_of(schedules, 5) : "none");
    if (strcmp(job->schedule, "interleaved") == 0 || strcmp(job->schedule, "zb-v") == 0)
        job->virtual_stages = 2;
}

static struct hd_job random_job(void)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    struct hd_job job =
        HD_JOB(.rope_factor = 1, .rope_theta = 1e4, .norm_eps = 1e-5, .steps = 10, .lr_peak = 1e-3,
               .beta1 = 0.9, .beta2 = 0.95, .adam_eps = 1e-8, .clip = 1, .threads = 4);

    job.name = "random";
    job.order = HD_JOB_ORDER_SEQUENTIAL;
    job.rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    set(job.stages, "auto");
    job.lr_decay = HD_JOB_LR_DECAY_CONSTANT;
    job.documents = below(2) ? HD_JOB_DOCUMENTS_JOINED : HD_JOB_DOCUMENTS_BOUNDED;
    job.precision = hd_job_find_word(hd_job_precision_words, word_of(precisions, 3));
    job.moments = below(2) ? HD_JOB_MOMENTS_FP32 : HD_JOB_MOMENTS_INT8;
    job.reduce = below(2) ? HD_JOB_REDUCE_FP32 : HD_JOB_REDUCE_BF16;
    job.offload = below(2) ? HD_JOB_OFFLOAD_NONE : HD_JOB_OFFLOAD_OPTIMIZER;
    choose_model(&job);
    mix_kinds(&job);
    choose_layout(&job);
    job.checkpoint_async = below(3) == 0;
    job.profile_first = job.profile_last = below(4) == 0;
    return job;
}

static void describe(struct hd_traits *ret_traits)
{
    if (below(2)) {
        hd_gpu_kind_traits(hd_gpu_kind_find("h100"), ret_traits);
        return;
    }
    *ret_traits = (struct hd_traits){.backend = "cpu",
                                     .isa = "avx2",
                                     .library = "own",
                                     .threads = 4,
                                     .vector_bytes = 32,
                                     .page_bytes = 4096};
}

static void name_rank(const struct hd_job *job, int rank, const char *what)
{
    fail_msg("rank %d has another %s than its class: %s, vocabulary %d, tp %d pp %d dp %d cp %d "
             "ep %d zero %d of %d, %s, async %d",
             rank, what, job->family, (int)job->vocab, (int)job->tp, (int)job->pp, (int)job->dp,
             (int)job->cp, (int)job->ep, (int)job->zero, (int)job->zero_shard, job->schedule,
             job->checkpoint_async);
}

static bool is_same_work(const struct hd_dry *a, const struct hd_dry *b)
{
    return a->costs.flops == b->costs.flops && a->gemm_flops == b->gemm_flops &&
           a->costs.read_bytes == b->costs.read_bytes &&
           a->costs.write_bytes == b->costs.write_bytes &&
           memcmp(a->calls, b->calls, sizeof a->calls) == 0 &&
           memcmp(a->group_bytes, b->group_bytes, sizeof a->group_bytes) == 0;
}

static void check_rank(const struct hd_job *job, const struct hd_traits *traits, int rank,
                       const struct hd_plan_class *told)
{
    struct hd_dry step = {0};
    struct hd_rank_program layout;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    if (hd_rank_program_build(job, rank, traits, &(struct hd_rank_program_options){0}, &arena,
                              &layout))
        fail_msg("%s", hd_err_message());
    for (int32_t i = 0; i < layout.plan.count; i++)
        hd_rank_program_fold(&layout, &layout.plan.list[i], &step);
    if (memcmp(&layout.memory, &told->memory, sizeof told->memory))
        name_rank(job, rank, "memory");
    if (!is_same_work(&step, &told->step))
        name_rank(job, rank, "work");
    if (layout.plan.saved_slots != told->saved_slots ||
        layout.plan.deferred_slots != told->deferred_slots ||
        layout.plan.stage_io_slots != told->stage_io_slots || layout.coord.pp != told->stage)
        name_rank(job, rank, "list");
    if (hd_traits_is_cuda(traits) &&
        hd_rank_program_gpu_overhead(&layout, traits).communicators_bytes !=
            told->overhead.communicators_bytes)
        name_rank(job, rank, "overhead");
    hd_arena_done(&arena);
}

/* Holds each rank of the job against its class; false: no rank could be laid out. */
static bool check_job(const struct hd_job *job, const struct hd_traits *traits, int *ret_ranks,
                      int *ret_classes)
{
    struct hd_arena arena;
    struct hd_plan plan;
    bool built;

    hd_arena_init(&arena, 0);
    built = !hd_plan_build(job, traits, &arena, &plan);
    for (int32_t r = 0; built && r < plan.mesh.world; r++)
        check_rank(job, traits, r, hd_plan_rank(&plan, r));
    *ret_ranks = built ? plan.mesh.world : 0;
    *ret_classes = built ? plan.class_count : 0;
    hd_arena_done(&arena);
    return built;
}

/* Random models and meshes. Those that no rank could lay out are left out. */
static void a_class_is_each_of_its_ranks(void **state)
{
    int built = 0, ranks = 0, classes = 0;

    random_state = SEED;
    for (int i = 0; i < CASES; i++) {
        const struct hd_job job = random_job();
        struct hd_traits traits;
        int some_ranks, some_classes;

        describe(&traits);
        built += check_job(&job, &traits, &some_ranks, &some_classes);
        ranks += some_ranks;
        classes += some_classes;
    }
    print_message("%d jobs of %d ranks in %d classes\n", built, ranks, classes);
    assert_true(built >= CASES / 2);
    assert_true(3 * classes < 2 * ranks);
}

/* Two ranks of ep among the three of cp: the groups of data index 0-1 and 4-5 have samples of one
 * dp index, 2-3 of two, so that with a capacity more rows may arrive. */
static void a_group_of_experts_with_more_samples_is_another_class(void **state)
{
    struct hd_traits traits;
    struct hd_job job;
    int ranks, classes;

    random_state = SEED;
    job = random_job();
    job.family = "mixtral";
    job.positions = HD_JOB_POSITIONS_ROPE;
    set(job.schedule, "none");
    set(job.recompute, "none");
    job.window = job.zero = job.zero_shard = 0;
    job.conv_width = job.delta_value_heads = 0;
    job.dense_ffn_hidden = 0;
    job.window_layers = "all";
    job.rope_layers = "all";
    job.experts_layers = "all";
    job.experts = 4;
    job.experts_per_token = 2;
    job.capacity = 1.25;
    job.pp = job.tp = job.virtual_stages = job.micro_batch = 1;
    job.dp = job.ep = job.global_batch = 2;
    job.cp = 3;
    job.sequence = job.checkpoint_async = false;
    describe(&traits);
    assert_true(check_job(&job, &traits, &ranks, &classes));
    assert_int_equal(ranks, 6);
    /* 0: counts all; 1: counts its experts; 2 and 3: more samples; 4 and 5 */
    assert_int_equal(classes, 4);
}

/* By hand: without ZeRO a stage has the ranks that count (dp 0) and the others, and among the
 * ranks of tp the first, which counts what all have, and the last, whose share of 1001 tokens is
 * padded; only the ends of the pipeline have the vocabulary. */
static void classes_are_few(void **state)
{
    static const struct {
        int64_t pp, dp, tp, vocab;
        int32_t classes;
    } cases[] = {
        {1, 8, 1, 1001, 2},     /* counts, or not */
        {1, 8, 4, 1024, 2 * 2}, /* x tp 0, others */
        {1, 8, 4, 1001, 2 * 3}, /* x tp 0, others, last */
        {4, 8, 4, 1001, 2 * (3 + 2 + 2 + 3)},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_traits traits;
        struct hd_arena arena;
        struct hd_plan plan;
        struct hd_job job;

        random_state = SEED;
        job = random_job();
        job.family = "llama";
        job.positions = HD_JOB_POSITIONS_ROPE;
        set(job.schedule, cases[i].pp > 1 ? "1f1b" : "none");
        job.window = job.experts = 0;
        job.layers = 8;
        job.kv_heads = 8;
        job.pp = cases[i].pp;
        job.dp = cases[i].dp;
        job.tp = cases[i].tp;
        job.vocab = cases[i].vocab;
        job.cp = job.ep = job.micro_batch = job.virtual_stages = 1;
        job.zero = job.zero_shard = 0;
        job.global_batch = 16;
        job.sequence = job.checkpoint_async = false;
        describe(&traits);
        hd_arena_init(&arena, 0);
        if (hd_plan_build(&job, &traits, &arena, &plan))
            fail_msg("%s", hd_err_message());
        assert_int_equal(plan.class_count, cases[i].classes);
        hd_arena_done(&arena);
    }
}

RUN_CASES()
