/* derive: from recorded ops to the programs F, B and W (training), E or D.
 *
 * Forward rows are emitted in order. For training the ops are then walked backwards: an op whose
 * result got a gradient emits its backward for inputs, then its backward for weights; the latter
 * goes to W when the schedule parts them, else to B right behind. Nothing is emitted for what needs
 * no gradient.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "program/emit.h"

void hd_emit_fail(struct hd_emit *e, enum hd_status st)
{
    if (!e->error.status)
        hd_err_save(st, &e->error);
}

/* ---- stores ---- */

int hd_emit_store(struct hd_emit *e, const struct hd_store *like)
{
    struct hd_store *list =
        hd_arena_grow(e->arena, e->stores, e->store_count, &e->store_room, sizeof *list);
    struct hd_store *s;

    if (!list) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to compile a program"));
        return 0;
    }
    e->stores = list;
    s = &list[e->store_count];
    *s = *like;
    s->id = e->store_count;
    s->offset = -1;
    if (!s->size_bytes)
        s->size_bytes = s->rows * (s->columns ? s->columns : 1) * (int64_t)hd_dtype_size(s->dtype);
    return e->store_count++;
}

struct hd_operand hd_emit_at(int store, int64_t offset_bytes)
{
    return (struct hd_operand){store, offset_bytes};
}

struct hd_operand hd_emit_temp(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                               int64_t rows, int64_t columns)
{
    return hd_emit_at(hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_TEMPORARY,
                                                          .name = name,
                                                          .dtype = dtype,
                                                          .rows = rows,
                                                          .columns = columns}),
                      0);
}

static const struct hd_op_row *row_of(enum hd_op_kind kind)
{
    static const struct hd_op_row *const rows[] = {
#define X(name, class) &hd_op_row_##name,
        HD_OP_LIST(X)
#undef X
    };
    return rows[kind];
}

/* The value as backward derives it again; none where it is kept. */
static struct hd_operand derive_again(struct hd_emit *e, const struct hd_tensor *t)
{
    const bool backward = e->call == HD_CALL_B || e->call == HD_CALL_W;
    const struct hd_op *op = e->producer[t->id] >= 0 ? &e->rec->ops[e->producer[t->id]] : NULL;
    struct hd_operand *again = &e->again[e->call == HD_CALL_W][t->id];

    if (!backward || !op || !row_of(op->kind)->again)
        return hd_emit_none();
    if (again->store < 0)
        *again = row_of(op->kind)->again(e, op);
    return *again;
}

struct hd_operand hd_emit_value(struct hd_emit *e, const struct hd_tensor *t)
{
    static const enum hd_store_kind kinds[] = {[HD_TENSOR_RESULT] = HD_STORE_TEMPORARY,
                                               [HD_TENSOR_BATCH] = HD_STORE_BATCH,
                                               [HD_TENSOR_INPUT] = HD_STORE_INPUT};
    struct hd_operand again;

    if (t->id < 0)
        return hd_emit_none();
    again = derive_again(e, t);
    if (again.store >= 0)
        return again;
    if (e->value[t->id].store < 0 && t->same_store >= 0)
        e->value[t->id] = hd_emit_value(e, e->rec->tensors[t->same_store]);
    if (e->value[t->id].store < 0)
        e->value[t->id] = hd_emit_at(
            hd_emit_store(e, &(struct hd_store){.kind = kinds[t->kind],
                                                .name = t->name,
                                                .dtype = t->dtype,
                                                .rows = t->dim[0],
                                                .columns = t->dim_count > 1 ? t->dim[1] : 0,
                                                .field = t->field}),
            0);
    return e->value[t->id];
}

struct hd_operand hd_emit_part(struct hd_emit *e, int part, enum hd_state_kind kind, int64_t offset)
{
    static const char *const names[] = {"weight", "copy", "grad", "m", "v", "ranges"};
    const struct hd_part *p = &e->registry->parts[part];
    enum hd_dtype dtype = kind == HD_STATE_COPY ? e->registry->compute_dtype : HD_F32;
    int *slot;

    if (kind == HD_STATE_COPY && p->offset[HD_STATE_COPY] == p->offset[HD_STATE_WEIGHT])
        kind = HD_STATE_WEIGHT;
    slot = &e->part_store[part * HD_STATE_KIND_COUNT + (int)kind];
    if (*slot < 0)
        *slot = hd_emit_store(
            e, &(struct hd_store){.kind = HD_STORE_PART,
                                  .name = names[kind],
                                  .dtype = dtype,
                                  .rows = p->count,
                                  .size_bytes = hd_part_state_bytes(e->registry, p, kind),
                                  .visible = hd_state_is_visible(kind),
                                  .part = part,
                                  .state = kind});
    return hd_emit_at(*slot, offset * (int64_t)hd_dtype_size(dtype));
}

