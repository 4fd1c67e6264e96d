/* ends: the predicted ends of attempts in order, and the number of ends that a job must wait for.
 *
 * A search assumes the devices of the first ends freed and looks for a placement, which takes a
 * millisecond on 10,000 nodes. A sum therefore first gives a lower bound for the number of ends:
 * end by end it adds the devices that become free on the nodes that the job may use. It sums over
 * all nodes or, for a placement at one switch, over the nodes of each switch; for a placement on
 * few nodes only nodes count that give a sufficient part of it. The sum ignores the other
 * conditions of a placement, so a search decides, beginning at that number of ends. Mostly the
 * first search succeeds.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/core_schedule.h"

/* ---- sums over nodes --------------------------------------------------------------------------*/

/* Devices that become free on one node when one attempt ends. */
struct core_gain {
    uint32_t node; /* index of the node in core->nodes */
    uint16_t devices;
    uint16_t kind;
};

/* Appends to core->gains the devices that become free with the next predicted end; ends beyond the
 * largest sum so far are not expanded. False: no memory. */
static bool list_gains(struct hd_core *core)
{
    const struct core_attempt *attempt = core->allocations.items[core->gained].attempt;
    size_t count = core->gain_count;

    if (!core_grow_array(core, &core->gains_until, core->gained, &core->gained_size,
                         sizeof *core->gains_until))
        return false;
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        if (!core_grow_array(core, &core->gains, count, &core->gain_size, sizeof *core->gains))
            return false;
        core->gains[count++] = (struct core_gain){
            .node = (uint32_t)attempt->allocs[i].node->index,
            .devices = (uint16_t)attempt->allocs[i].devices,
            .kind = (uint16_t)attempt->kind,
        };
    }
    core->gain_count = count;
    core->gains_until[core->gained++] = count;
    return true;
}

/* Fills a table by the number of a node's free devices: how many of them it adds to a sum, in whole
 * tensor-parallel groups; for a placement on few nodes, 0 if the other nodes could not supply the
 * rest. */
static void list_given(const struct hd_core *core, const struct core_view *view,
                       enum hd_device_kind kind, int32_t *ret_given)
{
    const int32_t others =
        view->nodes_max ? (view->nodes_max - 1) * core->largest[kind] : INT32_MAX;
    const int32_t least = view->needs->devices_min - others;

    for (int32_t free = 0; free <= HD_CTL_DEVICES_PER_NODE_MAX; free++) {
        ret_given[free] = core_whole_groups(view->needs, free);
        if (ret_given[free] < least)
            ret_given[free] = 0;
    }
}

/* A sum of free devices in progress: per node and per switch. Nodes without free devices are added
 * only when an end reaches them. */
struct sum {
    enum hd_device_kind kind;
    const int32_t *switch_of; /* switch of each node, by node index; -1: no switch */
    int32_t given[HD_CTL_DEVICES_PER_NODE_MAX + 1];
    int64_t need;
    uint16_t *free_of; /* free devices by node index; CLOSED: the job may not use the node; UNSEEN:
                        * not added yet, nothing is free */
    int64_t *of_switch;
    bool reached;
};
enum { CLOSED = UINT16_MAX, UNSEEN = 0xfefe };

static uint16_t sum_node(const struct hd_core *core, const struct core_view *view, struct sum *sum,
                         size_t i)
{
    sum->free_of[i] = sum->switch_of[i] >= 0 && core_allowance(core, view, i, sum->kind)
                          ? core->scratch.actual_free_of[i]
                          : CLOSED;
    return sum->free_of[i];
}

static void add_gain(struct sum *sum, size_t node, int32_t more)
{
    int64_t *of_switch = &sum->of_switch[sum->switch_of[node]];

    *of_switch += more;
    sum->reached |= *of_switch >= sum->need;
}

static void sum_free(const struct hd_core *core, const struct core_view *view, struct sum *sum)
{
    memset(sum->of_switch, 0, ((size_t)core->leaf_count + 1) * sizeof *sum->of_switch);
    memset(sum->free_of, UNSEEN & 0xff, core->node_count * sizeof *sum->free_of);
    for (size_t i = core_next_bit(core, core->scratch.actual_has_free, 0); i < core->node_count;
         i = core_next_bit(core, core->scratch.actual_has_free, i + 1))
        if (sum_node(core, view, sum, i) != CLOSED)
            add_gain(sum, i, sum->given[sum->free_of[i]]);
}

