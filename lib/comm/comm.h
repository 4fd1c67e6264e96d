/* comm: collectives and point-to-point messages between the ranks of a job. One API, implemented by
 * several engines (HD_COMM_ENGINE_LIST).
 *
 * A `struct hd_comm` is one rank's endpoint. It owns its communication streams. Launching an
 * operation on a stream only enqueues it. Operations of one stream run in launch order; streams run
 * concurrently. Host operations progress only inside launches, hd_comm_poll and hd_comm_wait; a
 * wait progresses all streams of its rank. The engine gloo has a thread that moves bytes between
 * sockets and memory; the engine nccl has two threads that watch for failures (nccl.h).
 *
 *     hd_comm_launch(dp, reduce, HD_COMM_ALL_REDUCE, &args);      // enqueues
 *     uint64_t done = hd_comm_record(reduce);     // everything launched on `reduce` so far
 *     ... compute, with hd_comm_poll(comm) between the operations ...
 *     st = hd_comm_wait(reduce, done);            // now the buffers may be read and reused
 *
 * Rules for callers:
 *  1. All ranks of a group launch the same operations on it in the same order. If kinds or sizes
 *     differ, every rank fails with HD_INVALID and a message that names both; on nccl, all hang
 *     until the deadline.
 *  2. Buffers lie in the rank's registered region (hd_comm_alloc_registered). The caller must not
 *     touch them from launch to completion. Completion means that no peer reads or writes them any
 *     more.
 *  3. Reductions are ordered: members are added in group order, in fp32 for f32, bf16 and f16, in
 *     f64 for f64, modulo 2^n for integers, and rounded once. Results are bitwise identical on
 *     every rank, for any timing and chunking. A maximum is NaN when any input element is NaN.
 *  4. The first failure is sticky: every later launch, poll and wait returns it, with a message
 *     that names the rank that failed first and the operation. A wait fails when a rank is reported
 *     dead, when any rank aborts, or when no operation of this rank progressed for the deadline.
 *
 * Used by: program (the runner), train, checkpoint, worker.   Uses: mesh, base.
 * Threads: an endpoint, its groups and its streams belong to one thread; a process may have several
 * endpoints. Only hd_comm_abort may be called from any thread. */
#ifndef HD_COMM_COMM_H
#define HD_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "mesh/mesh.h"

struct hd_comm;
struct hd_comm_group;
struct hd_comm_stream;
struct hd_stream; /* a compute stream of a backend (kernels/kernels.h) */

/* The engines: code, stable name (part of the API: it appears in messages), and the maximum world
 * size. An endpoint allocates per rank of its world; the limits of gloo and nccl are the number of
 * ranks whose endpoint infos the rendezvous can carry.
 *
 *   self   a world of one
 *   shm    ranks of one node; each holds a descriptor of every other rank's memory
 *   local  ranks on one device; the reduction kernel takes one address per rank (HD_COMBINE_MAX)
 *   gloo   ranks on any nodes; each holds a socket to every other rank
 *   nccl   ranks on any nodes, one GPU each */
#define HD_COMM_ENGINE_LIST(X) \
    X(SELF, "self", 1)         \
    X(SHM, "shm", 256)         \
    X(LOCAL, "local", 64)      \
    X(GLOO, "gloo", 4096)      \
    X(NCCL, "nccl", 4096)

enum hd_comm_engine_kind {
#define X(code, name, ranks_max) HD_COMM_BY_##code,
    HD_COMM_ENGINE_LIST(X)
#undef X
        HD_COMM_ENGINE_COUNT
};

enum { /* the maximum number of ranks of each engine: HD_COMM_SELF_RANKS_MAX, HD_COMM_SHM_RANKS_MAX,
          ... */
#define X(code, name, ranks_max) HD_COMM_##code##_RANKS_MAX = ranks_max,
       HD_COMM_ENGINE_LIST(X)
#undef X
           HD_COMM_RANKS_MAX = HD_COMM_GLOO_RANKS_MAX /* the largest world of any engine */
};

/* Checks that 0 <= rank < world <= the engine's limit. Returns HD_INVALID otherwise; the message
 * names the engine and its limit. */
enum hd_status hd_comm_check_world(enum hd_comm_engine_kind engine, int rank, int world);

