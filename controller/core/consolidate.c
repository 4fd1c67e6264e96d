/* consolidate: running jobs that move, so that a gang can start at fewer switches.
 *
 * In a busy cluster devices come free a few at each switch, and a switch that is free as a whole is
 * rare. A gang that could start now, but on nodes that are far apart, asks the jobs at one switch
 * to move: they write a checkpoint and go on where the gang would have started. Both places are as
 * large, so that often there is room for all.
 *
 *     gain = devices of the gang x steps left x (step now - step there)
 *     cost = devices of the gang x a stop + of each mover: its devices x (its start + a stop)
 *
 * They move if the gain is twice the cost. A mover has at most the gang's priority, has run for
 * twice as long as its move costs, ten times if its last attempt gave way, too, and would not end
 * sooner than it moves. It gets a place as good as its own: on as few nodes, at a switch of as low
 * a tier, and free now. That place is its room. It is reserved until the mover has started there
 * (core->movers), and the gang's place is its claim (claim.c), so that no other job takes either.
 * The movers of one gang reserve their rooms together, under the number of the first of them. If
 * one of them is late or fails, the others do not wait for it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/core/core_internal.h"

enum {
    STOP_MS = 30 * 1000,    /* assumed for a last checkpoint */
    GAIN_FACTOR = 2,        /* as for a job that grows (move.c) */
    PAID_FACTOR = 2,        /* a mover has run for so many times what its move costs, */
    PAID_AGAIN_FACTOR = 10, /* and one whose last attempt gave way for so many times */
    GANG_SHARE = 4,         /* a mover on so many nodes counts twice when sites are compared: rooms
                             * for gangs are rarer */
    AGAIN_MS = 5 * 60 * 1000, /* from one look for a job to the next */
    MOVERS_MAX = 256,         /* for one gang */
    SWITCHES_TRIED = 4,
};

/* What is looked for: a better place than `now`. */
struct gathering {
    struct hd_core *core;
    struct core_job *job;
    struct hd_job_needs needs;        /* as many devices as `now` has */
    const struct core_placement *now; /* where it could start; with its price */
    struct core_view view;            /* of the better place */
    enum hd_device_kind kind;
    struct { /* the last answer of count_at: nodes of a gang are side by side, as a rule */
        const struct core_attempt *attempt;
        int32_t at;
        size_t count;
    } counted;
};

/* An attempt that moves. */
struct mover {
    struct core_job *job;
    struct core_attempt *attempt;
    double cost_ms;             /* device-milliseconds */
    struct core_placement room; /* where it goes on */
};

/* A node that could be made free. */
struct site {
    size_t node;     /* its index */
    int32_t at;      /* its switch */
    double cost_ms;  /* its part of what its attempts cost, gangs weighted */
    uint64_t holder; /* one of them, so that nodes of a gang are side by side; 0: it is free */
};

/* ---- who may move -----------------------------------------------------------------------------*/

/* Its start, and a stop. */
static int64_t move_ms(const struct core_attempt *attempt)
{
    return attempt->rec.running_ms - attempt->rec.created_ms + STOP_MS;
}

static double cost_of(const struct core_attempt *attempt)
{
    return (double)attempt->rec.plan.rank_count * (double)move_ms(attempt);
}

/* Its devices come free by themselves before a move would free them. */
static bool ends_before_it_moves(const struct gathering *g, const struct core_attempt *attempt)
{
    return attempt->ends_mono_ms - g->core->now.mono_ms <= move_ms(attempt);
}

static bool gave_way_before(const struct core_job *job, const struct core_attempt *attempt)
{
    const struct core_attempt *before = core_find_attempt(job, attempt->rec.attempt - 1);

    return before && before->rec.end.cause == HD_END_CAUSE_PREEMPTED;
}

/* All its nodes see the jobs directory, so that its checkpoint can be read elsewhere. */
static bool is_shared(const struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->share_count; i++)
        if (!attempt->shares[i].node->jobs_dir_visible)
            return false;
    return true;
}

/* It is held, or its queue is closed: once it has stopped, it does not start again. */
static bool stays_stopped(const struct core_job *job)
{
    return job->rec.held || job->account->queue->rec.closed;
}

