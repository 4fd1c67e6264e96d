/* One collective of a group, as a state machine in every member:
 *
 *   QUEUED   --headers sent to all others-->            ENTERED
 *   ENTERED  --all headers received, all agree-->       MOVING
 *   MOVING   --everything sent, received and added-->   COMPLETE
 *
 * Copies (broadcast, all_gather, all_to_all) are flows to and from each other member, directly
 * between registered regions. In a reduction each member sums one slice: it receives that slice of
 * all inputs in the staging buffer, chunk by chunk. When a chunk of all members has arrived, it is
 * added in group order, and an all_reduce sends the sum to all others while the next chunk arrives.
 *
 * An all_reduce may be in place: a result overwrites this rank's input only after the rank that
 * made the result has received that input. */
#include <stdio.h>
#include <string.h>

#include "comm/gloo_internal.h"
#include "comm/ordered.h"

static struct gloo_run *run_of(const struct hd_comm_op *op)
{
    return op->slot;
}

const struct hd_comm_signature *gloo_signature(const struct hd_comm_op *op, int member)
{
    return &gloo_header_of(&run_of(op)->headers, (size_t)member)->signature;
}

const int32_t *gloo_send_counts(const struct hd_comm_op *op, int member)
{
    return gloo_counts_of(gloo_header_of(&run_of(op)->headers, (size_t)member));
}

/* ---- entering ---- */

static bool gloo_may_enter(const struct hd_comm_op *op)
{
    const struct hd_comm_group *group = op->group;

    for (int m = 0; m < group->size; m++) {
        if (m != group->index && !gloo_header_may_go(gloo_peer_of(group->comm, group->members[m])))
            return false;
    }
    return true;
}

static struct gloo_run *take_run(struct hd_comm *comm, const struct hd_comm_op *op)
{
    for (int s = 0; s < HD_COMM_COLLECTIVE_STREAMS; s++) {
        const struct hd_comm_stream *stream = &comm->streams[s];

        if (op >= stream->ops && op < stream->ops + HD_COMM_QUEUE_MAX)
            return &gloo_of(comm)->runs[s];
    }
    return NULL; /* never reached: an operation is always in a queue */
}

static enum hd_status gloo_enter(struct hd_comm_op *op)
{
    struct hd_comm_group *group = op->group;
    struct gloo_run *run = take_run(group->comm, op);
    enum hd_status st;

    op->slot = run;
    st = gloo_header_fill(op, gloo_header_of(&run->headers, (size_t)group->index));
    if (st)
        return st;
    for (int m = 0; m < group->size; m++) {
        if (m != group->index)
            gloo_header_send(op, group->members[m], &run->slots[m]);
    }
    op->member = 0;
    hd_comm_set_state(op, HD_COMM_ENTERED);
    return HD_OK;
}

/* Moves the members' headers for this collective from their inboxes to its struct gloo_run;
 * op->member counts them. Returns true when the headers of all members have arrived. */
static bool all_entered(struct hd_comm_op *op)
{
    struct hd_comm_group *group = op->group;

    for (; op->member < group->size; op->member++) {
        struct gloo_peer *peer = gloo_peer_of(group->comm, group->members[op->member]);
        struct gloo_header *header;

        if (op->member == group->index)
            continue;
        header = gloo_header_find(peer, group->id, op->seq, false);
        if (!header)
            return false;
        memcpy(gloo_header_of(&run_of(op)->headers, (size_t)op->member), header,
               run_of(op)->headers.each_bytes);
        gloo_header_drop(peer, header);
    }
    return true;
}

/* ---- the flows of an operation ---- */

static struct gloo_flow flow_to(const struct hd_comm_op *op, int member, int64_t at, int64_t bytes)
{
    return (struct gloo_flow){.sends = true,
                              .peer = op->group->members[member],
                              .slot = run_of(op)->slots[member],
                              .at = gloo_offset(op->group->comm, op->send) + (size_t)at,
                              .bytes = bytes,
                              .chunk = GLOO_CHUNK_MAX,
                              .ready = bytes};
}

