#include "http/listen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BACKLOG = 64, UNSENT_MS = 20000 };

static void add_name(struct hd_http_names *names, const char *name)
{
    const size_t length = strlen(name);

    if (names->count == HD_HTTP_NAMES_MAX || length == 0 || length > HD_HTTP_NAME_MAX)
        return;
    memcpy(names->name[names->count++], name, length + 1);
}

/* ---- a Unix socket: as lib/rpc makes it, with a lock beside it --------------------------------*/

/* Checks the socket's folder; otherwise the error would name the lock file, which the user did not.
 */
static enum hd_status check_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[HD_RPC_UNIX_PATH_MAX + 1];
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
    const enum hd_status st = check_folder(path);

    return st ? st : hd_unix_socket_open(path, 0600, (gid_t)-1, BACKLOG, &l->socket);
}

/* ---- TCP --------------------------------------------------------------------------------------*/

static enum hd_status listen_tcp(const char *address, const struct hd_rpc_address *parsed,
                                 struct hd_http_listener *l, struct hd_http_names *names)
{
    struct addrinfo *found;
    const int on = 1;
    int code;
    const enum hd_status st = hd_tcp_find(parsed->host, parsed->port, &found);

    if (st)
        return st;
    code = hd_tcp_listen(found, UNSENT_MS, BACKLOG, &l->socket.fd);
    freeaddrinfo(found);
    if (code)
        return hd_err(code == EADDRINUSE ? HD_CONFLICT : HD_IO, "cannot listen on %s: %s", address,
                      strerror(code));
    /* connections inherit it: a silent peer is detected */
    (void)setsockopt(l->socket.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    l->port = hd_tcp_port(l->socket.fd);
    add_name(names, parsed->host);
    return HD_OK;
}

enum hd_status hd_http_listen(const char *address, struct hd_http_listener *l,
                              struct hd_http_names *names)
{
    struct hd_rpc_address parsed;
    char host[HD_HTTP_NAME_MAX + 1];
    enum hd_status st = hd_rpc_parse_address(address, &parsed);

    *l = (struct hd_http_listener){.socket = {.fd = -1, .lock_fd = -1}};
    if (!st)
        st = parsed.is_unix ? listen_unix(parsed.path, l) : listen_tcp(address, &parsed, l, names);
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
    hd_unix_socket_close(&l->socket);
    l->port = 0;
}