/* Its queue or its owner holds more than they may by now: what it gives back it would not get. */
static bool is_over_quota(const struct core_job *job)
{
    bool by_user;

    return core_quota_left(job->account, &by_user) < 0;
}

static bool may_move(const struct gathering *g, const struct core_job *other,
                     const struct core_attempt *attempt)
{
    const double ran_ms = (double)(g->core->now.wall_ms - attempt->rec.running_ms);
    const int factor = gave_way_before(other, attempt) ? PAID_AGAIN_FACTOR : PAID_FACTOR;

    return attempt->rec.state == HD_ATTEMPT_STATE_RUNNING && attempt->rec.running_ms &&
           !other->rec.cancel && other->rec.priority <= g->job->rec.priority &&
           !attempt->rec.borrows && is_shared(attempt) && !stays_stopped(other) &&
           !is_over_quota(other) && !ends_before_it_moves(g, attempt) &&
           ran_ms * attempt->rec.plan.rank_count >= factor * cost_of(attempt);
}

/* ---- which nodes are made free ----------------------------------------------------------------*/

/* The switch at which the gang could be together with this node: the node itself for one on one
 * node; -1: none. */
static int32_t switch_of(const struct gathering *g, size_t i)
{
    const int32_t tier = g->view.tier_max;

    return tier ? g->core->switch_of[tier < core_tiers(g->core) ? tier : 0][i] : (int32_t)i;
}

/* It holds devices of the node, of the kind that the gang takes. */
static bool is_in_the_way(const struct gathering *g, const struct core_attempt *attempt,
                          const struct core_node *node)
{
    return attempt->kind == g->kind && core_find_share(attempt, node);
}

/* Nodes of the attempt there. */
static size_t count_at(struct gathering *g, const struct core_attempt *attempt, int32_t at)
{
    size_t count = 0;

    if (g->counted.attempt == attempt && g->counted.at == at)
        return g->counted.count;
    for (size_t i = 0; i < attempt->share_count; i++)
        count += switch_of(g, attempt->shares[i].node->index) == at;
    g->counted.attempt = attempt;
    g->counted.at = at;
    g->counted.count = count;
    return count;
}

/* False: the node cannot be made free, or has not as many devices as the gang takes on one. */
static bool look_at(struct gathering *g, size_t i, struct site *ret_site)
{
    const struct core_node *node = g->core->nodes[i];
    const int32_t least = g->now->device_count / g->view.nodes_max;
    const int32_t at = switch_of(g, i);

    *ret_site = (struct site){.node = i, .at = at};
    if (at < 0 || !core_node_usable(node) || node->reserved.by ||
        (node->spare && !g->view.spares) || core_avoids(&g->view, node) ||
        core_count_devices(&g->needs, node, g->kind, false) < least)
        return false;
    for (size_t k = 0; k < node->active.count; k++) {
        const struct core_job *other = node->active.items[k];
        const struct core_attempt *attempt = core_active(other);

        if (!is_in_the_way(g, attempt, node))
            continue;
        if (!may_move(g, other, attempt))
            return false;
        ret_site->cost_ms += cost_of(attempt) * (1 + (double)attempt->share_count / GANG_SHARE) /
                             (double)count_at(g, attempt, at);
        ret_site->holder = other->rec.job;
    }
    return true;
}

static int by_cost(const void *left, const void *right)
{
    const struct site *a = left, *b = right;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    if (a->cost_ms != b->cost_ms)
        return a->cost_ms < b->cost_ms ? -1 : 1;
    if (a->holder != b->holder)
        return a->holder < b->holder ? -1 : 1;
    return a->node < b->node ? -1 : a->node > b->node;
}

static double sum_costs(const struct site *sites, size_t count)
{
    double sum_ms = 0;

    for (size_t i = 0; i < count; i++)
        sum_ms += sites[i].cost_ms;
    return sum_ms;
}

/* Sorts the sites by switch. The switches that have enough, the cheapest first: where the sites of
 * each begin. Returns their number. */
