/* layer profiles: what one unit of a model adds to a step, in seconds and bytes, under one layout.
 *
 * A stage of a pipeline holds the embedding or not, some blocks, and the head or not. Blocks are
 * alike, so the programs of any stage follow from those of a few small chunks, which are recorded
 * and compiled as a rank compiles them (hd_rank_program_compile_units):
 *
 *     block      two blocks - one block             embedding   embedding and block - block
 *     base       one block - block                  head        block and head - block
 *
 * A chunk of n blocks takes base + n x block, plus embedding and head if it has them. With
 * recompute {full: K} a block that continues a segment is another layer profile
 * (hd_layer_profile_continues):
 *
 *     inner      two blocks in one segment - one block
 *
 * A program's time is found by walking its nodes: each stream runs them in order, a node waits for
 * the nodes that its edges name, kernels take what rates.h says and collectives what links.h says.
 * Overlap is a result of this.
 *
 * Used by: cost, search.   Uses: layout (lib/train), program, rates, links.
 * Threads: any; a struct hd_layer_profiles is only read.
 */
#ifndef HD_PLAN_LAYER_PROFILE_H
#define HD_PLAN_LAYER_PROFILE_H

#include "base/arena.h"
#include "plan/cluster.h"
#include "plan/links.h"
#include "train/rank_program.h"

/* Seconds of a program, or of what a unit adds to one. */
struct hd_program_time {
    double run;                   /* from its start to its results */
    double compute;               /* of that, kernels */
    double waits[HD_GROUP_COUNT]; /* of that, waiting for collectives of these groups */
    double reduce;                /* all that its reductions take on their own stream */
    double reduce_after;          /* from its results to the end of its last reduction */
};

enum hd_layer_profile_kind {
    HD_LAYER_PROFILE_BASE,
    HD_LAYER_PROFILE_BLOCK,
    HD_LAYER_PROFILE_EMBEDDING,
    HD_LAYER_PROFILE_HEAD,
    HD_LAYER_PROFILE_COUNT
};
enum hd_layer_profile_call {
    HD_LAYER_PROFILE_F,
    HD_LAYER_PROFILE_B,
    HD_LAYER_PROFILE_W,
    HD_LAYER_PROFILE_CALLS
};

struct hd_layer_profile {
    /* [1]: in the last micro-batch of a step, which also reduces what is reduced once a step */
    struct hd_program_time time[HD_LAYER_PROFILE_CALLS][2];
    int64_t saved_bytes, deferred_bytes; /* of one slot */
    /* Work memory of the chunk that it was measured in, whole, at least; of BASE: of one block. */
    int64_t work_bytes;
};

struct hd_layer_profiles {
    struct hd_layer_profile profile[HD_LAYER_PROFILE_COUNT];
    struct hd_layer_profile windowed; /* a block with a window, in models that have both kinds */
    bool has_windowed;
    struct hd_layer_profile inner,
        inner_windowed;          /* the same, continuing a segment of recompute: it keeps
                                              nothing, and backward makes its input again, too */
    bool has_inner;              /* the job's recompute is {full: K} with K > 1 */
    double update[3];            /* seconds of U and P: of one block; of the embedding's stage
                                    without blocks; of the head's */
    double update_base;          /* what U takes beside its parts: the exchange of a step */
    int64_t stage_io_bytes;      /* of the hidden rows that a transfer between two stages moves */
    struct hd_link_group stages; /* the group `pp`, for those transfers */
};

/* Of the job, which is resolved, on devices of this cluster. Fails as hd_rank_program_build does.
 * blocks_only: only BASE and BLOCK, without what is reduced or updated; the rest is 0: a bound that
 * is cheap. */
enum hd_status hd_layer_profiles_build(const struct hd_job *job, const struct hd_cluster *cluster,
                                       bool blocks_only, struct hd_layer_profiles *ret_profiles);

/* Whether a block of a chunk continues the segment of `segment` blocks that the block before it
 * belongs to: segments begin at every segment-th block of the model, and with the chunk. segment 0
 * and 1: never. */
bool hd_layer_profile_continues(struct hd_units chunk, int unit, int64_t segment);

/* The blocks of a segment in a job's recompute; 0: none and selective, which have no segments. */
int64_t hd_layer_profile_segment(const struct hd_job *job);

/* For tests: what these units of the job's first stage take as one chunk, which is compiled whole.
 */
enum hd_status hd_layer_profiles_whole(const struct hd_job *job, const struct hd_cluster *cluster,
                                       struct hd_units units, struct hd_layer_profile *ret_profile);

/* y += a x */
void hd_program_time_add(struct hd_program_time *y, double a, const struct hd_program_time *x);

#endif
