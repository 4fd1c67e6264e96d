/* rpc: calls between a server and a client on one loop. */
#include "echo_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rpc/rpc_internal.h"
#include "rpc/wire_check.h"

static Heddle__Test__EchoRequest request_of(const char *text, int64_t count)
{
    Heddle__Test__EchoRequest request = HEDDLE__TEST__ECHO_REQUEST__INIT;

    request.text = (char *)text;
    request.count = count;
    return request;
}

static void unary_call_answers_what_was_asked(void **state)
{
    Heddle__Test__EchoRequest request = request_of("grüße %s", 41);
    char *lines[] = {"one"};
    struct outcome outcome;
    struct echo echo;

    request.lines = lines;
    request.n_lines = 1;
    echo_open(&echo, NULL, NULL, NULL);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
    assert_string_equal(outcome.text, "grüße %s");
    assert_int_equal(outcome.count, 41 + 1); /* the server adds the number of lines */
    assert_int_equal(outcome.messages, 1);
    assert_int_equal(outcome.opens, 0); /* unary calls have no on_open at the client */
    echo_run_until(&echo, &echo.server_dones, 1, 2000);
    assert_int_equal(echo.server_status, HD_OK);
    echo_close(&echo);
}

/* Goal: a person at the client reads what the server said, and a program branches on the same
 * status. Method: every status once, with a text that needs escaping on the wire. */
static void every_status_and_its_story_arrive_unchanged(void **state)
{
    static const char story[] = "job.yaml:14: 50 % of „größe“ — “%s”\n\ttab";
    struct outcome outcome;
    struct echo echo;
    char text[128];

    (void)snprintf(text, sizeof text, "fail:%s", story);
    echo_open(&echo, NULL, NULL, NULL);
    for (int st = HD_OK + 1; st < HD_STATUS_COUNT; st++) {
        const Heddle__Test__EchoRequest request = request_of(text, st);

        assert_int_equal(echo_ask(&echo, &request, &outcome), st);
        assert_string_equal(outcome.message, story);
        assert_int_equal(outcome.messages, 0);
    }
    echo_close(&echo);
}

/* Goal: who cannot reach a server reads what to do. Method: what gRPC 1.51 said in each case. */
static void a_connection_that_fails_is_explained(void **state)
{
    static const struct {
        const char *theirs, *ours;
    } rows[] = {
        {"failed to connect to all addresses; last error: UNKNOWN: unix:/x/s: connection attempt "
         "timed out before receiving SETTINGS frame",
         "takes connections but does not answer; it may be stopped"},
        {"failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7972: Ssl "
         "handshake failed: SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed",
         "its certificate is not accepted"},
        {"failed to connect to all addresses; last error: UNKNOWN: unix:/x/s: No such file or "
         "directory",
         "there is no such socket"},
        {"DNS resolution failed for nowhere:1", "its name cannot be resolved"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *ours = hd_rpc_explain_no_connection(rows[i].theirs, strlen(rows[i].theirs));

        assert_non_null(ours);
        assert_non_null(strstr(ours, rows[i].ours));
    }
    assert_null(hd_rpc_explain_no_connection("another reason", 14));
}

static void codes_map_both_ways(void **state)
{
    assert_int_equal(hd_rpc_status_to_grpc(HD_INVALID), 3);
    assert_int_equal(hd_rpc_status_to_grpc(HD_NOT_FOUND), 5);
    assert_int_equal(hd_rpc_status_to_grpc(HD_DENIED), 7);
    assert_int_equal(hd_rpc_status_to_grpc(HD_LIMIT), 8);
    assert_int_equal(hd_rpc_status_to_grpc(HD_CONFLICT), 9);
    assert_int_equal(hd_rpc_status_to_grpc(HD_ABORTED), 10);
    assert_int_equal(hd_rpc_status_to_grpc(HD_UNSUPPORTED), 12);
    assert_int_equal(hd_rpc_status_to_grpc(HD_INTERNAL), 13);
    assert_int_equal(hd_rpc_status_to_grpc(HD_UNAVAILABLE), 14);
    assert_int_equal(hd_rpc_status_to_grpc(HD_CORRUPT), 15);
    assert_int_equal(hd_rpc_status_to_grpc(HD_TIMEOUT), 4);
    assert_int_equal(hd_rpc_status_from_grpc(16), HD_DENIED);   /* UNAUTHENTICATED */
    assert_int_equal(hd_rpc_status_from_grpc(1), HD_ABORTED);   /* CANCELLED */
    assert_int_equal(hd_rpc_status_from_grpc(99), HD_INTERNAL); /* no such code */
    for (int st = HD_OK; st < HD_STATUS_COUNT; st++)
        if (st != HD_NO_MEMORY && st != HD_STORAGE) /* share RESOURCE_EXHAUSTED with HD_LIMIT */
            assert_int_equal(hd_rpc_status_from_grpc(hd_rpc_status_to_grpc(st)), st);
}

static void deadline_ends_the_call_on_both_sides(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("hold", 0);
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;
    int64_t begin_ms;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &outcome);
    options.timeout_ms = 200;
    begin_ms = hd_clock_now_ms();
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    echo_run_until(&echo, &outcome.dones, 1, 3000);
    assert_int_equal(outcome.status, HD_TIMEOUT);
    assert_non_null(strstr(outcome.message, "within 0.2 s"));
    assert_in_range(hd_clock_now_ms() - begin_ms, 190, 2000);
    echo_run_until(&echo, &echo.server_dones, 1, 2000);
    assert_int_equal(echo.server_status, HD_TIMEOUT);
    echo_close(&echo);
}

