/* guard: detects steps whose loss or gradient norm is far above those before it (train.guard).
 *
 * A step is a spike if its loss, or the norm of its gradient, is more than `spike` standard
 * deviations above the mean of the last HD_GUARD_STEPS steps without a spike; at least
 * HD_GUARD_STEPS_MIN such steps are needed. The deviation is taken as at least a hundredth of the
 * mean, so that an almost constant loss has no spikes.
 *
 * The limits are set before the step, from numbers that are equal on all ranks, and the end of the
 * step compares with them on the device (step_finish): so all ranks skip the update of a spike,
 * under every layout. The history is in the checkpoint, as fp32: a resumed run judges the same
 * steps spikes as an uninterrupted one.
 *
 * Used by: train, tests.   Uses: job.   Threads: values.
 */
#ifndef HD_TRAIN_GUARD_H
#define HD_TRAIN_GUARD_H

#include <stdint.h>

#include "job/job.h"

enum { HD_GUARD_STEPS = 200, HD_GUARD_STEPS_MIN = 50 };

struct hd_guard {
    /* limit in standard deviations above the mean; 0: no step is judged to be a spike */
    double spike;
    /* steps added to the history since the start of the run */
    int64_t count;
    /* ring buffers: losses and gradient norms of the newest steps without a spike */
    float losses[HD_GUARD_STEPS], norms[HD_GUARD_STEPS];
};

void hd_guard_init(const struct hd_job *job, struct hd_guard *ret_guard);

/* Adds the loss and gradient norm of a step to the history; the step was no spike, and both numbers
 * are finite. */
void hd_guard_add(struct hd_guard *guard, double loss, double norm);

/* Limits above which the next step's loss or gradient norm is a spike. 0: no limit, because the
 * guard is off or has too few steps. */
struct hd_guard_limits {
    double loss, norm;
};
struct hd_guard_limits hd_guard_get_limits(const struct hd_guard *guard);

/* hd_guard_pack packs the loss and norm at index i of the ring buffers into an integer that a
 * checkpoint stores; hd_guard_unpack restores them. */
int64_t hd_guard_pack(const struct hd_guard *guard, int i);
void hd_guard_unpack(struct hd_guard *guard, int i, int64_t packed);

#endif
