/* train.guard: a spike changes no bit of weights and moments, on every rank and under every layout;
 * the history that limits follow from is in the checkpoint; and what is left out of the data after
 * a step back.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/guard.h"

enum { STEPS = 12 };

/* ---- the limits ---- */

static struct hd_guard guard_of(double spike)
{
    struct hd_job job;
    struct hd_guard guard;

    hd_job_set_defaults(&job);
    job.guard_spike = spike;
    hd_guard_init(&job, &guard);
    return guard;
}

/* Losses 2 and 4 in turn: mean 3, deviation 1. Norms of 5 do not move: a deviation is 0.05. */
static void limits_are_deviations_above_the_mean(void **state)
{
    struct hd_guard guard = guard_of(6);

    for (int i = 0; i < HD_GUARD_STEPS_MIN - 1; i++)
        hd_guard_add(&guard, i % 2 ? 4 : 2, 5);
    assert_true(hd_guard_get_limits(&guard).loss == 0);
    hd_guard_add(&guard, 4, 5);
    assert_true(fabs(hd_guard_get_limits(&guard).loss - (3 + 6 * 1)) < 1e-12);
    assert_true(fabs(hd_guard_get_limits(&guard).norm - (5 + 6 * 0.05)) < 1e-12);
    for (int i = 0; i < HD_GUARD_STEPS; i++) /* the older ones are forgotten */
        hd_guard_add(&guard, i % 2 ? 14 : 12, 5);
    assert_true(fabs(hd_guard_get_limits(&guard).loss - (13 + 6 * 1)) < 1e-12);
    guard.spike = 0;
    assert_true(hd_guard_get_limits(&guard).loss == 0 && hd_guard_get_limits(&guard).norm == 0);
}

static void a_history_survives_its_checkpoint(void **state)
{
    struct hd_guard guard = guard_of(6), again = guard_of(6);

    for (int i = 0; i < HD_GUARD_STEPS + 7; i++)
        hd_guard_add(&guard, 1.0 / (i + 1), exp(-i));
    again.count = guard.count;
    for (int i = 0; i < HD_GUARD_STEPS; i++) {
        assert_true(hd_guard_pack(&guard, i) >= 0);
        hd_guard_unpack(&again, i, hd_guard_pack(&guard, i));
    }
    assert_memory_equal(&again, &guard, sizeof guard);
}

/* ---- steps that are skipped ---- */

struct layout {
    const char *family, *precision, *moments;
    int dp, tp, pp, zero;
    bool by_norm;
};

struct course {
    const struct layout *layout;
    bool resumed; /* saved after half of the steps, and loaded again */
    double loss[STEPS];
    struct run *run;
};

static struct hd_job job_of(const struct harness *h, const struct layout *l)
{
    struct hd_job job = harness_job(h, l->family, l->dp);

    job.tp = l->tp;
    job.pp = l->pp;
    job.zero = l->zero;
    job.micro_batch = 1;
    job.guard_spike = 6;
    job.loss_scale_initial = 16;
    job.loss_scale_interval = 1000;
    job.loss_scale_floor = 1;
    job.precision = hd_job_find_word(hd_job_precision_words, l->precision);
    job.moments = hd_job_find_word(hd_job_moments_words, l->moments);
    (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    return job;
}

/* Steps 3 and 8 of 12, from 0: their limit is below any loss, or any norm. */
static bool is_spike(int step)
{
    return step == 3 || step == 8;
}

static void set_history(struct hd_trainer *t, const struct layout *l, int step)
{
    struct hd_guard *guard = hd_trainer_guard(t);
    const double spike = guard->spike;

    *guard = (struct hd_guard){.spike = spike};
    for (int i = 0; is_spike(step) && i < HD_GUARD_STEPS_MIN; i++)
        hd_guard_add(guard, l->by_norm ? 1e6 : 1e-6, l->by_norm ? 1e-9 : 1e6);
}

static uint64_t hash_of(struct hd_trainer *t)
{
    static const enum hd_state_kind kinds[] = {HD_STATE_WEIGHT, HD_STATE_MOMENT1, HD_STATE_MOMENT2};

    return run_hash_kinds(t, kinds, 3);
}

static enum hd_status one_step(struct hd_trainer *t, int rank, struct course *c, int step)
{
    const int64_t updates = hd_trainer_updates_done(t);
    struct hd_step_result result;
    uint64_t before;
    enum hd_status st;

    set_history(t, c->layout, step);
    before = hash_of(t);
    st = hd_trainer_step(t, 0, &result);
    if (st)
        return st;
    if (result.spiked != is_spike(step) || result.skipped != result.spiked || result.rescaled)
        return hd_err(HD_INTERNAL, "step %d: spiked %d, skipped %d, rescaled %d", step,
                      result.spiked, result.skipped, result.rescaled);
    if ((hash_of(t) == before) != result.spiked && (result.spiked || rank == 0))
        return hd_err(HD_INTERNAL, "step %d: the weights or moments say otherwise", step);
    if (hd_trainer_updates_done(t) - updates != !result.spiked)
        return hd_err(HD_INTERNAL, "step %d: Adam counted it wrongly", step);
    /* the history has a step that is no spike, and no other */
    if (hd_trainer_guard(t)->count != (result.spiked ? HD_GUARD_STEPS_MIN : 1))
        return hd_err(HD_INTERNAL, "step %d: the history has %lld steps", step,
                      (long long)hd_trainer_guard(t)->count);
    if (rank == 0)
        c->loss[step] = result.loss;
    return HD_OK;
}

static enum hd_status save_and_load(struct hd_trainer *t)
{
    const struct hd_guard before = *hd_trainer_guard(t);
    struct hd_saved saved;
    enum hd_status st = hd_trainer_save(t, &saved);

