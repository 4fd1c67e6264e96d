/* devices: chooses the devices of the machine that heddled offers to jobs.
 *
 *     --devices PART[+PART..]    auto           every GPU, if at least one works; else one CPU
 *                                               device with all usable cores
 *                                cpu:N[:T]      N devices of T threads (default: usable cores / N)
 *                                cuda           every GPU; heddled ends if none works
 *                                cuda:0,2       these GPUs, by number or by UUID; heddled ends if
 *                                               none works
 *
 * A GPU that cannot be used is offered with its `problem`: it gets no new jobs, keeps the job it
 * has, and `heddle nodes` shows the problem. Once a node has offered GPUs, it offers GPUs until the
 * machine is rebooted, even if all of them fail: CPU devices do not replace them.
 *
 *     --device-memory SIZE       limit of the device memory that a rank may use; default: all of a
 *                                GPU's memory; for a CPU device its share of the machine's memory
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
    HD_GPU_RANK_THREADS_MAX = 16, /* host threads of a GPU's rank, which reads and tokenizes text */
    HD_DEVICES_COMPUTE_MAX = 400
};

/* The parsed option --devices. */
struct hd_device_selection {
    char text[1024]; /* the option's text, for messages */
    bool gpus_if_any, gpus_all;
    char gpus[HD_ATTEMPT_RANKS_MAX][HD_GPU_UUID_MAX]; /* numbers or UUIDs of named GPUs */
    int gpu_count;
    /* number of CPU devices; threads per device, 0: usable cores / cpu_count */
    int cpu_count, threads;
    int64_t memory_bytes; /* --device-memory: limit for each device, bytes; 0: not given */
};

/* Parses --devices; NULL means "auto". HD_INVALID: the message says what is allowed. */
enum hd_status hd_device_selection_parse(const char *text,
                                         struct hd_device_selection *ret_selection);
/* Returns whether the selection can include GPUs, so that `heddle-worker gpus` must run. */
bool hd_device_selection_has_gpus(const struct hd_device_selection *selection);

struct hd_device {
    int number; /* number by which the controller names the device */
    bool cuda, bf16;
    char uuid[HD_GPU_UUID_MAX]; /* UUID of a GPU; "": a CPU device */
    char name[96];
    int threads; /* threads of a CPU device, or host threads of a GPU's rank */
    int64_t memory_bytes;
    char problem[HD_GPU_PROBLEM_MAX]; /* reason why no job may start on it; "": none */
};

struct hd_devices {
    int count, gpu_count; /* GPUs come first in `list` */
    struct hd_device list[HD_ATTEMPT_RANKS_MAX];
    /* GPU models and library versions, on which results of computations depend; "": the GPUs cannot
     * work with GPUs of other nodes */
    char compute[HD_DEVICES_COMPUTE_MAX];
    char note[HD_ERR_MAX]; /* reason why `auto` offers cores instead of GPUs; "": it does not */
};

/* Chooses the devices to offer, and numbers those that have no number. list: the newest answer of
 * `heddle-worker gpus`. If there was none (`answered` false), the list must be empty with the
 * reason as its problem. Then GPUs that have numbers are offered with that problem. If no GPU has a
 * number, the CPU devices of `auto` get the problem, so that jobs for any device do not start on
 * the cores of a GPU node. HD_UNSUPPORTED: --devices has `cuda`, no GPU works, and none has a
 * number. HD_LIMIT: more than HD_ATTEMPT_RANKS_MAX devices. */
enum hd_status hd_devices_choose(const struct hd_device_selection *selection,
                                 const struct hd_gpu_list *list, bool answered, int cores,
                                 struct hd_numbers *numbers, struct hd_devices *ret_devices);

/* Returns the offered device with this number; NULL: none. */
const struct hd_device *hd_devices_at(const struct hd_devices *devices, int number);
int hd_devices_cores(void); /* returns the number of cores that this process may use */
/* Returns CUDA_VISIBLE_DEVICES of this process, which hides GPUs from CUDA; NULL: not set. */
const char *hd_devices_visible(void);

#endif
