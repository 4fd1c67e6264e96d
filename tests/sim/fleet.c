/* fleet: see fleet.h. */
#include "tests/sim/fleet.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/sim/wish.h"

enum { WALL_MS = 1700000000, SECONDARY_MS = 30 * 1000, CHECK_EVERY = 1000, PRICED_MS = 2000 };
enum timer { TICK, DESIRED, SECONDARY, PACE, FOUND, PRICED };

/* ---- steps of the core ------------------------------------------------------------------------*/

static struct hd_now now_of(const struct sim_fleet *fleet)
{
    const int64_t ms = fleet->world->now_ms;

    return (struct hd_now){.mono_ms = 1000 + ms, .wall_ms = (int64_t)WALL_MS * 1000 + ms};
}

static void end_attempt(struct sim_fleet *fleet, const struct hd_attempt_record *attempt)
{
    const size_t job = fleet->watch.job_of[attempt->job];

    if (fleet->world->runs[job].state == SIM_RUN_HOLDING)
        sim_world_end(fleet->world, job);
}

static void begin_attempt(struct sim_fleet *fleet, const struct hd_attempt_record *attempt)
{
    const size_t job = fleet->watch.job_of[attempt->job];
    struct sim_location *locations;
    size_t count = 0;

    if (attempt->attempt != fleet->world->runs[job].attempt + 1)
        return; /* it has begun */
    locations = calloc((size_t)attempt->plan.rank_count, sizeof *locations);
    for (int32_t r = 0; locations && r < attempt->plan.rank_count; r++) {
        const int32_t node = sim_node_of(attempt->plan.ranks[r].node_uuid);

        if (!count || locations[count - 1].node != node)
            locations[count++].node = node;
        locations[count - 1].count++;
    }
    if (count)
        sim_world_begin(fleet->world, job, locations, count);
    free(locations);
    fleet->commands[job].seq = fleet->commands[job].arrived = 0;
    fleet->commands[job].stop_since_ms = 0;
}

static void end_job(struct sim_fleet *fleet, const struct hd_job_record *job)
{
    const enum sim_outcome outcome = job->state == HD_JOB_STATE_SUCCEEDED   ? SIM_OUTCOME_DONE
                                     : job->state == HD_JOB_STATE_CANCELLED ? SIM_OUTCOME_CANCELLED
                                                                            : SIM_OUTCOME_FAILED;

    if (job->state >= HD_JOB_STATE_SUCCEEDED)
        sim_world_over(fleet->world, fleet->watch.job_of[job->job], outcome);
}

static void receive_loss(struct sim_fleet *fleet, int32_t node)
{
    fleet->silent -= fleet->daemons[node].silent;
    fleet->daemons[node].silent = false;
}

/* The world does what the batch says. */
static void obey(struct sim_fleet *fleet)
{
    const struct hd_batch_op *first = fleet->batch->first;

    for (const struct hd_batch_op *op = first; op; op = op->next)
        if (op->kind == HD_OP_ATTEMPT && op->attempt.state == HD_ATTEMPT_STATE_ENDED)
            end_attempt(fleet, &op->attempt);
    for (const struct hd_batch_op *op = first; op; op = op->next) {
        if (op->kind == HD_OP_ATTEMPT && op->attempt.state != HD_ATTEMPT_STATE_ENDED)
            begin_attempt(fleet, &op->attempt);
        else if (op->kind == HD_OP_JOB || op->kind == HD_OP_JOB_NEW)
            end_job(fleet, &op->job);
        else if (op->kind == HD_OP_NODE && op->node.state == HD_NODE_STATE_LOST)
            receive_loss(fleet, sim_node_of(op->node.uuid));
    }
}

static void check_now_and_then(struct sim_fleet *fleet)
{
    if (++fleet->steps % CHECK_EVERY)
        return;
    sim_watch_all(&fleet->watch, fleet->core, now_of(fleet).wall_ms, fleet->silent > 0);
    if (fleet->checks_core && !*fleet->watch.broken && hd_core_check(fleet->core))
        sim_watch_break(&fleet->watch, "%s", hd_err_message());
}

