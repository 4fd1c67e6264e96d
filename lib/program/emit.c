/* emit: adds stores, values and nodes to programs; gradients are in emit_grad.c. */
#include <string.h>

#include "program/emit.h"

void hd_emit_fail(struct hd_emit *e, enum hd_status st)
{
    if (!e->error.status)
        hd_err_save(st, &e->error);
}

struct hd_emit *hd_emit_begin(struct hd_rec *rec, const struct hd_compile_options *options)
{
    struct hd_arena *arena = rec->arena;
    struct hd_emit *e = hd_arena_alloc(arena, sizeof *e);
    const struct hd_registry *r = rec->registry;
    const size_t tensors = (size_t)rec->tensor_count + 1, ops = (size_t)rec->op_count + 1;

    if (!e)
        return NULL;
    *e = (struct hd_emit){.rec = rec, .registry = r, .options = options, .arena = arena};
    for (int i = 0; i < HD_FRAME_COUNT; i++)
        e->frame[i] = (struct hd_emit_frame){
            .value = hd_arena_array(arena, tensors, sizeof(struct hd_operand)),
            .stats = hd_arena_array(arena, ops, sizeof(struct hd_emit_stats)),
            .state = hd_arena_array(arena, ops, sizeof(void *))};
    e->into = &e->frame[HD_FRAME_FORWARD];
    e->keeps = hd_arena_array(arena, tensors, sizeof *e->keeps);
    e->producer = hd_arena_array(arena, tensors, sizeof *e->producer);
    e->grads = hd_arena_array(arena, tensors, sizeof *e->grads);
    e->recomputed = hd_arena_array(arena, ops, sizeof *e->recomputed);
    e->fp8_saved = hd_arena_array(arena, ops, sizeof *e->fp8_saved);
    e->bucket_store = hd_arena_array(arena, (size_t)r->bucket_count * HD_STATE_KIND_COUNT + 1,
                                     sizeof(struct hd_store *));
    e->grad_bucket = hd_arena_array(arena, (size_t)r->bucket_count * HD_CALL_COUNT + 1,
                                    sizeof(struct hd_store *));
    e->gathered = hd_arena_array(arena, (size_t)r->bucket_count * HD_CALL_COUNT + 1,
                                 sizeof(struct hd_store *));
    e->param_has_grad =
        hd_arena_array(arena, (size_t)r->param_count * HD_CALL_COUNT + 1, sizeof(bool));
    if (hd_arena_failed(arena))
        return NULL;
    for (int t = 0; t < rec->tensor_count; t++)
        e->producer[t] = -1;
    for (int i = 0; i < rec->op_count; i++)
        if (rec->ops[i].out)
            e->producer[rec->ops[i].out->id] = i;
    hd_emit_choose_saved(e);
    return e;
}

/* ---- stores ---- */

struct hd_store *hd_emit_store(struct hd_emit *e, const struct hd_store *like)
{
    struct hd_store **list = hd_arena_grow(e->arena, e->stores, e->store_count, &e->store_capacity,
                                           sizeof(struct hd_store *));
    struct hd_store *s = hd_arena_alloc(e->arena, sizeof *s);

    if (!list || !s) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to compile a program"));
        return &e->failed_store;
    }
    *s = *like;
    s->id = e->store_count;
    s->offset = -1;
    if (!s->size_bytes)
        s->size_bytes = s->rows * (s->columns ? s->columns : 1) * (int64_t)hd_dtype_size(s->dtype);
    e->stores = list;
    e->stores[e->store_count++] = s;
    return s;
}

struct hd_operand hd_emit_temp(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                               int64_t rows, int64_t columns)
{
    return (struct hd_operand){hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_TEMPORARY,
                                                                   .name = name,
                                                                   .dtype = dtype,
                                                                   .rows = rows,
                                                                   .columns = columns}),
                               0};
}

