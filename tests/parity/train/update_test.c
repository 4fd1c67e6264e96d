/* Goal: the end of a step: the mean over all targets of all ranks, clipping, AdamW with decay on
 * matrices only, worked out again in double; what a rank asks reaches all; a gradient that is not
 * finite changes nothing anywhere.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runs.h"
#include "tests/program/test.h"

enum { STEPS = 3 };

/* ---- AdamW ---- */

struct followed {
    char family[8];
    double clip;
    double worst;   /* |w - expected| / what a step moves at most, over everything */
    char where[96]; /* the parameter it is in */
    double norm_off, lr_off;
    bool clipped;
    float weights[RUN_ELEMENTS_MAX], grads[RUN_ELEMENTS_MAX];
    double m[RUN_ELEMENTS_MAX], v[RUN_ELEMENTS_MAX];
};

/* Linear warm-up over 2 steps, then cosine from the peak to the minimum over the other 18. */
static double rate_at(const struct hd_job *job, int step)
{
    if (step <= 2)
        return job->lr_peak * step / 2;
    return job->lr_min + (job->lr_peak - job->lr_min) * (1 + cos(acos(-1) * (step - 2) / 18.0)) / 2;
}

/* w after one step, from w before and the summed gradient, by Loshchilov and Hutter 2019. */
static double follow_element(const struct hd_job *job, struct followed *f, int64_t i, double factor,
                             int step, bool matrix)
{
    const double g = (double)f->grads[i] * factor, w = (double)f->weights[i];
    double m_hat, v_hat;

    f->m[i] = job->beta1 * f->m[i] + (1 - job->beta1) * g;
    f->v[i] = job->beta2 * f->v[i] + (1 - job->beta2) * g * g;
    m_hat = f->m[i] / (1 - pow(job->beta1, step));
    v_hat = f->v[i] / (1 - pow(job->beta2, step));
    return w - rate_at(job, step) *
                   (m_hat / (sqrt(v_hat) + job->adam_eps) + (matrix ? job->weight_decay * w : 0));
}

static void compare_step(struct hd_trainer *t, struct followed *f,
                         const struct hd_step_result *result, int step)
{
    const struct hd_rank_program *l = hd_trainer_rank_program(t);
    const double targets = (double)(l->job.global_batch * l->job.context);
    const int64_t count = run_copy_state(t, HD_STATE_GRAD, f->grads);
    double norm = 0, factor;
    int64_t at = 0;

    for (int64_t i = 0; i < count; i++)
        norm += (double)f->grads[i] * (double)f->grads[i];
    norm = sqrt(norm) / targets;
    f->clipped = norm > f->clip;
    factor = (f->clipped ? f->clip / norm : 1) / targets;
    f->norm_off = fmax(f->norm_off, fabs(result->grad_norm / norm - 1));
    f->lr_off = fmax(f->lr_off, fabs(result->lr / rate_at(&l->job, step) - 1));
    for (int p = 0; p < l->registry.param_count; p++) {
        const struct hd_param *param = &l->registry.params[p];
        float *w = harness_take(t, p, HD_STATE_WEIGHT);

        for (int64_t i = 0; i < param->count; i++, at++) {
            double expected = follow_element(&l->job, f, at, factor, step, param->dim_count == 2);
            double off = fabs((double)w[i] - expected) / rate_at(&l->job, step);

            if (off > f->worst) {
                f->worst = off;
                (void)snprintf(f->where, sizeof f->where, "%s", param->name);
            }
        }
        free(w);
    }
    (void)run_copy_state(t, HD_STATE_WEIGHT, f->weights);
}

static enum hd_status follow(struct harness_rank *r)
{
    struct followed *f = r->context;
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    if (r->rank == 0)
        (void)run_copy_state(t, HD_STATE_WEIGHT, f->weights);
    for (int s = 1; !st && s <= STEPS; s++) {
        st = hd_trainer_step(t, 0, &result);
        if (!st && r->rank == 0)
            compare_step(t, f, &result, s);
    }
    hd_trainer_free(t);
    return st;
}

/* Each weight is followed from where it was before the step; the moments are followed alone. In
 * units of the rate, which no element of the quotient exceeds by much: w of up to 1 (the norms) is
 * stored with 6e-8, which is 6e-8 / 1.5e-3 = 4e-5 of the first rate; the kernel's own arithmetic in
 * fp32 adds some 1e-6. Decay of a vector that should have none is 0.1 of it. */
