/* preempt: chooses the running jobs that are preempted for one of higher priority.
 *
 * Victims are attempts of lower priority, those first that would lose the least work: device-time
 * since their last checkpoint. A search for a whole placement with their devices chooses as few as
 * possible of the cheapest; victims that the placement does not need are reprieved. The placement
 * spans as few switches as possible, if enough jobs there can be preempted. A victim writes a
 * checkpoint and ends; its job is queued again and continues from there. The placement is reserved
 * for the waiting job (pending.c).
 */
#include <inttypes.h>
#include <stdlib.h>

#include "controller/core/core_schedule.h"
#include "controller/core/core_texts.h"

/* Most victims for which it is tried whether the job has a placement without their devices. */
enum { REPRIEVES_TRIED_MAX = 64 };

struct victim {
    struct core_job *job;
    struct core_attempt *attempt;
    int64_t lost_ms;  /* work that the attempt would lose, in device-milliseconds */
    int32_t priority; /* priority and number: copies for sorting, because jobs are scattered in
                       * memory */
    uint64_t number;
};

static int by_loss(const void *left, const void *right)
{
    const struct victim *a = left, *b = right;

    if (a->lost_ms != b->lost_ms)
        return a->lost_ms < b->lost_ms ? -1 : 1;
    if (a->priority != b->priority)
        return a->priority < b->priority ? -1 : 1;
    return a->number > b->number ? -1 : a->number < b->number;
}

static int64_t loss_of(const struct hd_core *core, const struct core_attempt *attempt)
{
    const int64_t since_ms = attempt->saved_mono_ms > attempt->state_since_mono_ms
                                 ? attempt->saved_mono_ms
                                 : attempt->state_since_mono_ms;

    return (core->now.mono_ms - since_ms) * attempt->rec.plan.rank_count;
}

/* Returns whether the job may preempt the attempt: the attempt's job has lower priority, or borrows
 * devices that are reserved for this job. */
static bool is_preemptible(const struct hd_core *core, const struct core_attempt *attempt,
                           const struct core_job *other, const struct core_job *job, bool borrowed)
{
    return other->rec.priority < job->rec.priority ||
           (borrowed && core_yields_to(core, attempt, job));
}

/* Sets ret_victims to the stopping attempts (*ret_stopping of them), followed by the attempts that
 * the job may preempt, cheapest first; returns the total. */
static size_t list_victims(const struct hd_core *core, const struct core_job *job, bool borrowed,
                           struct victim *ret_victims, size_t *ret_stopping)
{
    size_t count = 0;

    *ret_stopping = 0;
    for (size_t i = 0; i < core->active.count; i++) {
        struct core_job *other = core->active.items[i];
        struct core_attempt *attempt = core_active(other);

        if (attempt->rec.state == HD_ATTEMPT_STATE_STOPPING) {
            ret_victims[count++] = ret_victims[*ret_stopping];
            ret_victims[(*ret_stopping)++] = (struct victim){.job = other, .attempt = attempt};
        } else if (is_preemptible(core, attempt, other, job, borrowed)) {
            ret_victims[count++] = (struct victim){.job = other,
                                                   .attempt = attempt,
                                                   .lost_ms = loss_of(core, attempt),
                                                   .priority = other->rec.priority,
                                                   .number = other->rec.job};
        }
    }
    qsort(ret_victims + *ret_stopping, count - *ret_stopping, sizeof *ret_victims, by_loss);
    return count;
}

static void assume_victims_freed(struct hd_core *core, const struct victim *victims, size_t from,
                                 size_t to, bool freed)
{
    for (size_t i = from; i < to; i++)
        core_assume_freed(core, victims[i].attempt, freed);
}

/* Candidates for preemption: the attempts that are stopping already, followed by those that a job
 * may preempt. */
struct candidates {
    struct victim *victims;
    size_t stopping, count;
};

/* Bounds of a search for the fewest candidates: with the devices of the first `high` counted as
 * free the job has a placement, with fewer than `low` it has none. */
struct bounds {
    size_t low, high;
};

/* Counts the devices of candidates as free, one more, then two, four .., until the job has a
 * placement; few are usually needed, and freeing thousands costs more than searching. They stay
 * counted as free; ret->high is their number. False: all are, and there is no placement. */
