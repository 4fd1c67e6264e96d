/* unauthenticated connections: which connections of a listener stay while they have not shown who they are.
 *
 *   arrive --admitted--> OUTSIDE --enter--> INSIDE --prove--> KNOWN --leave--> gone
 *      \--refused           \-------- prove --------------------^
 *
 * A unauthenticated connection is a connection by which no call with a token has come. OUTSIDE it costs its
 * descriptor and nothing else; INSIDE bytes of it are processed; a known one is bounded by its
 * number alone. What a unauthenticated connection may take from others is bounded:
 *
 *   1. Connections are counted, in all and of each address (of IPv6: of each /64 network, which one
 *      host can own whole); unauthenticated connections, and those inside, are counted once more.
 *   2. Where a count is full, a unauthenticated connection makes room for the new one: of the same address where the
 *      address is full, else of the address with the most unauthenticated connections. For an arrival it is the one
 *      that arrived first; in a crowd, where more are outside than inside, the first of those
 *      outside, because one that is inside may be about to show who it is. For an entry it is the
 *      one that entered first. A known connection never makes room. While all addresses have one
 * unauthenticated connection each, one that is younger than HD_UNAUTH_GRACE_MS stays, so that a crowd of clients
 * cannot push itself out.
 *   3. An address may let one unauthenticated connection in each 5 ms, with some in advance. Each time a unauthenticated connection
 *      breaks a bound the interval doubles, up to 40 ms, and every 10 s without a break it halves:
 *      no address is locked out, and a client behind an attacker's address waits its turn.
 *   4. The table remembers HD_UNAUTH_REMEMBERED addresses without a connection at most.
 *
 * Pure: no clock, no descriptors. The owner closes victims.
 *
 * Used by: rpc, http.   Uses: libc.   Threads: one at a time.
 */
#ifndef HD_RPC_UNAUTHENTICATED_H
#define HD_RPC_UNAUTHENTICATED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    HD_UNAUTH_GRACE_MS = 1000,
    HD_UNAUTH_INTERVAL_MS = 5, /* between two entries of one address that broke no bound */
    HD_UNAUTH_LEVEL_MAX = 3,   /* 5 ms << 3 = 40 ms */
    HD_UNAUTH_LEVEL_MS = 10000,
    HD_UNAUTH_BURST_MS = 200, /* entries in advance: as many as this time has */
    HD_UNAUTH_REMEMBERED = 1024,
};

/* An address that shares a limit: IPv4 as ::ffff:a.b.c.d, or a /64 network of IPv6. A peer of
 * another family, such as a Unix socket's, has no address and is counted in all alone. */
struct hd_unauth_address;

enum hd_unauth_stage { HD_UNAUTH_OUTSIDE, HD_UNAUTH_INSIDE, HD_UNAUTH_KNOWN };

/* Member of the owner's struct of a connection. */
struct hd_unauth_connection {
    struct hd_unauth_connection *older,
        *newer; /* among unauthenticated connections of both stages, by arrival */
    struct hd_unauth_address *address;
    int64_t since_ms;   /* the arrival */
    int64_t entered_ms; /* when it went inside; 0: it has not */
    enum hd_unauth_stage stage;
};

struct hd_unauth_limits { /* all above 0 */
    size_t connections, connections_of_address;
    size_t known, known_of_address; /* while so many are known, no more arrive */
    size_t unauthenticated, unauthenticated_of_address;
    size_t inside, inside_of_address;
};

struct hd_unauth_table;

/* NULL: no memory. */
struct hd_unauth_table *hd_unauth_new(const struct hd_unauth_limits *limits);
void hd_unauth_free(struct hd_unauth_table *table); /* no connection is left; NULL is fine */

/* Adds a connection from `from` that was accepted. Returns false if it is refused; then it is not
 * in the table. *ret_victim: the unauthenticated connection that must make room (NULL: none); the
 * owner closes it, with hd_unauth_leave, before the next call. */
bool hd_unauth_arrive(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                      const struct sockaddr_storage *from, int64_t now_ms,
                      struct hd_unauth_connection **ret_victim);

/* Moves a unauthenticated connection inside. Returns false if its address must wait; try later.
 * *ret_victim as above. */
bool hd_unauth_enter(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                     int64_t now_ms, struct hd_unauth_connection **ret_victim);

/* Returns whether one more connection of its address may become known. */
bool hd_unauth_may_prove(const struct hd_unauth_table *table,
                         const struct hd_unauth_connection *connection);
/* Makes the connection known, because a call with a token came by it. */
void hd_unauth_prove(struct hd_unauth_table *table, struct hd_unauth_connection *connection);
/* Notes that the unauthenticated connection broke a bound: its address waits longer. */
void hd_unauth_break(struct hd_unauth_connection *connection, int64_t now_ms);
/* Removes a connection that is closed. */
void hd_unauth_leave(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                     int64_t now_ms);

/* Return the unauthenticated connection that arrived first, or last; NULL: there is none. */
struct hd_unauth_connection *hd_unauth_oldest(const struct hd_unauth_table *table);
struct hd_unauth_connection *hd_unauth_newest(const struct hd_unauth_table *table);

/* Returns how many connections there are in all. *ret_of_address (may be NULL): how many of this
 * address. */
size_t hd_unauth_count(const struct hd_unauth_table *table, const struct sockaddr_storage *from,
                       size_t *ret_of_address);
/* Returns how often its address has broken a bound of late: 0 .. HD_UNAUTH_LEVEL_MAX. */
int hd_unauth_level(const struct hd_unauth_connection *connection, int64_t now_ms);
/* Returns the time between two entries of this address; for tests. */
int64_t hd_unauth_interval_ms(struct hd_unauth_table *table, const struct sockaddr_storage *from,
                              int64_t now_ms);
size_t hd_unauth_remembered(const struct hd_unauth_table *table);

#endif
