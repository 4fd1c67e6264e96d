/* schedule: the pass, which decides which queued job is looked at when, and what becomes of it.
 *
 * Jobs are looked at by priority; of equal priority in the order of order.c. A job starts when one
 * placement gives it all its devices at once (place.c). One that does not fit may make jobs of
 * lower priority give way (preempt.c), and the first of those that do not fit have devices kept for
 * them (reserve.c), so that none starves.
 *
 * Of jobs that wait for the same (waiting.c) a pass looks at as many as start or reserve nodes, and
 * one more. A start changes shares, and with that the order: a pass that started or stopped
 * something is followed by another one, until one changes nothing. A job whose layout is still
 * being found (menu.c) keeps its place, and closes nothing. A job that is submitted while nothing
 * else changes, behind all others, is looked at alone: the newest pass has decided about the
 * others, unless there is one other, which thought that none waits behind it (weigh.c).
 * core_schedule_check has the rule in its simplest form.
 */
#include <stdlib.h>

#include "controller/core/core_internal.h"

/* ---- a look at one job ------------------------------------------------------------------------*/

static void close_class(struct hd_core *core, const struct core_job *job)
{
    struct core_class *class = job->line->key.class;

    class->closed_in = core->pass;
    class->wait = job->wait;
    class->wait_job = job->wait_job;
}

/* In this place the job's steps take more time than was assumed when it was found, so that it would
 * hold devices for too long that are kept for others. It is of the class of such jobs then. */
static bool outstays(struct hd_core *core, struct core_job *job, const struct core_view *view,
                     const struct core_placement *place)
{
    const enum hd_device_kind kind = hd_device_kind_of(place->plan.layout.device);
    const bool unsettled = core->unsettled;
    struct core_view longer = *view;
    bool late = false;

    longer.length_ms = core_predict_length_at(core, job, place->plan.step_s);
    if (!view->length_ms || longer.length_ms <= view->length_ms ||
        place->plan.step_s <= job->open_s)
        return false;
    for (size_t i = 0; i < place->member_count && !late; i++)
        late =
            core_available(core, &longer, place->members[i].node, kind) < place->members[i].count;
    if (!late)
        return false;
    job->open_s = place->plan.step_s;
    if (job->line)
        core_waiting_moved(core, job);
    core->unsettled = unsettled; /* this pass looks at it with its new length */
    return true;
}

void core_limit_to(struct core_view *view, struct hd_job_needs *needs,
                   const struct core_placement *place)
{
    if (needs->devices_max > place->device_count)
        needs->devices_max = place->device_count;
    view->nodes_max = (int32_t)place->member_count;
    view->tier_max = place->tier;
}

/* Finds a place with a layout that fits there; borrows: also on devices that are kept for others.
 * MISFITS: there is no place, or the job has failed. LATER: there is one, and its layout is being
 * found. */
static enum core_layout find_fitting(struct hd_core *core, struct core_job *job, bool borrows,
                                     struct core_placement *ret_place, struct hd_text *why)
{
    struct hd_job_needs needs;
    int64_t memory_bytes;

    job->planning = NULL;
    while (core_within_quota(job, &needs)) {
        const struct core_wisher wisher = core_wisher_of(job, &needs);
        struct core_view view = core_view_of(core, job);
        const struct core_menu_entry *entry;
        enum core_layout layout;

        view.needs = &needs;
        view.borrows = borrows;
        if (job->claim)
            core_limit_to(&view, &needs, job->claim);
        *ret_place = core_find_place(core, &view);
        if (!ret_place->device_count)
            return CORE_LAYOUT_MISFITS;
        layout = core_choose_layout(core, &wisher, ret_place, &memory_bytes, &entry, why);
        if (layout == CORE_LAYOUT_LATER)
            job->planning = entry;
        if (layout == CORE_LAYOUT_FITS && !borrows && outstays(core, job, &view, ret_place)) {
            free(ret_place->members);
            hd_text_clear(why);
            continue;
        }
        if (layout != CORE_LAYOUT_MISFITS)
            return layout;
        free(ret_place->members);
        if (!core_take_misfit(core, job, ret_place->device_count, memory_bytes,
                              why->failed || !why->data ? "" : why->data))
            return layout;
        hd_text_clear(why);
    }
    return CORE_LAYOUT_MISFITS;
}

