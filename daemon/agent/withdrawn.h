/* withdrawn: GPUs that compute no more until somebody has reset them, by the kernel's log.
 *
 * Such a GPU may answer every question. The log tells of the error, but not when the GPU was reset,
 * and it forgets: its oldest lines make room for new ones. So what counts is the place of the
 * newest such error, a number that only grows while the machine runs. What was there before anybody
 * looked is old; one that is newer withdraws the GPU until somebody says that it was mended,
 * whatever has become of the line.
 *
 * Used by: agent.   Uses: daemon/gpu.   Threads: plain values.
 */
#ifndef HD_DAEMON_AGENT_WITHDRAWN_H
#define HD_DAEMON_AGENT_WITHDRAWN_H

#include <stdint.h>

#include "daemon/gpu/gpu.h"

/* Start with {0}; so begins anew whoever has had GPUs reset. */
struct agent_withdrawn {
    int count; /* of GPUs that were seen */
    struct {
        char uuid[HD_GPU_UUID_MAX];
        int64_t old_at; /* the newest error's place when the GPU was first seen */
        int64_t xid;    /* of the error that withdrew it; 0: none has */
    } list[HD_GPU_MAX];
};

/* Notes what is new, and gives those that are withdrawn and have no other problem this one. */
void agent_withdrawn_judge(struct agent_withdrawn *withdrawn, struct hd_gpu_list *gpus);

#endif
