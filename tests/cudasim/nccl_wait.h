/* nccl_wait: sends and receives of the emulated NCCL that wait on their streams, as NCCL's kernels
 * do when a communicator is connected: the call has returned, and the stream waits until the peer's
 * stream has reached the matching call, or until the communicator is aborted.
 *
 * A part is a send or a receive. Parts that are enqueued together wait together: none of them
 * blocks the matching of another. A receive copies when the sender's stream has reached the send;
 * the send ends when the receive has copied. From the time when its stream has reached it until
 * then the receive's buffer contains garbage, as nothing is known of it on a device.
 * hd_sim_part_leave abandons a part: it ends at once, and writes nothing from then on; its peer
 * continues to wait.
 *
 * Used by: nccl.c, nccl_wire.c.   Uses: the gates of stream.c.
 * Threads: any.
 */
#ifndef HD_CUDASIM_NCCL_WAIT_H
#define HD_CUDASIM_NCCL_WAIT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#include "nccl_wire.h"

enum { HD_SIM_GARBAGE = 0x5a }; /* a receive fills its buffer with this byte first */

struct hd_sim_part; /* reference-counted: new and share return a reference, release drops one */

struct hd_sim_part *hd_sim_part_new(bool sends, char *buf, size_t bytes);
struct hd_sim_part *hd_sim_part_share(struct hd_sim_part *part);
void hd_sim_part_release(struct hd_sim_part *part);

/* The peer is another process (nccl_wire.h). Call it before the part is enqueued. A send copies
 * when its stream reaches it, and has then ended. */
void hd_sim_part_place(struct hd_sim_part *part, const struct hd_wire_place *place);

/* Under the lock of the streams: messages of other processes have arrived. */
void hd_sim_parts_look(void);

/* Enqueues parts on a lazy stream, as one unit: a kernel, which starts when its stream has reached
 * it and the device of `rank` has `blocks` multiprocessors free, and holds them until all its parts
 * have ended. blocks 0: it needs none. */
void hd_sim_parts_enqueue(cudaStream_t stream, struct hd_sim_part *const *parts, int count,
                          int rank, int blocks);

/* Matches a send with a receive of equal size. */
void hd_sim_parts_meet(struct hd_sim_part *send, struct hd_sim_part *recv);
bool hd_sim_part_has_ended(struct hd_sim_part *part);
void hd_sim_part_leave(struct hd_sim_part *part);

#endif
