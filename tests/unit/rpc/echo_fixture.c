#include "echo_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* ---- the server ---- */

static void unary_opened(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    const Heddle__Test__EchoRequest *request = (const Heddle__Test__EchoRequest *)msg;
    Heddle__Test__EchoResponse response = HEDDLE__TEST__ECHO_RESPONSE__INIT;
    struct echo *echo = hd_rpc_call_user(call);
    const char *note = hd_rpc_call_metadata(call, "note");

    echo->server_opens++;
    echo->principal = *hd_rpc_call_principal(call);
    echo->token_shown = hd_rpc_call_metadata(call, "authorization") != NULL;
    (void)snprintf(echo->metadata, sizeof echo->metadata, "%s", note ? note : "");
    if (strcmp(request->text, "hold") == 0) {
        echo->held = hd_rpc_call_ref(call);
    } else if (strncmp(request->text, "fail:", 5) == 0) {
        hd_rpc_call_fail(call, hd_err((enum hd_status)request->count, "%s", request->text + 5));
    } else {
        response.text = request->text;
        response.count = request->count + (int64_t)request->n_lines;
        response.blob = request->blob;
        (void)hd_rpc_call_reply(call, &response.base);
    }
}

static void server_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct echo *echo = hd_rpc_call_user(call);

    echo->server_dones++;
    echo->server_status = status;
}

/* Writes what is left of `count` messages until the queue is full: 4 KiB each, so that thousands of
 * them are more than any window of flow control. */
static void flood(struct hd_rpc_call *call)
{
    Heddle__Test__EchoResponse response = HEDDLE__TEST__ECHO_RESPONSE__INIT;
    struct echo *echo = hd_rpc_call_user(call);
    enum hd_status st = HD_OK;
    char text[4097];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    response.text = text;
    while (!st && echo->flood_left > 0) {
        response.count = echo->flood_left;
        st = hd_rpc_call_write(call, &response.base);
        if (!st)
            echo->flood_left--;
        if (hd_rpc_call_queued(call) > echo->most_queued)
            echo->most_queued = hd_rpc_call_queued(call);
    }
    if (echo->flood_left == 0)
        hd_rpc_call_finish(call);
}

static void stream_opened(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    const Heddle__Test__EchoRequest *request = (const Heddle__Test__EchoRequest *)msg;
    Heddle__Test__EchoResponse response = HEDDLE__TEST__ECHO_RESPONSE__INIT;
    struct echo *echo = hd_rpc_call_user(call);

    echo->server_opens++;
    if (strcmp(request->text, "refuse") == 0) {
        hd_rpc_call_fail(call, hd_err(HD_NOT_FOUND, "no such stream"));
    } else if (strcmp(request->text, "break") == 0) { /* messages, then a failure */
        for (int64_t i = 0; i < request->count; i++)
            assert_int_equal(hd_rpc_call_write(call, &response.base), HD_OK);
        echo->held = hd_rpc_call_ref(call);
        echo->flood_left = -1; /* the failure comes from the test */
    } else {
        echo->flood_left = request->count;
        flood(call);
    }
}

static void chat_opened(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    struct echo *echo = hd_rpc_call_user(call);

    assert_null(msg);
    echo->server_opens++;
}

static void chat_message(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    const Heddle__Test__EchoRequest *request = (const Heddle__Test__EchoRequest *)msg;
    Heddle__Test__EchoResponse response = HEDDLE__TEST__ECHO_RESPONSE__INIT;
    struct echo *echo = hd_rpc_call_user(call);

    echo->server_messages++;
    response.count = request->count;
    assert_int_equal(hd_rpc_call_write(call, &response.base), HD_OK);
}

static void chat_half_closed(struct hd_rpc_call *call)
{
    struct echo *echo = hd_rpc_call_user(call);

    echo->server_half_closes++;
    hd_rpc_call_finish(call);
}

void echo_add_methods(struct echo *echo)
{
    struct hd_rpc_method method = {
        .request = &heddle__test__echo_request__descriptor,
        .response = &heddle__test__echo_response__descriptor,
        .user = echo,
        .handler = {.on_open = unary_opened, .on_done = server_done},
        .path = ECHO_UNARY,
        .kind = HD_RPC_UNARY,
    };

    assert_int_equal(hd_rpc_server_add_method(echo->server, &method), HD_OK);
    method.path = ECHO_STREAM;
    method.kind = HD_RPC_SERVER_STREAM;
    method.handler.on_open = stream_opened;
    method.handler.on_drain = flood;
    method.queue_len_max = 100;
    assert_int_equal(hd_rpc_server_add_method(echo->server, &method), HD_OK);
    method.path = ECHO_CHAT;
    method.kind = HD_RPC_BIDI;
    method.queue_len_max = 0;
    method.handler = (struct hd_rpc_handler){.on_open = chat_opened,
                                             .on_msg = chat_message,
                                             .on_half_close = chat_half_closed,
                                             .on_done = server_done};
    assert_int_equal(hd_rpc_server_add_method(echo->server, &method), HD_OK);
}