static void answer_after_the_end_is_refused_and_harmless(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("hold", 0);
    Heddle__Test__EchoResponse response = HEDDLE__TEST__ECHO_RESPONSE__INIT;
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &outcome);
    options.timeout_ms = 100;
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    echo_run_until(&echo, &echo.server_dones, 1, 3000);
    assert_non_null(echo.held);
    assert_false(hd_rpc_call_alive(echo.held));
    assert_int_equal(hd_rpc_call_reply(echo.held, &response.base), HD_ABORTED);
    hd_rpc_call_fail(echo.held, hd_err(HD_INTERNAL, "too late"));
    hd_rpc_call_cancel(echo.held);
    assert_string_equal(hd_rpc_call_path(echo.held), ECHO_UNARY);
    echo_close(&echo);
}

/* Goal: a client that is newer than the server learns so at once. Method: the call must end long
 * before its deadline of 5 s. */
static void unknown_method_is_refused_at_once(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("x", 0);
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    for (int i = 0; i < 10; i++) { /* more often than the server has places for such calls */
        options = echo_call_options("/heddle.test.Echo/Nothing", HD_RPC_UNARY, &outcome);
        assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
        echo_run_until(&echo, &outcome.dones, 1, 1000);
        assert_int_equal(outcome.status, HD_UNSUPPORTED);
        assert_non_null(strstr(outcome.message, "/heddle.test.Echo/Nothing"));
    }
    echo_close(&echo);
}

/* Sends bytes that no honest client sends, and checks that the server still lives. */
static enum hd_status send_raw(const char *text, size_t text_bytes, uint8_t *nest,
                               size_t nest_bytes, struct outcome *ret_outcome)
{
    Heddle__Test__RawRequest raw = HEDDLE__TEST__RAW_REQUEST__INIT;
    const Heddle__Test__EchoRequest honest = request_of("still there", 1);
    struct hd_rpc_call_options options;
    struct outcome after;
    struct echo echo;

    raw.text = (ProtobufCBinaryData){text_bytes, (uint8_t *)text};
    raw.nest = (ProtobufCBinaryData){nest_bytes, nest};
    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, ret_outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &raw.base, NULL), HD_OK);
    echo_run_until(&echo, &ret_outcome->dones, 1, 3000);
    assert_int_equal(echo.server_opens, 0); /* no handler saw it */
    assert_int_equal(echo_ask(&echo, &honest, &after), HD_OK);
    echo_close(&echo);
    return ret_outcome->status;
}

