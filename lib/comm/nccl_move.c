/* nccl_move: enqueues operations on their device streams. Each operation is enqueued in one step,
 * in launch order; NCCL and the device do the rest.
 *
 * An ordered sum is split into pieces that fit a staging buffer. For each piece, every member sends
 * each other member the slice of its input that the other one sums (one group of NCCL calls); a
 * kernel adds the slices in group order; for an all-reduce the sums are sent to all members in
 * another group of calls. An all-reduce may be in place: a stream runs in order, so the inputs are
 * sent and this member's own slice is summed before any result arrives. In a group of more than
 * HD_COMBINE_MAX members the own slice is copied into the staging buffer between those of the
 * others, so that the kernel needs only one address.
 *
 * Pieces alternate between the operation's device stream and a second one. Each has its own staging
 * buffer, and the order of its stream protects that buffer. NCCL runs the groups of a communicator
 * in call order, whatever their streams. So the sums of a piece are sent after the slices of the
 * next piece:
 *
 *     stream    slices 0  add 0   .         sums 0   slices 2  add 2   ...
 *     second    .         slices 1          add 1    .         sums 1  ... */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl_internal.h"

enum { COUNTS_LOOK_US = 20 };

static const struct hd_device_table *device_of(const struct hd_comm_op *op)
{
    return hd_comm_streams_calls(op->stream->comm->device_streams);
}

static enum hd_status copy_on(const struct hd_comm_op *op, struct hd_stream *stream, char *to,
                              const char *from, int64_t bytes)
{
    return bytes == 0 || to == from ? HD_OK : device_of(op)->copy(stream, to, from, bytes);
}

static enum hd_status copy_by_nccl(const struct hd_comm_op *op, char *to, const char *from,
                                   int64_t bytes)
{
    return copy_on(op, hd_comm_device_stream(op), to, from, bytes);
}

/* ---- groups of sends and receives ---- */

/* Enqueues the transfers `parts` with all members as one group of NCCL calls; the entry of this
 * member itself is a copy. */
static enum hd_status exchange(struct hd_comm_op *op, struct hd_nccl_comm *comm,
                               struct hd_stream *stream, const struct nccl_part *parts)
{
    struct hd_comm_group *group = op->group;
    struct nccl_state *nccl = nccl_of(group->comm);
    enum hd_status st = copy_on(op, stream, parts[group->index].recv, parts[group->index].send,
                                parts[group->index].recv_bytes);
    enum hd_status end;

    if (!st)
        st = nccl_lock_calls(nccl);
    if (st)
        return st;
    st = nccl->calls->group_begin();
    if (st) {
        nccl_unlock_calls(nccl);
        return nccl_end_call(group->comm, st, hd_comm_op_name(op));
    }
    for (int m = 0; m < group->size && !st; m++) {
        if (m == group->index)
            continue;
        if (parts[m].send_bytes)
            st = nccl->calls->send(comm, stream, parts[m].send, parts[m].send_bytes, m);
        if (!st && parts[m].recv_bytes)
            st = nccl->calls->recv(comm, stream, parts[m].recv, parts[m].recv_bytes, m);
        group->counts[op->kind].moved_bytes += (uint64_t)parts[m].recv_bytes;
    }
    nccl_may_block(nccl);
    end = nccl->calls->group_end();
    nccl_unlock_calls(nccl);
    if (!st)
        st = end;
    return nccl_end_call(group->comm, st, hd_comm_op_name(op));
}

/* ---- sums ---- */

/* One piece of an ordered sum. */
struct piece {
    struct hd_comm_op *op;
    struct hd_nccl_comm *comm;
    struct hd_stream *stream; /* device stream on which the piece runs */
    char *stage;       /* staging buffer: the slices that peers send to this member, [group size] */
    int64_t at, count; /* first element and number of elements of the piece in recv; in an
                          all-reduce also in send */
};

static int64_t element_bytes(const struct piece *p)
{
    return (int64_t)hd_dtype_size(p->op->dtype);
}

/* Adds `count` elements of `own` and of the peers' slices in the staging buffer, in group order,
 * into `out`. */
