#include "plan/links.h"

#include "plan/calibration.h"

/* ---- groups ---- */

static struct hd_link_group describe(const struct hd_cluster *c, const struct hd_mesh_group *g)
{
    struct hd_link_group d = {.size = g->size, .top = 0};

    for (int l = 0; l < c->level_count; l++) {
        const int64_t domain = hd_mesh_member(g, 0) / c->levels[l].devices;
        int64_t most = 0, run = 0, at = domain;

        for (int32_t i = 0; i < g->size; i++) {
            const int64_t here = hd_mesh_member(g, i) / c->levels[l].devices;

            run = here == at ? run + 1 : 1;
            at = here;
            most = run > most ? run : most;
        }
        d.near[l] = most;
        d.top = l;
        if (most == g->size)
            break;
    }
    for (int l = d.top + 1; l < c->level_count; l++)
        d.near[l] = g->size;
    return d;
}

static bool is_farther(const struct hd_link_group *a, const struct hd_link_group *b)
{
    if (a->top != b->top)
        return a->top > b->top;
    for (int l = a->top; l >= 0; l--)
        if (a->near[l] != b->near[l])
            return a->near[l] < b->near[l];
    return false;
}

/* Groups of a name tile the ranks: blocks of stride x size, whose first `stride` ranks begin one
 * each. So they repeat where a block and a domain begin together. */
struct hd_link_group hd_links_group(const struct hd_cluster *c, const struct hd_mesh *mesh,
                                    enum hd_group_name name)
{
    const struct hd_mesh_group first = hd_mesh_find_group(mesh, name, 0);
    const int64_t block = (int64_t)first.stride * first.size;
    const int64_t domain = c->level_count > 1 ? c->levels[c->level_count - 2].devices : 1;
    struct hd_link_group far = {.size = 1};

    for (int64_t begin = 0; first.size > 1 && begin < mesh->world; begin += block) {
        if (begin > 0 && begin % domain == 0)
            break;
        for (int64_t rank = begin; rank < begin + first.stride && rank < mesh->world; rank++) {
            const struct hd_mesh_group g = hd_mesh_find_group(mesh, name, (int32_t)rank);
            const struct hd_link_group d = describe(c, &g);

            if (far.size == 1 || is_farther(&d, &far))
                far = d;
        }
    }
    return far;
}

/* ---- collectives ---- */

static int64_t near_below(const struct hd_link_group *g, int level)
{
    return level > 0 ? g->near[level - 1] : 1;
}

/* Every member passes on (P - 1) x bytes. */
static double ring(const struct hd_cluster *c, const struct hd_link_group *g, double bytes)
{
    double slowest = 0, latency = 0;

    for (int l = 0; l <= g->top; l++) {
        const int64_t below = near_below(g, l);
        const double s = bytes * (g->size - 1) / (c->levels[l].bytes_per_s * (double)below);

        if (g->near[l] == below)
            continue; /* no link of this level is used */
        slowest = s > slowest ? s : slowest;
        /* hops between the domains below, within all domains of this level */
        latency += c->levels[l].latency_s * (double)(g->near[l] / below - 1) *
                   ((double)g->size / (double)g->near[l]);
    }
    return slowest + latency;
}

/* Every member sends `bytes` to each other one. */
static double exchange(const struct hd_cluster *c, const struct hd_link_group *g, double bytes)
{
    double slowest = 0;

    for (int l = 0; l <= g->top; l++) {
        const double s = bytes * (double)(g->near[l] - near_below(g, l)) / c->levels[l].bytes_per_s;

        slowest = s > slowest ? s : slowest;
    }
    return slowest + c->levels[g->top].latency_s;
}

static double by_formula(const struct hd_cluster *c, const struct hd_link_group *g,
                         enum hd_comm_kind kind, double bytes, bool native)
{
    const double P = g->size;

    switch (kind) {
    case HD_COMM_ALL_GATHER:
        return ring(c, g, bytes);
    case HD_COMM_BROADCAST:
        return ring(c, g, bytes / (P - 1));
    case HD_COMM_REDUCE_SCATTER:
        return native ? ring(c, g, bytes) : exchange(c, g, bytes);
    case HD_COMM_ALL_REDUCE:
        return ring(c, g, bytes / P) + (native ? ring(c, g, bytes / P) : exchange(c, g, bytes / P));
    case HD_COMM_ALL_TO_ALL:
        return exchange(c, g, bytes);
    case HD_COMM_ALL_TO_ALL_V:
        return exchange(c, g, bytes / (P - 1));
    case HD_COMM_SHIFT:
        return bytes / c->levels[g->top].bytes_per_s + c->levels[g->top].latency_s;
    default: /* a barrier moves nothing */
        return c->levels[g->top].latency_s;
    }
}

static bool is_within_node(const struct hd_cluster *c, int level)
{
    return c->levels[level].devices <= c->devices_per_node;
}

/* A group of P members has the measured time of P' members, times the ratio of the two by formula.
 */
static bool measured(const struct hd_cluster *c, const struct hd_link_group *g,
                     enum hd_comm_kind kind, double bytes, bool native, double *ret_seconds)
{
    struct hd_link_group of_curve = *g;
    int64_t members;

    if (!c->rates.calibration || !is_within_node(c, g->top) ||
        !hd_calibration_collective(c->rates.calibration, kind, g->size, bytes, ret_seconds,
                                   &members))
        return false;
    if (members != g->size) {
        of_curve.size = (int32_t)members;
        for (int l = 0; l < c->level_count; l++)
            if (of_curve.near[l] > members || l >= g->top)
                of_curve.near[l] = members;
        *ret_seconds *=
            by_formula(c, g, kind, bytes, native) / by_formula(c, &of_curve, kind, bytes, native);
    }
    return true;
}

double hd_links_collective(const struct hd_cluster *c, const struct hd_link_group *g,
                           enum hd_comm_kind kind, double bytes, bool native)
{
    double seconds;

    if (g->size <= 1)
        return 0;
    return measured(c, g, kind, bytes, native, &seconds) ? seconds
                                                         : by_formula(c, g, kind, bytes, native);
}

double hd_links_transfer(const struct hd_cluster *c, int64_t from, int64_t to, double bytes)
{
    const int level = hd_cluster_level_of(c, from, to);
    const struct hd_cluster_level *l = &c->levels[level];
    int64_t members;
    double seconds;

    if (c->rates.calibration && is_within_node(c, level) &&
        hd_calibration_collective(c->rates.calibration, HD_COMM_SEND, 2, bytes, &seconds, &members))
        return seconds;
    return l->latency_s + bytes / l->bytes_per_s;
}
