/* watch: see watch.h. */
#include "tests/sim/watch.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LATE_MS = 60 * 1000 + 3 * 10 * 1000 };

void sim_watch_break(struct sim_watch *watch, const char *fmt, ...)
{
    va_list args;

    if (*watch->broken)
        return;
    va_start(args, fmt);
    (void)vsnprintf(watch->broken, sizeof watch->broken, fmt, args);
    va_end(args);
}

int32_t sim_node_of(const char *uuid)
{
    return (int32_t)strtol(uuid + 1, NULL, 10);
}

bool sim_watch_init(struct sim_watch *watch, struct sim_world *world)
{
    const size_t jobs = world->trace->job_count, nodes = (size_t)world->node_count;

    *watch = (struct sim_watch){.world = world, .digest = 14695981039346656037u};
    watch->jobs = calloc(jobs + 1, sizeof *watch->jobs);
    watch->job_of = calloc(jobs + 2, sizeof *watch->job_of);
    watch->holders = calloc(nodes * SIM_DEVICES, sizeof *watch->holders);
    watch->nodes = calloc(nodes, sizeof *watch->nodes);
    return watch->jobs && watch->job_of && watch->holders && watch->nodes;
}

void sim_watch_done(struct sim_watch *watch)
{
    for (size_t j = 0; watch->jobs && j < watch->world->trace->job_count; j++)
        free(watch->jobs[j].held);
    free(watch->jobs);
    free(watch->job_of);
    free(watch->holders);
    free(watch->nodes);
    free(watch->reported);
    free(watch->planned);
}

void sim_watch_number(struct sim_watch *watch, size_t job, uint64_t number)
{
    watch->job_of[number] = job;
    watch->last_number = number;
}

/* FNV-1a over what was decided. */
static void digest(struct sim_watch *watch, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        watch->digest = (watch->digest ^ (value >> (8 * i) & 255)) * 1099511628211u;
}

static void append(struct sim_watch *watch, uint64_t **items, size_t *count, size_t *size,
                   uint64_t value)
{
    if (*count == *size) {
        const size_t bigger_size = *size ? *size * 2 : 64;
        uint64_t *bigger = realloc(*items, bigger_size * sizeof *bigger);

        if (!bigger) {
            sim_watch_break(watch, "no memory for the checks");
            return;
        }
        *items = bigger;
        *size = bigger_size;
    }
    (*items)[(*count)++] = value;
}

/* ---- attempts ---------------------------------------------------------------------------------*/

static void count_held(struct sim_watch *watch, size_t job, int32_t devices)
{
    const struct sim_job *what = &watch->world->trace->jobs[job];

    watch->queue_held[what->queue] += devices;
    watch->user_held[what->queue][what->owner] += devices;
}

static void check_quota(struct sim_watch *watch, size_t job, uint64_t number)
{
    const struct sim_job *what = &watch->world->trace->jobs[job];
    const int32_t all = sim_queue_limit(what->queue, watch->world->node_count, false);
    const int32_t user = sim_queue_limit(what->queue, watch->world->node_count, true);

    if (all && watch->queue_held[what->queue] > all)
        sim_watch_break(watch, "W3: with job %" PRIu64 " queue %s holds %d devices of %d", number,
                        sim_queue_name(what->queue), watch->queue_held[what->queue], all);
    if (user && watch->user_held[what->queue][what->owner] > user)
        sim_watch_break(watch, "W3: with job %" PRIu64 " user %d holds %d devices of %d in %s",
                        number, what->owner, watch->user_held[what->queue][what->owner], user,
                        sim_queue_name(what->queue));
}

