/* nccl: the NCCL functions that lib/comm uses, exported by the GPU plug-in as a table.
 *
 * `init` makes a non-blocking communicator (ncclConfig_t.blocking = 0), which only serves to split
 * blocking ones off it: init and split return at once, and `poll` tells when they have finished.
 * All other calls are for blocking communicators: they return when the work is enqueued on the CUDA
 * stream, which may wait for the peers (the first use of a connection) or for space in the device's
 * queue. Data moves in the order of the stream, so a buffer must stay valid until the stream has
 * passed the call. One thread of a rank at a time may call these functions; any thread may call
 * poll and abort, also while a call on the communicator is blocked: that call then fails.
 *
 * Used by: lib/comm (nccl*.c).   Implemented by: kernels/cuda/nccl.c.
 */
#ifndef HD_KERNELS_NCCL_H
#define HD_KERNELS_NCCL_H

#include <stdio.h>

#include "kernels/kernels.h"

enum { HD_NCCL_ID_BYTES = 128 };

struct hd_nccl_id {
    char bytes[HD_NCCL_ID_BYTES];
};

enum { HD_NCCL_VERSION_MAX = 24 };

/* The first version (2.26.2) whose ncclMemAlloc rounds up to the device's allocation granularity, 2
 * MiB, as a plan does (hd_traits.page_bytes). Earlier versions round to the granularity of
 * multicast, half a gigabyte on some GPUs. */
enum { HD_NCCL_REGISTERS_FROM = 22602 };

/* Writes the name of NCCL's version number `version` to ret_text: "NCCL 2.28.9" for 22809. */
static inline void hd_nccl_name(int version, char ret_text[HD_NCCL_VERSION_MAX])
{
    (void)snprintf(ret_text, HD_NCCL_VERSION_MAX, "NCCL %d.%d.%d", version / 10000 % 1000,
                   version / 100 % 100, version % 100);
}

struct hd_nccl_comm;   /* NCCL's communicator (ncclComm), one per rank */
struct hd_nccl_buffer; /* registration of a memory buffer with one communicator */

struct hd_nccl_table {
    int version; /* version of the NCCL library; 22809 is 2.28.9 */
    enum hd_status (*unique_id)(struct hd_nccl_id *ret_id);
    /* init and split start a communicator. It is usable when poll reports not busy: after init poll
     * the new communicator, after split the parent, which comes from init. Until then NCCL may
     * write to *ret_comm. */
    enum hd_status (*init)(const struct hd_nccl_id *id, int world, int rank,
                           struct hd_nccl_comm **ret_comm);
    /* Functions for memory that NCCL can access without copying it through NCCL's own buffers, if
     * it is registered with the communicator. reserve: as hd_device_table.reserve, from
     * ncclMemAlloc; `release` of that table frees the memory, after it was deregistered from all
     * communicators. register_buffer is local: other ranks need not register their buffers. An
     * abort of the communicator ends its registrations. NULL, all three: the library is older than
     * HD_NCCL_REGISTERS_FROM, or lacks a function. */
    enum hd_status (*reserve)(struct hd_backend *backend, int64_t size_bytes, void **ret_base);
    enum hd_status (*register_buffer)(struct hd_nccl_comm *comm, void *base, int64_t size_bytes,
                                      struct hd_nccl_buffer **ret_buffer);
    void (*deregister)(struct hd_nccl_comm *comm, struct hd_nccl_buffer *buffer);
    /* All ranks of the parent must call split, in one order. Ranks with equal colors form one new
     * communicator, ordered by key; with color -1 a rank joins none and *ret_comm is NULL. Its
     * kernels have at most blocks_max blocks, which is equal on all its ranks. */
    enum hd_status (*split)(struct hd_nccl_comm *parent, int color, int key, int blocks_max,
                            struct hd_nccl_comm **ret_comm);
    /* Returns the failure of the communicator if it has failed, with NCCL's message; else HD_OK,
     * and sets *ret_busy to true if a call on the communicator is in progress. */
    enum hd_status (*poll)(struct hd_nccl_comm *comm, bool *ret_busy);
    /* abort and destroy free the communicator. abort stops its work on the device. Before destroy,
     * all calls on all ranks must have finished; it waits for the peers, for about 6 s at most,
     * after which a non-blocking communicator is aborted and a blocking one is left to a background
     * thread, which continues to wait. */
    void (*abort)(struct hd_nccl_comm *comm);
    void (*destroy)(struct hd_nccl_comm *comm);
    /* Calls of the functions below between group_begin and group_end are submitted together
     * (ncclGroupStart). */
    enum hd_status (*group_begin)(void);
    enum hd_status (*group_end)(void);
    enum hd_status (*send)(struct hd_nccl_comm *comm, struct hd_stream *stream, const void *buf,
                           int64_t bytes, int peer);
    enum hd_status (*recv)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *buf,
                           int64_t bytes, int peer);
    /* Gathers `bytes` bytes of every rank into out [ranks, bytes]; `own` may be this rank's slice
     * of out (in place) */
    enum hd_status (*all_gather)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                 const void *own, int64_t bytes);
    enum hd_status (*broadcast)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *buf,
                                int64_t bytes, int root);
    /* Arguments as in all_reduce and reduce_scatter of comm.h; NCCL chooses the order of the
     * additions and the rounding. */
    enum hd_status (*all_reduce)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                 const void *inp, int64_t count, enum hd_dtype dtype, bool max);
    enum hd_status (*reduce_scatter)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                     const void *inp, int64_t count, enum hd_dtype dtype, bool max);
};

#endif
