/* launch: the operations of comm.h. Checks their arguments and enqueues them on streams; the
 * engines execute them. */
#include "comm/device_streams.h"

/* ---- checks of one launch ---- */

/* Returns the bytes of `blocks` times `count` elements of the op's dtype; -1: an argument is
 * negative, or the product overflows. */
static int64_t span_bytes(const struct hd_comm_op *op, int64_t blocks, int64_t count)
{
    const int64_t size = (int64_t)hd_dtype_size(op->dtype);
    int64_t bytes;

    if (blocks < 0 || count < 0 || __builtin_mul_overflow(blocks, count, &bytes) ||
        __builtin_mul_overflow(bytes, size, &bytes))
        return -1;
    return bytes;
}

static enum hd_status check_buffer(const struct hd_comm_op *op, const char *what, const char *at,
                                   int64_t bytes)
{
    const struct hd_comm *comm = op->group->comm;
    const uintptr_t begin = (uintptr_t)comm->registered, place = (uintptr_t)at;

    if (bytes < 0)
        return hd_err(HD_INVALID, "%s in group %s: the size of %s overflows or is negative",
                      hd_comm_op_name(op), op->group->name, what);
    if (bytes == 0)
        return HD_OK;
    if (!comm->registered || place < begin || place - begin > comm->registered_bytes ||
        (size_t)bytes > comm->registered_bytes - (place - begin))
        return hd_err(HD_INVALID,
                      "%s in group %s: %s (%lld bytes at %p) is not inside the registered memory "
                      "of rank %d (%zu bytes at %p); allocate it there",
                      hd_comm_op_name(op), op->group->name, what, (long long)bytes,
                      (const void *)at, comm->rank, comm->registered_bytes,
                      (void *)comm->registered);
    if (place % hd_dtype_size(op->dtype) != 0)
        return hd_err(HD_INVALID, "%s in group %s: %s at %p is not aligned for %s",
                      hd_comm_op_name(op), op->group->name, what, (const void *)at,
                      hd_dtype_name(op->dtype));
    return HD_OK;
}

/* Checks that the op's send and recv buffers are disjoint. `shared`: they overlap in the one way
 * that the operation allows (in place). */
static enum hd_status check_overlap(const struct hd_comm_op *op, int64_t send_bytes,
                                    int64_t recv_bytes, bool shared)
{
    const uintptr_t s = (uintptr_t)op->send, r = (uintptr_t)op->recv;

    if (shared || send_bytes == 0 || recv_bytes == 0 || s + (uintptr_t)send_bytes <= r ||
        r + (uintptr_t)recv_bytes <= s)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%s in group %s: send (%lld bytes at %p) and recv (%lld bytes at %p) overlap",
                  hd_comm_op_name(op), op->group->name, (long long)send_bytes,
                  (const void *)op->send, (long long)recv_bytes, (void *)op->recv);
}

static enum hd_status check_pair(const struct hd_comm_op *op, int64_t send_bytes,
                                 int64_t recv_bytes, bool shared)
{
    enum hd_status st = check_buffer(op, "send", op->send, send_bytes);

    if (!st)
        st = check_buffer(op, "recv", op->recv, recv_bytes);
    if (!st)
        st = check_overlap(op, send_bytes, recv_bytes, shared);
    return st;
}

static enum hd_status check_keep_fp32(const struct hd_comm_op *op)
{
    if (!op->keep_fp32)
        return HD_OK;
    if (op->dtype != HD_BF16 || op->reduce != HD_COMM_SUM)
        return hd_err(HD_INVALID, "%s in group %s: only sums of bf16 have a result in fp32",
                      hd_comm_op_name(op), op->group->name);
    if (op->group->comm->native_sums)
        return hd_err(HD_UNSUPPORTED,
                      "%s in group %s: NCCL's own sums of bf16 have no result in fp32",
                      hd_comm_op_name(op), op->group->name);
    if ((uintptr_t)op->recv % sizeof(float) != 0)
        return hd_err(HD_INVALID, "%s in group %s: recv at %p is not aligned for fp32",
                      hd_comm_op_name(op), op->group->name, (const void *)op->recv);
    return HD_OK;
}

