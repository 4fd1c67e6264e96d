/* relay: a server's TCP connections, from accept to gRPC, with a bound on the resources of each
 * connection that has not yet sent a call with a valid token.
 *
 *   accepted --first bytes, rate of its address--> inside --a call with a token--> known
 *     \-- no bytes in first_bytes_ms               \-- too many bytes, or first_call_ms
 *
 * Why: with some hundred kilobytes per second of endless HTTP/2 headers, a client can make gRPC
 * 1.51 (Debian 12) unresponsive or exhaust its memory before gRPC has looked for a token; with TLS
 * only gRPC can see those headers. So gRPC never gets the TCP socket: a thread of lib/rpc copies
 * the bytes between the socket and one end of a socket pair, whose other end gRPC has, and copies
 * at most this much of an unauthenticated connection:
 *
 *   24 KiB with TLS   TLS, and the headers of the first call, which may share a TLS record of 16
 *                     KiB with the beginning of its message
 *   12 KiB without    headers alone; gRPC accepts 8 KiB of headers
 *   8 KiB             from an address that exceeded a bound recently
 *   64 KiB            budget of all unauthenticated connections together. The first 1 KiB of each
 *                     with TLS, which contains no headers, and the first 128 bytes without do not
 *                     count. Half of the budget is reserved for connections that have sent less
 *                     than 4 KiB. A connection that becomes known returns its bytes at once; those
 *                     of closed ones return at 128 KiB a second. While only the reserved half is
 *                     left, connections beyond 4 KiB wait, and a connection is closed that has held
 *                     bytes of the budget for 2 s, or for 250 ms if it has sent 4 KiB or its
 *                     address exceeded a bound.
 *
 * The first call makes a client known (server_call.c checks the token before the message). Heddle's
 * own clients need 1 to 4 KiB for that. Bytes beyond the bounds wait in the sender's kernel. Small
 * pieces are collected, because gRPC parses an unfinished header again with each piece. After 32
 * calls without a token nothing more is read from a connection.
 *
 * unauthenticated.h has the rules by which a new connection displaces an older one.
 *
 * A call is assigned to its connection by the name of the socket pair, which gRPC reports as the
 * peer's address.
 *
 * Used by: server.c, tcp_listener.c, server_call.c.   Uses: base, gRPC (acceptor.h).
 * Threads: all functions on the loop's thread; the bytes are copied on a thread of its own.
 */
#ifndef HD_RPC_RELAY_H
#define HD_RPC_RELAY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct hd_rpc_server;
struct hd_rpc_relay;

enum { HD_RPC_RELAY_NAME_MAX = 80 };

/* Makes a relay with the limits of the server's options. Default limits follow from the process's
 * limit of open files at this time: a connection takes up to three. */
enum hd_status hd_rpc_relay_open(struct hd_rpc_server *server, struct hd_rpc_relay **ret_relay);

/* Adds a listening socket, which the relay owns then; accepting begins with hd_rpc_relay_start.
 * `name` is for messages. */
enum hd_status hd_rpc_relay_listen(struct hd_rpc_relay *relay, int fd, const char *name);
/* Closes all listening sockets except the `kept` ones that were added first. Call before
 * hd_rpc_relay_start. */
void hd_rpc_relay_unlisten(struct hd_rpc_relay *relay, size_t kept);
size_t hd_rpc_relay_listeners(const struct hd_rpc_relay *relay);

enum hd_status hd_rpc_relay_start(struct hd_rpc_relay *relay);

/* Finds the network address of a connection, such as "ipv4:10.0.0.1:4242", by the name that gRPC
 * reports for a call's peer. Returns false if the connection does not belong to this relay, or has
 * ended. */
bool hd_rpc_relay_name(struct hd_rpc_relay *relay, const char *peer,
                       char ret_name[HD_RPC_RELAY_NAME_MAX]);
/* Marks the connection of this peer as known, because it has sent a call with a valid token. */
void hd_rpc_relay_prove(struct hd_rpc_relay *relay, const char *peer);

/* Counts a call without a valid token on the connection; after the 32nd nothing more is read from
 * the connection, and it is closed. */
void hd_rpc_relay_deny(struct hd_rpc_relay *relay, const char *peer);

/* Stops accepting, and closes the connections that the relay has not yet passed to gRPC. Call
 * before the shutdown of gRPC's server begins. */
void hd_rpc_relay_close(struct hd_rpc_relay *relay);
/* Ends the relay's thread after it has sent to the clients what gRPC wrote last. relay NULL: does
 * nothing. */
void hd_rpc_relay_free(struct hd_rpc_relay *relay);

#endif
