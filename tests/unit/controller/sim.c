/* sim: the shell around the core, the controller that comes and goes, and what people do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "sim_internal.h"
#include "tests/program/test.h"
#include "tests/sim/wish.h"

/* ---- the shell around the core ----------------------------------------------------------------*/

static struct sim_node *find_sim_node(struct sim *sim, const char *uuid)
{
    for (int i = 0; i < sim->node_count; i++) {
        if (strcmp(sim->nodes[i].uuid, uuid) == 0)
            return &sim->nodes[i];
    }
    return NULL;
}

static struct sim_desired *copy_desired(struct sim *sim, const struct sim_node *node)
{
    struct sim_desired *copy = calloc(1, sizeof *copy);
    struct hd_desired desired;
    struct hd_arena arena;

    assert_non_null(copy);
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_core_desired(sim->core, node->uuid, &arena, &desired), HD_OK);
    copy->generation = desired.generation;
    copy->stream = node->stream;
    assert_true(desired.attempt_count <= SIM_ATTEMPTS);
    for (size_t i = 0; i < desired.attempt_count; i++) {
        const struct hd_attempt_record *a = desired.attempts[i].attempt;

        copy->attempts[i].job = a->job;
        copy->attempts[i].attempt = a->attempt;
        copy->attempts[i].wanted = desired.attempts[i].wanted;
        copy->attempts[i].steps = desired.attempts[i].job->steps;
        copy->attempts[i].base_step = a->base_step;
        (void)snprintf(copy->attempts[i].base, 64, "%s", a->base_path ? a->base_path : "");
        (void)snprintf(copy->attempts[i].base_hash, 24, "%s", a->base_hash ? a->base_hash : "");
        for (int32_t r = 0; r < a->plan.rank_count; r++) {
            const struct hd_rank_location *place = &a->plan.ranks[r];

            copy->attempts[i].on[find_sim_node(sim, place->node_uuid) - sim->nodes] = true;
            if (strcmp(place->node_uuid, node->uuid) != 0)
                continue;
            if (!copy->attempts[i].device_count)
                copy->attempts[i].rank = r;
            assert_int_equal(r, copy->attempts[i].rank + copy->attempts[i].device_count);
            copy->attempts[i].devices[copy->attempts[i].device_count++] = place->device;
        }
    }
    copy->attempt_count = desired.attempt_count;
    for (size_t i = 0; i < desired.deletion_count && i < 32; i++) {
        copy->deletions[i].names = desired.deletions[i];
        copy->deletion_count++;
        if (!desired.deletions[i].attempt)
            continue; /* a job's folder */
        (void)snprintf(copy->deletions[i].path, 64, "%s", desired.deletions[i].path);
        (void)snprintf(copy->deletions[i].hash, 24, "%s", desired.deletions[i].hash);
    }
    hd_arena_done(&arena);
    return copy;
}

static void acknowledge(struct sim *sim, const struct hd_position_record *position)
{
    for (int n = 0; n < sim->node_count; n++) {
        for (int i = 0; i < SIM_ATTEMPTS; i++) {
            struct sim_attempt *a = &sim->nodes[n].attempts[i];

            if (a->used && a->job == position->job && a->attempt == position->attempt &&
                position->seq > a->acked) {
                if (sim->nodes[n].cut) { /* a stream that loses something is broken */
                    sim_close_stream(&sim->nodes[n]);
                    continue;
                }
                a->acked = position->seq;
                sim->nodes[n].changed |= a->state == HD_ATTEMPT_STATE_ENDED;
            }
        }
    }
}

static void free_pending(struct sim_pending *pending)
{
    for (int n = 0; n < SIM_NODES; n++)
        free(pending->desired[n]);
    hd_batch_free(pending->batch);
    free(pending);
}

struct hd_core_event sim_report(const struct sim *sim, uint64_t job, int32_t rank,
                                enum hd_report_kind kind)
{
    return (struct hd_core_event){.kind = HD_CORE_REPORT,
                                  .report = {.uuid = "uuid-1",
                                             .stream = sim->nodes[0].stream,
                                             .job = job,
                                             .attempt = 1,
                                             .rank = rank,
                                             .seq = 1,
                                             .kind = kind}};
}

struct hd_core_event sim_hello(const struct hd_device_record *device)
{
    return (struct hd_core_event){.kind = HD_CORE_HELLO,
                                  .hello = {.uuid = "uuid-1",
                                            .name = "n1",
                                            .boot_id = "boot-1",
                                            .stream = 1000,
                                            .devices = device,
                                            .device_count = 1}};
}

