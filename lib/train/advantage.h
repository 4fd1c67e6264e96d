/* advantage: how much better an answer is than the other answers to its prompt (train.policy).
 *
 * With R the rewards of a group of answers, m their mean and s their standard deviation (divided by
 * the number less one), the advantage of an answer is
 *
 *     scale group   (R - m) / (s + 1e-4)                  (Shao et al. 2024, DeepSeekMath)
 *     scale batch   (R - m) / (s of all answers + 1e-4)
 *     scale none    R - m                                 (Liu et al. 2025, Dr. GRPO)
 *     rloo          R - the mean of the others            (Ahmadian et al. 2024)
 *
 * An answer whose reward is a NaN is in no mean and no deviation, and has the advantage 0.
 *
 * Used by: worker, tests.   Uses: kernels.   Threads: any; pure.
 */
#ifndef HD_TRAIN_ADVANTAGE_H
#define HD_TRAIN_ADVANTAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum hd_advantage_scale { HD_ADVANTAGE_GROUP, HD_ADVANTAGE_BATCH, HD_ADVANTAGE_NONE };

struct hd_reward_numbers {
    double mean;     /* mean reward */
    double std;      /* mean of the groups' standard deviations */
    double zero_std; /* share of groups whose rewards are all equal */
    int64_t missing; /* answers whose reward is a NaN */
};

/* Sets ret_advantages[count]; groups of `group` answers are consecutive. */
void hd_advantages(const double *rewards, int64_t count, int64_t group,
                   enum hd_advantage_scale scale, bool leave_one_out, float *ret_advantages,
                   struct hd_reward_numbers *ret_numbers);

/* Returns the sum of the divergence from the reference over the tokens of an answer (train.policy.kl), which
 * is estimated from the log-probabilities of drawing and of the reference. A token of which one is not
 * finite has none. */
double hd_advantage_divergence(enum hd_policy_kl kl, const float *sampled, const float *reference,
                               int64_t count);

/* Takes beta times the divergence of each answer from its reward (train.policy.kl_in: reward). */
void hd_advantage_take(const double *divergence, int64_t count, double beta, double *rewards);

/* Returns whether the rewards of a group of answers are all equal, NaN aside, so that nothing can be
 * learned from it. */
bool hd_advantage_is_flat(const double *rewards, int64_t group);

#endif
