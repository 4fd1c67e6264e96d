/* What an operation puts on its stream. All of it is handed over in one step, in the order of the
 * launches; NCCL and the device do the rest.
 *
 * An ordered sum goes piece by piece, as large as the stage allows: every member sends each other
 * member the part of its input that this one sums, in one group of calls; a kernel adds what came
 * in the order of the group; for an all-reduce the sums go back to all in another group. An
 * all-reduce may be in place: the parts are sent, and the own part is summed, before any sum comes
 * back, for one stream does one after the other. */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl_internal.h"

enum { COUNTS_LOOK_US = 20 };

/* What a member tells the others before an all_to_all_v. */
struct bounds {
    int64_t send_rows_max, recv_rows_max;
    int32_t send_counts[HD_COMM_NCCL_RANKS_MAX];
};

_Static_assert((int)HD_COMM_NCCL_RANKS_MAX <= (int)HD_COMBINE_MAX, "an address of each member");
_Static_assert(HD_COMM_NCCL_RANKS_MAX * sizeof(struct bounds) <= NCCL_SCRATCH, "of all members");

static const struct hd_device_table *device_of(const struct hd_comm_op *op)
{
    return hd_comm_side_calls(op->stream->comm->side);
}

static enum hd_status copy(const struct hd_comm_op *op, char *to, const char *from, int64_t bytes)
{
    return bytes == 0 || to == from ? HD_OK
                                    : device_of(op)->copy(hd_comm_side_stream(op), to, from, bytes);
}

/* ---- groups of sends and receives ---- */

/* Of one member with one other: where from and where to, how much. */
struct nccl_part {
    const char *send;
    char *recv;
    int64_t send_bytes, recv_bytes;
};

