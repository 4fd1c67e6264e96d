/* Ops of multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): keys and values come from a
 * latent of a few channels, and the rotated channels of keys are shared by all heads.
 *
 *     c = N(W_a x)  [R, kv_rank]        [k | v] of each head = W_b c       k_rope [R, rope] from x
 *
 * latent_join builds the rows that op_attention takes; they are cheap to build again, so backward
 * needs only what they are copied from. head_columns takes channels of each head: parts of W_a x,
 * and the result of attention without the zeros with which values are padded. */
#include "program/emit.h"
#include "program/rec.h"

/* ---- recording ---- */

struct hd_tensor *op_head_columns(struct hd_rec *rec, struct hd_tensor *x, int64_t heads,
                                  int64_t head_width, int64_t first, int64_t count)
{
    if (rec->error.status)
        return &rec->dummy;
    if (x->dim[1] != heads * head_width)
        return hd_rec_wrong_width(rec, "head_columns", x, heads * head_width);
    if (first < 0 || count < 1 || first + count > head_width)
        return hd_rec_fail(rec,
                           hd_err(HD_INTERNAL, "head_columns: %lld channels from %lld on of %lld",
                                  (long long)count, (long long)first, (long long)head_width));
    return hd_rec_result(
        rec,
        (struct hd_op){.kind = HD_OP_head_columns,
                       .in = {x},
                       .in_count = 1,
                       .set = {.heads = heads, .head_width = head_width, .first_channel = first}},
        "columns", x->dim[0], heads * count);
}

struct hd_tensor *op_latent_join(struct hd_rec *rec, struct hd_tensor *q, struct hd_tensor *kv,
                                 struct hd_tensor *k_rope, const struct hd_latent_heads *heads)
{
    const int64_t H = heads->heads, D = heads->nope + heads->rope;
    struct hd_tensor *const in[] = {q, kv, k_rope};
    const int64_t columns[] = {H * D, H * (heads->nope + heads->value), heads->rope};

    if (rec->error.status)
        return &rec->dummy;
    for (int i = 0; i < 3; i++)
        if (in[i]->dim[1] != columns[i])
            return hd_rec_wrong_width(rec, "latent_join", in[i], columns[i]);
    if (heads->value > D)
        return hd_rec_fail(rec, hd_err(HD_INTERNAL,
                                       "latent_join: values have more channels than keys, %lld",
                                       (long long)heads->value));
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_latent_join,
                                        .in = {q, kv, k_rope},
                                        .in_count = 3,
                                        .set = {.latent = *heads}},
                         "joined", q->dim[0], 3 * H * D);
}

struct hd_tensor *op_rebuilt_linear(struct hd_rec *rec, struct hd_tensor *x, int weight)
{
    struct hd_tensor *y = op_linear(rec, x, weight, -1, 1);

    if (!rec->error.status)
        rec->ops[rec->op_count - 1].set.rebuilt = true;
    return y;
}

/* ---- channels of each head ---- */

/* Emits the copy of `count` channels of each head between rows of heads of head_width channels and
 * rows of heads of only those, in the direction that to_narrow gives. */
static void copy_heads(struct hd_emit *e, const struct hd_op *op, struct hd_operand all,
                       struct hd_operand narrow, bool to_narrow)
{
    const struct hd_tensor *x = op->in[0];
    const int64_t H = op->set.heads, D = op->set.head_width, count = op->out->dim[1] / H;
    const struct hd_operand at = hd_emit_at(all, op->set.first_channel, x->dtype);

    (void)hd_emit_copy_columns(
        e,
        HD_ARGS(copy_columns, .R = x->dim[0] * H, .N = count, .ldo = to_narrow ? count : D,
                .ldi = to_narrow ? D : count, .factor = 1, .out_dtype = x->dtype,
                .inp_dtype = x->dtype),
        HD_OPERANDS(copy_columns, .out = to_narrow ? narrow : at, .inp = to_narrow ? at : narrow));
}

static void head_columns_forward(struct hd_emit *e, const struct hd_op *op)
{
    copy_heads(e, op, hd_emit_value(e, op->in[0]), hd_emit_result(e, op), true);
}

/* Emits the gradient: zeros, then the given channels. */
static void head_columns_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_zero(
        e, HD_ARGS(zero, .size_bytes = x->dim[0] * x->dim[1] * (int64_t)hd_dtype_size(x->dtype)),
        HD_OPERANDS(zero, .out = dx));
    copy_heads(e, op, dx, hd_emit_grad(e, op->out), false);
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_head_columns = {.forward = head_columns_forward,
                                                 .backward_inputs = head_columns_backward_inputs,
                                                 .cheap = true};

/* ---- rows for attention ---- */

static void latent_join_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_latent_heads *l = &op->set.latent;

    (void)hd_emit_latent_join_forward(
        e,
        HD_ARGS(latent_join_forward, .R = op->out->dim[0], .H = l->heads, .nope = l->nope,
                .rope = l->rope, .value = l->value, .padded = l->nope + l->rope,
                .dtype = op->out->dtype),
        HD_OPERANDS(latent_join_forward, .out = hd_emit_result(e, op),
                    .q = hd_emit_value(e, op->in[0]), .kv = hd_emit_value(e, op->in[1]),
                    .k_rope = hd_emit_value(e, op->in[2])));
}

static struct hd_operand latent_gradient(struct hd_emit *e, const struct hd_tensor *t)
{
    return hd_emit_temp(e, "grad", t->dtype, t->dim[0], t->dim[1]);
}

static void latent_join_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_latent_heads *l = &op->set.latent;
    const struct hd_tensor *q = op->in[0], *kv = op->in[1], *k_rope = op->in[2];
    struct hd_operand dq = hd_emit_none(), dkv, dk_rope;

    if (!op->out->needs_grad)
        return;
    if (q->needs_grad)
        dq = latent_gradient(e, q);
    dkv = latent_gradient(e, kv);
    dk_rope = latent_gradient(e, k_rope);
    (void)hd_emit_latent_join_backward(
        e,
        HD_ARGS(latent_join_backward, .R = op->out->dim[0], .H = l->heads, .nope = l->nope,
                .rope = l->rope, .value = l->value, .padded = l->nope + l->rope,
                .dtype = op->out->dtype),
        HD_OPERANDS(latent_join_backward, .dq = dq, .dkv = dkv, .dk_rope = dk_rope,
                    .dout = hd_emit_grad(e, op->out)));
    if (q->needs_grad)
        hd_emit_add_grad(e, q, dq, true);
    hd_emit_add_grad(e, kv, dkv, true);
    hd_emit_add_grad(e, k_rope, dk_rope, true);
}

const struct hd_op_row hd_op_row_latent_join = {
    .forward = latent_join_forward, .backward_inputs = latent_join_backward_inputs, .cheap = true};