static void take_devices(struct sim_watch *watch, size_t job, const struct hd_attempt_record *a)
{
    struct sim_watched_job *seen = &watch->jobs[job];

    seen->held = malloc((size_t)a->plan.rank_count * sizeof *seen->held + 1);
    seen->devices = 0;
    for (int32_t r = 0; seen->held && r < a->plan.rank_count; r++) {
        const int32_t node = sim_node_of(a->plan.ranks[r].node_uuid);
        const int32_t device = a->plan.ranks[r].device;
        uint64_t *holder = &watch->holders[node * SIM_DEVICES + device];

        if (*holder)
            sim_watch_break(watch,
                            "W1: device %d of node %d goes to job %" PRIu64
                            " and belongs to job %" PRIu64,
                            device, node, a->job, *holder);
        if (watch->nodes[node] != HD_NODE_STATE_READY)
            sim_watch_break(watch, "W2: job %" PRIu64 " begins on node %d, which is %s", a->job,
                            node, hd_node_state_name((int)watch->nodes[node]));
        *holder = a->job;
        seen->held[seen->devices++] = (struct sim_held){.node = node, .device = device};
        digest(watch, (uint64_t)(node * SIM_DEVICES + device));
    }
    count_held(watch, job, seen->devices);
}

static void give_devices(struct sim_watch *watch, size_t job)
{
    struct sim_watched_job *seen = &watch->jobs[job];

    for (int32_t i = 0; i < seen->devices; i++)
        watch->holders[seen->held[i].node * SIM_DEVICES + seen->held[i].device] = 0;
    count_held(watch, job, -seen->devices);
    free(seen->held);
    seen->held = NULL;
    seen->devices = 0;
}

static void check_begin(struct sim_watch *watch, size_t job, const struct hd_attempt_record *a)
{
    const struct sim_job *what = &watch->world->trace->jobs[job];

    if (a->plan.rank_count < what->devices_min || a->plan.rank_count > what->devices_max)
        sim_watch_break(watch, "W2: job %" PRIu64 " begins with %d devices of %d to %d", a->job,
                        a->plan.rank_count, what->devices_min, what->devices_max);
    check_quota(watch, job, a->job);
}

static void see_attempt(struct sim_watch *watch, const struct hd_attempt_record *a, bool ended)
{
    const size_t job = watch->job_of[a->job];
    struct sim_watched_job *seen = &watch->jobs[job];

    if (ended != (a->state == HD_ATTEMPT_STATE_ENDED))
        return;
    digest(watch, a->job << 8 | (uint64_t)a->state);
    if (a->attempt == seen->attempt && a->state == seen->attempt_state)
        return;
    if (a->attempt == seen->attempt + 1 &&
        (seen->attempt_state == HD_ATTEMPT_STATE_ENDED || !seen->attempt)) {
        seen->attempt = a->attempt;
        watch->starts++;
        take_devices(watch, job, a);
        check_begin(watch, job, a);
    } else if (a->attempt != seen->attempt || a->state < seen->attempt_state) {
        sim_watch_break(watch, "W4: attempt %d of job %" PRIu64 " becomes %s after attempt %d, %s",
                        a->attempt, a->job, hd_field_word(HD_FIELD_ATTEMPT_STATE, (int)a->state),
                        seen->attempt,
                        hd_field_word(HD_FIELD_ATTEMPT_STATE, (int)seen->attempt_state));
    }
    seen->attempt_state = a->state;
    if (ended) {
        give_devices(watch, job);
        watch->preempted += a->end.cause == HD_END_CAUSE_PREEMPTED;
        watch->grown += a->end.cause == HD_END_CAUSE_RESIZED;
    }
}

/* ---- jobs -------------------------------------------------------------------------------------*/

/* Within one step a job may take several turns: one that ends and starts again stays running. */
static bool may_follow(enum hd_job_state before, enum hd_job_state after)
{
    switch (before) {
    case HD_JOB_STATE_QUEUED:
        return after != HD_JOB_STATE_STOPPING && after != HD_JOB_STATE_SUCCEEDED;
    case HD_JOB_STATE_RUNNING:
        return true;
    case HD_JOB_STATE_STOPPING:
        return after != HD_JOB_STATE_QUEUED && after != HD_JOB_STATE_RUNNING;
    default:
        return before == after;
    }
}

static bool is_reported(const struct sim_watch *watch, uint64_t number)
{
    for (size_t i = 0; i < watch->reported_count; i++)
        if (watch->reported[i] == number)
            return true;
    return false;
}