struct hd_operand hd_emit_weight(struct hd_emit *e, int param, enum hd_dtype dtype)
{
    const struct hd_param *p = &e->registry->params[param];

    assert(dtype == HD_F32 || dtype == e->registry->compute_dtype);
    return hd_emit_part(e, p->part,
                        dtype == e->registry->compute_dtype ? HD_STATE_COPY : HD_STATE_WEIGHT,
                        p->offset);
}

struct hd_operand hd_emit_global(struct hd_emit *e, enum hd_global global)
{
    static const char *const names[] = {"block", "sums", "record", "records", "routes"};

    if (e->global_store[global] < 0)
        e->global_store[global] =
            hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_GLOBAL,
                                                .name = names[global],
                                                .dtype = HD_F64,
                                                .size_bytes = hd_global_bytes(e->registry, global),
                                                .visible = hd_global_is_visible(global),
                                                .global = global});
    return hd_emit_at(e->global_store[global], 0);
}

/* The constant store like this one, made at first use. */
static struct hd_operand constant(struct hd_emit *e, const struct hd_store *like)
{
    for (int i = 0; i < e->store_count; i++) {
        const struct hd_store *s = &e->stores[i];

        if (s->kind == HD_STORE_CONSTANT && s->constant == like->constant &&
            s->rows == like->rows && s->columns == like->columns && s->zigzag.S == like->zigzag.S &&
            s->zigzag.P == like->zigzag.P && s->zigzag.rank == like->zigzag.rank &&
            s->first_head == like->first_head && s->all_heads == like->all_heads &&
            hd_rope_equal(&s->rope, &like->rope))
            return hd_emit_at(i, 0);
    }
    return hd_emit_at(hd_emit_store(e, like), 0);
}

struct hd_operand hd_emit_angles(struct hd_emit *e, int64_t positions, int64_t head_width,
                                 const struct hd_rope *rope)
{
    return constant(e, &(struct hd_store){.kind = HD_STORE_CONSTANT,
                                          .name = "angles",
                                          .dtype = HD_F32,
                                          .rows = positions,
                                          .columns = head_width,
                                          .constant = HD_CONSTANT_ROPE_TABLE,
                                          .rope = *rope});
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

struct hd_operand hd_emit_slopes(struct hd_emit *e, int64_t heads)
{
    return constant(e, &(struct hd_store){.kind = HD_STORE_CONSTANT,
                                          .name = "slopes",
                                          .dtype = HD_F32,
                                          .rows = heads,
                                          .constant = HD_CONSTANT_SLOPES,
                                          .first_head = e->registry->coord.tp * heads,
                                          .all_heads = e->registry->mesh.sizes.tp * heads});
}

struct hd_operand hd_emit_cache(struct hd_emit *e, const char *name, enum hd_dtype dtype,
                                int64_t rows, int64_t columns)
{
    return hd_emit_at(hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_CACHE,
                                                          .name = name,
                                                          .dtype = dtype,
                                                          .rows = rows,
                                                          .columns = columns,
                                                          .unit = e->unit}),
                      0);
}

/* ---- nodes ---- */

static struct hd_node *append_node(struct hd_emit *e)
{
    struct hd_node_list *list = &e->lists[e->call];
    struct hd_node **nodes =
        hd_arena_grow(e->arena, list->nodes, list->count, &list->room, sizeof(struct hd_node *));
    struct hd_node *node = hd_arena_alloc(e->arena, sizeof *node);

    if (!nodes || !node) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to compile a program"));
        return NULL;
    }
    node->unit = e->unit;
    for (int i = 0; i < HD_KERNEL_OPERANDS_MAX; i++)
        node->operand[i] = hd_emit_none();
    list->nodes = nodes;
    list->nodes[list->count++] = node;
    return node;
}

struct hd_node *hd_emit_kernel(struct hd_emit *e, enum hd_kernel kernel, const void *args,
                               const struct hd_operand *operands)
{
    const struct hd_kernel_info *info = hd_kernel_info(kernel);
    struct hd_node *node = append_node(e);

    if (node)
        node->args = hd_arena_alloc(e->arena, info->args_size_bytes);
    if (!node || !node->args) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to compile a program"));
        return &e->nowhere;
    }
    node->kernel = kernel;
    memcpy(node->args, args, info->args_size_bytes);
    for (int i = 0, k = 0; i < info->operand_count; i++)
        if (info->operands[i].access != HD_SCRATCH)
            node->operand[i] = operands[k++];
    return node;
}

