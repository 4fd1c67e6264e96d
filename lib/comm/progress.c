/* progress: how operations move and waits end, whatever the engine.
 *
 * Each stream steps the launch at its head and what may begin beside it. A wait steps until its
 * ticket is complete: it spins briefly, then sleeps until the engine rings the endpoint's bell, and
 * looks now and then whether whom it waits for has left or the deadline has passed. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/side.h"

enum { LAUNCHES_PER_STEP = 8 };
enum { WAITING_MAX = 192, STANDING_MAX = 288 }; /* bytes; together they fit a reason that travels */
enum { DEVICE_LOOK_US = 20 };
enum { SLEEP_SLICE_MS = 100, SPIN_LOOKS = 2000, SPIN_LOOKS_YIELDING = 50 };

/* ---- failing ---- */

/* The rank that an op waits for, -1 for none, and what that rank has not done. */
static int find_missing(struct hd_comm_op *op, const char **ret_what)
{
    const struct hd_comm_engine *engine = op->group->comm->engine;

    return op->way == HD_COMM_AMONG_ALL ? engine->collective_missing(op, ret_what)
                                        : engine->pair_missing(op, ret_what);
}

/* The operation that a device has to run next on a stream; NULL for none, and when its place in the
 * queue is another's by now. */
static struct hd_comm_op *find_on_device(const struct hd_comm_stream *stream)
{
    struct hd_comm *comm = stream->comm;
    const uint64_t ticket =
        comm->engine->stands_on_device ? hd_comm_side_standing(comm, stream->name) : 0;
    struct hd_comm_op *op;

    if (ticket == 0 || stream->launched >= ticket + HD_COMM_QUEUE_MAX)
        return NULL;
    op = hd_comm_op_at(stream, ticket - 1);
    return op->kind == HD_COMM_AFTER ? NULL : op;
}

/* An operation that is under way, one that waits for another rank if there is one; else NULL.
 * *ret_rank is that other rank, -1 when it waits for none, *ret_what what it has not done. */
