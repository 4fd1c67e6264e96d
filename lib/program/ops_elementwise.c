/* Ops on single elements or rows, without weight matrices. */
#include "program/emit.h"

/* ---- gated activations ---- */

static void glu_forward(struct hd_emit *e, const struct hd_op *op)
{
    (void)hd_emit_glu_forward(
        e,
        HD_ARGS(glu_forward, .R = op->out->dim[0], .F = op->out->dim[1],
                .alpha = (float)op->set.alpha, .limit = (float)op->set.limit, .act = op->set.act,
                .dtype = op->out->dtype),
        HD_OPERANDS(glu_forward, .out = hd_emit_result(e, op), .inp = hd_emit_value(e, op->in[0])));
}

static void glu_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_glu_backward(e,
                               HD_ARGS(glu_backward, .R = op->out->dim[0], .F = op->out->dim[1],
                                       .alpha = (float)op->set.alpha, .limit = (float)op->set.limit,
                                       .act = op->set.act, .dtype = x->dtype),
                               HD_OPERANDS(glu_backward, .dinp = dx,
                                           .dout = hd_emit_grad(e, op->out),
                                           .inp = hd_emit_value(e, x)));
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_glu = {
    .forward = glu_forward, .backward_inputs = glu_backward_inputs, .cheap = true};

/* ---- activations ---- */

static void activation_forward(struct hd_emit *e, const struct hd_op *op)
{
    (void)hd_emit_activation_forward(e,
                                     HD_ARGS(activation_forward,
                                             .N = op->out->dim[0] * op->out->dim[1],
                                             .act = op->set.act, .dtype = op->out->dtype),
                                     HD_OPERANDS(activation_forward, .out = hd_emit_result(e, op),
                                                 .inp = hd_emit_value(e, op->in[0])));
}

static void activation_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_activation_backward(e,
                                      HD_ARGS(activation_backward, .N = x->dim[0] * x->dim[1],
                                              .act = op->set.act, .dtype = x->dtype),
                                      HD_OPERANDS(activation_backward, .dinp = dx,
                                                  .dout = hd_emit_grad(e, op->out),
                                                  .inp = hd_emit_value(e, x)));
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_activation = {
    .forward = activation_forward, .backward_inputs = activation_backward_inputs, .cheap = true};

/* ---- values between two bounds ---- */

static void clamp_forward(struct hd_emit *e, const struct hd_op *op)
{
    (void)hd_emit_clamp_forward(e,
                                HD_ARGS(clamp_forward, .N = op->out->dim[0] * op->out->dim[1],
                                        .limit = (float)op->set.limit, .dtype = op->out->dtype),
                                HD_OPERANDS(clamp_forward, .out = hd_emit_result(e, op),
                                            .inp = hd_emit_value(e, op->in[0])));
}

static void clamp_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_clamp_backward(e,
                                 HD_ARGS(clamp_backward, .N = x->dim[0] * x->dim[1],
                                         .limit = (float)op->set.limit, .dtype = x->dtype),
                                 HD_OPERANDS(clamp_backward, .dinp = dx,
                                             .dout = hd_emit_grad(e, op->out),
                                             .inp = hd_emit_value(e, x)));
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_clamp = {
    .forward = clamp_forward, .backward_inputs = clamp_backward_inputs, .cheap = true};

/* ---- rows times the sigmoid of a number ---- */

static void row_gate_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *y = op->in[0];

    (void)hd_emit_row_gate_forward(
        e, HD_ARGS(row_gate_forward, .R = y->dim[0], .C = y->dim[1], .dtype = y->dtype),
        HD_OPERANDS(row_gate_forward, .out = hd_emit_result(e, op), .y = hd_emit_value(e, y),
                    .g = hd_emit_value(e, op->in[1])));
}

static void row_gate_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *y = op->in[0], *g = op->in[1];
    struct hd_operand dy, dg;

    if (!op->out->needs_grad)
        return;
    dy = hd_emit_temp(e, "grad", y->dtype, y->dim[0], y->dim[1]);
    dg = hd_emit_temp(e, "grad", g->dtype, g->dim[0], g->dim[1]);
    (void)hd_emit_row_gate_backward(
        e, HD_ARGS(row_gate_backward, .R = y->dim[0], .C = y->dim[1], .dtype = y->dtype),
        HD_OPERANDS(row_gate_backward, .dy = dy, .dg = dg, .dout = hd_emit_grad(e, op->out),
                    .y = hd_emit_value(e, y), .g = hd_emit_value(e, g)));
    hd_emit_add_grad(e, y, dy, true);
    hd_emit_add_grad(e, g, dg, true);
}

const struct hd_op_row hd_op_row_row_gate = {
    .forward = row_gate_forward, .backward_inputs = row_gate_backward_inputs, .cheap = true};

/* ---- add: both inputs have the gradient of the sum, and share its memory; with a factor the
 * second input has its own ---- */

static void add_forward(struct hd_emit *e, const struct hd_op *op)
{
    (void)hd_emit_add(e,
                      HD_ARGS(add, .N = op->out->dim[0] * op->out->dim[1],
                              .factor = (float)op->set.scale, .dtype = op->out->dtype),
                      HD_OPERANDS(add, .out = hd_emit_result(e, op),
                                  .a = hd_emit_value(e, op->in[0]),
                                  .b = hd_emit_value(e, op->in[1])));
}