static void garbage_is_refused_as_invalid(void **state)
{
    uint8_t garbage[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00};
    struct outcome outcome;

    assert_int_equal(send_raw("x", 1, garbage, sizeof garbage, &outcome), HD_INVALID);
    assert_non_null(strstr(outcome.message, "malformed"));
}

/* On a stream the bad message comes after the handler has seen good ones. */
static void garbage_on_a_stream_ends_it_as_invalid(void **state)
{
    Heddle__Test__RawRequest raw = HEDDLE__TEST__RAW_REQUEST__INIT;
    const Heddle__Test__EchoRequest good = request_of("", 1);
    struct hd_rpc_call_options options;
    struct hd_rpc_call *call;
    struct outcome outcome;
    struct echo echo;

    raw.text = (ProtobufCBinaryData){1, (uint8_t *)"\xff"};
    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, NULL, &call), HD_OK);
    assert_int_equal(hd_rpc_call_write(call, &good.base), HD_OK);
    echo_run_until(&echo, &outcome.messages, 1, 2000);
    assert_int_equal(hd_rpc_call_write(call, &raw.base), HD_OK);
    assert_int_equal(hd_rpc_call_write(call, &good.base), HD_OK);
    echo_run_until(&echo, &outcome.dones, 1, 2000);
    assert_int_equal(outcome.status, HD_INVALID);
    assert_int_equal(echo.server_messages, 1); /* what came after the bad one was not looked at */
    echo_run_until(&echo, &echo.server_dones, 1, 2000);
    assert_int_equal(echo.server_half_closes, 0);
    echo_close(&echo);
}

static void text_that_is_not_utf8_is_refused(void **state)
{
    struct outcome outcome;

    assert_int_equal(send_raw("\xff\xfe", 2, NULL, 0, &outcome), HD_INVALID);
    assert_non_null(strstr(outcome.message, "EchoRequest.text"));
    assert_int_equal(send_raw("a\0b", 3, NULL, 0, &outcome), HD_INVALID);
}

/* Goal: nesting cannot exhaust the stack. Method: a field inside itself 100,000 times; each level
 * wraps the bytes so far in a key (one byte, field 1) and a length (a varint). */
static void nesting_of_100000_levels_is_refused(void **state)
{
    const size_t room = 1024 * 1024;
    uint8_t *bytes = malloc(room);
    struct outcome outcome;
    size_t begin = room;

    assert_non_null(bytes);
    for (int level = 0; level < 100000; level++) {
        uint8_t header[8] = {0x0a};
        size_t size_bytes = room - begin, count = 1;

        do {
            header[count++] = (uint8_t)((size_bytes & 0x7f) | (size_bytes > 0x7f ? 0x80 : 0));
            size_bytes >>= 7;
        } while (size_bytes);
        begin -= count;
        memcpy(bytes + begin, header, count);
    }
    assert_int_equal(send_raw("x", 1, bytes + begin, room - begin, &outcome), HD_LIMIT);
    assert_non_null(strstr(outcome.message, "nested deeper"));
    free(bytes);
}

/* 100,001 empty strings are 200 KB on the wire and would be megabytes of pointers. */
static void more_elements_than_the_budget_are_refused(void **state)
{
    Heddle__Test__EchoRequest request = request_of("x", 0);
    struct outcome outcome;
    struct echo echo;

    request.n_lines = HD_RPC_WIRE_ELEMENTS_MAX + 1;
    request.lines = calloc(request.n_lines, sizeof *request.lines);
    assert_non_null(request.lines);
    for (size_t i = 0; i < request.n_lines; i++)
        request.lines[i] = (char *)"";
    echo_open(&echo, NULL, NULL, NULL);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_LIMIT);
    assert_non_null(strstr(outcome.message, "elements"));
    request.n_lines = HD_RPC_WIRE_ELEMENTS_MAX - 1; /* and the field `text` */
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
    assert_int_equal(outcome.count, HD_RPC_WIRE_ELEMENTS_MAX - 1);
    echo_close(&echo);
    free(request.lines);
}