static enum hd_status add_share(const struct piece *p, const char *own, char *out, int64_t count)
{
    const struct hd_comm_op *op = p->op;
    const int64_t bytes = count * element_bytes(p);
    struct hd_combine_args args = {.outs = 1,
                                   .ins = op->group->size,
                                   .count = count,
                                   .dtype = op->dtype,
                                   .max = op->reduce == HD_COMM_MAX,
                                   .keep_fp32 = op->keep_fp32};

    enum hd_status st = HD_OK;

    if (!count) /* an empty slice: fewer elements than members */
        return HD_OK;
    args.out[0] = out;
    if (op->group->size > HD_COMBINE_MAX) {
        args.in[0] = p->stage;
        args.in_stride_bytes = bytes;
        st = copy_on(op, p->stream, p->stage + op->group->index * bytes, own, bytes);
    } else {
        for (int m = 0; m < op->group->size; m++)
            args.in[m] = m == op->group->index ? own : p->stage + m * bytes;
    }
    return st ? st : device_of(op)->combine(p->stream, &args);
}

/* Enqueues the first half of a piece of an all-reduce: sends each member the slice of the input
 * that it sums, and adds this member's own slice. */
static enum hd_status all_reduce_parts(const struct piece *p)
{
    const struct hd_comm_group *group = p->op->group;
    const int64_t size = element_bytes(p);
    const char *send = p->op->send + p->at * size;
    struct nccl_part *parts = nccl_of(group->comm)->parts;
    int64_t begin, end, own_begin, own_end;
    enum hd_status st;

    hd_comm_slice(p->count, p->op->dtype, group->size, group->index, &own_begin, &own_end);
    for (int m = 0; m < group->size; m++) {
        hd_comm_slice(p->count, p->op->dtype, group->size, m, &begin, &end);
        parts[m] = (struct nccl_part){0};
        if (m != group->index)
            parts[m] =
                (struct nccl_part){send + begin * size, p->stage + m * (own_end - own_begin) * size,
                                   (end - begin) * size, (own_end - own_begin) * size};
    }
    st = exchange(p->op, p->comm, p->stream, parts);
    return st ? st
              : add_share(p, send + own_begin * size, p->op->recv + (p->at + own_begin) * size,
                          own_end - own_begin);
}

/* Enqueues the second half of a piece of an all-reduce: sends this member's sums to all others, and
 * receives theirs. */
static enum hd_status all_reduce_sums(const struct piece *p)
{
    const struct hd_comm_group *group = p->op->group;
    const int64_t size = element_bytes(p);
    char *recv = p->op->recv + p->at * size;
    struct nccl_part *parts = nccl_of(group->comm)->parts;
    int64_t begin, end, own_begin, own_end;

    hd_comm_slice(p->count, p->op->dtype, group->size, group->index, &own_begin, &own_end);
    for (int m = 0; m < group->size; m++) {
        hd_comm_slice(p->count, p->op->dtype, group->size, m, &begin, &end);
        parts[m] = (struct nccl_part){0};
        if (m != group->index)
            parts[m] = (struct nccl_part){recv + own_begin * size, recv + begin * size,
                                          (own_end - own_begin) * size, (end - begin) * size};
    }
    return exchange(p->op, p->comm, p->stream, parts);
}

static enum hd_status reduce_scatter_parts(const struct piece *p)
{
    const struct hd_comm_op *op = p->op;
    const struct hd_comm_group *group = op->group;
    const int64_t bytes = p->count * element_bytes(p);
    struct nccl_part *parts = nccl_of(group->comm)->parts;
    enum hd_status st;

    for (int m = 0; m < group->size; m++) {
        parts[m] = (struct nccl_part){0};
        if (m != group->index)
            parts[m] = (struct nccl_part){op->send + (m * op->count + p->at) * element_bytes(p),
                                          p->stage + m * bytes, bytes, bytes};
    }
    st = exchange(p->op, p->comm, p->stream, parts);
    return st ? st
              : add_share(p, op->send + (group->index * op->count + p->at) * element_bytes(p),
                          op->recv + p->at * hd_comm_result_size(op), p->count);
}

/* Makes the second device stream wait for all work enqueued so far on the operation's own device
 * stream. */
