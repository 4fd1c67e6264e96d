/* free: arrays by node index that searches read instead of the nodes: free devices, switches,
 * marks. A node's record spans several cache lines, and a search visits thousands of nodes, most of
 * which are full.
 *
 * The arrays are built on first use after nodes were added or moved (free_due), and kept up to date
 * by core_node_changed, core_node_note and the reservations. Invariant I15 compares them with the
 * nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/core_schedule.h"

/* ---- devices of nodes -------------------------------------------------------------------------*/

static void count_node(struct core_node *node)
{
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT; kind++)
        node->counts[kind] = (struct core_counts){.least_memory = INT64_MAX};
    for (int32_t d = 0; d < node->rec.device_count; d++) {
        const struct hd_device_record *device = &node->rec.devices[d];
        struct core_counts *counts = &node->counts[device->kind];

        if (!core_device_works(node, d))
            continue;
        counts->all++;
        counts->free += !node->holds[d].job || core_is_assumed_freed(&node->holds[d]);
        if (device->memory_bytes > 0 && device->memory_bytes < counts->least_memory)
            counts->least_memory = device->memory_bytes;
    }
}

/* Updates the arrays free_of, free_below and has_free after a change of the node's free devices. */
static void note_free(struct hd_core *core, const struct core_node *node, int kind)
{
    uint16_t *of_node = &core->free_of[kind][node->index];
    const int32_t free = node->counts[kind].free;

    core->changes += free != *of_node;
    if (node->leaf >= 0)
        core->free_below[kind][node->leaf] += free - *of_node;
    *of_node = (uint16_t)free;
    if (free)
        core->has_free[kind][node->index / 64] |= (uint64_t)1 << node->index % 64;
    else
        core->has_free[kind][node->index / 64] &= ~((uint64_t)1 << node->index % 64);
}

void core_node_changed(struct hd_core *core, struct core_node *node)
{
    struct core_counts before[HD_DEVICE_KIND_COUNT];

    memcpy(before, node->counts, sizeof before);
    count_node(node);
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT; kind++) {
        const struct core_counts *counts = &node->counts[kind];

        core->free_devices[kind] -= before[kind].free;
        if (counts->all != before[kind].all || counts->least_memory != before[kind].least_memory)
            core->most.devices = 0;
        core->free_devices[kind] += counts->free;
        if (counts->all > core->largest[kind])
            core->largest[kind] = counts->all;
        if (counts->least_memory < core->least_memory[kind])
            core->least_memory[kind] = counts->least_memory;
    }
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT && !core->free_due; kind++)
        note_free(core, node, kind);
}

static uint8_t marks_of(const struct core_node *node)
{
    return (uint8_t)((core_node_usable(node) ? CORE_MARK_USABLE : 0) |
                     (node->hot_spare ? CORE_MARK_HOT_SPARE : 0) |
                     (node->reserved.allocation ? CORE_MARK_RESERVED : 0));
}

void core_node_note(struct hd_core *core, const struct core_node *node)
{
    const uint8_t marks = marks_of(node);

    if (core->free_due)
        return;
    core->changes += marks != core->marks[node->index];
    core->marks[node->index] = marks;
}

void core_reservation_changed(struct hd_core *core, const struct core_node *node)
{
    if (core->free_due)
        return;
    core->marks[node->index] = (uint8_t)((core->marks[node->index] & ~CORE_MARK_RESERVED) |
                                         (node->reserved.allocation ? CORE_MARK_RESERVED : 0));
}

void core_arrays_free(struct hd_core *core)
{
    for (int k = 0; k < HD_DEVICE_KIND_COUNT; k++) {
        free(core->free_of[k]);
        free(core->has_free[k]);
        free(core->free_below[k]);
        core->free_of[k] = NULL;
        core->has_free[k] = NULL;
        core->free_below[k] = NULL;
    }
    for (int tier = 0; tier <= HD_CLUSTER_TIERS_MAX; tier++) {
        free(core->switch_of[tier]);
        core->switch_of[tier] = NULL;
    }
    for (int tier = 0; tier < HD_CLUSTER_TIERS_MAX; tier++) {
        free(core->scratch.switches[tier]);
        core->scratch.switches[tier] = NULL;
    }
    free(core->marks);
    free(core->scratch.sum_free_of);
    free(core->scratch.sum_of_switch);
    free(core->scratch.actual_free_of);
    free(core->scratch.actual_has_free);
    core->marks = NULL;
    core->scratch.sum_free_of = NULL;
    core->scratch.sum_of_switch = NULL;
    core->scratch.actual_free_of = NULL;
    core->scratch.actual_has_free = NULL;
}

