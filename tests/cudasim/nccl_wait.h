/* nccl_wait: sends and receives of the stand-in that wait on their streams, as NCCL's kernels do
 * once a communicator is connected: the call has returned, and the stream stands until the peer's
 * has come to its side, or until the communicator is aborted.
 *
 * A part is a send or a receive. Parts that are put on a stream together wait together: none of
 * them keeps another from being met. A receive copies when the sender's stream has come to the
 * send; the send ends when the receive has copied. A part that has been left ends where it stands,
 * a receive with garbage; its peer goes on waiting.
 *
 * Used by: nccl.c.   Uses: the gates of stream.c.
 * Threads: any.
 */
#ifndef HD_CUDASIM_NCCL_WAIT_H
#define HD_CUDASIM_NCCL_WAIT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

enum { HD_SIM_GARBAGE = 0x5a }; /* what a receive that was left fills its buffer with */

struct hd_sim_part; /* counted: each of these pointers is released once */

struct hd_sim_part *hd_sim_part_new(bool sends, char *buf, size_t bytes);
struct hd_sim_part *hd_sim_part_share(struct hd_sim_part *part);
void hd_sim_part_release(struct hd_sim_part *part);

/* Puts parts on a lazy stream, in one piece. */
void hd_sim_parts_enqueue(cudaStream_t stream, struct hd_sim_part *const *parts, int count);

void hd_sim_parts_meet(struct hd_sim_part *send, struct hd_sim_part *recv); /* of equal bytes */
bool hd_sim_part_has_ended(struct hd_sim_part *part);
void hd_sim_part_leave(struct hd_sim_part *part);

#endif
