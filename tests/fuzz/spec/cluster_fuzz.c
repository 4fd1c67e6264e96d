/* Cluster files at random: what is accepted is a cluster that the planner can walk. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/node_tree.h"
#include "spec/spec.h"
#include "tests/fuzz/driver.h"

static const char *const seeds[] = {
    "nodes: 64\ndevices_per_node: 8\ndevice: h100\n"
    "intra_node: {bandwidth: 450GB/s, latency: 3us}\ninter_node: {bandwidth: 400Gb/s}\n",
    "groups: [{nodes: \"n[1-16,20]\", device: h100-pcie, devices_per_node: 8,\n"
    "  islands: {devices: 2, bandwidth: 300GB/s}}, {nodes: big1, device: b200}]\n"
    "devices_per_node: 4\n"
    "tiers: [{name: leaf, nodes: 4, bandwidth: 50GB/s}, {name: spine, nodes: 16, bandwidth: "
    "1GB/s}]\n",
    "nodes: a[1-8]\ndevices_per_node: 3\ndevice: l4\nlinks:\n  rates: {nv2: {bandwidth: 50GB/s, "
    "latency: 2us}, pix: 13GB/s}\n  matrix: [X nv2 pix, nv2 X 9GB/s, pix 9GB/s X]\n"
    "  shared: [{devices: [0, 2], bandwidth: 12GB/s}]\n"
    "nics: [{devices: [0, 1, 2], bandwidth: 200Gb/s}]\n",
    "nodes: 1\ndevices_per_node: 2\ndevice: {memory: 96GiB, hbm_bandwidth: 2TB/s, "
    "flops: {bf16: 500TFLOPS, fp32: 30T}, multiprocessors: 80, capability: 90}\n"
    "intra_node: {bandwidth: 100GB/s}\n"
    "host: {memory: 64GiB, bandwidth: 25GB/s, memory_bandwidth: 40GB/s}\n"};

static void check_links(const struct hd_cluster *c)
{
    const struct hd_node_links *l = c->links;

    if (!l)
        return;
    require(l->devices == c->devices_per_node && l->shared_count <= HD_SHARED_LINKS_MAX);
    for (int32_t a = 0; a < l->devices; a++)
        for (int32_t b = 0; b < a; b++)
            require(hd_node_links_rate(l, a, b) > 0 && hd_node_links_latency(l, a, b) >= 0);
    for (int32_t s = 0; s < l->shared_count; s++)
        require(l->shared[s].devices && l->shared[s].bytes_per_s > 0 &&
                (l->devices == 64 || !(l->shared[s].devices >> l->devices)));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static struct hd_cluster clusters[HD_CLUSTER_GROUPS_MAX];
    static struct hd_node_tree tree;
    struct hd_arena arena;
    int count = 0;

    hd_arena_init(&arena, 0);
    if (hd_spec_parse_cluster("c", bytes, size_bytes, &arena, clusters, &count, &tree)) {
        require(strlen(hd_err_message()) > 2);
        hd_arena_done(&arena);
        return 0;
    }
    require(count >= 1 && count <= HD_CLUSTER_GROUPS_MAX);
    for (int i = 0; i < count; i++) {
        const struct hd_cluster *c = &clusters[i];

        require(c->host_memory_bytes >= 0 && c->rates.host_link_bytes_per_s > 0 &&
                c->rates.host_bytes_per_s > 0);
        require(c->nodes >= 1 && c->nodes <= HD_CLUSTER_NODES_MAX);
        require(c->level_count >= 1 && c->level_count <= HD_CLUSTER_LEVELS_MAX);
        require(c->levels[c->level_count - 1].devices == hd_cluster_devices(c));
        for (int l = 0; l < c->level_count; l++) {
            require(c->levels[l].bytes_per_s > 0 && c->levels[l].latency_s >= 0);
            require(l == 0 || c->levels[l].devices > c->levels[l - 1].devices);
        }
        require(hd_cluster_level_of(c, 0, hd_cluster_devices(c) - 1) < c->level_count);
        check_links(c);
    }
    require(tree.group_count == count && hd_node_tree_position(&tree, "a7") >= -1);
    hd_arena_done(&arena);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    return fuzz_text_seed(seeds, sizeof seeds / sizeof seeds[0], index, ret_bytes, max_bytes);
}
