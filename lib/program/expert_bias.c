/* expert_bias: nodes for the biases of experts, which ops_experts.c adds to their products. */
#include "program/emit.h"

void hd_emit_expert_bias(struct hd_emit *e, const struct hd_emit_expert_rows *rows, int param,
                         struct hd_operand out, int64_t ldo)
{
    struct hd_node *node = hd_emit_expert_bias_forward(
        e,
        HD_ARGS(expert_bias_forward, .E = rows->E, .T = rows->T,
                .N = e->registry->params[param].local[1], .ldo = ldo, .dtype = rows->dtype),
        HD_OPERANDS(expert_bias_forward, .out = out, .bias = hd_emit_weight(e, param, rows->dtype),
                    .counts = rows->counts));

    node->rows.even = rows->even;
}

void hd_emit_expert_bias_grad(struct hd_emit *e, const struct hd_emit_expert_rows *rows, int param,
                              struct hd_operand dout, int64_t ldd)
{
    bool first;
    const struct hd_operand grad = hd_emit_param_grad(e, param, 1, &first);
    struct hd_node *node = hd_emit_expert_bias_backward(
        e,
        HD_ARGS(expert_bias_backward, .E = rows->E, .T = rows->T,
                .N = e->registry->params[param].local[1], .ldd = ldd, .dtype = rows->dtype),
        HD_OPERANDS(expert_bias_backward, .dbias = grad, .dout = dout, .counts = rows->counts));

    node->rows.even = rows->even;
    hd_emit_contributes(node, first);
}
