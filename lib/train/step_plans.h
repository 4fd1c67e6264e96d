/* step_plans: the instruction streams of steps that have fewer micro-batches than the largest one.
 *
 * Used by: rank_program.   Uses: pipeline. */
#ifndef HD_TRAIN_STEP_PLANS_H
#define HD_TRAIN_STEP_PLANS_H

#include "train/rank_program.h"

/* Sets shared->plans: the streams of the largest step, with as many slots as any step of the job
 * needs: those of its batches or, where a step trains on the model's own answers, of
 * hd_rank_program_round_micro_batches. any: steps may have any number of micro-batches. */
enum hd_status hd_step_plans_build(struct hd_rank_program_shared *shared, bool any,
                                   struct hd_arena *arena);

#endif
