/* fit: handles a job for which no layout fits the devices that were found (layout_cache.c). It asks
 * for devices with more memory than the smallest that were found, if a node has any; then for more
 * devices; and fails when it may not have more. */
#include <string.h>

#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

/* ---- needs that are raised --------------------------------------------------------------------*/

/* Returns whether any node, even a busy or disconnected one, has a device of these kinds with more
 * memory. */
static bool has_larger(const struct hd_core *core, const struct hd_job_needs *needs,
                       int64_t memory_bytes)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(needs, kinds);

    for (size_t i = 0; i < core->node_count; i++) {
        const struct hd_node_record *node = &core->nodes[i]->rec;

        for (int32_t d = 0; d < node->device_count && !node->retired; d++)
            for (size_t k = 0; k < kind_count; k++)
                if (node->devices[d].kind == kinds[k] &&
                    node->devices[d].memory_bytes > memory_bytes)
                    return true;
    }
    return false;
}

bool core_need_more(const struct hd_core *core, int32_t devices, int64_t memory_bytes,
                    struct hd_job_needs *needs)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(needs, kinds);
    struct hd_job_needs more = *needs;

    if (has_larger(core, needs, memory_bytes)) {
        needs->memory_min = memory_bytes + 1;
        return true;
    }
    more.devices_min = devices + 1;
    for (size_t k = 0; k < kind_count && more.devices_min <= more.devices_max; k++)
        if (core_devices_needed(&more, kinds[k])) {
            *needs = more;
            return true;
        }
    return false;
}

bool core_take_infeasible(struct hd_core *core, struct core_job *job, int32_t devices,
                          int64_t memory_bytes, const char *why)
{
    struct hd_job_needs needs = job->needs;

    core_event_no_fit(core, job, why);
    if (!core_need_more(core, devices, memory_bytes, &needs)) {
        core_finish_job(core, job, HD_JOB_STATE_FAILED, why);
        return false;
    }
    core_waiting_remove(core, job); /* core_waiting_add puts the job into the class of its new
                                     * needs */
    if (!job->infeasible)
        job->asked_min = job->needs.devices_min;
    job->needs = needs;
    core_set_text(core, &job->infeasible, why);
    core_waiting_add(core, job);
    core->any_infeasible = true;
    return true;
}

void core_forget_infeasible(struct hd_core *core)
{
    if (!core->any_infeasible)
        return;
    core->any_infeasible = false;
    for (struct core_job *job = core_table_next(&core->jobs, NULL); job;
         job = core_table_next(&core->jobs, job)) {
        const bool waits = job->group != NULL;

        if (!job->infeasible)
            continue;
        if (waits)
            core_waiting_remove(core, job);
        job->needs.devices_min = job->asked_min;
        job->needs.memory_min = 0;
        core_free_text(&job->infeasible);
        if (waits)
            core_waiting_add(core, job);
    }
    core->due |= CORE_DUE_PASS;
}
