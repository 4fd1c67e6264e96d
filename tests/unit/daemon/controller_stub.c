#include "controller_stub.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/attempt/attempt.h"
#include "spec/spec.h"
#include "tests/program/test.h"

/* Heartbeats come often, so that tests of silence are short. */
enum { JOB = 7, ATTEMPT = 1, HEARTBEAT_MS = 300, PROTOCOL = 2 };

static const char job_yaml[] =
    "name: small\n"
    "model: {family: llama, layers: 1, hidden: 16, heads: 2, vocab: 256, "
    "context: 8}\n"
    "data: {train: [a.txt], val_split: 0.5, tokenizer: bytes}\n"
    "train: {steps: 3, global_batch: 8, lr: 1e-3}\n"
    "resources: {device_type: cpu, devices: 2}\n";

int64_t stub_now_ms(void)
{
    return hd_clock_now_ms();
}

static void wake(uv_timer_t *timer)
{
}

/* The timer repeats: one that is due before the loop polls would be over, and nothing wake it. */
void stub_turn(struct stub *stub)
{
    uv_timer_t timer;

    assert_int_equal(uv_timer_init(&stub->loop, &timer), 0);
    assert_int_equal(uv_timer_start(&timer, wake, 20, 20), 0);
    (void)uv_run(&stub->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    (void)uv_run(&stub->loop, UV_RUN_NOWAIT);
}

void stub_run_for(struct stub *stub, int ms)
{
    const int64_t end_ms = stub_now_ms() + ms;

    while (stub_now_ms() < end_ms)
        stub_turn(stub);
}

void stub_fail(struct stub *stub, const char *condition, const char *file, int line)
{
    for (int i = 0; i < stub->node_count; i++)
        fprintf(stderr, "node %d: hellos %d, listed %d, state %d, cause %d \"%s\"\n", i,
                stub->nodes[i].hellos, stub->nodes[i].listed, stub->nodes[i].state,
                stub->nodes[i].cause, stub->nodes[i].end_message);
    for (int i = 0; i < stub->node_count; i++)
        if (stub->nodes[i].daemon)
            (void)kill(stub->nodes[i].daemon, SIGKILL);
    _fail(file, line);
}

/* ---- the stream ---- */

static struct stub_node *node_of(struct stub *stub, const char *uuid)
{
    for (int i = 0; i < stub->node_count; i++)
        if (strcmp(stub->nodes[i].uuid, uuid) == 0)
            return &stub->nodes[i];
    return NULL;
}

/* The node whose stream it is; NULL before its hello and after a refusal. */
static struct stub_node *node_on(struct stub *stub, const struct hd_rpc_call *call)
{
    for (int i = 0; i < stub->node_count; i++)
        if (stub->nodes[i].stream == call)
            return &stub->nodes[i];
    return NULL;
}

static void take_hello(struct stub *stub, struct hd_rpc_call *call, const Heddle__V1__Hello *hello)
{
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__Welcome welcome = HEDDLE__V1__WELCOME__INIT;
    struct stub_node *node = NULL;

    for (int i = 0; i < stub->node_count; i++)
        if (strcmp(stub->nodes[i].name, hello->node_name) == 0)
            node = &stub->nodes[i];
    assert_non_null(node);
    if (stub->refuse) {
        hd_rpc_call_fail(call, hd_err(HD_EXISTS, "another node is called %s", hello->node_name));
        return;
    }
    node->hellos++;
    node->stream = call;
    node->first_of_stream = true;
    node->devices = (int)hello->n_devices;
    node->threads = hello->n_devices ? hello->devices[0]->threads : 0;
    node->gpus = 0;
    for (size_t i = 0; i < STUB_DEVICES_MAX; i++) {
        const Heddle__V1__DeviceInfo *d = i < hello->n_devices ? hello->devices[i] : NULL;

        node->gpus += d && d->kind == HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
        node->numbers[i] = d ? d->index : -1;
        (void)snprintf(node->uuids[i], sizeof node->uuids[i], "%s", d ? d->uuid : "");
        (void)snprintf(node->problems[i], sizeof node->problems[i], "%s", d ? d->problem : "");
    }
    (void)snprintf(node->uuid, sizeof node->uuid, "%s", hello->node_uuid);
    (void)snprintf(node->instance_id, sizeof node->instance_id, "%s", hello->instance_id);
    (void)snprintf(node->boot_id, sizeof node->boot_id, "%s", hello->boot_id);
    welcome.protocol = PROTOCOL;
    welcome.build = (char *)"stub";
    welcome.cluster_id = (char *)(uintptr_t)stub->cluster;
    welcome.jobs_dir = stub->jobs_dir;
    welcome.jobs_dir_probe = (char *)".probe";
    welcome.jobs_dir_probe_text = (char *)"the same place";
    welcome.heartbeat_ms = HEARTBEAT_MS;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_WELCOME;
    message.welcome = &welcome;
    assert_int_equal(hd_rpc_call_write(call, &message.base), HD_OK);
}

static void take_observed(struct stub_node *node, const Heddle__V1__ObservedState *state)
{
    node->observed_count++;
    if (node->first_of_stream)
        node->first_generation = state->generation;
    node->first_of_stream = false;
    node->generation = state->generation;
    node->attempts = state->n_attempts;
    node->deleted = state->n_deleted;
    node->listed = false;
    (void)snprintf(node->probe, sizeof node->probe, "%s", state->jobs_dir_probe);
    (void)snprintf(node->probe_problem, sizeof node->probe_problem, "%s", state->jobs_dir_problem);
    (void)snprintf(node->no_room, sizeof node->no_room, "%s", state->no_room);
    for (size_t i = 0; i < state->n_attempts; i++) {
        const Heddle__V1__ObservedAttempt *a = state->attempts[i];

        assert_int_equal(a->job, JOB);
        assert_int_equal(a->attempt, ATTEMPT);
        node->listed = true;
        node->state = a->state;
        (void)snprintf(node->problem, sizeof node->problem, "%s", a->problem);
        node->checkpoint_step = a->n_checkpoints ? a->checkpoints[a->n_checkpoints - 1]->step : 0;
        if (!a->end)
            continue;
        node->cause = a->end->cause;
        node->end_rank = a->end->rank;
        node->end_signal = a->end->signal;
        node->bad_input = a->end->bad_input;
        (void)snprintf(node->end_message, sizeof node->end_message, "%s", a->end->message);
    }
}

static void take_report(struct stub *stub, const Heddle__V1__Report *report)
{
    assert_int_equal(report->job, JOB);
    assert_in_range(report->rank, 0, STUB_RANKS_MAX - 1);
    assert_in_range(report->seq, 1, STUB_SEQ_MAX - 1);
    if (stub->seen[report->rank][report->seq]) {
        stub->repeated++;
        return;
    }
    stub->seen[report->rank][report->seq] = true;
    stub->reports++;
    stub->steps += report->body_case == HEDDLE__V1__REPORT__BODY_STEP;
    stub->exits += report->body_case == HEDDLE__V1__REPORT__BODY_RANK_EXIT;
    stub->checkpoints += report->body_case == HEDDLE__V1__REPORT__BODY_CHECKPOINT;
}

void stub_acknowledge(struct stub *stub)
{
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__ReportPosition positions[STUB_RANKS_MAX], *pointers[STUB_RANKS_MAX];
    Heddle__V1__ReportAck ack = HEDDLE__V1__REPORT_ACK__INIT;

    for (int rank = 0; rank < STUB_RANKS_MAX; rank++) {
        uint64_t seq = 0;

        while (seq + 1 < STUB_SEQ_MAX && stub->seen[rank][seq + 1])
            seq++;
        if (!seq)
            continue;
        heddle__v1__report_position__init(&positions[rank]);
        positions[rank].job = JOB;
        positions[rank].attempt = ATTEMPT;
        positions[rank].rank = rank;
        positions[rank].seq = seq;
        pointers[ack.n_positions++] = &positions[rank];
    }
    ack.positions = pointers;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REPORT_ACK;
    message.report_ack = &ack;
    for (int i = 0; i < stub->node_count && ack.n_positions; i++)
        if (stub->nodes[i].stream)
            assert_int_equal(hd_rpc_call_write(stub->nodes[i].stream, &message.base), HD_OK);
}

static void take_put(struct stub *stub, const Heddle__V1__RendezvousPut *put)
{
    ProtobufCBinaryData *at;

    assert_in_range(put->rank, 0, STUB_RANKS_MAX - 1);
    if (put->round != stub->put_round) {
        if (put->round < stub->put_round) {
            stub->put_repeated++;
            return;
        }
        stub->put_round = put->round;
        stub->put_count = 0;
        for (int i = 0; i < STUB_RANKS_MAX; i++)
            stub->put[i].len = 0;
    }
    at = &stub->put[put->rank];
    if (at->len) {
        stub->put_repeated++;
        return;
    }
    free(at->data);
    at->data = malloc(put->value.len);
    assert_non_null(at->data);
    memcpy(at->data, put->value.data, put->value.len);
    at->len = put->value.len;
    stub->put_count++;
}

void stub_complete_rendezvous(struct stub *stub)
{
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__RendezvousSet set = HEDDLE__V1__RENDEZVOUS_SET__INIT;

    set.job = JOB;
    set.attempt = ATTEMPT;
    set.round = stub->put_round;
    set.n_values = (size_t)stub->put_count;
    set.values = stub->put;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_RENDEZVOUS_SET;
    message.rendezvous_set = &set;
    for (int i = 0; i < stub->node_count; i++)
        if (stub->nodes[i].stream)
            assert_int_equal(hd_rpc_call_write(stub->nodes[i].stream, &message.base), HD_OK);
}

static void take_probe(struct stub_node *node, const Heddle__V1__ProbeReport *report)
{
    node->probe_reports++;
    node->probe_request = report->request;
    (void)snprintf(node->probe_text, sizeof node->probe_text, "%.*s", (int)report->calibration.len,
                   (const char *)report->calibration.data);
    (void)snprintf(node->probe_said, sizeof node->probe_said, "%s", report->problem);
    (void)snprintf(node->probe_on, sizeof node->probe_on, "%s", report->measured_on);
}

static void on_message(struct hd_rpc_call *call, const ProtobufCMessage *base)
{
    const Heddle__V1__NodeMessage *m = (const Heddle__V1__NodeMessage *)base;
    Heddle__V1__ControllerMessage answer = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    struct stub *stub = hd_rpc_call_user(call);
    struct stub_node *node = node_on(stub, call);

    if (m->body_case == HEDDLE__V1__NODE_MESSAGE__BODY_HELLO) {
        take_hello(stub, call, m->hello);
        return;
    }
    if (!node)
        return; /* a newer stream has taken its place */
    switch (m->body_case) {
    case HEDDLE__V1__NODE_MESSAGE__BODY_OBSERVED:
        take_observed(node, m->observed);
        break;
    case HEDDLE__V1__NODE_MESSAGE__BODY_REPORTS:
        for (size_t i = 0; i < m->reports->n_reports; i++)
            take_report(stub, m->reports->reports[i]);
        if (!stub->hold_acks)
            stub_acknowledge(stub);
        break;
    case HEDDLE__V1__NODE_MESSAGE__BODY_RENDEZVOUS_PUT:
        take_put(stub, m->rendezvous_put);
        break;
    case HEDDLE__V1__NODE_MESSAGE__BODY_PROBE_REPORT:
        take_probe(node, m->probe_report);
        break;
    case HEDDLE__V1__NODE_MESSAGE__BODY_HEARTBEAT:
        answer.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_HEARTBEAT;
        answer.heartbeat = m->heartbeat;
        (void)hd_rpc_call_write(call, &answer.base);
        break;
    default:
        fail_msg("a node said %d", m->body_case);
    }
}

static void on_done(struct hd_rpc_call *call, enum hd_status status, const char *text)
{
    struct stub_node *node = node_on(hd_rpc_call_user(call), call);

    if (node)
        node->stream = NULL;
}

/* ---- logs ---- */

static void on_chunk(struct hd_rpc_call *call, const ProtobufCMessage *base)
{
    const Heddle__V1__LogChunk *chunk = (const Heddle__V1__LogChunk *)base;
    struct stub *stub = hd_rpc_call_user(call);
    struct stub_node *node;

    if (chunk->request == 0) {
        node = node_of(stub, chunk->node_uuid);
        assert_non_null(node);
        node->logs = call;
        return;
    }
    (void)snprintf(stub->log_text, sizeof stub->log_text, "%.*s", (int)chunk->data.len,
                   (const char *)chunk->data.data);
    (void)snprintf(stub->log_error, sizeof stub->log_error, "%s", chunk->error);
    stub->log_answered = chunk->request;
}

static void on_logs_done(struct hd_rpc_call *call, enum hd_status status, const char *text)
{
    struct stub *stub = hd_rpc_call_user(call);

    for (int i = 0; i < stub->node_count; i++)
        if (stub->nodes[i].logs == call)
            stub->nodes[i].logs = NULL;
}

void stub_ask_log(struct stub *stub, int rank, int64_t offset, int wait_ms)
{
    Heddle__V1__LogRequest request = HEDDLE__V1__LOG_REQUEST__INIT;
    char dir[160];

    (void)snprintf(dir, sizeof dir, "%s/7/attempt-1", stub->jobs_dir);
    request.request = stub->log_answered + 1;
    request.job = JOB;
    request.attempt = ATTEMPT;
    request.rank = rank;
    request.offset_bytes = offset;
    request.max_bytes = 1000;
    request.wait_ms = wait_ms;
    request.attempt_dir = dir;
    stub_until(stub, stub->nodes[0].logs);
    assert_int_equal(hd_rpc_call_write(stub->nodes[0].logs, &request.base), HD_OK);
}

/* ---- what is wanted ---- */

static void send_desired(struct stub *stub, Heddle__V1__DesiredState *desired)
{
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;

    desired->generation = ++stub->generation;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_DESIRED;
    message.desired = desired;
    for (int i = 0; i < stub->node_count; i++)
        if (stub->nodes[i].stream)
            assert_int_equal(hd_rpc_call_write(stub->nodes[i].stream, &message.base), HD_OK);
}

/* The text of the ranks' job; the caller frees it. */
static void resolve(const struct stub *stub, const Heddle__V1__DesiredAttempt *attempt,
                    struct hd_text *ret_text)
{
    const struct hd_spec_source source = {.name = "job.yaml",
                                          .folder = stub->root,
                                          .bytes = job_yaml,
                                          .size_bytes = sizeof job_yaml - 1};
    const struct hd_spec_attempt facts = {
        .job_id = JOB, .number = ATTEMPT, .dir = attempt->attempt_dir};
    struct hd_layout_sizes layout;
    struct hd_job spec, job;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    if (hd_spec_read_yaml(&source, &arena, &spec) ||
        hd_spec_plan_from_message(attempt->plan, &layout) ||
        hd_spec_resolve(&spec, &layout, &facts, &job) || hd_job_write(&job, ret_text))
        fail_msg("%s", hd_err_message());
    hd_arena_done(&arena);
}

void stub_want(struct stub *stub, Heddle__V1__Wanted wanted, int ranks_a_node)
{
    Heddle__V1__DesiredState desired = HEDDLE__V1__DESIRED_STATE__INIT;
    Heddle__V1__DesiredAttempt attempt = HEDDLE__V1__DESIRED_ATTEMPT__INIT;
    Heddle__V1__RankPlacement places[STUB_RANKS_MAX], *pointers[STUB_RANKS_MAX];
    Heddle__V1__DesiredAttempt *attempts = &attempt;
    Heddle__V1__Plan plan = HEDDLE__V1__PLAN__INIT;
    struct hd_text text = {0};
    char dir[160], checkpoints[192];

    for (int rank = 0; rank < ranks_a_node * stub->node_count; rank++) {
        heddle__v1__rank_placement__init(&places[rank]);
        places[rank].rank = rank;
        places[rank].device =
            stub->nodes[rank / ranks_a_node].numbers[ranks_a_node - 1 - rank % ranks_a_node];
        places[rank].node_uuid = stub->nodes[rank / ranks_a_node].uuid;
        pointers[plan.n_ranks++] = &places[rank];
    }
    plan.ranks = pointers;
    plan.pp = plan.cp = plan.tp = plan.ep = plan.micro_batch = 1;
    plan.dp = (int32_t)plan.n_ranks;
    plan.threads_per_device = 2;
    plan.schedule = plan.recompute = (char *)(uintptr_t) "none";
    plan.precision = HEDDLE__V1__PRECISION__PRECISION_FP32;
    plan.device = stub->cuda ? HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA
                             : HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CPU;
    (void)snprintf(dir, sizeof dir, "%s/7/attempt-1", stub->jobs_dir);
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir);
    attempt.job = JOB;
    attempt.attempt = ATTEMPT;
    attempt.wanted = wanted;
    attempt.plan = &plan;
    attempt.attempt_dir = dir;
    attempt.checkpoint_dir = checkpoints;
    if (plan.n_ranks) {
        resolve(stub, &attempt, &text);
        attempt.resolved_job = text.data;
    }
    desired.attempts = &attempts;
    desired.n_attempts = wanted != HEDDLE__V1__WANTED__WANTED_UNSPECIFIED;
    send_desired(stub, &desired);
    hd_text_free(&text);
}

