/* Completions in place of samples: what is refused, what an empty step does, and that neither their
 * order nor their neighbours matter. (The numbers: policy_golden_test; every layout: the tuned grids.)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "harness.h"
#include "tests/program/test.h"
#include "train/policy.h"
#include "train/trainer.h"

enum { CONTEXT = 24, COUNT = 14, IDS_MAX = 16 };

struct set {
    int32_t ids[COUNT][IDS_MAX];
    float sampled[COUNT][IDS_MAX];
    struct hd_policy_completion list[COUNT];
};

static void make_set(struct set *s)
{
    for (int i = 0; i < COUNT; i++) {
        const int prompt = 1 + i % 4, count = 1 + i * 5 % 8;

        for (int k = 0; k < prompt + count; k++)
            s->ids[i][k] = 'a' + (int32_t)(hd_random_u64(3 + (uint64_t)i, (uint64_t)k) % 20);
        for (int k = 0; k < count; k++)
            s->sampled[i][k] = -5.5f + 0.2f * hd_random_normal(5 + (uint64_t)i, (uint64_t)k);
        s->list[i] = (struct hd_policy_completion){.prompt = s->ids[i],
                                                   .prompt_count = prompt,
                                                   .ids = s->ids[i] + prompt,
                                                   .count = count,
                                                   .sampled = s->sampled[i],
                                                   .advantage = hd_random_normal(9, (uint64_t)i)};
    }
}

static struct hd_job job_of(const struct harness *h)
{
    struct hd_job job = harness_job(h, "llama", 1);

    job.objective = HD_JOB_OBJECTIVE_GRPO;
    job.policy_loss = HD_JOB_POLICY_LOSS_GRPO;
    job.context = CONTEXT;
    job.policy_clip_low = job.policy_clip_high = 0.9;
    job.rollout_updates = 2;
    job.rollout_max_tokens = 8;
    job.lr_peak = job.lr_min = job.weight_decay = 0;
    return job;
}

static void run(enum hd_status (*body)(struct harness_rank *r))
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 2000);
    job = job_of(&h);
    if (harness_threads(&job, 1, NULL, body))
        fail_msg("%s", hd_err_message());
    harness_teardown(&h);
}

static enum hd_status step_on(struct hd_trainer *t, const struct hd_policy_completion *list,
                              int64_t count, struct hd_step_result *ret)
{
    const enum hd_status st = hd_trainer_set_completions(t, list, count);

    return st ? st : hd_trainer_step(t, 0, ret);
}

/* ---- order ---- */

/* Fails unless loss and gradient are those of `want`, up to the order of additions. */
static enum hd_status expect(const char *what, const struct hd_step_result *s,
                             const struct hd_step_result *want)
{
    if (fabs(s->loss - want->loss) <= 1e-6 &&
        fabs(s->grad_norm - want->grad_norm) <= 1e-5 * want->grad_norm &&
        s->policy.tokens == want->policy.tokens &&
        s->policy.completions == want->policy.completions)
        return HD_OK;
    return hd_err(HD_INTERNAL, "%s: loss %.8f norm %.8f, not %.8f %.8f", what, s->loss,
                  s->grad_norm, want->loss, want->grad_norm);
}

static enum hd_status check_order(struct harness_rank *r)
{
    struct set s;
    struct hd_policy_completion turned[COUNT + 1];
    struct hd_step_result want, result;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    make_set(&s);
    st = step_on(t, s.list, COUNT, &want);
    if (!st && !(want.grad_norm > 0 && want.policy.completions == COUNT && fabs(want.loss) > 1e-3))
        st = hd_err(HD_INTERNAL, "loss %g, norm %g of %lld completions", want.loss, want.grad_norm,
                    (long long)want.policy.completions);
    for (int i = 0; i < COUNT; i++)
        turned[i] = s.list[COUNT - 1 - i];
    if (!st)
        st = step_on(t, turned, COUNT, &result);
    if (!st)
        st = expect("the other way round", &result, &want);
    turned[COUNT] = s.list[3];
    turned[COUNT].masked = true;
    turned[COUNT].advantage = 50;
    if (!st)
        st = step_on(t, turned, COUNT + 1, &result);
    if (!st)
        st = expect("beside a masked one", &result, &want);
    hd_trainer_free(t);
    return st;
}

static void neither_order_nor_masked_neighbours_matter(void **state)
{
    run(check_order);
}

/* ---- tokens without a loss ---- */

/* A token whose log-probability is no number is left out of sums and counts: two of COUNT completions
 * lose one of theirs, and one all of its own, with which it counts no more. */
