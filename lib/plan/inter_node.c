#include "plan/inter_node.h"

#include <math.h>

static bool crosses(const struct hd_mesh_group *g, int32_t a, int32_t b, int64_t devices_per_node)
{
    return hd_mesh_member(g, a) / devices_per_node != hd_mesh_member(g, b) / devices_per_node;
}

/* Returns the share, 0 to 1, of a group's hops, each from a member to the next, that cross between
 * nodes; closed: the hop from the last member to the first counts, too. */
static double share_of_hops(const struct hd_mesh_group *g, int64_t devices_per_node, bool closed)
{
    const int32_t hops = closed ? g->size : g->size - 1;
    int64_t count = 0;

    for (int32_t i = 0; i < hops; i++)
        count += crosses(g, i, (i + 1) % g->size, devices_per_node);
    return (double)count / hops;
}

/* Returns the share, 0 to 1, of the pairs of a group's members that lie on two nodes. Members are
 * in ascending order, so those of one node are adjacent. */
static double share_of_pairs(const struct hd_mesh_group *g, int64_t devices_per_node)
{
    /* pairs of members on one node; earlier members on the current node */
    int64_t together = 0, before = 0;

    for (int32_t i = 0; i < g->size; i++) {
        before = i > 0 && !crosses(g, i - 1, i, devices_per_node) ? before + 1 : 0;
        together += 2 * before; /* pairs count in both directions */
    }
    return 1 - (double)together / ((double)g->size * (g->size - 1));
}

double hd_inter_node_share(const struct hd_mesh_group *g, int64_t devices_per_node,
                           enum hd_comm_kind kind, bool native)
{
    double sum;

    if (g->size <= 1)
        return 0;
    sum = native ? share_of_hops(g, devices_per_node, true) : share_of_pairs(g, devices_per_node);
    switch (kind) {
    case HD_COMM_ALL_GATHER:
    case HD_COMM_SHIFT:
        return share_of_hops(g, devices_per_node, true);
    case HD_COMM_BROADCAST:
    case HD_COMM_SEND:
    case HD_COMM_RECV:
        return share_of_hops(g, devices_per_node, false);
    case HD_COMM_REDUCE_SCATTER:
        return sum;
    case HD_COMM_ALL_REDUCE: /* half of its bytes are an all-gather of the sums */
        return (share_of_hops(g, devices_per_node, true) + sum) / 2;
    default:
        return share_of_pairs(g, devices_per_node);
    }
}

int64_t hd_inter_node_bytes(const struct hd_plan *plan, int rank, enum hd_group_name name,
                            enum hd_comm_kind kind, int64_t devices_per_node, bool native)
{
    const int64_t bytes = hd_plan_rank(plan, rank)->step.group_bytes[name][kind];
    const struct hd_mesh_group group = hd_mesh_find_group(&plan->mesh, name, rank);

    return bytes ? llround((double)bytes *
                           hd_inter_node_share(&group, devices_per_node, kind, native))
                 : 0;
}

int64_t hd_inter_node_bytes_all(const struct hd_plan *plan, int64_t devices_per_node, bool native)
{
    int64_t all = 0;

    for (int rank = 0; rank < plan->mesh.world; rank++)
        for (int n = 0; n < HD_GROUP_COUNT; n++) {
            const enum hd_group_name name = (enum hd_group_name)n;
            const bool is_first = hd_mesh_find_group(&plan->mesh, name, rank).index == 0;

            for (int k = 0; k < HD_COMM_KIND_COUNT; k++)
                /* one member counts the group's bytes; a receive counts those of each rank */
                if (is_first || k == HD_COMM_RECV)
                    all += hd_inter_node_bytes(plan, rank, name, (enum hd_comm_kind)k,
                                               devices_per_node, native);
        }
    return all;
}
