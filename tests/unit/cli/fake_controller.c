#include "tests/unit/cli/fake_controller.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "heddle/v1/control.pb-c.h"
#include "rpc/find.h"
#include "tests/program/test.h"

#define TOKEN "0123456789abcdef0123456789abcdef"

const int64_t round_trips_ms[WAYS] = {0, 50, 150, 300};

/* ---- the controller ---- */

struct fake fake;

static const char warning[] = "9 jobs are queued or running; at 10 new ones are refused";

static void fill_job(Heddle__V1__JobStatus *job, Heddle__V1__JobState state)
{
    heddle__v1__job_status__init(job);
    job->job = 7;
    job->name = (char *)"tiny";
    job->owner = (char *)"me";
    job->state = state;
    job->steps = 2;
    job->attempt = 1;
}

static void on_submit(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__SubmitJobRequest *request = (const Heddle__V1__SubmitJobRequest *)message;
    Heddle__V1__SubmitJobResponse response = HEDDLE__V1__SUBMIT_JOB_RESPONSE__INIT;
    Heddle__V1__JobStatus job;

    (void)snprintf(fake.last_id, sizeof fake.last_id, "%s", request->request_id);
    for (size_t i = 0; i < request->spec->n_keys; i++)
        if (strcmp(request->spec->keys[i]->path, "array.id") == 0)
            (void)snprintf(fake.last_array, sizeof fake.last_array, "%s",
                           request->spec->keys[i]->value);
    if (fake.interrupts)
        (void)kill(fake.pid, SIGINT);
    if (fake.submits++ == 0 || fake.interrupts) { /* as if the reply were lost */
        (void)snprintf(fake.first_id, sizeof fake.first_id, "%s", request->request_id);
        hd_rpc_call_fail(call, hd_err(HD_UNAVAILABLE, "going down"));
        return;
    }
    if (fake.submits == fake.refuse_at) {
        hd_rpc_call_fail(call, hd_err(HD_LIMIT, "too many jobs"));
        return;
    }
    fill_job(&job, HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED);
    job.reason = (char *)"no node";
    response.job = &job;
    if (fake.refuse_at) /* jobs 8, 9 .. */
        job.job = 6 + (uint64_t)fake.submits;
    if (fake.never_fits)
        response.never_fits = (char *)"needs 9 cpu devices; the cluster has 4 cpu devices in all";
    if (fake.warns)
        response.warning = (char *)warning;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* The jobs of a test, whatever is asked for, as a controller does that has no filter of names. */
static void list_given(struct hd_rpc_call *call)
{
    Heddle__V1__ListJobsResponse response = HEDDLE__V1__LIST_JOBS_RESPONSE__INIT;
    Heddle__V1__JobStatus jobs[4], *list[4];

    for (size_t i = 0; i < 4 && fake.listed[i].job; i++) {
        fill_job(&jobs[i], (Heddle__V1__JobState)fake.listed[i].state);
        jobs[i].job = fake.listed[i].job;
        jobs[i].name = (char *)(uintptr_t)fake.listed[i].name;
        if (fake.listed[i].owner)
            jobs[i].owner = (char *)(uintptr_t)fake.listed[i].owner;
        jobs[i].submitted_unix_ms = hd_clock_wall_ms() - 90 * 60 * 1000;
        list[response.n_jobs++] = &jobs[i];
    }
    response.jobs = list;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* One job on each of two pages. */
static void on_list(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListJobsRequest *request = (const Heddle__V1__ListJobsRequest *)message;
    Heddle__V1__ListJobsResponse response = HEDDLE__V1__LIST_JOBS_RESPONSE__INIT;
    Heddle__V1__JobStatus job, *jobs[] = {&job};

    fake.states = 0;
    for (size_t i = 0; i < request->n_states; i++)
        fake.states |= 1u << request->states[i];
    if (fake.listed[0].job) {
        list_given(call);
        return;
    }
    fill_job(&job, HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED);
    job.submitted_unix_ms = hd_clock_wall_ms() + fake.ahead_ms - 90 * 60 * 1000;
    job.expected_start_unix_ms = hd_clock_wall_ms() + fake.ahead_ms - 5000;
    if (fake.ahead_ms)
        response.time_unix_ms = hd_clock_wall_ms() + fake.ahead_ms;
    response.jobs = jobs;
    response.n_jobs = 1;
    response.next_page = (char *)(*request->page ? "" : "7");
    response.warning = (char *)(fake.warns ? warning : "");
    (void)hd_rpc_call_reply(call, &response.base);
}

static void on_validate(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ValidateJobResponse response = HEDDLE__V1__VALIDATE_JOB_RESPONSE__INIT;

    fake.validations++;
    if (fake.never_fits)
        response.never_fits = (char *)"needs 9 cpu devices; the cluster has 4 cpu devices in all";
    (void)hd_rpc_call_reply(call, &response.base);
}

/* Makes a job's steps of 1000 tokens take a second, and its plan predict this time for them. */
static void predict_job(Heddle__V1__JobStatus *job, double predicted_ms, const char *objective)
{
    static Heddle__V1__KeyValue key = HEDDLE__V1__KEY_VALUE__INIT;
    static Heddle__V1__KeyValue *keys[] = {&key};
    static Heddle__V1__ModelSpec model = HEDDLE__V1__MODEL_SPEC__INIT;
    static Heddle__V1__TrainSpec train = HEDDLE__V1__TRAIN_SPEC__INIT;
    static Heddle__V1__JobSpec spec = HEDDLE__V1__JOB_SPEC__INIT;
    static Heddle__V1__Plan plan = HEDDLE__V1__PLAN__INIT;
    static Heddle__V1__AttemptStatus attempt = HEDDLE__V1__ATTEMPT_STATUS__INIT;
    static Heddle__V1__AttemptStatus *attempts[] = {&attempt};

    train.global_batch = 10;
    model.context = 100;
    spec.train = &train;
    spec.model = &model;
    key.path = (char *)"train.objective";
    key.value = (char *)objective;
    spec.keys = keys;
    spec.n_keys = 1;
    plan.predicted_step_ms = predicted_ms;
    attempt.plan = &plan;
    job->spec = &spec;
    job->attempts = attempts;
    job->n_attempts = 1;
    job->tokens_per_s = 1000;
}

static void on_get(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__GetJobRequest *request = (const Heddle__V1__GetJobRequest *)message;
    Heddle__V1__GetJobResponse response = HEDDLE__V1__GET_JOB_RESPONSE__INIT;
    Heddle__V1__JobStatus job;

    fake.gets++;
    if (request->job == 4)
        hd_rpc_call_fail(call, hd_err(HD_NOT_FOUND, "there is no job 4"));
    else if (request->job == 5)
        hd_rpc_call_fail(call, hd_err(HD_DENIED, "job 5 is not yours"));
    else if (request->job == 6)
        hd_rpc_call_fail(call, hd_err(HD_INTERNAL, "a bug"));
    if (request->job < 7)
        return;
    fill_job(&job, HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED);
    job.attempt = 2;
    if (request->job >= 8)
        predict_job(&job, request->job == 9 ? 510 : 400,
                    request->job == 10 ? "grpo" : "next_token");
    response.job = &job;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* Two events of a node that sends codes for terminals wherever it can. */
static void on_events(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ListEventsResponse response = HEDDLE__V1__LIST_EVENTS_RESPONSE__INIT;
    Heddle__V1__Event odd = HEDDLE__V1__EVENT__INIT, sample = HEDDLE__V1__EVENT__INIT;
    Heddle__V1__Event *events[] = {&odd, &sample};

    odd.kind = (char *)"no\033[2Jte";
    odd.message = (char *)"a\033[2Jb";
    odd.rank = sample.rank = -1;
    sample.kind = (char *)"sample";
    sample.message =
        (char *)"step 2, prompt 1 of 1: \"a\\u001b[2J\" -> \"b\" (stop, reward \033[2J)";
    response.events = events;
    response.n_events = 2;
    (void)hd_rpc_call_reply(call, &response.base);
}

static void on_cancel(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__CancelJobResponse response = HEDDLE__V1__CANCEL_JOB_RESPONSE__INIT;
    Heddle__V1__JobStatus job;

    fake.cancels++;
    fill_job(&job, HEDDLE__V1__JOB_STATE__JOB_STATE_STOPPING);
    response.job = &job;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* n1 is drained, with a deadline at 2026-11-24 06:40 UTC. */
static void on_nodes(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ListNodesResponse response = HEDDLE__V1__LIST_NODES_RESPONSE__INIT;
    Heddle__V1__NodeStatus node = HEDDLE__V1__NODE_STATUS__INIT, *nodes[] = {&node};

    node.name = (char *)"n1";
    node.state = fake.node_lost ? HEDDLE__V1__NODE_STATE__NODE_STATE_LOST
                                : HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINING;
    node.reason = (char *)(fake.node_lost ? "is lost" : "is draining: disk");
    node.drain_deadline_unix_ms = fake.deadline_ms;
    response.nodes = nodes;
    response.n_nodes = 1;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* A queued job that should have started five seconds ago. */
static void on_explain(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ExplainJobResponse response = HEDDLE__V1__EXPLAIN_JOB_RESPONSE__INIT;
    Heddle__V1__JobStatus job;

    fill_job(&job, HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED);
    job.expected_start_unix_ms = hd_clock_wall_ms() - 5000;
    response.job = &job;
    (void)hd_rpc_call_reply(call, &response.base);
}

static void on_probe(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ProbeNodeResponse response = HEDDLE__V1__PROBE_NODE_RESPONSE__INIT;

    (void)hd_rpc_call_reply(call, &response.base);
}

/* Answers about all nodes: n1 is silent from the second look on, and from the third on it counts as
 * lost, and n2 has measured; n3 is removed then. */
static void show_all_nodes(struct hd_rpc_call *call)
{
    Heddle__V1__GetTopologyResponse response = HEDDLE__V1__GET_TOPOLOGY_RESPONSE__INIT;
    Heddle__V1__NodeTopology n1 = HEDDLE__V1__NODE_TOPOLOGY__INIT, n2 = n1, n3 = n1;
    Heddle__V1__NodeTopology *nodes[] = {&n1, &n2, &n3};
    Heddle__V1__NodeProbe asked = HEDDLE__V1__NODE_PROBE__INIT, measured = asked;
    const int look = fake.topologies++;

    asked.pending = look < 2;
    measured.pending = look < 2;
    measured.ended_unix_ms = measured.measured_unix_ms = look < 2 ? 0 : 1;
    n1.node = (char *)"n1";
    n1.probe = &asked;
    n1.silent_ms = look < 1 ? 0 : look < 2 ? 3000 : 40000;
    n2.node = (char *)"n2";
    n2.probe = &measured;
    n3.node = (char *)"n3";
    n3.probe = &asked;
    response.nodes = nodes;
    response.n_nodes = look < 2 ? 3 : 2;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* n1 never answers what it was asked to measure; from the second look on, nothing came from it for
 * three seconds. */
static void on_topology(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__GetTopologyRequest *request = (const void *)message;
    Heddle__V1__GetTopologyResponse response = HEDDLE__V1__GET_TOPOLOGY_RESPONSE__INIT;
    Heddle__V1__NodeTopology node = HEDDLE__V1__NODE_TOPOLOGY__INIT, *nodes[] = {&node};
    Heddle__V1__NodeProbe probe = HEDDLE__V1__NODE_PROBE__INIT;

    if (!*request->node) {
        show_all_nodes(call);
        return;
    }
    probe.pending = true;
    node.node = (char *)"n1";
    node.probe = &probe;
    node.silent_ms = fake.topologies++ ? 3000 : 0;
    response.nodes = nodes;
    response.n_nodes = 1;
    (void)hd_rpc_call_reply(call, &response.base);
}

static void send_status(struct hd_rpc_call *call)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__JobStatus job;

    fill_job(&job, HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING);
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS;
    entry.status = &job;
    (void)hd_rpc_call_write(call, &entry.base);
}

static void send_step(struct hd_rpc_call *call, int64_t step)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__StepReport report = HEDDLE__V1__STEP_REPORT__INIT;

    entry.sequence = (uint64_t)step;
    entry.attempt = 1;
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP;
    entry.step = &report;
    report.step = step;
    report.time_unix_ms = 1000 * step;
    (void)hd_rpc_call_write(call, &entry.base);
}

static void send_end(struct hd_rpc_call *call, Heddle__V1__JobState state)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__JobEnd end = HEDDLE__V1__JOB_END__INIT;

    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END;
    entry.end = &end;
    end.state = state;
    end.step = 2;
    end.attempts = 1;
    (void)hd_rpc_call_write(call, &entry.base);
    hd_rpc_call_finish(call);
}

/* Job 7 breaks off after its first step and succeeds after the second; job 8 has failed. */
static void on_watch(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__WatchJobRequest *request = (const Heddle__V1__WatchJobRequest *)message;
    int n = fake.watches++ % 8;

    fake.after[n] = request->after_sequence;
    fake.new_only[n] = request->new_only;
    if (request->job == 4) {
        hd_rpc_call_fail(call, hd_err(HD_NOT_FOUND, "there is no job 4"));
        return;
    }
    send_status(call);
    if (request->job == 8) {
        send_end(call, HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED);
        return;
    }
    send_step(call, (int64_t)request->after_sequence + 1);
    if (fake.hold)
        return;
    if (request->after_sequence) {
        send_end(call, HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED);
        return;
    }
    hd_rpc_call_finish(call); /* broken off: no end was sent */
}

static void send_log(struct hd_rpc_call *call, int32_t attempt, int64_t offset, const char *text)
{
    Heddle__V1__ReadLogResponse chunk = HEDDLE__V1__READ_LOG_RESPONSE__INIT;

    chunk.attempt = attempt;
    chunk.offset_bytes = offset;
    chunk.data.data = (uint8_t *)text;
    chunk.data.len = strlen(text);
    (void)hd_rpc_call_write(call, &chunk.base);
}

static void on_timer(uv_timer_t *timer)
{
    hd_rpc_call_fail(fake.broken, hd_err(HD_UNAVAILABLE, "going down"));
    hd_rpc_call_unref(fake.broken);
}

/* Attempt 1 wrote "hello\n", broken off after three bytes, and the second try fails at once;
 * attempt 2 wrote "again\n". */
static void on_read_log(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ReadLogRequest *request = (const Heddle__V1__ReadLogRequest *)message;
    int n = fake.reads++ % 8;

    fake.offset[n] = request->offset_bytes;
    fake.attempt[n] = request->attempt;
    if (n == 0) {
        send_log(call, 1, 0, "hel");
        fake.broken = hd_rpc_call_ref(call);
        (void)uv_timer_start(&fake.timer, on_timer, 200, 0);
        return;
    }
    if (n == 1) {
        hd_rpc_call_fail(call, hd_err(HD_UNAVAILABLE, "starting"));
        return;
    }
    if (request->attempt == 1)
        send_log(call, 1, request->offset_bytes, &"hello\n"[request->offset_bytes]);
    else
        send_log(call, 2, 0, "again\n");
    hd_rpc_call_finish(call);
}

static void on_stop(uv_async_t *stop)
{
    hd_rpc_close(fake.rpc, NULL, NULL);
    uv_close((uv_handle_t *)stop, NULL);
    uv_close((uv_handle_t *)&fake.meet, NULL);
    uv_close((uv_handle_t *)&fake.timer, NULL);
    for (int i = 0; i < WAYS && fake.ways[i]; i++)
        delay_proxy_close(fake.ways[i]);
}

static void on_meet(uv_async_t *meet)
{
    (void)sem_post(&fake.met);
}

/* Both threads have seen what the other wrote before. */
void meet(void)
{
    (void)uv_async_send(&fake.meet);
    while (sem_wait(&fake.met) < 0) /* a signal came in between */
        ;
}

static void *run_loop(void *unused)
{
    (void)uv_run(&fake.loop, UV_RUN_DEFAULT);
    return NULL;
}

static void add_method(const char *path, enum hd_rpc_kind kind,
                       const ProtobufCMessageDescriptor *request,
                       const ProtobufCMessageDescriptor *response,
                       void (*on_open)(struct hd_rpc_call *, const ProtobufCMessage *))
{
    const struct hd_rpc_method method = {.path = path,
                                         .kind = kind,
                                         .request = request,
                                         .response = response,
                                         .handler = {.on_open = on_open}};

    assert_int_equal(hd_rpc_server_add_method(fake.server, &method), HD_OK);
}

/* A certificate for 127.0.0.1 that is its own authority, and a token, in files. */
static void make_credentials(void)
{
    char command[512], path[128];

    (void)snprintf(
        command, sizeof command,
        "cd '%s' && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-days 2 -keyout key.pem -out cert.pem -subj /CN=controller "
        "-addext subjectAltName=IP:127.0.0.1 2>openssl.log",
        fake.dir);
    assert_int_equal(system(command), 0);
    (void)snprintf(path, sizeof path, "%s/token", fake.dir);
    assert_int_equal(hd_file_write_atomic(path, TOKEN, strlen(TOKEN), 0600), HD_OK);
}

/* Opens a port with TLS, and ways of several lengths to it. */
static void open_ways(void)
{
    int port;

    if (hd_rpc_server_listen(fake.server, "127.0.0.1:0", &port))
        fail_msg("%s", hd_err_message());
    for (int i = 0; i < WAYS; i++)
        fake.ways[i] = delay_proxy_open(&fake.loop, port, round_trips_ms[i], &fake.ports[i]);
}

static int start(bool far)
{
    char cert[128], key[128];
    const struct hd_rpc_tls tls = {.cert_path = cert, .key_path = key};
    struct hd_rpc_token token = {.token = TOKEN};
    const struct hd_rpc_tokens tokens = {.items = &token, .count = far};
    const struct hd_rpc_server_options options = {.tokens = &tokens, .tls = far ? &tls : NULL};

    fake = (struct fake){.hold = false};
    (void)snprintf(fake.dir, sizeof fake.dir, "%.44s/cli-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(fake.dir));
    (void)snprintf(fake.address, sizeof fake.address, "unix:%s/c.sock", fake.dir);
    (void)snprintf(cert, sizeof cert, "%s/cert.pem", fake.dir);
    (void)snprintf(key, sizeof key, "%s/key.pem", fake.dir);
    if (far)
        make_credentials();
    assert_int_equal(uv_loop_init(&fake.loop), 0);
    assert_int_equal(hd_rpc_new(&fake.loop, &fake.rpc), HD_OK);
    assert_int_equal(hd_rpc_server_new(fake.rpc, &options, &fake.server), HD_OK);
    add_method("/heddle.v1.Control/SubmitJob", HD_RPC_UNARY,
               &heddle__v1__submit_job_request__descriptor,
               &heddle__v1__submit_job_response__descriptor, on_submit);
    add_method("/heddle.v1.Control/ValidateJob", HD_RPC_UNARY,
               &heddle__v1__validate_job_request__descriptor,
               &heddle__v1__validate_job_response__descriptor, on_validate);
    add_method("/heddle.v1.Control/ListJobs", HD_RPC_UNARY,
               &heddle__v1__list_jobs_request__descriptor,
               &heddle__v1__list_jobs_response__descriptor, on_list);
    add_method("/heddle.v1.Control/GetJob", HD_RPC_UNARY, &heddle__v1__get_job_request__descriptor,
               &heddle__v1__get_job_response__descriptor, on_get);
    add_method("/heddle.v1.Control/ListEvents", HD_RPC_UNARY,
               &heddle__v1__list_events_request__descriptor,
               &heddle__v1__list_events_response__descriptor, on_events);
    add_method("/heddle.v1.Control/CancelJob", HD_RPC_UNARY,
               &heddle__v1__cancel_job_request__descriptor,
               &heddle__v1__cancel_job_response__descriptor, on_cancel);
    add_method("/heddle.v1.Control/ListNodes", HD_RPC_UNARY,
               &heddle__v1__list_nodes_request__descriptor,
               &heddle__v1__list_nodes_response__descriptor, on_nodes);
    add_method("/heddle.v1.Control/ExplainJob", HD_RPC_UNARY,
               &heddle__v1__explain_job_request__descriptor,
               &heddle__v1__explain_job_response__descriptor, on_explain);
    add_method("/heddle.v1.Control/ProbeNode", HD_RPC_UNARY,
               &heddle__v1__probe_node_request__descriptor,
               &heddle__v1__probe_node_response__descriptor, on_probe);
    add_method("/heddle.v1.Control/GetTopology", HD_RPC_UNARY,
               &heddle__v1__get_topology_request__descriptor,
               &heddle__v1__get_topology_response__descriptor, on_topology);
    add_method("/heddle.v1.Control/WatchJob", HD_RPC_SERVER_STREAM,
               &heddle__v1__watch_job_request__descriptor,
               &heddle__v1__watch_job_response__descriptor, on_watch);
    add_method("/heddle.v1.Control/ReadLog", HD_RPC_SERVER_STREAM,
               &heddle__v1__read_log_request__descriptor,
               &heddle__v1__read_log_response__descriptor, on_read_log);
    if (hd_rpc_server_listen(fake.server, fake.address, NULL))
        fail_msg("%s", hd_err_message());
    if (far)
        open_ways();
    assert_int_equal(hd_rpc_server_start(fake.server), HD_OK);
    assert_int_equal(uv_timer_init(&fake.loop, &fake.timer), 0);
    assert_int_equal(uv_async_init(&fake.loop, &fake.stop, on_stop), 0);
    assert_int_equal(uv_async_init(&fake.loop, &fake.meet, on_meet), 0);
    assert_int_equal(sem_init(&fake.met, 0, 0), 0);
    return pthread_create(&fake.thread, NULL, run_loop, NULL);
}

int start_fake(void **state)
{
    return start(false);
}

int start_far(void **state)
{
    return start(true);
}

int stop_fake(void **state)
{
    (void)uv_async_send(&fake.stop);
    (void)pthread_join(fake.thread, NULL);
    assert_int_equal(uv_loop_close(&fake.loop), 0);
    return hd_file_remove_tree(fake.dir) ? -1 : 0;
}

/* ---- the program ---- */

enum { ARGS_MAX = 12 };

void exec_heddle(const char *words, int out, int err)
{
    char copy[512], program[512], *argv[ARGS_MAX + 4];
    const char *build = getenv("HEDDLE_BUILD_DIR");
    int argc = 0;

    (void)snprintf(program, sizeof program, "%s/bin/heddle", build ? build : "build/dev");
    (void)snprintf(copy, sizeof copy, "%s", words);
    argv[argc++] = program;
    for (char *word = strtok(copy, " "); word && argc < ARGS_MAX; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    (void)setenv(HD_RPC_CONTROLLER_ENV, fake.address, 1);
    (void)dup2(out, STDOUT_FILENO);
    (void)dup2(err, STDERR_FILENO);
    (void)execv(program, argv);
    _exit(99);
}

static void read_back(int fd, char *ret_text, size_t size_bytes)
{
    ssize_t n = pread(fd, ret_text, size_bytes - 1, 0);

    ret_text[n > 0 ? n : 0] = '\0';
    (void)close(fd);
}

/* Runs `heddle WORDS`; with a signal, sends it once the program has printed something. */
struct run heddle(const char *words, int signal_number)
{
    int out = open(fake.dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int err = open(fake.dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int64_t end_ms = hd_clock_now_ms() + RUN_MS;
    struct run run = {.code = -1};
    int status = 0;
    pid_t pid;

    assert_true(out >= 0 && err >= 0);
    meet();
    pid = fork();
    if (pid == 0)
        exec_heddle(words, out, err);
    assert_true(pid > 0);
    fake.pid = pid;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (signal_number && lseek(out, 0, SEEK_END) > 0) {
            (void)kill(pid, signal_number);
            signal_number = 0;
        }
        if (hd_clock_now_ms() > end_ms)
            (void)kill(pid, SIGKILL);
        (void)usleep(5000);
    }
    meet();
    run.code = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
    read_back(out, run.out, sizeof run.out);
    read_back(err, run.err, sizeof run.err);
    return run;
}

void put_job_file(char ret_path[128])
{
    static const char job[] =
        "name: tiny\nmodel: {family: llama, layers: 1, hidden: 16, heads: 2, context: 4}\n"
        "data: {train: [text]}\ntrain: {steps: 2, global_batch: 2, lr: 0.1}\n";

    (void)snprintf(ret_path, 128, "%s/text", fake.dir);
    assert_int_equal(hd_file_write_atomic(ret_path, job, sizeof job - 1, 0644), HD_OK);
    (void)snprintf(ret_path, 128, "%s/job.yaml", fake.dir);
    assert_int_equal(hd_file_write_atomic(ret_path, job, sizeof job - 1, 0644), HD_OK);
}
