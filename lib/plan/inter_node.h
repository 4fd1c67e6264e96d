/* crossing: how many of the bytes that a plan's ranks move in a step cross between nodes.
 *
 * Ranks stand on the positions of their numbers, and nodes have equally many devices (cluster.h).
 * Of an all-gather or a shift, which go round in a ring, those hops count that are between members
 * on two nodes; of an exchange, as ordered sums are, the pairs of such members; of the sends of a
 * pipeline the neighbouring stages. The bytes are those of comm.h, without what a network adds.
 *
 * Used by: the heddle command.   Uses: plan, mesh.   Threads: any; no state.
 */
#ifndef HD_PLAN_INTER_NODE_H
#define HD_PLAN_INTER_NODE_H

#include "plan/plan.h"

/* Of the bytes that the members of a group move together, the share that crosses, from 0 to 1.
 * native: sums are the library's rings, not ordered exchanges. */
double hd_inter_node_share(const struct hd_mesh_group *group, int64_t devices_per_node,
                           enum hd_comm_kind kind, bool native);

/* Bytes per step of the group of `rank`, by collectives of this kind; of a pipeline's receives
 * those of `rank` alone. */
int64_t hd_inter_node_bytes(const struct hd_plan *plan, int rank, enum hd_group_name name,
                            enum hd_comm_kind kind, int64_t devices_per_node, bool native);

/* Bytes per step of all ranks together. */
int64_t hd_inter_node_bytes_all(const struct hd_plan *plan, int64_t devices_per_node, bool native);

#endif
