/* defragment: moves running jobs so that a gang can start at fewer switches.
 *
 * In a busy cluster devices become free a few at each switch; a switch that is free as a whole is
 * rare. A gang that could start now, but on nodes that are far apart, asks the jobs at one switch
 * to migrate: they write a checkpoint and continue where the gang would have started. Both
 * placements have the same size, so there is often a migration target for every job.
 *
 *     gain = devices of the gang x steps left x (step time now - step time there)
 *     cost = devices of the gang x stop time
 *            + for each migrating job: its devices x (its start time + stop time)
 *
 * They migrate if the gain is twice the cost. A migrating job has at most the gang's priority, has
 * run twice as long as its move costs (ten times, if its last attempt was also preempted) and would
 * not end before it has moved. Its target is as good as its placement: on as few nodes, at a switch
 * of as low a tier, and free now. The target is reserved until the job has started there
 * (core->migrating), and the gang's placement is its pending one (clearing.c), so that no other job
 * takes either. The migrating jobs of one gang reserve their targets together, under the number of
 * the first of them. If one of them is late or fails, the others do not wait for it.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/schedule/schedule.h"
#include "controller/core/state/texts.h"

enum {
    GAIN_FACTOR = 2,        /* minimum ratio of gain to cost, as in move.c */
    PAID_FACTOR = 2,        /* a job must have run for this many times the cost of its move */
    PAID_AGAIN_FACTOR = 10, /* PAID_FACTOR for a job whose last attempt was preempted */
    GANG_WEIGHT = 4, /* divisor: a job on this many nodes counts twice in the cost of emptying a
                      * switch, because migration targets for gangs are rarer */
    AGAIN_MS = 5 * 60 * 1000, /* milliseconds between two tries of defragmentation for one job */
    MIGRATIONS_MAX = 256,     /* most jobs that migrate for one gang */
    SWITCHES_TRIED = 4,
};

/* The search for a better placement of a gang than `now`, made free by migrations. */
struct defragmentation {
    struct hd_core *core;
    struct core_job *job;
    struct hd_job_needs needs;        /* needs of the gang, with exactly as many devices as `now` */
    const struct core_placement *now; /* placement where the gang could start now, with its step
                                       * time */
    struct core_view view;            /* search restricted to placements better than `now` */
    enum hd_device_kind kind;
    /* last results of count_at and may_move, cached because nodes of a gang are usually adjacent */
    struct {
        const struct core_attempt *attempt;
        int32_t at;
        size_t count;
    } counted;
    struct {
        const struct core_attempt *attempt;
        bool moves;
    } judged;
};

/* A running attempt that is to migrate. */
struct job_migration {
    struct core_job *job;
    struct core_attempt *attempt;
    double cost_ms;               /* cost of the migration in device-milliseconds */
    struct core_placement target; /* placement where the job continues */
};

/* A node that migrations could empty for the gang. */
struct domain {
    size_t node;     /* index in core->nodes */
    int32_t at;      /* number of the node's switch */
    double cost_ms;  /* cost of emptying the node, in device-milliseconds: its part of the cost of
                      * moving its attempts, gangs weighted */
    uint64_t holder; /* number of one of the jobs on the node, so that sorting keeps nodes of a gang
                      * together; 0: the node is free */
};

/* ---- which jobs may migrate -------------------------------------------------------------------*/

static bool was_preempted_before(const struct core_job *job, const struct core_attempt *attempt)
{
    const struct core_attempt *before = core_find_attempt(job, attempt->rec.attempt - 1);

    return before && before->rec.end.cause == HD_END_CAUSE_PREEMPTED;
}

/* Returns whether all nodes of the attempt see the jobs directory, so that other nodes can read its
 * checkpoint. */
static bool is_shared(const struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->alloc_count; i++)
        if (!attempt->allocs[i].node->jobs_dir_visible)
            return false;
    return true;
}

/* Returns whether the job would not start again once stopped: it is held, or its queue is
 * closed. */
static bool stays_stopped(const struct core_job *job)
{
    return job->rec.held || job->account->queue->rec.closed;
}

/* Returns whether the job's queue or owner holds more devices than a limit that was lowered: the
 * job would not get its devices back. */
