/* cluster: the planner's description of machines: how many devices there are, how fast one
 * computes, and how fast devices reach one another.
 *
 * The devices of a cluster are alike and have positions 0, 1, 2 ...: those of one node are
 * adjacent, and so are nodes of one switch. Devices with fast links between them thus form a range
 * of positions. The ranges are *levels*, smallest first: islands within a node (devices that share
 * a switch or a bridge), the node, then each tier of network switches. One range is a *domain* of
 * its level. A level's rate is what one device can send, and at the same time receive, while all
 * devices of the domain do so; the rate of a shared link (a PCIe switch, a socket, a node's
 * adapters) is already divided by the devices that share it. If some pairs of devices in a node are
 * faster than others in a way that ranges cannot describe, the cluster has a matrix (node_links.h),
 * which replaces the levels within the node.
 *
 * Used by: plan, spec (reads cluster files), the heddle command.   Uses: base, kernels.
 * Threads: any; a filled cluster is only read. */
#ifndef HD_PLAN_CLUSTER_H
#define HD_PLAN_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "plan/node_links.h"
#include "plan/rates.h"

enum {
    HD_CLUSTER_NAME_MAX = 64,
    HD_CLUSTER_TIERS_MAX = 8,
    /* levels of a cluster: island, node, tiers of switches, and one of all nodes */
    HD_CLUSTER_LEVELS_MAX = HD_CLUSTER_TIERS_MAX + 3,
    HD_CLUSTER_NODES_MAX = 10000,
    HD_CLUSTER_NODE_DEVICES_MAX = 64,
    HD_CLUSTER_GROUPS_MAX = 64, /* groups of a cluster file, each with its own kind of nodes */
    HD_CLUSTER_FILE_BYTES_MAX = 1 << 20
};

struct hd_cluster_level {
    char name[HD_CLUSTER_NAME_MAX]; /* "island", "node", or the name of a network tier */
    /* devices of one domain of this level: a multiple of those of the level below */
    int64_t devices;
    double bytes_per_s, latency_s;
};

struct hd_cluster {
    /* names of the cluster's nodes, "n[1-16]"; "" if the cluster file has only one group */
    char name[HD_CLUSTER_NAME_MAX];
    /* kind of device: "h100"; "cpu"; "own" for a device with its own rates */
    char device[HD_CLUSTER_NAME_MAX];
    struct hd_traits traits; /* traits of one device */
    struct hd_rates rates;
    int64_t nodes, devices_per_node;
    int64_t host_memory_bytes; /* host memory of a node divided by its devices; 0: unknown */
    /* [level_count] links by level, smallest domain first; the last level's one domain has all
     * devices */
    struct hd_cluster_level levels[HD_CLUSTER_LEVELS_MAX];
    int level_count;
    /* Links between the devices of each node, if pairs of them differ; NULL: all pairs have the
     * lowest level's rate. All nodes have the same links. Lives as long as the memory that the
     * cluster was read into. */
    const struct hd_node_links *links;
};

static inline int64_t hd_cluster_devices(const struct hd_cluster *cluster)
{
    return cluster->nodes * cluster->devices_per_node;
}

/* Returns whether each tp group lies on one node. Ranks fill one node after another, so on several
 * nodes tp must divide the devices of a node. */
static inline bool hd_cluster_keeps_tp(const struct hd_cluster *cluster, int64_t devices,
                                       int64_t tp)
{
    return devices <= cluster->devices_per_node || cluster->devices_per_node % tp == 0;
}

/* Describes `devices` GPUs of a kind in machines as they are usually built: links within the node
 * and one adapter per GPU, from the table in cluster.c. Some devices of the last node may be
 * unused. */
void hd_cluster_of_kind(const struct hd_gpu_kind *kind, int64_t devices, bool tf32,
                        struct hd_cluster *ret_cluster);

/* Describes `devices` GPUs of a kind as hd_cluster_of_kind does, but with `together` GPUs on each
 * node. */
void hd_cluster_of_gpus(const struct hd_gpu_kind *kind, int64_t devices, int64_t together,
                        bool tf32, struct hd_cluster *ret_cluster);

/* Switches fp32 products to TF32 (train.tf32), at the rate of the data sheet. Devices that are no
 * kind of GPU in Heddle's table keep their fp32 rate. */
void hd_cluster_use_tf32(struct hd_cluster *cluster);

/* Describes `devices` CPU devices of one machine with these traits. */
void hd_cluster_of_cpu(const struct hd_traits *traits, int64_t devices,
                       const struct hd_rates *rates, struct hd_cluster *ret_cluster);

/* Sets the levels from the links of islands, of the node and of the network: islands of `island`
 * devices (0: none), the node, then one level of all nodes if there are several. An island with all
 * devices of a node replaces the node's level. */
void hd_cluster_set_levels(struct hd_cluster *cluster, int64_t island,
                           const struct hd_cluster_level *of_island,
                           const struct hd_cluster_level *of_node,
                           const struct hd_cluster_level *between);

/* Return the rate and latency of the links that machines with this kind of GPU usually have: within
 * a node (hd_cluster_usual_node), and between nodes. */
struct hd_cluster_level hd_cluster_usual_node(const struct hd_gpu_kind *kind);
struct hd_cluster_level hd_cluster_usual_network(const struct hd_gpu_kind *kind);

/* Returns the name of the kind of GPU in Heddle's table that is most similar to `word`, ignoring
 * case; NULL: none is similar. Used for the hint "did you mean". */
const char *hd_cluster_nearest_kind(const char *word);

/* Appends the names of all kinds of GPU in Heddle's table: "h100, h200, ..". */
void hd_cluster_add_kinds(struct hd_text *text);

/* Returns the index of the lowest level of the cluster that has both device positions in one
 * domain. */
int hd_cluster_level_of(const struct hd_cluster *cluster, int64_t a, int64_t b);

#endif
