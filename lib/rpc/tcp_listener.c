/* tcp_listener: opens listening TCP sockets, one for each address of a host name. relay.c accepts
 * on them.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

#include "rpc/acceptor.h"
#include "rpc/relay.h"
#include "rpc/server_internal.h"
#include "rpc/socket.h"

enum { BACKLOG = 1024 };

static bool is_wildcard(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static void set_port(struct sockaddr *at, int port)
{
    if (at->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)at)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)at)->sin_port = htons((uint16_t)port);
}

static enum hd_status explain_errno(const char *text, int error)
{
    if (error == EADDRINUSE)
        return hd_err(HD_CONFLICT, "cannot listen on %s: another program has this port", text);
    if (error == EMFILE || error == ENFILE)
        return hd_err(HD_LIMIT, "cannot listen on %s: %s", text, strerror(error));
    return hd_err(error == EACCES ? HD_DENIED : HD_INVALID, "cannot listen on %s: %s", text,
                  strerror(error));
}

/* Returns whether a failed address can be skipped: a name may resolve to an address that this
 * machine lacks (::1 without IPv6), or to one address twice. */
static bool may_be_skipped(const struct addrinfo *first, const struct addrinfo *at, int error)
{
    if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT)
        return true;
    for (const struct addrinfo *a = first; a != at; a = a->ai_next)
        if (a->ai_addrlen == at->ai_addrlen && memcmp(a->ai_addr, at->ai_addr, at->ai_addrlen) == 0)
            return true;
    return false;
}

/* Opens a listening socket at each address of a host name; with port 0 the port that the first one
 * gets is used for all. */
static enum hd_status open_at(struct hd_rpc_server *server, const char *text, const char *host,
                              int *port)
{
    struct addrinfo *found = NULL;
    int error = 0, skipped = EADDRNOTAVAIL, opened = 0, fd = -1;
    enum hd_status st = hd_tcp_find(host, *port, &found);

    for (struct addrinfo *at = found; !st && at; at = at->ai_next) {
        set_port(at->ai_addr, *port);
        error = hd_tcp_listen(at, (unsigned)server->options.keepalive_timeout_ms, BACKLOG, &fd);
        if (error && may_be_skipped(found, at, error)) {
            skipped = error;
        } else if (error) {
            st = explain_errno(text, error);
        } else {
            *port = hd_tcp_port(fd);
            st = hd_rpc_relay_listen(server->relay, fd, text);
            opened++;
        }
    }
    if (found)
        freeaddrinfo(found);
    return st || opened ? st : explain_errno(text, skipped);
}

static enum hd_status make_ready(struct hd_rpc_server *server, const char *text)
{
    enum hd_status st = HD_OK;

    if (!server->relay)
        st = hd_rpc_relay_open(server, &server->relay);
    if (!st && !server->acceptor &&
        !hd_rpc_acceptor_open(server->server, server->tls ? server->tls : server->insecure,
                              &server->acceptor))
        st = hd_err(HD_INVALID, "cannot listen on %s%s", text,
                    server->tls ? ": the TLS certificate or its key was not accepted" : "");
    return st;
}

enum hd_status hd_rpc_tcp_listeners_open(struct hd_rpc_server *server, const char *text,
                                         struct hd_rpc_address *address)
{
    const bool wildcard = is_wildcard(address->host);
    enum hd_status st = make_ready(server, text);
    const size_t before = server->relay ? hd_rpc_relay_listeners(server->relay) : 0;

    if (!st)
        st = open_at(server, text, wildcard ? "::" : address->host, &address->port);
    if (st == HD_INVALID && wildcard && server->acceptor) /* this machine may have no IPv6 */
        st = open_at(server, text, "0.0.0.0", &address->port);
    if (st && server->relay) /* listens on all addresses of the name or on none */
        hd_rpc_relay_unlisten(server->relay, before);
    return st;
}
