/* gpu: the answer of `heddle-worker gpus`: this machine's GPUs, with the problems that make them
 * unusable.
 *
 * heddled does not load CUDA, because its driver may hang forever when a GPU is broken. It runs
 * `heddle-worker gpus` with a deadline (ask.h). That process queries the CUDA plug-in that ranks
 * use, and the kernel's log (xid.h), prints a struct hd_gpu_list as JSON and ends.
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
    HD_GPU_MAX = 64, /* limit of GPUs on one node */
    HD_GPU_UUID_MAX = 48,
    HD_GPU_FAULT_MAX = 160,
    HD_GPU_LIBRARIES_MAX = 128,
    HD_GPU_PROBLEM_MAX = 400,
    HD_GPU_MINIMUM_CAPABILITY = 80, /* compute capability 8.0: the kernels are built for sm_80 and
                                       newer */
};

struct hd_gpu {
    /* such as "GPU-8c1f..", model, "0000:3b:00.0"; after hd_gpu_list_read the uuid of a GPU for
     * which the driver reports none is "PCI-0000:3b:00.0" */
    char uuid[HD_GPU_UUID_MAX], name[96], bus[20];
    int64_t memory_bytes;
    /* reason why no rank can use the GPU; "": CUDA reports none */
    char problem[HD_GPU_PROBLEM_MAX];
    /* Newest fatal error of this GPU in the kernel's log ("": none), and the number of its record,
     * which grows until the machine is rebooted (0: none; -1: the log is not readable). */
    char fault[HD_GPU_FAULT_MAX];
    int64_t fault_at;
};

struct hd_gpu_list {
    char problem[HD_ERR_MAX];     /* reason why no GPU exists or can be used; "": none */
    char log_problem[HD_ERR_MAX]; /* reason why the kernel's log cannot be read; "": it can */
    /* Versions on which results depend, beside the GPU's model, such as "sm_90_cuda_13.0,
     * cuBLASLt-13.1.0, NCCL 2.28.9"; "": no NCCL, so GPUs cannot work with those of other nodes. */
    char libraries[HD_GPU_LIBRARIES_MAX];
    char cudnn[16]; /* version of cuDNN, which a job may ask for; "": none that can be used */
    struct hd_inventory inventory; /* links between these GPUs, and the machine's network
                                      adapters */
    int64_t count;
    struct hd_gpu gpus[HD_GPU_MAX]; /* ordered by PCI address, as in nvidia-smi */
};

void hd_gpu_list_write(const struct hd_gpu_list *list, struct hd_text *ret_json);
/* Parses the list of GPUs that `heddle-worker gpus` printed. HD_CORRUPT: hd_gpu_list_write did not
 * write the text. A GPU with impossible data from the driver (no memory or too much; no UUID, or
 * one of another GPU) gets a problem; the other GPUs stay usable. Links that cannot be parsed count
 * as unknown. */
enum hd_status hd_gpu_list_read(const char *json, size_t json_bytes, struct hd_gpu_list *ret_list);

/* Gives a GPU whose compute capability (80: 8.0) is too old for the kernels a problem. */
void hd_gpu_judge_capability(int capability, struct hd_gpu *gpu);

/* Returns the GPU of the list with this UUID; NULL: none. */
const struct hd_gpu *hd_gpu_find(const struct hd_gpu_list *list, const char *uuid);

#endif
