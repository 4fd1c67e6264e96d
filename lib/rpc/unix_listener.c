/* Unix listeners: accept connections at Unix sockets and hand them to gRPC.
 *
 * gRPC's own listener would not give the peer's uid (SO_PEERCRED), and after accept fails once for
 * lack of descriptors it accepts no more connections.
 *
 * A listener holds a lock on PATH.lock, so that of two servers only one uses the socket file. The
 * lock file is never removed; the kernel releases the lock when the process ends. If the holder of
 * the lock finds a socket file to which it cannot connect, the file belongs to a server that no
 * longer runs and is replaced.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <grpc/grpc_posix.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "rpc/server_internal.h"

enum { BACKLOG = 128, RETRY_MS = 100, ACCEPTS_PER_WAKE = 64, LOG_INTERVAL_MS = 10000 };

static enum hd_status make_dir(const char *path)
{
    const char *slash = strrchr(path, '/');
    char dir[HD_RPC_UNIX_PATH_MAX + 1];

    if (!slash || slash == path)
        return HD_OK;
    (void)snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    return hd_file_exists(dir) ? HD_OK : hd_file_make_dirs(dir, 0700);
}

static struct sockaddr_un socket_address(const char *path)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};

    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    return un;
}

/* HD_OK: the path is free, or the socket of a server that no longer runs was removed. */
static enum hd_status clear_path(const char *path)
{
    const struct sockaddr_un un = socket_address(path);
    struct stat info;
    int fd, code;

    if (lstat(path, &info) < 0)
        return errno == ENOENT ? HD_OK : hd_err(HD_IO, "cannot stat %s: %m", path);
    if (!S_ISSOCK(info.st_mode))
        return hd_err(HD_EXISTS, "%s exists and is not a socket; choose another path", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return hd_err(HD_LIMIT, "cannot make a socket: %m");
    code = connect(fd, (const struct sockaddr *)&un, sizeof un) < 0 ? errno : 0;
    (void)close(fd);
    if (code != ECONNREFUSED && code != ENOENT)
        return hd_err(HD_CONFLICT, "another server listens on unix:%s", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return hd_err(HD_IO, "cannot remove the socket %s of a dead server: %m", path);
    return HD_OK;
}

static enum hd_status bind_socket(struct hd_rpc_unix_listener *listener)
{
    const struct sockaddr_un un = socket_address(listener->path);
    struct stat info;

    listener->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->listen_fd < 0)
        return hd_err(HD_LIMIT, "cannot make a socket: %m");
    /* the socket file gets the mode that the socket has before bind, minus the umask */
    if (fchmod(listener->listen_fd, 0600) < 0 ||
        bind(listener->listen_fd, (const struct sockaddr *)&un, sizeof un) < 0)
        return hd_err(HD_IO, "cannot make the socket %s: %m", listener->path);
    if (stat(listener->path, &info) < 0 || chmod(listener->path, 0600) < 0)
        return hd_err(HD_IO, "cannot stat or chmod the socket %s: %m", listener->path);
    listener->device = info.st_dev;
    listener->inode = info.st_ino;
    if (listen(listener->listen_fd, BACKLOG) < 0)
        return hd_err(HD_IO, "cannot listen on unix:%s: %m", listener->path);
    return HD_OK;
}

static void remove_socket(struct hd_rpc_unix_listener *listener)
{
    struct stat info;

    if (listener->listen_fd >= 0)
        (void)close(listener->listen_fd);
    if (listener->inode && lstat(listener->path, &info) == 0 && info.st_dev == listener->device &&
        info.st_ino == listener->inode)
        (void)unlink(listener->path); /* best effort: the next server replaces it */
    if (listener->lock_fd >= 0)
        (void)close(listener->lock_fd);
    listener->listen_fd = listener->lock_fd = -1;
}

enum hd_status hd_rpc_unix_listener_open(struct hd_rpc_server *server, const char *path)
{
    struct hd_rpc_unix_listener *listener = calloc(1, sizeof *listener);
    char lock_path[HD_RPC_UNIX_PATH_MAX + 8];
    enum hd_status st;

