/* relay_internal: what relay.c (listeners, the thread, unauthenticated connections) and relay_link.c (bytes of one
 * connection) share. The relay's lock guards all of it. */
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
    RELAY_PIECE_BYTES = 1024,       /* of a unauthenticated connection, at a time */
    RELAY_LINK_BYTES = 4 * 1024,    /* of a unauthenticated connection, before others get more */
    RELAY_BUDGET_BYTES = 64 * 1024, /* half of it for those below their share */
    RELAY_FREE_MOVES = 64,          /* pieces of a unauthenticated connection that move at once */
    RELAY_MOVE_PAUSE_MS = 20        /* between two further ones */
};

struct relay_link;

/* The source of an epoll event: one end of a link, a listening socket, or the wake-up. */
struct relay_source {
    struct relay_link *link;         /* NULL: no link */
    struct relay_listener *listener; /* NULL with `link` NULL: the wake-up */
    int fd;                          /* -1: none */
    uint32_t events;                 /* that epoll waits for; 0: it is not registered */
};

/* One end of a link. */
struct relay_end {
    struct relay_source source;
    char *rest; /* bytes from the other end that did not fit yet; NULL: none */
    size_t rest_begin, rest_end;
    bool ended; /* nothing more comes from here */
    bool shut;  /* nothing more is written to it */
};

/* A TCP connection. */
struct relay_link {
    struct hd_unauth_connection connection; /* first: the table hands it back */
    struct relay_link *next;                /* among those that are freed behind this round */
    struct relay_end net, pair;             /* pair: our end of the socket pair */
    struct sockaddr_storage from;
    uint32_t slot, round; /* the two numbers of its name */
    bool ready;           /* outside: its first bytes wait */
    size_t taken;     /* bytes that have moved inwards while it was a unauthenticated connection */
    size_t taken_max; /* bound of `taken` */
    size_t taken_free;  /* bytes of `taken` that the budget of all unauthenticated connections does
                           not count */
    int moves;          /* pieces in which `taken` moved */
    int64_t moved_ms;   /* when the last piece moved */
    int64_t charged_ms; /* when it began to take from the budget; 0: it has not */
    int denied;         /* calls without a token */
    int64_t inside_ms;  /* when it came in */
    int64_t spent_ms;   /* when `taken` reached its bound; 0: it has not */
    bool dead;
};

struct relay_listener {
    struct relay_source source;
    char name[96];
    int64_t retry_ms; /* accepts again then, after a failure; 0: no failure */
    struct hd_rpc_rate failures;
};

/* State that all links of a relay share. */
struct relay_pump {
    int epoll_fd;
    char *scratch; /* [RELAY_SCRATCH_BYTES] */
    size_t budget; /* bytes that unauthenticated connections may take now, beyond those that are
                      free */
    int64_t now_ms;
};

/* Moves the bytes that can move after these events of epoll, and counts them. */
void relay_link_move(struct relay_pump *pump, struct relay_link *link, struct relay_end *end,
                     uint32_t events);
/* Registers what the link waits for now. */
void relay_link_watch(const struct relay_pump *pump, struct relay_link *link);
/* Returns the bytes that a unauthenticated connection has taken from the budget. */
size_t relay_link_charge(const struct relay_link *link);
/* Returns whether both ends have ended, or gRPC has ended and all it sent is delivered. */
bool relay_link_is_over(const struct relay_link *link);
void relay_link_close(const struct relay_pump *pump, struct relay_link *link);

#endif
