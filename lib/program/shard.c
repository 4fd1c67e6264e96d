/* shard: inserts the collectives that sum the gradients of each bucket over ranks.
 *
 * Without ZeRO and with stage 1 they start after the bucket's last contribution of the step: after
 * the last node, in the order F, B, W, that adds to it, in the step's last micro-batch only. These
 * collectives are all-reduces in place, or with ZeRO reduce-scatters to this rank's shard in place,
 * on the reduce stream, and overlap with the backward of earlier units. The update waits for all of
 * them. A tied weight that two chunks of one rank use is summed in the chunk of the embedding,
 * whose backward comes last. If the two chunks are on two ranks, the update adds their sums
 * (lib/optim).
 *
 * With stages 2 and 3 each program has a gradient bucket for each bucket. After its last
 * contribution in the program the gradient bucket is reduce-scattered in place, in every
 * micro-batch, and this rank's shard is added to the sums. The addition is placed before the first
 * scatter of the next unit, so that a scatter overlaps with the backward of one unit and at most
 * two units' gradient buckets exist at a time. Elements that no contribution writes (alignment
 * gaps, padding) are set to zero.
 *
 * With train.grad_reduce_dtype: bf16 the sums over data-parallel ranks travel in bf16
 * (docs/decisions/gradient-reduction.md). Compute rounds the bucket, or its gradient bucket, to a
 * temporary; a reduce-scatter outputs fp32, an all-reduce outputs bf16, which compute widens.
 * Compute uses a sum before it rounds the next unit's gradient, so that one unit's temporaries
 * exist at a time. A reduction that could begin in F begins with B, so that it overlaps with B.
 */

#include "program/emit.h"

static const enum hd_call order[] = {HD_CALL_W, HD_CALL_B, HD_CALL_F}; /* programs in which a
                                                                          bucket's last contribution
                                                                          is looked for, the last
                                                                          one first */

/* Returns the operand of this rank's ZeRO shard of the bucket's gradient. The shard's memory exists
 * even where the shard is beyond the bucket's end. */
static struct hd_operand shard_of_sums(const struct hd_emit *e, const struct hd_bucket *p,
                                       struct hd_operand grad)
{
    const struct hd_registry *r = e->registry;

    return hd_emit_at(
        grad, p->shard_count * hd_mesh_find_group(&r->mesh, p->shard_group, r->rank).index, HD_F32);
}

static bool is_alone(const struct hd_emit *e, enum hd_group_name group)
{
    return group == HD_GROUP_COUNT || hd_mesh_find_group(e->options->mesh, group, 0).size == 1;
}

static bool uses_wire(const struct hd_emit *e)
{
    return e->options->wire != HD_F32;
}

/* Moves the new node, the last of the list, to index `at`. Reductions of the step's gradient sums
 * run in the last micro-batch only, those of gradient buckets in every micro-batch. */
static void insert(struct hd_emit *e, const struct hd_bucket *p, struct hd_node *node, int at)
{
    node->only_last = p->zero < 2;
    hd_move_last_to(&e->lists[e->call], at);
}

static void insert_sum(struct hd_emit *e, const struct hd_bucket *p, struct hd_node *node, int at)
{
    node->stream = HD_STREAM_REDUCE;
    insert(e, p, node, at);
}

/* Inserts the sums over tp of segments with partial gradients at index `at`. Returns the index
 * behind them. */
static int emit_segment_sums(struct hd_emit *e, const struct hd_bucket *p, struct hd_store *store,
                             int at)
{
    for (int i = 0; i < p->segment_count; i++) {
        const struct hd_segment *s = &p->segments[i];
        const struct hd_operand grad = {store, s->begin * (int64_t)sizeof(float)};

        if (is_alone(e, s->sum_group))
            continue;
        insert_sum(e, p,
                   hd_emit_comm(e,
                                HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = s->sum_group,
                                        .count = s->end - s->begin, .dtype = HD_F32),
                                HD_OPERANDS(comm, .received = grad, .sent = grad)),
                   at++);
    }
    return at;
}

/* Inserts the rounding of `count` elements of the gradient to a new temporary in the encoding of
 * train.grad_reduce_dtype, which it returns. */
static struct hd_operand emit_rounding(struct hd_emit *e, const struct hd_bucket *p,
                                       struct hd_operand grad, int64_t count, int at)
{
    const int bucket = (int)(p - e->registry->buckets);
    const struct hd_operand wire = hd_emit_wire(e, bucket, count);

    insert(e, p,
           hd_emit_cast(
               e, HD_ARGS(cast, .N = count, .inp_dtype = HD_F32, .out_dtype = e->options->wire),
               HD_OPERANDS(cast, .out = wire, .inp = grad)),
           at);
    return wire;
}

