/* services: logs of ranks, read through the controller. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "services_bench.h"
#include "tests/program/test.h"

struct reading {
    char text[256], note[512];
    size_t length;
    int notes;
    bool done;
    enum hd_status st;
};

static void reading_msg(struct hd_rpc_call *c, const ProtobufCMessage *message)
{
    struct reading *r = hd_rpc_call_user(c);
    const Heddle__V1__ReadLogResponse *m = (const void *)message;

    assert_int_equal(m->offset_bytes, r->length);
    if (m->data.len)
        memcpy(r->text + r->length, m->data.data, m->data.len);
    r->length += m->data.len;
    if (*m->note) {
        (void)snprintf(r->note, sizeof r->note, "%s", m->note);
        r->notes++;
    }
}

static void reading_done(struct hd_rpc_call *c, enum hd_status status, const char *message)
{
    struct reading *r = hd_rpc_call_user(c);

    r->done = true;
    r->st = status;
}

static void read_log(struct reading *r, struct bench *b, uint64_t job, int32_t rank, bool follow)
{
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Control/ReadLog",
        .kind = HD_RPC_SERVER_STREAM,
        .response = &heddle__v1__read_log_response__descriptor,
        .handler = {.on_msg = reading_msg, .on_done = reading_done},
        .user = r};
    Heddle__V1__ReadLogRequest request = HEDDLE__V1__READ_LOG_REQUEST__INIT;

    *r = (struct reading){0};
    request.job = job;
    request.rank = rank;
    request.follow = follow;
    assert_int_equal(hd_rpc_client_call(b->client, &options, &request.base, NULL), HD_OK);
}

static void logs_msg(struct hd_rpc_call *c, const ProtobufCMessage *message)
{
    struct daemon *d = hd_rpc_call_user(c);

    d->log_request = *(const Heddle__V1__LogRequest *)(const void *)message;
    d->log_request.attempt_dir = NULL;
    d->log_requests++;
}

static void logs_done(struct hd_rpc_call *c, enum hd_status status, const char *message)
{
    ((struct daemon *)hd_rpc_call_user(c))->logs = NULL;
}

static void open_logs(struct daemon *d)
{
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Fleet/Logs",
        .kind = HD_RPC_BIDI,
        .response = &heddle__v1__log_request__descriptor,
        .handler = {.on_msg = logs_msg, .on_done = logs_done},
        .user = d};
    Heddle__V1__LogChunk first = HEDDLE__V1__LOG_CHUNK__INIT;

    first.node_uuid = d->uuid;
    assert_int_equal(hd_rpc_client_call(d->b->client, &options, &first.base, &d->logs), HD_OK);
}

static void answer_log(struct daemon *d, const char *text)
{
    Heddle__V1__LogChunk chunk = HEDDLE__V1__LOG_CHUNK__INIT;

    chunk.request = d->log_request.request;
    chunk.offset_bytes = d->log_request.offset_bytes;
    chunk.data.data = (uint8_t *)(uintptr_t)text;
    chunk.data.len = strlen(text);
    assert_int_equal(hd_rpc_call_write(d->logs, &chunk.base), HD_OK);
}

static void a_log_comes_piece_by_piece_and_is_followed(void **state)
{
    struct bench b;
    struct daemon d = {0};
    struct reading r;
    Heddle__V1__EndReport end = HEDDLE__V1__END_REPORT__INIT;
    uint64_t job;

    start(&b, NULL);
    join(&d, &b, "n1");
    open_logs(&d);
    job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    read_log(&r, &b, job, 2, false);
    WAIT_FOR(&b, r.done);
    assert_int_equal(r.st, HD_NOT_FOUND); /* ranks 0 and 1 only */

    read_log(&r, &b, job, 1, true);
    WAIT_FOR(&b, d.log_requests == 1);
    assert_int_equal(d.log_request.rank, 1);
    assert_true(d.log_request.wait_ms > 0);
    answer_log(&d, "first ");
    WAIT_FOR(&b, d.log_requests == 2);
    assert_int_equal(d.log_request.offset_bytes, 6);
    answer_log(&d, ""); /* nothing yet: asked again */
    WAIT_FOR(&b, d.log_requests == 3);
    send_step(&d, job, 1, 10);
    send_checkpoint(&d, job, 2, 10, d.desired->desired->attempts[0]->checkpoint_dir);
    end.cause = HEDDLE__V1__END_CAUSE__END_CAUSE_COMPLETED;
    end.rank = -1;
    observe(&d, job, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED, &end);
    WAIT_FOR(&b, state_of(&b, job) == HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED);
    answer_log(&d, ""); /* asked before the end: the last words may still be to come */
    WAIT_FOR(&b, d.log_requests == 4);
    answer_log(&d, "last");
    WAIT_FOR(&b, d.log_requests == 5);
    assert_false(r.done);
    answer_log(&d, "");
    WAIT_FOR(&b, r.done);
    assert_int_equal(r.st, HD_OK);
    assert_string_equal(r.text, "first last");

    hd_rpc_call_cancel(d.logs);
    WAIT_FOR(&b, !d.logs);
    free_daemon(&d);
    read_log(&r, &b, job, 0, false);
    WAIT_FOR(&b, r.done);
    assert_int_equal(r.st, HD_UNAVAILABLE); /* the node is away, and its log with it */
    finish(&b);
}