struct hd_node *hd_emit_gemm(struct hd_emit *e, const struct hd_gemm_args *args,
                             const struct hd_operand operands[4])
{
    const struct hd_operand none = hd_emit_none();

    return hd_emit_kernel(e, HD_K_gemm, args,
                          (struct hd_operand[]){operands[0], none, none, operands[1], operands[2],
                                                operands[3], none});
}

struct hd_node *hd_emit_comm(struct hd_emit *e, enum hd_comm_kind kind, enum hd_group_name group,
                             struct hd_operand received, struct hd_operand sent, int64_t count,
                             enum hd_dtype dtype)
{
    struct hd_node *node = append_node(e);

    if (!node)
        return NULL;
    node->is_comm = true;
    node->comm = kind;
    node->group = group;
    node->operand[0] = received;
    node->operand[1] = sent;
    node->count = count;
    node->dtype = dtype;
    e->stores[received.store].visible = true;
    e->stores[sent.store].visible = true;
    return node;
}

void hd_emit_rows(struct hd_emit *e, enum hd_group_name group, const struct hd_operand operands[5],
                  const struct hd_node_rows *rows, enum hd_dtype dtype)
{
    struct hd_node *node = hd_emit_comm(e, HD_COMM_ALL_TO_ALL_V, group, operands[0], operands[1],
                                        rows->received_max, dtype);

    if (!node)
        return;
    memcpy(node->operand, operands, 5 * sizeof *operands);
    node->rows = *rows;
}

bool *hd_node_accumulate(const struct hd_node *node)
{
    switch (node->kernel) {
    case HD_K_gemm:
        return &((struct hd_gemm_args *)node->args)->accumulate;
    case HD_K_bias_backward:
        return &((struct hd_bias_backward_args *)node->args)->accumulate;
    case HD_K_embedding_backward:
        return &((struct hd_embedding_backward_args *)node->args)->accumulate;
    case HD_K_rmsnorm_backward_weight:
        return &((struct hd_rmsnorm_backward_weight_args *)node->args)->accumulate;
    case HD_K_head_norm_backward_weight:
        return &((struct hd_head_norm_backward_weight_args *)node->args)->accumulate;
    case HD_K_grouped_gemm_weight:
        return &((struct hd_grouped_gemm_weight_args *)node->args)->accumulate;
    case HD_K_layernorm_backward_weight:
        return &((struct hd_layernorm_backward_weight_args *)node->args)->accumulate;
    default:
        return NULL;
    }
}

/* ---- gradients ---- */

struct hd_operand hd_emit_grad(const struct hd_emit *e, const struct hd_tensor *t)
{
    return t && t->id >= 0 ? hd_emit_at(e->grads[t->id].store, 0) : hd_emit_none();
}

void hd_emit_add_grad(struct hd_emit *e, const struct hd_tensor *t, struct hd_operand grad,
                      bool own)
{
    struct hd_grad_slot *slot = &e->grads[t->id];
    struct hd_operand sum;

    if (!t->needs_grad)
        return;
    if (slot->store < 0) {
        *slot = (struct hd_grad_slot){grad.store, own, e->call};
        return;
    }
    sum = hd_emit_temp(e, "grad", t->dtype, t->dim[0], t->dim[1]);
    (void)hd_emit_kernel(e, HD_K_add,
                         &(struct hd_add_args){.N = t->dim[0] * t->dim[1], .dtype = t->dtype},
                         (struct hd_operand[]){sum, hd_emit_at(slot->store, 0), grad});
    *slot = (struct hd_grad_slot){sum.store, true, e->call};
}

struct hd_operand hd_emit_grad_sum(struct hd_emit *e, const struct hd_tensor *t,
                                   bool *ret_accumulate)
{
    struct hd_grad_slot *slot = &e->grads[t->id];

    *ret_accumulate = slot->store >= 0 && slot->own;
    if (*ret_accumulate)
        return hd_emit_at(slot->store, 0);
    return hd_emit_temp(e, "grad", t->dtype, t->dim[0], t->dim[1]);
}

struct hd_operand hd_emit_param_grad(struct hd_emit *e, int param, int span, bool *ret_first)
{
    const struct hd_param *p = &e->registry->params[param];

    *ret_first = !e->param_has_grad[param];
    for (int i = 0; i < span; i++)
        e->param_has_grad[param + i] = true;
    return hd_emit_part(e, p->part, HD_STATE_GRAD, p->offset);
}

