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

#include "controller/core/place/place.h"
#include "plan/rank_map.h"

/* ---- devices of an attempt --------------------------------------------------------------------*/

/* Lists the node's free devices that are at least as good as the first `member->count` ones, for
 * which the layout was computed (fit.c): same model, as much memory. */
static int32_t list_candidates(const struct hd_core *core, const struct hd_job_needs *needs,
                               const struct core_member *member, enum hd_device_kind kind,
                               int32_t *ret_devices)
{
    const struct core_node *node = member->node;
    const struct hd_device_record *devices = node->rec.devices;
    int64_t least = INT64_MAX;
    int32_t count = 0;

    for (int32_t d = core_free_device(&core->present, needs, node, kind, 0); d >= 0;
         d = core_free_device(&core->present, needs, node, kind, d + 1)) {
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

        nodes[m] = (struct hd_rank_node){
            .links = member->node->links ? &member->node->links->links : NULL,
            .devices = lists[m],
            .device_count = list_candidates(core, needs, member, kind, lists[m]),
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

static int64_t switch_of(const struct hd_core *core, const struct core_member *member, int tier)
{
    return core->switch_of[tier + 1][member->index];
}

/* Sums over those candidates for a placement that are at one switch. */
struct switch_sum {
    int32_t total, reached; /* total: devices of all members; reached: devices of the first members,
                             * until they suffice */
    uint32_t nodes;         /* number of members counted in `reached` */
};

/* The sums of all switches, by tier and number. */
struct switch_sums {
    const struct hd_core *core;
    struct switch_sum *of[HD_CLUSTER_TIERS_MAX];
    int tiers;
};

/* Returns the sums of the member's switch in this tier; the member must have a switch. */
static const struct switch_sum *above(const struct switch_sums *sums,
                                      const struct core_member *member, int tier)
{
    return &sums->of[tier][switch_of(sums->core, member, tier)];
}

/* Sums the devices of a gang's candidate nodes per switch in each tier. The candidates are in the
 * order in which they are taken; `reached` stops growing at `need`. False: no memory. The caller
 * frees sums->of[0]. */
static bool fill_switches(struct switch_sums *sums, const struct core_member *members, size_t count,
                          int32_t need)
{
    const size_t leaves = (size_t)sums->core->leaf_count + 1;

    sums->of[0] = calloc(leaves * (size_t)sums->tiers, sizeof *sums->of[0]);
    for (int t = 0; sums->of[0] && t < sums->tiers; t++) {
        sums->of[t] = sums->of[0] + leaves * (size_t)t;
        for (size_t i = 0; i < count; i++) {
            const int64_t number = switch_of(sums->core, &members[i], t);
            struct switch_sum *s = &sums->of[t][number < 0 ? 0 : number];

            if (number < 0)
                continue;
            s->total += members[i].count;
            if (s->reached >= need)
                continue;
            s->reached += members[i].count;
            s->nodes++;
        }
    }
    return sums->of[0] != NULL;
}

/* Returns whether candidate a's switch has fewer free devices than b's, so that emptier switches
 * stay whole; compares the highest tier first. */
static bool is_fuller(const struct switch_sums *sums, int tier, const struct core_member *a,
                      const struct core_member *b)
{
    for (int t = sums->tiers - 1; t >= tier; t--) {
        const int32_t of_a = above(sums, a, t)->total, of_b = above(sums, b, t)->total;

        if (of_a != of_b)
            return of_a < of_b;
    }
    return switch_of(sums->core, a, tier) < switch_of(sums->core, b, tier);
}

/* Returns the number of the fullest switch of the tier that supplies `need` devices on at most
 * `nodes` nodes; -1: none does. */
static int64_t best_switch(const struct switch_sums *sums, const struct core_member *members,
                           size_t count, int tier, int32_t need, size_t nodes)
{
    const struct core_member *best = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct core_member *member = &members[i];
        const int64_t number = switch_of(sums->core, member, tier);
        const struct switch_sum *s = number < 0 ? NULL : &sums->of[tier][number];

        if (s && s->reached >= need && s->nodes <= nodes &&
            (!best ||
             (number != switch_of(sums->core, best, tier) && is_fuller(sums, tier, member, best))))
            best = member;
    }
    return best ? switch_of(sums->core, best, tier) : -1;
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
static void sort_by_switches(struct hd_core *core, const struct switch_sums *sums,
                             struct core_member *members, size_t count, int tier)
{
    struct ranked_member *ranked = malloc((count + 1) * sizeof *ranked);

    core->no_memory |= !ranked;
    for (size_t i = 0; ranked && i < count; i++) {
        const int64_t number = switch_of(core, &members[i], tier);

        ranked[i] = (struct ranked_member){.member = members[i], .number = number};
        if (number >= 0)
            ranked[i].total = above(sums, &members[i], tier)->total;
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
    struct switch_sums sums = {.core = core, .tiers = core_tiers(core) - 1};
    int64_t number = -1;
    int32_t given = 0;
    size_t nodes = 0;
    int tier = -1;

    while (nodes < count && given < need)
        given += members[nodes++].count;
    if (nodes < 2 || !sums.tiers)
        return count;
    if (!fill_switches(&sums, members, count, need)) {
        core->no_memory = true;
        return count;
    }
    while (number < 0 && ++tier < sums.tiers)
        number = best_switch(&sums, members, count, tier, need, nodes);
    if (number >= 0)
        count = keep_switch(core, members, count, tier, number);
    if (number < 0 || tier > 0)
        sort_by_switches(core, &sums, members, count, number < 0 ? 0 : tier - 1);
    free(sums.of[0]);
    return count;
}
