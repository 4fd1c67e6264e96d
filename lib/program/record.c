/* record: the recording functions that a model calls. Each constructor checks shapes and appends
 * one op. */
#include <string.h>

#include "program/rec.h"

struct hd_tensor *hd_rec_fail(struct hd_rec *rec, enum hd_status st)
{
    if (!rec->error.status)
        hd_err_save(st, &rec->error);
    return &rec->dummy;
}

enum hd_status hd_rec_status(const struct hd_rec *rec)
{
    return rec->error.status ? hd_err_restore(&rec->error) : HD_OK;
}

struct hd_rec *hd_rec_new(const struct hd_registry *registry, const struct hd_rec_shape *shape,
                          struct hd_arena *arena)
{
    struct hd_rec *rec = hd_arena_alloc(arena, sizeof *rec);

    if (!rec)
        return NULL;
    rec->registry = registry;
    rec->arena = arena;
    rec->shape = *shape;
    rec->unit = -1;
    rec->dummy = (struct hd_tensor){.id = -1, .name = "none", .dim_count = 2, .same_store = -1};
    return rec;
}

const struct hd_rec_shape *hd_rec_get_shape(const struct hd_rec *rec)
{
    return &rec->shape;
}

int hd_rec_tp_size(const struct hd_rec *rec)
{
    return rec->registry->mesh.sizes.tp;
}

bool hd_rec_splits_rows(const struct hd_rec *rec)
{
    return rec->registry->sequence && rec->shape.mode != HD_RECORD_DECODE;
}

int hd_rec_row_shards(const struct hd_rec *rec)
{
    return hd_rec_splits_rows(rec) ? hd_rec_tp_size(rec) : 1;
}

enum hd_op_class hd_op_class_of(enum hd_op_kind kind)
{
    static const enum hd_op_class classes[] = {
#define X(name, class) HD_CLASS_##class,
        HD_OP_LIST(X)
#undef X
    };
    return classes[kind];
}

static struct hd_tensor *append_tensor(struct hd_rec *rec, const struct hd_tensor *like)
{
    struct hd_tensor **list = hd_arena_grow(rec->arena, rec->tensors, rec->tensor_count,
                                            &rec->tensor_capacity, sizeof(struct hd_tensor *));
    struct hd_tensor *t = hd_arena_alloc(rec->arena, sizeof *t);

    if (!list || !t)
        return hd_rec_fail(rec, hd_err(HD_NO_MEMORY, "no memory to record the model"));
    *t = *like;
    t->id = rec->tensor_count;
    rec->tensors = list;
    rec->tensors[rec->tensor_count++] = t;
    return t;
}

struct hd_tensor *hd_rec_tensor(struct hd_rec *rec, const char *name, int64_t rows, int64_t columns)
{
    return append_tensor(rec, &(struct hd_tensor){.kind = HD_TENSOR_RESULT,
                                                  .name = name,
                                                  .dim_count = columns ? 2 : 1,
                                                  .dim = {rows, columns},
                                                  .dtype = HD_F32,
                                                  .same_store = -1});
}

struct hd_tensor *hd_rec_batch(struct hd_rec *rec, enum hd_batch_field field)
{
    static const char *const names[] = {
#define X(code, name, dtype) name,
        HD_BATCH_FIELD_LIST(X)
#undef X
    };
    static const enum hd_dtype dtypes[] = {
#define X(code, name, dtype) HD_##dtype,
        HD_BATCH_FIELD_LIST(X)
#undef X
    };

    if (!rec->batch[field]) {
        int64_t rows = field == HD_BATCH_FILLED ? 3 * rec->shape.B
                       : field == HD_BATCH_LAST ? rec->shape.B
                       : field == HD_BATCH_TEACHER_IDS || field == HD_BATCH_TEACHER_LOGQ
                           ? rec->shape.B * rec->shape.S * rec->shape.distill.k
                           : rec->shape.B * rec->shape.S;
        struct hd_tensor *t = hd_rec_tensor(rec, names[field], rows, 0);

        t->kind = HD_TENSOR_BATCH;
        t->field = field;
        t->dtype = dtypes[field];
        rec->batch[field] = t;
    }
    return rec->batch[field];
}

struct hd_tensor *hd_rec_input(struct hd_rec *rec, const char *name, int64_t R, int64_t C,
                               bool needs_grad)
{
    struct hd_tensor *t = hd_rec_tensor(rec, name, R, C);

    t->kind = HD_TENSOR_INPUT;
    t->needs_grad = needs_grad;
    rec->input = t;
    return t;
}

void hd_rec_output(struct hd_rec *rec, struct hd_tensor *x)
{
    rec->output = x;
}

