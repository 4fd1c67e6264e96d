/* comm_internal: what comm.c (the calls), launch.c (the queues, the checks) and the engines share.
 *
 * A launch becomes a `struct hd_comm_op` in the ring of its stream. launch.c fills it and seals it;
 * from then on the engine owns it until it counts it as completed.
 *
 * Used by: lib/comm alone.
 */
#ifndef HD_COMM_COMM_INTERNAL_H
#define HD_COMM_COMM_INTERNAL_H

#include <stdatomic.h>

#include "comm/comm.h"
#include "comm/flight.h"

enum { HD_COMM_REASON_MAX = 512 }; /* bytes of a reason that travels, with its closing NUL */

enum { HD_COMM_AFTER = HD_COMM_KIND_COUNT }; /* an op that only waits for another stream */

enum hd_comm_state { /* in step with enum hd_shm_flight_state */
                     HD_COMM_QUEUED,
                     HD_COMM_ENTERED,
                     HD_COMM_MOVING,
                     HD_COMM_LEAVING,
                     HD_COMM_COMPLETE,
                     HD_COMM_STATES
};

/* How an operation moves. A shift is two operations, one of each of the latter. */
enum hd_comm_way { HD_COMM_AMONG_ALL, HD_COMM_TO_PEER, HD_COMM_FROM_PEER };

struct hd_comm_op {
    int kind; /* enum hd_comm_kind or HD_COMM_AFTER: what it is called and counted as */
    enum hd_comm_way way;
    struct hd_comm_group *group;
    struct hd_comm_stream *stream;
    const char *send;
    char *recv;
    int64_t count; /* per member, as in the args of the kind; all_to_all_v: row_elems */
    enum hd_dtype dtype;
    enum hd_comm_reduce reduce;
    int peer; /* root of a broadcast, peer of HD_COMM_TO_PEER and FROM_PEER, as group index; else -1
               */

    const int32_t *send_counts; /* all_to_all_v */
    int32_t *recv_counts, *overflow;
    int64_t send_rows_max, recv_rows_max;

    const struct hd_comm_stream *other; /* HD_COMM_AFTER */
    uint64_t other_ticket;

    uint64_t launch, seq; /* counts this rank's launches; place in the order of group or pair */
    bool last;            /* closes its launch: a bundle of sends and receives has one such op */

    /* the engine's: */
    enum hd_comm_state state;
    int member;     /* pull: how many members are dealt with */
    int64_t cursor; /* bytes (pull) or elements (reduce) of the present part that are done */
    void *slot;     /* send: where it is posted */
};

/* What a member brings to an operation. Plain bytes: engines keep it where the other members can
 * see it, or send it to them; and for an all_to_all_v a copy of its counts, [size of the group]. */
struct hd_comm_offer {
    int64_t count, send_rows_max, recv_rows_max;
    int32_t kind, dtype, reduce, root;
};

struct hd_comm_stream {
    struct hd_comm *comm;
    enum hd_comm_stream_name name;
    struct hd_comm_op *ops; /* [HD_COMM_QUEUE_MAX], op of ticket t at (t - 1) % HD_COMM_QUEUE_MAX */
    uint64_t launched, sealed, completed; /* completed <= sealed <= launched */
    bool bundling;                        /* between hd_comm_begin and hd_comm_end */
};

struct hd_comm_group {
    struct hd_comm *comm;
    char name[HD_COMM_GROUP_NAME_MAX];
    uint64_t id; /* hash of name and members, never 0 */
    int size, index;
    uint64_t seq; /* collectives launched */
    struct hd_comm_count counts[HD_COMM_KIND_COUNT];
    bool met; /* the engine's: a collective has come together */
    /* by group index */
    uint64_t *send_seq, *recv_seq;
    void **channels; /* the engine's */
    const void **in; /* the engine's: inputs of the sum under way */
    int32_t *members;
};

/* Wakes one sleeper. Lives where the engine wants it, also in memory of several processes. A bell
 * is rung after the change it announces; a sleeper notes `rung`, says that it is asleep, looks once
 * more, and only then sleeps until `rung` differs. All of these are sequentially consistent, so a
 * change is either seen in that look or rings. */
struct hd_comm_bell {
    _Atomic uint32_t rung; /* a futex */
    _Atomic uint32_t asleep;
};

/* One launch on record. All atomic, because others may look while it is written; `launch` is
 * written first and last and tells whose the rest is, `state` also tells its own: another thread
 * moves it on, too. */
struct hd_comm_flight_slot {
    _Atomic uint64_t launch; /* 0: empty or being written */
    _Atomic uint64_t seq, bytes;
    _Atomic int64_t since_ms;
    _Atomic uint64_t name[2]; /* of the group, HD_COMM_GROUP_NAME_MAX bytes */
    _Atomic uint64_t state;   /* launch * HD_COMM_STATES + enum hd_comm_state */
    _Atomic uint32_t kind, stream;
    _Atomic int32_t peer;
};

