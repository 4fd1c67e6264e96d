/* nvml: the active NVLinks of this machine's GPUs, by NVIDIA's management library.
 *
 * The library (libnvidia-ml.so.1) comes with the driver and is loaded at run time; without it, or
 * without NVLinks, nothing is added. Calls may hang with a broken driver, so only a short-lived
 * process makes them.
 *
 * Used by: worker (gpus, gpu-sample).   Uses: daemon/devices.   Threads: one.
 */
#ifndef HD_DAEMON_WORKER_NVML_H
#define HD_DAEMON_WORKER_NVML_H

#include "daemon/devices/inventory.h"

/* As the library fills it in. */
struct hd_nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32]; /* "00000000:3B:00.0" */
};

/* Adds NVLinks to the pairs of an inventory. buses: of its GPUs, in its order. */
void hd_nvml_add_links(struct hd_inventory *inventory, const char *const *buses);

#endif
