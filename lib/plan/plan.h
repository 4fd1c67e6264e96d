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
#include "job/job.h"
#include "program/dry.h"
#include "train/layout.h"

struct hd_plan_rank {
    struct hd_mesh_coord coord;
    struct hd_memory memory;
    struct hd_dry step; /* one optimizer step: all micro-batches and the update */
    /* on a GPU: what is reserved there, what is in use beside it, and both; 0 elsewhere */
    int64_t reserved_bytes;
    struct hd_beside beside;
    int64_t device_bytes;
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

/* Whether a rank's GPU holds it; where there is none nobody asks, and it does. */
static inline bool hd_plan_fits(const struct hd_plan_rank *rank, const struct hd_traits *traits)
{
    return rank->device_bytes <= traits->memory_bytes;
}

int64_t hd_memory_total(const struct hd_memory *memory);

#endif
