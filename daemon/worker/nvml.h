/* nvml: finds the active NVLinks of this machine's GPUs with NVIDIA's management library.
 *
 * The library (libnvidia-ml.so.1) comes with the driver and is loaded at run time; without it, or
 * without NVLinks, nothing is added. Calls may hang with a broken driver, so only short-lived
 * processes make them.
 *
 * Used by: worker (gpus, gpu-sample).   Uses: daemon/devices.   Threads: one.
 */
#ifndef HD_DAEMON_WORKER_NVML_H
#define HD_DAEMON_WORKER_NVML_H

#include "daemon/devices/inventory.h"

/* PCI address of a GPU, in NVML's binary layout. */
struct hd_nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32]; /* domain, bus, device and function, such as "00000000:3B:00.0" */
};

/* Adds the active NVLinks to the pairs of GPUs in an inventory. buses: PCI addresses of the
 * inventory's GPUs, in the inventory's order. */
void hd_nvml_add_links(struct hd_inventory *inventory, const char *const *buses);

#endif
