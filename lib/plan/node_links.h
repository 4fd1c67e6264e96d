/* node_links: how the devices of one node reach one another, if some pairs are faster than others.
 *
 * Each pair has a rate and a latency, of one direction, while nothing else is sent. In addition
 * there are *shared links*: devices behind one PCIe switch, or of one socket, send to all other
 * devices through one uplink. A transfer passes the uplink of each set of devices that contains
 * exactly one of its two ends, unless the pair is *direct*: it has wires of its own (NVLink between
 * two GPUs without a switch), which carry nothing else.
 *
 * A pair has the same rate in both directions; if they were measured to differ, use the slower.
 *
 * Used by: cluster, links, rank_map, spec (cluster files), core.   Uses: base.
 * Threads: any; a filled struct is only read. */
#ifndef HD_PLAN_NODE_LINKS_H
#define HD_PLAN_NODE_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_NODE_LINKS_MAX = 64,  /* most devices of a node */
    HD_SHARED_LINKS_MAX = 32 /* most shared links of a node */
};

struct hd_shared_link {
    uint64_t devices;   /* bit set of the devices behind the link */
    double bytes_per_s; /* rate of all of them together, in one direction */
};

struct hd_node_links {
    /* devices of the node; 0: all pairs are alike, with the rate of the cluster's lowest level */
    int32_t devices;
    int32_t shared_count;
    struct hd_shared_link shared[HD_SHARED_LINKS_MAX];
    /* [device] bit set of the devices to which this one has wires of its own, which no other pair
     * shares */
    uint64_t direct[HD_NODE_LINKS_MAX];
    /* [hd_node_links_pair(a, b)] rate and latency of a pair of devices */
    double bytes_per_s[HD_NODE_LINKS_MAX * (HD_NODE_LINKS_MAX - 1) / 2];
    double latency_s[HD_NODE_LINKS_MAX * (HD_NODE_LINKS_MAX - 1) / 2];
};

/* Returns the index of the pair (a, b), a != b, in the arrays of struct hd_node_links; the order of
 * a and b does not matter. */
static inline int32_t hd_node_links_pair(int32_t a, int32_t b)
{
    return a > b ? a * (a - 1) / 2 + b : b * (b - 1) / 2 + a;
}

static inline double hd_node_links_rate(const struct hd_node_links *links, int32_t a, int32_t b)
{
    return links->bytes_per_s[hd_node_links_pair(a, b)];
}

static inline double hd_node_links_latency(const struct hd_node_links *links, int32_t a, int32_t b)
{
    return links->latency_s[hd_node_links_pair(a, b)];
}

static inline bool hd_node_links_is_direct(const struct hd_node_links *links, int32_t a, int32_t b)
{
    return links->direct[a] >> b & 1;
}

void hd_node_links_set(struct hd_node_links *links, int32_t a, int32_t b, double bytes_per_s,
                       double latency_s, bool direct);
/* Adds a link that `devices` (a bit set) share for all transfers to other devices. HD_LIMIT: the
 * node has HD_SHARED_LINKS_MAX already. */
enum hd_status hd_node_links_share(struct hd_node_links *links, uint64_t devices,
                                   double bytes_per_s);

/* Returns whether all pairs of devices have equal links and no link is shared; then it does not
 * matter which device a rank has. */
bool hd_node_links_are_even(const struct hd_node_links *links);
bool hd_node_links_equal(const struct hd_node_links *a, const struct hd_node_links *b);
/* Returns whether ranks may exchange devices a and b at no cost: both have equal links to every
 * other device, and equal shared links. */
bool hd_node_links_alike(const struct hd_node_links *links, int32_t a, int32_t b);

#endif
