/* clearing: the placement that running jobs free for a waiting job.
 *
 * When jobs are preempted (preempt.c), their devices become free one after another, and all are
 * needed at once. So the waiting job remembers the placement for which they were preempted. While
 * it can still have this placement, it reserves exactly that, before other jobs of its priority.
 * Otherwise each pass would search again, leave devices that are free already to other jobs, and
 * preempt more jobs.
 *
 * While a daemon reconnects, the devices of preempted attempts on its node are unknown: for at most
 * unreachable_ms the job keeps its placement and preempts no more jobs (core_pending_awaits_nodes).
 * After a start of the controller no job preempts any, and no expected start moves, until all nodes
 * are back (core_assemble), because free devices on nodes that connect last may suffice.
 *
 * The job takes another placement if one that is as good becomes free. It drops the pending
 * placement when a node of it is not usable any more, or its devices went to a job of higher
 * priority; then it is evaluated like any other job, and may preempt more jobs.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/schedule/schedule.h"

static struct core_placement *copy_of(const struct core_placement *placement)
{
    struct core_placement *copy = malloc(sizeof *copy);

    if (!copy)
        return NULL;
    *copy = *placement;
    copy->members = malloc(placement->member_count * sizeof *copy->members);
    if (!copy->members) {
        free(copy);
        return NULL;
    }
    memcpy(copy->members, placement->members, placement->member_count * sizeof *copy->members);
    return copy;
}

void core_pending_set(struct hd_core *core, struct core_job *job, const struct hd_job_needs *needs,
                      const struct core_forecast *forecast, const struct core_placement *placement)
{
    struct core_layout_client client = core_layout_client_of(job, needs);
    const struct core_cached_layout *entry;
    struct hd_text why = {0};
    int64_t memory_bytes;

    core_pending_drop(job);
    if (!placement->device_count)
        return;
    job->pending = copy_of(placement);
    core->no_memory |= !job->pending;
    client.forecast = forecast;
    if (job->pending)
        (void)core_choose_layout(core, &client, job->pending, &memory_bytes, &entry, &why);
    hd_text_free(&why);
}

/* Devices of a node that are free now, and those that stopping attempts will free; count_available
 * also moves *start to the end of the last such attempt. */
struct availability {
    int32_t free, later;
};

static struct availability count_available(const struct hd_core *core, const struct core_job *job,
                                           const struct core_node *node, enum hd_device_kind kind,
                                           struct core_start *start)
{
    struct availability available = {0};
    const struct core_attempt *last = NULL;

    for (int32_t d = 0; d < node->rec.device_count; d++) {
        const struct core_attempt *by = node->holds[d].by;
        int64_t ends_mono_ms;

        if (node->rec.devices[d].kind != kind || !core_device_works(node, d) ||
            !core_device_suits(&job->needs, node, d))
            continue;
        available.free += !node->holds[d].job;
        if (!by || by->rec.state != HD_ATTEMPT_STATE_STOPPING)
            continue;
        available.later++;
        if (by == last)
            continue;
        last = by;
        ends_mono_ms = core_predict_end(core, core_find_job(core, by->rec.job), by);
        if (ends_mono_ms > start->mono_ms) {
            start->mono_ms = ends_mono_ms;
            start->after = by->rec.job;
        }
    }
    return available;
}

static bool is_connecting(const struct core_node *node)
{
    return !node->synced && core_node_may_come_back(node) &&
           node->rec.state != HD_NODE_STATE_UNREACHABLE;
}

void core_assemble(struct hd_core *core)
{
    for (size_t i = 0; i < core->node_count; i++)
        if (is_connecting(core->nodes[i]))
            return;
    core->assembled = true;
}

bool core_pending_awaits_nodes(const struct hd_core *core, const struct core_job *job)
{
    for (size_t i = 0; job->is_preemptor && i < core->active.count; i++) {
        const struct core_attempt *attempt = core_active(core->active.items[i]);

        if (attempt->rec.state != HD_ATTEMPT_STATE_STOPPING ||
            attempt->rec.stop_job != job->rec.job)
            continue;
        for (size_t s = 0; s < attempt->alloc_count; s++)
            if (!attempt->allocs[s].ended && is_connecting(attempt->allocs[s].node))
                return true;
    }
    return false;
}

enum core_pending_state core_pending_check(const struct hd_core *core, const struct core_job *job,
                                           struct core_start *ret_start)
{
    const struct core_placement *placement = job->pending;
    enum core_pending_state pending = CORE_PENDING_CLEAR;
    enum hd_device_kind kind;

    if (!placement)
        return CORE_PENDING_NONE;
    kind = hd_device_kind_of(placement->plan.layout.device);
    *ret_start = (struct core_start){.mono_ms = core->now.mono_ms,
                                     .nodes = (int32_t)placement->member_count,
                                     .tier = placement->tier};
    for (size_t i = 0; i < placement->member_count; i++) {
        struct core_member *member = &placement->members[i];
        const struct core_node *node = member->node;
        const struct availability available = count_available(core, job, node, kind, ret_start);

        if (!core_node_usable(node) ||
            (core_reserved_by(core, node) &&
             !core_is_reserved_for(job, core_reserved_by(core, node))) ||
            available.free + available.later < member->count)
            return CORE_PENDING_NONE;
        member->surplus = available.free + available.later - member->count;
        if (available.free < member->count)
            pending = CORE_PENDING_CLEARING;
    }
    return pending;
}
