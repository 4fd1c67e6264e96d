/* unauthenticated: decides which connections of a listener stay while their callers are not yet
 * authenticated.
 *
 *   arrive --admitted--> OUTSIDE --enter--> INSIDE --prove--> KNOWN --leave--> gone
 *    \--refused              \-------- prove --------------------^
 *
 * A connection is unauthenticated until a call with a token arrives on it. OUTSIDE it costs a file
 * descriptor only; INSIDE its bytes are processed; a known one is bounded only in number. Rules:
 *
 *   1. Connections are counted in total and per address (IPv6: per /64 network, because one host
 *      may own all its addresses). Unauthenticated ones, and those INSIDE, are counted separately
 *      as well.
 *   2. If a count is full, an unauthenticated connection (the victim) is closed for the new one:
 *      one of the same address if the address is full, else one of the address with the most
 *      unauthenticated connections. For an arrival the victim is the one that arrived first; if
 *      more are OUTSIDE than INSIDE, the first of those OUTSIDE, because one INSIDE may be about to
 *      send its token. For an entry the victim is the one that entered first. A known connection is
 *      never a victim. If no address has two unauthenticated connections, one younger than
 *      HD_UNAUTH_GRACE_MS is no victim, so that many honest clients cannot displace each other.
 *   3. An address may enter one unauthenticated connection every 5 ms, with a burst of
 *      HD_UNAUTH_BURST_MS. Each time one of its connections exceeds a bound the interval doubles,
 *      up to 40 ms; after every 10 s without an excess it halves. So no address is locked out: a
 *      client that shares an attacker's address waits longer.
 *   4. At most HD_UNAUTH_REMEMBERED addresses without a connection are remembered.
 *
 * Pure: no clock, no file descriptors. The owner closes victims.
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
    /* shortest time between two connections of one address that enter, if the address exceeded no
     * bound */
    HD_UNAUTH_INTERVAL_MS = 5,
    HD_UNAUTH_LEVEL_MAX = 3, /* limit of doublings of that interval: 5 ms << 3 = 40 ms */
    HD_UNAUTH_LEVEL_MS = 10000,
    /* burst: as many connections of one address may enter at once as the interval fits into this
     * time */
    HD_UNAUTH_BURST_MS = 200,
    HD_UNAUTH_REMEMBERED = 1024,
};

/* An address that shares a limit: IPv4 as ::ffff:a.b.c.d, or a /64 network of IPv6. Peers of other
 * families, such as Unix sockets, have no address and count in the totals only. */
struct hd_unauth_address;

enum hd_unauth_stage { HD_UNAUTH_OUTSIDE, HD_UNAUTH_INSIDE, HD_UNAUTH_KNOWN };

/* A connection, as a member of the owner's struct for it. */
struct hd_unauth_connection {
    /* neighbours in the list of all unauthenticated connections, by arrival */
    struct hd_unauth_connection *older, *newer;
    struct hd_unauth_address *address;
    int64_t since_ms;   /* time when the connection arrived */
    int64_t entered_ms; /* time when it entered; 0: not INSIDE yet */
    enum hd_unauth_stage stage;
};

struct hd_unauth_limits {
    /* limits of the number of connections, all above 0; "of_address": per address */
    size_t connections, connections_of_address;
    /* limits of connections with an authenticated caller; when reached, arrivals are refused */
    size_t known, known_of_address;
    size_t unauthenticated, unauthenticated_of_address;
    size_t inside, inside_of_address;
};

struct hd_unauth_table;

/* Returns NULL if out of memory. */
struct hd_unauth_table *hd_unauth_new(const struct hd_unauth_limits *limits);
/* Frees the table, from which all connections must have been removed. table NULL: does nothing. */
void hd_unauth_free(struct hd_unauth_table *table);

/* Adds an accepted connection from `from`. Returns false if it is refused; then it is not in the
 * table. *ret_victim: the unauthenticated connection that the owner must close, with
 * hd_unauth_leave, before the next call; NULL: none. */
bool hd_unauth_arrive(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                      const struct sockaddr_storage *from, int64_t now_ms,
                      struct hd_unauth_connection **ret_victim);

/* Moves an unauthenticated connection INSIDE. Returns false if its address must wait; retry later.
 * *ret_victim as in hd_unauth_arrive. */
bool hd_unauth_enter(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                     int64_t now_ms, struct hd_unauth_connection **ret_victim);

/* Returns whether the address of this connection may have one more authenticated connection. */
bool hd_unauth_may_prove(const struct hd_unauth_table *table,
                         const struct hd_unauth_connection *connection);
/* Marks the connection as known, because a call with a token arrived on it. */
void hd_unauth_prove(struct hd_unauth_table *table, struct hd_unauth_connection *connection);
/* Records that an unauthenticated connection exceeded a bound: further connections of its address
 * must wait longer. */
void hd_unauth_break(struct hd_unauth_connection *connection, int64_t now_ms);
/* Removes from the table a connection that is closed. */
void hd_unauth_leave(struct hd_unauth_table *table, struct hd_unauth_connection *connection,
                     int64_t now_ms);

/* Return the unauthenticated connection that arrived first, or last; NULL: none. */
struct hd_unauth_connection *hd_unauth_oldest(const struct hd_unauth_table *table);
struct hd_unauth_connection *hd_unauth_newest(const struct hd_unauth_table *table);

/* Returns the number of all connections. *ret_of_address (ret_of_address may be NULL): number of
 * connections of this address. */
size_t hd_unauth_count(const struct hd_unauth_table *table, const struct sockaddr_storage *from,
                       size_t *ret_of_address);
/* Returns how often the waiting interval of the connection's address is doubled now, after
 * excesses: 0 .. HD_UNAUTH_LEVEL_MAX. */
int hd_unauth_level(const struct hd_unauth_connection *connection, int64_t now_ms);
/* Returns the current interval between two entering connections of this address, ms; for tests. */
int64_t hd_unauth_interval_ms(struct hd_unauth_table *table, const struct sockaddr_storage *from,
                              int64_t now_ms);
size_t hd_unauth_remembered(const struct hd_unauth_table *table);

#endif