/* Answers as the search for layouts would, by the world's model of a step: devices on more nodes
 * than would do, and further apart than these need to be, are slower. It takes two seconds. */
static void take_questions(struct sim_fleet *fleet)
{
    for (size_t i = 0; i < fleet->out.asked_count; i++) {
        const struct hd_core_asked *asked = &fleet->out.asked[i];
        size_t job;

        if (fleet->question_count == fleet->question_size) {
            const size_t size = fleet->question_size ? fleet->question_size * 2 : 64;
            struct sim_question *bigger = realloc(fleet->questions, size * sizeof *bigger);

            if (!bigger) {
                sim_watch_break(&fleet->watch, "no memory for a question");
                return;
            }
            fleet->questions = bigger;
            fleet->question_size = size;
        }
        memcpy(&job, asked->spec, sizeof job);
        fleet->questions[fleet->question_count] = (struct sim_question){
            .key = strdup(asked->key),
            .step_s = sim_world_step_ms(&fleet->world->trace->jobs[job], asked->devices,
                                        asked->devices / asked->together, asked->tier) /
                      1000};
        if (!fleet->questions[fleet->question_count].key)
            sim_watch_break(&fleet->watch, "no memory for a question");
        if (hd_plan_size(&asked->wish, asked->devices,
                         &fleet->questions[fleet->question_count].layout))
            sim_watch_break(&fleet->watch, "no layout of %d devices", asked->devices);
        sim_world_at(fleet->world, fleet->world->now_ms + PRICED_MS, PRICED,
                     (uint64_t)fleet->question_count++);
    }
}

/* Desired sets reach their daemons within a second or two, each in its own time. */
static void send_desired(struct sim_fleet *fleet)
{
    for (size_t i = 0; i < fleet->out.node_count; i++) {
        const int32_t node = sim_node_of(fleet->out.nodes[i]);

        if (fleet->daemons[node].due)
            continue;
        fleet->daemons[node].due = true;
        sim_world_at(fleet->world, fleet->world->now_ms + 500 + node * 7 % 1000, DESIRED,
                     (uint64_t)node);
    }
    for (size_t i = 0; i < fleet->out.search_count; i++)
        sim_world_at(fleet->world, fleet->world->now_ms + 1000, FOUND,
                     fleet->out.searches[i].job << 16 | (uint64_t)fleet->out.searches[i].attempt);
}

static bool says_nothing(const struct sim_fleet *fleet)
{
    const struct hd_core_out *out = &fleet->out;

    return !fleet->batch->count && !out->node_count && !out->search_count && !out->asked_count;
}

static enum hd_status step(struct sim_fleet *fleet, const struct hd_core_event *event)
{
    const bool beats = event->kind == HD_CORE_ALIVE; /* beat measures these, thousands at once */
    const int64_t begun_ns = beats ? 0 : hd_clock_now_ns();
    int64_t spent_ns;
    enum hd_status st;

    hd_core_out_clear(&fleet->out);
    fleet->out.batch = fleet->batch;
    st = hd_core_step(fleet->core, event, now_of(fleet), &fleet->out);
    if (beats && !st && says_nothing(fleet))
        return st;
    spent_ns = beats ? 0 : hd_clock_now_ns() - begun_ns;
    fleet->spent_ns += spent_ns;
    fleet->longest_ns = spent_ns > fleet->longest_ns ? spent_ns : fleet->longest_ns;
    if (st == HD_NO_MEMORY)
        sim_watch_break(&fleet->watch, "%s", hd_err_message());
    if (event->kind == HD_CORE_SUBMIT && !st)
        sim_watch_number(&fleet->watch, fleet->submitting, fleet->out.job);
    sim_watch_batch(&fleet->watch, fleet->batch, now_of(fleet).wall_ms);
    obey(fleet);
    send_desired(fleet);
    take_questions(fleet);
    if (fleet->batch->count) {
        hd_batch_free(fleet->batch);
        fleet->batch = hd_batch_new();
    }
    if (!fleet->batch)
        sim_watch_break(&fleet->watch, "no memory for a batch");
    if (!beats)
        check_now_and_then(fleet);
    return st;
}