bool hd_op_trains_param(const struct hd_registry *registry, const struct hd_op *op, int which)
{
    for (int i = 0; op->param[which] >= 0 && i < op->fused_count; i++)
        if (registry->params[op->param[which] + i].trainable)
            return true;
    return false;
}

struct hd_op *hd_rec_op(struct hd_rec *rec, const struct hd_op *op)
{
    struct hd_op *list;

    if (rec->error.status)
        return NULL;
    list = hd_arena_grow(rec->arena, rec->ops, rec->op_count, &rec->op_capacity, sizeof *list);
    if (!list) {
        (void)hd_rec_fail(rec, hd_err(HD_NO_MEMORY, "no memory to record the model"));
        return NULL;
    }
    rec->ops = list;
    list[rec->op_count] = *op;
    list[rec->op_count].unit = rec->unit;
    if (op->out) {
        bool needs = false;

        for (int i = 0; i < op->in_count; i++)
            needs = needs || op->in[i]->needs_grad;
        for (int i = 0; i < op->param_count; i++)
            needs = needs || hd_op_trains_param(rec->registry, op, i);
        op->out->needs_grad = needs && rec->shape.mode == HD_RECORD_TRAIN;
    }
    return &list[rec->op_count++];
}

/* ---- repetition of units ---- */

static const struct hd_fragment *find_fragment(const struct hd_rec *rec, int unit,
                                               const struct hd_tensor *x)
{
    const char *kind = rec->registry->units[unit].kind;

    for (int i = 0; i < rec->fragment_count; i++) {
        const struct hd_fragment *f = &rec->fragments[i];
        const struct hd_tensor *in = f->input >= 0 ? rec->tensors[f->input] : NULL;

        if (strcmp(rec->registry->units[f->unit].kind, kind) == 0 && in && x &&
            in->dim[0] == x->dim[0] && in->dim[1] == x->dim[1] && in->needs_grad == x->needs_grad)
            return f;
    }
    return NULL;
}

/* Returns the tensor of the repetition that corresponds to tensor `t` of the fragment. */
static struct hd_tensor *translate(struct hd_rec *rec, const struct hd_fragment *f, int first_new,
                                   struct hd_tensor *x, struct hd_tensor *t)
{
    if (!t || t->id == f->input)
        return t ? x : NULL;
    if (t->kind == HD_TENSOR_BATCH || t->id < f->first_tensor ||
        t->id >= f->first_tensor + f->tensor_count)
        return t; /* a batch field: one tensor for all units */
    return rec->tensors[first_new + t->id - f->first_tensor];
}

/* Returns the parameter with the same index in unit `unit` as `param` has in the fragment's unit,
 * if `param` belongs to that unit; else `param`. */
static int shift_param(const struct hd_rec *rec, const struct hd_fragment *f, int unit, int param)
{
    const struct hd_unit *from = &rec->registry->units[f->unit];

    if (param < from->first_param || param >= from->first_param + from->param_count)
        return param;
    return param - from->first_param + rec->registry->units[unit].first_param;
}

static struct hd_tensor *repeat(struct hd_rec *rec, const struct hd_fragment *f, int unit,
                                struct hd_tensor *x)
{
    int first_new = rec->tensor_count;

    for (int i = 0; i < f->tensor_count; i++) {
        struct hd_tensor *t = append_tensor(rec, rec->tensors[f->first_tensor + i]);

        if (t->same_store >= f->first_tensor)
            t->same_store += first_new - f->first_tensor;
        else if (t->same_store == f->input)
            t->same_store = x->id;
    }
    for (int i = 0; i < f->op_count && !rec->error.status; i++) {
        struct hd_op op = rec->ops[f->first_op + i];

        for (int k = 0; k < op.in_count; k++)
            op.in[k] = translate(rec, f, first_new, x, op.in[k]);
        op.out = translate(rec, f, first_new, x, op.out);
        for (int k = 0; k < op.param_count; k++)
            op.param[k] = shift_param(rec, f, unit, op.param[k]);
        op.set.router.number += unit - f->unit; /* router number and dropout layer both count
                                                   layers */
        op.set.dropout.layer += unit - f->unit;
        (void)hd_rec_op(rec, &op);
    }
    if (rec->error.status)
        return &rec->dummy;
    return translate(rec, f, first_new, x, rec->tensors[f->output]);
}

