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
    RELAY_PIECE_BYTES = 1024, /* bytes copied at once from an unauthenticated connection */
    /* bytes after which an unauthenticated connection may not use the reserved half of the budget
     */
    RELAY_LINK_BYTES = 4 * 1024,
    /* budget of all unauthenticated connections; one half is reserved (RELAY_LINK_BYTES) */
    RELAY_BUDGET_BYTES = 64 * 1024,
    /* pieces of an unauthenticated connection that are copied without a pause */
    RELAY_FREE_MOVES = 64,
    RELAY_MOVE_PAUSE_MS = 20 /* pause between two further pieces */
};

struct relay_link;

/* The source of an epoll event: one end of a link, a listening socket, or the wake-up. */
struct relay_source {
    struct relay_link *link;         /* link of this descriptor; NULL: none */
    struct relay_listener *listener; /* NULL, with `link` NULL: the wake-up eventfd */
    int fd;                          /* file descriptor; -1: none */
    uint32_t events;                 /* events registered with epoll; 0: not registered */
};

/* One end of a link. */
struct relay_end {
    struct relay_source source;
    char *rest; /* bytes for this end that could not be written yet; NULL: none */
    size_t rest_begin, rest_end;
    bool ended; /* end of file, or an error: nothing more is read from this end */
    bool shut;  /* nothing more is written to this end */
};

/* A TCP connection and its socket pair to gRPC. */
struct relay_link {
    struct hd_unauth_connection connection; /* first member: pointers to it are cast to the link */
    struct relay_link *next;    /* next link that is freed after this round; NULL: none */
    struct relay_end net, pair; /* TCP socket; our end of the socket pair */
    struct sockaddr_storage from;
    uint32_t slot, round; /* the two numbers in the name of the pair */
    bool ready;           /* outside, but the first bytes have arrived */
    size_t taken;         /* bytes copied to gRPC while it was unauthenticated */
    size_t taken_max;     /* bound of `taken` */
    size_t taken_free;    /* bytes of `taken` that do not count against the budget */
    int moves;            /* pieces in which `taken` was copied */
    int64_t moved_ms;     /* time of the last piece */
    int64_t charged_ms;   /* time of the first byte that counted against the budget; 0: none yet */
    int denied;           /* calls without a valid token */
    int64_t inside_ms;    /* time when it was passed to gRPC */
    int64_t spent_ms;     /* time when `taken` reached its bound; 0: it has not */
    bool dead;
};

struct relay_listener {
    struct relay_source source;
    char name[96];
    int64_t retry_ms; /* time of the next accept after a failure; 0: no failure */
    struct hd_rpc_rate failures;
};

/* State that all links of a relay share. */
struct relay_pump {
    int epoll_fd;
    char *scratch; /* [RELAY_SCRATCH_BYTES] */
    size_t budget; /* bytes of the budget that are left */
    int64_t now_ms;
};

/* Copies the bytes that can be copied after these epoll events, and counts them. */
void relay_link_move(struct relay_pump *pump, struct relay_link *link, struct relay_end *end,
                     uint32_t events);
/* Registers with epoll the events that the link waits for now. */
void relay_link_watch(const struct relay_pump *pump, struct relay_link *link);
/* Returns the bytes of an unauthenticated connection that count against the budget. */
size_t relay_link_charge(const struct relay_link *link);
/* Returns whether both ends have ended, or gRPC's has and all its bytes are delivered. */
bool relay_link_is_over(const struct relay_link *link);
void relay_link_close(const struct relay_pump *pump, struct relay_link *link);

#endif