static void must(struct sim_fleet *fleet, enum hd_status st, const char *what)
{
    if (st)
        sim_watch_break(&fleet->watch, "%s: %s", what, hd_err_message());
}

/* ---- what a daemon sends ----------------------------------------------------------------------*/

static void send_observed(struct sim_fleet *fleet, int32_t node)
{
    struct sim_daemon *daemon = &fleet->daemons[node];
    struct hd_observed *observed = calloc(daemon->alloc_count + 1, sizeof *observed);
    const struct hd_core_event event = {.kind = HD_CORE_OBSERVED,
                                        .observed = {.uuid = daemon->uuid,
                                                     .stream = daemon->stream,
                                                     .generation = daemon->generation,
                                                     .attempts = observed,
                                                     .attempt_count = daemon->alloc_count,
                                                     .jobs_dir_visible = true,
                                                     .jobs_dir_problem = ""}};

    if (!observed) {
        sim_watch_break(&fleet->watch, "no memory for an observed set");
        return;
    }
    for (size_t i = 0; i < daemon->alloc_count; i++)
        observed[i] = (struct hd_observed){.job = daemon->allocs[i].job,
                                           .attempt = daemon->allocs[i].attempt,
                                           .state = daemon->allocs[i].state,
                                           .end = daemon->allocs[i].end};
    must(fleet, step(fleet, &event), "observed");
    free(observed);
}

static void send_hello(struct sim_fleet *fleet, int32_t node)
{
    struct sim_daemon *daemon = &fleet->daemons[node];
    struct hd_device_record devices[SIM_DEVICES];
    const struct hd_core_event event = {.kind = HD_CORE_HELLO,
                                        .hello = {.uuid = daemon->uuid,
                                                  .name = daemon->name,
                                                  .boot_id = daemon->boot,
                                                  .facts.data_address = daemon->address,
                                                  .facts.compute[HD_DEVICE_KIND_CUDA] = "gpu",
                                                  .stream = ++daemon->stream,
                                                  .devices = devices,
                                                  .device_count = SIM_DEVICES}};

    (void)snprintf(daemon->boot, sizeof daemon->boot, "%d-%d", (int)node, (int)daemon->stream);
    for (int d = 0; d < SIM_DEVICES; d++)
        devices[d] = (struct hd_device_record){.index = d,
                                               .kind = HD_DEVICE_KIND_CUDA,
                                               .name = "gpu",
                                               .uuid = "",
                                               .memory_bytes = (int64_t)80 << 30,
                                               .threads = 8};
    must(fleet, step(fleet, &event), "hello");
    send_observed(fleet, node);
}

static struct sim_alloc *find_alloc(struct sim_daemon *daemon, uint64_t job, int32_t attempt)
{
    for (size_t i = 0; i < daemon->alloc_count; i++)
        if (daemon->allocs[i].job == job && daemon->allocs[i].attempt == attempt)
            return &daemon->allocs[i];
    return NULL;
}

/* The shares of a job's attempt on all nodes that live become so, and their daemons say it. */
static void set_allocs(struct sim_fleet *fleet, size_t job, enum hd_attempt_state state,
                       const struct hd_end_record *end)
{
    const struct sim_run *run = &fleet->world->runs[job];
    const uint64_t number = fleet->commands[job].number;
    const int32_t attempt = run->attempt;
    const size_t count = run->location_count;
    /* the attempt may end, and another begin, on the way */
    struct sim_location *locations = calloc(count + 1, sizeof *locations);

    if (!locations) {
        sim_watch_break(&fleet->watch, "no memory for places");
        return;
    }
    memcpy(locations, run->locations, count * sizeof *locations);
    for (size_t i = 0; i < count; i++) {
        const int32_t node = locations[i].node;
        struct sim_alloc *alloc = find_alloc(&fleet->daemons[node], number, attempt);

        if (!alloc || fleet->world->nodes[node].failed || alloc->state == HD_ATTEMPT_STATE_ENDED)
            continue;
        alloc->state = state;
        alloc->end = *end;
        send_observed(fleet, node);
    }
    free(locations);
}