static void want_gone(struct stub *stub, int32_t attempt, const char *path, const char *hash)
{
    Heddle__V1__DesiredState desired = HEDDLE__V1__DESIRED_STATE__INIT;
    Heddle__V1__CheckpointDeletion deletion = HEDDLE__V1__CHECKPOINT_DELETION__INIT;
    Heddle__V1__CheckpointDeletion *deletions = &deletion;

    deletion.job = JOB;
    deletion.attempt = attempt;
    deletion.step = attempt ? 5 : 0;
    deletion.path = (char *)path;
    deletion.manifest_hash = (char *)hash;
    desired.deletions = &deletions;
    desired.n_deletions = 1;
    send_desired(stub, &desired);
}

void stub_want_deleted(struct stub *stub, const char *path, const char *hash)
{
    want_gone(stub, ATTEMPT, path, hash);
}

void stub_want_removed(struct stub *stub, const char *job_dir)
{
    want_gone(stub, 0, job_dir, "");
}

void stub_ask_probe(struct stub *stub, uint64_t request)
{
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__ProbeRequest body = HEDDLE__V1__PROBE_REQUEST__INIT;

    body.request = request;
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_PROBE_REQUEST;
    message.probe_request = &body;
    assert_int_equal(hd_rpc_call_write(stub->nodes[0].stream, &message.base), HD_OK);
}

