#include "services_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "disk_vfs.h"
#include "spec/spec.h"
#include "tests/program/test.h"

static void on_fatal(void *user, const struct hd_error *error)
{
    ((struct bench *)user)->fatal = *error;
}

static void on_beat(uv_timer_t *timer)
{
}

enum hd_status start_controller(struct bench *b)
{
    char state[96], jobs[112];
    const struct controller_options options = {.state_dir = state,
                                               .jobs_dir = jobs,
                                               .listen = b->address,
                                               .build = "test",
                                               .vfs = b->vfs,
                                               .self_check_ms = b->self_check_ms,
                                               .core_config = b->core_config,
                                               .tokens = b->tokens,
                                               .cluster_file = b->cluster_file,
                                               .policy_file = b->policy_file,
                                               .certificate_ms = b->certificate_ms,
                                               .reserve_bytes = b->reserve_bytes,
                                               .jobs_dir_check_ms = b->jobs_dir_check_ms,
                                               .on_fatal = on_fatal,
                                               .user = b};

    (void)snprintf(state, sizeof state, "%s/state", b->dir);
    (void)snprintf(jobs, sizeof jobs, "%s/x/../jobs", state); /* as people write it */
    return controller_new(&b->loop, &options, &b->controller);
}

static void on_stopped(void *user)
{
    ((struct bench *)user)->stopped = true;
}

void stop_controller(struct bench *b)
{
    b->stopped = false;
    controller_stop(b->controller, on_stopped, b);
    while (!b->stopped)
        (void)uv_run(&b->loop, UV_RUN_ONCE);
    b->controller = NULL;
}

void start(struct bench *b, const char *vfs)
{
    start_on(b, vfs, 0);
}

void start_on(struct bench *b, const char *vfs, int64_t reserve_bytes)
{
    *b = (struct bench){.vfs = vfs, .reserve_bytes = reserve_bytes};
    hd_arena_init(&b->arena, 0);
    disk_register();
    disk_wipe();
    assert_int_equal(uv_loop_init(&b->loop), 0);
    assert_int_equal(uv_timer_init(&b->loop, &b->beat), 0);
    assert_int_equal(uv_timer_start(&b->beat, on_beat, 20, 20), 0);
    temporary_dir(b->dir, "heddle-ctl");
    (void)snprintf(b->address, sizeof b->address, "unix:%s/sock/c", b->dir);
    (void)snprintf(b->train, sizeof b->train, "%s/train.txt", b->dir);
    assert_int_equal(
        hd_file_write_atomic(b->train, "some text for training and, its other half, for validation",
                             58, 0644),
        HD_OK);
    if (start_controller(b))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_rpc_new(&b->loop, &b->rpc), HD_OK);
    const struct hd_rpc_client_options options = {.reconnect_max_ms = 300};

    assert_int_equal(hd_rpc_client_new(b->rpc, b->address, &options, &b->client), HD_OK);
}

static void on_closed(void *user)
{
    ((struct bench *)user)->closed = true;
}

void finish(struct bench *b)
{
    hd_rpc_close(b->rpc, on_closed, b);
    while (!b->closed)
        (void)uv_run(&b->loop, UV_RUN_ONCE);
    if (b->controller)
        stop_controller(b);
    uv_close((uv_handle_t *)&b->beat, NULL);
    (void)uv_run(&b->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&b->loop), 0);
    assert_int_equal(hd_file_remove_tree(b->dir), HD_OK);
    hd_arena_done(&b->arena);
    disk_wipe();
}

enum hd_status call(struct bench *b, const char *method, const ProtobufCMessageDescriptor *response,
                    const ProtobufCMessage *request, void *ret_response)
{
    char path[96];
    ProtobufCMessage *message = NULL;
    enum hd_status st;

    (void)snprintf(path, sizeof path, "/heddle.v1.Control/%s", method);
    st = hd_rpc_call_wait(b->client, path, response, WAIT_MS, request, &message);
    if (!st)
        memcpy(ret_response, &message, sizeof message);
    return st;
}

/* ---- jobs -------------------------------------------------------------------------------------*/

