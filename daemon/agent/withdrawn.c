#include "daemon/agent/withdrawn.h"

#include <stdio.h>
#include <string.h>

/* Its place in the list; -1: nothing can be noted of it. */
static int find(struct agent_withdrawn *withdrawn, const struct hd_gpu *gpu)
{
    int at = 0;

    while (at < withdrawn->count && strcmp(withdrawn->list[at].uuid, gpu->uuid) != 0)
        at++;
    if (at < withdrawn->count)
        return at;
    if (!gpu->uuid[0] || gpu->xid_fatal_at < 0 || at == HD_GPU_MAX)
        return -1;
    (void)snprintf(withdrawn->list[at].uuid, HD_GPU_UUID_MAX, "%s", gpu->uuid);
    withdrawn->list[at].old_at = gpu->xid_fatal_at;
    withdrawn->list[at].xid = 0;
    withdrawn->count++;
    return at;
}

void agent_withdrawn_judge(struct agent_withdrawn *withdrawn, struct hd_gpu_list *gpus)
{
    for (int64_t i = 0; i < gpus->count; i++) {
        struct hd_gpu *gpu = &gpus->gpus[i];
        const int at = find(withdrawn, gpu);

        if (at < 0)
            continue;
        if (gpu->xid_fatal_at > withdrawn->list[at].old_at && !withdrawn->list[at].xid)
            withdrawn->list[at].xid = gpu->xid_fatal;
        if (withdrawn->list[at].xid && !gpu->problem[0])
            (void)snprintf(gpu->problem, sizeof gpu->problem,
                           "the kernel's log has had a new error behind which only a reset helps "
                           "(Xid %d); kill -HUP of heddled when that was done",
                           (int)withdrawn->list[at].xid);
    }
}
