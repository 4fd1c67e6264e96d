/* RoPE and attention. q, k and v of a token stand in one row: [q: H*D | k: G*D | v: G*D]. */
#include <math.h>

#include "program/emit.h"

/* ---- RoPE, in place; its gradient turns back, in place too ---- */

static void emit_rope(struct hd_emit *e, const struct hd_op *op, struct hd_operand x, bool inverse)
{
    const int64_t P = e->rec->shape.context, D = op->set.head_width;
    const struct hd_rope_args args = {.R = op->in[0]->dim[0],
                                      .H = op->set.heads,
                                      .D = D,
                                      .P = P,
                                      .ldx = op->in[0]->dim[1],
                                      .inverse = inverse,
                                      .dtype = op->in[0]->dtype};

    (void)hd_emit_kernel(e, HD_K_rope, &args,
                         (struct hd_operand[]){x, hd_emit_value(e, op->in[1]),
                                               hd_emit_angles(e, P, D, &op->set.rope)});
}

static void rope_forward(struct hd_emit *e, const struct hd_op *op)
{
    emit_rope(e, op, hd_emit_value(e, op->out), false);
}

static void rope_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    struct hd_operand grad = hd_emit_grad(e, op->out);

    if (!op->in[0]->needs_grad)
        return;
    if (!e->grads[op->out->id].own) {
        hd_emit_fail(e, hd_err(HD_INTERNAL, "rope: its gradient is shared and cannot be rotated in "
                                            "place"));
        return;
    }
    emit_rope(e, op, grad, true);
    hd_emit_add_grad(e, op->in[0], grad, true);
}

const struct hd_op_row hd_op_row_rope = {.forward = rope_forward,
                                         .backward_inputs = rope_backward_inputs};

/* ---- attention ---- */

static struct hd_operand column(struct hd_operand o, int64_t first, enum hd_dtype dtype)
{
    o.offset_bytes += first * (int64_t)hd_dtype_size(dtype);
    return o;
}

struct attention {
    int64_t R, H, G, D, ld, B, S;
    enum hd_dtype dtype;
    struct hd_operand q, k, v;
};

static struct attention describe(struct hd_emit *e, const struct hd_op *op, struct hd_operand qkv)
{
    const struct hd_tensor *x = op->in[0];
    struct attention a = {.R = x->dim[0],
                          .H = op->set.heads,
                          .G = op->set.kv_heads,
                          .D = op->set.head_width,
                          .ld = x->dim[1],
                          .B = e->rec->shape.B,
                          .S = e->rec->shape.S,
                          .dtype = x->dtype};

    a.q = qkv;
    a.k = column(qkv, a.H * a.D, a.dtype);
    a.v = column(qkv, (a.H + a.G) * a.D, a.dtype);
    return a;
}

/* Appends the new rows of k or v to this unit's cache and returns the cache. */
static struct hd_operand append_to_cache(struct hd_emit *e, const struct hd_op *op,
                                         const struct attention *a, const char *name,
                                         struct hd_operand rows)
{
    const int64_t N = a->G * a->D, context = e->rec->shape.context;
    struct hd_operand cache = hd_emit_cache(e, name, a->dtype, a->B * context, N);
    struct hd_operand overflow = hd_emit_global(e, HD_GLOBAL_BLOCK);

    overflow.offset_bytes = offsetof(struct hd_step_block, overflow);
    (void)hd_emit_kernel(e, HD_K_cache_append,
                         &(struct hd_cache_append_args){.B = a->B,
                                                        .rows = context,
                                                        .new_rows = a->S,
                                                        .N = N,
                                                        .ldi = a->ld,
                                                        .ldc = N,
                                                        .dtype = a->dtype},
                         (struct hd_operand[]){cache, overflow, rows, hd_emit_value(e, op->in[2])});
    return cache;
}

