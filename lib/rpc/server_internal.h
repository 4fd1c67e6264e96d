/* server_internal: a server's parts: accept slots (server.c), listeners (listener.c,
 * tcp_listener.c, relay.c) and the check of its own listeners (self_check.c). */
#ifndef HD_RPC_SERVER_INTERNAL_H
#define HD_RPC_SERVER_INTERNAL_H

#include "rpc/address.h"
#include "rpc/credentials.h"
#include "rpc/rate.h"
#include "rpc/rpc_internal.h"

struct hd_rpc_acceptor;
struct hd_rpc_relay;

struct hd_rpc_slot;
struct hd_rpc_self_check;
struct hd_rpc_standard;

struct hd_rpc_registration {
    struct hd_rpc_registration *next;
    struct hd_rpc_method method;
    void *handle; /* gRPC's handle of the method */
};

/* A listening Unix socket of our own. gRPC's would not report the uid of a peer, and would accept
 * nothing more after one accept without a free file descriptor. */
struct hd_rpc_unix_listener {
    struct hd_rpc_unix_listener *next;
    struct hd_rpc_server *server;
    char name[HD_RPC_ADDRESS_MAX + 1]; /* unix:PATH, for messages */
    char path[HD_RPC_UNIX_PATH_MAX + 1];
    dev_t device; /* identity of the socket file, so that only this server's own is unlinked */
    ino_t inode;
    int lock_fd; /* lock on PATH.lock; -1: none */
    int listen_fd;
    uv_poll_t poll;
    uv_timer_t retry; /* restarts accepting after a failure */
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
    struct hd_rpc_relay *relay;       /* NULL, like acceptor: no TCP listener */
    struct hd_rpc_acceptor *acceptor; /* set by gRPC */
    struct hd_rpc_rate denials;       /* limits log lines about calls without a valid token */
    /* uids of the peers of Unix listeners, indexed by descriptor; gRPC names a peer "fd:N" */
    uid_t *uids;
    size_t uids_count;
    struct hd_rpc_self_check *check;
    struct hd_rpc_standard *standard; /* health and reflection; NULL: not added */

    struct hd_rpc_op on_shutdown;
    uv_timer_t grace;
    size_t calls, slots, handles; /* open ones; the server is freed when all are 0 */
    bool started, closing, shut_down;
    bool unfit; /* reported by health as not serving */
    void (*on_closed)(void *user);
    void *on_closed_user;
};

void hd_rpc_server_stop(struct hd_rpc_server *server); /* closes without grace period */
/* Frees the server if it is shut down and calls, slots and handles are 0. */
void hd_rpc_server_release(struct hd_rpc_server *server);
void hd_rpc_server_handle_closed(struct hd_rpc_server *server); /* one of `handles` was closed */

/* listener.c */
enum hd_status hd_rpc_unix_listener_open(struct hd_rpc_server *server, const char *path);
/* Starts accepting; called when the server starts. */
enum hd_status hd_rpc_listener_start(struct hd_rpc_unix_listener *unix_listener);
/* Closes the listener; its memory is freed after its handles have closed. */
void hd_rpc_listener_close(struct hd_rpc_unix_listener *unix_listener);

/* tcp_listener.c: opens one listening socket for each address of the host and adds it to the relay;
 * a port of 0 becomes the chosen one. `text` is the address in messages. */
enum hd_status hd_rpc_tcp_listeners_open(struct hd_rpc_server *server, const char *text,
                                         struct hd_rpc_address *address);

/* self_check.c */
void hd_rpc_self_check_close(struct hd_rpc_self_check *check);

/* server_call.c: starts accept slots; a slot is a pending request to gRPC for the next call of a
 * method. */
enum hd_status hd_rpc_server_fill_slots(struct hd_rpc_server *server);

#endif
