#include "plan/cluster.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* most kinds of GPU of Heddle's table that hd_cluster_nearest_kind compares */
enum { KINDS_MAX = 64 };

/* ---- usual machines ---- */

/* Usual links of GPUs in the machines that they are commonly sold in, one direction, per GPU.
 * NVLink and PCIe by NVIDIA's data sheets (which give the sum of both directions); adapters by the
 * user guides of DGX A100 (a 200 Gb/s adapter per GPU), DGX H100, H200 and B200 (400 Gb/s); for
 * other kinds, whose machines differ, 100 Gb/s per GPU. `island`: GPUs joined by a bridge; the
 * other GPUs of the node are reached over PCIe. GeForce cards copy through host memory, at half the
 * rate of their slots, and their machines have 10 Gb/s networks. V100: the one NVLink that all
 * neighbours in a DGX-1 have; P100: PCIe 3.0 slots. In V100 and P100 machines pairs of GPUs differ:
 * give a matrix in the cluster file. Host memory: 2 TiB of DGX H100, H200 and B200, 1 TiB of DGX
 * A100, 480 GB of GH200, by their user guides. Latencies: an all-reduce of
 * 64 KiB over 8 H100 takes 20 us, thus 1.5 us for each of 14 hops within a node; between nodes a
 * round figure of NCCL's order, 8 us. */
struct usual_links {
    const char *kinds;      /* words of the kinds, each between blanks */
    double island_gb;       /* GB/s within an island; 0: no islands */
    double node_gb, nic_gb; /* GB/s within a node, between nodes */
    int island;             /* GPUs of an island; 0: no islands */
    int node;               /* number of GPUs of a node */
    int host_gib;           /* host memory per GPU, GiB; 0: machines differ */
};
static const struct usual_links usual[] = {
    {" h100 h200 h20 ", 0, 450, 50, 0, 8, 256},
    {" h800 ", 0, 200, 50, 0, 8, 256},
    {" gh200 ", 0, 450, 50, 0, 1, 480},
    {" b200 b300 gb200 ", 0, 900, 50, 0, 8, 256},
    {" a100-40gb a100-80gb ", 0, 300, 25, 0, 8, 128},
    {" a800 ", 0, 200, 25, 0, 8, 128},
    {" h100-pcie ", 300, 50, 25, 2, 8, 0},
    {" h100-nvl ", 300, 50, 25, 2, 8, 0},
    {" h200-nvl ", 450, 50, 25, 4, 8, 0},
    {" a30 ", 100, 25, 12.5, 2, 4, 0},
    {" a10 l4 l20 l40 l40s rtx6000-ada ", 0, 25, 12.5, 0, 8, 0},
    {" a6000 ", 56, 25, 12.5, 2, 8, 0},
    {" rtx3080 rtx3090 rtx4070ti rtx4080 rtx4090 ", 0, 12, 1.25, 0, 8, 0},
    {" rtx5070ti rtx5080 rtx5090 rtx-pro-6000 ", 0, 25, 1.25, 0, 8, 0},
    {" v100 ", 0, 25, 12.5, 0, 8, 0},
    {" p100 ", 0, 10, 12.5, 0, 8, 0},
};
static const struct usual_links otherwise = {"", 0, 25, 12.5, 0, 8, 0};
static const double node_latency_s = 1.5e-6, network_latency_s = 8e-6;

static const struct usual_links *usual_links_of(const struct hd_gpu_kind *kind)
{
    char word[HD_CLUSTER_NAME_MAX];

    (void)snprintf(word, sizeof word, " %s ", kind->word);
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (strstr(usual[i].kinds, word))
            return &usual[i];
    return &otherwise;
}

struct hd_cluster_level hd_cluster_usual_node(const struct hd_gpu_kind *kind)
{
    return (struct hd_cluster_level){.name = "node",
                                     .bytes_per_s = 1e9 * usual_links_of(kind)->node_gb,
                                     .latency_s = node_latency_s};
}

struct hd_cluster_level hd_cluster_usual_network(const struct hd_gpu_kind *kind)
{
    return (struct hd_cluster_level){.name = "network",
                                     .bytes_per_s = 1e9 * usual_links_of(kind)->nic_gb,
                                     .latency_s = network_latency_s};
}

/* Returns the usual host memory per device, bytes; 0: machines differ. */
static int64_t usual_host(const struct hd_gpu_kind *kind)
{
    return (int64_t)usual_links_of(kind)->host_gib << 30;
}

