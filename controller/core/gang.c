/* core_gang: one job's devices on several nodes.
 *
 * A node may be part of a gang when it sees the controller's jobs directory, where the ranks leave
 * their checkpoints and find the others', and when the others reach its ranks at its data address.
 * A loopback address is reached from its own machine only, so such nodes join those of their own
 * machine (the same boot). And all must compute alike: ranks that round
 * otherwise would train different models. Among the gangs that are possible the one with the most
 * devices that the job can use wins, then the one of the fewest nodes, then the one that leaves the
 * fewest devices over; then the names of nodes decide. Ranks are numbered along the names of nodes,
 * so those of a node are neighbours. Ranks of a tensor-parallel group, which are neighbours as
 * well, talk in every layer: a node takes whole groups only, so that none spans two.
 *
 * What a node sees and where it is reached is what it said on its stream, and not stored: after a
 * start of the controller a waiting gang keeps nodes free once enough of them are back.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/core_internal.h"

/* ---- who may work with whom -------------------------------------------------------------------*/

static bool is_loopback(const struct core_node *node)
{
    const char *address = node->data_address ? node->data_address : "";

    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

static bool may_join(const struct core_node *node)
{
    return node->jobs_dir_visible && node->data_address && *node->data_address;
}

static bool computes_alike(const struct core_node *a, const struct core_node *b)
{
    return core_same(a->compute, b->compute);
}

/* The nodes that reach `seed` and each other. */
static bool is_within_reach(const struct core_node *node, const struct core_node *seed)
{
    return is_loopback(seed) ? core_same(node->rec.boot_id, seed->rec.boot_id) : !is_loopback(node);
}

/* Whether there are nodes that do not go with this one. */
static bool cannot_join_all(const struct hd_core *core, const struct core_node *node,
                            bool (*goes_with)(const struct core_node *, const struct core_node *))
{
    for (size_t i = 0; i < core->node_count; i++) {
        if (core_node_may_come_back(core->nodes[i]) && !goes_with(core->nodes[i], node))
            return true;
    }
    return false;
}

void core_gang_obstacle(const struct hd_core *core, const struct core_node *node,
                        struct hd_text *text)
{
    if (!node->jobs_dir_visible)
        hd_text_add(text, " (not with other nodes: it does not see the jobs directory%s%s)",
                    node->jobs_dir_problem && *node->jobs_dir_problem ? ": " : "",
                    node->jobs_dir_problem ? node->jobs_dir_problem : "");
    else if (!node->data_address || !*node->data_address)
        hd_text_add(text, " (not with other nodes: its heddled offers no data address)");
    else if (is_loopback(node) && cannot_join_all(core, node, is_within_reach))
        hd_text_add(text, " (only with nodes of its own machine: its --data-address is %s)",
                    node->data_address);
    else if (cannot_join_all(core, node, computes_alike))
        hd_text_add(text, " (only with nodes that compute with %s)", node->compute);
}

/* ---- gathering --------------------------------------------------------------------------------*/

static int by_count(const void *left, const void *right)
{
    const struct core_member *a = left, *b = right;

    if (a->ready != b->ready)
        return a->ready ? -1 : 1;
    if (a->count != b->count)
        return a->count > b->count ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int by_name(const void *left, const void *right)
{
    const struct core_member *a = left, *b = right;

    return a->index < b->index ? -1 : a->index > b->index;
}

/* The members that `seed` may work with and their devices in whole tp groups of the job, largest
 * first. idle: counting all devices of all nodes that may come back, as if nothing else ran. */
static size_t find_members(const struct hd_core *core, const struct hd_job_needs *needs,
                           const struct core_node *seed, enum hd_device_kind kind, bool idle,
                           bool reserved, struct core_member *ret_members)
{
    size_t count = 0;

    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        const struct core_member member = {
            .node = node,
            .index = i,
            .ready = core_node_usable(node),
            .count = core_whole_groups(needs, core_count_devices(node, kind, !idle))};

        if (!may_join(node) || !is_within_reach(node, seed) || !computes_alike(node, seed) ||
            !member.count || (node->reserved_by && !reserved) ||
            !(idle ? core_node_may_come_back(node) : member.ready))
            continue;
        ret_members[count++] = member;
    }
    qsort(ret_members, count, sizeof *ret_members, by_count);
    return count;
}

/* Whether an earlier node stood for the same nodes. */
static bool same_reach_as_earlier(const struct hd_core *core, size_t index)
{
    const struct core_node *seed = core->nodes[index];

    for (size_t i = 0; i < index; i++) {
        const struct core_node *node = core->nodes[i];

        if (may_join(node) && computes_alike(node, seed) &&
            is_loopback(node) == is_loopback(seed) &&
            (!is_loopback(seed) || core_same(node->rec.boot_id, seed->rec.boot_id)))
            return true;
    }
    return false;
}

static bool next_seed(const struct hd_core *core, size_t *at)
{
    while (*at < core->node_count &&
           (!may_join(core->nodes[*at]) || same_reach_as_earlier(core, *at)))
        ++*at;
    return *at < core->node_count;
}

/* ---- choosing ---------------------------------------------------------------------------------*/

/* The fewest members that have `need` devices: the largest ones, and as the last the smallest that
 * is large enough. They come first, by name. Returns how many. */
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

static bool is_better(const struct core_placement *a, const struct core_placement *b)
{
    if (a->device_count != b->device_count)
        return a->device_count > b->device_count;
    if (a->member_count != b->member_count)
        return a->member_count < b->member_count;
    return a->unused_count < b->unused_count;
}

static int32_t count_unused(const struct core_placement *place)
{
    const enum hd_device_kind kind = hd_device_kind_of(place->plan.layout.device);
    int32_t unused_count = -place->device_count;

    for (size_t i = 0; i < place->member_count; i++)
        unused_count += core_count_devices(place->members[i].node, kind, true);
    return unused_count;
}

void core_gang_find(struct hd_core *core, const struct hd_job_needs *needs,
                    enum hd_device_kind kind, struct core_placement *best)
{
    struct core_member *members = calloc(core->node_count + 1, sizeof *members);

    for (size_t seed = 0; members && next_seed(core, &seed); seed++) {
        struct core_placement place = {.members = members};
        size_t count = find_members(core, needs, core->nodes[seed], kind, false, false, members);

        place.device_count = core_pick_count(needs, kind, total_of(members, count), &place.plan);
        if (!place.device_count)
            continue;
        place.member_count = choose(members, count, place.device_count);
        place.unused_count = count_unused(&place);
        if (best->device_count && !is_better(&place, best))
            continue;
        free(best->members);
        *best = place;
        members = calloc(core->node_count + 1, sizeof *members);
    }
    core->no_memory |= !members;
    free(members);
}

bool core_gang_reserve(struct hd_core *core, const struct hd_job_needs *needs,
                       enum hd_device_kind kind, uint64_t job, uint64_t *ret_blocking_job)
{
    struct core_member *members = calloc(core->node_count + 1, sizeof *members);
    struct hd_plan_record plan;
    bool found = false;

    for (size_t seed = 0; members && !found && next_seed(core, &seed); seed++) {
        const struct core_node *node = core->nodes[seed];
        size_t count = find_members(core, needs, node, kind, true, false, members), chosen = 0;

        while (chosen < count && !found)
            found = core_pick_count(needs, kind, total_of(members, ++chosen), &plan) > 0;
        for (size_t i = 0; found && i < chosen; i++)
            members[i].node->reserved_by = job;
        if (found || *ret_blocking_job)
            continue;
        count = find_members(core, needs, node, kind, true, true, members);
        if (!core_pick_count(needs, kind, total_of(members, count), &plan))
            continue;
        for (size_t i = 0; i < count; i++)
            *ret_blocking_job =
                *ret_blocking_job ? *ret_blocking_job : members[i].node->reserved_by;
    }
    core->no_memory |= !members;
    free(members);
    return found;
}
