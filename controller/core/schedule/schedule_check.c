/* schedule_check: recomputes in the simplest way what the passes should have decided (I13, I16,
 * I17), by evaluating every queued job in the order of a pass. Slow; only tests and simulations
 * call it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/core/schedule/schedule.h"

/* Orders queued jobs as pass_over_groups evaluates them while none starts. */
static int by_pass_order(const void *left, const void *right)
{
    const struct core_job *a = *(struct core_job *const *)left;
    const struct core_job *b = *(struct core_job *const *)right;
    const struct core_queue *of_a = a->account->queue, *of_b = b->account->queue;

    if (a->rec.priority != b->rec.priority)
        return a->rec.priority > b->rec.priority ? -1 : 1;
    if (a->is_preemptor != b->is_preemptor)
        return a->is_preemptor ? -1 : 1;
    if (!a->is_preemptor && (core_queue_is_behind(of_a, of_b) || core_queue_is_behind(of_b, of_a)))
        return core_queue_is_behind(of_b, of_a) ? -1 : 1;
    if (!a->is_preemptor && a->slowdown_priority.key != b->slowdown_priority.key)
        return a->slowdown_priority.key < b->slowdown_priority.key ? -1 : 1;
    return a->rec.job < b->rec.job ? -1 : 1;
}

/* Returns whether a job that waits for a better placement would now start at once on the present
 * one. */
static bool would_not_wait(struct hd_core *core, struct core_job *copy,
                           const struct core_view *view)
{
    struct core_first first = {.placement = core_find_placement(core, view),
                               .start = {.mono_ms = core->now.mono_ms}};
    const struct core_layout_client client = core_layout_client_of(copy, view->needs);
    const struct core_cached_layout *entry;
    struct hd_text why = {0};
    int64_t memory_bytes;
    bool waits;

    (void)core_choose_layout(core, &client, &first.placement, &memory_bytes, &entry, &why);
    waits = core_choose_start(core, NULL, copy, &copy->needs, &first) == CORE_TAKE_LATER;
    if (waits)
        core_reserve_members(core, copy, &first.placement, CORE_PLANNED, first.start.mono_ms);
    free(first.placement.members);
    hd_text_free(&why);
    return !waits;
}

/* Evaluates one queued job without starting it; changes only reservations. Returns whether it would
 * start. */
static bool would_start(struct hd_core *core, struct core_job *copy)
{
    struct core_view view = core_view_of(core, copy);
    struct core_placement placement;
    struct core_start start;
    struct hd_job_needs needs;

    if (!core_within_quota(copy, &needs))
        return false;
    view.needs = &needs;
    if (core_pending_check(core, copy, &start) == CORE_PENDING_NONE)
        copy->pending = NULL;
    if (copy->pending)
        core_limit_to(&view, &needs, copy->pending);
    if (copy->wait == CORE_WAIT_PLAN && copy->reserved_in == core->pass) {
        placement = core_find_placement(core, &view);
        core_reserve_while_planning(core, copy, &placement);
        free(placement.members);
        return false;
    }
    if (copy->wait == CORE_WAIT_PLAN)
        return false;
    if (core_has_placement(core, &view))
        return copy->wait != CORE_WAIT_BETTER || would_not_wait(core, copy, &view);
    if (copy->pending && core_pending_check(core, copy, &start) == CORE_PENDING_CLEARING) {
        core_reserve_members(core, copy, copy->pending, CORE_CLEARING, start.mono_ms);
        return false;
    }
    (void)core_reserve_earliest(core, copy, &view, &start);
    return false;
}

/* Checks invariant I16: core_has_placement and a full search agree on whether the job has a
 * placement, now and after some of the predicted ends. */
static enum hd_status check_placements(struct hd_core *core, const struct core_job *job)
{
    struct core_view view = core_view_of(core, job);
    struct core_forecast forecast;
    enum hd_status st = HD_OK;