static void message_larger_than_the_limit_is_refused_by_both_sides(void **state)
{
    const struct hd_rpc_client_options small = {.receive_bytes_max = 1000};
    const struct hd_rpc_server_options smaller = {.receive_bytes_max = 500};
    Heddle__Test__EchoRequest request = request_of("x", 0);
    uint8_t blob[1001] = {0};
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, &smaller, &small);
    request.blob = (ProtobufCBinaryData){sizeof blob, blob};
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_INVALID);
    request.blob.len = 800; /* leaves the client, not let in by the server */
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_LIMIT);
    request.blob.len = 400;
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
    echo_close(&echo);
}

static void chat_of_1000_messages_keeps_order_and_ends(void **state)
{
    struct hd_rpc_call_options options;
    struct hd_rpc_call *call;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, NULL, &call), HD_OK);
    echo_run_until(&echo, &outcome.opens, 1, 2000); /* accepted, before any message */
    for (int i = 1; i <= 1000; i++) {
        const Heddle__Test__EchoRequest request = request_of("", i);

        assert_int_equal(hd_rpc_call_write(call, &request.base), HD_OK);
        echo_run_until(&echo, &outcome.messages, i - 50, 2000); /* at most 50 on their way */
        assert_true(outcome.count == outcome.messages);         /* nothing lost, nothing swapped */
    }
    echo_run_until(&echo, &outcome.drains, 1, 2000); /* the last one has left the queue */
    hd_rpc_call_finish(call);
    echo_run_until(&echo, &outcome.dones, 1, 5000);
    assert_int_equal(outcome.status, HD_OK);
    assert_int_equal(outcome.messages, 1000);
    assert_int_equal(outcome.count, 1000);
    assert_int_equal(echo.server_messages, 1000);
    assert_int_equal(echo.server_half_closes, 1);
    echo_close(&echo);
}

static void cancel_at_the_client_ends_both_sides(void **state)
{
    struct hd_rpc_call_options options;
    struct hd_rpc_call *call;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, NULL, &call), HD_OK);
    echo_run_until(&echo, &outcome.opens, 1, 2000);
    hd_rpc_call_cancel(call);
    hd_rpc_call_cancel(call); /* twice is once */
    assert_int_equal(outcome.dones, 0);
    echo_run_until(&echo, &outcome.dones, 1, 2000);
    assert_int_equal(outcome.status, HD_ABORTED);
    echo_run_until(&echo, &echo.server_dones, 1, 2000);
    assert_int_equal(echo.server_status, HD_ABORTED);
    echo_run_for(&echo, 50);
    assert_int_equal(outcome.dones, 1);
    assert_int_equal(echo.server_dones, 1);
    echo_close(&echo);
}

/* Goal: closing never starts a batch on a queue that is shut down, which would abort the process.
 * Method: close while a unary call is held, a stream is open and messages are queued. */
static void closing_with_calls_in_flight_ends_them_all(void **state)
{
    const Heddle__Test__EchoRequest hold = request_of("hold", 0), more = request_of("", 1);
    struct outcome unary, chat;
    struct hd_rpc_call_options options;
    struct hd_rpc_call *call;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &unary);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &hold.base, NULL), HD_OK);
    options = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &chat);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, NULL, &call), HD_OK);
    echo_run_until(&echo, &echo.server_opens, 2, 2000);
    for (int i = 0; i < 10; i++)
        assert_int_equal(hd_rpc_call_write(call, &more.base), HD_OK);
    echo_close(&echo); /* asserts that the loop ends empty */
    assert_int_equal(unary.dones, 1);
    assert_int_not_equal(unary.status, HD_OK);
    assert_int_equal(chat.dones, 1);
    assert_int_not_equal(chat.status, HD_OK);
    assert_int_equal(echo.server_dones, 2);
}