/* How far a rank has come in each group, however long ago. A rank's groups differ in their names.
 * One writer; written so that others may look meanwhile: the name's first word comes last. */
struct hd_comm_entered {
    struct {
        _Atomic uint64_t name[2]; /* of the group, as in a slot; 0: free, and so are all behind */
        _Atomic uint64_t seq;     /* of the collective that was entered last */
    } groups[HD_COMM_GROUPS_MAX + 1]; /* nccl: one for the world beside the caller's */
};

/* The flight recorder of a rank (flight.h). Lives where the engine wants it, as a bell does. */
struct hd_comm_flight {
    _Atomic uint64_t newest; /* the launch that was noted last; 0: none */
    struct hd_comm_entered entered;
    struct hd_comm_flight_slot slots[HD_FLIGHT_MAX];
};

/* What an engine is. Every slot is filled that does not say otherwise. */
struct hd_comm_engine {
    enum hd_comm_engine_kind kind;
    bool stands_on_device; /* an operation that is complete for the host waits for peers there */
    enum hd_status (*visible)(struct hd_comm *comm, size_t size_bytes, void **ret_base);
    enum hd_status (*group_open)(struct hd_comm_group *group);
    /* One step of an operation; *moved becomes true when anything changed. */
    enum hd_status (*collective_step)(struct hd_comm_op *op, bool *moved);
    enum hd_status (*send_step)(struct hd_comm_op *op, bool *moved);
    enum hd_status (*recv_step)(struct hd_comm_op *op, bool *moved);
    /* the rank that an op waits for, -1 for none, and what that rank has not done */
    int (*collective_missing)(struct hd_comm_op *op, const char **ret_what);
    int (*pair_missing)(struct hd_comm_op *op, const char **ret_what);
    /* of a member that has entered the collective, this rank's own included */
    const struct hd_comm_offer *(*offer)(const struct hd_comm_op *op, int member);
    /* of an all_to_all_v, [size of the group]; NULL: members do not compare what they bring */
    const int32_t *(*send_counts)(const struct hd_comm_op *op, int member);
    bool (*has_left)(const struct hd_comm *comm, int rank); /* it will never do anything again */
    void (*latest)(struct hd_comm *comm, int rank, char *ret_text, size_t size_bytes);
    /* collectives of the group that a member has entered, as far as this rank can know */
    uint64_t (*entered)(struct hd_comm_group *group, int member);
    /* NULL: the flight record of another rank cannot be seen from here */
    const struct hd_comm_flight *(*flight_of)(const struct hd_comm *comm, int rank);
    enum hd_status (*failure)(struct hd_comm *comm);
    bool (*has_failed)(const struct hd_comm *comm);                             /* any thread */
    void (*abort)(struct hd_comm *comm, enum hd_status st, const char *reason); /* any thread */
    void (*close)(struct hd_comm *comm, bool clean); /* frees the engine's part, not comm */
};

struct hd_comm {
    const struct hd_comm_engine *engine;
    void *engine_state;
    int rank, world;
    _Atomic int64_t deadline_ms; /* a watchdog looks at it */
    char *visible;
    size_t visible_bytes;
    uint64_t launches;
    struct hd_comm_stream streams[HD_COMM_STREAM_COUNT];
    struct hd_comm_group *groups[HD_COMM_GROUPS_MAX];
    _Atomic int group_count;       /* a watchdog looks at groups, too; they stay as they are */
    struct hd_error failure;       /* status HD_OK while nothing failed */
    struct hd_comm_bell *bell;     /* the engine's: rung when an operation of this rank may move */
    struct hd_comm_side *side;     /* side.h: visible memory is a device's; NULL: the host's */
    struct hd_comm_flight *flight; /* the engine's: what this rank launched */
    int spin_max;                  /* looks before a waiter sleeps */
    bool native_sums;              /* nccl: see hd_comm_sums_natively */
    bool yielding;                 /* more ranks than processors: a spinning waiter gives way */
};

/* Allocates an endpoint with empty streams. The engine fills in the rest. */
enum hd_status hd_comm_new(const struct hd_comm_engine *engine, int rank, int world,
                           int64_t deadline_ms, struct hd_comm **ret_comm);
void hd_comm_delete(struct hd_comm *comm);

/* ---- bell.c: any thread ---- */

void hd_comm_ring(struct hd_comm_bell *bell); /* wakes the sleeper if there is one */
void hd_comm_wake(struct hd_comm_bell *bell); /* also one that is about to sleep */
void hd_comm_sleep(struct hd_comm_bell *bell, uint32_t rung, int64_t timeout_ms);

/* ---- progress.c ---- */

