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
 * With a calibration (calibration.h) what happens within a node takes the measured time instead: of
 * a number of members that was not measured that of the nearest, times the formulas' ratio.
 *
 * Used by: plan.   Uses: cluster, mesh, comm (kinds).   Threads: any; no state.
 */
#ifndef HD_PLAN_LINKS_H
#define HD_PLAN_LINKS_H

#include "comm/comm.h"
#include "mesh/mesh.h"
#include "plan/cluster.h"

/* The members of one group on each level; of the group with the most distant members, since the
 * slowest group of a name decides. Ranks stand on the positions of their numbers. */
struct hd_link_group {
    int32_t size;
    int64_t near[HD_CLUSTER_LEVELS_MAX]; /* members in one domain of each level */
    int top;                             /* the lowest level that has all members */
};
struct hd_link_group hd_links_group(const struct hd_cluster *cluster, const struct hd_mesh *mesh,
                                    enum hd_group_name name);

/* Seconds of one collective. bytes: of `count` elements, as the arguments of comm.h count them; of
 * all_to_all_v: what a member sends to all others together. native: sums are the library's rings,
 * not ordered exchanges. */
double hd_links_collective(const struct hd_cluster *cluster, const struct hd_link_group *group,
                           enum hd_comm_kind kind, double bytes, bool native);

/* Seconds of a transfer between devices at these positions. */
double hd_links_transfer(const struct hd_cluster *cluster, int64_t from, int64_t to, double bytes);

#endif
