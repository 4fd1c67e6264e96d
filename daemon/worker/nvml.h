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

/* PCI information, in NVML's binary layout. */
struct hd_nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32]; /* such as "00000000:3B:00.0" */
};

/* Adds NVLinks to the pairs of an inventory. buses: PCI addresses of the inventory's GPUs, in its
 * order. */
void hd_nvml_add_links(struct hd_inventory *inventory, const char *const *buses);

#endif
