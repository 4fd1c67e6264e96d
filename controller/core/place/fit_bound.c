/* fit_bound: upper bounds on the devices that a job could get, in total and on one node, from free
 * devices and reservations. Where the bound is too low, no search for a placement is made.
 *
 * In a busy cluster hundreds of jobs wait, each with another number of devices or another length,
 * and a pass evaluates each of them. Their bounds differ only by the reservations that they may
 * use: those that begin after the job's end, its own, and those that it may borrow. There are at
 * most CORE_RESERVERS_MAX reservations and a few nodes reserved for failed jobs, so most jobs of a
 * pass share one of a few sets. The bound of a set is computed once and cached until a node changes
 * (core->changes).
 *
 * There is no bound for jobs that ask for memory or avoid nodes: the search examines each node.
 */
#include "controller/core/place/place.h"

/* ---- sums -------------------------------------------------------------------------------------*/

/* Sets *ret_open to the set of reservations (bits, in the order of the list) that the job of the view
 * may use. False: there are too many. */
static bool list_open(const struct hd_core *core, const struct core_view *view,
                      enum hd_device_kind kind, uint64_t *ret_open)
{
    size_t bit = 0;

    *ret_open = 0;
    for (size_t k = core->allocations.run_count; k < core->allocations.count && bit <= 64; k++) {
        const struct core_allocation *a = &core->allocations.items[k];

        if (a->attempt)
            continue;
        if (bit < 64 && core_may_use(core, view, kind, a))
            *ret_open |= (uint64_t)1 << bit;
        bit++;
    }
    return bit <= 64;
}

static void sum_up(const struct hd_core *core, const struct core_view *view,
                   struct core_fit_bound *bound)
{
    for (size_t i = core_next_free(core, &core->present, bound->kind, 0); i < core->node_count;
         i = core_next_free(core, &core->present, bound->kind, i + 1)) {
        const int32_t open = core_available(core, view, i, bound->kind);

        bound->devices += open;
        bound->total += open - open % bound->unit;
        bound->largest = open > bound->largest ? open : bound->largest;
    }
}

bool core_fit_bound_of(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                       struct core_fit_bound *ret_bound)
{
    const bool asks = view->avoids || view->needs->memory_min > core->least_memory[kind];
    struct core_fit_bound bound = {.kind = kind,
                                   .unit = hd_plan_unit(&view->needs->wish),
                                   .hot_spares = view->hot_spares,
                                   .reserves = view->reserves};

    if (asks || !core_arrays_ready(core) || !list_open(core, view, kind, &bound.usable))
        return false;
    bound.changes = core->changes;
    for (size_t k = 0; k < CORE_FIT_BOUNDS; k++) {
        const struct core_fit_bound *known = &core->fit_bounds[k];

        if (known->changes == bound.changes && known->usable == bound.usable &&
            known->kind == bound.kind && known->unit == bound.unit &&
            known->hot_spares == bound.hot_spares && known->reserves == bound.reserves) {
            *ret_bound = *known;
            return true;
        }
    }
    sum_up(core, view, &bound);
    core->fit_bounds[core->next_fit_bound++ % CORE_FIT_BOUNDS] = bound;
    *ret_bound = bound;
    return true;
}

bool core_exceeds_fit_bound(struct hd_core *core, const struct core_view *view,
                            enum hd_device_kind kind)
{
    const struct core_forecast *forecast = core_forecast_of(core, view);
    const int32_t need = view->needs->devices_min;
    struct core_fit_bound bound;

    if (forecast->free[kind].total < need)
        return true; /* even all usable devices together are too few */
    return !view->ignores_bounds && !forecast->ended_count &&
           core_fit_bound_of(core, view, kind, &bound) && bound.total < need &&
           bound.largest < need;
}
