/* nccl_internal: shared by the files of the engine nccl.
 *
 *   nccl.c         open and close, failures
 *   nccl_limits.c  limits of blocks and channels, and the memory of connections
 *   nccl_make.c    creates communicators
 *   nccl_memory.c  memory that NCCL moves, and its registrations
 *   nccl_move.c    enqueues the NCCL calls and kernels of an operation
 *   nccl_watch.c   the watchdog and the listener; aborting
 *
 * Operations of all streams are enqueued with NCCL in launch order. So every rank enqueues them in
 * the same order, which NCCL requires of communicators that run concurrently.
 *
 * Used by: nccl*.c. */
#ifndef HD_COMM_NCCL_INTERNAL_H
#define HD_COMM_NCCL_INTERNAL_H

#include <pthread.h>

#include "comm/device_streams.h"
#include "comm/nccl.h"
#include "kernels/nccl.h"

enum {
    NCCL_SCRATCH_UNIT = 64 << 10, /* bytes; sizes of scratch buffers are multiples of it */
    NCCL_COMMS_MAX = HD_COMM_GROUPS_MAX + HD_GROUP_COUNT + 1,
    NCCL_LOOK_MS = 100,     /* milliseconds; period of the watchdog and of the listener */
    NCCL_BLOCKED_MS = 2500, /* milliseconds in one call after which the owner counts as blocked
                               (nccl_is_blocked) */
    NCCL_CAUSE_MS = 1000,   /* milliseconds that a failure of NCCL waits for the host endpoint to
                               name a dead peer (nccl_hear_cause) */
    NCCL_GRACE_MS = 2000,   /* milliseconds; added to the watchdog's deadline for calls of the
                               owner */
};

/* Memory that is registered with every communicator, if NCCL allocated it (hd_nccl_table.reserve).
 */
enum nccl_buffer { NCCL_STAGING, NCCL_REGISTERED, NCCL_BUFFERS };

/* A communicator and its members. */
struct nccl_communicator {
    struct hd_nccl_comm *comm;
    uint64_t direction; /* id of the only group that may use the communicator, that of a channel
                           (hd_comm_open_channel); 0: any group of these members */
    int size;
    int32_t *members;                             /* [size]; ranks of the members */
    struct hd_nccl_buffer *buffers[NCCL_BUFFERS]; /* [enum nccl_buffer]; NULL: none */
    _Atomic bool is_aborted;                      /* set once, by the thread that aborts the
                                                     communicator */
};

/* The transfer between this member of a group and one other member. */
struct nccl_part {
    const char *send;
    char *recv;
    int64_t send_bytes, recv_bytes;
};

/* The row counts and limits that each member of an all_to_all_v first sends to the others; [size]
 * of them, of nccl_bounds_bytes each. */
struct nccl_bounds {
    int64_t send_rows_max, recv_rows_max;
    int32_t send_counts[]; /* [size]; rows that the member sends to each other one */
};

static inline size_t nccl_bounds_bytes(int size)
{
    return sizeof(struct nccl_bounds) + ((size_t)size + 1) / 2 * 2 * sizeof(int32_t);
}

/* Returns the bytes of the scratch buffer that follows a stream's staging buffers: it holds the
 * struct nccl_bounds of all members, or for a barrier one byte of each. */
static inline size_t nccl_scratch_bytes(int world)
{
    const int rows = world < HD_COMM_ROW_MEMBERS_MAX ? world : (int)HD_COMM_ROW_MEMBERS_MAX;
    const size_t bounds = (size_t)rows * nccl_bounds_bytes(rows);
    const size_t bytes = bounds > (size_t)world ? bounds : (size_t)world;

    return (bytes + NCCL_SCRATCH_UNIT - 1) / NCCL_SCRATCH_UNIT * NCCL_SCRATCH_UNIT;
}

