/* train.ema: the moving average of the weights, against the recurrence in double over the weights that
 * each step left, in every layout; in skipped steps; in validations; and in checkpoints that another
 * layout loads.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runs.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/guard.h"

enum { STEPS = 5, SKIPPED = 2 }; /* step SKIPPED, from 0, is a spike */
#define DECAY 0.75

struct layout {
    const char *family, *precision, *optimizer, *moments;
    int dp, tp, pp, zero;
    bool offload; /* changes something on a device alone */
};

static const struct layout layouts[] = {
    {"llama", "fp32", "adamw", "fp32", 1, 1, 1, 0, false},
    {"llama", "fp32", "adamw", "fp32", 2, 1, 1, 1, false},
    {"gpt2", "bf16", "adamw", "fp32", 2, 1, 1, 0, false},
    {"gpt2", "bf16", "lion", "8bit", 2, 1, 1, 2, false},
    {"llama", "bf16", "muon", "fp32", 2, 2, 1, 3, false},
    {"gpt2", "fp32", "adamw", "fp32", 2, 1, 2, 3, false},
    {"llama", "bf16", "lion", "fp32", 2, 1, 1, 1, true},
};

static struct hd_job job_of(const struct harness *h, const struct layout *l)
{
    struct hd_job job = harness_job(h, l->family, l->dp);

    job.tp = l->tp;
    job.pp = l->pp;
    job.zero = l->zero;
    job.micro_batch = 2;
    job.guard_spike = 6;
    job.ema_decay = DECAY;
    job.qk_clip_threshold = 0.02; /* averages are those of the clipped weights */
    if (l->offload)
        job.offload = HD_JOB_OFFLOAD_OPTIMIZER;
    (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    job.optimizer = hd_job_find_word(hd_job_optimizer_words, l->optimizer);
    job.moments = hd_job_find_word(hd_job_moments_words, l->moments);
    return job;
}

/* Shared by the ranks: the weights and averages of all, and the recurrence. */
struct course {
    float weights[RUN_ELEMENTS_MAX], ema[RUN_ELEMENTS_MAX], before[RUN_ELEMENTS_MAX];
    double expected[RUN_ELEMENTS_MAX];
    int64_t count;
    double worst; /* largest distance of an average from the recurrence */
    /* losses of a validation with the averages; with the weights before and after it; and with
     * weights that a checkpoint has from the averages */
    double of_averages, before_it, after_it, expected_loss;
    bool validates_only; /* the checkpoint of the course is not needed */
    struct hd_saved saved;
};

static void copy_state(struct hd_trainer *t, struct course *c)
{
    (void)run_copy_state(t, HD_STATE_WEIGHT, c->weights);
    (void)run_copy_state(t, HD_STATE_EMA, c->ema);
}

/* Makes the next step a spike, which skips the update. */
static void set_spike(struct hd_trainer *t, bool spike)
{
    struct hd_guard *guard = hd_trainer_guard(t);
    const double limit = guard->spike;

    *guard = (struct hd_guard){.spike = limit};
    for (int i = 0; spike && i < HD_GUARD_STEPS_MIN; i++)
        hd_guard_add(guard, 1e-6, 1e6);
}

static enum hd_status follow(struct harness_rank *r, struct hd_trainer *t, struct course *c,
                             int step)
{
    struct hd_step_result result;
    enum hd_status st;

    if (step >= 0) {
        set_spike(t, step == SKIPPED);
        st = hd_trainer_step(t, 0, &result);
        if (st)
            return st;
        if (result.skipped != (step == SKIPPED))
            return hd_err(HD_INTERNAL, "step %d: skipped %d", step, result.skipped);
    }
    c->count = run_copy_state(t, HD_STATE_WEIGHT, c->weights);
    copy_state(t, c);
    st = harness_meet(r);
    for (int64_t i = 0; !st && r->rank == 0 && i < c->count; i++) {
        if (step < 0)
            c->expected[i] = (double)c->weights[i];
        else if (step != SKIPPED)
            c->expected[i] = DECAY * c->expected[i] + (1 - DECAY) * (double)c->weights[i];
        else if (memcmp(&c->ema[i], &c->before[i], sizeof *c->ema) != 0)
            return hd_err(HD_INTERNAL, "a skipped step changes the average of element %d", (int)i);
        c->worst = fmax(c->worst, fabs((double)c->ema[i] - c->expected[i]));
        c->before[i] = c->ema[i];
    }
    return st ? st : harness_meet(r);
}

/* Validates with the averages, then with the weights, whose bits must be what they were. */
static enum hd_status validate(struct hd_trainer *t, struct course *c, int rank)
{
    const uint64_t weights = run_hash_state(t);
    double before, average, after;
    int64_t targets;
    enum hd_status st = hd_trainer_validate(t, &before, &targets);

    if (!st)
        st = hd_trainer_take_averages(t, true);
    if (!st)
        st = hd_trainer_validate(t, &average, &targets);
    if (!st)
        st = hd_trainer_take_averages(t, false);
    if (!st)
        st = hd_trainer_validate(t, &after, &targets);
    if (!st && run_hash_state(t) != weights)
        return hd_err(HD_INTERNAL, "a validation of the averages changes the weights");
    if (!st && rank == 0) {
        c->before_it = before;
        c->of_averages = average;
        c->after_it = after;
    }
    return st;
}

/* Makes the averages the weights, in a checkpoint, whose loss is that of a trainer that loads it. */
static enum hd_status validate_as_weights(struct harness_rank *r, struct hd_trainer *t)
{
    struct course *c = r->context;
    struct hd_saved saved;
    int64_t targets;
    double loss;
    enum hd_status st = harness_meet(r);

