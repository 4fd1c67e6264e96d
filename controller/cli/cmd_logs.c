/* logs: prints a rank's log, byte for byte. A position is (attempt, rank, byte): after a broken
 * connection the reading continues at the next byte. With -f the logs of later attempts follow.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/cli.h"
#include "controller/cli/watch.h"

enum { POLL_MS = 500 };

struct logs {
    struct cli *cli;
    uint64_t job;
    int32_t attempt, rank;
    int64_t offset_bytes;
    bool follow, fixed_attempt, to_terminal;
    bool reached, done; /* reached: the controller has accepted at least one call */
    enum hd_status status;
    char message[HD_ERR_MAX], note[HD_ERR_MAX];
    struct hd_text out;
    uv_signal_t interrupt;
    bool interrupted, closed;
    struct hd_rpc_call *call;
};

/* On a terminal, control characters are shown as '?'; a file or a pipe gets the bytes as they are.
 */
static void add_bytes(struct logs *l, const unsigned char *bytes, size_t count)
{
    if (!l->to_terminal) {
        hd_text_add_bytes(&l->out, bytes, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        unsigned char c = bytes[i];
        bool shown = (c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t';

        hd_text_add_bytes(&l->out, shown ? (const char *)&c : "?", 1);
    }
}

static void on_open(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    struct logs *l = hd_rpc_call_user(call);

    (void)message;
    l->reached = true;
    cli_wait_end(l->cli);
}

/* A reader that reconnects is told again; the user is not. */
static void note_once(struct logs *l, const char *note)
{
    struct hd_text text = {0};

    cli_add_clean(&text, note);
    if (!text.failed && strcmp(text.data, l->note) != 0) {
        (void)snprintf(l->note, sizeof l->note, "%s", text.data);
        cli_note("heddle: %s", l->note);
    }
    hd_text_free(&text);
}

static void on_chunk(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ReadLogResponse *chunk = (const Heddle__V1__ReadLogResponse *)message;
    struct logs *l = hd_rpc_call_user(call);

    if (*chunk->note)
        note_once(l, chunk->note);
    l->attempt = chunk->attempt;
    l->offset_bytes = chunk->offset_bytes + (int64_t)chunk->data.len;
    add_bytes(l, chunk->data.data, chunk->data.len);
    if (!cli_out(&l->out)) /* the reader of the pipe is gone */
        hd_rpc_call_cancel(call);
}

static void on_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct logs *l = hd_rpc_call_user(call);

    l->status = status;
    (void)snprintf(l->message, sizeof l->message, "%s", message);
    l->call = NULL;
    l->done = true;
    cli_wait_end(l->cli);
}

static void on_interrupt(uv_signal_t *handle, int number)
{
    struct logs *l = handle->data;

    (void)number;
    l->interrupted = true;
    uv_stop(&l->cli->loop);
}

static void on_closed(uv_handle_t *handle)
{
    struct logs *l = handle->data;

    l->closed = true;
}

/* Reads from the present position until the stream ends. */
static enum hd_status read_once(struct logs *l)
{
    Heddle__V1__ReadLogRequest request = HEDDLE__V1__READ_LOG_REQUEST__INIT;
    char path[64];
    const struct hd_rpc_call_options options = {
        .path = cli_method_path("ReadLog", path),
        .kind = HD_RPC_SERVER_STREAM,
        .response = &heddle__v1__read_log_response__descriptor,
        .handler = {.on_open = on_open, .on_msg = on_chunk, .on_done = on_done},
        .user = l,
    };
    enum hd_status st;

    request.job = l->job;
    request.attempt = l->attempt;
    request.rank = l->rank;
    request.offset_bytes = l->offset_bytes;
    request.follow = l->follow;
    l->done = false;
    cli_wait_begin(l->cli);
    st = hd_rpc_client_call(l->cli->client, &options, &request.base, &l->call);
    if (st)
        return st;
    while (!l->done && !l->interrupted)
        (void)uv_run(&l->cli->loop, UV_RUN_ONCE);
    if (!l->done) {
        hd_rpc_call_cancel(l->call);
        while (!l->done)
            (void)uv_run(&l->cli->loop, UV_RUN_ONCE);
        return HD_OK;
    }
    return l->status ? hd_err(l->status, "%s", l->message) : HD_OK;
}

static void pause_loop(struct logs *l, int64_t ms)
{
    int64_t end_ms = hd_clock_now_ms() + ms;

    while (!l->interrupted && hd_clock_now_ms() < end_ms) {
        (void)uv_run(&l->cli->loop, UV_RUN_NOWAIT);
        (void)usleep(20000);
    }
}

/* Waits until the next attempt begins (its log is then read), or the job has ended. */
static enum hd_status next_attempt(struct logs *l, bool *ret_over)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    Heddle__V1__GetJobResponse *response = NULL;
    enum hd_status st;

    *ret_over = l->fixed_attempt;
    request.job = l->job;
    while (!*ret_over && !l->interrupted) {
        st = cli_try_call(l->cli, "GetJob", &heddle__v1__get_job_response__descriptor,
                          &request.base, &response);
        if (st)
            return st;
        if (response->job->attempt > l->attempt) {
            l->attempt++;
            l->offset_bytes = 0;
            cli_note("heddle: attempt %d", l->attempt);
            hd_rpc_message_free(&response->base);
            return HD_OK;
        }
        *ret_over = cli_job_ended(response->job->state);
        hd_rpc_message_free(&response->base);
        if (!*ret_over)
            pause_loop(l, POLL_MS);
    }
    return HD_OK;
}

