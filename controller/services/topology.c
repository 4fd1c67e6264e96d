/* topology: link inventories of nodes, stored for GetTopology and converted for the core's
 * placement. In memory alone: a node sends its inventory with each Hello. */
#include <search.h> /* tsearch: a balanced tree */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/services/internal.h"
#include "spec/spec.h"

/* The link inventory of one node. */
struct inventory {
    char uuid[HD_CTL_NAME_BYTES_MAX + 1];
    void *bytes; /* packed NodeInventory message */
    size_t count;
};

/* latencies of copies between GPUs, round figures, used until a node is measured */
static const double direct_latency_s = 2e-6, pcie_latency_s = 5e-6, socket_latency_s = 9e-6;

static int compare_inventories(const void *a, const void *b)
{
    return strcmp(((const struct inventory *)a)->uuid, ((const struct inventory *)b)->uuid);
}

static struct inventory *find_inventory(const struct controller *c, const char *uuid)
{
    struct inventory key;
    void *found;

    (void)snprintf(key.uuid, sizeof key.uuid, "%s", uuid);
    found = tfind(&key, &c->inventories, compare_inventories);
    return found ? *(struct inventory **)found : NULL;
}

static struct inventory *add_links_text(struct controller *c, const char *uuid)
{
    struct inventory *kept = calloc(1, sizeof *kept);

    if (!kept)
        return NULL;
    (void)snprintf(kept->uuid, sizeof kept->uuid, "%s", uuid);
    if (tsearch(kept, &c->inventories, compare_inventories))
        return kept;
    free(kept);
    return NULL;
}

static void free_inventory(void *inventory)
{
    free(((struct inventory *)inventory)->bytes);
    free(inventory);
}

void topology_keep(struct controller *c, const char *uuid,
                   const Heddle__V1__NodeInventory *reported)
{
    const size_t count = reported ? heddle__v1__node_inventory__get_packed_size(reported) : 0;
    struct inventory *kept = find_inventory(c, uuid);
    void *bytes = reported ? malloc(count + 1) : NULL;

    if (!kept && bytes)
        kept = add_links_text(c, uuid);
    if (!kept) { /* an older daemon, or no memory: GetTopology shows the node without links */
        free(bytes);
        return;
    }
    free(kept->bytes);
    kept->bytes = bytes;
    kept->count = bytes ? heddle__v1__node_inventory__pack(reported, bytes) : 0;
}

/* ---- the cluster file -------------------------------------------------------------------------*/

static enum hd_status check_tree(const char *path, const struct hd_node_tree *tree)
{
    for (int g = 0; g < tree->group_count; g++)
        if (!tree->groups[g].names)
            return hd_err(
                HD_INVALID,
                "--cluster %s: nodes: a number tells no switch of a node; give names, such "
                "as n[1-16]",
                path);
    if (!tree->tier_count)
        return hd_err(HD_INVALID,
                      "--cluster %s: it lists no tiers, so it says nothing about switches; give "
                      "tiers: [{name, nodes, bandwidth}]",
                      path);
    return HD_OK;
}

enum hd_status topology_read_file(struct controller *c)
{
    struct hd_cluster *clusters;
    int count;
    enum hd_status st;

    if (!c->options.cluster_file)
        return HD_OK;
    hd_arena_init(&c->tree_arena, 0);
    clusters = hd_arena_array(&c->tree_arena, HD_CLUSTER_GROUPS_MAX, sizeof *clusters);
    c->tree = hd_arena_alloc(&c->tree_arena, sizeof *c->tree);
    st = clusters && c->tree ? hd_spec_read_cluster(c->options.cluster_file, &c->tree_arena,
                                                    clusters, &count, c->tree)
                             : hd_err(HD_NO_MEMORY, "no memory for a cluster");
    return st ? st : check_tree(c->options.cluster_file, c->tree);
}

void topology_free_all(struct controller *c)
{
    if (c->options.cluster_file)
        hd_arena_done(&c->tree_arena);
    tdestroy(c->inventories, free_inventory);
    c->inventories = NULL;
}

/* ---- for the core -----------------------------------------------------------------------------*/

static bool is_device_index(int32_t device_index, size_t devices)
{
    return device_index >= 0 && (size_t)device_index < devices;
}

/* Reads the links of a node's inventory. Returns false unless each pair of devices has exactly one
 * link, with a rate. */
static bool take_links(const Heddle__V1__NodeInventory *reported, size_t devices,
                       struct hd_node_links *links)
{
    uint64_t seen[HD_NODE_LINKS_MAX] = {0};

    for (size_t i = 0; i < reported->n_links; i++) {
        const Heddle__V1__DeviceLink *l = reported->links[i];

        if (!is_device_index(l->a, devices) || !is_device_index(l->b, devices) || l->a == l->b ||
            (seen[l->a] >> l->b & 1) || !(l->bytes_per_s > 0))
            return false;
        seen[l->a] |= 1ull << l->b;
        seen[l->b] |= 1ull << l->a;
        hd_node_links_set(links, l->a, l->b, l->bytes_per_s,
                          l->direct                     ? direct_latency_s
                          : strcmp(l->kind, "sys") == 0 ? socket_latency_s
                                                        : pcie_latency_s,
                          l->direct);
    }
    return reported->n_links == devices * (devices - 1) / 2;
}