static struct gloo_flow flow_from(const struct hd_comm_op *op, int member, int64_t at,
                                  int64_t bytes)
{
    return (struct gloo_flow){.peer = op->group->members[member],
                              .slot = gloo_header_of(&run_of(op)->headers, (size_t)member)->slot,
                              .at = gloo_offset(op->group->comm, op->recv) + (size_t)at,
                              .bytes = bytes,
                              .chunk = GLOO_CHUNK_MAX,
                              .ready = bytes};
}

/* Sets *ret_out and *ret_in to the flows of a copying collective to and from member `m`. copy_own
 * makes the copy from this member to itself. */
static void plan_copy(const struct hd_comm_op *op, int m, struct gloo_flow *ret_out,
                      struct gloo_flow *ret_in)
{
    const int64_t unit = hd_comm_unit_bytes(op);
    const int me = op->group->index;

    switch (op->kind) {
    case HD_COMM_BROADCAST:
        *ret_out = flow_to(op, m, 0, me == op->peer && m != me ? unit : 0);
        *ret_in = flow_from(op, m, 0, m == op->peer && m != me ? unit : 0);
        break;
    case HD_COMM_ALL_GATHER:
        *ret_out = flow_to(op, m, 0, unit);
        *ret_in = flow_from(op, m, m * unit, unit);
        break;
    case HD_COMM_ALL_TO_ALL:
        *ret_out = flow_to(op, m, m * unit, unit);
        *ret_in = flow_from(op, m, m * unit, unit);
        break;
    default: /* HD_COMM_ALL_TO_ALL_V */
        *ret_out =
            flow_to(op, m, hd_comm_rows_sent(op, me, m) * unit, gloo_send_counts(op, me)[m] * unit);
        *ret_in = flow_from(op, m, hd_comm_rows_received(op, me, m) * unit,
                            gloo_send_counts(op, m)[me] * unit);
        break;
    }
}

/* Returns the bytes of one chunk of a reduction: GLOO_STAGES chunks from every member fit the
 * staging buffer. */
static int64_t reduce_chunk(const struct hd_comm_op *op)
{
    const int others = op->group->size - 1;
    const int64_t fits =
        others ? GLOO_STAGE_MAX / GLOO_STAGES / others / HD_COMM_ALIGN * HD_COMM_ALIGN : 0;

    return fits == 0 || fits > GLOO_CHUNK_MAX ? GLOO_CHUNK_MAX : fits;
}

/* Returns the offset in bytes, in this rank's data memory, of the staging buffer for chunks of
 * member m. */
static size_t stage_of(const struct hd_comm_op *op, int m)
{
    const struct gloo_state *gloo = gloo_of(op->group->comm);
    const size_t stream = (size_t)(run_of(op) - gloo->runs);
    const int place = m < op->group->index ? m : m - 1;

    return gloo->stage_at + stream * gloo->stage_bytes +
           (size_t)(place * GLOO_STAGES * reduce_chunk(op));
}

/* Sets the slice of a reduction that member m sums, as bytes of send (and of recv, for an
 * all_reduce). */
static void share_of(const struct hd_comm_op *op, int m, int64_t *ret_begin, int64_t *ret_bytes)
{
    const int64_t size = (int64_t)hd_dtype_size(op->dtype);
    int64_t begin = m * op->count, end = begin + op->count;

    if (op->kind == HD_COMM_ALL_REDUCE)
        hd_comm_slice(op->count, op->dtype, op->group->size, m, &begin, &end);
    *ret_begin = begin * size;
    *ret_bytes = (end - begin) * size;
}

