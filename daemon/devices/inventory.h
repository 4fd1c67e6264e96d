/* inventory: how the GPUs of this machine reach one another, and its network adapters.
 *
 * Taken by `heddle-worker gpus`, the short-lived process that asks drivers, from two sources:
 *
 *   sysfs   the PCIe tree: bridges that two GPUs have in common, generation and width of links,
 *           NUMA nodes; adapters of InfiniBand, RoCE and Ethernet with their speed
 *   NVML    active NVLinks of each GPU, what they lead to, and their speed (daemon/worker/nvml.c)
 *
 * Words of pairs are those of `nvidia-smi topo -m`: nv# (so many NVLinks), pix (one PCIe switch),
 * pxb (several), phb (one host bridge), node (one NUMA node), sys (between NUMA nodes). Rates are
 * nominal: of one direction, without the overhead of protocols. What lies between sockets is not
 * told by any source: INVENTORY_SOCKET_BYTES_PER_S is assumed.
 *
 * Used by: worker (takes and writes it), health and agent (read it).   Uses: base.
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

/* Of the links between two sockets, all together, in one direction: a round figure of two UPI or
 * four xGMI links, until a node is measured. */
#define INVENTORY_SOCKET_BYTES_PER_S 20e9

struct hd_inventory {
    int64_t taken_ms; /* wall clock; 0: never */
    int gpu_count;
    struct hd_inventory_gpu {
        char uuid[48];
        int numa;                /* -1: not known, or the machine has one */
        double pcie_bytes_per_s; /* 0: not known */
    } gpus[HD_INVENTORY_GPUS_MAX];
    int pair_count; /* all pairs, or 0: not known */
    struct hd_inventory_pair {
        uint8_t a, b; /* places in gpus, a < b */
        bool direct;  /* wires of their own: nothing else goes through them */
        char kind[8]; /* "nv4", "pix" */
        double bytes_per_s;
    } pairs[HD_INVENTORY_PAIRS_MAX];
    int shared_count;
    struct hd_inventory_shared {
        char name[HD_INVENTORY_NAME_MAX]; /* "0000:3a:00.0", a bridge; "numa 1" */
        uint64_t gpus;                    /* set of those behind it, by bits */
        double bytes_per_s;
    } shared[HD_INVENTORY_SHARED_MAX];
    int adapter_count;
    struct hd_inventory_adapter {
        char name[HD_INVENTORY_NAME_MAX]; /* "mlx5_0", "eth0" */
        int numa;
        uint64_t nearest; /* set of the GPUs that no other adapter of the machine is nearer to */
        double bytes_per_s;
    } adapters[HD_INVENTORY_ADAPTERS_MAX];
};

/* Fills what sysfs tells: of GPUs at these PCI addresses ("0000:3B:00.0"), and of adapters. sys:
 * "/sys". What cannot be read is left out; without all paths of the GPUs there are no pairs. */
void hd_inventory_read(const char *sys, const char *const *uuids, const char *const *buses,
                       int count, struct hd_inventory *ret_inventory);

/* `links` active NVLinks lead from GPU a to GPU b, each of so many bytes/s; by_switch: through
 * switches, so that a GPU's links serve all its pairs. Replaces a slower pair. */
void hd_inventory_add_nvlink(struct hd_inventory *inventory, int a, int b, int links,
                             double bytes_per_s, bool by_switch);

/* The same but for the time it was taken at. */
bool hd_inventory_equal(const struct hd_inventory *a, const struct hd_inventory *b);

void hd_inventory_write(const struct hd_inventory *inventory, const char *key,
                        struct hd_json_writer *writer);
/* HD_INVALID: not what hd_inventory_write has written. */
enum hd_status hd_inventory_parse(const struct hd_json *object, struct hd_inventory *ret_inventory);

#endif
