/* RMSNorm and LayerNorm: forward keeps the statistics of each row, backward reads them. */
#include "program/emit.h"

static void keep_statistics(struct hd_emit *e, int *slot, const char *name, int64_t R)
{
    *slot = hd_emit_temp(e, name, HD_F32, R, 0).store;
}

/* ---- RMSNorm ---- */

static void rmsnorm_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    int *rstd = &e->kept_store[e->op_index];

    keep_statistics(e, rstd, "rstd", x->dim[0]);
    (void)hd_emit_kernel(
        e, HD_K_rmsnorm_forward,
        &(struct hd_rmsnorm_forward_args){
            .R = x->dim[0], .C = x->dim[1], .eps = (float)op->set.eps, .dtype = x->dtype},
        (struct hd_operand[]){hd_emit_value(e, op->out), hd_emit_none(), hd_emit_at(*rstd, 0),
                              hd_emit_value(e, x), hd_emit_none(),
                              hd_emit_weight(e, op->param[0], x->dtype)});
}

static void rmsnorm_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_kernel(
        e, HD_K_rmsnorm_backward,
        &(struct hd_rmsnorm_backward_args){.R = x->dim[0], .C = x->dim[1], .dtype = x->dtype},
        (struct hd_operand[]){dx, hd_emit_grad(e, op->out), hd_emit_value(e, x),
                              hd_emit_at(e->kept_store[e->op_index], 0),
                              hd_emit_weight(e, op->param[0], x->dtype), hd_emit_none()});
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
        hd_emit_kernel(e, HD_K_rmsnorm_backward_weight,
                       &(struct hd_rmsnorm_backward_weight_args){
                           .R = x->dim[0], .C = x->dim[1], .dtype = x->dtype},
                       (struct hd_operand[]){grad, hd_emit_grad(e, op->out), hd_emit_value(e, x),
                                             hd_emit_at(e->kept_store[e->op_index], 0)}),
        first);
}

const struct hd_op_row hd_op_row_rmsnorm = {.forward = rmsnorm_forward,
                                            .backward_inputs = rmsnorm_backward_inputs,
                                            .backward_weights = rmsnorm_backward_weights};

/* ---- LayerNorm ---- */

static void layernorm_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    int *mean = &e->kept_store2[e->op_index], *rstd = &e->kept_store[e->op_index];

    keep_statistics(e, mean, "mean", x->dim[0]);
    keep_statistics(e, rstd, "rstd", x->dim[0]);
    (void)hd_emit_kernel(
        e, HD_K_layernorm_forward,
        &(struct hd_layernorm_forward_args){
            .R = x->dim[0], .C = x->dim[1], .eps = (float)op->set.eps, .dtype = x->dtype},
        (struct hd_operand[]){hd_emit_value(e, op->out), hd_emit_none(), hd_emit_at(*mean, 0),
                              hd_emit_at(*rstd, 0), hd_emit_value(e, x), hd_emit_none(),
                              hd_emit_weight(e, op->param[0], x->dtype),
                              hd_emit_weight(e, op->param[1], x->dtype)});
}

static void layernorm_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_kernel(
        e, HD_K_layernorm_backward,
        &(struct hd_layernorm_backward_args){.R = x->dim[0], .C = x->dim[1], .dtype = x->dtype},
        (struct hd_operand[]){dx, hd_emit_grad(e, op->out), hd_emit_value(e, x),
                              hd_emit_at(e->kept_store2[e->op_index], 0),
                              hd_emit_at(e->kept_store[e->op_index], 0),
                              hd_emit_weight(e, op->param[0], x->dtype), hd_emit_none()});
    hd_emit_add_grad(e, x, dx, true);
}

static void layernorm_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dweight, dbias;
    bool first, first_bias;

    if (!hd_op_trains_param(e->registry, op, 0))
        return;
    dweight = hd_emit_param_grad(e, op->param[0], 1, &first);
    dbias = hd_emit_param_grad(e, op->param[1], 1, &first_bias);
    if (first != first_bias)
        hd_emit_fail(e, hd_err(HD_INTERNAL, "layernorm: weight and bias shared apart"));
    hd_emit_contributes(
        hd_emit_kernel(e, HD_K_layernorm_backward_weight,
                       &(struct hd_layernorm_backward_weight_args){
                           .R = x->dim[0], .C = x->dim[1], .dtype = x->dtype},
                       (struct hd_operand[]){dweight, dbias, hd_emit_grad(e, op->out),
                                             hd_emit_value(e, x),
                                             hd_emit_at(e->kept_store2[e->op_index], 0),
                                             hd_emit_at(e->kept_store[e->op_index], 0)}),
        first);
}

const struct hd_op_row hd_op_row_layernorm = {.forward = layernorm_forward,
                                              .backward_inputs = layernorm_backward_inputs,
                                              .backward_weights = layernorm_backward_weights};

/* ---- RMSNorm over the heads of queries and keys ---- */

static void head_norm_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    int *rstd = &e->kept_store[e->op_index];

    *rstd = hd_emit_temp(e, "rstd", HD_F32, x->dim[0], op->set.heads + op->set.kv_heads).store;
    (void)hd_emit_kernel(e, HD_K_head_norm_forward,
                         &(struct hd_head_norm_forward_args){.R = x->dim[0],
                                                             .H = op->set.heads,
                                                             .G = op->set.kv_heads,
                                                             .D = op->set.head_width,
                                                             .eps = (float)op->set.eps,
                                                             .dtype = x->dtype},
                         (struct hd_operand[]){hd_emit_value(e, op->out), hd_emit_at(*rstd, 0),
                                               hd_emit_value(e, x),
                                               hd_emit_weight(e, op->param[0], x->dtype),
                                               hd_emit_weight(e, op->param[1], x->dtype)});
}

static void head_norm_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_kernel(e, HD_K_head_norm_backward,
                         &(struct hd_head_norm_backward_args){.R = x->dim[0],
                                                              .H = op->set.heads,
                                                              .G = op->set.kv_heads,
                                                              .D = op->set.head_width,
                                                              .dtype = x->dtype},
                         (struct hd_operand[]){dx, hd_emit_grad(e, op->out), hd_emit_value(e, x),
                                               hd_emit_at(e->kept_store[e->op_index], 0),
                                               hd_emit_weight(e, op->param[0], x->dtype),
                                               hd_emit_weight(e, op->param[1], x->dtype)});
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
        hd_emit_fail(e, hd_err(HD_INTERNAL, "head_norm: one of two weights is shared"));
    hd_emit_contributes(
        hd_emit_kernel(e, HD_K_head_norm_backward_weight,
                       &(struct hd_head_norm_backward_weight_args){.R = x->dim[0],
                                                                   .H = op->set.heads,
                                                                   .G = op->set.kv_heads,
                                                                   .D = op->set.head_width,
                                                                   .dtype = x->dtype},
                       (struct hd_operand[]){dq, dk, hd_emit_grad(e, op->out), hd_emit_value(e, x),
                                             hd_emit_at(e->kept_store[e->op_index], 0)}),
        first);
}

const struct hd_op_row hd_op_row_head_norm = {.forward = head_norm_forward,
                                              .backward_inputs = head_norm_backward_inputs,
                                              .backward_weights = head_norm_backward_weights};
