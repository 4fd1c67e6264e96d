#include "http/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "rpc/rpc.h"

enum { BACKLOG = 64, UNSENT_MS = 20000 };

static void add_name(struct hd_http_names *names, const char *name)
{
    const size_t length = strlen(name);

    if (names->count == HD_HTTP_NAMES_MAX || length == 0 || length > HD_HTTP_NAME_MAX)
        return;
    memcpy(names->name[names->count++], name, length + 1);
}

/* ---- a Unix socket: as lib/rpc makes it, with a lock beside it --------------------------------*/

static enum hd_status clear_path(const struct sockaddr_un *un)
{
    struct stat info;
    int fd, code;

    if (lstat(un->sun_path, &info) < 0)
        return errno == ENOENT ? HD_OK : hd_err(HD_IO, "cannot look at %s: %m", un->sun_path);
    if (!S_ISSOCK(info.st_mode))
        return hd_err(HD_EXISTS, "%s is there and is not a socket; choose another path",
                      un->sun_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return hd_err(HD_LIMIT, "cannot make a socket: %m");
    code = connect(fd, (const struct sockaddr *)un, sizeof *un) < 0 ? errno : 0;
    (void)close(fd);
    if (code != ECONNREFUSED && code != ENOENT)
        return hd_err(HD_CONFLICT, "another program listens on unix:%s", un->sun_path);
    if (unlink(un->sun_path) < 0 && errno != ENOENT)
        return hd_err(HD_IO, "cannot remove the socket %s of a dead program: %m", un->sun_path);
    return HD_OK;
}

/* Checks the socket's folder; otherwise the error would name the lock file, which the user did not.
 */
static enum hd_status check_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[sizeof((struct sockaddr_un *)NULL)->sun_path + 1];
    struct stat info;

    if (!slash || slash == path)
        return HD_OK;
    (void)snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    if (stat(folder, &info) == 0 && S_ISDIR(info.st_mode))
        return HD_OK;
    return hd_err(HD_INVALID, "unix:%s: there is no folder %s; make it, or choose another path",
                  path, folder);
}

static enum hd_status listen_unix(const char *path, struct hd_http_listener *l)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    char lock[sizeof l->path + 8];
    struct stat info;
    enum hd_status st;

    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    st = check_folder(path);
    if (!st)
        st = hd_file_lock(lock, &l->lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st, "another program listens on unix:%s", path);
    if (!st)
        st = clear_path(&un);
    if (st)
        return st;
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return hd_err(HD_LIMIT, "cannot make a socket: %m");
    if (fchmod(l->fd, 0600) < 0 || bind(l->fd, (const struct sockaddr *)&un, sizeof un) < 0 ||
        stat(path, &info) < 0 || chmod(path, 0600) < 0)
        return hd_err(HD_IO, "cannot make the socket %s: %m", path);
    (void)snprintf(l->path, sizeof l->path, "%s", path);
    l->device = info.st_dev;
    l->inode = info.st_ino;
    return HD_OK;
}

/* ---- TCP --------------------------------------------------------------------------------------*/

/* Splits "HOST:PORT" or "[HOST]:PORT" into host and port; hd_rpc_check_address has accepted the
 * address. */
static void split(const char *address, char ret_host[HD_HTTP_NAME_MAX + 1], const char **ret_port)
{
    const char *colon = strrchr(address, ':');
    size_t length = (size_t)(colon - address);

    if (*address == '[') {
        address++;
        length -= 2;
    }
    if (length > HD_HTTP_NAME_MAX)
        length = HD_HTTP_NAME_MAX;
    memcpy(ret_host, address, length);
    ret_host[length] = '\0';
    *ret_port = colon + 1;
}

static int port_of(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t at_bytes = sizeof at;

    if (getsockname(fd, (struct sockaddr *)&at, &at_bytes) < 0)
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

static enum hd_status listen_tcp(const char *address, struct hd_http_listener *l,
                                 struct hd_http_names *names)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const unsigned unsent_ms = UNSENT_MS;
    char host[HD_HTTP_NAME_MAX + 1];
    struct addrinfo *found;
    const char *port;
    const int on = 1, off = 0;
    int code;

    split(address, host, &port);
    code = getaddrinfo(host, port, &hints, &found);
    if (code)
        return hd_err(HD_INVALID, "cannot find the host %s: %s", host, gai_strerror(code));
    l->fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    code = l->fd < 0 ? errno : 0;
    if (!code) { /* connections inherit these options: a silent peer is detected */
        (void)setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        (void)setsockopt(l->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        (void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void)setsockopt(l->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof unsent_ms);
        if (found->ai_family == AF_INET6) /* a socket on "::" also accepts IPv4 */
            (void)setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        code = bind(l->fd, found->ai_addr, found->ai_addrlen) < 0 ? errno : 0;
    }
    freeaddrinfo(found);
    if (code)
        return hd_err(code == EADDRINUSE ? HD_CONFLICT : HD_IO, "cannot listen on %s: %s", address,
                      strerror(code));
    l->port = port_of(l->fd);
    add_name(names, host);
    return HD_OK;
}

enum hd_status hd_http_listen(const char *address, struct hd_http_listener *l,
                              struct hd_http_names *names)
{
    char host[HD_HTTP_NAME_MAX + 1];
    enum hd_status st = hd_rpc_check_address(address);

    *l = (struct hd_http_listener){.fd = -1, .lock_fd = -1};
    if (!st)
        st = hd_rpc_address_is_unix(address) ? listen_unix(address + strlen("unix:"), l)
                                             : listen_tcp(address, l, names);
    if (!st && listen(l->fd, BACKLOG) < 0)
        st = hd_err(errno == EADDRINUSE ? HD_CONFLICT : HD_IO, "cannot listen on %s: %m", address);
    if (!st && gethostname(host, sizeof host) == 0) {
        host[HD_HTTP_NAME_MAX] = '\0';
        add_name(names, host);
    }
    if (st)
        hd_http_unlisten(l);
    return st;
}

void hd_http_unlisten(struct hd_http_listener *l)
{
    struct stat info;

    if (l->fd >= 0)
        (void)close(l->fd);
    if (l->path[0] && lstat(l->path, &info) == 0 && info.st_dev == l->device &&
        info.st_ino == l->inode)
        (void)unlink(l->path); /* best effort: the next program removes the file if this fails */
    if (l->lock_fd >= 0)
        (void)close(l->lock_fd);
    *l = (struct hd_http_listener){.fd = -1, .lock_fd = -1};
}