struct hd_tensor *hd_rec_unit(struct hd_rec *rec, int unit,
                              struct hd_tensor *(*forward)(struct hd_rec *rec, void *context,
                                                           int unit, struct hd_tensor *x),
                              void *context, struct hd_tensor *x)
{
    const struct hd_fragment *known = find_fragment(rec, unit, x);
    struct hd_fragment f = {.unit = unit,
                            .input = x ? x->id : -1,
                            .first_op = rec->op_count,
                            .first_tensor = rec->tensor_count};
    struct hd_fragment *list;
    struct hd_tensor *out;

    if (rec->error.status)
        return &rec->dummy;
    rec->unit = unit;
    if (known)
        return repeat(rec, known, unit, x);
    out = forward(rec, context, unit, x);
    list = hd_arena_grow(rec->arena, rec->fragments, rec->fragment_count, &rec->fragment_capacity,
                         sizeof *list);
    if (!list)
        return hd_rec_fail(rec, hd_err(HD_NO_MEMORY, "no memory to record the model"));
    f.op_count = rec->op_count - f.first_op;
    f.tensor_count = rec->tensor_count - f.first_tensor;
    f.output = out ? out->id : -1;
    rec->fragments = list;
    if (out) /* a unit without a result (the head) is the last and is never repeated */
        rec->fragments[rec->fragment_count++] = f;
    return out;
}

/* ---- constructors ---- */

static const struct hd_param *param_at(const struct hd_rec *rec, int param)
{
    return &rec->registry->params[param];
}

struct hd_tensor *hd_rec_result(struct hd_rec *rec, struct hd_op op, const char *name, int64_t rows,
                                int64_t columns)
{
    if (rec->error.status)
        return &rec->dummy;
    op.out = hd_rec_tensor(rec, name, rows, columns);
    (void)hd_rec_op(rec, &op);
    return rec->error.status ? &rec->dummy : op.out;
}

struct hd_tensor *hd_rec_wrong_width(struct hd_rec *rec, const char *op, const struct hd_tensor *x,
                                     int64_t expected)
{
    return hd_rec_fail(rec, hd_err(HD_INTERNAL, "%s: %s has %lld columns, expected %lld", op,
                                   x->name, (long long)x->dim[1], (long long)expected));
}

struct hd_tensor *op_embedding(struct hd_rec *rec, struct hd_tensor *tokens, int weight,
                               struct hd_tensor *positions, int positions_weight, double scale)
{
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_embedding,
                                        .in = {tokens, positions},
                                        .in_count = positions ? 2 : 1,
                                        .param = {weight, positions_weight},
                                        .param_count = 2,
                                        .fused_count = 1,
                                        .set = {.scale = scale}},
                         "embedded", tokens->dim[0], param_at(rec, weight)->local[1]);
}

/* Returns N, the number of rows of a span of fused_count adjacent parameters taken as one matrix
 * [N, K]; -1: they are not adjacent or differ in K. */
static int64_t fused_rows(const struct hd_rec *rec, int weight, int fused_count)
{
    const struct hd_param *first = param_at(rec, weight);
    int64_t rows = 0;

    for (int i = 0; i < fused_count; i++) {
        const struct hd_param *p = param_at(rec, weight + i);

        if ((i && !p->fused) || p->bucket != first->bucket || p->dim_count != first->dim_count ||
            p->local[1] != first->local[1])
            return -1;
        rows += p->local[0];
    }
    return rows;
}

struct hd_tensor *op_linear(struct hd_rec *rec, struct hd_tensor *x, int weight, int bias,
                            int fused_count)
{
    const struct hd_param *w = param_at(rec, weight);
    int64_t N = fused_rows(rec, weight, fused_count);

    if (rec->error.status)
        return &rec->dummy;
    if (N < 0 || (bias >= 0 && fused_rows(rec, bias, fused_count) != N))
        return hd_rec_fail(rec, hd_err(HD_INTERNAL, "linear: %s and the next %d are not adjacent",
                                       w->name, fused_count - 1));
    if (x->dim[1] != w->local[1])
        return hd_rec_wrong_width(rec, w->name, x, w->local[1]);
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_linear,
                                        .in = {x},
                                        .in_count = 1,
                                        .param = {weight, bias},
                                        .param_count = 2,
                                        .fused_count = fused_count},
                         "linear", x->dim[0], N);
}

struct hd_tensor *op_low_rank(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *h,
                              const struct hd_low_rank *targets, int count)
{
    struct hd_op op = {.kind = HD_OP_low_rank,
                       .in = {y, h},
                       .in_count = 2,
                       .param_count = count,
                       .fused_count = 1};
    struct hd_tensor *out;

    for (int i = 0; i < count; i++) {
        const struct hd_param *b = param_at(rec, targets[i].weight);

        if (!rec->error.status && targets[i].column + b->local[0] > y->dim[1])
            return hd_rec_wrong_width(rec, b->name, y, targets[i].column + b->local[0]);
        if (!rec->error.status && targets[i].inner + b->local[1] > h->dim[1])
            return hd_rec_wrong_width(rec, b->name, h, targets[i].inner + b->local[1]);
        op.param[i] = targets[i].weight;
        op.set.column[i] = targets[i].column;
        op.set.inner[i] = targets[i].inner;
    }
    out = hd_rec_result(rec, op, "adapted", y->dim[0], y->dim[1]);
    out->same_store = y->id;
    return out;
}