Heddle__V1__JobSpec *new_spec(struct bench *b, int devices, const char *more)
{
    char text[2048];
    const struct hd_spec_source source = {
        .name = "job.yaml", .folder = b->dir, .bytes = text, .size_bytes = 0};
    struct hd_spec_source filled = source;
    struct hd_job job;

    (void)snprintf(text, sizeof text,
                   "name: tiny\n"
                   "model: {family: llama, layers: 1, hidden: 16, heads: 2, kv_heads: 2,"
                   " ffn_hidden: 16, vocab: 256, context: 8}\n"
                   "data: {train: [%s], val_split: 0.5, tokenizer: bytes}\n"
                   "train: {steps: 10, global_batch: %d, lr: 1e-3, precision: fp32}\n"
                   "resources: {device_type: cpu, devices: %d}\n"
                   "%s",
                   b->train, devices > 8 ? devices : 8, devices, more);
    filled.size_bytes = strlen(text);
    if (hd_spec_read_yaml(&filled, &b->arena, &job))
        fail_msg("%s", hd_err_message());
    return hd_spec_to_message(&job, &b->arena);
}

enum hd_status submit_as(struct bench *b, const char *request_id, Heddle__V1__JobSpec *spec,
                         uint64_t *ret_job, bool *ret_repeated)
{
    Heddle__V1__SubmitJobRequest request = HEDDLE__V1__SUBMIT_JOB_REQUEST__INIT;
    Heddle__V1__SubmitJobResponse *response = NULL;
    enum hd_status st;

    request.request_id = (char *)(uintptr_t)request_id;
    request.spec = spec;
    st = call(b, "SubmitJob", &heddle__v1__submit_job_response__descriptor, &request.base,
              &response);
    if (st)
        return st;
    *ret_job = response->job->job;
    *ret_repeated = response->repeated;
    hd_rpc_message_free(&response->base);
    return HD_OK;
}

uint64_t submit(struct bench *b, int devices)
{
    static int number;
    Heddle__V1__JobSpec *spec = new_spec(b, devices, "");
    char request_id[40];
    uint64_t job;
    bool repeated;

    (void)snprintf(request_id, sizeof request_id, "request-%020d", ++number);
    assert_int_equal(submit_as(b, request_id, spec, &job, &repeated), HD_OK);
    assert_false(repeated);
    return job;
}

Heddle__V1__GetJobResponse *get_job(struct bench *b, uint64_t job)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    Heddle__V1__GetJobResponse *response = NULL;

    request.job = job;
    assert_int_equal(
        call(b, "GetJob", &heddle__v1__get_job_response__descriptor, &request.base, &response),
        HD_OK);
    return response;
}

Heddle__V1__JobState state_of(struct bench *b, uint64_t job)
{
    Heddle__V1__GetJobResponse *response = get_job(b, job);
    Heddle__V1__JobState state = response->job->state;

    hd_rpc_message_free(&response->base);
    return state;
}

/* ---- a daemon ---------------------------------------------------------------------------------*/

static void daemon_msg(struct hd_rpc_call *c, const ProtobufCMessage *message)
{
    struct daemon *d = hd_rpc_call_user(c);
    const Heddle__V1__ControllerMessage *m = (const void *)message;

    switch (m->body_case) {
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_WELCOME:
        d->kept = (void *)hd_rpc_call_take(c);
        d->welcome = d->kept->welcome;
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_DESIRED:
        if (d->desired)
            hd_rpc_message_free(&d->desired->base);
        d->desired = (void *)hd_rpc_call_take(c);
        d->desired_count++;
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REPORT_ACK:
        d->acked = m->report_ack->positions[0]->seq;
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_RENDEZVOUS_SET:
        if (d->set)
            hd_rpc_message_free(&d->set->base);
        d->set = (void *)hd_rpc_call_take(c);
        d->sets++;
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_HEARTBEAT:
        d->answered = m->heartbeat->nonce;
        d->heartbeats++;
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_PROBE_REQUEST:
        d->probe = m->probe_request->request;
        break;
    case HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REMOVED:
        (void)snprintf(d->removed_by, sizeof d->removed_by, "%s", m->removed->message);
        break;
    default:
        fail_msg("message %d", (int)m->body_case);
    }
}

static void daemon_done(struct hd_rpc_call *c, enum hd_status status, const char *message)
{
    struct daemon *d = hd_rpc_call_user(c);

    d->done = true;
    d->call = NULL;
    d->end = status;
    (void)snprintf(d->message, sizeof d->message, "%s", message);
}

