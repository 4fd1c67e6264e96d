/* The ops of adapters of low rank (Hu et al. 2021, "LoRA"), beside a linear y = x W^T:
 *
 *     h = s x A^T                 linear, scale    dA += s (dy B)^T x     dx += s (dy B) A
 *     y += h B^T                  low_rank         dB += dy^T h           dh  = dy B
 *
 * A linear of several weights (q, k, v) has a B for each that is adapted; their As are one matrix.
 * The gradient of y is the gradient of the sum, in one memory. */
#include "program/emit.h"

static void low_rank_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *h = op->in[1], *y = op->out;
    const struct hd_operand sum = hd_emit_result(e, op), inner = hd_emit_value(e, h);

    for (int i = 0; i < op->param_count; i++) {
        const struct hd_param *b = &e->registry->params[op->param[i]];

        (void)hd_emit_gemm(e,
                           HD_ARGS(gemm, .M = y->dim[0], .N = b->local[0], .K = b->local[1],
                                   .lda = h->dim[1], .ldb = b->local[1], .ldc = y->dim[1],
                                   .trans_b = true, .accumulate = true, .ab_dtype = h->dtype,
                                   .c_dtype = y->dtype),
                           HD_OPERANDS(gemm, .c = hd_emit_at(sum, op->set.column[i], y->dtype),
                                       .a = hd_emit_at(inner, op->set.inner[i], h->dtype),
                                       .b = hd_emit_weight(e, op->param[i], h->dtype)));
    }
}

/* Returns true if a target with a lower index has the same columns of h, so that this target adds
 * to their gradient. */
static bool adds_to_inner(const struct hd_op *op, int target)
{
    for (int i = 0; i < target; i++)
        if (op->set.inner[i] == op->set.inner[target])
            return true;
    return false;
}

static void low_rank_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *y = op->out, *h = op->in[1];
    const struct hd_operand dy = hd_emit_grad(e, y);
    struct hd_operand dh;

    hd_emit_add_grad(e, op->in[0], dy, false);
    if (!h->needs_grad)
        return;
    hd_emit_prepare(e, h);
    dh = hd_emit_temp(e, "grad", h->dtype, h->dim[0], h->dim[1]);
    for (int i = 0; i < op->param_count; i++) {
        const struct hd_param *b = &e->registry->params[op->param[i]];

        (void)hd_emit_gemm(e,
                           HD_ARGS(gemm, .M = y->dim[0], .N = b->local[1], .K = b->local[0],
                                   .lda = y->dim[1], .ldb = b->local[1], .ldc = h->dim[1],
                                   .accumulate = adds_to_inner(op, i), .ab_dtype = y->dtype,
                                   .c_dtype = h->dtype),
                           HD_OPERANDS(gemm, .c = hd_emit_at(dh, op->set.inner[i], h->dtype),
                                       .a = hd_emit_at(dy, op->set.column[i], y->dtype),
                                       .b = hd_emit_weight(e, op->param[i], h->dtype)));
    }
    hd_emit_add_grad(e, h, dh, true);
}

static void low_rank_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *y = op->out, *h = op->in[1];

    for (int i = 0; i < op->param_count; i++) {
        const struct hd_param *b = &e->registry->params[op->param[i]];
        struct hd_operand grad;
        bool first;

        if (!hd_op_trains_param(e->registry, op, i))
            continue;
        grad = hd_emit_param_grad(e, op->param[i], 1, &first);
        hd_emit_contributes(
            hd_emit_gemm(
                e,
                HD_ARGS(gemm, .M = b->local[0], .N = b->local[1], .K = y->dim[0], .lda = y->dim[1],
                        .ldb = h->dim[1], .ldc = b->local[1], .trans_a = true, .ab_dtype = y->dtype,
                        .c_dtype = HD_F32),
                HD_OPERANDS(gemm, .c = grad,
                            .a = hd_emit_at(hd_emit_grad(e, y), op->set.column[i], y->dtype),
                            .b = hd_emit_at(hd_emit_value(e, h), op->set.inner[i], h->dtype))),
            first);
    }
}

const struct hd_op_row hd_op_row_low_rank = {.forward = low_rank_forward,
                                             .backward_inputs = low_rank_backward_inputs,
                                             .backward_weights = low_rank_backward_weights};

/* ---- scale ---- */

static void emit_scale(struct hd_emit *e, const struct hd_op *op, struct hd_operand out,
                       struct hd_operand inp)
{
    const struct hd_tensor *x = op->in[0];

    (void)hd_emit_copy_columns(
        e,
        HD_ARGS(copy_columns, .R = x->dim[0], .N = x->dim[1], .ldo = x->dim[1], .ldi = x->dim[1],
                .factor = (float)op->set.scale, .out_dtype = x->dtype, .inp_dtype = x->dtype),
        HD_OPERANDS(copy_columns, .out = out, .inp = inp));
}

static void scale_forward(struct hd_emit *e, const struct hd_op *op)
{
    emit_scale(e, op, hd_emit_result(e, op), hd_emit_value(e, op->in[0]));
}

static void scale_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    emit_scale(e, op, dx, hd_emit_grad(e, op->out));
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_scale = {.forward = scale_forward,
                                          .backward_inputs = scale_backward_inputs};
