/* Gated delta layers (ops_delta.h of kernels): causal convolution, gated delta rule, norm with a
 * gate; and the gate of attention's output. Short convolutions have the first and the last, plain.
 *
 * In decoding the convolution keeps the last inputs of each cache slot and the rule its state, in
 * place of keys and values. Backward computes the rule's states again, so forward keeps only the
 * op's inputs and the gates, two numbers per row and value head. */
#include "program/emit_delta.h"

static bool decodes(const struct hd_emit *e)
{
    return e->rec->shape.mode == HD_RECORD_DECODE;
}

/* Numbers of the cache slots of a call, one int32 for each sequence; absent outside of decoding. */
struct slots {
    struct hd_operand before, after, slot;
};

static struct slots slots_of(struct hd_emit *e, const struct hd_op *op, int field)
{
    const int64_t row = e->rec->shape.B * (int64_t)sizeof(int32_t);
    struct slots s = {0};

    if (!decodes(e))
        return s;
    s.before = s.after = s.slot = hd_emit_value(e, op->in[field]);
    s.after.offset_bytes += row;
    s.slot.offset_bytes += 2 * row;
    return s;
}

/* Returns the bounds of documents, input `field` of the op; absent: each sequence is one. */
static struct hd_operand bounds_of(struct hd_emit *e, const struct hd_op *op, int field)
{
    if (decodes(e) || !e->rec->shape.bounded)
        return hd_emit_none();
    return hd_emit_value(e, op->in[field]);
}

/* ---- convolution ---- */

static void conv_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const int64_t W = op->set.conv_width, N = x->dim[1];
    const struct slots slots = slots_of(e, op, 1);
    const struct hd_emit_segments s = hd_emit_segments_of(e);
    const struct hd_operand halo = hd_emit_conv_halo(e, op, &s);

    (void)hd_emit_conv_forward(
        e,
        HD_ARGS(conv_forward, .B = s.B, .S = s.S, .N = N, .W = W, .plain = op->set.plain,
                .dtype = x->dtype),
        HD_OPERANDS(conv_forward, .out = hd_emit_result(e, op),
                    .state = decodes(e) ? hd_emit_cache(e, "inputs", x->dtype,
                                                        e->rec->shape.slots * (W - 1), N)
                                        : hd_emit_none(),
                    .inp = hd_emit_value(e, x), .weight = hd_emit_weight(e, op->param[0], x->dtype),
                    .bound = bounds_of(e, op, 1), .before = slots.before, .after = slots.after,
                    .slot = slots.slot, .halo = halo, .position = s.position));
}

static void conv_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const struct hd_emit_segments s = hd_emit_segments_of(e);
    const struct hd_operand halo = hd_emit_conv_halo(e, op, &s);
    const int64_t W = op->set.conv_width, N = x->dim[1];
    struct hd_operand dx, dhalo = hd_emit_none();

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], N);
    if (s.position.store)
        dhalo = hd_emit_temp(e, "halo_grad", HD_F32, s.B, (W - 1) * N);
    (void)hd_emit_conv_backward(
        e,
        HD_ARGS(conv_backward, .B = s.B, .S = s.S, .N = N, .W = W, .plain = op->set.plain,
                .dtype = x->dtype),
        HD_OPERANDS(conv_backward, .dinp = dx, .dhalo = dhalo, .dout = hd_emit_grad(e, op->out),
                    .inp = hd_emit_value(e, x), .weight = hd_emit_weight(e, op->param[0], x->dtype),
                    .bound = bounds_of(e, op, 1), .halo = halo, .position = s.position));
    if (s.position.store)
        hd_emit_conv_halo_backward(e, op, &s, dhalo, dx);
    hd_emit_add_grad(e, x, dx, true);
}

static void conv_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const struct hd_emit_segments s = hd_emit_segments_of(e);
    const struct hd_operand halo = hd_emit_conv_halo(e, op, &s);
    struct hd_operand grad;
    bool first;

    if (!hd_op_trains_param(e->registry, op, 0))
        return;
    grad = hd_emit_param_grad(e, op->param[0], op->fused_count, &first);
    hd_emit_contributes(
        hd_emit_conv_backward_weight(
            e,
            HD_ARGS(conv_backward_weight, .B = s.B, .S = s.S, .N = x->dim[1],
                    .W = op->set.conv_width, .plain = op->set.plain, .dtype = x->dtype),
            HD_OPERANDS(conv_backward_weight, .dweight = grad, .dout = hd_emit_grad(e, op->out),
                        .inp = hd_emit_value(e, x),
                        .weight = hd_emit_weight(e, op->param[0], x->dtype),
                        .bound = bounds_of(e, op, 1), .halo = halo, .position = s.position)),
        first);
}

const struct hd_op_row hd_op_row_conv = {.forward = conv_forward,
                                         .backward_inputs = conv_backward_inputs,
                                         .backward_weights = conv_backward_weights,
                                         .cheap = true};

/* ---- gated delta rule ---- */

