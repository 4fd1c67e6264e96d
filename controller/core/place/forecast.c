/* forecast: the cluster as if some attempts had ended, and how many must end for a placement.
 *
 * A forecast is a copy of the free devices of all nodes, over a list of allocations. A search for a
 * placement reads it in place of the present (core_view.forecast); nothing else in the core changes.
 * core_forecast_fewest finds the smallest number of leading allocations whose end gives a job a
 * placement: the runs by predicted end for a reservation, the cheapest ones for preemption.
 *
 * Each such search takes a millisecond on 10,000 nodes. For predicted ends a sum therefore first
 * gives a lower bound: end by end it adds the devices that become free on the nodes that the job may
 * use. It sums over all nodes or, for a placement at one switch, over the nodes of each switch; for a
 * placement on few nodes only nodes count that give a sufficient part of it. The sum ignores the
 * other conditions of a placement, so a search decides, beginning at that number of ends. Mostly the
 * first search succeeds.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/place/place.h"

/* ---- the value --------------------------------------------------------------------------------*/

bool core_forecast_init(struct hd_core *core, const struct core_allocation *list, size_t count,
                        struct core_forecast *ret)
{
    const size_t nodes = core->node_count + 1, words = nodes / 64 + 1;
    const size_t leaves = (size_t)core->leaf_count + 1, slots = core->slot_count / 64 + 1;
    const size_t of_kind = words * sizeof(uint64_t) + leaves * sizeof(int32_t) +
                           nodes * sizeof(uint16_t) + sizeof(uint64_t);
    char *at;

    *ret = (struct core_forecast){.list = list, .count = count};
    if (!core_arrays_ready(core))
        return false;
    if (core->out)
        core->out->forecasts++;
    ret->memory = at = malloc(slots * sizeof(uint64_t) + HD_DEVICE_KIND_COUNT * of_kind);
    core->no_memory |= !at;
    if (!at)
        return false;
    ret->ended = memset(at, 0, slots * sizeof(uint64_t));
    at += slots * sizeof(uint64_t);
    for (int k = 0; k < HD_DEVICE_KIND_COUNT;
         k++, at += of_kind / sizeof(uint64_t) * sizeof(uint64_t)) {
        const struct core_free *now = &core->present.free[k];
        struct core_free *free = &ret->free[k];

        *free = *now;
        if (!core->largest[k]) /* no attempt has devices of this kind: the arrays never change */
            continue;
        free->nodes = memcpy(at, now->nodes, words * sizeof(uint64_t));
        free->below = memcpy(free->nodes + words, now->below, leaves * sizeof(int32_t));
        free->of_node = memcpy(free->below + leaves, now->of_node, nodes * sizeof(uint16_t));
    }
    return true;
}

void core_forecast_done(struct core_forecast *forecast)
{
    free(forecast->memory);
    *forecast = (struct core_forecast){0};
}

void core_forecast_end(struct core_forecast *forecast, const struct core_attempt *attempt,
                       bool ended)
{
    uint64_t *word = &forecast->ended[attempt->slot / 64];
    const uint64_t bit = (uint64_t)1 << attempt->slot % 64;

    if (((*word & bit) != 0) == ended)
        return;
    *word ^= bit;
    forecast->ended_count += ended ? 1 : (size_t)-1;
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        const struct core_node_alloc *alloc = &attempt->allocs[i];
        const int32_t more = ended ? alloc->works : -alloc->works;

        forecast->free[attempt->kind].total += more;
        if (more)
            core_free_add(&forecast->free[attempt->kind], alloc->node, more);
    }
}

void core_forecast_advance(struct core_forecast *forecast, size_t ends)
{
    for (; forecast->at < ends; forecast->at++)
        core_forecast_end(forecast, forecast->list[forecast->at].attempt, true);
    for (; forecast->at > ends; forecast->at--)
        core_forecast_end(forecast, forecast->list[forecast->at - 1].attempt, false);
}

/* ---- sums over nodes --------------------------------------------------------------------------*/

/* Fills a table by the number of a node's free devices, up to core->largest: how many of them it
 * adds to a sum, in whole tensor-parallel groups; for a placement on few nodes, 0 if the other nodes
 * could not supply the rest. */
static void list_given(const struct hd_core *core, const struct core_view *view,
                       enum hd_device_kind kind, int32_t *ret_given)
{
    const int32_t others =
        view->nodes_max ? (view->nodes_max - 1) * core->largest[kind] : INT32_MAX;
    const int32_t least = view->needs->devices_min - others;
    const int32_t unit = hd_plan_unit(&view->needs->wish);