void stub_remove(struct stub *stub)
{
    Heddle__V1__ControllerMessage message = HEDDLE__V1__CONTROLLER_MESSAGE__INIT;
    Heddle__V1__Removed body = HEDDLE__V1__REMOVED__INIT;

    body.message = (char *)"ann";
    message.body_case = HEDDLE__V1__CONTROLLER_MESSAGE__BODY_REMOVED;
    message.removed = &body;
    for (int i = 0; i < stub->node_count; i++) {
        assert_int_equal(hd_rpc_call_write(stub->nodes[i].stream, &message.base), HD_OK);
        hd_rpc_call_finish(stub->nodes[i].stream);
    }
}

/* ---- the house ---- */

void stub_serve(struct stub *stub)
{
    struct hd_rpc_token token = {.party = HD_RPC_PARTY_NODE, .token = STUB_TOKEN};
    const struct hd_rpc_tokens tokens = {.items = &token, .count = 1};
    const struct hd_rpc_server_options options = {.tokens = &tokens};
    struct hd_rpc_method method = {.path = "/heddle.v1.Fleet/Connect",
                                   .kind = HD_RPC_BIDI,
                                   .request = &heddle__v1__node_message__descriptor,
                                   .response = &heddle__v1__controller_message__descriptor,
                                   .handler = {.on_msg = on_message, .on_done = on_done},
                                   .user = stub};

    assert_int_equal(hd_rpc_server_new(stub->rpc, &options, &stub->server), HD_OK);
    assert_int_equal(hd_rpc_server_add_method(stub->server, &method), HD_OK);
    method.path = "/heddle.v1.Fleet/Logs";
    method.request = &heddle__v1__log_chunk__descriptor;
    method.response = &heddle__v1__log_request__descriptor;
    method.handler = (struct hd_rpc_handler){.on_msg = on_chunk, .on_done = on_logs_done};
    assert_int_equal(hd_rpc_server_add_method(stub->server, &method), HD_OK);
    assert_int_equal(hd_rpc_server_listen(stub->server, stub->address, NULL), HD_OK);
    assert_int_equal(hd_rpc_server_listen(stub->server, "127.0.0.1:0", &stub->port), HD_OK);
    assert_int_equal(hd_rpc_server_start(stub->server), HD_OK);
}