/* It waits for a layout, or to ask for one, and kept no place for that in the newest pass: nothing
 * has changed. */
static bool still_plans(const struct hd_core *core, const struct core_job *job)
{
    const bool unknown = job->planning ? !job->planning->known
                                       : job->wait == CORE_WAIT_PLAN && core_asks_no_more(core);

    return unknown && !job->claims && job->reserved_in + 1 != core->pass &&
           core->reservers.count >= CORE_RESERVERS_MAX;
}

/* For a job that does not fit now: makes others give way, and keeps devices. */
static void let_wait(struct hd_core *core, struct core_job *job)
{
    struct core_view view = core_view_of(core, job);
    struct core_start start, claimed;
    struct hd_job_needs needs;
    bool reserved, opens;

    if (!core_within_quota(job, &needs)) {
        job->wait = CORE_WAIT_QUOTA;
        job->line->closed_in = core->pass; /* the account's devices only get fewer in a pass */
        core_claim_end(core, job);
        return;
    }
    view.needs = &needs;
    reserved = core_reserve_place(core, job, &view, &start);
    /* at once, with what borrowers give back */
    opens = reserved && start.mono_ms <= core->now.mono_ms && !start.unpriced;
    if (opens || (reserved && job->choice.taken)) { /* others stop for none that is worse */
        view.nodes_max = start.nodes;
        view.tier_max = start.tier;
    }
    if (core->assembled && !core_claim_awaits(core, job)) {
        if (!core_preempt(core, job, &view, opens))
            core_claim_end(core, job);
        else if (core_claim_of(core, job, &claimed) != CORE_CLAIM_NONE) {
            core_reserve_only(core, job, job->claim, claimed.mono_ms);
            start = claimed; /* what was expected before others gave way is never told */
            reserved = true;
        }
    }
    if (reserved)
        core_expect(core, job, start);
    else if (needs.devices_max == job->needs.devices_max)
        close_class(core, job);
    else
        job->line->closed_in = core->pass;
}

/* It did not fit beside what is kept for others: it runs until one of these can start. */
static void tell_borrowing(struct hd_core *core, struct core_job *job)
{
    struct core_attempt *attempt = core_active(job);

    if (!attempt || !core_reserve(core, &core->borrowers, core->borrower_count,
                                  &core->borrower_size, sizeof attempt))
        return;
    attempt->rec.borrows = true;
    core->held_by_borrowers += attempt->rec.plan.rank_count;
    core->borrowers[core->borrower_count++] = attempt;
    core_event(core, job, "borrowing", attempt->rec.attempt, -1, "",
               "attempt %d runs on devices that are kept for older jobs; when one of these can "
               "start with them, it writes a checkpoint, gives them back and waits again",
               attempt->rec.attempt);
}

/* What was weighed, of an attempt that has just started. */
static void tell_choice(struct hd_core *core, struct core_job *job)
{
    struct hd_text text = {0};

    if (job->choice.step_now_s <= 0 || !core_active(job))
        return;
    core_add_choice(core, &job->choice, false, &text);
    core->no_memory |= text.failed;
    core_event(core, job, "weighed", job->rec.attempt_count, -1, "", "%s",
               text.failed ? "" : text.data);
    hd_text_free(&text);
}

/* The job takes devices that are kept for others, as it will have ended by then. */
static bool is_timely(struct hd_core *core, const struct core_job *job,
                      const struct core_placement *place)
{
    const enum hd_device_kind kind = hd_device_kind_of(place->plan.layout.device);
    struct core_view view = core_view_of(core, job);
    bool timely = false;

    view.length_ms = 0;
    for (size_t i = 0; i < place->member_count && !timely; i++)
        timely =
            core_available(core, &view, place->members[i].node, kind) < place->members[i].count;
    return timely;
}

/* Others are stopping in its place. True: it keeps that, and waits. */
static bool awaits_claim(struct hd_core *core, struct core_job *job)
{
    struct hd_job_needs needs;
    struct core_start start;

    if (core_claim_of(core, job, &start) != CORE_CLAIM_OPENS || !core_within_quota(job, &needs)) {
        core_claim_drop(job); /* all is free, and it has no place there: it looks for another */
        return false;
    }
    core_reserve_members(core, job, job->claim, start.mono_ms);
    job->wait = CORE_WAIT_BUSY;
    job->choice = (struct hd_core_choice){0};
    core_expect(core, job, start);
    return true;
}