/* Where each row's document begins; absent in D and where documents are joined. */
static struct hd_operand bounds_of(struct hd_emit *e, const struct hd_op *op)
{
    return e->rec->shape.bounded && e->rec->shape.mode != HD_RECORD_DECODE
               ? hd_emit_value(e, op->in[2])
               : hd_emit_none();
}

static void attention_forward(struct hd_emit *e, const struct hd_op *op)
{
    struct attention a = describe(e, op, hd_emit_value(e, op->in[0]));
    struct hd_operand index = hd_emit_value(e, op->in[1]), kv_index = index;
    struct hd_operand lse = hd_emit_temp(e, "lse", HD_F32, a.H, a.R);
    struct hd_operand filled = hd_emit_none();
    struct hd_attention_forward_args args = {.B = a.B,
                                             .q_len = a.S,
                                             .kv_len = a.S,
                                             .kv_stride = a.S,
                                             .H = a.H,
                                             .G = a.G,
                                             .D = a.D,
                                             .ldq = a.ld,
                                             .ldk = a.ld,
                                             .ldv = a.ld,
                                             .ldo = a.H * a.D,
                                             .window = op->set.window,
                                             .scale = 1 / sqrtf((float)a.D),
                                             .causal = op->set.causal,
                                             .dtype = a.dtype};

    e->kept_store[e->op_index] = lse.store;
    if (e->rec->shape.mode == HD_RECORD_DECODE) {
        a.k = append_to_cache(e, op, &a, "keys", a.k);
        a.v = append_to_cache(e, op, &a, "values", a.v);
        args.kv_len = args.kv_stride = e->rec->shape.context;
        args.ldk = args.ldv = a.G * a.D;
        kv_index = hd_emit_iota(e, a.B * args.kv_len, args.kv_len);
        filled = hd_emit_value(e, op->in[2]);
        filled.offset_bytes = sizeof(int32_t); /* [1]: rows valid after the append */
    }
    (void)hd_emit_kernel(e, HD_K_attention_forward, &args,
                         (struct hd_operand[]){hd_emit_value(e, op->out), lse, a.q, a.k, a.v, index,
                                               kv_index, bounds_of(e, op), hd_emit_none(), filled,
                                               hd_emit_none(), hd_emit_none()});
}

static void attention_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct attention a = describe(e, op, hd_emit_value(e, x)), d;
    struct hd_operand grad, index = hd_emit_value(e, op->in[1]);

    if (!x->needs_grad)
        return;
    grad = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    d = describe(e, op, grad);
    (void)hd_emit_kernel(e, HD_K_attention_backward,
                         &(struct hd_attention_backward_args){.B = a.B,
                                                              .q_len = a.S,
                                                              .kv_len = a.S,
                                                              .kv_stride = a.S,
                                                              .H = a.H,
                                                              .G = a.G,
                                                              .D = a.D,
                                                              .ldq = a.ld,
                                                              .ldk = a.ld,
                                                              .ldv = a.ld,
                                                              .ldo = a.H * a.D,
                                                              .lddq = a.ld,
                                                              .lddk = a.ld,
                                                              .lddv = a.ld,
                                                              .lddo = a.H * a.D,
                                                              .window = op->set.window,
                                                              .scale = 1 / sqrtf((float)a.D),
                                                              .causal = op->set.causal,
                                                              .dtype = a.dtype,
                                                              .grad_dtype = a.dtype},
                         (struct hd_operand[]){d.q, d.k, d.v, hd_emit_grad(e, op->out), a.q, a.k,
                                               a.v, hd_emit_value(e, op->out),
                                               hd_emit_at(e->kept_store[e->op_index], 0), index,
                                               index, bounds_of(e, op), hd_emit_none(),
                                               hd_emit_none(), hd_emit_none()});
    hd_emit_add_grad(e, x, grad, true);
}

const struct hd_op_row hd_op_row_attention = {.forward = attention_forward,
                                              .backward_inputs = attention_backward_inputs};
