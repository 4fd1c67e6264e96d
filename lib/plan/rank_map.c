#include "plan/rank_map.h"

#include <stdlib.h>
#include <string.h>

enum {
    RANK_MAP_EXACT = 8, /* devices of a node up to which all maps are searched */
    /* ranks evaluated, over all cost computations, when a node has more devices */
    RANK_MAP_LOOKS_MAX = 200000
};

/* Relative difference below which two costs are equal: sums of doubles in another order differ
 * so. */
static const double equal_share = 1e-9;

/* ---- one node ---- */

/* The inputs of the choice of devices on one node: which ranks send to which, and how many
 * bytes. */
struct map_question {
    const struct hd_traffic *traffic;
    const struct hd_node_links *links;
    struct hd_link_window windows[HD_TRAFFIC_MAX];
    int32_t sizes[HD_TRAFFIC_MAX]; /* group size of each kind of traffic, over all nodes */
    int32_t ranks, device_count;
    /* true: ranks may be rotated so that any is first, since all groups are whole rings or
     * exchanges */
    bool turns;
    int32_t devices[HD_NODE_LINKS_MAX]; /* [device_count] devices that the node offers */
};

struct device_map {
    double seconds;
    int32_t devices[HD_NODE_LINKS_MAX]; /* [ranks] device of each rank */
};

static void ask(const struct hd_mesh *mesh, const struct hd_traffic *traffic,
                const struct hd_rank_node *node, int32_t first, struct map_question *ret_question)
{
    const struct hd_mesh_sizes *s = &mesh->sizes;
    struct map_question *q = ret_question;

    memset(q, 0, sizeof *q); /* clears padding: memcmp compares whole structs */
    q->traffic = traffic;
    q->links = node->links;
    q->ranks = node->ranks;
    q->device_count = node->device_count;
    /* pipeline stages form no ring; ep blocks, and dp rings within cp, rotate only as a whole */
    q->turns = s->pp == 1 && (s->ep == 1 || s->ep == s->dp * s->cp) && (s->dp == 1 || s->cp == 1) &&
               mesh->world == node->ranks && node->ranks == node->device_count;
    memcpy(q->devices, node->devices, (size_t)node->device_count * sizeof q->devices[0]);
    for (int i = 0; i < traffic->count; i++) {
        const enum hd_group_name name = traffic->items[i].group;

        q->sizes[i] = hd_mesh_find_group(mesh, name, first).size;
        hd_links_window(mesh, name, first, node->ranks, &q->windows[i]);
    }
}

static bool is_ring(enum hd_comm_kind kind)
{
    return kind != HD_COMM_ALL_TO_ALL && kind != HD_COMM_ALL_TO_ALL_V;
}

static bool is_exchange(enum hd_comm_kind kind, bool native)
{
    return !is_ring(kind) ||
           (!native && (kind == HD_COMM_ALL_REDUCE || kind == HD_COMM_REDUCE_SCATTER));
}

/* Returns the seconds of one kind of traffic (q's item i) among the node's first `assigned` ranks;
 * never falls when ranks are added. */
static double cost_item(const struct map_question *q, int i, const int32_t *devices,
                        int32_t assigned)
{
    /* one level, the node; its rate is replaced by that of the group */
    static const struct hd_cluster node = {.level_count = 1, .levels = {{.bytes_per_s = 1}}};
    const struct hd_traffic_item *item = &q->traffic->items[i];
    const struct hd_link_window *w = &q->windows[i];
    struct hd_link_group g = {.size = q->sizes[i], .near = {w->near}};

    if (w->near < 2)
        return 0;
    if (is_exchange(item->kind, q->traffic->native))
        hd_links_exchange_rate(q->links, w, devices, assigned, &g);
    if (is_ring(item->kind))
        hd_links_ring_rate(q->links, w, devices, assigned, &g);
    return item->times *
           hd_links_collective(&node, &g, item->kind, item->bytes, q->traffic->native);
}

static double cost(const struct map_question *q, const int32_t *devices, int32_t assigned)
{
    double seconds = 0;

    for (int i = 0; i < q->traffic->count; i++)
        seconds += cost_item(q, i, devices, assigned);
    return seconds;
}

static bool is_less(double seconds, double than)
{
    return seconds < than * (1 - equal_share);
}

static void take_first(const struct map_question *q, struct device_map *a)
{
    memcpy(a->devices, q->devices, (size_t)q->ranks * sizeof a->devices[0]);
    a->seconds = cost(q, a->devices, q->ranks);
}

/* ---- all maps ---- */