static void gated_delta_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *qkv = op->in[0], *ba = op->in[1];
    const int64_t H = op->set.heads, Dk = op->set.key_width, Dv = op->set.head_width;
    const struct slots slots = slots_of(e, op, 2);
    const struct hd_emit_segments s = hd_emit_segments_of(e);
    const struct hd_operand bound = bounds_of(e, op, 2);
    struct hd_emit_stats *stats = hd_emit_get_stats(e);
    struct hd_operand initial;

    stats->gates = hd_emit_temp(e, "gates", HD_F32, ba->dim[0], ba->dim[1]);
    (void)hd_emit_delta_gates_forward(
        e, HD_ARGS(delta_gates_forward, .R = ba->dim[0], .H = H, .dtype = ba->dtype),
        HD_OPERANDS(delta_gates_forward, .gates = stats->gates, .inp = hd_emit_value(e, ba),
                    .A_log = hd_emit_weight(e, op->param[0], HD_F32),
                    .dt_bias = hd_emit_weight(e, op->param[0] + 1, HD_F32)));
    initial = hd_emit_delta_states(e, op, &s, bound);
    (void)hd_emit_gated_delta_forward(
        e,
        HD_ARGS(gated_delta_forward, .B = s.B, .S = s.S, .G = op->set.kv_heads, .H = H, .Dk = Dk,
                .Dv = Dv, .eps = (float)op->set.eps, .dtype = qkv->dtype),
        HD_OPERANDS(gated_delta_forward, .out = hd_emit_result(e, op),
                    .state = decodes(e) ? hd_emit_cache(e, "state", HD_F32,
                                                        e->rec->shape.slots * H * Dk, Dv)
                                        : hd_emit_none(),
                    .qkv = hd_emit_value(e, qkv), .gates = stats->gates, .bound = bound,
                    .before = slots.before, .after = slots.after, .slot = slots.slot,
                    .initial = initial, .position = s.position));
}

/* Emits the gradient of the gates' inputs, and the terms of the gradients of A_log and dt_bias,
 * which backward of weights adds up: the rule's backward is too costly to run twice. */
static void differentiate_gates(struct hd_emit *e, const struct hd_op *op, struct hd_operand dgates)
{
    const struct hd_tensor *ba = op->in[1];
    const int64_t R = ba->dim[0], N = ba->dim[1];
    const struct hd_operand grad = hd_emit_temp(e, "grad", ba->dtype, R, N);
    struct hd_operand terms = hd_emit_none();

    if (hd_op_trains_param(e->registry, op, 0)) {
        terms = hd_emit_temp(e, "gate_terms", HD_F32, R, N);
        e->frame[HD_FRAME_FORWARD].stats[e->op_index].gate_terms = terms;
    }
    (void)hd_emit_delta_gates_backward(
        e, HD_ARGS(delta_gates_backward, .R = R, .H = op->set.heads, .dtype = ba->dtype),
        HD_OPERANDS(delta_gates_backward, .dinp = grad, .terms = terms, .dgates = dgates,
                    .inp = hd_emit_value(e, ba), .A_log = hd_emit_weight(e, op->param[0], HD_F32),
                    .dt_bias = hd_emit_weight(e, op->param[0] + 1, HD_F32)));
    hd_emit_add_grad(e, ba, grad, true);
}

static void gated_delta_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *qkv = op->in[0], *ba = op->in[1];
    const struct hd_operand dqkv = hd_emit_temp(e, "grad", qkv->dtype, qkv->dim[0], qkv->dim[1]);
    const struct hd_operand dgates = hd_emit_temp(e, "gates_grad", HD_F32, ba->dim[0], ba->dim[1]);
    const struct hd_operand bound = bounds_of(e, op, 2);
    const struct hd_emit_segments s = hd_emit_segments_of(e);
    struct hd_operand dfinal;

    (void)hd_emit_value(e, op->out); /* recomputes gates and states if forward's are not kept */
    dfinal = hd_emit_delta_states_gradient(e, op, &s, bound);
    (void)hd_emit_gated_delta_backward(
        e,
        HD_ARGS(gated_delta_backward, .B = s.B, .S = s.S, .G = op->set.kv_heads, .H = op->set.heads,
                .Dk = op->set.key_width, .Dv = op->set.head_width, .eps = (float)op->set.eps,
                .dtype = qkv->dtype),
        HD_OPERANDS(
            gated_delta_backward, .dqkv = dqkv, .dgates = dgates, .dout = hd_emit_grad(e, op->out),
            .qkv = hd_emit_value(e, qkv), .gates = hd_emit_get_stats(e)->gates, .bound = bound,
            .initial = hd_emit_get_stats(e)->states, .dfinal = dfinal, .position = s.position));
    hd_emit_add_grad(e, qkv, dqkv, true);
    differentiate_gates(e, op, dgates);
}

/* Emits the sums of the gradients of A_log and dt_bias over rows, by the kernel for a bias
 * gradient. */
