/* node_links: how the devices of one node reach one another, where not all pairs are alike.
 *
 * Each pair has a rate and a latency, of one direction, while nothing else is sent. On top of that
 * there are *shared links*: what the devices behind a PCIe switch, or of a socket, send to all
 * others goes through one uplink together. A transfer passes the uplink of each set of devices that
 * has one of its two ends and not the other, unless the pair is *direct*: wires of its own (NVLink
 * between two GPUs without a switch), which carry nothing else.
 *
 * Rates of a pair are those of both directions; of a measured pair that differs, take the slower.
 *
 * Used by: cluster, links, rank_map, spec (cluster files), core.   Uses: base.
 * Threads: any; a struct that is filled is only read.
 */
#ifndef HD_PLAN_NODE_LINKS_H
#define HD_PLAN_NODE_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_NODE_LINKS_MAX = 64,  /* devices */
    HD_SHARED_LINKS_MAX = 32 /* of a node */
};

struct hd_shared_link {
    uint64_t devices;   /* set of those behind it, by bits */
    double bytes_per_s; /* of all of them together, in one direction */
};

struct hd_node_links {
    int32_t devices; /* 0: all pairs are alike; the cluster's levels say how fast they are */
    int32_t shared_count;
    struct hd_shared_link shared[HD_SHARED_LINKS_MAX];
    uint64_t direct[HD_NODE_LINKS_MAX]; /* of each device: those with wires of their own to it */
    double bytes_per_s[HD_NODE_LINKS_MAX * (HD_NODE_LINKS_MAX - 1) / 2]; /* hd_node_links_pair */
    double latency_s[HD_NODE_LINKS_MAX * (HD_NODE_LINKS_MAX - 1) / 2];
};

/* The place of a pair, a != b, in the arrays; the order of the two does not matter. */
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
/* HD_LIMIT: HD_SHARED_LINKS_MAX have been added. */
enum hd_status hd_node_links_share(struct hd_node_links *links, uint64_t devices,
                                   double bytes_per_s);

/* All pairs are alike and nothing is shared: it makes no difference which device a rank has. */
bool hd_node_links_are_even(const struct hd_node_links *links);
bool hd_node_links_equal(const struct hd_node_links *a, const struct hd_node_links *b);
/* Exchanging the two devices changes nothing: every other device, and every shared link, is the
 * same for both. */
bool hd_node_links_alike(const struct hd_node_links *links, int32_t a, int32_t b);

#endif
