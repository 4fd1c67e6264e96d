/* trend: whether a run whose losses are finite has nevertheless been destroyed.
 *
 * A rate that is too high can leave weights that are finite and of no use: the model gives every
 * token the same probability, or the wrong ones, and nothing changes that any more. The losses say
 * so. With V the vocabulary, ln V is the loss of a model that knows nothing. Over the last
 * HD_TREND_STEPS steps:
 *
 *   stuck: every gradient is 0, or every loss is the same to one in a million
 *   lost:  every loss is at ln V or above, and a tenth of ln V above the lowest loss of the run; of
 *          fewer than twice so many steps the later half is looked at
 *
 * A stuck run counts only with losses at ln V or above, or a tenth of ln V above the lowest one: a
 * model that has learned its data by heart has gradients of 0, too. Training that works does
 * neither for so many steps; a run may also recover, so this ends nothing. A step without targets
 * says nothing and is left out.
 *
 * Used by: worker, tests.   Uses: nothing.   Threads: one owner.
 */
#ifndef HD_TRAIN_TREND_H
#define HD_TRAIN_TREND_H

#include <stdbool.h>
#include <stdint.h>

enum { HD_TREND_STEPS = 10 };

struct hd_trend { /* zero at the beginning */
    int64_t steps;
    double losses[HD_TREND_STEPS], grad_norms[HD_TREND_STEPS]; /* rings */
    double lowest, last;
    int64_t lowest_step;
};

/* The loss and the gradient's norm of a step that had targets. */
void hd_trend_add(struct hd_trend *trend, int64_t step, double loss, double grad_norm);

bool hd_trend_is_stuck(const struct hd_trend *trend, int64_t vocab);
bool hd_trend_is_lost(const struct hd_trend *trend, int64_t vocab);

#endif
