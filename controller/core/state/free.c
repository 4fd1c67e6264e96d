/* free: arrays by node index that searches read instead of the nodes: free devices, switches,
 * marks. A node's record spans several cache lines, and a search visits thousands of nodes, most of
 * which are full.
 *
 * The arrays are built on first use after nodes were added or moved (CORE_DUE_ARRAYS), and kept up
 * by core_node_changed, core_node_note and the reservations. Invariant I15 compares them with the
 * nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/state/state.h"

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
        counts->free += !node->holds[d].job;
        if (device->memory_bytes > 0 && device->memory_bytes < counts->least_memory)
            counts->least_memory = device->memory_bytes;
    }
}

void core_free_add(struct core_free *free, const struct core_node *node, int32_t more)
{
    const size_t i = node->index;

    free->of_node[i] = (uint16_t)(free->of_node[i] + more);
    if (node->leaf >= 0)
        free->below[node->leaf] += more;
    if (free->of_node[i])
        free->nodes[i / 64] |= (uint64_t)1 << i % 64;
    else
        free->nodes[i / 64] &= ~((uint64_t)1 << i % 64);
}

/* Updates core->present after a change of the node's free devices. */
static void note_free(struct hd_core *core, const struct core_node *node, int kind)
{
    struct core_free *now = &core->present.free[kind];

    core_free_add(now, node, node->counts[kind].free - now->of_node[node->index]);
}

void core_node_changed(struct hd_core *core, struct core_node *node)
{
    struct core_counts before[HD_DEVICE_KIND_COUNT];

    memcpy(before, node->counts, sizeof before);
    count_node(node);
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT; kind++) {
        const struct core_counts *counts = &node->counts[kind];

        core->present.free[kind].total += counts->free - before[kind].free;
        if (counts->all != before[kind].all || counts->least_memory != before[kind].least_memory)
            core->most.devices = 0;
        if (counts->all > core->largest[kind])
            core->largest[kind] = counts->all;
        if (counts->least_memory < core->least_memory[kind])
            core->least_memory[kind] = counts->least_memory;
    }
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT && !(core->due & CORE_DUE_ARRAYS); kind++)
        note_free(core, node, kind);
}

static uint8_t marks_of(const struct core_node *node)
{
    return (uint8_t)((core_node_usable(node) ? CORE_MARK_USABLE : 0) |
                     (node->reserved.allocation ? CORE_MARK_RESERVED : 0));
}

void core_node_note(struct hd_core *core, const struct core_node *node)
{
    if (!(core->due & CORE_DUE_ARRAYS))
        core->marks[node->index] = marks_of(node);
}

void core_arrays_free(struct hd_core *core)
{
    for (int k = 0; k < HD_DEVICE_KIND_COUNT; k++) {
        struct core_free *now = &core->present.free[k];

        free(now->of_node);
        free(now->nodes);
        free(now->below);
        *now = (struct core_free){.total = now->total};
    }
    for (int tier = 0; tier <= HD_CLUSTER_TIERS_MAX; tier++) {
        free(core->switch_of[tier]);
        core->switch_of[tier] = NULL;
    }
    free(core->marks);
    core->marks = NULL;
}

static bool make_arrays(struct hd_core *core)
{
    const size_t nodes = core->node_count + 1, leaves = (size_t)core->leaf_count + 1;
    bool made = true;

    for (int k = 0; k < HD_DEVICE_KIND_COUNT; k++) {
        struct core_free *now = &core->present.free[k];

        now->of_node = calloc(nodes, sizeof *now->of_node);
        now->nodes = calloc(nodes / 64 + 1, sizeof *now->nodes);
        now->below = calloc(leaves, sizeof *now->below);
        made = made && now->of_node && now->nodes && now->below;
    }
    for (int tier = 0; tier < core_tiers(core); tier++) {
        core->switch_of[tier] = calloc(nodes, sizeof *core->switch_of[tier]);
        made = made && core->switch_of[tier];
    }
    core->marks = calloc(nodes, sizeof *core->marks);
    return made && core->marks;
}