static bool is_over_quota(const struct core_job *job)
{
    bool by_user;

    return core_quota_left(job->account, &by_user) < 0;
}

/* Returns the result of may_move, which keeps it for the other nodes of the attempt. */
static bool find_movable(const struct defragmentation *g, const struct core_job *other,
                         const struct core_attempt *attempt)
{
    const struct core_stop_cost cost = core_stop_cost_of(g->core, attempt);
    const int64_t ran_ms = g->core->now.wall_ms - attempt->rec.running_ms;
    const int factor = was_preempted_before(other, attempt) ? PAID_AGAIN_FACTOR : PAID_FACTOR;

    return attempt->rec.state == HD_ATTEMPT_STATE_RUNNING && attempt->rec.running_ms &&
           !other->rec.cancel && other->rec.priority <= g->job->rec.priority &&
           !attempt->rec.borrows && is_shared(attempt) && !stays_stopped(other) &&
           !is_over_quota(other) && ran_ms >= factor * cost.restart_ms &&
           attempt->ends_mono_ms - g->core->now.mono_ms > cost.restart_ms;
}

static bool may_move(struct defragmentation *g, const struct core_job *other,
                     const struct core_attempt *attempt)
{
    if (g->judged.attempt != attempt)
        g->judged.moves = find_movable(g, other, attempt);
    g->judged.attempt = attempt;
    return g->judged.moves;
}

/* ---- which nodes are emptied ------------------------------------------------------------------*/

/* Returns the number of the switch that could hold the whole gang together with this node (for a
 * one-node job: the node's index); -1: none. */
static int32_t switch_for_gang(const struct defragmentation *g, size_t i)
{
    const int32_t tier = g->view.tier_max;

    return tier ? g->core->switch_of[tier < core_tiers(g->core) ? tier : 0][i] : (int32_t)i;
}

/* Returns whether the attempt holds devices of the gang's kind on the node. */
static bool is_blocking(const struct defragmentation *g, const struct core_attempt *attempt,
                        const struct core_node *node)
{
    return attempt->kind == g->kind && core_find_node_alloc(attempt, node);
}

/* Returns how many nodes of the attempt are at one switch. */
static size_t count_at(struct defragmentation *g, const struct core_attempt *attempt, int32_t at)
{
    size_t count = 0;

    if (g->counted.attempt == attempt && g->counted.at == at)
        return g->counted.count;
    for (size_t i = 0; i < attempt->alloc_count; i++)
        count += switch_for_gang(g, attempt->allocs[i].node->index) == at;
    g->counted.attempt = attempt;
    g->counted.at = at;
    g->counted.count = count;
    return count;
}

/* Computes the cost of moving all jobs off a node. False: that is not possible, or the node has too
 * few devices for the gang. */
static bool evaluate_node(struct defragmentation *g, size_t i, struct domain *ret_domain)
{
    const struct core_node *node = g->core->nodes[i];
    const int32_t least = g->now->device_count / g->view.nodes_max;
    const int32_t at = switch_for_gang(g, i);

    *ret_domain = (struct domain){.node = i, .at = at};
    if (at < 0 || !(g->core->marks[i] & CORE_MARK_USABLE) || core_reserved_by(g->core, node) ||
        (core_is_spare(g->core, node) && !g->view.hot_spares) || core_avoids(&g->view, node) ||
        core_count_devices(&g->needs, node, g->kind, false) < least)
        return false;
    for (size_t k = 0; k < node->active.count; k++) {
        const struct core_job *other = node->active.items[k];
        const struct core_attempt *attempt = core_active(other);

        if (!is_blocking(g, attempt, node))
            continue;
        if (!may_move(g, other, attempt))
            return false;
        ret_domain->cost_ms += (double)core_stop_cost_of(g->core, attempt).idle_ms *
                               (1 + (double)attempt->alloc_count / GANG_WEIGHT) /
                               (double)count_at(g, attempt, at);
        ret_domain->holder = other->rec.job;
    }
    return true;
}

static int by_cost(const void *left, const void *right)
{
    const struct domain *a = left, *b = right;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    if (a->cost_ms != b->cost_ms)
        return a->cost_ms < b->cost_ms ? -1 : 1;
    if (a->holder != b->holder)
        return a->holder < b->holder ? -1 : 1;
    return a->node < b->node ? -1 : a->node > b->node;
}

