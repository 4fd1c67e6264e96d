/* world: see world.h. */
#include "tests/sim/world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum event_kind {
    JOB_COMES,
    JOB_CANCELLED,
    JOB_UP,
    JOB_SAVES,
    JOB_DONE,
    JOB_STOPPED,
    JOB_TIMED_OUT,
    FAULT_BEGINS,
    FAULT_ENDS,
    TIMER, /* and above: of the policy */
};

enum { START_MS = 60 * 1000, START_DOUBLING_MS = 15 * 1000, STOP_MS = 20 * 1000 };

/* ---- the heap of events -----------------------------------------------------------------------*/

static bool comes_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->number < b->number;
}

static void add_event(struct sim_world *world, int64_t at_ms, int32_t kind, uint64_t about,
                      int32_t attempt)
{
    size_t i = world->event_count;
    struct sim_event event = {.at_ms = at_ms > world->now_ms ? at_ms : world->now_ms,
                              .number = ++world->made,
                              .kind = kind,
                              .attempt = attempt,
                              .about = about};

    if (world->event_count == world->event_size) {
        const size_t size = world->event_size ? world->event_size * 2 : 4096;
        struct sim_event *bigger = realloc(world->events, size * sizeof *bigger);

        if (!bigger) {
            world->no_memory = true;
            return;
        }
        world->events = bigger;
        world->event_size = size;
    }
    world->event_count++;
    for (; i && comes_before(&event, &world->events[(i - 1) / 2]); i = (i - 1) / 2)
        world->events[i] = world->events[(i - 1) / 2];
    world->events[i] = event;
}

static struct sim_event take_event(struct sim_world *world)
{
    const struct sim_event first = world->events[0];
    const struct sim_event last = world->events[--world->event_count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < world->event_count) {
        if (child + 1 < world->event_count &&
            comes_before(&world->events[child + 1], &world->events[child]))
            child++;
        if (!comes_before(&world->events[child], &last))
            break;
        world->events[i] = world->events[child];
        i = child;
    }
    if (world->event_count)
        world->events[i] = last;
    return first;
}

void sim_world_at(struct sim_world *world, int64_t at_ms, int32_t what, uint64_t about)
{
    add_event(world, at_ms, TIMER + what, about, 0);
}

/* ---- switches ---------------------------------------------------------------------------------*/

static const struct {
    const char *name;
    int32_t nodes;
} tiers[SIM_TIERS] = {
#define X(name, text, nodes) {text, nodes},
    SIM_TIER_LIST(X)
#undef X
};

const char *sim_tier_name(enum sim_tier tier)
{
    return tiers[tier].name;
}

int32_t sim_tier_nodes(enum sim_tier tier)
{
    return tiers[tier].nodes;
}

/* Returns the lowest tier that connects so many adjacent nodes, beginning at a switch. */
static int32_t lowest_tier(int32_t nodes)
{
    int32_t tier = nodes > 1;

    while (tier && tier < SIM_TIERS && tiers[tier - 1].nodes < nodes)
        tier++;
    return tier;
}

/* Places are in the order of nodes. */
static int32_t tier_of(const struct sim_location *locations, size_t count)
{
    const int32_t first = locations[0].node, last = locations[count - 1].node;
    int32_t tier = first != last;

    while (tier && tier < SIM_TIERS &&
           first / tiers[tier - 1].nodes != last / tiers[tier - 1].nodes)
        tier++;
    return tier;
}

/* ---- making and freeing -----------------------------------------------------------------------*/