static void see_planned_start(struct sim_watch *watch, size_t job,
                              const struct hd_job_record *record, int64_t wall_ms)
{
    struct sim_watched_job *seen = &watch->jobs[job];

    if (record->planned_start_ms == seen->planned_start_ms)
        return;
    if (record->state == HD_JOB_STATE_QUEUED && !is_reported(watch, record->job))
        sim_watch_break(watch,
                        "W5: the expected start of job %" PRIu64 " moves by %" PRId64
                        " ms without an event",
                        record->job, record->planned_start_ms - seen->planned_start_ms);
    if (!seen->planned_start_ms)
        append(watch, &watch->planned, &watch->planned_count, &watch->planned_size, job);
    seen->planned_start_ms = record->planned_start_ms;
    if (record->planned_start_ms)
        sim_world_tell(watch->world, job,
                       watch->world->now_ms + record->planned_start_ms - wall_ms);
}

static void see_job(struct sim_watch *watch, const struct hd_job_record *record, bool is_new,
                    int64_t wall_ms)
{
    const size_t job = watch->job_of[record->job];
    struct sim_watched_job *seen = &watch->jobs[job];

    digest(watch, record->job << 8 | (uint64_t)record->state);
    if (!is_new && !may_follow(seen->state, record->state))
        sim_watch_break(watch, "W4: job %" PRIu64 " becomes %s and was %s", record->job,
                        hd_job_state_name((int)record->state), hd_job_state_name((int)seen->state));
    seen->state = record->state;
    see_planned_start(watch, job, record, wall_ms);
}

static void see_event(struct sim_watch *watch, const struct hd_event_record *event)
{
    if (strcmp(event->kind, "start_moved") != 0 && strcmp(event->kind, "start_expected") != 0)
        return;
    watch->starts_moved += event->kind[6] == 'm';
    watch->jobs[watch->job_of[event->job]].chooses = strstr(event->message, "could start now on");
    append(watch, &watch->reported, &watch->reported_count, &watch->reported_size, event->job);
}

void sim_watch_batch(struct sim_watch *watch, const struct hd_batch *batch, int64_t wall_ms)
{
    if (*watch->broken || !batch->count)
        return;
    watch->reported_count = 0;
    for (const struct hd_batch_op *op = batch->first; op; op = op->next) {
        if (op->kind == HD_OP_EVENT)
            see_event(watch, &op->event);
        else if (op->kind == HD_OP_NODE) /* a step changes nodes first, and then starts jobs */
            watch->nodes[sim_node_of(op->node.uuid)] = op->node.state;
        else if (op->kind == HD_OP_ATTEMPT)
            see_attempt(watch, &op->attempt, true); /* these give devices back */
    }
    for (const struct hd_batch_op *op = batch->first; op; op = op->next) {
        if (op->kind == HD_OP_ATTEMPT)
            see_attempt(watch, &op->attempt, false);
        else if (op->kind == HD_OP_JOB || op->kind == HD_OP_JOB_NEW)
            see_job(watch, &op->job, op->kind == HD_OP_JOB_NEW, wall_ms);
    }
    digest(watch, (uint64_t)wall_ms);
}

/* ---- from time to time ------------------------------------------------------------------------*/

static void check_planned_starts(struct sim_watch *watch, int64_t wall_ms, bool silent)
{
    for (size_t i = 0; i < watch->planned_count;) {
        const struct sim_watched_job *seen = &watch->jobs[watch->planned[i]];

        if (!seen->planned_start_ms || seen->state != HD_JOB_STATE_QUEUED) {
            watch->planned[i] = watch->planned[--watch->planned_count];
            continue;
        }
        if (wall_ms > seen->planned_start_ms + LATE_MS && !silent)
            sim_watch_break(watch,
                            "W7: a job was expected to start %" PRId64
                            " s ago, waits, and was told nothing",
                            (wall_ms - seen->planned_start_ms) / 1000);
        i++;
    }
}

/* Devices that are free or of lower priority, on nodes that take jobs. */
static int64_t count_for_urgent(const struct sim_watch *watch)
{
    int64_t count = 0;

    for (int32_t n = 0; n < watch->world->node_count; n++) {
        for (int d = 0; watch->nodes[n] == HD_NODE_STATE_READY && d < SIM_DEVICES; d++) {
            const uint64_t holder = watch->holders[n * SIM_DEVICES + d];

            count += !holder || watch->world->trace->jobs[watch->job_of[holder]].priority <
                                    SIM_PRIORITY_URGENT;
        }
    }
    return count;
}

