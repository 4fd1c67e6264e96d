/* gang: placement of one job on several nodes. The chosen nodes are called a gang.
 *
 * Nodes may be in one gang if each sees the controller's jobs directory, through which ranks share
 * checkpoints; if each has a data address that the others reach (a loopback address is reached only
 * from the same machine: equal boot id); and if all compute equal bits (equal `compute` of the
 * device kind: instruction set and library, or GPU model, cuBLASLt and NCCL).
 *
 * Among the possible gangs the one with the most usable devices wins, then the one with the fewest
 * nodes, then the one that spans the fewest switches, if they are known (links.c), then the one
 * that leaves the fewest devices unused, then the first by node names. Ranks are numbered in the
 * order of nodes at their switches, then of node names, so ranks of one node are neighbours. A node
 * takes only whole tensor-parallel groups, because these communicate in every layer.
 *
 * `jobs_dir_visible`, `data_address` and `compute` come with a node's stream and are not stored:
 * after a restart of the controller a queued gang reserves nodes when enough have reconnected.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/place/place.h"

/* ---- which nodes may join ---------------------------------------------------------------------*/

static bool is_loopback(const struct core_node *node)
{
    const char *address = node->facts.data_address ? node->facts.data_address : "";

    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* Returns whether the node can communicate between its devices of this kind and those of other
 * nodes; GPUs need NCCL. */
static bool has_engine(const struct core_node *node, enum hd_device_kind kind)
{
    return kind != HD_DEVICE_KIND_CUDA || (node->facts.compute[kind] && *node->facts.compute[kind]);
}

static bool may_join(const struct core_node *node, enum hd_device_kind kind)
{
    return node->jobs_dir_visible && node->facts.data_address && *node->facts.data_address &&
           has_engine(node, kind);
}

/* Returns whether both nodes compute bit-identical results; true also for a node that has not
 * connected since the controller started, because its numerics class is unknown. */
static bool computes_alike(const struct core_node *node, const struct core_node *seed,
                           enum hd_device_kind kind)
{
    return !node->stream || core_same(node->facts.compute[kind], seed->facts.compute[kind]);
}

/* Returns whether `node` and `seed` reach each other's data address. The kind is not used. */
static bool is_within_reach(const struct core_node *node, const struct core_node *seed,
                            enum hd_device_kind kind)
{
    (void)kind;
    return is_loopback(seed) ? core_same(node->rec.boot_id, seed->rec.boot_id) : !is_loopback(node);
}

static bool node_has_kind(const struct core_node *node, enum hd_device_kind kind)
{
    for (int32_t i = 0; i < node->rec.device_count; i++)
        if (node->rec.devices[i].kind == kind)
            return true;
    return false;
}

/* Returns whether can_join excludes a gang of this node and some other node that has devices of
 * this kind. */
static bool cannot_join_all(const struct hd_core *core, const struct core_node *node,
                            enum hd_device_kind kind,
                            bool (*can_join)(const struct core_node *, const struct core_node *,
                                             enum hd_device_kind))
{
    for (size_t i = 0; i < core->node_count; i++) {
        if (core_node_may_come_back(core->nodes[i]) && node_has_kind(core->nodes[i], kind) &&
            !can_join(core->nodes[i], node, kind))
            return true;
    }
    return false;
}

enum core_gang_obstacle core_find_gang_obstacle(const struct hd_core *core,
                                                const struct core_node *node,
                                                enum hd_device_kind kind)
{
    if (!node_has_kind(node, kind))
        return CORE_GANG_OBSTACLE_NONE;
    if (!node->jobs_dir_visible)
        return CORE_GANG_OBSTACLE_JOBS_DIR;
    if (!node->facts.data_address || !*node->facts.data_address)
        return CORE_GANG_OBSTACLE_ADDRESS;
    if (!has_engine(node, kind))
        return CORE_GANG_OBSTACLE_ENGINE;
    if (is_loopback(node) && cannot_join_all(core, node, kind, is_within_reach))
        return CORE_GANG_OBSTACLE_LOOPBACK;
    return cannot_join_all(core, node, kind, computes_alike) ? CORE_GANG_OBSTACLE_NUMERICS
                                                             : CORE_GANG_OBSTACLE_NONE;
}

/* ---- candidates -------------------------------------------------------------------------------*/

/* Returns the sort key of a candidate node: usable ones first, then those with more devices.
 * most: largest number of devices of a node. */
static size_t sort_index(const struct core_member *member, int32_t most)
{
    return (size_t)(most - member->count) + (member->ready ? 0 : (size_t)most + 1);
}

/* Orders the nodes of a gang by their position in the tree of switches (none: last), then by index,
 * that is by name: neighbours in rank are then on near nodes. */
static int by_name(const void *left, const void *right)
{
    const struct core_member *a = left, *b = right;
    const int64_t left_position = a->node->position, right_position = b->node->position;

    if (left_position != right_position)
        return left_position == NO_POSITION     ? 1
               : right_position == NO_POSITION  ? -1
               : left_position < right_position ? -1
                                                : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Returns how many devices the node would contribute to a gang, in whole groups of `unit`; 0: none.
 * idle: also counts held devices and disconnected nodes; reserved: also counts nodes reserved by
 * other jobs. */
static int32_t gives(const struct hd_core *core, const struct core_view *view, size_t i,
                     uint32_t reach, enum hd_device_kind kind, int32_t unit, bool idle,
                     bool reserved)
{
    const struct core_reach *of_node = &core->reach_of[kind][i];
    const struct core_node *node;
    int32_t count;

    if (of_node->near != reach && of_node->far != reach)
        return 0;
    node = core->nodes[i];
    if (!idle)
        count = core_available(core, view, i, kind);
    else if (!core_node_may_come_back(node) || (core_reserved_by(core, node) && !reserved) ||
             (core_is_spare(core, node) && !view->hot_spares && !reserved) ||
             core_avoids(view, node))
        count = 0;
    else
        count = core_count_devices(view->needs, node, kind, false);
    return unit == 1 ? count : count - count % unit;
}

/* Returns the sum of devices that the usable nodes of a reach set would contribute to a gang. */
static int32_t sum_given(const struct hd_core *core, const struct core_view *view, uint32_t reach,
                         enum hd_device_kind kind)
{
    const struct core_forecast *forecast = core_forecast_of(core, view);
    const int32_t unit = hd_plan_unit(&view->needs->wish);
    int32_t total = 0;

    for (size_t i = core_next_free(core, forecast, kind, 0); i < core->node_count;
         i = core_next_free(core, forecast, kind, i + 1))
        total += gives(core, view, i, reach, kind, unit, false, false);
    return total;
}

/* Lists the candidate nodes of one reach set by a counting sort, because thousands of nodes are
 * sorted per evaluated job: usable nodes first, then by devices contributed, then by index.
 * ret_members must hold twice the number of nodes. */
static size_t find_members(const struct hd_core *core, const struct core_view *view, uint32_t reach,
                           enum hd_device_kind kind, bool idle, bool reserved,
                           struct core_member *ret_members)
{
    const int32_t most = core->largest[kind];
    const size_t keys = 2 * ((size_t)most + 1);
    size_t at[2 * (HD_CTL_DEVICES_PER_NODE_MAX + 1)], count = 0, sum = 0;
    const struct core_forecast *forecast = core_forecast_of(core, view);
    const int32_t unit = hd_plan_unit(&view->needs->wish);
    struct core_member *found = ret_members + core->node_count;

    memset(at, 0, keys * sizeof at[0]);
    for (size_t i = idle ? 0 : core_next_free(core, forecast, kind, 0); i < core->node_count;
         i = idle ? i + 1 : core_next_free(core, forecast, kind, i + 1)) {
        struct core_member member = {.node = core->nodes[i], .index = i};

        member.count = gives(core, view, i, reach, kind, unit, idle, reserved);
        if (!member.count)
            continue;
        member.ready = !idle || core_node_usable(member.node);
        at[sort_index(&member, most)]++;
        found[count++] = member;
    }
    for (size_t k = 0; k < keys; k++) {
        const size_t here = at[k];

        at[k] = sum;
        sum += here;
    }
    for (size_t i = 0; i < count; i++)
        ret_members[at[sort_index(&found[i], most)]++] = found[i];
    return count;
}

/* Returns the number of the reach set that the key text describes; assigns a new number to a new
 * text. */
static uint32_t number_of(struct hd_core *core, struct core_map *numbers,
                          const struct hd_text *text)
{
    uint64_t number = numbers->count + 1;

    if (text->failed ||
        (!core_map_get(numbers, text->data, &number) && !core_map_put(numbers, text->data, number)))
        core->no_memory = true;
    return (uint32_t)number;
}

static struct core_reach number_node(struct hd_core *core, const struct core_node *node,
                                     enum hd_device_kind kind, struct core_map *numbers)
{
    const char *compute = node->facts.compute[kind] ? node->facts.compute[kind] : "";
    struct core_reach reach = {0};
    struct hd_text text = {0};

    if (!may_join(node, kind))
        return reach;
    hd_text_add(&text, "near %s %s", node->rec.boot_id, compute);
    reach.near = number_of(core, numbers, &text);
    hd_text_clear(&text);
    hd_text_add(&text, "far %s", compute);
    if (!is_loopback(node))
        reach.far = number_of(core, numbers, &text);
    hd_text_free(&text);
    return reach;
}

/* Assigns numbers to the reach sets of a device kind. The set of one machine's nodes is listed only
 * if one of them has a loopback address; otherwise it is part of a larger set. */
static void number_nodes(struct hd_core *core, enum hd_device_kind kind)
{
    struct core_map numbers = {0};
    bool *listed = calloc(2 * core->node_count + 2, sizeof *listed);
    struct core_reach *reach_of = calloc(core->node_count + 1, sizeof *reach_of);

    free(core->reach_of[kind]);
    core->reach_of[kind] = reach_of;
    core->reach_count[kind] = 0;
    core->no_memory |= !listed || !reach_of;
    for (size_t i = 0; listed && reach_of && i < core->node_count; i++) {
        uint32_t own;

        reach_of[i] = number_node(core, core->nodes[i], kind, &numbers);
        own = reach_of[i].far ? reach_of[i].far : reach_of[i].near;
        if (!own || listed[own] ||
            !core_grow_array(core, &core->reaches[kind], core->reach_count[kind],
                             &core->reach_size[kind], sizeof own))
            continue;
        listed[own] = true;
        core->reaches[kind][core->reach_count[kind]++] = own;
    }
    free(listed);
    core_map_done(&numbers);
}

/* Returns how many reach sets a device kind has; rebuilds them if a node has reported something
 * new. */
static size_t list_reaches(struct hd_core *core, enum hd_device_kind kind)
{
    const bool stale = core_take_due(core, CORE_DUE_REACH);

    for (int k = 0; stale && k < HD_DEVICE_KIND_COUNT; k++)
        number_nodes(core, (enum hd_device_kind)k);
    return core->reach_count[kind];
}

/* ---- choosing ---------------------------------------------------------------------------------*/

/* Chooses the fewest candidate nodes with `need` devices: the largest ones, and as the last one the
 * smallest that suffices. Moves them to the front, sorted by by_name; returns their number. */
static size_t choose(struct core_member *members, size_t count, int32_t need)
{
    size_t chosen = 0, last;
    struct core_member swap;

    while (chosen < count && need > members[chosen].count)
        need -= members[chosen++].count;
    last = chosen;
    for (size_t i = chosen + 1; i < count; i++) {
        if (members[i].count >= need && members[i].count < members[last].count)
            last = i;
    }
    swap = members[last];
    members[last] = members[chosen];
    members[chosen] = swap;
    members[chosen].count = need;
    qsort(members, chosen + 1, sizeof *members, by_name);
    return chosen + 1;
}

static int32_t total_of(const struct core_member *members, size_t count)
{
    int32_t total = 0;

    for (size_t i = 0; i < count; i++)
        total += members[i].count;
    return total;
}

static bool is_better_gang(const struct core_placement *a, const struct core_placement *b)
{
    if (a->device_count != b->device_count)
        return a->device_count > b->device_count;
    if (a->member_count != b->member_count)
        return a->member_count < b->member_count;
    return a->unused_count < b->unused_count;
}

static int32_t count_unused(const struct hd_core *core, const struct core_forecast *forecast,
                            const struct hd_job_needs *needs,
                            const struct core_placement *placement)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);
    int32_t unused_count = -placement->device_count;

    for (size_t i = 0; i < placement->member_count; i++)
        unused_count +=
            core_count_free(core, forecast, needs, placement->members[i].node->index, kind);
    return unused_count;
}

