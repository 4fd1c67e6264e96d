/* schedule: the pass, which evaluates queued jobs in order and starts them or reserves devices.
 *
 * Jobs are evaluated by priority; of equal priority in the order of slowdown.c. A job starts when
 * one placement gives it all its devices at once (place.c). A job that does not fit may preempt
 * jobs of lower priority (preempt.c), and the first jobs that do not fit get reservations
 * (reserve.c), so that none starves.
 *
 * Of each class of equal jobs (waiting.c) a pass evaluates those that start or reserve nodes, and
 * one more. A start changes fair shares and thus the order: a pass that started or stopped anything
 * is followed by another, until one changes nothing. A job whose layout is still being computed
 * (layout_cache.c) reserves its placement, and does not close its class. A job that is submitted
 * while nothing else changes, behind all others, is evaluated alone: the newest pass has decided
 * about the others, unless the only other job decided as one with no job behind it (better.c).
 * core_schedule_check states the rule in its simplest form.
 */
#include <stdlib.h>

#include "controller/core/schedule/schedule.h"
#include "controller/core/state/texts.h"

/* ---- evaluation of one job --------------------------------------------------------------------*/

static void close_class(struct hd_core *core, const struct core_job *job)
{
    struct core_class *class = job->group->key.class;

    class->closed_in = core->pass;
    class->wait = job->wait;
    class->wait_job = job->wait_job;
}

/* Returns whether a step in this placement takes longer than was assumed when the placement was
 * found, so that the job would hold devices reserved for others for too long. The job is then
 * reclassified with the longer length. */
static bool overruns(struct hd_core *core, struct core_job *job, const struct core_view *view,
                     const struct core_placement *placement)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);
    const bool settled = !(core->due & CORE_DUE_TICK);
    struct core_view longer = *view;
    bool late = false;

    longer.length_ms = core_predict_length_at(core, job, placement->plan.step_s);
    if (!view->length_ms || longer.length_ms <= view->length_ms ||
        placement->plan.step_s <= job->open_s)
        return false;
    for (size_t i = 0; i < placement->member_count && !late; i++)
        late = core_available(core, &longer, placement->members[i].node->index, kind) <
               placement->members[i].count;
    if (!late)
        return false;
    job->open_s = placement->plan.step_s;
    if (job->group)
        core_waiting_moved(core, job);
    if (settled) /* this pass evaluates the job with its new length */
        (void)core_take_due(core, CORE_DUE_TICK);
    return true;
}

void core_limit_to(struct core_view *view, struct hd_job_needs *needs,
                   const struct core_placement *placement)
{
    if (needs->devices_max > placement->device_count)
        needs->devices_max = placement->device_count;
    view->nodes_max = (int32_t)placement->member_count;
    view->tier_max = placement->tier;
}

/* Finds a placement for the job, with a layout that fits. borrows: also uses devices reserved for
 * others.
 *
 *   FITS        *ret_placement is complete
 *   INFEASIBLE  there is no placement, or the job has failed
 *   LATER       there is one, and its layout is being computed
 */
static enum core_layout find_fitting(struct hd_core *core, struct core_job *job, bool borrows,
                                     struct core_placement *ret_placement, struct hd_text *why)
{
    struct hd_job_needs needs;
    int64_t memory_bytes;

    job->planning = NULL;
    while (core_within_quota(job, &needs)) {
        const struct core_layout_client client = core_layout_client_of(job, &needs);
        struct core_view view = core_view_of(core, job);
        const struct core_cached_layout *entry;
        enum core_layout layout;

        view.needs = &needs;
        view.borrows = borrows;
        if (job->pending)
            core_limit_to(&view, &needs, job->pending);
        *ret_placement = core_find_placement(core, &view);
        if (!ret_placement->device_count)
            return CORE_LAYOUT_INFEASIBLE;
        layout = core_choose_layout(core, &client, ret_placement, &memory_bytes, &entry, why);
        if (layout == CORE_LAYOUT_LATER)
            job->planning = entry;
        if (layout == CORE_LAYOUT_FITS && !borrows && overruns(core, job, &view, ret_placement)) {
            free(ret_placement->members);
            hd_text_clear(why);
            continue;
        }
        if (layout != CORE_LAYOUT_INFEASIBLE)
            return layout;
        free(ret_placement->members);
        if (!core_take_infeasible(core, job, ret_placement->device_count, memory_bytes,
                                  core_text(core, why)))
            return layout;
        hd_text_clear(why);
    }
    return CORE_LAYOUT_INFEASIBLE;
}

/* Returns whether nothing has changed for the job: it still waits for a layout, or to request one,
 * reserved nothing in the newest pass, and cannot reserve now either. */
