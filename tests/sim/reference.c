/* reference: see reference.h. */
#include "tests/sim/reference.h"

#include <stdlib.h>
#include <string.h>

enum { NOTICE_MS = 90 * 1000, SIZES = 14 };
enum timer { NOTICED, LEAVE, PASS };

static const struct sim_job *job_at(const struct sim_reference *ref, size_t job)
{
    return &ref->world->trace->jobs[job];
}

/* ---- lists ------------------------------------------------------------------------------------*/

static void remove_from(size_t *items, size_t *count, size_t item)
{
    for (size_t i = 0; i < *count; i++) {
        if (items[i] != item)
            continue;
        memmove(&items[i], &items[i + 1], (*count - i - 1) * sizeof *items);
        (*count)--;
        return;
    }
}

/* Indices of jobs are in the order of submission. */
static void wait_in_order(struct sim_reference *ref, size_t job)
{
    size_t at = ref->waiting_count++;

    for (; at && ref->waiting[at - 1] > job; at--)
        ref->waiting[at] = ref->waiting[at - 1];
    ref->waiting[at] = job;
}

/* ---- places -----------------------------------------------------------------------------------*/

/* Devices of the node that a job may have: all free ones if it ends before the reservation begins,
 * else those that are free then and not needed. */
static int32_t usable(const struct sim_ref_node *node, bool in_time)
{
    const int32_t surplus = node->later - node->kept;

    if (node->down || node->drained)
        return 0;
    return in_time || node->free < surplus ? node->free : surplus > 0 ? surplus : 0;
}

/* First fit. Fills ref->locations; 0: it does not fit. */
static size_t find_placement(struct sim_reference *ref, int32_t devices, bool in_time)
{
    const int32_t least = devices < SIM_DEVICES ? devices : SIM_DEVICES;
    size_t count = 0;

    for (int32_t n = 0; n < ref->world->node_count && devices > 0; n++) {
        if (usable(&ref->nodes[n], in_time) < least)
            continue;
        ref->locations[count++] = (struct sim_location){.node = n, .count = least};
        devices -= least;
    }
    return devices > 0 ? 0 : count;
}

static bool within_limits(const struct sim_reference *ref, size_t job)
{
    const struct sim_job *what = job_at(ref, job);
    const int32_t nodes = ref->world->node_count;
    const int32_t all = sim_queue_limit(what->queue, nodes, false);
    const int32_t user = sim_queue_limit(what->queue, nodes, true);

    return (!all || ref->queue_held[what->queue] + what->devices_max <= all) &&
           (!user || ref->user_held[what->queue][what->owner] + what->devices_max <= user);
}

static void hold(struct sim_reference *ref, size_t job, int32_t sign)
{
    const struct sim_run *run = &ref->world->runs[job];
    const struct sim_job *what = job_at(ref, job);

    for (size_t i = 0; i < run->location_count; i++)
        ref->nodes[run->locations[i].node].free -= sign * run->locations[i].count;
    ref->free_devices -= sign * (int64_t)run->devices;
    ref->queue_held[what->queue] += sign * run->devices;
    ref->user_held[what->queue][what->owner] += sign * run->devices;
}

static void start(struct sim_reference *ref, size_t job, size_t location_count)
{
    sim_world_begin(ref->world, job, ref->locations, location_count);
    hold(ref, job, 1);
    sim_world_launch(ref->world, job);
    remove_from(ref->waiting, &ref->waiting_count, job);
    ref->running[ref->running_count++] = job;
}

/* ---- expected ends ----------------------------------------------------------------------------*/

static int64_t steps_left_ms(const struct sim_reference *ref, size_t job, double step_ms)
{
    return (int64_t)((double)(job_at(ref, job)->steps - sim_world_step_of(ref->world, job)) *
                     step_ms);
}

/* How long it would hold its devices from its start on. */
static int64_t expected_length(const struct sim_reference *ref, size_t job)
{
    if (ref->predicts && ref->jobs[job].known_step_ms > 0)
        return steps_left_ms(ref, job, ref->jobs[job].known_step_ms) + 2 * SIM_MINUTE_MS;
    return job_at(ref, job)->estimate_ms - ref->world->runs[job].ran_ms;
}

