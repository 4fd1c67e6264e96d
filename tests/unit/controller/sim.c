#include "sim_internal.h"
#include "tests/program/test.h"

#include "link/link.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

/* ---- the shell around the core ----------------------------------------------------------------*/

struct sim_desired {
    uint64_t generation, stream;
    struct {
        uint64_t job;
        int32_t attempt, devices[SIM_DEVICES], device_count, rank;
        bool on[SIM_NODES];
        enum hd_wanted wanted;
        int64_t steps, base_step;
        char base[64], base_hash[24];
    } attempts[SIM_ATTEMPTS];
    size_t attempt_count;
    struct {
        struct hd_deletion names;
        char path[64], hash[24];
    } deletions[32];
    size_t deletion_count;
};

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

static void apply_desired(struct sim *sim, struct sim_node *node,
                          const struct sim_desired *desired);

static void close_stream(struct sim_node *node)
{
    node->stream = 0;
    free(node->in_flight);
    node->in_flight = NULL;
    for (int i = 0; i < SIM_ATTEMPTS; i++)
        node->attempts[i].sent = node->attempts[i].acked; /* resent on the next one */
}

static void acknowledge(struct sim *sim, const struct hd_position_record *position)
{
    for (int n = 0; n < sim->node_count; n++) {
        for (int i = 0; i < SIM_ATTEMPTS; i++) {
            struct sim_attempt *a = &sim->nodes[n].attempts[i];

            if (a->used && a->job == position->job && a->attempt == position->attempt &&
                position->seq > a->acked) {
                if (sim->nodes[n].cut) { /* a stream that loses something is broken */
                    close_stream(&sim->nodes[n]);
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
                close_stream(node);
            else
                apply_desired(sim, node, pending->desired[n]);
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
    if (hd_core_check(sim->core))
        fail_msg("after event %d at %lld ms: %s", (int)event->kind, (long long)sim->now.mono_ms,
                 hd_err_message());
    expect_quotas(sim);
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

/* ---- daemons and ranks ------------------------------------------------------------------------*/

static struct sim_attempt *find_sim_attempt(struct sim_node *node, uint64_t job, int32_t attempt)
{
    for (int i = 0; i < SIM_ATTEMPTS; i++) {
        struct sim_attempt *a = &node->attempts[i];

        if (a->used && a->job == job && a->attempt == attempt)
            return a;
    }
    return NULL;
}

static void end_attempt(struct sim_node *node, struct sim_attempt *a, enum hd_end_cause cause,
                        int32_t rank, const char *message)
{
    a->state = HD_ATTEMPT_STATE_ENDED;
    a->end = (struct hd_end_record){
        .cause = cause, .rank = rank, .node = node->name, .message = message};
    if (cause == HD_END_CAUSE_RANK_EXIT)
        a->end.signal = 9;
    if (a->doomed)
        a->used = false;
    node->changed = true;
}

/* No two attempts may have ranks on one real device. */
static void expect_free_device(const struct sim_node *node, int32_t device)
{
    for (int i = 0; i < SIM_ATTEMPTS; i++) {
        const struct sim_attempt *a = &node->attempts[i];

        for (int32_t d = 0; a->used && a->state != HD_ATTEMPT_STATE_ENDED && d < a->device_count;
             d++) {
            if (a->devices[d] == device)
                fail_msg("device %d of %s still runs attempt %d of job %llu", device, node->name,
                         a->attempt, (unsigned long long)a->job);
        }
    }
}

/* A daemon refuses a checkpoint whose manifest has another hash than the controller says. */
static void expect_hash(const struct sim *sim, const char *path, const char *hash)
{
    char found[24];

    sim_disk_hash(sim, path, found);
    if (*found) /* else it was made up by a test */
        assert_string_equal(hash, found);
}

static void start_attempt(struct sim *sim, struct sim_node *node, const struct sim_desired *desired,
                          size_t index)
{
    struct sim_attempt *a = NULL;

    for (int i = 0; i < SIM_ATTEMPTS && !a; i++)
        a = node->attempts[i].used ? NULL : &node->attempts[i];
    assert_non_null(a);
    for (int32_t d = 0; d < desired->attempts[index].device_count; d++)
        expect_free_device(node, desired->attempts[index].devices[d]);
    *a = (struct sim_attempt){.used = true,
                              .job = desired->attempts[index].job,
                              .attempt = desired->attempts[index].attempt,
                              .state = HD_ATTEMPT_STATE_STARTING,
                              .device_count = desired->attempts[index].device_count,
                              .rank = desired->attempts[index].rank,
                              .steps = desired->attempts[index].steps,
                              .step = desired->attempts[index].base_step,
                              .value = desired->attempts[index].job,
                              .wanted = HD_WANTED_RUNNING};
    memcpy(a->devices, desired->attempts[index].devices, sizeof a->devices);
    memcpy(a->on, desired->attempts[index].on, sizeof a->on);
    if (*desired->attempts[index].base &&
        !sim_disk_read(sim, desired->attempts[index].base, &a->value))
        a->no_base = true;
    if (a->no_base && !sim->loses_checkpoints)
        fail_msg("attempt %d of job %llu starts from %s, which is not there", a->attempt,
                 (unsigned long long)a->job, desired->attempts[index].base);
    a->no_base |= node->faults.misses && *desired->attempts[index].base;
    expect_hash(sim, desired->attempts[index].base, desired->attempts[index].base_hash);
    for (int i = 0; i < 2 && strstr(desired->attempts[index].base, "/attempt-1/"); i++)
        a->bad_base |= a->step == node->faults.damaged[i];
    sim->starts++;
    if (node->faults.no_start > 0) {
        node->faults.no_start--;
        end_attempt(node, a, HD_END_CAUSE_LAUNCH_FAILED, -1, "cannot start heddle-worker");
    }
}

static void apply_desired(struct sim *sim, struct sim_node *node, const struct sim_desired *desired)
{
    bool listed[SIM_ATTEMPTS] = {false};

    node->generation = desired->generation;
    node->changed = true;
    for (size_t i = 0; i < desired->attempt_count; i++) {
        struct sim_attempt *a =
            find_sim_attempt(node, desired->attempts[i].job, desired->attempts[i].attempt);

        if (!a && desired->attempts[i].wanted == HD_WANTED_RUNNING) {
            start_attempt(sim, node, desired, i);
            a = find_sim_attempt(node, desired->attempts[i].job, desired->attempts[i].attempt);
        }
        if (a && desired->attempts[i].wanted > a->wanted)
            a->wanted = desired->attempts[i].wanted;
        if (a)
            listed[a - node->attempts] = true;
    }
    for (int i = 0; i < SIM_ATTEMPTS; i++) {
        struct sim_attempt *a = &node->attempts[i];

        if (!a->used || listed[i])
            continue;
        a->doomed = true;
        a->wanted = HD_WANTED_STOPPED;
        if (a->state == HD_ATTEMPT_STATE_ENDED)
            a->used = false;
    }
    node->deleted_count = 0;
    for (size_t i = 0; i < desired->deletion_count; i++) {
        if (desired->deletions[i].names.attempt) {
            expect_hash(sim, desired->deletions[i].path, desired->deletions[i].hash);
            sim_disk_delete(sim, desired->deletions[i].path);
        } else {
            sim_disk_delete_job(sim, desired->deletions[i].names.job);
        }
        node->deleted[node->deleted_count] = desired->deletions[i].names;
        node->deleted[node->deleted_count++].left = node->leaves_files;
    }
}

static void report(const struct sim *sim, struct sim_attempt *a, enum hd_report_kind kind)
{
    assert_true(a->seq < SIM_SPOOL);
    a->spool[a->seq++] =
        (struct sim_report){.kind = kind, .step = a->step, .time_ms = sim->now.wall_ms};
}

static void checkpoint(struct sim *sim, struct sim_attempt *a)
{
    char path[64];
    uint64_t value;

    sim_path_of(path, a->job, a->attempt, a->step);
    if (sim_disk_read(sim, path, &value))
        return; /* this step was written already */
    sim_disk_write(sim, a);
    report(sim, a, HD_REPORT_CHECKPOINT);
}

/* ---- the shares of an attempt on several nodes ----*/

/* A share's peer, NULL: it has not started, or is gone with its machine. */
static const struct sim_attempt *peer_of(struct sim *sim, const struct sim_attempt *a, int n)
{
    return find_sim_attempt(&sim->nodes[n], a->job, a->attempt);
}

static bool peers_are_there(struct sim *sim, const struct sim_attempt *a)
{
    for (int n = 0; n < sim->node_count; n++) {
        const struct sim_attempt *peer = a->on[n] ? peer_of(sim, a, n) : NULL;

        if (a->on[n] &&
            (!peer || peer->state == HD_ATTEMPT_STATE_ENDED || sim->nodes[n].faults.never_meet))
            return false;
    }
    return true;
}

/* Whether a node's ranks have left without an end of their work; then how that looks from here. */
static bool a_peer_left(struct sim *sim, const struct sim_attempt *a, enum hd_end_cause *ret_cause)
{
    for (int n = 0; n < sim->node_count; n++) {
        const struct sim_attempt *peer = a->on[n] ? peer_of(sim, a, n) : a;

        if (!peer ||
            (peer->state == HD_ATTEMPT_STATE_ENDED && peer->end.cause != HD_END_CAUSE_COMPLETED)) {
            *ret_cause = peer && peer->end.cause == HD_END_CAUSE_HANG ? HD_END_CAUSE_HANG
                                                                      : HD_END_CAUSE_RANK_EXIT;
            return true;
        }
    }
    return false;
}

static bool peers_have_done(struct sim *sim, const struct sim_attempt *a, int64_t step)
{
    for (int n = 0; n < sim->node_count; n++) {
        const struct sim_attempt *peer = a->on[n] ? peer_of(sim, a, n) : a;

        if (!peer || peer->step < step)
            return false;
    }
    return true;
}

/* A request to stop travels with the step: one that has heard it stops all. */
static bool peers_stop(struct sim *sim, const struct sim_attempt *a)
{
    for (int n = 0; n < sim->node_count; n++) {
        const struct sim_attempt *peer = a->on[n] ? peer_of(sim, a, n) : NULL;

        if (peer && !sim->nodes[n].faults.ignore_stop &&
            (peer->wanted == HD_WANTED_STOPPING ||
             (peer->state == HD_ATTEMPT_STATE_ENDED && peer->end.cause == HD_END_CAUSE_USER &&
              peer->wanted != HD_WANTED_STOPPED)))
            return true;
    }
    return false;
}

static void train_one_step(struct sim *sim, struct sim_node *node, struct sim_attempt *a)
{
    struct sim_faults *faults = &node->faults;

    if (!peers_have_done(sim, a, a->step))
        return;
    if (faults->fail_count > 0 && a->step + 1 == faults->fail_at_step) {
        faults->fail_count--;
        if (faults->claims) {
            end_attempt(node, a, HD_END_CAUSE_COMPLETED, -1, "");
            return;
        }
        end_attempt(node, a,
                    faults->hangs       ? HD_END_CAUSE_HANG
                    : faults->full_disk ? HD_END_CAUSE_STORAGE
                                        : HD_END_CAUSE_RANK_EXIT,
                    a->rank + a->device_count - 1, faults->hangs ? "silent" : "killed");
        a->end.bad_input = faults->bad_input;
        return;
    }
    if (faults->diverges_at && a->step >= faults->diverges_at + 6) {
        end_attempt(node, a, HD_END_CAUSE_DIVERGED, a->rank, "the loss is not finite");
        return;
    }
    a->step++;
    a->value = sim_train(a->value, a->step);
    if (a->rank == 0)
        report(sim, a, HD_REPORT_STEP);
    if (a->rank == 0 && (a->step % SIM_EVERY == 0 || a->step == a->steps) &&
        !(a->step == a->steps && faults->keeps_last))
        checkpoint(sim, a);
    if (a->step == a->steps)
        end_attempt(node, a, HD_END_CAUSE_COMPLETED, -1, "");
}

/* One that is to die by the full disk is started all the same. */
static bool waits_to_start(const struct sim_node *node, const struct sim_attempt *a)
{
    return node->faults.full_disk && !node->faults.fail_at_step &&
           a->state == HD_ATTEMPT_STATE_STARTING;
}

static void attempt_second(struct sim *sim, struct sim_node *node, struct sim_attempt *a)
{
    enum hd_end_cause cause;

    if (a->state == HD_ATTEMPT_STATE_ENDED)
        return;
    if (waits_to_start(node, a)) {
        a->used = a->wanted == HD_WANTED_RUNNING; /* else it is forgotten: it has no process */
        node->changed |= !a->used;
        return;
    }
    if (a->wanted == HD_WANTED_STOPPED) {
        end_attempt(node, a, HD_END_CAUSE_USER, -1, "killed as told");
    } else if (peers_stop(sim, a)) {
        if (a->rank == 0 && a->saving_s++ < node->faults.save_s)
            return;
        if (a->rank == 0 && a->state == HD_ATTEMPT_STATE_RUNNING && a->step > 0)
            checkpoint(sim, a);
        end_attempt(node, a, HD_END_CAUSE_USER, -1, "stopped as told");
    } else if (a->state == HD_ATTEMPT_STATE_STARTING) {
        if (!peers_are_there(sim, a))
            return;
        a->state = HD_ATTEMPT_STATE_RUNNING;
        node->changed = true;
    } else if (a->bad_base || a->no_base) {
        end_attempt(node, a, HD_END_CAUSE_RANK_EXIT, a->rank,
                    a->no_base ? "there is no checkpoint" : "a shard is damaged");
        a->end.signal = 0;
        a->end.exit_code = a->no_base ? HD_LINK_EXIT_NO_BASE : HD_LINK_EXIT_BAD_BASE;
    } else if (a->step >= a->steps) {
        end_attempt(node, a, HD_END_CAUSE_COMPLETED, -1, ""); /* the base was the last step */
    } else if (!node->faults.unaware && a_peer_left(sim, a, &cause)) {
        end_attempt(node, a, cause, -1, "a peer left");
        a->end.secondary = true;
    } else {
        train_one_step(sim, node, a);
    }
}

static void send_observed(struct sim *sim, const struct sim_node *from, struct sim_node *node)
{
    struct hd_observed list[SIM_ATTEMPTS];
    struct hd_core_event event = {
        .kind = HD_CORE_OBSERVED,
        .observed = {.uuid = node->uuid,
                     .stream = node->stream,
                     .generation = from->generation,
                     .attempts = list,
                     .deleted = from->deleted,
                     .deleted_count = from->deleted_count,
                     .jobs_dir_visible = sim->shared_disk && !node->blind,
                     .leaves = node->leaves,
                     .refuses_attempts = node->leaves ? "takes no new jobs: it ends"
                                         : node->full ? "takes no new jobs: 3% are free"
                                                      : ""}};

    for (int i = 0; i < SIM_ATTEMPTS; i++) {
        const struct sim_attempt *a = &from->attempts[i];
        struct hd_observed *o = &list[event.observed.attempt_count];

        if (!a->used)
            continue;
        *o = (struct hd_observed){
            .job = a->job, .attempt = a->attempt, .state = a->state, .end = a->end};
        if (a->state == HD_ATTEMPT_STATE_ENDED && a->acked < a->seq) {
            o->state = HD_ATTEMPT_STATE_STOPPING; /* reports come first */
            o->end = (struct hd_end_record){0};
        }
        o->waits = waits_to_start(from, a);
        o->problem = o->waits ? "waits to start: no space" : "";
        event.observed.attempt_count++;
    }
    node->introduced = true;
    if (sim_event(sim, &event) == HD_CONFLICT)
        close_stream(node);
}

static void send_reports(struct sim *sim, struct sim_node *node, struct sim_attempt *a)
{
    while (a->used && node->stream && a->sent < a->seq) {
        const struct sim_report *r = &a->spool[a->sent];
        char path[64], hash[24];
        struct hd_core_event event = {.kind = HD_CORE_REPORT,
                                      .report = {.uuid = node->uuid,
                                                 .stream = node->stream,
                                                 .job = a->job,
                                                 .attempt = a->attempt,
                                                 .rank = a->rank,
                                                 .seq = ++a->sent,
                                                 .kind = r->kind}};

        sim_path_of(path, a->job, a->attempt, r->step);
        sim_disk_hash(sim, path, hash);
        if (r->kind == HD_REPORT_CHECKPOINT)
            event.report.checkpoint =
                (struct hd_checkpoint_record){.step = r->step, .path = path, .hash = hash};
        else
            event.report.step = (struct hd_step_record){
                .step = r->step,
                .time_ms = r->time_ms,
                .metrics.loss = node->faults.diverges_at && r->step >= node->faults.diverges_at
                                    ? (double)NAN
                                    : 1};
        switch (sim_event(sim, &event)) {
        case HD_CONFLICT:
            close_stream(node);
            break;
        case HD_NOT_FOUND:
        case HD_INVALID: /* nobody wants it any more: acknowledged, so that it is dropped */
            a->acked = a->sent;
            node->changed = true;
            break;
        default:
            break;
        }
    }
}

static void connect_node(struct sim *sim, struct sim_node *node)
{
    struct hd_device_record devices[SIM_DEVICES];
    struct hd_core_event event = {.kind = HD_CORE_HELLO,
                                  .hello = {.uuid = node->uuid,
                                            .obeyed_before = node->obeyed_before,
                                            .name = node->name,
                                            .boot_id = node->boot_id,
                                            .build = "sim",
                                            .data_address = node->data_address,
                                            .compute = node->compute,
                                            .compute_cuda = node->compute_cuda,
                                            .probes = true,
                                            .stream = ++sim->next_stream,
                                            .devices = devices,
                                            .device_count = SIM_DEVICES}};

    for (int32_t i = 0; i < SIM_DEVICES; i++) {
        devices[i] = (struct hd_device_record){
            .index = i, .kind = HD_DEVICE_KIND_CPU, .name = "sim", .threads = 1};
        if (i < node->gpus)
            devices[i] = (struct hd_device_record){.index = i,
                                                   .kind = HD_DEVICE_KIND_CUDA,
                                                   .name = "sim",
                                                   .uuid = "GPU-0",
                                                   .precisions = 1u << HD_PRECISION_FP32 |
                                                                 1u << HD_PRECISION_BF16};
        devices[i].memory_bytes = node->memory_bytes;
        devices[i].problem = node->broken[i] ? "it is lost" : "";
    }
    if (sim_event(sim, &event))
        return; /* tries again */
    node->stream = sim->next_stream;
    node->introduced = false;
    node->generation = 0;
    node->deleted_count = 0;
    node->changed = true;
}

static void talk(struct sim *sim, struct sim_node *node)
{
    struct hd_core_event alive = {.kind = HD_CORE_ALIVE};

    if (!node->stream)
        connect_node(sim, node);
    if (!node->stream)
        return;
    alive.node.uuid = node->uuid;
    alive.node.stream = node->stream;
    if (sim_event(sim, &alive) == HD_CONFLICT) {
        close_stream(node);
        return;
    }
    for (int i = 0; i < SIM_ATTEMPTS && node->introduced; i++)
        send_reports(sim, node, &node->attempts[i]);
    if (node->in_flight) {
        if (--node->in_flight_s > 0 || !node->stream)
            return;
        send_observed(sim, node->in_flight, node);
        free(node->in_flight);
        node->in_flight = NULL;
    } else if (node->changed && node->stream) {
        node->changed = false;
        node->in_flight = malloc(sizeof *node);
        assert_non_null(node->in_flight);
        *node->in_flight = *node;
        node->in_flight_s = sim->max_delay_s ? (int)sim_draw(sim, (uint64_t)sim->max_delay_s) : 0;
        if (node->in_flight_s == 0) {
            struct sim_node *now = node->in_flight;

            node->in_flight = NULL;
            send_observed(sim, now, node);
            free(now);
        }
    }
}

void sim_second(struct sim *sim)
{
    const struct hd_core_event tick = {.kind = HD_CORE_TICK};

    sim->now.mono_ms += 1000;
    sim->now.wall_ms += 1000;
    for (int n = 0; n < sim->node_count; n++) {
        for (int i = 0; i < SIM_ATTEMPTS; i++) {
            if (sim->nodes[n].attempts[i].used)
                attempt_second(sim, &sim->nodes[n], &sim->nodes[n].attempts[i]);
        }
        if (!sim->nodes[n].cut)
            talk(sim, &sim->nodes[n]);
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
    close_stream(node);
}

void sim_reboot(struct sim *sim, struct sim_node *node)
{
    close_stream(node);
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
        close_stream(&sim->nodes[n]);
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
                                 .wish = {.sizes = {.precision = "auto",
                                                    .zero = -1,
                                                    .schedule = "auto",
                                                    .recompute = "auto",
                                                    .offload = "none",
                                                    .stages = "auto",
                                                    .sequence = -1,
                                                    .cp_exchange = "auto",
                                                    .device = "auto"},
                                          .global_batch = 8,
                                          .heads = 8,
                                          .kv_heads = 4,
                                          .ffn_hidden = 64,
                                          .context = 64},
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

enum hd_status sim_set_queue(struct sim *sim, const char *name, int devices_max,
                             int user_devices_max, int weight)
{
    const struct hd_core_event event = {.kind = HD_CORE_SET_QUEUE,
                                        .queue = {.name = name,
                                                  .devices_max = devices_max,
                                                  .user_devices_max = user_devices_max,
                                                  .weight = weight,
                                                  .by = "root"}};

    return sim_event(sim, &event);
}

enum hd_status sim_close_queue(struct sim *sim, const char *name, bool closed)
{
    const struct hd_core_event event = {.kind = HD_CORE_SET_QUEUE,
                                        .queue = {.name = name,
                                                  .devices_max = -1,
                                                  .user_devices_max = -1,
                                                  .weight = -1,
                                                  .closes = closed,
                                                  .opens = !closed,
                                                  .by = "root"}};

    return sim_event(sim, &event);
}

enum hd_status sim_remove_queue(struct sim *sim, const char *name)
{
    const struct hd_core_event event = {.kind = HD_CORE_REMOVE_QUEUE,
                                        .queue = {.name = name, .by = "root"}};

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
