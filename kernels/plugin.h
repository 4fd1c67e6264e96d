/* plugin: the backend `cuda`, a shared library that is loaded where it is found and works.
 *
 * libheddle_cuda.so is built wherever nvcc is, and looked for when a program runs: at
 * $HEDDLE_CUDA_PLUGIN ("none": there shall be no GPU), else in ../lib of the program's folder. No
 * program is linked against it, CUDA or a driver. What stands in the way (no file, another build,
 * no driver, no device) is one line for a person; the CPU is used then.
 *
 * The plug-in and the program are one build: both carry the kernel table's ABI, its size and the
 * hash of its list, and a plug-in of another build is refused by name. A plug-in stays loaded until
 * the program ends: its threads and the driver's do not survive an unloading.
 *
 * Used by: the worker (hd_plugin_*), the plug-in (implements hd_cuda_plugin_*).
 * Uses: base, kernels.h.   Threads: load before others run; then immutable.
 */
#ifndef HD_KERNELS_PLUGIN_H
#define HD_KERNELS_PLUGIN_H

#include <stdint.h>

#include "kernels/kernels.h"

#define HD_PLUGIN_ENV  "HEDDLE_CUDA_PLUGIN"
#define HD_PLUGIN_FILE "libheddle_cuda.so"

enum {
    HD_PLUGIN_ABI = 1, /* of the structs and functions of this file */
    HD_PLUGIN_GPUS_MAX = 64
};

/* What the program lends to the plug-in. */
struct hd_plugin_host {
    uint32_t abi;                 /* HD_PLUGIN_ABI; the plug-in refuses another */
    hd_err_place_fn *error_place; /* for hd_err_share, first of all */
};

/* A GPU as the CUDA runtime tells it. */
struct hd_plugin_gpu {
    char name[96];
    char uuid[48]; /* "GPU-8c1f..", as NVML and CUDA_VISIBLE_DEVICES spell it */
    char bus[20];  /* "0000:3B:00.0" */
    int64_t memory_bytes;
    int capability; /* 90: major * 10 + minor */
};

/* ---- what a plug-in exports ---- */

/* The backend. HD_UNSUPPORTED with one line why when nothing can run here: no driver, one that is
 * too old, no device. */
typedef enum hd_status hd_cuda_plugin_fn(const struct hd_plugin_host *host,
                                         const struct hd_backend_table **ret_table);
/* The GPUs of this process that answer; called after the other. A failure: none does. */
typedef enum hd_status hd_cuda_plugin_gpus_fn(struct hd_plugin_gpu ret_gpus[HD_PLUGIN_GPUS_MAX],
                                              int *ret_count);

#define HD_PLUGIN_EXPORT __attribute__((visibility("default")))
HD_PLUGIN_EXPORT hd_cuda_plugin_fn hd_cuda_plugin;
HD_PLUGIN_EXPORT hd_cuda_plugin_gpus_fn hd_cuda_plugin_gpus;

/* ---- what a program calls ---- */

/* The table of the plug-in, checked. HD_UNSUPPORTED: there is none that works here, and one line
 * says why. */
enum hd_status hd_plugin_cuda(const struct hd_backend_table **ret_table);

/* The GPUs that the plug-in sees; after hd_plugin_cuda. */
enum hd_status hd_plugin_cuda_gpus(struct hd_plugin_gpu ret_gpus[HD_PLUGIN_GPUS_MAX],
                                   int *ret_count);

#endif
