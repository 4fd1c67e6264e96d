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
#include "controller/core/core_schedule.h"

/* Shortest use of borrowed devices that is worth the start and stop of a job, which take
 * minutes. */
enum { BORROW_MIN_MS = 5 * 60 * 1000 };

/* ---- who may use a reservation ----------------------------------------------------------------*/

size_t core_reservation_owner_of(struct hd_core *core, const struct core_reservation *reserved)
{
    struct core_reservation_owner *owners = core->reservation_owners;
    size_t k = core->reservation_owner_count;

    while (k > 0 && (owners[k - 1].by != reserved->by || owners[k - 1].kind != reserved->kind ||
                     owners[k - 1].start_mono_ms != reserved->start_mono_ms))
        k--; /* the newest entry matches most often */
    if (k)
        return k;
    if (core->reservation_owner_count == CORE_RESERVATION_OWNERS_MAX)
        return 0;
    owners[core->reservation_owner_count] = (struct core_reservation_owner){
        .by = reserved->by, .kind = reserved->kind, .start_mono_ms = reserved->start_mono_ms};
    return ++core->reservation_owner_count;
}

/* Returns whether the reservation is for an older job that is known not to need the devices soon,
 * so that the job of the view may run on them until the older one preempts it. */
static bool may_borrow(const struct hd_core *core, const struct core_view *view, uint64_t by,
                       int64_t start_mono_ms)
{
    return view->borrows && by < view->job->rec.job && start_mono_ms != INT64_MAX &&
           start_mono_ms - core->now.mono_ms >= BORROW_MIN_MS;
}

bool core_may_use_reserved(const struct hd_core *core, const struct core_view *view,
                           enum hd_device_kind kind, const struct core_reservation_owner *owner)
{
    if (view->job && core_is_reserved_for(view->job, owner->by))
        return true;
    if (view->reserves)
        return false;
    return owner->kind != kind ||
           (view->length_ms && owner->start_mono_ms != INT64_MAX &&
            core->now.mono_ms + view->length_ms <= owner->start_mono_ms) ||
           may_borrow(core, view, owner->by, owner->start_mono_ms);
}

/* ---- sums -------------------------------------------------------------------------------------*/

/* Returns the set of reservation owners (bits) whose reserved devices the job of the view may
 * use. */
static uint64_t open_to(const struct hd_core *core, const struct core_view *view,
                        enum hd_device_kind kind)
{
    uint64_t open = 0;

    for (size_t k = 0; k < core->reservation_owner_count; k++)
        if (core_may_use_reserved(core, view, kind, &core->reservation_owners[k]))
            open |= (uint64_t)1 << k;
    return open;
}

static int32_t usable_on(const struct hd_core *core, const struct core_fit_bound *bound, size_t i)
{
    const uint8_t marks = core->marks[i];
    const int32_t free = core->free_of[bound->kind][i];
    const int32_t surplus = bound->reserves ? 0 : core->reserved_of[i].surplus;

    if (!(marks & CORE_MARK_USABLE) || ((marks & CORE_MARK_HOT_SPARE) && !bound->hot_spares))
        return 0;
    if (!(marks & CORE_MARK_RESERVED) ||
        (bound->usable & ((uint64_t)1 << (core->reserved_of[i].owner_index - 1))))
        return free;
    return free < surplus ? free : surplus;
}

static void sum_up(const struct hd_core *core, struct core_fit_bound *bound)
{
    for (size_t i = core_next_free(core, bound->kind, 0); i < core->node_count;
         i = core_next_free(core, bound->kind, i + 1)) {
        const int32_t open = usable_on(core, bound, i);

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

    if (asks || !core_free_by_node(core, kind) || core->reservation_owners_overflow)
        return false;
    bound.changes = core->changes;
    bound.usable = open_to(core, view, kind);
    for (size_t k = 0; k < CORE_FIT_BOUNDS; k++) {
        const struct core_fit_bound *known = &core->fit_bounds[k];

        if (known->changes == bound.changes && known->usable == bound.usable &&
            known->kind == bound.kind && known->unit == bound.unit &&
            known->hot_spares == bound.hot_spares && known->reserves == bound.reserves) {
            *ret_bound = *known;
            return true;
        }
    }
    sum_up(core, &bound);
    core->fit_bounds[core->next_fit_bound++ % CORE_FIT_BOUNDS] = bound;
    *ret_bound = bound;
    return true;
}

bool core_exceeds_fit_bound(struct hd_core *core, const struct core_view *view,
                            enum hd_device_kind kind)
{
    const int32_t need = view->needs->devices_min;
    struct core_fit_bound bound;

    if (core->free_devices[kind] < need)
        return true; /* even all usable devices together are too few */
    return !core->scratch.ignores_fit_bounds && !core->scratch.assumed_freed &&
           core_fit_bound_of(core, view, kind, &bound) && bound.total < need &&
           bound.largest < need;
}