    if (!st) /* as if nothing had been before */
        st = hd_trainer_init(t);
    if (!st && hd_trainer_guard(t)->count)
        st = hd_err(HD_INTERNAL, "a new run has a history");
    if (!st)
        st = hd_trainer_load(t, saved.path, saved.hash, NULL);
    if (!st && memcmp(&before, hd_trainer_guard(t), sizeof before) != 0)
        st = hd_err(HD_INTERNAL, "the history is not as it was saved");
    return st;
}

static enum hd_status train(struct harness_rank *r)
{
    struct course *c = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    for (int s = 0; !st && s < STEPS; s++) {
        st = one_step(t, r->rank, c, s);
        if (!st && c->resumed && s == STEPS / 2)
            st = save_and_load(t);
    }
    if (!st)
        run_copy_saved(t, c->run);
    hd_trainer_free(t);
    return st;
}

static struct course course_of(const struct harness *h, const struct layout *l, int attempt,
                               bool resumed)
{
    struct course c = {.layout = l, .resumed = resumed, .run = run_new(1)};
    struct hd_job job = job_of(h, l);

    job.attempt_dir = job_text("%s/attempt-%d", h->dir, attempt);
    if (harness_threads(&job, run_world(&job), &c, train))
        fail_msg("%s", hd_err_message());
    return c;
}

/* Goal: the result of steps around a spike compute does not depend on when the run was interrupted.
 */
static void a_spike_changes_no_bit_under_any_layout(void **state)
{
    static const struct layout layouts[] = {{"gpt2", "fp32", "fp32", 1, 1, 1, 0, false},
                                            {"llama", "fp32", "fp32", 2, 1, 1, 1, true},
                                            {"gpt2", "fp16", "fp32", 1, 2, 2, 0, false},
                                            {"llama", "bf16", "8bit", 2, 1, 1, 2, false},
                                            {"gpt2", "fp32", "fp32", 2, 1, 2, 3, true}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct course whole = course_of(&h, &layouts[i], (int)i + 1, false);
        struct course resumed = course_of(&h, &layouts[i], (int)i + 1, true);

        assert_memory_equal(resumed.loss, whole.loss, sizeof whole.loss);
        assert_memory_equal(resumed.run->weights, whole.run->weights, sizeof whole.run->weights);
        assert_memory_equal(resumed.run->moments, whole.run->moments, sizeof whole.run->moments);
        run_free(resumed.run);
        run_free(whole.run);
    }
    harness_teardown(&h);
}

/* ---- going back ---- */

enum { SAVED = 3, SPIKE = 6, AFTER = 3 };

struct way_back {
    double straight[STEPS], back[AFTER], loaded;
};

static enum hd_status next_loss(struct hd_trainer *t, double *ret_loss)
{
    struct hd_step_result result;
    enum hd_status st = hd_trainer_step(t, 0, &result);

    *ret_loss = result.loss;
    return st;
}

static enum hd_status go_straight(struct harness_rank *r)
{
    struct way_back *w = r->context;
    struct hd_trainer *t = NULL;
    double loss = 0;
    enum hd_status st = harness_trainer(r, &t);

    for (int s = 0; !st && s < STEPS; s++) {
        st = next_loss(t, &loss);
        if (r->rank == 0)
            w->straight[s] = loss;
    }
    hd_trainer_free(t);
    return st;
}

static enum hd_status go_back(struct harness_rank *r)
{
    struct way_back *w = r->context;
    struct hd_trainer *t = NULL;
    struct hd_saved saved, later;
    double loss = 0;
    enum hd_status st = harness_trainer(r, &t);

    for (int s = 0; !st && s < SPIKE; s++) {
        st = next_loss(t, &loss);
        if (!st && s + 1 == SAVED)
            st = hd_trainer_save(t, &saved);
    }
    if (!st)
        st = hd_trainer_go_back(t, saved.path, saved.hash);
    if (!st && (hd_trainer_steps_done(t) != SAVED || hd_trainer_data_skipped(t) != SPIKE - SAVED))
        st = hd_err(HD_INTERNAL, "went back to step %lld, %lld batches left out",
                    (long long)hd_trainer_steps_done(t), (long long)hd_trainer_data_skipped(t));
    for (int s = 0; !st && s < AFTER; s++) {
        st = next_loss(t, &loss);
        if (r->rank == 0)
            w->back[s] = loss;
    }
    if (!st)
        st = hd_trainer_save(t, &later);
    if (!st)
        st = hd_trainer_init(t);
    if (!st)
        st = hd_trainer_load(t, later.path, later.hash, NULL);
    if (!st)
        st = next_loss(t, &loss);
    if (r->rank == 0)
        w->loaded = loss;
    hd_trainer_free(t);
    return st;
}

/* With a learning rate that moves nothing a loss says which batch it is of. After six steps and a
 * step back to the third, training goes on with the seventh batch, also after a load. */
static void data_since_the_checkpoint_is_left_out(void **state)
{
    struct way_back w;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = harness_job(&h, "llama", 2);
    job.lr_peak = job.lr_min = 1e-12;
    job.attempt_dir = job_text("%s/attempt-1", h.dir);
    if (harness_threads(&job, 2, &w, go_straight) || harness_threads(&job, 2, &w, go_back))
        fail_msg("%s", hd_err_message());
    for (int s = 0; s < AFTER; s++) {
        assert_true(fabs(w.back[s] - w.straight[SPIKE + s]) < 1e-5);
        assert_true(fabs(w.back[s] - w.straight[SAVED + s]) > 1e-4); /* those it had already */
    }
    assert_true(fabs(w.loaded - w.straight[SPIKE + AFTER]) < 1e-5);
    harness_teardown(&h);
}

RUN_CASES()