struct sim_world *sim_world_new(const struct sim_trace *trace, const struct sim_policy *policy,
                                void *of_policy)
{
    struct sim_world *world = calloc(1, sizeof *world);

    if (!world)
        return NULL;
    *world = (struct sim_world){.trace = trace,
                                .policy = policy,
                                .of_policy = of_policy,
                                .node_count = trace->wish.nodes,
                                .devices_up = (int64_t)trace->wish.nodes * SIM_DEVICES};
    world->nodes = calloc((size_t)world->node_count, sizeof *world->nodes);
    world->runs = calloc(trace->job_count + 1, sizeof *world->runs);
    for (size_t j = 0; j < trace->job_count; j++) {
        add_event(world, trace->jobs[j].submit_ms, JOB_COMES, j, 0);
        if (trace->jobs[j].cancel_ms)
            add_event(world, trace->jobs[j].cancel_ms, JOB_CANCELLED, j, 0);
    }
    for (size_t f = 0; f < trace->fault_count; f++) {
        add_event(world, trace->faults[f].at_ms, FAULT_BEGINS, f, 0);
        add_event(world, trace->faults[f].back_ms, FAULT_ENDS, f, 0);
    }
    if (world->nodes && world->runs && !world->no_memory)
        return world;
    sim_world_free(world);
    return NULL;
}

void sim_world_free(struct sim_world *world)
{
    if (!world)
        return;
    for (size_t j = 0; world->runs && j < world->trace->job_count; j++)
        free(world->runs[j].locations);
    free(world->nodes);
    free(world->runs);
    free(world->events);
    free(world);
}

/* ---- sums -------------------------------------------------------------------------------------*/

static void go_to(struct sim_world *world, int64_t at_ms)
{
    const double passed_ms = (double)(at_ms - world->now_ms);

    world->sums.available += passed_ms * (double)world->devices_up;
    world->sums.held += passed_ms * (double)world->devices_held;
    world->now_ms = at_ms;
}

/* Leaf switches above these nodes, and how few would do. Places are in the order of nodes. */
static void count_span(struct sim_world *world, const struct sim_run *run)
{
    const int32_t of_leaf = tiers[SIM_TIER_LEAF].nodes;
    const double devices = run->devices;
    int32_t leaves = 0, last = -1;

    for (size_t i = 0; i < run->location_count; i++) {
        leaves += run->locations[i].node / of_leaf != last;
        last = run->locations[i].node / of_leaf;
    }
    world->spanned += devices * leaves;
    world->spanned_least += devices * ceil(devices / (of_leaf * SIM_DEVICES));
}

int64_t sim_world_step_of(const struct sim_world *world, size_t job)
{
    const struct sim_run *run = &world->runs[job];
    const int64_t until_ms = run->frozen_ms ? run->frozen_ms : world->now_ms;
    int64_t step;

    if (run->state != SIM_RUN_HOLDING || !run->up_ms || until_ms <= run->up_ms)
        return run->saved_step;
    step = run->base_step + (int64_t)((double)(until_ms - run->up_ms) / run->step_ms + 1e-6);
    return step < world->trace->jobs[job].steps ? step : world->trace->jobs[job].steps;
}

double sim_world_useful(const struct sim_world *world)
{
    double useful = 0;

    for (size_t j = 0; j < world->trace->job_count; j++) {
        const struct sim_job *job = &world->trace->jobs[j];
        const int64_t kept =
            world->runs[j].frozen_ms ? world->runs[j].saved_step : sim_world_step_of(world, j);

        useful += (double)kept * (double)job->step_ms * (double)job->devices_max;
    }
    return useful;
}

/* ---- attempts ---------------------------------------------------------------------------------*/

double sim_world_step_ms(const struct sim_job *job, int32_t devices, int32_t nodes, int32_t tier)
{
    const int32_t least = (devices + SIM_DEVICES - 1) / SIM_DEVICES;

    return (double)job->step_ms * (double)job->devices_max / (double)devices *
           (nodes > least ? SIM_SPREAD : 1) * pow(SIM_APART, tier - lowest_tier(nodes));
}

