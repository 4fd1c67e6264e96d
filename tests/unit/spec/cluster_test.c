/* Cluster files: what they mean, and what bad ones get. */
#include <stdio.h>
#include <string.h>

#include "plan/node_tree.h"
#include "spec/spec.h"
#include "tests/program/test.h"

static struct hd_cluster clusters[HD_CLUSTER_GROUPS_MAX];
static struct hd_node_tree tree;
static struct hd_arena arena;
static int count;

static void reads(const char *text)
{
    if (hd_spec_parse_cluster("c.yaml", text, strlen(text), &arena, clusters, &count, &tree))
        fail_msg("%s", hd_err_message());
}

static void is_level(const struct hd_cluster *c, int level, const char *name, int64_t devices,
                     double bytes_per_s, double latency_s)
{
    const struct hd_cluster_level *l = &c->levels[level];

    assert_string_equal(l->name, name);
    assert_int_equal(l->devices, devices);
    assert_true(l->bytes_per_s > 0.999999 * bytes_per_s && l->bytes_per_s < 1.000001 * bytes_per_s);
    assert_true(l->latency_s > 0.999999 * latency_s && l->latency_s < 1.000001 * latency_s);
}

static void a_simple_cluster(void **state)
{
    reads("nodes: 64\n"
          "devices_per_node: 8\n"
          "device: h100\n"
          "intra_node: {bandwidth: 450GB/s, latency: 3us}\n"
          "inter_node: {bandwidth: 400 Gb/s, latency: 0.008 ms}\n");
    assert_int_equal(count, 1);
    assert_int_equal(hd_cluster_devices(&clusters[0]), 512);
    assert_string_equal(clusters[0].device, "h100");
    assert_int_equal(clusters[0].level_count, 2);
    is_level(&clusters[0], 0, "node", 8, 450e9, 3e-6);
    is_level(&clusters[0], 1, "network", 512, 50e9, 8e-6);
    assert_int_equal(clusters[0].traits.capability, 90);
}

/* Without links: those that such machines usually have. */
static void usual_links(void **state)
{
    reads("nodes: 2\ndevices_per_node: 8\ndevice: a100-80gb\n");
    is_level(&clusters[0], 0, "node", 8, 300e9, 1.5e-6);
    is_level(&clusters[0], 1, "network", 16, 25e9, 8e-6);
    reads("nodes: 1\ndevices_per_node: 4\ndevice: l4\n");
    assert_int_equal(clusters[0].level_count, 1);
}

/* A bridge that joins all devices of a node is their link, not the slots. */
static void an_island_of_all_devices_is_the_node(void **state)
{
    struct hd_cluster pair;

    reads("nodes: 2\ndevices_per_node: 2\ndevice: h100-pcie\n"
          "islands: {devices: 2, bandwidth: 300GB/s, latency: 2us}\n");
    assert_int_equal(clusters[0].level_count, 2);
    is_level(&clusters[0], 0, "island", 2, 300e9, 2e-6);
    is_level(&clusters[0], 1, "network", 4, 25e9, 8e-6);
    /* --devices h100-pcie:2: such GPUs are bridged in pairs; of three one has no neighbour */
    hd_cluster_of_kind(hd_gpu_kind_find("h100-pcie"), 2, false, &pair);
    assert_int_equal(pair.level_count, 1);
    is_level(&pair, 0, "island", 2, 300e9, 1.5e-6);
    hd_cluster_of_kind(hd_gpu_kind_find("h100-pcie"), 3, false, &pair);
    is_level(&pair, 0, "node", 3, 50e9, 1.5e-6);
}

