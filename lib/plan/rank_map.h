/* rank_map: which device each rank gets, in nodes where pairs of devices differ.
 *
 * Ranks are numbered tp fastest, then cp, dp and pp, and fill one node after another: so tp groups
 * lie within a node, and ranks with near numbers on near nodes. On each node the devices are chosen
 * so that the exchanges of a step take the least time: the sum over all kinds of traffic of bytes
 * divided by the rates that links.h finds while all groups of a name send at the same time.
 *
 * The choice is exact if a node offers at most RANK_MAP_EXACT devices: a depth-first search over
 * ranks, which drops a branch when the ranks so far take as long as the best map known, and tries
 * only one of several devices that are alike. With more devices the search exchanges two devices as
 * long as one exchange makes the step faster, from three starting maps. Among equally fast maps the
 * one with lower device numbers first is taken, so that no rank is moved needlessly and equal
 * inputs give equal results.
 *
 * Used by: layer_profile, core, the heddle command.   Uses: links, choose.   Threads: any; no
 * state. */
#ifndef HD_PLAN_RANK_MAP_H
#define HD_PLAN_RANK_MAP_H

#include "plan/choose.h"
#include "plan/links.h"

enum { HD_TRAFFIC_MAX = 8 };

/* The traffic of the groups of one name in a step: `times` collectives of `bytes` each, in the
 * terms of hd_links_collective. */
struct hd_traffic_item {
    enum hd_group_name group;
    enum hd_comm_kind kind;
    double bytes, times;
};
struct hd_traffic {
    struct hd_traffic_item items[HD_TRAFFIC_MAX];
    int count;
    bool native; /* sums are the library's ring reductions, not ordered exchanges */
};

/* Estimates the traffic of a layout from the sizes of its model alone, with 2 bytes per value: per
 * block and micro-batch 4 sums of the hidden rows over tp, 3 rounds of keys and values over cp (in a
 * gated delta layer 2 gathers of matrices), 4 exchanges of rows over ep; hidden rows to the next
 * stage and back; per weight a 4-byte gradient once a step. The exact traffic is known only when a
 * program is compiled (layer_profile.h); for the choice of devices the proportions suffice. */
void hd_traffic_of(const struct hd_layout_sizes *sizes, const struct hd_plan_request *model,
                   struct hd_traffic *ret_traffic);

/* One node on which ranks are placed. */
struct hd_rank_node {
    const struct hd_node_links *links; /* links of the node; NULL: all pairs are alike */
    /* [device_count] devices of the node that ranks may have, by their numbers in `links` */
    const int32_t *devices;
    int32_t device_count;
    int32_t ranks; /* ranks on this node, at most device_count */
};

/* Chooses the device of each rank. The nodes take the ranks of the layout in order, and together
 * all of them. HD_INVALID: the layout has no mesh; HD_NO_MEMORY. Takes microseconds to a few
 * milliseconds for each node that differs from the one before. */
enum hd_status hd_rank_map_choose(const struct hd_layout_sizes *sizes,
                                  const struct hd_traffic *traffic,
                                  const struct hd_rank_node *nodes, size_t node_count,
                                  int32_t *ret_devices);

/* Chooses the device of each rank in a cluster whose nodes are alike and offer all their devices.
 * ret_devices: [ranks]. */
enum hd_status hd_rank_map_of_cluster(const struct hd_cluster *cluster,
                                      const struct hd_layout_sizes *sizes,
                                      const struct hd_traffic *traffic, int32_t *ret_devices);

/* Chooses the device of each rank as hd_rank_map_of_cluster does, by the traffic of a job that has
 * a complete layout. */
enum hd_status hd_rank_map_of_job(const struct hd_cluster *cluster, const struct hd_job *job,
                                  int32_t *ret_devices);

/* Returns the seconds of a step's traffic within one node, whose ranks have `devices`: the cost
 * that hd_rank_map_choose minimises. */
double hd_rank_map_seconds(const struct hd_node_links *links, const struct hd_mesh *mesh,
                           const struct hd_traffic *traffic, const int32_t *devices);

#endif
