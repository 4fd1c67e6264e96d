/* trend: detects a run whose losses are finite but which has nevertheless been destroyed.
 *
 * A learning rate that is too high can leave weights that are finite and useless: the model gives
 * every token the same probability, or wrong ones, and no further step changes that. The losses
 * show it. With V the vocabulary, ln V is the loss of a model that guesses uniformly. Over the last
 * HD_TREND_STEPS steps:
 *
 *   stuck: every gradient is 0, or all losses are equal to one in a million
 *   lost:  every loss is at ln V or above, and a tenth of ln V above the lowest loss of the run;
 *          while there are fewer than 2 x HD_TREND_STEPS steps, only the later half of them counts
 *
 * A stuck run counts only with losses at ln V or above, or a tenth of ln V above the lowest one: a
 * model that has memorised its data has gradients of 0, too. Working training shows neither for so
 * many steps; but a run may recover, so this only reports and stops nothing. A step without targets
 * is not added.
 *
 * Used by: worker, tests.   Uses: nothing.   Threads: one owner.
 */
#ifndef HD_TRAIN_TREND_H
#define HD_TRAIN_TREND_H

#include <stdbool.h>
#include <stdint.h>

enum { HD_TREND_STEPS = 10 };

struct hd_trend { /* initialise with {0} */
    int64_t steps;
    /* ring buffers of the newest steps' losses and gradient norms */
    double losses[HD_TREND_STEPS], grad_norms[HD_TREND_STEPS];
    double lowest, last;
    int64_t lowest_step;
};

/* Adds a step's loss and gradient norm; the step must have had targets (predicted tokens). */
void hd_trend_add(struct hd_trend *trend, int64_t step, double loss, double grad_norm);

bool hd_trend_is_stuck(const struct hd_trend *trend, int64_t vocab);
bool hd_trend_is_lost(const struct hd_trend *trend, int64_t vocab);

#endif
