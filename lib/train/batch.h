/* batch: writes this rank's rows of training samples and validation windows into the batch fields
 * of its programs. Only for lib/train.
 *
 * With context parallelism all ranks of a cp group read the same samples, and each rank copies the
 * rows that mesh/zigzag.h assigns to it. The buffer for one whole sample is part of the rank's host
 * memory (hd_rank_program.sample). A failure aborts the communication of the peers.
 */
#ifndef HD_TRAIN_BATCH_H
#define HD_TRAIN_BATCH_H

#include "train/execute.h"

/* Fills the batch fields of a chunk with micro-batch `micro_batch` of the next training step. */
hd_execute_feed hd_batch_feed_training;

/* Validation windows that one round of the eval programs reads; a round is up to HD_EVAL_ROUND
 * micro-batches. */
struct hd_batch_windows {
    const struct hd_validation *windows;
    const struct hd_exam *exam; /* NULL: `windows` has the windows; else these questions (exam.h) */
    bool mismatched; /* answers behind other prompts (hd_data_batch); `windows` NULL: those of the
                        samples of the next training step */
    const struct hd_packed_completions *completions; /* policy_feed.h; NULL: others. Else these */
    int64_t first; /* index, within the whole validation, of the round's first micro-batch */
};
/* Fills the batch fields of a chunk with the validation windows of micro-batch `micro_batch` of the
 * current round of the eval programs. context: a struct hd_batch_windows. */
hd_execute_feed hd_batch_feed_windows;
/* Returns the index of the first window of micro-batch `micro_batch` on this rank. A micro-batch
 * has job.micro_batch consecutive windows; windows from the validation's window_count on are
 * padding. */
int64_t hd_batch_first_window(const struct hd_trainer *trainer,
                              const struct hd_batch_windows *windows, int64_t micro_batch);

#endif