    for (int32_t free = 0; free <= core->largest[kind]; free++) {
        ret_given[free] = free - free % unit;
        if (ret_given[free] < least)
            ret_given[free] = 0;
    }
}

/* A sum of free devices in progress: per node and per switch. Nodes without free devices are added
 * only when an end reaches them. */
struct sum {
    const struct core_forecast *forecast; /* in which the sum begins */
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
                          ? sum->forecast->free[sum->kind].of_node[i]
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
    const struct core_forecast *now = sum->forecast;

    memset(sum->of_switch, 0, ((size_t)core->leaf_count + 1) * sizeof *sum->of_switch);
    memset(sum->free_of, UNSEEN & 0xff, core->node_count * sizeof *sum->free_of);
    for (size_t i = core_next_free(core, now, sum->kind, 0); i < core->node_count;
         i = core_next_free(core, now, sum->kind, i + 1))
        if (sum_node(core, view, sum, i) != CLOSED)
            add_gain(sum, i, sum->given[sum->free_of[i]]);
}

/* Adds the devices that become free when the attempt ends. */
static void sum_end(const struct hd_core *core, const struct core_view *view,
                    const struct core_attempt *attempt, struct sum *sum)
{
    for (size_t k = 0; attempt->kind == sum->kind && k < attempt->alloc_count; k++) {
        const size_t i = attempt->allocs[k].node->index;
        const uint16_t before =
            sum->free_of[i] == UNSEEN ? sum_node(core, view, sum, i) : sum->free_of[i];
        int32_t after = before + attempt->allocs[k].devices;

        if (before == CLOSED)
            continue;
        if (after > core->largest[sum->kind]) /* some of its devices do not work */
            after = core->largest[sum->kind];
        sum->free_of[i] = (uint16_t)after;
        add_gain(sum, i, sum->given[after] - sum->given[before]);
    }
}

size_t core_least_ends(struct hd_core *core, struct core_forecast *forecast,
                       const struct core_view *view, enum hd_device_kind kind, size_t from)
{
    const bool of_switches = view->tier_max && view->tier_max < core_tiers(core);
    const size_t leaves = (size_t)core->leaf_count + 1;
    struct sum sum = {.forecast = forecast, .kind = kind, .need = view->needs->devices_min};
    size_t ends = from;

    sum.of_switch = malloc(leaves * sizeof *sum.of_switch + core->node_count * sizeof *sum.free_of);
    core->no_memory |= !sum.of_switch;
    if (!sum.of_switch)
        return from;
    sum.free_of = (uint16_t *)(sum.of_switch + leaves);
    sum.switch_of = core->switch_of[of_switches ? view->tier_max : 0];
    list_given(core, view, kind, sum.given);
    core_forecast_advance(forecast, from);
    sum_free(core, view, &sum);
    for (; !sum.reached && ends < forecast->count; ends++)
        sum_end(core, view, forecast->list[ends].attempt, &sum);
    free(sum.of_switch);
    return sum.reached ? ends : ends + 1;
}

/* ---- the search -------------------------------------------------------------------------------*/

size_t core_forecast_fewest(struct hd_core *core, struct core_forecast *forecast,
                            const struct core_view *given, size_t least, size_t shut,
                            struct core_placement *ret_placement)
{
    const size_t all = forecast->count;
    struct core_view view = *given;
    size_t low = least, high = all + 1;

    view.forecast = forecast;
    *ret_placement = (struct core_placement){0};
    if (low <= all && low >= shut) { /* mostly the first search succeeds */
        core_forecast_advance(forecast, low);
        *ret_placement = core_find_placement(core, &view);
        if (ret_placement->device_count)
            return low;
    }
    low += low <= all;
    for (size_t stride = 1; low < high && low <= all; stride *= 2) {
        const size_t half = low + (high - low) / 2, next = low + stride - 1;
        const size_t mid = high <= all ? half : next < all ? next : all;

        if (mid >= shut)
            core_forecast_advance(forecast, mid);
        if (mid >= shut && core_has_placement(core, &view))
            high = mid;
        else
            low = mid + 1;
    }
    core_forecast_advance(forecast, low <= all ? low : 0);
    if (low <= all)
        *ret_placement = core_find_placement(core, &view);
    return low;
}
