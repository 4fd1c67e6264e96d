/* hot_spare: keeps nodes free, so that a gang that loses a node starts again at once.
 *
 * Of each kind of node (kind, name and number of its devices) config.spare_nodes are hot spares.
 * New attempts do not start there, except those of
 *
 *     jobs whose last attempt ended by a fault (of a rank, a node, a disk, a launch)
 *     jobs that need more devices than the other nodes have
 *
 * Each pass chooses the hot spares: idle nodes first, then nodes that were hot spares in the pass
 * before, then others, whose attempts run to their ends. A node that is reserved for a job with an
 * expected start is never chosen, so hot spares delay no expected start. After a hot spare was
 * used, the next node that becomes free replaces it.
 *
 * While the checkpoints of a lost node are being searched, a failed job is in no group; if hot
 * spares are configured, the remaining nodes of its last attempt are reserved for it meanwhile.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/place/place.h"

enum { KINDS_MAX = 64 }; /* limit of distinct kinds of node; further kinds get no hot spares */

/* A kind of node (kind, name and number of devices), represented by one node, and the number of hot
 * spares chosen so far. */
struct node_kind {
    const struct core_node *like;
    int32_t chosen;
};

static const char *first_device_name(const struct core_node *node)
{
    const char *name = node->rec.device_count ? node->rec.devices[0].name : NULL;

    return name ? name : "";
}

static bool is_alike(const struct core_node *a, const struct core_node *b)
{
    return a->rec.device_count == b->rec.device_count &&
           a->rec.devices[0].kind == b->rec.devices[0].kind &&
           strcmp(first_device_name(a), first_device_name(b)) == 0;
}

static struct node_kind *kind_of(struct node_kind *kinds, size_t *count,
                                 const struct core_node *node)
{
    for (size_t i = 0; i < *count; i++)
        if (is_alike(kinds[i].like, node))
            return &kinds[i];
    if (*count == KINDS_MAX)
        return NULL;
    kinds[*count] = (struct node_kind){.like = node};
    return &kinds[(*count)++];
}

static bool is_idle(const struct core_node *node)
{
    for (int32_t d = 0; d < node->rec.device_count; d++)
        if (!core_device_works(node, d) || node->holds[d].job)
            return false;
    return true;
}

/* Chooses the hot spares by the reservations of the last pass; sets one flag per node. */
static void pick_spares(struct hd_core *core, bool *ret_chosen)
{
    struct node_kind kinds[KINDS_MAX];
    size_t count = 0;

    for (int round = 0; round < 3; round++)
        for (size_t i = core->node_count; i > 0; i--) { /* from the end, because jobs take the first
                                                         * nodes */
            const struct core_node *node = core->nodes[i - 1];
            struct node_kind *kind;

            if (ret_chosen[i - 1] || !core_node_usable(node) || !node->rec.device_count ||
                core_reserved_by(core, node) || (round == 0 && !is_idle(node)) ||
                (round == 1 && !core_is_spare(core, node)))
                continue;
            kind = kind_of(kinds, &count, node);
            if (!kind || kind->chosen >= core->config.spare_nodes)
                continue;
            kind->chosen++;
            ret_chosen[i - 1] = true;
        }
}

void core_list_with_hot_spares(struct hd_core *core)
{
    bool *chosen = core->config.spare_nodes ? calloc(core->node_count + 1, sizeof *chosen) : NULL;

    core->no_memory |= core->config.spare_nodes && !chosen;
    if (chosen)
        pick_spares(core, chosen);
    core_list_allocations(core);
    memset(core->not_hot_spares, 0, sizeof core->not_hot_spares);
    for (size_t i = 0; chosen && i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];

        for (int k = 0; k < HD_DEVICE_KIND_COUNT; k++)
            if (!chosen[i] && core_node_may_come_back(node))
                core->not_hot_spares[k] += node->counts[k].all;
        if (chosen[i])
            core_reserve_node(core, node, CORE_SPARE, 0, HD_DEVICE_KIND_ANY, core->now.mono_ms, 0);
    }
    free(chosen);
}

bool core_needs_hot_spares(const struct hd_core *core, const struct hd_job_needs *needs)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t count = core_kinds(needs, kinds);
    bool fits_beside = false;

    for (size_t k = 0; k < count; k++)
        fits_beside |= needs->devices_min <= core->not_hot_spares[kinds[k]];
    return core->config.spare_nodes && !fits_beside;
}

/* ---- while checkpoints are being searched -----------------------------------------------------*/

static int32_t ranks_on(const struct core_attempt *attempt, const struct core_node *node)
{
    int32_t count = 0;

    for (int32_t r = 0; r < attempt->rec.plan.rank_count; r++)
        count += core_same(attempt->rec.plan.ranks[r].node_uuid, node->rec.uuid);
    return count;
}

void core_reserve_for_failed(struct hd_core *core)
{
    for (size_t i = 0; core->config.spare_nodes && i < core->searching.count; i++) {
        const struct core_job *job = core->searching.items[i];
        const struct core_attempt *attempt = core_newest(job);
        const enum hd_device_kind kind = attempt ? attempt->kind : HD_DEVICE_KIND_ANY;

        if (core_lacks_checkpoint(job)) /* it cannot start whatever the search says of its nodes */
            continue;
        for (size_t k = 0; attempt && core_has_failed(job) && k < attempt->alloc_count; k++) {
            struct core_node *node = attempt->allocs[k].node;

            if (core_node_usable(node) && !core_reserved_by(core, node))
                core_reserve_node(core, node, CORE_SEARCHING, job->rec.job, kind, core->now.mono_ms,
                                  core_count_devices(&job->needs, node, kind, true) -
                                      ranks_on(attempt, node));
        }
    }
}
