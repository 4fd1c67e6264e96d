/* nvml: finds what CUDA does not tell, with NVIDIA's management library: the active NVLinks of this
 * machine's GPUs, and slices of GPUs (MIG), of which CUDA lists one to a process.
 *
 * The library (libnvidia-ml.so.1) comes with the driver and is loaded at run time; without it, or
 * without links and slices, nothing is added. Calls may hang with a broken driver, so only short-lived
 * processes make them.
 *
 * Used by: worker (gpus, gpu-sample).   Uses: daemon/devices.   Threads: one.
 */
#ifndef HD_DAEMON_WORKER_NVML_H
#define HD_DAEMON_WORKER_NVML_H

#include "daemon/devices/gpu.h"

/* PCI address of a GPU, in NVML's binary layout. */
struct hd_nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32]; /* domain, bus, device and function, such as "00000000:3B:00.0" */
};

/* Adds the active NVLinks to the pairs of GPUs in an inventory. buses: PCI addresses of the
 * inventory's GPUs, in the inventory's order. */
void hd_nvml_add_links(struct hd_inventory *inventory, const char *const *buses);

/* Adds to a list with a slice the other slices of this machine's GPUs, and GPUs that are not divided, all
 * with their UUIDs, by which a rank is shown one of them, in the order of nvidia-smi. A list without slices
 * stays as it is. */
void hd_nvml_add_slices(struct hd_gpu_list *list);

#endif
