/* cluster: reads a cluster file (docs/planning.md) into clusters for the planner (plan/cluster.h),
 * and into the tree of switches by names of nodes (plan/node_tree.h). Messages are "FILE:LINE: key:
 * what is wrong; what to do".
 *
 *     cluster.c           groups, devices, levels, tiers
 *     cluster_links.c     links within a node whose pairs of devices differ, and its adapters
 *     cluster_values.c    words, numbers with units, links
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cluster_internal.h"

/* ---- nodes ---- */

static enum hd_status read_nodes(const struct cluster_reader *r, const struct yaml_node *group,
                                 struct hd_cluster *c)
{
    const struct yaml_node *node = hd_yaml_find(group, "nodes");
    char quoted[SPEC_QUOTE_MAX];

    if (!node)
        return cluster_fail(
            r, group, "nodes",
            "is missing; give the number of nodes, or their names, such as n[1-16]");
    if (node->kind != YAML_KIND_SCALAR)
        return cluster_fail(r, node, "nodes",
                            "expected a number, or names in one text, such as n[1-16,20]; list "
                            "nodes of other names as groups");
    (void)snprintf(c->name, sizeof c->name, "%s", cluster_text(node));
    if (!hd_text_to_int64(c->name, 1, HD_CLUSTER_NODES_MAX, &c->nodes)) {
        c->name[0] = '\0';
        return HD_OK;
    }
    if (hd_node_names_count(cluster_text(node), &c->nodes))
        return HD_OK;
    return cluster_fail(
        r, node, "nodes",
        "%s is not possible; give a number from 1 to %d, or names such as n[1-16], each once",
        spec_quote(cluster_text(node), quoted), HD_CLUSTER_NODES_MAX);
}

/* ---- devices ---- */

/* Reads a compute capability: 8.9, or 89 as compilers spell it. */
static enum hd_status read_capability(const struct cluster_reader *r, const struct yaml_node *node,
                                      int64_t *ret_capability)
{
    const char *text = cluster_text(node), *dot = strchr(text, '.');
    char digits[8];

    if (!dot)
        return cluster_read_count(r, node, "device.capability", 200, ret_capability);
    (void)snprintf(digits, sizeof digits, "%.*s%s", (int)(dot - text), text, dot + 1);
    if (strlen(dot) == 2 && !hd_text_to_int64(digits, 10, 200, ret_capability))
        return HD_OK;
    return cluster_fail(r, node, "device.capability",
                        "is no compute capability; give one such as 8.9 or 9.0");
}

static enum hd_status read_own_device(const struct cluster_reader *r, const struct yaml_node *node,
                                      struct hd_cluster *c)
{
    static const char *const keys[] = {"memory", "hbm_bandwidth", "flops", "multiprocessors",
                                       "capability"};
    static const char *const rates[] = {"bf16", "fp32", "fp8"};
    const struct yaml_node *memory = hd_yaml_find(node, "memory"),
                           *hbm = hd_yaml_find(node, "hbm_bandwidth"),
                           *flops = hd_yaml_find(node, "flops"),
                           *sm = hd_yaml_find(node, "multiprocessors"),
                           *cc = hd_yaml_find(node, "capability");
    const struct yaml_node *bf16 = flops ? hd_yaml_find(flops, "bf16") : NULL,
                           *fp32 = flops ? hd_yaml_find(flops, "fp32") : NULL,
                           *fp8 = flops ? hd_yaml_find(flops, "fp8") : NULL;
    int64_t bytes = 0, processors = 108, capability = 80;
    double bandwidth = 0, half = 0, single = 0, codes = 0;
    enum hd_status st = cluster_check_keys(r, node, "device", keys, sizeof keys / sizeof keys[0]);

