/* cluster: what the planner knows of machines: how many devices there are, how fast one computes,
 * and how fast devices reach one another.
 *
 * The devices of a cluster are alike and have positions 0, 1, 2 ...: those of one node are
 * adjacent, nodes of one switch are adjacent. So devices that reach one another fast are in a short
 * range of positions. The ranges are *levels*, from the smallest: islands within a node (devices
 * that share a switch or a bridge), the node, then each tier of network switches. A level's rate is
 * what one device can send, and at the same time receive, while all devices of the domain do so;
 * what several devices share (a PCIe switch, a socket, a node's adapters) is divided already. Nodes
 * in which some devices are nearer to one another in no such order have a matrix (node_links.h)
 * instead of the levels up to the node.
 *
 * Used by: plan, spec (reads cluster files), the heddle command.   Uses: base, kernels.
 * Threads: any; a cluster that is filled is only read.
 */
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
    HD_CLUSTER_LEVELS_MAX = HD_CLUSTER_TIERS_MAX + 3, /* island, node, tiers, all nodes */
    HD_CLUSTER_NODES_MAX = 10000,
    HD_CLUSTER_NODE_DEVICES_MAX = 64,
    HD_CLUSTER_GROUPS_MAX = 64, /* of a cluster file: groups of nodes with other devices */
    HD_CLUSTER_FILE_BYTES_MAX = 1 << 20
};

struct hd_cluster_level {
    char name[HD_CLUSTER_NAME_MAX]; /* "island", "node", or a tier's name */
    int64_t devices;                /* of one domain: a multiple of the level below */
    double bytes_per_s, latency_s;
};

struct hd_cluster {
    char name[HD_CLUSTER_NAME_MAX];   /* its nodes: "n[1-16]"; "" where there is one group */
    char device[HD_CLUSTER_NAME_MAX]; /* the kind: "h100"; "cpu"; "own" with rates of its own */
    struct hd_traits traits;          /* of a device */
    struct hd_rates rates;
    int64_t nodes, devices_per_node;
    int64_t host_memory_bytes; /* a device's share of its node's memory; 0: not known */
    struct hd_cluster_level levels[HD_CLUSTER_LEVELS_MAX]; /* the last one has all devices */
    int level_count;
    /* Where the devices of a node are not alike; NULL: they are, as the lowest level says. All
     * nodes are alike. It lives as long as what the cluster was made of. */
    const struct hd_node_links *links;
};

static inline int64_t hd_cluster_devices(const struct hd_cluster *cluster)
{
    return cluster->nodes * cluster->devices_per_node;
}

/* Whether each tp group is on one node, as a job is placed: ranks fill one node after another, so
 * on several nodes tp has to divide the devices of a node. */
static inline bool hd_cluster_keeps_tp(const struct hd_cluster *cluster, int64_t devices,
                                       int64_t tp)
{
    return devices <= cluster->devices_per_node || cluster->devices_per_node % tp == 0;
}

/* `devices` GPUs of a kind as such machines are usually built: the node's links and an adapter per
 * GPU, by the table in cluster.c. The last node may have devices that are not used. */
void hd_cluster_of_kind(const struct hd_gpu_kind *kind, int64_t devices, bool tf32,
                        struct hd_cluster *ret_cluster);

/* The same, with `together` GPUs on each node. */
void hd_cluster_of_gpus(const struct hd_gpu_kind *kind, int64_t devices, int64_t together,
                        bool tf32, struct hd_cluster *ret_cluster);

/* From now on products in fp32 round their factors to TF32 (train.tf32): at the rate of the data
 * sheet. Devices of no known kind keep their rate of fp32. */
void hd_cluster_use_tf32(struct hd_cluster *cluster);

/* CPU devices of one machine. */
void hd_cluster_of_cpu(const struct hd_traits *traits, int64_t devices,
                       const struct hd_rates *rates, struct hd_cluster *ret_cluster);

/* Sets levels from a node's own and the network's: islands of `island` devices (0: none), the node,
 * then one level of all nodes if there are several. An island of all devices of a node is the node:
 * its link is the island's. */
void hd_cluster_set_levels(struct hd_cluster *cluster, int64_t island,
                           const struct hd_cluster_level *of_island,
                           const struct hd_cluster_level *of_node,
                           const struct hd_cluster_level *between);

/* The usual links of a kind: within a node, or between nodes. */
struct hd_cluster_level hd_cluster_usual_node(const struct hd_gpu_kind *kind);
struct hd_cluster_level hd_cluster_usual_network(const struct hd_gpu_kind *kind);

/* The known kind of GPU whose word is nearest to this one, in whatever case; NULL: none is similar.
 * For the hint "did you mean". */
const char *hd_cluster_nearest_kind(const char *word);

/* Appends the words of all known kinds of GPU: "h100, h200, ..". */
void hd_cluster_add_kinds(struct hd_text *text);

/* The lowest level with a domain that has both positions. */
int hd_cluster_level_of(const struct hd_cluster *cluster, int64_t a, int64_t b);

#endif