/* Returns whether the address `part` is `offset` bytes after `whole`. Compares the addresses as
 * integers, because an empty buffer may be NULL. */
static bool is_place(const char *part, const char *whole, int64_t offset)
{
    return (uintptr_t)part == (uintptr_t)whole + (uintptr_t)offset;
}

static enum hd_status check_peer(const struct hd_comm_op *op)
{
    if (op->peer < 0 || op->peer >= op->group->size)
        return hd_err(HD_INVALID, "%s in group %s: member %d of %d", hd_comm_op_name(op),
                      op->group->name, op->peer, op->group->size);
    return HD_OK;
}

/* ---- launching ---- */

/* Waits until the oldest operations of the stream are complete and its ring has a free entry. */
static enum hd_status free_ring_slot(struct hd_comm_stream *stream)
{
    uint64_t oldest;

    if (stream->launched - stream->completed < HD_COMM_QUEUE_MAX)
        return HD_OK;
    oldest = stream->launched - HD_COMM_QUEUE_MAX + 1;
    if (oldest > stream->submitted)
        return hd_err(HD_LIMIT, "comm: more than %d sends and receives in one launch",
                      HD_COMM_QUEUE_MAX);
    return hd_comm_wait_for(stream, oldest);
}

static enum hd_status seal(struct hd_comm_stream *stream)
{
    hd_comm_op_at(stream, stream->launched - 1)->last = true;
    stream->submitted = stream->launched;
    return hd_comm_poll_once(stream->comm);
}

/* Copies a checked op to the stream's ring and submits it, unless a group call is open. */
static enum hd_status put_into_ring(struct hd_comm_stream *stream, const struct hd_comm_op *op)
{
    enum hd_status st = free_ring_slot(stream);
    struct hd_comm_op *place;

    if (!st && stream->comm->device_streams)
        st = hd_comm_streams_need(stream);
    if (st)
        return st;
    place = hd_comm_op_at(stream, stream->launched);
    *place = *op;
    place->stream = stream;
    if (op->kind != HD_COMM_AFTER) {
        place->launch = ++stream->comm->launches;
        if (op->direction == HD_COMM_TO_PEER)
            place->seq = ++op->group->send_seq[op->peer];
        else if (op->direction == HD_COMM_FROM_PEER)
            place->seq = ++op->group->recv_seq[op->peer];
        else
            place->seq = ++op->group->seq;
        hd_comm_flight_launch(stream->comm->flight, place, stream);
    }
    stream->launched++;
    return stream->in_group_call ? HD_OK : seal(stream);
}

/* Checks the conditions of every launch: the endpoint has not failed, group and stream belong to
 * one endpoint, the stream takes this kind of operation, and its dtype is valid. */
static enum hd_status admit(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_op *op)
{
    const enum hd_status st = group->comm->engine->failure(group->comm);
    const bool group_calls = op->kind == HD_COMM_SEND || op->kind == HD_COMM_RECV;

    if (st)
        return st;
    if (group->comm != stream->comm)
        return hd_err(HD_INVALID, "%s: group %s and stream %s belong to different endpoints",
                      hd_comm_op_name(op), group->name, hd_comm_stream_text(stream->name));
    if (stream->in_group_call && !group_calls)
        return hd_err(HD_CONFLICT, "%s in group %s: only sends and receives may be in a group call",
                      hd_comm_op_name(op), group->name);
    if (!group_calls && stream->name >= HD_COMM_COLLECTIVE_STREAMS)
        return hd_err(HD_INVALID, "%s in group %s: stream '%s' takes only sends and receives",
                      hd_comm_op_name(op), group->name, hd_comm_stream_text(stream->name));
    if ((unsigned)op->dtype >= HD_DTYPE_COUNT)
        return hd_err(HD_INVALID, "%s in group %s: unknown element type %d", hd_comm_op_name(op),
                      group->name, (int)op->dtype);
    if (op->reduce != HD_COMM_SUM && op->reduce != HD_COMM_MAX)
        return hd_err(HD_INVALID, "%s in group %s: unknown reduction %d", hd_comm_op_name(op),
                      group->name, (int)op->reduce);
    return HD_OK;
}