static void mark(void *user)
{
    *(int *)user = 1;
}

static void graceful_close_lets_a_call_finish(void **state)
{
    const Heddle__Test__EchoRequest hold = request_of("hold", 0);
    Heddle__Test__EchoResponse response = HEDDLE__TEST__ECHO_RESPONSE__INIT;
    struct hd_rpc_call_options options;
    struct outcome held, late;
    struct echo echo;
    int closed = 0;

    response.count = 7;
    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &held);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &hold.base, NULL), HD_OK);
    echo_run_until(&echo, &echo.server_opens, 1, 2000);
    hd_rpc_server_close(echo.server, 3000, mark, &closed);
    echo_run_for(&echo, 50);
    assert_int_equal(closed, 0);
    assert_int_equal(held.dones, 0);
    assert_int_equal(echo_ask(&echo, &hold, &late), HD_UNAVAILABLE); /* nothing new */
    assert_int_equal(hd_rpc_call_reply(echo.held, &response.base), HD_OK);
    echo_run_until(&echo, &held.dones, 1, 2000);
    assert_int_equal(held.status, HD_OK);
    assert_int_equal(held.count, 7);
    echo_run_until(&echo, &closed, 1, 2000);
    echo_close(&echo);
}

static void grace_ends_and_takes_the_last_calls_along(void **state)
{
    const Heddle__Test__EchoRequest hold = request_of("hold", 0);
    struct hd_rpc_call_options options;
    struct outcome held;
    struct echo echo;
    int closed = 0;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &held);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &hold.base, NULL), HD_OK);
    echo_run_until(&echo, &echo.server_opens, 1, 2000);
    hd_rpc_server_close(echo.server, 100, mark, &closed);
    echo_run_until(&echo, &closed, 1, 2000);
    echo_run_until(&echo, &held.dones, 1, 2000);
    assert_int_not_equal(held.status, HD_OK);
    assert_int_equal(echo.server_dones, 1);
    echo_close(&echo);
}

/* Goal: a slow reader costs a bounded queue, not the server's memory, and gets everything in the
 * end. Method: 8,000 messages of 4 KiB, a queue of 100, a client that stops reading for a while. */
static void flood_meets_the_bound_and_loses_nothing(void **state)
{
    const int64_t count = 8000;
    const Heddle__Test__EchoRequest request = request_of("", count);
    struct hd_rpc_call_options options;
    struct hd_rpc_call *call;
    struct outcome outcome;
    struct echo echo;
    int paused_at;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_STREAM, HD_RPC_SERVER_STREAM, &outcome);
    options.timeout_ms = 90000;
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, &call), HD_OK);
    echo_run_until(&echo, &outcome.messages, 1, 2000);
    hd_rpc_call_pause(call);
    paused_at = outcome.messages;
    echo_run_for(&echo, 300);
    assert_int_equal(outcome.messages, paused_at);
    assert_true(echo.flood_left > 0); /* flow control holds the server back */
    hd_rpc_call_resume(call);
    assert_int_equal(outcome.messages, paused_at); /* nothing inside the call */
    echo_run_until(&echo, &outcome.dones, 1, 60000);
    assert_int_equal(outcome.status, HD_OK);
    assert_int_equal(outcome.messages, count);
    assert_int_equal(outcome.count, 1); /* it counts down */
    assert_int_equal(echo.most_queued, 100);
    echo_close(&echo);
}