enum hd_status hd_comm_poll_once(struct hd_comm *comm);
/* Until a ticket has ended for the host; and until the device has run it, too. */
enum hd_status hd_comm_wait_for(struct hd_comm_stream *stream, uint64_t ticket);
enum hd_status hd_comm_wait_device(struct hd_comm_stream *stream, uint64_t ticket);

/* How eagerly waits of this endpoint spin, with so many ranks on this node. */
void hd_comm_set_spin(struct hd_comm *comm, int ranks_here);

/* ---- standing.c: what a device has not run; any thread ---- */

/* rank, ms, "" or "or before ", what hd_comm_describe_launch says */
#define HD_COMM_LATE_FORMAT "the device of rank %d has run nothing for %lld ms; it is in %s%s"

/* "all_reduce #7 of group dp (4 KiB), moving on stream reduce; rank 2 is behind: ..": an operation
 * by its launch, as far as the flight record still has it. */
void hd_comm_describe_launch(struct hd_comm *comm, uint64_t launch, char *ret_text,
                             size_t size_bytes);

/* Records that this rank failed, tells everybody, returns the failure that counts. */
enum hd_status hd_comm_fail(struct hd_comm *comm, enum hd_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Makes this thread's story, with where this rank was, the failure that sticks. */
enum hd_status hd_comm_keep_failure(struct hd_comm *comm, enum hd_status st);

/* ---- flight.c ---- */

void hd_comm_flight_launch(struct hd_comm_flight *flight, const struct hd_comm_op *op,
                           const struct hd_comm_stream *stream);
int hd_comm_flight_read(const struct hd_comm_flight *flight,
                        struct hd_flight_record ret_records[HD_FLIGHT_MAX]);

/* What a device had to run of a launch has run. Any thread. */
void hd_comm_flight_ended(struct hd_comm_flight *flight, uint64_t launch);

/* Collectives of a group that the rank of the record has entered, ever. */
uint64_t hd_comm_flight_entered(const struct hd_comm_flight *flight, const char *group);

/* The same of a peer whose record lies elsewhere: what it says is noted here. `group` has the room
 * of a name. */
void hd_comm_note_entered(struct hd_comm_entered *entered, const char *group, uint64_t seq);
uint64_t hd_comm_find_entered(const struct hd_comm_entered *entered, const char *group);

/* Moves an op on, also in its flight record; there it is complete when a device has run it, too. */
void hd_comm_set_state(struct hd_comm_op *op, enum hd_comm_state state);

/* "rank 3 is behind: entered 41 operations of group dp, the others 43; the latest of rank 3 is ..."
 * "" when no member is. */
void hd_comm_describe_behind(struct hd_comm_group *group, char *ret_text, size_t size_bytes);

/* ---- meeting.c: what the members of a collective bring, and whether it goes together ---- */

/* ret_counts: [size of the group], written for an all_to_all_v whose counts the host sees.
 * HD_INVALID: one of them is negative. */
enum hd_status hd_comm_make_offer(const struct hd_comm_op *op, struct hd_comm_offer *ret_offer,
                                  int32_t *ret_counts);

/* All members have entered. HD_INVALID, with both named, when two brought different operations.
 * HD_LIMIT when rows of an all_to_all_v exceed a bound and the caller gave no overflow flag; with
 * one, the flag is raised and *ret_exceeded says that nothing is to move. Sets its recv_counts. */
enum hd_status hd_comm_meet(struct hd_comm_op *op, bool *ret_exceeded);

/* Rows of an all_to_all_v: that `from` sends to the members before `before`, that `to` receives
 * from them. */
int64_t hd_comm_rows_sent(const struct hd_comm_op *op, int from, int before);
int64_t hd_comm_rows_received(const struct hd_comm_op *op, int to, int before);

/* ---- region.c ---- */

/* Zeroed memory of whole pages, every page backed by this thread. fd: of a file to map, -1 for
 * private memory. HD_NO_MEMORY when it cannot be backed. Unmap hd_comm_whole_pages(size_bytes). */
enum hd_status hd_comm_map_region(size_t size_bytes, int fd, void **ret_base);
size_t hd_comm_whole_pages(size_t size_bytes);

static inline struct hd_comm_op *hd_comm_op_at(const struct hd_comm_stream *stream, uint64_t place)
{
    return &stream->ops[place % HD_COMM_QUEUE_MAX];
}

/* For the host; on a device it may still have to run. */
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

/* Of one member's share: `count` elements, or a row of an all_to_all_v. */
static inline int64_t hd_comm_unit_bytes(const struct hd_comm_op *op)
{
    return op->count * (int64_t)hd_dtype_size(op->dtype);
}

static inline const char *hd_comm_op_name(const struct hd_comm_op *op)
{
    return op->kind == HD_COMM_AFTER ? "after" : hd_comm_kind_name((enum hd_comm_kind)op->kind);
}

#endif