static void set_flag(void *user)
{
    *(bool *)user = true;
}

void stub_unserve(struct stub *stub)
{
    bool closed = false;

    hd_rpc_server_close(stub->server, 0, set_flag, &closed);
    stub_until(stub, closed);
}

void stub_open(struct stub *stub, int nodes)
{
    char root[TEMPORARY_BYTES], path[160];

    memset(stub, 0, sizeof *stub);
    stub->cluster = "cluster-of-the-test";
    temporary_dir(root, "heddle-stub");
    memcpy(stub->root, root, sizeof root);
    (void)snprintf(stub->address, sizeof stub->address, "unix:%s/c/s", root);
    (void)snprintf(stub->jobs_dir, sizeof stub->jobs_dir, "%s/jobs", root);
    assert_int_equal(hd_file_make_dirs(stub->jobs_dir, 0755), HD_OK);
    (void)snprintf(path, sizeof path, "%s/.probe", stub->jobs_dir);
    assert_int_equal(hd_file_write_atomic(path, "the same place\n", 15, 0644), HD_OK);
    (void)snprintf(path, sizeof path, "%s/a.txt", root);
    assert_int_equal(
        hd_file_write_atomic(path, "some text for training and, its other half, for validation", 58,
                             0644),
        HD_OK);
    stub->node_count = nodes;
    for (int i = 0; i < nodes; i++) {
        (void)snprintf(stub->nodes[i].name, sizeof stub->nodes[i].name, "n%d", i);
        (void)snprintf(stub->nodes[i].state_dir, sizeof stub->nodes[i].state_dir, "%s/state-%d",
                       root, i);
    }
    for (int rank = 0; rank < STUB_RANKS_MAX; rank++) {
        (void)snprintf(path, sizeof path, "FAKE_%d", rank);
        assert_int_equal(setenv(path, "finish", 1), 0);
    }
    assert_int_equal(uv_loop_init(&stub->loop), 0);
    assert_int_equal(hd_rpc_new(&stub->loop, &stub->rpc), HD_OK);
    stub_serve(stub);
}