static void messages_before_a_failure_arrive_before_it(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("break", 5);
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_STREAM, HD_RPC_SERVER_STREAM, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    echo_run_until(&echo, &outcome.messages, 5, 2000);
    hd_rpc_call_fail(echo.held, hd_err(HD_CORRUPT, "the log ends here"));
    echo_run_until(&echo, &outcome.dones, 1, 2000);
    assert_int_equal(outcome.status, HD_CORRUPT);
    assert_string_equal(outcome.message, "the log ends here");
    assert_int_equal(outcome.opens, 1);
    assert_int_equal(outcome.messages, 5);
    echo_close(&echo);
}

static void refused_stream_was_never_open(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("refuse", 0);
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_STREAM, HD_RPC_SERVER_STREAM, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    echo_run_until(&echo, &outcome.dones, 1, 2000);
    assert_int_equal(outcome.status, HD_NOT_FOUND);
    assert_int_equal(outcome.opens, 0);
    echo_close(&echo);
}

static void cancel_while_paused_still_ends(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("", 1000);
    struct hd_rpc_call_options options;
    struct hd_rpc_call *call;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_STREAM, HD_RPC_SERVER_STREAM, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, &call), HD_OK);
    echo_run_until(&echo, &outcome.messages, 1, 2000);
    hd_rpc_call_pause(call);
    echo_run_for(&echo, 100);
    hd_rpc_call_cancel(call);
    echo_run_until(&echo, &outcome.dones, 1, 2000);
    assert_int_equal(outcome.status, HD_ABORTED);
    echo_close(&echo);
}

static void calls_beyond_the_limit_are_refused(void **state)
{
    const struct hd_rpc_server_options limited = {.calls_max = 3};
    const Heddle__Test__EchoRequest request = request_of("x", 0);
    struct outcome chats[3], outcome;
    struct hd_rpc_call_options options;
    struct hd_rpc_call *calls[3];
    struct echo echo;

    echo_open(&echo, NULL, &limited, NULL);
    for (int i = 0; i < 3; i++) {
        options = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &chats[i]);
        assert_int_equal(hd_rpc_client_call(echo.client, &options, NULL, &calls[i]), HD_OK);
        echo_run_until(&echo, &chats[i].opens, 1, 2000);
    }
    assert_int_equal(hd_rpc_server_calls(echo.server), 3);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_LIMIT);
    hd_rpc_call_finish(calls[0]);
    echo_run_until(&echo, &chats[0].dones, 1, 2000);
    echo_run_until(&echo, &echo.server_dones, 1, 2000);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_OK);
    echo_close(&echo);
}

static void unary_call_without_deadline_is_refused(void **state)
{
    const struct hd_rpc_server_options patient = {.allow_no_deadline = true};
    const Heddle__Test__EchoRequest request = request_of("x", 0);
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    for (int allowed = 0; allowed < 2; allowed++) {
        echo_open(&echo, NULL, allowed ? &patient : NULL, NULL);
        options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &outcome);
        options.timeout_ms = -1;
        assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
        echo_run_until(&echo, &outcome.dones, 1, 2000);
        assert_int_equal(outcome.status, allowed ? HD_OK : HD_INVALID);
        echo_close(&echo);
    }
}

static enum hd_status allow_chat_only(void *user, struct hd_rpc_call *call)
{
    const struct hd_rpc_principal *principal = hd_rpc_call_principal(call);
    const char *path = hd_rpc_call_path(call);
    int *asked = user;

    ++*asked;
    assert_int_equal(principal->uid, getuid());
    return strcmp(path, ECHO_CHAT) == 0 ? HD_OK
                                        : hd_err(HD_DENIED, "%s may only chat", principal->name);
}