static enum hd_status fork_stream(const struct hd_comm_op *op)
{
    struct hd_comm *comm = op->group->comm;
    struct nccl_state *nccl = nccl_of(comm);
    struct hd_stream **second = &nccl->second[op->stream->name];
    const struct hd_comm_device *device = &comm->device_streams->device;
    enum hd_status st =
        *second ? HD_OK : device->table->stream_open(device->backend, HD_STREAM_FOR_COMM, second);

    if (!st)
        st = device_of(op)->event_record(nccl->forked, hd_comm_device_stream(op));
    return st ? st : device_of(op)->event_wait(*second, nccl->forked);
}

/* Makes the operation's own device stream wait for all work enqueued so far on the second one. */
static enum hd_status join_stream(const struct hd_comm_op *op)
{
    struct nccl_state *nccl = nccl_of(op->group->comm);
    enum hd_status st = device_of(op)->event_record(nccl->joined, nccl->second[op->stream->name]);

    return st ? st : device_of(op)->event_wait(hd_comm_device_stream(op), nccl->joined);
}

/* Returns the number of elements of op->recv that one piece covers. The staging buffer has a slice
 * for each of the P members of the group: 1/P of a piece (all_reduce) or a whole piece
 * (reduce_scatter). */
static int64_t piece_count(const struct hd_comm_op *op)
{
    const int64_t bytes =
        nccl_piece_bytes(nccl_of(op->group->comm)->piece_bytes, (int)op->stream->name);
    const int64_t lines = bytes / HD_COMM_ALIGN / op->group->size - 1;
    const int64_t part = lines * HD_COMM_ALIGN / (int64_t)hd_dtype_size(op->dtype);

    return op->kind == HD_COMM_ALL_REDUCE ? part * op->group->size : part;
}

static struct piece piece_of(struct hd_comm_op *op, struct hd_nccl_comm *comm, int64_t number)
{
    const int64_t most = piece_count(op), at = number * most;
    const int half = (int)(number % HD_COMM_NCCL_HALVES);

    return (struct piece){.op = op,
                          .comm = comm,
                          .stream = half ? nccl_of(op->group->comm)->second[op->stream->name]
                                         : hd_comm_device_stream(op),
                          .stage = nccl_stage(op, half),
                          .at = at,
                          .count = op->count - at < most ? op->count - at : most};
}

static enum hd_status ordered_sum(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    const bool everywhere = op->kind == HD_COMM_ALL_REDUCE;
    const int64_t most = piece_count(op), pieces = (op->count + most - 1) / most;
    struct piece before = {0};
    enum hd_status st = pieces > 1 ? fork_stream(op) : HD_OK;

    for (int64_t n = 0; n < pieces && !st; n++) {
        const struct piece piece = piece_of(op, comm, n);

        st = everywhere ? all_reduce_parts(&piece) : reduce_scatter_parts(&piece);
        if (!st && everywhere && n > 0)
            st = all_reduce_sums(&before);
        before = piece;
    }
    if (!st && everywhere && pieces > 0)
        st = all_reduce_sums(&before);
    return st || pieces < 2 ? st : join_stream(op);
}

/* ---- all_to_all_v ---- */

/* Waits until the device has run the event `counts_ready`; returns early on a failure or after the
 * deadline. */
static enum hd_status wait_for_counts(struct hd_comm_op *op)
{
    struct hd_comm *comm = op->group->comm;
    struct nccl_state *nccl = nccl_of(comm);
    struct hd_comm_stream_clock clock = {.run = comm->device_streams->marked_run[op->stream->name],
                                         .still_since_ms = hd_clock_now_ms()};

    for (int looks = 0;; looks++) {
        const int64_t now_ms = hd_clock_now_ms();
        bool done = false;
        enum hd_status st = device_of(op)->event_done(nccl->counts_ready, &done);

        nccl_note_progress(nccl);
        if (!st && !done)
            st = hd_comm_streams_query(comm, op->stream->name, &clock, now_ms);
        if (!st) /* checked also if `done`: an abort completes events, too */
            st = nccl_failure(comm);
        if (st || done)
            return st;
        if (now_ms - clock.still_since_ms >= comm->deadline_ms) {
            char text[HD_COMM_REASON_MAX];

            hd_comm_describe_launch(comm, op->launch, text, sizeof text);
            return hd_comm_fail(comm, HD_TIMEOUT, HD_COMM_LATE_FORMAT, comm->rank,
                                (long long)(now_ms - clock.still_since_ms), "", text);
        }
        if (looks < comm->spin_max)
            (void)sched_yield();
        else
            (void)usleep(COUNTS_LOOK_US);
    }
}

