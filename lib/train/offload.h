/* offload: the optimizer on the host, for a rank on a device (parallel.offload: optimizer;
 * Ren et al. 2021, "ZeRO-Offload").
 *
 * Masters and moments are in host memory, gradients and what computes on the device. After program
 * U, which has the norm of all gradients and the factor of the step, the host takes one part after
 * the other: it copies the part's gradients to the window (rank_program.h), runs AdamW of the CPU
 * backend
 * on the job's threads, and copies the new weights, in the encoding that computes, to the device.
 * Then program P gathers the shards of ZeRO 1 and 2. Beside the state only one part at a time is in
 * host memory.
 *
 * A backend whose tensors are host memory has the optimizer there already: there the key changes
 * nothing, and none of this is used.
 *
 * Used by: lib/train alone.   Threads: the rank's, and those of its CPU backend.
 */
#ifndef HD_TRAIN_OFFLOAD_H
#define HD_TRAIN_OFFLOAD_H

#include "train/trainer.h"

/* Opens the CPU backend, if the layout is offloaded. */
enum hd_status hd_offload_open(struct hd_trainer *trainer);
void hd_offload_close(struct hd_trainer *trainer);

/* Updates all offloaded parts of this rank, unless the step is skipped. Waits for the device. */
enum hd_status hd_offload_update(struct hd_trainer *trainer);

/* Writes to the device what computes, from the masters of one offloaded part: its shard, if it is
 * cut. */
enum hd_status hd_offload_copy(struct hd_trainer *trainer, const struct hd_bucket *bucket);

#endif
