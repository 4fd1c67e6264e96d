/* offload: runs the optimizer on the host, for a rank on a device (parallel.offload: optimizer;
 * Ren et al. 2021, "ZeRO-Offload").
 *
 * Master weights, moments and averages (train.ema) are in host memory, gradients and compute copies on the device. After
 * program U, which computes the norm of all gradients and the factor of the step, the host updates
 * one bucket after the other: it copies the bucket's gradients to the window (rank_program.h), runs
 * AdamW or Lion of the CPU backend on the job's threads, and QK-clip, then moves the averages, and copies the new weights, in the compute
 * encoding, to the device. Then program P gathers the shards of ZeRO 1 and 2. Besides the state,
 * host memory holds only one bucket at a time.
 *
 * A backend whose tensors are in host memory has the optimizer on the host anyway: with it the key
 * changes nothing, and these functions are not called.
 *
 * Used by: lib/train alone.   Threads: the rank's, and those of its CPU backend.
 */
#ifndef HD_TRAIN_OFFLOAD_H
#define HD_TRAIN_OFFLOAD_H

#include "train/trainer.h"

/* Opens the CPU backend if the job has parallel.offload; else does nothing. */
enum hd_status hd_offload_open(struct hd_trainer *trainer);
void hd_offload_close(struct hd_trainer *trainer);

/* Runs the optimizer on all offloaded buckets of this rank, unless the step is skipped. Waits until
 * the device has computed their gradients. */
enum hd_status hd_offload_update(struct hd_trainer *trainer);

/* Writes one offloaded bucket's weights to the device in the compute encoding, from the fp32 state
 * `from` on the host, masters or averages; with ZeRO only this rank's shard. */
enum hd_status hd_offload_copy(struct hd_trainer *trainer, const struct hd_bucket *bucket,
                               enum hd_state_kind from);

#endif
