/* scale: dynamic loss scaling for fp16 (Micikevicius et al. 2018, "Mixed Precision Training",
 * section 3.2; the rule is that of PyTorch's GradScaler).
 *
 * Small gradients of activations would be zero in fp16, so the loss is multiplied by a scale, and
 * the update divides by it. If a gradient overflows, on any rank, no weight changes and the scale
 * is halved; after `interval` updates in a row it is doubled. Scales are powers of two, so they
 * change no bit of a gradient that neither overflows nor underflows.
 *
 * Gradients in this engine are sums over the step's targets. The scale is relative to their mean:
 * the factor on the sums is scale / 2^ceil(log2(tokens of a step)).
 *
 * Used by: train.   Uses: job.   Threads: values.
 */
#ifndef HD_TRAIN_SCALE_H
#define HD_TRAIN_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "job/job.h"

struct hd_loss_scale {
    bool used;     /* true: the job computes in fp16 */
    int64_t scale; /* scale of the next step; a power of two */
    int64_t good;  /* updates of the weights since the scale last changed */
    int64_t interval, floor;
};

enum { HD_LOSS_SCALE_LOG2_MAX = 40 }; /* log2 of the largest scale, which is not doubled any more */

void hd_loss_scale_init(const struct hd_job *job, struct hd_loss_scale *ret_scale);

/* Returns the factor by which the gradients of a loss over `tokens` tokens are multiplied; 1 if the
 * job uses no loss scale. */
float hd_loss_scale_factor(const struct hd_loss_scale *scale, int64_t tokens);

/* Adapts the scale after a step. overflowed: gradients of the step were not finite; false: the step
 * updated the weights. Returns false if they overflowed and the scale is already at its smallest
 * value. */
bool hd_loss_scale_after(struct hd_loss_scale *scale, bool overflowed);

#endif
