/* inter_node: how many of the bytes that a plan's ranks send in a step cross between nodes.
 *
 * Rank r is at position r, and all nodes have equally many devices (cluster.h). Counted are: of an
 * all-gather or a shift, which go round in a ring, the hops between members on two nodes; of an
 * exchange, as ordered sums are, the pairs of members on two nodes; of a pipeline's sends, those to
 * a stage on another node. Bytes are those of comm.h, without the network's own overhead.
 *
 * Used by: the heddle command.   Uses: plan, mesh.   Threads: any; no state. */
#ifndef HD_PLAN_INTER_NODE_H
#define HD_PLAN_INTER_NODE_H

#include "plan/plan.h"

/* Returns the share, 0 to 1, of the bytes that a group's members send together that crosses between
 * nodes. native: sums are the library's ring reductions, not ordered exchanges. */
double hd_inter_node_share(const struct hd_mesh_group *group, int64_t devices_per_node,
                           enum hd_comm_kind kind, bool native);

/* Returns the bytes per step that cross between nodes in the collectives of this kind of the group
 * to which `rank` belongs; for a pipeline's receives, those that `rank` alone receives. */
int64_t hd_inter_node_bytes(const struct hd_plan *plan, int rank, enum hd_group_name name,
                            enum hd_comm_kind kind, int64_t devices_per_node, bool native);

/* Returns the bytes per step that all ranks together send across nodes. */
int64_t hd_inter_node_bytes_all(const struct hd_plan *plan, int64_t devices_per_node, bool native);

#endif