struct hd_tensor *op_scale(struct hd_rec *rec, struct hd_tensor *x, double factor)
{
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_scale,
                                        .in = {x},
                                        .in_count = 1,
                                        .fused_count = 1,
                                        .set = {.scale = factor}},
                         "scaled", x->dim[0], x->dim[1]);
}

struct hd_tensor *op_magnitude(struct hd_rec *rec, struct hd_tensor *x,
                               const struct hd_magnitude *targets, int count, double scale,
                               bool summed)
{
    struct hd_op op = {.kind = HD_OP_magnitude,
                       .in = {x},
                       .in_count = 1,
                       .param_count = HD_MAGNITUDE_PARAMS * count,
                       .fused_count = 1,
                       .set = {.scale = scale, .summed = summed}};

    for (int i = 0; i < count; i++) {
        const struct hd_magnitude *t = &targets[i];
        const struct hd_param *m = param_at(rec, t->magnitude);
        int *param = op.param + (ptrdiff_t)HD_MAGNITUDE_PARAMS * i;

        if (!rec->error.status && t->column + m->local[0] > x->dim[1])
            return hd_rec_wrong_width(rec, m->name, x, t->column + m->local[0]);
        param[HD_MAGNITUDE_M] = t->magnitude;
        param[HD_MAGNITUDE_W] = t->weight;
        param[HD_MAGNITUDE_A] = t->a;
        param[HD_MAGNITUDE_B] = t->b;
        op.set.column[i] = t->column;
    }
    return hd_rec_result(rec, op, "magnified", x->dim[0], x->dim[1]);
}

static struct hd_tensor *norm(struct hd_rec *rec, enum hd_op_kind kind, struct hd_tensor *x,
                              int weight, int bias, double eps, bool one_plus)
{
    if (!rec->error.status && weight >= 0 && x->dim[1] != param_at(rec, weight)->local[0])
        return hd_rec_wrong_width(rec, param_at(rec, weight)->name, x,
                                  param_at(rec, weight)->local[0]);
    return hd_rec_result(rec,
                         (struct hd_op){.kind = kind,
                                        .in = {x},
                                        .in_count = 1,
                                        .param = {weight, bias},
                                        .param_count = 2,
                                        .fused_count = 1,
                                        .set = {.eps = eps, .one_plus = one_plus}},
                         "normed", x->dim[0], x->dim[1]);
}

struct hd_tensor *op_rmsnorm(struct hd_rec *rec, struct hd_tensor *x, int weight, double eps,
                             bool one_plus)
{
    return norm(rec, HD_OP_rmsnorm, x, weight, -1, eps, one_plus);
}

struct hd_tensor *op_layernorm(struct hd_rec *rec, struct hd_tensor *x, int weight, int bias,
                               double eps, bool one_plus)
{
    return norm(rec, HD_OP_layernorm, x, weight, bias, eps, one_plus);
}

/* Returns true if this rank's weights of a head norm are as long as its settings need. */
static bool head_weights_fit(const struct hd_rec *rec, int q_weight, int k_weight,
                             const struct hd_head_norm_settings *s)
{
    const int64_t q = s->layer ? s->heads : (s->whole ? s->heads : 1) * s->head_width;
    const int64_t k = s->layer ? s->kv_heads : (s->whole ? s->kv_heads : 1) * s->head_width;

    if (q_weight < 0 || k_weight < 0)
        return q_weight < 0 && k_weight < 0 && !s->one_plus && !s->layer;
    return param_at(rec, q_weight)->local[0] == q && param_at(rec, k_weight)->local[0] == k;
}

struct hd_tensor *op_head_norm(struct hd_rec *rec, struct hd_tensor *qkv, int q_weight,
                               int k_weight, const struct hd_head_norm_settings *s)
{
    const int64_t width = (s->heads + 2 * s->kv_heads) * s->head_width;

    if (!rec->error.status && qkv->dim[1] != width)
        return hd_rec_wrong_width(rec, "head_norm", qkv, width);
    if (!rec->error.status && !head_weights_fit(rec, q_weight, k_weight, s))
        return hd_rec_fail(rec, hd_err(HD_INTERNAL, "head_norm: the weights do not fit the heads"));
    return hd_rec_result(rec,
                         (struct hd_op){.kind = s->whole ? HD_OP_qk_norm : HD_OP_head_norm,
                                        .in = {qkv},
                                        .in_count = 1,
                                        .param = {q_weight, k_weight},
                                        .param_count = 2,
                                        .fused_count = 1,
                                        .set = {.heads = s->heads,
                                                .kv_heads = s->kv_heads,
                                                .head_width = s->head_width,
                                                .eps = s->eps,
                                                .one_plus = s->one_plus,
                                                .layer = s->layer}},
                         "normed", qkv->dim[0], width);
}

