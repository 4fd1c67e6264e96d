/* batch: writes this rank's rows of training samples and validation windows into the batch fields
 * of its programs. Only for lib/train.
 *
 * With context parallelism the ranks of a cp group read the same samples, and each copies the rows
 * of mesh/zigzag.h. The buffer for one whole sample is part of the layout (hd_layout.sample). A
 * failure aborts the peers. */
#ifndef HD_TRAIN_BATCH_H
#define HD_TRAIN_BATCH_H

#include "train/trainer.h"

/* Fills micro-batch `micro_batch` of the next step. */
enum hd_status hd_batch_fill_training(struct hd_trainer *trainer, const struct hd_bases *bases,
                                      int64_t micro_batch);

/* Fills validation windows first .. first + job.micro_batch - 1. */
enum hd_status hd_batch_fill_validation(struct hd_trainer *trainer, int64_t first);

#endif