void say(struct daemon *d, int body, void *part)
{
    Heddle__V1__NodeMessage m = HEDDLE__V1__NODE_MESSAGE__INIT;

    m.body_case = (Heddle__V1__NodeMessage__BodyCase)body;
    m.hello = part; /* all members of the union are pointers */
    assert_int_equal(hd_rpc_call_write(d->call, &m.base), HD_OK);
}

void connect_as(struct daemon *d, struct bench *b, const char *name, const char *uuid, int protocol)
{
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Fleet/Connect",
        .kind = HD_RPC_BIDI,
        .response = &heddle__v1__controller_message__descriptor,
        .wait_for_ready = true,
        .handler = {.on_msg = daemon_msg, .on_done = daemon_done},
        .user = d};
    const int count = d->devices ? d->devices : b->devices ? b->devices : 2;
    Heddle__V1__DeviceInfo devices[DEVICES_MAX], *pointers[DEVICES_MAX];
    Heddle__V1__Hello hello = HEDDLE__V1__HELLO__INIT;

    if (!d->b)
        *d = (struct daemon){.b = b, .devices = d->devices, .instance = d->instance};
    d->done = false;
    hello.data_address = (char *)"10.0.0.3";
    (void)snprintf(d->name, sizeof d->name, "%s", name);
    (void)snprintf(d->uuid, sizeof d->uuid, "%s", uuid);
    assert_int_equal(hd_rpc_client_call(b->client, &options, NULL, &d->call), HD_OK);
    for (int i = 0; i < count; i++) {
        heddle__v1__device_info__init(&devices[i]);
        pointers[i] = &devices[i];
        devices[i].index = i;
        devices[i].kind = HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CPU;
        devices[i].threads = 3;
        if (b->gpu) {
            devices[i].kind = HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
            devices[i].name = (char *)(uintptr_t)b->gpu;
            devices[i].memory_bytes = (int64_t)80 << 30;
        }
    }
    hello.protocol_min = hello.protocol_max = protocol;
    hello.build = (char *)"fake";
    hello.node_uuid = d->uuid;
    hello.node_name = d->name;
    hello.boot_id = (char *)"boot";
    hello.instance_id = (char *)(uintptr_t)(d->instance ? d->instance : "instance");
    hello.n_devices = (size_t)count;
    hello.devices = pointers;
    hello.inventory = b->inventory;
    hello.probes = true;
    say(d, HEDDLE__V1__NODE_MESSAGE__BODY_HELLO, &hello);
}

void connect_daemon(struct daemon *d, struct bench *b, const char *name, int protocol)
{
    connect_as(d, b, name, "uuid-1", protocol);
}

void free_daemon(struct daemon *d)
{
    if (d->call) {
        hd_rpc_call_cancel(d->call);
        WAIT_FOR(d->b, d->done);
    }
    if (d->kept)
        hd_rpc_message_free(&d->kept->base);
    if (d->desired)
        hd_rpc_message_free(&d->desired->base);
    if (d->set)
        hd_rpc_message_free(&d->set->base);
    *d = (struct daemon){0};
}

void observe(struct daemon *d, uint64_t job, Heddle__V1__AttemptState state,
             Heddle__V1__EndReport *end)
{
    Heddle__V1__ObservedState observed = HEDDLE__V1__OBSERVED_STATE__INIT;
    Heddle__V1__ObservedAttempt attempt = HEDDLE__V1__OBSERVED_ATTEMPT__INIT;
    Heddle__V1__ObservedAttempt *pointer = &attempt;
    struct hd_text path = {0}, probe = {0};

    attempt.job = job;
    attempt.attempt = 1;
    attempt.state = state;
    attempt.end = end;
    observed.n_attempts = job != 0;
    observed.attempts = &pointer;
    observed.generation = d->desired ? d->desired->desired->generation : 0;
    hd_file_join(&path, d->welcome->jobs_dir, d->welcome->jobs_dir_probe);
    assert_int_equal(hd_file_read(path.data, 4096, &probe), HD_OK);
    probe.data[strcspn(probe.data, "\n")] = '\0'; /* the first line, as heddled */
    observed.jobs_dir_probe = probe.data;
    say(d, HEDDLE__V1__NODE_MESSAGE__BODY_OBSERVED, &observed);
    hd_text_free(&path);
    hd_text_free(&probe);
}

void join(struct daemon *d, struct bench *b, const char *name)
{
    join_as(d, b, name, "uuid-1");
}

