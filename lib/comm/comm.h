/* comm: collectives between the ranks of a job. One table of operations; the engines shm (ranks of
 * one node, as processes or as threads), gloo (ranks on several nodes, gloo.h) and self (a world of
 * one) stand behind it.
 *
 * A `struct hd_comm` is one rank's endpoint. It owns three communication streams. A collective is
 * launched on a stream, for a group, and only enqueues: the operations of one stream run in the
 * order they were launched, streams run side by side. They progress inside launches, hd_comm_poll
 * and hd_comm_wait, and every wait progresses all streams of its rank; gloo has a thread that moves
 * bytes between sockets and memory, no engine has one that does more.
 *
 *     hd_comm_all_reduce(dp, reduce, &args);      // enqueues
 *     uint64_t done = hd_comm_record(reduce);     // everything launched on `reduce` so far
 *     ... compute, with hd_comm_poll(comm) between the operations ...
 *     st = hd_comm_wait(reduce, done);            // now the buffers may be read and reused
 *
 * Rules for callers:
 *  1. All ranks of a group launch the same operations on it in the same order. Different sizes or
 *     kinds at one place of that order give HD_INVALID on every rank, with both named.
 *  2. Buffers lie in the rank's comm-visible region (hd_comm_visible) and stay untouched from
 * launch to completion. An operation is complete on a stream only when no peer will read or write
 * this rank's buffers any more.
 *  3. Reductions are ordered sums: members are added in the group's order, in fp32 for f32, bf16
 *     and f16, in f64 for f64, modulo 2^n for integers, and rounded once. Results are the same bits
 *     on every rank, whatever the timing and however the work is cut. A maximum is NaN when any
 *     element is.
 *  4. The first failure sticks: every launch, poll and wait returns it from then on, with a story
 *     that names who failed first and in which operation. No rank waits for the dead: a wait ends
 *     when a rank is reported dead, when anybody aborts, or when nothing moved for the deadline.
 *
 * Used by: program (the runner), train, checkpoint, worker.   Uses: mesh, base.
 * Threads: one endpoint, its groups and its streams belong to one thread; many endpoints may live
 * in one process. hd_comm_abort alone may be called from any thread.
 */
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
struct hd_stream; /* kernels/kernels.h: a compute stream of a backend */

/* The engines: code, stable name (API: in messages), and the most ranks that one connects. What an
 * endpoint holds is sized by its world, so a limit is what has been thought through and tried.
 *
 *   self   a world of one
 *   shm    ranks of one node; each holds a descriptor of every other's memory
 *   local  ranks on one device: the kernel of a sum takes an address of each (HD_COMBINE_MAX)
 *   gloo   ranks on any nodes; each holds a socket to every other
 *   nccl   ranks on any nodes, a GPU each; its ordered sums are limited as those of local */
#define HD_COMM_ENGINE_LIST(X) \
    X(SELF, "self", 1)         \
    X(SHM, "shm", 256)         \
    X(LOCAL, "local", 64)      \
    X(GLOO, "gloo", 256)       \
    X(NCCL, "nccl", 64)

enum hd_comm_engine_kind {
#define X(code, name, ranks_max) HD_COMM_BY_##code,
    HD_COMM_ENGINE_LIST(X)
#undef X
        HD_COMM_ENGINE_COUNT
};

enum { /* HD_COMM_SHM_RANKS_MAX ... */
#define X(code, name, ranks_max) HD_COMM_##code##_RANKS_MAX = ranks_max,
       HD_COMM_ENGINE_LIST(X)
#undef X
           HD_COMM_RANKS_MAX = HD_COMM_GLOO_RANKS_MAX /* the most that any engine connects */
};

/* HD_INVALID, naming the engine and its limit, unless 0 <= rank < world <= limit. */
enum hd_status hd_comm_check_world(enum hd_comm_engine_kind engine, int rank, int world);

enum {
    HD_COMM_GROUPS_MAX = 64,     /* groups of one endpoint */
    HD_COMM_GROUP_NAME_MAX = 16, /* bytes of a group's name, with its closing NUL */
    HD_COMM_QUEUE_MAX = 1024,    /* operations in flight on one stream; a launch beyond it waits */
    HD_COMM_ALIGN = 64           /* reductions are cut at multiples of this; align buffers to it */
};