static void exec_node(const struct stub *stub, const struct stub_node *node, char **more)
{
    const char *build = getenv("HEDDLE_BUILD_DIR");
    char program[512], worker[512];
    char *argv[32];
    int n = 0;

    (void)snprintf(program, sizeof program, "%s/bin/heddled", build ? build : "build/dev");
    (void)snprintf(worker, sizeof worker, "%s/tests/fake_worker", build ? build : "build/dev");
    argv[n++] = program;
    argv[n++] = (char *)"--controller";
    argv[n++] = (char *)stub->address;
    argv[n++] = (char *)"--state-dir";
    argv[n++] = (char *)node->state_dir;
    argv[n++] = (char *)"--node-name";
    argv[n++] = (char *)node->name;
    argv[n++] = (char *)"--devices";
    argv[n++] = (char *)"cpu:2:3";
    argv[n++] = (char *)"--worker";
    argv[n++] = worker;
    argv[n++] = (char *)"--probe";
    argv[n++] = (char *)"never";
    while (*more && n < 31)
        argv[n++] = *more++;
    argv[n] = NULL;
    (void)setenv("HEDDLE_PASS_ENV", "FAKE_*", 0);
    (void)setenv("HEDDLE_LOG", "error", 0);
    (void)execv(program, argv);
    _exit(97);
}

