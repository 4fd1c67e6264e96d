/* nccl_internal: what the files of the engine nccl share.
 *
 *   nccl.c         open and close, failures
 *   nccl_make.c    makes communicators
 *   nccl_memory.c  memory that NCCL moves, and its registrations
 *   nccl_move.c    enqueues the NCCL calls and kernels of an operation
 *   nccl_watch.c   the watchdog and the listener; aborting
 *
 * Operations of all streams are enqueued with NCCL in launch order. So every rank enqueues them in
 * the same order, which NCCL requires of communicators that run concurrently.
 *
 * Used by: nccl*.c.
 */
#ifndef HD_COMM_NCCL_INTERNAL_H
#define HD_COMM_NCCL_INTERNAL_H

#include <pthread.h>

#include "comm/device_streams.h"
#include "comm/nccl.h"
#include "kernels/nccl.h"

enum {
    NCCL_SCRATCH_UNIT = 64 << 10, /* nccl_scratch_bytes is a multiple of it */
    NCCL_COMMS_MAX = HD_COMM_GROUPS_MAX + HD_GROUP_COUNT + 1,
    NCCL_LOOK_MS = 100,     /* period of the watchdog and of the listener */
    NCCL_BLOCKED_MS = 2500, /* see nccl_is_blocked */
    NCCL_CAUSE_MS = 1000,   /* see nccl_hear_cause */
    NCCL_GRACE_MS = 2000,   /* added to the watchdog's deadline for calls of the owner */
};

/* Memory that is registered with every communicator, if it is NCCL's (hd_nccl_table.reserve). */
enum nccl_buffer { NCCL_STAGING, NCCL_VISIBLE, NCCL_BUFFERS };

/* A communicator and its members. */
struct nccl_communicator {
    struct hd_nccl_comm *comm;
    uint64_t direction; /* id of the group, if only that one may use it (hd_comm_open_channel); 0:
                           any group */
    int size;
    int32_t *members;                             /* [size] */
    struct hd_nccl_buffer *buffers[NCCL_BUFFERS]; /* by enum nccl_buffer; NULL: none */
    _Atomic bool is_aborted;                      /* set by the one thread that aborts it */
};

/* The transfer between this member and one other. */
struct nccl_part {
    const char *send;
    char *recv;
    int64_t send_bytes, recv_bytes;
};

/* What each member of an all_to_all_v tells the others first; [size] of them, of nccl_bounds_bytes
 * each. */
struct nccl_bounds {
    int64_t send_rows_max, recv_rows_max;
    int32_t send_counts[]; /* [size] */
};

static inline size_t nccl_bounds_bytes(int size)
{
    return sizeof(struct nccl_bounds) + ((size_t)size + 1) / 2 * 2 * sizeof(int32_t);
}

/* Bytes after a staging buffer: the bounds of all members, or a byte of each. */
static inline size_t nccl_scratch_bytes(int world)
{
    const int rows = world < HD_COMM_ROW_MEMBERS_MAX ? world : (int)HD_COMM_ROW_MEMBERS_MAX;
    const size_t bounds = (size_t)rows * nccl_bounds_bytes(rows);
    const size_t bytes = bounds > (size_t)world ? bounds : (size_t)world;

    return (bytes + NCCL_SCRATCH_UNIT - 1) / NCCL_SCRATCH_UNIT * NCCL_SCRATCH_UNIT;
}