void sim_commit(struct sim *sim)
{
    while (sim->pending) {
        struct sim_pending *pending = sim->pending;

        sim->pending = pending->next;
        if (!sim->pending)
            sim->pending_end = &sim->pending;
        for (const struct hd_batch_op *op = pending->batch->first; op; op = op->next)
            sim_db_put(sim->db, op);
        if (pending->report.job)
            acknowledge(sim, &pending->report);
        if (pending->submitted_job)
            sim->acknowledged[pending->submitted_job] = true;
        for (int n = 0; n < sim->node_count; n++) {
            struct sim_node *node = &sim->nodes[n];

            if (!pending->desired[n] || node->stream != pending->desired[n]->stream)
                continue;
            if (node->cut)
                sim_close_stream(node);
            else
                sim_apply_desired(sim, node, pending->desired[n]);
        }
        if (sim->on_durable) {
            sim->on_durable(sim->on_durable_user, pending->batch);
            pending->batch = NULL;
        }
        free_pending(pending);
    }
}

static void answer_search(struct sim *sim, const struct hd_core_search *search)
{
    static struct hd_checkpoint_record found[HD_CTL_CHECKPOINTS_MAX];
    struct hd_core_event event = {
        .kind = HD_CORE_FOUND,
        .found = {
            .job = search->job, .attempt = search->attempt, .checkpoints = found, .problem = ""}};

    event.found.whole = search->whole;
    if (sim->unlistable)
        event.found.problem = sim->unlistable;
    else if (sim->shared_disk)
        event.found.checkpoint_count = sim_disk_list(sim, search, found);
    assert_int_equal(sim_event(sim, &event), HD_OK);
}

static void take_question(struct sim *sim, const struct hd_core_asked *asked)
{
    struct sim_question *q = &sim->questions[sim->question_count++];

    assert_true(sim->question_count <= SIM_QUESTIONS);
    *q = (struct sim_question){.asked = *asked, .due_mono_ms = sim->now.mono_ms};
    if (sim->plan_delay_s)
        q->due_mono_ms += 1000 * (int64_t)sim_draw(sim, (uint64_t)sim->plan_delay_s + 1);
    (void)snprintf(q->key, sizeof q->key, "%s", asked->key);
    (void)snprintf(q->device_name, sizeof q->device_name, "%s", asked->device_name);
    (void)snprintf(q->traits, sizeof q->traits, "%s", asked->traits);
}

/* Answers the questions that are due, in their order. */
static void answer_questions(struct sim *sim)
{
    for (int i = 0; i < sim->question_count;) {
        struct sim_question q = sim->questions[i];
        struct hd_core_event event = {.kind = HD_CORE_PLANNED, .planned = {.key = q.key}};

        if (q.due_mono_ms > sim->now.mono_ms) {
            i++;
            continue;
        }
        q.asked.key = q.key;
        q.asked.device_name = q.device_name;
        q.asked.traits = q.traits;
        q.asked.spec = NULL;
        memmove(&sim->questions[i], &sim->questions[i + 1],
                (size_t)(--sim->question_count - i) * sizeof q);
        sim->plan(&q.asked, &event.planned);
        assert_int_equal(sim_event(sim, &event), HD_OK);
        i = 0; /* the event may have asked others */
    }
}

void sim_ask_layouts(struct sim *sim,
                     void (*plan)(const struct hd_core_asked *asked, struct hd_core_answer *answer),
                     int delay_s)
{
    sim->plan = plan;
    sim->plan_delay_s = delay_s;
    sim->config.asks_layouts = true;
    hd_core_free(sim->core);
    sim->core = hd_core_new(&sim->config);
    assert_non_null(sim->core);
}

/* Limits are set here before jobs are submitted: none is ever passed. */
static void expect_quotas(const struct sim *sim)
{
    for (size_t i = 0; i < hd_core_queue_count(sim->core); i++) {
        struct hd_queue_view view;

        hd_core_queue_at(sim->core, i, &view);
        if (view.record->devices_max)
            assert_in_range(view.devices_held, 0, view.record->devices_max);
    }
}

