/* reserve: reserves devices for jobs that do not fit now, and computes their expected starts.
 *
 * The first jobs that do not fit (at most CORE_RESERVERS_MAX per pass) get a reservation each: the
 * placement that the predicted ends of attempts (predict.c) make possible first, found by a search
 * in the cluster as it will be then. Later jobs may use a reserved node if that delays nothing: its
 * surplus devices, or all of them if they end before (backfill; Lifka 1995, "The ANL/IBM SP
 * scheduling system"). Where no end is known, the job reserves the node or nodes that suit it best,
 * and other jobs use only their surplus.
 *
 * An expected start is stored with the job, and moves only with an event that names the cause.
 * Small movements are not reported: up to a minute, or a tenth of the time left.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "controller/core/schedule/schedule.h"
#include "controller/core/state/texts.h"

enum { TOLERANCE_MS = 60 * 1000, TOLERANCE_DIVISOR = 10 };

/* ---- reservations -----------------------------------------------------------------------------*/

/* Sets blocked_at if the pass before this one reserved nothing for the job. */
static void note_blocked(const struct hd_core *core, struct core_job *job)
{
    if (job->reserved_in + 1 < core->pass)
        job->blocked_at = core->starts;
}

/* Records that this pass has reserved nodes for the job. */
static void join_reservers(struct hd_core *core, struct core_job *job)
{
    note_blocked(core, job);
    job->reserved_in = core->pass;
    core_jobs_add(core, &core->reservers, job);
}

void core_reserve_members(struct hd_core *core, struct core_job *job,
                          const struct core_placement *placement, enum core_allocation_why why,
                          int64_t start_mono_ms)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);

    for (size_t i = 0; i < placement->member_count; i++)
        core_reserve_node(core, placement->members[i].node, why, job->rec.job, kind, start_mono_ms,
                          placement->members[i].surplus);
    join_reservers(core, job);
}

/* Reserves the placement on one device kind that becomes available first, or a later one with which
 * the job ends earlier. False: there is none. */
static bool reserve_first(struct hd_core *core, struct core_job *job, const struct core_view *view,
                          enum hd_device_kind kind, struct core_start *ret_start)
{
    enum core_start_choice start_choice = CORE_TAKE_FIRST;
    struct core_forecast forecast;
    struct core_first first;
    bool reserved;

    if (!core_forecast_for(core, job, &forecast))
        return false;
    core_find_first(core, &forecast, view, kind, NULL, &first);
    reserved = first.placement.device_count > 0;
    if (reserved) /* core_choose_start keeps the first placement if a step time is unknown */
        start_choice = core_choose_start(core, &forecast, job, view->needs, &first);
    core_forecast_done(&forecast);
    if (reserved) {
        job->choice.taken = start_choice == CORE_TAKE_LATER;
        *ret_start = first.start;
        ret_start->unpriced =
            start_choice == CORE_WAIT_FOR_PRICE || first.layout == CORE_LAYOUT_LATER;
        ret_start->nodes = (int32_t)first.placement.member_count;
        ret_start->tier = first.placement.tier;
        core_reserve_members(core, job, &first.placement, CORE_PLANNED, first.start.mono_ms);
    }
    free(first.placement.members);
    return reserved;
}

static bool reserve_by_ends(struct hd_core *core, struct core_job *job,
                            const struct core_view *view, struct core_start *ret_start)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(view->needs, kinds);
    struct core_view least_view = *view;
    struct hd_job_needs least;
    bool reserved = false;

    least_view.needs = &least;
    least_view.reserves = true;
    for (size_t k = 0; k < kind_count && !reserved; k++)
        reserved = core_least_needs(view->needs, kinds[k], &least) &&
                   reserve_first(core, job, &least_view, kinds[k], ret_start);
    return reserved;
}

/* Reserves nodes on which the job would fit if they were idle; used when the end of no attempt is
 * known. */