void sim_world_begin(struct sim_world *world, size_t job, const struct sim_location *locations,
                     size_t count)
{
    struct sim_run *run = &world->runs[job];
    const struct sim_job *what = &world->trace->jobs[job];

    free(run->locations);
    run->locations = malloc(count * sizeof *locations);
    if (!run->locations) {
        world->no_memory = true;
        return;
    }
    memcpy(run->locations, locations, count * sizeof *locations);
    run->location_count = count;
    run->devices = 0;
    for (size_t i = 0; i < count; i++) {
        run->devices += locations[i].count;
        world->nodes[locations[i].node].held += locations[i].count;
    }
    run->step_ms =
        sim_world_step_ms(what, run->devices, (int32_t)count, tier_of(run->locations, count));
    run->state = SIM_RUN_HOLDING;
    run->attempt++;
    run->begun_ms = world->now_ms;
    run->up_ms = run->frozen_ms = 0;
    run->stopping = false;
    run->base_step = run->saved_step;
    if (!run->first_begun_ms)
        run->first_begun_ms = world->now_ms;
    world->devices_held += run->devices;
    count_span(world, run);
}

void sim_world_tell(struct sim_world *world, size_t job, int64_t start_ms)
{
    struct sim_run *run = &world->runs[job];

    if (run->told_start_ms || run->first_begun_ms)
        return;
    run->told_ms = world->now_ms;
    run->told_start_ms = start_ms;
}

void sim_world_launch(struct sim_world *world, size_t job)
{
    const struct sim_run *run = &world->runs[job];
    const double doublings = ceil(log2((double)run->location_count));

    add_event(world, world->now_ms + START_MS + (int64_t)(doublings * START_DOUBLING_MS), JOB_UP,
              job, run->attempt);
}

void sim_world_stop(struct sim_world *world, size_t job)
{
    struct sim_run *run = &world->runs[job];

    if (run->stopping)
        return;
    run->stopping = true;
    add_event(world, world->now_ms + (run->up_ms ? STOP_MS : 0), JOB_STOPPED, job, run->attempt);
}

void sim_world_freeze(struct sim_world *world, size_t job)
{
    struct sim_run *run = &world->runs[job];

    if (run->state == SIM_RUN_HOLDING && !run->frozen_ms)
        run->frozen_ms = world->now_ms;
}

void sim_world_end(struct sim_world *world, size_t job)
{
    struct sim_run *run = &world->runs[job];
    const int64_t up_ms = run->up_ms ? run->up_ms : world->now_ms;

    for (size_t i = 0; i < run->location_count; i++)
        world->nodes[run->locations[i].node].held -= run->locations[i].count;
    world->devices_held -= run->devices;
    world->sums.starting += (double)(up_ms - run->begun_ms) * run->devices;
    if (run->frozen_ms)
        world->sums.dead += (double)(world->now_ms - run->frozen_ms) * run->devices;
    run->ran_ms += world->now_ms - up_ms;
    run->state = SIM_RUN_WAITING;
    run->frozen_ms = 0;
    run->devices = 0;
    run->location_count = 0;
}

void sim_world_over(struct sim_world *world, size_t job, enum sim_outcome outcome)
{
    struct sim_run *run = &world->runs[job];

    if (run->state == SIM_RUN_OVER)
        return;
    run->state = SIM_RUN_OVER;
    run->outcome = outcome;
    run->over_ms = world->now_ms;
    world->over_count++;
}

/* ---- events -----------------------------------------------------------------------------------*/

static void plan_next(struct sim_world *world, size_t job)
{
    const struct sim_run *run = &world->runs[job];
    const struct sim_job *what = &world->trace->jobs[job];
    const int64_t next = run->saved_step + what->save_steps;
    const int64_t at = next < what->steps ? next : what->steps;

    add_event(world, run->up_ms + (int64_t)ceil((double)(at - run->base_step) * run->step_ms),
              at == what->steps ? JOB_DONE : JOB_SAVES, job, run->attempt);
}

static void come_up(struct sim_world *world, size_t job)
{
    struct sim_run *run = &world->runs[job];
    const struct sim_job *what = &world->trace->jobs[job];

    if (run->frozen_ms || run->stopping)
        return;
    run->up_ms = world->now_ms;
    plan_next(world, job);
    if (what->time_limit_ms)
        add_event(world, world->now_ms + what->time_limit_ms - run->ran_ms, JOB_TIMED_OUT, job,
                  run->attempt);
    world->policy->up(world->of_policy, job);
}

