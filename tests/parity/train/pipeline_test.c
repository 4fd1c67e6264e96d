/* Pipelines: that they train like one rank, on models of eight units and more and on few and odd
 * numbers of micro-batches; what they send, against closed forms; and checkpoints that cross from
 * one pp to another. tests/parity/grid pairs pp with every other axis.
 */
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "traffic.h"

enum { STEPS = 4, LAYERS = 6, C = 32, S = 16 };

struct layout {
    const char *family, *schedule;
    int pp, virtual_stages, micro_batch;
    const char *stages; /* NULL: auto */
    const char *order;  /* schedule file: its text */
    int tp, dp, cp;     /* 0: 1 */
    void (*change)(struct hd_job *job);
};

static void drop(struct hd_job *job)
{
    job->dropout_embedding = 0.1;
    job->dropout_attention = 0.3;
    job->dropout_residual = 0.2;
}

static void bound(struct hd_job *job)
{
    job->documents = HD_JOB_DOCUMENTS_BOUNDED;
    job->end_of_text = '\n';
}

static void untie(struct hd_job *job)
{
    job->tie_embeddings = false;
}

/* Orders that no schedule makes, for four micro-batches. The first runs three ahead and puts W off
 * further and further; in the second stage 1 runs all F of one chunk before the other; the last is
 * a V without W. */
#define OWN_ORDER                                                      \
    "0: F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 W0.0 B0.2 B0.3 W0.1 W0.2 W0.3\n" \
    "1: F1.0 B1.0 F1.1 F1.2 B1.1 W1.0 B1.2 F1.3 B1.3 W1.1 W1.2 W1.3\n"
#define OWN_CHUNKS                                                              \
    "0: F0.0 F0.1 F2.0 F0.2 F2.1 F0.3 F2.2 F2.3 B2.0 B0.0 B2.1 B2.2 B0.1 B2.3 " \
    "B0.2 B0.3\n"                                                               \
    "1: F1.0 F1.1 F1.2 F1.3 F3.0 F3.1 B3.0 B1.0 B3.1 F3.2 F3.3 B3.2 B1.1 B3.3 " \
    "B1.2 B1.3\n"
#define OWN_V                                                                   \
    "0: F0.0 F0.1 F3.0 B3.0 F0.2 F3.1 B3.1 F0.3 B0.0 F3.2 B3.2 B0.1 F3.3 B3.3 " \
    "B0.2 B0.3\n"                                                               \
    "1: F1.0 F2.0 F1.1 F2.1 B2.0 F1.2 B1.0 F2.2 B2.1 B1.1 F1.3 F2.3 B2.2 B1.2 " \
    "B2.3 B1.3\n"

static struct hd_job job_of(const struct harness *h, const struct layout *l, bool one_rank)
{
    struct hd_job job = harness_job(h, l->family, 1);

    job.layers = LAYERS;
    job.micro_batch = 2;
    if (strcmp(l->family, "mixtral") == 0)
        job.layers = 3; /* RUN_ELEMENTS_MAX */
    if (l->change)
        l->change(&job);
    if (one_rank)
        return job;
    job.pp = l->pp;
    job.tp = l->tp ? l->tp : 1;
    job.dp = l->dp ? l->dp : 1;
    job.cp = l->cp ? l->cp : 1;
    job.micro_batch = l->micro_batch;
    job.virtual_stages = l->virtual_stages ? l->virtual_stages : 1;
    (void)snprintf(job.schedule, sizeof job.schedule, "%s", l->schedule);
    job.schedule_order = l->order;
    job.order_micro_batches = l->order ? 4 : 0;
    (void)snprintf(job.stages, sizeof job.stages, "%s", l->stages ? l->stages : "auto");
    return job;
}

