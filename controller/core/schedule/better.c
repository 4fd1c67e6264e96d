/* better: decides whether a job starts where it can now, or waits for a better placement.
 *
 * A placement takes the fewest nodes of the fewest switches that have enough free devices now. On
 * partly held nodes, or at several switches, a step takes longer on as many devices
 * (plan/step_cost.h, through layout_cache.c). For a job whose placement now is worse than the best
 * possible one, this file evaluates placements that become available later: on as few nodes as
 * possible, at one switch of each tier in turn. The job waits for the best of them if that pays:
 *
 *     gain = steps left x (step time now - step time later)
 *     wait = later - now                    later: by the predicted ends of attempts (predict.c)
 *
 *     no other job waits:    gain     > wait x 5/4 + a minute
 *     others wait:           gain x 3 > wait x 5/4 + a minute
 *
 * If no other job waits, it waits only where it ends earlier; the quarter and the minute allow for
 * ends that come late. If others wait, its gain is theirs too, because its devices become free
 * earlier for them; so it may even end a little later than it could, and the queue as a whole ends
 * earlier.
 *
 * A job that waits so reserves the better placement, with an expected start; the placement that it
 * could have now stays free for others. If the better placement is late, it is evaluated again.
 * After the time at which starting at once would have ended as early, the job refuses no placement
 * any more; the one that it refused may be taken by then, and the job waits like any other that
 * does not fit. The event that moves an expected start explains the choice. Where a step time or an
 * end is unknown, nothing is compared and the job starts.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "controller/core/schedule/schedule.h"

enum {
    OFFERS_MAX = 3, /* better placements that are tried for one job, each by a search over predicted
                     * ends */
    MARGIN_MS = 60 * 1000,
    PRICE_MS = 30 * 1000, /* milliseconds that a startable job waits for predicted step times of
                           * better placements */
    QUEUE_WEIGHT = 3,     /* factor of a job's gain while other jobs wait */
};

/* ---- comparison -------------------------------------------------------------------------------*/

/* Parameters of the comparison for one job. */
struct scales {
    double steps_left;
    double weight; /* factor by which a gain counts: 1, or QUEUE_WEIGHT if other jobs wait */
};

/* Returns whether a queued job waits for devices, rather than for its quota or for a node that does
 * not exist. */
static bool waits_for_devices(const struct hd_core *core, const struct core_job *job)
{
    const struct core_class *class = job->group ? job->group->key.class : NULL;
    const bool by_class = class && class->closed_in + 1 >= core->pass &&
                          class->closed_in > job->evaluated_in; /* the class's newest decision is
                                                                 * about another job */
    struct hd_job_needs needs;

    return (by_class ? class->wait : job->wait) != CORE_WAIT_NEVER &&
           core_within_quota(job, &needs);
}

enum { MANY = 3 };

/* Counts jobs of this priority or higher that wait for devices, up to MANY. */
static int count_waiting_jobs(const struct hd_core *core, int32_t priority)
{
    int count = 0;

    for (size_t i = 0; i < core->group_count && count < MANY; i++) {
        const struct core_job_group *group = core->groups[i];
        const struct core_job *first = group->first;

        if (group->key.priority < priority)
            break;
        if (first && waits_for_devices(core, first))
            count += first->after ? 2 : 1;
    }
    return count;
}

/* Returns whether other jobs of its priority or higher wait for devices. */
static bool others_wait(const struct hd_core *core, const struct core_job *job)
{
    return count_waiting_jobs(core, job->rec.priority) > 1;
}

bool core_ends_lone_wait(const struct hd_core *core, const struct core_job *new_job)
{
    return count_waiting_jobs(core, new_job->rec.priority) == 2;
}

static struct scales scales_of(const struct hd_core *core, const struct core_job *job)
{
    return (struct scales){.steps_left = (double)core_steps_left(job),
                           .weight = others_wait(core, job) ? QUEUE_WEIGHT : 1};
}

static double gain_ms(const struct scales *scales, const struct core_first *first,
                      const struct core_first *offer)
{
    return 1000 * scales->steps_left *
           (first->placement.plan.step_s - offer->placement.plan.step_s);
}

static double wait_ms(const struct core_first *first, const struct core_first *offer)
{
    return (double)(offer->start.mono_ms - first->start.mono_ms);
}

static double value_of(const struct scales *scales, const struct core_first *first,
                       const struct core_first *offer)
{
    return scales->weight * gain_ms(scales, first, offer) - wait_ms(first, offer);
}

static bool is_worth_waiting(const struct scales *scales, const struct core_first *first,
                             const struct core_first *offer)
{
    return value_of(scales, first, offer) > MARGIN_MS + wait_ms(first, offer) / 4;
}

/* Returns whether the offered placement is available early enough. The first refused placement sets
 * the deadline of all waiting: the time at which waiting gains nothing any more. Without it, better
 * placements that are always late by a few minutes could delay the job forever. */