static bool reserve_idle(struct hd_core *core, struct core_job *job, const struct core_view *view)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT], kind = HD_DEVICE_KIND_ANY;
    const size_t kind_count = core_kinds(view->needs, kinds);
    struct core_node *node = core_find_idle_node(core, view, &kind, &job->wait_job);
    bool reserved = node != NULL;

    if (node)
        core_reserve_node(core, node, CORE_PLANNED, job->rec.job, kind, INT64_MAX,
                          core_count_for(view, node, kind, true) -
                              core_devices_needed(view->needs, kind));
    for (size_t k = 0; k < kind_count && !reserved; k++)
        reserved =
            core_may_span(view->base) && core_gang_reserve(core, view, kinds[k], &job->wait_job);
    return reserved;
}

bool core_reserve_earliest(struct hd_core *core, struct core_job *job, const struct core_view *view,
                           struct core_start *ret_start)
{
    bool reserved;

    *ret_start = (struct core_start){.mono_ms = INT64_MAX};
    job->choice = (struct hd_core_choice){0};
    if (core->reservers.count >= CORE_RESERVERS_MAX) {
        job->wait = CORE_WAIT_RESERVED;
        job->wait_job = core->reservers.items[0]->rec.job;
        return false;
    }
    note_blocked(core, job); /* reserve_idle reads it */
    reserved = reserve_by_ends(core, job, view, ret_start) || reserve_idle(core, job, view);
    if (reserved) {
        job->wait = CORE_WAIT_BUSY;
        join_reservers(core, job);
    } else {
        job->wait = job->wait_job ? CORE_WAIT_RESERVED : CORE_WAIT_NEVER;
    }
    return reserved;
}

void core_reserve_placement(struct hd_core *core, struct core_job *job,
                            const struct core_placement *placement)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);

    if (core->reservers.count >= CORE_RESERVERS_MAX)
        return;
    for (size_t i = 0; i < placement->member_count; i++) {
        const struct core_member *member = &placement->members[i];

        if (!core_reserved_by(core, member->node))
            core_reserve_node(
                core, member->node, CORE_PLANNED, job->rec.job, kind, core->now.mono_ms,
                core_count_devices(&job->needs, member->node, kind, true) - member->count);
    }
    join_reservers(core, job);
}

/* ---- expected starts --------------------------------------------------------------------------*/

/* Returns whether some node is silent or connecting and not lost yet, so that the predicted ends of
 * its attempts may still hold. */
static bool awaits_nodes(const struct hd_core *core)
{
    for (size_t i = 0; i < core->node_count; i++)
        if (core_node_may_come_back(core->nodes[i]) &&
            (!core->nodes[i]->synced || core->nodes[i]->rec.state == HD_NODE_STATE_UNREACHABLE))
            return true;
    return false;
}

static bool is_news(const struct hd_core *core, int64_t before_ms, int64_t now_ms)
{
    const int64_t off_ms = now_ms > before_ms ? now_ms - before_ms : before_ms - now_ms;
    const int64_t left_ms = before_ms - core->now.wall_ms;

    if (!before_ms || !now_ms)
        return before_ms != now_ms;
    return off_ms > TOLERANCE_MS && (left_ms <= 0 || off_ms * TOLERANCE_DIVISOR > left_ms);
}

/* Returns why the job's expected start is `start` now. */
static struct core_start_cause find_cause(const struct hd_core *core, const struct core_job *job,
                                          struct core_start start)
{
    struct core_start_cause cause = {.job = start.after, .before = job->waits_for};