enum {
    HD_COMM_GROUPS_MAX = 64,       /* most groups of one endpoint */
    HD_COMM_ROW_MEMBERS_MAX = 256, /* most members of a group that uses all_to_all_v */
    HD_COMM_GROUP_NAME_MAX = 16,   /* bytes of a group's name, including its NUL */
    HD_COMM_QUEUE_MAX = 1024,      /* operations in flight on one stream; a further launch waits
                                      until one of them ends */
    HD_COMM_ALIGN = 64 /* bytes; buffers should be aligned to it: reductions are split at multiples
                          of it */
};

/* The kinds of operations: code, stable name (part of the API: it appears in messages, listings and
 * counters). */
#define HD_COMM_KIND_LIST(X)            \
    X(ALL_REDUCE, "all_reduce")         \
    X(ALL_GATHER, "all_gather")         \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_TO_ALL, "all_to_all")         \
    X(ALL_TO_ALL_V, "all_to_all_v")     \
    X(BROADCAST, "broadcast")           \
    X(SHIFT, "shift")                   \
    X(SEND, "send")                     \
    X(RECV, "recv")                     \
    X(BARRIER, "barrier")

enum hd_comm_kind {
#define X(code, name) HD_COMM_##code,
    HD_COMM_KIND_LIST(X)
#undef X
        HD_COMM_KIND_COUNT
};

/* Here, and not in names.c, for programs that link no engine. */
static inline const char *hd_comm_kind_name(enum hd_comm_kind kind)
{
    static const char *const names[] = {
#define X(code, name) name,
        HD_COMM_KIND_LIST(X)
#undef X
    };

    return (unsigned)kind < HD_COMM_KIND_COUNT ? names[kind] : "unknown";
}

/* Streams of collectives. lib/program uses these names for the streams of its nodes, too. PREFETCH
 * carries gathers of weights ahead of the unit that needs them (ZeRO 3). */
#define HD_COMM_COLLECTIVE_STREAM_LIST(X) \
    X(GATHER, "gather")                   \
    X(REDUCE, "reduce")                   \
    X(PIPELINE, "pipeline")               \
    X(PREFETCH, "prefetch")

/* Streams of transfers between pipeline stages, which take only sends and receives. Each channel to
 * or from a neighbour has its own, so that no transfer waits for one of another channel. */
#define HD_COMM_TRANSFER_STREAM_LIST(X)                \
    X(SEND_NEXT, "send to next")                       \
    X(SEND_PREVIOUS, "send to previous")               \
    X(SEND_GRAD_NEXT, "send gradient to next")         \
    X(SEND_GRAD_PREVIOUS, "send gradient to previous") \
    X(RECEIVE_NEXT, "receive from next")               \
    X(RECEIVE_PREVIOUS, "receive from previous")       \
    X(RECEIVE_GRAD_NEXT, "receive gradient from next") \
    X(RECEIVE_GRAD_PREVIOUS, "receive gradient from previous")

#define HD_COMM_STREAM_LIST(X) HD_COMM_COLLECTIVE_STREAM_LIST(X) HD_COMM_TRANSFER_STREAM_LIST(X)

enum hd_comm_stream_name {
#define X(code, name) HD_COMM_STREAM_##code,
    HD_COMM_STREAM_LIST(X)
#undef X
        HD_COMM_STREAM_COUNT,
    /* number of collective streams, which are the first ones of HD_COMM_STREAM_LIST */
    HD_COMM_COLLECTIVE_STREAMS = HD_COMM_STREAM_SEND_NEXT
};

enum hd_comm_reduce { HD_COMM_SUM, HD_COMM_MAX };

const char *hd_comm_stream_text(enum hd_comm_stream_name name);

/* ---- endpoints ---- */

/* Opens the endpoint of a world of one rank: its registered memory is private to the process, and
 * its collectives copy from send to recv. */
enum hd_status hd_comm_open_self(struct hd_comm **ret_comm);

/* Attaches rank `rank` of `world` to the shared memory that a supervisor created (shm_control.h).
 * The caller owns the descriptors and may close them afterwards. Does not wait for other ranks. A
 * rank may be a thread or a process. deadline_ms: time without progress after which a wait fails
 * (hd_comm_set_deadline). */
enum hd_status hd_comm_open_shm(int control_fd, const int *rank_fds, int rank, int world,
                                int64_t deadline_ms, struct hd_comm **ret_comm);

/* Detaches and frees the endpoint; NULL is fine. If operations are still in flight, this rank
 * reports to all peers that it failed. After that a wait of a peer for this rank fails with
 * HD_ABORTED ("has left"). */
void hd_comm_free(struct hd_comm *comm);

const char *hd_comm_engine_name(const struct hd_comm *comm); /* name of its engine, such as "shm" */