/* Eight sequences per step: micro-batches of 8 / dp / micro_batch. */
static const struct layout layouts[] = {
    /* family, schedule, pp, virtual stages */
    {"llama", "1f1b", 2, 1, .micro_batch = 2},
    {"llama", "1f1b", 4, 1, .micro_batch = 1},
    /* one micro-batch: fewer than stages */
    {"llama", "1f1b", 4, 1, .micro_batch = 8},
    /* every unit a stage: the head alone */
    {"llama", "1f1b", 8, 1, .micro_batch = 4},
    {"llama", "gpipe", 4, 1, .micro_batch = 2},
    {"llama", "interleaved", 2, 3, .micro_batch = 2},
    /* eight chunks */
    {"llama", "interleaved", 4, 2, .micro_batch = 1},
    /* two micro-batches: fewer than stages */
    {"llama", "interleaved", 4, 2, .micro_batch = 4},
    /* four micro-batches: no multiple of stages */
    {"llama", "interleaved", 3, 2, .micro_batch = 2},
    {"llama", "zb-h1", 4, 1, .micro_batch = 1},
    {"llama", "zb-v", 2, 2, .micro_batch = 2},
    {"llama", "zb-v", 4, 2, .micro_batch = 1},
    {"llama", "1f1b", 4, 1, .micro_batch = 2, .stages = "0,4,1,1"},
    {"llama", "file", 2, 1, .order = OWN_ORDER, .micro_batch = 2},
    {"llama", "file", 2, 2, .order = OWN_CHUNKS, .micro_batch = 1, .dp = 2},
    {"llama", "file", 2, 2, .order = OWN_V, .micro_batch = 2, .tp = 2},
    {"llama", "1f1b", 2, 1, .micro_batch = 2, .stages = "5,1", .tp = 2, .dp = 2},
    /* a tied head on another stage */
    {"gpt2", "1f1b", 4, 1, .micro_batch = 2},
    {"gpt2", "interleaved", 2, 2, .micro_batch = 2, .dp = 2},
    /* on the same stage, in another chunk */
    {"gpt2", "zb-v", 2, 2, .micro_batch = 2},
    {"gpt2", "zb-h1", 2, 1, .micro_batch = 2, .tp = 2, .dp = 2},
    {"gpt2", "zb-v", 4, 2, .micro_batch = 2, .tp = 2},
    {"llama", "1f1b", 2, 1, .micro_batch = 2, .cp = 2},
    {"llama", "interleaved", 2, 2, .micro_batch = 2, .dp = 2, .cp = 2},
    {"gpt2", "1f1b", 2, 1, .micro_batch = 2, .dp = 2, .change = drop},
    /* documents, which middle stages do not see */
    {"llama", "zb-v", 2, 2, .micro_batch = 2, .cp = 2, .change = bound},
    {"mixtral", "1f1b", 2, 1, .micro_batch = 2},
    {"mixtral", "zb-v", 2, 2, .micro_batch = 2, .dp = 2},
};

static void describe(const struct layout *l, char ret_text[160])
{
    (void)snprintf(ret_text, 160, "%s pp=%d %s v=%d micro_batch=%d stages=%s tp=%d dp=%d cp=%d",
                   l->family, l->pp, l->schedule, l->virtual_stages, l->micro_batch,
                   l->stages ? l->stages : "auto", l->tp, l->dp, l->cp);
}

/* Layouts of one family and change stand together and share the run on one rank. */
static void every_schedule_trains_like_one_rank(void **state)
{
    struct run *reference = NULL;
    struct harness h;
    int failed = 0;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct layout *l = &layouts[i], *before = i ? l - 1 : NULL;
        const struct hd_job job = job_of(&h, l, false);
        struct traffic traffic = {0};
        double worst = 0;
        char text[160];
        enum hd_status st;

        if (!before || strcmp(before->family, l->family) != 0 || before->change != l->change) {
            run_free(reference);
            reference = run_new(STEPS);
            reference->noise = 0.01F;
            run_threads(job_of(&h, l, true), 1, reference);
        }
        describe(l, text);
        st = compare_with(&job, reference, &worst);
        if (!st)
            st = traffic_try(&job, &traffic);
        if (!st)
            st = traffic_compare_dry(&traffic, &job);
        (void)printf("%s %s: gradients %.1e apart%s%s\n", st ? "FAIL" : "PASS", text, worst,
                     st ? ": " : "", st ? hd_err_message() : "");
        failed += st != HD_OK;
    }
    run_free(reference);
    harness_teardown(&h);
    assert_int_equal(failed, 0);
}