static size_t choose_switches(struct site *sites, size_t count, size_t needed,
                              const struct site *ret_from[SWITCHES_TRIED])
{
    double costs_ms[SWITCHES_TRIED];
    size_t chosen = 0;

    qsort(sites, count, sizeof *sites, by_cost);
    for (size_t from = 0, to; from < count; from = to) {
        double cost_ms;
        size_t k;

        for (to = from; to < count && sites[to].at == sites[from].at;)
            to++;
        if (to - from < needed)
            continue;
        cost_ms = sum_costs(sites + from, needed);
        if (chosen == SWITCHES_TRIED && cost_ms >= costs_ms[chosen - 1])
            continue;
        chosen += chosen < SWITCHES_TRIED;
        for (k = chosen - 1; k > 0 && costs_ms[k - 1] > cost_ms; k--) {
            costs_ms[k] = costs_ms[k - 1];
            ret_from[k] = ret_from[k - 1];
        }
        costs_ms[k] = cost_ms;
        ret_from[k] = sites + from;
    }
    return chosen;
}

static bool is_listed(const struct mover *movers, size_t count, const struct core_job *job)
{
    for (size_t i = 0; i < count; i++)
        if (movers[i].job == job)
            return true;
    return false;
}

/* Those of the first sites; 0: none, or too many. */
static size_t list_movers(const struct gathering *g, const struct site *sites,
                          struct mover ret_movers[MOVERS_MAX])
{
    size_t count = 0;

    for (int32_t i = 0; i < g->view.nodes_max; i++) {
        const struct core_node *node = g->core->nodes[sites[i].node];

        for (size_t k = 0; k < node->active.count; k++) {
            struct core_job *other = node->active.items[k];
            struct core_attempt *attempt = core_active(other);

            if (!is_in_the_way(g, attempt, node) || is_listed(ret_movers, count, other))
                continue;
            if (count == MOVERS_MAX)
                return 0;
            ret_movers[count++] =
                (struct mover){.job = other, .attempt = attempt, .cost_ms = cost_of(attempt)};
        }
    }
    return count;
}

/* The place that the movers make free; those that it does not need are left out. */
static struct core_placement find_cleared(const struct gathering *g, struct mover *movers,
                                          size_t *count)
{
    struct core_placement place;
    size_t kept = 0;

    for (size_t i = 0; i < *count; i++)
        core_lend(g->core, &movers[i].attempt, 1, true);
    place = core_find_place(g->core, &g->view);
    core_note_spare(&g->needs, g->kind, &place);
    for (size_t i = 0; i < *count; i++)
        core_lend(g->core, &movers[i].attempt, 1, false);
    for (size_t i = 0; i < *count; i++)
        if (core_is_on(&place, movers[i].attempt))
            movers[kept++] = movers[i];
    *count = kept;
    return place;
}

/* ---- where the movers go ----------------------------------------------------------------------*/

static int by_size(const void *left, const void *right)
{
    const struct mover *a = left, *b = right;
    const int32_t of_a = a->attempt->rec.plan.rank_count, of_b = b->attempt->rec.plan.rank_count;

    if (of_a != of_b)
        return of_a > of_b ? -1 : 1;
    return a->job->rec.job < b->job->rec.job ? -1 : a->job->rec.job > b->job->rec.job;
}

static int32_t tier_of(struct hd_core *core, const struct core_attempt *attempt)
{
    struct core_member *members = calloc(attempt->share_count, sizeof *members);
    int32_t tier = 0;

    core->no_memory |= !members;
    for (size_t i = 0; members && i < attempt->share_count; i++)
        members[i] = (struct core_member){.node = attempt->shares[i].node,
                                          .index = attempt->shares[i].node->index};
    if (members)
        tier = core_tier_of(core, members, attempt->share_count);
    free(members);
    return tier;
}

static const char *device_name(const struct core_node *node, enum hd_device_kind kind)
{
    for (int32_t d = 0; d < node->rec.device_count; d++)
        if (node->rec.devices[d].kind == kind && node->rec.devices[d].name)
            return node->rec.devices[d].name;
    return "";
}

