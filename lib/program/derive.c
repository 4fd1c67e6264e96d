/* derive: from recorded ops to the programs F, B and W (training), E or D.
 *
 * First each op emits its forward, in order. For training the ops are then visited in reverse
 * order: an op whose result has a gradient emits its backward for inputs, then its backward for
 * weights. The latter goes to W with split_backward, else to B, directly after the former. Tensors
 * and parameters that need no gradient are skipped. */
#include "program/emit.h"

const struct hd_op_row *hd_op_row(enum hd_op_kind kind)
{
    static const struct hd_op_row *const rows[] = {
#define X(name, class) &hd_op_row_##name,
        HD_OP_LIST(X)
#undef X
    };
    return rows[kind];
}

static void emit_backward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_op_row *row = hd_op_row(op->kind);

    if (!op->out || !e->grads[op->out->id].sum.store)
        return;
    e->call = row->follows_gradient ? e->grads[op->out->id].call : HD_CALL_B;
    if (row->backward_inputs)
        row->backward_inputs(e, op);
    e->call = e->options->split_backward ? HD_CALL_W : HD_CALL_B;
    if (row->backward_weights)
        row->backward_weights(e, op);
}

struct hd_emit *hd_pass_derive(struct hd_rec *rec, const struct hd_compile_options *options)
{
    static const enum hd_call forward_call[] = {[HD_RECORD_TRAIN] = HD_CALL_F,
                                                [HD_RECORD_EVAL] = HD_CALL_E,
                                                [HD_RECORD_DECODE] = HD_CALL_D};
    struct hd_emit *e = hd_emit_begin(rec, options);

    if (!e)
        return NULL;
    e->call = forward_call[rec->shape.mode];
    e->unit = -1;
    if (rec->shape.mode == HD_RECORD_TRAIN)
        hd_emit_step_begin(e, HD_ARGS(step_begin, 0),
                           HD_OPERANDS(step_begin, .block = hd_emit_global(e, HD_GLOBAL_BLOCK)))
            ->only_first = true;
    if (rec->shape.mode == HD_RECORD_TRAIN && rec->registry->routers > 0) {
        const struct hd_operand routes = hd_emit_global(e, HD_GLOBAL_ROUTES);

        hd_emit_zero(e, HD_ARGS(zero, .size_bytes = routes.store->size_bytes),
                     HD_OPERANDS(zero, .out = routes))
            ->only_first = true;
    }
    for (int i = 0; i < rec->op_count; i++) {
        e->op_index = i;
        e->unit = rec->ops[i].unit;
        hd_op_row(rec->ops[i].kind)->forward(e, &rec->ops[i]);
    }
    for (int i = rec->op_count - 1; i >= 0 && rec->shape.mode == HD_RECORD_TRAIN; i--) {
        e->op_index = i;
        e->unit = rec->ops[i].unit;
        emit_backward(e, &rec->ops[i]);
    }
    return e;
}