static void sum_gain(const struct hd_core *core, const struct core_view *view,
                     const struct core_gain *gain, struct sum *sum)
{
    uint16_t before = sum->free_of[gain->node], after;

    if (before == UNSEEN)
        before = sum_node(core, view, sum, gain->node);
    if (before == CLOSED || gain->kind != sum->kind)
        return;
    after = before + gain->devices;
    after = after < HD_CTL_DEVICES_PER_NODE_MAX ? after : HD_CTL_DEVICES_PER_NODE_MAX;
    sum->free_of[gain->node] = after;
    add_gain(sum, gain->node, sum->given[after] - sum->given[before]);
}

/* Copies the free devices as they are before any end is assumed freed; every sum starts from
 * them. */
static void save_actual_free(struct hd_core *core, enum hd_device_kind kind)
{
    memcpy(core->scratch.actual_free_of, core->free_of[kind],
           core->node_count * sizeof *core->scratch.actual_free_of);
    memcpy(core->scratch.actual_has_free, core->has_free[kind],
           (core->node_count / 64 + 1) * sizeof *core->scratch.actual_has_free);
}

/* Returns a lower bound for the number of predicted ends after which the job has a placement; above
 * the number of RUNS: none ever does. */
static size_t least_ends(struct hd_core *core, const struct core_view *view,
                         enum hd_device_kind kind)
{
    const bool of_switches = view->tier_max && view->tier_max < core_tiers(core);
    struct sum sum = {.kind = kind, .need = view->needs->devices_min};
    size_t ends = 0;

    if (!core_free_by_node(core, kind))
        return 0; /* out of memory: 0 is a valid lower bound */
    if (!core->scratch.ends_assumed_freed)
        save_actual_free(core, kind);
    sum.switch_of = core->switch_of[of_switches ? view->tier_max : 0];
    sum.free_of = core->scratch.sum_free_of;
    sum.of_switch = core->scratch.sum_of_switch;
    list_given(core, view, kind, sum.given);
    sum_free(core, view, &sum);
    for (size_t g = 0; !sum.reached; ends++) {
        if (ends == core->allocations.run_count)
            return ends + 1;
        if (ends == core->gained && !list_gains(core))
            return ends; /* out of memory: the number so far is still a valid lower bound */
        for (; g < core->gains_until[ends]; g++)
            sum_gain(core, view, &core->gains[g], &sum);
    }
    return ends;
}

/* ---- the search -------------------------------------------------------------------------------*/

void core_assume_ends_freed(struct hd_core *core, size_t ends)
{
    const size_t freed = core->scratch.ends_assumed_freed;

    for (size_t i = freed; i < ends; i++)
        core_assume_freed(core, core->allocations.items[i].attempt, true);
    for (size_t i = ends; i < freed; i++)
        core_assume_freed(core, core->allocations.items[i].attempt, false);
    core->scratch.ends_assumed_freed = ends;
}

/* Finds the smallest number of ends by bisection, because more free devices never remove a
 * placement. The bound of least_ends is mostly exact, so it is tried first and the stride grows
 * from there. */
size_t core_assume_fewest_freed(struct hd_core *core, const struct core_view *view,
                                enum hd_device_kind kind, struct core_placement *ret_placement)
{
    const size_t all = core->allocations.run_count;
    size_t low = least_ends(core, view, kind), high = all + 1;

    *ret_placement = (struct core_placement){0};
    if (low <= all) {
        core_assume_ends_freed(core, low);
        *ret_placement = core_find_placement(core, view);
        if (ret_placement->device_count)
            return low;
        low++;
    }
    for (size_t stride = 1; low < high; stride *= 2) {
        const size_t half = low + (high - low) / 2;
        const size_t mid = high > all && low + stride < half ? low + stride : half;

        if (mid > all)
            break;
        core_assume_ends_freed(core, mid);
        if (core_has_placement(core, view))
            high = mid;
        else
            low = mid + 1;
    }
    core_assume_ends_freed(core, low <= all ? low : 0);
    if (low <= all)
        *ret_placement = core_find_placement(core, view);
    return low;
}
