/* classes: which ranks of a job take the same memory and do the same work.
 *
 * A rank's layout follows from its registry (which parts it holds, its shares and shards, what it
 * counts) and from few other things: its pipeline stage, whether it counts the loss, whose keys its
 * rows see with context parallelism, how many samples its group of experts has, and what it writes
 * of a checkpoint. hd_classes_find compares just these, by number; it compiles nothing. Ranks
 * for which all of them are equal form a class, and one of them is laid out for all. Classes of two
 * stages are alike if only their lists of instructions differ.
 *
 * Used by: plan.   Uses: layout (lib/train), program, mesh.   Threads: any; no state.
 */
#ifndef HD_PLAN_CLASSES_H
#define HD_PLAN_CLASSES_H

#include "base/arena.h"
#include "train/rank_program.h"

/* Classes are numbered by their lowest ranks. */
struct hd_classes {
    int32_t *of;     /* [world] the class of each rank */
    int32_t *lowest; /* [count] the lowest rank of each class */
    int32_t *like; /* [count] the first class, perhaps of another stage, with the same programs; its
                      own number: there is none before it */
    int32_t count;
};

/* The result lives in `arena`. Fails as hd_rank_program_build does for parameters that cannot be
 * shared,
 * or with HD_NO_MEMORY. */
enum hd_status hd_classes_find(const struct hd_rank_program_shared *shared, struct hd_arena *arena,
                               struct hd_classes *ret_classes);

#endif
