/* One send or receive:
 *
 *   send   QUEUED --a slot is free--> LEAVING (posted) --the receiver took it--> COMPLETE
 *   recv   QUEUED --> ENTERED --found the slot, sizes agree--> MOVING --copied--> COMPLETE
 *
 * The sender writes its buffer's offset to a slot of its outbox for the receiver; the receiver
 * copies directly from the buffer and marks the slot as taken. A slot contains the sequence number
 * of the pair, so slots may be used in any order. */
#include <string.h>

#include "comm/shm_internal.h"

enum hd_status shm_send_step(struct hd_comm_op *op, bool *moved)
{
    struct hd_comm *comm = op->group->comm;
    struct shm_slot *slot = op->slot;

    if (op->state == HD_COMM_QUEUED) {
        slot = shm_outbox(shm_of(comm)->area, hd_comm_peer_rank(op));
        for (int i = 0; i < SHM_OUTBOX && atomic_load(&slot->post) != SHM_FREE; i++)
            slot++;
        if (slot == shm_outbox(shm_of(comm)->area, hd_comm_peer_rank(op)) + SHM_OUTBOX)
            return HD_OK; /* no free slot: wait until the receiver takes one */
        slot->dtype = (uint32_t)op->dtype;
        slot->group_id = op->group->id;
        slot->seq = op->seq;
        slot->offset = shm_offset(comm, op->send);
        slot->count = op->count;
        if (shm_of(comm)->local) {
            const enum hd_status st = local_post(op, slot);

            if (st)
                return st;
        }
        op->slot = slot;
        hd_comm_set_state(op, HD_COMM_LEAVING);
        atomic_store(&slot->post, SHM_POSTED);
        hd_comm_doorbell_ring(&shm_area_of(comm, hd_comm_peer_rank(op))->doorbell);
        *moved = true;
    }
    if (op->state == HD_COMM_LEAVING && atomic_load(&slot->post) == SHM_TAKEN) {
        if (shm_of(comm)->local) {
            const enum hd_status st = local_taken(op, slot);

            if (st)
                return st;
        }
        atomic_store(&slot->post, SHM_FREE);
        hd_comm_set_state(op, HD_COMM_COMPLETE);
        *moved = true;
    }
    return HD_OK;
}

static struct shm_slot *find_post(const struct hd_comm_op *op)
{
    const struct hd_comm *comm = op->group->comm;
    struct shm_slot *slot = shm_outbox(shm_area_of(comm, hd_comm_peer_rank(op)), comm->rank);

    for (int i = 0; i < SHM_OUTBOX; i++, slot++) {
        if (atomic_load(&slot->post) == SHM_POSTED && slot->group_id == op->group->id &&
            slot->seq == op->seq)
            return slot;
    }
    return NULL;
}

static enum hd_status accept_post(struct hd_comm_op *op)
{
    const struct shm_slot *slot = op->slot;

    if (slot->count != op->count || slot->dtype != (uint32_t)op->dtype)
        return hd_comm_fail(op->group->comm, HD_INVALID,
                            "message #%llu of group %s differs: rank %d sends %lld x %s, rank %d "
                            "receives %lld x %s",
                            (unsigned long long)op->seq, op->group->name, hd_comm_peer_rank(op),
                            (long long)slot->count, hd_dtype_name((enum hd_dtype)slot->dtype),
                            op->group->comm->rank, (long long)op->count, hd_dtype_name(op->dtype));
    hd_comm_set_state(op, HD_COMM_MOVING);
    op->cursor = 0;
    return HD_OK;
}

/* Marks the slot of the sender's outbox as taken, after the copy is done (engine local:
 * enqueued). */
static void give_back(struct hd_comm_op *op)
{
    struct shm_slot *slot = op->slot;

    hd_comm_set_state(op, HD_COMM_COMPLETE);
    atomic_store(&slot->post, SHM_TAKEN);
    hd_comm_doorbell_ring(&shm_area_of(op->group->comm, hd_comm_peer_rank(op))->doorbell);
}

static enum hd_status take_on_device(struct hd_comm_op *op)
{
    const enum hd_status st = local_take(op, op->slot);

    if (st)
        return st;
    if (hd_comm_peer_rank(op) != op->group->comm->rank)
        op->group->counts[op->kind].moved_bytes += (uint64_t)hd_comm_unit_bytes(op);
    give_back(op);
    return HD_OK;
}

/* Copies up to SHM_STEP_BYTES of the message from the sender's buffer to recv. */
static enum hd_status take_step(struct hd_comm_op *op)
{
    struct hd_comm *comm = op->group->comm;
    struct shm_slot *slot = op->slot;
    const int64_t bytes = op->count * (int64_t)hd_dtype_size(op->dtype);
    const int64_t rest = bytes - op->cursor;
    const int64_t n = rest < SHM_STEP_BYTES ? rest : SHM_STEP_BYTES;
    enum hd_status st;
    char *from;

    st = shm_reach(comm, hd_comm_peer_rank(op), slot->offset, bytes, &from);
    if (st)
        return st;
    if (n > 0) {
        /* memmove: a rank's message to itself may overlap */
        memmove(op->recv + op->cursor, from + op->cursor, (size_t)n);
        if (hd_comm_peer_rank(op) != comm->rank)
            op->group->counts[op->kind].moved_bytes += (uint64_t)n;
        op->cursor += n;
    }
    if (op->cursor == bytes)
        give_back(op);
    return HD_OK;
}

enum hd_status shm_recv_step(struct hd_comm_op *op, bool *moved)
{
    enum hd_status st = HD_OK;

    if (op->state == HD_COMM_QUEUED) {
        hd_comm_set_state(op, HD_COMM_ENTERED);
        *moved = true;
    }
    if (op->state == HD_COMM_ENTERED) {
        op->slot = find_post(op);
        if (!op->slot)
            return HD_OK;
        st = accept_post(op);
        *moved = true;
    }
    if (!st && op->state == HD_COMM_MOVING) {
        st = shm_of(op->group->comm)->local ? take_on_device(op) : take_step(op);
        *moved = true;
    }
    return st;
}

int shm_pair_missing(struct hd_comm_op *op, const char **ret_what)
{
    if (op->direction == HD_COMM_TO_PEER && op->state == HD_COMM_LEAVING &&
        atomic_load(&((const struct shm_slot *)op->slot)->post) == SHM_POSTED) {
        *ret_what = "has not received it";
        return hd_comm_peer_rank(op);
    }
    if (op->direction == HD_COMM_FROM_PEER && op->state == HD_COMM_ENTERED && !find_post(op)) {
        *ret_what = "has not sent it";
        return hd_comm_peer_rank(op);
    }
    return -1;
}
