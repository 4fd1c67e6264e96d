/* relay_internal: shared by relay.c (listeners, the thread, unauthenticated connections) and
 * relay_link.c (bytes of one connection). The relay's lock guards all of it. */
#ifndef HD_RPC_RELAY_INTERNAL_H
#define HD_RPC_RELAY_INTERNAL_H

#include <stdint.h>
#include <sys/socket.h>

#include <uv.h>

#include "rpc/rate.h"
#include "rpc/relay.h"
#include "rpc/unauthenticated.h"

enum {
    RELAY_SCRATCH_BYTES = 64 * 1024,
    /* limit of bytes copied at once from an unauthenticated connection ("piece") */
    RELAY_PIECE_BYTES = 1024,
    /* bytes after which an unauthenticated connection may not use the reserved half of the budget
     */
    RELAY_LINK_BYTES = 4 * 1024,
    /* budget of all unauthenticated connections; one half is reserved (RELAY_LINK_BYTES) */
    RELAY_BUDGET_BYTES = 64 * 1024,
    /* number of pieces of an unauthenticated connection that are copied without a pause */
    RELAY_FREE_MOVES = 64,
    RELAY_MOVE_PAUSE_MS = 20 /* pause between two pieces after the first RELAY_FREE_MOVES, ms */
};

struct relay_link;

/* Objects that an epoll event can be about: one end of a link, a listening socket, or the wake-up eventfd.
 */
struct relay_source {
    struct relay_link *link; /* link whose end has this file descriptor; NULL: none */
    /* listener with this file descriptor; NULL, with `link` NULL: the wake-up eventfd */
    struct relay_listener *listener;
    int fd;          /* file descriptor; -1: none */
    uint32_t events; /* events registered with epoll; 0: not registered */
};

/* One end of a link: the TCP socket or the relay's end of the socket pair. */
struct relay_end {
    struct relay_source source;
    char *rest; /* bytes for this end that could not be written yet; NULL: none */
    size_t rest_begin, rest_end;
    bool ended; /* nothing more is read from this end, after its end of file or an error */
    bool shut;  /* nothing more is written to this end */
};

/* A TCP connection and the socket pair that connects it to gRPC. */
struct relay_link {
    struct hd_unauth_connection connection; /* first member: pointers to it are cast to the link */
    /* next link that is freed after this round of epoll events; NULL: none */
    struct relay_link *next;
    struct relay_end net, pair; /* TCP socket; the relay's end of the socket pair */
    struct sockaddr_storage from;
    /* index in the relay's table of links, and generation of that index; both are in the socket
     * pair's name */
    uint32_t slot, round;
    /* the connection waits OUTSIDE (unauthenticated.h), and its first bytes have arrived */
    bool ready;
    size_t taken;      /* bytes copied to gRPC while it was unauthenticated */
    size_t taken_max;  /* limit of `taken`, bytes */
    size_t taken_free; /* bytes of `taken` that do not count against the budget */
    int moves;         /* number of pieces in which `taken` was copied */
    int64_t moved_ms;  /* time when the last piece was copied */
    /* time when the first byte that counts against the budget was copied; 0: none yet */
    int64_t charged_ms;
    int denied;        /* number of calls without a valid token on this connection */
    int64_t inside_ms; /* time when the connection was passed to gRPC */
    int64_t spent_ms;  /* time when `taken` reached taken_max; 0: it has not */
    bool dead;
};

struct relay_listener {
    struct relay_source source;
    char name[96];
    int64_t retry_ms; /* time when accepting is tried again after a failure; 0: no failure */
    struct hd_rpc_rate failures;
};

/* State that all links of a relay share. */
struct relay_pump {
    int epoll_fd;
    char *scratch; /* buffer for copying bytes, [RELAY_SCRATCH_BYTES] */
    size_t budget; /* bytes left of the budget of all unauthenticated connections */
    int64_t now_ms;
};

/* Copies between the link's ends the bytes that can be copied after these epoll events, and counts
 * those of an unauthenticated connection. */
void relay_link_move(struct relay_pump *pump, struct relay_link *link, struct relay_end *end,
                     uint32_t events);
/* Registers with epoll the events that the link waits for now. */
void relay_link_watch(const struct relay_pump *pump, struct relay_link *link);
/* Returns how many bytes of an unauthenticated connection count against the budget. */
size_t relay_link_charge(const struct relay_link *link);
/* Returns whether the link can be closed: both its ends have ended, or gRPC's end has and all bytes
 * from gRPC are delivered. */
bool relay_link_is_over(const struct relay_link *link);
void relay_link_close(const struct relay_pump *pump, struct relay_link *link);

#endif
