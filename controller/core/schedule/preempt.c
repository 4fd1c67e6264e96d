/* preempt: chooses the running jobs that are preempted for one of higher priority.
 *
 * Victims are attempts of lower priority, those first that would lose the least work: device-time
 * since their last checkpoint. A search for a whole placement with their devices chooses as few as
 * possible of the cheapest; victims that the placement does not need are reprieved. The placement
 * spans as few switches as possible, if enough jobs there can be preempted. A victim writes a
 * checkpoint and ends; its job is queued again and continues from there. The placement is reserved
 * for the waiting job (clearing.c).
 */
#include <inttypes.h>
#include <stdlib.h>

#include "controller/core/schedule/schedule.h"
#include "controller/core/state/texts.h"

/* Most victims for which it is tried whether the job has a placement without their devices. */
enum { REPRIEVES_TRIED_MAX = 64 };

/* Orders the attempts that may be preempted, the cheapest first. */
static int by_loss(const void *left, const void *right)
{
    const struct core_allocation *a = left, *b = right;

    if (a->cost.lost_ms != b->cost.lost_ms)
        return a->cost.lost_ms < b->cost.lost_ms ? -1 : 1;
    if (a->priority != b->priority)
        return a->priority < b->priority ? -1 : 1;
    return a->job > b->job ? -1 : a->job < b->job;
}

/* Returns whether the job may preempt the attempt: the attempt's job has lower priority, or borrows
 * devices that are reserved for this job. */
static bool is_preemptible(const struct hd_core *core, const struct core_allocation *run,
                           const struct core_job *job, bool borrowed)
{
    return run->priority < job->rec.priority ||
           (borrowed && core_yields_to(core, run->attempt, job));
}

/* Candidates for preemption: the attempts that are stopping already, followed by those that a job
 * may preempt, cheapest first. */
struct candidates {
    struct core_allocation *list;
    size_t stopping, count;
};

static bool is_stopping(const struct core_attempt *attempt)
{
    return attempt->rec.state == HD_ATTEMPT_STATE_STOPPING;
}

/* Makes core->opened the devices that are free when all candidates for the job have ended. It is the same
 * for all jobs of one priority, until an attempt starts or stops. False: no memory. */
static bool open_all(struct hd_core *core, const struct core_job *job, bool borrowed)
{
    const struct core_allocations *all = &core->allocations;
    const uint64_t borrower = borrowed ? job->rec.job : 0;

    if (!core_take_due(core, CORE_DUE_OPENED) && core->opened.memory &&
        core->opened_for.priority == job->rec.priority && core->opened_for.borrowed_by == borrower)
        return true;
    core_forecast_done(&core->opened);
    if (!core_forecast_init(core, NULL, 0, &core->opened))
        return false;
    core->opened_for.priority = job->rec.priority;
    core->opened_for.borrowed_by = borrower;
    for (size_t i = 0; i < all->count; i++)
        if (all->items[i].attempt && (is_stopping(all->items[i].attempt) ||
                                      is_preemptible(core, &all->items[i], job, borrowed)))
            core_forecast_end(&core->opened, all->items[i].attempt, true);
    return true;
}

/* Returns whether the job of the view has a placement, of whatever extent, when all candidates have
 * ended. Mostly it has none; this is asked before the candidates are sorted. */
static bool would_open(struct hd_core *core, const struct core_view *view, bool borrowed)
{
    struct core_view unlimited = *view;

    unlimited.nodes_max = unlimited.tier_max = 0;
    unlimited.forecast = &core->opened;
    return open_all(core, view->job, borrowed) && core_has_placement(core, &unlimited);
}

/* Lists the attempts that are stopping. False: no memory. The caller frees ret->list, which has
 * room for all allocations. */
static bool list_stopping(struct hd_core *core, struct candidates *ret)
{
    const struct core_allocations *all = &core->allocations;

    *ret = (struct candidates){.list = malloc((all->count + 1) * sizeof *ret->list)};
    core->no_memory |= !ret->list;
    for (size_t i = 0; ret->list && i < all->count; i++)
        if (all->items[i].attempt && is_stopping(all->items[i].attempt))
            ret->list[ret->stopping++] = all->items[i];
    ret->count = ret->stopping;
    return ret->list;
}

/* Adds to the list of attempts that are stopping those that the job may preempt. */
static void add_preemptible(const struct hd_core *core, const struct core_job *job, bool borrowed,
                            struct candidates *list)
{
    const struct core_allocations *all = &core->allocations;

    for (size_t i = 0; i < all->count; i++) {
        const struct core_attempt *attempt = all->items[i].attempt;

        if (!attempt || is_stopping(attempt) ||
            !is_preemptible(core, &all->items[i], job, borrowed))
            continue;
        list->list[list->count] = all->items[i];
        list->list[list->count++].cost = core_stop_cost_of(core, attempt);
    }
    qsort(list->list + list->stopping, list->count - list->stopping, sizeof *list->list, by_loss);
}

/* Drops victims whose devices the job does not need, the dearest first. In the forecast the first
 * `count` candidates have ended, which gives the placement; the victims that are needed are moved to
 * the front of the list, and stay so. Returns the number of candidates that remain. */