static void add_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *b = op->in[1];
    const float factor = hd_factor_of((float)op->set.scale);
    const struct hd_operand grad = hd_emit_grad(e, op->out);
    struct hd_operand scaled = grad;

    if (factor != 1 && b->needs_grad) {
        scaled = hd_emit_temp(e, "grad", b->dtype, b->dim[0], b->dim[1]);
        (void)hd_emit_copy_columns(e,
                                   HD_ARGS(copy_columns, .R = b->dim[0], .N = b->dim[1],
                                           .ldo = b->dim[1], .ldi = b->dim[1], .factor = factor,
                                           .out_dtype = b->dtype, .inp_dtype = op->out->dtype),
                                   HD_OPERANDS(copy_columns, .out = scaled, .inp = grad));
    }
    hd_emit_add_grad(e, op->in[0], grad, false);
    hd_emit_add_grad(e, b, scaled, factor != 1);
}

const struct hd_op_row hd_op_row_add = {.forward = add_forward,
                                        .backward_inputs = add_backward_inputs};

/* ---- dropout: keeps no mask; backward recomputes the mask ---- */

uint64_t hd_emit_dropout_key(const struct hd_dropout *dropout)
{
    return hd_dropout_key(dropout->seed, dropout->layer, dropout->site);
}

static void emit_dropout(struct hd_emit *e, const struct hd_op *op, struct hd_operand out,
                         struct hd_operand inp)
{
    (void)hd_emit_dropout(
        e,
        HD_ARGS(dropout, .key = hd_emit_dropout_key(&op->set.dropout), .R = op->out->dim[0],
                .C = op->out->dim[1], .first_channel = op->set.first_channel,
                .p = (float)op->set.dropout.p, .dtype = op->out->dtype),
        HD_OPERANDS(dropout, .out = out, .inp = inp, .sample = hd_emit_value(e, op->in[1]),
                    .index = hd_emit_value(e, op->in[2]),
                    .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE)));
}

static void dropout_forward(struct hd_emit *e, const struct hd_op *op)
{
    emit_dropout(e, op, hd_emit_result(e, op), hd_emit_value(e, op->in[0]));
}

static void dropout_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    emit_dropout(e, op, dx, hd_emit_grad(e, op->out));
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_dropout = {.forward = dropout_forward,
                                            .backward_inputs = dropout_backward_inputs};

/* ---- noise ---- */

static void noise_forward(struct hd_emit *e, const struct hd_op *op)
{
    (void)hd_emit_noise(
        e,
        HD_ARGS(noise, .key = hd_emit_dropout_key(&op->set.dropout), .R = op->out->dim[0],
                .C = op->out->dim[1], .alpha = (float)op->set.noise, .dtype = op->out->dtype),
        HD_OPERANDS(noise, .out = hd_emit_result(e, op), .inp = hd_emit_value(e, op->in[0]),
                    .sample = hd_emit_value(e, op->in[1]), .index = hd_emit_value(e, op->in[2]),
                    .length = hd_emit_value(e, op->in[3]),
                    .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE)));
}

static void noise_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    if (op->in[0]->needs_grad)
        hd_emit_add_grad(e, op->in[0], hd_emit_grad(e, op->out), false);
}

const struct hd_op_row hd_op_row_noise = {.forward = noise_forward,
                                          .backward_inputs = noise_backward_inputs};

/* ---- cast ---- */

static void emit_cast(struct hd_emit *e, struct hd_operand out, enum hd_dtype out_dtype,
                      struct hd_operand inp, enum hd_dtype inp_dtype, int64_t N)
{
    (void)hd_emit_cast(e, HD_ARGS(cast, .N = N, .out_dtype = out_dtype, .inp_dtype = inp_dtype),
                       HD_OPERANDS(cast, .out = out, .inp = inp));
}

static void cast_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];

    emit_cast(e, hd_emit_result(e, op), op->out->dtype, hd_emit_value(e, x), x->dtype,
              x->dim[0] * x->dim[1]);
}

static void cast_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    emit_cast(e, dx, x->dtype, hd_emit_grad(e, op->out), op->out->dtype, x->dim[0] * x->dim[1]);
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_cast = {
    .forward = cast_forward, .backward_inputs = cast_backward_inputs, .cheap = true};

/* ---- bias after a sum over tp ranks or a magnitude; op_linear adds other biases ---- */

static void bias_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];

    (void)hd_emit_bias_forward(
        e, HD_ARGS(bias_forward, .R = x->dim[0], .N = x->dim[1], .dtype = x->dtype),
        HD_OPERANDS(bias_forward, .out = hd_emit_result(e, op), .inp = hd_emit_value(e, x),
                    .bias = hd_emit_weight(e, op->param[0], x->dtype)));
}

static void bias_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    hd_emit_add_grad(e, op->in[0], hd_emit_grad(e, op->out), false);
}

static void bias_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    hd_emit_bias_gradient(e, op->param[0], op->fused_count, op->out);
}

const struct hd_op_row hd_op_row_bias = {.forward = bias_forward,
                                         .backward_inputs = bias_backward_inputs,
                                         .backward_weights = bias_backward_weights};
