/* comm_internal: data structures and functions shared by comm.c, launch.c, progress.c and the
 * engines.
 *
 * An operation is a `struct hd_comm_op` in the ring of its stream. launch.c fills and submits it,
 * then the engine owns it until progress.c counts it as completed.
 *
 * Used by: lib/comm only. */
#ifndef HD_COMM_COMM_INTERNAL_H
#define HD_COMM_COMM_INTERNAL_H

#include <stdatomic.h>

#include "comm/comm.h"
#include "comm/flight.h"

enum { HD_COMM_REASON_MAX = 512 }; /* bytes of a failure reason sent to peers, including its NUL */

enum { HD_COMM_AFTER = HD_COMM_KIND_COUNT }; /* a kind of op that only waits for another stream */

enum hd_comm_state { /* values equal to those of enum hd_flight_state */
                     HD_COMM_QUEUED,
                     HD_COMM_ENTERED,
                     HD_COMM_MOVING,
                     HD_COMM_LEAVING,
                     HD_COMM_COMPLETE,
                     HD_COMM_STATES
};

/* The ranks of an operation: all of the group, or one peer to send to or receive from. A shift is
 * two operations, TO_PEER and FROM_PEER. */
enum hd_comm_direction { HD_COMM_AMONG_ALL, HD_COMM_TO_PEER, HD_COMM_FROM_PEER };

struct hd_comm_op {
    int kind; /* enum hd_comm_kind, or HD_COMM_AFTER; for messages and counters */
    enum hd_comm_direction direction;
    struct hd_comm_group *group;
    struct hd_comm_stream *stream;
    const char *send;
    char *recv;
    int64_t count; /* elements per member, as in hd_collective_args */
    enum hd_dtype dtype;
    enum hd_comm_reduce reduce;
    bool keep_fp32; /* reduce_scatter of bf16: recv is fp32 */
    int peer;       /* group index of a broadcast's root or of the peer; -1: none */
    unsigned
        uses; /* barrier that connects (hd_comm_connect): flags of hd_comm_use; 0: it does not */

    const int32_t *send_counts; /* all_to_all_v only */
    int32_t *recv_counts, *overflow;
    int64_t send_rows_max, recv_rows_max;

    const struct hd_comm_stream *other; /* HD_COMM_AFTER: the stream and ticket to wait for */
    uint64_t other_ticket;

    uint64_t launch; /* number of the operation on this rank, from 1 */
    uint64_t seq; /* number of the operation in the group (collectives) or pair (sends, receives),
                     from 1 */
    bool last;    /* true for the last operation of its launch; a group call (hd_comm_begin) has
                     several */

    /* members owned by the engine: */
    enum hd_comm_state state;
    int member;     /* number of members that this rank has already handled in the current state */
    int64_t cursor; /* bytes (copies) or elements (reductions) of the current transfer that are
                       done */
    void *slot;     /* shm: outbox slot of a send or receive; gloo: struct gloo_run of a collective,
                       message's ticket of a send or receive (to itself: the op of the send) */
};

/* The arguments of one member of a collective, which the other members compare with theirs. Plain
 * bytes, because engines share it in memory or send it. In an all_to_all_v its counts [group size]
 * follow. */
struct hd_comm_signature {
    int64_t count, send_rows_max, recv_rows_max;
    int32_t kind, dtype, reduce, keep_fp32, root;
};

struct hd_comm_stream {
    struct hd_comm *comm;
    enum hd_comm_stream_name name;
    struct hd_comm_op *ops; /* ring [HD_COMM_QUEUE_MAX]; the op of ticket t is at (t - 1) %
                               HD_COMM_QUEUE_MAX */
    uint64_t launched, submitted, completed; /* newest ticket launched, submitted and completed;
                                                completed <= submitted <= launched */
    bool in_group_call;                      /* true: a group call is open (hd_comm_begin without
                                                its hd_comm_end) */
};