static void plan_sum(struct hd_comm_op *op, int m)
{
    struct gloo_run *run = run_of(op);
    int64_t begin, bytes;

    share_of(op, m, &begin, &bytes);
    run->out[m] = flow_to(op, m, begin, bytes);
    run->in[m] = flow_from(op, m, 0, run->bytes);
    run->in[m].at = stage_of(op, m);
    run->in[m].addresses = GLOO_STAGES;
    if (op->kind == HD_COMM_ALL_REDUCE) {
        run->result_in[m] = flow_from(op, m, begin, bytes);
        run->result_in[m].slot++;
        run->result_out[m] = flow_to(op, m, 0, run->bytes);
        run->result_out[m].slot++;
        run->result_out[m].at = gloo_offset(op->group->comm, op->recv) + (size_t)run->begin;
    }
    run->out[m].chunk = run->in[m].chunk = reduce_chunk(op);
    run->result_out[m].chunk = run->result_in[m].chunk = reduce_chunk(op);
    run->result_out[m].ready = 0;
}

static void plan(struct hd_comm_op *op)
{
    struct hd_comm_group *group = op->group;
    struct gloo_run *run = run_of(op);

    run->summed = 0;
    run->begin = run->bytes = 0;
    if (hd_comm_reduces(op->kind))
        share_of(op, group->index, &run->begin, &run->bytes);
    for (int m = 0; m < group->size; m++) {
        run->result_out[m] = run->result_in[m] = (struct gloo_flow){0};
        if (hd_comm_reduces(op->kind) && m != group->index)
            plan_sum(op, m);
        else if (!hd_comm_reduces(op->kind))
            plan_copy(op, m, &run->out[m], &run->in[m]);
    }
    op->cursor = 0;
}

/* ---- moving ---- */

/* Copies up to GLOO_STEP_BYTES from this member's send to its own recv. */
static void copy_own(struct hd_comm_op *op, bool *moved)
{
    const struct gloo_run *run = run_of(op);
    const struct gloo_flow *to = &run->out[op->group->index], *from = &run->in[op->group->index];
    const char *data = gloo_of(op->group->comm)->data;
    const int64_t rest = to->bytes - op->cursor;
    const int64_t n = rest < GLOO_STEP_BYTES ? rest : GLOO_STEP_BYTES;

    if (n == 0)
        return;
    if (to->at != from->at)
        memcpy(gloo_of(op->group->comm)->data + from->at + op->cursor, data + to->at + op->cursor,
               (size_t)n);
    op->cursor += n;
    *moved = true;
}

/* Returns the bytes of this rank's slice that have arrived from every other member. */
static int64_t gathered(const struct hd_comm_op *op)
{
    const struct gloo_run *run = run_of(op);
    int64_t least = run->bytes;

    for (int m = 0; m < op->group->size; m++) {
        if (m != op->group->index && run->in[m].done < least)
            least = run->in[m].done;
    }
    return least;
}

/* Adds up to GLOO_STEP_BYTES of the chunks that have arrived from every member, in group order. */
static void add_some(struct hd_comm_op *op, bool *moved)
{
    const struct hd_comm_group *group = op->group;
    const int64_t size = (int64_t)hd_dtype_size(op->dtype), chunk = reduce_chunk(op);
    const int64_t step = hd_comm_step_bytes(GLOO_STEP_BYTES, group->size);
    struct gloo_run *run = run_of(op);
    const int64_t in_chunk = run->summed % chunk, place = run->summed / chunk % GLOO_STAGES;
    const int64_t to = (op->kind == HD_COMM_ALL_REDUCE ? run->begin : 0) + run->summed;
    int64_t n = gathered(op) - run->summed;

    n = n < step ? n : step;
    n = n < chunk - in_chunk ? n : chunk - in_chunk;
    if (n <= 0)
        return;
    for (int m = 0; m < group->size; m++)
        group->in[m] = m == group->index
                           ? op->send + run->begin + run->summed
                           : gloo_of(group->comm)->data + run->in[m].at + place * chunk + in_chunk;
    hd_ordered_reduce(op->recv + to / size * hd_comm_result_size(op), group->in, group->size,
                      n / size, op->dtype, op->reduce, op->keep_fp32);
    run->summed += n;
    *moved = true;
}