struct hd_operand hd_emit_bucket(struct hd_emit *e, int bucket, enum hd_state_kind kind,
                                 int64_t offset)
{
    static const char *const names[] = {"weight", "copy", "grad",      "m",
                                        "v",      "ema",  "reference", "ranges"};
    const struct hd_bucket *p = &e->registry->buckets[bucket];
    const bool is_moment = kind == HD_STATE_MOMENT1 || kind == HD_STATE_MOMENT2;
    struct hd_store **slot;
    enum hd_dtype dtype;

    if (kind == HD_STATE_COPY && !p->copied) /* no separate copy: kernels read the master weights */
        kind = HD_STATE_WEIGHT;
    dtype = kind == HD_STATE_COPY       ? p->compute
            : kind == HD_STATE_WEIGHT   ? p->stored
            : is_moment && p->in_blocks ? HD_U8 /* bytes of codes and scales */
                                        : HD_F32;
    assert(!hd_state_is_on_host(p, kind));
    slot = &e->bucket_store[bucket * HD_STATE_KIND_COUNT + (int)kind];
    if (!*slot)
        *slot = hd_emit_store(
            e, &(struct hd_store){.kind = HD_STORE_BUCKET,
                                  .name = names[kind],
                                  .dtype = dtype,
                                  .rows = hd_bucket_state_bytes(e->registry, p, kind) /
                                          (int64_t)hd_dtype_size(dtype),
                                  .size_bytes = hd_bucket_state_bytes(e->registry, p, kind),
                                  .registered = hd_state_is_registered(p, kind),
                                  .bucket = bucket,
                                  .state = kind});
    return hd_emit_at((struct hd_operand){*slot, 0}, offset - hd_bucket_base(p, kind), dtype);
}

/* Returns the current program's store in `list` that holds the elements of all shards of a bucket,
 * created at first use. */
static struct hd_store *for_program(struct hd_emit *e, struct hd_store **list,
                                    const struct hd_store *like)
{
    struct hd_store **slot = &list[like->bucket * HD_CALL_COUNT + (int)e->call];

    if (!*slot)
        *slot = hd_emit_store(e, like);
    return *slot;
}

struct hd_operand hd_emit_weight(struct hd_emit *e, int param, enum hd_dtype dtype)
{
    const struct hd_param *p = &e->registry->params[param];
    const struct hd_bucket *bucket = &e->registry->buckets[p->bucket];
    const struct hd_store all = {.kind = HD_STORE_GATHERED,
                                 .name = "gathered",
                                 .dtype = dtype,
                                 .rows = hd_bucket_shards_count(e->registry, bucket),
                                 .registered = true,
                                 .bucket = p->bucket};

    assert(dtype == bucket->compute);
    if (bucket->zero < 3)
        return hd_emit_bucket(e, p->bucket, HD_STATE_COPY, p->offset);
    return hd_emit_at((struct hd_operand){for_program(e, e->gathered, &all), 0}, p->offset, dtype);
}

struct hd_operand hd_emit_factor(struct hd_emit *e, int param, int fused_count, enum hd_dtype dtype,
                                 struct hd_quant_factor *ret_codes)
{
    *ret_codes = hd_registry_factor(e->registry, param, fused_count);
    return hd_emit_weight(e, param, dtype);
}

struct hd_operand hd_emit_grad_bucket(struct hd_emit *e, int bucket, int64_t offset)
{
    const struct hd_store all = {
        .kind = HD_STORE_GRAD_BUCKET,
        .name = "bucket",
        .dtype = HD_F32,
        .rows = hd_bucket_shards_count(e->registry, &e->registry->buckets[bucket]),
        .registered = true,
        .bucket = bucket};

    return hd_emit_at((struct hd_operand){for_program(e, e->grad_bucket, &all), 0}, offset, HD_F32);
}

struct hd_operand hd_emit_wire(struct hd_emit *e, int bucket, int64_t count)
{
    const struct hd_store like = {.kind = HD_STORE_WIRE,
                                  .name = "wire",
                                  .dtype = e->options->wire,
                                  .rows = count,
                                  .registered = true,
                                  .bucket = bucket};

    return (struct hd_operand){hd_emit_store(e, &like), 0};
}

struct hd_operand hd_emit_global(struct hd_emit *e, enum hd_global global)
{
    static const char *const names[] = {"block",   "sums", "record",  "records",  "routes",
                                        "buffers", "amax", "further", "matrices", "scores"};

    _Static_assert(sizeof names / sizeof names[0] == HD_GLOBAL_COUNT, "a name is missing");

