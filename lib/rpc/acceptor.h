/* acceptor: passes TCP connections that our own code accepted to gRPC, with or without TLS.
 *
 * gRPC's C API takes a file descriptor only without TLS (grpc_server_add_channel_from_fd). Its C++
 * library uses a port named "external:NAME" for both: such a port opens no socket; connections are
 * passed to an object that gRPC creates and stores where the channel argument of that name points.
 * gRPC then does TLS, the handshake timeout and the peer's name as for its own ports. Reasons, and
 * what would break it: docs/decisions/listeners-and-strangers.md.
 *
 * Used by: server.c, tcp_listener.c, relay.c.   Uses: gRPC.
 * Threads: the loop's; hd_rpc_acceptor_give any one.
 */
#ifndef HD_RPC_ACCEPTOR_H
#define HD_RPC_ACCEPTOR_H

#include <stdbool.h>

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

struct hd_rpc_acceptor; /* owned by gRPC; valid until the server's shutdown begins */

/* Returns the channel argument for grpc_server_create that names *where. *where must live as long
 * as the server; it is NULL until hd_rpc_acceptor_open. */
grpc_arg hd_rpc_acceptor_arg(struct hd_rpc_acceptor **where);

/* Sets *where to gRPC's object that takes accepted connections. Call before the server starts.
 * Returns false if gRPC refused the credentials. */
bool hd_rpc_acceptor_open(grpc_server *server, grpc_server_credentials *credentials,
                          struct hd_rpc_acceptor *const *where);

/* Passes the TCP connection `fd`, which is non-blocking, to gRPC, which owns it from then on. Call
 * after the server has started. */
void hd_rpc_acceptor_give(struct hd_rpc_acceptor *acceptor, int fd);

#endif