static bool still_plans(const struct hd_core *core, const struct core_job *job)
{
    const bool unknown = job->planning ? !job->planning->known
                                       : job->wait == CORE_WAIT_PLAN && core_asks_no_more(core);

    return unknown && !job->is_preemptor && job->reserved_in + 1 != core->pass &&
           core->reservers.count >= CORE_RESERVERS_MAX;
}

/* Reserves devices for a job that does not fit now, and preempts other jobs for it. */
static void let_wait(struct hd_core *core, struct core_job *job)
{
    struct core_view view = core_view_of(core, job);
    struct core_start start, pending_start;
    struct hd_job_needs needs;
    bool reserved, opens;

    if (!core_within_quota(job, &needs)) {
        job->wait = CORE_WAIT_QUOTA;
        job->group->closed_in = core->pass; /* the quota that is left to an account only shrinks
                                             * during a pass */
        core_pending_end(core, job);
        return;
    }
    view.needs = &needs;
    reserved = core_reserve_earliest(core, job, &view, &start);
    /* the job can start at once with devices that it reclaims from borrowers */
    opens = reserved && start.mono_ms <= core->now.mono_ms && !start.unpriced;
    if (opens || (reserved && job->choice.taken)) { /* preempt only for a placement that is as
                                                     * good */
        view.nodes_max = start.nodes;
        view.tier_max = start.tier;
    }
    if (core->assembled && !core_pending_awaits_nodes(core, job)) {
        if (!core_preempt(core, job, &view, opens))
            core_pending_end(core, job);
        else if (core_pending_check(core, job, &pending_start) != CORE_PENDING_NONE) {
            core_unreserve_job(core, job->rec.job);
            core_reserve_members(core, job, job->pending, CORE_CLEARING, pending_start.mono_ms);
            start = pending_start; /* the start expected without preemption is never reported */
            reserved = true;
        }
    }
    if (reserved)
        core_expect(core, job, start);
    else if (needs.devices_max == job->needs.devices_max)
        close_class(core, job);
    else
        job->group->closed_in = core->pass;
}

/* Marks the job's new attempt as a borrower if it uses devices reserved for others: it runs until
 * one of those jobs can start. */
static void report_borrowing(struct hd_core *core, struct core_job *job)
{
    struct core_attempt *attempt = core_active(job);

    if (!attempt)
        return;
    attempt->rec.borrows = true;
    core_list_attempt(core, job, attempt);
    core_event_borrowing(core, job, attempt);
}

/* Returns whether the job takes devices that are reserved for other jobs, because it is predicted
 * to end before those need them. */
static bool is_backfill(struct hd_core *core, const struct core_job *job,
                        const struct core_placement *placement)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);
    struct core_view view = core_view_of(core, job);
    bool backfilled = false;

    view.length_ms = 0;
    for (size_t i = 0; i < placement->member_count && !backfilled; i++)
        backfilled = core_available(core, &view, placement->members[i].node->index, kind) <
                     placement->members[i].count;
    return backfilled;
}

/* Returns whether attempts are still stopping on the devices of the job's pending placement; the
 * job then reserves that placement and waits. Else the pending placement is dropped. */
static bool awaits_pending(struct hd_core *core, struct core_job *job)
{
    struct hd_job_needs needs;
    struct core_start start;

    if (core_pending_check(core, job, &start) != CORE_PENDING_CLEARING ||
        !core_within_quota(job, &needs)) {
        core_pending_drop(job); /* all its devices are free, but the job does not fit there: it
                                 * searches again */
        return false;
    }
    core_reserve_members(core, job, job->pending, CORE_CLEARING, start.mono_ms);
    job->wait = CORE_WAIT_BUSY;
    job->choice = (struct hd_core_choice){0};
    core_expect(core, job, start);
    return true;
}

/* Starts a job that fits now, or lets it wait for a better placement (better.c); a job that borrows
 * does not wait. Owns the members of *placement from now on. */
