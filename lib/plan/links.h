/* links: how long a collective, or a transfer between two pipeline stages, takes on a cluster.
 *
 * All groups of one name communicate at the same time, so a level's rate (cluster.h) is what each
 * device has. With P members, n bytes per member and p_l members of the group in a domain of level
 * l (p = 1 below the lowest):
 *
 *   ring       all-gather, broadcast: each member passes on (P - 1) n. What crosses from one domain
 *              of level l - 1 to the next may take the links of all p_(l-1) members there, so the
 *              ring is limited by the level with the least p_(l-1) x rate
 *   exchange   ordered sums, all-to-all: every member sends n to each other one; to those that are
 *              in its domain of level l, but not of level l - 1, at that level's rate
 *   shift      a member sends n to its neighbour, at the rate of the highest level between two
 *
 * An ordered all-reduce is an exchange of n / P, a local sum, and an all-gather of n / P. Time is
 * the slowest level's, plus latencies: of a ring one per hop, of an exchange one.
 *
 * Where the devices of a node are not alike (node_links.h), a group's rates within the node follow
 * from the devices that its ranks have, and from what all groups of the name send at the same time:
 *
 *   ring       the slowest pair of neighbours. A shared link is divided by the number of neighbours
 *              that it lies between
 *   exchange   per byte to each other member: the sum over the members that a device reaches by its
 *              one port, the slowest of those that it has direct wires to, or a shared link by the
 *              number of pairs that it lies between, whichever takes longest
 *
 * With a calibration (calibration.h) what happens within a node takes the measured time instead: of
 * a number of members that was not measured that of the nearest, times the formulas' ratio.
 *
 * Used by: plan, rank_map.   Uses: cluster, node_links, mesh, comm (kinds).
 * Threads: any; no state.
 */
#ifndef HD_PLAN_LINKS_H
#define HD_PLAN_LINKS_H

#include "comm/comm.h"
#include "mesh/mesh.h"
#include "plan/cluster.h"

/* The members of one group on each level; of the group with the most distant members, since the
 * slowest group of a name decides. Rank r is on the node that has position r. */
struct hd_link_group {
    int32_t size;
    int64_t near[HD_CLUSTER_LEVELS_MAX]; /* members in one domain of each level */
    int top;                             /* the lowest level that has all members */
    /* Within a node whose devices are not alike; 0: what the lowest level says. */
    double ring_bytes_per_s, exchange_bytes_per_s, latency_s;
};
/* Of a cluster with cluster->links: by the devices that ranks have (rank_map.h); devices: [world],
 * by their numbers on their nodes. Else `devices` is not looked at and may be NULL. */
struct hd_link_group hd_links_group(const struct hd_cluster *cluster, const struct hd_mesh *mesh,
                                    enum hd_group_name name, const int32_t *devices);

/* The groups of one name, as far as their members are among `count` adjacent ranks on one node. */
struct hd_link_window {
    int32_t count;
    int32_t near;                     /* members that the largest group has here */
    int8_t next[HD_NODE_LINKS_MAX];   /* by rank in the window: to which one it sends in a ring; -1:
                                         none, or on another node */
    int8_t member[HD_NODE_LINKS_MAX]; /* the first rank of the same group here */
};
void hd_links_window(const struct hd_mesh *mesh, enum hd_group_name name, int32_t first,
                     int32_t count, struct hd_link_window *ret_window);
/* What these groups have within the node while all of them send. devices: [assigned] by rank in the
 * window; ranks from `assigned` on send nothing, so that fewer are never slower. Sets ring_.. or
 * exchange_.. of the group, and latency_s. */
void hd_links_ring_rate(const struct hd_node_links *links, const struct hd_link_window *window,
                        const int32_t *devices, int32_t assigned, struct hd_link_group *group);
void hd_links_exchange_rate(const struct hd_node_links *links, const struct hd_link_window *window,
                            const int32_t *devices, int32_t assigned, struct hd_link_group *group);

/* Seconds of one collective. bytes: of `count` elements, as the arguments of comm.h count them; of
 * all_to_all_v: what a member sends to all others together. native: sums are the library's rings,
 * not ordered exchanges. */
double hd_links_collective(const struct hd_cluster *cluster, const struct hd_link_group *group,
                           enum hd_comm_kind kind, double bytes, bool native);

/* Seconds of a transfer between devices at these positions. stages: the group `pp`, whose ranks all
 * send at the same time; NULL, or of a cluster without links: not needed. */
double hd_links_transfer(const struct hd_cluster *cluster, const struct hd_link_group *stages,
                         int64_t from, int64_t to, double bytes);

#endif