static double sum_costs(const struct domain *domains, size_t count)
{
    double sum_ms = 0;

    for (size_t i = 0; i < count; i++)
        sum_ms += domains[i].cost_ms;
    return sum_ms;
}

/* Sorts the nodes that could be emptied by switch; returns the number of switches that have
 * `needed` of them, at most SWITCHES_TRIED, cheapest first. Sets ret_from to the index of the first
 * domain of each. */
static size_t choose_switches(struct domain *domains, size_t count, size_t needed,
                              const struct domain *ret_from[SWITCHES_TRIED])
{
    double costs_ms[SWITCHES_TRIED];
    size_t chosen = 0;

    qsort(domains, count, sizeof *domains, by_cost);
    for (size_t from = 0, to; from < count; from = to) {
        double cost_ms;
        size_t k;

        for (to = from; to < count && domains[to].at == domains[from].at;)
            to++;
        if (to - from < needed)
            continue;
        cost_ms = sum_costs(domains + from, needed);
        if (chosen == SWITCHES_TRIED && cost_ms >= costs_ms[chosen - 1])
            continue;
        chosen += chosen < SWITCHES_TRIED;
        for (k = chosen - 1; k > 0 && costs_ms[k - 1] > cost_ms; k--) {
            costs_ms[k] = costs_ms[k - 1];
            ret_from[k] = ret_from[k - 1];
        }
        costs_ms[k] = cost_ms;
        ret_from[k] = domains + from;
    }
    return chosen;
}

static bool is_in_migrations(const struct job_migration *migrations, size_t count,
                             const struct core_job *job)
{
    for (size_t i = 0; i < count; i++)
        if (migrations[i].job == job)
            return true;
    return false;
}

/* Lists the attempts on the nodes of the first `count` domains, which must migrate; returns their
 * number; 0: none, or too many. */
static size_t list_migrations(const struct defragmentation *g, const struct domain *domains,
                              struct job_migration ret_migrations[MIGRATIONS_MAX])
{
    size_t count = 0;

    for (int32_t i = 0; i < g->view.nodes_max; i++) {
        const struct core_node *node = g->core->nodes[domains[i].node];

        for (size_t k = 0; k < node->active.count; k++) {
            struct core_job *other = node->active.items[k];
            struct core_attempt *attempt = core_active(other);

            if (!is_blocking(g, attempt, node) || is_in_migrations(ret_migrations, count, other))
                continue;
            if (count == MIGRATIONS_MAX)
                return 0;
            ret_migrations[count++] = (struct job_migration){
                .job = other,
                .attempt = attempt,
                .cost_ms = (double)core_stop_cost_of(g->core, attempt).idle_ms};
        }
    }
    return count;
}

/* Returns the gang's placement that the migrations make free, in a forecast in which the attempts
 * have ended; drops migrations that it does not need. */
static struct core_placement find_cleared(const struct defragmentation *g,
                                          struct core_forecast *after,
                                          struct job_migration *migrations, size_t *count)
{
    struct core_view view = g->view;
    struct core_placement placement;
    size_t kept = 0;

    for (size_t i = 0; i < *count; i++)
        core_forecast_end(after, migrations[i].attempt, true);
    view.forecast = after;
    placement = core_find_placement(g->core, &view);
    core_count_surplus(g->core, after, &g->needs, g->kind, &placement);
    for (size_t i = 0; i < *count; i++)
        if (core_is_on(&placement, migrations[i].attempt))
            migrations[kept++] = migrations[i];
    *count = kept;
    return placement;
}

/* ---- migration targets ------------------------------------------------------------------------*/

static int by_size(const void *left, const void *right)
{
    const struct job_migration *a = left, *b = right;
    const int32_t of_a = a->attempt->rec.plan.rank_count, of_b = b->attempt->rec.plan.rank_count;

    if (of_a != of_b)
        return of_a > of_b ? -1 : 1;
    return a->job->rec.job < b->job->rec.job ? -1 : a->job->rec.job > b->job->rec.job;
}