static enum hd_status hold_bounds(struct nccl_state *nccl, size_t bytes)
{
    struct nccl_bounds *larger;

    if (nccl->bounds_bytes >= bytes)
        return HD_OK;
    larger = realloc(nccl->bounds, bytes);
    if (!larger)
        return hd_err(HD_NO_MEMORY, "nccl: no memory for the counts of all members");
    nccl->bounds = larger;
    nccl->bounds_bytes = bytes;
    return HD_OK;
}

/* Gathers the row counts and row maxima of all members of an all_to_all_v and copies them to
 * `bounds` of the state, on the host. Waits for the device. */
static enum hd_status read_bounds(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    struct hd_comm_group *group = op->group;
    struct nccl_state *nccl = nccl_of(group->comm);
    struct hd_stream *stream = hd_comm_device_stream(op);
    const struct nccl_bounds own = {op->send_rows_max, op->recv_rows_max};
    const int64_t each = (int64_t)nccl_bounds_bytes(group->size);
    char *all = nccl_scratch(op), *mine = all + group->index * each;
    enum hd_status st = hold_bounds(nccl, (size_t)(group->size * each));

    if (!st)
        st = device_of(op)->write(stream, mine, &own, sizeof own);
    if (!st)
        st = device_of(op)->copy(stream, mine + offsetof(struct nccl_bounds, send_counts),
                                 op->send_counts, group->size * (int64_t)sizeof(int32_t));
    if (!st)
        st = nccl_lock_calls(nccl);
    if (st)
        return st;
    nccl_may_block(nccl);
    st = nccl->calls->all_gather(comm, stream, all, mine, each);
    nccl_unlock_calls(nccl);
    st = nccl_end_call(group->comm, st, "the counts of an all_to_all_v");
    if (!st)
        st = device_of(op)->event_record(nccl->counts_ready, stream);
    if (!st)
        st = wait_for_counts(op);
    return st ? st : device_of(op)->read(stream, nccl->bounds, all, group->size * each);
}

static bool exceeds(const struct nccl_bounds *all, int members)
{
    for (int m = 0; m < members; m++) {
        const struct nccl_bounds *b = nccl_bounds_of(all, members, m);
        int64_t sent = 0, received = 0;

        for (int o = 0; o < members; o++) {
            if (b->send_counts[o] < 0)
                return true;
            sent += b->send_counts[o];
            received += nccl_bounds_of(all, members, o)->send_counts[m];
        }
        if (sent > b->send_rows_max || received > b->recv_rows_max)
            return true;
    }
    return false;
}

static enum hd_status exchange_rows_by_nccl(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    struct hd_comm_group *group = op->group;
    struct hd_stream *stream = hd_comm_device_stream(op);
    const int64_t row = hd_comm_unit_bytes(op);
    const int me = group->index;
    struct nccl_part *parts = nccl_of(group->comm)->parts;
    int32_t counts[HD_COMM_ROW_MEMBERS_MAX] = {0}, one = 1;
    const struct nccl_bounds *all, *own;
    const char *from = op->send;
    char *to = op->recv;
    enum hd_status st = read_bounds(op, comm);
    bool exceeded;

    if (st)
        return st;
    all = nccl_of(group->comm)->bounds;
    own = nccl_bounds_of(all, group->size, me);
    exceeded = exceeds(all, group->size);
    for (int m = 0; m < group->size && !exceeded; m++) {
        const int64_t before = from - op->send; /* bytes of send for the members before m */

        counts[m] = nccl_bounds_of(all, group->size, m)->send_counts[me];
        parts[m] =
            (struct nccl_part){op->send + before, to, own->send_counts[m] * row, counts[m] * row};
        from += own->send_counts[m] * row;
        to += counts[m] * row;
    }
    if (op->recv_counts)
        st = device_of(op)->write(stream, op->recv_counts, counts,
                                  group->size * (int64_t)sizeof counts[0]);
    if (!st && exceeded)
        st = device_of(op)->write(stream, op->overflow, &one, sizeof one);
    return st || exceeded ? st : exchange(op, comm, stream, parts);
}

