/* schedule: the pass, which decides which queued job is looked at when, and what becomes of it.
 *
 * Jobs are looked at by priority; of equal priority in the order of slowdown.c. A job starts when one
 * placement gives it all its devices at once (place.c). One that does not fit may make jobs of
 * lower priority are preempted (preempt.c), and the first of those that do not fit have devices kept for
 * them (reserve.c), so that none starves.
 *
 * Of jobs that wait for the same (waiting.c) a pass looks at as many as start or reserve nodes, and
 * one more. A start changes shares, and with that the order: a pass that started or stopped
 * something is followed by another one, until one changes nothing. A job whose layout is still
 * being found (layout_cache.c) keeps its place, and closes nothing. A job that is submitted while nothing
 * else changes, behind all others, is looked at alone: the newest pass has decided about the
 * others, unless there is one other, which thought that none waits behind it (better.c).
 * core_schedule_check has the rule in its simplest form.
 */
#include <stdlib.h>

#include "controller/core/core_internal.h"

/* ---- a look at one job ------------------------------------------------------------------------*/

static void close_class(struct hd_core *core, const struct core_job *job)
{
    struct core_class *class = job->group->key.class;

    class->closed_in = core->pass;
    class->wait = job->wait;
    class->wait_job = job->wait_job;
}

/* In this place the job's steps take more time than was assumed when it was found, so that it would
 * hold devices for too long that are kept for others. It is of the class of such jobs then. */
static bool overruns(struct hd_core *core, struct core_job *job, const struct core_view *view,
                     const struct core_placement *placement)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);
    const bool unsettled = core->unsettled;
    struct core_view longer = *view;
    bool late = false;

    longer.length_ms = core_predict_length_at(core, job, placement->plan.step_s);
    if (!view->length_ms || longer.length_ms <= view->length_ms ||
        placement->plan.step_s <= job->open_s)
        return false;
    for (size_t i = 0; i < placement->member_count && !late; i++)
        late = core_available(core, &longer, placement->members[i].node, kind) <
               placement->members[i].count;
    if (!late)
        return false;
    job->open_s = placement->plan.step_s;
    if (job->group)
        core_waiting_moved(core, job);
    core->unsettled = unsettled; /* this pass looks at it with its new length */
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

/* Finds a place with a layout that fits there; borrows: also on devices that are kept for others.
 * MISFITS: there is no place, or the job has failed. LATER: there is one, and its layout is being
 * found. */
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
                                  why->failed || !why->data ? "" : why->data))
            return layout;
        hd_text_clear(why);
    }
    return CORE_LAYOUT_INFEASIBLE;
}

/* It waits for a layout, or to ask for one, and kept no place for that in the newest pass: nothing
 * has changed. */
static bool still_plans(const struct hd_core *core, const struct core_job *job)
{
    const bool unknown = job->planning ? !job->planning->known
                                       : job->wait == CORE_WAIT_PLAN && core_asks_no_more(core);

    return unknown && !job->is_preemptor && job->reserved_in + 1 != core->pass &&
           core->reservers.count >= CORE_RESERVERS_MAX;
}

/* For a job that does not fit now: makes others are preempted, and keeps devices. */
static void let_wait(struct hd_core *core, struct core_job *job)
{
    struct core_view view = core_view_of(core, job);
    struct core_start start, pending_start;
    struct hd_job_needs needs;
    bool reserved, opens;

    if (!core_within_quota(job, &needs)) {
        job->wait = CORE_WAIT_QUOTA;
        job->group->closed_in = core->pass; /* the account's devices only get fewer in a pass */
        core_pending_end(core, job);
        return;
    }
    view.needs = &needs;
    reserved = core_reserve_earliest(core, job, &view, &start);
    /* at once, with what borrowers give back */
    opens = reserved && start.mono_ms <= core->now.mono_ms && !start.unpriced;
    if (opens || (reserved && job->choice.taken)) { /* others stop for none that is worse */
        view.nodes_max = start.nodes;
        view.tier_max = start.tier;
    }
    if (core->assembled && !core_pending_awaits_nodes(core, job)) {
        if (!core_preempt(core, job, &view, opens))
            core_pending_end(core, job);
        else if (core_pending_check(core, job, &pending_start) != CORE_PENDING_NONE) {
            core_reserve_instead(core, job, job->pending, pending_start.mono_ms);
            start = pending_start; /* what was expected before others was preempted is never told */
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

/* It did not fit beside what is kept for others: it runs until one of these can start. */
static void report_borrowing(struct hd_core *core, struct core_job *job)
{
    struct core_attempt *attempt = core_active(job);

    if (!attempt || !core_grow_array(core, &core->borrowers, core->borrower_count,
                                     &core->borrower_size, sizeof attempt))
        return;
    attempt->rec.borrows = true;
    core->held_by_borrowers += attempt->rec.plan.rank_count;
    core->borrowers[core->borrower_count++] = attempt;
    core_event(core, job, HD_EVENT_BORROWING, attempt->rec.attempt, -1, "",
               "attempt %d runs on devices that are kept for older jobs; when one of these can "
               "start with them, it writes a checkpoint, gives them back and waits again",
               attempt->rec.attempt);
}

/* What was weighed, of an attempt that has just started. */
static void report_choice(struct hd_core *core, struct core_job *job)
{
    struct hd_text text = {0};

    if (job->choice.step_now_s <= 0 || !core_active(job))
        return;
    core_add_choice(core, &job->choice, false, &text);
    core->no_memory |= text.failed;
    core_event(core, job, HD_EVENT_WEIGHED, job->rec.attempt_count, -1, "", "%s",
               text.failed ? "" : text.data);
    hd_text_free(&text);
}

/* The job takes devices that are kept for others, as it will have ended by then. */
static bool is_backfill(struct hd_core *core, const struct core_job *job,
                        const struct core_placement *placement)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);
    struct core_view view = core_view_of(core, job);
    bool backfilled = false;

    view.length_ms = 0;
    for (size_t i = 0; i < placement->member_count && !backfilled; i++)
        backfilled = core_available(core, &view, placement->members[i].node, kind) <
                     placement->members[i].count;
    return backfilled;
}

/* Others are stopping in its place. True: it keeps that, and waits. */
static bool awaits_pending(struct hd_core *core, struct core_job *job)
{
    struct hd_job_needs needs;
    struct core_start start;

    if (core_pending_check(core, job, &start) != CORE_PENDING_CLEARING ||
        !core_within_quota(job, &needs)) {
        core_pending_drop(job); /* all is free, and it has no place there: it looks for another */
        return false;
    }
    core_reserve_members(core, job, job->pending, start.mono_ms);
    job->wait = CORE_WAIT_BUSY;
    job->choice = (struct hd_core_choice){0};
    core_expect(core, job, start);
    return true;
}

/* The job fits here now. A place that opens later may be better (better.c), but not for one that
 * borrows. Takes the members of *place. */
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
        start_choice = core_choose_start(core, job, &job->needs, &first);
    if (start_choice == CORE_WAIT_FOR_PRICE) {
        core_reserve_placement(core, job, placement);
        job->planning = first.entry;
        job->wait = CORE_WAIT_PLAN;
    } else if (start_choice == CORE_TAKE_LATER) {
        core_reserve_members(core, job, &first.placement, first.start.mono_ms);
        job->wait = CORE_WAIT_BETTER;
        core_expect(core, job, first.start);
    } else {
        job->backfilled = !borrows && is_backfill(core, job, &first.placement);
        core_attempt_start(core, job, &first.placement, layout);
        if (borrows)
            report_borrowing(core, job);
        else
            report_choice(core, job);
        core->changed_in_pass = true;
    }
    free(first.placement.members);
}