/* The least memory of a device that the attempt holds. */
static int64_t memory_of(const struct core_attempt *attempt)
{
    int64_t least_bytes = INT64_MAX;

    for (size_t i = 0; i < attempt->share_count; i++) {
        const struct core_node *node = attempt->shares[i].node;

        for (int32_t d = 0; d < node->rec.device_count; d++)
            if (node->holds[d].by == attempt && node->rec.devices[d].memory_bytes < least_bytes)
                least_bytes = node->rec.devices[d].memory_bytes;
    }
    return least_bytes == INT64_MAX ? 0 : least_bytes;
}

/* Devices of the node that a mover may have; other movers to it have what is kept in the name of
 * `room`. */
static int32_t open_on(const struct core_view *view, const struct core_node *node,
                       enum hd_device_kind kind, uint64_t room)
{
    if (!core_node_usable(node) || !node->jobs_dir_visible || node->spare ||
        (node->reserved.by && node->reserved.by != room) || core_avoids(view, node))
        return 0;
    return node->reserved.by ? node->reserved.spare
                             : core_count_devices(view->needs, node, kind, true);
}

/* The node with the fewest devices that are enough; device_count 0: there is none. */
static struct core_placement find_node(struct hd_core *core, const struct core_view *view,
                                       enum hd_device_kind kind, const char *name, uint64_t room)
{
    const int32_t need = view->needs->devices_min;
    struct core_placement place = {.member_count = 1, .device_count = need};
    struct core_member best = {0};

    for (size_t i = core_next_free(core, kind, 0); i < core->node_count;
         i = core_next_free(core, kind, i + 1)) {
        const int32_t open = open_on(view, core->nodes[i], kind, room);

        if (open >= need && strcmp(device_name(core->nodes[i], kind), name) == 0 &&
            (!best.node || open - need < best.spare))
            best = (struct core_member){
                .node = core->nodes[i], .index = i, .count = need, .spare = open - need};
    }
    if (!best.node || !core_plan(view->needs, kind, need, &place.plan))
        return (struct core_placement){0};
    place.members = malloc(sizeof best);
    core->no_memory |= !place.members;
    if (!place.members)
        return (struct core_placement){0};
    place.members[0] = best;
    return place;
}

static void keep(struct hd_core *core, const struct core_placement *place, enum hd_device_kind kind,
                 uint64_t by)
{
    for (size_t i = 0; i < place->member_count; i++)
        core_reserve_node(core, place->members[i].node, by, kind, core->now.mono_ms,
                          place->members[i].spare);
}

/* Finds a place as good as its own on nodes that are reserved for no other job, and reserves it. */
static bool find_room(struct hd_core *core, struct mover *mover, uint64_t room)
{
    const enum hd_device_kind kind = mover->attempt->kind;
    struct core_view view = core_view_of(core, mover->job);
    struct hd_job_needs needs = mover->job->needs;
    const char *name = device_name(mover->attempt->shares[0].node, kind);
    const int64_t memory = memory_of(mover->attempt);

    needs.device = kind;
    needs.devices_min = needs.devices_max = mover->attempt->rec.plan.rank_count;
    needs.memory_min = memory > needs.memory_min ? memory : needs.memory_min;
    view.needs = &needs;
    view.reserves = true;
    view.nodes_max = (int32_t)mover->attempt->share_count;
    view.tier_max = tier_of(core, mover->attempt);
    if (view.nodes_max == 1) {
        mover->room = find_node(core, &view, kind, name, room);
    } else {
        mover->room = core_find_place(core, &view);
        core_note_spare(&needs, kind, &mover->room);
    }
    for (size_t i = 0; i < mover->room.member_count; i++)
        if (strcmp(device_name(mover->room.members[i].node, kind), name) != 0)
            return false;
    keep(core, &mover->room, kind, room);
    return mover->room.device_count > 0;
}

/* For all of them, beside the gang's place. */
static bool find_rooms(const struct gathering *g, const struct core_placement *place,
                       struct mover *movers, size_t count)
{
    const uint64_t room = movers[0].job->rec.job;
    size_t found = 0;

