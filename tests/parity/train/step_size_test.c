/* Steps of fewer micro-batches than the job's: each is to the bit the step of a job whose
 * train.global_batch is that small, on every schedule and at every level of ZeRO, whatever other
 * numbers the trainer has run before.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runs.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { MOST = 4 }; /* micro-batches of the largest step */

struct layout {
    const char *family, *schedule, *precision;
    int pp, virtual_stages, dp, tp, zero;
    const char *order; /* schedule file: its text */
};

/* An order that no schedule makes: W is put off further and further. */
#define OWN_ORDER                                                      \
    "0: F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 W0.0 B0.2 B0.3 W0.1 W0.2 W0.3\n" \
    "1: F1.0 B1.0 F1.1 F1.2 B1.1 W1.0 B1.2 F1.3 B1.3 W1.1 W1.2 W1.3\n"

static const struct layout layouts[] = {
    {"llama", "1f1b", "fp32", 1, 1, 2, 1, 0, NULL},
    {"llama", "1f1b", "fp16", 1, 1, 2, 1, 1, NULL},
    {"gpt2", "1f1b", "fp32", 1, 1, 2, 1, 2, NULL},
    {"llama", "1f1b", "bf16", 1, 1, 2, 1, 3, NULL},
    {"llama", "gpipe", "fp32", 2, 1, 1, 1, 0, NULL},
    /* of hidden rows, two micro-batches need a slot more than four */
    {"llama", "interleaved", "fp32", 2, 2, 1, 1, 0, NULL},
    {"gpt2", "zb-h1", "fp32", 2, 1, 2, 1, 3, NULL},
    {"gpt2", "zb-v", "fp32", 2, 2, 1, 1, 2, NULL}, /* embedding and head on one stage */
    {"mixtral", "1f1b", "fp32", 2, 1, 1, 2, 0, NULL},
    {"llama", "file", "fp32", 2, 1, 1, 1, 0, OWN_ORDER},
};

struct course {
    bool sets; /* runs every number in turn, the largest first */
    uint64_t hash[MOST + 1]
                 [HARNESS_WORLD_MAX]; /* by number: a rank's gradients, weights, moments */
    struct hd_step_result step[MOST + 1];
};

static struct hd_job job_of(const struct harness *h, const struct layout *l)
{
    struct hd_job job = harness_job(h, l->family, l->dp);

    job.pp = l->pp;
    job.tp = l->tp;
    job.zero = l->zero;
    job.micro_batch = 2;
    job.global_batch = MOST * job.micro_batch * l->dp;
    job.virtual_stages = l->virtual_stages;
    job.schedule_order = l->order;
    job.order_micro_batches = l->order ? MOST : 0;
    (void)snprintf(job.schedule, sizeof job.schedule, "%s", l->schedule);
    job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    return job;
}

static enum hd_status take_step(struct hd_trainer *t, struct harness_rank *r, struct course *c,
                                int64_t micro_batches)
{
    struct hd_step_result result;
    enum hd_status st = hd_trainer_init(t);

    if (!st && c->sets)
        st = hd_trainer_set_micro_batches(t, micro_batches);
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    if (st)
        return st;
    c->hash[micro_batches][r->rank] = run_hash_state(t);
    if (r->rank == 0)
        c->step[micro_batches] = result;
    return HD_OK;
}

static enum hd_status train(struct harness_rank *r)
{
    const int64_t most = r->job->global_batch / r->job->dp / r->job->micro_batch;
    const int64_t small[] = {2, 1, 3, 4, 2};
    struct course *c = r->context;
    struct hd_trainer *t = NULL;
    const struct hd_trainer_options options = {.backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .layout = {.any_micro_batches = c->sets},
                                               .peak = HARNESS_PEAK};
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (!st)
        st = take_step(t, r, c, most);
    for (size_t i = 0; !st && c->sets && i < sizeof small / sizeof small[0]; i++)
        st = take_step(t, r, c, small[i]);
    hd_trainer_free(t);
    return st;
}

static void run_course(struct hd_job job, struct course *c)
{
    if (harness_threads(&job, run_world(&job), c, train))
        fail_msg("%s", hd_err_message());
}

