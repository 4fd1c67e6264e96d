/* move: stops running jobs at a checkpoint so that they continue elsewhere: away from nodes that
 * have a drain deadline or whose daemon exits, or on more devices. */
#include <stdlib.h>
#include <string.h>

#include "controller/core/schedule/schedule.h"
#include "controller/core/state/texts.h"

enum { GAIN_FACTOR = 2 }; /* minimum ratio of the time saved to the cost of a restart */

/* ---- nodes to be emptied ----------------------------------------------------------------------*/

/* Returns whether a preempted attempt is stopping: it will take the free placement, so the next job
 * waits. */
static bool something_moves(const struct hd_core *core)
{
    for (size_t i = 0; i < core->active.count; i++)
        if (core_is_being_preempted(core->active.items[i]))
            return true;
    return false;
}

/* Returns whether the job would fit now on nodes other than those that it must leave; draining
 * nodes accept no job. */
static bool fits_elsewhere(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    struct core_view view = core_view_of(core, job);
    struct core_forecast without;
    bool fits;

    if (!core_forecast_init(core, NULL, 0, &without))
        return false;
    core_forecast_end(&without, attempt, true);
    view.reserves = true;
    view.forecast = &without;
    fits = core_has_placement(core, &view);
    core_forecast_done(&without);
    return fits;
}

static void leave(struct hd_core *core, struct core_job *job, struct core_attempt *attempt,
                  const struct core_node *node, enum core_leave_cause cause)
{
    core_event_leaves_node(core, job, attempt, node, cause);
    core_evict(core, job, attempt, HD_END_CAUSE_PREEMPTED, 0);
}

/* Returns whether the node's device list has the same job at a lower index, so that it was handled
 * already. */
static bool holds_before(const struct core_node *node, int32_t device)
{
    for (int32_t d = 0; d < device; d++)
        if (node->holds[d].job == node->holds[device].job)
            return true;
    return false;
}

static void clear_node(struct hd_core *core, const struct core_node *node)
{
    const bool is_over =
        core_node_has_deadline(node) && core->now.wall_ms >= node->rec.drain_deadline_ms;

    for (int32_t d = 0; d < node->rec.device_count; d++) {
        struct core_job *job = core_find_job(core, node->holds[d].job);
        struct core_attempt *attempt = job ? core_active(job) : NULL;

        if (!attempt || holds_before(node, d) || attempt->rec.state == HD_ATTEMPT_STATE_STOPPING ||
            job->rec.cancel)
            continue;
        if (node->leaves)
            leave(core, job, attempt, node, CORE_LEAVE_DAEMON_ENDS);
        else if (is_over)
            leave(core, job, attempt, node, CORE_LEAVE_DEADLINE);
        else if (!something_moves(core) && fits_elsewhere(core, job, attempt))
            leave(core, job, attempt, node, CORE_LEAVE_FITS_ELSEWHERE);
    }
}

void core_leave_nodes(struct hd_core *core)
{
    size_t kept = 0;

    for (size_t i = 0; i < core->leaving_count; i++) {
        struct core_node *node = core->leaving[i];

        if (!node->leaves && !core_node_has_deadline(node))
            continue;
        core->leaving[kept++] = node;
        if ((node->leaves && node->connected) ||
            (core_node_has_deadline(node) && node->rec.state == HD_NODE_STATE_DRAINING))
            clear_node(core, node);
    }
    core->leaving_count = kept;
}

/* ---- growth -----------------------------------------------------------------------------------*/

/* Returns whether the job's last restart for more devices brought it none; it does not try again in
 * this attempt. */
static bool resizing_thrashes(const struct core_job *job, const struct core_attempt *attempt)
{
    const struct core_attempt *before = core_find_attempt(job, attempt->rec.attempt - 1);

    return before && before->rec.end.cause == HD_END_CAUSE_RESIZED &&
           attempt->rec.plan.rank_count <= before->rec.plan.rank_count;
}