/* Sets the time without progress of any operation of this rank after which a wait fails with
 * HD_TIMEOUT, > 0. */
void hd_comm_set_deadline(struct hd_comm *comm, int64_t deadline_ms);

/* Allocates this rank's registered region of size_bytes. Host engines: zeroed, page-aligned, and
 * page-faulted in by this thread; device engines: device memory. May be called once per endpoint
 * (HD_CONFLICT after that); hd_comm_free frees the region. HD_NO_MEMORY: not enough memory. */
enum hd_status hd_comm_alloc_registered(struct hd_comm *comm, size_t size_bytes, void **ret_base);
/* Hands out the registered region once more, to a new owner, and clears it as hd_comm_alloc_registered
 * does. No collective of any rank may use the region: call it on all ranks behind a barrier.
 * HD_INVALID: there is none, or it is smaller than size_bytes. */
enum hd_status hd_comm_reuse_registered(struct hd_comm *comm, size_t size_bytes, void **ret_base);
/* Returns whether the rank has registered memory. */
bool hd_comm_has_registered(const struct hd_comm *comm);

/* ---- groups and streams ---- */

/* On shm the first collective of a group (for example a barrier) maps the registered memory that
 * its members have allocated by then; later operations on the group make no system calls except the
 * futex calls of waiting. */

/* Opens the group `name` of the given ranks, which are ascending and include this rank. Needs no
 * communication: every member computes an equal id from (name, members). A second call with equal
 * name and members returns the existing group. The endpoint owns the group. */
enum hd_status hd_comm_open_group(struct hd_comm *comm, const char *name, const int32_t *members,
                                  int member_count, struct hd_comm_group **ret_group);

/* Opens a channel: a group of two ranks for transfers in one direction, from rank `from` to rank
 * `to`, named by both and by `what` (at most 4 bytes). On nccl a channel has its own communicator,
 * because operations of one communicator wait for each other; its first operation, on both ranks,
 * must be a collective, for example a barrier. */
enum hd_status hd_comm_open_channel(struct hd_comm *comm, const char *what, int32_t from,
                                    int32_t to, struct hd_comm_group **ret_group);

/* Opens this rank's group `name` of the mesh. */
enum hd_status hd_comm_mesh_group(struct hd_comm *comm, const struct hd_mesh *mesh,
                                  enum hd_group_name name, struct hd_comm_group **ret_group);

int hd_comm_group_size(const struct hd_comm_group *group);
int hd_comm_group_index(
    const struct hd_comm_group *group); /* index of this rank among the members */
int hd_comm_group_member(const struct hd_comm_group *group, int index); /* rank of a member */

struct hd_comm_stream *hd_comm_get_stream(struct hd_comm *comm, enum hd_comm_stream_name name);

/* ---- operations ----
 *
 * `count` is in elements and may be 0. P is the size of the group, i a member's index in it. HD_OK
 * means "enqueued"; args are copied. A launch waits only when HD_COMM_QUEUE_MAX operations are in
 * flight on the stream. Buffers of different members never overlap; each struct says whether send
 * and recv of one member may overlap. */

/* Arguments of a collective. A kind uses `send`, `recv`, `count` and `dtype`, and what names it. Shapes
 * and what may overlap:
 *
 *     all_reduce      recv = ordered sum over i of send_i, on every member; send [count] may be recv
 *                     [count] itself, otherwise they are disjoint
 *     all_gather      recv[i] = send_i, on every member; send [count] may be recv[this member] of recv
 *                     [P, count], otherwise they are disjoint
 *     reduce_scatter  recv = ordered sum over i of send_i[this member]; recv [count] may be send[this
 *                     member] of send [P, count], otherwise they are disjoint
 *     all_to_all      recv[i] = send_i[this member]; send and recv [P, count], disjoint
 *     broadcast       on every member, recv [count] becomes the recv of member `root`; no send
 *     shift           one step of a ring: on every member i, recv = send of member (i - 1) mod P;
 *                     [count], disjoint; send may be changed when the shift is complete: member i + 1
 *                     has read it
 *     all_to_all_v    an all-to-all of rows of `count` elements, equal on every member; send
 *                     [send_rows_max, count], of which only the counted rows are read, and recv
 *                     [recv_rows_max, count] are disjoint
 *
 * The counts of an all_to_all_v are read when the operation runs. Member i sends send_counts[j] rows to
 * member j; in `send` the rows are ordered by receiver j, in `recv` by sender i. Overflow: if any member
 * would send more than send_rows_max or receive more than recv_rows_max rows, no row moves, recv_counts
 * become 0, and every member's *overflow becomes 1 (a success never clears it); with `overflow` NULL the
 * whole group fails with HD_LIMIT. On the engines local and nccl counts and flag are in device memory. */