struct nccl_state {
    struct hd_comm *host;
    struct hd_comm_flight host_flight; /* where `host` records once this endpoint uses its record */
    const struct hd_nccl_table *calls;
    char *staging; /* device memory: see nccl_streams_bytes */
    struct {
        void *base; /* of device memory, NULL: none */
        int64_t size_bytes;
        bool registers; /* it is NCCL's */
    } memory[NCCL_BUFFERS];
    int64_t piece_bytes;  /* of the options */
    size_t scratch_bytes; /* nccl_scratch_bytes */
    /* the device streams of every other piece of a sum, opened by the first one that needs it */
    struct hd_stream *second[HD_COMM_COLLECTIVE_STREAMS];
    struct hd_event *forked, *joined; /* order a stream and its second one; recorded anew */
    struct nccl_part *parts;          /* [world], of the group that is being enqueued */
    struct nccl_bounds *bounds;       /* likewise; sized by the largest group that needed it */
    size_t bounds_bytes;
    uint64_t last_enqueued; /* number of the operation that was enqueued last */
    bool grouping;          /* between group_begin and group_end */
    pthread_mutex_t lock;   /* held during every call, or group of calls, of NCCL */
    _Atomic bool aborted;   /* the communicators are being aborted; set without the lock */
    /* 0, or the time (hd_clock_now_ms) since which the owner is in a call that may block while the
     * device's queue is full */
    _Atomic int64_t calling_since_ms;
    /* 0, or the time since which the owner enqueues an operation: its stream and number */
    _Atomic int64_t enqueue_since_ms;
    _Atomic int enqueue_stream;
    _Atomic uint64_t enqueue_launch;
    _Atomic int64_t moved_ms;       /* when the watchdog last saw the device make progress */
    _Atomic int64_t query_since_ms; /* 0, or since when the watchdog waits for the driver */
    struct hd_event *counts_ready;  /* the counts of an all_to_all_v have arrived */
    struct nccl_communicator communicators[NCCL_COMMS_MAX]; /* [0]: world; append under lock */
    _Atomic int communicator_count;
    struct nccl_communicator maker; /* of communicators (nccl_make.c), while has_maker */
    _Atomic bool has_maker;         /* set under lock */
    char *host_memory;              /* registered memory of `host`: a unique id in transit */
    pthread_t watchdog, listener;
    bool watching, listening;
    pthread_mutex_t stop_lock;
    pthread_cond_t stop_cond;
    bool stop;
};

static inline struct nccl_state *nccl_of(const struct hd_comm *comm)
{
    return comm->engine_state;
}

static inline const struct nccl_bounds *nccl_bounds_of(const struct nccl_bounds *all, int size,
                                                       int member)
{
    return (const struct nccl_bounds *)((const char *)all +
                                        (size_t)member * nccl_bounds_bytes(size));
}

/* Bytes of a piece on a stream, if those of a large one are piece_bytes. */
static inline int64_t nccl_piece_bytes(int64_t piece_bytes, int stream)
{
    const bool is_large = stream == HD_COMM_STREAM_GATHER || stream == HD_COMM_STREAM_REDUCE;

    return is_large ? piece_bytes : piece_bytes / HD_COMM_NCCL_SMALL_PIECE_PART;
}

/* Bytes of the staging and scratch buffers of all streams before this one. */
static inline int64_t nccl_streams_bytes(int64_t piece_bytes, size_t scratch_bytes, int stream)
{
    int64_t bytes = 0;

    for (int s = 0; s < stream; s++)
        bytes += HD_COMM_NCCL_HALVES * nccl_piece_bytes(piece_bytes, s) + (int64_t)scratch_bytes;
    return bytes;
}

/* The staging buffer of the pieces `half`, `half` + 2, ... of an operation. */
static inline char *nccl_stage(const struct hd_comm_op *op, int half)
{
    const struct nccl_state *nccl = nccl_of(op->group->comm);
    const int stream = (int)op->stream->name;

    return nccl->staging + nccl_streams_bytes(nccl->piece_bytes, nccl->scratch_bytes, stream) +
           half * nccl_piece_bytes(nccl->piece_bytes, stream);
}

/* The scratch buffer of the operation's stream. */
static inline char *nccl_scratch(const struct hd_comm_op *op)
{
    return nccl_stage(op, HD_COMM_NCCL_HALVES);
}

/* ---- nccl.c ---- */