static void gated_delta_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *ba = op->in[1];
    const int64_t R = ba->dim[0], N = ba->dim[1];
    struct hd_operand sum;
    bool first;

    if (!hd_op_trains_param(e->registry, op, 0))
        return;
    sum = hd_emit_param_grad(e, op->param[0], op->fused_count, &first);
    hd_emit_contributes(
        hd_emit_bias_backward(
            e, HD_ARGS(bias_backward, .R = R, .N = N, .ldd = N, .dtype = HD_F32),
            HD_OPERANDS(bias_backward, .dbias = sum,
                        .dout = e->frame[HD_FRAME_FORWARD].stats[e->op_index].gate_terms)),
        first);
}

const struct hd_op_row hd_op_row_gated_delta = {.forward = gated_delta_forward,
                                                .backward_inputs = gated_delta_backward_inputs,
                                                .backward_weights = gated_delta_backward_weights};

/* ---- norm with a gate ---- */

static void gated_norm_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const int64_t H = op->set.heads;
    struct hd_emit_stats *stats = hd_emit_get_stats(e);

    stats->rstd = hd_emit_temp(e, "rstd", HD_F32, x->dim[0], H);
    (void)hd_emit_gated_norm_forward(
        e,
        HD_ARGS(gated_norm_forward, .R = x->dim[0], .H = H, .D = x->dim[1] / H,
                .eps = (float)op->set.eps, .dtype = x->dtype),
        HD_OPERANDS(gated_norm_forward, .out = hd_emit_result(e, op), .rstd = stats->rstd,
                    .inp = hd_emit_value(e, x), .gate = hd_emit_value(e, op->in[1]),
                    .weight = hd_emit_weight(e, op->param[0], x->dtype)));
}

static void gated_norm_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0], *gate = op->in[1];
    const int64_t H = op->set.heads;
    struct hd_operand dx, dgate;

    if (!x->needs_grad && !gate->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    dgate = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_gated_norm_backward(
        e,
        HD_ARGS(gated_norm_backward, .R = x->dim[0], .H = H, .D = x->dim[1] / H, .dtype = x->dtype),
        HD_OPERANDS(gated_norm_backward, .dinp = dx, .dgate = dgate,
                    .dout = hd_emit_grad(e, op->out), .inp = hd_emit_value(e, x),
                    .gate = hd_emit_value(e, gate), .rstd = hd_emit_get_stats(e)->rstd,
                    .weight = hd_emit_weight(e, op->param[0], x->dtype)));
    hd_emit_add_grad(e, x, dx, true);
    hd_emit_add_grad(e, gate, dgate, true);
}

static void gated_norm_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const int64_t H = op->set.heads;
    struct hd_operand grad;
    bool first;

    if (!hd_op_trains_param(e->registry, op, 0))
        return;
    grad = hd_emit_param_grad(e, op->param[0], 1, &first);
    hd_emit_contributes(
        hd_emit_gated_norm_backward_weight(
            e,
            HD_ARGS(gated_norm_backward_weight, .R = x->dim[0], .H = H, .D = x->dim[1] / H,
                    .dtype = x->dtype),
            HD_OPERANDS(gated_norm_backward_weight, .dweight = grad,
                        .dout = hd_emit_grad(e, op->out), .inp = hd_emit_value(e, x),
                        .gate = hd_emit_value(e, op->in[1]), .rstd = hd_emit_get_stats(e)->rstd)),
        first);
}

const struct hd_op_row hd_op_row_gated_norm = {.forward = gated_norm_forward,
                                               .backward_inputs = gated_norm_backward_inputs,
                                               .backward_weights = gated_norm_backward_weights,
                                               .cheap = true};

/* ---- gate of attention's output ---- */

static void sigmoid_gate_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *y = op->in[0];

    (void)hd_emit_sigmoid_gate_forward(
        e,
        HD_ARGS(sigmoid_gate_forward, .N = y->dim[0] * y->dim[1], .plain = op->set.plain,
                .dtype = y->dtype),
        HD_OPERANDS(sigmoid_gate_forward, .out = hd_emit_result(e, op), .y = hd_emit_value(e, y),
                    .g = hd_emit_value(e, op->in[1])));
}

static void sigmoid_gate_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *y = op->in[0], *g = op->in[1];
    struct hd_operand dy, dg;

    if (!op->out->needs_grad)
        return;
    dy = hd_emit_temp(e, "grad", y->dtype, y->dim[0], y->dim[1]);
    dg = hd_emit_temp(e, "grad", g->dtype, g->dim[0], g->dim[1]);
    (void)hd_emit_sigmoid_gate_backward(
        e,
        HD_ARGS(sigmoid_gate_backward, .N = y->dim[0] * y->dim[1], .plain = op->set.plain,
                .dtype = y->dtype),
        HD_OPERANDS(sigmoid_gate_backward, .dy = dy, .dg = dg, .dout = hd_emit_grad(e, op->out),
                    .y = hd_emit_value(e, y), .g = hd_emit_value(e, g)));
    hd_emit_add_grad(e, y, dy, true);
    hd_emit_add_grad(e, g, dg, true);
}

const struct hd_op_row hd_op_row_sigmoid_gate = {.forward = sigmoid_gate_forward,
                                                 .backward_inputs = sigmoid_gate_backward_inputs,
                                                 .cheap = true};
