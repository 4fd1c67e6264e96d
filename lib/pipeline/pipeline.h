/* pipeline: the list of a rank's instructions for one step, the step plan. Pure functions.
 *
 * One stage for now: a schedule decides in which order F, B and W of the micro-batches run and how
 * many slots of kept and deferred memory are in use at once.
 *
 *   sequential   F0 B0 W0  F1 B1 W1 ...               one slot of each
 *   gpipe        F0 F1 ..  B0 B1 ..  W0 W1 ..         all micro-batches in flight
 *                                                     (Huang et al. 2019)
 *
 * Used by: train, plan, tests.   Uses: base, program (call kinds).   Threads: pure.
 */
#ifndef HD_PIPELINE_PIPELINE_H
#define HD_PIPELINE_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "program/program.h"

enum hd_schedule { HD_SCHEDULE_SEQUENTIAL, HD_SCHEDULE_GPIPE };

enum hd_instruction_kind {
    HD_DO_RUN,   /* a program on a slot */
    HD_DO_JOIN,  /* wait for all streams */
    HD_DO_UPDATE /* run U */
};

struct hd_instruction {
    enum hd_instruction_kind kind;
    enum hd_call call;   /* HD_DO_RUN: F, B or W */
    int64_t micro_batch; /* of the step, 0-based */
    int slot;            /* of kept memory; of deferred memory for B and W too */
    bool first, last;    /* the variant: this micro-batch is the step's first or last */
};

struct hd_step_plan {
    struct hd_instruction *list;
    int count;
    int kept_slots, deferred_slots;
};

/* split: B and W are programs of their own. Each program runs its micro-batches in ascending order
 * under every schedule, so a gradient that one program forms is the same to the bit. HD_NO_MEMORY
 * only. */
enum hd_status hd_step_plan_build(enum hd_schedule schedule, int64_t micro_batches, bool split,
                                  struct hd_arena *arena, struct hd_step_plan *ret_plan);

#endif