/* Rank 0 reports; from a node that has failed nothing comes. */
static void report(struct sim_fleet *fleet, size_t job, enum hd_report_kind kind, int64_t at_step,
                   int64_t at_ms)
{
    const struct sim_run *run = &fleet->world->runs[job];
    struct sim_daemon *daemon = &fleet->daemons[run->locations[0].node];
    char path[48];
    struct hd_core_event event = {.kind = HD_CORE_REPORT,
                                  .report = {.uuid = daemon->uuid,
                                             .stream = daemon->stream,
                                             .job = fleet->commands[job].number,
                                             .attempt = run->attempt,
                                             .seq = ++fleet->commands[job].seq,
                                             .kind = kind}};

    if (run->state != SIM_RUN_HOLDING || fleet->world->nodes[run->locations[0].node].failed)
        return;
    (void)snprintf(path, sizeof path, "attempt-%d/step-%lld", run->attempt, (long long)at_step);
    if (kind == HD_REPORT_CHECKPOINT)
        event.report.checkpoint = (struct hd_checkpoint_record){.step = at_step,
                                                                .path = path,
                                                                .hash = "00",
                                                                .shared = true,
                                                                .time_ms = at_ms,
                                                                .val_loss = NAN};
    else
        event.report.step = (struct hd_step_record){
            .step = at_step, .time_ms = at_ms, .metrics = {.loss = 1, .grad_norm = 1}};
    must(fleet, step(fleet, &event), "report");
}

/* ---- desired sets -----------------------------------------------------------------------------*/

static void remove_others(struct sim_daemon *daemon, const struct hd_desired *desired)
{
    size_t kept = 0;

    for (size_t i = 0; i < daemon->alloc_count; i++) {
        bool wanted = false;

        for (size_t k = 0; k < desired->attempt_count; k++)
            wanted |= desired->attempts[k].job->job == daemon->allocs[i].job &&
                      desired->attempts[k].attempt->attempt == daemon->allocs[i].attempt;
        if (wanted)
            daemon->allocs[kept++] = daemon->allocs[i];
    }
    daemon->alloc_count = kept;
}

static void begin_alloc(struct sim_fleet *fleet, struct sim_daemon *daemon, size_t job,
                        const struct hd_attempt_record *attempt)
{
    const struct sim_run *run = &fleet->world->runs[job];

    if (daemon->alloc_count == daemon->alloc_size) {
        const size_t size = daemon->alloc_size ? daemon->alloc_size * 2 : 8;
        struct sim_alloc *bigger = realloc(daemon->allocs, size * sizeof *bigger);

        if (!bigger) {
            sim_watch_break(&fleet->watch, "no memory for a share");
            return;
        }
        daemon->allocs = bigger;
        daemon->alloc_size = size;
    }
    daemon->allocs[daemon->alloc_count++] = (struct sim_alloc){.job = attempt->job,
                                                               .attempt = attempt->attempt,
                                                               .state = HD_ATTEMPT_STATE_STARTING,
                                                               .end = {.rank = -1}};
    if (attempt->base_step != run->saved_step)
        sim_watch_break(&fleet->watch,
                        "job %" PRIu64 " begins at step %" PRId64
                        ", and its newest checkpoint is of step %" PRId64,
                        attempt->job, attempt->base_step, run->saved_step);
    if (++fleet->commands[job].arrived == run->location_count)
        sim_world_launch(fleet->world, job);
}