/* Inserts, at index `at`, the sum of the whole bucket's gradient over data-parallel ranks. */
static void emit_data_sum(struct hd_emit *e, const struct hd_bucket *p, struct hd_store *store,
                          int at)
{
    const bool scatters = p->shard_count > 0;
    const struct hd_operand grad = {store, 0};
    const int64_t count = scatters ? hd_bucket_shards_count(e->registry, p) : p->count;
    struct hd_operand sent = grad;
    struct hd_node *node;

    if (is_alone(e, scatters ? p->shard_group : p->reduce_group))
        return;
    if (uses_wire(e))
        sent = emit_rounding(e, p, grad, count, at++);
    if (scatters)
        node = hd_emit_comm(e,
                            HD_ARGS(comm, .kind = HD_COMM_REDUCE_SCATTER, .group = p->shard_group,
                                    .count = p->shard_count, .dtype = e->options->wire,
                                    .keep_fp32 = uses_wire(e)),
                            HD_OPERANDS(comm, .received = shard_of_sums(e, p, grad), .sent = sent));
    else
        node = hd_emit_comm(e,
                            HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = p->reduce_group,
                                    .count = count, .dtype = e->options->wire),
                            HD_OPERANDS(comm, .received = sent, .sent = sent));
    insert_sum(e, p, node, at);
}

/* Inserts the reductions of a bucket's gradient at index `at` of the current list. */
static void emit_sums(struct hd_emit *e, const struct hd_bucket *p, struct hd_store *store, int at)
{
    emit_data_sum(e, p, store, emit_segment_sums(e, p, store, at));
}

/* Returns the index of the last node in a list that contributes to the gradient in the store; -1:
 * none. */
static int last_contribution(const struct hd_node_list *list, const struct hd_store *store)
{
    int i = list->count - 1;

    while (i >= 0 && !(list->nodes[i]->contribution && hd_node_touches(list->nodes[i], store)))
        i--;
    return i;
}

static void reduce_bucket(struct hd_emit *e, int bucket, struct hd_store *store)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];

    for (size_t c = 0; c < sizeof order / sizeof order[0]; c++) {
        int last = last_contribution(&e->lists[order[c]], store);

        if (last < 0)
            continue;
        e->call = order[c];
        e->unit = p->unit;
        if (uses_wire(e) && e->call == HD_CALL_F && e->lists[HD_CALL_B].count) {
            e->call = HD_CALL_B;
            last = -1;
        }
        emit_sums(e, p, store, last + 1);
        return;
    }
}

/* ---- gradient buckets ---- */

static void zero_gap(struct hd_emit *e, int bucket, int64_t begin, int64_t end, int at)
{
    if (begin == end)
        return;
    (void)hd_emit_zero(e, HD_ARGS(zero, .size_bytes = (end - begin) * (int64_t)sizeof(float)),
                       HD_OPERANDS(zero, .out = hd_emit_grad_bucket(e, bucket, begin)));
    hd_move_last_to(&e->lists[e->call], at);
}

/* Returns, of the bucket's parameters to whose gradients the current program contributes, the one
 * with the lowest offset from `from` on; NULL: none. */
static const struct hd_param *next_written(const struct hd_emit *e, int bucket, int64_t from)
{
    const struct hd_registry *r = e->registry;
    const struct hd_unit *unit = &r->units[r->buckets[bucket].unit];
    const struct hd_param *next = NULL;

    for (int i = unit->first_param; i < unit->first_param + unit->param_count; i++) {
        const struct hd_param *p = &r->params[i];

        if (p->bucket == bucket && p->offset >= from && (!next || p->offset < next->offset) &&
            e->param_has_grad[i + (int)e->call * r->param_count])
            next = p;
    }
    return next;
}

static void zero_gaps(struct hd_emit *e, int bucket, struct hd_store *grad_bucket)
{
    const struct hd_node_list *list = &e->lists[e->call];
    const struct hd_param *p;
    int64_t end = 0;
    int first = 0;

    while (first < list->count && !hd_node_touches(list->nodes[first], grad_bucket))
        first++;
    while ((p = next_written(e, bucket, end)) != NULL) {
        zero_gap(e, bucket, end, p->offset, first);
        end = p->offset + p->real_count;
    }
    zero_gap(e, bucket, end, e->registry->buckets[bucket].count, first);
}

/* ---- using the results of reductions ---- */

/* Sets the first bytes of a temporary to zero, so that compute waits here for the reduction that
 * uses it, and its memory is free afterwards. Without this last user the memory would be reserved
 * until the program ends. */
