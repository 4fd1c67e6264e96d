/* Cluster files at random: what is accepted is a cluster that the planner can walk. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/cluster.h"
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
    "nodes: 1\ndevices_per_node: 2\ndevice: {memory: 96GiB, hbm_bandwidth: 2TB/s, "
    "flops: {bf16: 500TFLOPS, fp32: 30T}, multiprocessors: 80, capability: 90}\n"
    "intra_node: {bandwidth: 100GB/s}\n"};

static void need(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static struct hd_cluster clusters[HD_CLUSTER_GROUPS_MAX];
    int count = 0;

    if (hd_spec_parse_cluster("c", bytes, size_bytes, clusters, &count)) {
        need(strlen(hd_err_message()) > 2);
        return 0;
    }
    need(count >= 1 && count <= HD_CLUSTER_GROUPS_MAX);
    for (int i = 0; i < count; i++) {
        const struct hd_cluster *c = &clusters[i];

        need(c->nodes >= 1 && c->nodes <= HD_CLUSTER_NODES_MAX);
        need(c->level_count >= 1 && c->level_count <= HD_CLUSTER_LEVELS_MAX);
        need(c->levels[c->level_count - 1].devices == hd_cluster_devices(c));
        for (int l = 0; l < c->level_count; l++) {
            need(c->levels[l].bytes_per_s > 0 && c->levels[l].latency_s >= 0);
            need(l == 0 || c->levels[l].devices > c->levels[l - 1].devices);
        }
        need(hd_cluster_level_of(c, 0, hd_cluster_devices(c) - 1) < c->level_count);
    }
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    size_t size;

    if (index >= sizeof seeds / sizeof seeds[0])
        return 0;
    size = strlen(seeds[index]);
    size = size < max_bytes ? size : max_bytes;
    memcpy(ret_bytes, seeds[index], size);
    return size;
}
