/* RMSNorm over all query channels of a row, and over all its key channels (op_head_norm, `whole`).
 *
 * Tensor parallelism splits these channels with the heads. Each rank adds its part of a row's two
 * sums, and an all-reduce of two fp32 numbers a row over tp makes them those of all ranks: the sums
 * of squares in forward, of w * dout * inp in backward. With one tp rank the kernels add the sums
 * themselves.
 */
#include "program/emit.h"

/* Returns the sums of all tp ranks, [R, 2]: of squares, or of products with the gradient `dout` of
 * the op's result. Absent with one tp rank. */
static struct hd_operand emit_row_sums(struct hd_emit *e, const struct hd_op *op,
                                       struct hd_operand dout)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand mine, all;

    if (e->registry->mesh.sizes.tp == 1)
        return hd_emit_none();
    mine = hd_emit_temp(e, "sums", HD_F32, x->dim[0], 2);
    all = hd_emit_temp(e, "sums", HD_F32, x->dim[0], 2);
    (void)hd_emit_qk_norm_sums(
        e,
        HD_ARGS(qk_norm_sums, .R = x->dim[0], .H = op->set.heads, .G = op->set.kv_heads,
                .D = op->set.head_width, .one_plus = op->set.one_plus, .dtype = x->dtype),
        HD_OPERANDS(qk_norm_sums, .sums = mine, .inp = hd_emit_value(e, x), .dout = dout,
                    .q_weight = hd_emit_weight_or_none(e, dout.store ? op->param[0] : -1, x->dtype),
                    .k_weight =
                        hd_emit_weight_or_none(e, dout.store ? op->param[1] : -1, x->dtype)));
    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = HD_GROUP_TP,
                               .count = 2 * x->dim[0], .dtype = HD_F32),
                       HD_OPERANDS(comm, .received = all, .sent = mine));
    return all;
}

static void qk_norm_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_emit_stats *stats = hd_emit_get_stats(e);
    const struct hd_operand sums = emit_row_sums(e, op, hd_emit_none());

    stats->rstd = hd_emit_temp(e, "rstd", HD_F32, x->dim[0], 2);
    (void)hd_emit_qk_norm_forward(
        e,
        HD_ARGS(qk_norm_forward, .R = x->dim[0], .H = op->set.heads, .G = op->set.kv_heads,
                .D = op->set.head_width, .ranks = e->registry->mesh.sizes.tp,
                .eps = (float)op->set.eps, .one_plus = op->set.one_plus, .dtype = x->dtype),
        HD_OPERANDS(qk_norm_forward, .out = hd_emit_result(e, op), .rstd = stats->rstd,
                    .inp = hd_emit_value(e, x), .sums = sums,
                    .q_weight = hd_emit_weight_or_none(e, op->param[0], x->dtype),
                    .k_weight = hd_emit_weight_or_none(e, op->param[1], x->dtype)));
}

static void qk_norm_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const struct hd_operand dout = hd_emit_grad(e, op->out);
    struct hd_operand dx, sums;

    if (!x->needs_grad)
        return;
    sums = emit_row_sums(e, op, dout);
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_qk_norm_backward(
        e,
        HD_ARGS(qk_norm_backward, .R = x->dim[0], .H = op->set.heads, .G = op->set.kv_heads,
                .D = op->set.head_width, .ranks = e->registry->mesh.sizes.tp,
                .one_plus = op->set.one_plus, .dtype = x->dtype),
        HD_OPERANDS(qk_norm_backward, .dinp = dx, .dout = dout, .inp = hd_emit_value(e, x),
                    .rstd = hd_emit_get_stats(e)->rstd, .sums = sums,
                    .q_weight = hd_emit_weight_or_none(e, op->param[0], x->dtype),
                    .k_weight = hd_emit_weight_or_none(e, op->param[1], x->dtype)));
    hd_emit_add_grad(e, x, dx, true);
}

static void qk_norm_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dq, dk;
    bool first, first_k;

    if (!hd_op_trains_param(e->registry, op, 0))
        return;
    dq = hd_emit_param_grad(e, op->param[0], 1, &first);
    dk = hd_emit_param_grad(e, op->param[1], 1, &first_k);
    if (first != first_k)
        hd_emit_fail(e, hd_err(HD_INTERNAL, "qk_norm: another op uses one of the weights"));
    hd_emit_contributes(
        hd_emit_qk_norm_backward_weight(
            e,
            HD_ARGS(qk_norm_backward_weight, .R = x->dim[0], .H = op->set.heads,
                    .G = op->set.kv_heads, .D = op->set.head_width, .dtype = x->dtype),
            HD_OPERANDS(qk_norm_backward_weight, .dq_weight = dq, .dk_weight = dk,
                        .dout = hd_emit_grad(e, op->out), .inp = hd_emit_value(e, x),
                        .rstd = hd_emit_get_stats(e)->rstd)),
        first);
}

const struct hd_op_row hd_op_row_qk_norm = {.forward = qk_norm_forward,
                                            .backward_inputs = qk_norm_backward_inputs,
                                            .backward_weights = qk_norm_backward_weights};