static void append(const struct bench *b, uint64_t job, const char *text)
{
    char path[2 * TEMPORARY_BYTES];
    FILE *log;

    (void)snprintf(path, sizeof path, "%s/state/jobs/%llu/attempt-1/logs", b->dir,
                   (unsigned long long)job);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    (void)snprintf(path, sizeof path, "%s/state/jobs/%llu/attempt-1/logs/rank-1.log", b->dir,
                   (unsigned long long)job);
    log = fopen(path, "ae");
    assert_non_null(log);
    assert_true(fputs(text, log) >= 0);
    assert_int_equal(fclose(log), 0);
}

/* Goal: a log in the jobs directory is read on without the node, no byte twice. Method: the node's
 * stream ends between two pieces; other ranks of the job go on to write. */
static void a_log_is_read_on_while_its_node_is_away(void **state)
{
    struct bench b;
    struct daemon d = {0};
    struct reading r;
    uint64_t job;

    start(&b, NULL);
    join(&d, &b, "n1");
    open_logs(&d);
    job = submit(&b, 2);
    WAIT_FOR(&b, d.desired->desired->n_attempts == 1);
    append(&b, job, "first second ");
    read_log(&r, &b, job, 1, true);
    WAIT_FOR(&b, d.log_requests == 1);
    answer_log(&d, "first ");
    WAIT_FOR(&b, d.log_requests == 2); /* in flight when the node goes */
    assert_int_equal(r.notes, 0);
    hd_rpc_call_cancel(d.logs);
    WAIT_FOR(&b, r.length == strlen("first second "));
    append(&b, job, "third");
    WAIT_FOR(&b, r.length == strlen("first second third"));
    assert_string_equal(r.text, "first second third");
    assert_int_equal(r.notes, 1);
    assert_non_null(strstr(r.note, "n1 is away"));
    assert_non_null(strstr(r.note, "attempt-1/logs/rank-1.log"));
    WAIT_FOR(&b, !d.logs);
    open_logs(&d); /* back: it is asked for what follows */
    WAIT_FOR(&b, d.log_requests == 3);
    assert_int_equal(d.log_request.offset_bytes, r.length);
    answer_log(&d, " fourth");
    WAIT_FOR(&b, r.length == strlen("first second third fourth"));
    assert_int_equal(r.notes, 1);
    free_daemon(&d);
    finish(&b);
}

RUN_CASES()
