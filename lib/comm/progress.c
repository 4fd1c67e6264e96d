/* progress: executes steps of operations and waits for tickets, for every engine.
 *
 * Each stream steps the launch at its head and later launches that may overtake it. A wait steps
 * all streams until its ticket is complete: it spins briefly, then sleeps until the engine rings
 * the endpoint's doorbell. Every SLEEP_SLICE_MS it checks the deadline, and whether the awaited
 * peer has closed its endpoint. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/device_streams.h"

enum { LAUNCHES_PER_STEP = 8 };
enum { WAITING_MAX = 192, BLOCKER_MAX = 288 }; /* bytes; the sum must fit HD_COMM_REASON_MAX */
enum { DEVICE_LOOK_US = 20 };
enum { SLEEP_SLICE_MS = 100, SPIN_LOOKS = 2000, SPIN_LOOKS_YIELDING = 50 };
enum {
    ASK_WHOM_LOOKS = 16, /* polls without progress before a wait finds out which rank it waits
                            for */
    REPORT_MS = 50, /* milliseconds without progress after which a wait is reported (waits.c) */
};

/* ---- failing ---- */

/* Returns the rank that an operation waits for, -1: none; *ret_what says what that rank has not
 * done. */
static int find_missing(struct hd_comm_op *op, const char **ret_what)
{
    const struct hd_comm_engine *engine = op->group->comm->engine;

    return op->direction == HD_COMM_AMONG_ALL ? engine->collective_missing(op, ret_what)
                                              : engine->pair_missing(op, ret_what);
}

/* Returns the operation that the device has to run next on a stream; NULL: none, or its ring entry
 * was reused. */
static struct hd_comm_op *find_next_on_device(const struct hd_comm_stream *stream)
{
    struct hd_comm *comm = stream->comm;
    const uint64_t ticket =
        comm->engine->waits_on_device ? hd_comm_streams_next_ticket(comm, stream->name) : 0;
    struct hd_comm_op *op;

    if (ticket == 0 || stream->launched >= ticket + HD_COMM_QUEUE_MAX)
        return NULL;
    op = hd_comm_op_at(stream, ticket - 1);
    return op->kind == HD_COMM_AFTER ? NULL : op;
}

/* Returns an operation in progress, preferably one that waits for another rank; NULL: none.
 * *ret_rank: that rank, -1: none. *ret_what: what that rank has not done. */
static struct hd_comm_op *find_waiting(struct hd_comm *comm,
                                       const struct hd_comm_stream **ret_stream, int *ret_rank,
                                       const char **ret_what)
{
    struct hd_comm_op *begun = NULL;

    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        const struct hd_comm_stream *stream = &comm->streams[s];
        struct hd_comm_op *on_device = find_next_on_device(stream);

        if (on_device) {
            const int rank = find_missing(on_device, ret_what);

            if (!begun || rank >= 0) {
                begun = on_device;
                *ret_stream = stream;
                *ret_rank = rank;
            }
            if (rank >= 0)
                return on_device;
            continue; /* later operations of the stream wait for this one */
        }
        for (uint64_t i = stream->completed; i < stream->submitted; i++) {
            struct hd_comm_op *op = hd_comm_op_at(stream, i);
            int rank;

            if (op->kind == HD_COMM_AFTER || op->state == HD_COMM_QUEUED)
                break; /* later operations have not begun */
            if (op->state == HD_COMM_COMPLETE)
                continue;
            rank = find_missing(op, ret_what);
            if (begun && rank < 0)
                continue;
            begun = op;
            *ret_stream = stream;
            *ret_rank = rank;
            if (rank >= 0)
                return op;
        }
    }
    return begun;
}

/* Returns the operation that blocks a stream's next ticket; NULL: none has begun. *ret_rank: the
 * rank that this operation waits for, -1: none or unknown. Follows HD_COMM_AFTER to other streams,
 * and ignores the rest: the ranks that unrelated streams wait for may themselves wait for this
 * rank. */
static struct hd_comm_op *find_blocking(const struct hd_comm_stream *stream, int *ret_rank)
{
    struct hd_comm_op *first = NULL;
    const char *what;