/* Everything between this member and all others as one group of calls; with itself, a copy. */
static enum hd_status exchange(struct hd_comm_op *op, struct hd_nccl_comm *comm,
                               const struct nccl_part *parts)
{
    struct hd_comm_group *group = op->group;
    struct nccl_state *nccl = nccl_of(group->comm);
    struct hd_stream *stream = hd_comm_side_stream(op);
    enum hd_status st = copy(op, parts[group->index].recv, parts[group->index].send,
                             parts[group->index].recv_bytes);
    enum hd_status end;

    if (!st)
        st = nccl_enter(nccl);
    if (st)
        return st;
    st = nccl->calls->group_begin();
    if (st) {
        nccl_leave(nccl);
        return st;
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
    nccl_leave(nccl);
    if (!st)
        st = end;
    return st ? st : nccl_settle(group->comm, comm, hd_comm_op_name(op));
}

/* ---- sums ---- */

/* The sum of the own share [begin, end) of `piece` elements at `send`; parts of peers in the stage.
 */
static enum hd_status add_share(struct hd_comm_op *op, const char *own, char *out, int64_t count)
{
    const int64_t bytes = count * (int64_t)hd_dtype_size(op->dtype);
    struct hd_combine_args args = {.outs = 1,
                                   .ins = op->group->size,
                                   .count = count,
                                   .dtype = op->dtype,
                                   .max = op->reduce == HD_COMM_MAX};

    args.out[0] = out;
    for (int m = 0; m < op->group->size; m++)
        args.in[m] = m == op->group->index ? own : nccl_stage(op) + m * bytes;
    return count ? device_of(op)->combine(hd_comm_side_stream(op), &args) : HD_OK;
}

static enum hd_status all_reduce_piece(struct hd_comm_op *op, struct hd_nccl_comm *comm, int64_t at,
                                       int64_t count)
{
    struct hd_comm_group *group = op->group;
    const int64_t size = (int64_t)hd_dtype_size(op->dtype);
    const char *send = op->send + at * size;
    char *recv = op->recv + at * size;
    struct nccl_part out[HD_COMM_NCCL_RANKS_MAX] = {{0}}, back[HD_COMM_NCCL_RANKS_MAX] = {{0}};
    int64_t begin, end, own_begin, own_end;
    enum hd_status st;

    hd_comm_slice(count, op->dtype, group->size, group->index, &own_begin, &own_end);
    for (int m = 0; m < group->size; m++) {
        hd_comm_slice(count, op->dtype, group->size, m, &begin, &end);
        if (m == group->index)
            continue;
        out[m] = (struct nccl_part){send + begin * size,
                                    nccl_stage(op) + m * (own_end - own_begin) * size,
                                    (end - begin) * size, (own_end - own_begin) * size};
        back[m] = (struct nccl_part){recv + own_begin * size, recv + begin * size,
                                     (own_end - own_begin) * size, (end - begin) * size};
    }
    st = exchange(op, comm, out);
    if (!st)
        st = add_share(op, send + own_begin * size, recv + own_begin * size, own_end - own_begin);
    return st ? st : exchange(op, comm, back);
}

static enum hd_status reduce_scatter_piece(struct hd_comm_op *op, struct hd_nccl_comm *comm,
                                           int64_t at, int64_t count)
{
    struct hd_comm_group *group = op->group;
    const int64_t size = (int64_t)hd_dtype_size(op->dtype);
    struct nccl_part parts[HD_COMM_NCCL_RANKS_MAX] = {{0}};
    enum hd_status st;

    for (int m = 0; m < group->size; m++) {
        if (m != group->index)
            parts[m] =
                (struct nccl_part){op->send + (m * op->count + at) * size,
                                   nccl_stage(op) + m * count * size, count * size, count * size};
    }
    st = exchange(op, comm, parts);
    return st ? st
              : add_share(op, op->send + (group->index * op->count + at) * size,
                          op->recv + at * size, count);
}

static enum hd_status ordered_sum(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    const bool everywhere = op->kind == HD_COMM_ALL_REDUCE;
    const int64_t size = (int64_t)hd_dtype_size(op->dtype);
    /* of a piece each member stages P parts: a P-th of it each, or all of it */
    const int64_t lines = NCCL_STAGE / HD_COMM_ALIGN / op->group->size - 1;
    const int64_t most = lines * HD_COMM_ALIGN / size * (everywhere ? op->group->size : 1);
    enum hd_status st = HD_OK;

    for (int64_t at = 0; at < op->count && !st; at += most) {
        const int64_t count = op->count - at < most ? op->count - at : most;

        st = everywhere ? all_reduce_piece(op, comm, at, count)
                        : reduce_scatter_piece(op, comm, at, count);
    }
    return st;
}

/* ---- all_to_all_v ---- */

/* Until the stream has come to `counted`: with the deadline, and with an eye on the others, as all
 * waits. */
static enum hd_status wait_for_counts(struct hd_comm_op *op)
{
    struct hd_comm *comm = op->group->comm;
    struct nccl_state *nccl = nccl_of(comm);
    struct hd_comm_side_clock clock = {.run = comm->side->told[op->stream->name],
                                       .still_since_ms = hd_clock_now_ms()};

    for (int looks = 0;; looks++) {
        const int64_t now_ms = hd_clock_now_ms();
        bool done = false;
        enum hd_status st = device_of(op)->event_done(nccl->counted, &done);

        nccl_note_life(nccl);
        if (!st && !done)
            st = hd_comm_side_look(comm, op->stream->name, &clock, now_ms);
        if (!st) /* also behind `done`: an abort ends kernels */
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

/* Brings the bounds of all members to the host: here it waits for the device. */
static enum hd_status read_bounds(struct hd_comm_op *op, struct hd_nccl_comm *comm,
                                  struct bounds *ret_bounds)
{
    struct hd_comm_group *group = op->group;
    struct nccl_state *nccl = nccl_of(group->comm);
    struct hd_stream *stream = hd_comm_side_stream(op);
    const struct bounds own = {op->send_rows_max, op->recv_rows_max, {0}};
    char *all = nccl_stage(op) + NCCL_STAGE,
         *mine = all + (size_t)group->index * sizeof(struct bounds);
    enum hd_status st = device_of(op)->write(stream, mine, &own, sizeof own);

    if (!st)
        st = device_of(op)->copy(stream, mine + offsetof(struct bounds, send_counts),
                                 op->send_counts, group->size * (int64_t)sizeof(int32_t));
    if (!st)
        st = nccl_enter(nccl);
    if (st)
        return st;
    nccl_may_block(nccl);
    st = nccl->calls->all_gather(comm, stream, all, mine, sizeof own);
    nccl_leave(nccl);
    if (!st)
        st = nccl_settle(group->comm, comm, "the counts of an all_to_all_v");
    if (!st)
        st = device_of(op)->event_record(nccl->counted, stream);
    if (!st)
        st = wait_for_counts(op);
    return st ? st
              : device_of(op)->read(stream, ret_bounds, all,
                                    group->size * (int64_t)sizeof(struct bounds));
}

static bool exceeds(const struct bounds *all, int members)
{
    for (int m = 0; m < members; m++) {
        int64_t sent = 0, received = 0;

        for (int o = 0; o < members; o++) {
            if (all[m].send_counts[o] < 0)
                return true;
            sent += all[m].send_counts[o];
            received += all[o].send_counts[m];
        }
        if (sent > all[m].send_rows_max || received > all[m].recv_rows_max)
            return true;
    }
    return false;
}

static enum hd_status exchange_rows(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    struct hd_comm_group *group = op->group;
    struct hd_stream *stream = hd_comm_side_stream(op);
    const int64_t row = hd_comm_unit_bytes(op);
    const int me = group->index;
    struct bounds all[HD_COMM_NCCL_RANKS_MAX];
    struct nccl_part parts[HD_COMM_NCCL_RANKS_MAX] = {{0}};
    int32_t counts[HD_COMM_NCCL_RANKS_MAX] = {0}, one = 1;
    const char *from = op->send;
    char *to = op->recv;
    enum hd_status st = read_bounds(op, comm, all);
    bool exceeded;

    if (st)
        return st;
    exceeded = exceeds(all, group->size);
    for (int m = 0; m < group->size && !exceeded; m++) {
        const int64_t before = from - op->send; /* what members before m are sent */

        counts[m] = all[m].send_counts[me];
        parts[m] = (struct nccl_part){op->send + before, to, all[me].send_counts[m] * row,
                                      counts[m] * row};
        from += all[me].send_counts[m] * row;
        to += counts[m] * row;
    }
    if (op->recv_counts)
        st = device_of(op)->write(stream, op->recv_counts, counts,
                                  group->size * (int64_t)sizeof counts[0]);
    if (!st && exceeded)
        st = device_of(op)->write(stream, op->overflow, &one, sizeof one);
    return st || exceeded ? st : exchange(op, comm, parts);
}

/* ---- everything else ---- */

static enum hd_status all_to_all(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    const int64_t unit = hd_comm_unit_bytes(op);
    struct nccl_part parts[HD_COMM_NCCL_RANKS_MAX];

    for (int m = 0; m < op->group->size; m++)
        parts[m] = (struct nccl_part){op->send + m * unit, op->recv + m * unit, unit, unit};
    return exchange(op, comm, parts);
}

/* What NCCL has a call for. */
static enum hd_status call(struct hd_comm_op *op, struct hd_nccl_comm *comm)
{
    struct hd_comm_group *group = op->group;
    struct nccl_state *nccl = nccl_of(group->comm);
    const struct hd_nccl_table *calls = nccl->calls;
    struct hd_stream *stream = hd_comm_side_stream(op);
    const int64_t unit = hd_comm_unit_bytes(op);
    const uint64_t others = (uint64_t)(group->size - 1);
    uint64_t *moved = &group->counts[op->kind].moved_bytes;
    enum hd_status st;

    if (unit == 0 && op->kind != HD_COMM_BARRIER)
        return HD_OK; /* members agree on sizes: all skip it */
    st = nccl_enter(nccl);
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
    default: /* HD_COMM_BARRIER: a byte of everybody to everybody */
        st = calls->all_gather(comm, stream, nccl_stage(op) + NCCL_STAGE,
                               nccl_stage(op) + NCCL_STAGE + group->index, 1);
        break;
    }
    nccl_leave(nccl);
    return st ? st : nccl_settle(group->comm, comm, hd_comm_op_name(op));
}

/* A group of one needs no NCCL. */
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
        return device_of(op)->exchange_rows(hd_comm_side_stream(op), &args);
    }
    return op->kind == HD_COMM_BARRIER ? HD_OK
                                       : copy(op, op->recv, op->send, hd_comm_unit_bytes(op));
}

