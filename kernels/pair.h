/* pair: loss and gradient of one pair of answers (hd_preference_args in ops_loss.h); one code for every
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

/* Returns the loss of DPO, or of ROBUST, of the margin x, and *ret_pull = -d loss / d x. */
HD_PAIR_FUNCTION double hd_pair_logistic(bool robust, double smoothing, double x, double *ret_pull)
{
    const double e = smoothing, sign = robust ? -1 : 1, scale = robust ? 1 / (1 - 2 * e) : 1;

    if (e == 0) {
        *ret_pull = hd_pair_sigmoid(-x);
        return hd_pair_softplus(-x);
    }
    *ret_pull = scale * ((1 - e) * hd_pair_sigmoid(-x) - sign * e * hd_pair_sigmoid(x));
    return scale * ((1 - e) * hd_pair_softplus(-x) + sign * e * hd_pair_softplus(x));
}

/* Returns d sigmoid(x) / d x. */
HD_PAIR_FUNCTION double hd_pair_sigmoid_slope(double x)
{
    return hd_pair_sigmoid(x) * hd_pair_sigmoid(-x);
}

/* Sets loss and gradients of `p`, whose margin is set, for a loss that is a function of the margin. chosen,
 * rejected: values of the answers whose difference times beta is the margin; slope: d value / d s of each. */
HD_PAIR_FUNCTION void hd_pair_of_margin(enum hd_preference objective,
                                        const struct hd_preference_factors *f, struct hd_pair *p,
                                        const double *slope)
{
    double x = p->margin, pull;

    if (objective == HD_PREFERENCE_HINGE) {
        p->loss = x < 1 ? 1 - x : 0;
        pull = x < 1;
    } else if (objective == HD_PREFERENCE_IPO) { /* in units of beta: x - 1/2 */
        const double beta = (double)f->beta, off = x / beta - 1 / (2 * beta);

        p->loss = off * off;
        pull = -2 * off / beta;
    } else {
        if (objective == HD_PREFERENCE_SIMPO)
            x -= (double)f->gamma;
        p->loss =
            hd_pair_logistic(objective == HD_PREFERENCE_ROBUST, (double)f->smoothing, x, &pull);
    }
    p->chosen = (double)f->beta * pull * slope[0];
    p->rejected = -(double)f->beta * pull * slope[1];
}

/* Sets loss and gradients of `p` by APO, of the values chosen and rejected. */
HD_PAIR_FUNCTION void hd_pair_anchored(bool zero, double beta, double chosen, double rejected,
                                       struct hd_pair *p)
{
    const double c = beta * chosen, r = beta * rejected;

    if (zero) {
        p->loss = hd_pair_sigmoid(-c) + hd_pair_sigmoid(r);
        p->chosen = beta * hd_pair_sigmoid_slope(c);
        p->rejected = -beta * hd_pair_sigmoid_slope(r);
        return;
    }
    p->loss = hd_pair_sigmoid(c) + hd_pair_sigmoid(-p->margin);
    p->chosen = beta * (hd_pair_sigmoid_slope(p->margin) - hd_pair_sigmoid_slope(c));
    p->rejected = -beta * hd_pair_sigmoid_slope(p->margin);
}

/* Returns loss and gradient of DPO and its kin, SimPO and CPO. sums: as for hd_pair_of. */
HD_PAIR_FUNCTION struct hd_pair hd_pair_ratio(enum hd_preference objective,
                                              const struct hd_preference_factors *f,
                                              const double *sums)
{
    const bool of_means = objective == HD_PREFERENCE_IPO ||
                          objective == HD_PREFERENCE_SIGMOID_NORM ||
                          objective == HD_PREFERENCE_SIMPO;
    const double slope[2] = {of_means ? 1 / sums[1] : 1, of_means ? 1 / sums[3] : 1};
    const double beta = (double)f->beta, sft = (double)f->sft;
    const double chosen = of_means ? sums[0] / sums[1] : sums[0];
    const double rejected = of_means ? sums[2] / sums[3] : sums[2];
    struct hd_pair p = {true, 0, beta * (chosen - rejected), beta * (chosen + rejected) / 2, 0, 0};

    if (objective == HD_PREFERENCE_APO_ZERO || objective == HD_PREFERENCE_APO_DOWN)
        hd_pair_anchored(objective == HD_PREFERENCE_APO_ZERO, beta, chosen, rejected, &p);
    else
        hd_pair_of_margin(objective, f, &p, slope);
    if (sft > 0) {
        p.loss -= sft * sums[0] / sums[1];
        p.chosen += sft / sums[1];
    }
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

/* Returns loss and gradient of KTO, of those of the two answers that have targets: sums of a loss for
 * each. margin: reward of the chosen answer; reward: of both. */
HD_PAIR_FUNCTION struct hd_pair hd_pair_unpaired(const struct hd_preference_factors *f, double kl,
                                                 const double *sums)
{
    const double beta = (double)f->beta, desirable = (double)f->desirable;
    const double undesirable = (double)f->undesirable;
    struct hd_pair p = {true, 0, 0, 0, 0, 0};

    if (sums[1] > 0) {
        const double x = beta * (sums[0] - kl);

        p.loss += desirable * hd_pair_sigmoid(-x);
        p.chosen = desirable * beta * hd_pair_sigmoid_slope(x);
        p.margin = beta * sums[0];
        p.reward += beta * sums[0];
    }
    if (sums[3] > 0) {
        const double x = beta * (sums[2] - kl);

        p.loss += undesirable * hd_pair_sigmoid(x);
        p.rejected = -undesirable * beta * hd_pair_sigmoid_slope(x);
        p.reward += beta * sums[2];
    }
    return p;
}

/* Returns the number of terms that a pair adds to the mean of the loss: the pair, or its answers. */
HD_PAIR_FUNCTION int64_t hd_pair_terms(enum hd_preference objective, const double *sums)
{
    return objective == HD_PREFERENCE_KTO ? (int64_t)(sums[1] > 0) + (sums[3] > 0) : 1;
}

/* Returns whether a pair counts as correct; with KTO whether its chosen answer has targets. */
HD_PAIR_FUNCTION bool hd_pair_correct(enum hd_preference objective, const struct hd_pair *p,
                                      const double *sums)
{
    return objective == HD_PREFERENCE_KTO ? sums[1] > 0 : p->margin > 0;
}

/* Returns loss and gradient of a pair of answers. kl: block->kl. sums: {sum of values, number of
 * targets} of the chosen answer, then of the rejected one. */
HD_PAIR_FUNCTION struct hd_pair hd_pair_of(enum hd_preference objective,
                                           const struct hd_preference_factors *factors, double kl,
                                           const double *sums)
{
    const struct hd_pair none = {false, 0, 0, 0, 0, 0};

    if (objective == HD_PREFERENCE_KTO)
        return sums[1] > 0 || sums[3] > 0 ? hd_pair_unpaired(factors, kl, sums) : none;
    if (!(sums[1] > 0) || !(sums[3] > 0))
        return none;
    if (objective == HD_PREFERENCE_REWARD)
        return hd_pair_reward((double)factors->center, sums[0], sums[2]);
    if (objective == HD_PREFERENCE_ORPO)
        return hd_pair_orpo((double)factors->beta, sums[0] / sums[1], sums[1], sums[2] / sums[3],
                            sums[3]);
    return hd_pair_ratio(objective, factors, sums);
}

#endif