/* The job fits here now. A place that opens later may be better (weigh.c), but not for one that
 * borrows. Takes the members of *place. */
static void start_or_wait(struct hd_core *core, struct core_job *job,
                          const struct core_placement *place, bool borrows, const char *layout)
{
    struct core_first first = {.place = *place, .start = {.mono_ms = core->now.mono_ms}};
    enum core_weighed weighed = CORE_TAKE_FIRST;
    enum core_gathered gathered = CORE_GATHERS_NOT;

    if (!borrows)
        gathered = core_consolidate(core, job, place, &first.entry);
    if (gathered == CORE_GATHERS && awaits_claim(core, job)) {
        free(first.place.members);
        return;
    }
    if (gathered == CORE_GATHERS_LATER && core_waits_for_price(core, job))
        weighed = CORE_WAIT_FOR_PRICE;
    else if (!borrows)
        weighed = core_weigh(core, job, &job->needs, &first);
    if (weighed == CORE_WAIT_FOR_PRICE) {
        core_reserve_found(core, job, place);
        job->planning = first.entry;
        job->wait = CORE_WAIT_PLAN;
    } else if (weighed == CORE_TAKE_LATER) {
        core_reserve_members(core, job, &first.place, first.start.mono_ms);
        job->wait = CORE_WAIT_BETTER;
        core_expect(core, job, first.start);
    } else {
        job->timely = !borrows && is_timely(core, job, &first.place);
        core_attempt_start(core, job, &first.place, layout);
        if (borrows)
            tell_borrowing(core, job);
        else
            tell_choice(core, job);
        core->changed_in_pass = true;
    }
    free(first.place.members);
}

void core_keep_while_planning(struct hd_core *core, struct core_job *job,
                              const struct core_placement *place)
{
    struct core_start start;

    if (core_claim_of(core, job, &start) != CORE_CLAIM_NONE)
        core_reserve_members(core, job, job->claim, start.mono_ms);
    else
        core_reserve_found(core, job, place);
}

/* Starts the job or keeps devices for it. Where neither is possible its class is closed for this
 * pass: free devices only get fewer in a pass and kept ones only more, so that no other job of the
 * class would fare better. */
static void decide(struct hd_core *core, struct core_job *job)
{
    struct core_placement place = {0};
    struct hd_text why = {0};
    enum core_layout layout;
    struct core_start start;
    bool borrows = false;

    core->out->looked++;
    job->looked_in = core->pass;
    if (core_claim_of(core, job, &start) == CORE_CLAIM_NONE) {
        core_claim_drop(job);
        core_room_end(core, job); /* if it moved: what is kept for others is not for it any more */
    }
    if (still_plans(core, job)) {
        job->wait = CORE_WAIT_PLAN;
        return;
    }
    job->wait = CORE_WAIT_NONE;
    job->wait_job = 0;
    layout = find_fitting(core, job, false, &place, &why);
    if (layout == CORE_LAYOUT_MISFITS && job->line && job->claim && awaits_claim(core, job)) {
        hd_text_free(&why);
        return;
    }
    if (layout == CORE_LAYOUT_MISFITS && job->line && core->reservers.count) {
        hd_text_clear(&why);
        layout = find_fitting(core, job, true, &place, &why);
        borrows = layout == CORE_LAYOUT_FITS && core_is_near(core, &job->needs, &place);
        if (layout != CORE_LAYOUT_MISFITS && !borrows) { /* it keeps nothing of that */
            free(place.members);
            job->planning = NULL;
            layout = CORE_LAYOUT_MISFITS;
        }
    }
    if (layout == CORE_LAYOUT_FITS) {
        start_or_wait(core, job, &place, borrows, why.failed || !why.data ? "" : why.data);
    } else if (layout == CORE_LAYOUT_LATER) {
        core_keep_while_planning(core, job, &place);
        free(place.members);
        job->wait = CORE_WAIT_PLAN;
    } else if (job->line) {
        let_wait(core, job);
    }
    core->no_memory |= why.failed;
    hd_text_free(&why);
}

