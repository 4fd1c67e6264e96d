/* pair: loss and gradient of one pair of answers (hd_preference_args in ops.h); one code for every
 * backend.
 *
 * Used by: kernels/cpu, kernels/cuda.   Uses: kernels.h.   Threads: a pure function. */
#ifndef HD_KERNELS_PAIR_H
#define HD_KERNELS_PAIR_H

#include <math.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
#define HD_PAIR_FUNCTION static __device__ __forceinline__
#else
#define HD_PAIR_FUNCTION static inline
#endif

/* largest mean log-probability used in odds: an answer above it counts as certain, because its odds
 * would be infinite */
#define HD_PAIR_CERTAIN (-1e-6)

struct hd_pair {
    bool present;                /* true if both answers of the pair have targets */
    double loss, margin, reward; /* loss and margin of the pair; mean reward of its two answers */
    double chosen, rejected;     /* for each answer -d loss / d s, s the sum of its rows' values:
                                    factor of each row's gradient */
};

/* Returns log(1 + exp(x)), which is -log sigmoid(-x), without overflow. */
HD_PAIR_FUNCTION double hd_pair_softplus(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

/* Returns 1 / (1 + exp(-x)). */
HD_PAIR_FUNCTION double hd_pair_sigmoid(double x)
{
    const double e = exp(-fabs(x));

    return (x > 0 ? 1 : e) / (1 + e);
}

HD_PAIR_FUNCTION struct hd_pair hd_pair_dpo(double beta, double chosen, double rejected)
{
    const double margin = beta * (chosen - rejected), pull = beta * hd_pair_sigmoid(-margin);
    const struct hd_pair p = {
        true, hd_pair_softplus(-margin), margin, beta * (chosen + rejected) / 2, pull, -pull};

    return p;
}

HD_PAIR_FUNCTION struct hd_pair hd_pair_reward(double center, double chosen, double rejected)
{
    const double margin = chosen - rejected, sum = chosen + rejected;
    const double pull = hd_pair_sigmoid(-margin), push = 2 * center * sum;
    const struct hd_pair p = {true,        hd_pair_softplus(-margin) + center * sum * sum,
                              margin,      sum / 2,
                              pull - push, -pull - push};

    return p;
}

/* Returns log(exp(a) / (1 - exp(a))), and its derivative 1 / (1 - exp(a)). */
HD_PAIR_FUNCTION double hd_pair_odds(double a, double *ret_slope)
{
    const double x = a < HD_PAIR_CERTAIN ? a : HD_PAIR_CERTAIN;
    const double rest = -expm1(x);

    *ret_slope = 1 / rest;
    return x - log(rest);
}

/* Returns loss and gradient of ORPO. chosen, rejected: mean log-probabilities over n targets
 * each. */
HD_PAIR_FUNCTION struct hd_pair hd_pair_orpo(double beta, double chosen, double n_chosen,
                                             double rejected, double n_rejected)
{
    double slope_chosen, slope_rejected;
    const double odds =
        hd_pair_odds(chosen, &slope_chosen) - hd_pair_odds(rejected, &slope_rejected);
    const double pull = beta * hd_pair_sigmoid(-odds);
    const struct hd_pair p = {true,
                              beta * hd_pair_softplus(-odds) - chosen,
                              beta * (chosen - rejected),
                              beta * (chosen + rejected) / 2,
                              (1 + pull * slope_chosen) / n_chosen,
                              -pull * slope_rejected / n_rejected};

    return p;
}

/* Returns loss and gradient of a pair of answers. sums: {sum of values, number of targets} of the
 * chosen answer, then of the rejected one. */
HD_PAIR_FUNCTION struct hd_pair hd_pair_of(enum hd_preference objective, double beta, double center,
                                           const double *sums)
{
    const struct hd_pair none = {false, 0, 0, 0, 0, 0};

    if (!(sums[1] > 0) || !(sums[3] > 0))
        return none;
    if (objective == HD_PREFERENCE_DPO)
        return hd_pair_dpo(beta, sums[0], sums[2]);
    if (objective == HD_PREFERENCE_REWARD)
        return hd_pair_reward(center, sums[0], sums[2]);
    return hd_pair_orpo(beta, sums[0] / sums[1], sums[1], sums[2] / sums[3], sums[3]);
}

#endif