    *ret_rank = -1;
    for (int hop = 0; hop < HD_COMM_STREAM_COUNT; hop++) {
        const struct hd_comm_stream *other = NULL;

        for (uint64_t i = stream->completed; i < stream->submitted && !other; i++) {
            struct hd_comm_op *op = hd_comm_op_at(stream, i);

            if (op->state == HD_COMM_COMPLETE)
                continue;
            if (op->kind == HD_COMM_AFTER) {
                other = first ? NULL : op->other;
                break;
            }
            if (op->state == HD_COMM_QUEUED)
                break; /* later operations have not begun */
            first = first ? first : op;
            *ret_rank = find_missing(op, &what);
            if (*ret_rank >= 0)
                return op;
        }
        if (!other)
            break;
        stream = other;
    }
    return first;
}

/* Writes "all_reduce #7 of group dp (1000 x f32, stream reduce): rank 2 has not entered"; "": no
 * operation is in progress. */
static void describe_waiting(struct hd_comm *comm, char *ret_text, size_t size_bytes)
{
    const struct hd_comm_stream *stream;
    const struct hd_comm_op *op;
    const char *what;
    int rank, n;

    ret_text[0] = '\0';
    op = find_waiting(comm, &stream, &rank, &what);
    if (!op)
        return;
    n = snprintf(ret_text, size_bytes, "%s #%llu of group %s (%lld x %s, stream %s)",
                 hd_comm_op_name(op), (unsigned long long)op->seq, op->group->name,
                 (long long)op->count, hd_dtype_name(op->dtype), hd_comm_stream_text(stream->name));
    if (rank >= 0 && n >= 0 && (size_t)n < size_bytes)
        (void)snprintf(ret_text + n, size_bytes - (size_t)n, ": rank %d %s", rank, what);
}

/* Writes which members are behind in the operation in which this rank waits; if none is, the last
 * operation of the rank that this rank waits for; "" if it waits for none. */
static void describe_blocker(struct hd_comm *comm, char *ret_text, size_t size_bytes)
{
    const struct hd_comm_stream *stream;
    const struct hd_comm_op *op;
    const char *what;
    int rank;

    ret_text[0] = '\0';
    op = find_waiting(comm, &stream, &rank, &what);
    if (!op || rank < 0)
        return;
    hd_comm_describe_behind(op->group, ret_text, size_bytes);
    if (!ret_text[0])
        comm->engine->latest(comm, rank, ret_text, size_bytes);
}

enum hd_status hd_comm_keep_failure(struct hd_comm *comm, enum hd_status st)
{
    char here[WAITING_MAX], blocker[BLOCKER_MAX], first[HD_ERR_MAX];

    describe_waiting(comm, here, sizeof here);
    describe_blocker(comm, blocker, sizeof blocker);
    if (here[0]) {
        (void)snprintf(first, sizeof first, "%s", hd_err_message());
        if (strstr(first, blocker)) /* the message of the rank that failed first already contains
                                       this description */
            blocker[0] = '\0';
        st = hd_err(st, "%s (rank %d was in %s%s%s)", first, comm->rank, here,
                    blocker[0] ? "; " : "", blocker);
    }
    hd_err_save(st, &comm->failure);
    return st;
}

enum hd_status hd_comm_fail(struct hd_comm *comm, enum hd_status st, const char *fmt, ...)
{
    char text[HD_COMM_REASON_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    comm->engine->abort(comm, st, text);
    st = comm->engine->failure(comm);
    return st ? st : hd_err(HD_ABORTED, "%s", text); /* no status yet: another thread is still
                                                        writing the failure */
}

/* ---- the streams ---- */

static enum hd_status step_after(struct hd_comm_op *op, bool *moved)
{
    enum hd_status st = HD_OK;

