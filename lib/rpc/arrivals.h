/* arrivals: TCP connections between accept and gRPC, and how many of them there may be.
 *
 *   accepted --first bytes--> given to gRPC (given.h) --gRPC closes it--> not counted any more
 *       \--no bytes for first_bytes_ms, or a newer connection needs the place--> closed
 *
 * A stranger needs no token to connect, so a connection must not cost more than its descriptor
 * before it has sent something, and connections must never take the last descriptors of the
 * process: the store, logs and the Unix door need some. Hence two limits, on all connections and on
 * those from one address (of IPv6: from one /64 network, which one host can own whole). When a
 * limit is met, the oldest connection by which no call with a token has come is closed for the new
 * one. If such calls came by all of them, the new one is refused: without TLS with an HTTP/2
 * message that says why, and with a line in the log.
 *
 * Used by: the files of rpc.   Uses: base, libuv.   Threads: the loop's.
 */
#ifndef HD_RPC_ARRIVALS_H
#define HD_RPC_ARRIVALS_H

#include <sys/socket.h>

#include "base/status.h"

struct hd_rpc_server;
struct hd_rpc_arrivals;

/* With the limits of the server's options; before its first TCP door. The default limits follow
 * from the process's limit of open files at this moment. */
enum hd_status hd_rpc_arrivals_open(struct hd_rpc_server *server,
                                    struct hd_rpc_arrivals **ret_arrivals);

/* A connection that was just accepted from `from`; `fd` is non-blocking and not the caller's any
 * more. */
void hd_rpc_arrivals_take(struct hd_rpc_arrivals *arrivals, int fd,
                          const struct sockaddr_storage *from);

/* A call with a token came from `peer`, as gRPC writes it: its connection keeps its place. */
void hd_rpc_arrivals_prove(struct hd_rpc_arrivals *arrivals, const char *peer);

/* Closes what has not been given to gRPC. Before the shutdown of gRPC's server begins. */
void hd_rpc_arrivals_close(struct hd_rpc_arrivals *arrivals);
void hd_rpc_arrivals_free(struct hd_rpc_arrivals *arrivals); /* when its handles are closed */

#endif