static bool assume_freed_until_it_fits(struct hd_core *core, const struct core_view *view,
                                       const struct candidates *all, struct bounds *ret)
{
    *ret = (struct bounds){.low = all->stopping, .high = all->stopping};
    assume_victims_freed(core, all->victims, 0, all->stopping, true);
    for (size_t more = 1; !core_has_placement(core, view); more *= 2) {
        const size_t left = all->count - ret->high;

        if (!left)
            return false;
        ret->low = ret->high + 1;
        ret->high += more < left ? more : left;
        assume_victims_freed(core, all->victims, ret->low - 1, ret->high, true);
    }
    return true;
}

/* Returns the smallest number of leading candidates whose devices give the job a placement.
 * Afterwards the devices of exactly the stopping ones are assumed freed. */
static size_t choose_fewest_victims(struct hd_core *core, const struct core_view *view,
                                    const struct candidates *all, struct bounds bounds)
{
    size_t freed = all->stopping;

    while (bounds.low < bounds.high) {
        const size_t mid = bounds.low + (bounds.high - bounds.low) / 2;

        if (mid > freed)
            assume_victims_freed(core, all->victims, freed, mid, true);
        else
            assume_victims_freed(core, all->victims, mid, freed, false);
        freed = mid;
        if (core_has_placement(core, view))
            bounds.high = mid;
        else
            bounds.low = mid + 1;
    }
    assume_victims_freed(core, all->victims, all->stopping, freed, false);
    return bounds.high;
}

/* Drops victims whose devices the job does not need, the dearest first. The devices of the first
 * `count` are assumed freed on entry; the victims that are needed are moved to the front and stay
 * so. Returns their number. */
static size_t reprieve(struct hd_core *core, const struct core_view *view, struct victim *victims,
                       size_t from, size_t count)
{
    struct core_placement placement = core_find_placement(core, view);
    size_t kept = from, tried = 0;

    for (size_t i = from; i < count; i++) {
        if (core_is_on(&placement, victims[i].attempt))
            victims[kept++] = victims[i];
        else
            assume_victims_freed(core, victims, i, i + 1, false);
    }
    free(placement.members);
    for (size_t i = kept; i > from && tried < REPRIEVES_TRIED_MAX; i--, tried++) {
        assume_victims_freed(core, victims, i - 1, i, false);
        if (!core_has_placement(core, view)) {
            assume_victims_freed(core, victims, i - 1, i, true);
            continue;
        }
        for (size_t k = i; k < kept; k++)
            victims[k - 1] = victims[k];
        kept--;
    }
    return kept;
}

static void stop_victims(struct hd_core *core, struct core_job *job, const struct victim *victims,
                         size_t count)
{
    struct core_job_list stopped = {0};
    int32_t devices = 0;

    for (size_t i = 0; i < count; i++) {
        struct core_attempt *attempt = victims[i].attempt;

        core_job_list_add(&stopped, victims[i].number);
        devices += attempt->rec.plan.rank_count;
        core_event_preempted(core, victims[i].job, attempt, job);
        core_attempt_stop_for(core, victims[i].job, attempt, HD_END_CAUSE_PREEMPTED, job->rec.job);
    }
    core_event_preempting(core, job, &stopped, devices);
    hd_text_free(&stopped.numbers);
    job->is_preemptor = true;
    core_jobs_add(core, &core->preemptors, job);
    core->changed_in_pass = true;
}

/* Returns whether even all devices that preemption can free are too few for the job. */
static bool lacks_victims(struct hd_core *core, const struct core_job *job,
                          const struct core_view *view, enum hd_device_kind kind, bool borrowed)
{
    int64_t devices = core->held_by_stopping + (borrowed ? core->held_by_borrowers : 0);
    struct core_fit_bound bound;

    if (core->held_lacks || core->scratch.ignores_fit_bounds ||
        !core_fit_bound_of(core, view, kind, &bound))
        return false;
    for (size_t k = 0; k < core->held_count; k++)
        if (core->held[k].priority < job->rec.priority)
            devices += core->held[k].devices;
    return bound.devices + devices < view->needs->devices_min;
}

