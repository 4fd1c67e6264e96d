/* allocation: the list of the devices that are used or reserved, and the one rule who may use them.
 *
 * Each pass makes the list anew: first the running attempts in the order of their predicted ends,
 * then what this pass reserves. A reservation is on whole nodes; of each node it leaves the surplus,
 * devices that its job does not need, to all jobs. core_allowance applies the rule to one node; each
 * search and each cached sum reads it.
 */
#include <stdlib.h>

#include "controller/core/state/state.h"

/* Shortest use of borrowed devices that is worth the start and stop of a job, which take
 * minutes. */
enum { BORROW_MIN_MS = 5 * 60 * 1000 };

/* ---- the list ---------------------------------------------------------------------------------*/

static int by_end(const void *left, const void *right)
{
    const struct core_allocation *a = left, *b = right;

    if (a->until_mono_ms != b->until_mono_ms)
        return a->until_mono_ms < b->until_mono_ms ? -1 : 1;
    return a->job < b->job ? -1 : a->job > b->job;
}

static void append_allocation(struct hd_core *core, const struct core_allocation *allocation)
{
    struct core_allocations *all = &core->allocations;

    if (core_grow_array(core, &all->items, all->count, &all->size, sizeof *allocation))
        all->items[all->count++] = *allocation;
}

/* Returns whether the attempt borrows its devices, and therefore stops when their owner needs
 * them. */
static bool is_borrower(const struct core_attempt *attempt)
{
    return attempt->rec.borrows && attempt->rec.state != HD_ATTEMPT_STATE_STOPPING;
}

void core_list_attempt(struct hd_core *core, const struct core_job *job,
                       struct core_attempt *attempt)
{
    append_allocation(
        core, &(struct core_allocation){.why = is_borrower(attempt) ? CORE_BORROWS : CORE_RUNS,
                                        .kind = attempt->kind,
                                        .job = attempt->rec.job,
                                        .attempt = attempt,
                                        .from_mono_ms = core->now.mono_ms,
                                        .until_mono_ms = attempt->ends_mono_ms,
                                        .priority = job->rec.priority});
}

static bool has_known_end(const struct core_attempt *attempt)
{
    return attempt->ends_mono_ms != INT64_MAX && !is_borrower(attempt);
}

void core_list_allocations(struct hd_core *core)
{
    core_unreserve_all(core);
    (void)core_take_due(core, CORE_DUE_ENDS);
    core->due |= CORE_DUE_OPENED;
    core->allocations.count = 0;
    core->lowest_priority = INT32_MAX;
    for (size_t i = 0; i < core->active.count; i++) {
        const struct core_job *job = core->active.items[i];
        struct core_attempt *attempt = core_active(job);

        if (job->rec.priority < core->lowest_priority)
            core->lowest_priority = job->rec.priority;
        attempt->ends_mono_ms = core_predict_end(core, job, attempt);
        if (has_known_end(attempt))
            core_list_attempt(core, job, attempt);
    }
    core->allocations.run_count = core->allocations.count;
    if (core->allocations.count)
        qsort(core->allocations.items, core->allocations.count, sizeof *core->allocations.items,
              by_end);
    for (size_t i = 0; i < core->active.count; i++)
        if (!has_known_end(core_active(core->active.items[i])))
            core_list_attempt(core, core->active.items[i], core_active(core->active.items[i]));
}

/* ---- reservations of nodes --------------------------------------------------------------------*/

/* Returns 1 + the index of the reservation in the list, adding it. The newest entry matches most
 * often. */
static uint32_t find_or_append(struct hd_core *core, const struct core_allocation *reservation)
{
    const struct core_allocations *all = &core->allocations;

    for (size_t k = all->count; k > all->run_count; k--) {
        const struct core_allocation *a = &all->items[k - 1];

        if (a->why == reservation->why && a->job == reservation->job &&
            a->kind == reservation->kind && a->from_mono_ms == reservation->from_mono_ms)
            return (uint32_t)k;
    }
    append_allocation(core, reservation);
    return (uint32_t)all->count;
}