/* ---- everything else ---- */

static enum hd_status all_to_all(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    const int64_t unit = hd_comm_unit_bytes(op);
    struct nccl_part *parts = nccl_of(op->group->comm)->parts;

    for (int m = 0; m < op->group->size; m++)
        parts[m] = (struct nccl_part){op->send + m * unit, op->recv + m * unit, unit, unit};
    return exchange(op, comm, hd_comm_device_stream(op), parts);
}

/* Enqueues an operation that consists of one NCCL call: an all_gather, a broadcast, a barrier, or a
 * reduction that NCCL computes (option `native`). */
static enum hd_status call(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    struct hd_comm_group *group = op->group;
    struct nccl_state *nccl = nccl_of(group->comm);
    const struct hd_nccl_table *calls = nccl->calls;
    struct hd_stream *stream = hd_comm_device_stream(op);
    const int64_t unit = hd_comm_unit_bytes(op);
    const uint64_t others = (uint64_t)(group->size - 1);
    uint64_t *moved = &group->counts[op->kind].moved_bytes;
    enum hd_status st;

    if (unit == 0 && op->kind != HD_COMM_BARRIER)
        return HD_OK; /* every member skips an empty operation: sizes agree */
    st = nccl_lock_calls(nccl);
    if (st)
        return st;
    nccl_may_block(nccl);
    switch (op->kind) {
    case HD_COMM_ALL_GATHER:
        st = calls->all_gather(comm, stream, op->recv, op->send, unit);
        *moved += others * (uint64_t)unit;
        break;
    case HD_COMM_BROADCAST:
        st = calls->broadcast(comm, stream, op->recv, unit, op->peer);
        *moved += group->index == op->peer ? 0 : (uint64_t)unit;
        break;
    case HD_COMM_ALL_REDUCE:
        st = calls->all_reduce(comm, stream, op->recv, op->send, op->count, op->dtype,
                               op->reduce == HD_COMM_MAX);
        *moved += 2 * others * (uint64_t)unit / (others + 1);
        break;
    case HD_COMM_REDUCE_SCATTER:
        st = calls->reduce_scatter(comm, stream, op->recv, op->send, op->count, op->dtype,
                                   op->reduce == HD_COMM_MAX);
        *moved += others * (uint64_t)unit;
        break;
    default: /* HD_COMM_BARRIER: an all_gather of one byte */
        st = calls->all_gather(comm, stream, nccl_scratch(op), nccl_scratch(op) + group->index, 1);
        break;
    }
    nccl_unlock_calls(nccl);
    return nccl_end_call(group->comm, st, hd_comm_op_name(op));
}

/* ---- connecting ---- */

/* Enqueues transfers of one byte with the members with which sends and receives of these uses need
 * connections: NCCL makes all channels of a connection at its first transfer, whatever its size. */
static enum hd_status connect_pairs(struct hd_comm_op *op, struct hd_nccl_comm *comm, unsigned uses)
{
    const struct hd_comm_group *group = op->group;
    const int next = (group->index + 1) % group->size;
    const int previous = (group->index + group->size - 1) % group->size;
    struct nccl_part *parts = nccl_of(group->comm)->parts;
    char *scratch = nccl_scratch(op);

    for (int m = 0; m < group->size; m++) {
        const bool other = m != group->index;
        const bool all = uses & (HD_COMM_USE_EXCHANGE | HD_COMM_USE_SUM);
        const bool shifts = uses & HD_COMM_USE_SHIFT;
        const bool sends = all || (shifts && m == next) || uses & HD_COMM_USE_SEND;
        const bool receives = all || (shifts && m == previous) || uses & HD_COMM_USE_RECEIVE;

        parts[m] = (struct nccl_part){scratch + group->index, scratch + m, other && sends,
                                      other && receives};
    }
    return exchange(op, comm, hd_comm_device_stream(op), parts);
}