void hd_emit_contributes(struct hd_node *node, bool first)
{
    bool *accumulate = node->args ? hd_node_accumulate(node) : NULL; /* no args after a failure */

    node->contribution = true;
    node->first_contribution = first;
    if (accumulate)
        *accumulate = true; /* a variant of the first micro-batch clears it where first */
}

/* ---- the pass ---- */

static int *filled_array(struct hd_arena *arena, int count)
{
    int *items = hd_arena_array(arena, (size_t)count + 1, sizeof *items);

    for (int i = 0; items && i <= count; i++)
        items[i] = -1;
    return items;
}

static struct hd_operand *no_operands(struct hd_arena *arena, int count)
{
    struct hd_operand *items = hd_arena_array(arena, (size_t)count + 1, sizeof *items);

    for (int i = 0; items && i <= count; i++)
        items[i] = hd_emit_none();
    return items;
}

struct hd_emit *hd_emit_begin(struct hd_rec *rec, const struct hd_compile_options *options)
{
    struct hd_emit *e = hd_arena_alloc(rec->arena, sizeof *e);
    const struct hd_registry *r = rec->registry;

    if (!e)
        return NULL;
    *e = (struct hd_emit){.rec = rec, .registry = r, .options = options, .arena = rec->arena};
    e->value = no_operands(e->arena, rec->tensor_count);
    for (int i = 0; i < 2; i++)
        e->again[i] = no_operands(e->arena, rec->tensor_count);
    e->producer = filled_array(e->arena, rec->tensor_count);
    e->kept_store = filled_array(e->arena, rec->op_count);
    e->kept_store2 = filled_array(e->arena, rec->op_count);
    e->op_state = hd_arena_array(e->arena, (size_t)rec->op_count + 1, sizeof *e->op_state);
    e->part_store = filled_array(e->arena, r->part_count * HD_STATE_KIND_COUNT);
    e->grads = hd_arena_array(e->arena, (size_t)rec->tensor_count + 1, sizeof *e->grads);
    e->param_has_grad = hd_arena_array(e->arena, (size_t)r->param_count + 1, sizeof(bool));
    for (int i = 0; i < HD_GLOBAL_COUNT; i++)
        e->global_store[i] = -1;
    for (int i = 0; e->grads && i < rec->tensor_count; i++)
        e->grads[i].store = -1;
    for (int i = 0; e->producer && i < rec->op_count; i++)
        if (rec->ops[i].out)
            e->producer[rec->ops[i].out->id] = i;
    return hd_arena_failed(e->arena) ? NULL : e;
}

static void emit_backward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_op_row *row = row_of(op->kind);

    if (!op->out || e->grads[op->out->id].store < 0)
        return;
    e->call = row->early ? e->grads[op->out->id].call : HD_CALL_B;
    if (row->backward_inputs)
        row->backward_inputs(e, op);
    e->call = e->options->split_backward ? HD_CALL_W : HD_CALL_B;
    if (row->backward_weights)
        row->backward_weights(e, op);
}

struct hd_emit *hd_pass_derive(struct hd_rec *rec, const struct hd_compile_options *options)
{
    static const enum hd_call forward_call[] = {[HD_RECORD_TRAIN] = HD_CALL_F,
                                                [HD_RECORD_EVAL] = HD_CALL_E,
                                                [HD_RECORD_DECODE] = HD_CALL_D};
    struct hd_emit *e = hd_emit_begin(rec, options);

    if (!e)
        return NULL;
    e->call = forward_call[rec->shape.mode];
    e->unit = -1;
    if (rec->shape.mode == HD_RECORD_TRAIN)
        hd_emit_kernel(e, HD_K_step_begin, &(struct hd_step_begin_args){0},
                       (struct hd_operand[]){hd_emit_global(e, HD_GLOBAL_BLOCK)})
            ->only_first = true;
    if (rec->shape.mode == HD_RECORD_TRAIN && rec->registry->routers > 0) {
        const struct hd_operand routes = hd_emit_global(e, HD_GLOBAL_ROUTES);

        hd_emit_kernel(e, HD_K_zero,
                       &(struct hd_zero_args){.size_bytes = e->stores[routes.store].size_bytes},
                       (struct hd_operand[]){routes})
            ->only_first = true;
    }
    for (int i = 0; i < rec->op_count; i++) {
        e->op_index = i;
        e->unit = rec->ops[i].unit;
        row_of(rec->ops[i].kind)->forward(e, &rec->ops[i]);
    }
    for (int i = rec->op_count - 1; i >= 0 && rec->shape.mode == HD_RECORD_TRAIN; i--) {
        e->op_index = i;
        e->unit = rec->ops[i].unit;
        emit_backward(e, &rec->ops[i]);
    }
    return e;
}
