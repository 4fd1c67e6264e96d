/* The heddle program against a controller that misbehaves on purpose: exit codes, retries under one
 * request id, watching and logs through breaks of the connection.
 *
 * The controller is a Control service with a script, on a loop in a thread of this process; the
 * program under test is the real one, in a process of its own. */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "heddle/v1/control.pb-c.h"
#include "rpc/find.h"
#include "rpc/rpc.h"
#include "tests/delay_proxy.h"

#define TOKEN "0123456789abcdef0123456789abcdef"

enum { WAYS = 4 }; /* to the controller's port, each longer than the one before */

static const int64_t round_trips_ms[WAYS] = {0, 50, 150, 300};

/* ---- the controller ---- */

static struct fake {
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_server *server;
    uv_async_t stop, meet;
    sem_t met;
    uv_timer_t timer;
    struct hd_rpc_call *broken; /* fails when the timer says so */
    pthread_t thread;
    char dir[64], address[128];
    struct delay_proxy *ways[WAYS]; /* open_ways; else NULL */
    int ports[WAYS];
    /* touched by the loop's thread only while a program runs, by the test only while none does */
    int submits, watches, reads, cancels, gets, topologies;
    char first_id[80], last_id[80];
    uint64_t after[8];  /* of each WatchJob */
    bool new_only[8];   /* likewise */
    int64_t offset[8];  /* of each ReadLog */
    int32_t attempt[8]; /* likewise */
    bool hold;          /* WatchJob sends its first messages and stays open */
    bool warns;         /* that the limit is near */
    int64_t ahead_ms;   /* its clock, before the program's; 0: it does not tell the time */
} fake;

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
    if (fake.submits++ == 0) { /* as if the reply were lost */
        (void)snprintf(fake.first_id, sizeof fake.first_id, "%s", request->request_id);
        hd_rpc_call_fail(call, hd_err(HD_UNAVAILABLE, "going down"));
        return;
    }
    fill_job(&job, HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED);
    job.reason = (char *)"no node";
    response.job = &job;
    if (fake.warns)
        response.warning = (char *)warning;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* One job on each of two pages. */
static void on_list(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListJobsRequest *request = (const Heddle__V1__ListJobsRequest *)message;
    Heddle__V1__ListJobsResponse response = HEDDLE__V1__LIST_JOBS_RESPONSE__INIT;
    Heddle__V1__JobStatus job, *jobs[] = {&job};

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
    response.job = &job;
    (void)hd_rpc_call_reply(call, &response.base);
}