/* Devices that a job could reach by a restart with more devices. */
struct reachable {
    int32_t devices; /* number of devices, of the kind that the job has now; 0: none */
    double step_s;   /* predicted seconds per step on these devices; 0: unknown */
    bool later;      /* true: the step time is still being predicted; core_planned makes the job try
                      * again */
};

static struct reachable find_reach(struct hd_core *core, struct core_job *job,
                                   struct core_attempt *attempt)
{
    struct core_view view = core_view_of(core, job);
    struct hd_job_needs needs = job->needs;
    struct core_layout_client client = core_layout_client_of(job, &needs);
    struct core_forecast without;
    struct hd_text why = {0};
    struct reachable reach = {0};
    struct core_placement placement;
    bool by_user;
    const int64_t left = core_quota_left(job->account, &by_user);

    needs.device = attempt->kind;
    if (job->account->queue->rec.closed)
        return reach;
    if (left < needs.devices_max - attempt->rec.plan.rank_count)
        needs.devices_max = attempt->rec.plan.rank_count + (int32_t)left;
    if (needs.devices_max <= attempt->rec.plan.rank_count)
        return reach;
    if (!core_forecast_init(core, NULL, 0, &without))
        return reach;
    core_forecast_end(&without, attempt, true);
    view.needs = &needs;
    view.forecast = client.forecast = &without;
    placement = core_find_placement(core, &view);
    reach.devices = placement.device_count;
    if (reach.devices > attempt->rec.plan.rank_count)
        switch (core_ask_for(core, &client, &placement, &why)) {
        case CORE_LAYOUT_FITS:
            reach.step_s = placement.plan.step_s;
            break;
        case CORE_LAYOUT_LATER:
            reach.later = true;
            break;
        case CORE_LAYOUT_INFEASIBLE:
            reach.devices = 0;
            break;
        }
    core_forecast_done(&without);
    free(placement.members);
    hd_text_free(&why);
    return reach;
}

/* Returns the step time on the new devices divided by that on the present ones. If one is unknown,
 * step time is assumed inversely proportional to the number of devices. */
static double remaining_fraction(const struct core_attempt *attempt, const struct reachable *reach)
{
    if (reach->step_s > 0 && attempt->rec.plan.step_s > 0)
        return reach->step_s / attempt->rec.plan.step_s;
    return (double)attempt->rec.plan.rank_count / reach->devices;
}

static void resize(struct hd_core *core, struct core_job *job, struct core_attempt *attempt)
{
    const int32_t have = attempt->rec.plan.rank_count;
    const int64_t left_ms = core_predict_end(core, job, attempt) - core->now.mono_ms;
    const int64_t cost_ms = core_stop_cost_of(core, attempt).restart_ms;
    struct reachable reach;
    int64_t gain_ms;

    if (core_step_ms(attempt) <= 0 || left_ms < GAIN_FACTOR * cost_ms)
        return;
    reach = find_reach(core, job, attempt);
    if (reach.devices <= have || reach.later)
        return;
    gain_ms = left_ms - (int64_t)((double)left_ms * remaining_fraction(attempt, &reach));
    if (gain_ms < GAIN_FACTOR * cost_ms)
        return;
    core_event_growing(core, job, attempt, reach.devices, gain_ms, cost_ms);
    core_evict(core, job, attempt, HD_END_CAUSE_RESIZED, 0);
}

void core_resize_jobs(struct hd_core *core)
{
    while (core->resize_candidates.count) {
        struct core_job *job = core->resize_candidates.items[core->resize_candidates.count - 1];
        struct core_attempt *attempt = core_active(job);

        core_jobs_remove(&core->resize_candidates, job);
        if (attempt && attempt->rec.state == HD_ATTEMPT_STATE_RUNNING && !job->rec.cancel &&
            !core->group_count && !resizing_thrashes(job, attempt))
            resize(core, job, attempt);
    }
}
