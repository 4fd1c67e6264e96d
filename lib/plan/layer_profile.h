/* layer_profile: what one unit of a model adds to a step, in seconds and bytes, under one layout.
 *
 * A pipeline stage holds some blocks, and may hold the embedding or the head. Blocks are of few
 * kinds (hd_model_layer_kind), so the programs of any stage follow from those of a few small
 * chunks, which are recorded and compiled as a rank compiles them
 * (hd_rank_program_compile_units). The blocks of a small chunk are of one kind:
 *
 *     block      two blocks - one block             embedding   embedding and block - block
 *     base       one block - block                  head        block and head - block
 *
 * A chunk takes the base of its first block's kind, the block of each of its blocks' kinds, and
 * embedding and head if it has them. With recompute {full: K}, a block that continues a segment
 * (hd_layer_profile_continues) takes more, since its input is recomputed, too:
 *
 *     inner      two blocks in one segment - one block
 *
 * In a segment of several kinds the difference inner - block is that of the kind before.
 *
 * A program's time is found by walking its nodes: each stream runs its nodes in order, a node waits
 * for the nodes that its edges name, kernels take the time of rates.h and collectives that of
 * links.h. Overlap of compute and communication is a result of this walk.
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

/* Seconds of one program, or the seconds that a unit adds to one. */
struct hd_program_time {
    double run;                   /* seconds from the start of the program to its results */
    double compute;               /* seconds of `run` in which kernels run */
    double waits[HD_GROUP_COUNT]; /* seconds of `run` spent waiting for collectives, by group */
    double reduce;       /* seconds of all reductions of gradients, which have their own stream */
    double reduce_after; /* seconds from the results to the end of the last reduction */
};

enum hd_layer_profile_call {
    HD_LAYER_PROFILE_F,
    HD_LAYER_PROFILE_B,
    HD_LAYER_PROFILE_W,
    HD_LAYER_PROFILE_CALLS
};

struct hd_layer_profile {
    /* seconds by program; [0]: in most micro-batches; [1]: in the last one of a step, which also
     * runs the reductions done once a step */
    struct hd_program_time time[HD_LAYER_PROFILE_CALLS][2];
    /* bytes that one micro-batch saves for backward, and defers for W */
    int64_t saved_bytes, deferred_bytes;
    /* Lower bound of the bytes of work memory: those of the whole compiled chunk; in `base` those
     * of one block. */
    int64_t work_bytes;
};

/* Layer profiles of one kind of block. */
struct hd_block_profiles {
    struct hd_layer_profile
        base; /* a chunk besides its blocks, if its first block is of this kind */
    struct hd_layer_profile block; /* one block */
    /* a block that continues a recompute segment: it saves nothing, and backward recomputes its
     * input, too */
    struct hd_layer_profile inner;
    double update; /* seconds of programs U and P of one block */
};

struct hd_layer_profiles {
    struct hd_block_profiles kind[HD_LAYER_KINDS]; /* by hd_model_layer_kind */
    bool has_kind[HD_LAYER_KINDS]; /* true: the model has blocks of this kind; else `kind` is 0 */
    int first_kind, head_kind; /* kind of the model's first block; that of the blocks in the unit
                                      of the head, which predict further tokens, or first_kind */
    bool has_inner;            /* the job's recompute is {full: K} with K > 1: `inner` is set */
    struct hd_layer_profile embedding, head;
    /* seconds of programs U and P: of the first stage without its blocks, and of the last one */
    double update_first, update_last;
    /* seconds of U that belong to no unit: the exchange of a step's records, and host time */
    double update_base;
    /* seconds of F of all units of the models that only compute, the frozen one (job/frozen_model.h) and
     * the reference (train.policy.kl), of one micro-batch of each step; 0: there is none */
    double frozen;
    int64_t stage_io_bytes; /* bytes of hidden rows that one transfer between two stages moves */
    struct hd_link_group stages; /* the group `pp`, whose ranks send hidden rows between stages */
    struct hd_link_group tp, world; /* groups that gather logits, and exchange messages */
};

/* Builds the layer profiles of a resolved job on devices of this cluster. Fails as
 * hd_rank_program_build does. */
enum hd_status hd_layer_profiles_build(const struct hd_job *job, const struct hd_cluster *cluster,
                                       struct hd_layer_profiles *ret_profiles);

/* Builds only the profiles of blocks, without reductions and updates, which is cheaper; all other
 * members of the result are 0. dense: profiles of the job with ep 1, of which those of blocks
 * without experts are taken over; NULL: none. */
enum hd_status hd_layer_profiles_blocks(const struct hd_job *job, const struct hd_cluster *cluster,
                                        const struct hd_layer_profiles *dense,
                                        struct hd_layer_profiles *ret_profiles);

/* Builds the profiles of the program of decoding that reads `rows` tokens of each of `slots` sequences, as
 * F, and sets *ret_seconds to the time of one call on all stages, without what they send. */
enum hd_status hd_layer_profiles_decode(const struct hd_job *job, const struct hd_cluster *cluster,
                                        int64_t slots, int64_t rows,
                                        struct hd_layer_profiles *ret_profiles,
                                        double *ret_seconds);

/* Bytes of the state of a unit's parameters on one rank, as the rank's registry lays it out; and seconds in
 * which ZeRO moves them in a micro-batch: 0 where it does not. */
struct hd_layer_state {
    double device_bytes, host_bytes; /* host_bytes: with parallel.offload */
    double gathered_bytes; /* ZeRO 3: those of the largest bucket beyond the rank's own shard */
    double gather_s, reduce_s;
};
struct hd_layer_states {
    struct hd_layer_state block[HD_LAYER_KINDS]; /* of the smallest block of each kind */
    struct hd_layer_state embedding, head;
    double tied_bytes; /* the embedding's, if the last of several stages holds it too; else 0 */
};

/* Computes the states of a resolved job's units. whole: what trains differs from block to block, so all
 * blocks are declared, not one of each kind. Fails as hd_rank_program_build does. */
enum hd_status hd_layer_states_find(const struct hd_job *job, const struct hd_cluster *cluster,
                                    bool whole, struct hd_layer_states *ret_states);

/* Returns whether block `unit` of the chunk is in the same recompute segment as the block before
 * it. Segments begin at every segment-th block of the model, and with each chunk. With `segment` 0
 * or 1: false. */
bool hd_layer_profile_continues(struct hd_units chunk, int unit, int64_t segment);

/* Returns the number of blocks in a segment of the job's recompute; 0: none or selective, which
 * have no segments. */
int64_t hd_layer_profile_segment(const struct hd_job *job);

/* Computes the layer profile of these units of the job's first stage, compiled as one whole chunk.
 * For tests. */
enum hd_status hd_layer_profiles_whole(const struct hd_job *job, const struct hd_cluster *cluster,
                                       struct hd_units units, struct hd_layer_profile *ret_profile);

/* Adds to each member of y the same member of x, times a. */
void hd_program_time_add(struct hd_program_time *y, double a, const struct hd_program_time *x);

#endif