static void start_or_wait(struct hd_core *core, struct core_job *job,
                          const struct core_placement *placement, bool borrows, const char *layout)
{
    struct core_first first = {.placement = *placement, .start = {.mono_ms = core->now.mono_ms}};
    enum core_start_choice start_choice = CORE_TAKE_FIRST;
    enum core_defragmented defragmented = CORE_DEFRAGMENTS_NOT;

    if (!borrows)
        defragmented = core_defragment(core, job, placement, &first.entry);
    if (defragmented == CORE_DEFRAGMENTS && awaits_pending(core, job)) {
        free(first.placement.members);
        return;
    }
    if (defragmented == CORE_DEFRAGMENTS_LATER && core_waits_for_price(core, job))
        start_choice = CORE_WAIT_FOR_PRICE;
    else if (!borrows)
        start_choice = core_choose_start(core, NULL, job, &job->needs, &first);
    if (start_choice == CORE_WAIT_FOR_PRICE) {
        core_reserve_placement(core, job, placement);
        job->planning = first.entry;
        job->wait = CORE_WAIT_PLAN;
    } else if (start_choice == CORE_TAKE_LATER) {
        core_reserve_members(core, job, &first.placement, CORE_PLANNED, first.start.mono_ms);
        job->wait = CORE_WAIT_BETTER;
        core_expect(core, job, first.start);
    } else {
        job->backfilled = !borrows && is_backfill(core, job, &first.placement);
        core_attempt_start(core, job, &first.placement, layout);
        if (borrows)
            report_borrowing(core, job);
        else if (core_active(job) && job->choice.step_now_s > 0)
            core_event_weighed(core, job);
        core->due |= CORE_DUE_REPEAT;
    }
    free(first.placement.members);
}

void core_reserve_while_planning(struct hd_core *core, struct core_job *job,
                                 const struct core_placement *placement)
{
    struct core_start start;

    if (core_pending_check(core, job, &start) != CORE_PENDING_NONE)
        core_reserve_members(core, job, job->pending, CORE_CLEARING, start.mono_ms);
    else
        core_reserve_placement(core, job, placement);
}

/* Starts the job or reserves devices for it. Where neither is possible the job's class is closed
 * for this pass: during a pass free devices only shrink and reservations only grow, so no other job
 * of the class would fare better. */
static void decide(struct hd_core *core, struct core_job *job)
{
    struct core_placement placement = {0};
    struct hd_text why = {0};
    enum core_layout layout;
    struct core_start start;
    bool borrows = false;

    core->out->evaluated++;
    job->evaluated_in = core->pass;
    if (core_pending_check(core, job, &start) == CORE_PENDING_NONE) {
        core_pending_drop(job);
        core_migration_end(core, job); /* a migrating job loses its target with the reservation */
    }
    if (still_plans(core, job)) {
        job->wait = CORE_WAIT_PLAN;
        return;
    }
    job->wait = CORE_WAIT_NONE;
    job->wait_job = 0;
    layout = find_fitting(core, job, false, &placement, &why);
    if (layout == CORE_LAYOUT_INFEASIBLE && job->group && job->pending &&
        awaits_pending(core, job)) {
        hd_text_free(&why);
        return;
    }
    if (layout == CORE_LAYOUT_INFEASIBLE && job->group &&
        core_may_borrow(core, &(struct core_view){.job = job, .borrows = true})) {
        hd_text_clear(&why);
        layout = find_fitting(core, job, true, &placement, &why);
        borrows = layout == CORE_LAYOUT_FITS && core_is_near(core, &job->needs, &placement);
        if (layout != CORE_LAYOUT_INFEASIBLE && !borrows) { /* the job does not wait for this
                                                             * layout */
            free(placement.members);
            job->planning = NULL;
            layout = CORE_LAYOUT_INFEASIBLE;
        }
    }
    if (layout == CORE_LAYOUT_FITS) {
        start_or_wait(core, job, &placement, borrows, core_text(core, &why));
    } else if (layout == CORE_LAYOUT_LATER) {
        core_reserve_while_planning(core, job, &placement);
        free(placement.members);
        job->wait = CORE_WAIT_PLAN;
    } else if (job->group) {
        let_wait(core, job);
    }
    core->no_memory |= why.failed;
    hd_text_free(&why);
}

static void evaluate(struct hd_core *core, struct core_job *job)
{
    const bool never = job->wait == CORE_WAIT_NEVER;

    decide(core, job);
    core_due_if(core, CORE_DUE_LONE, (job->wait == CORE_WAIT_NEVER) != never);
}

/* ---- the pass ---------------------------------------------------------------------------------*/

/* Returns the queue whose next job is evaluated next: the one with the smallest share; among equals
 * the one whose job comes first by slowdown. NULL: no queue has jobs left. */
static struct core_queue *next_queue(const struct hd_core *core)
{
    struct core_queue *best = NULL;

    for (size_t i = 0; i < core->queue_count; i++) {
        struct core_queue *queue = core->queues[i];

        if (queue->next.count && (!best || core_queue_is_behind(best, queue) ||
                                  (!core_queue_is_behind(queue, best) &&
                                   queue->next.items[0].key < best->next.items[0].key)))
            best = queue;
    }
    return best;
}