static bool may_wait(struct core_job *job, const struct scales *scales,
                     const struct core_first *first, const struct core_first *offer)
{
    if (!job->better_until_mono_ms)
        job->better_until_mono_ms =
            first->start.mono_ms + (int64_t)(scales->weight * gain_ms(scales, first, offer));
    return offer->start.mono_ms <= job->better_until_mono_ms;
}

static bool has_price(const struct core_first *offer)
{
    return offer->placement.device_count && offer->layout == CORE_LAYOUT_FITS &&
           offer->placement.plan.step_s > 0;
}

/* Sets *ret_best to the better placement with the highest value; placement.device_count 0: there is
 * none. LATER: the step time of a better placement, *ret_best, is being predicted. */
static enum core_layout find_best(struct hd_core *core, struct core_forecast *forecast,
                                  const struct core_job *job, const struct hd_job_needs *needs,
                                  const struct scales *scales, const struct core_first *first,
                                  struct core_first *ret_best)
{
    struct hd_job_needs exact = *needs;
    const int32_t tiers = core_tiers(core), devices = first->placement.device_count;
    const struct core_aim aim = core_best_aim(core, needs, &first->placement);
    const bool fewer = first->placement.member_count > (size_t)aim.nodes;
    struct core_view view = core_view_of(core, job);
    int tried = 0;

    *ret_best = (struct core_first){0};
    exact.device = hd_device_kind_of(first->placement.plan.layout.device);
    exact.devices_min = exact.devices_max = devices;
    view.needs = &exact;
    view.reserves = true;
    view.nodes_max = aim.nodes;
    for (int32_t tier = aim.tier;
         tier <= tiers && tier < first->placement.tier + fewer && tried < OFFERS_MAX;
         tier++, tried++) {
        struct core_first offer;

        view.tier_max = tier;
        core_find_first(core, forecast, &view, exact.device, first, &offer);
        if (has_price(&offer) &&
            (!ret_best->placement.device_count ||
             value_of(scales, first, &offer) > value_of(scales, first, ret_best))) {
            free(ret_best->placement.members);
            *ret_best = offer;
            continue;
        }
        if (offer.placement.device_count && offer.layout == CORE_LAYOUT_LATER) {
            free(ret_best->placement.members);
            *ret_best = offer;
            return CORE_LAYOUT_LATER;
        }
        free(offer.placement.members);
    }
    return CORE_LAYOUT_FITS;
}

static void note(const struct hd_core *core, struct core_job *job, const struct scales *scales,
                 const struct core_first *first, const struct core_first *offer)
{
    job->choice = (struct hd_core_choice){
        .nodes_now = (int32_t)first->placement.member_count,
        .tier_now = first->placement.tier,
        .step_now_s = first->placement.plan.step_s,
        .now_ms = core->now.wall_ms + first->start.mono_ms - core->now.mono_ms,
        .nodes_later = (int32_t)offer->placement.member_count,
        .tier_later = offer->placement.tier,
        .step_later_s = offer->placement.plan.step_s,
        .later_ms = core->now.wall_ms + offer->start.mono_ms - core->now.mono_ms,
        .gain_ms = (int64_t)gain_ms(scales, first, offer),
        .saved_ms = (int64_t)(gain_ms(scales, first, offer) - wait_ms(first, offer))};
}

/* Limits the wait to PRICE_MS: step times may be predicted late, behind the requests of many other
 * jobs; after that time a job that could start now does so. */
bool core_waits_for_price(const struct hd_core *core, struct core_job *job)
{
    if (!job->price_mono_ms)
        job->price_mono_ms = core->now.mono_ms + PRICE_MS;
    return core->now.mono_ms < job->price_mono_ms;
}

enum core_start_choice core_choose_start(struct hd_core *core, struct core_forecast *forecast,
                                         struct core_job *job, const struct hd_job_needs *needs,
                                         struct core_first *first)
{
    const struct scales scales = scales_of(core, job);
    enum core_start_choice start_choice = CORE_TAKE_FIRST;
    struct core_forecast own = {0};
    struct core_first best;

    job->choice = (struct hd_core_choice){0};
    if (!has_price(first) || first->placement.member_count < 2 || job->pending ||
        core->reservers.count >= CORE_RESERVERS_MAX)
        return CORE_TAKE_FIRST;
    if (!forecast && !core_forecast_for(core, job, &own))
        return CORE_TAKE_FIRST;
    if (find_best(core, forecast ? forecast : &own, job, needs, &scales, first, &best) ==
        CORE_LAYOUT_LATER) {
        first->entry = best.entry;
        if (core_waits_for_price(core, job))
            start_choice = CORE_WAIT_FOR_PRICE;
    } else if (best.placement.device_count) {
        note(core, job, &scales, first, &best);
        if (is_worth_waiting(&scales, first, &best) && may_wait(job, &scales, first, &best)) {
            struct core_first swap = *first;

            *first = best;
            best = swap;
            start_choice = CORE_TAKE_LATER;
        }
    }
    core_forecast_done(&own);
    free(best.placement.members);
    return start_choice;
}