/* From now on the watchdog sees to it that this ends. */
static void begin_handing(const struct hd_comm_op *op)
{
    struct nccl_state *nccl = nccl_of(op->group->comm);

    atomic_store(&nccl->handing_on, (int)op->stream->name);
    atomic_store(&nccl->handing_launch, op->launch);
    atomic_store(&nccl->handing_since_ms, hd_clock_now_ms());
}

static void end_handing(const struct hd_comm_op *op)
{
    atomic_store(&nccl_of(op->group->comm)->handing_since_ms, 0);
}

static enum hd_status hand_over(struct hd_comm_op *op)
{
    struct hd_nccl_comm *comm;
    enum hd_status st;

    if (op->group->size == 1)
        return alone(op);
    begin_handing(op);
    st = nccl_need(op->group, &comm);
    if (st)
        return st;
    if (op->kind == HD_COMM_ALL_TO_ALL_V)
        return exchange_rows(op, comm);
    if (op->kind == HD_COMM_ALL_TO_ALL)
        return all_to_all(op, comm);
    if (hd_comm_reduces(op->kind) && !op->group->comm->native_sums)
        return ordered_sum(op, comm);
    return call(op, comm);
}

/* A failure that sticks already is reported as it is. */
static enum hd_status fail(const struct hd_comm_op *op, enum hd_status st)
{
    struct hd_comm *comm = op->group->comm;
    char story[HD_COMM_REASON_MAX];