    if (!st)
        run_put_state(t, HD_STATE_WEIGHT, c->ema);
    if (!st)
        st = hd_trainer_save(t, &saved);
    if (!st)
        st = hd_trainer_load(t, saved.path, saved.hash, NULL);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    if (!st && r->rank == 0)
        c->expected_loss = loss;
    return st;
}

static enum hd_status train(struct harness_rank *r)
{
    struct course *c = r->context;
    struct hd_trainer *t = NULL;
    struct hd_saved saved;
    enum hd_status st = harness_trainer(r, &t);

    for (int s = -1; !st && s < STEPS; s++)
        st = follow(r, t, c, s);
    if (!st)
        st = validate(t, c, r->rank);
    if (!st && c->validates_only)
        st = validate_as_weights(r, t);
    else if (!st)
        st = hd_trainer_save(t, &saved);
    if (!st && !c->validates_only && r->rank == 0)
        c->saved = saved;
    hd_trainer_free(t);
    return st;
}

static enum hd_status load(struct harness_rank *r)
{
    struct course *c = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_load(t, c->saved.path, c->saved.hash, NULL);
    if (!st && r->rank == 0) {
        memset(c->ema, 0, sizeof c->ema);
        memset(c->weights, 0, sizeof c->weights);
    }
    if (!st)
        st = harness_meet(r);
    if (!st)
        copy_state(t, c);
    hd_trainer_free(t);
    return st;
}

static enum hd_status save_without(struct harness_rank *r)
{
    struct course *c = r->context;
    struct hd_step_result result;
    struct hd_trainer *t = NULL;
    struct hd_saved saved;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_step(t, 0, &result);
    if (!st)
        st = hd_trainer_save(t, &saved);
    if (!st && r->rank == 0)
        c->saved = saved;
    hd_trainer_free(t);
    return st;
}

static void run_ranks(const struct hd_job *job, struct course *c,
                      enum hd_status (*body)(struct harness_rank *r))
{
    if (harness_threads(job, run_world(job), c, body))
        fail_msg("%s", hd_err_message());
}

static struct course *course_new(void)
{
    struct course *c = calloc(1, sizeof *c);

    assert_non_null(c);
    return c;
}

/* The weights move by about lr = 1e-3 a step, so an average that is one step behind is 1e-4 or more
 * away; rounding to fp32 moves elements of magnitude 1 by 1e-7. */
static void an_average_follows_the_weights_and_is_validated_in_every_layout(void **state)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct course *c = course_new();
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = job_of(&h, &layouts[i]);
        c->validates_only = true;
        job.attempt_dir = job_text("%s/attempt-1", h.dir);
        run_ranks(&job, c, train);
        (void)printf("%s %s zero %d: %.1e apart\n", layouts[i].family, layouts[i].optimizer,
                     layouts[i].zero, c->worst);
        assert_true(c->worst < 1e-6);
        assert_true(c->after_it == c->before_it);
        assert_true(c->of_averages == c->expected_loss && c->of_averages != c->before_it);
        harness_teardown(&h);
        free(c);
    }
}

/* From ZeRO 3 on two stages to one rank, and back into a job that begins an average. */
static void an_average_is_loaded_in_another_layout(void **state)
{
    struct course *c = course_new();
    const struct layout *from = &layouts[5],
                        to = {"gpt2", "fp32", "adamw", "fp32", 1, 2, 1, 0, false};
    float *ema = malloc(sizeof c->ema);
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    assert_non_null(ema);
    job = job_of(&h, from);
    job.attempt_dir = job_text("%s/attempt-1", h.dir);
    run_ranks(&job, c, train);
    memcpy(ema, c->ema, sizeof c->ema);
    job = job_of(&h, &to);
    run_ranks(&job, c, load);
    assert_memory_equal(c->ema, ema, sizeof c->ema);
    assert_memory_not_equal(c->ema, c->weights, sizeof c->ema);

    job = job_of(&h, from); /* saved without an average */
    job.ema_decay = 0;
    job.attempt_dir = job_text("%s/attempt-2", h.dir);
    run_ranks(&job, c, save_without);
    job = job_of(&h, &to);
    run_ranks(&job, c, load);
    assert_memory_equal(c->ema, c->weights, sizeof c->ema);
    harness_teardown(&h);
    free(ema);
    free(c);
}

/* Goal: the plan has the average's bytes. In bf16 with ZeRO, masters are sharded, and an average is as
 * large as its master. */
static void a_plan_has_the_bytes_of_the_average(void **state)
{
    struct hd_rank_program with, without;
    struct hd_arena arena;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    hd_arena_init(&arena, 0);
    job = job_of(&h, &layouts[3]);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &with);
    job.ema_decay = 0;
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &without);
    assert_int_equal(without.memory.ema, 0);
    assert_int_equal(with.memory.ema, with.memory.weights);
    assert_int_equal(with.memory.private_bytes - without.memory.private_bytes, with.memory.ema);
    assert_int_equal(with.memory.registered_bytes, without.memory.registered_bytes);
    hd_arena_done(&arena);
    harness_teardown(&h);
}

/* 2^(-1 / (f steps)): after f steps updates an average is halfway. */
static void a_half_life_is_a_part_of_the_steps(void **state)
{
    struct hd_job job = HD_JOB(.steps = 400, .ema_half_life = 0.025);

    assert_true(hd_job_has_ema(&job));
    assert_true(fabs(pow(1 - hd_job_ema_rate(&job), 10) - 0.5) < 1e-12);
    job.ema_half_life = 0;
    assert_true(!hd_job_has_ema(&job) && hd_job_ema_rate(&job) == 0);
}

RUN_CASES()