struct hd_comm_group {
    struct hd_comm *comm;
    char name[HD_COMM_GROUP_NAME_MAX];
    uint64_t id; /* hash of name and members, never 0 */
    int size, index;
    bool is_channel; /* true: the group was opened by hd_comm_open_channel */
    uint64_t seq;    /* sequence number of the newest collective launched on this group */
    struct hd_comm_count counts[HD_COMM_KIND_COUNT];
    bool is_mapped; /* shm: true: the group's first collective has mapped the members' registered
                       memory */
    /* the following arrays have `size` elements, indexed by the member's index in the group */
    uint64_t *send_seq, *recv_seq;
    void **channels; /* shm: the members' channels in the control block */
    const void **in; /* shm, gloo: addresses of the members' inputs of the current reduction step */
    int32_t *members;
};

/* A futex that wakes one waiting thread, possibly of another process. The waker first makes its
 * change, then rings. The waiter reads `rings`, sets `asleep`, checks for the change once more, and
 * sleeps only while `rings` is unchanged. All accesses are sequentially consistent, so no change is
 * missed. */
struct hd_comm_doorbell {
    _Atomic uint32_t rings; /* futex word: number of rings so far */
    _Atomic uint32_t asleep;
};

/* The flight record of one operation. Readers may read it while it is written: the writer sets
 * `launch` to 0 first and to the operation's number last. `state` contains the number, too, because
 * other threads (watchdogs) set it. */
struct hd_comm_flight_slot {
    _Atomic uint64_t launch; /* number of the operation on its rank; 0: the record is empty or being
                                written */
    _Atomic uint64_t seq, bytes;
    _Atomic int64_t since_ms;
    _Atomic uint64_t name[2]; /* name of the group, HD_COMM_GROUP_NAME_MAX bytes */
    _Atomic uint64_t state;   /* number and state of the operation: launch * HD_COMM_STATES + enum
                                 hd_comm_state */
    _Atomic uint32_t kind, stream;
    _Atomic int32_t peer;
};

/* The newest collective that a rank entered in each group, by the group's name. There is one
 * writer, which writes name[0] last; readers may read concurrently. */
struct hd_comm_entered {
    struct {
        _Atomic uint64_t name[2]; /* name of the group; name[0] 0: this and all later entries are
                                     free */
        _Atomic uint64_t seq;     /* sequence number of the newest collective that the rank entered
                                     in this group */
    } groups[HD_COMM_GROUPS_MAX + 1]; /* one entry more, for the world group of the engine nccl */
};

/* The flight recorder of a rank (flight.h). The engine provides its memory. */
struct hd_comm_flight {
    _Atomic uint64_t newest; /* number of the newest operation; 0: none */
    struct hd_comm_entered entered;
    struct hd_comm_flight_slot slots[HD_FLIGHT_MAX];
};

/* The rank for which this rank waits on the host, as published to its parent process. The engine
 * provides the memory, beside the flight record. This rank is the only writer, except of
 * `patient_until_ms`; it sets `launch` to 0 first and to its value last. */
struct hd_comm_wait_slot {
    _Atomic uint32_t reports; /* 1: this endpoint reports its waits; 0: it waits on a device, where
                                 waits are not visible */
    _Atomic int32_t peer;     /* rank; -1: unknown */
    _Atomic uint64_t launch;  /* number of the operation in which the rank waits; 0: it does not
                                 wait */
    _Atomic int64_t since_ms, seen_ms;
    _Atomic int64_t patient_until_ms; /* hd_clock_now_ms; written by the parent process: no wait on
                                         the host times out before this time */
};