    if (comm->failure.status)
        return hd_err_restore(&comm->failure);
    (void)snprintf(story, sizeof story, "%s", hd_err_message());
    if (comm->engine->failure(comm))
        return comm->engine->failure(comm);
    return hd_comm_fail(comm, st, "%s #%" PRIu64 " of group %s: %s", hd_comm_op_name(op), op->seq,
                        op->group->name, story);
}

static bool has_turn(const struct hd_comm_op *op)
{
    return op->launch == nccl_of(op->group->comm)->handed + 1;
}

/* An operation whose turn it is, by what hands it to NCCL. */
static enum hd_status step(struct hd_comm_op *op, enum hd_status (*hand)(struct hd_comm_op *),
                           bool *moved)
{
    enum hd_status st;

    if (!has_turn(op))
        return HD_OK;
    hd_comm_set_state(op, HD_COMM_ENTERED);
    st = hand(op);
    end_handing(op);
    if (st)
        return fail(op, st);
    nccl_of(op->group->comm)->handed = op->launch;
    hd_comm_set_state(op, HD_COMM_COMPLETE);
    *moved = true;
    return HD_OK;
}

enum hd_status nccl_collective_step(struct hd_comm_op *op, bool *moved)
{
    return step(op, hand_over, moved);
}

/* ---- sends and receives ---- */

/* In a group of one: the sends of a launch go to its receives, in their order. */
static enum hd_status hand_pair_to_itself(struct hd_comm_op *op)
{
    uint64_t place = op->stream->completed;
    enum hd_status st = HD_OK;
    bool found = false, last = false;

    if (op->way == HD_COMM_TO_PEER)
        return HD_OK; /* its receive takes it */
    for (; !last && !found; place++) {
        const struct hd_comm_op *send = hd_comm_op_at(op->stream, place);

        last = send->last;
        found = send->way == HD_COMM_TO_PEER && send->group == op->group && send->seq == op->seq;
        if (found)
            st = copy(op, op->recv, send->send, hd_comm_unit_bytes(op));
    }
    return found
               ? st
               : hd_err(HD_UNSUPPORTED, "a rank sends to itself only in the launch that receives");
}

/* One of a launch; the last closes the group of calls. A bundle has one group of members. */
static enum hd_status hand_pair_over(struct hd_comm_op *op)
{
    struct nccl_state *nccl = nccl_of(op->group->comm);
    struct hd_stream *stream = hd_comm_side_stream(op);
    const int64_t bytes = hd_comm_unit_bytes(op);
    struct hd_nccl_comm *comm;
    enum hd_status st = HD_OK;

    if (op->group->size == 1)
        return hand_pair_to_itself(op);
    begin_handing(op);
    st = nccl_need(op->group, &comm);
    if (!st)
        st = nccl_enter(nccl);
    if (st) {
        /* A group of calls that an abort came into stays open: its communicators are gone, so it
         * cannot be closed, and this endpoint makes no more calls. */
        nccl->grouping = false;
        return st;
    }
    if (!nccl->grouping)
        st = nccl->calls->group_begin();
    nccl->grouping = !st;
    if (!st && bytes && op->way == HD_COMM_TO_PEER)
        st = nccl->calls->send(comm, stream, op->send, bytes, op->peer);
    else if (!st && bytes)
        st = nccl->calls->recv(comm, stream, op->recv, bytes, op->peer);
    if (nccl->grouping &&
        (op->last || st)) { /* also behind a failure: nothing may stay open on this thread */
        enum hd_status end;

        nccl_may_block(nccl);
        end = nccl->calls->group_end();
        nccl->grouping = false;
        st = st ? st : end;
    }
    nccl_leave(nccl);
    if (op->way == HD_COMM_FROM_PEER && op->peer != op->group->index)
        op->group->counts[op->kind].moved_bytes += (uint64_t)bytes;
    return st || !op->last ? st : nccl_settle(op->group->comm, comm, hd_comm_op_name(op));
}

enum hd_status nccl_pair_step(struct hd_comm_op *op, bool *moved)
{
    return step(op, hand_pair_over, moved);
}
