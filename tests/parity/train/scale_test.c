/* fp16: the loss scale follows PyTorch's rule on a forced sequence; an overflow anywhere skips the
 * step on all ranks, and Adam's bias correction does not count that step; checkpoints save the
 * scale; an overflow at the smallest scale that is allowed ends the run.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "compare.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/scale.h"

enum { STEPS = 24 };

/* ---- the rule ---- */

/* Scales that torch.amp.GradScaler had (init_scale 2^10, growth_interval 3) after steps with a
 * gradient that is infinite (x) or not (.): tests/golden/loss_scale.py. */
static const char forced[] = "..x....xx......x.....";
static const int64_t pytorch[] = {
#include "loss_scales.inc"
};

static void the_scale_follows_pytorchs_rule(void **state)
{
    struct hd_loss_scale s = {.used = true, .scale = 1 << 10, .interval = 3, .floor = 1};

    assert_int_equal(sizeof pytorch / sizeof pytorch[0], sizeof forced - 1);
    for (size_t i = 0; i < sizeof forced - 1; i++) {
        assert_true(hd_loss_scale_after(&s, forced[i] == 'x'));
        assert_int_equal(s.scale, pytorch[i]);
    }
}

static void the_floor_is_the_end(void **state)
{
    struct hd_loss_scale s = {.used = true, .scale = 8, .interval = 3, .floor = 4};

    assert_true(hd_loss_scale_after(&s, true));
    assert_int_equal(s.scale, 4);
    assert_false(hd_loss_scale_after(&s, true));
    assert_int_equal(s.scale, 4);
}

/* A power of two that is at most twice the number of tokens: no gradient loses a bit by it. */
static void the_factor_is_relative_to_the_mean_loss(void **state)
{
    struct hd_loss_scale s = {.used = true, .scale = 1 << 16};

    assert_true(hd_loss_scale_factor(&s, 1 << 10) == 64.0f);
    assert_true(hd_loss_scale_factor(&s, (1 << 10) + 1) == 32.0f);
    s.used = false;
    assert_true(hd_loss_scale_factor(&s, 1000) == 1.0f);
}

/* ---- training ---- */

struct layout {
    int dp, tp, pp, zero;
};

static struct hd_job job_of(const struct harness *h, const struct layout *l)
{
    struct hd_job job = harness_job(h, "gpt2", l->dp);

    job.tp = l->tp;
    job.pp = l->pp;
    job.zero = l->zero;
    job.micro_batch = 1;
    job.vocab = 258;
    job.precision = HD_JOB_PRECISION_FP16;
    memcpy(job.schedule, "1f1b", 5);
    job.loss_scale_initial = (int64_t)1 << 36;
    job.loss_scale_interval = 4;
    job.loss_scale_floor = 1;
    return job;
}

struct course {
    bool resumed; /* saved after half of the steps, and loaded again */
    bool skipped[STEPS];
    int64_t scale[STEPS];
    struct run *run;
};

static uint64_t hash_of(struct hd_trainer *t)
{
    static const enum hd_state_kind kinds[] = {HD_STATE_WEIGHT, HD_STATE_MOMENT1, HD_STATE_MOMENT2};

    return run_hash_kinds(t, kinds, 3);
}

/* A step that is skipped changes no weight and no moment, another one does (a shard of ZeRO may be
 * empty, but not rank 0's). */
static enum hd_status one_step(struct hd_trainer *t, int rank, struct course *c, int s)
{
    struct hd_step_result result;
    const uint64_t before = hash_of(t);
    enum hd_status st = hd_trainer_step(t, 0, &result);

    if (!st && result.rescaled != result.skipped)
        st = hd_err(HD_INTERNAL, "a step was skipped, and not for the scale");
    if (!st && (hash_of(t) == before) != result.skipped && (result.skipped || rank == 0))
        st = hd_err(HD_INTERNAL, "step %d was %s, and the weights say otherwise", s + 1,
                    result.skipped ? "skipped" : "not skipped");
    if (!st && rank == 0) {
        c->skipped[s] = result.skipped;
        c->scale[s] = result.loss_scale;
    }
    return st;
}

/* Adam's count in a checkpoint is the number of steps that changed the weights. */
static enum hd_status check_count(const struct course *c, const char *path)
{
    struct hd_ckpt *ckpt;
    int64_t counted, updates = 0;
    enum hd_status st = hd_ckpt_open(path, &ckpt);

    if (st)
        return st;
    st = hd_ckpt_get_counter(ckpt, "adam_step", &counted);
    hd_ckpt_close(ckpt);
    for (int s = 0; s <= STEPS / 2; s++)
        updates += !c->skipped[s];
    return st || counted == updates ? st
                                    : hd_err(HD_INTERNAL, "Adam's count is %lld, not %lld",
                                             (long long)counted, (long long)updates);
}

static enum hd_status train(struct harness_rank *r)
{
    struct course *c = r->context;
    struct hd_trainer *t = NULL;
    struct hd_saved saved;
    enum hd_status st = harness_trainer(r, &t);

