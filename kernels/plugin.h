/* plugin: loads the backend `cuda`, a shared library that is optional at run time.
 *
 * libheddle_cuda.so is built where nvcc is found. A program looks for it at run time: the path in
 * $HEDDLE_CUDA_PLUGIN ("none": use no GPU), else ../lib relative to the program's folder. No
 * program is linked against the plug-in, CUDA or the driver. If the plug-in cannot be used (no
 * file, another build, no driver, no device), a one-line message says why and the caller may use
 * the CPU.
 *
 * The plug-in and the program must be one build: both contain the ABI number and size of the
 * backend table and the hash of the kernel list; a plug-in of another build is refused. It stays
 * loaded until the program ends, because its threads and the driver's would crash if unloaded.
 *
 * Used by: worker, serve (hd_plugin_*), the plug-in (implements hd_cuda_plugin_*).
 * Uses: base, kernels.h.   Threads: load before other threads start; then immutable.
 */
#ifndef HD_KERNELS_PLUGIN_H
#define HD_KERNELS_PLUGIN_H

#include <stdint.h>

#include "kernels/kernels.h"

#define HD_PLUGIN_ENV  "HEDDLE_CUDA_PLUGIN"
#define HD_PLUGIN_FILE "libheddle_cuda.so"

/* The code that computes attention: tiled, wgmma or cudnn (costs/attention_by.h). Behind the architecture in
 * hd_traits.isa; cuDNN's version follows, and HD_BY_CUDNN_ORDERED if dq has one order of additions
 * (train.deterministic). */
#define HD_ATTENTION_ENV    "HEDDLE_CUDA_ATTENTION"
#define HD_BY_WGMMA         "_wgmma"
#define HD_BY_CUDNN         "_cudnn_"
#define HD_BY_CUDNN_ORDERED 'd'

/* The code that computes gated activations: `separate`, by launches of their own, or `wgmma`, inside
 * the products whose results they read (cuda/gemm_glu_hopper.cu). HD_BY_GLU precedes the names above
 * in hd_traits.isa. */
#define HD_GLU_ENV "HEDDLE_CUDA_GLU"
#define HD_BY_GLU  "_glu"

enum {
    HD_PLUGIN_ABI = 1, /* version of the structs and functions of this file */
    HD_PLUGIN_GPUS_MAX = 64
};

/* Values that the program passes to the plug-in when it opens it. */
struct hd_plugin_host {
    uint32_t abi; /* HD_PLUGIN_ABI; the plug-in refuses any other value */
    /* function that returns the program's error buffer; the plug-in passes this function to
     * hd_err_share first */
    hd_err_place_fn *error_place;
};

/* A GPU as the CUDA runtime reports it. */
struct hd_plugin_gpu {
    char name[96];
    char uuid[48]; /* UUID as NVML and CUDA_VISIBLE_DEVICES spell it: "GPU-8c1f.." */
    char bus[20];  /* PCI address: "0000:3B:00.0" */
    int64_t memory_bytes;
    int capability; /* compute capability, major * 10 + minor: 90 */
};

/* ---- exported by a plug-in ---- */

/* Sets *ret_table to the backend's table (static memory). Returns HD_UNSUPPORTED, with a message,
 * if no GPU can be used: no driver, a driver that is too old, no device. */
typedef enum hd_status hd_cuda_plugin_fn(const struct hd_plugin_host *host,
                                         const struct hd_backend_table **ret_table);
/* Lists the GPUs visible to this process, except those that do not work; call it after
 * hd_cuda_plugin. Fails if there is no working GPU, or more than HD_PLUGIN_GPUS_MAX in all. */
typedef enum hd_status hd_cuda_plugin_gpus_fn(struct hd_plugin_gpu ret_gpus[HD_PLUGIN_GPUS_MAX],
                                              int *ret_count);

#define HD_PLUGIN_EXPORT __attribute__((visibility("default")))
HD_PLUGIN_EXPORT hd_cuda_plugin_fn hd_cuda_plugin;
HD_PLUGIN_EXPORT hd_cuda_plugin_gpus_fn hd_cuda_plugin_gpus;

/* ---- called by a program ---- */

/* Loads the plug-in and the libraries that it is linked with, and calls none of their functions.
 * For a process that is about to lose the right to open their files. Later calls use the loaded
 * plug-in. */
enum hd_status hd_plugin_load(void);

/* Loads the plug-in, checks that it is of this build, and sets *ret_table to its table. Returns
 * HD_UNSUPPORTED if the plug-in cannot be used on this machine; the message says why. */
enum hd_status hd_plugin_cuda(const struct hd_backend_table **ret_table);

/* Sets *ret_table to the backend of `device`: "cpu" or "cuda". Returns HD_UNSUPPORTED, with a
 * one-line reason, if no device of this kind works on this machine. (Library plugin_backend, which
 * links the kernels of the CPU.) */
enum hd_status hd_plugin_backend(const char *device, const struct hd_backend_table **ret_table);

/* Lists the GPUs that the plug-in reports; to be called after hd_plugin_cuda. */
enum hd_status hd_plugin_cuda_gpus(struct hd_plugin_gpu ret_gpus[HD_PLUGIN_GPUS_MAX],
                                   int *ret_count);

#endif
