#include "plan/node_links.h"

#include <string.h>

void hd_node_links_set(struct hd_node_links *links, int32_t a, int32_t b, double bytes_per_s,
                       double latency_s, bool direct)
{
    const int32_t pair = hd_node_links_pair(a, b);

    links->bytes_per_s[pair] = bytes_per_s;
    links->latency_s[pair] = latency_s;
    links->direct[a] = (links->direct[a] & ~(1ull << b)) | (uint64_t)direct << b;
    links->direct[b] = (links->direct[b] & ~(1ull << a)) | (uint64_t)direct << a;
}

enum hd_status hd_node_links_share(struct hd_node_links *links, uint64_t devices,
                                   double bytes_per_s)
{
    if (links->shared_count == HD_SHARED_LINKS_MAX)
        return hd_err(HD_LIMIT, "more than %d shared links on a node", HD_SHARED_LINKS_MAX);
    links->shared[links->shared_count++] =
        (struct hd_shared_link){.devices = devices, .bytes_per_s = bytes_per_s};
    return HD_OK;
}

/* Returns the number of pairs of devices in the node's arrays. Pairs are ordered by their larger
 * device, so those of `devices` devices come first. */
static int32_t pairs_of(const struct hd_node_links *links)
{
    return links->devices * (links->devices - 1) / 2;
}

bool hd_node_links_are_even(const struct hd_node_links *links)
{
    const int32_t pairs = pairs_of(links);

    for (int32_t p = 1; p < pairs; p++)
        if (links->bytes_per_s[p] != links->bytes_per_s[0] ||
            links->latency_s[p] != links->latency_s[0])
            return false;
    for (int32_t d = 0; d < links->devices; d++)
        for (int32_t b = 0; b < d; b++)
            if (hd_node_links_is_direct(links, d, b) != hd_node_links_is_direct(links, 1, 0))
                return false;
    return !links->shared_count;
}

bool hd_node_links_equal(const struct hd_node_links *a, const struct hd_node_links *b)
{
    const size_t pairs = (size_t)pairs_of(a);

    if (a->devices != b->devices || a->shared_count != b->shared_count)
        return false;
    for (int32_t s = 0; s < a->shared_count; s++)
        if (a->shared[s].devices != b->shared[s].devices ||
            a->shared[s].bytes_per_s != b->shared[s].bytes_per_s)
            return false;
    return memcmp(a->direct, b->direct, (size_t)a->devices * sizeof a->direct[0]) == 0 &&
           memcmp(a->bytes_per_s, b->bytes_per_s, pairs * sizeof a->bytes_per_s[0]) == 0 &&
           memcmp(a->latency_s, b->latency_s, pairs * sizeof a->latency_s[0]) == 0;
}

static uint64_t exchanged(uint64_t set, int32_t a, int32_t b)
{
    const uint64_t differ = (set >> a ^ set >> b) & 1;

    return set ^ (differ << a | differ << b);
}

static bool shares(const struct hd_node_links *links, uint64_t devices, double bytes_per_s)
{
    for (int32_t s = 0; s < links->shared_count; s++)
        if (links->shared[s].devices == devices && links->shared[s].bytes_per_s == bytes_per_s)
            return true;
    return false;
}

bool hd_node_links_alike(const struct hd_node_links *links, int32_t a, int32_t b)
{
    for (int32_t d = 0; d < links->devices; d++) {
        if (d == a || d == b)
            continue;
        if (hd_node_links_rate(links, a, d) != hd_node_links_rate(links, b, d) ||
            hd_node_links_latency(links, a, d) != hd_node_links_latency(links, b, d) ||
            hd_node_links_is_direct(links, a, d) != hd_node_links_is_direct(links, b, d))
            return false;
    }
    for (int32_t s = 0; s < links->shared_count; s++)
        if (!shares(links, exchanged(links->shared[s].devices, a, b), links->shared[s].bytes_per_s))
            return false;
    return true;
}