static void kill_alloc(struct sim_fleet *fleet, size_t job, struct sim_alloc *alloc)
{
    sim_world_freeze(fleet->world, job);
    alloc->state = HD_ATTEMPT_STATE_ENDED;
    alloc->end = (struct hd_end_record){.cause = HD_END_CAUSE_USER, .rank = -1};
}

/* Whoever is preempted, moved, grown or out of time is given the time for a last checkpoint. */
static void check_kill(struct sim_fleet *fleet, size_t job, const struct hd_attempt_record *attempt)
{
    const struct sim_run *run = &fleet->world->runs[job];
    const int64_t since_ms = fleet->commands[job].stop_since_ms;

    if (attempt->stop_cause == HD_END_CAUSE_NONE || run->frozen_ms ||
        (since_ms && fleet->world->now_ms - since_ms >= 300 * 1000))
        return;
    sim_watch_break(&fleet->watch,
                    "W9: attempt %d of job %" PRIu64 " (%s) is killed before its last checkpoint",
                    attempt->attempt, attempt->job, hd_end_cause_name((int)attempt->stop_cause));
}

static void apply(struct sim_fleet *fleet, struct sim_daemon *daemon,
                  const struct hd_desired_attempt *desired)
{
    const size_t job = fleet->watch.job_of[desired->attempt->job];
    struct sim_command *command = &fleet->commands[job];
    struct sim_alloc *alloc = find_alloc(daemon, desired->attempt->job, desired->attempt->attempt);

    if (!alloc && desired->wanted == HD_WANTED_RUNNING)
        begin_alloc(fleet, daemon, job, desired->attempt);
    if (!alloc || alloc->state == HD_ATTEMPT_STATE_ENDED || desired->wanted == HD_WANTED_RUNNING)
        return;
    if (desired->wanted == HD_WANTED_STOPPED) {
        check_kill(fleet, job, desired->attempt);
        kill_alloc(fleet, job, alloc);
    } else if (!command->stop_since_ms) {
        command->stop_since_ms = fleet->world->now_ms;
        sim_world_stop(fleet->world, job);
    }
}

static void take_desired(struct sim_fleet *fleet, int32_t node)
{
    struct sim_daemon *daemon = &fleet->daemons[node];
    struct hd_desired desired = {0};
    struct hd_arena arena;

    daemon->due = false;
    if (fleet->world->nodes[node].failed)
        return;
    hd_arena_init(&arena, 0);
    if (!hd_core_desired(fleet->core, daemon->uuid, &arena, &desired)) {
        daemon->generation = desired.generation;
        remove_others(daemon, &desired);
        for (size_t i = 0; i < desired.attempt_count; i++)
            apply(fleet, daemon, &desired.attempts[i]);
        send_observed(fleet, node);
    }
    hd_arena_done(&arena);
}

/* ---- what the world tells ---------------------------------------------------------------------*/

static void submit(void *of, size_t index)
{
    struct sim_fleet *fleet = of;
    const struct sim_job *job = &fleet->world->trace->jobs[index];
    char request[32], owner[16];
    struct hd_core_event event = {.kind = HD_CORE_SUBMIT,
                                  .submit = {.request_id = request,
                                             .owner = owner,
                                             .needs = {.name = "job",
                                                       .device = HD_DEVICE_KIND_CUDA,
                                                       .devices_min = job->devices_min,
                                                       .devices_max = job->devices_max,
                                                       .steps = job->steps,
                                                       .wish = SIM_OPEN_WISH(4096),
                                                       .restart_max = 3,
                                                       .queue = sim_queue_name(job->queue),
                                                       .priority = job->priority,
                                                       .time_limit_ms = job->time_limit_ms},
                                             .spec = &index,
                                             .spec_bytes = sizeof index}};

    (void)snprintf(request, sizeof request, "request-%zu", index);
    (void)snprintf(owner, sizeof owner, "user%d", job->owner);
    if (job->after >= 0 && !fleet->commands[job->after].number) { /* that one was refused */
        sim_world_over(fleet->world, index, SIM_OUTCOME_CANCELLED);
        return;
    }
    if (job->after >= 0) {
        event.submit.needs.after[0] = fleet->commands[job->after].number;
        event.submit.needs.after_count = 1;
    }
    fleet->submitting = index;
    if (!step(fleet, &event)) {
        fleet->commands[index].number = fleet->out.job;
    } else {
        sim_world_over(fleet->world, index, SIM_OUTCOME_CANCELLED);
        if (!event.submit.needs.after_count)
            sim_watch_break(&fleet->watch, "submit: %s", hd_err_message());
    }
}

