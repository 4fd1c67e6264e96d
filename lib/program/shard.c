/* shard: inserts the collectives that sum the gradients of each part over ranks.
 *
 * Without ZeRO and with stage 1 they start after the part's last contribution of the step: after
 * the last node, in the order F, B, W, that adds to it, in the step's last micro-batch only. They
 * are all-reduces in place, or with ZeRO reduce-scatters to this rank's shard in place, on the
 * reduce stream, and overlap with the backward of earlier units. The update waits for all of them.
 * A tied weight that two chunks of one rank use is summed in the chunk of the embedding, whose
 * backward comes last. If they are on two ranks, the update adds their sums (lib/optim).
 *
 * With stages 2 and 3 each program has a bucket per part. After its last contribution in the
 * program it is scattered in place, in every micro-batch, and this rank's shard is added to the
 * sums. The addition stands before the first scatter of the next unit, so that a scatter overlaps
 * with the backward of one unit and at most two units' buckets exist at a time. What no
 * contribution writes (gaps of alignment, padding) is set to zero.
 */
#include <string.h>

#include "program/emit.h"

static const enum hd_call order[] = {HD_CALL_W, HD_CALL_B, HD_CALL_F}; /* last first */

void hd_move_last_to(struct hd_node_list *list, int at)
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

    return hd_emit_at(
        grad, p->shard_count * hd_mesh_find_group(&r->mesh, p->shard_group, r->rank).index, HD_F32);
}

/* Inserts the sums of a part at index `at` of the list: first over tp for segments with partial
 * gradients, then the whole part over data parallelism. */
static void emit_sums(struct hd_emit *e, const struct hd_part *p, struct hd_store *store, int at)
{
    const struct hd_mesh *mesh = e->options->mesh;

    for (int i = 0; i <= p->segment_count; i++) {
        const bool whole = i == p->segment_count;
        const enum hd_group_name group = !whole           ? p->segments[i].sum_group
                                         : p->shard_count ? p->shard_group
                                                          : p->reduce_group;
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
        node->only_last = p->zero < 2;
        hd_move_last_to(&e->lists[e->call], at++);
    }
}

/* The index of the last contribution to the store in a list; -1: none. */
static int last_contribution(const struct hd_node_list *list, const struct hd_store *store)
{
    int i = list->count - 1;

    while (i >= 0 && !(list->nodes[i]->contribution && hd_node_touches(list->nodes[i], store)))
        i--;
    return i;
}

static void reduce_part(struct hd_emit *e, int part, struct hd_store *store)
{
    const struct hd_part *p = &e->registry->parts[part];

    for (size_t c = 0; c < sizeof order / sizeof order[0]; c++) {
        const int last = last_contribution(&e->lists[order[c]], store);

        if (last < 0)
            continue;
        e->call = order[c];
        e->unit = p->unit;
        emit_sums(e, p, store, last + 1);
        return;
    }
}

/* ---- buckets ---- */

static void zero_gap(struct hd_emit *e, int part, int64_t begin, int64_t end, int at)
{
    if (begin == end)
        return;
    (void)hd_emit_zero(e, HD_ARGS(zero, .size_bytes = (end - begin) * (int64_t)sizeof(float)),
                       HD_OPERANDS(zero, .out = hd_emit_bucket(e, part, begin)));
    hd_move_last_to(&e->lists[e->call], at);
}

/* The parameter of the part with the lowest offset from `from` on that this program contributes to;
 * NULL: none. */
static const struct hd_param *next_written(const struct hd_emit *e, int part, int64_t from)
{
    const struct hd_registry *r = e->registry;
    const struct hd_param *next = NULL;

    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];

        if (p->part == part && p->offset >= from && (!next || p->offset < next->offset) &&
            e->param_has_grad[i + (int)e->call * r->param_count])
            next = p;
    }
    return next;
}

static void zero_gaps(struct hd_emit *e, int part, struct hd_store *bucket)
{
    const struct hd_node_list *list = &e->lists[e->call];
    const struct hd_param *p;
    int64_t end = 0;
    int first = 0;

    while (first < list->count && !hd_node_touches(list->nodes[first], bucket))
        first++;
    while ((p = next_written(e, part, end)) != NULL) {
        zero_gap(e, part, end, p->offset, first);
        end = p->offset + p->real_count;
    }
    zero_gap(e, part, end, e->registry->parts[part].count, first);
}

/* sums += this rank's shard of the bucket. An empty shard has nothing to add; then the bucket's
 * first bytes are set to zero, so that compute waits for the scatter here and the bucket's memory
 * is free behind it. Without a last user it would be taken until the program ends. */
static void add_shard(struct hd_emit *e, int part, int at)
{
    const struct hd_part *p = &e->registry->parts[part];
    const int64_t count = p->shard_end - p->shard_begin;

    e->unit = p->unit;
    if (count) {
        const struct hd_operand sums = hd_emit_part(e, part, HD_STATE_GRAD, p->shard_begin);

        (void)hd_emit_add(
            e, HD_ARGS(add, .N = count, .dtype = HD_F32),
            HD_OPERANDS(add, .out = sums, .a = sums, .b = hd_emit_bucket(e, part, p->shard_begin)));
    } else {
        (void)hd_emit_zero(e, HD_ARGS(zero, .size_bytes = HD_TENSOR_ALIGN),
                           HD_OPERANDS(zero, .out = hd_emit_bucket(e, part, 0)));
    }
    hd_move_last_to(&e->lists[e->call], at);
}

static bool scatters_bucket(const struct hd_node *node)
{
    return node->is_comm && node->comm == HD_COMM_REDUCE_SCATTER &&
           hd_comm_operands_of(node)->sent.store->kind == HD_STORE_BUCKET;
}

/* Inserts the additions of the current list, each before the first scatter of another unit. */
static void add_shards(struct hd_emit *e)
{
    struct hd_node_list *list = &e->lists[e->call];
    int pending[HD_PARTS_PER_UNIT], count = 0;

    for (int i = 0; i <= list->count; i++) {
        const struct hd_node *node = i < list->count ? list->nodes[i] : NULL;
        const bool scatters = node && scatters_bucket(node);

        if (count > 0 &&
            (!node || (scatters && e->registry->parts[pending[0]].unit != node->unit))) {
            for (int k = 0; k < count; k++)
                add_shard(e, pending[k], i++);
            count = 0;
        }
        if (scatters)
            pending[count++] = hd_comm_operands_of(node)->sent.store->part;
    }
}

static void reduce_buckets(struct hd_emit *e)
{
    for (size_t c = 0; c < sizeof order / sizeof order[0]; c++) {
        e->call = order[c];
        for (int part = 0; part < e->registry->part_count; part++) {
            const struct hd_part *p = &e->registry->parts[part];
            struct hd_store *bucket = e->bucket[part * HD_CALL_COUNT + (int)e->call];

            if (!bucket)
                continue;
            e->unit = p->unit;
            zero_gaps(e, part, bucket);
            emit_sums(e, p, bucket, last_contribution(&e->lists[e->call], bucket) + 1);
        }
        add_shards(e);
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
    reduce_buckets(e);
}
