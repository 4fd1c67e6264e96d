/* One collective of a group, as a state machine in every member:
 *
 *   QUEUED   --enter-->   ENTERED   --all entered, all agree-->   MOVING
 *   MOVING   --own work done-->   LEAVING   --all have left-->   COMPLETE
 *
 * shm_enter() writes the buffers to the member's entry; reached() reads the entries of the others;
 * move_pull() copies from the others; move_reduce() adds this member's slice of all inputs and, for
 * an all_reduce, writes the sum to every recv. A barrier is complete when all have entered. There
 * are no bounce buffers: members read and write each other's registered memory.
 *
 * Access while MOVING: a member reads every send, writes its own recv, and in an all_reduce writes
 * its slice of every recv. Only one member reads and writes the elements of a slice, so an
 * all_reduce may be in place. */
#include <stdio.h>
#include <string.h>

#include "comm/ordered.h"
#include "comm/shm_internal.h"

static uint64_t stamp_of(uint64_t seq, enum shm_phase phase)
{
    return seq * 4 + (uint64_t)phase;
}

/* ---- channels ---- */

enum hd_status shm_group_open(struct hd_comm_group *group)
{
    struct shm_area *area = shm_of(group->comm)->area;
    struct shm_channel *channel = &area->channels[group->comm->group_count];

    atomic_store(&channel->id, group->id);
    group->channels[group->index] = channel;
    return HD_OK;
}

/* Returns a member's channel of the group; NULL: the member has not opened the group yet. */
static struct shm_channel *find_channel(struct hd_comm_group *group, int member)
{
    struct shm_area *area = shm_area_of(group->comm, group->members[member]);

    for (int g = 0; g < HD_COMM_GROUPS_MAX && !group->channels[member]; g++) {
        const uint64_t id = atomic_load(&area->channels[g].id);

        if (id == group->id)
            group->channels[member] = &area->channels[g];
        if (id == 0)
            break; /* channels are opened in order: all later ones are free */
    }
    return group->channels[member];
}

struct shm_entry *shm_entry_of(const struct hd_comm_op *op, int member)
{
    struct shm_channel *channel = op->group->channels[member];

    return &channel->ring[op->seq % SHM_RING];
}

const struct hd_comm_signature *shm_signature(const struct hd_comm_op *op, int member)
{
    return &shm_entry_of(op, member)->signature;
}

const int32_t *shm_send_counts(const struct hd_comm_op *op, int member)
{
    const struct hd_comm *comm = op->group->comm;

    return shm_counts(shm_area_of(comm, op->group->members[member]), comm->world,
                      op->group->channels[member], op->seq);
}

static bool has_reached(const struct hd_comm_op *op, int member, enum shm_phase phase)
{
    return find_channel(op->group, member) &&
           atomic_load(&shm_entry_of(op, member)->stamp) >= stamp_of(op->seq, phase);
}

/* Returns whether all members have reached `phase` in the collective of `op`; op->member counts the
 * members found so far. */
static bool reached(struct hd_comm_op *op, enum shm_phase phase)
{
    while (op->member < op->group->size && has_reached(op, op->member, phase))
        op->member++;
    return op->member == op->group->size;
}

/* Publishes this member's phase in the collective of `op` by its entry's stamp. The last member to
 * reach a phase wakes the others; stamps are sequentially consistent, so that member sees the
 * stamps of all others. */
static void publish(struct hd_comm_op *op, enum shm_phase phase)
{
    struct hd_comm_group *group = op->group;

    atomic_store(&shm_entry_of(op, group->index)->stamp, stamp_of(op->seq, phase));
    op->member = 0;
    if (!reached(op, phase))
        return;
    for (int m = 0; m < group->size; m++) {
        if (m != group->index)
            hd_comm_doorbell_ring(&shm_area_of(group->comm, group->members[m])->doorbell);
    }
}

int shm_collective_missing(struct hd_comm_op *op, const char **ret_what)
{
    const enum shm_phase phase = op->state == HD_COMM_LEAVING ? SHM_LEFT : SHM_ENTERED;

    if (op->state != HD_COMM_ENTERED && op->state != HD_COMM_LEAVING)
        return -1;
    *ret_what = phase == SHM_ENTERED ? "has not entered" : "has not finished its part";
    for (int m = 0; m < op->group->size; m++) {
        if (!has_reached(op, m, phase))
            return op->group->members[m];
    }
    return -1;
}

uint64_t shm_entered(struct hd_comm_group *group, int member)
{
    return hd_comm_flight_entered(shm_flight_of(group->comm, group->members[member]), group->name);
}

/* ---- entering ---- */

