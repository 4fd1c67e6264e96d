#include "plan/links.h"

#include <math.h> /* INFINITY */

#include "base/math.h"
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

/* Returns the group of one name that has the most distant members. Groups of a name tile the ranks
 * in blocks of stride x size, and each of a block's first `stride` ranks begins a group. The
 * pattern repeats where a block and a domain begin together, so the walk ends there. */
static struct hd_link_group find_farthest(const struct hd_cluster *c, const struct hd_mesh *mesh,
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

/* ---- nodes in which pairs of devices differ ---- */

void hd_links_window(const struct hd_mesh *mesh, enum hd_group_name name, int32_t first,
                     int32_t count, struct hd_link_window *ret_window)
{
    struct hd_link_window *w = ret_window;
    int32_t members[HD_NODE_LINKS_MAX] = {0};

    *w = (struct hd_link_window){.count = count, .near = 1};
    for (int32_t i = 0; i < count; i++) {
        const struct hd_mesh_group g = hd_mesh_find_group(mesh, name, first + i);
        const bool last = g.index == g.size - 1;
        const int32_t next = hd_mesh_member(&g, last ? 0 : g.index + 1) - first;
        const int32_t before = g.first >= first ? 0 : (first - g.first + g.stride - 1) / g.stride;
        const int32_t member = hd_mesh_member(&g, before) - first;

        /* pipeline stages send to the next one; the last one sends nothing */
        w->next[i] =
            (int8_t)(g.size > 1 && next >= 0 && next < count && !(last && name == HD_GROUP_PP)
                         ? next
                         : -1);
        w->member[i] = (int8_t)member;
        members[member]++;
        w->near = members[member] > w->near ? members[member] : w->near;
    }
}

/* Per shared link: pairs that send out through it, and pairs that send in. It carries all of
 * them. */
struct link_users {
    int32_t out[HD_SHARED_LINKS_MAX], in[HD_SHARED_LINKS_MAX];
};

static void cross(const struct hd_node_links *links, int32_t from, int32_t to,
                  struct link_users *link_users)
{
    if (hd_node_links_is_direct(links, from, to))
        return;
    for (int32_t s = 0; s < links->shared_count; s++) {
        const bool has_from = links->shared[s].devices >> from & 1,
                   has_to = links->shared[s].devices >> to & 1;

        link_users->out[s] += has_from && !has_to;
        link_users->in[s] += has_to && !has_from;
    }
}

static double bandwidth_share_of(const struct hd_node_links *links,
                                 const struct link_users *link_users, int32_t shared)
{
    const int32_t out = link_users->out[shared], in = link_users->in[shared];

    return links->shared[shared].bytes_per_s / (out > in ? out : in > 0 ? in : 1);
}

static bool lies_between(const struct hd_shared_link *shared, int32_t a, int32_t b)
{
    return (shared->devices >> a ^ shared->devices >> b) & 1;
}

void hd_links_ring_rate(const struct hd_node_links *links, const struct hd_link_window *w,
                        const int32_t *devices, int32_t assigned, struct hd_link_group *group)
{
    struct link_users link_users = {0};
    double rate = INFINITY, latency = 0;

    for (int32_t i = 0; i < assigned; i++)
        if (w->next[i] >= 0 && w->next[i] < assigned)
            cross(links, devices[i], devices[w->next[i]], &link_users);
    for (int32_t i = 0; i < assigned; i++) {
        const int32_t from = devices[i];
        int32_t to;

        if (w->next[i] < 0 || w->next[i] >= assigned)
            continue;
        to = devices[w->next[i]];
        rate = hd_min_real(rate, hd_node_links_rate(links, from, to));
        latency = hd_max_real(latency, hd_node_links_latency(links, from, to));
        for (int32_t s = 0; s < links->shared_count; s++)
            if (!hd_node_links_is_direct(links, from, to) &&
                lies_between(&links->shared[s], from, to))
                rate = hd_min_real(rate, bandwidth_share_of(links, &link_users, s));
    }
    group->ring_bytes_per_s = rate;
    group->latency_s = latency;
}

void hd_links_exchange_rate(const struct hd_node_links *links, const struct hd_link_window *w,
                            const int32_t *devices, int32_t assigned, struct hd_link_group *group)
{
    struct link_users link_users = {0};
    double longest = 0, latency = 0; /* seconds per byte sent to each member; seconds */

    for (int32_t i = 0; i < assigned; i++) {
        double port = 0;

        for (int32_t k = 0; k < assigned; k++) {
            if (k == i || w->member[k] != w->member[i])
                continue;
            const double seconds = 1 / hd_node_links_rate(links, devices[i], devices[k]);

            cross(links, devices[i], devices[k], &link_users);
            latency = hd_max_real(latency, hd_node_links_latency(links, devices[i], devices[k]));
            if (hd_node_links_is_direct(links, devices[i], devices[k]))
                longest = hd_max_real(longest, seconds);
            else
                port += seconds;
        }
        longest = hd_max_real(longest, port);
    }
    for (int32_t s = 0; s < links->shared_count; s++)
        if (link_users.out[s])
            longest = hd_max_real(longest, 1 / bandwidth_share_of(links, &link_users, s));
    group->exchange_bytes_per_s = longest > 0 ? (w->near - 1) / longest : INFINITY;
    group->latency_s = latency;
}

static void keep_slower(const struct hd_link_group *of_node, struct hd_link_group *group)
{
    group->ring_bytes_per_s = group->ring_bytes_per_s > 0
                                  ? hd_min_real(group->ring_bytes_per_s, of_node->ring_bytes_per_s)
                                  : of_node->ring_bytes_per_s;
    group->exchange_bytes_per_s =
        group->exchange_bytes_per_s > 0
            ? hd_min_real(group->exchange_bytes_per_s, of_node->exchange_bytes_per_s)
            : of_node->exchange_bytes_per_s;
    group->latency_s = hd_max_real(group->latency_s, of_node->latency_s);
}

/* Sets the group's rates within a node to those of the slowest node. Nodes repeat where a block of
 * groups begins together with a node, so repeated nodes are skipped. */
static void rate_nodes(const struct hd_cluster *c, const struct hd_mesh *mesh,
                       enum hd_group_name name, const int32_t *devices, struct hd_link_group *group)
{
    const struct hd_mesh_group any = hd_mesh_find_group(mesh, name, 0);
    const int64_t block = (int64_t)any.stride * any.size, per_node = c->devices_per_node;
    const bool alike =
        per_node % any.stride == 0 && (per_node % block == 0 || block % per_node == 0);

    for (int64_t first = 0; first < mesh->world; first += per_node) {
        const int64_t left = mesh->world - first;
        const int32_t count = (int32_t)(left < per_node ? left : per_node);
        struct hd_link_window window;
        struct hd_link_group of_node = {0};

        if (first > 0 && count == per_node && (alike || first % block == 0))
            continue;
        hd_links_window(mesh, name, (int32_t)first, count, &window);
        hd_links_ring_rate(c->links, &window, devices + first, count, &of_node);
        hd_links_exchange_rate(c->links, &window, devices + first, count, &of_node);
        keep_slower(&of_node, group);
    }
}

struct hd_link_group hd_links_group(const struct hd_cluster *c, const struct hd_mesh *mesh,
                                    enum hd_group_name name, const int32_t *devices)
{
    struct hd_link_group group = find_farthest(c, mesh, name);

    if (c->links && devices && group.size > 1 && group.near[0] > 1)
        rate_nodes(c, mesh, name, devices, &group);
    return group;
}

static bool is_within_node(const struct hd_cluster *c, int level)
{
    return c->levels[level].devices <= c->devices_per_node;
}

/* Returns the bytes/s that collectives reach on a level of the cluster. */
static double rate_of(const struct hd_cluster *c, int level)
{
    return (is_within_node(c, level) ? 1 : c->rates.network_share) * c->levels[level].bytes_per_s;
}

/* Returns the bytes/s of one member on a level of the cluster; on the lowest level the group's own
 * rate, if it is set. */
static double ring_rate(const struct hd_cluster *c, const struct hd_link_group *g, int level)
{
    return level == 0 && g->ring_bytes_per_s > 0 ? g->ring_bytes_per_s : rate_of(c, level);
}

static double exchange_rate(const struct hd_cluster *c, const struct hd_link_group *g, int level)
{
    return level == 0 && g->exchange_bytes_per_s > 0 ? g->exchange_bytes_per_s : rate_of(c, level);
}

static double latency_of(const struct hd_cluster *c, const struct hd_link_group *g, int level)
{
    return level == 0 && g->ring_bytes_per_s + g->exchange_bytes_per_s > 0
               ? g->latency_s
               : c->levels[level].latency_s;
}

/* ---- collectives ---- */

static int64_t near_below(const struct hd_link_group *g, int level)
{
    return level > 0 ? g->near[level - 1] : 1;
}

/* Returns the seconds of a ring in which every member passes on (P - 1) x bytes. */
static double ring(const struct hd_cluster *c, const struct hd_link_group *g, double bytes)
{
    double slowest = 0, latency = 0;

    for (int l = 0; l <= g->top; l++) {
        const int64_t below = near_below(g, l);
        const double s = bytes * (g->size - 1) / (ring_rate(c, g, l) * (double)below);

        if (g->near[l] == below)
            /* no two members are in different domains below this level, so the group uses no link
             * of it */
            continue;
        slowest = s > slowest ? s : slowest;
        /* hops between the domains of the level below, in all domains of this level */
        latency += latency_of(c, g, l) * (double)(g->near[l] / below - 1) *
                   ((double)g->size / (double)g->near[l]);
    }
    return slowest + latency;
}

/* Returns the seconds of an exchange in which every member sends `bytes` to each other one. */
static double exchange(const struct hd_cluster *c, const struct hd_link_group *g, double bytes)
{
    double slowest = 0;

    for (int l = 0; l <= g->top; l++) {
        const double s = bytes * (double)(g->near[l] - near_below(g, l)) / exchange_rate(c, g, l);

        slowest = s > slowest ? s : slowest;
    }
    return slowest + latency_of(c, g, g->top);
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
        return bytes / ring_rate(c, g, g->top) + latency_of(c, g, g->top);
    default: /* a barrier moves no bytes */
        return latency_of(c, g, g->top);
    }
}

/* Sets *ret_seconds to the measured time of a collective. A group whose size was not measured gets
 * the time of the nearest measured size, times the ratio of the two by formula. False: this kind of
 * collective was not measured. */
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

double hd_links_passed_bytes(enum hd_comm_kind kind, int32_t members, double bytes)
{
    const double P = members;

    switch (kind) {
    case HD_COMM_ALL_GATHER:
    case HD_COMM_REDUCE_SCATTER:
    case HD_COMM_ALL_TO_ALL:
        return bytes * (P - 1);
    case HD_COMM_ALL_REDUCE:
        return 2 * bytes * (P - 1) / P;
    default:
        return bytes;
    }
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

double hd_links_transfer(const struct hd_cluster *c, const struct hd_link_group *stages,
                         int64_t from, int64_t to, double bytes)
{
    const struct hd_link_group none = {0};
    const int level = hd_cluster_level_of(c, from, to);
    int64_t members;
    double seconds;

    if (c->rates.calibration && is_within_node(c, level) &&
        hd_calibration_collective(c->rates.calibration, HD_COMM_SEND, 2, bytes, &seconds, &members))
        return seconds;
    stages = stages ? stages : &none;
    return latency_of(c, stages, level) + bytes / ring_rate(c, stages, level);
}
