/* rank_compile: compiles the programs of a rank. Only for lib/train. */
#ifndef HD_TRAIN_RANK_COMPILE_H
#define HD_TRAIN_RANK_COMPILE_H

#include "train/rank_program.h"

/* Compiles all programs of a rank whose order and registry are made: of its chunks, of decoding, and
 * the update. */
enum hd_status hd_rank_compile(const struct hd_rank_program_shared *shared,
                               struct hd_rank_program *rank_program, struct hd_arena *arena);

#endif
