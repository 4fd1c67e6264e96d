/* acceptor: gives gRPC a TCP connection that was accepted by our own code, with or without TLS.
 *
 * gRPC's C functions take a foreign descriptor only without TLS (grpc_server_add_channel_from_fd).
 * What its C++ library uses for both is a port named "external:NAME": it opens no socket, but takes
 * connections through an object that gRPC makes and puts where the channel argument of that name
 * points to. gRPC then does TLS, its handshake's deadline and the peer's name as for a port of its
 * own. docs/decisions/listeners-and-strangers.md says why, and what would break it.
 *
 * Used by: server.c, tcp_listener.c, relay.c.   Uses: gRPC.
 * Threads: the loop's; hd_rpc_acceptor_give any one.
 */
#ifndef HD_RPC_ACCEPTOR_H
#define HD_RPC_ACCEPTOR_H

#include <stdbool.h>

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

struct hd_rpc_acceptor; /* gRPC's; valid until the server's shutdown begins */

/* The argument for grpc_server_create. *where must stay as long as the server; it is NULL until
 * hd_rpc_acceptor_open. */
grpc_arg hd_rpc_acceptor_arg(struct hd_rpc_acceptor **where);

/* Before the server starts: fills *where. False: gRPC did not accept the credentials. */
bool hd_rpc_acceptor_open(grpc_server *server, grpc_server_credentials *credentials,
                          struct hd_rpc_acceptor *const *where);

/* After the start: `fd`, connected and non-blocking, is gRPC's from here on. */
void hd_rpc_acceptor_give(struct hd_rpc_acceptor *acceptor, int fd);

#endif