struct hd_collective_args {
    const void *send;
    void *recv;
    int64_t count;
    enum hd_dtype dtype;
    enum hd_comm_reduce reduce; /* all_reduce, reduce_scatter */
    /* reduce_scatter, only for sums of bf16: recv is fp32 and disjoint from send; the sum is not
     * rounded. Unsupported with NCCL's own sums (nccl.h, option `native`). */
    bool keep_fp32;
    int root; /* broadcast: index in the group of the member that sends */
    /* all_to_all_v; counts and flag may lie outside of registered memory */
    const int32_t *send_counts; /* [P] rows for each member, >= 0 */
    int32_t *recv_counts;       /* [P] rows received from each member; may be NULL */
    /* flag, set to 1 when a member exceeds its maximum of rows; may be NULL, but not on device streams
     * (engines local and nccl) */
    int32_t *overflow;
    int64_t send_rows_max, recv_rows_max;
};
/* The arguments as an expression: HD_COLLECTIVE(send, recv, count, HD_F32, .reduce = HD_COMM_MAX). */
#define HD_COLLECTIVE(from, to, elements, type, ...) \
    (&(struct hd_collective_args){                   \
        .send = (from), .recv = (to), .count = (elements), .dtype = (type), __VA_ARGS__})
/* Launches a collective. */
enum hd_status hd_comm_launch(struct hd_comm_group *group, struct hd_comm_stream *stream,
                              enum hd_comm_kind kind, const struct hd_collective_args *args);

/* Sends and receives between two ranks match in launch order on the group. A send that the peer has
 * not read yet delays later collectives on its stream, but not later sends and receives, except a
 * receive into its buffer. So two ranks that both send first and receive second do not deadlock
 * (except on nccl, where a send waits on the device for its receive). */
struct hd_comm_send_args {
    const void *buf; /* [count]; may be changed when the send is complete: the peer has read it */
    int64_t count;
    enum hd_dtype dtype;
    int peer; /* index of the receiver in the group */
};

struct hd_comm_recv_args {
    void *buf; /* [count] */
    int64_t count;
    enum hd_dtype dtype;
    int peer; /* index of the sender in the group */
};

enum hd_status hd_comm_send(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_send_args *args);
enum hd_status hd_comm_recv(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_recv_args *args);
enum hd_status hd_comm_barrier(struct hd_comm_group *group, struct hd_comm_stream *stream);

/* Kinds of operations that a group will run, as flags: they decide which connections it needs. */
enum hd_comm_use {
    HD_COMM_USE_GATHER = 1 << 0,   /* all_gather, broadcast and barrier */
    HD_COMM_USE_SUM = 1 << 1,      /* all_reduce and reduce_scatter */
    HD_COMM_USE_EXCHANGE = 1 << 2, /* all_to_all and all_to_all_v */
    HD_COMM_USE_SHIFT = 1 << 3,
    HD_COMM_USE_SEND = 1 << 4,   /* this rank sends, on a channel */
    HD_COMM_USE_RECEIVE = 1 << 5 /* this rank receives, on a channel */
};
/* Returns the flags of a kind of collective; 0 for sends and receives, which have a direction. */
unsigned hd_comm_use_of(enum hd_comm_kind kind);

/* Makes the connections that the group needs for `uses` (flags of hd_comm_use), so that no later
 * operation of these kinds makes one. A collective: every member calls it, with flags that agree
 * (the ends of a channel: one sends, one receives). On engines other than nccl it is a barrier. */
enum hd_status hd_comm_connect(struct hd_comm_group *group, struct hd_comm_stream *stream,
                               unsigned uses);

/* hd_comm_begin opens a group call and hd_comm_end closes it: the sends and receives launched on
 * the stream between the two calls are one launch, which starts at hd_comm_end and whose operations
 * progress together, in any order. No other operation may be launched on the stream in between. */
enum hd_status hd_comm_begin(struct hd_comm_stream *stream);
enum hd_status hd_comm_end(struct hd_comm_stream *stream);

/* ---- completion ---- */

/* Returns a ticket for everything launched on the stream so far. */
uint64_t hd_comm_record(struct hd_comm_stream *stream);