/* The host of a device: as the file says; else it is not known. */
static void the_host_of_a_device(void **state)
{
    struct hd_cluster c[HD_CLUSTER_GROUPS_MAX];
    static const char usual[] = "nodes: 1\ndevices_per_node: 8\ndevice: h100\n";
    static const char given[] =
        "nodes: 1\ndevices_per_node: 8\ndevice: l4\n"
        "host: {memory: 64GiB, bandwidth: 20GB/s, memory_bandwidth: 30GB/s}\n";

    hd_arena_init(&arena, 0);
    assert_int_equal(
        hd_spec_parse_cluster("c.yaml", usual, sizeof usual - 1, &arena, c, &count, NULL), HD_OK);
    assert_int_equal(c[0].host_memory_bytes, 0); /* a machine with H100s may have any memory */
    assert_int_equal(
        hd_spec_parse_cluster("c.yaml", given, sizeof given - 1, &arena, c, &count, NULL), HD_OK);
    assert_int_equal(c[0].host_memory_bytes, (int64_t)64 << 30);
    assert_true(c[0].rates.host_link_bytes_per_s == 20e9 && c[0].rates.host_bytes_per_s == 30e9);
    hd_arena_done(&arena);
}

static void groups_islands_and_tiers(void **state)
{
    reads("groups:\n"
          "  - {nodes: \"n[1-16,20]\", device: h100-pcie, devices_per_node: 8,\n"
          "     islands: {devices: 2, bandwidth: 300GB/s, latency: 2us}}\n"
          "  - {nodes: big1, device: b200}\n"
          "devices_per_node: 4\n"
          "inter_node: {bandwidth: 12.5GB/s, latency: 20us}\n"
          "tiers:\n"
          "  - {name: leaf, nodes: 4, bandwidth: 50GB/s, latency: 5us}\n"
          "  - {name: spine, nodes: 16, bandwidth: 25GB/s, latency: 8us}\n");
    assert_int_equal(count, 2);
    assert_string_equal(clusters[0].name, "n[1-16,20]");
    assert_int_equal(clusters[0].nodes, 17);
    assert_int_equal(clusters[0].level_count, 5);
    is_level(&clusters[0], 0, "island", 2, 300e9, 2e-6);
    is_level(&clusters[0], 2, "leaf", 32, 50e9, 5e-6);
    is_level(&clusters[0], 3, "spine", 128, 25e9, 8e-6);
    is_level(&clusters[0], 4, "network", 136, 12.5e9, 20e-6);
    assert_int_equal(hd_cluster_level_of(&clusters[0], 0, 1), 0);
    assert_int_equal(hd_cluster_level_of(&clusters[0], 1, 2), 1);
    assert_int_equal(hd_cluster_level_of(&clusters[0], 0, 31), 2);
    assert_int_equal(hd_cluster_level_of(&clusters[0], 0, 130), 4);
    assert_int_equal(hd_cluster_devices(&clusters[1]), 4);
    assert_int_equal(clusters[1].level_count, 1);
    /* one switch has all nodes: its rate, not that of what is farther */
    reads("nodes: 8\ndevices_per_node: 1\ndevice: l4\n"
          "tiers: [{name: leaf, nodes: 8, bandwidth: 10GB/s, latency: 9us}]\n");
    assert_int_equal(clusters[0].level_count, 2);
    is_level(&clusters[0], 1, "leaf", 8, 10e9, 9e-6);
}

static void a_device_of_its_own(void **state)
{
    reads("nodes: 1\n"
          "devices_per_node: 2\n"
          "device: {memory: 96GiB, hbm_bandwidth: 2TB/s, flops: {bf16: 500TFLOPS}, "
          "multiprocessors: 80}\n"
          "intra_node: {bandwidth: 100GB/s}\n");
    assert_string_equal(clusters[0].device, "own");
    assert_int_equal(clusters[0].traits.memory_bytes, (int64_t)96 << 30);
    assert_int_equal(clusters[0].traits.multiprocessors, 80);
    assert_int_equal(clusters[0].traits.capability, 80); /* not said: of all that are supported */
    for (int dotted = 0; dotted < 2; dotted++) {
        char text[256];

        (void)snprintf(text, sizeof text,
                       "nodes: 1\ndevices_per_node: 2\nintra_node: {bandwidth: 100GB/s}\n"
                       "device: {memory: 96GiB, hbm_bandwidth: 2TB/s, flops: {bf16: 500TFLOPS}, "
                       "capability: %s}\n",
                       dotted ? "8.9" : "89");
        reads(text);
        assert_int_equal(clusters[0].traits.capability, 89);
    }
    assert_true(clusters[0].rates.half_flops > 0 && clusters[0].rates.half_flops < 500e12);
}