static enum hd_status check_rows(const struct hd_comm_op *op)
{
    const struct hd_comm_group *group = op->group;

    if (group->size > HD_COMM_ROW_MEMBERS_MAX)
        return hd_err(HD_LIMIT, "all_to_all_v in group %s: %d members; at most %d exchange rows",
                      group->name, group->size, (int)HD_COMM_ROW_MEMBERS_MAX);
    if (group->comm->device_streams && !op->overflow)
        return hd_err(HD_INVALID,
                      "all_to_all_v in group %s: on a device the host never sees the counts; give "
                      "an overflow flag",
                      group->name);
    return check_pair(op, span_bytes(op, op->send_rows_max, op->count),
                      span_bytes(op, op->recv_rows_max, op->count), false);
}

/* Checks the buffers of a collective by its kind. */
static enum hd_status check_collective(const struct hd_comm_op *op)
{
    const int64_t one = span_bytes(op, 1, op->count);
    const int64_t all = span_bytes(op, op->group->size, op->count);
    const int64_t own = op->group->index * one; /* this member's place among all */
    enum hd_status st;

    switch (op->kind) {
    case HD_COMM_ALL_REDUCE:
        return check_pair(op, one, one, op->send == op->recv);
    case HD_COMM_ALL_GATHER:
        return check_pair(op, one, all, is_place(op->send, op->recv, own));
    case HD_COMM_REDUCE_SCATTER:
        st = check_keep_fp32(op);
        return st ? st
                  : check_pair(op, all, op->keep_fp32 ? 2 * one : one,
                               !op->keep_fp32 && is_place(op->recv, op->send, own));
    case HD_COMM_ALL_TO_ALL:
        return check_pair(op, all, all, false);
    case HD_COMM_ALL_TO_ALL_V:
        return check_rows(op);
    case HD_COMM_BROADCAST:
        st = check_peer(op);
        return st ? st : check_buffer(op, "buf", op->recv, one);
    case HD_COMM_SHIFT:
        return check_pair(op, one, one, false);
    default: /* a send, a receive and a barrier have functions of their own */
        return hd_err(HD_INVALID, "%s in group %s is no collective", hd_comm_op_name(op),
                      op->group->name);
    }
}

/* Launches a shift: a send to the next member and a receive from the one before, in one group call. */
static enum hd_status launch_shift(struct hd_comm_stream *stream, const struct hd_comm_op *op)
{
    const int P = op->group->size, own = op->group->index;
    struct hd_comm_op send = *op, recv = *op;
    enum hd_status st, end;

    send.direction = HD_COMM_TO_PEER;
    send.peer = (own + 1) % P;
    recv.direction = HD_COMM_FROM_PEER;
    recv.peer = (own + P - 1) % P;
    stream->in_group_call = true;
    st = put_into_ring(stream, &send);
    if (!st)
        st = put_into_ring(stream, &recv);
    end = hd_comm_end(stream);
    return st ? st : end;
}

enum hd_status hd_comm_launch(struct hd_comm_group *group, struct hd_comm_stream *stream,
                              enum hd_comm_kind kind, const struct hd_collective_args *args)
{
    const struct hd_comm_op op = {.kind = kind,
                                  .group = group,
                                  .send = kind == HD_COMM_BROADCAST ? args->recv : args->send,
                                  .recv = args->recv,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .reduce = args->reduce,
                                  .keep_fp32 = args->keep_fp32,
                                  .send_counts = args->send_counts,
                                  .recv_counts = args->recv_counts,
                                  .overflow = args->overflow,
                                  .send_rows_max = args->send_rows_max,
                                  .recv_rows_max = args->recv_rows_max,
                                  .peer = kind == HD_COMM_BROADCAST ? args->root : -1};
    enum hd_status st = admit(group, stream, &op);

    if (!st)
        st = check_collective(&op);
    if (st)
        return st;
    return kind == HD_COMM_SHIFT ? launch_shift(stream, &op) : put_into_ring(stream, &op);
}