/* Goal: the schedule in each rank's program, written again, is the text; one micro-batch more or
 * less is refused. */
static void ranks_run_the_order_of_the_job(void **state)
{
    static const struct layout own[] = {
        {.family = "llama", .schedule = "file", .order = OWN_ORDER, .pp = 2, .micro_batch = 2},
        {.family = "llama",
         .schedule = "file",
         .order = OWN_V,
         .pp = 2,
         .virtual_stages = 2,
         .micro_batch = 2}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        for (int rank = 0; rank < 2; rank++) {
            struct hd_job job = job_of(&h, &own[i], false);
            const struct hd_backend_options backend = {.threads = (int)job.threads};
            struct hd_traits traits;
            struct hd_text text = {0};
            struct hd_rank_program layout;
            struct hd_arena arena;

            hd_arena_init(&arena, 0);
            harness_backend()->describe(&backend, &traits);
            run_layout_of(&job, rank, &(struct hd_rank_program_options){0}, &arena, &layout);
            hd_schedule_write(&layout.order, &text);
            assert_string_equal(text.data, own[i].order);
            job.global_batch += job.micro_batch;
            assert_int_equal(hd_rank_program_build(&job, rank, &traits,
                                                   &(struct hd_rank_program_options){0}, &arena,
                                                   &layout),
                             HD_INVALID);
            hd_text_free(&text);
            hd_arena_done(&arena);
        }
    harness_teardown(&h);
}

/* Goal: between schedules of equal stages no gradient and no weight differs in a bit. W apart adds
 * in another order where a weight is used twice, so the head is not tied. */
static void schedules_of_the_same_stages_have_the_same_bits(void **state)
{
    static const struct layout equal[] = {
        {"gpt2", "1f1b", 2, 1, .micro_batch = 2, .stages = "3*2", .dp = 2, .change = untie},
        {"gpt2", "gpipe", 2, 1, .micro_batch = 2, .stages = "3*2", .dp = 2, .change = untie},
        {"gpt2", "zb-h1", 2, 1, .micro_batch = 2, .stages = "3*2", .dp = 2, .change = untie},
    };
    struct run *first = run_new(STEPS);
    struct harness h;

    harness_setup(&h, 20000);
    run_threads(job_of(&h, &equal[0], false), 2, first);
    for (size_t i = 1; i < sizeof equal / sizeof equal[0]; i++) {
        struct run *other = run_new(STEPS);

        run_threads(job_of(&h, &equal[i], false), 2, other);
        assert_memory_equal(other->state_hash, first->state_hash, sizeof first->state_hash);
        assert_memory_equal(other->loss, first->loss, sizeof first->loss);
        run_free(other);
    }
    run_free(first);
    harness_teardown(&h);
}

/* Each border between stages is crossed once forward and once backward per micro-batch, by R rows
 * of C numbers in fp32, or R / tp on each tp rank. Interleaved has P V - 1 borders between stages,
 * a V of two chunks 2 (P - 1). A tied head is summed over two stages, once a step. */
static void transfers_move_what_the_closed_form_says(void **state)
{
    static const struct {
        struct layout layout;
        int borders;
        bool tied;
    } cases[] = {
        {.layout = {"llama", "1f1b", 4, 1, .micro_batch = 2}, .borders = 3},
        {.layout = {"llama", "interleaved", 2, 3, .micro_batch = 2}, .borders = 5},
        {.layout = {"llama", "zb-v", 4, 2, .micro_batch = 2}, .borders = 6},
        {.layout = {"llama", "1f1b", 2, 1, .micro_batch = 2, .tp = 2, .dp = 2}, .borders = 1},
        {.layout = {"gpt2", "1f1b", 2, 1, .micro_batch = 2}, .borders = 1, .tied = true},
        {.layout = {"gpt2", "zb-v", 2, 2, .micro_batch = 2}, .borders = 2},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t sequences = 8;
        struct traffic traffic = {0};
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = job_of(&h, &cases[i].layout, false);
        job.sequence = job.tp > 1;
        traffic_count(&job, &traffic);
        assert_int_equal(traffic_moved(&traffic, run_world(&job), HD_GROUP_PP, HD_COMM_RECV),
                         2 * cases[i].borders * sequences * S * C * 4);
        assert_int_equal(
            traffic_moved(&traffic, run_world(&job), HD_GROUP_EMBEDDING, HD_COMM_ALL_REDUCE),
            cases[i].tied ? 2 * job.vocab * C * 4 : 0);
        traffic_check_dry(&traffic, &job);
        harness_teardown(&h);
    }
}

/* 1f1b keeps min(M, P - s) micro-batches on stage s, gpipe all. */
static void stages_keep_as_many_micro_batches_as_the_schedule_says(void **state)
{
    const struct layout one = {.family = "llama", .schedule = "1f1b", .pp = 4, .micro_batch = 1},
                        all = {.family = "llama", .schedule = "gpipe", .pp = 4, .micro_batch = 1};
    struct harness h;

    harness_setup(&h, 20000);
    for (int rank = 0; rank < 4; rank++) {
        const struct hd_job jobs[] = {job_of(&h, &one, false), job_of(&h, &all, false)};

        for (int i = 0; i < 2; i++) {
            struct hd_rank_program layout;
            struct hd_arena arena;

            hd_arena_init(&arena, 0);
            run_layout_of(&jobs[i], rank, &(struct hd_rank_program_options){0}, &arena, &layout);
            assert_int_equal(layout.plan.saved_slots, i ? 8 : 4 - rank);
            hd_arena_done(&arena);
        }
    }
    harness_teardown(&h);
}

/* A head over 512 tokens is as much work as two of the six layers: of two stages the one with the
 * head has two layers less. */
static void the_head_counts_as_work(void **state)
{
    const struct layout one = {.family = "llama", .schedule = "1f1b", .pp = 2, .micro_batch = 2};
    struct hd_rank_program layout;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    hd_arena_init(&arena, 0);
    job = job_of(&h, &one, false);
    job.vocab = 512;
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &layout);
    assert_int_equal(layout.units[0].end, 1 + 4); /* the embedding and four layers */
    assert_int_equal(layout.units[1].end, LAYERS + 2);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* ---- checkpoints ---- */

static void a_checkpoint_crosses_from_one_pp_to_another(void **state)
{
    static const struct layout crossed[] = {
        {.family = "gpt2", .schedule = "1f1b", .pp = 1, .micro_batch = 2},
        {.family = "gpt2", .schedule = "1f1b", .pp = 2, .micro_batch = 2, .tp = 2, .dp = 2},
        {.family = "gpt2", .schedule = "zb-v", .pp = 2, .virtual_stages = 2, .micro_batch = 2},
        {.family = "gpt2",
         .schedule = "interleaved",
         .pp = 4,
         .virtual_stages = 2,
         .micro_batch = 2},
    };
    enum { COUNT = sizeof crossed / sizeof crossed[0] };
    struct harness h;

    harness_setup(&h, 20000);
    for (int from = 0; from < COUNT; from++) {
        struct run *save = run_new(0);
        struct hd_saved saved;
        struct hd_job job = job_of(&h, &crossed[from], from == 0);

        job.attempt = from + 1;
        job.attempt_dir = job_text("%s/attempt-%d", h.dir, from + 1);
        run_save(&job, 2, save, &saved);
        for (int to = 0; to < COUNT; to++) {
            struct run *load = run_new(0);

            job = job_of(&h, &crossed[to], to == 0);
            run_load(&job, &saved, load);
            run_compare_state(load, save);
            run_free(load);
        }
        run_free(save);
    }
    harness_teardown(&h);
}

RUN_CASES()
