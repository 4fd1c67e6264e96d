/* policy: loss and gradient of one token of a completion (hd_policy_args in ops_loss.h); one code for
 * every backend.
 *
 * A number that is not finite passes through every limit below, so that a step with such a number
 * has no finite loss instead of a wrong one.
 *
 * Used by: kernels/cpu, kernels/cuda.   Uses: kernels.h.   Threads: a pure function. */
#ifndef HD_KERNELS_POLICY_H
#define HD_KERNELS_POLICY_H

#include <math.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
#define HD_POLICY_FUNCTION static __device__ __forceinline__
#else
#define HD_POLICY_FUNCTION static inline
#endif

/* Largest absolute value of the logarithm of a ratio; exp(10) is about 22,026. */
#define HD_POLICY_LOG_MAX 10.0

/* Inputs of one token: log-probabilities, the advantage of its completion, and the completion's two
 * numbers in `sums`. */
struct hd_policy_token {
    double logp, sampled, reference, advantage;
    double difference_sum, count;
};

struct hd_policy_row {
    double loss;                   /* the token's part of loss_sum */
    double weight;                 /* -d loss / d logp, the factor of the row's gradient */
    double words[HD_POLICY_WORDS]; /* its part of the step's numbers */
};

/* Returns x within [low, high]; NaN stays NaN. */
HD_POLICY_FUNCTION double hd_policy_limit(double x, double low, double high)
{
    return x > high ? high : x < low ? low : x;
}

/* Returns exp(x), with x within its limits. */
HD_POLICY_FUNCTION double hd_policy_ratio(double x)
{
    return exp(hd_policy_limit(x, -HD_POLICY_LOG_MAX, HD_POLICY_LOG_MAX));
}

/* Returns the estimate of the divergence, and *ret_pull = -d estimate / d logp. Beyond its limit the
 * exponential of k3 goes on as a straight line: far from the reference the token is still drawn back. */
HD_POLICY_FUNCTION double hd_policy_divergence(enum hd_policy_kl kind, double logp,
                                               double reference, double *ret_pull)
{
    const double y = reference - logp;
    const double inside = y > HD_POLICY_LOG_MAX ? HD_POLICY_LOG_MAX : y;
    const double e = exp(inside);

    if (kind == HD_POLICY_K1) {
        *ret_pull = -1;
        return -y;
    }
    if (kind == HD_POLICY_K2) {
        *ret_pull = y;
        return y * y / 2;
    }
    *ret_pull = e - 1;
    return e * (1 + (y - inside)) - y - 1;
}

/* Returns the factor of the token's objective that corrects for the difference between sampling and
 * training. */
HD_POLICY_FUNCTION double hd_policy_correct(const struct hd_policy_factors *f,
                                            const struct hd_policy_token *t)
{
    const double most = (double)f->correction_max;
    const bool whole = f->level == HD_POLICY_SEQUENCE || f->correction == HD_POLICY_MASK_SEQUENCE;
    const double q = hd_policy_ratio(whole ? t->difference_sum : t->logp - t->sampled);

    if (f->correction == HD_POLICY_MASK_SEQUENCE && q > most)
        return 0;
    if (f->correction == HD_POLICY_CORRECT_NONE || f->old_is_sampled)
        return 1;
    return q > most ? most : q;
}

/* Returns the objective of PPO of a ratio, and *ret_pull, its derivative by the ratio's logarithm.
 * Counts the ratio in `words` if its limits take its gradient away. */
HD_POLICY_FUNCTION double hd_policy_clipped(const struct hd_policy_factors *f, double ratio,
                                            bool inside, double advantage, double *ret_pull,
                                            double *words)
{
    const double low = 1 - (double)f->clip_low, high = 1 + (double)f->clip_high;
    const bool above = f->dual_clip > 0 && ratio > (double)f->dual_clip;
    const double free = (above ? (double)f->dual_clip : ratio) * advantage;
    const double bounded = hd_policy_limit(ratio, low, high) * advantage;

    words[HD_POLICY_CLIPPED_LOW] = advantage < 0 && ratio < low;
    words[HD_POLICY_CLIPPED_HIGH] = advantage > 0 && ratio > high;
    *ret_pull = free > bounded || above || !inside ? 0 : ratio * advantage;
    return free > bounded ? bounded : free;
}

