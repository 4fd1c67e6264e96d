/* given: TCP connections that were handed to gRPC, until gRPC has closed them.
 *
 *   added --a call with a token--> proven --gRPC closes it--> forgotten
 *       \--no such call until the deadline, or a newcomer needs the place--> ended --> forgotten
 *
 * HTTP/2 can be begun without a token, and gRPC keeps such a connection for minutes. It must not
 * keep a place that long. gRPC tells neither when it closes a descriptor nor which connection a
 * call came by; so a connection is found by its peer's address and port, and has been closed when
 * its descriptor is invalid or belongs to a socket with another inode. A connection is ended by
 * shutdown(), after which gRPC closes it. All descriptors of sockets are opened on this thread, so
 * the descriptor cannot become another connection's between that look and the shutdown.
 *
 * Used by: arrivals.c.   Uses: base.   Threads: the loop's.
 */
#ifndef HD_RPC_GIVEN_H
#define HD_RPC_GIVEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Those who share a limit: an IPv4 address as ::ffff:a.b.c.d, or a /64 network of IPv6. */
struct hd_rpc_peer {
    unsigned char bytes[16];
};
struct hd_rpc_peer hd_rpc_peer_of(const struct sockaddr_storage *from);
bool hd_rpc_peer_same(const struct hd_rpc_peer *a, const struct hd_rpc_peer *b);

struct hd_rpc_given_item;

struct hd_rpc_given {                /* starts as {0} */
    struct hd_rpc_given_item *items; /* oldest first */
    int32_t *buckets;                /* of items, by address and port; as many as there is room */
    size_t count, room;
    int64_t look_again_ms; /* for connections that were closed */
};

/* False: no memory, or not a socket. */
bool hd_rpc_given_add(struct hd_rpc_given *given, int fd, const struct sockaddr_storage *from,
                      int64_t deadline_ms);
/* Of this peer, or of all (NULL); without those that were ended. */
size_t hd_rpc_given_count(const struct hd_rpc_given *given, const struct hd_rpc_peer *peer);
/* At most once in a while, because each connection is looked at. */
void hd_rpc_given_forget_closed(struct hd_rpc_given *given);

/* A call with a token came by the connection of this peer, as gRPC writes it:
 * "ipv4:10.0.0.1:4242", "ipv6:[::1]:4242". */
void hd_rpc_given_prove(struct hd_rpc_given *given, const char *peer);
/* The deadline of the oldest one of this peer, or of all (NULL), that is not proven; INT64_MAX:
 * there is none. */
int64_t hd_rpc_given_oldest_ms(const struct hd_rpc_given *given, const struct hd_rpc_peer *peer);
/* Ends the oldest one of this peer, or of all (NULL), that is not proven. False: there is none, or
 * gRPC has not closed enough of those that were ended before. */
bool hd_rpc_given_end_oldest(struct hd_rpc_given *given, const struct hd_rpc_peer *peer);
/* Ends those that are past their deadlines; returns how many. *ret_next_ms: the next deadline; 0:
 * none. */
size_t hd_rpc_given_end_overdue(struct hd_rpc_given *given, int64_t now_ms, int64_t *ret_next_ms);

void hd_rpc_given_done(struct hd_rpc_given *given); /* frees memory; touches no connection */

#endif
