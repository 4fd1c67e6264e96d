/* rank_map: which device each rank takes, where the devices of a node are not alike.
 *
 * Ranks are numbered tp fastest, then cp, dp and pp, and are dealt to the nodes in the order of
 * their numbers: so tp groups are within a node, and near ranks on near nodes. On each node the
 * devices are chosen so that what the groups exchange in a step takes the least time: the sum over
 * all kinds of traffic of the bytes by the rates that links.h finds while all groups of a name send
 * at the same time.
 *
 * Exact up to RANK_MAP_EXACT devices that a node offers: a search in depth over ranks, which leaves
 * a branch when what the ranks so far exchange takes as long as the best map that is known, and
 * tries one of several devices that are alike. Above, exchanges of two devices as long as one makes
 * it faster, from three starts. Of equal maps the one with lower numbers first is taken, so that
 * nothing is moved without need, and equal questions have equal answers.
 *
 * Used by: pieces, core, the heddle command.   Uses: links, choose.   Threads: any; no state.
 */
#ifndef HD_PLAN_RANK_MAP_H
#define HD_PLAN_RANK_MAP_H

#include "plan/choose.h"
#include "plan/links.h"

enum { HD_TRAFFIC_MAX = 8 };

/* What the groups of one name exchange in a step: `times` collectives of `bytes`, as
 * hd_links_collective takes them. */
struct hd_traffic_item {
    enum hd_group_name group;
    enum hd_comm_kind kind;
    double bytes, times;
};
struct hd_traffic {
    struct hd_traffic_item items[HD_TRAFFIC_MAX];
    int count;
    bool native; /* sums are the library's rings */
};

/* The traffic of a layout, from the sizes of its model alone, with 2 bytes per value: per block and
 * micro-batch 4 sums over tp of the hidden rows, 3 turns of keys and values over cp, 4 exchanges of
 * rows over ep; hidden rows to the next stage and back; a gradient of 4 bytes per weight once a
 * step. What a program really sends is known only when it is compiled (layer_profile.h); for the
 * choice of
 * devices the proportions count. */
void hd_traffic_of(const struct hd_layout_sizes *sizes, const struct hd_plan_request *model,
                   struct hd_traffic *ret_traffic);

/* What one node offers and takes. */
struct hd_rank_node {
    const struct hd_node_links *links; /* NULL: its devices are alike */
    const int32_t *devices;            /* [device_count] that ranks may have; numbers in `links` */
    int32_t device_count;
    int32_t ranks; /* that it takes; at most device_count */
};

/* Sets the device of each rank. The nodes take all ranks of the layout, in their order. HD_INVALID:
 * the layout has no mesh; HD_NO_MEMORY. Takes microseconds to a few milliseconds for each node that
 * is not like the one before. */
enum hd_status hd_rank_map_choose(const struct hd_layout_sizes *sizes,
                                  const struct hd_traffic *traffic,
                                  const struct hd_rank_node *nodes, size_t node_count,
                                  int32_t *ret_devices);

/* The same for a cluster whose nodes are alike, with all their devices. ret_devices: [ranks]. */
enum hd_status hd_rank_map_of_cluster(const struct hd_cluster *cluster,
                                      const struct hd_layout_sizes *sizes,
                                      const struct hd_traffic *traffic, int32_t *ret_devices);

/* The same with the traffic of a job that has its layout. */
enum hd_status hd_rank_map_of_job(const struct hd_cluster *cluster, const struct hd_job *job,
                                  int32_t *ret_devices);

/* Seconds of a step's traffic within the nodes: what hd_rank_map_choose makes least. For one node,
 * whose ranks have `devices`. */
double hd_rank_map_seconds(const struct hd_node_links *links, const struct hd_mesh *mesh,
                           const struct hd_traffic *traffic, const int32_t *devices);

#endif