static void look_at(struct hd_core *core, struct core_job *job)
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

static bool is_closed(const struct hd_core *core, const struct core_line *line)
{
    return line->closed_in == core->pass || line->key.class->closed_in == core->pass;
}

static void put_next(struct hd_core *core, struct core_job *job)
{
    core_order(core, job);
    core_heap_put(core, &job->account->queue->next, job->turn.key, (uint64_t)(uintptr_t)job);
}

/* Jobs of one priority, whose lines these are. */
static void pass_over_lines(struct hd_core *core, struct core_line *const *lines, size_t count)
{
    struct core_queue *queue;

    for (size_t i = 0; i < core->claimants.count;) {
        struct core_job *job = core->claimants.items[i];

        if (job->rec.priority == lines[0]->key.priority && job->line &&
            job->looked_in != core->pass)
            look_at(core, job);
        i += core_jobs_have(&core->claimants, job); /* one that has started left the set */
    }
    for (size_t i = 0; i < count; i++)
        if (lines[i]->first)
            put_next(core, lines[i]->first);
    while ((queue = next_queue(core))) {
        struct core_job *job = (struct core_job *)(uintptr_t)queue->next.items[0].value;
        struct core_line *line = job->line;
        struct core_job *after = job->after;

        core_heap_take(&queue->next);
        if (is_closed(core, line))
            continue;
        if (job->looked_in != core->pass)
            look_at(core, job);
        if (after)
            put_next(core, after);
    }
}

static void pass_once(struct hd_core *core, struct core_line **lines)
{
    const size_t count = core->line_count;

    core->pass++;
    core->pass_wall_ms = core->now.wall_ms;
    core->changed_in_pass = core->queue_changed = false;
    core_spares_choose(core);
    core_reserve_none(core);
    core_keep_what_is_left(core);
    core_keep_rooms(core);
    core_predict_all(core);
    core_list_ends(core);
    if (count) /* a look may add lines */
        memcpy(lines, core->lines, count * sizeof *lines);
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from; to < count && lines[to]->key.priority == lines[from]->key.priority;)
            to++;
        pass_over_lines(core, lines + from, to - from);
    }
}

static void pass(struct hd_core *core)
{
    struct core_line **lines;
    bool again = false; /* for the sake of those who asked whether others wait */

    do {
        lines = calloc(core->line_count + 1, sizeof(struct core_line *));
        if (!lines) {
            core->no_memory = true;
            return;
        }
        pass_once(core, lines);
        free(lines);
        core_tell_dependents(core);
        core_leave_nodes(core);
        again = core->queue_changed && !again;
    } while ((core->changed_in_pass || again) && core->line_count);
    core_promise_sweep(core);
}

/* All others come before it, whatever their queue. */
static bool is_last(const struct hd_core *core, const struct core_job *job)
{
    const struct core_line *last = core->line_count ? core->lines[core->line_count - 1] : NULL;

    if (!last || job->rec.priority > last->key.priority)
        return false;
    for (size_t i = core->line_count; i > 0; i--) {
        const struct core_line *line = core->lines[i - 1];

        if (line->key.priority != job->rec.priority)
            break;
        if (line->key.account->queue != job->account->queue)
            return false;
    }
    return true;
}

void core_schedule(struct hd_core *core)
{
    struct core_job *newcomer = core->newcomer;

    core->newcomer = NULL;
    if (!core->assembled)
        core_assemble(core);
    if (core->schedule_due ||
        (newcomer && (core->unsettled || core_waiting_due(core) ||
                      (newcomer->line && (core->ends_due || !is_last(core, newcomer) ||
                                          core_ends_solitude(core, newcomer)))))) {
        core->schedule_due = core->unsettled = false;
        core_waiting_release(core);
        pass(core);
    } else if (newcomer && newcomer->line && !is_closed(core, newcomer->line)) {
        /* what the newest pass decided of the others stands: none of them would start now */
        core_order(core, newcomer);
        look_at(core, newcomer);
        core_promise_all(core);
    }
    core_foresee(core);
    core_waiting_sweep(core);
    core_grow(core);
}
