/* listener: Unix listeners: listening sockets of our own, whose connections are passed to gRPC.
 *
 * Accepting here gives the uid of the peer (SO_PEERCRED), and survives a moment without free file
 * descriptors: gRPC's own listener would accept nothing afterwards. TCP is in tcp_listener.c and
 * relay.c.
 *
 * A Unix listener holds a lock on PATH.lock as long as it lives, so that two servers that start at
 * the same moment cannot take the socket file from each other. The lock file stays; the lock is
 * released when the process ends. With the lock held, a socket file on which no server listens was
 * left by a dead server, and is replaced.
 */
#include <errno.h>
#include <fcntl.h>
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

static struct sockaddr_un socket_address(const char *path)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};

    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    return un;
}

/* Removes the socket file of a dead server. HD_OK: the path is free. HD_CONFLICT: another server
 * listens on it. */
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

static enum hd_status bind_socket(struct hd_rpc_unix_listener *unix_listener)
{
    const struct sockaddr_un un = socket_address(unix_listener->path);
    struct stat info;

    unix_listener->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (unix_listener->listen_fd < 0)
        return hd_err(HD_LIMIT, "cannot make a socket: %m");
    /* The socket file gets the mode of the socket at bind, whatever the umask. */
    if (fchmod(unix_listener->listen_fd, 0600) < 0 ||
        bind(unix_listener->listen_fd, (const struct sockaddr *)&un, sizeof un) < 0)
        return hd_err(HD_IO, "cannot make the socket %s: %m", unix_listener->path);
    if (group_of(unix_listener->server) != (gid_t)-1 &&
        lchown(unix_listener->path, (uid_t)-1, group_of(unix_listener->server)) < 0)
        return hd_err(HD_IO, "cannot give the socket %s to its group: %m", unix_listener->path);
    if (stat(unix_listener->path, &info) < 0 ||
        chmod(unix_listener->path, mode_of(unix_listener->server)) < 0)
        return hd_err(HD_IO, "cannot stat the socket %s: %m", unix_listener->path);
    unix_listener->device = info.st_dev;
    unix_listener->inode = info.st_ino;
    if (listen(unix_listener->listen_fd, BACKLOG) < 0)
        return hd_err(HD_IO, "cannot listen on unix:%s: %m", unix_listener->path);
    return HD_OK;
}

static void remove_socket(struct hd_rpc_unix_listener *unix_listener)
{
    struct stat info;

    if (unix_listener->listen_fd >= 0)
        (void)close(unix_listener->listen_fd);
    if (unix_listener->inode && lstat(unix_listener->path, &info) == 0 &&
        info.st_dev == unix_listener->device && info.st_ino == unix_listener->inode)
        /* best effort: the next server removes the file if this fails */
        (void)unlink(unix_listener->path);
    if (unix_listener->lock_fd >= 0)
        (void)close(unix_listener->lock_fd);
    unix_listener->listen_fd = unix_listener->lock_fd = -1;
}

enum hd_status hd_rpc_unix_listener_open(struct hd_rpc_server *server, const char *path)
{
    struct hd_rpc_unix_listener *unix_listener = calloc(1, sizeof *unix_listener);
    char lock_path[HD_RPC_UNIX_PATH_MAX + 8];
    enum hd_status st;

    if (!unix_listener)
        return hd_err(HD_NO_MEMORY, "no memory to listen");
    unix_listener->server = server;
    unix_listener->listen_fd = unix_listener->lock_fd = -1;
    (void)snprintf(unix_listener->name, sizeof unix_listener->name, "unix:%s", path);
    (void)snprintf(unix_listener->path, sizeof unix_listener->path, "%s", path);
    (void)snprintf(lock_path, sizeof lock_path, "%s.lock", path);

    st = make_dir(server, path);
    if (!st)
        st = hd_file_lock(lock_path, &unix_listener->lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st, "another server listens on unix:%s", path);
    if (!st)
        st = clear_path(path);
    if (!st)
        st = bind_socket(unix_listener);
    if (st) {
        remove_socket(unix_listener);
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
        fd = accept4(unix_listener->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
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
    int code = uv_poll_init(server->rpc->loop, &unix_listener->poll, unix_listener->listen_fd);

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
        remove_socket(unix_listener);
        free(unix_listener);
        return;
    }
    unix_listener->open_handles = 2;
    uv_close((uv_handle_t *)&unix_listener->poll, on_listener_closed);
    uv_close((uv_handle_t *)&unix_listener->retry, on_listener_closed);
    remove_socket(unix_listener);
}