/* HD_OK, or the failure that the host endpoint knows. */
enum hd_status nccl_failure(struct hd_comm *comm);
bool nccl_has_failed(const struct hd_comm *comm); /* any thread */

/* By the owner, without the lock, with what a call of NCCL returned: HD_OK, or the failure of this
 * endpoint, which is that of the peer that died first if one did. `about` names the call in
 * messages. */
enum hd_status nccl_end_call(struct hd_comm *comm, enum hd_status st, const char *about);

/* ---- nccl_memory.c ---- */

/* Reserves zeroed device memory as `buffer`, which is not there yet, and registers it with all
 * communicators. */
enum hd_status nccl_reserve(struct hd_comm *comm, enum nccl_buffer buffer, int64_t size_bytes,
                            void **ret_base);
/* By the owner: registers with a new communicator what is reserved. */
enum hd_status nccl_register_all(struct hd_comm *comm, struct nccl_communicator *communicator);
/* Without a watchdog: deregisters everything from communicators that are not aborted. */
void nccl_deregister_all(struct nccl_state *nccl);
/* When no communicator is left: releases the memory. */
void nccl_release_memory(struct nccl_state *nccl, const struct hd_comm_device *device);

/* ---- nccl_make.c ---- */

/* The communicators of the world and, if a mesh is given, of its groups. */
enum hd_status nccl_make_world(struct hd_comm *comm, const struct hd_mesh *mesh);

/* The communicator of a group with two or more members, created on first use. */
enum hd_status nccl_get_communicator(struct hd_comm_group *group, struct hd_nccl_comm **ret_comm);

/* ---- nccl_watch.c ---- */

/* Takes the lock; HD_ABORTED (and the lock not taken) when the communicators are aborted. */
enum hd_status nccl_lock_calls(struct nccl_state *nccl);
void nccl_unlock_calls(struct nccl_state *nccl);
/* Under the lock: the next call enqueues on the device and may block while its queue is full. */
void nccl_may_block(struct nccl_state *nccl);

/* The owner makes progress inside an enqueue: restarts the watchdog's deadline for it. */
void nccl_note_progress(struct nccl_state *nccl);

/* Whether the owner is blocked, so that an abort must not wait for the lock: it has been in the
 * same call for NCCL_BLOCKED_MS, and the device made no progress for as long. */
static inline bool nccl_is_blocked(const struct nccl_state *nccl, int64_t now_ms)
{
    const int64_t since_ms = atomic_load(&nccl->calling_since_ms);

    return since_ms && now_ms - since_ms >= NCCL_BLOCKED_MS &&
           now_ms - atomic_load(&nccl->moved_ms) >= NCCL_BLOCKED_MS;
}

/* NCCL has failed. When a peer dies, NCCL may notice it before the host endpoint, which knows the
 * rank: waits up to NCCL_CAUSE_MS for it. False: the failure is NCCL's own. */
bool nccl_hear_cause(const struct hd_comm *comm);

/* Any thread. Aborts all communicators of this rank: kernels on the device end, and nothing more is
 * enqueued. nccl_abort first reports the failure to all ranks. */
void nccl_abort_all(struct hd_comm *comm);
void nccl_abort(struct hd_comm *comm, enum hd_status st, const char *reason);

/* Under the lock, by the owner: counts the communicator in the next place of `communicators`, or
 * the maker, whose initialisation has begun. After an abort it is aborted at once. */
void nccl_add_communicator(struct nccl_state *nccl);
void nccl_add_maker(struct nccl_state *nccl);

enum hd_status nccl_start_watchdog(struct hd_comm *comm);
void nccl_stop_watchdog(struct nccl_state *nccl);

/* ---- nccl_move.c ---- */

enum hd_status nccl_collective_step(struct hd_comm_op *op, bool *moved);
enum hd_status nccl_pair_step(struct hd_comm_op *op, bool *moved);

#endif