static void cancel(void *of, size_t job)
{
    struct sim_fleet *fleet = of;
    const struct hd_core_event event = {
        .kind = HD_CORE_CANCEL, .cancel = {.job = fleet->commands[job].number, .by = "its user"}};

    must(fleet, step(fleet, &event), "cancel");
}

static void up(void *of, size_t job)
{
    struct sim_fleet *fleet = of;
    const struct sim_run *run = &fleet->world->runs[job];

    sim_world_at(fleet->world, run->up_ms + (int64_t)(5 * run->step_ms) + 1, PACE,
                 fleet->commands[job].number << 16 | (uint64_t)run->attempt);
    set_allocs(fleet, job, HD_ATTEMPT_STATE_RUNNING, &(struct hd_end_record){.rank = -1});
}

/* The first and the fifth step: the pace is known then. */
static void report_pace(struct sim_fleet *fleet, uint64_t number, int32_t attempt)
{
    const size_t job = fleet->watch.job_of[number];
    const struct sim_run *run = &fleet->world->runs[job];
    const int64_t wall_ms = (int64_t)WALL_MS * 1000 + run->up_ms;

    if (run->state != SIM_RUN_HOLDING || run->attempt != attempt || run->frozen_ms ||
        run->base_step + 5 >= fleet->world->trace->jobs[job].steps)
        return;
    report(fleet, job, HD_REPORT_STEP, run->base_step + 1, wall_ms + (int64_t)run->step_ms);
    report(fleet, job, HD_REPORT_STEP, run->base_step + 5, wall_ms + (int64_t)(5 * run->step_ms));
}

static void saved(void *of, size_t job)
{
    struct sim_fleet *fleet = of;
    const int64_t at_step = fleet->world->runs[job].saved_step;

    report(fleet, job, HD_REPORT_STEP, at_step, now_of(fleet).wall_ms);
    report(fleet, job, HD_REPORT_CHECKPOINT, at_step, now_of(fleet).wall_ms);
}

static void done(void *of, size_t job)
{
    struct sim_fleet *fleet = of;

    saved(of, job);
    sim_world_freeze(fleet->world, job);
    set_allocs(fleet, job, HD_ATTEMPT_STATE_ENDED,
               &(struct hd_end_record){.cause = HD_END_CAUSE_COMPLETED, .rank = -1});
}

static void stopped(void *of, size_t job)
{
    struct sim_fleet *fleet = of;

    if (fleet->world->runs[job].saved_step > fleet->world->runs[job].base_step)
        saved(of, job);
    set_allocs(fleet, job, HD_ATTEMPT_STATE_ENDED,
               &(struct hd_end_record){.cause = HD_END_CAUSE_USER, .rank = -1});
}

/* The core has a clock of its own for that. */
static void timed_out(void *of, size_t job)
{
}

static void node_failed(void *of, int32_t node)
{
    struct sim_fleet *fleet = of;
    struct sim_daemon *daemon = &fleet->daemons[node];

    fleet->silent++;
    daemon->silent = true;
    for (size_t i = 0; i < daemon->alloc_count; i++)
        if (daemon->allocs[i].state != HD_ATTEMPT_STATE_ENDED)
            sim_world_at(fleet->world, fleet->world->now_ms + SECONDARY_MS, SECONDARY,
                         daemon->allocs[i].job << 16 | (uint64_t)daemon->allocs[i].attempt);
    daemon->alloc_count = 0;
}