static bool take_shared(const Heddle__V1__NodeInventory *reported, size_t devices,
                        struct hd_node_links *links)
{
    for (size_t i = 0; i < reported->n_shared; i++) {
        const Heddle__V1__SharedLink *s = reported->shared[i];
        uint64_t set = 0;

        for (size_t d = 0; d < s->n_devices; d++) {
            if (!is_device_index(s->devices[d], devices))
                return false;
            set |= 1ull << s->devices[d];
        }
        if (!(s->bytes_per_s > 0) || hd_node_links_share(links, set, s->bytes_per_s))
            return false;
    }
    return true;
}

bool topology_links(const Heddle__V1__NodeInventory *reported, size_t devices,
                    struct hd_node_links *ret_links)
{
    memset(ret_links, 0, sizeof *ret_links);
    if (!reported || devices < 2 || devices > HD_NODE_LINKS_MAX)
        return false;
    ret_links->devices = (int32_t)devices;
    return take_links(reported, devices, ret_links) && take_shared(reported, devices, ret_links);
}

/* ---- GetTopology ------------------------------------------------------------------------------*/

static void add_tiers(struct hd_arena *arena, const struct hd_node_tree *tree,
                      Heddle__V1__GetTopologyResponse *response)
{
    response->tiers = hd_arena_array(arena, HD_CLUSTER_TIERS_MAX, sizeof *response->tiers);
    for (int t = 0; response->tiers && t < tree->tier_count; t++) {
        Heddle__V1__NetworkTier *tier = hd_arena_alloc(arena, sizeof *tier);

        if (!tier)
            return;
        heddle__v1__network_tier__init(tier);
        tier->name = convert_text(tree->tiers[t].name);
        tier->nodes = tree->tier_nodes[t];
        tier->bytes_per_s = tree->tiers[t].bytes_per_s;
        tier->latency_s = tree->tiers[t].latency_s;
        response->tiers[response->n_tiers++] = tier;
    }
}

static void add_node(struct hd_arena *arena, struct controller *c, const struct veil *veil,
                     size_t index, Heddle__V1__GetTopologyResponse *response)
{
    const struct hd_node_tree *tree = c->tree;
    const Heddle__V1__NodeStatus *status = convert_node(arena, c, veil, index);
    Heddle__V1__NodeTopology *node = hd_arena_alloc(arena, sizeof *node);
    const struct inventory *kept;
    struct hd_node_view view;

    if (!node || !status)
        return;
    hd_core_node_at(c->core, index, &view);
    heddle__v1__node_topology__init(node);
    node->node = status->name;
    node->devices = status->devices;
    node->n_devices = status->n_devices;
    node->switches = hd_arena_array(arena, HD_CLUSTER_TIERS_MAX, sizeof *node->switches);
    for (int t = 0; node->switches && tree && view.position >= 0 && t < tree->tier_count; t++)
        node->switches[node->n_switches++] = hd_node_tree_switch(tree, t, view.position);
    node->probe = probe_show(c, veil, arena, index);
    node->silent_ms = hd_core_node_silent_ms(c->core, index, controller_now());
    kept = find_inventory(c, view.record->uuid);
    if (kept && kept->bytes)
        node->inventory = heddle__v1__node_inventory__unpack(NULL, kept->count, kept->bytes);
    response->nodes[response->n_nodes++] = node;
}

static void get_topology(struct controller *c, struct hd_rpc_call *call, const char *name)
{
    Heddle__V1__GetTopologyResponse response = HEDDLE__V1__GET_TOPOLOGY_RESPONSE__INIT;
    const size_t count = hd_core_node_count(c->core);
    const struct veil veil = guard_veil(c, call);
    struct hd_arena arena;
    size_t index;

    hd_arena_init(&arena, 0);
    response.time_unix_ms = hd_clock_wall_ms();
    response.cluster_file = convert_text(c->options.cluster_file ? c->options.cluster_file : "");
    response.nodes = hd_arena_array(&arena, count + 1, sizeof *response.nodes);
    if (c->tree)
        add_tiers(&arena, c->tree, &response);
    if (*name && hd_core_node_find(c->core, name, &index))
        add_node(&arena, c, &veil, index, &response);
    for (size_t i = 0; response.nodes && !*name && i < count; i++)
        add_node(&arena, c, &veil, i, &response);
    if (hd_arena_failed(&arena))
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
    else
        (void)hd_rpc_call_reply(call, &response.base);
    for (size_t i = 0; i < response.n_nodes; i++)
        if (response.nodes[i]->inventory)
            heddle__v1__node_inventory__free_unpacked(response.nodes[i]->inventory, NULL);
    hd_arena_done(&arena);
}

void control_get_topology(struct hd_rpc_call *call, const ProtobufCMessage *request)
{
    const Heddle__V1__GetTopologyRequest *m = (const void *)request;
    struct controller *c = hd_rpc_call_user(call);
    size_t index;

    if (*m->node && !hd_core_node_find(c->core, m->node, &index))
        hd_rpc_call_fail(call,
                         hd_err(HD_NOT_FOUND, "there is no node '%s'; see heddle nodes", m->node));
    else
        get_topology(c, call, m->node);
}