/* Overdue: soon. */
static int64_t expected_end(const struct sim_reference *ref, size_t job)
{
    const struct sim_run *run = &ref->world->runs[job];
    int64_t end = run->begun_ms + job_at(ref, job)->estimate_ms - run->ran_ms;

    if (ref->predicts && run->up_ms && sim_world_step_of(ref->world, job) >= run->base_step + 5)
        end = ref->world->now_ms + steps_left_ms(ref, job, run->step_ms);
    return end > ref->world->now_ms ? end : ref->world->now_ms + SIM_MINUTE_MS / 2;
}

static const struct sim_reference *sorting; /* by_end has no argument for it; one thread */

static int by_end(const void *left, const void *right)
{
    const size_t a = *(const size_t *)left, b = *(const size_t *)right;
    const int64_t ends_a = sorting->jobs[a].ends_ms, ends_b = sorting->jobs[b].ends_ms;

    return ends_a != ends_b ? (ends_a < ends_b ? -1 : 1) : a < b ? -1 : a > b;
}

static void unreserve_all(struct sim_reference *ref)
{
    for (int32_t n = 0; n < ref->world->node_count; n++) {
        ref->nodes[n].kept = 0;
        ref->nodes[n].later = SIM_DEVICES;
    }
}

/* Gives running jobs' devices back in the order of their expected ends until the job fits. Returns
 * when that is; INT64_MAX: never. */
static int64_t reserve(struct sim_reference *ref, size_t job)
{
    const int32_t devices = job_at(ref, job)->devices_max;
    const int32_t least = devices < SIM_DEVICES ? devices : SIM_DEVICES;
    int64_t begins_ms = INT64_MAX;
    int32_t fitting = 0, needed = (devices + least - 1) / least;

    for (size_t i = 0; i < ref->running_count; i++)
        ref->jobs[ref->running[i]].ends_ms = expected_end(ref, ref->running[i]);
    sorting = ref;
    qsort(ref->running, ref->running_count, sizeof *ref->running, by_end);
    for (int32_t n = 0; n < ref->world->node_count; n++) {
        ref->nodes[n].kept = 0;
        ref->nodes[n].later = ref->nodes[n].free;
        fitting += usable(&ref->nodes[n], false) >= least;
    }
    for (size_t i = 0; i < ref->running_count && fitting < needed; i++) {
        const struct sim_run *run = &ref->world->runs[ref->running[i]];

        for (size_t p = 0; p < run->location_count; p++) {
            struct sim_ref_node *node = &ref->nodes[run->locations[p].node];

            fitting += !node->down && !node->drained && node->later < least &&
                       node->later + run->locations[p].count >= least;
            node->later += run->locations[p].count;
        }
        begins_ms = ref->jobs[ref->running[i]].ends_ms;
    }
    if (fitting < needed) {
        unreserve_all(ref);
        return INT64_MAX;
    }
    for (int32_t n = 0; n < ref->world->node_count && needed > 0; n++) {
        struct sim_ref_node *node = &ref->nodes[n];

        if (node->down || node->drained || node->later < least)
            continue;
        node->kept = least;
        needed--;
    }
    return begins_ms;
}

/* ---- the pass ---------------------------------------------------------------------------------*/

/* It may start as far as others are concerned. */
static bool is_eligible(struct sim_reference *ref, size_t job)
{
    const int32_t after = job_at(ref, job)->after;

    return (after < 0 || ref->world->runs[after].outcome == SIM_OUTCOME_DONE) &&
           within_limits(ref, job);
}

static bool try_start(struct sim_reference *ref, size_t job, bool in_time)
{
    const int32_t devices = job_at(ref, job)->devices_max;
    const size_t count = devices <= ref->free_devices ? find_placement(ref, devices, in_time) : 0;

    for (size_t i = 0; i < count && !in_time; i++) /* it will still hold them then */
        ref->nodes[ref->locations[i].node].later -= ref->locations[i].count;
    if (count)
        start(ref, job, count);
    return count > 0;
}

