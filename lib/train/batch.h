/* batch: writes this rank's rows of training samples and validation windows into the batch fields
 * of its programs. Only for lib/train.
 *
 * With context parallelism the ranks of a cp group read the same samples, and each copies the rows
 * of mesh/zigzag.h. The buffer for one whole sample is part of the layout (hd_rank_program.sample).
 * A
 * failure aborts the peers. */
#ifndef HD_TRAIN_BATCH_H
#define HD_TRAIN_BATCH_H

#include "train/execute.h"

/* Fills the fields of a chunk with micro-batch `micro_batch` of the next step. */
hd_execute_feed hd_batch_feed_training;

/* Windows that the eval programs run on, in rounds. */
struct hd_batch_windows {
    const struct hd_validation *windows;
    int64_t first; /* the number of the round's first micro-batch */
};
/* Fills them with the windows of micro-batch `micro_batch` of a round. context: of
 * hd_batch_windows. */
hd_execute_feed hd_batch_feed_windows;
/* The first window of that micro-batch on this rank; of `micro_batch` windows, and those from
 * window_count on are padding. */
int64_t hd_batch_first_window(const struct hd_trainer *trainer,
                              const struct hd_batch_windows *windows, int64_t micro_batch);

#endif
