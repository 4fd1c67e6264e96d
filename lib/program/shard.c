/* shard: inserts the collectives that sum the gradients of each part over ranks.
 *
 * They start after the part's last contribution of the step: after the last node, in the order F,
 * B, W, that adds to it, in the step's last micro-batch only. They are all-reduces in place, or
 * with ZeRO reduce-scatters to this rank's shard in place, on the reduce stream, and overlap with
 * the backward of earlier units. The update waits for all of them. A tied weight that two chunks of
 * one rank use is summed in the chunk of the embedding, whose backward comes last. If they are on
 * two ranks, the update adds their sums (lib/optim).
 */
#include <string.h>

#include "program/emit.h"

static const enum hd_call order[] = {HD_CALL_W, HD_CALL_B, HD_CALL_F}; /* last first */

/* Moves the last node of the list to index `at`. */
static void move_last_to(struct hd_node_list *list, int at)
{
    struct hd_node *node = list->nodes[list->count - 1];

    memmove(&list->nodes[at + 1], &list->nodes[at],
            (size_t)(list->count - 1 - at) * sizeof(struct hd_node *));
    list->nodes[at] = node;
}

/* Where this rank's shard begins; beyond the part's end there is room for it, too. */
static struct hd_operand shard_of_sums(const struct hd_emit *e, const struct hd_part *p,
                                       struct hd_operand grad)
{
    const struct hd_registry *r = e->registry;

    return hd_emit_at(grad,
                      p->shard_count * hd_mesh_find_group(&r->mesh, p->reduce_group, r->rank).index,
                      HD_F32);
}

/* Inserts the sums of a part at index `at` of the list: first over tp for segments with partial
 * gradients, then the whole part over data parallelism. */
static void emit_sums(struct hd_emit *e, const struct hd_part *p, struct hd_store *store, int at)
{
    const struct hd_mesh *mesh = e->options->mesh;

    for (int i = 0; i <= p->segment_count; i++) {
        const bool whole = i == p->segment_count;
        const enum hd_group_name group = whole ? p->reduce_group : p->segments[i].sum_group;
        const int64_t begin = whole ? 0 : p->segments[i].begin;
        const int64_t end = whole ? p->count : p->segments[i].end;
        const struct hd_operand grad = {store, begin * (int64_t)sizeof(float)};
        struct hd_node *node;

        if (group == HD_GROUP_COUNT || hd_mesh_find_group(mesh, group, 0).size == 1)
            continue;
        if (whole && p->shard_count)
            node = hd_emit_comm(
                e,
                HD_ARGS(comm, .kind = HD_COMM_REDUCE_SCATTER, .group = group,
                        .count = p->shard_count, .dtype = HD_F32),
                HD_OPERANDS(comm, .received = shard_of_sums(e, p, grad), .sent = grad));
        else
            node = hd_emit_comm(e,
                                HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = group,
                                        .count = end - begin, .dtype = HD_F32),
                                HD_OPERANDS(comm, .received = grad, .sent = grad));
        node->stream = HD_STREAM_REDUCE;
        node->only_last = true;
        move_last_to(&e->lists[e->call], at++);
    }
}

static void reduce_part(struct hd_emit *e, int part, struct hd_store *store)
{
    const struct hd_part *p = &e->registry->parts[part];

    for (size_t c = 0; c < sizeof order / sizeof order[0]; c++) {
        struct hd_node_list *list = &e->lists[order[c]];

        for (int i = list->count - 1; i >= 0; i--) {
            if (!list->nodes[i]->contribution || !hd_node_touches(list->nodes[i], store))
                continue;
            e->call = order[c];
            e->unit = p->unit;
            emit_sums(e, p, store, i + 1);
            return;
        }
    }
}

void hd_pass_shard(struct hd_emit *e)
{
    for (int part = 0; part < e->registry->part_count; part++) {
        struct hd_store *store = e->part_store[part * HD_STATE_KIND_COUNT + HD_STATE_GRAD];
        const bool ends_here = !e->registry->parts[part].tied || !e->options->tie_ends_elsewhere;

        if (store && ends_here)
            reduce_part(e, part, store);
    }
}