static enum hd_status check_dropped(struct harness_rank *r)
{
    struct set s;
    struct hd_step_result want, result;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    make_set(&s);
    st = step_on(t, s.list, COUNT, &want);
    s.sampled[3][1] = NAN;
    s.sampled[4][0] = -INFINITY;
    for (int64_t i = 0; i < s.list[1].count; i++)
        s.sampled[1][i] = NAN;
    if (!st)
        st = step_on(t, s.list, COUNT, &result);
    if (!st && (result.policy.dropped != 2 + s.list[1].count ||
                result.policy.tokens != want.policy.tokens - result.policy.dropped ||
                result.policy.completions != COUNT - 1 || !isfinite(result.loss)))
        st = hd_err(HD_INTERNAL, "%lld tokens dropped, %lld left in %lld completions, loss %g",
                    (long long)result.policy.dropped, (long long)result.policy.tokens,
                    (long long)result.policy.completions, result.loss);
    for (int i = 0; i < COUNT; i++)
        s.list[i].masked = true;
    if (!st)
        st = step_on(t, s.list, COUNT, &result);
    if (!st && (!result.skipped || result.policy.tokens))
        st = hd_err(HD_INTERNAL, "a step without completions was not skipped");
    hd_trainer_free(t);
    return st;
}

static void tokens_without_a_number_are_dropped_and_counted(void **state)
{
    run(check_dropped);
}

/* ---- log-probabilities ---- */

/* Goal: a ratio of the first update is 1. Method: the log-probabilities by program E, taken as those of
 * sampling; on one rank to the last bit. */
static enum hd_status check_scores(struct harness_rank *r)
{
    const double bound = r->world == 1 ? 0 : 1e-5;
    struct set s;
    struct hd_step_result result;
    struct hd_trainer *t;
    float *logp[COUNT];
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    make_set(&s);
    for (int i = 0; i < COUNT; i++)
        logp[i] = s.sampled[i];
    s.list[2].masked = true;
    st = hd_trainer_score_completions(t, s.list, COUNT, logp);
    if (!st)
        st = step_on(t, s.list, COUNT, &result);
    if (!st && !(result.policy.difference_max <= bound &&
                 fabs(result.policy.ratio_max - 1) <= bound && result.policy.dropped == 0 &&
                 result.policy.completions == COUNT - 1 && result.policy.entropy > 5))
        st = hd_err(HD_INTERNAL, "differences up to %g, ratios up to %g, entropy %g",
                    result.policy.difference_max, result.policy.ratio_max, result.policy.entropy);
    hd_trainer_free(t);
    return st;
}

static void the_first_ratios_are_one(void **state)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 2000);
    job = job_of(&h);
    job.rollout_temperature = 0.7;
    if (harness_threads(&job, 1, NULL, check_scores))
        fail_msg("one rank: %s", hd_err_message());
    job.tp = job.cp = job.pp = 2;
    (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    if (harness_threads(&job, 8, NULL, check_scores))
        fail_msg("tp 2, cp 2, pp 2: %s", hd_err_message());
    job.tp = job.pp = 1;
    job.dp = 2;
    if (harness_threads(&job, 4, NULL, check_scores))
        fail_msg("dp 2, cp 2: %s", hd_err_message());
    harness_teardown(&h);
}

/* ---- the reference ---- */

/* Log-probabilities of a set, by completion and token. */
struct scores {
    float logp[COUNT][IDS_MAX];
    float *at[COUNT];
};

static void clear_scores(struct scores *s)
{
    *s = (struct scores){.at = {NULL}};
    for (int i = 0; i < COUNT; i++)
        s->at[i] = s->logp[i];
}

/* The reference stays what the weights were at the start, to the last bit, while steps change these, and
 * leaves these as they are. */
static enum hd_status check_reference(struct harness_rank *r)
{
    struct scores *list = calloc(4, sizeof *list);
    struct scores *start = &list[0], *before = &list[1], *reference = &list[2], *after = &list[3];
    struct hd_step_result result;
    struct set s;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    make_set(&s);
    for (int i = 0; i < 4; i++)
        clear_scores(&list[i]);
    if (!st)
        st = hd_trainer_keep_reference(t);
    if (!st)
        st = hd_trainer_score_completions(t, s.list, COUNT, start->at);
    for (int i = 0; i < COUNT; i++)
        s.list[i].reference = start->logp[i];
    for (int k = 0; !st && k < 2; k++)
        st = step_on(t, s.list, COUNT, &result);
    if (!st)
        st = hd_trainer_score_completions(t, s.list, COUNT, before->at);
    if (!st)
        st = hd_trainer_score_reference(t, s.list, COUNT, reference->at);
    if (!st)
        st = hd_trainer_score_completions(t, s.list, COUNT, after->at);
    if (!st && memcmp(reference->logp, start->logp, sizeof start->logp) != 0)
        st = hd_err(HD_INTERNAL, "the reference is not the model of the start");
    if (!st && memcmp(before->logp, after->logp, sizeof before->logp) != 0)
        st = hd_err(HD_INTERNAL, "the weights are not those of before");
    if (!st &&
        (memcmp(before->logp, start->logp, sizeof before->logp) == 0 || !(result.policy.kl > 0)))
        st = hd_err(HD_INTERNAL, "two steps change nothing");
    if (!st)
        st = hd_trainer_set_completions(t, s.list, COUNT);
    if (!st) /* and a step goes on from there */
        st = hd_trainer_step(t, 0, &result);
    hd_trainer_free(t);
    free(list);
    return st;
}