    if (!st && flops)
        st = cluster_check_keys(r, flops, "device.flops", rates, 3);
    if (!st && (!memory || !hbm || !bf16))
        st = cluster_fail(r, node, "device",
                          "a device of its own needs memory, hbm_bandwidth and flops: {bf16: ..}");
    if (!st)
        st = cluster_read_memory(r, memory, "device.memory", &bytes);
    if (!st)
        st = cluster_read_bandwidth(r, hbm, "device.hbm_bandwidth", &bandwidth);
    if (!st)
        st = cluster_read_flops(r, bf16, "device.flops.bf16", &half);
    single = half / 16;
    if (!st && fp32)
        st = cluster_read_flops(r, fp32, "device.flops.fp32", &single);
    if (!st && fp8)
        st = cluster_read_flops(r, fp8, "device.flops.fp8", &codes);
    if (!st && sm)
        st = cluster_read_count(r, sm, "device.multiprocessors", 4096, &processors);
    if (!st && cc)
        st = read_capability(r, cc, &capability);
    if (st)
        return st;
    (void)snprintf(c->device, sizeof c->device, "own");
    hd_traits_of_gpu((int)processors, (int)capability, bytes, true, &c->traits);
    hd_rates_of_peaks(half, single, bandwidth, (int)processors, (int)capability, &c->rates);
    if (codes > 0)
        c->rates.fp8_flops = c->rates.half_flops * codes / half;
    return HD_OK;
}

static enum hd_status refuse_kind(const struct cluster_reader *r, const struct yaml_node *node)
{
    struct hd_text words = {0};
    const char *nearest = hd_cluster_nearest_kind(cluster_text(node));
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st;

    hd_cluster_add_kinds(&words);
    st = hd_err(HD_INVALID,
                "%s:%d: device: %s is no known kind%s%s%s use one of %s, or {memory: .., "
                "hbm_bandwidth: .., flops: {bf16: ..}}",
                r->name, node->line, spec_quote(cluster_text(node), quoted),
                nearest ? "; did you mean " : ";", nearest ? nearest : "", nearest ? "?" : "",
                words.failed ? "?" : words.data);
    hd_text_free(&words);
    return st;
}

/* Reads the kind of device of a group of nodes. *ret_kind: NULL for a device whose rates the file
 * gives. */
static enum hd_status read_device(const struct cluster_reader *r, const struct yaml_node *group,
                                  struct hd_cluster *c, const struct hd_gpu_kind **ret_kind)
{
    const struct yaml_node *node = cluster_find(r, group, "device");

    *ret_kind = NULL;
    if (!node)
        return cluster_fail(r, group, "device", "is missing; give a kind, such as h100");
    if (node->kind == YAML_KIND_MAP)
        return read_own_device(r, node, c);
    *ret_kind = hd_gpu_kind_find(cluster_text(node));
    if (!*ret_kind)
        return refuse_kind(r, node);
    (void)snprintf(c->device, sizeof c->device, "%s", (*ret_kind)->word);
    hd_gpu_kind_traits(*ret_kind, &c->traits);
    hd_rates_of_kind(*ret_kind, false, &c->rates);
    return HD_OK;
}

/* ---- links ---- */

/* Reads the rates of a link from a key of the group; if the key is absent, takes those that
 * machines with this kind of device usually have. */
static enum hd_status read_level(const struct cluster_reader *r, const struct yaml_node *group,
                                 const char *key, struct hd_cluster_level *level)
{
    static const char *const keys[] = {"bandwidth", "latency"};
    const struct yaml_node *node = cluster_find(r, group, key);
    enum hd_status st;

    if (!node && level->bytes_per_s > 0)
        return HD_OK;
    if (!node)
        return cluster_fail(r, group, key, "is missing; a device of its own has no usual links");
    st = cluster_check_keys(r, node, key, keys, 2);
    return st ? st : cluster_read_link(r, node, key, level);
}

static enum hd_status read_islands(const struct cluster_reader *r, const struct yaml_node *group,
                                   const struct hd_cluster *c, int64_t *ret_devices,
                                   struct hd_cluster_level *level)
{
    static const char *const keys[] = {"devices", "bandwidth", "latency"};
    const struct yaml_node *node = cluster_find(r, group, "islands"), *devices;
    enum hd_status st;

    *ret_devices = 0;
    if (!node)
        return HD_OK;
    st = cluster_check_keys(r, node, "islands", keys, 3);
    devices = hd_yaml_find(node, "devices");
    if (!st && !devices)
        st = cluster_fail(r, node, "islands", "needs devices: how many an island has");
    if (!st)
        st = cluster_read_count(r, devices, "islands.devices", HD_CLUSTER_NODE_DEVICES_MAX,
                                ret_devices);
    if (!st && *ret_devices == 1)
        st = cluster_fail(r, devices, "islands.devices",
                          "an island of 1 device joins none of the %" PRId64
                          " of a node; give more, or leave islands out",
                          c->devices_per_node);
    if (!st && c->devices_per_node % *ret_devices)
        st = cluster_fail(r, devices, "islands.devices",
                          "does not divide devices_per_node = %" PRId64, c->devices_per_node);
    (void)snprintf(level->name, sizeof level->name, "island");
    return st ? st : cluster_read_link(r, node, "islands", level);
}