#define FOUR "nodes: a[1-8]\ndevices_per_node: 4\ndevice: l4\n"
#define MATRIX                                                                     \
    "links:\n"                                                                     \
    "  rates: {nv2: {bandwidth: 50GB/s, latency: 2us}, pix: 13GB/s, sys: 9GB/s}\n" \
    "  matrix:\n"                                                                  \
    "    - X nv2 pix SYS\n"                                                        \
    "    - NV2 X sys pix\n"                                                        \
    "    - pix sys X 20GB/s\n"                                                     \
    "    - sys pix 20GB/s X\n"

static void links_that_are_not_alike(void **state)
{
    const struct hd_node_links *l;

    reads(FOUR MATRIX "  shared: [{devices: [0, 2], bandwidth: 12GB/s}]\n"
                      "nics: [{devices: [0, 1], bandwidth: 200Gb/s}, "
                      "{devices: [2, 3], bandwidth: 20GB/s, latency: 7us}]\n");
    l = clusters[0].links;
    assert_int_equal(l->devices, 4);
    assert_true(hd_node_links_rate(l, 0, 1) == 50e9 && hd_node_links_is_direct(l, 1, 0));
    assert_true(hd_node_links_rate(l, 1, 3) == 13e9 && !hd_node_links_is_direct(l, 1, 3));
    /* faster than the shared link between the two: not through it */
    assert_true(hd_node_links_rate(l, 2, 3) == 20e9 && hd_node_links_is_direct(l, 2, 3));
    assert_int_equal(l->shared_count, 1);
    assert_int_equal(l->shared[0].devices, 5);
    is_level(&clusters[0], 0, "node", 4, 9e9, 3e-6);
    is_level(&clusters[0], 1, "network", 32, 10e9, 7e-6); /* 20 GB/s for two */
}

static void nodes_have_positions_by_their_names(void **state)
{
    reads("groups: [{nodes: \"a[1-5,8]\", device: l4}, {nodes: big, device: l4}, "
          "{nodes: \"b[07-09]\", device: l4}]\n"
          "devices_per_node: 1\n"
          "tiers: [{name: leaf, nodes: 2, bandwidth: 10GB/s}, "
          "{name: spine, nodes: 4, bandwidth: 5GB/s}]\n");
    assert_int_equal(tree.tier_count, 2);
    assert_int_equal(hd_node_tree_position(&tree, "a1"), 0);
    assert_int_equal(hd_node_tree_position(&tree, "a8"), 5);
    assert_int_equal(hd_node_tree_position(&tree, "a6"), -1);
    assert_int_equal(hd_node_tree_position(&tree, "a"), -1);
    assert_int_equal(hd_node_tree_position(&tree, "a1b"), -1);
    assert_int_equal(hd_node_tree_position(&tree, "big"), 8); /* a switch of its own */
    assert_int_equal(hd_node_tree_position(&tree, "b7"), 12);
    assert_int_equal(hd_node_tree_position(&tree, "b009"), 14);
    assert_int_equal(hd_node_tree_position(&tree, "bigger"), -1);
    assert_int_equal(hd_node_tree_switch(&tree, 0, 5), 2);
    assert_int_equal(hd_node_tree_switch(&tree, 1, 5), 1);
    reads("nodes: 4\ndevices_per_node: 1\ndevice: l4\n");
    assert_int_equal(hd_node_tree_position(&tree, "4"), -1);
}

