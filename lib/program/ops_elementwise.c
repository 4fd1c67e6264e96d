/* Ops without weights on one element or row at a time, and the two of tensor parallelism. */
#include "program/emit.h"

/* ---- SwiGLU ---- */

static void swiglu_forward(struct hd_emit *e, const struct hd_op *op)
{
    (void)hd_emit_kernel(
        e, HD_K_swiglu_forward,
        &(struct hd_swiglu_forward_args){
            .R = op->out->dim[0], .F = op->out->dim[1], .dtype = op->out->dtype},
        (struct hd_operand[]){hd_emit_value(e, op->out), hd_emit_value(e, op->in[0])});
}

static void swiglu_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_kernel(e, HD_K_swiglu_backward,
                         &(struct hd_swiglu_backward_args){
                             .R = op->out->dim[0], .F = op->out->dim[1], .dtype = x->dtype},
                         (struct hd_operand[]){dx, hd_emit_grad(e, op->out), hd_emit_value(e, x)});
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_swiglu = {swiglu_forward, swiglu_backward_inputs, NULL};

/* ---- GELU ---- */

static void gelu_forward(struct hd_emit *e, const struct hd_op *op)
{
    (void)hd_emit_kernel(
        e, HD_K_gelu_forward,
        &(struct hd_gelu_forward_args){.N = op->out->dim[0] * op->out->dim[1],
                                       .dtype = op->out->dtype},
        (struct hd_operand[]){hd_emit_value(e, op->out), hd_emit_value(e, op->in[0])});
}

static void gelu_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_operand dx;

    if (!x->needs_grad)
        return;
    dx = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    (void)hd_emit_kernel(
        e, HD_K_gelu_backward,
        &(struct hd_gelu_backward_args){.N = x->dim[0] * x->dim[1], .dtype = x->dtype},
        (struct hd_operand[]){dx, hd_emit_grad(e, op->out), hd_emit_value(e, x)});
    hd_emit_add_grad(e, x, dx, true);
}

const struct hd_op_row hd_op_row_gelu = {gelu_forward, gelu_backward_inputs, NULL};

/* ---- add: both inputs get the same gradient, by reference ---- */

static void add_forward(struct hd_emit *e, const struct hd_op *op)
{
    (void)hd_emit_kernel(
        e, HD_K_add,
        &(struct hd_add_args){.N = op->out->dim[0] * op->out->dim[1], .dtype = op->out->dtype},
        (struct hd_operand[]){hd_emit_value(e, op->out), hd_emit_value(e, op->in[0]),
                              hd_emit_value(e, op->in[1])});
}

static void add_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    for (int i = 0; i < 2; i++)
        hd_emit_add_grad(e, op->in[i], hd_emit_grad(e, op->out), false);
}

const struct hd_op_row hd_op_row_add = {add_forward, add_backward_inputs, NULL};

/* ---- cast ---- */

static void emit_cast(struct hd_emit *e, struct hd_operand out, enum hd_dtype out_dtype,
                      struct hd_operand inp, enum hd_dtype inp_dtype, int64_t N)
{
    (void)hd_emit_kernel(
        e, HD_K_cast,
        &(struct hd_cast_args){.N = N, .out_dtype = out_dtype, .inp_dtype = inp_dtype},
        (struct hd_operand[]){out, inp});
}

static void cast_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];

    emit_cast(e, hd_emit_value(e, op->out), op->out->dtype, hd_emit_value(e, x), x->dtype,
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

const struct hd_op_row hd_op_row_cast = {cast_forward, cast_backward_inputs, NULL};

/* ---- f and g of tensor parallelism (Shoeybi et al. 2020, section 3) ----
 *
 * enter (f): forward the identity, backward a sum over tp: each rank saw every row with its share
 * of the weights, so each holds a part of dx. leave (g): forward a sum over tp: each rank holds
 * partial sums of its share; backward the identity.
 */
static struct hd_operand emit_sum(struct hd_emit *e, const char *name, const struct hd_tensor *like,
                                  struct hd_operand sent)
{
    struct hd_operand sum = hd_emit_temp(e, name, like->dtype, like->dim[0], like->dim[1]);

    (void)hd_emit_comm(e, HD_COMM_ALL_REDUCE, HD_GROUP_TP, sum, sent, like->dim[0] * like->dim[1],
                       like->dtype);
    return sum;
}

static void tp_enter_forward(struct hd_emit *e, const struct hd_op *op)
{
    e->value_store[op->out->id] = hd_emit_value(e, op->in[0]).store;
}

static void tp_enter_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];

    if (x->needs_grad)
        hd_emit_add_grad(e, x, emit_sum(e, "grad", x, hd_emit_grad(e, op->out)), true);
}

const struct hd_op_row hd_op_row_tp_enter = {tp_enter_forward, tp_enter_backward_inputs, NULL};

static void tp_leave_forward(struct hd_emit *e, const struct hd_op *op)
{
    e->value_store[op->out->id] = emit_sum(e, "summed", op->out, hd_emit_value(e, op->in[0])).store;
}

static void tp_leave_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    hd_emit_add_grad(e, op->in[0], hd_emit_grad(e, op->out), false);
}

const struct hd_op_row hd_op_row_tp_leave = {tp_leave_forward, tp_leave_backward_inputs, NULL};
