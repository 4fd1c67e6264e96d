/* toy: memory and the order of calls for a small recorded program that runs on one pipeline stage.
 *
 * Used by: seam_test, forms_test.   Uses: program, pipeline, comm.
 */
#ifndef HD_TESTS_PROGRAM_TOY_H
#define HD_TESTS_PROGRAM_TOY_H

#include "comm/comm.h"
#include "pipeline/pipeline.h"
#include "program/run.h"

enum { TOY_MICRO_MAX = 2 };

/* One allocation per half: state, then slots, then work. The first is to be freed by the caller. */
struct toy_memory {
    char *base[2];
    struct hd_bases slot[TOY_MICRO_MAX];
};

/* Allocates zeros for a chunk and the slots of its plan, the registered half from `comm`. */
void toy_lay_out(struct toy_memory *m, const struct hd_chunk *c, const struct hd_step_plan *plan,
                 struct hd_comm *comm);

/* Returns the list of one stage with one chunk. */
struct hd_step_plan toy_plan(enum hd_schedule_kind schedule, int micro_batches, bool split,
                             struct hd_arena *arena);

#endif