static void the_reference_is_the_model_of_the_start(void **state)
{
    static const struct {
        const char *what;
        enum hd_job_precision precision;
        int dp, tp, pp, zero;
        bool adapter;
    } layouts[] = {{"fp32", HD_JOB_PRECISION_FP32, 1, 1, 1, 0, false},
                   {"an adapter", HD_JOB_PRECISION_FP32, 1, 1, 1, 0, true},
                   {"bf16, zero 1", HD_JOB_PRECISION_BF16, 2, 1, 1, 1, false},
                   {"fp32, zero 2", HD_JOB_PRECISION_FP32, 2, 1, 1, 2, false},
                   {"bf16, zero 3, tp 2", HD_JOB_PRECISION_BF16, 2, 2, 1, 3, false},
                   {"two stages", HD_JOB_PRECISION_FP32, 1, 1, 2, 0, false}};
    struct harness h;

    harness_setup(&h, 2000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct hd_job job = job_of(&h);

        job.lr_peak = job.lr_min = 1e-2;
        job.policy_kl = HD_JOB_POLICY_KL_K3;
        job.policy_kl_beta = 0.05;
        job.precision = layouts[i].precision;
        job.dp = layouts[i].dp;
        job.tp = layouts[i].tp;
        job.pp = layouts[i].pp;
        job.zero = layouts[i].zero;
        if (job.pp > 1)
            (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
        if (layouts[i].adapter) {
            job.adapter = HD_JOB_ADAPTER_LORA;
            job.adapter_rank = 4;
            job.adapter_alpha = 8;
        }
        if (harness_threads(&job, (int)(job.dp * job.tp * job.pp), NULL, check_reference))
            fail_msg("%s: %s", layouts[i].what, hd_err_message());
    }
    harness_teardown(&h);
}

/* ---- refusals ---- */

static void refused(struct hd_trainer *t, const struct hd_policy_completion *list, int64_t count,
                    const char *why)
{
    assert_int_equal(hd_trainer_set_completions(t, list, count), HD_INVALID);
    if (!strstr(hd_err_message(), why))
        fail_msg("'%s' does not say '%s'", hd_err_message(), why);
}

static enum hd_status check_refused(struct harness_rank *r)
{
    static const int32_t many[CONTEXT + 2] = {0};
    struct hd_policy_completion crowd[40], one;
    struct hd_step_result result;
    struct set s;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    make_set(&s);
    assert_int_equal(hd_trainer_step(t, 0, &result), HD_INTERNAL); /* none are set */
    one = s.list[0];
    one.prompt = many;
    one.prompt_count = CONTEXT + 1; /* its last token takes no row */
    refused(t, &one, 1, "takes 25 rows");
    one.prompt_count = 0;
    refused(t, &one, 1, "has no prompt");
    one = s.list[0];
    s.ids[0][1] = 256;
    refused(t, &one, 1, "token 256");
    s.ids[0][1] = 'a';
    /* eight windows of 24 rows: 13 rows fit once into each */
    for (int i = 0; i < 9; i++) {
        crowd[i] = s.list[6];
        crowd[i].prompt = many;
        crowd[i].prompt_count = 14 - crowd[i].count;
    }
    assert_int_equal(hd_trainer_set_completions(t, crowd, 8), HD_OK);
    assert_int_equal(t->micro_batches, 4); /* of two windows each; every window has one */
    refused(t, crowd, 9, "raise train.global_batch");
    /* a step computes no more micro-batches than its completions need */
    assert_int_equal(hd_trainer_set_completions(t, crowd, 3), HD_OK);
    assert_int_equal(t->micro_batches, 2);
    assert_int_equal(hd_trainer_step(t, 0, &result), HD_OK);
    assert_int_equal(result.policy.completions, 3);
    hd_trainer_free(t);
    return st;
}

static void completions_that_do_not_fit_are_refused_and_few_take_few_micro_batches(void **state)
{
    run(check_refused);
}

RUN_CASES()