/* code, stable name (API: in messages, listings and counters) */
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

#define HD_COMM_STREAM_LIST(X) \
    X(GATHER, "gather")        \
    X(REDUCE, "reduce")        \
    X(PIPELINE, "pipeline")

enum hd_comm_stream_name {
#define X(code, name) HD_COMM_STREAM_##code,
    HD_COMM_STREAM_LIST(X)
#undef X
        HD_COMM_STREAM_COUNT
};

enum hd_comm_reduce { HD_COMM_SUM, HD_COMM_MAX };

const char *hd_comm_kind_name(enum hd_comm_kind kind);
const char *hd_comm_stream_text(enum hd_comm_stream_name name);

/* ---- endpoints ---- */

/* A world of one: visible memory is private, collectives copy. */
enum hd_status hd_comm_open_self(struct hd_comm **ret_comm);

/* Attaches rank `rank` of `world` to the shared memory that a supervisor made (shm_control.h). The
 * descriptors stay the caller's and may be closed after this. Waits for nobody. A thread attaches
 * just as a process does. deadline_ms: see hd_comm_set_deadline. */
enum hd_status hd_comm_open_shm(int control_fd, const int *rank_fds, int rank, int world,
                                int64_t deadline_ms, struct hd_comm **ret_comm);

/* Detaches. Operations still in flight count as a failure of this rank that its peers are told;
 * after a clean end a peer that waits for this rank fails at once and says that it left. */
void hd_comm_free(struct hd_comm *comm);

int hd_comm_rank(const struct hd_comm *comm);
int hd_comm_world(const struct hd_comm *comm);
const char *hd_comm_engine_name(const struct hd_comm *comm); /* "shm" */

/* A wait fails with HD_TIMEOUT when for this long no operation of this rank moved. > 0. */
void hd_comm_set_deadline(struct hd_comm *comm, int64_t deadline_ms);

/* Makes this rank's comm-visible region: size_bytes of zeroed memory at a page boundary, touched by
 * this thread, mapped by the peers of shm when they first need it. Once per endpoint (HD_CONFLICT
 * after that); lives until hd_comm_free. HD_NO_MEMORY when it cannot be backed. */
enum hd_status hd_comm_visible(struct hd_comm *comm, size_t size_bytes, void **ret_base);

/* ---- groups and streams ---- */

/* On shm a group's first collective maps what visible memory its members have by then; after it (a
 * barrier will do) operations on the group make no system call but to sleep and to wake. */

/* The group `name` of the given ranks, ascending, this rank among them. Asks nobody: every member
 * makes the same identity from (name, members). The same again gives the same group. It lives as
 * long as the endpoint. */
enum hd_status hd_comm_group(struct hd_comm *comm, const char *name, const int32_t *members,
                             int member_count, struct hd_comm_group **ret_group);

/* The group of the mesh that this rank belongs to. */
enum hd_status hd_comm_mesh_group(struct hd_comm *comm, const struct hd_mesh *mesh,
                                  enum hd_group_name name, struct hd_comm_group **ret_group);

int hd_comm_group_size(const struct hd_comm_group *group);
int hd_comm_group_index(const struct hd_comm_group *group); /* which member this rank is */
int hd_comm_group_member(const struct hd_comm_group *group, int index); /* its rank */
const char *hd_comm_group_text(const struct hd_comm_group *group);      /* its name */

struct hd_comm_stream *hd_comm_stream(struct hd_comm *comm, enum hd_comm_stream_name name);

/* ---- operations ----
 * `count` is in elements and may be 0. P is the size of the group, i a member's index in it. All
 * return quickly, HD_OK meaning "enqueued"; args are copied. (Quickly: they wait only when
 * HD_COMM_QUEUE_MAX operations are in flight on the stream.) Buffers of different members never
 * overlap; what one member's send and recv may share is said with each. */

struct hd_comm_all_reduce_args { /* recv = ordered sum over i of send_i, on every member */
    const void *send;            /* [count]; may be recv itself, else disjoint from it */
    void *recv;                  /* [count] */
    int64_t count;
    enum hd_dtype dtype;
    enum hd_comm_reduce reduce;
};