static void check_urgent(struct sim_watch *watch, int64_t wall_ms)
{
    const struct sim_trace *trace = watch->world->trace;

    for (uint64_t number = 1; number <= watch->last_number; number++) {
        const size_t job = watch->job_of[number];
        const struct sim_watched_job *seen = &watch->jobs[job];

        if (seen->state != HD_JOB_STATE_QUEUED || trace->jobs[job].after >= 0 ||
            trace->jobs[job].priority != SIM_PRIORITY_URGENT)
            continue;
        if (number != watch->urgent || (seen->chooses && wall_ms < seen->planned_start_ms) ||
            count_for_urgent(watch) < trace->jobs[job].devices_min) {
            watch->urgent = number;
            watch->urgent_since_ms = watch->world->now_ms;
        }
        if (watch->world->now_ms - watch->urgent_since_ms > SIM_URGENT_WAIT_MS)
            sim_watch_break(watch,
                            "W8: urgent job %" PRIu64 " of %d devices has waited for %" PRId64
                            " s beside devices that it may have",
                            number, trace->jobs[job].devices_min,
                            (watch->world->now_ms - watch->urgent_since_ms) / 1000);
        return; /* the oldest alone */
    }
    watch->urgent = 0;
}

void sim_watch_waits(struct sim_watch *watch, int64_t wall_ms, bool silent)
{
    if (*watch->broken)
        return;
    check_planned_starts(watch, wall_ms, silent);
    check_urgent(watch, wall_ms);
}

static void check_node(struct sim_watch *watch, const struct hd_core *core, size_t index)
{
    struct hd_node_view view;
    int32_t node, held = 0;

    hd_core_node_at(core, index, &view);
    node = sim_node_of(view.record->uuid);
    if (view.record->state != watch->nodes[node])
        sim_watch_break(watch, "W6: node %d is %s and was last written as %s", node,
                        hd_node_state_name((int)view.record->state),
                        hd_node_state_name((int)watch->nodes[node]));
    for (int d = 0; d < SIM_DEVICES; d++) {
        const uint64_t holder = watch->holders[node * SIM_DEVICES + d];

        held += holder != 0;
        if (view.holds[d].job != holder)
            sim_watch_break(watch,
                            "W6: device %d of node %d is held by job %" PRIu64
                            ", and was given to job %" PRIu64,
                            d, node, view.holds[d].job, holder);
    }
    if (held != watch->world->nodes[node].held)
        sim_watch_break(watch, "W6: %d devices of node %d were given to jobs, %d are held", held,
                        node, watch->world->nodes[node].held);
}

static void check_dead(struct sim_watch *watch)
{
    const struct sim_world *world = watch->world;

    for (size_t j = 0; j < world->trace->job_count && !*watch->broken; j++) {
        const struct sim_run *run = &world->runs[j];

        if (run->state == SIM_RUN_HOLDING && run->frozen_ms &&
            world->now_ms - run->frozen_ms > SIM_DEAD_MS)
            sim_watch_break(watch,
                            "W10: %d devices of job %zu have computed nothing for %" PRId64 " s",
                            run->devices, j, (world->now_ms - run->frozen_ms) / 1000);
    }
}

void sim_watch_all(struct sim_watch *watch, const struct hd_core *core, int64_t wall_ms,
                   bool silent)
{
    for (size_t i = 0; i < hd_core_node_count(core) && !*watch->broken; i++)
        check_node(watch, core, i);
    for (size_t q = 0; q < hd_core_queue_count(core); q++) {
        struct hd_queue_view view;

        hd_core_queue_at(core, q, &view);
        for (int k = 0; k < SIM_QUEUES; k++)
            if (strcmp(view.record->name, sim_queue_name((enum sim_queue)k)) == 0 &&
                view.devices_held != watch->queue_held[k])
                sim_watch_break(watch, "W6: queue %s holds %" PRId64 " devices, and was given %d",
                                view.record->name, view.devices_held, watch->queue_held[k]);
    }
    check_dead(watch);
    sim_watch_waits(watch, wall_ms, silent);
}
