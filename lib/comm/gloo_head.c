/* gloo_header: fills, sends, stores and finds message headers. A header describes an operation and
 * arrives before the operation's bytes. */
#include <string.h>

#include "comm/gloo_internal.h"

enum hd_status gloo_header_fill(const struct hd_comm_op *op, struct gloo_header *ret_header)
{
    ret_header->group_id = op->group->id;
    ret_header->seq = op->seq;
    memcpy(ret_header->group, op->group->name, sizeof ret_header->group);
    return hd_comm_make_signature(op, &ret_header->signature, gloo_counts_of(ret_header));
}

bool gloo_header_may_go(struct gloo_peer *peer)
{
    const uint64_t place = peer->out_next % GLOO_HEADERS_OUT;

    if (peer->out_pending[place] && hd_gloo_sent(peer->out_ticket[place]) == HD_GLOO_DONE)
        peer->out_pending[place] = false;
    return !peer->out_pending[place];
}

void gloo_header_send(const struct hd_comm_op *op, int rank, uint64_t *ret_slot)
{
    struct gloo_peer *peer = gloo_peer_of(op->group->comm, rank);
    const uint64_t place = peer->out_next++ % GLOO_HEADERS_OUT;
    struct gloo_header *header = gloo_header_of(&peer->out, place);
    const size_t bytes =
        op->kind == HD_COMM_ALL_TO_ALL_V ? peer->out.each_bytes : sizeof(struct gloo_header);

    (void)gloo_header_fill(op, header); /* the counts were checked when this rank entered */
    *ret_slot = header->slot = peer->slot_next;
    peer->slot_next += 2;
    peer->out_pending[place] =
        hd_gloo_send(peer->out_ticket[place], rank, GLOO_SLOT_HEADER, place * peer->out.each_bytes,
                     bytes); /* false: the connection has ended, which read_abort_message reports */
}

struct gloo_header *gloo_header_find(struct gloo_peer *peer, uint64_t group_id, uint64_t seq,
                                     bool send)
{
    for (int i = 0; i < GLOO_INBOX; i++) {
        struct gloo_header *header = gloo_header_of(&peer->inbox, (size_t)i);

        if (peer->used[i] && header->group_id == group_id && header->seq == seq &&
            hd_comm_is_of_a_pair(header->signature.kind) == send)
            return header;
    }
    return NULL;
}

void gloo_header_drop(struct gloo_peer *peer, struct gloo_header *header)
{
    peer->used[(size_t)((char *)header - peer->inbox.at) / peer->inbox.each_bytes] = false;
}

struct gloo_header *gloo_header_keep(struct gloo_peer *peer, const struct gloo_header *header)
{
    for (int i = 0; i < GLOO_INBOX; i++) {
        if (!peer->used[i]) {
            peer->used[i] = true;
            return memcpy(gloo_header_of(&peer->inbox, (size_t)i), header, peer->inbox.each_bytes);
        }
    }
    return NULL;
}