    if (!hd_comm_has_ended(op->other, op->other_ticket))
        return HD_OK;
    if (op->stream->comm->device_streams && op->other_ticket > 0)
        st = hd_comm_streams_wait_on(op->other, op->other_ticket, hd_comm_device_stream(op));
    op->state = HD_COMM_COMPLETE;
    *moved = true;
    return st ? hd_comm_fail(op->stream->comm, st, "%s", hd_err_message()) : HD_OK;
}

static enum hd_status step_op(struct hd_comm_op *op, bool *moved)
{
    if (op->kind == HD_COMM_AFTER)
        return step_after(op, moved);
    switch (op->direction) {
    case HD_COMM_TO_PEER:
        return op->group->comm->engine->send_step(op, moved);
    case HD_COMM_FROM_PEER:
        return op->group->comm->engine->recv_step(op, moved);
    default:
        return op->group->comm->engine->collective_step(op, moved);
    }
}

/* Makes one step of every operation of the launch that begins at ring index `place`. Sets *ret_end
 * to the ring index where the next launch begins, *ret_complete to whether all operations of the
 * launch are complete, and *ret_blocking to whether later launches must not start: some operation
 * of the launch is incomplete and is not a posted send. */
static enum hd_status step_launch(struct hd_comm_stream *stream, uint64_t place, bool *moved,
                                  uint64_t *ret_end, bool *ret_complete, bool *ret_blocking)
{
    bool complete = true, blocking = false, last;

    do {
        struct hd_comm_op *op = hd_comm_op_at(stream, place++);

        if (op->state != HD_COMM_COMPLETE) {
            const enum hd_status st = step_op(op, moved);

            if (st)
                return st;
        }
        if (op->state != HD_COMM_COMPLETE) {
            complete = false;
            blocking = blocking || op->direction != HD_COMM_TO_PEER || op->state != HD_COMM_LEAVING;
        }
        last = op->last;
    } while (!last);
    *ret_end = place;
    *ret_complete = complete;
    *ret_blocking = blocking;
    return HD_OK;
}

static bool overlap(const struct hd_comm_op *send, const struct hd_comm_op *recv)
{
    const uintptr_t s = (uintptr_t)send->send, r = (uintptr_t)recv->recv;

    return s < r + (uintptr_t)recv->count * hd_dtype_size(recv->dtype) &&
           r < s + (uintptr_t)send->count * hd_dtype_size(send->dtype);
}

/* Returns whether the launch at ring index `place` may start before earlier ones have completed. A
 * posted send needs nothing more from this rank, so later launches may begin before it completes;
 * otherwise two ranks that first send and then receive would deadlock. Only sends and receives may
 * overtake, but no receive into the buffer of a posted send. */
static bool may_overtake(const struct hd_comm_stream *stream, uint64_t place)
{
    bool last;

    do {
        const struct hd_comm_op *op = hd_comm_op_at(stream, place++);

        if (op->direction == HD_COMM_AMONG_ALL)
            return false;
        for (uint64_t i = stream->completed; op->direction == HD_COMM_FROM_PEER && i < place - 1;
             i++) {
            const struct hd_comm_op *before = hd_comm_op_at(stream, i);

            if (before->state != HD_COMM_COMPLETE && before->direction == HD_COMM_TO_PEER &&
                before->launch < op->launch && overlap(before, op))
                return false;
        }
        last = op->last;
    } while (!last);
    return true;
}

/* Counts the launch at the head of the stream, whose last ticket is `end`, as completed. */
static enum hd_status end_launch(struct hd_comm_stream *stream, uint64_t end)
{
    while (stream->completed < end) {
        if (stream->comm->device_streams) {
            const enum hd_status st = hd_comm_streams_note_end(stream, stream->completed + 1);

            if (st)
                return hd_comm_fail(stream->comm, st, "%s", hd_err_message());
        }
        stream->completed++;
    }
    return HD_OK;
}

/* Steps the launch at the head of the stream, and later ones that may overtake it. */
static enum hd_status step_stream(struct hd_comm_stream *stream, bool *moved)
{
    uint64_t place = stream->completed;

    /* when a launch completes, the next one starts in the same poll; the limit keeps a poll short
     */
    for (int n = 0; n < LAUNCHES_PER_STEP && place < stream->submitted; n++) {
        bool complete, blocking;
        enum hd_status st;
        uint64_t end;

        if (place > stream->completed && !may_overtake(stream, place))
            return HD_OK;
        st = step_launch(stream, place, moved, &end, &complete, &blocking);
        if (st || blocking)
            return st;
        if (complete && place == stream->completed) {
            st = end_launch(stream, end);
            if (st)
                return st;
        }
        place = end;
    }
    return HD_OK;
}

static enum hd_status progress_streams(struct hd_comm *comm, bool *moved)
{
    enum hd_status st = comm->engine->failure(comm);