/* Returns true if the channels that rotate are pairs within a head, and the tables can hold them. */
static bool rope_fits(const struct hd_rope *rope, int64_t D)
{
    const int64_t W = hd_rope_width(rope, D);

    return W % 2 == 0 && rope->first >= 0 && rope->first + W <= D && W <= HD_ROPE_WIDTH_MAX &&
           (rope->kind != HD_ROPE_LONGROPE || W / 2 <= HD_ROPE_PAIRS_MAX);
}

struct hd_tensor *op_rope(struct hd_rec *rec, struct hd_tensor *x, struct hd_tensor *positions,
                          int64_t heads, int64_t head_width, const struct hd_rope *rope)
{
    struct hd_rope *copy = hd_arena_alloc(rec->arena, sizeof *copy);
    struct hd_tensor *out;

    if (!copy)
        return hd_rec_fail(rec, hd_err(HD_NO_MEMORY, "no memory to record the model"));
    *copy = *rope;
    if (!rec->error.status && x->dim[1] < heads * head_width)
        return hd_rec_wrong_width(rec, "rope", x, heads * head_width);
    if (!rec->error.status && !rope_fits(rope, head_width))
        return hd_rec_fail(rec, hd_err(HD_INTERNAL,
                                       "rope: %lld channels from %lld on of a head of "
                                       "%lld channels cannot rotate",
                                       (long long)hd_rope_width(rope, head_width),
                                       (long long)rope->first, (long long)head_width));
    out = hd_rec_result(
        rec,
        (struct hd_op){.kind = HD_OP_rope,
                       .in = {x, positions},
                       .in_count = 2,
                       .set = {.heads = heads, .head_width = head_width, .rope = copy}},
        "rotated", x->dim[0], x->dim[1]);
    out->same_store = x->id;
    return out;
}

struct hd_tensor *op_query_factor(struct hd_rec *rec, struct hd_tensor *x,
                                  struct hd_tensor *positions, int64_t heads, int64_t head_width,
                                  double beta, double original, double floor_offset)
{
    struct hd_tensor *out;

    if (!rec->error.status && x->dim[1] < heads * head_width)
        return hd_rec_wrong_width(rec, "query_factor", x, heads * head_width);
    out = hd_rec_result(rec,
                        (struct hd_op){.kind = HD_OP_query_factor,
                                       .in = {x, positions},
                                       .in_count = 2,
                                       .set = {.heads = heads,
                                               .head_width = head_width,
                                               .query_factor = {beta, original, floor_offset}}},
                        "factored", x->dim[0], x->dim[1]);
    out->same_store = x->id;
    return out;
}

/* Returns the dropout settings to record: those given, or none (p = 0) if the recording is not for
 * training. */
static struct hd_dropout effective(const struct hd_rec *rec, const struct hd_dropout *dropout)
{
    if (rec->shape.mode != HD_RECORD_TRAIN || dropout->p <= 0)
        return (struct hd_dropout){0};
    return *dropout;
}

struct hd_tensor *op_attention(struct hd_rec *rec, struct hd_tensor *qkv,
                               const struct hd_attention_settings *s)
{
    const int64_t width = (s->heads + 2 * s->kv_heads) * s->head_width;
    struct hd_op op = {.kind = HD_OP_attention,
                       .in = {qkv, hd_rec_batch(rec, HD_BATCH_INDEX)},
                       .in_count = 2,
                       .set = {.heads = s->heads,
                               .kv_heads = s->kv_heads,
                               .head_width = s->head_width,
                               .causal = s->causal,
                               .alibi = s->alibi,
                               .scaled_alibi = s->scaled_alibi,
                               .window = s->window,
                               .chunk = s->chunk,
                               .scale = s->scale,
                               .cap = s->cap,
                               .has_sinks = s->has_sinks,
                               .prefix = s->prefix,
                               .dropout = effective(rec, &s->dropout)}};

    if (!rec->error.status && qkv->dim[1] != width)
        return hd_rec_wrong_width(rec, "attention", qkv, width);
    if (s->cap > 0 && s->alibi)
        return hd_rec_fail(rec, hd_err(HD_INVALID, "attention: a cap on scores and ALiBi cannot be "
                                                   "used together"));
    if (s->chunk > 0 && !s->causal)
        return hd_rec_fail(rec, hd_err(HD_INVALID, "attention: chunks need a causal mask"));
    if (s->has_sinks && !rec->error.status && param_at(rec, s->sinks)->local[0] != s->heads)
        return hd_rec_fail(rec, hd_err(HD_INTERNAL,
                                       "attention: %s has %lld sinks on this rank for "
                                       "%lld heads",
                                       param_at(rec, s->sinks)->name,
                                       (long long)param_at(rec, s->sinks)->local[0],
                                       (long long)s->heads));
    if (s->prefix || s->has_sinks)
        op.fused_count = 1;
    if (s->prefix) {
        op.param[op.param_count++] = s->prefix_k;
        op.param[op.param_count++] = s->prefix_v;
    }
    if (s->has_sinks)
        op.param[op.param_count++] = s->sinks;
    if (rec->shape.mode == HD_RECORD_DECODE)
        op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_FILLED);
    else if (rec->shape.bounded)
        op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_BOUNDS);
    if (op.set.dropout.p > 0) /* the batch field must be the last input of the op */
        op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_SAMPLES);
    return hd_rec_result(rec, op, "attended", qkv->dim[0], s->heads * s->head_width);
}

