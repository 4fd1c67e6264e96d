/* pipeline: builds the step plan, the list of instructions that a rank runs for one step.
 *
 * Only one pipeline stage is supported. A schedule gives the order of the programs F (forward), B
 * (backward) and W (weight gradients) of all micro-batches, and how many slots of kept and deferred
 * memory (HD_REGION_KEPT, HD_REGION_DEFERRED) are in use at once.
 *
 *   sequential   F0 B0 W0  F1 B1 W1 ...               one slot of each
 *   gpipe        F0 F1 ..  B0 B1 ..  W0 W1 ..         all micro-batches in flight
 *                                                     (Huang et al. 2019)
 *
 * Used by: train (layout, trainer), plan.   Uses: base, program.   Threads: any; no state.
 */
#ifndef HD_PIPELINE_PIPELINE_H
#define HD_PIPELINE_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "program/program.h"

enum hd_schedule { HD_SCHEDULE_SEQUENTIAL, HD_SCHEDULE_GPIPE };

enum hd_instruction_kind {
    HD_DO_RUN,   /* run a program on a slot */
    HD_DO_JOIN,  /* order later launches after everything that was launched on any stream */
    HD_DO_UPDATE /* run the program U */
};

struct hd_instruction {
    enum hd_instruction_kind kind;
    enum hd_call call;   /* HD_DO_RUN: F, B or W */
    int64_t micro_batch; /* index in the step, from 0 */
    int slot;            /* of kept memory, and for B and W of deferred memory */
    bool first, last;    /* this micro-batch is the step's first or last */
};

struct hd_step_plan {
    struct hd_instruction *list;
    int count;
    int kept_slots, deferred_slots;
};

/* The list lives in `arena`. split: B and W are separate programs. Each program runs its
 * micro-batches in ascending order under every schedule, so a gradient that one program computes
 * has the same bits under every schedule. Fails with HD_NO_MEMORY only. */
enum hd_status hd_step_plan_build(enum hd_schedule schedule, int64_t micro_batches, bool split,
                                  struct hd_arena *arena, struct hd_step_plan *ret_plan);

#endif