void core_reserve_while_planning(struct hd_core *core, struct core_job *job,
                                 const struct core_placement *placement)
{
    struct core_start start;

    if (core_pending_check(core, job, &start) != CORE_PENDING_NONE)
        core_reserve_members(core, job, job->pending, start.mono_ms);
    else
        core_reserve_placement(core, job, placement);
}

/* Starts the job or keeps devices for it. Where neither is possible its class is closed for this
 * pass: free devices only get fewer in a pass and kept ones only more, so that no other job of the
 * class would fare better. */
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
        core_migration_end(core,
                           job); /* if it moved: what is kept for others is not for it any more */
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
    if (layout == CORE_LAYOUT_INFEASIBLE && job->group && core->reservers.count) {
        hd_text_clear(&why);
        layout = find_fitting(core, job, true, &placement, &why);
        borrows = layout == CORE_LAYOUT_FITS && core_is_near(core, &job->needs, &placement);
        if (layout != CORE_LAYOUT_INFEASIBLE && !borrows) { /* it keeps nothing of that */
            free(placement.members);
            job->planning = NULL;
            layout = CORE_LAYOUT_INFEASIBLE;
        }
    }
    if (layout == CORE_LAYOUT_FITS) {
        start_or_wait(core, job, &placement, borrows, why.failed || !why.data ? "" : why.data);
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
    core->queue_changed |= (job->wait == CORE_WAIT_NEVER) != never;
}

/* ---- the pass ---------------------------------------------------------------------------------*/

/* The queue whose next job comes next: that with the smallest share, of equal ones the one whose
 * job has the first turn. NULL: no queue has jobs left. */
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

/* Jobs of one priority, whose groups these are. */
static void pass_over_groups(struct hd_core *core, struct core_job_group *const *groups,
                             size_t count)
{
    struct core_queue *queue;

    for (size_t i = 0; i < core->preemptors.count;) {
        struct core_job *job = core->preemptors.items[i];

        if (job->rec.priority == groups[0]->key.priority && job->group &&
            job->evaluated_in != core->pass)
            evaluate(core, job);
        i += core_jobs_have(&core->preemptors, job); /* one that has started left the set */
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
    core->changed_in_pass = core->queue_changed = false;
    core_choose_hot_spares(core);
    core_unreserve_all(core);
    core_reserve_for_failed(core);
    core_reserve_migration_targets(core);
    core_predict_all(core);
    core_list_ends(core);
    if (count) /* a look may add groups */
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
    bool again = false; /* for the sake of those who asked whether others wait */

    do {
        groups = calloc(core->group_count + 1, sizeof(struct core_job_group *));
        if (!groups) {
            core->no_memory = true;
            return;
        }
        pass_once(core, groups);
        free(groups);
        core_notify_dependents(core);
        core_leave_nodes(core);
        again = core->queue_changed && !again;
    } while ((core->changed_in_pass || again) && core->group_count);
    core_sweep_planned_starts(core);
}

/* All others come before it, whatever their queue. */
static bool is_last(const struct hd_core *core, const struct core_job *job)
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
    if (!core->assembled)
        core_assemble(core);
    if (core->schedule_due ||
        (new_job && (core->unsettled || core_waiting_due(core) ||
                     (new_job->group && (core->ends_due || !is_last(core, new_job) ||
                                         core_ends_lone_wait(core, new_job)))))) {
        core->schedule_due = core->unsettled = false;
        core_waiting_release(core);
        pass(core);
    } else if (new_job && new_job->group && !is_closed(core, new_job->group)) {
        /* what the newest pass decided of the others stands: none of them would start now */
        core_set_slowdown_priority(core, new_job);
        evaluate(core, new_job);
        core_report_planned_starts(core);
    }
    core_predict_prices(core);
    core_waiting_sweep(core);
    core_resize_jobs(core);
}