static size_t size_class(int32_t devices)
{
    size_t k = 0;

    while (k + 1 < SIZES && 1 << k < devices)
        k++;
    return k;
}

/* Younger jobs, beside the reservation. Within a pass free devices only get fewer: where one of a
 * size did not fit, no other of it does. */
static void backfill(struct sim_reference *ref, size_t from, int64_t begins_ms)
{
    bool no_placement[SIZES][2] = {{false}};

    for (size_t i = from; i < ref->waiting_count && ref->free_devices > 0;) {
        const size_t job = ref->waiting[i];
        const bool in_time =
            begins_ms == INT64_MAX || ref->world->now_ms + expected_length(ref, job) <= begins_ms;
        bool *none = &no_placement[size_class(job_at(ref, job)->devices_max)][in_time];

        if (!*none && is_eligible(ref, job)) {
            if (try_start(ref, job, in_time))
                continue; /* the next one has its place in the list */
            *none = true;
        }
        i++;
    }
}

static void pass(struct sim_reference *ref)
{
    unreserve_all(ref);
    for (size_t i = 0; i < ref->waiting_count;) {
        const size_t job = ref->waiting[i];

        if (!is_eligible(ref, job)) {
            i++;
            continue;
        }
        if (try_start(ref, job, true))
            continue;
        if (ref->backfills) {
            const int64_t begins_ms = reserve(ref, job);

            if (begins_ms != INT64_MAX)
                sim_world_tell(ref->world, job, begins_ms);
            backfill(ref, i + 1, begins_ms);
        }
        return;
    }
}

/* Once for all that happens at one time. */
static void ask_for_pass(struct sim_reference *ref)
{
    if (!ref->asked)
        sim_world_at(ref->world, ref->world->now_ms, PASS, 0);
    ref->asked = true;
}

/* ---- what the world tells ---------------------------------------------------------------------*/

/* Jobs after one that did not succeed are cancelled, and so are those after them. */
static void cancel_dependents(struct sim_reference *ref)
{
    for (size_t i = 0; i < ref->waiting_count;) {
        const size_t job = ref->waiting[i];
        const int32_t after = job_at(ref, job)->after;
        const enum sim_outcome outcome =
            after < 0 ? SIM_OUTCOME_NONE : ref->world->runs[after].outcome;

        if (outcome != SIM_OUTCOME_CANCELLED && outcome != SIM_OUTCOME_FAILED) {
            i++;
            continue;
        }
        remove_from(ref->waiting, &ref->waiting_count, job);
        sim_world_over(ref->world, job, SIM_OUTCOME_CANCELLED);
        i = 0;
    }
}

static void end(struct sim_reference *ref, size_t job)
{
    struct sim_run *run = &ref->world->runs[job];

    if (run->up_ms)
        ref->jobs[job].known_step_ms = run->step_ms;
    hold(ref, job, -1);
    remove_from(ref->running, &ref->running_count, job);
    sim_world_end(ref->world, job);
}

static void finish(struct sim_reference *ref, size_t job, enum sim_outcome outcome)
{
    sim_world_over(ref->world, job, outcome);
    if (outcome != SIM_OUTCOME_DONE)
        cancel_dependents(ref);
    ask_for_pass(ref);
}

static void end_or_wait(struct sim_reference *ref, size_t job)
{
    end(ref, job);
    if (ref->jobs[job].wish)
        finish(ref, job, ref->jobs[job].wish);
    else
        wait_in_order(ref, job);
    ask_for_pass(ref);
}

static void submit(void *of, size_t job)
{
    struct sim_reference *ref = of;

    wait_in_order(ref, job);
    cancel_dependents(ref);
    ask_for_pass(ref);
}

static void stop_for(struct sim_reference *ref, size_t job, enum sim_outcome wish)
{
    if (ref->world->runs[job].state != SIM_RUN_HOLDING)
        return;
    if (wish)
        ref->jobs[job].wish = wish;
    sim_world_stop(ref->world, job);
}