static void on_cancel(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__CancelJobResponse response = HEDDLE__V1__CANCEL_JOB_RESPONSE__INIT;
    Heddle__V1__JobStatus job;

    (void)message;
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

    (void)message;
    node.name = (char *)"n1";
    node.state = HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINING;
    node.reason = (char *)"is draining: disk";
    node.drain_deadline_unix_ms = 1795502400000;
    response.nodes = nodes;
    response.n_nodes = 1;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* A queued job that should have started five seconds ago. */
static void on_explain(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ExplainJobResponse response = HEDDLE__V1__EXPLAIN_JOB_RESPONSE__INIT;
    Heddle__V1__JobStatus job;

    (void)message;
    fill_job(&job, HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED);
    job.expected_start_unix_ms = hd_clock_wall_ms() - 5000;
    response.job = &job;
    (void)hd_rpc_call_reply(call, &response.base);
}

static void on_probe(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__ProbeNodeResponse response = HEDDLE__V1__PROBE_NODE_RESPONSE__INIT;

    (void)message;
    (void)hd_rpc_call_reply(call, &response.base);
}

/* n1 never answers what it was asked to measure; from the second look on, nothing came from it for
 * three seconds. */
static void on_topology(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__GetTopologyResponse response = HEDDLE__V1__GET_TOPOLOGY_RESPONSE__INIT;
    Heddle__V1__NodeTopology node = HEDDLE__V1__NODE_TOPOLOGY__INIT, *nodes[] = {&node};
    Heddle__V1__NodeProbe probe = HEDDLE__V1__NODE_PROBE__INIT;

    (void)message;
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
    (void)timer;
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
    (void)meet;
    (void)sem_post(&fake.met);
}

/* Both threads have seen what the other wrote before. */
static void meet(void)
{
    (void)uv_async_send(&fake.meet);
    while (sem_wait(&fake.met) < 0) /* a signal came in between */
        ;
}

static void *run_loop(void *unused)
{
    (void)unused;
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
    add_method("/heddle.v1.Control/ListJobs", HD_RPC_UNARY,
               &heddle__v1__list_jobs_request__descriptor,
               &heddle__v1__list_jobs_response__descriptor, on_list);
    add_method("/heddle.v1.Control/GetJob", HD_RPC_UNARY, &heddle__v1__get_job_request__descriptor,
               &heddle__v1__get_job_response__descriptor, on_get);
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

static int start_fake(void **state)
{
    (void)state;
    return start(false);
}

static int start_far(void **state)
{
    (void)state;
    return start(true);
}

static int stop_fake(void **state)
{
    (void)state;
    (void)uv_async_send(&fake.stop);
    (void)pthread_join(fake.thread, NULL);
    assert_int_equal(uv_loop_close(&fake.loop), 0);
    return hd_file_remove_tree(fake.dir) ? -1 : 0;
}

/* ---- the program ---- */

enum { ARGS_MAX = 12, RUN_MS = 30000 };

struct run {
    int code; /* exit code, or 256 + signal */
    char out[4096], err[4096];
};

static void exec_heddle(const char *words, int out, int err)
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
static struct run heddle(const char *words, int signal_number)
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

static void put_job_file(char ret_path[128])
{
    static const char job[] =
        "name: tiny\nmodel: {family: llama, layers: 1, hidden: 16, heads: 2, context: 4}\n"
        "data: {train: [text]}\ntrain: {steps: 2, global_batch: 2, lr: 0.1}\n";

    (void)snprintf(ret_path, 128, "%s/text", fake.dir);
    assert_int_equal(hd_file_write_atomic(ret_path, job, sizeof job - 1, 0644), HD_OK);
    (void)snprintf(ret_path, 128, "%s/job.yaml", fake.dir);
    assert_int_equal(hd_file_write_atomic(ret_path, job, sizeof job - 1, 0644), HD_OK);
}

/* ---- tests ---- */

static void what_the_controller_says_decides_the_exit_code(void **state)
{
    struct run run;

    (void)state;
    run = heddle("show 4", 0);
    assert_int_equal(run.code, 4);
    assert_string_equal(run.err, "heddle: there is no job 4\n");
    assert_string_equal(run.out, "");
    assert_int_equal(heddle("show 5", 0).code, 5);
    assert_int_equal(heddle("show 6", 0).code, 6);
    assert_int_equal(heddle("watch 4", 0).code, 4);
    assert_int_equal(heddle("show 7", 0).code, 0);
    assert_int_equal(heddle("show seven", 0).code, 2);
    assert_int_equal(heddle("show 7 --controller unix:/nonexistent/c.sock", 0).code, 3);
}

static void a_lost_reply_is_asked_for_again_under_one_request_id(void **state)
{
    char path[128], words[160];
    struct run run;

    (void)state;
    put_job_file(path);
    (void)snprintf(words, sizeof words, "submit %s", path);
    run = heddle(words, 0);
    assert_string_equal(run.out, "job 7 tiny queued: no node\n");
    assert_int_equal(run.code, 0);
    assert_int_equal(fake.submits, 2);
    assert_string_equal(fake.first_id, fake.last_id);
    assert_int_equal(strlen(fake.first_id), 32);
    (void)snprintf(words, sizeof words, "submit %s -q --request-id abcdefgh01234567", path);
    run = heddle(words, 0);
    assert_string_equal(run.out, "7\n");
    assert_string_equal(fake.last_id, "abcdefgh01234567");
}

static void a_bad_job_file_never_reaches_the_controller(void **state)
{
    char path[128], words[160];

    (void)state;
    put_job_file(path);
    (void)snprintf(words, sizeof words, "submit %s --set parallel.tp=2", path);
    assert_int_equal(heddle(words, 0).code, 2);
    assert_int_equal(fake.submits, 0);
}

static void watching_goes_on_where_it_broke_off(void **state)
{
    struct run run = heddle("watch 7 -o jsonl", 0);

    (void)state;
    assert_int_equal(run.code, 0);
    assert_int_equal(fake.watches, 2);
    assert_int_equal(fake.after[0], 0);
    assert_int_equal(fake.after[1], 1); /* the first step's sequence */
    assert_string_equal(
        run.out,
        "{\"type\":\"event\",\"job\":7,\"attempt\":1,\"kind\":\"state\",\"state\":\"running\","
        "\"reason\":\"\"}\n"
        "{\"type\":\"step\",\"job\":7,\"attempt\":1,\"step\":1,\"loss\":0,\"grad_norm\":0,\"lr\":0,"
        "\"tokens\":0,\"tokens_per_s\":0,\"step_ms\":0,\"mfu\":null,"
        "\"time\":\"1970-01-01T00:00:01.000Z\"}\n"
        "{\"type\":\"step\",\"job\":7,\"attempt\":1,\"step\":2,\"loss\":0,\"grad_norm\":0,\"lr\":0,"
        "\"tokens\":0,\"tokens_per_s\":0,\"step_ms\":0,\"mfu\":null,"
        "\"time\":\"1970-01-01T00:00:02.000Z\"}\n"
        "{\"type\":\"end\",\"job\":7,\"attempt\":0,\"state\":\"succeeded\",\"reason\":\"\","
        "\"attempts\":1,\"step\":2,\"end\":null}\n");
}

static void lines_without_a_terminal_have_no_cursor_codes(void **state)
{
    struct run run = heddle("watch 7", 0);

    (void)state;
    assert_int_equal(run.code, 0);
    assert_null(strchr(run.out, '\033'));
    assert_null(strchr(run.err, '\033'));
    assert_string_equal(run.out, "step 1/2  loss 0.000000  grad_norm 0  lr 0\n"
                                 "step 2/2  loss 0.000000  grad_norm 0  lr 0\n"
                                 "job succeeded at step 2, loss 0.000000\n");
    assert_string_equal(run.err, "heddle: the controller is back\n");
}

static void wait_asks_for_the_end_only_and_ends_like_the_job(void **state)
{
    struct run run = heddle("wait 8", 0);

    (void)state;
    assert_int_equal(run.code, 1);
    assert_true(fake.new_only[0]);
    assert_string_equal(run.out, "job 8 failed at step 2\n");
}

static void ctrl_c_ends_the_watching_and_not_the_job(void **state)
{
    struct run run;

    (void)state;
    fake.hold = true;
    run = heddle("watch 7", SIGINT);
    assert_int_equal(run.code, 130);
    assert_non_null(strstr(run.err, "job 7 goes on"));
    assert_int_equal(fake.cancels, 0);
}

/* As a program that does not take the signal: 128 and its number. */
static void sigterm_ends_the_watching_with_143(void **state)
{
    struct run run;

    (void)state;
    fake.hold = true;
    run = heddle("watch 7", SIGTERM);
    assert_int_equal(run.code, 143);
    assert_non_null(strstr(run.err, "job 7 goes on"));
    assert_int_equal(fake.cancels, 0);
}

/* ---- a long way ---- */

static struct run heddle_over(int way, const char *words)
{
    char line[512];

    (void)snprintf(line, sizeof line,
                   "%s --controller 127.0.0.1:%d --token-file %s/token --tls-ca %s/cert.pem", words,
                   fake.ports[way], fake.dir, fake.dir);
    return heddle(line, 0);
}

static void a_far_controller_is_read_as_a_near_one(void **state)
{
    struct run run;

    (void)state;
    for (int i = 0; i < WAYS; i++) {
        run = heddle_over(i, "show 7");
        if (run.code)
            fail_msg("at %d ms: exit code %d: %s", (int)round_trips_ms[i], run.code, run.err);
    }
    run = heddle_over(WAYS - 1, "wait 8"); /* a stream; job 8 has failed */
    assert_string_equal(run.out, "job 8 failed at step 2\n");
    assert_int_equal(run.code, 1);
}

/* ---- on a terminal ---- */

/* Reads what the program writes to the terminal until it says `text` (or, NULL, nothing more
 * comes). Adds it to ret_seen. */
static void read_terminal(int terminal, const char *text, char *ret_seen, size_t size_bytes)
{
    int64_t end_ms = hd_clock_now_ms() + 10000;
    size_t len = strlen(ret_seen);

    while (hd_clock_now_ms() < end_ms && len + 1 < size_bytes &&
           !(text && strstr(ret_seen, text))) {
        struct pollfd ready = {.fd = terminal, .events = POLLIN};
        ssize_t n =
            poll(&ready, 1, 100) > 0 ? read(terminal, ret_seen + len, size_bytes - len - 1) : 0;

        if (n < 0) /* EIO: the program has ended */
            break;
        len += (size_t)n;
        ret_seen[len] = '\0';
    }
}

/* The longest run of printable text between control sequences, in columns. */
static int longest_line(const char *seen)
{
    int longest = 0, width = 0;

    for (const char *p = seen; *p; p++) {
        if (*p == '\033') {
            p += strcspn(p, "JmA"); /* the ends of the sequences that are used */
            continue;
        }
        width = *p == '\r' || *p == '\n' ? 0 : width + (((unsigned char)*p & 0xC0) != 0x80);
        longest = width > longest ? width : longest;
    }
    return longest;
}

/* Reads until the bar has been drawn for `columns`: longer than before, if there is more room now.
 * A redraw for the old width may come first. Returns where the last one begins. */
static const char *read_redraw(int terminal, int columns, int before, char *ret_seen,
                               size_t size_bytes)
{
    const int64_t end_ms = hd_clock_now_ms() + 10000;
    const char *last = ret_seen;

    do {
        char more[4096] = "";
        const size_t len = strlen(ret_seen);
        int longest;

        read_terminal(terminal, "\r", more, sizeof more);
        (void)snprintf(ret_seen + len, size_bytes - len, "%s", more);
        for (const char *p = ret_seen; (p = strchr(p, '\r')) != NULL; p++)
            if (strstr(p, "1/2"))
                last = p;
        longest = longest_line(last);
        if (strstr(last, "1/2") && longest < columns && (columns < before || longest >= before))
            return last;
    } while (hd_clock_now_ms() < end_ms);
    return last;
}

/* Starts `heddle WORDS` on a terminal of its own. */
static pid_t start_on_terminal(const char *words, int columns, int *ret_terminal)
{
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    pid_t pid = forkpty(ret_terminal, NULL, NULL, &size);

    if (pid < 0) {
        print_message("no terminal can be made here: %s\n", strerror(errno));
        skip();
    }
    if (pid == 0) {
        (void)setenv("TERM", "xterm", 1);
        (void)setenv("LC_ALL", "C", 1);
        (void)unsetenv("NO_COLOR");
        exec_heddle(words, STDOUT_FILENO, STDERR_FILENO);
    }
    return pid;
}

/* Goal: the bar never wraps, follows changes of the terminal's size, and is gone at the end.
 * Method: a terminal that becomes wider and narrower; each time the line must be drawn anew, with
 * fewer columns than the terminal has. What it has at a width is in cli_test. */
static void on_a_terminal_there_is_a_bar_that_fits(void **state)
{
    static const int widths[] = {300, 40, 160, 20, 80, 21};
    static char seen[65536];
    size_t before;
    int terminal, status, columns = 60;
    pid_t pid;

    (void)state;
    fake.hold = true;
    meet();
    seen[0] = '\0';
    pid = start_on_terminal("watch 7", 60, &terminal);
    read_terminal(terminal, "1/2", seen, sizeof seen);
    assert_non_null(strstr(seen, " 50% \033[32m#"));
    assert_in_range(longest_line(seen), 40, 59);

    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)widths[i]};
        const char *last;

        before = strlen(seen);
        assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0); /* sends SIGWINCH */
        last = read_redraw(terminal, widths[i], columns, seen + before, sizeof seen - before);
        assert_non_null(strstr(last, "1/2"));
        assert_in_range(longest_line(last), 7, widths[i] - 1);
        columns = widths[i];
        if (widths[i] == 40) { /* the old bar of 299 columns now covers eight rows */
            read_terminal(terminal, "\033[7A", seen + before, sizeof seen - before);
            assert_non_null(strstr(seen + before, "\033[7A"));
        }
    }

    before = strlen(seen);
    assert_int_equal(kill(pid, SIGINT), 0);
    read_terminal(terminal, NULL, seen + before, sizeof seen - before);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 130);
    assert_true(hd_text_starts(seen + before, "\r\033[J"));
    assert_null(strstr(seen + before, "1/2")); /* not drawn again */
    (void)close(terminal);
}

