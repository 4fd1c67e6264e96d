/* guard: steps whose loss or gradient norm is far above those before it (train.guard).
 *
 * A step is a spike if its loss, or the norm of its gradient, is more than `spike` standard
 * deviations above the mean of the last HD_GUARD_STEPS steps that were none, of which there are at
 * least HD_GUARD_STEPS_MIN. A deviation counts as at least a hundredth of the mean, so that a loss
 * that hardly moves has no spikes.
 *
 * The limits are set before the step, from numbers that are equal on all ranks, and the step's end
 * compares with them on the device (step_finish): so no rank updates a weight, under every layout.
 * The history is in the checkpoint, as fp32: a resumed run judges as one that was not interrupted.
 *
 * Used by: train, tests.   Uses: job.   Threads: values.
 */
#ifndef HD_TRAIN_GUARD_H
#define HD_TRAIN_GUARD_H

#include <stdint.h>

#include "job/job.h"

enum { HD_GUARD_STEPS = 200, HD_GUARD_STEPS_MIN = 50 };

struct hd_guard {
    double spike;  /* standard deviations; 0: no step is judged */
    int64_t count; /* steps that were added since the start of the run */
    float losses[HD_GUARD_STEPS], norms[HD_GUARD_STEPS]; /* rings */
};

void hd_guard_init(const struct hd_job *job, struct hd_guard *ret_guard);

/* Of a step that is no spike, whose numbers are finite. */
void hd_guard_add(struct hd_guard *guard, double loss, double norm);

/* A loss or norm above its limit is a spike. 0: there is no limit yet. */
struct hd_guard_limits {
    double loss, norm;
};
struct hd_guard_limits hd_guard_get_limits(const struct hd_guard *guard);

/* Entry i of the history as a number for a checkpoint, and back. */
int64_t hd_guard_pack(const struct hd_guard *guard, int i);
void hd_guard_unpack(struct hd_guard *guard, int i, int64_t packed);

#endif