/* Makes NCCL connect its rings and trees by sums of its own, in the scratch buffer. */
static enum hd_status connect_native(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    struct nccl_state *nccl = nccl_of(op->group->comm);
    struct hd_stream *stream = hd_comm_device_stream(op);
    char *scratch = nccl_scratch(op);
    enum hd_status st = nccl_lock_calls(nccl);

    if (st)
        return st;
    nccl_may_block(nccl);
    st = nccl->calls->all_reduce(comm, stream, scratch, scratch, 1, HD_F32, false);
    nccl_unlock_calls(nccl);
    return nccl_end_call(op->group->comm, st, hd_comm_op_name(op));
}

/* Enqueues the operations that make all connections for op->uses (hd_comm_connect). The ends of a
 * channel only send and receive, so they need no ring. */
static enum hd_status connect_uses(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    const bool native = op->group->comm->native_sums && op->uses & HD_COMM_USE_SUM;
    const unsigned uses = native ? op->uses & ~(unsigned)HD_COMM_USE_SUM : op->uses;
    const bool is_channel = uses & (HD_COMM_USE_SEND | HD_COMM_USE_RECEIVE);
    enum hd_status st = native ? connect_native(op, comm) : HD_OK;

    if (!st && uses & ~(unsigned)HD_COMM_USE_GATHER)
        st = connect_pairs(op, comm, uses);
    return st || is_channel ? st : call(op, comm);
}

/* Executes an operation of a group of one, which needs no NCCL. */
static enum hd_status alone(struct hd_comm_op *op)
{
    if (op->kind == HD_COMM_ALL_TO_ALL_V) {
        struct hd_exchange_rows_args args = {.out = op->recv,
                                             .recv_counts = op->recv_counts,
                                             .overflow = op->overflow,
                                             .members = 1,
                                             .row_bytes = hd_comm_unit_bytes(op)};

        args.send[0] = op->send;
        args.send_counts[0] = op->send_counts;
        args.send_rows_max[0] = op->send_rows_max;
        args.recv_rows_max[0] = op->recv_rows_max;
        return device_of(op)->exchange_rows(hd_comm_device_stream(op), &args);
    }
    if (op->keep_fp32) {
        const struct piece all = {.op = op, .stream = hd_comm_device_stream(op)};

        return add_share(&all, op->send, op->recv, op->count);
    }
    return op->kind == HD_COMM_BARRIER
               ? HD_OK
               : copy_by_nccl(op, op->recv, op->send, hd_comm_unit_bytes(op));
}

/* Starts the watchdog's deadline for enqueuing this operation. */
static void begin_enqueue(const struct hd_comm_op *op)
{
    struct nccl_state *nccl = nccl_of(op->group->comm);

    atomic_store(&nccl->enqueue_stream, (int)op->stream->name);
    atomic_store(&nccl->enqueue_launch, op->launch);
    atomic_store(&nccl->enqueue_since_ms, hd_clock_now_ms());
}

static void end_enqueue(const struct hd_comm_op *op)
{
    atomic_store(&nccl_of(op->group->comm)->enqueue_since_ms, 0);
}

static enum hd_status enqueue_nccl(struct hd_comm_op *op)
{
    struct hd_nccl_comm *comm;
    enum hd_status st;

    if (op->group->size == 1)
        return alone(op);
    begin_enqueue(op);
    st = nccl_get_communicator(op->group, &comm);
    if (st)
        return st;
    if (op->kind == HD_COMM_ALL_TO_ALL_V)
        return exchange_rows_by_nccl(op, comm);
    if (op->kind == HD_COMM_ALL_TO_ALL)
        return all_to_all(op, comm);
    if (hd_comm_reduces(op->kind) && !op->group->comm->native_sums)
        return ordered_sum(op, comm);
    return op->uses ? connect_uses(op, comm) : call(op, comm);
}

/* Returns the sticky failure if there is one; otherwise makes this thread's message the failure. */
static enum hd_status fail(const struct hd_comm_op *op, enum hd_status st)
{
    struct hd_comm *comm = op->group->comm;
    char message[HD_COMM_REASON_MAX];

