/* The op of layers that predict further tokens: join_columns puts the rows of two tensors side by
 * side, [a | b], as input of one projection. The result is cheap to build again. */
#include "program/emit.h"
#include "program/rec.h"

struct hd_tensor *op_join_columns(struct hd_rec *rec, struct hd_tensor *a, struct hd_tensor *b)
{
    if (rec->error.status)
        return &rec->dummy;
    if (a->dim[0] != b->dim[0])
        return hd_rec_fail(rec,
                           hd_err(HD_INTERNAL, "join_columns: %s has %lld rows, %s %lld", a->name,
                                  (long long)a->dim[0], b->name, (long long)b->dim[0]));
    return hd_rec_result(rec,
                         (struct hd_op){.kind = HD_OP_join_columns, .in = {a, b}, .in_count = 2},
                         "joined", a->dim[0], a->dim[1] + b->dim[1]);
}

/* Returns the index of the first column of input `which` in the joined rows. */
static int64_t first_column(const struct hd_op *op, int which)
{
    return which ? op->in[0]->dim[1] : 0;
}

/* Emits the copy of an input's columns into the joined rows, or of their gradient out of them. */
static void copy_part(struct hd_emit *e, const struct hd_op *op, int which, struct hd_operand both,
                      struct hd_operand part, bool into_both)
{
    const struct hd_tensor *in = op->in[which];
    const int64_t all = op->out->dim[1], N = in->dim[1];
    const struct hd_operand at = hd_emit_at(both, first_column(op, which), op->out->dtype);

    (void)hd_emit_copy_columns(
        e,
        HD_ARGS(copy_columns, .R = in->dim[0], .N = N, .ldo = into_both ? all : N,
                .ldi = into_both ? N : all, .factor = 1,
                .out_dtype = into_both ? op->out->dtype : in->dtype,
                .inp_dtype = into_both ? in->dtype : op->out->dtype),
        HD_OPERANDS(copy_columns, .out = into_both ? at : part, .inp = into_both ? part : at));
}

static void join_columns_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_operand in[] = {hd_emit_value(e, op->in[0]), hd_emit_value(e, op->in[1])};
    const struct hd_operand out = hd_emit_result(e, op);

    for (int i = 0; i < 2; i++)
        copy_part(e, op, i, out, in[i], true);
}

static void join_columns_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    for (int i = 0; i < 2; i++) {
        const struct hd_tensor *in = op->in[i];
        struct hd_operand grad;

        if (!in->needs_grad)
            continue;
        grad = hd_emit_temp(e, "grad", in->dtype, in->dim[0], in->dim[1]);
        copy_part(e, op, i, hd_emit_grad(e, op->out), grad, false);
        hd_emit_add_grad(e, in, grad, true);
    }
}

const struct hd_op_row hd_op_row_join_columns = {.forward = join_columns_forward,
                                                 .backward_inputs = join_columns_backward_inputs,
                                                 .cheap = true};