struct map_search {
    const struct map_question *q;
    struct device_map *best;
    bool alike[RANK_MAP_EXACT][RANK_MAP_EXACT];
    bool used[RANK_MAP_EXACT];
    int32_t devices[RANK_MAP_EXACT];
};

/* Returns whether an unused device with a lower index has the same links as this one, so that only
 * that one need be tried. */
static bool stands_for(const struct map_search *d, int32_t device)
{
    for (int32_t before = 0; before < device; before++)
        if (!d->used[before] && d->alike[before][device])
            return true;
    return false;
}

/* Tries all devices for `rank` and the ranks after it. seconds: cost of the ranks before it, less
 * than the best. */
static void search_from(struct map_search *d, int32_t rank, double seconds)
{
    if (rank == d->q->ranks) {
        d->best->seconds = seconds;
        memcpy(d->best->devices, d->devices, (size_t)rank * sizeof d->devices[0]);
        return;
    }
    for (int32_t i = 0; i < d->q->device_count; i++) {
        if (d->used[i] || stands_for(d, i) || (rank == 0 && i > 0 && d->q->turns))
            continue;
        d->devices[rank] = d->q->devices[i];
        seconds = cost(d->q, d->devices, rank + 1);
        if (!is_less(seconds, d->best->seconds))
            continue;
        d->used[i] = true;
        search_from(d, rank + 1, seconds);
        d->used[i] = false;
    }
}

/* ---- exchanges of two devices ---- */

/* Assigns to each rank the unused device with the fastest link to the device of the rank before it,
 * so that neighbours in rank are near. */
static void take_nearest(const struct map_question *q, int32_t start, struct device_map *a)
{
    bool used[HD_NODE_LINKS_MAX] = {false};

    for (int32_t rank = 0; rank < q->ranks; rank++) {
        int32_t best = start;
        double most = -1;

        for (int32_t i = 0; rank > 0 && i < q->device_count; i++) {
            const double rate =
                used[i] ? -1 : hd_node_links_rate(q->links, a->devices[rank - 1], q->devices[i]);

            if (rate > most) {
                most = rate;
                best = i;
            }
        }
        used[best] = true;
        a->devices[rank] = q->devices[best];
    }
    a->seconds = cost(q, a->devices, q->ranks);
}

/* Returns the rank to which the map assigns the device; -1: none. */
static int32_t holder(const struct map_question *q, const struct device_map *a, int32_t device)
{
    for (int32_t rank = 0; rank < q->ranks; rank++)
        if (a->devices[rank] == device)
            return rank;
    return -1;
}

/* Assigns this device to a rank, and the rank's old device to the rank that had this one. False:
 * the step would not become faster, so the map is unchanged. */
static bool exchange_two(const struct map_question *q, struct device_map *a, int32_t rank,
                         int32_t device)
{
    const int32_t before = a->devices[rank], other = holder(q, a, device);
    double seconds;

    if (before == device)
        return false;
    a->devices[rank] = device;
    if (other >= 0)
        a->devices[other] = before;
    seconds = cost(q, a->devices, q->ranks);
    if (is_less(seconds, a->seconds)) {
        a->seconds = seconds;
        return true;
    }
    a->devices[rank] = before;
    if (other >= 0)
        a->devices[other] = device;
    return false;
}

static void improve(const struct map_question *q, struct device_map *a, int64_t *looks)
{
    bool better = true;

    while (better) {
        better = false;
        for (int32_t rank = 0; rank < q->ranks; rank++)
            for (int32_t i = 0; i<q->device_count && * looks> 0; i++) {
                better |= exchange_two(q, a, rank, q->devices[i]);
                *looks -= q->ranks;
            }
        better &= *looks > 0;
    }
}

static void search_near(const struct map_question *q, struct device_map *best)
{
    int64_t looks = RANK_MAP_LOOKS_MAX;

    improve(q, best, &looks);
    for (int32_t k = 0; k < 2; k++) {
        struct device_map other = {0};

        take_nearest(q, k * (q->device_count - 1), &other);
        improve(q, &other, &looks);
        if (is_less(other.seconds, best->seconds))
            *best = other;
    }
}

/* Searches all assignments of devices to ranks for the fastest one. The map that exchanges of two
 * devices find is nearly always optimal, so most branches end early; the search then takes the
 * first map that is as fast. */
static void search_all(const struct map_question *q, struct device_map *best)
{
    struct map_search d = {.q = q, .best = best};

    search_near(q, best);
    best->seconds *= 1 + 2 * equal_share;
    for (int32_t a = 0; a < q->device_count; a++)
        for (int32_t b = 0; b < a; b++)
            d.alike[a][b] = d.alike[b][a] =
                hd_node_links_alike(q->links, q->devices[a], q->devices[b]);
    search_from(&d, 0, 0);
}

