/* shard: where the gradients of parts are summed over data parallelism.
 *
 * A part's sum may start when its last contribution of the step is in: behind the last node, in the
 * order F, B, W, that adds to it, in the step's last micro-batch only. It is an ordered sum in
 * place, on the reduce stream, and overlaps with the backward of earlier units. The update waits
 * for all of them.
 */
#include <string.h>

#include "program/emit.h"

static const enum hd_call order[] = {HD_CALL_W, HD_CALL_B, HD_CALL_F}; /* last first */

static bool contributes_to(const struct hd_node *node, int store)
{
    if (!node->contribution)
        return false;
    for (int k = 0; k < HD_KERNEL_OPERANDS_MAX; k++)
        if (node->operand[k].store == store)
            return true;
    return false;
}

/* Moves the newest node of the list to place `at`. */
static void move_last_to(struct hd_node_list *list, int at)
{
    struct hd_node *node = list->nodes[list->count - 1];

    memmove(&list->nodes[at + 1], &list->nodes[at],
            (size_t)(list->count - 1 - at) * sizeof(struct hd_node *));
    list->nodes[at] = node;
}

static void reduce_part(struct hd_emit *e, int part, int store)
{
    const struct hd_part *p = &e->registry->parts[part];

    for (size_t c = 0; c < sizeof order / sizeof order[0]; c++) {
        struct hd_node_list *list = &e->lists[order[c]];

        for (int i = list->count - 1; i >= 0; i--) {
            struct hd_operand grad = hd_emit_at(store, 0);
            struct hd_node *node;

            if (!contributes_to(list->nodes[i], store))
                continue;
            e->call = order[c];
            e->unit = p->unit;
            node =
                hd_emit_comm(e, HD_COMM_ALL_REDUCE, p->reduce_group, grad, grad, p->count, HD_F32);
            if (!node)
                return;
            node->stream = HD_STREAM_REDUCE;
            node->only_last = true;
            move_last_to(list, i + 1);
            return;
        }
    }
}

void hd_pass_shard(struct hd_emit *e)
{
    for (int part = 0; part < e->registry->part_count; part++) {
        const struct hd_part *p = &e->registry->parts[part];
        int store = e->part_store[part * HD_STATE_KIND_COUNT + HD_STATE_GRAD];
        const struct hd_mesh_group group = hd_mesh_find_group(e->options->mesh, p->reduce_group, 0);

        if (store >= 0 && group.size > 1)
            reduce_part(e, part, store);
    }
}
