/* A thousand submissions while the controller is killed again and again: each acknowledged job is
 * there, once, under the number that was acknowledged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "heddle/v1/control.pb-c.h"
#include "rpc/rpc.h"
#include "spec/spec.h"
#include "tests/program/test.h"

enum { JOBS = 1000, IN_FLIGHT = 40, A_BEAT = 3, LIMIT_MS = 240 * 1000, KILLS_MIN = 10 };

static struct bench {
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_client *client;
    char dir[64], address[96], state[96], program[512];
    pid_t controller;
    int64_t lives_ms, kill_at_ms; /* INT64_MAX: not known before its first answer */
    int kills, kills_with_work;   /* the latter while requests were under way */
    uint64_t key, draws;
    struct hd_arena arena; /* of the spec */
    Heddle__V1__JobSpec *spec;
    uint64_t jobs[JOBS]; /* acknowledged number of each request; 0: none yet */
    int next, acknowledged, in_flight;
    bool closed;
} bench;

struct submission {
    int index;
    uint64_t job;
};

static void start_controller(struct bench *b)
{
    const char *const argv[] = {b->program, "--state-dir", b->state, "--listen",
                                b->address, "--ephemeral", NULL};

    b->controller = fork();
    assert_true(b->controller >= 0);
    if (b->controller == 0) {
        int nothing = open("/dev/null", O_WRONLY);

        (void)dup2(nothing, STDERR_FILENO);
        (void)execv(b->program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    /* every other life counts from its first answer: on a busy machine a start takes longer */
    b->lives_ms = 60 + (int64_t)(hd_random_u64(b->key, b->draws++) % 200);
    b->kill_at_ms = b->kills % 2 ? INT64_MAX : hd_clock_now_ms() + b->lives_ms;
}

static void end_controller(struct bench *b, int number)
{
    int status;

    assert_int_equal(kill(b->controller, number), 0);
    assert_int_equal(waitpid(b->controller, &status, 0), b->controller);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 127); /* it did start */
}

static Heddle__V1__JobSpec *new_spec(struct bench *b)
{
    char text[512], train[96];
    struct hd_spec_source source = {.name = "job.yaml", .folder = b->dir, .bytes = text};
    struct hd_job job;

    (void)snprintf(train, sizeof train, "%s/train.txt", b->dir);
    assert_int_equal(
        hd_file_write_atomic(train, "some text for training and, its other half, for validation",
                             58, 0644),
        HD_OK);
    (void)snprintf(text, sizeof text,
                   "name: one-of-many\n"
                   "model: {family: llama, layers: 1, hidden: 16, heads: 2, kv_heads: 2,"
                   " ffn_hidden: 16, vocab: 256, context: 8}\n"
                   "data: {train: [train.txt], val_split: 0.5, tokenizer: bytes}\n"
                   "train: {steps: 10, global_batch: 8, lr: 1e-3, precision: fp32}\n"
                   "resources: {device_type: cpu, devices: 2}\n");
    source.size_bytes = strlen(text);
    if (hd_spec_read_yaml(&source, &b->arena, &job))
        fail_msg("%s", hd_err_message());
    return hd_spec_to_message(&job, &b->arena);
}

/* ---- submissions ------------------------------------------------------------------------------*/

static void submit(struct bench *b, int index);

static void on_msg(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__SubmitJobResponse *m = (const void *)message;
    struct submission *s = hd_rpc_call_user(call);

    s->job = m->job->job;
}

static void on_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct submission *s = hd_rpc_call_user(call);
    struct bench *b = &bench;

    b->in_flight--;
    if (status == HD_OK) {
        b->jobs[s->index] = s->job;
        b->acknowledged++;
        if (b->kill_at_ms == INT64_MAX)
            b->kill_at_ms = hd_clock_now_ms() + b->lives_ms;
    } else if (status == HD_UNAVAILABLE || status == HD_TIMEOUT || status == HD_ABORTED) {
        submit(b, s->index); /* nobody knows whether it happened: the same request again */
    } else {
        fail_msg("request %d: %s: %s", s->index, hd_status_name(status), message);
    }
    free(s);
}

static void submit(struct bench *b, int index)
{
    Heddle__V1__SubmitJobRequest request = HEDDLE__V1__SUBMIT_JOB_REQUEST__INIT;
    struct submission *s = calloc(1, sizeof *s);
    char request_id[40];
    const struct hd_rpc_call_options options = {.path = "/heddle.v1.Control/SubmitJob",
                                                .kind = HD_RPC_UNARY,
                                                .response =
                                                    &heddle__v1__submit_job_response__descriptor,
                                                .timeout_ms = 5000,
                                                .wait_for_ready = true,
                                                .handler = {.on_msg = on_msg, .on_done = on_done},
                                                .user = s};

    assert_non_null(s);
    s->index = index;
    (void)snprintf(request_id, sizeof request_id, "request-%020d", index);
    request.request_id = request_id;
    request.spec = b->spec;
    b->in_flight++;
    assert_int_equal(hd_rpc_client_call(b->client, &options, &request.base, NULL), HD_OK);
}

