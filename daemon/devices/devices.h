/* devices: what heddled offers to jobs, out of the devices that the machine has.
 *
 *     --devices PART[+PART..]    auto           every GPU, if one of them works; else one device of
 *                                               all usable cores
 *                                cpu:N[:T]      N devices of T threads (default: usable cores / N)
 *                                cuda           every GPU; heddled ends if none works
 *                                cuda:0,2       these GPUs, by number or by UUID; likewise
 *
 * A GPU that cannot be used is offered with its `problem`: it gets no new jobs, keeps the job it
 * has, and `heddle nodes` shows why. Once GPUs were offered, the node offers GPUs until the machine
 * is started again, even if all of them fail: cores are no substitute for them.
 *
 *     --device-memory SIZE       a rank may take at most so much of a device's memory; without it a
 *                                CPU device has its share of the machine's, a GPU its own
 *
 * Used by: health, agent.   Uses: base, daemon/attempt.   Threads: plain values.
 */
#ifndef HD_DAEMON_DEVICES_DEVICES_H
#define HD_DAEMON_DEVICES_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "daemon/attempt/attempt.h"
#include "daemon/devices/gpu.h"
#include "daemon/devices/numbers.h"

enum {
    HD_GPU_RANK_THREADS_MAX = 16, /* host threads of a GPU's rank: it reads and cuts text */
    HD_DEVICES_COMPUTE_MAX = 400
};

/* What --devices says. */
struct hd_device_selection {
    char text[1024]; /* as it was given, for messages */
    bool gpus_if_any, gpus_all;
    char gpus[HD_ATTEMPT_RANKS_MAX][HD_GPU_UUID_MAX]; /* numbers or UUIDs */
    int gpu_count;
    int cpu_count, threads; /* threads 0: usable cores / cpu_count */
    int64_t memory_bytes;   /* --device-memory: of each device, at most; 0: not given */
};

/* NULL is "auto". HD_INVALID: the message says what is allowed. */
enum hd_status hd_device_selection_parse(const char *text,
                                         struct hd_device_selection *ret_selection);
/* Whether `heddle-worker gpus` has to be asked. */
bool hd_device_selection_has_gpus(const struct hd_device_selection *selection);

struct hd_device {
    int number; /* the controller's name for it */
    bool cuda, bf16;
    char uuid[HD_GPU_UUID_MAX]; /* of a GPU; else "" */
    char name[96];
    int threads; /* of a CPU device; of a GPU: of its rank, on the host */
    int64_t memory_bytes;
    char problem[HD_GPU_PROBLEM_MAX]; /* why no job may start on it; "": one may */
};

struct hd_devices {
    int count, gpu_count; /* GPUs come first */
    struct hd_device list[HD_ATTEMPT_RANKS_MAX];
    /* What the GPUs' results depend on: their models and the libraries; "": they cannot work with
     * GPUs of other nodes */
    char compute[HD_DEVICES_COMPUTE_MAX];
    char note[HD_ERR_MAX]; /* why `auto` offers cores and no GPUs; "": it was not so */
};

/* Chooses what is offered, and gives numbers to devices that have none.
 *
 * list: the newest answer of `heddle-worker gpus`; not `answered`: empty, with the reason as its
 * problem. GPUs that have numbers are then offered with that problem, and if there is none, the CPU
 * devices of `auto` are: jobs for any device would otherwise start on the cores of a GPU node.
 * HD_UNSUPPORTED: --devices asks for GPUs by `cuda`, none works, and none has a number;
 * HD_LIMIT: more than HD_ATTEMPT_RANKS_MAX devices. */
enum hd_status hd_devices_choose(const struct hd_device_selection *selection,
                                 const struct hd_gpu_list *list, bool answered, int cores,
                                 struct hd_numbers *numbers, struct hd_devices *ret_devices);

/* NULL: no device has this number. */
const struct hd_device *hd_devices_at(const struct hd_devices *devices, int number);
int hd_devices_cores(void); /* usable by this process */
/* Returns CUDA_VISIBLE_DEVICES of this process, which hides GPUs from CUDA; NULL: it is not set. */
const char *hd_devices_visible(void);

#endif