static int32_t attempt_tier(struct hd_core *core, const struct core_attempt *attempt)
{
    struct core_member *members = calloc(attempt->alloc_count, sizeof *members);
    int32_t tier = 0;

    core->no_memory |= !members;
    for (size_t i = 0; members && i < attempt->alloc_count; i++)
        members[i] = (struct core_member){.node = attempt->allocs[i].node,
                                          .index = attempt->allocs[i].node->index};
    if (members)
        tier = core_tier_of(core, members, attempt->alloc_count);
    free(members);
    return tier;
}

static const char *kind_device_name(const struct core_node *node, enum hd_device_kind kind)
{
    for (int32_t d = 0; d < node->rec.device_count; d++)
        if (node->rec.devices[d].kind == kind && node->rec.devices[d].name)
            return node->rec.devices[d].name;
    return "";
}

/* Returns the smallest memory in bytes of a device that the attempt holds; 0: unknown. */
static int64_t memory_of(const struct core_attempt *attempt)
{
    int64_t least_bytes = INT64_MAX;

    for (size_t i = 0; i < attempt->alloc_count; i++) {
        const struct core_node *node = attempt->allocs[i].node;

        for (int32_t d = 0; d < node->rec.device_count; d++)
            if (node->holds[d].by == attempt && node->rec.devices[d].memory_bytes < least_bytes)
                least_bytes = node->rec.devices[d].memory_bytes;
    }
    return least_bytes == INT64_MAX ? 0 : least_bytes;
}

/* Returns how many devices of the node a migrating job may use. Devices reserved under the number
 * `group` count: its gang's migrations share them. */
static int32_t usable_devices(const struct hd_core *core, const struct core_view *view,
                              const struct core_node *node, enum hd_device_kind kind,
                              uint64_t group)
{
    if (!core_node_usable(node) || !node->jobs_dir_visible || core_is_spare(core, node) ||
        (node->reserved.allocation && core_reserved_by(core, node) != group) ||
        core_avoids(view, node))
        return 0;
    return node->reserved.allocation ? node->reserved.surplus
                                     : core_count_devices(view->needs, node, kind, true);
}

/* Returns a placement on the node that has the fewest sufficient devices of the same model;
 * device_count 0: there is none. */
static struct core_placement find_node_like(struct hd_core *core, const struct core_view *view,
                                            enum hd_device_kind kind, const char *name,
                                            uint64_t group)
{
    const int32_t need = view->needs->devices_min;
    struct core_placement placement = {.member_count = 1, .device_count = need};
    struct core_member best = {0};

    for (size_t i = core_next_free(core, &core->present, kind, 0); i < core->node_count;
         i = core_next_free(core, &core->present, kind, i + 1)) {
        const int32_t open = usable_devices(core, view, core->nodes[i], kind, group);

        if (open >= need && strcmp(kind_device_name(core->nodes[i], kind), name) == 0 &&
            (!best.node || open - need < best.surplus))
            best = (struct core_member){
                .node = core->nodes[i], .index = i, .count = need, .surplus = open - need};
    }
    if (!best.node || !core_plan(view->needs, kind, need, &placement.plan))
        return (struct core_placement){0};
    placement.members = malloc(sizeof best);
    core->no_memory |= !placement.members;
    if (!placement.members)
        return (struct core_placement){0};
    placement.members[0] = best;
    return placement;
}

static void reserve_members(struct hd_core *core, const struct core_placement *placement,
                            enum hd_device_kind kind, uint64_t by)
{
    for (size_t i = 0; i < placement->member_count; i++)
        core_reserve_node(core, placement->members[i].node, CORE_MIGRATING, by, kind,
                          core->now.mono_ms, placement->members[i].surplus);
}

/* Finds a placement for a migrating job, as good as its present one, on nodes without other
 * reservations, and reserves it. False: there is none. */