static size_t reprieve(struct hd_core *core, struct core_forecast *forecast,
                       const struct core_view *view, const struct core_placement *placement,
                       struct candidates *all, size_t count)
{
    size_t kept = all->stopping, tried = 0;

    for (size_t i = all->stopping; i < count; i++) {
        if (core_is_on(placement, all->list[i].attempt))
            all->list[kept++] = all->list[i];
        else
            core_forecast_end(forecast, all->list[i].attempt, false);
    }
    for (size_t i = kept; i > all->stopping && tried < REPRIEVES_TRIED_MAX; i--, tried++) {
        core_forecast_end(forecast, all->list[i - 1].attempt, false);
        if (!core_has_placement(core, view)) {
            core_forecast_end(forecast, all->list[i - 1].attempt, true);
            continue;
        }
        for (size_t k = i; k < kept; k++)
            all->list[k - 1] = all->list[k];
        kept--;
    }
    return kept;
}

static void stop_victims(struct hd_core *core, struct core_job *job,
                         const struct core_allocation *victims, size_t count)
{
    struct core_job_list stopped = {0};
    int32_t devices = 0;

    for (size_t i = 0; i < count; i++) {
        struct core_attempt *attempt = victims[i].attempt;
        struct core_job *victim = core_find_job(core, victims[i].job);

        core_job_list_add(&stopped, victim->rec.job);
        devices += attempt->rec.plan.rank_count;
        if (victim->rec.priority == job->rec.priority)
            core_event_gives_back(core, victim, attempt, job);
        else
            core_event_preempted(core, victim, attempt, job);
        core_evict(core, victim, attempt, HD_END_CAUSE_PREEMPTED, job->rec.job);
    }
    core_event_preempting(core, job, &stopped, devices);
    hd_text_free(&stopped.numbers);
    core_pending_begin(core, job);
}

/* Relaxes the limits of `best`, tier by tier and then altogether, until the job has a placement when
 * all candidates have ended; without limits it has one. */
static void relax(struct hd_core *core, struct core_forecast *forecast, struct core_view *best)
{
    core_forecast_advance(forecast, forecast->count);
    while (best->nodes_max && !core_has_placement(core, best))
        if (best->nodes_max == 1 || ++best->tier_max > core_tiers(core))
            best->nodes_max = best->tier_max = 0;
}

/* Preempts attempts on devices of one kind. True: the job has a placement once some attempts have
 * stopped. Unless the view has limits, the placement is as compact as possible: at one switch of
 * the lowest tier, then of higher ones. */
static bool preempt_kind(struct hd_core *core, struct core_job *job, const struct core_view *view,
                         enum hd_device_kind kind, bool borrowed, struct candidates *all)
{
    struct core_placement placement;
    struct core_view best = *view;
    struct core_forecast forecast;
    size_t count;

    if (!core_forecast_init(core, all->list, all->count, &forecast))
        return false;
    best.forecast = &forecast;
    if (!view->nodes_max)
        core_limit_to_best(core, &best, kind);
    count = core_forecast_fewest(core, &forecast, &best, all->stopping, 0, &placement);
    if (count > all->stopping) { /* those that are stopping are too few, which is rare */
        add_preemptible(core, job, borrowed, all);
        forecast.count = all->count;
        count = core_forecast_fewest(core, &forecast, &best, all->stopping, count, &placement);
    }
    if (count > all->count && !view->nodes_max) {
        relax(core, &forecast, &best);
        count = core_forecast_fewest(core, &forecast, &best, all->stopping, 0, &placement);
    }
    if (count > all->stopping && count <= all->count) {
        count = reprieve(core, &forecast, &best, &placement, all, count);
        free(placement.members);
        placement = core_find_placement(core, &best);
        stop_victims(core, job, all->list + all->stopping, count - all->stopping);
    }
    if (count <= all->count && job->is_preemptor)
        core_pending_set(core, job, best.needs, &forecast, &placement);
    core_forecast_done(&forecast);
    free(placement.members);
    return count <= all->count;
}

static bool any_borrows(const struct hd_core *core)
{
    for (size_t i = core->allocations.run_count; i < core->allocations.count; i++)
        if (core->allocations.items[i].why == CORE_BORROWS)
            return true;
    return false;
}

bool core_preempt(struct hd_core *core, struct core_job *job, const struct core_view *view,
                  bool borrowed)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(view->needs, kinds);
    struct hd_job_needs least;
    struct candidates all;
    bool waits = false;

    if (core->lowest_priority >= job->rec.priority && !(borrowed && any_borrows(core)))
        return false;
    for (size_t k = 0; k < kind_count && !waits; k++) {
        struct core_view least_view = *view;

        least_view.needs = &least;
        least_view.reserves = true;
        if (!core_least_needs(view->needs, kinds[k], &least))
            continue;
        if (!would_open(core, &least_view, borrowed) || !list_stopping(core, &all))
            continue;
        waits = preempt_kind(core, job, &least_view, kinds[k], borrowed, &all);
        free(all.list);
    }
    return waits;
}