void core_set_reserved(struct hd_core *core, struct core_node *node, struct core_reserved reserved)
{
    if (reserved.allocation && !node->reserved.allocation &&
        core_grow_array(core, &core->reserved, core->reserved_count, &core->reserved_size,
                        sizeof node))
        core->reserved[core->reserved_count++] = node;
    node->reserved = reserved;
    if (!(core->due & CORE_DUE_ARRAYS))
        core->marks[node->index] = (uint8_t)((core->marks[node->index] & ~CORE_MARK_RESERVED) |
                                             (reserved.allocation ? CORE_MARK_RESERVED : 0));
}

void core_reserve_node(struct hd_core *core, struct core_node *node, enum core_allocation_why why,
                       uint64_t job, enum hd_device_kind kind, int64_t from_mono_ms,
                       int32_t surplus)
{
    const struct core_allocation reservation = {.why = why,
                                                .kind = kind,
                                                .job = job,
                                                .from_mono_ms = from_mono_ms,
                                                .until_mono_ms = INT64_MAX};

    core_set_reserved(core, node,
                      (struct core_reserved){.allocation = find_or_append(core, &reservation),
                                             .surplus = surplus > 0 ? surplus : 0});
}

void core_unreserve_job(struct hd_core *core, uint64_t job)
{
    for (size_t i = 0; i < core->reserved_count; i++)
        if (core_reserved_by(core, core->reserved[i]) == job)
            core_set_reserved(core, core->reserved[i], (struct core_reserved){0});
}

void core_unreserve_all(struct hd_core *core)
{
    struct core_allocations *all = &core->allocations;
    size_t kept = all->run_count;

    for (size_t i = 0; i < core->reserved_count; i++)
        core_set_reserved(core, core->reserved[i], (struct core_reserved){0});
    core->reserved_count = core->reservers.count = 0;
    for (size_t i = all->run_count; i < all->count; i++)
        if (all->items[i].attempt)
            all->items[kept++] = all->items[i];
    all->count = kept;
}

/* ---- who may use them -------------------------------------------------------------------------*/

/* Returns whether the reservation is for an older job that is known not to need the devices soon,
 * so that the job of the view may run on them until the older one preempts it. */
static bool may_borrow(const struct hd_core *core, const struct core_view *view,
                       const struct core_allocation *a)
{
    return view->borrows && a->job < view->job->rec.job && a->from_mono_ms != INT64_MAX &&
           a->from_mono_ms - core->now.mono_ms >= BORROW_MIN_MS;
}

/* Returns whether the job of the view may use devices of this reservation: it is the job's own, a
 * hot spare that it may use, is for another device kind, begins after the job's predicted end, or
 * may be borrowed. */
static bool may_use(const struct hd_core *core, const struct core_view *view,
                    enum hd_device_kind kind, const struct core_allocation *a)
{
    if (a->why == CORE_SPARE)
        return view->hot_spares;
    if (view->job && core_is_reserved_for(view->job, a->job))
        return true;
    if (view->reserves)
        return false;
    return a->kind != kind ||
           (view->length_ms && a->from_mono_ms != INT64_MAX &&
            core->now.mono_ms + view->length_ms <= a->from_mono_ms) ||
           may_borrow(core, view, a);
}

bool core_may_borrow(const struct hd_core *core, const struct core_view *view)
{
    for (size_t i = core->allocations.run_count; i < core->allocations.count; i++)
        if (!core->allocations.items[i].attempt &&
            may_borrow(core, view, &core->allocations.items[i]))
            return true;
    return false;
}

int32_t core_allowance(const struct hd_core *core, const struct core_view *view, size_t i,
                       enum hd_device_kind kind)
{
    const uint8_t marks = core->marks[i];
    const struct core_node *node;

    if (!(marks & CORE_MARK_USABLE) || (view->avoids && core_avoids(view, core->nodes[i])))
        return 0;
    if (!(marks & CORE_MARK_RESERVED))
        return INT32_MAX;
    node = core->nodes[i];
    if (may_use(core, view, kind, core_reservation_of(core, node)))
        return INT32_MAX;
    return view->reserves ? 0 : node->reserved.surplus;
}

int32_t core_available(const struct hd_core *core, const struct core_view *view, size_t i,
                       enum hd_device_kind kind)
{
    const struct core_forecast *forecast = core_forecast_of(core, view);
    const int32_t allowance = core_allowance(core, view, i, kind);
    int32_t count;

    if (!allowance)
        return 0;
    count = core_count_free(core, forecast, view->needs, i, kind);
    return count < allowance ? count : allowance;
}