/* Returns whether a job is of SIM_ARRAY, by its spec as it was submitted, and has an attempt. */
static bool runs_in_array(const struct hd_job_record *record)
{
    struct hd_job_needs needs;

    if (!record || record->state == HD_JOB_STATE_QUEUED)
        return false;
    memcpy(&needs, record->spec, sizeof needs); /* the simulation stores `needs` as the spec */
    return needs.array && strcmp(needs.array, SIM_ARRAY) == 0;
}

/* Checks that no more jobs of each owner's SIM_ARRAY have an attempt than may. */
static void expect_arrays(const struct sim *sim)
{
    for (uint64_t job = 1; job < SIM_JOBS; job++) {
        const struct hd_job_record *record = hd_core_job(sim->core, job);
        int running = 1;

        if (!runs_in_array(record))
            continue;
        for (uint64_t i = job + 1; i < SIM_JOBS; i++) {
            const struct hd_job_record *other = hd_core_job(sim->core, i);

            running += runs_in_array(other) && strcmp(other->owner, record->owner) == 0;
        }
        assert_in_range(running, 1, SIM_AT_ONCE);
    }
}

/* Returns whether the invariants are checked after this event: after each that changed a record, and
 * after every fourth of the ticks and signs of life that changed none, which most events are. */
static bool is_checked(struct sim *sim, const struct hd_core_event *event, size_t changes)
{
    if (changes || (event->kind != HD_CORE_TICK && event->kind != HD_CORE_ALIVE))
        return true;
    return ++sim->idle_events % 4 == 0;
}

enum hd_status sim_event(struct sim *sim, const struct hd_core_event *event)
{
    struct sim_pending *pending = calloc(1, sizeof *pending);
    struct hd_core_search searches[SIM_JOBS];
    size_t search_count;
    uint64_t job;
    bool repeated;
    enum hd_status st;

    assert_non_null(pending);
    pending->batch = sim->out.batch = hd_batch_new();
    assert_non_null(pending->batch);
    hd_core_out_clear(&sim->out);
    st = hd_core_step(sim->core, event, sim->now, &sim->out);
    assert_int_not_equal(st, HD_NO_MEMORY);
    if (is_checked(sim, event, pending->batch->count) && hd_core_check(sim->core))
        fail_msg("after event %d at %lld ms: %s", (int)event->kind, (long long)sim->now.mono_ms,
                 hd_err_message());
    expect_quotas(sim);
    expect_arrays(sim);
    if (st) {
        assert_int_equal(pending->batch->count, 0); /* a refused event changes nothing */
        free_pending(pending);
        return st;
    }
    if (event->kind == HD_CORE_SUBMIT)
        pending->submitted_job = sim->out.job;
    for (size_t i = 0; i < sim->out.node_count; i++) {
        struct sim_node *node = find_sim_node(sim, sim->out.nodes[i]);

        if (node && node->stream)
            pending->desired[node - sim->nodes] = copy_desired(sim, node);
    }
    if (event->kind == HD_CORE_REPORT)
        pending->report = (struct hd_position_record){.job = event->report.job,
                                                      .attempt = event->report.attempt,
                                                      .rank = event->report.rank,
                                                      .seq = event->report.seq};
    for (size_t i = 0; i < sim->out.asked_count; i++)
        take_question(sim, &sim->out.asked[i]);
    *sim->pending_end = pending;
    sim->pending_end = &pending->next;
    job = sim->out.job;
    repeated = sim->out.repeated;
    search_count = sim->out.search_count;
    assert_true(search_count <= SIM_JOBS);
    if (search_count)
        memcpy(searches, sim->out.searches, search_count * sizeof searches[0]);
    if (!sim->slow_store)
        sim_commit(sim);
    for (size_t i = 0; i < search_count; i++)
        answer_search(sim, &searches[i]);
    if (!sim->plan_delay_s)
        answer_questions(sim);
    sim->out.job = job; /* of this event, not of the answers to it */
    sim->out.repeated = repeated;
    return HD_OK;
}

void sim_second(struct sim *sim)
{
    const struct hd_core_event tick = {.kind = HD_CORE_TICK};

    sim->now.mono_ms += 1000;
    sim->now.wall_ms += 1000;
    for (int n = 0; n < sim->node_count; n++) {
        for (int i = 0; i < SIM_ATTEMPTS; i++) {
            if (sim->nodes[n].attempts[i].used)
                sim_attempt_second(sim, &sim->nodes[n], &sim->nodes[n].attempts[i]);
        }
        if (!sim->nodes[n].cut)
            sim_talk(sim, &sim->nodes[n]);
    }
    assert_int_equal(sim_event(sim, &tick), HD_OK);
    answer_questions(sim);
}