void stub_start_node(struct stub *stub, int index, ...)
{
    char *more[16];
    int n = 0;
    va_list ap;

    va_start(ap, index);
    while (n < 15 && (more[n] = va_arg(ap, char *)))
        n++;
    va_end(ap);
    more[n] = NULL;
    stub->nodes[index].daemon = fork();
    assert_true(stub->nodes[index].daemon >= 0);
    if (stub->nodes[index].daemon == 0)
        exec_node(stub, &stub->nodes[index], more);
}

int stub_wait_node(struct stub *stub, int index)
{
    struct stub_node *node = &stub->nodes[index];
    int status = 0;

    stub_until(stub, waitpid(node->daemon, &status, WNOHANG) == node->daemon);
    node->daemon = 0;
    stub_until(stub, !node->stream);
    return status;
}

void stub_signal_node(struct stub *stub, int index, int signal)
{
    assert_int_equal(kill(stub->nodes[index].daemon, signal), 0);
}

/* How many processes have, in /proc/PID/FILE, a NUL-terminated string that begins with `want`. */
static int count_processes(const char *file, const char *want)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    char path[64];
    int count = 0;

    assert_non_null(proc);
    while ((entry = readdir(proc))) {
        struct hd_text text = {0};
        bool found = false;

        (void)snprintf(path, sizeof path, "/proc/%.16s/%s", entry->d_name, file);
        if (atoi(entry->d_name) > 0 && hd_file_read(path, 1 << 20, &text) == HD_OK)
            for (size_t at = 0; at < text.len_bytes; at += strlen(text.data + at) + 1)
                found = found || strncmp(text.data + at, want, strlen(want)) == 0;
        count += found;
        hd_text_free(&text);
    }
    (void)closedir(proc);
    return count;
}

int stub_processes(const struct stub *stub)
{
    char want[128];

    (void)snprintf(want, sizeof want, HD_ATTEMPT_DIR_ENV "=%s/", stub->root);
    return count_processes("environ", want);
}

void stub_close(struct stub *stub)
{
    bool closed = false;

    for (int i = 0; i < stub->node_count; i++)
        if (stub->nodes[i].daemon) {
            stub_signal_node(stub, i, SIGTERM);
            assert_int_equal(stub_wait_node(stub, i), 0);
        }
    stub_until(stub, stub_processes(stub) == 0);
    stub_until(stub, count_processes("cmdline", stub->jobs_dir) == 0); /* supervisors */
    hd_rpc_close(stub->rpc, set_flag, &closed);
    stub_until(stub, closed);
    assert_int_equal(uv_run(&stub->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&stub->loop), 0);
    for (int i = 0; i < STUB_RANKS_MAX; i++)
        free(stub->put[i].data);
    assert_int_equal(hd_file_remove_tree(stub->root), HD_OK);
}
