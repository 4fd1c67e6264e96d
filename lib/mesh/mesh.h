/* mesh: the coordinates of each rank on the parallel axes, and the groups of ranks that
 * communicate.
 *
 * A mesh arranges `world` ranks on the axes pp x dp x cp x tp. tp varies fastest, so tp neighbours
 * have adjacent ranks, which should have the fastest links. Three divisions refine the axes:
 *
 *   ep          the dp*cp ranks of one (pp, tp) in blocks of `ep` consecutive ranks; a block holds
 *               one copy of all experts
 *   zero_shard  the dp*cp ranks of one (pp, tp) in blocks of `zero_shard`, whole blocks of ep; a
 *               block holds one copy of the optimizer
 *   kv_replica  the tp ranks of one (pp, dp, cp) in blocks whose ranks hold equal key/value heads
 *
 * Every group is an arithmetic progression of ranks. Each rank is in exactly one group of each
 * name; a group may have one rank. Pure arithmetic: comm/ opens the groups and communicates.
 *
 * Used by: comm, program, model, optim, checkpoint, plan, train.   Uses: base.
 * Threads: immutable after hd_mesh_init. */
#ifndef HD_MESH_MESH_H
#define HD_MESH_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* The names of groups: code, stable name (part of the API: in listings and messages), difference
 * between a group's members. */
#define HD_GROUP_LIST(X)                                                                         \
    X(WORLD, "world", "all ranks")                                                               \
    X(TP, "tp", "coordinate on the tensor axis")                                                 \
    X(CP, "cp", "coordinate on the context axis")                                                \
    X(DP, "dp", "coordinate on the data axis")                                                   \
    X(PP, "pp", "coordinate on the pipeline axis")                                               \
    X(EP, "ep", "index in one block of ep ranks: other experts")                                 \
    X(DP_CP, "dp_cp", "coordinates on the data and context axes; dense gradients are summed")    \
    X(EXPERT_DP, "expert_dp", "the block of ep ranks: same experts; their gradients are summed") \
    X(EMBEDDING, "embedding", "first and last stage, for tied embeddings; other stages: alone")  \
    X(KV_REPLICA, "kv_replica", "tp ranks that hold the same key/value heads")                   \
    X(ZERO_SHARD, "zero_shard", "shard of one copy of the optimizer")                            \
    X(EXPERT_SHARD, "expert_shard", "the same of experts: ranks of a block with the same ones")  \
    X(ZERO_REPLICATE, "zero_replicate", "copy of the same optimizer shard")                      \
    X(STAGE, "stage", "all ranks of a pipeline stage; matrices of Muon travel between them")

enum hd_group_name {
#define X(code, name, meaning) HD_GROUP_##code,
    HD_GROUP_LIST(X)
#undef X
        HD_GROUP_COUNT
};

/* Numbers of ranks along the axes and in the divisions. 0 selects the default: dp*cp for zero_shard
 * (no hybrid sharding), 1 for the others. */
struct hd_mesh_sizes {
    int32_t pp, dp, cp, tp;
    int32_t ep;         /* ranks per copy of all experts; divides dp*cp */
    int32_t zero_shard; /* ranks per copy of the optimizer; divides dp*cp, a multiple of ep */
    int32_t kv_replica; /* ranks that hold equal key/value heads; divides tp */
    bool stages_meet;   /* true: the ranks of a stage communicate as one group (Muon) */
};

struct hd_mesh {
    struct hd_mesh_sizes sizes; /* sizes, defaults filled in: all >= 1 */
    int32_t world;              /* number of ranks: pp*dp*cp*tp */
};

struct hd_mesh_coord {
    int32_t pp, dp, cp, tp;
};

/* An arithmetic progression of ranks: member k is rank first + k*stride, 0 <= k < size. */
struct hd_mesh_group {
    int32_t first, stride, size;
    int32_t index; /* index in the group of the rank that was passed to hd_mesh_find_group */
};

/* Initialises a mesh. HD_INVALID: a size is negative or does not divide what it must, or the world
 * is too large; the message names the size. */
enum hd_status hd_mesh_init(struct hd_mesh *mesh, const struct hd_mesh_sizes *sizes);

/* Convert between ranks and coordinates: 0 <= rank < world, and each coordinate within its axis. */
struct hd_mesh_coord hd_mesh_coord_of(const struct hd_mesh *mesh, int32_t rank);
int32_t hd_mesh_rank(const struct hd_mesh *mesh, struct hd_mesh_coord coord);

/* Returns the group of this name that `rank` belongs to. */
struct hd_mesh_group hd_mesh_find_group(const struct hd_mesh *mesh, enum hd_group_name name,
                                        int32_t rank);
int32_t hd_mesh_member(const struct hd_mesh_group *group, int32_t index);

/* Writes to ret_names the distinct partitions of the world into groups, each by the first group
 * name that gives it. Leaves out the world as one group, and partitions into groups of one rank.
 * Returns their number. */
int hd_mesh_divisions(const struct hd_mesh *mesh, enum hd_group_name ret_names[HD_GROUP_COUNT]);

const char *hd_group_text(enum hd_group_name name); /* returns the stable name, such as "dp_cp";
                                                       "unknown" for an unknown code */

#endif