    keep(g->core, place, g->kind, g->job->rec.job);
    while (found < count && find_room(g->core, &movers[found], room))
        found++;
    core_reserve_no_more(g->core, g->job->rec.job); /* its claim keeps it from now on */
    if (found < count)
        core_reserve_no_more(g->core, room);
    return found == count;
}

/* ---- the move ---------------------------------------------------------------------------------*/

static void begin_move(const struct gathering *g, struct mover *mover, uint64_t room)
{
    struct core_job *other = mover->job;

    core_event(g->core, other, "moving", mover->attempt->rec.attempt, -1, "",
               "attempt %d writes a checkpoint and goes on elsewhere, so that the %d devices "
               "of job %" PRIu64 " are near one another",
               mover->attempt->rec.attempt, g->now->device_count, g->job->rec.job);
    core_attempt_stop_for(g->core, other, mover->attempt, HD_END_CAUSE_PREEMPTED, g->job->rec.job);
    other->room = malloc(sizeof *other->room);
    g->core->no_memory |= !other->room;
    if (!other->room)
        return;
    *other->room = mover->room;
    mover->room.members = NULL;
    other->room_of = room;
    core_jobs_add(g->core, &g->core->movers, other);
}

static void tell_gang(const struct gathering *g, const struct core_placement *place,
                      const struct mover *movers, size_t count)
{
    struct hd_text text = {0};

    hd_text_add(&text, "could start on ");
    core_add_place(g->core, (int32_t)g->now->member_count, g->now->tier, &text);
    hd_text_add(&text, " at %.3g s a step; ", g->now->plan.step_s);
    for (size_t i = 0; i < count; i++)
        hd_text_add(&text, "%s%" PRIu64, !i ? count == 1 ? "job " : "jobs " : ", ",
                    movers[i].job->rec.job);
    hd_text_add(&text, " go%s on elsewhere after a checkpoint, so that it starts on ",
                count == 1 ? "es" : "");
    core_add_place(g->core, (int32_t)place->member_count, place->tier, &text);
    hd_text_add(&text, " at %.3g s a step", place->plan.step_s);
    g->core->no_memory |= text.failed;
    core_event(g->core, g->job, "gathering", g->job->rec.attempt_count, -1, "", "%s",
               text.failed ? "" : text.data);
    hd_text_free(&text);
}

static void begin(const struct gathering *g, const struct core_placement *place,
                  struct mover *movers, size_t count)
{
    const uint64_t room = movers[0].job->rec.job;

    tell_gang(g, place, movers, count);
    for (size_t i = 0; i < count; i++)
        begin_move(g, &movers[i], room);
    g->job->claims = true;
    core_jobs_add(g->core, &g->core->claimants, g->job);
    core_claim_place(g->core, g->job, &g->needs, place);
    g->core->changed_in_pass = true;
}

static bool pays(const struct gathering *g, const struct core_placement *place,
                 const struct mover *movers, size_t count)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(g->job);
    const double steps_left = (double)(g->job->rec.steps - (base ? base->step : 0));
    const double saved_s = g->now->plan.step_s - place->plan.step_s;
    double cost_ms = (double)STOP_MS * g->now->device_count;

    for (size_t i = 0; i < count; i++)
        cost_ms += movers[i].cost_ms;
    return place->plan.step_s > 0 &&
           1000 * g->now->device_count * steps_left * saved_s > GAIN_FACTOR * cost_ms;
}

/* Makes the first sites free. */
static enum core_gathered clear(const struct gathering *g, const struct site *sites,
                                const struct core_menu_entry **ret_entry)
{
    const struct core_wisher wisher = core_wisher_of(g->job, &g->needs);
    enum core_layout layout = CORE_LAYOUT_MISFITS;
    enum core_gathered gathered = CORE_GATHERS_NOT;
    struct mover movers[MOVERS_MAX];
    struct core_placement place = {0};
    size_t count = list_movers(g, sites, movers);
    struct hd_text why = {0};
    int64_t memory_bytes;

    if (count)
        place = find_cleared(g, movers, &count);
    if (count && place.device_count == g->now->device_count)
        layout = core_choose_layout(g->core, &wisher, &place, &memory_bytes, ret_entry, &why);
    if (layout == CORE_LAYOUT_LATER)
        gathered = CORE_GATHERS_LATER;
    if (layout == CORE_LAYOUT_FITS && pays(g, &place, movers, count)) {
        qsort(movers, count, sizeof *movers, by_size);
        if (find_rooms(g, &place, movers, count)) {
            begin(g, &place, movers, count);
            gathered = CORE_GATHERS;
        }
        for (size_t i = 0; i < count; i++)
            free(movers[i].room.members);
    }
    free(place.members);
    hd_text_free(&why);
    return gathered;
}