    if (!core_forecast_init(core, core->allocations.items, core->allocations.run_count, &forecast))
        return hd_err(HD_NO_MEMORY, "no memory for a check");
    view.needs = &job->needs;
    view.forecast = &forecast;
    for (size_t part = 0; part <= 2 && !st; part++) {
        const size_t freed = forecast.count * part / 2;

        core_forecast_advance(&forecast, freed);
        for (view.tier_max = 0; view.tier_max <= core_tiers(core) && !st; view.tier_max++) {
            struct core_placement placement;
            bool found;

            placement = core_find_placement(core, &view);
            found = placement.device_count > 0;
            free(placement.members);
            if (core_has_placement(core, &view) != found)
                st = hd_err(HD_INTERNAL,
                            "I16: after %zu ends job %" PRIu64 " has %s place within tier %d, and "
                            "searches are told otherwise",
                            freed, job->rec.job, found ? "a" : "no", view.tier_max);
        }
    }
    core_forecast_done(&forecast);
    return st;
}

/* Returns whether the job has a placement after the first `ends` predicted ends. */
static bool opens_after(struct hd_core *core, struct core_forecast *forecast,
                        const struct core_view *view, size_t ends)
{
    struct core_view after = *view;

    core_forecast_advance(forecast, ends);
    after.forecast = forecast;
    return core_has_placement(core, &after);
}

/* Checks invariant I17 for each tier: core_forecast_fewest, from the bound of core_least_ends on,
 * returns the smallest number of predicted ends after which the job has a placement. Searches again
 * after that number of ends, and after one fewer. */
static enum hd_status check_ends(struct hd_core *core, const struct core_job *job)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    struct core_view view = core_view_of(core, job);
    struct core_forecast forecast;
    struct hd_job_needs least;
    enum hd_status st = HD_OK;

    (void)core_kinds(&job->needs, kinds);
    if (!core_least_needs(&job->needs, kinds[0], &least))
        return HD_OK;
    if (!core_forecast_init(core, core->allocations.items, core->allocations.run_count, &forecast))
        return hd_err(HD_NO_MEMORY, "no memory for a check");
    view.needs = &least;
    view.reserves = true;
    for (view.tier_max = 0; view.tier_max <= core_tiers(core) && !st; view.tier_max++) {
        const size_t bound = core_least_ends(core, &forecast, &view, kinds[0], 0);
        struct core_placement placement;
        const size_t ends = core_forecast_fewest(core, &forecast, &view, bound, 0, &placement);

        free(placement.members);
        if ((ends && opens_after(core, &forecast, &view, ends - 1)) ||
            (ends <= forecast.count && !opens_after(core, &forecast, &view, ends)))
            st = hd_err(HD_INTERNAL,
                        "I17: job %" PRIu64 " is said to have a place within tier %d after %zu of "
                        "%zu ends, and not before",
                        job->rec.job, view.tier_max, ends, forecast.count);
    }
    core_forecast_done(&forecast);
    return st;
}

enum { PLACEMENTS_CHECKED = 2 }; /* most waiting jobs for which I16 and I17 are checked */

static enum hd_status evaluate_each(struct hd_core *core, struct core_job **jobs, size_t count)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < count && !st; i++) {
        struct core_job *copy =
            malloc(sizeof *copy); /* core->reservers points to the copy until the end of the
                                   * check */

        if (!copy)
            return hd_err(HD_NO_MEMORY, "no memory for a check");
        *copy = *jobs[i];
        jobs[i] = copy;
        copy->wait_job = 0;
        if (i < PLACEMENTS_CHECKED)
            st = check_ends(core, copy);
        if (!st && i < PLACEMENTS_CHECKED)
            st = check_placements(core, copy);
        if (!st && would_start(core, copy))
            st = hd_err(HD_INTERNAL, "I13: job %" PRIu64 " waits and could start", copy->rec.job);
    }
    return st;
}

/* Evaluates all queued jobs and compares the reservations with those of the newest pass. The nodes'
 * reservations are changed meanwhile and restored. */