static void bad_files_are_told_where_and_what(void **state)
{
    static const struct {
        const char *text, *message;
    } all[] = {
        {"nodes: 2\ndevices_per_node: 8\ndevice: h1000\n", "c.yaml:3: device: 'h1000' is no known"},
        {"nodes: 2\ndevice: h100\n", "c.yaml:1: devices_per_node: is missing"},
        {"nodes: 0\ndevices_per_node: 8\ndevice: h100\n", "c.yaml:1: nodes: '0' is not possible"},
        {"nodes: n[3-1]\ndevices_per_node: 8\ndevice: h100\n", "c.yaml:1: nodes: 'n[3-1]'"},
        {"nodes: 10001\ndevices_per_node: 8\ndevice: h100\n", "from 1 to 10000"},
        {"nodes: 2\ndevices_per_node: 65\ndevice: h100\n", "from 1 to 64"},
        {"nodes: 2\ndevices_per_node: 8\ndevise: h100\n",
         "c.yaml:3: cluster file: unknown key 'devise'; did you mean device?"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\nintra_node: {bandwidth: 450}\n",
         "c.yaml:4: intra_node.bandwidth: '450' is not possible; give a number with a unit"},
        {"nodes: 1\ndevices_per_node: 1\ndevice: {memory: 96GiB, hbm_bandwidth: 2TB/s, "
         "flops: {bf16: 500TFLOPS}, capability: 8.99}\n",
         "c.yaml:3: device.capability: is no compute capability; give one such as 8.9 or 9.0"},
        {"nodes: 1\ndevices_per_node: 1\ndevice: {memory: 1XB, hbm_bandwidth: 2TB/s, "
         "flops: {bf16: 500TFLOPS}}\n",
         "c.yaml:3: device.memory: '1XB' is not possible; give a number with a unit, such as "
         "80GiB or 80GB (units: GiB, GB, MiB, TiB, TB)"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\n"
         "intra_node: {bandwidth: 1GB/s, latency: 11s}\n",
         "c.yaml:4: intra_node.latency: '11s' is out of range; give a value from 0s to 10s"},
        {"nodes: [a, b]\ndevices_per_node: 8\ndevice: h100\n",
         "c.yaml:1: nodes: expected a number, or names in one text"},
        {"devices_per_node: 8\ndevice: h100\n"
         "groups: [{nodes: \"n[1-9]\"}, {nodes: \"m[1-9]\"}, {nodes: \"n[7,9-12]\"}]\n",
         "c.yaml:3: nodes: 'n7' is in group 0 as well"},
        {"devices_per_node: 8\ndevice: h100\ngroups: [{nodes: \"n[1-19]\"}, {nodes: n17}]\n",
         "nodes: 'n17' is in group 0 as well"},
        {"devices_per_node: 8\ndevice: h100\n"
         "groups: [{nodes: \"n1[7-9]\"}, {nodes: \"n[18-40]\"}]\n",
         "nodes: 'n18' is in group 0 as well"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\n"
         "tiers: [{name: a, nodes: 2, bandwidth: 1GB/s}, {name: a, nodes: 4, bandwidth: 1GB/s}]\n",
         "tiers.name: is the name of an earlier tier"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\nintra_node: {latency: 3us}\n",
         "intra_node: needs bandwidth"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: {memory: 8GB}\n",
         "c.yaml:3: device: a device of its own needs"},
        {"nodes: 2\ndevices_per_node: 8\n"
         "device: {memory: 80GB, hbm_bandwidth: 1TB/s, flops: {bf16: 1T}}\n",
         "intra_node: is missing; a device of its own has no usual links"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\n"
         "tiers: [{name: a, nodes: 4, bandwidth: 1GB/s}, {name: b, nodes: 6, bandwidth: 1GB/s}]\n",
         "tiers.nodes: is no larger multiple"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\nislands: {devices: 3, bandwidth: 1GB/s}\n",
         "islands.devices: does not divide devices_per_node = 8"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\nislands: {devices: 1, bandwidth: 1GB/s}\n",
         "islands.devices: an island of 1 device joins none of the 8 of a node; give more, or "
         "leave "
         "islands out"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: H100\n",
         "device: 'H100' is no known kind; did you mean h100? use one of a10, "},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\n"
         "tiers: [{name: '', nodes: 2, bandwidth: 1GB/s}]\n",
         "tiers.name: is empty; give a name, such as leaf"},
        {"nodes: \"n[1,1]\"\ndevices_per_node: 8\ndevice: h100\n",
         "names such as n[1-16], each once"},
        {"nodes: \"n[7,9-12,1-7]\"\ndevices_per_node: 8\ndevice: h100\n", "each once"},
        {"groups: [{nodes: 1, device: l4, devices_per_node: 1, tiers: []}]\n",
         "c.yaml:1: groups: unknown key 'tiers'"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\nnodes: 4\n",
         "c.yaml:4: 'nodes': is given twice, first in line 1; remove one"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\nhost: {ram: 1GiB}\n",
         "c.yaml:4: host: unknown key 'ram'"},
        {"nodes: 2\ndevices_per_node: 8\ndevice: h100\nhost: 3\n",
         "host: expected {memory, bandwidth, memory_bandwidth}, of one device"},
        {"nodes: 3\ngroups: [{nodes: 1, device: l4, devices_per_node: 1}]\n",
         "together with groups"},
        {"[1, 2]\n", "expected the keys nodes"},
        {FOUR "intra_node: {bandwidth: 1GB/s}\nlinks: {matrix: [X]}\n", "together with intra_node"},
        {FOUR "links: {rates: {pix: 1GB/s}}\n", "c.yaml:4: links.matrix: needs a row for each of"},
        {FOUR "links:\n  rates: {pix: 13GB}\n", "c.yaml:5: links.rates: '13GB' is not possible"},
        {FOUR "links:\n  matrix: [X 1GB/s 1GB/s, X, X, X]\n",
         "row 0 needs a word for each of the 4"},
        {FOUR "links:\n  matrix: [X pxb 1GB/s 1GB/s, X, X, X]\n",
         "'pxb' is neither a word of links."},
        {FOUR "links:\n  matrix: [1GB/s X 1GB/s 1GB/s, X, X, X]\n", "in row 0 at position 0"},
        {FOUR "links:\n  matrix: [X 1GB/s 1GB/s 1GB/s, 2GB/s X 1GB/s 1GB/s, X, X]\n",
         "devices 0 and 1 have other links in row 1 than in row 0"},
        {FOUR MATRIX "  shared: [{devices: [0, 4], bandwidth: 1GB/s}]\n",
         "c.yaml:11: links.shared: '4' is no device"},
        {FOUR MATRIX "  shared: [{devices: [0, 0], bandwidth: 1GB/s}]\n", "or is listed twice"},
        {FOUR MATRIX "  share: []\n", "links: unknown key 'share'; did you mean shared?"},
        {FOUR "nics: [{devices: [0, 1], bandwidth: 10GB/s}]\n", "needs an adapter for each device"},
        {FOUR "nics: [{devices: [0, 1], bandwidth: 10GB/s}, {devices: [1], bandwidth: 1GB/s}]\n",
         "has a device that another adapter has"},
        {FOUR "nics: [{devices: [0], bandwidth: 1GB/s}]\ninter_node: {bandwidth: 1GB/s}\n",
         "together with inter_node"},
        {"", "c.yaml"},
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(hd_spec_parse_cluster("c.yaml", all[i].text, strlen(all[i].text), &arena,
                                               clusters, &count, &tree),
                         HD_INVALID);
        if (!strstr(hd_err_message(), all[i].message))
            fail_msg("'%s' does not say '%s'", hd_err_message(), all[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    int failed;

    hd_arena_init(&arena, 0);
    failed = cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
    hd_arena_done(&arena);
    return failed;
}