/* The functions of an engine. Only entries that say so may be NULL. */
struct hd_comm_engine {
    enum hd_comm_engine_kind kind;
    bool waits_on_device; /* true: operations wait for peers on the device, after they are complete
                            for the host (nccl) */
    enum hd_status (*registered)(struct hd_comm *comm, size_t size_bytes, void **ret_base);
    enum hd_status (*group_open)(struct hd_comm_group *group);
    /* Executes one step of an operation; sets *moved to true when the operation made progress. */
    enum hd_status (*collective_step)(struct hd_comm_op *op, bool *moved);
    enum hd_status (*send_step)(struct hd_comm_op *op, bool *moved);
    enum hd_status (*recv_step)(struct hd_comm_op *op, bool *moved);
    /* Returns the rank that an op waits for, -1: none; *ret_what says what that rank has not done.
     */
    int (*collective_missing)(struct hd_comm_op *op, const char **ret_what);
    int (*pair_missing)(struct hd_comm_op *op, const char **ret_what);
    /* Returns the signature of a member that has entered the collective; the member may be this
     * rank. */
    const struct hd_comm_signature *(*signature)(const struct hd_comm_op *op, int member);
    /* Returns a member's counts of an all_to_all_v, [group size]. NULL entry: this engine compares
     * no signatures (nccl). */
    const int32_t *(*send_counts)(const struct hd_comm_op *op, int member);
    bool (*has_left)(const struct hd_comm *comm, int rank); /* returns whether the rank has closed
                                                               its endpoint */
    /* Writes to ret_text a description of the last operation of a rank, for messages. */
    void (*latest)(struct hd_comm *comm, int rank, char *ret_text, size_t size_bytes);
    /* Returns the number of collectives of the group that a member has entered, as far as this rank
     * can see. */
    uint64_t (*entered)(struct hd_comm_group *group, int member);
    /* Returns a rank's flight record. NULL entry: this rank cannot read flight records of other
     * ranks. */
    const struct hd_comm_flight *(*flight_of)(const struct hd_comm *comm, int rank);
    enum hd_status (*failure)(struct hd_comm *comm);
    /* has_failed and abort may be called from any thread */
    bool (*has_failed)(const struct hd_comm *comm);
    void (*abort)(struct hd_comm *comm, enum hd_status st, const char *reason);
    void (*close)(struct hd_comm *comm, bool clean); /* closes the endpoint and frees engine_state,
                                                        but not comm */
};

struct hd_comm {
    const struct hd_comm_engine *engine;
    void *engine_state;
    int rank, world;
    _Atomic int64_t deadline_ms; /* also read by the watchdog */
    char *registered;
    size_t registered_bytes;
    uint64_t launches;
    struct hd_comm_stream streams[HD_COMM_STREAM_COUNT];
    struct hd_comm_group *groups[HD_COMM_GROUPS_MAX];
    _Atomic int group_count; /* number of entries in `groups`; also read by the watchdog; groups are
                                never removed */
    struct hd_error failure; /* sticky failure of the endpoint; its status is HD_OK if there is
                                none */
    struct hd_comm_doorbell *doorbell; /* owned by the engine: rung when an operation may
                                          progress */
    struct hd_comm_device_streams *device_streams; /* device_streams.h; NULL: registered memory is
                                                      host memory */
    struct hd_comm_flight *flight;            /* flight record of this rank, owned by the engine */
    struct hd_comm_wait_slot *wait, own_wait; /* `wait` points to `own_wait`, or into shared
                                                      memory */
    void *shown;                              /* mapping of the status page that the parent process
                                                 reads (hd_comm_show_in); NULL: none */
    size_t shown_bytes;
    int64_t waited_ns;      /* time waited on the host for other ranks since hd_comm_take_waited */
    int64_t *waited_for_ns; /* [world]; the part of waited_ns spent waiting for each rank, as far as
                               this rank could tell which one it waited for */
    int spin_max;           /* number of polls without progress after which a wait sleeps */
    bool native_sums;       /* nccl: true: NCCL computes the sums */
    bool yielding; /* true: more ranks than processors, so spinning waiters call sched_yield */
};

/* Allocates an endpoint with empty streams. The engine sets the other members. */
enum hd_status hd_comm_new(const struct hd_comm_engine *engine, int rank, int world,
                           int64_t deadline_ms, struct hd_comm **ret_comm);
void hd_comm_delete(struct hd_comm *comm);

/* ---- doorbell.c: any thread ---- */

void hd_comm_doorbell_ring(
    struct hd_comm_doorbell *doorbell); /* wakes the thread that waits if it has set `asleep` */