/* A port at which nobody answers: the kernel completes the connection, and that is all. */
static int open_silent_port(int *ret_port)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t own_bytes = sizeof own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &own_bytes), 0);
    *ret_port = ntohs(own.sin_port);
    return fd;
}

static void on_a_terminal_a_wait_is_told_after_a_second(void **state)
{
    static const char *const verbs[] = {"show 7", "wait 7", "logs 7"};
    static char seen[4096];
    char words[256], expected[96];
    int terminal, status, port, fd = open_silent_port(&port);
    int64_t begin_ms;
    pid_t pid;

    (void)state;
    (void)snprintf(expected, sizeof expected, "no answer from 127.0.0.1:%d yet", port);
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        (void)snprintf(words, sizeof words, "%s --controller 127.0.0.1:%d --token-file %s/token",
                       verbs[i], port, fake.dir);
        meet();
        seen[0] = '\0';
        begin_ms = hd_clock_now_ms();
        pid = start_on_terminal(words, 80, &terminal);
        read_terminal(terminal, expected, seen, sizeof seen);
        assert_non_null(strstr(seen, expected));
        assert_true(hd_clock_now_ms() - begin_ms >= 990);
        assert_int_equal(kill(pid, SIGINT), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        (void)close(terminal);
    }
    (void)close(fd);
}