/* Returns memory for twice as many candidates as there are nodes, as find_members needs; the caller
 * frees it. NULL: no memory. */
static struct core_member *new_members(struct hd_core *core)
{
    struct core_member *members = malloc((2 * core->node_count + 1) * sizeof *members);

    core->no_memory |= !members;
    return members;
}

static bool copy_members(struct hd_core *core, struct core_placement *placement)
{
    struct core_member *copy = malloc(placement->member_count * sizeof *copy);

    core->no_memory |= !copy;
    if (copy)
        memcpy(copy, placement->members, placement->member_count * sizeof *copy);
    placement->members = copy;
    return copy != NULL;
}

void core_gang_find(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                    struct core_placement *best)
{
    const struct hd_job_needs *needs = view->needs;
    struct core_member *members = new_members(core);
    const size_t reaches = core_arrays_ready(core) ? list_reaches(core, kind) : 0;

    for (size_t i = 0; members && i < reaches; i++) {
        const uint32_t reach = core->reaches[kind][i];
        struct core_placement placement = {.members = members};
        size_t count;

        count = find_members(core, view, reach, kind, false, false, members);
        placement.device_count =
            core_pick_count(needs, kind, total_of(members, count), &placement.plan);
        if (!placement.device_count)
            continue;
        count = core_prefer_switches(core, members, count, placement.device_count);
        placement.member_count = choose(members, count, placement.device_count);
        placement.unused_count =
            count_unused(core, core_forecast_of(core, view), needs, &placement);
        placement.tier = core_tier_of(core, members, placement.member_count);
        if ((view->nodes_max && placement.member_count > (size_t)view->nodes_max) ||
            (view->tier_max && placement.tier > view->tier_max))
            continue;
        if ((best->device_count && !is_better_gang(&placement, best)) ||
            !copy_members(core, &placement))
            continue;
        free(best->members);
        *best = placement;
    }
    free(members);
}