static enum hd_status shm_enter(struct hd_comm_op *op)
{
    const struct hd_comm *comm = op->group->comm;
    struct shm_entry *entry = shm_entry_of(op, op->group->index);
    enum hd_status st =
        hd_comm_make_signature(op, &entry->signature,
                               shm_counts(shm_of(comm)->area, comm->world,
                                          op->group->channels[op->group->index], op->seq));

    if (!st && shm_of(comm)->local)
        st = local_enter(op, entry);
    if (st)
        return st;
    if (!shm_of(comm)->local) {
        entry->send_offset = shm_offset(comm, op->send);
        entry->recv_offset = shm_offset(comm, op->recv);
    }
    hd_comm_set_state(op, HD_COMM_ENTERED);
    publish(op, SHM_ENTERED);
    return HD_OK;
}

/* Returns whether this rank's entry for the collective of `op` is free: the collective that used
 * the entry before must be complete for this rank. */
static bool shm_may_enter(const struct hd_comm_op *op)
{
    const struct shm_entry *entry = shm_entry_of(op, op->group->index);

    return op->seq <= SHM_RING || atomic_load_explicit(&entry->stamp, memory_order_relaxed) ==
                                      stamp_of(op->seq - SHM_RING, SHM_COMPLETE);
}

/* ---- moving ---- */

/* Sets which bytes this member copies from `member`: *ret_from is their offset in that member's
 * registered memory, *ret_to in this member's; both in bytes, as *ret_bytes. */
static void find_part(const struct hd_comm_op *op, int member, uint64_t *ret_from, uint64_t *ret_to,
                      int64_t *ret_bytes)
{
    const struct shm_entry *entry = shm_entry_of(op, member);
    const int64_t unit = hd_comm_unit_bytes(op);
    const int me = op->group->index;
    uint64_t to = shm_offset(op->group->comm, op->recv);

    switch (op->kind) {
    case HD_COMM_BROADCAST:
        *ret_from = entry->recv_offset;
        *ret_bytes = member == op->peer && me != op->peer ? unit : 0;
        break;
    case HD_COMM_ALL_GATHER:
        *ret_from = entry->send_offset;
        *ret_bytes = unit;
        to += (uint64_t)(member * unit);
        break;
    case HD_COMM_ALL_TO_ALL:
        *ret_from = entry->send_offset + (uint64_t)(me * unit);
        *ret_bytes = unit;
        to += (uint64_t)(member * unit);
        break;
    default: /* HD_COMM_ALL_TO_ALL_V */
        *ret_from = entry->send_offset + (uint64_t)(hd_comm_rows_sent(op, member, me) * unit);
        *ret_bytes = shm_send_counts(op, member)[me] * unit;
        to += (uint64_t)(hd_comm_rows_received(op, me, member) * unit);
        break;
    }
    *ret_to = to;
}

/* Copies up to SHM_STEP_BYTES of a copying collective from the other members. Each member starts
 * with its right neighbour, so that members do not all read one rank's memory at the same time. */
static enum hd_status move_pull(struct hd_comm_op *op, bool *ret_finished)
{
    struct hd_comm_group *group = op->group;
    int64_t budget = SHM_STEP_BYTES;

    while (op->member < group->size && budget > 0) {
        const int member = (group->index + 1 + op->member) % group->size;
        uint64_t from_offset, to_offset;
        int64_t bytes, n;
        char *from, *to;
        enum hd_status st;

        find_part(op, member, &from_offset, &to_offset, &bytes);
        st = shm_reach(group->comm, group->members[member], from_offset, bytes, &from);
        if (!st)
            st = shm_reach(group->comm, group->comm->rank, to_offset, bytes, &to);
        if (st)
            return st;
        n = bytes - op->cursor < budget ? bytes - op->cursor : budget;
        if (n > 0 && from != to)
            memcpy(to + op->cursor, from + op->cursor, (size_t)n);
        if (member != group->index)
            group->counts[op->kind].moved_bytes += (uint64_t)n;
        op->cursor += n;
        budget -= n;
        if (op->cursor == bytes) {
            op->member++;
            op->cursor = 0;
        }
    }
    *ret_finished = op->member == group->size;
    return HD_OK;
}

/* Copies [at, at + bytes) of this member's recv, just summed, to the equal range of every other
 * recv. */
static enum hd_status spread(struct hd_comm_op *op, int64_t at, int64_t bytes)
{
    struct hd_comm_group *group = op->group;

    for (int m = 0; m < group->size; m++) {
        char *to;
        enum hd_status st;

        if (m == group->index)
            continue;
        st = shm_reach(group->comm, group->members[m],
                       shm_entry_of(op, m)->recv_offset + (uint64_t)at, bytes, &to);
        if (st)
            return st;
        memcpy(to, op->recv + at, (size_t)bytes);
        group->counts[op->kind].moved_bytes += (uint64_t)bytes;
    }
    return HD_OK;
}