static struct hd_node *emit_release(struct hd_emit *e, struct hd_operand temporary)
{
    return hd_emit_zero(e, HD_ARGS(zero, .size_bytes = HD_TENSOR_ALIGN),
                        HD_OPERANDS(zero, .out = temporary));
}

/* Emits sums += this rank's shard of the gradient bucket. For an empty shard it only releases the
 * gradient bucket. */
static struct hd_node *emit_add_shard(struct hd_emit *e, int bucket)
{
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    const int64_t count = p->shard_end - p->shard_begin;
    struct hd_operand sums;

    if (!count)
        return emit_release(e, hd_emit_grad_bucket(e, bucket, 0));
    sums = hd_emit_bucket(e, bucket, HD_STATE_GRAD, p->shard_begin);
    return hd_emit_add(e, HD_ARGS(add, .N = count, .dtype = HD_F32),
                       HD_OPERANDS(add, .out = sums, .a = sums,
                                   .b = hd_emit_grad_bucket(e, bucket, p->shard_begin)));
}

/* Inserts, at index `at`, the compute node that uses the result of the reduction `sum`. */
static void take_up(struct hd_emit *e, const struct hd_node *sum, int at)
{
    const struct hd_operand sent = hd_comm_operands_of(sum)->sent;
    const int bucket = sent.store->bucket;
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    struct hd_node *node;

    e->unit = p->unit;
    if (p->zero >= 2)
        node = emit_add_shard(e, bucket);
    else if (sum->comm == HD_COMM_REDUCE_SCATTER)
        node = emit_release(e, sent);
    else
        node = hd_emit_cast(
            e, HD_ARGS(cast, .N = sum->count, .inp_dtype = sum->dtype, .out_dtype = HD_F32),
            HD_OPERANDS(cast, .out = hd_emit_bucket(e, bucket, HD_STATE_GRAD, 0), .inp = sent));
    insert(e, p, node, at);
}

/* Returns true if compute must use the result of this reduction within the program. A reduction in
 * place in memory that outlives the program needs no such node. */
static bool is_taken_up(const struct hd_node *node)
{
    const struct hd_store *sent = node->is_comm ? hd_comm_operands_of(node)->sent.store : NULL;

    return sent && (sent->kind == HD_STORE_WIRE ||
                    (sent->kind == HD_STORE_GRAD_BUCKET && node->comm == HD_COMM_REDUCE_SCATTER));
}

static bool begins_sum(const struct hd_node *node)
{
    if (node->is_comm || node->kernel != HD_K_cast)
        return is_taken_up(node);
    return hd_cast_operands_of(node)->out.store->kind == HD_STORE_WIRE;
}

/* Uses the results of the reductions in the current list, each before the first reduction of
 * another unit begins. */
static void take_up_sums(struct hd_emit *e)
{
    struct hd_node_list *list = &e->lists[e->call];
    const struct hd_node *pending[HD_BUCKETS_PER_UNIT];
    int count = 0;

    for (int i = 0; i <= list->count; i++) {
        const struct hd_node *node = i < list->count ? list->nodes[i] : NULL;

        if (count > 0 && (!node || (begins_sum(node) && pending[0]->unit != node->unit))) {
            for (int k = 0; k < count; k++)
                take_up(e, pending[k], i++);
            count = 0;
        }
        if (node && is_taken_up(node))
            pending[count++] = node;
    }
}

static void reduce_grad_buckets(struct hd_emit *e)
{
    for (size_t c = 0; c < sizeof order / sizeof order[0]; c++) {
        e->call = order[c];
        for (int bucket = 0; bucket < e->registry->bucket_count; bucket++) {
            const struct hd_bucket *p = &e->registry->buckets[bucket];
            struct hd_store *grad_bucket = e->grad_bucket[bucket * HD_CALL_COUNT + (int)e->call];

            if (!grad_bucket)
                continue;
            e->unit = p->unit;
            zero_gaps(e, bucket, grad_bucket);
            emit_sums(e, p, grad_bucket, last_contribution(&e->lists[e->call], grad_bucket) + 1);
        }
        take_up_sums(e);
    }
}

void hd_pass_shard(struct hd_emit *e)
{
    for (int bucket = 0; bucket < e->registry->bucket_count; bucket++) {
        struct hd_store *store = e->bucket_store[bucket * HD_STATE_KIND_COUNT + HD_STATE_GRAD];
        const bool ends_here =
            !e->registry->buckets[bucket].tied || !e->options->tie_ends_elsewhere;

        if (store && ends_here)
            reduce_bucket(e, bucket, store);
    }
    reduce_grad_buckets(e);
}