static enum hd_status step_flows(struct hd_comm_op *op, int m, bool *moved)
{
    struct gloo_run *run = run_of(op);
    struct hd_comm *comm = op->group->comm;
    const int64_t before = run->in[m].done + run->result_in[m].done;
    const int64_t chunk = reduce_chunk(op);
    enum hd_status st;

    if (hd_comm_reduces(op->kind)) {
        /* a summed chunk frees its place in the staging ring, and its sum may be sent */
        run->in[m].ready = (run->summed / chunk + GLOO_STAGES) * chunk;
        run->result_out[m].ready = run->summed;
    }
    st = gloo_flow_step(comm, &run->in[m], moved);
    if (!st)
        st = gloo_flow_step(comm, &run->result_in[m], moved);
    if (!st)
        st = gloo_flow_step(comm, &run->out[m], moved);
    if (!st)
        st = gloo_flow_step(comm, &run->result_out[m], moved);
    op->group->counts[op->kind].moved_bytes +=
        (uint64_t)(run->in[m].done + run->result_in[m].done - before);
    return st;
}

static bool is_complete(const struct hd_comm_op *op)
{
    const struct gloo_run *run = run_of(op);

    for (int m = 0; m < op->group->size; m++) {
        if (m != op->group->index &&
            (!gloo_flow_done(&run->in[m]) || !gloo_flow_done(&run->out[m]) ||
             !gloo_flow_done(&run->result_in[m]) || !gloo_flow_done(&run->result_out[m])))
            return false;
    }
    return hd_comm_reduces(op->kind) ? run->summed == run->bytes
                                     : op->cursor == run->out[op->group->index].bytes;
}

static enum hd_status gloo_move(struct hd_comm_op *op, bool *moved)
{
    const struct hd_comm_group *group = op->group;

    for (int n = 1; n < group->size; n++) { /* each member starts with its right neighbour */
        const enum hd_status st = step_flows(op, (group->index + n) % group->size, moved);

        if (st)
            return st;
    }
    if (hd_comm_reduces(op->kind))
        add_some(op, moved);
    else
        copy_own(op, moved);
    if (is_complete(op)) {
        hd_comm_set_state(op, HD_COMM_COMPLETE);
        *moved = true;
    }
    return HD_OK;
}

/* Compares the members' signatures and sets up the flows of the operation. Called when all members
 * have entered it. */
static enum hd_status gloo_check_signatures(struct hd_comm_op *op)
{
    bool exceeded = false;
    const enum hd_status st = hd_comm_check_signatures(op, &exceeded);

    if (st)
        return st;
    if (op->kind == HD_COMM_BARRIER || exceeded) {
        hd_comm_set_state(op, HD_COMM_COMPLETE);
        return HD_OK;
    }
    plan(op);
    hd_comm_set_state(op, HD_COMM_MOVING);
    return HD_OK;
}

enum hd_status gloo_collective_step(struct hd_comm_op *op, bool *moved)
{
    enum hd_status st = HD_OK;

    if (op->state == HD_COMM_QUEUED && gloo_may_enter(op)) {
        st = gloo_enter(op);
        *moved = true;
    }
    if (!st && op->state == HD_COMM_ENTERED && all_entered(op)) {
        st = gloo_check_signatures(op);
        *moved = true;
    }
    if (!st && op->state == HD_COMM_MOVING)
        st = gloo_move(op, moved);
    return st;
}

int gloo_collective_missing(struct hd_comm_op *op, const char **ret_what)
{
    const struct gloo_run *run = run_of(op);

    if (op->state == HD_COMM_ENTERED && !all_entered(op)) {
        *ret_what = "has not entered";
        return op->group->members[op->member];
    }
    *ret_what = "has not finished its part";
    for (int m = 0; m < op->group->size && op->state == HD_COMM_MOVING; m++) {
        if (m != op->group->index &&
            (!gloo_flow_done(&run->in[m]) || !gloo_flow_done(&run->out[m]) ||
             !gloo_flow_done(&run->result_in[m]) || !gloo_flow_done(&run->result_out[m])))
            return op->group->members[m];
    }
    return -1;
}
