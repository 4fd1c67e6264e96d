/* nccl_wire: the emulated NCCL between processes. Every rank is a process with one thread here that
 * moves bytes, as NCCL's proxy does.
 *
 * Ranks of one node exchange through shared memory, ranks of different nodes over TCP
 * (nccl_link.h, nccl_address.h). A unique id names the listeners of the process that made it, and
 * contains a random token; a connection that does not send the token is closed (nccl_hello.h).
 *
 * A message has the number that the calls of both sides count: the n-th send of a rank to another
 * one meets the n-th receive there, if kind and size are equal. If not, the receive waits for ever.
 * When a peer's process ends without a clean close, the communicator is broken (ncclRemoteError).
 *
 * When a world has connected, one line on standard error says by which way.
 *
 * Used by: nccl.c, nccl_wait.c.   Threads: any. A sender may hold the lock of the streams; messages
 * are delivered (hd_sim_part_receive) under that lock, by the thread of this file.
 */
#ifndef HD_CUDASIM_NCCL_WIRE_H
#define HD_CUDASIM_NCCL_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/nccl_api.h"

struct hd_wire; /* one communicator of this process */

struct hd_wire_place {
    struct hd_wire *wire;
    int peer, kind;
    uint64_t number; /* of this message between the two ranks in this direction, from 0 */
};

/* A message that has arrived; the receiver frees it. */
struct hd_wire_message {
    struct hd_wire_message *next;
    int peer, kind;
    uint64_t number, bytes;
    char data[];
};

ncclResult_t hd_wire_make_id(ncclUniqueId *ret_id);

/* Begins to connect. */
ncclResult_t hd_wire_open(const ncclUniqueId *id, int size, int rank, struct hd_wire **ret_wire);

/* The communicator of the ranks with this color; call it when hd_wire_colors has returned true.
 * NULL: no color. */
struct hd_wire *hd_wire_split(struct hd_wire *parent, int split, int color);

/* Tells the color and key of this rank in split number `split` to all ranks of the parent. */
void hd_wire_tell_color(struct hd_wire *parent, int split, int color, int key);
/* True: all ranks have told theirs. */
bool hd_wire_has_colors(struct hd_wire *parent, int split);

int hd_wire_size(const struct hd_wire *wire);
int hd_wire_rank(const struct hd_wire *wire);
bool hd_wire_is_connected(struct hd_wire *wire);
bool hd_wire_is_broken(struct hd_wire *wire);
bool hd_wire_is_flushed(struct hd_wire *wire); /* it is in shared memory, or the kernel has it */

/* Copies the bytes. */
void hd_wire_send(const struct hd_wire_place *place, const void *buf, size_t bytes);

/* The message that belongs there, if it has come. Under the lock of the streams. */
struct hd_wire_message *hd_wire_take(const struct hd_wire_place *place, size_t bytes);

/* clean: peers are told that this is no failure. */
void hd_wire_close(struct hd_wire *wire, bool clean);

#endif