static bool find_target(struct hd_core *core, struct job_migration *migration, uint64_t group)
{
    const enum hd_device_kind kind = migration->attempt->kind;
    struct core_view view = core_view_of(core, migration->job);
    struct hd_job_needs needs = migration->job->needs;
    const char *name = kind_device_name(migration->attempt->allocs[0].node, kind);
    const int64_t memory = memory_of(migration->attempt);

    needs.device = kind;
    needs.devices_min = needs.devices_max = migration->attempt->rec.plan.rank_count;
    needs.memory_min = memory > needs.memory_min ? memory : needs.memory_min;
    view.needs = &needs;
    view.reserves = true;
    view.nodes_max = (int32_t)migration->attempt->alloc_count;
    view.tier_max = attempt_tier(core, migration->attempt);
    if (view.nodes_max == 1) {
        migration->target = find_node_like(core, &view, kind, name, group);
    } else {
        migration->target = core_find_placement(core, &view);
        core_count_surplus(core, &core->present, &needs, kind, &migration->target);
    }
    for (size_t i = 0; i < migration->target.member_count; i++)
        if (strcmp(kind_device_name(migration->target.members[i].node, kind), name) != 0)
            return false;
    reserve_members(core, &migration->target, kind, group);
    return migration->target.device_count > 0;
}

/* Finds target placements for all migrating jobs, outside the gang's placement. False: some job has
 * none; nothing stays reserved. */
static bool find_targets(const struct defragmentation *g, const struct core_placement *placement,
                         struct job_migration *migrations, size_t count)
{
    const uint64_t group = migrations[0].job->rec.job;
    size_t found = 0;

    reserve_members(g->core, placement, g->kind, g->job->rec.job);
    while (found < count && find_target(g->core, &migrations[found], group))
        found++;
    core_unreserve_job(g->core, g->job->rec.job); /* the next pass reserves the pending placement */
    if (found < count)
        core_unreserve_job(g->core, group);
    return found == count;
}

/* ---- the migration ----------------------------------------------------------------------------*/

static void begin_move(const struct defragmentation *g, struct job_migration *migration,
                       uint64_t group)
{
    struct core_job *other = migration->job;

    core_event_moving(g->core, other, migration->attempt, g->job->rec.job, g->now->device_count);
    core_evict(g->core, other, migration->attempt, HD_END_CAUSE_PREEMPTED, g->job->rec.job);
    other->migration_target = malloc(sizeof *other->migration_target);
    g->core->no_memory |= !other->migration_target;
    if (!other->migration_target)
        return;
    *other->migration_target = migration->target;
    migration->target.members = NULL;
    other->migration_group = group;
    core_jobs_add(g->core, &g->core->migrating, other);
}

static void begin(const struct defragmentation *g, const struct core_forecast *after,
                  const struct core_placement *placement, struct job_migration *migrations,
                  size_t count)
{
    const uint64_t group = migrations[0].job->rec.job;
    struct core_job_list moved = {0};

    for (size_t i = 0; i < count; i++)
        core_job_list_add(&moved, migrations[i].job->rec.job);
    core_event_gathering(g->core, g->job, &moved, g->now, placement);
    hd_text_free(&moved.numbers);
    for (size_t i = 0; i < count; i++)
        begin_move(g, &migrations[i], group);
    core_pending_begin(g->core, g->job);
    core_pending_set(g->core, g->job, &g->needs, after, placement);
}

static bool gain_exceeds_cost(const struct defragmentation *g,
                              const struct core_placement *placement,
                              const struct job_migration *migrations, size_t count)
{
    const double steps_left = (double)core_steps_left(g->job);
    const double saved_s = g->now->plan.step_s - placement->plan.step_s;
    double cost_ms = (double)CORE_STOP_MS * g->now->device_count;

    for (size_t i = 0; i < count; i++)
        cost_ms += migrations[i].cost_ms;
    return placement->plan.step_s > 0 &&
           1000 * g->now->device_count * steps_left * saved_s > GAIN_FACTOR * cost_ms;
}

/* Makes the jobs on the nodes of the first domains migrate, if targets exist for them and the gain
 * for the gang suffices. */