static void answer_question(const struct map_question *q, struct device_map *ret_answer)
{
    take_first(q, ret_answer);
    if (ret_answer->seconds <= 0)
        return; /* no group has two members on this node */
    if (q->device_count <= RANK_MAP_EXACT)
        search_all(q, ret_answer);
    else
        search_near(q, ret_answer);
}

/* ---- all nodes ---- */

static enum hd_status mesh_of(const struct hd_layout_sizes *s, struct hd_mesh *ret_mesh)
{
    const struct hd_mesh_sizes sizes = {.pp = (int32_t)s->pp,
                                        .dp = (int32_t)s->dp,
                                        .cp = (int32_t)s->cp,
                                        .tp = (int32_t)s->tp,
                                        .ep = (int32_t)s->ep};

    return hd_mesh_init(ret_mesh, &sizes);
}

static bool needs_no_search(const struct hd_rank_node *node)
{
    return !node->links || hd_node_links_are_even(node->links);
}

enum hd_status hd_rank_map_choose(const struct hd_layout_sizes *sizes,
                                  const struct hd_traffic *traffic,
                                  const struct hd_rank_node *nodes, size_t node_count,
                                  int32_t *ret_devices)
{
    /* [2] inputs of this node's choice and of the node before */
    struct map_question *asked = calloc(2, sizeof *asked);
    struct hd_mesh mesh;
    struct device_map answer = {0};
    int32_t first = 0;
    enum hd_status st =
        asked ? mesh_of(sizes, &mesh) : hd_err(HD_NO_MEMORY, "no memory to choose devices");

    for (size_t n = 0; !st && n < node_count; n++) {
        const struct hd_rank_node *node = &nodes[n];

        if (needs_no_search(node)) {
            memcpy(ret_devices + first, node->devices, (size_t)node->ranks * sizeof *ret_devices);
        } else {
            ask(&mesh, traffic, node, first, &asked[0]);
            if (memcmp(&asked[0], &asked[1], sizeof asked[0]) != 0)
                answer_question(&asked[0], &answer);
            asked[1] = asked[0];
            memcpy(ret_devices + first, answer.devices, (size_t)node->ranks * sizeof *ret_devices);
        }
        first += node->ranks;
    }
    free(asked);
    return st;
}

enum hd_status hd_rank_map_of_cluster(const struct hd_cluster *c,
                                      const struct hd_layout_sizes *sizes,
                                      const struct hd_traffic *traffic, int32_t *ret_devices)
{
    const int64_t ranks = hd_layout_world(sizes), nodes = (ranks - 1) / c->devices_per_node + 1;
    struct hd_rank_node *list = calloc((size_t)nodes, sizeof *list);
    int32_t all[HD_NODE_LINKS_MAX];
    enum hd_status st;

    for (int32_t d = 0; d < HD_NODE_LINKS_MAX; d++)
        all[d] = d;
    for (int64_t n = 0; list && n < nodes; n++) {
        const int64_t left = ranks - n * c->devices_per_node;

        list[n] = (struct hd_rank_node){
            .links = c->links,
            .devices = all,
            .device_count = (int32_t)c->devices_per_node,
            .ranks = (int32_t)(left < c->devices_per_node ? left : c->devices_per_node)};
    }
    st = list ? hd_rank_map_choose(sizes, traffic, list, (size_t)nodes, ret_devices)
              : hd_err(HD_NO_MEMORY, "no memory to choose devices");
    free(list);
    return st;
}

enum hd_status hd_rank_map_of_job(const struct hd_cluster *cluster, const struct hd_job *job,
                                  int32_t *ret_devices)
{
    struct hd_plan_request model;
    struct hd_traffic traffic;

    hd_plan_request_of(job, &model);
    hd_traffic_of(&job->layout, &model, &traffic);
    traffic.native = job->native_reduction;
    return hd_rank_map_of_cluster(cluster, &job->layout, &traffic, ret_devices);
}

double hd_rank_map_seconds(const struct hd_node_links *links, const struct hd_mesh *mesh,
                           const struct hd_traffic *traffic, const int32_t *devices)
{
    const struct hd_rank_node node = {
        .links = links, .devices = devices, .device_count = mesh->world, .ranks = mesh->world};
    struct map_question q;

    ask(mesh, traffic, &node, 0, &q);
    return cost(&q, devices, q.ranks);
}
