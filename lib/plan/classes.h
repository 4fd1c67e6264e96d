/* classes: groups the ranks of a job that need the same memory and do the same work.
 *
 * A rank's program follows from its registry (which buckets it holds, its shards, whether it counts
 * them in the norm) and from a few other facts: its pipeline stage, whether it counts the loss,
 * whose keys its rows attend to with context parallelism, how many samples its group of experts
 * has, and what it writes of a checkpoint. hd_classes_find compares just these as numbers; it
 * compiles nothing. Ranks for which all of them are equal form a class, and one of them is laid out
 * for all. Classes of two stages have the same programs if only their instruction streams differ.
 *
 * Used by: plan.   Uses: layout (lib/train), program, mesh.   Threads: any; no state. */
#ifndef HD_PLAN_CLASSES_H
#define HD_PLAN_CLASSES_H

#include "base/arena.h"
#include "train/rank_program.h"

/* The classes of all ranks, numbered in the order of their lowest ranks. */
struct hd_classes {
    int32_t *of;     /* [world] index of each rank's class */
    int32_t *lowest; /* [count] the lowest rank of each class */
    /* [count] by class: index of the first class, perhaps of another pipeline stage, with the same
     * programs; its own index if it is the first */
    int32_t *like;
    int32_t count;
};

/* Groups all ranks of the job into classes of equal memory and work. The result lives in `arena`.
 * Fails as hd_rank_program_build does for parameters that cannot be split, or with HD_NO_MEMORY. */
enum hd_status hd_classes_find(const struct hd_rank_program_shared *shared, struct hd_arena *arena,
                               struct hd_classes *ret_classes);

#endif
