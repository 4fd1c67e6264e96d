/* One send or receive:
 *
 *   send   QUEUED --header and bytes posted with gloo--> LEAVING --received by the peer--> COMPLETE
 *   recv   QUEUED --> ENTERED --header received, sizes agree--> MOVING --bytes received--> COMPLETE
 *
 * gloo sends the bytes only when the receiver has posted its receive. A message of a rank to itself
 * uses the rank's own inbox: the header's slot holds the address of the send operation, from whose
 * buffer the receive copies. */
#include <string.h>

#include "comm/gloo_internal.h"

static bool to_itself(const struct hd_comm_op *op)
{
    return op->peer == op->group->index;
}

static int64_t bytes_of(const struct hd_comm_op *op)
{
    return op->count * (int64_t)hd_dtype_size(op->dtype);
}

/* ---- send ---- */

static enum hd_status signature(struct hd_comm_op *op, bool *moved)
{
    struct hd_comm *comm = op->group->comm;
    struct gloo_peer *peer = gloo_peer_of(comm, hd_comm_peer_rank(op));
    struct gloo_data *data;
    uint64_t slot;

    if (peer->sends == GLOO_SENDS_MAX || (!to_itself(op) && !gloo_header_may_go(peer)))
        return HD_OK; /* wait until the peer has received some of the earlier sends */
    if (to_itself(op)) {
        struct gloo_header *header =
            gloo_header_of(&peer->out, 0); /* this header is not sent: a message to itself uses no
                                              socket */

        (void)gloo_header_fill(op, header);
        header->slot = (uint64_t)(uintptr_t)op; /* address of the send operation, valid until the
                                                   send is complete */
        op->slot = NULL;
        (void)gloo_header_keep(peer, header);
    } else {
        data = gloo_data_take(comm);
        if (!data)
            return hd_comm_fail(comm, HD_NO_MEMORY, "gloo: no memory for a message to rank %d",
                                hd_comm_peer_rank(op));
        op->slot = data;
        gloo_header_send(op, hd_comm_peer_rank(op), &slot);
        (void)hd_gloo_send(data->ticket, hd_comm_peer_rank(op), slot, gloo_offset(comm, op->send),
                           (size_t)bytes_of(op)); /* returns false if the connection has ended,
                                                     which read_abort_message reports */
    }
    peer->sends++;
    hd_comm_set_state(op, HD_COMM_LEAVING);
    *moved = true;
    return HD_OK;
}

enum hd_status gloo_send_step(struct hd_comm_op *op, bool *moved)
{
    struct hd_comm *comm = op->group->comm;
    struct gloo_data *data;

    if (op->state == HD_COMM_QUEUED)
        return signature(op, moved);
    data = op->slot;
    if (to_itself(op) ? op->member == 0 : hd_gloo_sent(data->ticket) != HD_GLOO_DONE)
        return HD_OK;
    if (data)
        gloo_data_give(comm, data);
    gloo_peer_of(comm, hd_comm_peer_rank(op))->sends--;
    hd_comm_set_state(op, HD_COMM_COMPLETE);
    *moved = true;
    return HD_OK;
}

/* ---- receive ---- */

static enum hd_status accept_header(struct hd_comm_op *op, struct gloo_header *header)
{
    struct hd_comm *comm = op->group->comm;
    struct gloo_peer *peer = gloo_peer_of(comm, hd_comm_peer_rank(op));
    const uint64_t slot = header->slot;
    struct gloo_data *data;

    if (header->signature.count != op->count || header->signature.dtype != (int32_t)op->dtype)
        return hd_comm_fail(comm, HD_INVALID,
                            "message #%llu of group %s differs: rank %d sends %lld x %s, rank %d "
                            "receives %lld x %s",
                            (unsigned long long)op->seq, op->group->name, hd_comm_peer_rank(op),
                            (long long)header->signature.count,
                            hd_dtype_name((enum hd_dtype)header->signature.dtype), comm->rank,
                            (long long)op->count, hd_dtype_name(op->dtype));
    gloo_header_drop(peer, header);
    hd_comm_set_state(op, HD_COMM_MOVING);
    op->cursor = 0;
    if (to_itself(op)) {
        op->slot = (void *)(uintptr_t)slot;
        return HD_OK;
    }
    data = gloo_data_take(comm);
    if (!data)
        return hd_comm_fail(comm, HD_NO_MEMORY, "gloo: no memory for a message of rank %d",
                            hd_comm_peer_rank(op));
    op->slot = data;
    (void)hd_gloo_recv(data->ticket, hd_comm_peer_rank(op), slot, gloo_offset(comm, op->recv),
                       (size_t)bytes_of(op));
    return HD_OK;
}

static bool copy_some(struct hd_comm_op *op)
{
    struct hd_comm_op *send = op->slot;
    const int64_t rest = bytes_of(op) - op->cursor;
    const int64_t n = rest < GLOO_STEP_BYTES ? rest : GLOO_STEP_BYTES;

    if (n > 0)
        memmove(op->recv + op->cursor, send->send + op->cursor, (size_t)n); /* the two buffers may
                                                                               overlap */
    op->cursor += n;
    if (n < rest)
        return false;
    send->member = 1; /* marks the send as received */
    return true;
}

enum hd_status gloo_recv_step(struct hd_comm_op *op, bool *moved)
{
    struct hd_comm *comm = op->group->comm;

    if (op->state == HD_COMM_QUEUED) {
        hd_comm_set_state(op, HD_COMM_ENTERED);
        *moved = true;
    }
    if (op->state == HD_COMM_ENTERED) {
        struct gloo_header *header = gloo_header_find(gloo_peer_of(comm, hd_comm_peer_rank(op)),
                                                      op->group->id, op->seq, true);
        enum hd_status st;

        if (!header)
            return HD_OK;
        *moved = true;
        st = accept_header(op, header);
        if (st)
            return st;
    }
    if (to_itself(op)) {
        *moved = true;
        if (!copy_some(op))
            return HD_OK;
    } else {
        struct gloo_data *data = op->slot;

        if (hd_gloo_received(data->ticket) != HD_GLOO_DONE)
            return HD_OK;
        gloo_data_give(comm, data);
        op->group->counts[op->kind].moved_bytes += (uint64_t)bytes_of(op);
        *moved = true;
    }
    hd_comm_set_state(op, HD_COMM_COMPLETE);
    return HD_OK;
}

int gloo_pair_missing(struct hd_comm_op *op, const char **ret_what)
{
    if (op->direction == HD_COMM_TO_PEER && op->state == HD_COMM_LEAVING) {
        *ret_what = "has not received it";
        return hd_comm_peer_rank(op);
    }
    if (op->direction == HD_COMM_FROM_PEER) {
        *ret_what = "has not sent it";
        return hd_comm_peer_rank(op);
    }
    return -1;
}
