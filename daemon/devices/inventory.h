/* inventory: links between the GPUs of this machine, and its network adapters.
 *
 * Collected by `heddle-worker gpus`, the short-lived process that queries drivers, from two
 * sources:
 *
 *   sysfs   the PCIe tree: bridges that two GPUs have in common, generation and width of links,
 *           NUMA nodes; adapters of InfiniBand, RoCE and Ethernet with their speed
 *   NVML    active NVLinks of each GPU, their remote ends and speed (daemon/worker/nvml.c)
 *
 * Kinds of pairs are those of `nvidia-smi topo -m`: nv# (number of NVLinks), pix (one PCIe switch),
 * pxb (several), phb (one host bridge), node (one NUMA node), sys (between NUMA nodes). Rates are
 * nominal: of one direction, without the overhead of protocols. No source gives the rate between
 * sockets; INVENTORY_SOCKET_BYTES_PER_S is assumed.
 *
 * Used by: worker (collects and writes it), health and agent (read it).   Uses: base.
 * Threads: plain values.
 */
#ifndef HD_DAEMON_DEVICES_INVENTORY_H
#define HD_DAEMON_DEVICES_INVENTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

enum {
    HD_INVENTORY_GPUS_MAX = 64,
    HD_INVENTORY_PAIRS_MAX = HD_INVENTORY_GPUS_MAX * (HD_INVENTORY_GPUS_MAX - 1) / 2,
    HD_INVENTORY_SHARED_MAX = 32,
    HD_INVENTORY_ADAPTERS_MAX = 32,
    HD_INVENTORY_NAME_MAX = 32
};

/* Assumed rate of all links between two sockets together, in one direction, until a node is
 * measured: a round figure for two UPI or four xGMI links. */
#define INVENTORY_SOCKET_BYTES_PER_S 20e9

struct hd_inventory {
    int64_t taken_ms; /* wall clock time when the inventory was collected, ms; 0: never */
    int gpu_count;
    struct hd_inventory_gpu {
        char uuid[48];
        /* NUMA node of the GPU; -1: unknown, or the machine has only one */
        int numa;
        /* nominal rate of the GPU's PCIe link in one direction; 0: unknown */
        double pcie_bytes_per_s;
    } gpus[HD_INVENTORY_GPUS_MAX];
    int pair_count; /* number of all pairs of GPUs; 0: unknown */
    struct hd_inventory_pair {
        uint8_t a, b; /* indices in `gpus` of the pair's two GPUs, a < b */
        bool direct;  /* the pair has NVLinks of its own, which no other pair shares */
        char kind[8]; /* kind of path between the two GPUs, such as "nv4" or "pix" */
        double bytes_per_s;
    } pairs[HD_INVENTORY_PAIRS_MAX];
    int shared_count;
    struct hd_inventory_shared {
        /* name of a shared link: its bridge, such as "0000:3a:00.0", or "numa 1" */
        char name[HD_INVENTORY_NAME_MAX];
        uint64_t gpus; /* set of GPUs behind the shared link; bit i: gpus[i] */
        double bytes_per_s;
    } shared[HD_INVENTORY_SHARED_MAX];
    int adapter_count;
    struct hd_inventory_adapter {
        /* name of the network interface, such as "mlx5_0" or "eth0" */
        char name[HD_INVENTORY_NAME_MAX];
        int numa;
        uint64_t nearest; /* set of GPUs for which no other adapter is nearer; bit i: gpus[i] */
        double bytes_per_s;
    } adapters[HD_INVENTORY_ADAPTERS_MAX];
};

/* Reads from sysfs the links of the GPUs at these PCI addresses ("0000:3B:00.0"), and the network
 * adapters. sys: "/sys". What cannot be read is left out; unless the links of all GPUs are known,
 * there are no pairs. */
void hd_inventory_read(const char *sys, const char *const *uuids, const char *const *buses,
                       int count, struct hd_inventory *ret_inventory);

/* Records that `links` active NVLinks of bytes_per_s each lead from GPU a to GPU b; by_switch:
 * through switches, so that all pairs of a GPU share its links. Replaces the pair if it was
 * slower. */
void hd_inventory_add_nvlink(struct hd_inventory *inventory, int a, int b, int links,
                             double bytes_per_s, bool by_switch);

/* Returns whether two inventories are equal except for taken_ms. */
bool hd_inventory_equal(const struct hd_inventory *a, const struct hd_inventory *b);

void hd_inventory_write(const struct hd_inventory *inventory, const char *key,
                        struct hd_json_writer *writer);
/* Parses the JSON that hd_inventory_write made. HD_INVALID: `object` has another form. */
enum hd_status hd_inventory_parse(const struct hd_json *object, struct hd_inventory *ret_inventory);

#endif
