/* devices: what heddled offers to jobs, of what the machine has.
 *
 *     --devices PART[+PART..]    auto           the GPUs that can be used; a device of all usable
 *                                               cores when there would be no device at all
 *                                cpu:N[:T]      N devices of T threads (default: usable cores / N)
 *                                cuda           all GPUs that can be used, at least one
 *                                cuda:0,2       these; by number or by UUID
 *
 * A GPU that was offered since the machine was started (known.h) and cannot be used now is offered
 * on, with its problem: it gets no jobs, and keeps those that it has. So a node whose GPUs fail, or
 * are not heard of, does not become one of cores. While `auto` does not know yet whether there are
 * GPUs, the cores have a problem as well. A CPU device that --devices gives no more, as `auto` on a
 * node whose GPUs turn up, is held with a problem while an attempt may use it.
 *
 * Used by: agent.   Uses: base, daemon/attempt, daemon/gpu.   Threads: plain values.
 */
#ifndef HD_DAEMON_AGENT_DEVICES_H
#define HD_DAEMON_AGENT_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "daemon/agent/known.h"
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
    int number; /* as the controller knows it */
    bool cuda, bf16;
    char uuid[HD_GPU_UUID_MAX]; /* of a GPU */
    char name[96];
    int threads; /* of a CPU device; of a GPU its rank's on the host */
    int64_t memory_bytes;
    bool held;                      /* for attempts alone: not given by --devices */
    char problem[HD_GPU_STORY_MAX]; /* why no job may start on it; "": one may */
};

struct agent_devices {
    int count, gpu_count; /* GPUs stand first */
    struct agent_one_device list[HD_ATTEMPT_RANKS_MAX];
    char note[HD_ERR_MAX]; /* why `auto` found no GPU, or which ones are left out; "": nothing */
};

/* `gpus` NULL: they were not asked for. Not `answered`: they were, and gpus has only the story why
 * nothing is known of them, as its plugin_problem. `cores`: usable ones. `in_use`: attempts
 * may use what an earlier heddled has offered. Devices that are new become known. HD_UNSUPPORTED:
 * GPUs that must be there are not, or cannot be used; the line says why. */
enum hd_status agent_devices_choose(const struct agent_devices_wish *wish,
                                    const struct hd_gpu_list *gpus, bool answered, int cores,
                                    bool in_use, struct agent_known *known,
                                    struct agent_devices *ret_devices);
/* Takes away those that are held; false: there were none. */
bool agent_devices_let_go(struct agent_devices *devices);
/* NULL: there is none of this number. */
const struct agent_one_device *agent_devices_at(const struct agent_devices *devices, int number);
int agent_devices_cores(void); /* usable by this process */

#endif
