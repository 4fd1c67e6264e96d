/* relay: TCP connections of a server, from accept to gRPC, with a bound on what each may cost
 * before a call with a token has come by it.
 *
 *   accepted --first bytes, its address' turn--> inside --a call with a token--> known
 *       \-- no bytes in first_bytes_ms             \-- its bytes without a token, or first_call_ms
 *
 * gRPC 1.51 (Debian 12) can be made deaf, or to fill the memory, by some hundred kilobytes a second
 * of HTTP/2 headers without end, before it has looked for a token; with TLS only gRPC sees those
 * headers. So gRPC never has the TCP socket: a thread of this room moves the bytes between it and
 * one end of a socket pair, and moves so many of a unauthenticated connection's at most:
 *
 *   24 KiB with TLS     TLS, and the head of the first call, which may share a record of 16 KiB
 *                       with the beginning of its message
 *   12 KiB without      the head alone; gRPC takes 8 KiB of headers
 *   8 KiB               from an address that has broken a bound of late
 *   64 KiB              of all unauthenticated connections, but for the first 1 KiB of each with TLS, in which are no
 *                       headers, and 128 bytes without; half of it for unauthenticated connections that have sent
 *                       below 4 KiB. Bytes are given back when a unauthenticated connection becomes known, else 128
 *                       KiB a second. While that half is all that is left, unauthenticated connections wait, and
 *                       those are closed that have held some for 2 s, or for 250 ms if they have
 *                       4 KiB or an address that has broken a bound.
 *
 * By its first call a client is known (server_call.c asks for the token before the message), which
 * takes 1 to 4 KiB of one of Heddle's. Bytes beyond these wait in the sender's kernel. Small
 * pieces are gathered, because gRPC reads an unfinished header anew with each piece. Behind 32
 * calls without a token a connection is read no further.
 *
 * Who must make room for whom is unauthenticated.h.
 *
 * A call tells its connection by the pair's name, which gRPC takes for the peer's address.
 *
 * Used by: server.c, tcp_listener.c, server_call.c.   Uses: base, gRPC (acceptor.h).
 * Threads: all functions on the loop's thread; the bytes move on a thread of its own.
 */
#ifndef HD_RPC_RELAY_H
#define HD_RPC_RELAY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct hd_rpc_server;
struct hd_rpc_relay;

enum { HD_RPC_RELAY_NAME_MAX = 80 };

/* Makes a relay with the limits of the server's options. The default limits follow from the
 * process's present limit of open files: a connection takes up to three. */
enum hd_status hd_rpc_relay_open(struct hd_rpc_server *server, struct hd_rpc_relay **ret_relay);

/* Accepts at this listening socket, which the relay owns from now on, once the relay is started.
 * `name` is for messages. */
enum hd_status hd_rpc_relay_listen(struct hd_rpc_relay *relay, int fd, const char *name);
/* Closes all listening sockets but the first `kept`. Must be called before the start. */
void hd_rpc_relay_unlisten(struct hd_rpc_relay *relay, size_t kept);
size_t hd_rpc_relay_listeners(const struct hd_rpc_relay *relay);

enum hd_status hd_rpc_relay_start(struct hd_rpc_relay *relay);

/* Finds the address of a connection, as "ipv4:10.0.0.1:4242", by the name that gRPC has for a
 * call's peer. Returns false if the connection is not of this relay, or has ended. */
bool hd_rpc_relay_name(struct hd_rpc_relay *relay, const char *peer,
                       char ret_name[HD_RPC_RELAY_NAME_MAX]);
/* Makes the connection of this peer known, because a call with a token came by it. */
void hd_rpc_relay_prove(struct hd_rpc_relay *relay, const char *peer);

/* Counts a call without a token that came by the connection; after the 32nd the connection is read
 * no further, and closed. */
void hd_rpc_relay_deny(struct hd_rpc_relay *relay, const char *peer);

/* Accepts nothing more, and closes the connections that gRPC does not have. Must be called before
 * the shutdown of gRPC's server begins. */
void hd_rpc_relay_close(struct hd_rpc_relay *relay);
/* Ends the thread when it has moved what gRPC left to send. NULL is fine. */
void hd_rpc_relay_free(struct hd_rpc_relay *relay);

#endif