enum hd_status hd_comm_send(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_send_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_SEND,
                                  .direction = HD_COMM_TO_PEER,
                                  .group = group,
                                  .send = args->buf,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .peer = args->peer};
    enum hd_status st = admit(group, stream, &op);

    if (!st)
        st = check_peer(&op);
    if (!st)
        st = check_buffer(&op, "buf", op.send, span_bytes(&op, 1, op.count));
    return st ? st : put_into_ring(stream, &op);
}

enum hd_status hd_comm_recv(struct hd_comm_group *group, struct hd_comm_stream *stream,
                            const struct hd_comm_recv_args *args)
{
    const struct hd_comm_op op = {.kind = HD_COMM_RECV,
                                  .direction = HD_COMM_FROM_PEER,
                                  .group = group,
                                  .recv = args->buf,
                                  .count = args->count,
                                  .dtype = args->dtype,
                                  .peer = args->peer};
    enum hd_status st = admit(group, stream, &op);

    if (!st)
        st = check_peer(&op);
    if (!st)
        st = check_buffer(&op, "buf", op.recv, span_bytes(&op, 1, op.count));
    return st ? st : put_into_ring(stream, &op);
}

enum hd_status hd_comm_barrier(struct hd_comm_group *group, struct hd_comm_stream *stream)
{
    return hd_comm_connect(group, stream, 0);
}

enum hd_status hd_comm_connect(struct hd_comm_group *group, struct hd_comm_stream *stream,
                               unsigned uses)
{
    const struct hd_comm_op op = {
        .kind = HD_COMM_BARRIER, .group = group, .peer = -1, .uses = uses};
    const enum hd_status st = admit(group, stream, &op);

    return st ? st : put_into_ring(stream, &op);
}

unsigned hd_comm_use_of(enum hd_comm_kind kind)
{
    switch (kind) {
    case HD_COMM_ALL_GATHER:
    case HD_COMM_BROADCAST:
    case HD_COMM_BARRIER:
        return HD_COMM_USE_GATHER;
    case HD_COMM_ALL_REDUCE:
    case HD_COMM_REDUCE_SCATTER:
        return HD_COMM_USE_SUM;
    case HD_COMM_ALL_TO_ALL:
    case HD_COMM_ALL_TO_ALL_V:
        return HD_COMM_USE_EXCHANGE;
    case HD_COMM_SHIFT:
        return HD_COMM_USE_SHIFT;
    default:
        return 0;
    }
}

enum hd_status hd_comm_begin(struct hd_comm_stream *stream)
{
    if (stream->in_group_call)
        return hd_err(HD_CONFLICT, "comm: stream %s: a group call is open already",
                      hd_comm_stream_text(stream->name));
    stream->in_group_call = true;
    return HD_OK;
}

enum hd_status hd_comm_end(struct hd_comm_stream *stream)
{
    const enum hd_status st = stream->comm->engine->failure(stream->comm);

    if (!stream->in_group_call)
        return hd_err(HD_CONFLICT, "comm: stream %s: no group call is open",
                      hd_comm_stream_text(stream->name));
    stream->in_group_call = false;
    if (st || stream->launched == stream->submitted)
        return st;
    return seal(stream);
}

/* ---- order between streams ---- */

uint64_t hd_comm_record(struct hd_comm_stream *stream)
{
    return stream->launched;
}

enum hd_status hd_comm_after(struct hd_comm_stream *stream, struct hd_comm_stream *other,
                             uint64_t ticket)
{
    const struct hd_comm_op op = {
        .kind = HD_COMM_AFTER, .other = other, .other_ticket = ticket, .peer = -1};

    if (stream->comm != other->comm)
        return hd_err(HD_INVALID,
                      "comm: streams of different endpoints cannot wait for each other");
    if (stream->in_group_call)
        return hd_err(HD_CONFLICT,
                      "comm: stream %s: only sends and receives may be in a group call",
                      hd_comm_stream_text(stream->name));
    if (ticket > other->launched)
        return hd_err(HD_INVALID, "comm: stream %s has no ticket %llu yet",
                      hd_comm_stream_text(other->name), (unsigned long long)ticket);
    return hd_comm_done(other, ticket) ? HD_OK : put_into_ring(stream, &op);
}