struct hd_tensor *op_glu(struct hd_rec *rec, struct hd_tensor *x, enum hd_activation act,
                         double alpha, double limit)
{
    if (!rec->error.status && x->dim[1] % 2)
        return hd_rec_wrong_width(rec, "glu", x, x->dim[1] + 1);
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_glu,
                                        .in = {x},
                                        .in_count = 1,
                                        .set = {.act = act, .alpha = alpha, .limit = limit}},
                         "gated", x->dim[0], x->dim[1] / 2);
}

struct hd_tensor *op_activation(struct hd_rec *rec, struct hd_tensor *x, enum hd_activation act)
{
    if (!rec->error.status && act == HD_ACT_OSS)
        return hd_rec_fail(rec, hd_err(HD_INTERNAL,
                                       "activation: %s has no up projection, which "
                                       "HD_ACT_OSS needs",
                                       x->name));
    return hd_rec_result(
        rec,
        (struct hd_op){.kind = HD_OP_activation, .in = {x}, .in_count = 1, .set = {.act = act}},
        "activated", x->dim[0], x->dim[1]);
}

struct hd_tensor *op_clamp(struct hd_rec *rec, struct hd_tensor *x, double limit)
{
    return hd_rec_result(
        rec, (struct hd_op){.kind = HD_OP_clamp, .in = {x}, .in_count = 1, .set = {.limit = limit}},
        "clamped", x->dim[0], x->dim[1]);
}

struct hd_tensor *op_experts(struct hd_rec *rec, struct hd_tensor *x,
                             const struct hd_expert_params *p, const struct hd_router *router)
{
    const bool adapted = p->b[0] >= 0 || p->b[1] >= 0 || p->b[2] >= 0;
    const struct hd_dropout dropout =
        adapted ? effective(rec, &p->dropout) : (struct hd_dropout){0};
    const bool noisy = router->noisy && rec->shape.mode == HD_RECORD_TRAIN;
    const bool places = noisy || dropout.p > 0; /* true if the op needs sample and index of each
                                                   row, for random numbers */
    struct hd_op op = {
        .kind = HD_OP_experts,
        .in = {x, hd_rec_batch(rec, HD_BATCH_LENGTHS), hd_rec_batch(rec, HD_BATCH_BEGINS)},
        .in_count = 3,
        .param = {p->router, p->noise, p->gate, p->up, p->down, p->a[0], p->b[0], p->a[1], p->b[1],
                  p->a[2], p->b[2], p->router_bias, p->select_bias, p->gate_bias, p->up_bias,
                  p->down_bias},
        .param_count = 7 + 3 * HD_EXPERT_PRODUCTS,
        .fused_count = 1,
        .set = {.router = *router,
                .scale = p->scale,
                .act = p->act,
                .alpha = p->alpha,
                .limit = p->limit,
                .dropout = dropout,
                .down_site = p->down_site}};

    if (!rec->error.status && x->dim[1] != param_at(rec, p->router)->local[1])
        return hd_rec_wrong_width(rec, param_at(rec, p->router)->name, x,
                                  param_at(rec, p->router)->local[1]);
    if (places) {
        op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_SAMPLES);
        op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_INDEX);
    }
    return hd_rec_result(rec, op, "mixed", x->dim[0], x->dim[1]);
}

struct hd_tensor *op_row_gate(struct hd_rec *rec, struct hd_tensor *y, struct hd_tensor *g)
{
    if (!rec->error.status && (g->dim[0] != y->dim[0] || g->dim[1] != 1))
        return hd_rec_wrong_width(rec, "row_gate", g, 1);
    return hd_rec_result(rec, (struct hd_op){.kind = HD_OP_row_gate, .in = {y, g}, .in_count = 2},
                         "gated", y->dim[0], y->dim[1]);
}

