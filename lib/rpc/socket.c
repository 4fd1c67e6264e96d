#include "rpc/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* ---- Unix sockets ---- */

/* Removes the socket file of a dead program. HD_OK: the path is free. HD_CONFLICT: another program
 * listens on it. */
static enum hd_status clear_path(const struct sockaddr_un *un)
{
    const char *path = un->sun_path;
    struct stat info;
    int fd, code;

    if (lstat(path, &info) < 0)
        return errno == ENOENT ? HD_OK : hd_err(HD_IO, "cannot stat %s: %m", path);
    if (!S_ISSOCK(info.st_mode))
        return hd_err(HD_EXISTS, "%s exists and is not a socket; choose another path", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return hd_err(HD_LIMIT, "cannot make a socket: %m");
    code = connect(fd, (const struct sockaddr *)un, sizeof *un) < 0 ? errno : 0;
    (void)close(fd);
    if (code != ECONNREFUSED && code != ENOENT)
        return hd_err(HD_CONFLICT, "another program listens on unix:%s", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return hd_err(HD_IO, "cannot remove the socket %s of a dead program: %m", path);
    return HD_OK;
}

static enum hd_status bind_socket(struct hd_unix_socket *s, const struct sockaddr_un *un,
                                  mode_t mode, gid_t group)
{
    struct stat info;

    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0)
        return hd_err(HD_LIMIT, "cannot make a socket: %m");
    /* The socket file gets the mode of the socket at bind, whatever the umask. */
    if (fchmod(s->fd, 0600) < 0 || bind(s->fd, (const struct sockaddr *)un, sizeof *un) < 0)
        return hd_err(HD_IO, "cannot make the socket %s: %m", s->path);
    if (group != (gid_t)-1 && lchown(s->path, (uid_t)-1, group) < 0)
        return hd_err(HD_IO, "cannot give the socket %s to its group: %m", s->path);
    if (stat(s->path, &info) < 0)
        return hd_err(HD_IO, "cannot stat the socket %s: %m", s->path);
    if (chmod(s->path, mode) < 0)
        return hd_err(HD_IO, "cannot set the mode of the socket %s: %m", s->path);
    s->device = info.st_dev;
    s->inode = info.st_ino;
    return HD_OK;
}

enum hd_status hd_unix_socket_open(const char *path, mode_t mode, gid_t group, int backlog,
                                   struct hd_unix_socket *s)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    char lock[HD_RPC_UNIX_PATH_MAX + 8];
    enum hd_status st;

    *s = (struct hd_unix_socket){.fd = -1, .lock_fd = -1};
    (void)snprintf(s->path, sizeof s->path, "%s", path);
    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    st = hd_file_lock(lock, &s->lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st, "another program listens on unix:%s", path);
    if (!st)
        st = clear_path(&un);
    if (!st)
        st = bind_socket(s, &un, mode, group);
    if (!st && listen(s->fd, backlog) < 0)
        st = hd_err(HD_IO, "cannot listen on unix:%s: %m", path);
    return st;
}

void hd_unix_socket_close(struct hd_unix_socket *s)
{
    struct stat info;

    if (s->fd >= 0)
        (void)close(s->fd);
    if (s->inode && lstat(s->path, &info) == 0 && info.st_dev == s->device &&
        info.st_ino == s->inode)
        (void)unlink(s->path); /* best effort: the next program removes the file if this fails */
    if (s->lock_fd >= 0)
        (void)close(s->lock_fd);
    *s = (struct hd_unix_socket){.fd = -1, .lock_fd = -1};
}

/* ---- TCP ---- */

enum hd_status hd_tcp_find(const char *host, int port, struct addrinfo **ret_found)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char service[8];
    int code;

    (void)snprintf(service, sizeof service, "%d", port);
    code = getaddrinfo(host, service, &hints, ret_found);
    return code ? hd_err(HD_INVALID, "cannot find the host %s: %s", host, gai_strerror(code))
                : HD_OK;
}

/* Sets options that connections inherit from the listener. SO_REUSEADDR: a restarted server need
 * not wait for its old connections; two servers still cannot listen on one port. */
static void set_options(int fd, unsigned unsent_ms, int family)
{
    const int on = 1, off = 0;

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof unsent_ms);
    if (family == AF_INET6) /* a socket on "::" also accepts IPv4 */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
}

int hd_tcp_listen(const struct addrinfo *at, unsigned unsent_ms, int backlog, int *ret_fd)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error;

    if (fd < 0)
        return errno;
    set_options(fd, unsent_ms, at->ai_family);
    if (bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, backlog) < 0) {
        error = errno;
        (void)close(fd);
        return error;
    }
    *ret_fd = fd;
    return 0;
}

int hd_tcp_port(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t at_bytes = sizeof at;

    if (getsockname(fd, (struct sockaddr *)&at, &at_bytes) < 0)
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}