/* The other ranks of its attempts notice that a peer is gone. */
static void fail_secondary(struct sim_fleet *fleet, uint64_t number, int32_t attempt)
{
    const size_t job = fleet->watch.job_of[number];
    const struct sim_run *run = &fleet->world->runs[job];

    if (run->state == SIM_RUN_HOLDING && run->attempt == attempt)
        set_allocs(fleet, job, HD_ATTEMPT_STATE_ENDED,
                   &(struct hd_end_record){
                       .cause = HD_END_CAUSE_RANK_EXIT, .rank = -1, .secondary = true});
}

static void node_back(void *of, int32_t node)
{
    struct sim_fleet *fleet = of;
    const struct hd_core_event undrain = {
        .kind = HD_CORE_UNDRAIN, .drain = {.node = fleet->daemons[node].name, .by = "root"}};

    if (fleet->drained[node]) {
        fleet->drained[node] = false;
        must(fleet, step(fleet, &undrain), "undrain");
    } else {
        send_hello(fleet, node);
    }
}

static void node_drained(void *of, int32_t node, int64_t deadline_ms)
{
    struct sim_fleet *fleet = of;
    const struct hd_core_event event = {.kind = HD_CORE_DRAIN,
                                        .drain = {.node = fleet->daemons[node].name,
                                                  .reason = "maintenance",
                                                  .deadline_ms = deadline_ms,
                                                  .by = "root"}};

    fleet->drained[node] = true;
    must(fleet, step(fleet, &event), "drain");
}

static void beat(struct sim_fleet *fleet)
{
    const int64_t begun_ns = hd_clock_now_ns();

    for (int32_t n = 0; n < fleet->world->node_count; n++) {
        const struct hd_core_event alive = {
            .kind = HD_CORE_ALIVE,
            .node = {.uuid = fleet->daemons[n].uuid, .stream = fleet->daemons[n].stream}};

        if (!fleet->world->nodes[n].failed)
            must(fleet, step(fleet, &alive), "alive");
    }
    fleet->spent_ns += hd_clock_now_ns() - begun_ns;
}

static void tick(struct sim_fleet *fleet)
{
    const struct hd_core_event event = {.kind = HD_CORE_TICK};
    const bool beats = fleet->ticks++ % (SIM_BEAT_MS / SIM_TICK_MS) == 0;

    if (beats)
        beat(fleet);
    must(fleet, step(fleet, &event), "tick");
    if (beats)
        sim_watch_waits(&fleet->watch, now_of(fleet).wall_ms, fleet->silent > 0);
    sim_world_at(fleet->world, fleet->world->now_ms + SIM_TICK_MS, TICK, 0);
}

static void timer(void *of, int32_t what, uint64_t about)
{
    struct sim_fleet *fleet = of;
    const struct hd_core_event found = {
        .kind = HD_CORE_FOUND,
        .found = {.job = about >> 16, .attempt = (int32_t)(about & 0xffff), .problem = ""}};

    const struct sim_question *question = &fleet->questions[about]; /* with PRICED */

    if (what == PRICED) {
        const struct hd_core_event planned = {.kind = HD_CORE_PLANNED,
                                              .planned = {.key = question->key,
                                                          .fits = true,
                                                          .layout = question->layout,
                                                          .step_s = question->step_s,
                                                          .why = ""}};

        must(fleet, step(fleet, &planned), "planned");
    } else if (what == TICK)
        tick(fleet);
    else if (what == DESIRED)
        take_desired(fleet, (int32_t)about);
    else if (what == SECONDARY)
        fail_secondary(fleet, about >> 16, (int32_t)(about & 0xffff));
    else if (what == PACE)
        report_pace(fleet, about >> 16, (int32_t)(about & 0xffff));
    else if (what == FOUND)
        must(fleet, step(fleet, &found), "found");
}