    for (int s = 0; s < HD_COMM_STREAM_COUNT && !st; s++)
        st = step_stream(&comm->streams[s], moved);
    return st;
}

enum hd_status hd_comm_poll_once(struct hd_comm *comm)
{
    bool moved = false;

    return progress_streams(comm, &moved);
}

/* ---- waiting ---- */

void hd_comm_set_spin(struct hd_comm *comm, int ranks_here)
{
    cpu_set_t cpus;

    comm->yielding = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < ranks_here;
    comm->spin_max = comm->yielding ? SPIN_LOOKS_YIELDING : SPIN_LOOKS;
}

/* Returns HD_OK, or a failure if the peer that this rank waits for has closed its endpoint. */
static enum hd_status check_left(struct hd_comm *comm)
{
    const struct hd_comm_stream *stream;
    const char *what;
    struct hd_comm_op *op;
    int rank, suspect;

    op = find_waiting(comm, &stream, &rank, &what);
    if (!op || rank < 0 || !comm->engine->has_left(comm, rank))
        return HD_OK;
    suspect = rank;
    op = find_waiting(comm, &stream, &rank, &what); /* checks again, because the peer may have
                                                       entered the operation before it closed its
                                                       endpoint */
    if (!op || rank != suspect)
        return HD_OK;
    return hd_comm_fail(comm, HD_ABORTED, "%s #%llu of group %s: rank %d %s and has left",
                        hd_comm_op_name(op), (unsigned long long)op->seq, op->group->name, rank,
                        what);
}

static enum hd_status fail_deadline(struct hd_comm *comm, int64_t waited_ms)
{
    char waiting[WAITING_MAX], blocker[BLOCKER_MAX];