static void on_a_terminal_errors_are_red(void **state)
{
    static char seen[4096];
    int terminal, status;
    pid_t pid;

    (void)state;
    meet();
    seen[0] = '\0';
    pid = start_on_terminal("show 4", 80, &terminal);
    read_terminal(terminal, NULL, seen, sizeof seen);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_string_equal(seen, "\033[31mheddle:\033[0m there is no job 4\r\n");
    (void)close(terminal);

    seen[0] = '\0';
    pid = start_on_terminal("show 4 --color never", 80, &terminal);
    read_terminal(terminal, NULL, seen, sizeof seen);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_string_equal(seen, "heddle: there is no job 4\r\n");
    (void)close(terminal);
}

static void logs_go_on_at_the_next_byte_and_with_the_next_attempt(void **state)
{
    struct run run = heddle("logs 7 -f", 0);

    (void)state;
    assert_string_equal(run.out, "hello\nagain\n");
    assert_int_equal(run.code, 0);
    assert_int_equal(fake.reads, 4);
    assert_int_equal(fake.attempt[0], 0); /* the newest, whichever that is */
    assert_int_equal(fake.attempt[2], 1); /* from then on the one that was read */
    assert_int_equal(fake.offset[2], 3);
    assert_int_equal(fake.attempt[3], 2);
    assert_int_equal(fake.offset[3], 0);
}