const struct sim_policy sim_fleet_policy = {.submit = submit,
                                            .cancel = cancel,
                                            .up = up,
                                            .saved = saved,
                                            .done = done,
                                            .stopped = stopped,
                                            .timed_out = timed_out,
                                            .node_failed = node_failed,
                                            .node_back = node_back,
                                            .node_drained = node_drained,
                                            .timer = timer};

/* ---- making and freeing -----------------------------------------------------------------------*/

static void set_queues(struct sim_fleet *fleet)
{
    for (int q = 0; q < SIM_QUEUES; q++) {
        const enum sim_queue queue = (enum sim_queue)q;
        const struct hd_core_event event = {
            .kind = HD_CORE_SET_QUEUE,
            .queue = {
                .to = {.name = sim_queue_name(queue),
                       .devices_max = sim_queue_limit(queue, fleet->world->node_count, false),
                       .user_devices_max = sim_queue_limit(queue, fleet->world->node_count, true),
                       .weight = sim_queue_weight(queue)},
                .given = 1u << HD_QUEUE_devices_max | 1u << HD_QUEUE_user_devices_max |
                         1u << HD_QUEUE_weight,
                .by = "root"}};

        must(fleet, step(fleet, &event), "queue set");
    }
}

/* Makes the tree that a cluster file with the names of all nodes would describe. */
static void set_tree(struct hd_node_tree *tree)
{
    *tree = (struct hd_node_tree){
        .tier_count = SIM_TIERS, .group_count = 1, .groups = {{.names = "n[0-9999]", .first = 0}}};
    for (int t = 0; t < SIM_TIERS; t++) {
        (void)snprintf(tree->tiers[t].name, sizeof tree->tiers[t].name, "%s",
                       sim_tier_name((enum sim_tier)t));
        tree->tier_nodes[t] = sim_tier_nodes((enum sim_tier)t);
        tree->tiers[t].devices = tree->tier_nodes[t] * SIM_DEVICES;
    }
}

bool sim_fleet_init(struct sim_fleet *fleet, struct sim_world *world, bool checks_core)
{
    const size_t nodes = (size_t)world->node_count;
    struct hd_core_config config = hd_core_config_default;

    *fleet = (struct sim_fleet){.world = world, .checks_core = checks_core};
    set_tree(&fleet->tree);
    config.asks_layouts = true;
    config.tree = &fleet->tree;
    fleet->core = hd_core_new(&config);
    fleet->batch = hd_batch_new();
    fleet->daemons = calloc(nodes, sizeof *fleet->daemons);
    fleet->drained = calloc(nodes, sizeof *fleet->drained);
    fleet->commands = calloc(world->trace->job_count + 1, sizeof *fleet->commands);
    if (!sim_watch_init(&fleet->watch, world) || !fleet->core || !fleet->batch || !fleet->daemons ||
        !fleet->drained || !fleet->commands)
        return false;
    for (int32_t n = 0; n < world->node_count; n++) {
        struct sim_daemon *daemon = &fleet->daemons[n];

        (void)snprintf(daemon->uuid, sizeof daemon->uuid, "u%05d", n);
        (void)snprintf(daemon->name, sizeof daemon->name, "n%05d", n);
        (void)snprintf(daemon->address, sizeof daemon->address, "10.%d.%d.%d", n >> 16,
                       n >> 8 & 255, n & 255);
        send_hello(fleet, n);
    }
    set_queues(fleet);
    tick(fleet);
    return true;
}

void sim_fleet_done(struct sim_fleet *fleet)
{
    for (int32_t n = 0; fleet->daemons && n < fleet->world->node_count; n++)
        free(fleet->daemons[n].allocs);
    hd_core_free(fleet->core);
    hd_core_out_done(&fleet->out);
    if (fleet->batch)
        hd_batch_free(fleet->batch);
    sim_watch_done(&fleet->watch);
    free(fleet->daemons);
    free(fleet->drained);
    free(fleet->commands);
    for (size_t i = 0; i < fleet->question_count; i++)
        free(fleet->questions[i].key);
    free(fleet->questions);
}
