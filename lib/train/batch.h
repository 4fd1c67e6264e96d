/* batch: writes this rank's rows of training samples and validation windows into the batch fields
 * of its programs. Only for lib/train.
 *
 * With context parallelism the ranks of a cp group read the same samples, and each copies the rows
 * of mesh/zigzag.h. The buffer for one whole sample is part of the layout (hd_layout.sample). A
 * failure aborts the peers. */
#ifndef HD_TRAIN_BATCH_H
#define HD_TRAIN_BATCH_H

#include "train/follow.h"

/* Fills the fields of a chunk with micro-batch `micro_batch` of the next step. */
hd_follow_feed hd_batch_feed_training;

/* Fills them with the windows of micro-batch `micro_batch` of a round of validation. context: const
 * int64_t *, the number of the round's first micro-batch. */
hd_follow_feed hd_batch_feed_validation;

#endif