static void on_beat(uv_timer_t *timer)
{
    struct bench *b = timer->data;

    /* A few at a time, so that the work lasts over many lives of the controller. */
    for (int i = 0; i < A_BEAT && b->in_flight < IN_FLIGHT && b->next < JOBS; i++)
        submit(b, b->next++);
    if (hd_clock_now_ms() < b->kill_at_ms)
        return;
    b->kills_with_work += b->in_flight > 0;
    end_controller(b, SIGKILL);
    b->kills++;
    start_controller(b);
}

/* ---- the proof --------------------------------------------------------------------------------*/

static void wait_until_it_answers(struct bench *b)
{
    const Heddle__V1__GetServerInfoRequest request = HEDDLE__V1__GET_SERVER_INFO_REQUEST__INIT;
    ProtobufCMessage *message = NULL;

    for (int i = 0; i < 500; i++) {
        if (hd_rpc_call_wait(b->client, "/heddle.v1.Control/GetServerInfo",
                             &heddle__v1__get_server_info_response__descriptor, 1000, &request.base,
                             &message) == HD_OK)
            break;
        (void)usleep(10000);
    }
    assert_non_null(message);
    hd_rpc_message_free(message);
}

/* Every job of the controller, page by page; each number is counted. */
static void count_jobs(struct bench *b, int *seen, size_t size)
{
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    char page[32] = "";

    do {
        Heddle__V1__ListJobsResponse *response;
        ProtobufCMessage *message = NULL;

        request.limit = 300;
        request.page = page;
        assert_int_equal(hd_rpc_call_wait(b->client, "/heddle.v1.Control/ListJobs",
                                          &heddle__v1__list_jobs_response__descriptor, 10000,
                                          &request.base, &message),
                         HD_OK);
        response = (void *)message;
        for (size_t i = 0; i < response->n_jobs; i++) {
            assert_true(response->jobs[i]->job < size);
            seen[response->jobs[i]->job]++;
        }
        (void)snprintf(page, sizeof page, "%s", response->next_page);
        hd_rpc_message_free(message);
    } while (*page);
}

static void on_closed(void *user)
{
    ((struct bench *)user)->closed = true;
}

static void every_acknowledged_job_is_there_once(void **state)
{
    static int seen[JOBS + 1];
    struct bench *b = &bench;
    const char *build = getenv("HEDDLE_BUILD_DIR");
    const struct hd_rpc_client_options options = {.reconnect_min_ms = 20, .reconnect_max_ms = 50};
    const int64_t end_ms = hd_clock_now_ms() + LIMIT_MS;
    uv_timer_t beat;

    (void)snprintf(b->program, sizeof b->program, "%s/bin/heddle-controller",
                   build ? build : "build/dev");
    (void)snprintf(b->dir, sizeof b->dir, "/tmp/heddle-kill-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    (void)snprintf(b->address, sizeof b->address, "unix:%s/sock/c", b->dir);
    (void)snprintf(b->state, sizeof b->state, "%s/state", b->dir);
    b->key = hd_random_key(20, 26);
    b->spec = new_spec(b);
    assert_int_equal(uv_loop_init(&b->loop), 0);
    assert_int_equal(hd_rpc_new(&b->loop, &b->rpc), HD_OK);
    assert_int_equal(hd_rpc_client_new(b->rpc, b->address, &options, &b->client), HD_OK);
    start_controller(b);
    assert_int_equal(uv_timer_init(&b->loop, &beat), 0);
    beat.data = b;
    assert_int_equal(uv_timer_start(&beat, on_beat, 5, 5), 0);
    while (b->acknowledged < JOBS) {
        (void)uv_run(&b->loop, UV_RUN_ONCE);
        if (hd_clock_now_ms() > end_ms)
            fail_msg("only %d of %d were acknowledged", b->acknowledged, JOBS);
    }
    (void)uv_timer_stop(&beat);
    assert_true(b->kills_with_work >= KILLS_MIN); /* else nothing was tried */
    end_controller(b, SIGKILL);                   /* once more, so that only the disk is asked */
    start_controller(b);

    wait_until_it_answers(b);
    count_jobs(b, seen, JOBS + 1);
    for (int i = 0; i < JOBS; i++) {
        assert_in_range(b->jobs[i], 1, JOBS); /* a number above would belong to a second copy */
        assert_int_equal(seen[b->jobs[i]], 1);
        seen[b->jobs[i]] = -1; /* so that two requests cannot share it */
    }
    print_message("%d jobs, the controller was killed %d times, %d times at work\n",
                  b->acknowledged, b->kills, b->kills_with_work);

    end_controller(b, SIGTERM);
    uv_close((uv_handle_t *)&beat, NULL);
    hd_rpc_close(b->rpc, on_closed, b);
    (void)uv_run(&b->loop, UV_RUN_DEFAULT);
    assert_true(b->closed);
    assert_int_equal(uv_loop_close(&b->loop), 0);
    hd_arena_done(&b->arena);
    assert_int_equal(hd_file_remove_tree(b->dir), HD_OK);
}

RUN_CASES()