/* Makes later launches on `stream` wait until `ticket` of `other` is complete. */
enum hd_status hd_comm_after(struct hd_comm_stream *stream, struct hd_comm_stream *other,
                             uint64_t ticket);

bool hd_comm_done(const struct hd_comm_stream *stream, uint64_t ticket); /* steps no operation */
/* Waits until `ticket` is complete: the host may then read the results and change the sent buffers.
 */
enum hd_status hd_comm_wait(struct hd_comm_stream *stream, uint64_t ticket);
enum hd_status hd_comm_wait_all(struct hd_comm *comm); /* waits for everything launched on every
                                                          stream */

/* Order communication streams and a backend's compute streams (kernels/kernels.h). On device
 * engines both run asynchronously to the host, and these calls order them by device events. On host
 * engines a compute launch has run when it returns: follow does nothing, wait_on is hd_comm_wait.
 *
 *     hd_comm_follow(reduce, compute);            // after the kernels of the gradient
 *     hd_comm_launch(dp, reduce, HD_COMM_ALL_REDUCE, &args);
 *     uint64_t summed = hd_comm_record(reduce);
 *     ... launches that do not touch the gradient ...
 *     hd_comm_wait_on(reduce, summed, compute);   // before the kernels that use the sum
 *
 * follow: later launches on `stream` start only when the launches made on `compute` so far are
 * done. wait_on: later launches on `compute` start only when `ticket` is complete; on a device
 * engine the host waits at most until all members have launched, never for the device. */
enum hd_status hd_comm_follow(struct hd_comm_stream *stream, struct hd_stream *compute);
enum hd_status hd_comm_wait_on(struct hd_comm_stream *stream, uint64_t ticket,
                               struct hd_stream *compute);

/* Makes one short step of the operations in progress on every stream: each reads up to 128 KiB,
 * usually in tens of microseconds. Never blocks. */
enum hd_status hd_comm_poll(struct hd_comm *comm);

/* The time that this rank has waited on the host for other ranks since the last
 * hd_comm_take_waited, and the rank that it waited for longest (-1: none or unknown).
 * hd_comm_take_waited sets and resets both; it returns false if the engine waits for peers on the
 * device, where the time is not measured. */
struct hd_comm_waited {
    int64_t ns;
    int rank;
    int64_t rank_ns;
};
bool hd_comm_take_waited(struct hd_comm *comm, struct hd_comm_waited *ret_waited);

/* ---- failure ---- */

/* Makes all later launches, polls and waits of every rank fail with HD_ABORTED. All ranks report
 * the reason of the first failure in the job. Any thread may call this. */
void hd_comm_abort(struct hd_comm *comm, const char *reason);

/* Returns true if NCCL computes the sums of this endpoint (nccl.h, option `native`): they are then
 * not added in rank order and are rounded more than once. */
bool hd_comm_sums_natively(const struct hd_comm *comm);

/* Returns HD_OK, or the status of the endpoint's sticky failure, whose message becomes this
 * thread's error message. */
enum hd_status hd_comm_failure(struct hd_comm *comm);

/* Appends this rank's flight record (flight.h) to a text, for its log. */
struct hd_text;
void hd_comm_flight_text(const struct hd_comm *comm, struct hd_text *text);

/* ---- counters ---- */

struct hd_comm_count {
    uint64_t calls;       /* number of operations of this kind that are complete */
    uint64_t moved_bytes; /* bytes copied by this rank from or to another rank's memory; gloo: bytes
                             received */
};

/* Sets *ret_count to this rank's counters of one kind of operation on a group. Summed over the P
 * members, with n = count * bytes of an element, moved_bytes grows by (P-1) * n for a broadcast,
 * 2(P-1) * n for an all_reduce (each element is read from P-1 peers and written to P-1 peers),
 * P(P-1) * n for all_gather, reduce_scatter and all_to_all (n: per pair), and n for a send with its
 * receive (counted by the receiver). */
void hd_comm_count_get(const struct hd_comm_group *group, enum hd_comm_kind kind,
                       struct hd_comm_count *ret_count);
void hd_comm_count_reset(struct hd_comm *comm); /* clears all groups and kinds of this endpoint */

/* Sets the elements [*ret_begin, *ret_end) of `count` that member `index` sums in a reduction that
 * is split over `parts` members at multiples of HD_COMM_ALIGN bytes. */
void hd_comm_slice(int64_t count, enum hd_dtype dtype, int parts, int index, int64_t *ret_begin,
                   int64_t *ret_end);

#endif