    if (!e->global_store[global])
        e->global_store[global] =
            hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_GLOBAL,
                                                .name = names[global],
                                                .dtype = HD_F64,
                                                .size_bytes = hd_global_bytes(e->registry, global),
                                                .registered = hd_global_is_registered(global),
                                                .global = global});
    return (struct hd_operand){e->global_store[global], 0};
}

static bool equal_factors(const struct hd_query_factor *a, const struct hd_query_factor *b)
{
    return a->beta == b->beta && a->original == b->original && a->floor_offset == b->floor_offset;
}

/* Returns whether two tables of one size are equal. They do not depend on which channels rotate. */
static bool equal_angles(const struct hd_rope *a, const struct hd_rope *b)
{
    struct hd_rope same = *b;

    same.rotated = a->rotated;
    same.first = a->first;
    same.interleaved = a->interleaved;
    return hd_rope_equal(a, &same);
}

/* Returns the store of a constant equal to `like`, created at first use. */
static struct hd_operand constant(struct hd_emit *e, const struct hd_store *like)
{
    for (int i = 0; i < e->store_count; i++) {
        struct hd_store *s = e->stores[i];

        if (s->kind == HD_STORE_CONSTANT && s->constant == like->constant &&
            s->rows == like->rows && s->columns == like->columns && s->zigzag.S == like->zigzag.S &&
            s->zigzag.P == like->zigzag.P && s->zigzag.rank == like->zigzag.rank &&
            s->first_head == like->first_head && s->all_heads == like->all_heads &&
            s->slope_scale == like->slope_scale &&
            equal_factors(&s->query_factor, &like->query_factor) &&
            (!like->rope || equal_angles(s->rope, like->rope)))
            return (struct hd_operand){s, 0};
    }
    return (struct hd_operand){hd_emit_store(e, like), 0};
}

struct hd_operand hd_emit_angles(struct hd_emit *e, int64_t positions, int64_t head_width,
                                 const struct hd_rope *rope)
{
    return constant(e, &(struct hd_store){.kind = HD_STORE_CONSTANT,
                                          .name = "angles",
                                          .dtype = HD_F32,
                                          .rows = positions,
                                          .columns = hd_rope_width(rope, head_width),
                                          .constant = HD_CONSTANT_ROPE_TABLE,
                                          .rope = rope});
}

struct hd_operand hd_emit_query_factors(struct hd_emit *e, int64_t positions,
                                        const struct hd_query_factor *factor)
{
    return constant(e, &(struct hd_store){.kind = HD_STORE_CONSTANT,
                                          .name = "factors",
                                          .dtype = HD_F32,
                                          .rows = positions,
                                          .constant = HD_CONSTANT_QUERY_FACTORS,
                                          .query_factor = *factor});
}

struct hd_operand hd_emit_positions(struct hd_emit *e, int64_t B, const struct hd_zigzag *zigzag)
{
    return constant(e, &(struct hd_store){.kind = HD_STORE_CONSTANT,
                                          .name = "positions",
                                          .dtype = HD_I32,
                                          .rows = B * hd_zigzag_rows(zigzag),
                                          .constant = HD_CONSTANT_POSITIONS,
                                          .zigzag = *zigzag});
}

struct hd_operand hd_emit_slopes(struct hd_emit *e, int64_t heads, float scale)
{
    return constant(e, &(struct hd_store){.kind = HD_STORE_CONSTANT,
                                          .name = "slopes",
                                          .dtype = HD_F32,
                                          .rows = heads,
                                          .constant = HD_CONSTANT_SLOPES,
                                          .slope_scale = scale,
                                          .first_head = e->registry->coord.tp * heads,
                                          .all_heads = e->registry->mesh.sizes.tp * heads});
}

struct hd_operand hd_emit_cache(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                                int64_t rows, int64_t columns)
{
    return (struct hd_operand){hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_CACHE,
                                                                   .name = name,
                                                                   .dtype = dtype,
                                                                   .rows = rows,
                                                                   .columns = columns,
                                                                   .unit = e->unit}),
                               0};
}

/* ---- values ---- */

/* Returns the memory of tensor t in a frame, created at first use. The result of an op in place is
 * in the memory of its input. */