static void save(struct sim_world *world, size_t job, bool is_last)
{
    struct sim_run *run = &world->runs[job];

    if (run->frozen_ms)
        return;
    run->saved_step += world->trace->jobs[job].save_steps;
    if (is_last)
        run->saved_step = world->trace->jobs[job].steps;
    else if (!run->stopping)
        plan_next(world, job);
    if (is_last)
        world->policy->done(world->of_policy, job);
    else
        world->policy->saved(world->of_policy, job);
}

static void stop(struct sim_world *world, size_t job)
{
    struct sim_run *run = &world->runs[job];

    if (run->frozen_ms)
        return;
    run->saved_step = sim_world_step_of(world, job);
    sim_world_freeze(world, job);
    world->policy->stopped(world->of_policy, job);
}

/* Applies an event of an attempt that may be over by now. */
static void happen_to_attempt(struct sim_world *world, const struct sim_event *event)
{
    const size_t job = (size_t)event->about;
    const struct sim_run *run = &world->runs[job];

    if (run->state != SIM_RUN_HOLDING || run->attempt != event->attempt)
        return;
    if (event->kind == JOB_UP)
        come_up(world, job);
    else if (event->kind == JOB_SAVES || event->kind == JOB_DONE)
        save(world, job, event->kind == JOB_DONE);
    else if (event->kind == JOB_STOPPED)
        stop(world, job);
    else if (!run->frozen_ms)
        world->policy->timed_out(world->of_policy, job);
}

static void fail_node(struct sim_world *world, int32_t node)
{
    world->nodes[node].failed = true;
    world->devices_up -= SIM_DEVICES;
    for (size_t j = 0; j < world->trace->job_count; j++) {
        const struct sim_run *run = &world->runs[j];

        for (size_t i = 0; run->state == SIM_RUN_HOLDING && i < run->location_count; i++)
            if (run->locations[i].node == node)
                sim_world_freeze(world, j);
    }
    world->policy->node_failed(world->of_policy, node);
}

static void happen_to_node(struct sim_world *world, const struct sim_event *event)
{
    const struct sim_fault *fault = &world->trace->faults[event->about];

    if (event->kind == FAULT_ENDS) {
        if (fault->kind == SIM_NODE_FAILS)
            world->devices_up += SIM_DEVICES;
        world->nodes[fault->node].failed = false;
        world->policy->node_back(world->of_policy, fault->node);
    } else if (fault->kind == SIM_NODE_FAILS) {
        fail_node(world, fault->node);
    } else {
        world->policy->node_drained(world->of_policy, fault->node, fault->deadline_ms);
    }
}

static void happen(struct sim_world *world, const struct sim_event *event)
{
    const size_t job = (size_t)event->about;

    if (event->kind >= TIMER) {
        world->policy->timer(world->of_policy, event->kind - TIMER, event->about);
    } else if (event->kind == JOB_COMES) {
        world->runs[job].state = SIM_RUN_WAITING;
        world->policy->submit(world->of_policy, job);
    } else if (event->kind == JOB_CANCELLED) {
        if (world->runs[job].state != SIM_RUN_OVER)
            world->policy->cancel(world->of_policy, job);
    } else if (event->kind == FAULT_BEGINS || event->kind == FAULT_ENDS) {
        happen_to_node(world, event);
    } else {
        happen_to_attempt(world, event);
    }
}

bool sim_world_step(struct sim_world *world, int64_t until_ms)
{
    struct sim_event event;

    if (!world->event_count || world->events[0].at_ms >= until_ms) {
        go_to(world, until_ms);
        return false;
    }
    event = take_event(world);
    go_to(world, event.at_ms);
    world->happened++;
    happen(world, &event);
    return true;
}
