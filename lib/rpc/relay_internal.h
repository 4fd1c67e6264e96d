/* relay_internal: what relay.c (listeners, the thread, strangers) and relay_link.c (bytes of one
 * connection) share. All of it under the relay's lock. */
#ifndef HD_RPC_RELAY_INTERNAL_H
#define HD_RPC_RELAY_INTERNAL_H

#include <stdint.h>
#include <sys/socket.h>

#include <uv.h>

#include "rpc/rate.h"
#include "rpc/relay.h"
#include "rpc/strangers.h"

enum {
    RELAY_SCRATCH_BYTES = 64 * 1024,
    RELAY_PIECE_BYTES = 1024,       /* of a stranger, at a time */
    RELAY_SHARE_BYTES = 4 * 1024,   /* of a stranger, before others get more */
    RELAY_BUDGET_BYTES = 64 * 1024, /* half of it for those below their share */
    RELAY_FREE_MOVES = 64,          /* pieces of a stranger that move at once */
    RELAY_MOVE_PAUSE_MS = 20        /* between two further ones */
};

struct relay_link;

/* What an event of epoll is about: one end of a link, or a listening socket. */
struct relay_source {
    struct relay_link *link;         /* NULL: see the next */
    struct relay_listener *listener; /* NULL with `link` NULL: the wake-up */
    int fd;                          /* -1: none */
    uint32_t events;                 /* that epoll waits for; 0: it is not registered */
};

/* One end of a link. */
struct relay_end {
    struct relay_source source;
    char *rest; /* came from the other end, and did not fit yet; NULL: nothing */
    size_t rest_begin, rest_end;
    bool ended; /* nothing more comes from here */
    bool shut;  /* nothing more goes there */
};

/* A TCP connection. */
struct relay_link {
    struct hd_stranger stranger; /* first: the table hands it back */
    struct relay_link *next;     /* among those that are freed behind this round */
    struct relay_end net, pair;  /* pair: our end of the socket pair */
    struct sockaddr_storage from;
    uint32_t slot, turn; /* its name */
    bool ready;          /* outside: its first bytes wait */
    size_t taken;        /* bytes that have moved inwards while it was a stranger */
    size_t taken_max;    /* of these; and how many of them are free of the budget of all */
    size_t taken_free;
    int64_t charged_ms; /* when it began to take of that budget; 0: it has not */
    int denied;         /* calls without a token */
    int moves;          /* and in how many pieces */
    int64_t moved_ms;   /* the last one */
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

/* What all links of a relay share. */
struct relay_pump {
    int epoll_fd;
    char *scratch; /* [RELAY_SCRATCH_BYTES] */
    size_t budget; /* bytes that strangers may take now, beyond those that are free */
    int64_t now_ms;
};

/* relay_link.c: moves what can move, after these events of epoll, and counts it. */
void relay_link_move(struct relay_pump *pump, struct relay_link *link, struct relay_end *end,
                     uint32_t events);
/* Registers what the link waits for now. */
void relay_link_watch(const struct relay_pump *pump, struct relay_link *link);
/* What a stranger has taken of the budget. */
size_t relay_link_charge(const struct relay_link *link);
/* Both have ended, or gRPC has and all it sent is delivered. */
bool relay_link_is_over(const struct relay_link *link);
void relay_link_close(const struct relay_pump *pump, struct relay_link *link);

#endif
