/* gpu: the answer of `heddle-worker gpus`: this machine's GPUs, and which of them no rank can use.
 *
 * heddled does not load CUDA, because its driver may hang for ever when a GPU is broken. It runs
 * `heddle-worker gpus` with a deadline (ask.h). That process asks the CUDA plug-in, which ranks
 * compute with, and the kernel's log (xid.h), prints a struct hd_gpu_list as JSON and ends.
 *
 * Used by: worker (writes), devices and agent (read).   Uses: base.   Threads: plain values.
 */
#ifndef HD_DAEMON_DEVICES_GPU_H
#define HD_DAEMON_DEVICES_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "daemon/devices/inventory.h"

enum {
    HD_GPU_MAX = 64, /* GPUs of one node */
    HD_GPU_UUID_MAX = 48,
    HD_GPU_FAULT_MAX = 160,
    HD_GPU_LIBRARIES_MAX = 128,
    HD_GPU_PROBLEM_MAX = 400,
    HD_GPU_MINIMUM_CAPABILITY = 80, /* the kernels are built for sm_80 and newer */
};

struct hd_gpu {
    char uuid[HD_GPU_UUID_MAX], name[96], bus[20]; /* "GPU-8c1f..", model, "0000:3b:00.0" */
    int64_t memory_bytes;
    char problem[HD_GPU_PROBLEM_MAX]; /* why no rank can use it; "": one can, as far as CUDA says */
    /* The newest fatal error of this GPU in the kernel's log, "": none; and the number of its
     * record, which grows until the machine is restarted. 0: none; -1: the log is not readable. */
    char fault[HD_GPU_FAULT_MAX];
    int64_t fault_at;
};

struct hd_gpu_list {
    char problem[HD_ERR_MAX];     /* why there is no GPU, or no GPU can be used; "": one can */
    char log_problem[HD_ERR_MAX]; /* why the kernel's log cannot be read; "": it can */
    /* What their results depend on beside their model: "sm_90_cuda_13.0, cuBLASLt-13.1.0, NCCL
     * 2.28.9"; "": they cannot work with GPUs of other nodes, because there is no NCCL */
    char libraries[HD_GPU_LIBRARIES_MAX];
    struct hd_inventory inventory; /* links between these GPUs, and adapters of the machine */
    int64_t count;
    struct hd_gpu gpus[HD_GPU_MAX]; /* in the order of their PCI addresses, as in nvidia-smi */
};

void hd_gpu_list_write(const struct hd_gpu_list *list, struct hd_text *ret_json);
/* HD_CORRUPT: the text is not what hd_gpu_list_write has written. A GPU of which the driver says
 * what cannot be (no memory, or more than any GPU has; no UUID, or that of another GPU) gets a
 * problem, the others are used; links that cannot be read count as not known. */
enum hd_status hd_gpu_list_read(const char *json, size_t json_bytes, struct hd_gpu_list *ret_list);

/* NULL: no GPU of the list has this UUID. */
const struct hd_gpu *hd_gpu_find(const struct hd_gpu_list *list, const char *uuid);

#endif