/* Once, whatever the number of pages, and never where lists are read by programs. */
static void a_warning_of_the_controller_is_shown_beside_the_answer(void **state)
{
    char path[128], words[160];
    struct run run;

    (void)state;
    fake.submits = 1; /* no reply is lost */
    put_job_file(path);
    (void)snprintf(words, sizeof words, "submit -q %s", path);
    run = heddle(words, 0);
    assert_int_equal(run.code, 0);
    assert_string_equal(run.err, "");
    assert_string_equal(heddle("jobs", 0).err, "");
    assert_string_equal(heddle("jobs -n 1", 0).err, /* of the two that the fake has */
                        "heddle: there are more jobs; -n N shows so many\n");
    fake.warns = true;
    run = heddle(words, 0);
    assert_string_equal(run.out, "7\n");
    assert_string_equal(run.err,
                        "heddle: 9 jobs are queued or running; at 10 new ones are refused\n");
    run = heddle("jobs", 0);
    assert_int_equal(run.code, 0);
    assert_string_equal(run.err,
                        "heddle: 9 jobs are queued or running; at 10 new ones are refused\n");
    assert_null(strstr(heddle("jobs -o json", 0).out, "refused"));
}

/* Goal: a controller whose clock is an hour ahead, two days behind, or which does not tell its time
 * (as older ones), has a job that was submitted 90 minutes ago, not 30, nor two days. */