static int read_logs(struct logs *l)
{
    int64_t down_since_ms = 0;
    bool over = false;
    enum hd_status st;

    while (!over && !l->interrupted && !ferror(stdout)) {
        st = read_once(l);
        if (!st) {
            down_since_ms = 0;
            if (!l->follow)
                break;
            st = next_attempt(l, &over);
        }
        if (!st || ferror(stdout))
            continue;
        if (!down_since_ms)
            down_since_ms = hd_clock_now_ms();
        if (!l->follow || !l->reached ||
            (st != HD_UNAVAILABLE && st != HD_ABORTED && st != HD_TIMEOUT) ||
            hd_clock_now_ms() - down_since_ms > WATCH_PATIENCE_MS)
            return cli_fail(st);
        pause_loop(l, POLL_MS); /* then on at the next byte */
    }
    return l->interrupted ? CLI_INTERRUPTED : CLI_OK;
}

int cli_logs(struct cli *cli, int argc, char **argv)
{
    struct logs l = {.cli = cli};
    int64_t rank = 0, attempt = 0;
    const struct cli_flag flags[] = {
        {"follow", 'f', CLI_FLAG_BOOL, &l.follow, 0, 0},
        {"rank", 0, CLI_FLAG_INT, &rank, 0, 65535},
        {"attempt", 0, CLI_FLAG_INT, &attempt, 1, INT32_MAX},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_parse_job(cli->args[0], &l.job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    l.rank = (int32_t)rank;
    l.attempt = (int32_t)attempt;
    l.fixed_attempt = attempt > 0;
    l.to_terminal = isatty(STDOUT_FILENO);
    if (uv_signal_init(&cli->loop, &l.interrupt))
        return cli_fail(hd_err(HD_IO, "cannot wait for signals"));
    l.interrupt.data = &l;
    (void)uv_signal_start(&l.interrupt, on_interrupt, SIGINT); /* without it ^C just ends us */
    code = read_logs(&l);
    uv_close((uv_handle_t *)&l.interrupt, on_closed);
    while (!l.closed)
        (void)uv_run(&cli->loop, UV_RUN_ONCE);
    hd_text_free(&l.out);
    return cli_out_end(code);
}