struct hd_tensor *op_add(struct hd_rec *rec, struct hd_tensor *a, struct hd_tensor *b,
                         double factor)
{
    if (!rec->error.status && (a->dim[0] != b->dim[0] || a->dim[1] != b->dim[1]))
        return hd_rec_wrong_width(rec, "add", b, a->dim[1]);
    return hd_rec_result(
        rec,
        (struct hd_op){.kind = HD_OP_add, .in = {a, b}, .in_count = 2, .set = {.scale = factor}},
        "residual", a->dim[0], a->dim[1]);
}

static struct hd_tensor *record_dropout(struct hd_rec *rec, struct hd_tensor *x,
                                        const struct hd_dropout *now, struct hd_tensor *samples,
                                        struct hd_tensor *index, int64_t first_channel)
{
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_dropout,
                                        .in = {x, samples, index},
                                        .in_count = 3,
                                        .set = {.dropout = *now, .first_channel = first_channel}},
                         "dropped", x->dim[0], x->dim[1]);
}

struct hd_tensor *op_dropout(struct hd_rec *rec, struct hd_tensor *x,
                             const struct hd_dropout *dropout)
{
    const struct hd_dropout now = effective(rec, dropout);
    struct hd_tensor *samples, *index;

    if (now.p <= 0)
        return x;
    samples = op_tp_rows(rec, hd_rec_batch(rec, HD_BATCH_SAMPLES));
    index = op_tp_rows(rec, hd_rec_batch(rec, HD_BATCH_INDEX));
    return record_dropout(rec, x, &now, samples, index, 0);
}

struct hd_tensor *op_dropout_all_rows(struct hd_rec *rec, struct hd_tensor *x,
                                      const struct hd_dropout *dropout, int64_t first_channel)
{
    const struct hd_dropout now = effective(rec, dropout);

    if (now.p <= 0)
        return x;
    return record_dropout(rec, x, &now, hd_rec_batch(rec, HD_BATCH_SAMPLES),
                          hd_rec_batch(rec, HD_BATCH_INDEX), first_channel);
}

struct hd_tensor *op_noise(struct hd_rec *rec, struct hd_tensor *x, double alpha, uint64_t seed)
{
    struct hd_tensor *samples, *index, *lengths;

    if (rec->shape.mode != HD_RECORD_TRAIN || alpha <= 0)
        return x;
    samples = op_tp_rows(rec, hd_rec_batch(rec, HD_BATCH_SAMPLES));
    index = op_tp_rows(rec, hd_rec_batch(rec, HD_BATCH_INDEX));
    lengths = op_tp_rows(rec, hd_rec_batch(rec, HD_BATCH_LENGTHS));
    return hd_rec_result(
        rec,
        (struct hd_op){.kind = HD_OP_noise,
                       .in = {x, samples, index, lengths},
                       .in_count = 4,
                       .set = {.dropout = {.seed = seed, .site = HD_SITE_NOISE}, .noise = alpha}},
        "noisy", x->dim[0], x->dim[1]);
}

static void head(struct hd_rec *rec, const struct hd_op *what, struct hd_tensor *x, int weight,
                 struct hd_head_settings settings)
{
    struct hd_op op = *what;

    if (rec->error.status)
        return;
    if (x->dim[1] != param_at(rec, weight)->local[1]) {
        (void)hd_rec_wrong_width(rec, param_at(rec, weight)->name, x,
                                 param_at(rec, weight)->local[1]);
        return;
    }
    if (settings.logit_scale < 0 || settings.cap < 0) {
        (void)hd_rec_fail(rec,
                          hd_err(HD_INTERNAL, "%s: a factor %g or cap %g of logits is negative",
                                 param_at(rec, weight)->name, settings.logit_scale, settings.cap));
        return;
    }
    op.set.head = settings;
    op.in[0] = x;
    op.param[0] = weight;
    op.param[1] = settings.has_bias ? settings.bias : -1;
    op.param_count = 2;
    op.fused_count = 1;
    (void)hd_rec_op(rec, &op);
}

void op_head_loss(struct hd_rec *rec, struct hd_tensor *x, int weight, struct hd_tensor *targets,
                  struct hd_head_settings settings)
{
    struct hd_op op = {.kind = HD_OP_head_loss, .in = {x, targets}, .in_count = 2};

    if (rec->shape.distill.k && !settings.further) {
        op.set.distill = rec->shape.distill;
        if (rec->shape.mode == HD_RECORD_TRAIN) {
            op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_TEACHER_IDS);
            op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_TEACHER_LOGQ);
        }
    }
    head(rec, &op, x, weight, settings);
}

void op_head_pairs(struct hd_rec *rec, struct hd_tensor *x, int weight,
                   struct hd_head_settings settings)
{
    const bool referred = hd_preference_has_reference(rec->shape.preference);
    struct hd_op op = {
        .kind = HD_OP_head_pairs,
        .in = {x, hd_rec_batch(rec, HD_BATCH_TARGETS), hd_rec_batch(rec, HD_BATCH_ANSWERS)},
        .in_count = 3,
        .set = {.preference = rec->shape.preference, .factors = rec->shape.factors}};

