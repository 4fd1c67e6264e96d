/* server_internal: a server's parts: accept slots (server.c), listeners (listener.c,
 * tcp_listener.c, relay.c) and the check of its own listeners (self_check.c). */
#ifndef HD_RPC_SERVER_INTERNAL_H
#define HD_RPC_SERVER_INTERNAL_H

#include "rpc/address.h"
#include "rpc/credentials.h"
#include "rpc/rate.h"
#include "rpc/rpc_internal.h"
#include "rpc/socket.h"

struct hd_rpc_acceptor;
struct hd_rpc_relay;

struct hd_rpc_slot;
struct hd_rpc_self_check;
struct hd_rpc_standard;

struct hd_rpc_registration {
    struct hd_rpc_registration *next;
    struct hd_rpc_method method;
    void *handle; /* gRPC's handle of the registered method */
};

/* A listening Unix socket that lib/rpc itself accepts on. gRPC's own listener would not report the
 * uid of a peer, and would accept nothing more after one accept without a free file descriptor. */
struct hd_rpc_unix_listener {
    struct hd_rpc_unix_listener *next;
    struct hd_rpc_server *server;
    char name[HD_RPC_ADDRESS_MAX + 1]; /* unix:PATH, for messages */
    struct hd_unix_socket socket;
    uv_poll_t poll;
    uv_timer_t retry; /* timer that restarts accepting after a failure */
    struct hd_rpc_rate failures;
    bool started;
    int open_handles;
};

struct hd_rpc_listener { /* an address that the self-check connects to */
    struct hd_rpc_listener *next;
    char address[HD_RPC_ADDRESS_MAX + 1];
    struct sockaddr_storage peer;
    socklen_t peer_bytes;
};

struct hd_rpc_server {
    struct hd_rpc *rpc;
    struct hd_rpc_server *next, **link;
    grpc_server *server;
    struct hd_rpc_server_options options; /* copy; the strings are not valid any more */
    struct hd_rpc_token_set tokens;
    grpc_server_credentials *tls, *insecure;
    struct hd_rpc_server_tls *pems; /* certificates that `tls` presents; NULL: without TLS */

    struct hd_rpc_registration *methods;
    struct hd_rpc_listener *listeners;
    struct hd_rpc_unix_listener *unix_listeners;
    struct hd_rpc_relay *relay; /* relay of the TCP listeners; NULL, like `acceptor`: none */
    /* gRPC's object that takes accepted connections; set by gRPC */
    struct hd_rpc_acceptor *acceptor;
    struct hd_rpc_rate denials; /* limits log lines about calls without a valid token */
    /* uid of the peer of each connection of a Unix listener, indexed by its descriptor; gRPC names
     * such a peer "fd:N" */
    uid_t *uids;
    size_t uids_count;
    struct hd_rpc_self_check *check;
    struct hd_rpc_standard *standard; /* health and reflection; NULL: not added */

    struct hd_rpc_op on_shutdown;
    uv_timer_t grace;
    /* numbers of open calls, accept slots and libuv handles; the server is freed when all are 0 */
    size_t calls, slots, handles;
    bool started, closing, shut_down;
    bool unfit; /* health reports the server as not serving */
    void (*on_closed)(void *user);
    void *on_closed_user;
};

/* closes the server without a grace period */
void hd_rpc_server_stop(struct hd_rpc_server *server);
/* Frees the server if gRPC has shut it down and it has no calls, accept slots or handles. */
void hd_rpc_server_release(struct hd_rpc_server *server);
/* counts that one of `handles` was closed */
void hd_rpc_server_handle_closed(struct hd_rpc_server *server);

/* listener.c */
enum hd_status hd_rpc_unix_listener_open(struct hd_rpc_server *server, const char *path);
/* Starts to accept on a Unix listener; called when the server starts. */
enum hd_status hd_rpc_listener_start(struct hd_rpc_unix_listener *unix_listener);
/* Closes the listener; its memory is freed after its handles have closed. */
void hd_rpc_listener_close(struct hd_rpc_unix_listener *unix_listener);

/* Opens one listening socket for each address of the host and adds it to the relay
 * (tcp_listener.c). A port of 0 becomes the port that the system chose. text: the address for
 * messages. */
enum hd_status hd_rpc_tcp_listeners_open(struct hd_rpc_server *server, const char *text,
                                         struct hd_rpc_address *address);

/* self_check.c */
void hd_rpc_self_check_close(struct hd_rpc_self_check *check);

/* Requests from gRPC the next calls of each method ("accept slots"); each slot takes one call
 * (server_call.c). */
enum hd_status hd_rpc_server_fill_slots(struct hd_rpc_server *server);

#endif