static enum hd_status check_each(struct hd_core *core, struct core_job **jobs, size_t count,
                                 struct core_reserved *saved)
{
    const size_t reserver_count = core->reservers.count;
    const struct core_allocations kept = core->allocations;
    struct core_job **reservers = malloc((reserver_count + 1) * sizeof *reservers);
    struct core_allocation *items = malloc((kept.count + 1) * sizeof *items);
    enum hd_status st = HD_OK;

    if (!reservers || !items) {
        free(reservers);
        free(items);
        return hd_err(HD_NO_MEMORY, "no memory for a check");
    }
    if (reserver_count)
        memcpy(reservers, core->reservers.items, reserver_count * sizeof reservers[0]);
    if (kept.count)
        memcpy(items, kept.items, kept.count * sizeof *items);
    for (size_t i = 0; i < core->node_count; i++)
        saved[i] = core->nodes[i]->reserved;
    core_unreserve_all(core);
    for (size_t i = 0; i < core->node_count; i++)
        if (saved[i].allocation && items[saved[i].allocation - 1].why == CORE_SPARE)
            core_reserve_node(core, core->nodes[i], CORE_SPARE, 0, HD_DEVICE_KIND_ANY,
                              core->now.mono_ms, 0);
    core_reserve_for_failed(core);
    core_reserve_migration_targets(core);
    st = evaluate_each(core, jobs, count);
    for (size_t i = 0; i < core->node_count && !st; i++) {
        const uint64_t by = core_reserved_by(core, core->nodes[i]);
        const uint64_t was = saved[i].allocation ? items[saved[i].allocation - 1].job : 0;

        if (by != was)
            st = hd_err(HD_INTERNAL,
                        "I13: %s is reserved for job %" PRIu64 " and not for job %" PRIu64,
                        core->nodes[i]->rec.name, was, by);
    }
    core_unreserve_all(core);
    free(core->allocations.items);
    core->allocations = kept;
    core->allocations.items = items;
    core->allocations.size = kept.count + 1;
    for (size_t i = 0; i < core->node_count; i++)
        if (saved[i].allocation)
            core_set_reserved(core, core->nodes[i], saved[i]);
    core->reservers.count = reserver_count;
    if (reserver_count)
        memcpy(core->reservers.items, reservers, reserver_count * sizeof reservers[0]);
    free(reservers);
    return st;
}

static size_t count_all_waiting(const struct hd_core *core)
{
    size_t count = 0;

    for (size_t i = 0; i < core->group_count; i++)
        for (const struct core_job *job = core->groups[i]->first; job; job = job->after)
            count++;
    return count;
}

enum hd_status core_schedule_check(const struct hd_core *given)
{
    struct hd_core *core = (struct hd_core *)(uintptr_t)given;
    const size_t count = count_all_waiting(core);
    struct core_job **jobs, **own;
    struct core_reserved *saved;
    size_t at = 0;
    enum hd_status st;

    if (core->due & (CORE_DUE_PASS | CORE_DUE_TICK))
        return HD_OK; /* the next pass will evaluate the jobs */
    jobs = calloc(count + 1, sizeof(struct core_job *));
    own = calloc(count + 1, sizeof(struct core_job *));
    saved = calloc(core->node_count + 1, sizeof *saved);
    if (jobs && own && saved) {
        for (size_t i = 0; i < core->group_count; i++)
            for (struct core_job *job = core->groups[i]->first; job; job = job->after) {
                core_set_slowdown_priority(core, job);
                jobs[at++] = job;
            }
        qsort(jobs, count, sizeof(struct core_job *), by_pass_order);
        memcpy(own, jobs, count * sizeof(struct core_job *));
        st = check_each(core, jobs, count, saved);
    } else {
        st = hd_err(HD_NO_MEMORY, "no memory for a check");
    }
    for (size_t i = 0; jobs && own && i < count; i++)
        if (jobs[i] != own[i])
            free(jobs[i]);
    free(jobs);
    free(own);
    free(saved);
    return st;
}
