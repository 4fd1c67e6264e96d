/* nccl_ring: bytes between two processes of one node, through memory that both have mapped.
 *
 * The memory is a memfd with two rings, one for each direction. The process that connects makes it
 * and sends its descriptor over the local socket of the two; then the socket carries no data, only
 * a byte whenever there is something new in a ring, or room again: its end wakes a process that
 * waits in poll, and its closing says that the other process is gone. What the other process had
 * put into the ring before it ended can still be taken.
 *
 * Used by: nccl_link.c, nccl_wire.c.   Threads: one at a time in each process.
 */
#ifndef HD_CUDASIM_NCCL_RING_H
#define HD_CUDASIM_NCCL_RING_H

#include <stdbool.h>
#include <stddef.h>

enum { HD_RING_BYTES = 256 << 10 }; /* of one direction; a larger message comes in pieces */

struct hd_rings; /* both rings, as one of the two processes sees them */

/* New memory; its descriptor is the caller's. -1: the system refuses (errno). */
int hd_rings_make(void);

/* Maps it; the descriptor may be closed then. maker: this process has made it. NULL: it is not
 * such memory, or cannot be mapped. */
struct hd_rings *hd_rings_map(int fd, bool maker);
void hd_rings_unmap(struct hd_rings *rings); /* NULL is fine */

/* Puts as many of the bytes as fit. If not all: the other process will be asked to wake this one
 * when it has taken some. */
size_t hd_rings_put(struct hd_rings *rings, const void *bytes, size_t size);

/* Takes the bytes that have arrived, up to `size`. ret_wake becomes true, and never false, if the
 * other process waits for room. */
size_t hd_rings_take(struct hd_rings *rings, void *to, size_t size, bool *ret_wake);

#endif