static enum hd_status read_tier(struct cluster_reader *r, const struct yaml_node *node)
{
    static const char *const keys[] = {"name", "nodes", "bandwidth", "latency"};
    struct hd_cluster_level *level = &r->tiers[r->tier_count];
    int64_t *nodes = &r->tier_nodes[r->tier_count];
    const struct yaml_node *name, *count;
    enum hd_status st = cluster_check_keys(r, node, "tiers", keys, 4);

    if (st)
        return st;
    name = hd_yaml_find(node, "name");
    count = hd_yaml_find(node, "nodes");
    if (!name || !count)
        return cluster_fail(r, node, "tiers",
                            "each needs name, nodes (of one switch) and bandwidth");
    (void)snprintf(level->name, sizeof level->name, "%s", cluster_text(name));
    if (!*level->name)
        return cluster_fail(r, name, "tiers.name", "is empty; give a name, such as leaf");
    for (int i = 0; i < r->tier_count; i++)
        if (strcmp(r->tiers[i].name, level->name) == 0)
            return cluster_fail(r, name, "tiers.name",
                                "is the name of an earlier tier as well; give each its own");
    st = cluster_read_count(r, count, "tiers.nodes", HD_CLUSTER_NODES_MAX, nodes);
    if (!st && r->tier_count > 0 && (*nodes <= nodes[-1] || *nodes % nodes[-1]))
        st = cluster_fail(
            r, count, "tiers.nodes",
            "is no larger multiple of the tier before; list tiers from the nodes upwards");
    r->tier_count++;
    return st ? st : cluster_read_link(r, node, "tiers", level);
}

static enum hd_status read_tiers(struct cluster_reader *r)
{
    const struct yaml_node *list = hd_yaml_find(r->root, "tiers");
    enum hd_status st = HD_OK;

    if (!list)
        return HD_OK;
    if (list->kind != YAML_KIND_LIST)
        return cluster_fail(r, list, "tiers",
                            "expected a list of {name, nodes, bandwidth, latency}");
    for (const struct yaml_node *n = list->first; !st && n; n = n->next)
        st = r->tier_count == HD_CLUSTER_TIERS_MAX
                 ? cluster_fail(r, n, "tiers", "at most %d are possible", HD_CLUSTER_TIERS_MAX)
                 : read_tier(r, n);
    return st;
}

/* ---- groups ---- */

/* Adds the network levels above the node: the tiers whose switches have more than one node, up to
 * all nodes. */
static void add_tiers(const struct cluster_reader *r, struct hd_cluster *c)
{
    const int64_t all = hd_cluster_devices(c);
    const struct hd_cluster_level far = c->levels[c->level_count - 1];

    if (c->nodes == 1 || !r->tier_count)
        return;
    c->level_count--; /* removes the level of all nodes; it is added again above the tiers */
    for (int i = 0; i < r->tier_count && r->tier_nodes[i] < c->nodes; i++) {
        c->levels[c->level_count] = r->tiers[i];
        c->levels[c->level_count++].devices = r->tier_nodes[i] * c->devices_per_node;
    }
    c->levels[c->level_count] = far;
    for (int i = 0; i < r->tier_count; i++) /* one switch of this tier connects all nodes */
        if (r->tier_nodes[i] >= c->nodes) {
            c->levels[c->level_count] = r->tiers[i];
            break;
        }
    c->levels[c->level_count++].devices = all;
}

/* Reads the key `host`: memory of the node's host, of which each device gets a share for an
 * offloaded optimizer. */
static enum hd_status read_host(struct cluster_reader *r, const struct yaml_node *group,
                                struct hd_cluster *c)
{
    static const char *const keys[] = {"memory", "bandwidth", "memory_bandwidth"};
    const struct yaml_node *host = cluster_find(r, group, "host"), *memory, *link, *rate;
    enum hd_status st;