void sim_run(struct sim *sim, int seconds)
{
    while (seconds-- > 0)
        sim_second(sim);
}

void sim_run_until_ended(struct sim *sim, uint64_t job, int limit_s)
{
    while (sim_job(sim, job)->state <= HD_JOB_STATE_STOPPING) {
        if (--limit_s < 0) {
            struct hd_text reason = {0};

            hd_core_explain(sim->core, job, sim->now, &reason);
            fail_msg("job %llu is still %s: %s", (unsigned long long)job,
                     hd_job_state_name((int)sim_job(sim, job)->state),
                     reason.len_bytes ? reason.data : "");
        }
        sim_second(sim);
    }
}

void sim_daemon_restart(struct sim *sim, struct sim_node *node)
{
    const struct hd_core_event gone = {.kind = HD_CORE_DISCONNECTED,
                                       .node = {.uuid = node->uuid, .stream = node->stream}};

    if (!node->cut && node->stream)
        (void)sim_event(sim, &gone);
    sim_close_stream(node);
}

void sim_reboot(struct sim *sim, struct sim_node *node)
{
    sim_close_stream(node);
    memset(node->attempts, 0, sizeof node->attempts);
    (void)snprintf(node->boot_id, sizeof node->boot_id, "boot-%llu",
                   (unsigned long long)++sim->next_stream);
}

/* ---- the controller ---------------------------------------------------------------------------*/

#define A_DAY_MS ((int64_t)86400 * 1000)

void sim_controller_crash(struct sim *sim)
{
    while (sim->pending) {
        struct sim_pending *lost = sim->pending;

        sim->pending = lost->next;
        free_pending(lost);
    }
    sim->pending_end = &sim->pending;
    hd_core_free(sim->core);
    sim->core = hd_core_new(&sim->config);
    assert_non_null(sim->core);
    for (int n = 0; n < sim->node_count; n++)
        sim_close_stream(&sim->nodes[n]);
    /* the monotonic clock is that of the machine: it has gone on, or begun anew */
    sim->now.mono_ms = sim->now.mono_ms < A_DAY_MS ? sim->now.mono_ms + A_DAY_MS : 1000;
    sim_restore(sim);
    if (hd_core_check(sim->core))
        fail_msg("after a start of the controller: %s", hd_err_message());
}

void sim_init(struct sim *sim, uint64_t seed)
{
    *sim = (struct sim){.config = hd_core_config_default,
                        .node_count = 2,
                        .now = {.mono_ms = 1000, .wall_ms = 1700000000000},
                        .shared_disk = true,
                        .key = hd_random_key(seed, 1)};
    sim->pending_end = &sim->pending;
    sim->core = hd_core_new(&sim->config);
    assert_non_null(sim->core);
    sim_durable_init(sim);
    for (int n = 0; n < SIM_NODES; n++) {
        (void)snprintf(sim->nodes[n].uuid, 16, "uuid-%d", n + 1);
        (void)snprintf(sim->nodes[n].name, 8, "n%d", n + 1);
        (void)snprintf(sim->nodes[n].boot_id, 16, "boot-%d", n + 1);
        (void)snprintf(sim->nodes[n].data_address, 16, "10.0.0.%d", n + 1);
        (void)snprintf(sim->nodes[n].compute_cuda, 32, "GPU, NCCL 2.28.9");
    }
}

void sim_done(struct sim *sim)
{
    while (sim->pending) {
        struct sim_pending *lost = sim->pending;

        sim->pending = lost->next;
        free_pending(lost);
    }
    for (int n = 0; n < sim->node_count; n++)
        free(sim->nodes[n].in_flight);
    hd_core_free(sim->core);
    hd_core_out_done(&sim->out);
    sim_durable_done(sim);
}

struct sim *sim_new(uint64_t seed, int node_count)
{
    struct sim *sim = calloc(1, sizeof *sim);

    assert_non_null(sim);
    sim_init(sim, seed);
    sim->node_count = node_count;
    return sim;
}

void sim_free(struct sim *sim)
{
    sim_done(sim);
    free(sim);
}

struct sim *sim_joined(int node_count)
{
    struct sim *sim = sim_new(1, node_count);

    sim_run(sim, 2);
    return sim;
}

