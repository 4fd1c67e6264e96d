/* links: how long a collective, or a transfer between two pipeline stages, takes on a cluster.
 *
 * All groups of one name communicate at the same time, so a level's rate (cluster.h) is what each
 * device gets. Let P be the number of members, n the bytes per member, and p_l the number of
 * members of the group in one domain of level l (p = 1 below the lowest level):
 *
 *   ring       all-gather, broadcast: each member passes on (P - 1) n. The bytes that cross from
 *              one domain of level l - 1 to the next may use the links of all p_(l-1) members in
 *              it, so the ring is limited by the level with the least p_(l-1) x rate
 *   exchange   ordered sums, all-to-all: every member sends n to each other one. Bytes to members
 *              in its domain of level l, but not of level l - 1, take that level's rate
 *   shift      a member sends n to its neighbour, at the rate of the highest level between the two
 *
 * An ordered all-reduce is an exchange of n / P, a local sum, and an all-gather of n / P. The time
 * is that of the slowest level, plus latencies: one per hop of a ring, one per exchange.
 *
 * If pairs of devices in a node differ (node_links.h), a group's rates within the node follow from
 * the devices of its ranks, and from what all groups of the name send at the same time:
 *
 *   ring       the slowest pair of neighbours. A shared link's rate is divided by the number of
 *              neighbours that it connects
 *   exchange   the longest of these times, per byte to each other member: the sum over the members
 *              that a device reaches by its one port; the slowest of those with direct wires; a
 *              shared link's, whose rate is divided by the number of pairs that it connects
 *
 * With a calibration (calibration.h), operations within a node take their measured time. A number
 * of members that was not measured takes the time of the nearest measured one, times the ratio of
 * the two by the formulas above.
 *
 * Used by: plan, rank_map.   Uses: cluster, node_links, mesh, comm (kinds).
 * Threads: any; no state.
 */
#ifndef HD_PLAN_LINKS_H
#define HD_PLAN_LINKS_H

#include "comm/comm.h"
#include "mesh/mesh.h"
#include "plan/cluster.h"

/* The members of one group on each level. It describes the group with the most distant members,
 * since the slowest group of a name decides. Rank r is on the node that has position r. */
struct hd_link_group {
    int32_t size;
    int64_t near[HD_CLUSTER_LEVELS_MAX]; /* by level: most members of the group in one domain */
    int top;                             /* the lowest level with a domain that has all members */
    /* The group's bandwidth and latency within a node in which pairs of devices differ; 0: those of
     * the cluster's lowest level apply. */
    double ring_bytes_per_s, exchange_bytes_per_s, latency_s;
};
/* Returns the members by level of the slowest group of a name. devices: [world] each rank's device
 * number on its node (rank_map.h), used only if cluster->links is set; else may be NULL. */
struct hd_link_group hd_links_group(const struct hd_cluster *cluster, const struct hd_mesh *mesh,
                                    enum hd_group_name name, const int32_t *devices);

/* The groups of one name, restricted to `count` adjacent ranks on one node. */
struct hd_link_window {
    int32_t count;
    int32_t near; /* most members that one of the groups has among these ranks */
    /* by rank in the window: the rank it sends to in a ring; -1: none, or on another node */
    int8_t next[HD_NODE_LINKS_MAX];
    /* by rank in the window: the first rank of its group in the window */
    int8_t member[HD_NODE_LINKS_MAX];
};
void hd_links_window(const struct hd_mesh *mesh, enum hd_group_name name, int32_t first,
                     int32_t count, struct hd_link_window *ret_window);
/* Compute the bandwidth and the latency that these groups have within the node while all of them
 * send. devices: [assigned] by rank in the window; ranks from `assigned` on send nothing yet, so
 * fewer ranks are never slower. Set ring_bytes_per_s or exchange_bytes_per_s of the group, and
 * latency_s. */
void hd_links_ring_rate(const struct hd_node_links *links, const struct hd_link_window *window,
                        const int32_t *devices, int32_t assigned, struct hd_link_group *group);
void hd_links_exchange_rate(const struct hd_node_links *links, const struct hd_link_window *window,
                            const int32_t *devices, int32_t assigned, struct hd_link_group *group);

/* Returns the seconds of one collective. bytes: size of `count` elements, as the arguments of
 * comm.h count them; for all_to_all_v: bytes that a member sends to all others together. native:
 * sums are the library's ring reductions, not ordered exchanges. */
double hd_links_collective(const struct hd_cluster *cluster, const struct hd_link_group *group,
                           enum hd_comm_kind kind, double bytes, bool native);

/* Returns the bytes that a member passes on in a collective, as a ring would: `bytes` as comm.h
 * counts them. */
double hd_links_passed_bytes(enum hd_comm_kind kind, int32_t members, double bytes);

/* Returns the seconds of a transfer of `bytes` between the devices at two positions of the cluster.
 * stages: the group `pp`, whose ranks all send at the same time; may be NULL if the cluster has no
 * `links`. */
double hd_links_transfer(const struct hd_cluster *cluster, const struct hd_link_group *stages,
                         int64_t from, int64_t to, double bytes);

#endif
