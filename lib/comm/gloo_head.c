/* gloo_head: heads of messages, which say what a message is before its bytes are taken: filled, sent, kept and
 * found by the operation that waits for them. */
#include <string.h>

#include "comm/gloo_internal.h"

enum hd_status gloo_head_fill(const struct hd_comm_op *op, struct gloo_head *ret_head)
{
    ret_head->group_id = op->group->id;
    ret_head->seq = op->seq;
    memcpy(ret_head->group, op->group->name, sizeof ret_head->group);
    return hd_comm_make_offer(op, &ret_head->offer, gloo_counts_of(ret_head));
}

bool gloo_head_may_go(struct gloo_peer *peer)
{
    const uint64_t place = peer->out_next % GLOO_HEADS_OUT;

    if (peer->out_pending[place] && hd_gloo_sent(peer->out_ticket[place]) == HD_GLOO_DONE)
        peer->out_pending[place] = false;
    return !peer->out_pending[place];
}

void gloo_head_send(const struct hd_comm_op *op, int rank, uint64_t *ret_slot)
{
    struct gloo_peer *peer = gloo_peer_of(op->group->comm, rank);
    const uint64_t place = peer->out_next++ % GLOO_HEADS_OUT;
    struct gloo_head *head = gloo_head_of(&peer->out, place);
    const size_t bytes =
        op->kind == HD_COMM_ALL_TO_ALL_V ? peer->out.each_bytes : sizeof(struct gloo_head);

    (void)gloo_head_fill(op, head); /* the counts were checked when this rank entered */
    *ret_slot = head->slot = peer->slot_next;
    peer->slot_next += 2;
    peer->out_pending[place] =
        hd_gloo_send(peer->out_ticket[place], rank, GLOO_SLOT_HEAD, place * peer->out.each_bytes,
                     bytes); /* false: the connection ended, which read_notice reports */
}

struct gloo_head *gloo_head_find(struct gloo_peer *peer, uint64_t group_id, uint64_t seq, bool send)
{
    for (int i = 0; i < GLOO_INBOX; i++) {
        struct gloo_head *head = gloo_head_of(&peer->inbox, (size_t)i);

        if (peer->used[i] && head->group_id == group_id && head->seq == seq &&
            hd_comm_is_of_a_pair(head->offer.kind) == send)
            return head;
    }
    return NULL;
}

void gloo_head_drop(struct gloo_peer *peer, struct gloo_head *head)
{
    peer->used[(size_t)((char *)head - peer->inbox.at) / peer->inbox.each_bytes] = false;
}

struct gloo_head *gloo_head_keep(struct gloo_peer *peer, const struct gloo_head *head)
{
    for (int i = 0; i < GLOO_INBOX; i++) {
        if (!peer->used[i]) {
            peer->used[i] = true;
            return memcpy(gloo_head_of(&peer->inbox, (size_t)i), head, peer->inbox.each_bytes);
        }
    }
    return NULL;
}
