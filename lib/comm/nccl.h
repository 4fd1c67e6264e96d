/* nccl: collectives between GPUs, by NCCL.
 *
 * Ranks first meet on the host, by shm or gloo. That endpoint stays below: it brings NCCL's
 * identity to all ranks, tells the others when one fails or dies, and holds the flight record.
 *
 *     hd_comm_open_shm(..., &host)  or  hd_comm_open_gloo(..., &host);
 *     hd_comm_open_nccl(host, &device, &options, &comm);   // takes host over, also when it fails
 *     ... comm.h; hd_comm_visible gives memory of the device ...
 *
 * Sums are ordered, as on every engine: an all-to-all, then each rank adds its share in rank order
 * in fp32 and rounds once, so results are the bits of shm. `native` leaves sums to NCCL, which adds
 * bf16 in bf16, hop by hop.
 *
 * Differences from the other engines:
 *  - A send waits on the device for its receive, and what is launched behind it waits, too. Sends
 *    and receives that cross belong between hd_comm_begin and hd_comm_end.
 *  - Members that launch different operations wait until the deadline; the failure then says who
 *    launched what, if records of both can be seen.
 *  - Of all_to_all_v counts and flag are device memory; the host reads the counts, so a launch of
 *    it waits for what is before it on its stream. (A bound instead of the counts would move more.)
 *  - On the host an operation has ended when it is on the device's stream. A watchdog looks every
 *    100 ms at NCCL's own errors, at the device's, at the deadline of the oldest operation that has
 *    not run (while it waits for compute the clock stands), at a launch that does not return, and
 *    at the other ranks (so does a listener, which never waits for the driver); on any of these it
 *    tells them what stood where, and then aborts every communicator, so that nothing hangs on the
 *    device. An operation that an abort ended is never told as done.
 *  - The end of an endpoint waits, with the deadline, for what the device has still to run.
 *
 * Used by: worker, tests.   Uses: kernels.
 * Threads: as comm.h; watchdog and listener are threads of the endpoint.
 */
#ifndef HD_COMM_NCCL_H
#define HD_COMM_NCCL_H

#include "comm/comm.h"
#include "comm/device.h"

struct hd_comm_nccl_options {
    const struct hd_mesh *mesh; /* its groups are split off the world at once; NULL: no mesh yet */
    bool native;                /* sums in NCCL's order */
    int64_t deadline_ms;        /* also for communicators to come up */
};

enum hd_status hd_comm_open_nccl(struct hd_comm *host, const struct hd_comm_device *device,
                                 const struct hd_comm_nccl_options *options,
                                 struct hd_comm **ret_comm);

/* Device memory that an endpoint takes beside its visible memory: what arrives to be summed, for
 * each stream. NCCL's own buffers come on top, per communicator (hd_traits.communicator_bytes): one
 * for the world, and one for each of hd_mesh_divisions. */
enum { HD_COMM_NCCL_BYTES = HD_COMM_STREAM_COUNT * ((8 << 20) + (64 << 10)) };

#endif