enum hd_status core_check_victims(struct hd_core *core, const struct core_job *job)
{
    struct victim *victims = malloc((core->active.count + 1) * sizeof *victims);
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    struct core_view view = core_view_of(core, job);
    struct hd_job_needs least;
    size_t stopping, count;
    bool has_placement;

    (void)core_kinds(&job->needs, kinds);
    view.needs = &least;
    view.reserves = true;
    if (!victims || !core_least_needs(&job->needs, kinds[0], &least) ||
        !lacks_victims(core, job, &view, kinds[0], true)) {
        free(victims);
        return HD_OK;
    }
    count = list_victims(core, job, true, victims, &stopping);
    assume_victims_freed(core, victims, 0, count, true);
    core->scratch.ignores_fit_bounds = true;
    has_placement = core_has_placement(core, &view);
    core->scratch.ignores_fit_bounds = false;
    assume_victims_freed(core, victims, 0, count, false);
    free(victims);
    return has_placement
               ? hd_err(HD_INTERNAL,
                        "I16: job %" PRIu64 " has a place if %zu attempts are preempted, and "
                        "searches are told that it has none",
                        job->rec.job, count)
               : HD_OK;
}

/* Preempts the fewest candidates that give the job a placement within the view's limits. bounds:
 * from assume_freed_until_it_fits. */
static void choose_victims(struct hd_core *core, struct core_job *job, const struct core_view *view,
                           const struct candidates *all, struct bounds bounds)
{
    const size_t stopping = all->stopping;
    struct core_placement placement;
    size_t count;

    assume_victims_freed(core, all->victims, 0, stopping, true);
    count = choose_fewest_victims(core, view, all, bounds);
    if (count > stopping) {
        assume_victims_freed(core, all->victims, stopping, count, true);
        count = reprieve(core, view, all->victims, stopping, count);
    }
    placement = core_find_placement(core, view);
    assume_victims_freed(core, all->victims, 0, count, false);
    if (count > stopping)
        stop_victims(core, job, all->victims + stopping, count - stopping);
    if (job->is_preemptor)
        core_pending_set(core, job, view->needs, &placement);
    free(placement.members);
}

/* Preempts attempts on devices of one kind. True: the job has a placement once some attempts have
 * stopped. Unless the view has limits, the placement is as compact as possible: at one switch of
 * the lowest tier, then of higher ones. */
static bool preempt_kind(struct hd_core *core, struct core_job *job, struct core_view *view,
                         enum hd_device_kind kind, const struct candidates *all)
{
    const int32_t last = core_tiers(core);
    struct core_view best = *view;
    struct bounds bounds;
    bool enough;

    if (!view->nodes_max)
        core_limit_to_best(core, &best, kind);
    enough = assume_freed_until_it_fits(core, &best, all, &bounds);
    if (!enough) { /* the devices of all candidates count as free now: relax the tier step by step
                    * until they suffice */
        enough = core_has_placement(core, view);
        while (enough && best.nodes_max && !view->nodes_max && !core_has_placement(core, &best))
            if (best.nodes_max == 1 || ++best.tier_max > last)
                best.nodes_max = best.tier_max = 0;
        assume_victims_freed(core, all->victims, 0, all->count, false);
        if (enough)
            (void)assume_freed_until_it_fits(core, &best, all, &bounds);
        else
            bounds.high = 0;
    }
    assume_victims_freed(core, all->victims, 0, bounds.high, false);
    if (enough) {
        *view = best;
        choose_victims(core, job, view, all, bounds);
    }
    return enough;
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
    all.victims = malloc((core->active.count + 1) * sizeof *all.victims);
    if (!all.victims) {
        core->no_memory = true;
        return false;
    }
    for (size_t k = 0; k < kind_count && !waits; k++) {
        struct core_view least_view = *view;

        least_view.needs = &least;
        least_view.reserves = true;
        if (!core_least_needs(view->needs, kinds[k], &least) ||
            lacks_victims(core, job, &least_view, kinds[k], borrowed))
            continue;
        all.count = list_victims(core, job, borrowed, all.victims, &all.stopping);
        waits = preempt_kind(core, job, &least_view, kinds[k], &all);
    }
    free(all.victims);
    return waits;
}
