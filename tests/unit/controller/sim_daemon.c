/* sim: daemons that apply desired sets, and ranks that train, fail and write checkpoints. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "link/link.h"
#include "sim_internal.h"
#include "tests/program/test.h"

void sim_close_stream(struct sim_node *node)
{
    node->stream = 0;
    free(node->in_flight);
    node->in_flight = NULL;
    for (int i = 0; i < SIM_ATTEMPTS; i++)
        node->attempts[i].sent = node->attempts[i].acked; /* resent on the next one */
}

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

void sim_apply_desired(struct sim *sim, struct sim_node *node, const struct sim_desired *desired)
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
            end_attempt(node, a, HD_END_CAUSE_COMPLETED, -1, faults->early ? "ended early" : "");
            a->end.exit_code = faults->early ? HD_END_EXIT_EARLY : 0;
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

void sim_attempt_second(struct sim *sim, struct sim_node *node, struct sim_attempt *a)
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
        sim_close_stream(node);
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
            sim_close_stream(node);
            break;
        case HD_NOT_FOUND:
        case HD_INVALID: /* the controller has no such attempt any more; acknowledged, so that
                          * the daemon drops the report */
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
    struct hd_core_event event = {
        .kind = HD_CORE_HELLO,
        .hello = {.uuid = node->uuid,
                  .obeyed_before = node->obeyed_before,
                  .name = node->name,
                  .boot_id = node->boot_id,
                  .build = "sim",
                  .facts.data_address = node->data_address,
                  .facts.compute[HD_DEVICE_KIND_CPU] = node->compute,
                  .facts.compute[HD_DEVICE_KIND_CUDA] = node->compute_cuda,
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

void sim_talk(struct sim *sim, struct sim_node *node)
{
    struct hd_core_event alive = {.kind = HD_CORE_ALIVE};

    if (!node->stream)
        connect_node(sim, node);
    if (!node->stream)
        return;
    alive.node.uuid = node->uuid;
    alive.node.stream = node->stream;
    if (sim_event(sim, &alive) == HD_CONFLICT) {
        sim_close_stream(node);
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
