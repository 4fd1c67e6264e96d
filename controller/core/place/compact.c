/* compact: the best placement that a job could have if all nodes were idle: the fewest nodes, at one
 * switch of the lowest tier that can hold them. */
#include <stdlib.h>

#include "controller/core/place/place.h"

/* Returns the largest number of devices on one node that the job may use; at least 1. */
static int32_t most_devices(const struct hd_core *core, const struct hd_job_needs *needs,
                            enum hd_device_kind kind)
{
    int32_t most = 1;

    for (size_t i = 0; i < core->node_count; i++) {
        const int32_t count = core_node_may_come_back(core->nodes[i])
                                  ? core_count_devices(needs, core->nodes[i], kind, false)
                                  : 0;

        most = count > most ? count : most;
    }
    return most;
}

/* Returns the smallest number of nodes that can hold `devices` devices of the kind if all nodes
 * were idle. */
static int32_t fewest_nodes(struct hd_core *core, const struct hd_job_needs *needs,
                            enum hd_device_kind kind, int32_t devices)
{
    int32_t most;

    if (!core->most.devices || core->most.kind != kind ||
        core->most.memory_min != needs->memory_min) {
        core->most.kind = kind;
        core->most.memory_min = needs->memory_min;
        core->most.devices = most_devices(core, needs, kind);
    }
    most = core_whole_groups(needs, core->most.devices);
    most = most > 1 ? most : 1;
    return (devices + most - 1) / most;
}

/* Returns the lowest tier of switches in which one switch has at least `nodes` nodes. */
static int32_t lowest_tier(const struct hd_core *core, int32_t nodes)
{
    const struct hd_node_tree *tree = core->config.tree;

    if (nodes <= 1)
        return 0;
    for (int t = 0; tree && t < tree->tier_count; t++)
        if (tree->tier_nodes[t] >= nodes)
            return t + 1;
    return core_tiers(core);
}

enum hd_status core_check_most(const struct hd_core *core)
{
    const struct hd_job_needs needs = {.memory_min = core->most.memory_min};

    if (core->most.devices && core->most.devices != most_devices(core, &needs, core->most.kind))
        return hd_err(HD_INTERNAL, "I15: a node has at most %d devices; searches read %d",
                      most_devices(core, &needs, core->most.kind), core->most.devices);
    return HD_OK;
}

struct core_aim core_best_aim(struct hd_core *core, const struct hd_job_needs *needs,
                              const struct core_placement *now)
{
    const int32_t nodes =
        fewest_nodes(core, needs, hd_device_kind_of(now->plan.layout.device), now->device_count);

    return (struct core_aim){.nodes = nodes, .tier = lowest_tier(core, nodes)};
}

bool core_is_near(struct hd_core *core, const struct hd_job_needs *needs,
                  const struct core_placement *placement)
{
    const struct core_aim aim = core_best_aim(core, needs, placement);

    return placement->member_count <= (size_t)aim.nodes && placement->tier <= aim.tier + 1;
}

void core_limit_to_best(struct hd_core *core, struct core_view *view, enum hd_device_kind kind)
{
    view->nodes_max = fewest_nodes(core, view->needs, kind, view->needs->devices_min);
    view->tier_max = lowest_tier(core, view->nodes_max);
}

struct core_placement core_best_placement(struct hd_core *core, const struct hd_job_needs *needs,
                                          enum hd_device_kind kind, int32_t devices)
{
    const int32_t nodes = devices ? fewest_nodes(core, needs, kind, devices) : 0;
    struct core_placement placement = {.tier = lowest_tier(core, nodes), .idle = true};
    int32_t left = devices;

    placement.members = calloc((size_t)nodes + 1, sizeof *placement.members);
    core->no_memory |= !placement.members;
    for (size_t i = 0; placement.members && i < core->node_count && left > 0; i++) {
        struct core_node *node = core->nodes[i];
        const int32_t missing = nodes - (int32_t)placement.member_count;
        int32_t count = core_node_may_come_back(node)
                            ? core_whole_groups(needs, core_count_devices(needs, node, kind, false))
                            : 0;

        count = count < left ? count : left;
        if (!count || count * missing < left)
            continue; /* a node with so few devices would require more nodes than the minimum */
        placement.members[placement.member_count++] =
            (struct core_member){.node = node, .index = i, .count = count};
        left -= count;
    }
    if (!devices || left > 0 || !core_plan(needs, kind, devices, &placement.plan)) {
        free(placement.members);
        return (struct core_placement){0};
    }
    placement.device_count = devices;
    return placement;
}
