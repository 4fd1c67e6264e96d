/* stream: assigns a stream to each node, and inserts the edges between streams.
 *
 * Nodes of one stream run in order. A node also waits, on each other stream, for the last node that
 * wrote a store that it reads, and for the last node that read or wrote a store that it writes.
 * Streams are in order, so at most one edge per other stream is needed, and none if an earlier node
 * of its own stream has waited for the same or a later node. */
#include <string.h>

#include "program/emit.h"

enum { STREAMS = HD_STREAM_COUNT };

/* Uses of one store, by stream: index of the last node that wrote the store, and index of the last
 * node that read or wrote it; -1: none. */
struct touch {
    int wrote[STREAMS], touched[STREAMS];
};

static enum hd_stream_name choose_stream(const struct hd_node *node)
{
    if (!node->is_comm)
        return HD_STREAM_COMPUTE;
    if (node->stream != HD_STREAM_COMPUTE)
        return node->stream; /* an earlier pass has chosen the stream */
    return node->comm == HD_COMM_SHIFT ? HD_STREAM_PIPELINE : HD_STREAM_GATHER;
}

struct state {
    struct touch *stores;         /* by id of the store */
    int waited[STREAMS][STREAMS]; /* [mine][other]: index of the last node of stream `other` for
                                     which a node of stream `mine` has waited; -1: none */
};

static void find_waits(struct state *s, struct hd_node *node, int index)
{
    const int mine = (int)node->stream, operands = hd_node_operand_count(node);
    int need[STREAMS];

    for (int t = 0; t < STREAMS; t++)
        need[t] = -1;
    for (int k = 0; k < operands; k++) {
        const struct hd_store *store = node->operands[k].store;
        const int *last;

        if (!store)
            continue;
        last = hd_node_access(node, k) != HD_READ ? s->stores[store->id].touched
                                                  : s->stores[store->id].wrote;
        for (int t = 0; t < STREAMS; t++)
            if (t != mine && last[t] > need[t])
                need[t] = last[t];
    }
    for (int t = 0; t < STREAMS; t++) {
        if (need[t] <= s->waited[mine][t])
            continue;
        node->waits[node->wait_count++] = need[t];
        s->waited[mine][t] = need[t];
    }
    for (int k = 0; k < operands; k++) {
        const struct hd_store *store = node->operands[k].store;

        if (!store)
            continue;
        s->stores[store->id].touched[mine] = index;
        if (hd_node_access(node, k) != HD_READ)
            s->stores[store->id].wrote[mine] = index;
    }
}

void hd_pass_stream(struct hd_emit *e)
{
    struct state s;

    s.stores = hd_arena_array(e->arena, (size_t)e->store_count + 1, sizeof *s.stores);
    if (!s.stores) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to order a program"));
        return;
    }
    for (int c = 0; c < HD_CALL_COUNT; c++) {
        if (!e->lists[c].count)
            continue;
        memset(s.stores, 0xff, (size_t)e->store_count * sizeof *s.stores); /* sets every index to
                                                                              -1 */
        memset(s.waited, 0xff, sizeof s.waited);
        for (int i = 0; i < e->lists[c].count; i++) {
            e->lists[c].nodes[i]->stream = choose_stream(e->lists[c].nodes[i]);
            find_waits(&s, e->lists[c].nodes[i], i);
        }
    }
}
