/* links: which devices of the chosen nodes an attempt takes, and which nodes share a switch.
 *
 * A node reports how its devices are linked (hello.links). Nodes with equal reports share one copy.
 * Where the links differ, an attempt takes the devices on which its layout exchanges data in the
 * least time, and assigns ranks accordingly (plan/rank_map.h); elsewhere it takes the free devices
 * with the lowest indices. The choice is stored with the attempt, as the device of each rank.
 *
 * Switches come from config.tree, by the names of nodes. A node that is not in the tree shares no
 * switch.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/core_schedule.h"
#include "plan/rank_map.h"

/* ---- links of nodes ---------------------------------------------------------------------------*/

void core_links_drop(struct hd_core *core, struct core_node *node)
{
    struct core_links *links = node->links;

    node->links = NULL;
    if (!links || --links->nodes > 0)
        return;
    for (size_t i = 0; i < core->link_count; i++)
        if (core->links[i] == links)
            core->links[i] = core->links[--core->link_count];
    free(links);
}

/* Returns whether the reported links describe all of the node's devices, and are not all equal. */
static bool is_of_use(const struct core_node *node, const struct hd_node_links *reported)
{
    return reported && reported->devices == node->rec.device_count &&
           !hd_node_links_are_even(reported);
}

void core_links_take(struct hd_core *core, struct core_node *node,
                     const struct hd_node_links *reported)
{
    struct core_links *links = NULL;

    core_links_drop(core, node);
    if (!is_of_use(node, reported))
        return;
    for (size_t i = 0; i < core->link_count && !links; i++)
        if (hd_node_links_equal(&core->links[i]->links, reported))
            links = core->links[i];
    if (!links) {
        links = calloc(1, sizeof *links);
        if (!links || !core_grow_array(core, &core->links, core->link_count, &core->link_size,
                                       sizeof(struct core_links *))) {
            free(links);
            core->no_memory = true;
            return;
        }
        links->links = *reported;
        core->links[core->link_count++] = links;
    }
    links->nodes++;
    node->links = links;
}

/* ---- devices of an attempt --------------------------------------------------------------------*/

/* Lists the node's free devices that are at least as good as the first `member->count` ones, for
 * which the layout was computed (fit.c): same model, as much memory. */
static int32_t list_candidates(const struct hd_job_needs *needs, const struct core_member *member,
                               enum hd_device_kind kind, int32_t *ret_devices)
{
    const struct core_node *node = member->node;
    const struct hd_device_record *devices = node->rec.devices;
    int64_t least = INT64_MAX;
    int32_t count = 0;

    for (int32_t d = core_free_device(needs, node, kind, 0); d >= 0;
         d = core_free_device(needs, node, kind, d + 1)) {
        if (count < member->count)
            least = devices[d].memory_bytes < least ? devices[d].memory_bytes : least;
        else if (!node->links || devices[d].memory_bytes < least ||
                 !core_same(devices[d].name, devices[ret_devices[0]].name))
            continue;
        ret_devices[count++] = d;
    }
    return count;
}

/* Sets ret_devices to the first free devices of each node, in order, for the case that links do not
 * matter. */
static void take_first(const struct hd_rank_node *nodes, size_t count, int32_t *ret_devices)
{
    for (size_t n = 0; n < count; n++)
        for (int32_t i = 0; i < nodes[n].ranks; i++)
            *ret_devices++ = nodes[n].devices[i];
}

bool core_choose_devices(struct hd_core *core, const struct hd_job_needs *needs,
                         const struct core_placement *placement, int32_t *ret_devices)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);
    const struct hd_plan_request wish = core_plan_request_on(needs, kind);
    struct hd_rank_node *nodes = calloc(placement->member_count, sizeof *nodes);
    int32_t(*lists)[HD_CTL_DEVICES_PER_NODE_MAX] = calloc(placement->member_count, sizeof *lists);
    struct hd_traffic traffic;
    bool chosen = nodes && lists;
    enum hd_status st = HD_OK;

    for (size_t m = 0; chosen && m < placement->member_count; m++) {
        const struct core_member *member = &placement->members[m];

        nodes[m] =
            (struct hd_rank_node){.links = member->node->links ? &member->node->links->links : NULL,
                                  .devices = lists[m],
                                  .device_count = list_candidates(needs, member, kind, lists[m]),
                                  .ranks = member->count};
    }
    hd_traffic_of(&placement->plan.layout, &wish, &traffic);
    if (chosen)
        st = hd_rank_map_choose(&placement->plan.layout, &traffic, nodes, placement->member_count,
                                ret_devices);
    chosen = chosen && st != HD_NO_MEMORY;
    core->no_memory |= !chosen;
    if (chosen && st) /* the layout does not match the number of ranks: the ranks will report the
                       * fault */
        take_first(nodes, placement->member_count, ret_devices);
    free(nodes);
    free(lists);
    return chosen;
}

/* ---- switches ---------------------------------------------------------------------------------*/

void core_find_position(const struct hd_core *core, struct core_node *node)
{
    const struct hd_node_tree *tree = core->config.tree;

    node->position =
        tree && node->rec.name ? hd_node_tree_position(tree, node->rec.name) : NO_POSITION;
    node->leaf =
        node->position >= 0 && tree->tier_count ? hd_node_tree_switch(tree, 0, node->position) : -1;
}

static int64_t switch_of(const struct hd_core *core, const struct core_member *member, int tier)
{
    return core->switch_of[tier + 1][member->index];
}

/* Returns the sums (core_switch) of the member's switch in this tier; the member must have a
 * switch. */
