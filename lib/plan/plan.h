/* plan: what a resolved job will take of each rank, before anything runs.
 *
 * Nothing is estimated. The memory is the layout's, built by the same call that the rank makes, so
 * it is what the rank will reserve, to the byte. Operations and bytes are the fold over the step
 * plan's programs. Nothing here computes or looks at a device: its traits are an argument.
 *
 * Used by: the heddle command, controller, tests.   Uses: layout (lib/train), program, mesh, link.
 * Threads: pure; a plan is immutable.
 */
#ifndef HD_PLAN_PLAN_H
#define HD_PLAN_PLAN_H

#include "base/arena.h"
#include "link/job.h"
#include "program/dry.h"
#include "train/layout.h"

struct hd_plan_rank {
    struct hd_mesh_coord coord;
    struct hd_memory memory;
    struct hd_dry step; /* one optimizer step: all micro-batches and the update */
};

struct hd_plan {
    int world;
    int64_t parameters;    /* of the whole model */
    int64_t micro_batches; /* per rank and step */
    struct hd_plan_rank *ranks;
};

/* Lays out every rank of the job on devices with these traits. The result lives in `arena`. Fails
 * as the ranks would (hd_layout_build). */
enum hd_status hd_plan_build(const struct hd_job *job, const struct hd_traits *traits,
                             struct hd_arena *arena, struct hd_plan *ret_plan);

int64_t hd_memory_total(const struct hd_memory *memory);

#endif
