/* nccl: the calls of NCCL that lib/comm makes, as the plug-in for GPUs exports them.
 *
 * Communicators never block: a call that starts something returns, and `poll` says when it is
 * through. Bytes move in the order of their stream of the device. Every function but poll and abort
 * belongs to one thread of a rank, or to threads that take turns.
 *
 * Used by: lib/comm (nccl*.c).   Implemented by: kernels/cuda/nccl.c, the one owner of nccl.h.
 */
#ifndef HD_KERNELS_NCCL_H
#define HD_KERNELS_NCCL_H

#include "kernels/kernels.h"

enum { HD_NCCL_ID_BYTES = 128 };

struct hd_nccl_id {
    char bytes[HD_NCCL_ID_BYTES];
};

struct hd_nccl_comm; /* of one rank; NCCL's own */

struct hd_nccl_table {
    int version; /* 22809: 2.28.9 */
    enum hd_status (*unique_id)(struct hd_nccl_id *ret_id);
    /* Start a communicator; it is of use when poll says that it is no longer busy, of a split the
     * poll of the parent. Until then *ret_comm is NCCL's to write. */
    enum hd_status (*init)(const struct hd_nccl_id *id, int world, int rank,
                           struct hd_nccl_comm **ret_comm);
    /* All ranks of the parent call it in the same order. color: ranks with the same one stay
     * together, ordered by key; -1: in none, *ret_comm is NULL then. */
    enum hd_status (*split)(struct hd_nccl_comm *parent, int color, int key,
                            struct hd_nccl_comm **ret_comm);
    /* The failure that a communicator has met, its story NCCL's; else whether a call on it is still
     * under way. */
    enum hd_status (*poll)(struct hd_nccl_comm *comm, bool *ret_busy);
    /* Ends what is under way on the device, and the communicator with it. */
    void (*abort)(struct hd_nccl_comm *comm);
    void (*destroy)(struct hd_nccl_comm *comm); /* nothing is under way on any rank */
    /* Calls between the two are one: none waits for another. */
    enum hd_status (*group_begin)(void);
    enum hd_status (*group_end)(void);
    enum hd_status (*send)(struct hd_nccl_comm *comm, struct hd_stream *stream, const void *buf,
                           int64_t bytes, int peer);
    enum hd_status (*recv)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *buf,
                           int64_t bytes, int peer);
    /* out: [ranks, bytes]; `own` may be its place in out */
    enum hd_status (*all_gather)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                 const void *own, int64_t bytes);
    enum hd_status (*broadcast)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *buf,
                                int64_t bytes, int root);
    /* In NCCL's order and rounding. As hd_comm_all_reduce and hd_comm_reduce_scatter. */
    enum hd_status (*all_reduce)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                 const void *inp, int64_t count, enum hd_dtype dtype, bool max);
    enum hd_status (*reduce_scatter)(struct hd_nccl_comm *comm, struct hd_stream *stream, void *out,
                                     const void *inp, int64_t count, enum hd_dtype dtype, bool max);
};

#endif
