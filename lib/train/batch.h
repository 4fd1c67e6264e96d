/* batch: the rows of training samples and validation windows that a rank works on, put where its
 * programs read them. Only for lib/train.
 *
 * With context parallelism the ranks of a cp group read the same samples and each takes the rows
 * that mesh/zigzag.h names, by way of one whole sample in memory that is part of the plan.
 */
#ifndef HD_TRAIN_BATCH_H
#define HD_TRAIN_BATCH_H

#include "train/trainer.h"

/* Micro-batch `micro_batch` of the step that follows those done. */
enum hd_status hd_batch_fill_training(struct hd_trainer *trainer, const struct hd_bases *bases,
                                      int64_t micro_batch);

/* Validation windows first .. first + micro_batch - 1. */
enum hd_status hd_batch_fill_validation(struct hd_trainer *trainer, int64_t first);

#endif