    if (!host)
        return HD_OK;
    if (host->kind != YAML_KIND_MAP)
        return cluster_fail(r, host, "host",
                            "expected {memory, bandwidth, memory_bandwidth}, of one device");
    memory = hd_yaml_find(host, "memory");
    link = hd_yaml_find(host, "bandwidth");
    rate = hd_yaml_find(host, "memory_bandwidth");
    st = cluster_check_keys(r, host, "host", keys, sizeof keys / sizeof keys[0]);
    if (!st && memory)
        st = cluster_read_memory(r, memory, "host.memory", &c->host_memory_bytes);
    if (!st && link)
        st = cluster_read_bandwidth(r, link, "host.bandwidth", &c->rates.host_link_bytes_per_s);
    if (!st && rate)
        st = cluster_read_bandwidth(r, rate, "host.memory_bandwidth", &c->rates.host_bytes_per_s);
    return st;
}

static enum hd_status read_node_group(struct cluster_reader *r, const struct yaml_node *group,
                                      struct hd_cluster *c)
{
    const struct yaml_node *devices = cluster_find(r, group, "devices_per_node");
    struct hd_cluster_level island = {0}, node = {.name = "node"}, network = {.name = "network"};
    const struct hd_gpu_kind *kind = NULL;
    int64_t island_devices = 0;
    enum hd_status st;

    memset(c, 0, sizeof *c);
    st = read_nodes(r, group, c);
    if (!st && !devices)
        st = cluster_fail(r, group, "devices_per_node", "is missing; give a number, such as 8");
    if (!st)
        st = cluster_read_count(r, devices, "devices_per_node", HD_CLUSTER_NODE_DEVICES_MAX,
                                &c->devices_per_node);
    if (!st)
        st = read_device(r, group, c, &kind);
    if (st)
        return st;
    if (kind) {
        node = hd_cluster_usual_node(kind);
        network = hd_cluster_usual_network(kind);
    } else if (c->devices_per_node == 1) {
        node.bytes_per_s = 1; /* a node of one device sends nothing within the node */
    }
    if (c->nodes == 1 || r->tier_count)
        network.bytes_per_s = network.bytes_per_s > 0 ? network.bytes_per_s
                              : r->tier_count         ? r->tiers[r->tier_count - 1].bytes_per_s
                                                      : 1;
    st = read_host(r, group, c);
    if (!st)
        st = cluster_read_links(r, group, c, &node);
    if (!st)
        st = cluster_read_nics(r, group, c, &network);
    if (!st && !c->links)
        st = read_level(r, group, "intra_node", &node);
    if (!st)
        st = read_level(r, group, "inter_node", &network);
    if (!st)
        st = read_islands(r, group, c, &island_devices, &island);
    if (st)
        return st;
    hd_cluster_set_levels(c, island_devices, &island, &node, &network);
    add_tiers(r, c);
    return HD_OK;
}

/* Checks that no earlier group of the file has a node with one of this group's names. */
static enum hd_status check_names(const struct cluster_reader *r, const struct hd_node_tree *tree,
                                  int group, const char *names, const struct yaml_node *node)
{
    char name[HD_NODE_NAME_MAX], quoted[SPEC_QUOTE_MAX];

    for (int g = 0; g < group; g++)
        if (tree->groups[g].names && hd_node_names_meet(tree->groups[g].names, names, name))
            return cluster_fail(r, node, "nodes",
                                "%s is in group %d as well, counted from 0; a node is in one group",
                                spec_quote(name, quoted), g);
    return HD_OK;
}

/* Reads the names and positions of the groups' nodes; each group begins at a new switch. */
static enum hd_status read_tree(const struct cluster_reader *r, const struct hd_cluster *clusters,
                                int count, struct hd_node_tree *tree)
{
    const int64_t whole = r->tier_count ? r->tier_nodes[r->tier_count - 1] : 1;
    const struct yaml_node *list = hd_yaml_find(r->root, "groups"),
                           *group = list ? list->first : r->root;
    int64_t position = 0;

    *tree = (struct hd_node_tree){.tier_count = r->tier_count, .group_count = count};
    memcpy(tree->tiers, r->tiers, sizeof tree->tiers);
    memcpy(tree->tier_nodes, r->tier_nodes, sizeof tree->tier_nodes);
    for (int g = 0; g < count; g++, group = list ? group->next : NULL) {
        const char *names = cluster_text(hd_yaml_find(group, "nodes"));
        int64_t number;

        tree->groups[g].first = position;
        if (hd_text_to_int64(names, 1, HD_CLUSTER_NODES_MAX, &number)) {
            const enum hd_status st = check_names(r, tree, g, names, hd_yaml_find(group, "nodes"));

            if (st)
                return st;
            tree->groups[g].names = hd_arena_strdup(r->kept, names);
            if (!tree->groups[g].names)
                return hd_err(HD_NO_MEMORY, "no memory for names of nodes");
        }
        position += (clusters[g].nodes + whole - 1) / whole * whole;
    }
    return HD_OK;
}

