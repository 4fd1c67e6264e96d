/* gloo_link: a C interface to the TCP transport of the library gloo, the only C++ part of lib/comm.
 *
 * A link takes one connected TCP socket per peer. A ticket is an "unbound buffer" of gloo over a
 * range of this rank's memory, for one send or receive at a time. A message goes from the sender's
 * ticket to the receiver's ticket with the same slot (gloo's message tag); messages of one pair of
 * ranks and slot match in order. The receiver's size must be at least the sender's.
 *
 * gloo's thread reads and writes the sockets and calls ring(arg) when a message is complete or a
 * connection has ended. No exception leaves these functions.
 *
 * Used by: gloo*.c.   Uses: gloo.
 * Threads: hd_gloo_send may be called from any thread, with a ticket of its own; the rest from the
 * thread that owns the endpoint.
 */
#ifndef HD_COMM_GLOO_LINK_H
#define HD_COMM_GLOO_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

struct hd_gloo_link;
struct hd_gloo_ticket;

enum hd_gloo_progress { HD_GLOO_PENDING, HD_GLOO_DONE, HD_GLOO_LOST };

/* Opens a link. fds: [world], owned by the link, also on failure; fds[rank] is ignored. ring(arg)
 * is called by gloo's thread, and by the caller of hd_gloo_send when a write completes at once. */
enum hd_status hd_gloo_link_open(const int *fds, int rank, int world, void (*ring)(void *arg),
                                 void *arg, struct hd_gloo_link **ret_link);

/* Shuts down the sending side of the connection to `peer`. Returns false while data are still
 * unsent: the caller must call again. */
bool hd_gloo_link_end(struct hd_gloo_link *link, int peer);

/* Returns whether the connection to `peer` has ended: nothing more arrives, and pending operations
 * never complete. */
bool hd_gloo_link_lost(const struct hd_gloo_link *link, int peer);

void hd_gloo_link_close(struct hd_gloo_link *link); /* free its tickets first */

enum hd_status hd_gloo_ticket_new(struct hd_gloo_link *link, void *base, size_t size_bytes,
                                  struct hd_gloo_ticket **ret_ticket);
void hd_gloo_ticket_free(struct hd_gloo_ticket *ticket);

/* Post a send, or a receive, of a ticket's bytes. Return false when the connection to `peer` has
 * ended. Never block until the peer acts. */
bool hd_gloo_send(struct hd_gloo_ticket *ticket, int peer, uint64_t slot, size_t offset,
                  size_t size_bytes);
bool hd_gloo_recv(struct hd_gloo_ticket *ticket, int peer, uint64_t slot, size_t offset,
                  size_t size_bytes);

/* Return the state of the ticket's send or receive. Each completion returns HD_GLOO_DONE once. */
enum hd_gloo_progress hd_gloo_sent(struct hd_gloo_ticket *ticket);
enum hd_gloo_progress hd_gloo_received(struct hd_gloo_ticket *ticket);

#ifdef __cplusplus
}
#endif

#endif