struct nccl_state {
    struct hd_comm *host;
    struct hd_comm_flight host_flight; /* flight record of `host` since this endpoint took over its
                                          former one */
    const struct hd_nccl_table *calls;
    char *staging; /* device memory: staging and scratch buffers of the streams, at the offsets that
                      nccl_streams_bytes gives */
    struct {
        void *base; /* device memory; NULL: none */
        int64_t size_bytes;
        bool registers; /* true: NCCL allocated this memory, so it is registered with every
                           communicator */
    } memory[NCCL_BUFFERS];
    int multiprocessors;  /* of the device */
    int64_t piece_bytes;  /* bytes of a piece of an ordered sum on the streams gather and reduce,
                             from the options */
    size_t scratch_bytes; /* nccl_scratch_bytes */
    /* second device stream per collective stream, which runs every other piece of a sum; opened on
     * first use */
    struct hd_stream *second[HD_COMM_COLLECTIVE_STREAMS];
    struct hd_event *forked, *joined; /* events that order a stream and its second one; recorded
                                         again for each use */
    struct nccl_part *parts;          /* [world]; transfers of the group of calls being enqueued */
    struct nccl_bounds *bounds;       /* row counts and limits of all members, on the host; grows to
                                         the largest group that needed it */
    size_t bounds_bytes;
    uint64_t last_enqueued; /* number of the operation enqueued last */
    bool grouping;          /* true: a group of NCCL calls is open (group_begin without its
                               group_end) */
    pthread_mutex_t lock;   /* held during every NCCL call, or group of calls */
    _Atomic bool aborted;   /* true: the communicators are being aborted; set without the lock */
    /* time (hd_clock_now_ms) since which the owner is in a call that may block while the device's
     * queue is full; 0: none */
    _Atomic int64_t calling_since_ms;
    /* time (hd_clock_now_ms) since which the owner is enqueuing an operation; its stream and number
     * are in the next two members; 0: none */
    _Atomic int64_t enqueue_since_ms;
    _Atomic int enqueue_stream;
    _Atomic uint64_t enqueue_launch;
    _Atomic int64_t moved_ms;       /* hd_clock_now_ms when the watchdog last saw the device make
                                       progress */
    _Atomic int64_t query_since_ms; /* time since which the watchdog waits for the driver; 0: it
                                       does not */
    struct hd_event *counts_ready;  /* completes when the row counts of an all_to_all_v have arrived
                                       on the host */
    /* [0]: communicator of the world; entries are only appended, under the lock */
    struct nccl_communicator communicators[NCCL_COMMS_MAX];
    _Atomic int communicator_count;
    struct nccl_communicator maker; /* temporary communicator from which the others are split
                                       (nccl_make.c); set while has_maker is true */
    _Atomic bool has_maker;         /* true: the maker exists; written under the lock */
    char *host_memory;              /* registered memory of `host`, which carries a unique id */
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

/* Returns the bytes of a piece of an ordered sum on a stream. piece_bytes: the value for the
 * streams gather and reduce. */
static inline int64_t nccl_piece_bytes(int64_t piece_bytes, int stream)
{
    const bool is_large = stream == HD_COMM_STREAM_GATHER || stream == HD_COMM_STREAM_REDUCE;

    return is_large ? piece_bytes : piece_bytes / HD_COMM_NCCL_SMALL_PIECE_PART;
}

/* Returns the bytes of the staging and scratch buffers of all streams before this one. */
static inline int64_t nccl_streams_bytes(int64_t piece_bytes, size_t scratch_bytes, int stream)
{
    int64_t bytes = 0;

    for (int s = 0; s < stream; s++)
        bytes += HD_COMM_NCCL_HALVES * nccl_piece_bytes(piece_bytes, s) + (int64_t)scratch_bytes;
    return bytes;
}

/* Returns the staging buffer that pieces `half`, `half` + 2, ... of an ordered sum use; half is 0
 * or 1. */
static inline char *nccl_stage(const struct hd_comm_op *op, int half)
{
    const struct nccl_state *nccl = nccl_of(op->group->comm);
    const int stream = (int)op->stream->name;

    return nccl->staging + nccl_streams_bytes(nccl->piece_bytes, nccl->scratch_bytes, stream) +
           half * nccl_piece_bytes(nccl->piece_bytes, stream);
}

/* Returns the scratch buffer of the operation's stream. */
static inline char *nccl_scratch(const struct hd_comm_op *op)
{
    return nccl_stage(op, HD_COMM_NCCL_HALVES);
}

/* ---- nccl.c ---- */

/* Returns HD_OK, or the failure that the host endpoint reports. */
enum hd_status nccl_failure(struct hd_comm *comm);
bool nccl_has_failed(const struct hd_comm *comm); /* for any thread */

/* Handles the result `st` of an NCCL call. Returns HD_OK if the call succeeded, otherwise the
 * failure of this endpoint; if a peer died first, that peer's failure. The owner calls this,
 * without the lock. `about` names the call in messages. */
enum hd_status nccl_end_call(struct hd_comm *comm, enum hd_status st, const char *about);

/* ---- nccl_memory.c ---- */

/* Allocates zeroed device memory as `buffer` (NCCL_STAGING or NCCL_REGISTERED), which must not be
 * reserved yet, and registers it with all communicators. */
enum hd_status nccl_reserve(struct hd_comm *comm, enum nccl_buffer buffer, int64_t size_bytes,
                            void **ret_base);
/* Registers all reserved memory with a new communicator. The owner calls this. */
enum hd_status nccl_register_all(struct hd_comm *comm, struct nccl_communicator *communicator);
/* Deregisters all memory from communicators that are not aborted. The watchdog must have stopped.
 */
void nccl_deregister_all(struct nccl_state *nccl);
/* Frees the staging buffers and the registered memory. All communicators must be destroyed
 * before. */
void nccl_release_memory(struct nccl_state *nccl, const struct hd_comm_device *device);

/* ---- nccl_make.c ---- */

/* Creates the communicators of the world and, if a mesh is given, of its groups. */
enum hd_status nccl_make_world(struct hd_comm *comm, const struct hd_mesh *mesh);

/* Returns the communicator of a group with two or more members; creates it on first use. */
enum hd_status nccl_get_communicator(struct hd_comm_group *group, struct hd_nccl_comm **ret_comm);

/* ---- nccl_watch.c ---- */

/* Takes the lock that is held during NCCL calls. Returns HD_ABORTED, without the lock, when the
 * communicators are aborted. */
enum hd_status nccl_lock_calls(struct nccl_state *nccl);
void nccl_unlock_calls(struct nccl_state *nccl);
/* Records in calling_since_ms that the next NCCL call enqueues on the device and may block while
 * the device's queue is full. The caller holds the lock. */
void nccl_may_block(struct nccl_state *nccl);

/* Restarts the watchdog's deadline of the operation that is being enqueued, because the thread that
 * owns the endpoint made progress. */
void nccl_note_progress(struct nccl_state *nccl);

/* Returns whether the thread that owns the endpoint is blocked, so that an abort must not wait for
 * the lock: the owner has been in one call for NCCL_BLOCKED_MS, and the device made no progress for
 * that long. */
static inline bool nccl_is_blocked(const struct nccl_state *nccl, int64_t now_ms)
{
    const int64_t since_ms = atomic_load(&nccl->calling_since_ms);

    return since_ms && now_ms - since_ms >= NCCL_BLOCKED_MS &&
           now_ms - atomic_load(&nccl->moved_ms) >= NCCL_BLOCKED_MS;
}

/* Waits, after a failure of NCCL, up to NCCL_CAUSE_MS for the host endpoint to name a dead peer,
 * because NCCL may notice the death first. Returns false if the failure is NCCL's own. */
bool nccl_hear_cause(const struct hd_comm *comm);

/* Aborts all communicators of this rank: kernels on the device end, and nothing more is enqueued.
 * nccl_abort first reports the failure to all ranks. Any thread may call these. */
void nccl_abort_all(struct hd_comm *comm);
void nccl_abort(struct hd_comm *comm, enum hd_status st, const char *reason);

/* Counts the communicator in the next entry of `communicators`, or the maker, once its
 * initialisation has begun. After an abort the communicator is aborted at once. The owner calls
 * this, with the lock. */
void nccl_add_communicator(struct nccl_state *nccl);
void nccl_add_maker(struct nccl_state *nccl);

enum hd_status nccl_start_watchdog(struct hd_comm *comm);
void nccl_stop_watchdog(struct nccl_state *nccl);

/* ---- nccl_move.c ---- */

enum hd_status nccl_collective_step(struct hd_comm_op *op, bool *moved);
enum hd_status nccl_pair_step(struct hd_comm_op *op, bool *moved);

#endif