    if (referred)
        op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_REFERENCE);
    head(rec, &op, x, weight, settings);
}

void op_head_policy(struct hd_rec *rec, struct hd_tensor *x, int weight,
                    struct hd_head_settings settings)
{
    struct hd_op op = {
        .kind = HD_OP_head_policy,
        .in = {x, hd_rec_batch(rec, HD_BATCH_TARGETS), hd_rec_batch(rec, HD_BATCH_ANSWERS),
               hd_rec_batch(rec, HD_BATCH_SAMPLED), hd_rec_batch(rec, HD_BATCH_ADVANTAGE)},
        .in_count = 5,
        .set = {.policy = rec->shape.policy}};

    if (rec->shape.policy.kl != HD_POLICY_KL_NONE)
        op.in[op.in_count++] = hd_rec_batch(rec, HD_BATCH_REFERENCE);
    head(rec, &op, x, weight, settings);
}

void op_head_reward(struct hd_rec *rec, struct hd_tensor *x, int weight)
{
    head(
        rec,
        &(struct hd_op){.kind = HD_OP_head_reward,
                        .in = {x, hd_rec_batch(rec, HD_BATCH_ANSWERS)},
                        .in_count = 2,
                        .set = {.preference = HD_PREFERENCE_REWARD, .factors = rec->shape.factors}},
        x, weight, (struct hd_head_settings){0});
}

void op_logits(struct hd_rec *rec, struct hd_tensor *x, int weight,
               struct hd_head_settings settings)
{
    if (!rec->error.status && rec->shape.mode == HD_RECORD_TRAIN)
        (void)hd_rec_fail(rec, hd_err(HD_INTERNAL, "logits: a training program has no outputs"));
    head(rec, &(struct hd_op){.kind = HD_OP_logits, .in = {x}, .in_count = 1}, x, weight, settings);
}

struct hd_tensor *op_take_rows(struct hd_rec *rec, struct hd_tensor *x, struct hd_tensor *index)
{
    if (!rec->error.status && rec->shape.mode != HD_RECORD_DECODE)
        return hd_rec_fail(rec, hd_err(HD_INTERNAL, "take_rows: it has no backward"));
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_take_rows, .in = {x, index}, .in_count = 2},
                         "taken", index->dim[0], x->dim[1]);
}

struct hd_tensor *op_bias(struct hd_rec *rec, struct hd_tensor *x, int bias, int fused_count)
{
    int64_t N = 0;

    for (int i = 0; i < fused_count; i++)
        N += param_at(rec, bias + i)->local[0];
    if (!rec->error.status && x->dim[1] != N)
        return hd_rec_wrong_width(rec, param_at(rec, bias)->name, x, N);
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_bias,
                                        .in = {x},
                                        .in_count = 1,
                                        .param = {bias, -1},
                                        .param_count = 2,
                                        .fused_count = fused_count},
                         "biased", x->dim[0], x->dim[1]);
}

/* Records an op that communicates over tp ranks and whose result has R * times / parts rows, R
 * those of x. Returns x and records nothing if tp is 1. */
static struct hd_tensor *tp_op(struct hd_rec *rec, enum hd_op_kind kind, const char *name,
                               struct hd_tensor *x, int64_t times, int64_t parts)
{
    struct hd_tensor *out;

    if (rec->error.status || rec->registry->mesh.sizes.tp == 1)
        return x;
    if (x->dim[0] % parts)
        return hd_rec_fail(rec, hd_err(HD_INVALID,
                                       "sequence parallelism: %lld rows cannot be divided evenly "
                                       "among tp = %lld ranks",
                                       (long long)x->dim[0], (long long)parts));
    out = hd_rec_result(rec, (struct hd_op){.kind = kind, .in = {x}, .in_count = 1}, name,
                        x->dim[0] * times / parts, x->dim_count > 1 ? x->dim[1] : 0);
    out->dtype = x->dtype;
    return out;
}

struct hd_tensor *op_copy_to_tp(struct hd_rec *rec, struct hd_tensor *x)
{
    return tp_op(rec, HD_OP_copy_to_tp, "entered", x, hd_rec_row_shards(rec), 1);
}

struct hd_tensor *op_reduce_from_tp(struct hd_rec *rec, struct hd_tensor *x)
{
    return tp_op(rec, HD_OP_reduce_from_tp, "summed", x, 1, hd_rec_row_shards(rec));
}

struct hd_tensor *op_tp_rows(struct hd_rec *rec, struct hd_tensor *field)
{
    if (hd_rec_row_shards(rec) == 1)
        return field;
    return tp_op(rec, HD_OP_tp_rows, "rows", field, 1, hd_rec_row_shards(rec));
}