static const struct core_switch *above(const struct hd_core *core, const struct core_member *member,
                                       int tier)
{
    return &core->scratch.switches[tier][switch_of(core, member, tier)];
}

/* Sums the devices of a gang's candidate nodes per switch in each tier. The candidates are in the
 * order in which they are taken; `reached` stops growing at `need`. */
static void fill_switches(struct hd_core *core, const struct core_member *members, size_t count,
                          int32_t need, int tiers)
{
    core->scratch.switches_filled++;
    for (int t = 0; t < tiers; t++)
        for (size_t i = 0; i < count; i++) {
            const int64_t number = switch_of(core, &members[i], t);
            struct core_switch *s = &core->scratch.switches[t][number < 0 ? 0 : number];

            if (number < 0)
                continue;
            if (s->filled != core->scratch.switches_filled)
                *s = (struct core_switch){.filled = core->scratch.switches_filled};
            s->total += members[i].count;
            if (s->reached >= need)
                continue;
            s->reached += members[i].count;
            s->nodes++;
        }
}

/* Returns whether candidate a's switch has fewer free devices than b's, so that emptier switches
 * stay whole; compares the highest tier first. */
static bool is_fuller(const struct hd_core *core, int tiers, int tier, const struct core_member *a,
                      const struct core_member *b)
{
    for (int t = tiers - 1; t >= tier; t--) {
        const int32_t of_a = above(core, a, t)->total, of_b = above(core, b, t)->total;

        if (of_a != of_b)
            return of_a < of_b;
    }
    return switch_of(core, a, tier) < switch_of(core, b, tier);
}

/* Returns the number of the fullest switch of the tier that supplies `need` devices on at most
 * `nodes` nodes; -1: none does. */
static int64_t best_switch(const struct hd_core *core, const struct core_member *members,
                           size_t count, int tiers, int tier, int32_t need, size_t nodes)
{
    const struct core_member *best = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct core_member *member = &members[i];
        const int64_t number = switch_of(core, member, tier);
        const struct core_switch *s = number < 0 ? NULL : &core->scratch.switches[tier][number];

        if (s && s->reached >= need && s->nodes <= nodes &&
            (!best ||
             (number != switch_of(core, best, tier) && is_fuller(core, tiers, tier, member, best))))
            best = member;
    }
    return best ? switch_of(core, best, tier) : -1;
}

/* A candidate node of a gang with its sort keys. */
struct ranked_member {
    struct core_member member;
    int32_t total; /* devices of all candidates at its switch */
    int64_t number;
};

static int by_switch(const void *left, const void *right)
{
    const struct ranked_member *a = left, *b = right;

    if (a->member.ready != b->member.ready)
        return a->member.ready ? -1 : 1;
    if (a->member.count != b->member.count)
        return a->member.count > b->member.count ? -1 : 1;
    if (a->total != b->total)
        return a->total > b->total ? -1 : 1;
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    return a->member.index < b->member.index ? -1 : a->member.index > b->member.index;
}

/* Sorts candidate nodes; among equal ones those whose switch supplies most come first, so that few
 * switches are spanned. */
static void sort_by_switches(struct hd_core *core, struct core_member *members, size_t count,
                             int tier)
{
    struct ranked_member *ranked = malloc((count + 1) * sizeof *ranked);

    core->no_memory |= !ranked;
    for (size_t i = 0; ranked && i < count; i++) {
        const int64_t number = switch_of(core, &members[i], tier);

        ranked[i] = (struct ranked_member){.member = members[i], .number = number};
        if (number >= 0)
            ranked[i].total = above(core, &members[i], tier)->total;
    }
    if (ranked)
        qsort(ranked, count, sizeof *ranked, by_switch);
    for (size_t i = 0; ranked && i < count; i++)
        members[i] = ranked[i].member;
    free(ranked);
}

/* Keeps only the candidate nodes of this switch, in their order; returns their number. */
static size_t keep_switch(const struct hd_core *core, struct core_member *members, size_t count,
                          int tier, int64_t number)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++)
        if (switch_of(core, &members[i], tier) == number)
            members[kept++] = members[i];
    return kept;
}

int32_t core_tiers(const struct hd_core *core)
{
    return core->config.tree ? core->config.tree->tier_count + 1 : 1;
}

static bool is_at_one_switch(const struct hd_core *core, const struct core_member *members,
                             size_t count, int tier)
{
    const int64_t first = switch_of(core, &members[0], tier);

    for (size_t i = 1; i < count; i++)
        if (switch_of(core, &members[i], tier) != first)
            return false;
    return first >= 0;
}

int32_t core_tier_of(const struct hd_core *core, const struct core_member *members, size_t count)
{
    const int32_t tiers = core_tiers(core);

    if (count < 2)
        return 0;
    for (int32_t tier = 1; tier < tiers; tier++)
        if (is_at_one_switch(core, members, count, tier - 1))
            return tier;
    return tiers;
}

size_t core_prefer_switches(struct hd_core *core, struct core_member *members, size_t count,
                            int32_t need)
{
    const int tiers = core->config.tree ? core->config.tree->tier_count : 0;
    int64_t number = -1;
    int32_t given = 0;
    size_t nodes = 0;
    int tier = -1;

    while (nodes < count && given < need)
        given += members[nodes++].count;
    if (nodes < 2 || !tiers)
        return count;
    fill_switches(core, members, count, need, tiers);
    while (number < 0 && ++tier < tiers)
        number = best_switch(core, members, count, tiers, tier, need, nodes);
    if (number >= 0)
        count = keep_switch(core, members, count, tier, number);
    if (number < 0 || tier > 0)
        sort_by_switches(core, members, count, number < 0 ? 0 : tier - 1);
    return count;
}