    describe_waiting(comm, waiting, sizeof waiting);
    describe_blocker(comm, blocker, sizeof blocker);
    return hd_comm_fail(comm, HD_TIMEOUT, "no progress for %lld ms in %s%s%s", (long long)waited_ms,
                        waiting[0] ? waiting : "an operation that waits for another stream",
                        blocker[0] ? "; " : "", blocker);
}

static void relax(const struct hd_comm *comm)
{
    if (comm->yielding)
        (void)sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sets `asleep` of the endpoint's doorbell, steps all streams once more, and sleeps until the
 * doorbell rings or left_ms have passed. */
static enum hd_status sleep_once(struct hd_comm_stream *stream, uint64_t ticket, int64_t left_ms,
                                 bool *moved)
{
    struct hd_comm *comm = stream->comm;
    struct hd_comm_doorbell *doorbell = comm->doorbell;
    const uint32_t rings = atomic_load(&doorbell->rings);
    enum hd_status st;

    atomic_store(&doorbell->asleep, 1);
    st = progress_streams(comm, moved);
    if (!st && !*moved)
        st = check_left(comm);
    if (!st && !*moved && !hd_comm_has_ended(stream, ticket))
        hd_comm_doorbell_sleep(doorbell, rings,
                               left_ms < SLEEP_SLICE_MS ? left_ms : SLEEP_SLICE_MS);
    atomic_store(&doorbell->asleep, 0);
    return st;
}

/* The state of one wait on the host: the time of the last progress, and the rank that is waited
 * for. */
struct still {
    int64_t since_ns;
    int looks; /* number of polls since the wait last made progress */
    int rank;  /* rank that is waited for; -1: unknown */
};

static void note_moved(struct hd_comm *comm, struct still *still)
{
    int64_t waited_ns;

    if (!still->looks)
        return;
    waited_ns = hd_clock_now_ns() - still->since_ns;
    comm->waited_ns += waited_ns;
    if (still->rank >= 0)
        comm->waited_for_ns[still->rank] += waited_ns;
    *still = (struct still){.rank = -1};
}

static void report_wait(struct hd_comm_stream *stream, struct still *still, int64_t still_ms)
{
    const struct hd_comm_op *op = find_blocking(stream, &still->rank);
    const int64_t now_ms = hd_clock_now_ms();

    if (op)
        hd_comm_wait_report(stream->comm, op->launch, still->rank, now_ms - still_ms, now_ms);
}

/* Waits until a ticket is complete for the host. After a failure the reported wait stays in the
 * wait slot: it names the rank that this rank waited for in vain. */
enum hd_status hd_comm_wait_for(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm *comm = stream->comm;
    struct still still = {.rank = -1};

    for (;;) {
        bool moved = false;
        enum hd_status st = progress_streams(comm, &moved);

        if (moved || st || hd_comm_has_ended(stream, ticket))
            note_moved(comm, &still);
        if (!st && hd_comm_has_ended(stream, ticket))
            hd_comm_wait_end(comm);
        if (st || hd_comm_has_ended(stream, ticket))
            return st;
        if (!moved && still.looks >= comm->spin_max) {
            const int64_t still_ms = (hd_clock_now_ns() - still.since_ns) / 1000000;

            if (still_ms >= REPORT_MS)
                report_wait(stream, &still, still_ms);
            if (still_ms >= comm->deadline_ms && !hd_comm_is_patient(comm))
                return fail_deadline(comm, still_ms);
            st = sleep_once(stream, ticket,
                            still_ms < comm->deadline_ms ? comm->deadline_ms - still_ms
                                                         : SLEEP_SLICE_MS,
                            &moved);
            if (st)
                return st;
            if (moved)
                note_moved(comm, &still);
        } else if (!moved) {
            if (still.looks++ == 0)
                still.since_ns = hd_clock_now_ns();
            if (still.looks == ASK_WHOM_LOOKS)
                (void)find_blocking(stream, &still.rank);
            relax(comm);
        }
    }
}

static enum hd_status fail_on_device(struct hd_comm_stream *stream,
                                     const struct hd_comm_stream_clock *clock, int64_t still_ms)
{
    struct hd_comm *comm = stream->comm;
    char text[HD_COMM_REASON_MAX];

    hd_comm_describe_launch(
        comm, hd_comm_streams_launch(comm->device_streams, stream->name, clock->run + 1), text,
        sizeof text);
    return hd_comm_fail(comm, HD_TIMEOUT, HD_COMM_LATE_FORMAT, comm->rank, (long long)still_ms,
                        clock->is_guess ? "or before " : "", text);
}

/* Waits until the device has run a ticket. A device cannot ring the doorbell, so this polls, and
 * also steps the streams that peers may need. */
enum hd_status hd_comm_wait_device(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm *comm = stream->comm;
    int64_t seen_ms = hd_clock_now_ms(), asked_ms = seen_ms;
    struct hd_comm_stream_clock clock = {.run = comm->device_streams->marked_run[stream->name],
                                         .still_since_ms = seen_ms};

    for (int looks = 0;; looks++) {
        const int64_t now_ms = hd_clock_now_ms();
        bool done = false, moved = false;
        enum hd_status st = hd_comm_streams_done(stream, ticket, &done);

        if (!st && !done && now_ms != seen_ms)
            st = hd_comm_streams_query(comm, stream->name, &clock, now_ms);
        seen_ms = now_ms;
        if (st)
            return hd_comm_fail(comm, st, "%s", hd_err_message());
        if (done) {
            /* An abort sets the failure before it ends the kernels, and ended kernels complete
             * events, too. So `done` is true completion only if there is no failure. */
            st = comm->engine->failure(comm);
            if (st)
                return st;
            hd_comm_streams_mark_run(stream, ticket);
            return HD_OK;
        }
        st = progress_streams(comm, &moved);
        if (!st && now_ms - asked_ms >= SLEEP_SLICE_MS) {
            asked_ms = now_ms;
            st = check_left(comm);
        }
        if (st)
            return st;
        if (now_ms - clock.still_since_ms >= comm->deadline_ms)
            return fail_on_device(stream, &clock, now_ms - clock.still_since_ms);
        if (looks < comm->spin_max)
            relax(comm);
        else
            (void)usleep(DEVICE_LOOK_US);
    }
}

bool hd_comm_done(const struct hd_comm_stream *stream, uint64_t ticket)
{
    bool done = true;

    if (!hd_comm_has_ended(stream, ticket))
        return false;
    if (!stream->comm->device_streams || ticket == 0)
        return true;
    return hd_comm_streams_done(stream, ticket, &done) == HD_OK && done &&
           !stream->comm->engine->has_failed(stream->comm); /* an abort completes events, too */
}