uint64_t sim_draw(struct sim *sim, uint64_t below)
{
    return hd_random_u64(sim->key, sim->draws++) % below;
}

/* ---- people -----------------------------------------------------------------------------------*/

struct hd_job_needs sim_needs(int devices, int steps)
{
    return (struct hd_job_needs){.name = "job",
                                 .device = HD_DEVICE_KIND_CPU,
                                 .devices_min = devices,
                                 .devices_max = devices,
                                 .steps = steps,
                                 .wish = SIM_OPEN_WISH(8),
                                 .keep = 2,
                                 .restart_max = 3};
}

enum hd_status sim_submit_as(struct sim *sim, const struct hd_job_needs *needs,
                             const char *request_id, uint64_t *ret_job, bool *ret_repeated)
{
    const struct hd_core_event event = {.kind = HD_CORE_SUBMIT,
                                        .submit = {.request_id = request_id,
                                                   .owner = sim->owner ? sim->owner : "ann",
                                                   .needs = *needs,
                                                   .spec = needs,
                                                   .spec_bytes = sizeof *needs}};
    enum hd_status st = sim_event(sim, &event);

    if (!st) {
        *ret_job = sim->out.job;
        *ret_repeated = sim->out.repeated;
    }
    return st;
}

enum hd_status sim_submit(struct sim *sim, const struct hd_job_needs *needs, uint64_t *ret_job)
{
    char request_id[32];
    bool repeated;

    (void)snprintf(request_id, sizeof request_id, "request-%llu",
                   (unsigned long long)++sim->next_request);
    return sim_submit_as(sim, needs, request_id, ret_job, &repeated);
}

uint64_t sim_submitted(struct sim *sim, const struct hd_job_needs *needs)
{
    uint64_t job = 0;

    assert_int_equal(sim_submit(sim, needs, &job), HD_OK);
    return job;
}

enum hd_status sim_cancel(struct sim *sim, uint64_t job, bool now)
{
    const struct hd_core_event event = {.kind = HD_CORE_CANCEL,
                                        .cancel = {.job = job, .now = now, .by = "ann"}};

    return sim_event(sim, &event);
}

static enum hd_status ask_again(struct sim *sim, enum hd_core_event_kind kind, uint64_t job)
{
    const struct hd_core_event event = {.kind = kind, .again = {.job = job, .by = "ann"}};

    return sim_event(sim, &event);
}

enum hd_status sim_hold(struct sim *sim, uint64_t job, bool hold)
{
    return ask_again(sim, hold ? HD_CORE_HOLD : HD_CORE_RELEASE, job);
}

enum hd_status sim_requeue(struct sim *sim, uint64_t job)
{
    return ask_again(sim, HD_CORE_REQUEUE, job);
}

/* The bit of a setting; of -1, which leaves it unchanged: 0. */
#define GIVEN(member) ((unsigned)((member) != -1) << HD_QUEUE_##member)

enum hd_status sim_set_queue(struct sim *sim, const char *name, int devices_max,
                             int user_devices_max, int weight)
{
    const struct hd_core_event event = {
        .kind = HD_CORE_SET_QUEUE,
        .queue = {.to = {.name = name,
                         .devices_max = devices_max,
                         .user_devices_max = user_devices_max,
                         .weight = weight},
                  .given = GIVEN(devices_max) | GIVEN(user_devices_max) | GIVEN(weight),
                  .by = "root"}};

    return sim_event(sim, &event);
}

enum hd_status sim_close_queue(struct sim *sim, const char *name, bool closed)
{
    const struct hd_core_event event = {.kind = HD_CORE_SET_QUEUE,
                                        .queue = {.to = {.name = name, .closed = closed},
                                                  .given = 1u << HD_QUEUE_closed,
                                                  .by = "root"}};

    return sim_event(sim, &event);
}

enum hd_status sim_remove_queue(struct sim *sim, const char *name)
{
    const struct hd_core_event event = {.kind = HD_CORE_REMOVE_QUEUE,
                                        .queue = {.to = {.name = name}, .by = "root"}};

    return sim_event(sim, &event);
}

void sim_assert_reason(const struct sim *sim, uint64_t job, const char *expected)
{
    struct hd_text text = {0};

    hd_core_explain(sim->core, job, sim->now, &text);
    assert_non_null(text.data);
    assert_string_equal(text.data, expected);
    hd_text_free(&text);
}