static struct hd_operand memory_of(struct hd_emit *e, struct hd_emit_frame *frame,
                                   const struct hd_tensor *t)
{
    static const enum hd_store_kind kinds[] = {
        [HD_TENSOR_RESULT] = HD_STORE_TEMPORARY, [HD_TENSOR_BATCH] = HD_STORE_BATCH};
    struct hd_operand *value = &frame->value[t->id];

    if (!value->store && t->same_store >= 0)
        *value = memory_of(e, frame, e->rec->tensors[t->same_store]);
    if (!value->store)
        value->store =
            hd_emit_store(e, &(struct hd_store){.kind = kinds[t->kind],
                                                .name = t->name,
                                                .dtype = t->dtype,
                                                .rows = t->dim[0],
                                                .columns = t->dim_count > 1 ? t->dim[1] : 0,
                                                .field = t->field});
    return *value;
}

struct hd_operand hd_emit_value(struct hd_emit *e, const struct hd_tensor *t)
{
    struct hd_emit_frame *forward = &e->frame[HD_FRAME_FORWARD];

    if (t->id < 0)
        return hd_emit_none();
    if (e->into != forward && !e->keeps[t->id])
        return hd_emit_recompute(e, t);
    return memory_of(e, forward, t);
}

struct hd_operand hd_emit_result(struct hd_emit *e, const struct hd_op *op)
{
    return memory_of(e, e->into, op->out);
}

void hd_emit_set_result(struct hd_emit *e, const struct hd_op *op, struct hd_operand value)
{
    e->into->value[op->out->id] = value;
}

/* Returns the frame of the newest forward emission of the op that is being emitted: forward's, or
 * B's or W's if the op was recomputed there. */
static struct hd_emit_frame *newest_frame(struct hd_emit *e)
{
    const struct hd_tensor *out = e->rec->ops[e->op_index].out;
    int i = e->call == HD_CALL_W ? HD_FRAME_W : HD_FRAME_B;

    if (e->into)
        return e->into;
    while (i > HD_FRAME_FORWARD && !(out && e->frame[i].value[out->id].store))
        i--;
    return &e->frame[i];
}

struct hd_emit_stats *hd_emit_get_stats(struct hd_emit *e)
{
    return &newest_frame(e)->stats[e->op_index];
}

void **hd_emit_state(struct hd_emit *e)
{
    return &newest_frame(e)->state[e->op_index];
}

/* ---- nodes ---- */

static struct hd_node *append_node(struct hd_emit *e, const struct hd_node *like,
                                   const void *operands)
{
    struct hd_node_list *list = &e->lists[e->call];
    const size_t operands_bytes = (size_t)hd_node_operand_count(like) * sizeof(struct hd_operand);
    struct hd_node **nodes = hd_arena_grow(e->arena, list->nodes, list->count, &list->capacity,
                                           sizeof(struct hd_node *));
    struct hd_node *node = hd_arena_alloc(e->arena, sizeof *node);

    if (node) {
        *node = *like;
        node->unit = e->unit;
        node->operands = hd_arena_alloc(e->arena, operands_bytes);
    }
    if (!nodes || !node || !node->operands) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to compile a program"));
        return &e->failed_node;
    }
    memcpy(node->operands, operands, operands_bytes);
    list->nodes = nodes;
    list->nodes[list->count++] = node;
    return node;
}

struct hd_node *hd_emit_kernel(struct hd_emit *e, enum hd_kernel kernel, const void *args,
                               const void *operands)
{
    const size_t size_bytes = hd_kernel_get_info(kernel)->args_size_bytes;
    struct hd_node node = {.kernel = kernel, .args = hd_arena_alloc(e->arena, size_bytes)};

    if (!node.args) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to compile a program"));
        return &e->failed_node;
    }
    memcpy(node.args, args, size_bytes);
    return append_node(e, &node, operands);
}

struct hd_node *hd_emit_comm(struct hd_emit *e, const struct hd_comm_args *what,
                             const struct hd_comm_operands *operands)
{
    operands->received.store->registered = true;
    operands->sent.store->registered = true;
    return append_node(e,
                       &(struct hd_node){.is_comm = true,
                                         .comm = what->kind,
                                         .group = what->group,
                                         .count = what->count,
                                         .dtype = what->dtype,
                                         .keep_fp32 = what->keep_fp32,
                                         .reduce = what->reduce,
                                         .rows = what->rows},
                       operands);
}