struct hd_comm_all_gather_args { /* recv[i] = send_i, on every member */
    const void *send;            /* [count]; may be this member's place in recv, else disjoint */
    void *recv;                  /* [P, count] */
    int64_t count;
    enum hd_dtype dtype;
};

struct hd_comm_reduce_scatter_args { /* recv = ordered sum over i of send_i[this member] */
    const void *send;                /* [P, count] */
    void *recv; /* [count]; may be this member's place in send, else disjoint */
    int64_t count;
    enum hd_dtype dtype;
    enum hd_comm_reduce reduce;
};

struct hd_comm_all_to_all_args { /* recv[i] = send_i[this member] */
    const void *send;            /* [P, count] */
    void *recv;                  /* [P, count], disjoint from send */
    int64_t count;
    enum hd_dtype dtype;
};

/* Rows whose number is known only when it runs: member i sends send_counts[j] rows to member j, in
 * the order of j; they arrive in the order of i. When any member would send more than send_rows_max
 * or receive more than recv_rows_max rows, no row moves, recv_counts become 0 and every member's
 * *overflow becomes 1 (it is never set to 0 here); where `overflow` is NULL the whole group fails
 * with HD_LIMIT and the bound's story instead. */
struct hd_comm_all_to_all_v_args {
    const void *send;           /* [send_rows_max, row_elems]; only the rows counted are read */
    void *recv;                 /* [recv_rows_max, row_elems]; disjoint from send */
    const int32_t *send_counts; /* [P], >= 0; read when the operation starts; any memory */
    int32_t *recv_counts;       /* [P], written; any memory; may be NULL */
    int32_t *overflow;          /* see above; any memory */
    int64_t send_rows_max, recv_rows_max;
    int64_t row_elems; /* the same on every member */
    enum hd_dtype dtype;
};

struct hd_comm_broadcast_args { /* buf = buf of member `root` */
    void *buf;                  /* [count] */
    int64_t count;
    enum hd_dtype dtype;
    int root; /* its index in the group */
};

/* One step of a ring: recv = send of member (i - 1) mod P, on every member i. */
struct hd_comm_shift_args {
    const void *send; /* [count]; untouched until complete, which is when the next has read it */
    void *recv;       /* [count], disjoint from send */
    int64_t count;
    enum hd_dtype dtype;
};

/* Sends and receives of one pair match in the order of their launch on the group. A send that is
 * not read yet holds up collectives that follow it on its stream, but neither sends nor receives
 * (unless one receives into its buffer): ranks that first send and then receive do not wait for
 * each other. */
struct hd_comm_send_args {
    const void *buf; /* [count]; untouched until complete, which is when the peer has read it */
    int64_t count;
    enum hd_dtype dtype;
    int peer; /* its index in the group */
};

struct hd_comm_recv_args {
    void *buf; /* [count] */
    int64_t count;
    enum hd_dtype dtype;
    int peer; /* its index in the group */
};

enum hd_status hd_comm_all_reduce(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                  const struct hd_comm_all_reduce_args *args);
enum hd_status hd_comm_all_gather(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                  const struct hd_comm_all_gather_args *args);
enum hd_status hd_comm_reduce_scatter(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                      const struct hd_comm_reduce_scatter_args *args);
enum hd_status hd_comm_all_to_all(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                  const struct hd_comm_all_to_all_args *args);
enum hd_status hd_comm_all_to_all_v(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                    const struct hd_comm_all_to_all_v_args *args);
enum hd_status hd_comm_broadcast(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                 const struct hd_comm_broadcast_args *args);
enum hd_status hd_comm_shift(struct hd_comm_group *group, struct hd_comm_stream *stream,
                             const struct hd_comm_shift_args *args);
enum hd_status hd_comm_send(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_send_args *args);
enum hd_status hd_comm_recv(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_recv_args *args);
enum hd_status hd_comm_barrier(struct hd_comm_group *group, struct hd_comm_stream *stream);