void hd_comm_doorbell_wake(struct hd_comm_doorbell *doorbell); /* wakes the thread that waits, also
                                                                  if it is only about to sleep */
void hd_comm_doorbell_sleep(struct hd_comm_doorbell *doorbell, uint32_t rings, int64_t timeout_ms);

/* ---- progress.c ---- */

enum hd_status hd_comm_poll_once(struct hd_comm *comm);
/* hd_comm_wait_for waits until a ticket is complete for the host: on a device engine, enqueued.
 * hd_comm_wait_device waits until the device has run the ticket, too. */
enum hd_status hd_comm_wait_for(struct hd_comm_stream *stream, uint64_t ticket);
enum hd_status hd_comm_wait_device(struct hd_comm_stream *stream, uint64_t ticket);

/* Sets how long waits spin, from the number of spinning threads of all ranks on this node. */
void hd_comm_set_spin(struct hd_comm *comm, int ranks_here);

/* ---- waits.c ---- */

/* Publishes that this rank has waited in operation `launch` since since_ms. The caller repeats the
 * call while the wait lasts. */
void hd_comm_wait_report(struct hd_comm *comm, uint64_t launch, int peer, int64_t since_ms,
                         int64_t now_ms);
void hd_comm_wait_end(struct hd_comm *comm);
/* Returns whether the parent process has suspended the deadlines of waits now
 * (hd_shm_control_be_patient). */
bool hd_comm_is_patient(const struct hd_comm *comm);
/* Copies the wait that a rank has published in its wait slot to *ret_wait, with the operation's
 * record from `flight`. Any process may call this. */
void hd_comm_wait_read(const struct hd_comm_wait_slot *slot, const struct hd_comm_flight *flight,
                       struct hd_flight_wait *ret_wait);

/* ---- describe.c: any thread ---- */

/* format of the message about a device without progress; arguments: rank, milliseconds, "" or "or
 * before " (if the operation is a guess), text of hd_comm_describe_launch */
#define HD_COMM_LATE_FORMAT "the device of rank %d has run nothing for %lld ms; it is in %s%s"

/* Describes operation number `launch`: "all_reduce #7 of group dp (4 KiB), moving on stream reduce;
 * rank 2 is behind: ..". Gives less detail when newer operations have overwritten its flight
 * record. */
void hd_comm_describe_launch(struct hd_comm *comm, uint64_t launch, char *ret_text,
                             size_t size_bytes);

/* Reports a failure of this rank to all ranks. Returns the first failure of the job, which may be a
 * different one. */