/* ---- clusters ---- */

static void add_level(struct hd_cluster *c, const struct hd_cluster_level *level, int64_t devices)
{
    struct hd_cluster_level *l = &c->levels[c->level_count++];

    *l = *level;
    l->devices = devices;
}

void hd_cluster_set_levels(struct hd_cluster *c, int64_t island,
                           const struct hd_cluster_level *of_island,
                           const struct hd_cluster_level *of_node,
                           const struct hd_cluster_level *between)
{
    c->level_count = 0;
    if (island > 0 && island < c->devices_per_node)
        add_level(c, of_island, island);
    add_level(c, island == c->devices_per_node ? of_island : of_node, c->devices_per_node);
    if (c->nodes > 1)
        add_level(c, between, hd_cluster_devices(c));
}

void hd_cluster_of_gpus(const struct hd_gpu_kind *kind, int64_t devices, int64_t together,
                        bool tf32, struct hd_cluster *ret_cluster)
{
    const struct usual_links *u = usual_links_of(kind);
    const struct hd_cluster_level node = hd_cluster_usual_node(kind),
                                  network = hd_cluster_usual_network(kind);
    const struct hd_cluster_level island = {
        .name = "island", .bytes_per_s = 1e9 * u->island_gb, .latency_s = node_latency_s};
    struct hd_cluster *c = ret_cluster;

    memset(c, 0, sizeof *c);
    (void)snprintf(c->device, sizeof c->device, "%s", kind->word);
    hd_gpu_kind_traits(kind, &c->traits);
    hd_rates_of_kind(kind, tf32, &c->rates);
    c->devices_per_node = together;
    c->nodes = (devices + together - 1) / together;
    c->host_memory_bytes = usual_host(kind);
    hd_cluster_set_levels(c, together % (u->island ? u->island : 1) ? 0 : u->island, &island, &node,
                          &network);
}

void hd_cluster_of_kind(const struct hd_gpu_kind *kind, int64_t devices, bool tf32,
                        struct hd_cluster *ret_cluster)
{
    const int64_t node = usual_links_of(kind)->node;

    hd_cluster_of_gpus(kind, devices, devices < node ? devices : node, tf32, ret_cluster);
}

const char *hd_cluster_nearest_kind(const char *word)
{
    size_t count;
    const struct hd_gpu_kind *kinds = hd_gpu_kinds(&count);
    const char *words[KINDS_MAX];
    char small[64];
    size_t i = 0;

    for (; word[i] && i < sizeof small - 1; i++)
        small[i] = (char)(word[i] >= 'A' && word[i] <= 'Z' ? word[i] - 'A' + 'a' : word[i]);
    small[i] = '\0';
    count = count < KINDS_MAX ? count : KINDS_MAX;
    for (size_t k = 0; k < count; k++)
        words[k] = kinds[k].word;
    return hd_text_nearest(small, words, count);
}

void hd_cluster_add_kinds(struct hd_text *text)
{
    size_t count;
    const struct hd_gpu_kind *kinds = hd_gpu_kinds(&count);

    for (size_t i = 0; i < count; i++)
        hd_text_add(text, "%s%s", i ? ", " : "", kinds[i].word);
}

void hd_cluster_use_tf32(struct hd_cluster *c)
{
    const struct hd_gpu_kind *kind = hd_gpu_kind_find(c->device);
    struct hd_rates rates;

    if (!kind)
        return;
    hd_rates_of_kind(kind, true, &rates);
    c->rates.single_flops = rates.single_flops;
}

void hd_cluster_of_cpu(const struct hd_traits *traits, int64_t devices,
                       const struct hd_rates *rates, struct hd_cluster *ret_cluster)
{
    const struct hd_cluster_level node = {
        .name = "node", .bytes_per_s = rates->memory_bytes_per_s / 4, .latency_s = 20e-6};
    struct hd_cluster *c = ret_cluster;

    memset(c, 0, sizeof *c);
    (void)snprintf(c->device, sizeof c->device, "cpu");
    c->traits = *traits;
    c->rates = *rates;
    c->nodes = 1;
    c->devices_per_node = devices;
    hd_cluster_set_levels(c, 0, NULL, &node, NULL);
}

int hd_cluster_level_of(const struct hd_cluster *c, int64_t a, int64_t b)
{
    int level = 0;

    while (level < c->level_count - 1 &&
           a / c->levels[level].devices != b / c->levels[level].devices)
        level++;
    return level;
}