static struct hd_comm_op *find_waiting(struct hd_comm *comm,
                                       const struct hd_comm_stream **ret_stream, int *ret_rank,
                                       const char **ret_what)
{
    struct hd_comm_op *begun = NULL;

    for (int s = 0; s < HD_COMM_STREAM_COUNT; s++) {
        const struct hd_comm_stream *stream = &comm->streams[s];
        struct hd_comm_op *on_device = find_on_device(stream);

        if (on_device) {
            const int rank = find_missing(on_device, ret_what);

            if (!begun || rank >= 0) {
                begun = on_device;
                *ret_stream = stream;
                *ret_rank = rank;
            }
            if (rank >= 0)
                return on_device;
            continue; /* what comes later stands behind it */
        }
        for (uint64_t i = stream->completed; i < stream->sealed; i++) {
            struct hd_comm_op *op = hd_comm_op_at(stream, i);
            int rank;

            if (op->kind == HD_COMM_AFTER || op->state == HD_COMM_QUEUED)
                break; /* what comes later has not begun */
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

/* "all_reduce #7 of group dp (1000 x f32, stream reduce): rank 2 has not entered"; "" for none. */
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

/* Who is behind, of the members of what this rank waits in; else what the rank that it waits for
 * did last; "" when it waits for none. */
static void describe_standing(struct hd_comm *comm, char *ret_text, size_t size_bytes)
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
    char here[WAITING_MAX], standing[STANDING_MAX], first[HD_ERR_MAX];

    describe_waiting(comm, here, sizeof here);
    describe_standing(comm, standing, sizeof standing);
    if (here[0]) {
        (void)snprintf(first, sizeof first, "%s", hd_err_message());
        if (strstr(first, standing)) /* "" too: whoever failed first has said it */
            standing[0] = '\0';
        st = hd_err(st, "%s (rank %d was in %s%s%s)", first, comm->rank, here,
                    standing[0] ? "; " : "", standing);
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
    return st ? st : hd_err(HD_ABORTED, "%s", text); /* another thread of this rank is reporting */
}

/* ---- the streams ---- */

static enum hd_status step_after(struct hd_comm_op *op, bool *moved)
{
    enum hd_status st = HD_OK;

    if (!hd_comm_has_ended(op->other, op->other_ticket))
        return HD_OK;
    if (op->stream->comm->side && op->other_ticket > 0)
        st = hd_comm_side_wait_on(op->other, op->other_ticket, hd_comm_side_stream(op));
    op->state = HD_COMM_COMPLETE;
    *moved = true;
    return st ? hd_comm_fail(op->stream->comm, st, "%s", hd_err_message()) : HD_OK;
}

static enum hd_status step_op(struct hd_comm_op *op, bool *moved)
{
    if (op->kind == HD_COMM_AFTER)
        return step_after(op, moved);
    switch (op->way) {
    case HD_COMM_TO_PEER:
        return op->group->comm->engine->send_step(op, moved);
    case HD_COMM_FROM_PEER:
        return op->group->comm->engine->recv_step(op, moved);
    default:
        return op->group->comm->engine->collective_step(op, moved);
    }
}

/* One step of every operation of the launch that begins at `place`. *ret_end is where the next one
 * begins, *ret_complete whether all have ended, *ret_blocking whether one of those that have not is
 * anything but a posted send. */
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
            blocking = blocking || op->way != HD_COMM_TO_PEER || op->state != HD_COMM_LEAVING;
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

/* Sends that are posted need nothing more from this rank, so what follows them may begin, or two
 * ranks that first send and then receive would wait for each other. Only sends and receives follow
 * so early, and no receive into memory that a posted send still offers. */
static bool may_overtake(const struct hd_comm_stream *stream, uint64_t place)
{
    bool last;

    do {
        const struct hd_comm_op *op = hd_comm_op_at(stream, place++);

        if (op->way == HD_COMM_AMONG_ALL)
            return false;
        for (uint64_t i = stream->completed; op->way == HD_COMM_FROM_PEER && i < place - 1; i++) {
            const struct hd_comm_op *before = hd_comm_op_at(stream, i);

            if (before->state != HD_COMM_COMPLETE && before->way == HD_COMM_TO_PEER &&
                before->launch < op->launch && overlap(before, op))
                return false;
        }
        last = op->last;
    } while (!last);
    return true;
}

/* The launch at the head, up to ticket `end`, is complete. */
static enum hd_status end_launch(struct hd_comm_stream *stream, uint64_t end)
{
    while (stream->completed < end) {
        if (stream->comm->side) {
            const enum hd_status st = hd_comm_side_note_end(stream, stream->completed + 1);

            if (st)
                return hd_comm_fail(stream->comm, st, "%s", hd_err_message());
        }
        stream->completed++;
    }
    return HD_OK;
}

/* Steps the launch at the head of the stream, and what may begin beside it. */
static enum hd_status step_stream(struct hd_comm_stream *stream, bool *moved)
{
    uint64_t place = stream->completed;

    /* when a launch ends, the next enters at once; few of them keep a poll short */
    for (int n = 0; n < LAUNCHES_PER_STEP && place < stream->sealed; n++) {
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

static enum hd_status progress(struct hd_comm *comm, bool *moved)
{
    enum hd_status st = comm->engine->failure(comm);

    for (int s = 0; s < HD_COMM_STREAM_COUNT && !st; s++)
        st = step_stream(&comm->streams[s], moved);
    return st;
}

enum hd_status hd_comm_poll_once(struct hd_comm *comm)
{
    bool moved = false;

    return progress(comm, &moved);
}

/* ---- waiting ---- */

void hd_comm_set_spin(struct hd_comm *comm, int ranks_here)
{
    cpu_set_t cpus;

    comm->yielding = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < ranks_here;
    comm->spin_max = comm->yielding ? SPIN_LOOKS_YIELDING : SPIN_LOOKS;
}

/* A peer that closed its endpoint will never do what an operation of ours waits for. */
static enum hd_status check_absent(struct hd_comm *comm)
{
    const struct hd_comm_stream *stream;
    const char *what;
    struct hd_comm_op *op;
    int rank, suspect;

    op = find_waiting(comm, &stream, &rank, &what);
    if (!op || rank < 0 || !comm->engine->has_left(comm, rank))
        return HD_OK;
    suspect = rank;
    op = find_waiting(comm, &stream, &rank, &what); /* it may have acted before it left */
    if (!op || rank != suspect)
        return HD_OK;
    return hd_comm_fail(comm, HD_ABORTED, "%s #%llu of group %s: rank %d %s and has left",
                        hd_comm_op_name(op), (unsigned long long)op->seq, op->group->name, rank,
                        what);
}

static enum hd_status fail_late(struct hd_comm *comm, int64_t waited_ms)
{
    char waiting[WAITING_MAX], standing[STANDING_MAX];

    describe_waiting(comm, waiting, sizeof waiting);
    describe_standing(comm, standing, sizeof standing);
    return hd_comm_fail(comm, HD_TIMEOUT, "nothing moved for %lld ms in %s%s%s",
                        (long long)waited_ms,
                        waiting[0] ? waiting : "an operation that waits for another stream",
                        standing[0] ? "; " : "", standing);
}

static void give_way(const struct hd_comm *comm)
{
    if (comm->yielding)
        (void)sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Says that this rank sleeps, looks once more, and sleeps until somebody rings or left_ms passed.
 */
static enum hd_status sleep_once(struct hd_comm_stream *stream, uint64_t ticket, int64_t left_ms,
                                 bool *moved)
{
    struct hd_comm *comm = stream->comm;
    struct hd_comm_bell *bell = comm->bell;
    const uint32_t rung = atomic_load(&bell->rung);
    enum hd_status st;

    atomic_store(&bell->asleep, 1);
    st = progress(comm, moved);
    if (!st && !*moved)
        st = check_absent(comm);
    if (!st && !*moved && !hd_comm_has_ended(stream, ticket))
        hd_comm_sleep(bell, rung, left_ms < SLEEP_SLICE_MS ? left_ms : SLEEP_SLICE_MS);
    atomic_store(&bell->asleep, 0);
    return st;
}

enum hd_status hd_comm_wait_for(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm *comm = stream->comm;
    int64_t still_since_ms = 0;
    int looks = 0; /* since something moved */

    for (;;) {
        bool moved = false;
        enum hd_status st = progress(comm, &moved);

        if (st || hd_comm_has_ended(stream, ticket))
            return st;
        if (!moved && looks >= comm->spin_max) {
            const int64_t still_ms = hd_clock_now_ms() - still_since_ms;

            if (still_ms >= comm->deadline_ms)
                return fail_late(comm, still_ms);
            st = sleep_once(stream, ticket, comm->deadline_ms - still_ms, &moved);
            if (st)
                return st;
        } else if (!moved) {
            if (looks++ == 0)
                still_since_ms = hd_clock_now_ms();
            give_way(comm);
        }
        if (moved)
            looks = 0;
    }
}

static enum hd_status fail_on_device(struct hd_comm_stream *stream,
                                     const struct hd_comm_side_clock *clock, int64_t still_ms)
{
    struct hd_comm *comm = stream->comm;
    char text[HD_COMM_REASON_MAX];

    hd_comm_describe_launch(comm, hd_comm_side_launch(comm->side, stream->name, clock->run + 1),
                            text, sizeof text);
    return hd_comm_fail(comm, HD_TIMEOUT, HD_COMM_LATE_FORMAT, comm->rank, (long long)still_ms,
                        clock->is_guess ? "or before " : "", text);
}

/* The device rings no bell: the host looks, often at first. Peers may need this rank meanwhile. */
enum hd_status hd_comm_wait_device(struct hd_comm_stream *stream, uint64_t ticket)
{
    struct hd_comm *comm = stream->comm;
    int64_t seen_ms = hd_clock_now_ms(), asked_ms = seen_ms;
    struct hd_comm_side_clock clock = {.run = comm->side->told[stream->name],
                                       .still_since_ms = seen_ms};

    for (int looks = 0;; looks++) {
        const int64_t now_ms = hd_clock_now_ms();
        bool done = false, moved = false;
        enum hd_status st = hd_comm_side_done(stream, ticket, &done);

        if (!st && !done && now_ms != seen_ms)
            st = hd_comm_side_look(comm, stream->name, &clock, now_ms);
        seen_ms = now_ms;
        if (st)
            return hd_comm_fail(comm, st, "%s", hd_err_message());
        if (done) {
            /* Whoever aborts says so first, and only then makes its kernels leave: done behind a
             * failure is not a result. */
            st = comm->engine->failure(comm);
            if (st)
                return st;
            hd_comm_side_tell(stream, ticket);
            return HD_OK;
        }
        st = progress(comm, &moved);
        if (!st && now_ms - asked_ms >= SLEEP_SLICE_MS) {
            asked_ms = now_ms;
            st = check_absent(comm);
        }
        if (st)
            return st;
        if (now_ms - clock.still_since_ms >= comm->deadline_ms)
            return fail_on_device(stream, &clock, now_ms - clock.still_since_ms);
        if (looks < comm->spin_max)
            give_way(comm);
        else
            (void)usleep(DEVICE_LOOK_US);
    }
}