bool core_arrays_ready(struct hd_core *core)
{
    const struct hd_node_tree *tree = core->config.tree;

    if (!(core->due & CORE_DUE_ARRAYS))
        return true;
    core_arrays_free(core);
    core->leaf_count = 0;
    for (size_t i = 0; i < core->node_count; i++) {
        core->nodes[i]->index = i;
        if (core->nodes[i]->leaf >= core->leaf_count)
            core->leaf_count = core->nodes[i]->leaf + 1;
    }
    if (!make_arrays(core)) {
        core->no_memory = true;
        core_arrays_free(core);
        return false;
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
    (void)core_take_due(core, CORE_DUE_ARRAYS);
    return true;
}

enum hd_status core_check_free(const struct hd_core *core)
{
    for (int kind = 0; kind < HD_DEVICE_KIND_COUNT && !(core->due & CORE_DUE_ARRAYS); kind++) {
        const struct core_free *now = &core->present.free[kind];

        for (size_t i = 0; i < core->node_count; i++) {
            const struct core_node *node = core->nodes[i];
            int64_t below = 0;

            for (size_t k = 0; node->leaf >= 0 && k < core->node_count; k++)
                below += core->nodes[k]->leaf == node->leaf ? core->nodes[k]->counts[kind].free : 0;
            if (now->of_node[i] != node->counts[kind].free ||
                (core_next_free(core, &core->present, (enum hd_device_kind)kind, i) == i) !=
                    (node->counts[kind].free > 0) ||
                (node->leaf >= 0 && now->below[node->leaf] != below))
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
    for (size_t i = 0; i < core->node_count && !(core->due & CORE_DUE_ARRAYS); i++)
        if (core->marks[i] != marks_of(core->nodes[i]))
            return hd_err(HD_INTERNAL, "I15: %s has the marks %x; searches read %x",
                          core->nodes[i]->rec.name, marks_of(core->nodes[i]), core->marks[i]);
    return HD_OK;
}

bool core_device_suits(const struct hd_job_needs *needs, const struct core_node *node,
                       int32_t device)
{
    const int64_t bytes = node->rec.devices[device].memory_bytes;

    return !needs || bytes <= 0 || bytes >= needs->memory_min; /* unknown memory (0 bytes) suits
                                                                * every need */
}

int32_t core_free_device(const struct core_forecast *forecast, const struct hd_job_needs *needs,
                         const struct core_node *node, enum hd_device_kind kind, int32_t from)
{
    for (int32_t d = from; d < node->rec.device_count; d++)
        if (node->rec.devices[d].kind == kind &&
            (!node->holds[d].job ||
             (node->holds[d].by && core_forecast_has_ended(forecast, node->holds[d].by))) &&
            core_device_works(node, d) && core_device_suits(needs, node, d))
            return d;
    return -1;
}

int32_t core_count_devices(const struct hd_job_needs *needs, const struct core_node *node,
                           enum hd_device_kind kind, bool free_only)
{
    const struct core_counts *counts = &node->counts[kind];
    int32_t count = 0;

    if (!needs || needs->memory_min <= counts->least_memory)
        return free_only ? counts->free : counts->all;
    for (int32_t i = 0; i < node->rec.device_count; i++)
        count += node->rec.devices[i].kind == kind && core_device_works(node, i) &&
                 core_device_suits(needs, node, i) && !(free_only && node->holds[i].job);
    return count;
}

int32_t core_count_free(const struct hd_core *core, const struct core_forecast *forecast,
                        const struct hd_job_needs *needs, size_t index, enum hd_device_kind kind)
{
    const struct core_node *node = core->nodes[index];
    int32_t count = 0;

    if (needs->memory_min <= core->least_memory[kind] || /* the node is not read for most jobs */
        needs->memory_min <= node->counts[kind].least_memory)
        return forecast->free[kind].of_node[index];
    for (int32_t d = core_free_device(forecast, needs, node, kind, 0); d >= 0;
         d = core_free_device(forecast, needs, node, kind, d + 1))
        count++;
    return count;
}