    for (int s = 0; !st && s < STEPS; s++) {
        st = one_step(t, r->rank, c, s);
        if (!st && c->resumed && s == STEPS / 2) {
            st = hd_trainer_save(t, &saved);
            if (!st && r->rank == 0)
                st = check_count(c, saved.path);
            if (!st) /* as if nothing had been before */
                st = hd_trainer_init(t);
            if (!st)
                st = hd_trainer_load(t, saved.path, saved.hash, NULL);
        }
    }
    if (!st)
        run_copy_saved(t, c->run);
    hd_trainer_free(t);
    return st;
}

static struct course course_of(const struct harness *h, const struct layout *l, int attempt,
                               bool resumed)
{
    struct course c = {.resumed = resumed, .run = run_new(1)};
    struct hd_job job = job_of(h, l);

    job.attempt_dir = job_text("%s/attempt-%d", h->dir, attempt);
    if (harness_threads(&job, run_world(&job), &c, train))
        fail_msg("%s", hd_err_message());
    return c;
}

/* The first scale is far too large. It falls by halves until nothing overflows, and is then tried
 * again every four updates, on every layout in the same steps: only rounding differs. The weights
 * after a load are those of a run that was not interrupted, to the bit: so the scale, its count and
 * Adam's are restored. */
static void all_ranks_skip_together_and_a_load_restores_the_scale(void **state)
{
    static const struct layout layouts[] = {
        {1, 1, 1, 0}, {2, 1, 1, 1}, {2, 1, 2, 3}, {1, 2, 2, 0}, {4, 1, 1, 2}};
    struct course one = {.run = NULL};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct course whole = course_of(&h, &layouts[i], (int)i + 1, false);
        struct course resumed = course_of(&h, &layouts[i], (int)i + 1, true);
        int skips = 0;

        for (int s = 0; s < STEPS; s++) {
            skips += whole.skipped[s];
            if (s > 0)
                assert_true(whole.scale[s] == (whole.skipped[s - 1] ? whole.scale[s - 1] / 2
                                                                    : whole.scale[s - 1]) ||
                            whole.scale[s] == 2 * whole.scale[s - 1]);
        }
        assert_in_range(skips, 3, STEPS - 8);
        assert_memory_equal(resumed.scale, whole.scale, sizeof whole.scale);
        assert_memory_equal(resumed.run->weights, whole.run->weights, sizeof whole.run->weights);
        assert_memory_equal(resumed.run->moments, whole.run->moments, sizeof whole.run->moments);
        if (one.run)
            assert_memory_equal(one.skipped, whole.skipped, 8 * sizeof(bool));
        run_free(resumed.run);
        if (one.run)
            run_free(whole.run);
        else
            one = whole;
    }
    run_free(one.run);
    harness_teardown(&h);
}

/* ---- against fp32 ---- */

static struct run *long_run(const struct harness *h, const char *precision)
{
    struct hd_job job = harness_job(h, "llama", 1);
    struct run *run = run_new(RUN_STEPS_MAX);

    job.steps = RUN_STEPS_MAX;
    job.loss_scale_initial = 65536;
    job.loss_scale_interval = 2000;
    job.loss_scale_floor = 1;
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    run_threads(job, 1, run);
    return run;
}

static void fp16_ends_within_a_percent_of_fp32(void **state)
{
    struct harness h;
    struct run *keep_fp32, *half;

    harness_setup(&h, 20000);
    keep_fp32 = long_run(&h, "fp32");
    half = long_run(&h, "fp16");
    assert_true(keep_fp32->validation_loss < 0.8 * keep_fp32->loss[0]); /* it has learnt */
    assert_true(fabs(half->validation_loss / keep_fp32->validation_loss - 1) < 0.01);
    run_free(keep_fp32);
    run_free(half);
    harness_teardown(&h);
}

/* ---- a gradient that is not finite, in any precision ---- */

static enum hd_status poison(struct harness_rank *r)
{
    char *text = r->context, own[HD_NONFINITE_TEXT];
    struct hd_step_result result;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);
    int64_t first = 0, count = 0;

    if (!st)
        st = hd_trainer_step(t, 0, &result);
    if (!st)
        st = hd_trainer_find_nonfinite(t, own);
    if (!st && *own)
        st = hd_err(HD_INTERNAL, "named one where all are finite: %s", own);
    if (!st)
        hd_trainer_local_shard(t, 5, HD_STATE_GRAD, &first, &count);
    if (!st && count && r->rank == 1) {
        float *values = harness_take(t, 5, HD_STATE_GRAD);

        values[first + 3] = -INFINITY;
        harness_put(t, 5, HD_STATE_GRAD, values);
    }
    if (!st)
        st = hd_trainer_find_nonfinite(t, own);
    if (!st && r->rank == 0)
        memcpy(text, own, sizeof own);
    hd_trainer_free(t);
    return st;
}

static void a_gradient_that_is_not_finite_has_a_name(void **state)
{
    char text[HD_NONFINITE_TEXT];
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = harness_job(&h, "llama", 2);
    if (harness_threads(&job, 2, text, poison))
        fail_msg("%s", hd_err_message());
    assert_string_equal(text, "blocks.0.attention.out.weight[0, 3] is infinite on rank 1");
    harness_teardown(&h);
}

RUN_CASES()