    if (comm->failure.status)
        return hd_err_restore(&comm->failure);
    (void)snprintf(message, sizeof message, "%s", hd_err_message());
    if (comm->engine->failure(comm))
        return comm->engine->failure(comm);
    return hd_comm_fail(comm, st, "%s #%" PRIu64 " of group %s: %s", hd_comm_op_name(op), op->seq,
                        op->group->name, message);
}

static bool has_turn(const struct hd_comm_op *op)
{
    return op->launch == nccl_of(op->group->comm)->last_enqueued + 1;
}

/* Enqueues an operation with `enqueue_op`, once all earlier operations of the rank are enqueued. */
static enum hd_status step(struct hd_comm_op *op, enum hd_status (*enqueue_op)(struct hd_comm_op *),
                           bool *moved)
{
    enum hd_status st;

    if (!has_turn(op))
        return HD_OK;
    hd_comm_set_state(op, HD_COMM_ENTERED);
    st = enqueue_op(op);
    end_enqueue(op);
    if (st)
        return fail(op, st);
    nccl_of(op->group->comm)->last_enqueued = op->launch;
    hd_comm_set_state(op, HD_COMM_COMPLETE);
    *moved = true;
    return HD_OK;
}

enum hd_status nccl_collective_step(struct hd_comm_op *op, bool *moved)
{
    return step(op, enqueue_nccl, moved);
}

/* ---- sends and receives ---- */

/* Copies a message of a rank to itself (group of one) from the send with an equal sequence number
 * in the launch. */
static enum hd_status enqueue_self_pair(struct hd_comm_op *op)
{
    uint64_t place = op->stream->completed;
    enum hd_status st = HD_OK;
    bool found = false, last = false;

    if (op->direction == HD_COMM_TO_PEER)
        return HD_OK; /* the matching receive makes the copy */
    for (; !last && !found; place++) {
        const struct hd_comm_op *send = hd_comm_op_at(op->stream, place);

        last = send->last;
        found =
            send->direction == HD_COMM_TO_PEER && send->group == op->group && send->seq == op->seq;
        if (found)
            st = copy_by_nccl(op, op->recv, send->send, hd_comm_unit_bytes(op));
    }
    return found ? st
                 : hd_err(HD_UNSUPPORTED,
                          "a send to the own rank must be in the launch of its receive");
}

/* Enqueues one send or receive of a launch. The first one opens a group of NCCL calls, the last one
 * closes it. All operations of a group call belong to one group of ranks. */
static enum hd_status enqueue_pair(struct hd_comm_op *op)
{
    struct nccl_state *nccl = nccl_of(op->group->comm);
    struct hd_stream *stream = hd_comm_device_stream(op);
    const int64_t bytes = hd_comm_unit_bytes(op);
    struct hd_nccl_comm *comm;
    enum hd_status st = HD_OK;

    if (op->group->size == 1)
        return enqueue_self_pair(op);
    begin_enqueue(op);
    st = nccl_get_communicator(op->group, &comm);
    if (!st)
        st = nccl_lock_calls(nccl);
    if (st) {
        /* Aborted between two calls of a group: the group stays open, because its communicators are
         * aborted and this endpoint makes no more calls. */
        nccl->grouping = false;
        return st;
    }
    if (!nccl->grouping)
        st = nccl->calls->group_begin();
    nccl->grouping = !st;
    if (!st && bytes && op->direction == HD_COMM_TO_PEER)
        st = nccl->calls->send(comm, stream, op->send, bytes, op->peer);
    else if (!st && bytes)
        st = nccl->calls->recv(comm, stream, op->recv, bytes, op->peer);
    if (nccl->grouping &&
        (op->last || st)) { /* closed also after a failure: a thread must not keep a group of calls
                               open */
        enum hd_status end;

        nccl_may_block(nccl);
        end = nccl->calls->group_end();
        nccl->grouping = false;
        st = st ? st : end;
    }
    nccl_unlock_calls(nccl);
    if (op->direction == HD_COMM_FROM_PEER && op->peer != op->group->index)
        op->group->counts[op->kind].moved_bytes += (uint64_t)bytes;
    return nccl_end_call(op->group->comm, st, hd_comm_op_name(op));
}

enum hd_status nccl_pair_step(struct hd_comm_op *op, bool *moved)
{
    return step(op, enqueue_pair, moved);
}
