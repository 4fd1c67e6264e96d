/* Ops with weight matrices: embedding, linear, logits; the head with its loss is in ops_head.c. Also
 * take_rows, by the kernel of an embedding whose table is a tensor.
 *
 * linear:  y = x W^T + b,   dx = dy W,   dW += dy^T x,   db += sum_r dy. */
#include "program/emit.h"

/* ---- embedding ---- */

static void embedding_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *out = op->out;
    const struct hd_param *params = e->registry->params;
    bool positions = op->param[1] >= 0;
    const struct hd_embedding_forward_args args = {
        .R = out->dim[0],
        .C = out->dim[1],
        .V = params[op->param[0]].local[0],
        .V2 = positions ? params[op->param[1]].local[0] : 0,
        .first = params[op->param[0]].start[0],
        .scale = (float)op->set.scale,
        .dtype = out->dtype,
    };

    (void)hd_emit_embedding_forward(
        e, &args,
        HD_OPERANDS(
            embedding_forward, .out = hd_emit_result(e, op), .index = hd_emit_value(e, op->in[0]),
            .weight = hd_emit_weight(e, op->param[0], out->dtype),
            .index2 = positions ? hd_emit_value(e, op->in[1]) : hd_emit_none(),
            .weight2 = positions ? hd_emit_weight(e, op->param[1], out->dtype) : hd_emit_none()));
}

/* Emits the gradients of the tables. That of a table of another unit (further tokens, in the unit
 * of the head) is emitted into B: it is the table's first contribution of a micro-batch, which may
 * overwrite the gradient, and W of the unit's chunk may run after W of the table's own unit. */
static void embedding_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    if (e->registry->params[op->param[0]].unit != op->unit)
        e->call = HD_CALL_B;
    for (int i = 0; i < 2; i++) {
        bool first;
        struct hd_operand grad;

        if (!hd_op_trains_param(e->registry, op, i))
            continue;
        grad = hd_emit_param_grad(e, op->param[i], 1, &first);
        hd_emit_contributes(
            hd_emit_embedding_backward(
                e,
                HD_ARGS(embedding_backward, .R = op->out->dim[0], .C = op->out->dim[1],
                        .V = e->registry->params[op->param[i]].local[0],
                        .first = e->registry->params[op->param[i]].start[0],
                        .scale = i ? 1 : (float)op->set.scale, .dtype = op->out->dtype),
                HD_OPERANDS(embedding_backward, .dweight = grad,
                            .index = hd_emit_value(e, op->in[i]),
                            .dout = hd_emit_grad(e, op->out))),
            first);
    }
}

const struct hd_op_row hd_op_row_embedding = {.forward = embedding_forward,
                                              .backward_weights = embedding_backward_weights};

/* ---- linear ---- */

/* Emits one product for the span, which is trainable or frozen as a whole, since its parameters are
 * in one bucket. */
static void linear_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0], *y = op->out;
    const int64_t K = x->dim[1], N = y->dim[1];
    struct hd_quant_factor codes;
    const struct hd_operand w = hd_emit_factor(e, op->param[0], op->fused_count, x->dtype, &codes);

    (void)hd_emit_product(
        e, op, HD_AMAX_INPUT, HD_AMAX_WEIGHT,
        HD_ARGS(gemm, .M = x->dim[0], .N = N, .K = K, .lda = K, .ldb = K, .ldc = N, .trans_b = true,
                .ab_dtype = x->dtype, .c_dtype = y->dtype, .b_codes = codes),
        HD_OPERANDS(gemm, .c = hd_emit_result(e, op), .a = hd_emit_value(e, x), .b = w,
                    .bias = op->param[1] >= 0 ? hd_emit_weight(e, op->param[1], x->dtype)
                                              : hd_emit_none()));
}

