/* place: finds a placement for a job.
 *
 * A job gets as many devices as it may use, on as few nodes as possible, and among those where the
 * fewest devices stay unused; among equal single nodes, one at the switch with the fewest free
 * devices, so that other switches keep space for whole gangs. On a node it takes the free devices
 * with the lowest indices.
 *
 * A search always returns a whole placement: devices that suffice only in sum, on nodes that cannot
 * work together, do not count. It can run on a forecast, in which some attempts have ended, so that
 * reservations and preemption see what a start would see.
 */
#include <stdlib.h>

#include "controller/core/place/place.h"

/* ---- the search -------------------------------------------------------------------------------*/

/* Returns the number of free devices at the leaf switch of the node with this index; 0: it has no
 * switch. */
static int32_t free_below(const struct hd_core *core, const struct core_free *free, size_t i)
{
    const int32_t leaf = core_tiers(core) > 1 ? core->switch_of[1][i] : -1;

    return leaf >= 0 ? free->below[leaf] : 0;
}

/* Returns whether one-node placement a is better than b (b may be empty); `below`: devices that are
 * free at their switches. */
static bool is_better_node(const struct core_placement *a, int32_t below_a,
                           const struct core_placement *b, int32_t below_b)
{
    if (a->device_count != b->device_count)
        return a->device_count > b->device_count;
    if (!a->device_count || a->unused_count != b->unused_count)
        return a->device_count && a->unused_count < b->unused_count;
    return below_a < below_b;
}

/* Returns whether even all free devices together are too few for the job. */
static bool has_too_few(const struct hd_core *core, const struct core_view *view,
                        enum hd_device_kind kind)
{
    return core_forecast_of(core, view)->free[kind].total < view->needs->devices_min;
}

/* Sets *ret_best to the best placement on one node with free devices. */
static void find_on_one_node(struct hd_core *core, const struct core_view *view,
                             enum hd_device_kind kind, struct core_placement *ret_best)
{
    struct core_placement best = {0}, placement = {.member_count = 1};
    struct core_member member = {0};
    int32_t asked = -1; /* device count for which `placement` was computed; the result is reused,
                         * because most nodes are alike */
    const struct core_forecast *forecast = core_forecast_of(core, view);
    const struct core_free *free = &forecast->free[kind];
    const int32_t most = view->needs->memory_min <= core->least_memory[kind]
                             ? view->needs->devices_max
                             : INT32_MAX; /* all free devices of a node suit the job */
    int32_t below = INT32_MAX;            /* free devices at the switch of `best` */

    if (!core_arrays_ready(core))
        return;
    for (size_t i = core_next_free(core, forecast, kind, 0); i < core->node_count;
         i = core_next_free(core, forecast, kind, i + 1)) {
        const int32_t unused = free->of_node[i] - most, below_it = free_below(core, free, i);
        struct core_node *node = core->nodes[i];
        int32_t available;

        if (free->of_node[i] < view->needs->devices_min ||
            (best.device_count == most && /* it is no better, whatever of it is available */
             (unused > best.unused_count || (unused == best.unused_count && below_it >= below))))
            continue;
        available = core_available(core, view, i, kind);
        if (available < view->needs->devices_min || !core_can_read_base(view->base, node))
            continue;
        if (available != asked)
            placement.device_count = core_pick_count(view->needs, kind, available, &placement.plan);
        asked = available;
        placement.unused_count =
            core_count_free(core, forecast, view->needs, i, kind) - placement.device_count;
        if (is_better_node(&placement, below_it, &best, below)) {
            best = placement;
            below = below_it;
            member =
                (struct core_member){.node = node, .index = i, .count = placement.device_count};
        }
    }
    if (!best.device_count)
        return;
    best.members = malloc(sizeof *best.members);
    if (!best.members) {
        core->no_memory = true;
        return;
    }
    best.members[0] = member;
    *ret_best = best;
}

struct core_placement core_find_placement(struct hd_core *core, const struct core_view *view)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(view->needs, kinds);
    struct core_placement best = {0};

    for (size_t k = 0; k < kind_count && !best.device_count; k++) {
        if (has_too_few(core, view, kinds[k]))
            continue;
        if (view->needs->devices_min <= core->largest[kinds[k]])
            find_on_one_node(core, view, kinds[k], &best);
        if (best.device_count < view->needs->devices_max && core_may_span(view->base))
            core_gang_find(core, view, kinds[k], &best);
    }
    return best;
}

/* Returns whether the gang must be at one leaf switch, and no leaf switch has enough free
 * devices. */
static bool no_leaf_fits(struct hd_core *core, const struct core_view *view,
                         enum hd_device_kind kind)
{
    const int32_t need = view->needs->devices_min;

