/* gloo: collectives between ranks on several nodes, over TCP by the library gloo.
 *
 * A rank opens a listener (a listening socket on an address of its own node) and gets an endpoint
 * info (address, port, node name and a random nonce). The caller exchanges the endpoint infos of
 * all ranks; only a rank that has all of them can connect:
 *
 *     hd_gloo_listener_open("10.0.0.3", "node-b", &listener);
 *     ... send *hd_gloo_listener_endpoint(listener), receive endpoints[world], endpoints[r] being
 *         that of rank r ...
 *     st = hd_comm_open_gloo(listener, endpoints, rank, world, deadline_ms, &comm);
 *     hd_gloo_listener_close(listener);                     // the connections stay open
 *     ... comm.h from here on ...
 *
 * Endpoint infos are secrets of the job: a connection is accepted only when both ends prove that
 * they know the hash over all endpoint infos. Send them over an encrypted channel. Other
 * connections (wrong secret, garbage, silence, floods) are closed and do not delay the ranks. The
 * traffic after the handshake is neither encrypted nor authenticated.
 *
 * gloo only carries messages between ranks. Heddle decides the messages, the order of reductions
 * and completion, so results are bitwise identical to those of shm.
 *
 * In a build without the library, hd_gloo_built_in returns false and the other functions fail with
 * HD_UNSUPPORTED.
 *
 * Used by: supervisor, worker, plan, tests.   Uses: base, comm.h.
 * Threads: a listener belongs to one thread. An endpoint has one thread of gloo, which reads and
 * writes its sockets; everything else runs on the thread that owns the endpoint. */
#ifndef HD_COMM_GLOO_H
#define HD_COMM_GLOO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/comm.h"

enum {
    HD_GLOO_ENDPOINT_BYTES = 192,
    HD_GLOO_NODE_MAX = 64, /* bytes of a node's name including its NUL; longer names are
                              truncated */
};

struct hd_gloo_listener;

/* The endpoint info of one rank: plain bytes in one format on all machines. */
struct hd_gloo_endpoint {
    uint8_t bytes[HD_GLOO_ENDPOINT_BYTES];
};

/* Returns true when this build contains the engine gloo. */
bool hd_gloo_built_in(void);

/* Listens on `address`, a numeric IPv4 or IPv6 address of this node that the other ranks can reach
 * ("127.0.0.1" when all ranks are on this node); the system chooses the port. `node` names this
 * node in messages. */
enum hd_status hd_gloo_listener_open(const char *address, const char *node,
                                     struct hd_gloo_listener **ret_listener);
const struct hd_gloo_endpoint *hd_gloo_listener_endpoint(const struct hd_gloo_listener *listener);
void hd_gloo_listener_close(struct hd_gloo_listener *listener);
/* Sets a callback for the time while the listener connects its rank: at least ten times a second,
 * on the connecting thread, the listener calls waiting_on(of, RANK), where RANK is a rank that it
 * has no connection to yet; -1: all are connected, or the listener has given up. */
void hd_gloo_listener_report(struct hd_gloo_listener *listener,
                             void (*waiting_on)(void *of, int rank), void *of);

/* Connects this rank to all others, sets *ret_comm to the open endpoint, and returns when all are
 * connected. HD_TIMEOUT: some are not connected within deadline_ms; the message names them.
 * endpoints: [world], in rank order; endpoints[rank] is this listener's own. The caller still owns
 * the listener and should close it. deadline_ms also becomes the endpoint's deadline
 * (hd_comm_set_deadline). */
enum hd_status hd_comm_open_gloo(struct hd_gloo_listener *listener,
                                 const struct hd_gloo_endpoint *endpoints, int rank, int world,
                                 int64_t deadline_ms, struct hd_comm **ret_comm);

/* Returns the bytes of host memory that an endpoint allocates beside its registered memory: message
 * headers, and staging buffers of reductions. Excludes allocations of the library, and the kernel's
 * socket buffers (at most 32 MiB per connection and direction, limited by net.ipv4.tcp_rmem and
 * tcp_wmem). */
uint64_t hd_gloo_memory_bytes(int world);

#endif
