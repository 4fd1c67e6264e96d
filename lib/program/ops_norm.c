/* RMSNorm and LayerNorm. Forward keeps the statistics of each row for backward. */
#include "program/emit.h"

/* ---- RMSNorm ---- */

static void rmsnorm_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_emit_stats *stats = hd_emit_get_stats(e);

    stats->rstd = hd_emit_temp(e, "rstd", HD_F32, x->dim[0], 0);
    (void)hd_emit_rmsnorm_forward(e,
                                  HD_ARGS(rmsnorm_forward, .R = x->dim[0], .C = x->dim[1],
                                          .eps = (float)op->set.eps, .one_plus = op->set.one_plus,
                                          .dtype = x->dtype),
                                  HD_OPERANDS(rmsnorm_forward, .out = hd_emit_result(e, op),
                                              .rstd = stats->rstd, .inp = hd_emit_value(e, x),
                                              .weight = hd_emit_weight(e, op->param[0], x->dtype)));
}

static void rmsnorm_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_rmsnorm_backward(
        e,
        HD_ARGS(rmsnorm_backward, .R = x->dim[0], .C = x->dim[1], .one_plus = op->set.one_plus,
                .dtype = x->dtype),
        HD_OPERANDS(rmsnorm_backward, .dinp = dx, .dout = hd_emit_grad(e, op->out),
                    .inp = hd_emit_value(e, x), .rstd = hd_emit_get_stats(e)->rstd,
                    .weight = hd_emit_weight(e, op->param[0], x->dtype)));
    hd_emit_add_grad(e, x, dx, true);
}

static void rmsnorm_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand grad;
    bool first;

    if (!hd_op_trains_param(e->registry, op, 0))
        return;
    grad = hd_emit_param_grad(e, op->param[0], 1, &first);
    hd_emit_contributes(
        hd_emit_rmsnorm_backward_weight(
            e, HD_ARGS(rmsnorm_backward_weight, .R = x->dim[0], .C = x->dim[1], .dtype = x->dtype),
            HD_OPERANDS(rmsnorm_backward_weight, .dweight = grad, .dout = hd_emit_grad(e, op->out),
                        .inp = hd_emit_value(e, x), .rstd = hd_emit_get_stats(e)->rstd)),
        first);
}

const struct hd_op_row hd_op_row_rmsnorm = {.forward = rmsnorm_forward,
                                            .backward_inputs = rmsnorm_backward_inputs,
                                            .backward_weights = rmsnorm_backward_weights,
                                            .cheap = true};

/* ---- LayerNorm ---- */

static void layernorm_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_emit_stats *stats = hd_emit_get_stats(e);

    stats->mean = hd_emit_temp(e, "mean", HD_F32, x->dim[0], 0);
    stats->rstd = hd_emit_temp(e, "rstd", HD_F32, x->dim[0], 0);
    (void)hd_emit_layernorm_forward(
        e,
        HD_ARGS(layernorm_forward, .R = x->dim[0], .C = x->dim[1], .eps = (float)op->set.eps,
                .one_plus = op->set.one_plus, .dtype = x->dtype),
        HD_OPERANDS(layernorm_forward, .out = hd_emit_result(e, op), .mean = stats->mean,
                    .rstd = stats->rstd, .inp = hd_emit_value(e, x),
                    .weight = hd_emit_weight_or_none(e, op->param[0], x->dtype),
                    .bias = hd_emit_weight_or_none(e, op->param[1], x->dtype)));
}

static void layernorm_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_layernorm_backward(
        e,
        HD_ARGS(layernorm_backward, .R = x->dim[0], .C = x->dim[1], .one_plus = op->set.one_plus,
                .dtype = x->dtype),
        HD_OPERANDS(layernorm_backward, .dinp = dx, .dout = hd_emit_grad(e, op->out),
                    .inp = hd_emit_value(e, x), .mean = hd_emit_get_stats(e)->mean,
                    .rstd = hd_emit_get_stats(e)->rstd,
                    .weight = hd_emit_weight_or_none(e, op->param[0], x->dtype)));
    hd_emit_add_grad(e, x, dx, true);
}

