/* server_internal: a server's parts: accept slots (server.c), listeners (listener.c, tcp_listener.c,
 * relay.c) and the check of its own listeners (self_check.c). */
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
    void *handle; /* gRPC's */
};

/* A listening Unix socket of our own: gRPC's would not tell a Unix peer's uid, and would accept
 * nothing any more after one accept without a free descriptor. */
struct hd_rpc_unix_listener {
    struct hd_rpc_unix_listener *next;
    struct hd_rpc_server *server;
    char name[HD_RPC_ADDRESS_MAX + 1]; /* for messages: unix:PATH */
    char path[HD_RPC_UNIX_PATH_MAX + 1];
    dev_t device; /* of the socket file, to unlink no other's */
    ino_t inode;
    int lock_fd; /* -1: none */
    int listen_fd;
    uv_poll_t poll;
    uv_timer_t retry; /* after accept failed for want of descriptors */
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
    struct hd_rpc_server_options options; /* its strings are not used */
    struct hd_rpc_token_set tokens;
    grpc_server_credentials *tls, *insecure;
    struct hd_rpc_server_tls *pems; /* what `tls` shows; NULL: without TLS */

    struct hd_rpc_registration *methods;
    struct hd_rpc_listener *listeners;
    struct hd_rpc_unix_listener *unix_listeners;
    struct hd_rpc_relay *relay;       /* NULL: without a TCP listener; likewise acceptor */
    struct hd_rpc_acceptor *acceptor; /* filled by gRPC */
    struct hd_rpc_rate denials;       /* calls without the token */
    uid_t *
        uids; /* of the peers at the Unix listeners, by descriptor; gRPC names such a peer "fd:N" */
    size_t uids_count;
    struct hd_rpc_self_check *check;
    struct hd_rpc_standard *standard; /* NULL: without health and reflection */

    struct hd_rpc_op on_shutdown;
    uv_timer_t grace;
    size_t calls, slots, handles; /* open ones; the server is freed when all are 0 */
    bool started, closing, shut_down;
    bool unfit; /* what health says: not serving */
    void (*on_closed)(void *user);
    void *on_closed_user;
};

void hd_rpc_server_stop(struct hd_rpc_server *server); /* closes without grace period */
/* Frees the server if it is shut down and calls, slots and handles are 0. */
void hd_rpc_server_release(struct hd_rpc_server *server);
void hd_rpc_server_handle_closed(struct hd_rpc_server *server); /* one of `handles` */

/* listener.c */
enum hd_status hd_rpc_unix_listener_open(struct hd_rpc_server *server, const char *path);
enum hd_status
hd_rpc_listener_start(struct hd_rpc_unix_listener *unix_listener); /* with the server */
void hd_rpc_listener_close(
    struct hd_rpc_unix_listener *unix_listener); /* frees it, some time later */

/* tcp_listener.c: one listening socket for each address that the host has, which becomes the
 * relay's; a port of 0 becomes the one found. `text` is the address in messages. */
enum hd_status hd_rpc_tcp_listeners_open(struct hd_rpc_server *server, const char *text,
                                         struct hd_rpc_address *address);

/* self_check.c */
void hd_rpc_self_check_close(struct hd_rpc_self_check *check);

/* server_call.c: a slot is a pending request to gRPC for the next call of a method. */
enum hd_status hd_rpc_server_fill_slots(struct hd_rpc_server *server);

#endif