static void follow_case(const char *family, int dp, double clip, bool clipped)
{
    struct followed *f = harness_shared(sizeof *f);
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = harness_job(&h, family, dp);
    job.clip = f->clip = clip;
    if (harness_threads(&job, dp, f, follow))
        fail_msg("%s", hd_err_message());
    assert_int_equal(f->clipped, clipped);
    if (!(f->worst <= 1e-4))
        fail_msg("%s: a weight of %s is off by %g of the rate", family, f->where, f->worst);
    assert_true(f->norm_off <= 1e-9); /* both sum squares of the same floats in double */
    assert_true(f->lr_off <= 1e-6);   /* the block holds a float */
    harness_shared_free(f, sizeof *f);
    harness_teardown(&h);
}

static void an_update_is_adamw_of_the_mean_gradient(void **state)
{
    for (int dp = 1; dp <= 4; dp *= 2) {
        follow_case("llama", dp, 1000, false);
        follow_case("gpt2", dp, 1000, false);
    }
}

static void a_long_gradient_is_clipped_to_the_bound(void **state)
{
    follow_case("llama", 2, 0.01, true);
    follow_case("gpt2", 1, 0.01, true);
}

/* ---- requests ---- */

struct asked {
    int64_t heard[STEPS][HARNESS_WORLD_MAX];
};

/* Step s: rank s % world asks for 10 + s, the others for less; in the last step nobody asks. */
static enum hd_status ask(struct harness_rank *r)
{
    struct asked *asked = r->context;
    struct hd_step_result result = {0};
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    for (int s = 0; !st && s < STEPS; s++) {
        int64_t mine = s == STEPS - 1 ? 0 : (s % r->world == r->rank ? 10 + s : r->rank);

        st = hd_trainer_step(t, mine, &result);
        asked->heard[s][r->rank] = result.request;
    }
    hd_trainer_free(t);
    return st;
}

static void the_largest_request_of_any_rank_reaches_all(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int dp = 1; dp <= 4; dp *= 2) {
        const struct hd_job job = harness_job(&h, "llama", dp);
        struct asked asked = {0};

        if (harness_threads(&job, dp, &asked, ask))
            fail_msg("%s", hd_err_message());
        for (int s = 0; s < STEPS; s++)
            for (int r = 0; r < dp; r++)
                assert_int_equal(asked.heard[s][r], s == STEPS - 1 ? 0 : 10 + s);
    }
    harness_teardown(&h);
}

/* ---- what is not finite ---- */

struct poisoned {
    uint64_t before[HARNESS_WORLD_MAX], after[HARNESS_WORLD_MAX];
    bool skipped[HARNESS_WORLD_MAX], skipped_next[HARNESS_WORLD_MAX];
};

/* Weights and moments without gradients. */
static uint64_t hash_state(struct hd_trainer *t)
{
    harness_clear_gradients(t);
    return run_hash_state(t);
}

/* Changes the first weight of parameter 1; returns its old value. */
static float replace_first(struct hd_trainer *t, float by)
{
    float *weights = harness_take(t, 1, HD_STATE_WEIGHT);
    const float was = weights[0];

    weights[0] = by;
    harness_put(t, 1, HD_STATE_WEIGHT, weights);
    return was;
}

/* The last rank's copy of a weight is NaN for one step. */
static enum hd_status poison(struct harness_rank *r)
{
    struct poisoned *p = r->context;
    struct hd_step_result result = {0};
    struct hd_trainer *t;
    float sound = 0;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    st = hd_trainer_step(t, 0, &result);
    p->before[r->rank] = hash_state(t);
    if (r->rank == r->world - 1)
        sound = replace_first(t, NAN);
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    p->skipped[r->rank] = result.skipped;
    if (r->rank == r->world - 1)
        (void)replace_first(t, sound);
    p->after[r->rank] = hash_state(t);
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    p->skipped_next[r->rank] = result.skipped;
    hd_trainer_free(t);
    return st;
}

static void a_gradient_that_is_not_finite_changes_no_weight_on_any_rank(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int dp = 1; dp <= 2; dp++) {
        const struct hd_job job = harness_job(&h, "llama", dp);
        struct poisoned p = {0};

        if (harness_threads(&job, dp, &p, poison))
            fail_msg("%s", hd_err_message());
        for (int r = 0; r < dp; r++) {
            assert_true(p.skipped[r]);
            assert_false(p.skipped_next[r]);
            assert_true(p.after[r] == p.before[r]);
        }
    }
    harness_teardown(&h);
}

RUN_CASES()