static void authorize_sees_the_peer_and_decides_before_the_handler(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("x", 0);
    int asked = 0;
    const struct hd_rpc_server_options strict = {.authorize = allow_chat_only,
                                                 .authorize_user = &asked};
    struct hd_rpc_call_options options;
    struct outcome outcome;
    char story[64];
    struct echo echo;

    (void)snprintf(story, sizeof story, "uid:%u may only chat", getuid());
    echo_open(&echo, NULL, &strict, NULL);
    assert_int_equal(echo_ask(&echo, &request, &outcome), HD_DENIED);
    assert_string_equal(outcome.message, story);
    assert_int_equal(echo.server_opens, 0);
    options = echo_call_options(ECHO_CHAT, HD_RPC_BIDI, &outcome);
    assert_int_equal(hd_rpc_client_call(echo.client, &options, NULL, NULL), HD_OK);
    echo_run_until(&echo, &outcome.opens, 1, 2000);
    assert_int_equal(asked, 2);
    echo_close(&echo);
}

static void metadata_reaches_the_handler(void **state)
{
    const struct hd_rpc_metadata good[] = {{"note", "seven"}}, bad[] = {{"note", "line\nbreak"}};
    const Heddle__Test__EchoRequest request = request_of("x", 0);
    struct hd_rpc_call_options options;
    struct outcome outcome;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &outcome);
    options.metadata = bad;
    options.metadata_count = 1;
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_INVALID);
    options.metadata = good;
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    echo_run_until(&echo, &outcome.dones, 1, 2000);
    assert_string_equal(echo.metadata, "seven");
    echo_close(&echo);
}

static void waiting_call_gives_the_answer_or_the_story(void **state)
{
    const Heddle__Test__EchoRequest good = request_of("hello", 1),
                                    bad = request_of("fail:no job 12", HD_NOT_FOUND);
    ProtobufCMessage *response = NULL;
    struct hd_rpc_client *nobody;
    char address[128];
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    assert_int_equal(hd_rpc_call_wait(echo.client, ECHO_UNARY,
                                      &heddle__test__echo_response__descriptor, 2000, &good.base,
                                      &response),
                     HD_OK);
    assert_string_equal(((Heddle__Test__EchoResponse *)response)->text, "hello");
    hd_rpc_message_free(response);
    assert_int_equal(hd_rpc_call_wait(echo.client, ECHO_UNARY,
                                      &heddle__test__echo_response__descriptor, 2000, &bad.base,
                                      &response),
                     HD_NOT_FOUND);
    assert_string_equal(hd_err_message(), "no job 12");

    (void)snprintf(address, sizeof address, "unix:%s/nobody", echo.dir);
    assert_int_equal(hd_rpc_client_new(echo.rpc, address, NULL, &nobody), HD_OK);
    assert_int_equal(hd_rpc_call_wait(nobody, ECHO_UNARY, &heddle__test__echo_response__descriptor,
                                      2000, &good.base, &response),
                     HD_UNAVAILABLE);
    assert_non_null(strstr(hd_err_message(), address));
    assert_non_null(strstr(hd_err_message(), "/nobody: there is no such socket; start it"));
    echo_close(&echo);
}

static void take_message(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    ProtobufCMessage **kept = hd_rpc_call_user(call);

    *kept = hd_rpc_call_take(call);
    assert_ptr_equal(*kept, msg);
    assert_null(hd_rpc_call_take(call));
}

static void taken_message_outlives_the_call(void **state)
{
    const Heddle__Test__EchoRequest request = request_of("kept", 3);
    ProtobufCMessage *kept = NULL;
    struct hd_rpc_call_options options;
    struct outcome unused;
    struct echo echo;

    echo_open(&echo, NULL, NULL, NULL);
    options = echo_call_options(ECHO_UNARY, HD_RPC_UNARY, &unused);
    options.handler = (struct hd_rpc_handler){.on_msg = take_message};
    options.user = &kept;
    assert_int_equal(hd_rpc_client_call(echo.client, &options, &request.base, NULL), HD_OK);
    echo_run_until(&echo, &echo.server_dones, 1, 2000);
    echo_run_for(&echo, 20);
    echo_close(&echo);
    assert_string_equal(((Heddle__Test__EchoResponse *)kept)->text, "kept");
    hd_rpc_message_free(kept);
}

RUN_CASES()