static bool is_closed(const struct hd_core *core, const struct core_job_group *group)
{
    return group->closed_in == core->pass || group->key.class->closed_in == core->pass;
}

static void put_next(struct hd_core *core, struct core_job *job)
{
    core_set_slowdown_priority(core, job);
    core_heap_put(core, &job->account->queue->next, job->slowdown_priority.key,
                  (uint64_t)(uintptr_t)job);
}

/* Evaluates the queued jobs of one priority; `groups` are all their groups. */
static void pass_over_groups(struct hd_core *core, struct core_job_group *const *groups,
                             size_t count)
{
    struct core_queue *queue;

    for (size_t i = 0; i < core->preemptors.count;) {
        struct core_job *job = core->preemptors.items[i];

        if (job->rec.priority == groups[0]->key.priority && job->group &&
            job->evaluated_in != core->pass)
            evaluate(core, job);
        i += core_jobs_have(&core->preemptors, job); /* a job that has started has left the set */
    }
    for (size_t i = 0; i < count; i++)
        if (groups[i]->first)
            put_next(core, groups[i]->first);
    while ((queue = next_queue(core))) {
        struct core_job *job = (struct core_job *)(uintptr_t)queue->next.items[0].value;
        struct core_job_group *group = job->group;
        struct core_job *after = job->after;

        core_heap_take(&queue->next);
        if (is_closed(core, group))
            continue;
        if (job->evaluated_in != core->pass)
            evaluate(core, job);
        if (after)
            put_next(core, after);
    }
}

static void pass_once(struct hd_core *core, struct core_job_group **groups)
{
    const size_t count = core->group_count;

    core->pass++;
    core->pass_wall_ms = core->now.wall_ms;
    (void)core_take_due(core, CORE_DUE_REPEAT | CORE_DUE_LONE);
    core_list_with_hot_spares(core);
    core_reserve_for_failed(core);
    core_reserve_migration_targets(core);
    if (count) /* iterates over a copy, because an evaluation may add groups */
        memcpy(groups, core->groups, count * sizeof *groups);
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from; to < count && groups[to]->key.priority == groups[from]->key.priority;)
            to++;
        pass_over_groups(core, groups + from, to - from);
    }
}

static void pass(struct hd_core *core)
{
    struct core_job_group **groups;
    bool again = false; /* one more pass, for jobs whose choice depends on whether others wait */

    do {
        groups = calloc(core->group_count + 1, sizeof(struct core_job_group *));
        if (!groups) {
            core->no_memory = true;
            return;
        }
        pass_once(core, groups);
        free(groups);
        core_notify_dependents(core);
        core_arrays_settle(core);
        core_leave_nodes(core);
        again = (core->due & CORE_DUE_LONE) && !again;
    } while (((core->due & CORE_DUE_REPEAT) || again) && core->group_count);
    core_sweep_planned_starts(core);
}

/* Returns whether all other queued jobs come before this one, whatever their queue. */
static bool is_in_last_group(const struct hd_core *core, const struct core_job *job)
{
    const struct core_job_group *last =
        core->group_count ? core->groups[core->group_count - 1] : NULL;

    if (!last || job->rec.priority > last->key.priority)
        return false;
    for (size_t i = core->group_count; i > 0; i--) {
        const struct core_job_group *group = core->groups[i - 1];

        if (group->key.priority != job->rec.priority)
            break;
        if (group->key.account->queue != job->account->queue)
            return false;
    }
    return true;
}

void core_schedule(struct hd_core *core)
{
    struct core_job *new_job = core->new_job;

    core->new_job = NULL;
    if (core_take_due(core, CORE_DUE_DEVICES)) {
        core_forget_infeasible(core);
        core_predict_prices_again(core);
    }
    if (!core->assembled)
        core_assemble(core);
    if ((core->due & CORE_DUE_PASS) ||
        (new_job &&
         ((core->due & CORE_DUE_TICK) || core_waiting_due(core) ||
          (new_job->group && ((core->due & CORE_DUE_ENDS) || !is_in_last_group(core, new_job) ||
                              core_ends_lone_wait(core, new_job)))))) {
        (void)core_take_due(core, CORE_DUE_PASS | CORE_DUE_TICK);
        core_waiting_release(core);
        pass(core);
    } else if (new_job && new_job->group && !is_closed(core, new_job->group)) {
        /* the decisions of the newest pass about other jobs are still valid */
        core_set_slowdown_priority(core, new_job);
        evaluate(core, new_job);
        core_report_planned_starts(core);
    }
    core_predict_prices(core);
    core_waiting_sweep(core);
    core_resize_jobs(core);
    core_forecast_done(&core->opened);
}
