/* mesh: where a rank stands among all ranks, and which groups it belongs to.
 *
 * A mesh arranges `world` ranks on the axes pp x dp x cp x tp, tp fastest, so that neighbours in
 * rank are neighbours on the fastest links. On top of the axes lie three divisions:
 *
 *   ep          the dp*cp ranks of one (pp, tp) in blocks of `ep` neighbours: a block holds one
 *               copy of all experts
 *   zero_shard  the same ranks in blocks of `zero_shard`: a block holds one copy of the optimizer
 *   kv_replica  the tp ranks of one (pp, dp, cp) in blocks that hold the same key/value heads
 *
 * Every group, whatever its name, is an arithmetic progression of ranks. Each rank is in exactly
 * one group of each name; groups of one rank exist and their collectives copy. Pure arithmetic: no
 * communication happens here, comm/ opens the groups that this names.
 *
 * Used by: comm, program, model, optim, checkpoint, plan, train.   Uses: base.
 * Threads: immutable after hd_mesh_init.
 */
#ifndef HD_MESH_MESH_H
#define HD_MESH_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* code, stable name (API: in listings and messages), the ranks that share everything but ... */
#define HD_GROUP_LIST(X)                                                                        \
    X(WORLD, "world", "all ranks")                                                              \
    X(TP, "tp", "a place on the tensor axis")                                                   \
    X(CP, "cp", "a place on the context axis")                                                  \
    X(DP, "dp", "a place on the data axis")                                                     \
    X(PP, "pp", "a place on the pipeline axis")                                                 \
    X(EP, "ep", "a place in a block of experts")                                                \
    X(DP_CP, "dp_cp", "a place on the data and context axes: dense gradients are summed here")  \
    X(EXPERT_DP, "expert_dp", "a block of experts: expert gradients are summed here")           \
    X(EMBEDDING, "embedding", "first or last stage: tied embeddings; stages between are alone") \
    X(KV_REPLICA, "kv_replica", "a copy of the same key/value heads")                           \
    X(ZERO_SHARD, "zero_shard", "a shard of one copy of the optimizer")                         \
    X(ZERO_REPLICATE, "zero_replicate", "a copy of the same optimizer shard")

enum hd_group_name {
#define X(code, name, meaning) HD_GROUP_##code,
    HD_GROUP_LIST(X)
#undef X
        HD_GROUP_COUNT
};

/* Sizes of 0 mean: 1 for pp dp cp tp ep kv_replica, dp*cp (no hybrid sharding) for zero_shard. */
struct hd_mesh_sizes {
    int32_t pp, dp, cp, tp;
    int32_t ep;         /* divides dp*cp */
    int32_t zero_shard; /* divides dp*cp */
    int32_t kv_replica; /* divides tp    */
};

struct hd_mesh {
    struct hd_mesh_sizes sizes; /* all >= 1 */
    int32_t world;              /* pp*dp*cp*tp */
};

struct hd_mesh_coord {
    int32_t pp, dp, cp, tp;
};

/* Member k is rank first + k*stride, 0 <= k < size. Ascending in rank. */
struct hd_mesh_group {
    int32_t first, stride, size;
    int32_t index; /* which member the asking rank is */
};

/* HD_INVALID, naming the size, when one is negative, does not divide, or the world is too large. */
enum hd_status hd_mesh_init(struct hd_mesh *mesh, const struct hd_mesh_sizes *sizes);

/* 0 <= rank < world, and each coordinate within its axis. */
struct hd_mesh_coord hd_mesh_coord(const struct hd_mesh *mesh, int32_t rank);
int32_t hd_mesh_rank(const struct hd_mesh *mesh, struct hd_mesh_coord coord);

/* The group of this name that `rank` belongs to. */
struct hd_mesh_group hd_mesh_find_group(const struct hd_mesh *mesh, enum hd_group_name name,
                                        int32_t rank);
int32_t hd_mesh_member(const struct hd_mesh_group *group, int32_t index);
bool hd_mesh_has_member(const struct hd_mesh_group *group, int32_t rank);

/* How many ways the names have of dividing the world into several groups some of which are of
 * several ranks, each way under the first name that has it. Every rank comes to the same answer. */
int hd_mesh_divisions(const struct hd_mesh *mesh, enum hd_group_name ret_names[HD_GROUP_COUNT]);

const char *hd_group_name(enum hd_group_name name); /* "dp_cp"; "unknown" for an unknown code */
bool hd_group_from_name(const char *text, enum hd_group_name *ret_name);

#endif