static void cancel(void *of, size_t job)
{
    struct sim_reference *ref = of;

    if (ref->world->runs[job].state == SIM_RUN_HOLDING) {
        stop_for(ref, job, SIM_OUTCOME_CANCELLED);
        return;
    }
    remove_from(ref->waiting, &ref->waiting_count, job);
    finish(ref, job, SIM_OUTCOME_CANCELLED);
}

static void up(void *of, size_t job)
{
}

static void done(void *of, size_t job)
{
    end(of, job);
    finish(of, job, SIM_OUTCOME_DONE);
}

static void stopped(void *of, size_t job)
{
    end_or_wait(of, job);
}

static void timed_out(void *of, size_t job)
{
    stop_for(of, job, SIM_OUTCOME_FAILED);
}

static void node_failed(void *of, int32_t node)
{
    struct sim_reference *ref = of;

    ref->nodes[node].down = true;
    sim_world_at(ref->world, ref->world->now_ms + NOTICE_MS, NOTICED, (uint64_t)node);
}

static void node_back(void *of, int32_t node)
{
    struct sim_reference *ref = of;

    ref->nodes[node].down = ref->nodes[node].drained = false;
    ask_for_pass(ref);
}

static void node_drained(void *of, int32_t node, int64_t deadline_ms)
{
    struct sim_reference *ref = of;

    ref->nodes[node].drained = true;
    sim_world_at(ref->world, ref->world->now_ms + deadline_ms, LEAVE, (uint64_t)node);
}

static bool is_on(const struct sim_run *run, int32_t node)
{
    for (size_t i = 0; i < run->location_count; i++)
        if (run->locations[i].node == node)
            return true;
    return false;
}

/* Attempts on the node: those that failed with it end, or all are asked to leave. */
static void clear(struct sim_reference *ref, int32_t node, bool failed)
{
    for (size_t i = ref->running_count; i > 0; i--) {
        const size_t job = ref->running[i - 1];
        const struct sim_run *run = &ref->world->runs[job];

        if (!is_on(run, node))
            continue;
        if (!failed)
            stop_for(ref, job, SIM_OUTCOME_NONE);
        else if (run->frozen_ms)
            end_or_wait(ref, job);
    }
}

static void timer(void *of, int32_t what, uint64_t about)
{
    struct sim_reference *ref = of;

    if (what == PASS) {
        ref->asked = false;
        pass(ref);
    } else if (what == NOTICED) {
        clear(ref, (int32_t)about, true);
    } else if (ref->nodes[about].drained) {
        clear(ref, (int32_t)about, false);
    }
}

const struct sim_policy sim_reference_policy = {.submit = submit,
                                                .cancel = cancel,
                                                .up = up,
                                                .saved = up,
                                                .done = done,
                                                .stopped = stopped,
                                                .timed_out = timed_out,
                                                .node_failed = node_failed,
                                                .node_back = node_back,
                                                .node_drained = node_drained,
                                                .timer = timer};

/* ---- making and freeing -----------------------------------------------------------------------*/

bool sim_reference_init(struct sim_reference *ref, struct sim_world *world, bool backfills,
                        bool predicts)
{
    const size_t jobs = world->trace->job_count + 1, nodes = (size_t)world->node_count;

    *ref = (struct sim_reference){.world = world,
                                  .backfills = backfills,
                                  .predicts = predicts,
                                  .free_devices = (int64_t)nodes * SIM_DEVICES};
    ref->nodes = calloc(nodes, sizeof *ref->nodes);
    ref->locations = calloc(nodes, sizeof *ref->locations);
    ref->waiting = calloc(jobs, sizeof *ref->waiting);
    ref->running = calloc(jobs, sizeof *ref->running);
    ref->jobs = calloc(jobs, sizeof *ref->jobs);
    if (!ref->nodes || !ref->locations || !ref->waiting || !ref->running || !ref->jobs)
        return false;
    for (size_t n = 0; n < nodes; n++)
        ref->nodes[n].free = SIM_DEVICES;
    return true;
}

void sim_reference_done(struct sim_reference *ref)
{
    free(ref->nodes);
    free(ref->locations);
    free(ref->waiting);
    free(ref->running);
    free(ref->jobs);
}