static enum core_defragmented clear(const struct defragmentation *g, const struct domain *domains,
                                    const struct core_cached_layout **ret_entry)
{
    struct core_layout_client client = core_layout_client_of(g->job, &g->needs);
    enum core_layout layout = CORE_LAYOUT_INFEASIBLE;
    struct core_forecast after = {0};
    enum core_defragmented result = CORE_DEFRAGMENTS_NOT;
    struct job_migration migrations[MIGRATIONS_MAX];
    struct core_placement placement = {0};
    size_t count = list_migrations(g, domains, migrations);
    struct hd_text why = {0};
    int64_t memory_bytes;

    client.forecast = &after;
    if (count && core_forecast_init(g->core, NULL, 0, &after))
        placement = find_cleared(g, &after, migrations, &count);
    if (count && placement.device_count == g->now->device_count)
        layout = core_choose_layout(g->core, &client, &placement, &memory_bytes, ret_entry, &why);
    if (layout == CORE_LAYOUT_LATER)
        result = CORE_DEFRAGMENTS_LATER;
    if (layout == CORE_LAYOUT_FITS && gain_exceeds_cost(g, &placement, migrations, count)) {
        qsort(migrations, count, sizeof *migrations, by_size);
        if (find_targets(g, &placement, migrations, count)) {
            begin(g, &after, &placement, migrations, count);
            result = CORE_DEFRAGMENTS;
        }
        for (size_t i = 0; i < count; i++)
            free(migrations[i].target.members);
    }
    core_forecast_done(&after);
    free(placement.members);
    hd_text_free(&why);
    return result;
}

enum core_defragmented core_defragment(struct hd_core *core, struct core_job *job,
                                       const struct core_placement *now,
                                       const struct core_cached_layout **ret_entry)
{
    struct defragmentation g = {.core = core,
                                .job = job,
                                .needs = job->needs,
                                .now = now,
                                .view = core_view_of(core, job),
                                .kind = hd_device_kind_of(now->plan.layout.device)};
    const struct domain *from[SWITCHES_TRIED];
    size_t count = 0, switches;
    struct domain *domains;
    enum core_defragmented result = CORE_DEFRAGMENTS_NOT;

    if (now->member_count < 2 || now->plan.step_s <= 0 || job->is_preemptor || !core->assembled ||
        core->now.mono_ms < job->defragment_mono_ms || !core_arrays_ready(core))
        return CORE_DEFRAGMENTS_NOT;
    g.needs.device = g.kind;
    g.needs.devices_min = g.needs.devices_max = now->device_count;
    g.view.needs = &g.needs;
    g.view.reserves = true;
    core_limit_to_best(core, &g.view, g.kind);
    if (now->tier <= g.view.tier_max && now->member_count <= (size_t)g.view.nodes_max)
        return CORE_DEFRAGMENTS_NOT;
    domains = calloc(core->node_count + 1, sizeof *domains);
    core->no_memory |= !domains;
    for (size_t i = 0; domains && i < core->node_count; i++)
        count += evaluate_node(&g, i, &domains[count]);
    switches = count ? choose_switches(domains, count, (size_t)g.view.nodes_max, from) : 0;
    for (size_t k = 0; k < switches && !result; k++)
        result = clear(&g, from[k], ret_entry);
    if (result != CORE_DEFRAGMENTS_LATER)
        job->defragment_mono_ms = core->now.mono_ms + AGAIN_MS;
    free(domains);
    return result;
}

/* ---- reservations for migrating jobs ----------------------------------------------------------*/

static void reserve_target(struct hd_core *core, const struct core_job *job,
                           const struct core_placement *placement)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);

    for (size_t i = 0; i < placement->member_count; i++) {
        const struct core_member *member = &placement->members[i];
        const uint64_t by = core_reserved_by(core, member->node);
        const int32_t open = by == job->migration_group
                                 ? member->node->reserved.surplus
                                 : core_count_devices(&job->needs, member->node, kind, true);

        if (!by || by == job->migration_group)
            core_reserve_node(core, member->node, CORE_MIGRATING, job->migration_group, kind,
                              core->now.mono_ms, open - member->count);
    }
}

/* Returns whether the job can start in the placement once it has stopped. */
static bool can_have(const struct core_job *job, const struct core_placement *placement)
{
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);

    if (stays_stopped(job))
        return false;
    for (size_t i = 0; i < placement->member_count; i++) {
        const struct core_node *node = placement->members[i].node;

        if (!core_node_usable(node) ||
            core_count_devices(&job->needs, node, kind, true) < placement->members[i].count)
            return false;
    }
    return true;
}

void core_reserve_migration_targets(struct hd_core *core)
{
    for (size_t i = 0; i < core->migrating.count; i++) {
        const struct core_job *job = core->migrating.items[i];
        const struct core_placement *placement =
            job->migration_target ? job->migration_target : job->pending;

        if (placement && can_have(job, placement))
            reserve_target(core, job, placement);
    }
}