/* Returns the objective of a token, which is to grow, and *ret_pull, its derivative by logp. */
HD_POLICY_FUNCTION double hd_policy_objective(const struct hd_policy_factors *f,
                                              const struct hd_policy_token *t, double *ret_pull,
                                              double *words)
{
    const double whole =
        f->level == HD_POLICY_SEQUENCE ? t->difference_sum / t->count : t->logp - t->sampled;
    const double x = f->old_is_sampled ? whole : 0;
    const double ratio = hd_policy_ratio(x);

    if (f->clip == HD_POLICY_CISPO) {
        const double most = (double)f->cispo_max;

        words[HD_POLICY_CLIPPED_HIGH] = t->advantage > 0 && ratio > most;
        *ret_pull = (ratio > most ? most : ratio) * t->advantage;
        return *ret_pull * t->logp;
    }
    return hd_policy_clipped(f, ratio, !(fabs(x) > HD_POLICY_LOG_MAX), t->advantage, ret_pull,
                             words);
}

/* Returns loss, gradient and numbers of a token that has a target. */
HD_POLICY_FUNCTION struct hd_policy_row hd_policy_of(const struct hd_policy_factors *f,
                                                     const struct hd_policy_token *t)
{
    const double share = f->mean == HD_POLICY_MEAN_COMPLETIONS ? 1 / t->count : 1;
    const double correction = hd_policy_correct(f, t), beta = (double)f->kl_beta;
    double pull, back = 0, objective, divergence = 0;
    struct hd_policy_row row = {0, 0, {0}};

    objective = hd_policy_objective(f, t, &pull, row.words);
    if (f->kl != HD_POLICY_KL_NONE)
        divergence = hd_policy_divergence(f->kl, t->logp, t->reference, &back);
    row.loss = share * (beta * divergence - correction * objective);
    row.weight = share * (correction * pull + beta * back);
    row.words[HD_POLICY_TOKENS] = 1;
    row.words[HD_POLICY_KL_SUM] = divergence;
    row.words[HD_POLICY_DIFFERENCE_SUM] = fabs(t->logp - t->sampled);
    row.words[HD_POLICY_RATIO_SUM] = hd_policy_ratio(t->logp - t->sampled);
    row.words[HD_POLICY_DIFFERENCE_MAX] = row.words[HD_POLICY_DIFFERENCE_SUM];
    row.words[HD_POLICY_RATIO_MAX] = row.words[HD_POLICY_RATIO_SUM];
    return row;
}

/* Returns the entropy of a row, in nats, from the `spread` of all P ranks, which have `rows` rows each. */
HD_POLICY_FUNCTION double hd_policy_entropy(const float *spread, int64_t P, int64_t rows, int64_t r)
{
    double max = -INFINITY, sum = 0, moment = 0;

    for (int64_t p = 0; p < P; p++) {
        const double m = (double)spread[(p * rows + r) * HD_ENTROPY_WORDS];

        max = m > max ? m : max;
    }
    for (int64_t p = 0; p < P; p++) {
        const float *own = spread + (p * rows + r) * HD_ENTROPY_WORDS;
        const double less = (double)own[0] - max, e = exp(less);

        sum += e * (double)own[1];
        moment += e * ((double)own[2] + less * (double)own[1]);
    }
    return log(sum) - moment / sum;
}

/* Adds the numbers of a token, or of a part of a step, to `total`. */
HD_POLICY_FUNCTION void hd_policy_add(double *total, const double *words)
{
    for (int i = 0; i < HD_POLICY_MAXIMA; i++)
        total[i] += words[i];
    for (int i = HD_POLICY_MAXIMA; i < HD_POLICY_WORDS; i++)
        total[i] = words[i] > total[i] ? words[i] : total[i];
}

/* Returns the number of terms that a completion adds to the mean of the loss, without its tokens. */
HD_POLICY_FUNCTION int64_t hd_policy_terms(const struct hd_policy_factors *f)
{
    return f->mean == HD_POLICY_MEAN_COMPLETIONS ? 1
           : f->mean == HD_POLICY_MEAN_LENGTH    ? f->max_tokens
                                                 : 0;
}

#endif