enum hd_status hd_comm_fail(struct hd_comm *comm, enum hd_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds to the error message the operation that this rank is in, and makes that the sticky failure.
 */
enum hd_status hd_comm_keep_failure(struct hd_comm *comm, enum hd_status st);

/* ---- flight.c ---- */

void hd_comm_flight_launch(struct hd_comm_flight *flight, const struct hd_comm_op *op,
                           const struct hd_comm_stream *stream);
int hd_comm_flight_read(const struct hd_comm_flight *flight,
                        struct hd_flight_record ret_records[HD_FLIGHT_MAX]);

/* Marks an operation as complete: the device has run it. Any thread may call this. */
void hd_comm_flight_ended(struct hd_comm_flight *flight, uint64_t launch);

/* Returns the number of collectives of a group that the recorded rank has entered since it opened
 * its endpoint. */
uint64_t hd_comm_flight_entered(const struct hd_comm_flight *flight, const char *group);

/* hd_comm_note_entered saves the sequence number of the newest collective that a rank entered in a
 * group; hd_comm_find_entered returns it (0: none). `group`: name of the group, up to
 * HD_COMM_GROUP_NAME_MAX bytes. */
void hd_comm_note_entered(struct hd_comm_entered *entered, const char *group, uint64_t seq);
uint64_t hd_comm_find_entered(const struct hd_comm_entered *entered, const char *group);

/* Sets the state of an operation, also in its flight record. On a device, COMPLETE is recorded as
 * MOVING until hd_comm_flight_ended. */
void hd_comm_set_state(struct hd_comm_op *op, enum hd_comm_state state);

/* Writes "rank 3 is behind: entered 41 operations of group dp, the others 43; the latest of rank 3
 * is ...", or "" when all members have entered an equal number. */
void hd_comm_describe_behind(struct hd_comm_group *group, char *ret_text, size_t size_bytes);

/* ---- signature.c ---- */

/* Sets *ret_signature to the arguments of an operation. ret_counts: [group size]; set to its
 * send_counts for an all_to_all_v whose counts are in host memory. HD_INVALID: a count is
 * negative. */
enum hd_status hd_comm_make_signature(const struct hd_comm_op *op,
                                      struct hd_comm_signature *ret_signature, int32_t *ret_counts);

/* Checks that all members launched equal operations; call it when all have entered. HD_INVALID,
 * naming both operations, if two differ. all_to_all_v: sets recv_counts; when a member exceeds its
 * maximum of rows, fails with HD_LIMIT if op->overflow is NULL; otherwise sets that flag and
 * *ret_exceeded, and the caller must not move any row. */
enum hd_status hd_comm_check_signatures(struct hd_comm_op *op, bool *ret_exceeded);

/* Return the rows of an all_to_all_v that `from` sends to, or that `to` receives from, the members
 * with an index below `before`. */
int64_t hd_comm_rows_sent(const struct hd_comm_op *op, int from, int before);
int64_t hd_comm_rows_received(const struct hd_comm_op *op, int to, int before);

/* ---- region.c ---- */

/* Maps zeroed memory and page-faults it in on this thread. fd: a memfd to map, -1: private memory.
 * HD_NO_MEMORY: not enough memory. The caller unmaps hd_comm_whole_pages(size_bytes). */
enum hd_status hd_comm_map_region(size_t size_bytes, int fd, void **ret_base);
size_t hd_comm_whole_pages(size_t size_bytes);

static inline struct hd_comm_op *hd_comm_op_at(const struct hd_comm_stream *stream, uint64_t place)
{
    return &stream->ops[place % HD_COMM_QUEUE_MAX];
}

/* Returns how many bytes of each member's input one step of a sum reads: an equal share of
 * all_bytes, rounded down to a multiple of HD_COMM_ALIGN, but at least HD_COMM_ALIGN. */
static inline int64_t hd_comm_step_bytes(int64_t all_bytes, int members)
{
    const int64_t each = all_bytes / members / HD_COMM_ALIGN * HD_COMM_ALIGN;

    return each ? each : HD_COMM_ALIGN;
}

/* Returns whether a ticket is complete for the host; a device may not have run it yet. */
static inline bool hd_comm_has_ended(const struct hd_comm_stream *stream, uint64_t ticket)
{
    return stream->completed >= ticket;
}

static inline bool hd_comm_is_of_a_pair(int kind)
{
    return kind == HD_COMM_SEND || kind == HD_COMM_RECV || kind == HD_COMM_SHIFT;
}

static inline bool hd_comm_reduces(int kind)
{
    return kind == HD_COMM_ALL_REDUCE || kind == HD_COMM_REDUCE_SCATTER;
}

static inline int hd_comm_peer_rank(const struct hd_comm_op *op) /* rank of the peer of a pair */
{
    return op->group->members[op->peer];
}

/* Returns the bytes of the op's `count` elements; for an all_to_all_v, the bytes of one row. */
static inline int64_t hd_comm_unit_bytes(const struct hd_comm_op *op)
{
    return op->count * (int64_t)hd_dtype_size(op->dtype);
}

/* Returns the bytes of one element of the op's recv. */
static inline int64_t hd_comm_result_size(const struct hd_comm_op *op)
{
    return (int64_t)hd_dtype_size(op->keep_fp32 ? HD_F32 : op->dtype);
}

static inline const char *hd_comm_op_name(const struct hd_comm_op *op)
{
    return op->kind == HD_COMM_AFTER ? "after" : hd_comm_kind_name((enum hd_comm_kind)op->kind);
}

#endif