    if (!listener)
        return hd_err(HD_NO_MEMORY, "no memory to listen");
    listener->server = server;
    listener->listen_fd = listener->lock_fd = -1;
    (void)snprintf(listener->path, sizeof listener->path, "%s", path);
    (void)snprintf(lock_path, sizeof lock_path, "%s.lock", path);

    st = make_dir(path);
    if (!st)
        st = hd_file_lock(lock_path, &listener->lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st, "another server listens on unix:%s", path);
    if (!st)
        st = clear_path(path);
    if (!st)
        st = bind_socket(listener);
    if (st) {
        remove_socket(listener);
        free(listener);
        return st;
    }
    listener->next = server->unix_listeners;
    server->unix_listeners = listener;
    return HD_OK;
}

/* ---- accepting ---- */

static enum hd_status remember_uid(struct hd_rpc_server *server, int fd, uid_t uid)
{
    size_t needed = (size_t)fd + 1, room;
    uid_t *uids;

    if (needed > server->uids_count) {
        room = needed < 64 ? 64 : needed * 2;
        uids = realloc(server->uids, room * sizeof *uids);
        if (!uids)
            return hd_err(HD_NO_MEMORY, "no memory for %zu connections", room);
        for (size_t i = server->uids_count; i < room; i++)
            uids[i] = (uid_t)-1;
        server->uids = uids;
        server->uids_count = room;
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
    grpc_server_add_channel_from_fd(server->server, fd, server->insecure); /* owns fd now */
}

static void on_connection(uv_poll_t *poll, int status, int events);

static void on_retry(uv_timer_t *retry)
{
    struct hd_rpc_unix_listener *listener = retry->data;

    (void)uv_poll_start(&listener->poll, UV_READABLE, on_connection);
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct hd_rpc_unix_listener *listener = poll->data;
    int fd;

    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_PER_WAKE; i++) {
        fd = accept4(listener->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            admit_connection(listener->server, fd);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            /* the connection stays in the backlog: polling now would be a busy loop */
            if (hd_clock_now_ms() >= listener->next_log_ms)
                hd_log(HD_LOG_WARN, "cannot accept on unix:%s, will retry: %s", listener->path,
                       strerror(errno));
            listener->next_log_ms = hd_clock_now_ms() + LOG_INTERVAL_MS;
            (void)uv_poll_stop(&listener->poll);
            (void)uv_timer_start(&listener->retry, on_retry, RETRY_MS, 0);
            return;
        }
    }
}

enum hd_status hd_rpc_unix_listener_start(struct hd_rpc_unix_listener *listener)
{
    struct hd_rpc_server *server = listener->server;
    int code = uv_poll_init(server->rpc->loop, &listener->poll, listener->listen_fd);

    if (code)
        return hd_err(HD_IO, "cannot watch unix:%s: %s", listener->path, uv_strerror(code));
    (void)uv_timer_init(server->rpc->loop, &listener->retry);
    listener->poll.data = listener->retry.data = listener;
    listener->started = true;
    server->handles += 2;
    return uv_poll_start(&listener->poll, UV_READABLE, on_connection)
               ? hd_err(HD_IO, "cannot watch unix:%s", listener->path)
               : HD_OK;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct hd_rpc_unix_listener *listener = handle->data;
    struct hd_rpc_server *server = listener->server;

    if (--listener->open_handles == 0)
        free(listener);
    hd_rpc_server_handle_closed(server);
}

void hd_rpc_unix_listener_close(struct hd_rpc_unix_listener *listener)
{
    if (!listener->started) {
        remove_socket(listener);
        free(listener);
        return;
    }
    listener->open_handles = 2;
    uv_close((uv_handle_t *)&listener->poll, on_handle_closed);
    uv_close((uv_handle_t *)&listener->retry, on_handle_closed);
    remove_socket(listener);
}