static void layernorm_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dweight, dbias = hd_emit_none();
    bool first, first_bias;

    if (!hd_op_trains_param(e->registry, op, 0))
        return;
    dweight = hd_emit_param_grad(e, op->param[0], 1, &first);
    first_bias = first;
    if (op->param[1] >= 0)
        dbias = hd_emit_param_grad(e, op->param[1], 1, &first_bias);
    if (first != first_bias)
        hd_emit_fail(e, hd_err(HD_INTERNAL, "layernorm: another op uses one of weight and bias"));
    hd_emit_contributes(
        hd_emit_layernorm_backward_weight(
            e,
            HD_ARGS(layernorm_backward_weight, .R = x->dim[0], .C = x->dim[1], .dtype = x->dtype),
            HD_OPERANDS(layernorm_backward_weight, .dweight = dweight, .dbias = dbias,
                        .dout = hd_emit_grad(e, op->out), .inp = hd_emit_value(e, x),
                        .mean = hd_emit_get_stats(e)->mean, .rstd = hd_emit_get_stats(e)->rstd)),
        first);
}

const struct hd_op_row hd_op_row_layernorm = {.forward = layernorm_forward,
                                              .backward_inputs = layernorm_backward_inputs,
                                              .backward_weights = layernorm_backward_weights,
                                              .cheap = true};

/* ---- RMSNorm over the heads of queries and keys ---- */

static void head_norm_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_emit_stats *stats = hd_emit_get_stats(e);

    stats->rstd = hd_emit_temp(e, "rstd", HD_F32, x->dim[0],
                               (op->set.heads + op->set.kv_heads) * (op->set.layer ? 2 : 1));
    (void)hd_emit_head_norm_forward(
        e,
        HD_ARGS(head_norm_forward, .R = x->dim[0], .H = op->set.heads, .G = op->set.kv_heads,
                .D = op->set.head_width, .eps = (float)op->set.eps, .one_plus = op->set.one_plus,
                .layer = op->set.layer, .dtype = x->dtype),
        HD_OPERANDS(head_norm_forward, .out = hd_emit_result(e, op), .rstd = stats->rstd,
                    .inp = hd_emit_value(e, x),
                    .q_weight = hd_emit_weight_or_none(e, op->param[0], x->dtype),
                    .k_weight = hd_emit_weight_or_none(e, op->param[1], x->dtype)));
}

static void head_norm_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_head_norm_backward(
        e,
        HD_ARGS(head_norm_backward, .R = x->dim[0], .H = op->set.heads, .G = op->set.kv_heads,
                .D = op->set.head_width, .one_plus = op->set.one_plus, .layer = op->set.layer,
                .dtype = x->dtype),
        HD_OPERANDS(head_norm_backward, .dinp = dx, .dout = hd_emit_grad(e, op->out),
                    .inp = hd_emit_value(e, x), .rstd = hd_emit_get_stats(e)->rstd,
                    .q_weight = hd_emit_weight_or_none(e, op->param[0], x->dtype),
                    .k_weight = hd_emit_weight_or_none(e, op->param[1], x->dtype)));
    hd_emit_add_grad(e, x, dx, true);
}

static void head_norm_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dq, dk;
    bool first, first_k;

    if (!hd_op_trains_param(e->registry, op, 0))
        return;
    dq = hd_emit_param_grad(e, op->param[0], 1, &first);
    dk = hd_emit_param_grad(e, op->param[1], 1, &first_k);
    if (first != first_k)
        hd_emit_fail(e, hd_err(HD_INTERNAL, "head_norm: another op uses one of the weights"));
    hd_emit_contributes(
        hd_emit_head_norm_backward_weight(
            e,
            HD_ARGS(head_norm_backward_weight, .R = x->dim[0], .H = op->set.heads,
                    .G = op->set.kv_heads, .D = op->set.head_width, .layer = op->set.layer,
                    .dtype = x->dtype),
            HD_OPERANDS(head_norm_backward_weight, .dq_weight = dq, .dk_weight = dk,
                        .dout = hd_emit_grad(e, op->out), .inp = hd_emit_value(e, x),
                        .rstd = hd_emit_get_stats(e)->rstd)),
        first);
}

const struct hd_op_row hd_op_row_head_norm = {.forward = head_norm_forward,
                                              .backward_inputs = head_norm_backward_inputs,
                                              .backward_weights = head_norm_backward_weights};
