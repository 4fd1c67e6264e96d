/* gloo: collectives between ranks on several nodes, over TCP by the library gloo.
 *
 * A rank opens a door (it listens on an address of its own node) and gets a card. The cards of all
 * ranks travel through whatever brings the job together; whoever holds all of them may come in:
 *
 *     hd_gloo_door_open("10.0.0.3", "node-b", &door);
 *     ... send *hd_gloo_door_card(door), receive cards[world], cards[r] being rank r's ...
 *     st = hd_comm_open_gloo(door, cards, rank, world, deadline_ms, &comm);
 *     hd_gloo_door_close(door);                     // the connections live on
 *     ... comm.h from here on ...
 *
 * Cards are secrets of the job: each carries a random nonce, and a connection is admitted when both
 * ends prove that they know the hash over all cards. Send them over an encrypted channel. Whoever
 * else connects to a door (wrong secret, garbage, silence, thousands of connections) is turned away
 * and stops nobody. What is sent after that is neither encrypted nor authenticated.
 *
 * gloo carries messages from rank to rank; which messages those are, in which order sums are added
 * and when an operation ends is Heddle's business, so results are the same bits as shm's.
 *
 * A build without the library has these functions too: hd_gloo_built_in says so, the others return
 * HD_UNSUPPORTED.
 *
 * Used by: supervisor, worker, plan, tests.   Uses: base, comm.h.
 * Threads: a door belongs to one thread. An endpoint runs one thread of gloo that reads and writes
 * its sockets; sums and the order of operations stay on the thread that owns the endpoint.
 */
#ifndef HD_COMM_GLOO_H
#define HD_COMM_GLOO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/comm.h"

enum {
    HD_GLOO_CARD_BYTES = 192,
    HD_GLOO_NODE_MAX = 64, /* bytes of a node's name, with its closing NUL; longer ones are cut */
};

struct hd_gloo_door;

/* Plain bytes, the same on all machines; keep them as they are and in the order of ranks. */
struct hd_gloo_card {
    uint8_t bytes[HD_GLOO_CARD_BYTES];
};

/* True when this build has the engine. */
bool hd_gloo_built_in(void);

/* Listens on `address`, a numeric IPv4 or IPv6 address of this node that the other ranks can reach
 * ("127.0.0.1" when all are here), on a port that the system chooses. `node` names this node in
 * messages. */
enum hd_status hd_gloo_door_open(const char *address, const char *node,
                                 struct hd_gloo_door **ret_door);
const struct hd_gloo_card *hd_gloo_door_card(const struct hd_gloo_door *door);
void hd_gloo_door_close(struct hd_gloo_door *door);

/* Connects to all ranks and returns when all are connected, with HD_TIMEOUT when that took longer
 * than deadline_ms; the story then names who is missing. cards: [world], cards[rank] this door's
 * own. The door stays the caller's and is of no further use. deadline_ms also becomes the
 * endpoint's deadline (hd_comm_set_deadline). */
enum hd_status hd_comm_open_gloo(struct hd_gloo_door *door, const struct hd_gloo_card *cards,
                                 int rank, int world, int64_t deadline_ms,
                                 struct hd_comm **ret_comm);

/* What an endpoint in such a world takes beside its visible memory, whatever is sent: heads of
 * operations, and what arrives to be summed. Not the library's own books nor the kernel's socket
 * buffers (at most 32 MiB per connection and direction, as net.ipv4.tcp_rmem and _wmem allow). */
uint64_t hd_gloo_memory_bytes(int world);

#endif