    if (view->tier_max != 1 || core_tiers(core) <= 1 || need <= core->largest[kind] ||
        !core_arrays_ready(core))
        return false;
    for (int64_t leaf = 0; leaf < core->leaf_count; leaf++)
        if (core_forecast_of(core, view)->free[kind].below[leaf] >= need)
            return false;
    return true;
}

bool core_has_placement(struct hd_core *core, const struct core_view *view)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(view->needs, kinds);
    struct core_placement placement = {0};
    bool found = false;

    if (view->nodes_max || view->tier_max) { /* the restrictions require a full search */
        for (size_t k = 0; k < kind_count && !found; k++)
            found = !has_too_few(core, view, kinds[k]) && !no_leaf_fits(core, view, kinds[k]);
        if (!found)
            return false;
        placement = core_find_placement(core, view);
        free(placement.members);
        return placement.device_count > 0;
    }
    for (size_t k = 0; k < kind_count && !found; k++) {
        if (has_too_few(core, view, kinds[k]))
            continue;
        if (view->needs->devices_min <= core->largest[kinds[k]])
            find_on_one_node(core, view, kinds[k], &placement);
        found = placement.device_count > 0 ||
                (core_may_span(view->base) && core_gang_is_there(core, view, kinds[k]));
    }
    free(placement.members);
    return found;
}

/* ---- as if all nodes were idle ----------------------------------------------------------------*/

int32_t core_count_for(const struct core_view *view, const struct core_node *node,
                       enum hd_device_kind kind, bool coming)
{
    int32_t count = 0;

    for (int32_t d = 0; d < node->rec.device_count; d++)
        count += node->rec.devices[d].kind == kind && core_device_works(node, d) &&
                 core_device_suits(view->needs, node, d) &&
                 (!node->holds[d].job || (node->holds[d].start > view->job->blocked_at) != coming);
    return count;
}

static int32_t pick_when_idle(const struct core_view *view, const struct core_node *node,
                              enum hd_device_kind kind, struct hd_plan_record *ret_plan)
{
    if (!core_node_may_come_back(node) || !core_can_read_base(view->base, node) ||
        core_avoids(view, node))
        return 0;
    return core_pick_count(view->needs, kind, core_count_devices(view->needs, node, kind, false),
                           ret_plan);
}

struct core_node *core_find_idle_node(struct hd_core *core, const struct core_view *view,
                                      enum hd_device_kind *ret_kind, uint64_t *ret_blocking_job)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(view->needs, kinds);
    struct core_node *best = NULL;
    int32_t best_free = -1;

    *ret_blocking_job = 0;
    for (size_t k = 0; k < kind_count; k++) {
        for (size_t i = 0; i < core->node_count; i++) {
            struct core_node *node = core->nodes[i];
            struct hd_plan_record plan;
            int32_t free_now = !core_node_usable(node) ? -1
                               : core->starts > view->job->blocked_at
                                   ? core_count_for(view, node, kinds[k], false)
                                   : core_count_devices(view->needs, node, kinds[k], true);

            if ((best && free_now <= best_free && !core_reserved_by(core, node)) ||
                (core_is_spare(core, node) && !view->hot_spares) ||
                !pick_when_idle(view, node, kinds[k], &plan))
                continue;
            if (core_reserved_by(core, node)) {
                *ret_blocking_job =
                    *ret_blocking_job ? *ret_blocking_job : core_reserved_by(core, node);
            } else if (!best || free_now > best_free) {
                best = node;
                best_free = free_now;
                *ret_kind = kinds[k];
            }
        }
    }
    return best;
}

/* Returns whether the job would fit if all nodes were idle. */
static bool fits_when_idle(struct hd_core *core, const struct core_view *view)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(view->needs, kinds);
    struct hd_plan_record plan;

    for (size_t k = 0; k < kind_count; k++) {
        for (size_t i = 0; i < core->node_count; i++)
            if (pick_when_idle(view, core->nodes[i], kinds[k], &plan))
                return true;
        if (core_may_span(view->base) && core_gang_fits_when_idle(core, view, kinds[k]))
            return true;
    }
    return false;
}

struct core_view core_view_of(struct hd_core *core, const struct core_job *job)
{
    struct core_view view = {.job = job, .needs = &job->needs, .base = core_checkpoint_newest(job)};

    view.hot_spares = core_has_failed(job) || core_needs_hot_spares(core, &job->needs);
    if (job->group)
        view.length_ms = job->group->key.class->key.length_minutes * 60000;
    view.avoids = job->avoided_count > 0;
    if (view.avoids)
        view.avoids = fits_when_idle(core, &view); /* a job that fits nowhere else may use the
                                                         * nodes where it failed, up to
                                                         * restart.max */
    return view;
}