static void a_smaller_step_is_that_of_a_smaller_batch(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct hd_job job = job_of(&h, &layouts[i]);
        struct course all = {.sets = true};

        run_course(job, &all);
        job.schedule_order = NULL; /* the order is for the largest step alone */
        job.order_micro_batches = 0;
        if (layouts[i].order)
            (void)snprintf(job.schedule, sizeof job.schedule, "zb-h1");
        for (int64_t m = 1; m <= MOST; m++) {
            struct course own = {0};

            job.global_batch = m * job.micro_batch * job.dp;
            run_course(job, &own);
            (void)printf("%s %s zero %d, %d micro-batches\n", layouts[i].family,
                         layouts[i].schedule, layouts[i].zero, (int)m);
            assert_memory_equal(all.hash[m], own.hash[m], sizeof own.hash[m]);
            assert_true(all.step[m].loss == own.step[m].loss &&
                        all.step[m].grad_norm == own.step[m].grad_norm);
            assert_int_equal(all.step[m].tokens, job.global_batch * job.context);
            assert_int_equal(all.step[m].targets, own.step[m].targets);
        }
    }
    harness_teardown(&h);
}

/* Goal: memory that the job's own numbers need is not exceeded by another one. */
static void a_number_without_slots_is_refused(void **state)
{
    struct hd_job job;
    struct hd_rank_program l, any;
    struct hd_step_plan plan;
    struct hd_arena arena;
    struct harness h;

    harness_setup(&h, 20000);
    hd_arena_init(&arena, 0);
    job = job_of(&h, &layouts[5]);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &l);
    run_layout(&job, &(struct hd_rank_program_options){.any_micro_batches = true}, &arena, &any);
    assert_int_equal(any.memory.boundary - l.memory.boundary, l.stage_io_slot);
    assert_int_equal(hd_rank_program_step_plan(&l, 2, &arena, &plan), HD_INVALID);
    assert_int_equal(hd_rank_program_step_plan(&any, 2, &arena, &plan), HD_OK);
    for (int64_t m = 0; m <= MOST + 1; m += MOST + 1)
        assert_int_equal(hd_rank_program_step_plan(&any, m, &arena, &plan), HD_INVALID);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* ---- train.batch_schedule ---- */

enum { BEFORE = 3, AFTER = 3 };

/* Steps of 4, 4, 8, 8, 12, 12 sequences: saved in the second span. */
static struct hd_job scheduled(const struct harness *h, const struct layout *l)
{
    struct hd_job job = job_of(h, l);

    job.global_batch = 12;
    /* 350 tokens are 22 sequences of 16: after 4 + 4 + 8 + 8 */
    job.batch_schedule = "0:4 2:8 0.35K:12";
    return job;
}

static void check_losses(const double *a, const double *b, double distance)
{
    for (int s = 0; s < AFTER; s++) {
        assert_true(a[s] > 0);
        assert_true(fabs(a[s] - b[s]) <= distance * a[s]);
    }
}

/* Goal: a span is exact after a load in its midst, under another layout too, and on one rank. */
static void spans_go_on_after_a_load(void **state)
{
    static const struct layout one = {"llama", "1f1b", "fp32", 1, 1, 1, 1, 0, NULL},
                               saves = {"llama", "1f1b", "fp32", 1, 1, 2, 1, 2, NULL},
                               other = {"llama", "interleaved", "fp32", 2, 2, 1, 1, 0, NULL};
    struct run *whole = run_new(BEFORE + AFTER), *saved_run = run_new(AFTER),
               *again = run_new(AFTER), *moved = run_new(AFTER);
    struct hd_saved saved;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = scheduled(&h, &one);
    run_threads(job, 1, whole);
    job = scheduled(&h, &saves);
    job.attempt_dir = job_text("%s/attempt-1", h.dir);
    run_save(&job, BEFORE, saved_run, &saved);
    run_load(&job, &saved, again);
    check_losses(saved_run->loss, again->loss, 0);
    job = scheduled(&h, &other);
    job.attempt_dir = job_text("%s/attempt-1", h.dir);
    run_load(&job, &saved, moved);
    check_losses(saved_run->loss, moved->loss, 1e-4);
    check_losses(saved_run->loss, whole->loss + BEFORE, 1e-4);
    for (int s = 0; s < BEFORE + AFTER; s++)
        assert_int_equal(whole->tokens[s], (s / 2 + 1) * 4 * 16);
    run_free(whole);
    run_free(saved_run);
    run_free(again);
    run_free(moved);
    harness_teardown(&h);
}

/* Goal: until the second span, a run is that of a job with the first batch alone. */
static void a_first_span_is_a_job_of_that_batch(void **state)
{
    struct run *spans = run_new(2), *alone = run_new(2);
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = scheduled(&h, &layouts[2]);
    run_threads(job, (int)job.dp, spans);
    job.batch_schedule = "";
    job.global_batch = 4;
    run_threads(job, (int)job.dp, alone);
    assert_memory_equal(spans->loss, alone->loss, sizeof spans->loss);
    assert_memory_equal(spans->state_hash, alone->state_hash, sizeof spans->state_hash);
    run_free(spans);
    run_free(alone);
    harness_teardown(&h);
}

RUN_CASES()
