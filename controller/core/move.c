/* move: running jobs that stop at a checkpoint to go on elsewhere: from nodes that are drained
 * until a deadline, and to more devices. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "controller/core/core_internal.h"

enum {
    STOP_MS = 30 * 1000, /* assumed for a last checkpoint */
    GAIN_FACTOR = 2,     /* a job grows if that saves so many times what a restart costs */
};

/* ---- drained nodes ----------------------------------------------------------------------------*/

static bool is_leaving(const struct core_node *node)
{
    return node->rec.drain && node->rec.drain_deadline_ms && !node->rec.retired;
}

/* One that moves already takes the place that was found for it: the next one waits for that. */
static bool something_moves(const struct hd_core *core)
{
    for (size_t i = 0; i < core->active.count; i++) {
        const struct hd_attempt_record *attempt = &core_active(core->active.items[i])->rec;

        if (attempt->state == HD_ATTEMPT_STATE_STOPPING &&
            attempt->stop_cause == HD_END_CAUSE_PREEMPTED)
            return true;
    }
    return false;
}

/* The job would fit elsewhere now: draining nodes take no job. */
static bool fits_elsewhere(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    struct core_view view = core_view_of(core, job);
    bool fits;

    view.reserves = true;
    core_lend(core, &attempt, 1, true);
    fits = core_has_place(core, &view);
    core_lend(core, &attempt, 1, false);
    return fits;
}

static void leave(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                  const struct core_node *node, const char *why)
{
    core_event(core, job, "preempted", attempt->rec.attempt, -1, node->rec.name,
               "attempt %d writes a checkpoint and leaves %s, which is drained: %s",
               attempt->rec.attempt, node->rec.name, why);
    core_attempt_stop_for(core, job, attempt, HD_END_CAUSE_PREEMPTED, 0);
    core->changed_in_pass = true;
}

static void clear_node(struct hd_core *core, const struct core_node *node)
{
    const bool is_over = core->now.wall_ms >= node->rec.drain_deadline_ms;

    for (size_t i = 0; i < core->active.count; i++) {
        struct core_job *job = core->active.items[i];
        struct core_attempt *attempt = core_active(job);

        if (!core_find_share(attempt, node) || attempt->rec.state == HD_ATTEMPT_STATE_STOPPING ||
            job->rec.cancel)
            continue;
        if (is_over)
            leave(core, job, attempt, node, "the deadline is over");
        else if (!something_moves(core) && fits_elsewhere(core, job, attempt))
            leave(core, job, attempt, node, "it fits on other nodes");
    }
}

void core_leave_nodes(struct hd_core *core)
{
    for (size_t i = 0; i < core->node_count; i++)
        if (is_leaving(core->nodes[i]) && core->nodes[i]->rec.state == HD_NODE_STATE_DRAINING)
            clear_node(core, core->nodes[i]);
}

void core_leave_timers(struct hd_core *core, struct core_node *node)
{
    if (!is_leaving(node) || node->deadline_met || core->now.wall_ms < node->rec.drain_deadline_ms)
        return;
    node->deadline_met = true;
    core->schedule_due = true;
}

/* ---- growth -----------------------------------------------------------------------------------*/

/* The last time it stopped to grow it got no more devices: it does not try again in this attempt.
 */
static bool grew_in_vain(const struct core_job *job, const struct core_attempt *attempt)
{
    const struct core_attempt *before = core_find_attempt(job, attempt->rec.attempt - 1);

    return before && before->rec.end.cause == HD_END_CAUSE_RESIZED &&
           attempt->rec.plan.rank_count <= before->rec.plan.rank_count;
}

/* The devices of this kind that the job would get if it gave its own back; 0: none. */
static int32_t count_reachable(struct hd_core *core, struct core_job *job,
                               struct core_attempt *attempt)
{
    struct core_view view = core_view_of(core, job);
    struct hd_job_needs needs = job->needs;
    struct core_placement place;
    bool by_user;
    const int64_t left = core_quota_left(job->account, &by_user);

    needs.device = hd_device_kind_of(attempt->rec.plan.layout.device);
    if (left < needs.devices_max - attempt->rec.plan.rank_count)
        needs.devices_max = attempt->rec.plan.rank_count + (int32_t)left;
    if (needs.devices_max <= attempt->rec.plan.rank_count)
        return 0;
    view.needs = &needs;
    core_lend(core, &attempt, 1, true);
    place = core_find_place(core, &view);
    core_lend(core, &attempt, 1, false);
    free(place.members);
    return place.device_count;
}

/* Steps are assumed to take time in inverse proportion to the devices. */
static void grow(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    const int32_t have = attempt->rec.plan.rank_count;
    const int64_t left_ms = core_predict_end(core, job, attempt) - core->now.mono_ms;
    const int64_t cost_ms = attempt->rec.running_ms - attempt->rec.created_ms + STOP_MS;
    char gain[HD_CLOCK_TEXT_MAX], cost[HD_CLOCK_TEXT_MAX];
    int64_t gain_ms;
    int32_t reachable;

    if (core_step_ms(attempt) <= 0 || left_ms < GAIN_FACTOR * cost_ms)
        return;
    reachable = count_reachable(core, job, attempt);
    if (reachable <= have)
        return;
    gain_ms = left_ms - left_ms * have / reachable;
    if (gain_ms < GAIN_FACTOR * cost_ms)
        return;
    hd_clock_format_span(gain_ms, gain);
    hd_clock_format_span(cost_ms, cost);
    core_event(core, job, "growing", attempt->rec.attempt, -1, "",
               "attempt %d ends at a checkpoint to go on with %d devices in place of %d, which "
               "saves about %s and costs %s",
               attempt->rec.attempt, reachable, have, gain, cost);
    core_attempt_stop_for(core, job, attempt, HD_END_CAUSE_RESIZED, 0);
}

void core_grow(struct hd_core *core)
{
    while (core->growers.count) {
        struct core_job *job = core->growers.items[core->growers.count - 1];
        struct core_attempt *attempt = core_active(job);

        core_jobs_remove(&core->growers, job);
        if (attempt && attempt->rec.state == HD_ATTEMPT_STATE_RUNNING && !job->rec.cancel &&
            !core->line_count && !grew_in_vain(job, attempt))
            grow(core, job, attempt);
    }
}