static bool make_arrays(struct hd_core *core)
{
    const size_t nodes = core->node_count + 1, leaves = (size_t)core->leaf_count + 1;
    bool made = true;

    for (int k = 0; k < HD_DEVICE_KIND_COUNT; k++) {
        core->free_of[k] = calloc(nodes, sizeof *core->free_of[k]);
        core->has_free[k] = calloc(nodes / 64 + 1, sizeof *core->has_free[k]);
        core->free_below[k] = calloc(leaves, sizeof *core->free_below[k]);
        made = made && core->free_of[k] && core->has_free[k] && core->free_below[k];
    }
    for (int tier = 0; tier < core_tiers(core); tier++) {
        core->switch_of[tier] = calloc(nodes, sizeof *core->switch_of[tier]);
        made = made && core->switch_of[tier];
    }
    for (int tier = 0; tier + 1 < core_tiers(core); tier++) {
        core->scratch.switches[tier] = calloc(leaves, sizeof *core->scratch.switches[tier]);
        made = made && core->scratch.switches[tier];
    }
    core->marks = calloc(nodes, sizeof *core->marks);
    core->scratch.sum_free_of = calloc(nodes, sizeof *core->scratch.sum_free_of);
    core->scratch.sum_of_switch = calloc(leaves, sizeof *core->scratch.sum_of_switch);
    core->scratch.actual_free_of = calloc(nodes, sizeof *core->scratch.actual_free_of);
    core->scratch.actual_has_free = calloc(nodes / 64 + 1, sizeof *core->scratch.actual_has_free);
    return made && core->marks && core->scratch.sum_free_of && core->scratch.sum_of_switch &&
           core->scratch.actual_free_of && core->scratch.actual_has_free;
}

const uint16_t *core_free_by_node(struct hd_core *core, enum hd_device_kind kind)
{
    const struct hd_node_tree *tree = core->config.tree;

    if (!core->free_due)
        return core->free_of[kind];
    core_arrays_free(core);
    core->leaf_count = 0;
    core->gain_count = core->gained = 0; /* these entries refer to node indices, which have
                                          * changed */
    core->changes++;
    for (size_t i = 0; i < core->node_count; i++) {
        core->nodes[i]->index = i;
        if (core->nodes[i]->leaf >= core->leaf_count)
            core->leaf_count = core->nodes[i]->leaf + 1;
    }
    if (!make_arrays(core)) {
        core->no_memory = true;
        core_arrays_free(core);
        return NULL;
    }
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *node = core->nodes[i];

        for (int k = 0; k < HD_DEVICE_KIND_COUNT; k++)
            note_free(core, node, k);
        core->marks[i] = marks_of(node);
        for (int tier = 1; tier < core_tiers(core); tier++)
            core->switch_of[tier][i] =
                node->position < 0 ? -1
                                   : (int32_t)hd_node_tree_switch(tree, tier - 1, node->position);
    }
    core->free_due = false;
    return core->free_of[kind];
}

enum hd_status core_check_free(const struct hd_core *core)
{
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT && !core->free_due; kind++) {
        for (size_t i = 0; i < core->node_count; i++) {
            const struct core_node *node = core->nodes[i];
            int64_t below = 0;

            for (size_t k = 0; node->leaf >= 0 && k < core->node_count; k++)
                below += core->nodes[k]->leaf == node->leaf ? core->nodes[k]->counts[kind].free : 0;
            if (core->free_of[kind][i] != node->counts[kind].free ||
                (core_next_free(core, (enum hd_device_kind)kind, i) == i) !=
                    (node->counts[kind].free > 0) ||
                (node->leaf >= 0 && core->free_below[kind][node->leaf] != below))
                return hd_err(HD_INTERNAL,
                              "I15: %s has %d free devices, and its switch %lld; searches read "
                              "something else",
                              node->rec.name, node->counts[kind].free, (long long)below);
        }
    }
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *node = core->nodes[i];
        int32_t held = 0, works = 0;

        for (int32_t d = 0; d < node->rec.device_count; d++)
            held += node->holds[d].by && core_device_works(node, d);
        for (size_t k = 0; k < node->active.count; k++)
            works += core_find_node_alloc(core_active(node->active.items[k]), node)->works;
        if (held != works)
            return hd_err(HD_INTERNAL, "I15: attempts hold %d devices of %s that work; they say %d",
                          held, node->rec.name, works);
    }
    for (size_t i = 0; i < core->node_count && !core->free_due; i++)
        if (core->marks[i] != marks_of(core->nodes[i]))
            return hd_err(HD_INTERNAL, "I15: %s has the marks %x; searches read %x",
                          core->nodes[i]->rec.name, marks_of(core->nodes[i]), core->marks[i]);
    return HD_OK;
}

/* ---- devices assumed freed --------------------------------------------------------------------*/

/* Updates the node's counts of free devices as core_node_changed would, without examining all
 * devices: searches assume thousands freed. */
static void count_free(struct hd_core *core, struct core_node *node, enum hd_device_kind kind,
                       int32_t more)
{
    node->counts[kind].free += more;
    core->free_devices[kind] += more;
    if (!core->free_due)
        note_free(core, node, kind);
}

void core_assume_freed(struct hd_core *core, struct core_attempt *attempt, bool freed)
{
    if (attempt->assumed_freed == freed)
        return;
    attempt->assumed_freed = freed;
    core->scratch.assumed_freed += freed ? 1 : (size_t)-1;
    for (size_t i = 0; i < attempt->alloc_count; i++) {
        const struct core_node_alloc *alloc = &attempt->allocs[i];

        if (alloc->works)
            count_free(core, alloc->node, attempt->kind, freed ? alloc->works : -alloc->works);
    }
}
