/* devices: what heddled offers to jobs, of what the machine has.
 *
 *     --devices PART[+PART..]    auto           the GPUs that can be used; a device of all usable
 *                                               cores when there would be no device at all
 *                                cpu:N[:T]      N devices of T threads (default: usable cores / N)
 *                                cuda           all GPUs that can be used, at least one
 *                                cuda:0,2       these; by number or by UUID
 *
 * Used by: agent.   Uses: base, daemon/attempt, daemon/gpu.   Threads: plain values.
 */
#ifndef HD_DAEMON_AGENT_DEVICES_H
#define HD_DAEMON_AGENT_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "daemon/attempt/attempt.h"
#include "daemon/gpu/gpu.h"

enum { AGENT_GPU_THREADS_MAX = 16 }; /* host threads of a GPU's rank: it reads and cuts text */

/* What --devices says. */
struct agent_devices_wish {
    char text[1024]; /* as it was given, for messages */
    bool gpus_if_any, gpus_all;
    char gpus[HD_ATTEMPT_RANKS_MAX][HD_GPU_UUID_MAX]; /* numbers or UUIDs */
    int gpu_count;
    int cpu_count, threads; /* threads 0: by the number of cores */
};

/* NULL is "auto". HD_INVALID says what may be said. */
enum hd_status agent_devices_parse(const char *text, struct agent_devices_wish *ret_wish);
/* Whether the machine's GPUs must be asked for. */
bool agent_devices_wants_gpus(const struct agent_devices_wish *wish);

struct agent_one_device {
    bool cuda, bf16;
    char uuid[HD_GPU_UUID_MAX]; /* of a GPU */
    char name[96];
    int threads; /* of a CPU device; of a GPU its rank's on the host */
    int64_t memory_bytes;
};

struct agent_devices {
    int count, gpu_count; /* GPUs stand first */
    struct agent_one_device list[HD_ATTEMPT_RANKS_MAX];
    char note[HD_ERR_MAX]; /* why `auto` found no GPU, or which ones are left out; "": nothing */
};

/* `gpus` NULL: they were not asked for. `cores`: usable ones. HD_UNSUPPORTED: GPUs that must be
 * there are not, or cannot be used; the line says why. */
enum hd_status agent_devices_choose(const struct agent_devices_wish *wish,
                                    const struct hd_gpu_list *gpus, int cores,
                                    struct agent_devices *ret_devices);
int agent_devices_cores(void); /* usable by this process */

#endif
