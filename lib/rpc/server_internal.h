/* server_internal: the parts of a server: accept slots (server_call.c), Unix sockets
 * (unix_listener.c) and the check of its own listeners (self_check.c). */
#ifndef HD_RPC_SERVER_INTERNAL_H
#define HD_RPC_SERVER_INTERNAL_H

#include "rpc/address.h"
#include "rpc/rpc_internal.h"

struct hd_rpc_slot;
struct hd_rpc_self_check;
struct hd_rpc_standard;

struct hd_rpc_registration {
    struct hd_rpc_registration *next;
    struct hd_rpc_method method;
    void *handle; /* gRPC's */
};

/* A listening Unix socket. gRPC's own listener cannot give the peer's uid. */
struct hd_rpc_unix_listener {
    struct hd_rpc_unix_listener *next;
    struct hd_rpc_server *server;
    char path[HD_RPC_UNIX_PATH_MAX + 1];
    dev_t device; /* of the socket file, so that no other file is unlinked */
    ino_t inode;
    int listen_fd, lock_fd;
    uv_poll_t poll;
    uv_timer_t retry; /* accepts again after accept failed for lack of descriptors */
    int64_t next_log_ms;
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
    char token[HD_RPC_TOKEN_MAX + 1];     /* padded with zeros; "" when there is none */
    grpc_server_credentials *tls, *insecure;

    struct hd_rpc_registration *methods;
    struct hd_rpc_listener *listeners;
    struct hd_rpc_unix_listener *unix_listeners;
    uid_t *uids; /* of peers at Unix sockets, by descriptor: gRPC calls such a peer "fd:N" */
    size_t uids_count;
    struct hd_rpc_self_check *check;
    struct hd_rpc_standard *standard; /* NULL: without health and reflection */

    struct hd_rpc_op on_shutdown;
    uv_timer_t grace;
    size_t calls, slots, handles; /* open ones; the server is freed when all are 0 */
    bool started, closing, shut_down;
    void (*on_closed)(void *user);
    void *on_closed_user;
};

void hd_rpc_server_stop(struct hd_rpc_server *server); /* closes without grace period */
/* Frees the server if it is shut down and calls, slots and handles are 0. */
void hd_rpc_server_release(struct hd_rpc_server *server);
void hd_rpc_server_handle_closed(struct hd_rpc_server *server); /* one of `handles` */

/* unix_listener.c */
enum hd_status hd_rpc_unix_listener_open(struct hd_rpc_server *server, const char *path);
enum hd_status hd_rpc_unix_listener_start(struct hd_rpc_unix_listener *listener);
void hd_rpc_unix_listener_close(struct hd_rpc_unix_listener *listener); /* frees it later */

/* self_check.c */
void hd_rpc_self_check_close(struct hd_rpc_self_check *check);

/* server_call.c: a slot is a pending request to gRPC for the next call of a method. */
enum hd_status hd_rpc_server_fill_slots(struct hd_rpc_server *server);

#endif