static void linear_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0], *y = op->out;
    const int64_t K = x->dim[1], N = y->dim[1];
    struct hd_quant_factor codes;
    struct hd_operand dx, w;
    bool accumulate;

    if (!x->needs_grad)
        return;
    if (hd_op_trains_param(e->registry, op, 0))
        hd_emit_prepare(e, x); /* if x is recomputed, its gather then overlaps with the GEMM of
                                  dx */
    dx = hd_emit_grad_sum(e, x, &accumulate);
    w = hd_emit_factor(e, op->param[0], op->fused_count, x->dtype, &codes);
    (void)hd_emit_product(e, op, HD_AMAX_GRAD, HD_AMAX_WEIGHT,
                          HD_ARGS(gemm, .M = x->dim[0], .N = K, .K = N, .lda = N, .ldb = K,
                                  .ldc = K, .accumulate = accumulate, .ab_dtype = y->dtype,
                                  .c_dtype = x->dtype, .b_codes = codes),
                          HD_OPERANDS(gemm, .c = dx, .a = hd_emit_grad(e, y), .b = w));
    if (!accumulate)
        hd_emit_add_grad(e, x, dx, true);
}

void hd_emit_bias_gradient(struct hd_emit *e, int bias, int fused_count, const struct hd_tensor *y)
{
    const struct hd_op op = {.param = {bias, -1}, .fused_count = fused_count};
    struct hd_operand grad;
    bool first;

    if (!hd_op_trains_param(e->registry, &op, 0))
        return;
    grad = hd_emit_param_grad(e, bias, fused_count, &first);
    hd_emit_contributes(hd_emit_bias_backward(
                            e,
                            HD_ARGS(bias_backward, .R = y->dim[0], .N = y->dim[1], .ldd = y->dim[1],
                                    .dtype = y->dtype),
                            HD_OPERANDS(bias_backward, .dbias = grad, .dout = hd_emit_grad(e, y))),
                        first);
}

static void linear_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0], *y = op->out;
    const int64_t K = x->dim[1], N = y->dim[1];
    struct hd_operand grad;
    bool first;

    if (hd_op_trains_param(e->registry, op, 0)) {
        grad = hd_emit_param_grad(e, op->param[0], op->fused_count, &first);
        hd_emit_contributes(
            hd_emit_product(
                e, op, HD_AMAX_GRAD, HD_AMAX_INPUT,
                HD_ARGS(gemm, .M = N, .N = K, .K = x->dim[0], .lda = N, .ldb = K, .ldc = K,
                        .trans_a = true, .ab_dtype = x->dtype, .c_dtype = HD_F32),
                HD_OPERANDS(gemm, .c = grad, .a = hd_emit_grad(e, y), .b = hd_emit_value(e, x))),
            first);
    }
    hd_emit_bias_gradient(e, op->param[1], op->fused_count, y);
}

const struct hd_op_row hd_op_row_linear = {.forward = linear_forward,
                                           .backward_inputs = linear_backward_inputs,
                                           .backward_weights = linear_backward_weights};

/* ---- logits ---- */

static void logits_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const int64_t V = e->registry->params[op->param[0]].local[0], C = x->dim[1];
    struct hd_store *out = hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_OUTPUT,
                                                               .name = "logits",
                                                               .dtype = HD_F32,
                                                               .rows = x->dim[0],
                                                               .columns = V});

    (void)hd_emit_gemm(e,
                       HD_ARGS(gemm, .M = x->dim[0], .N = V, .K = C, .lda = C, .ldb = C, .ldc = V,
                               .trans_b = true, .ab_dtype = x->dtype, .c_dtype = HD_F32),
                       HD_OPERANDS(gemm, .c = {out, 0}, .a = hd_emit_value(e, x),
                                   .b = hd_emit_weight(e, op->param[0], x->dtype),
                                   .bias = hd_emit_weight_or_none(e, op->param[1], x->dtype)));
    if (hd_emit_maps_logits(op))
        (void)hd_emit_map_logits(
            e,
            HD_ARGS(map_logits, .N = x->dim[0] * V, .map = hd_emit_logit_map(op), .dtype = HD_F32),
            HD_OPERANDS(map_logits, .logits = {out, 0}));
}

const struct hd_op_row hd_op_row_logits = {.forward = logits_forward};

/* ---- take_rows ---- */

static void take_rows_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0], *out = op->out;

    (void)hd_emit_embedding_forward(e,
                                    HD_ARGS(embedding_forward, .R = out->dim[0], .C = out->dim[1],
                                            .V = x->dim[0], .dtype = out->dtype),
                                    HD_OPERANDS(embedding_forward, .out = hd_emit_result(e, op),
                                                .index = hd_emit_value(e, op->in[1]),
                                                .weight = hd_emit_value(e, x)));
}

const struct hd_op_row hd_op_row_take_rows = {.forward = take_rows_forward};