    cause.takes_later = job->choice.taken && job->wait == CORE_WAIT_BUSY;
    if (job->wait == CORE_WAIT_HELD)
        cause.kind = CORE_START_HELD;
    else if (job->wait == CORE_WAIT_QUOTA)
        cause.kind = job->account->queue->rec.closed ? CORE_START_QUEUE_CLOSED : CORE_START_QUOTA;
    else if (job->wait == CORE_WAIT_BETTER)
        cause.kind = CORE_START_BETTER;
    else if (job->wait == CORE_WAIT_RESERVED && job->wait_job)
        cause.kind = CORE_START_BEHIND;
    else if (start.after && core_is_being_preempted(core_find_job(core, start.after)))
        cause.kind = CORE_START_PREEMPTS;
    else if (start.after && start.after == job->waits_for)
        cause.kind = CORE_START_PACE;
    else if (start.after)
        cause.kind = job->waits_for ? CORE_START_OTHER_JOB : CORE_START_FREES;
    else if (job->waits_for && job->wait != CORE_WAIT_NEVER)
        cause.kind = CORE_START_END_UNKNOWN;
    else
        cause.kind = CORE_START_NODES;
    if (cause.kind == CORE_START_BEHIND)
        cause.job = job->wait_job;
    else if (cause.kind == CORE_START_END_UNKNOWN)
        cause.job = job->waits_for;
    return cause;
}

static void report_planned_start(struct hd_core *core, struct core_job *job,
                                 struct core_start start)
{
    const int64_t before_ms = job->rec.planned_start_ms;
    const int64_t now_ms =
        start.mono_ms == INT64_MAX ? 0 : core->now.wall_ms + start.mono_ms - core->now.mono_ms;
    struct core_start_cause cause;

    if (!core->assembled && (!before_ms || before_ms > core->now.wall_ms))
        return;
    if (!is_news(core, before_ms, now_ms) ||
        (!now_ms && before_ms > core->now.wall_ms && awaits_nodes(core)))
        return;
    cause = find_cause(core, job, start);
    core_event_start(core, job, before_ms, now_ms, &cause);
    job->rec.planned_start_ms = now_ms;
    job->waits_for = start.after;
    core_dirty_job(core, job);
    if (now_ms)
        core_jobs_add(core, &core->planned_to_start, job);
    else
        core_jobs_remove(&core->planned_to_start, job);
}

int64_t hd_core_expected_start_ms(const struct hd_job_record *job, struct hd_now now)
{
    if (job->state != HD_JOB_STATE_QUEUED || !job->planned_start_ms)
        return 0;
    return job->planned_start_ms > now.wall_ms ? job->planned_start_ms : now.wall_ms;
}

void core_expect(struct hd_core *core, struct core_job *job, struct core_start start)
{
    job->expected_mono_ms = start.mono_ms;
    job->expected_after = start.after;
    job->expected_in = core->pass;
}

void core_report_planned_starts(struct hd_core *core)
{
    for (size_t i = 0; i < core->reservers.count; i++) {
        struct core_job *job = core->reservers.items[i];

        if (job->expected_in == core->pass && job->group)
            report_planned_start(core, job,
                                 (struct core_start){.mono_ms = job->expected_mono_ms,
                                                     .after = job->expected_after});
        job->expected_in = 0;
    }
}

void core_sweep_planned_starts(struct hd_core *core)
{
    core_report_planned_starts(core);
    for (size_t i = core->planned_to_start.count; i > 0; i--) {
        struct core_job *job = core->planned_to_start.items[i - 1];

        if (!core_jobs_have(&core->reservers, job))
            report_planned_start(core, job, (struct core_start){.mono_ms = INT64_MAX});
    }
}

void core_planned_start_timers(struct hd_core *core)
{
    for (size_t i = 0; i < core->reservers.count; i++) {
        const struct core_job *job = core->reservers.items[i];

        core_due_if(core, CORE_DUE_PASS,
                    job->wait == CORE_WAIT_PLAN && job->price_mono_ms &&
                        core->now.mono_ms >= job->price_mono_ms);
    }
    for (size_t i = 0; i < core->planned_to_start.count; i++)
        core_due_if(core, CORE_DUE_PASS,
                    core->now.wall_ms >
                        core->planned_to_start.items[i]->rec.planned_start_ms + TOLERANCE_MS);
}
