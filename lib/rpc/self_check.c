/* self_check: tests whether the server still accepts connections.
 *
 * A server without free file descriptors, or whose loop is stuck, accepts nothing, while calls on
 * its old connections may continue normally. The kernel still completes connections into the
 * backlog, so a successful connect proves nothing. Hence each check connects, sends the first byte
 * that a client of this listener would send and the end of the stream, and waits for a byte or the
 * end: an HTTP/2 server sends its settings at once, a TLS server hangs up on a client that does not
 * finish its hello. Both do so only after accepting.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/server_internal.h"

struct hd_rpc_self_check {
    struct hd_rpc_server *server;
    uv_timer_t interval, timeout;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } probe;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    char byte[64];
    /* listener that is checked now; NULL between two rounds of checks */
    const struct hd_rpc_listener *listener;
    bool probing; /* the libuv handle of the test connection is open */
    bool closing, round_failed;
    int timers_open, failures;
    int64_t timeout_ms;
    void (*on_result)(void *user, int in_a_row, const char *message);
    void *user;
};

static void check_listener(struct hd_rpc_self_check *check);

static void free_when_closed(struct hd_rpc_self_check *check)
{
    struct hd_rpc_server *server = check->server;

    if (!check->closing || check->probing || check->timers_open)
        return;
    free(check);
    hd_rpc_server_handle_closed(server);
}

static void on_probe_closed(uv_handle_t *handle)
{
    struct hd_rpc_self_check *check = handle->data;

    check->probing = false;
    if (check->closing) {
        free_when_closed(check);
        return;
    }
    check->listener = check->listener->next;
    if (check->listener) {
        check_listener(check);
    } else if (!check->round_failed && check->failures) {
        check->failures = 0;
        check->on_result(check->user, 0, NULL);
    }
}

/* Ends the check of one listener. reason: why the check failed; NULL: it succeeded. */
static void conclude(struct hd_rpc_self_check *check, const char *reason)
{
    char message[HD_ERR_MAX];

    if (uv_is_closing(&check->probe.handle))
        return;
    (void)uv_timer_stop(&check->timeout);
    uv_close(&check->probe.handle, on_probe_closed);
    if (!reason)
        return;
    if (!check->round_failed)
        check->failures++;
    check->round_failed = true;
    (void)snprintf(message, sizeof message, "this server accepts no connections on %s: %s",
                   check->listener->address, reason);
    check->on_result(check->user, check->failures, message);
}

static void on_timeout(uv_timer_t *timer)
{
    conclude(timer->data, "no answer within the timeout");
}

static void give_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buffer)
{
    struct hd_rpc_self_check *check = handle->data;

    (void)suggested;
    *ret_buffer = uv_buf_init(check->byte, sizeof check->byte);
}

static void on_bytes(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    (void)buffer;
    if (count != 0) /* bytes, the end or a reset: the connection was accepted */
        conclude(stream->data, NULL);
}

static void on_half_closed(uv_shutdown_t *shutdown, int status)
{
    (void)shutdown, (void)status; /* on_bytes receives a reset, too */
}

/* Sends a byte, because a TCP connection that sends nothing would not reach gRPC (relay.h). */
static void send_first_byte(struct hd_rpc_self_check *check)
{
    static char hello[] = {0x16},
                preface[] = {'P'}; /* first byte of a TLS handshake record; of "PRI * HTTP/2" */
    const uv_buf_t byte = uv_buf_init(check->server->tls ? hello : preface, 1);

    if (check->listener->peer.ss_family != AF_UNIX)
        (void)uv_try_write(&check->probe.stream, &byte, 1); /* on_bytes receives an error */
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct hd_rpc_self_check *check = connect->data;

    if (status == UV_ECANCELED)
        return;
    if (status) {
        conclude(check, uv_strerror(status));
        return;
    }
    send_first_byte(check);
    (void)uv_shutdown(&check->shutdown, &check->probe.stream, on_half_closed);
    if (uv_read_start(&check->probe.stream, give_buffer, on_bytes))
        conclude(check, "cannot read");
}

static void check_listener(struct hd_rpc_self_check *check)
{
    const struct sockaddr *peer = (const struct sockaddr *)&check->listener->peer;
    const char *path = ((const struct sockaddr_un *)peer)->sun_path;
    int code = 0;

    if (peer->sa_family == AF_UNIX)
        (void)uv_pipe_init(check->server->rpc->loop, &check->probe.pipe, 0);
    else
        (void)uv_tcp_init(check->server->rpc->loop, &check->probe.tcp);
    check->probe.handle.data = check->connect.data = check;
    check->probing = true;
    (void)uv_timer_start(&check->timeout, on_timeout, (uint64_t)check->timeout_ms, 0);
    if (peer->sa_family == AF_UNIX)
        uv_pipe_connect(&check->connect, &check->probe.pipe, path, on_connected);
    else
        code = uv_tcp_connect(&check->connect, &check->probe.tcp, peer, on_connected);
    if (code)
        conclude(check, uv_strerror(code));
}

static void on_interval(uv_timer_t *timer)
{
    struct hd_rpc_self_check *check = timer->data;

    if (check->probing)
        return; /* the previous check is still running */
    check->round_failed = false;
    check->listener = check->server->listeners;
    if (check->listener)
        check_listener(check);
}

enum hd_status
hd_rpc_server_self_check(struct hd_rpc_server *server, int64_t interval_ms, int64_t timeout_ms,
                         void (*on_result)(void *user, int in_a_row, const char *message),
                         void *user)
{
    struct hd_rpc_self_check *check;

    if (server->check || server->closing)
        return hd_err(HD_CONFLICT, "the server already has a self-check, or is closing");
    check = calloc(1, sizeof *check);
    if (!check)
        return hd_err(HD_NO_MEMORY, "no memory for the self-check");
    check->server = server;
    check->timeout_ms = timeout_ms;
    check->on_result = on_result;
    check->user = user;
    (void)uv_timer_init(server->rpc->loop, &check->interval);
    (void)uv_timer_init(server->rpc->loop, &check->timeout);
    check->interval.data = check->timeout.data = check;
    check->timers_open = 2;
    (void)uv_timer_start(&check->interval, on_interval, (uint64_t)interval_ms,
                         (uint64_t)interval_ms);
    server->check = check;
    server->handles++;
    return HD_OK;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct hd_rpc_self_check *check = handle->data;

    check->timers_open--;
    free_when_closed(check);
}

void hd_rpc_self_check_close(struct hd_rpc_self_check *check)
{
    check->closing = true;
    uv_close((uv_handle_t *)&check->interval, on_timer_closed);
    uv_close((uv_handle_t *)&check->timeout, on_timer_closed);
    if (check->probing && !uv_is_closing(&check->probe.handle))
        uv_close(&check->probe.handle, on_probe_closed);
}