/* Sends and receives between begin and end are one launch: all of them progress together, so that
 * neighbours may exchange without an order between them. Nothing else may be launched in between,
 * and nothing starts before end. */
enum hd_status hd_comm_begin(struct hd_comm_stream *stream);
enum hd_status hd_comm_end(struct hd_comm_stream *stream);

/* ---- completion ---- */

/* A ticket for everything launched on the stream so far. */
uint64_t hd_comm_record(struct hd_comm_stream *stream);

/* What is launched on `stream` from now on starts only when `ticket` of `other` is complete. */
enum hd_status hd_comm_after(struct hd_comm_stream *stream, struct hd_comm_stream *other,
                             uint64_t ticket);

bool hd_comm_done(const struct hd_comm_stream *stream, uint64_t ticket); /* without progress */
/* Until the host may read the results, and change what was sent. */
enum hd_status hd_comm_wait(struct hd_comm_stream *stream, uint64_t ticket);
enum hd_status hd_comm_wait_all(struct hd_comm *comm); /* every stream, everything launched */

/* Order between communication and the compute streams of a backend (kernels/kernels.h), for callers
 * that know both. Where visible memory is a device's, launches of both run on behind the host, and
 * these two order them on the device. On the engines of host memory a compute launch has run when
 * it returns, and hd_comm_wait is all there is to wait for.
 *
 *     hd_comm_follow(reduce, compute);            // behind what computes the gradient
 *     hd_comm_all_reduce(dp, reduce, &args);
 *     uint64_t summed = hd_comm_record(reduce);
 *     ... launches that do not touch the gradient ...
 *     hd_comm_wait_on(reduce, summed, compute);   // before what uses the sum
 *
 * follow: what is launched on `stream` from now on starts only when what `compute` has so far is
 * done. wait_on: what is launched on `compute` from now on starts only when `ticket` is complete.
 * On a device the host waits in it at most until all members have launched, never for the device.
 */
enum hd_status hd_comm_follow(struct hd_comm_stream *stream, struct hd_stream *compute);
enum hd_status hd_comm_wait_on(struct hd_comm_stream *stream, uint64_t ticket,
                               struct hd_stream *compute);

/* One short step of every stream (128 KiB read by each operation that may move, tens of
 * microseconds as a rule); never blocks. */
enum hd_status hd_comm_poll(struct hd_comm *comm);

/* ---- failure ---- */

/* Makes every rank's launches, polls and waits fail from now on. The first reason of all ranks is
 * the one that everybody reports. Callable from any thread. */
void hd_comm_abort(struct hd_comm *comm, const char *reason);

/* Whether sums are left to the library of the engine: not in rank order, nor rounded once. */
bool hd_comm_sums_natively(const struct hd_comm *comm);

/* HD_OK, or the failure that sticks, its story set for this thread. */
enum hd_status hd_comm_failure(struct hd_comm *comm);

/* Adds this rank's flight record (flight.h) to a text, for its log. */
struct hd_text;
void hd_comm_flight_text(const struct hd_comm *comm, struct hd_text *text);

/* ---- counters ---- */

struct hd_comm_count {
    uint64_t calls;       /* operations completed */
    uint64_t moved_bytes; /* copied by this rank from or to another rank's memory; gloo: received */
};

/* With P members and n = count * bytes of an element, summed over the members of a group,
 * moved_bytes grows by (P-1) * n for a broadcast, 2(P-1) * n for an all_reduce (each element is
 * read from P-1 and written to P-1 peers), P(P-1) * n for all_gather, reduce_scatter and all_to_all
 * (n: per pair), n for a matched send and receive (on the receiver; on shm the receiver moves). */
void hd_comm_count_get(const struct hd_comm_group *group, enum hd_comm_kind kind,
                       struct hd_comm_count *ret_count);
void hd_comm_count_reset(struct hd_comm *comm); /* all groups and kinds of this endpoint */

/* Elements [*ret_begin, *ret_end) of `count` are member `index`'s share of a reduction cut for
 * `parts` members at multiples of HD_COMM_ALIGN bytes. */
void hd_comm_slice(int64_t count, enum hd_dtype dtype, int parts, int index, int64_t *ret_begin,
                   int64_t *ret_end);

#endif