enum core_gathered core_consolidate(struct hd_core *core, struct core_job *job,
                                    const struct core_placement *now,
                                    const struct core_menu_entry **ret_entry)
{
    struct gathering g = {.core = core,
                          .job = job,
                          .needs = job->needs,
                          .now = now,
                          .view = core_view_of(core, job),
                          .kind = hd_device_kind_of(now->plan.layout.device)};
    const struct site *from[SWITCHES_TRIED];
    size_t count = 0, switches;
    struct site *sites;
    enum core_gathered gathered = CORE_GATHERS_NOT;

    if (now->member_count < 2 || now->plan.step_s <= 0 || job->claims || !core->assembled ||
        core->now.mono_ms < job->gather_mono_ms || !core_free_by_node(core, g.kind))
        return CORE_GATHERS_NOT;
    g.needs.device = g.kind;
    g.needs.devices_min = g.needs.devices_max = now->device_count;
    g.view.needs = &g.needs;
    g.view.reserves = true;
    core_limit_to_best(core, &g.view, g.kind);
    if (now->tier <= g.view.tier_max && now->member_count <= (size_t)g.view.nodes_max)
        return CORE_GATHERS_NOT;
    sites = calloc(core->node_count + 1, sizeof *sites);
    core->no_memory |= !sites;
    for (size_t i = 0; sites && i < core->node_count; i++)
        count += look_at(&g, i, &sites[count]);
    switches = count ? choose_switches(sites, count, (size_t)g.view.nodes_max, from) : 0;
    for (size_t k = 0; k < switches && !gathered; k++)
        gathered = clear(&g, from[k], ret_entry);
    if (gathered != CORE_GATHERS_LATER)
        job->gather_mono_ms = core->now.mono_ms + AGAIN_MS;
    free(sites);
    return gathered;
}

/* ---- what is kept for movers ------------------------------------------------------------------*/

static void keep_room(struct hd_core *core, const struct core_job *job,
                      const struct core_placement *place)
{
    const enum hd_device_kind kind = hd_device_kind_of(place->plan.layout.device);

    for (size_t i = 0; i < place->member_count; i++) {
        const struct core_member *member = &place->members[i];
        const struct core_reservation *kept = &member->node->reserved;
        const int32_t open = kept->by == job->room_of
                                 ? kept->spare
                                 : core_count_devices(&job->needs, member->node, kind, true);

        if (!kept->by || kept->by == job->room_of)
            core_reserve_node(core, member->node, job->room_of, kind, core->now.mono_ms,
                              open - member->count);
    }
}

/* The job can start there once it has stopped. */
static bool can_have(const struct core_job *job, const struct core_placement *place)
{
    const enum hd_device_kind kind = hd_device_kind_of(place->plan.layout.device);

    if (stays_stopped(job))
        return false;
    for (size_t i = 0; i < place->member_count; i++) {
        const struct core_node *node = place->members[i].node;

        if (!core_node_usable(node) ||
            core_count_devices(&job->needs, node, kind, true) < place->members[i].count)
            return false;
    }
    return true;
}

void core_keep_rooms(struct hd_core *core)
{
    for (size_t i = 0; i < core->movers.count; i++) {
        const struct core_job *job = core->movers.items[i];
        const struct core_placement *place = job->room ? job->room : job->claim;

        if (place && can_have(job, place))
            keep_room(core, job, place);
    }
}

void core_room_claim(struct hd_core *core, struct core_job *job)
{
    if (!job->room)
        return;
    core_claim_drop(job);
    job->claim = job->room;
    job->room = NULL;
    job->claims = true;
    core_jobs_add(core, &core->claimants, job);
}