/* Adds up to SHM_STEP_BYTES of this member's slice of all inputs. */
static enum hd_status move_reduce(struct hd_comm_op *op, bool *ret_finished)
{
    struct hd_comm_group *group = op->group;
    const int64_t size = (int64_t)hd_dtype_size(op->dtype);
    const bool everywhere = op->kind == HD_COMM_ALL_REDUCE;
    int64_t begin = 0, end = op->count, shift = 0, step, n;

    if (everywhere)
        hd_comm_slice(op->count, op->dtype, group->size, group->index, &begin, &end);
    else
        shift = group->index * op->count; /* offset in send; recv begins with this member's slice */
    begin += op->cursor;
    step = hd_comm_step_bytes(SHM_STEP_BYTES, group->size) / size;
    n = end - begin < step ? end - begin : step;
    if (n > 0) {
        for (int m = 0; m < group->size; m++) {
            char *at;
            const enum hd_status st =
                shm_reach(group->comm, group->members[m],
                          shm_entry_of(op, m)->send_offset + (uint64_t)((shift + begin) * size),
                          n * size, &at);

            if (st)
                return st;
            group->in[m] = at;
        }
        hd_ordered_reduce(op->recv + begin * hd_comm_result_size(op), group->in, group->size, n,
                          op->dtype, op->reduce, op->keep_fp32);
        group->counts[op->kind].moved_bytes += (uint64_t)((group->size - 1) * n * size);
        if (everywhere) {
            const enum hd_status st = spread(op, begin * size, n * size);

            if (st)
                return st;
        }
        op->cursor += n;
    }
    *ret_finished = begin + n >= end;
    return HD_OK;
}

static enum hd_status shm_move(struct hd_comm_op *op, bool *ret_finished)
{
    if (shm_of(op->group->comm)->local) {
        *ret_finished = true; /* engine local: enqueued, which is all the host does */
        return local_move(op);
    }
    if (hd_comm_reduces(op->kind))
        return move_reduce(op, ret_finished);
    return move_pull(op, ret_finished);
}

/* ---- the steps ---- */

static void begin_moving(struct hd_comm_op *op)
{
    hd_comm_set_state(op, HD_COMM_MOVING);
    op->member = 0;
    op->cursor = 0;
}

static void leave(struct hd_comm_op *op)
{
    hd_comm_set_state(op, HD_COMM_LEAVING);
    publish(op, SHM_LEFT);
}

static enum hd_status finish(struct hd_comm_op *op)
{
    if (shm_of(op->group->comm)->local) {
        const enum hd_status st = local_finish(op);

        if (st)
            return st;
    }
    atomic_store(&shm_entry_of(op, op->group->index)->stamp, stamp_of(op->seq, SHM_COMPLETE));
    hd_comm_set_state(op, HD_COMM_COMPLETE);
    return HD_OK;
}

/* Maps into this process the registered memory of all members of the group that have allocated
 * theirs. */
static enum hd_status map_members(struct hd_comm_group *group)
{
    enum hd_status st = HD_OK;

    for (int m = 0; m < group->size && !st; m++) {
        const struct shm_area *area = shm_area_of(group->comm, group->members[m]);
        char *base;

        if (atomic_load(&area->registered_bytes) > 0)
            st = shm_reach(group->comm, group->members[m], 0, 1, &base);
    }
    group->is_mapped = true;
    return st;
}

/* Compares the members' signatures of a collective. Called when all members have entered it. */
static enum hd_status shm_check_signatures(struct hd_comm_op *op)
{
    bool exceeded = false;
    enum hd_status st = hd_comm_check_signatures(op, &exceeded);

    if (!st && !op->group->is_mapped && !shm_of(op->group->comm)->local)
        st = map_members(op->group);
    if (st)
        return st;
    if (op->kind == HD_COMM_BARRIER)
        return finish(op);
    begin_moving(op);
    if (exceeded)
        leave(op); /* nothing moves */
    return HD_OK;
}

enum hd_status shm_collective_step(struct hd_comm_op *op, bool *moved)
{
    enum hd_status st = HD_OK;
    bool finished = false;

    if (op->state == HD_COMM_QUEUED && shm_may_enter(op)) {
        st = shm_enter(op);
        *moved = true;
    }
    if (!st && op->state == HD_COMM_ENTERED && reached(op, SHM_ENTERED)) {
        st = shm_check_signatures(op);
        *moved = true;
    }
    if (!st && op->state == HD_COMM_MOVING) {
        st = shm_move(op, &finished);
        *moved = true;
        if (!st && finished)
            leave(op);
    }
    if (!st && op->state == HD_COMM_LEAVING && reached(op, SHM_LEFT)) {
        st = finish(op);
        *moved = true;
    }
    return st;
}