/* ---- both ---- */

void echo_begin(struct echo *echo)
{
    memset(echo, 0, sizeof *echo);
    temporary_dir(echo->dir, "hd_rpc");
    assert_int_equal(uv_loop_init(&echo->loop), 0);
    assert_int_equal(hd_rpc_new(&echo->loop, &echo->rpc), HD_OK);
}

void echo_open(struct echo *echo, const char *address, const struct hd_rpc_server_options *server,
               const struct hd_rpc_client_options *client)
{
    int port = 0;

    echo_begin(echo);
    if (address)
        (void)snprintf(echo->address, sizeof echo->address, "%s", address);
    else
        (void)snprintf(echo->address, sizeof echo->address, "unix:%s/run/a b.sock", echo->dir);
    assert_int_equal(hd_rpc_server_new(echo->rpc, server, &echo->server), HD_OK);
    echo_add_methods(echo);
    assert_int_equal(hd_rpc_server_listen(echo->server, echo->address, &port), HD_OK);
    if (address)
        (void)snprintf(echo->address, sizeof echo->address, "%.*s:%d",
                       (int)(strrchr(address, ':') - address), address, port);
    assert_int_equal(hd_rpc_server_start(echo->server), HD_OK);
    assert_int_equal(hd_rpc_client_new(echo->rpc, echo->address, client, &echo->client), HD_OK);
}

static void set_flag(void *user)
{
    *(int *)user = 1;
}

void echo_close(struct echo *echo)
{
    int closed = 0;

    hd_rpc_close(echo->rpc, set_flag, &closed);
    echo_run_until(echo, &closed, 1, 5000);
    if (echo->held)
        hd_rpc_call_unref(echo->held);
    assert_int_equal(uv_run(&echo->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&echo->loop), 0);
    assert_int_equal(hd_file_remove_tree(echo->dir), HD_OK);
}

static void on_time(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

static bool run(struct echo *echo, const int *flag, int at_least, int64_t limit_ms)
{
    bool late = false;
    uv_timer_t timer;

    assert_int_equal(uv_timer_init(&echo->loop, &timer), 0);
    timer.data = &late;
    /* it repeats: where it is due at once, UV_RUN_ONCE calls it and then waits for another event */
    assert_int_equal(uv_timer_start(&timer, on_time, (uint64_t)limit_ms, 10), 0);
    while (!late && !(flag && *flag >= at_least))
        (void)uv_run(&echo->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    (void)uv_run(&echo->loop, UV_RUN_NOWAIT); /* the timer's memory ends here */
    return !late;
}

void echo_run_until(struct echo *echo, const int *flag, int at_least, int64_t limit_ms)
{
    assert_true(run(echo, flag, at_least, limit_ms));
}

void echo_run_for(struct echo *echo, int64_t span_ms)
{
    (void)run(echo, NULL, 0, span_ms);
}

/* ---- the client ---- */

static void client_opened(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    struct outcome *outcome = hd_rpc_call_user(call);

    assert_null(msg);
    assert_int_equal(outcome->messages, 0);
    outcome->opens++;
}

static void client_message(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    const Heddle__Test__EchoResponse *response = (const Heddle__Test__EchoResponse *)msg;
    struct outcome *outcome = hd_rpc_call_user(call);

    assert_int_equal(outcome->dones, 0); /* on_done is last */
    outcome->messages++;
    outcome->count = response->count;
    (void)snprintf(outcome->text, sizeof outcome->text, "%s", response->text);
}

static void client_drained(struct hd_rpc_call *call)
{
    ((struct outcome *)hd_rpc_call_user(call))->drains++;
}

static void client_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct outcome *outcome = hd_rpc_call_user(call);

    outcome->dones++;
    outcome->status = status;
    (void)snprintf(outcome->message, sizeof outcome->message, "%s", message);
}

struct hd_rpc_call_options echo_call_options(const char *path, enum hd_rpc_kind kind,
                                             struct outcome *outcome)
{
    memset(outcome, 0, sizeof *outcome);
    return (struct hd_rpc_call_options){
        .path = path,
        .kind = kind,
        .response = &heddle__test__echo_response__descriptor,
        .timeout_ms = 5000,
        .handler = {.on_open = client_opened,
                    .on_msg = client_message,
                    .on_drain = client_drained,
                    .on_done = client_done},
        .user = outcome,
    };
}

enum hd_status echo_ask(struct echo *echo, const Heddle__Test__EchoRequest *request,
                        struct outcome *ret_outcome)
{
    const struct hd_rpc_call_options options =
        echo_call_options(ECHO_UNARY, HD_RPC_UNARY, ret_outcome);

    assert_int_equal(hd_rpc_client_call(echo->client, &options, &request->base, NULL), HD_OK);
    assert_int_equal(ret_outcome->dones, 0); /* no callback inside the call */
    echo_run_until(echo, &ret_outcome->dones, 1, 6000);
    return ret_outcome->status;
}