static void ages_count_by_the_controllers_clock(void **state)
{
    static const int64_t ahead_ms[] = {3600 * 1000, -2 * 86400 * (int64_t)1000, 0};

    (void)state;
    for (size_t i = 0; i < sizeof ahead_ms / sizeof ahead_ms[0]; i++) {
        struct run run;

        fake.ahead_ms = ahead_ms[i];
        run = heddle("jobs -n 1", 0);
        if (!strstr(run.out, " 1h30m"))
            fail_msg("%s", run.out);
    }
}

/* Goal: of a start that is late people are told that it may come at any moment, and no time that
 * has passed. */
static void a_start_in_the_past_is_not_shown(void **state)
{
    struct run run;

    (void)state;
    run = heddle("explain 7", 0);
    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "start     expected at any moment\n"));
    run = heddle("jobs -o wide -n 1", 0);
    assert_non_null(strstr(run.out, "  now"));
}

static void the_deadline_of_a_drain_is_shown(void **state)
{
    (void)state;
    assert_non_null(strstr(heddle("nodes -o wide", 0).out,
                           "is draining: disk; its jobs leave it by 2026-11-24T06:40:00"));
}

/* Goal: the command does not wait for its whole 90 s when the node's heddled has died while it was
 * measuring. A run of the program ends after RUN_MS, which is less. */
static void a_probe_of_a_node_that_dies_ends_and_says_so(void **state)
{
    struct run run;

    (void)state;
    run = heddle("probe n1", 0);
    assert_int_equal(run.code, 6);
    assert_int_equal(fake.topologies, 2);
    assert_non_null(strstr(run.out, "n1: no result: it has not answered for 3 s; its heddled has "
                                    "stopped, or its machine or network is down. Start heddled"));
    run = heddle("probe n1 -o jsonl", 0);
    assert_int_equal(run.code, 6);
    assert_non_null(strstr(run.out, "\"silent_ms\":3000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_probe_of_a_node_that_dies_ends_and_says_so, start_fake,
                                        stop_fake),
        cmocka_unit_test_setup_teardown(the_deadline_of_a_drain_is_shown, start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(a_start_in_the_past_is_not_shown, start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(ages_count_by_the_controllers_clock, start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(what_the_controller_says_decides_the_exit_code, start_fake,
                                        stop_fake),
        cmocka_unit_test_setup_teardown(a_lost_reply_is_asked_for_again_under_one_request_id,
                                        start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(a_warning_of_the_controller_is_shown_beside_the_answer,
                                        start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(a_bad_job_file_never_reaches_the_controller, start_fake,
                                        stop_fake),
        cmocka_unit_test_setup_teardown(watching_goes_on_where_it_broke_off, start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(lines_without_a_terminal_have_no_cursor_codes, start_fake,
                                        stop_fake),
        cmocka_unit_test_setup_teardown(wait_asks_for_the_end_only_and_ends_like_the_job,
                                        start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(ctrl_c_ends_the_watching_and_not_the_job, start_fake,
                                        stop_fake),
        cmocka_unit_test_setup_teardown(sigterm_ends_the_watching_with_143, start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(on_a_terminal_there_is_a_bar_that_fits, start_fake,
                                        stop_fake),
        cmocka_unit_test_setup_teardown(a_far_controller_is_read_as_a_near_one, start_far,
                                        stop_fake),
        cmocka_unit_test_setup_teardown(on_a_terminal_a_wait_is_told_after_a_second, start_far,
                                        stop_fake),
        cmocka_unit_test_setup_teardown(on_a_terminal_errors_are_red, start_fake, stop_fake),
        cmocka_unit_test_setup_teardown(logs_go_on_at_the_next_byte_and_with_the_next_attempt,
                                        start_fake, stop_fake),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
