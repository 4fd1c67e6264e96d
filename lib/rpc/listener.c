/* listener: Unix listeners: listening sockets of our own, whose connections are passed to gRPC.
 *
 * Accepting here gives the uid of the peer (SO_PEERCRED), and survives a moment without free file
 * descriptors: gRPC's own listener would accept nothing afterwards. TCP is in tcp_listener.c and
 * relay.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <grpc/grpc_posix.h>

#include "base/file.h"
#include "base/log.h"
#include "rpc/server_internal.h"

enum { BACKLOG = 128, RETRY_MS = 100, ACCEPTS_PER_WAKE = 64 };

static mode_t mode_of(const struct hd_rpc_server *server)
{
    return server->options.unix_mode ? server->options.unix_mode : 0600;
}

/* Returns the group that the socket file gets; (gid_t)-1: the group is not changed. */
static gid_t group_of(const struct hd_rpc_server *server)
{
    return mode_of(server) & 0060 && server->options.unix_group ? server->options.unix_group
                                                                : (gid_t)-1;
}

/* Creates the socket's folder, which only those users may enter who may use the socket. */
static enum hd_status make_dir(const struct hd_rpc_server *server, const char *path)
{
    const mode_t mode = mode_of(server);
    const char *slash = strrchr(path, '/');
    char dir[HD_RPC_UNIX_PATH_MAX + 1];
    enum hd_status st;

    if (!slash || slash == path)
        return HD_OK;
    (void)snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    if (hd_file_exists(dir))
        return HD_OK;
    st = hd_file_make_dirs(dir, 0700);
    if (!st && mode != 0600 &&
        (chown(dir, (uid_t)-1, group_of(server)) < 0 ||
         chmod(dir, 0700 | (mode & 0060 ? 0010 : 0) | (mode & 0006 ? 0001 : 0)) < 0))
        st = hd_err(HD_IO, "cannot let the group of the socket enter %s: %m", dir);
    return st;
}

enum hd_status hd_rpc_unix_listener_open(struct hd_rpc_server *server, const char *path)
{
    struct hd_rpc_unix_listener *unix_listener = calloc(1, sizeof *unix_listener);
    enum hd_status st;

    if (!unix_listener)
        return hd_err(HD_NO_MEMORY, "no memory to listen");
    unix_listener->server = server;
    (void)snprintf(unix_listener->name, sizeof unix_listener->name, "unix:%s", path);
    st = make_dir(server, path);
    if (!st) {
        st = hd_unix_socket_open(path, mode_of(server), group_of(server), BACKLOG,
                                 &unix_listener->socket);
        if (st)
            hd_unix_socket_close(&unix_listener->socket);
    }
    if (st) {
        free(unix_listener);
        return st;
    }
    unix_listener->next = server->unix_listeners;
    server->unix_listeners = unix_listener;
    return HD_OK;
}

/* ---- accepting ---- */

static enum hd_status remember_uid(struct hd_rpc_server *server, int fd, uid_t uid)
{
    size_t needed = (size_t)fd + 1, capacity;
    uid_t *uids;

    if (needed > server->uids_count) {
        capacity = needed < 64 ? 64 : needed * 2;
        uids = realloc(server->uids, capacity * sizeof *uids);
        if (!uids)
            return hd_err(HD_NO_MEMORY, "no memory for %zu connections", capacity);
        for (size_t i = server->uids_count; i < capacity; i++)
            uids[i] = (uid_t)-1;
        server->uids = uids;
        server->uids_count = capacity;
    }
    server->uids[fd] = uid;
    return HD_OK;
}

static void admit_connection(struct hd_rpc_server *server, int fd)
{
    struct ucred peer;
    socklen_t peer_bytes = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) < 0 ||
        remember_uid(server, fd, peer.uid)) {
        (void)close(fd);
        return;
    }
    /* gRPC owns fd from here */
    grpc_server_add_channel_from_fd(server->server, fd, server->insecure);
}

static void accept_connection(uv_poll_t *poll, int status, int events);

static void on_retry(uv_timer_t *retry)
{
    struct hd_rpc_unix_listener *unix_listener = retry->data;

    (void)uv_poll_start(&unix_listener->poll, UV_READABLE, accept_connection);
}

static void report_not_accepted(struct hd_rpc_unix_listener *unix_listener, int error)
{
    size_t left_out;

    if (hd_rpc_rate_allows(&unix_listener->failures, &left_out))
        hd_log(HD_LOG_WARN,
               "cannot accept on %s, retrying: %s (%zu more failures since the last such line)",
               unix_listener->name, strerror(error), left_out);
}

static void accept_connection(uv_poll_t *poll, int status, int events)
{
    struct hd_rpc_unix_listener *unix_listener = poll->data;
    int fd;

    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_PER_WAKE; i++) {
        fd = accept4(unix_listener->socket.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            admit_connection(unix_listener->server, fd);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            /* the pending connection would wake the loop again and again */
            report_not_accepted(unix_listener, errno);
            (void)uv_poll_stop(&unix_listener->poll);
            (void)uv_timer_start(&unix_listener->retry, on_retry, RETRY_MS, 0);
            return;
        }
    }
}

enum hd_status hd_rpc_listener_start(struct hd_rpc_unix_listener *unix_listener)
{
    struct hd_rpc_server *server = unix_listener->server;
    int code = uv_poll_init(server->rpc->loop, &unix_listener->poll, unix_listener->socket.fd);

    if (code)
        return hd_err(HD_IO, "cannot watch %s: %s", unix_listener->name, uv_strerror(code));
    (void)uv_timer_init(server->rpc->loop, &unix_listener->retry);
    unix_listener->poll.data = unix_listener->retry.data = unix_listener;
    unix_listener->started = true;
    server->handles += 2;
    return uv_poll_start(&unix_listener->poll, UV_READABLE, accept_connection)
               ? hd_err(HD_IO, "cannot watch %s", unix_listener->name)
               : HD_OK;
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct hd_rpc_unix_listener *unix_listener = handle->data;
    struct hd_rpc_server *server = unix_listener->server;

    if (--unix_listener->open_handles == 0)
        free(unix_listener);
    hd_rpc_server_handle_closed(server);
}

void hd_rpc_listener_close(struct hd_rpc_unix_listener *unix_listener)
{
    if (!unix_listener->started) {
        hd_unix_socket_close(&unix_listener->socket);
        free(unix_listener);
        return;
    }
    unix_listener->open_handles = 2;
    uv_close((uv_handle_t *)&unix_listener->poll, on_listener_closed);
    uv_close((uv_handle_t *)&unix_listener->retry, on_listener_closed);
    hd_unix_socket_close(&unix_listener->socket);
}