bool core_gang_is_there(struct hd_core *core, const struct core_view *view,
                        enum hd_device_kind kind)
{
    const size_t reaches = core_arrays_ready(core) ? list_reaches(core, kind) : 0;
    struct hd_plan_record plan;
    bool fits = false;

    for (size_t r = 0; !fits && r < reaches; r++)
        fits = core_pick_count(view->needs, kind,
                               sum_given(core, view, core->reaches[kind][r], kind), &plan) > 0;
    return fits;
}

bool core_gang_fits_when_idle(struct hd_core *core, const struct core_view *view,
                              enum hd_device_kind kind)
{
    struct core_member *members = new_members(core);
    const size_t reaches = core_arrays_ready(core) ? list_reaches(core, kind) : 0;
    struct hd_plan_record plan;
    bool fits = false;

    for (size_t i = 0; members && !fits && i < reaches; i++) {
        size_t count = find_members(core, view, core->reaches[kind][i], kind, true, true, members);

        fits = core_pick_count(view->needs, kind, total_of(members, count), &plan) > 0;
    }
    free(members);
    return fits;
}

/* Returns the smallest number of leading candidates on which the job fits; 0: it does not fit even
 * on all. */
static size_t choose_fewest(const struct core_view *view, enum hd_device_kind kind,
                            const struct core_member *members, size_t count)
{
    struct hd_plan_record plan;
    int32_t total = 0;

    for (size_t chosen = 0; chosen < count; chosen++) {
        total += members[chosen].count;
        if (total >= view->needs->devices_min && core_pick_count(view->needs, kind, total, &plan))
            return chosen + 1;
    }
    return 0;
}

bool core_gang_reserve(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
                       uint64_t *ret_blocking_job)
{
    struct core_member *members = new_members(core);
    const size_t reaches = core_arrays_ready(core) ? list_reaches(core, kind) : 0;
    struct hd_plan_record plan;
    bool found = false;

    for (size_t i = 0; members && !found && i < reaches; i++) {
        const uint32_t reach = core->reaches[kind][i];
        size_t count = find_members(core, view, reach, kind, true, false, members);
        const size_t chosen = choose_fewest(view, kind, members, count);

        found = chosen > 0;
        for (size_t m = 0; m < chosen; m++)
            core_reserve_node(core, members[m].node, CORE_PLANNED, view->job->rec.job, kind,
                              INT64_MAX, 0);
        if (found || *ret_blocking_job)
            continue;
        count = find_members(core, view, reach, kind, true, true, members);
        if (!core_pick_count(view->needs, kind, total_of(members, count), &plan))
            continue;
        for (size_t m = 0; m < count; m++)
            *ret_blocking_job =
                *ret_blocking_job ? *ret_blocking_job : core_reserved_by(core, members[m].node);
    }
    free(members);
    return found;
}