void join_as(struct daemon *d, struct bench *b, const char *name, const char *uuid)
{
    connect_as(d, b, name, uuid, HEDDLE__V1__PROTOCOL__PROTOCOL_MAX);
    WAIT_FOR(b, d->welcome || d->done);
    assert_false(d->done);
    observe(d, 0, 0, NULL);
    WAIT_FOR(b, d->desired);
}

static void send_report(struct daemon *d, Heddle__V1__Report *report, uint64_t job, int32_t rank,
                        uint64_t seq)
{
    Heddle__V1__Reports reports = HEDDLE__V1__REPORTS__INIT;

    report->job = job;
    report->attempt = 1;
    report->rank = rank;
    report->seq = seq;
    reports.n_reports = 1;
    reports.reports = &report;
    say(d, HEDDLE__V1__NODE_MESSAGE__BODY_REPORTS, &reports);
}

void send_step(struct daemon *d, uint64_t job, uint64_t seq, int64_t step)
{
    Heddle__V1__Report report = HEDDLE__V1__REPORT__INIT;
    Heddle__V1__StepReport body = HEDDLE__V1__STEP_REPORT__INIT;
    int64_t load[2] = {step, 3 * step};

    body.step = step;
    body.loss = 1.0 / (double)step;
    body.router_balance = (double)step / 2;
    body.router_z = 0.25;
    body.router_dropped = step + 1;
    body.expert_load = load;
    body.n_expert_load = 2;
    report.body_case = HEDDLE__V1__REPORT__BODY_STEP;
    report.step = &body;
    send_report(d, &report, job, 0, seq);
}

void send_checkpoint(struct daemon *d, uint64_t job, uint64_t seq, int64_t step, const char *dir)
{
    Heddle__V1__Report report = HEDDLE__V1__REPORT__INIT;
    Heddle__V1__CheckpointInfo body = HEDDLE__V1__CHECKPOINT_INFO__INIT;
    char path[256];

    (void)snprintf(path, sizeof path, "%s/step-%08lld", dir, (long long)step);
    body.step = step;
    body.path = path;
    body.manifest_hash = (char *)"c0ffee";
    report.body_case = HEDDLE__V1__REPORT__BODY_CHECKPOINT;
    report.checkpoint = &body;
    send_report(d, &report, job, 0, seq);
}

/* ---- a watcher --------------------------------------------------------------------------------*/

static void watch_msg(struct hd_rpc_call *c, const ProtobufCMessage *message)
{
    struct watch *w = hd_rpc_call_user(c);
    const Heddle__V1__WatchJobResponse *m = (const void *)message;

    if (m->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS) {
        w->status = m->status->state;
        w->stale = *m->status->stale != '\0';
        return;
    }
    if (m->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END) {
        w->end = m->end->state;
        w->ended = true;
        return;
    }
    assert_true(w->count < ENTRIES_MAX);
    w->sequences[w->count] = m->sequence;
    w->bodies[w->count] = (int)m->body_case;
    if (m->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP) {
        w->steps[w->count] = m->step->step;
        assert_true(m->step->router_balance == (double)m->step->step / 2);
        assert_true(m->step->router_z == 0.25);
        assert_int_equal(m->step->router_dropped, m->step->step + 1);
        assert_int_equal(m->step->n_expert_load, 2);
        assert_int_equal(m->step->expert_load[1], 3 * m->step->step);
    }
    w->count++;
}

static void watch_done(struct hd_rpc_call *c, enum hd_status status, const char *message)
{
    struct watch *w = hd_rpc_call_user(c);

    w->done = true;
    w->st = status;
}

void watch(struct watch *w, struct bench *b, uint64_t job, uint64_t after, bool new_only)
{
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Control/WatchJob",
        .kind = HD_RPC_SERVER_STREAM,
        .response = &heddle__v1__watch_job_response__descriptor,
        .handler = {.on_msg = watch_msg, .on_done = watch_done},
        .user = w};
    Heddle__V1__WatchJobRequest request = HEDDLE__V1__WATCH_JOB_REQUEST__INIT;

    *w = (struct watch){0};
    request.job = job;
    request.after_sequence = after;
    request.new_only = new_only;
    assert_int_equal(hd_rpc_client_call(b->client, &options, &request.base, &w->call), HD_OK);
}
