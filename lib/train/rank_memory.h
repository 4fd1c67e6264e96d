/* rank_memory: where each region of a rank's memory is, and how many bytes each purpose takes. Only for
 * rank_program. */
#ifndef HD_TRAIN_RANK_MEMORY_H
#define HD_TRAIN_RANK_MEMORY_H

#include "train/rank_program.h"

/* Assigns the offsets of all regions, and sets rank_program->memory, which is zero before; the chunks are
 * compiled. HD_INVALID: the records of train.profile are too large. */
enum hd_status hd_rank_memory_place(struct hd_rank_program *rank_program);

#endif
