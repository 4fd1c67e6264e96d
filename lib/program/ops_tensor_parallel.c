/* f and g of tensor parallelism (Shoeybi et al. 2020, section 3), and of sequence parallelism
 * (Korthikanti et al. 2022, section 4.2.2).
 *
 * Between enter and leave each tp rank works with its shard of the weights on all rows.
 *
 *                        tensor parallelism      with sequence parallelism
 *   enter (f)  forward   nothing                 all-gather of rows
 *              backward  all-reduce of dx        reduce-scatter of dx
 *   leave (g)  forward   all-reduce              reduce-scatter
 *              backward  nothing                 all-gather of dy
 *
 * With sequence parallelism rank i has only rows [i R/tp, (i+1) R/tp) outside enter and leave, so
 * that norms, residuals and what they keep shrink by tp. All-gather plus reduce-scatter move as
 * many bytes as one all-reduce. The gathered rows are not kept: backward recomputes them, by a
 * second all-gather, for the weight gradient.
 */
#include "program/emit.h"

static int64_t elements(const struct hd_tensor *t)
{
    return t->dim[0] * t->dim[1];
}

/* Emits a collective over tp from `sent` into new memory of the shape of `like`. count: elements as
 * comm.h counts them for this kind of collective. */
static struct hd_operand emit_over_tp(struct hd_emit *e, enum hd_comm_kind kind, const char *name,
                                      const struct hd_tensor *like, struct hd_operand sent,
                                      int64_t count)
{
    struct hd_operand out = hd_emit_temp(e, name, like->dtype, like->dim[0], like->dim[1]);

    (void)hd_emit_comm(
        e, HD_ARGS(comm, .kind = kind, .group = HD_GROUP_TP, .count = count, .dtype = like->dtype),
        HD_OPERANDS(comm, .received = out, .sent = sent));
    return out;
}

/* Emits the gather of the rows of all tp ranks into new memory of the shape of `all`, which it
 * returns. */
static struct hd_operand emit_tensor_gather(struct hd_emit *e, const char *name,
                                            const struct hd_tensor *all,
                                            const struct hd_tensor *mine, struct hd_operand sent)
{
    return emit_over_tp(e, HD_COMM_ALL_GATHER, name, all, sent, elements(mine));
}

/* Emits the sum over tp ranks into new memory of the shape of `out`, which it returns: of all rows,
 * or by a reduce-scatter of this rank's rows only. */
static struct hd_operand emit_sum(struct hd_emit *e, const char *name, const struct hd_tensor *out,
                                  struct hd_operand sent)
{
    return emit_over_tp(e, hd_rec_splits_rows(e->rec) ? HD_COMM_REDUCE_SCATTER : HD_COMM_ALL_REDUCE,
                        name, out, sent, elements(out));
}

/* ---- enter ---- */

static void copy_to_tp_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_operand x = hd_emit_value(e, op->in[0]);

    hd_emit_set_result(
        e, op,
        hd_rec_splits_rows(e->rec) ? emit_tensor_gather(e, "entered", op->out, op->in[0], x) : x);
}

static void copy_to_tp_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];

    if (x->needs_grad)
        hd_emit_add_grad(e, x, emit_sum(e, "grad", x, hd_emit_grad(e, op->out)), true);
}

const struct hd_op_row hd_op_row_copy_to_tp = {.forward = copy_to_tp_forward,
                                               .backward_inputs = copy_to_tp_backward_inputs,
                                               .cheap = true,
                                               .follows_gradient = true};

/* ---- leave ---- */

static void reduce_from_tp_forward(struct hd_emit *e, const struct hd_op *op)
{
    hd_emit_set_result(e, op, emit_sum(e, "summed", op->out, hd_emit_value(e, op->in[0])));
}

static void reduce_from_tp_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const struct hd_operand dout = hd_emit_grad(e, op->out);

    if (!x->needs_grad)
        return;
    if (hd_rec_splits_rows(e->rec))
        hd_emit_add_grad(e, x, emit_tensor_gather(e, "grad", x, op->out, dout), true);
    else
        hd_emit_add_grad(e, x, dout, false);
}

const struct hd_op_row hd_op_row_reduce_from_tp = {
    .forward = reduce_from_tp_forward, .backward_inputs = reduce_from_tp_backward_inputs};

/* ---- this rank's rows of a batch field: a view ---- */

static void tp_rows_forward(struct hd_emit *e, const struct hd_op *op)
{
    hd_emit_set_result(e, op,
                       hd_emit_at(hd_emit_value(e, op->in[0]),
                                  e->registry->coord.tp * op->out->dim[0], op->out->dtype));
}

const struct hd_op_row hd_op_row_tp_rows = {.forward = tp_rows_forward};