static enum hd_status read_groups(struct cluster_reader *r, struct hd_cluster *clusters,
                                  int *ret_count)
{
    static const char *const keys[] = {"nodes",      "devices_per_node", "device", "intra_node",
                                       "inter_node", "islands",          "links",  "nics",
                                       "host",       "groups",           "tiers"};
    const size_t root_keys = sizeof keys / sizeof keys[0], group_keys = root_keys - 2;
    const struct yaml_node *list;
    enum hd_status st = cluster_check_keys(r, r->root, "cluster file", keys, root_keys);

    if (!st)
        st = read_tiers(r);
    list = st ? NULL : hd_yaml_find(r->root, "groups");
    if (st || !list) {
        *ret_count = 1;
        return st ? st : read_node_group(r, r->root, &clusters[0]);
    }
    if (list->kind != YAML_KIND_LIST || !list->first)
        return cluster_fail(r, list, "groups", "expected a list of {nodes, device, ..}");
    if (hd_yaml_find(r->root, "nodes"))
        return cluster_fail(
            r, hd_yaml_find(r->root, "nodes"), "nodes",
            "is given together with groups, which have nodes of their own; remove one of the two");
    *ret_count = 0;
    for (const struct yaml_node *n = list->first; !st && n; n = n->next) {
        if (*ret_count == HD_CLUSTER_GROUPS_MAX)
            return cluster_fail(r, n, "groups", "at most %d are possible", HD_CLUSTER_GROUPS_MAX);
        st = cluster_check_keys(r, n, "groups", keys, group_keys);
        if (!st)
            st = read_node_group(r, n, &clusters[(*ret_count)++]);
    }
    return st;
}

enum hd_status hd_spec_parse_cluster(const char *name, const void *bytes, size_t size_bytes,
                                     struct hd_arena *arena, struct hd_cluster *ret_clusters,
                                     int *ret_count, struct hd_node_tree *ret_tree)
{
    struct cluster_reader r = {.name = name, .kept = arena};
    struct yaml_node *root = NULL;
    struct hd_node_tree tree;
    enum hd_status st;

    hd_arena_init(&r.arena, 0);
    st = spec_cluster_parse(name, bytes, size_bytes, &r.arena, &root);
    r.root = root;
    if (!st)
        st = read_groups(&r, ret_clusters, ret_count);
    if (!st) /* needed even if the caller wants no tree: it detects a node that is in two groups */
        st = read_tree(&r, ret_clusters, *ret_count, ret_tree ? ret_tree : &tree);
    hd_arena_done(&r.arena);
    return st;
}

enum hd_status hd_spec_read_cluster(const char *path, struct hd_arena *arena,
                                    struct hd_cluster *ret_clusters, int *ret_count,
                                    struct hd_node_tree *ret_tree)
{
    struct hd_text bytes = {0};
    enum hd_status st =
        hd_file_read_stream(path, HD_CLUSTER_FILE_BYTES_MAX, HD_FILE_PATIENCE_MS, &bytes);

    if (st == HD_LIMIT)
        st = hd_err(HD_INVALID, "%s: larger than 1 MiB, the limit of a cluster file", path);
    if (!st && bytes.failed)
        st = hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    if (st == HD_NOT_FOUND || st == HD_IO)
        st = HD_INVALID; /* the user named this file; the message says what is wrong with it */
    if (!st)
        st = hd_spec_parse_cluster(path, bytes.data ? bytes.data : "", bytes.len_bytes, arena,
                                   ret_clusters, ret_count, ret_tree);
    hd_text_free(&bytes);
    return st;
}
