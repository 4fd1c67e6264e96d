/* nvml: asks the driver's management library what GPUs there are and how they fare.
 *
 * libnvidia-ml.so.1 comes with the driver and is opened when it is wanted; the prototypes are our
 * own (nvml.c). What the library or the GPU does not tell stays unknown, as the memory of one that
 * shares the machine's; a GPU that fails one that
 * must be answered, or is lost, is still in the list, with that as its problem. Any of these calls
 * may hang when the driver is in a bad way: only a short-lived process with a deadline makes them.
 *
 * Used by: worker.   Uses: base, libc.   Threads: one caller at a time.
 */
#ifndef HD_DAEMON_GPU_NVML_H
#define HD_DAEMON_GPU_NVML_H

#include "daemon/gpu/gpu.h"

#define HD_NVML_LIBRARY "libnvidia-ml.so.1"

/* Adds the driver's version and its GPUs to the list. HD_UNSUPPORTED, one line says why: there is
 * no such library, no driver, or they are of two versions. */
enum hd_status hd_nvml_read(const char *library, struct hd_gpu_list *list);

#endif
