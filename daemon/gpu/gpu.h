/* gpu: what is known of a node's GPUs, and as JSON on the way from the program that asks to the one
 * that wants to know.
 *
 * heddled loads neither CUDA nor the driver's library: both may hang when a GPU is in a bad way. It
 * runs `heddle-worker gpus`, which asks NVML (nvml.h), the plug-in and the kernel's log, prints
 * this and ends.
 *
 * Used by: worker (writes), agent (reads).   Uses: base.   Threads: plain values.
 */
#ifndef HD_DAEMON_GPU_GPU_H
#define HD_DAEMON_GPU_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum {
    HD_GPU_MAX = 64, /* of one node */
    HD_GPU_PEERS_MAX = 24,
    HD_GPU_UUID_MAX = 48,
    HD_GPU_BUS_MAX = 20,
    HD_GPU_STORY_MAX = 400,
    HD_GPU_MINIMUM_CAPABILITY = 80, /* the plug-in's kernels: sm_80 and newer */
};

/* Facts of a GPU that are numbers; -1: not known. */
#define HD_GPU_NUMBERS(X)                                                               \
    X(memory_bytes) /* of the device */                                                 \
    X(used_bytes)   /* of them, by anybody */                                           \
    X(capability)   /* 90: major * 10 + minor */                                        \
    X(temperature_c)                                                                    \
    X(pcie_generation) /* now; an idle GPU turns it down */                             \
    X(pcie_generation_max)                                                              \
    X(pcie_width) /* lanes */                                                           \
    X(pcie_width_max)                                                                   \
    X(nvlinks) /* that it has */                                                        \
    X(nvlinks_up)                                                                       \
    X(ecc)           /* 1: on, 0: off */                                                \
    X(ecc_corrected) /* since the driver was loaded */                                  \
    X(ecc_uncorrected)                                                                  \
    X(rows_remapped) /* of memory, for errors that could not be corrected */            \
    X(remap_pending) /* 1: the next reset does it */                                    \
    X(remap_failed)  /* 1: there are no spare rows left */                              \
    X(mig)           /* 1: it is cut into instances */                                  \
    X(compute_mode)  /* 0 default, 2 prohibited, 3 one process at a time */             \
    X(xid)           /* number of the newest error in the kernel's log; 0: none */      \
    X(xid_count)     /* of all errors there */                                          \
    X(xid_fatal)     /* the newest of those behind which only a reset helps; 0: none */ \
    X(xid_fatal_at)  /* its place in the log, which only grows while the machine runs; 0: none */

/* Another end of its NVLinks. */
struct hd_gpu_peer {
    char bus[HD_GPU_BUS_MAX];
    int64_t links;
};

struct hd_gpu {
    char name[96], uuid[HD_GPU_UUID_MAX], bus[HD_GPU_BUS_MAX];
#define X(name) int64_t name;
    HD_GPU_NUMBERS(X)
#undef X
    struct hd_gpu_peer peers[HD_GPU_PEERS_MAX];
    int64_t peer_count;
    char problem[HD_GPU_STORY_MAX]; /* why no rank can compute on it; "": one can */
};

struct hd_gpu_list {
    char driver[80];                     /* version; "": not known */
    int64_t driver_cuda;                 /* 13000: the newest CUDA that the driver runs; -1 */
    char nvml_problem[HD_GPU_STORY_MAX]; /* why the driver could not be asked; "": it was */
    char plugin_problem[HD_ERR_MAX];     /* why nothing can compute; "": the plug-in works */
    char log_problem[HD_GPU_STORY_MAX];  /* why the kernel's log could not be read */
    int64_t plugin_abi;                  /* of the kernel table; -1 without a plug-in */
    int64_t count;
    struct hd_gpu gpus[HD_GPU_MAX];
};

/* A GPU of which nothing is known. */
void hd_gpu_init(struct hd_gpu *gpu);
void hd_gpu_list_init(struct hd_gpu_list *list);
/* For tables, JSON and messages: what is not UTF-8, and control characters, become '?'. */
void hd_gpu_clean(char *text);
/* NULL: none has it. */
struct hd_gpu *hd_gpu_find(struct hd_gpu_list *list, const char *uuid);

void hd_gpu_list_write(const struct hd_gpu_list *list, struct hd_text *ret_json);
/* Texts are cut between characters, those of a GPU are clean. HD_CORRUPT: it is not such a list. */
enum hd_status hd_gpu_list_read(const char *json, size_t json_bytes, struct hd_gpu_list *ret_list);

/* Sets the problem of each GPU that no rank can use, judging by its facts. `seen`: the CUDA runtime
 * lists it; GPUs that were hidden by CUDA_VISIBLE_DEVICES it does not. */
void hd_gpu_judge(struct hd_gpu *gpu, bool seen);

#endif
