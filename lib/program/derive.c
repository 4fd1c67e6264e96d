/* derive: turns recorded ops into the programs F, B and W (training), E or D.
 *
 * First each op emits its forward, in order. For training the ops are then visited in reverse
 * order: an op whose result has a gradient emits its backward for inputs, then its backward for
 * weights. The latter is added to W with split_backward, else to B, directly after the former.
 * Tensors and parameters that need no gradient are skipped.
 *
 * Stage I/O (enum hd_stage_io): the chunk's output rows are written to their slot directly, or
 * copied there if their op has separate memory for its result; B reads their gradient from its
 * slot. The gradient of the chunk's input rows is written to its slot by the last node that adds
 * to it, if that node is in B and no other node uses its memory; else it is copied. */
#include "program/emit.h"

const struct hd_op_row *hd_op_row_of(enum hd_op_kind kind)
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
    const struct hd_op_row *row = hd_op_row_of(op->kind);

    if (!op->out || !e->grads[op->out->id].sum.store)
        return;
    e->call = row->follows_gradient ? e->grads[op->out->id].call : HD_CALL_B;
    if (row->backward_inputs)
        row->backward_inputs(e, op);
    e->call = e->options->split_backward ? HD_CALL_W : HD_CALL_B;
    if (row->backward_weights)
        row->backward_weights(e, op);
}

/* ---- boundaries ---- */

static struct hd_store *stage_io(struct hd_emit *e, enum hd_stage_io which,
                                 const struct hd_tensor *t)
{
    static const char *const names[] = {"in", "out", "out_grad", "in_grad"};

    return hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_STAGE_IO,
                                               .stage_io = which,
                                               .name = names[which],
                                               .dtype = t->dtype,
                                               .rows = t->dim[0],
                                               .columns = t->dim[1],
                                               .registered = true});
}

static void take_in(struct hd_emit *e)
{
    const struct hd_tensor *in = e->rec->input;

    if (in)
        e->into->value[in->id].store = stage_io(e, HD_STAGE_INPUT, in);
}

static void copy_rows(struct hd_emit *e, const struct hd_tensor *like, struct hd_operand to,
                      struct hd_operand from)
{
    (void)hd_emit_copy_columns(e,
                               HD_ARGS(copy_columns, .R = like->dim[0], .N = like->dim[1],
                                       .ldo = like->dim[1], .ldi = like->dim[1], .factor = 1,
                                       .out_dtype = like->dtype, .inp_dtype = like->dtype),
                               HD_OPERANDS(copy_columns, .out = to, .inp = from));
}

/* Emits a copy of the chunk's output rows to their stage-I/O slot, unless the op that computes them
 * writes there. To be called after the forward of all ops. */
static void finish_out(struct hd_emit *e, struct hd_store *store)
{
    const struct hd_tensor *out = e->rec->output;

    if (store && e->into->value[out->id].store != store)
        copy_rows(e, out, (struct hd_operand){store, 0}, e->into->value[out->id]);
}

/* Returns the stage-I/O slot of the chunk's output rows, and makes the slot the result memory of
 * the op that computes them (of an op in place: of its input). Returns NULL if the chunk has no
 * output rows. */
static struct hd_store *put_out(struct hd_emit *e)
{
    const struct hd_tensor *out = e->rec->output, *first = out;

    if (!out)
        return NULL;
    while (first->same_store >= 0)
        first = e->rec->tensors[first->same_store];
    e->into->value[first->id].store = stage_io(e, HD_STAGE_OUTPUT, out);
    if (e->rec->shape.mode == HD_RECORD_TRAIN) {
        struct hd_store *grad = stage_io(e, HD_STAGE_OUTPUT_GRAD, out); /* the next chunk sends this
                                                                           gradient even if no op
                                                                           reads it */

        if (out->needs_grad)
            e->grads[out->id] = (struct hd_grad_slot){.sum = {grad, 0}, .call = HD_CALL_B};
    }
    return e->into->value[first->id].store;
}

static bool is_used_by(const struct hd_emit *e, enum hd_call call, const struct hd_store *store)
{
    for (int i = 0; i < e->lists[call].count; i++)
        if (hd_node_touches(e->lists[call].nodes[i], store))
            return true;
    return false;
}

static void give_back_gradient(struct hd_emit *e)
{
    const struct hd_tensor *in = e->rec->input;
    const struct hd_grad_slot *grad;
    struct hd_store *store;

    if (!in || !in->needs_grad || !e->grads[in->id].sum.store)
        return;
    grad = &e->grads[in->id];
    store = grad->sum.store;
    if (grad->own && store->kind == HD_STORE_TEMPORARY && !grad->sum.offset_bytes &&
        !is_used_by(e, HD_CALL_F, store) && !is_used_by(e, HD_CALL_W, store)) {
        store->kind = HD_STORE_STAGE_IO;
        store->stage_io = HD_STAGE_INPUT_GRAD;
        store->name = "in_grad";
        store->registered = true;
        return;
    }
    e->call = HD_CALL_B;
    e->unit = -1;
    copy_rows(e, in, (struct hd_operand){stage_io(e, HD_STAGE_INPUT_GRAD, in), 0}, grad->sum);
}

/* Marks the gradient of the tied weight as having a contribution already, which the head wrote in
 * another chunk of this rank. Not done with gradient buckets, each of which belongs to one
 * chunk. */
static void begin_tie(struct hd_emit *e)
{
    const struct hd_registry *r = e->registry;

    for (int i = 0; i < r->param_count && e->options->tie_began_elsewhere; i++)
        if (r->buckets[r->params[i].bucket].tied && r->buckets[r->params[i].bucket].zero < 2)
            e->param_has_grad[i] = true;
}

struct hd_emit *hd_pass_derive(struct hd_rec *rec, const struct hd_compile_options *options)
{
    static const enum hd_call forward_call[] = {[HD_RECORD_TRAIN] = HD_CALL_F,
                                                [HD_RECORD_EVAL] = HD_CALL_E,
                                                [HD_RECORD_DECODE] = HD_CALL_D};
    struct hd_emit *e = hd_emit_begin(rec, options);
    struct hd_store *out;

    if (!e)
        return NULL;
    e->call = forward_call[rec->shape.mode];
    e->unit = -1;
    take_in(e);
    out = put_out(e);
    begin_tie(e);
    for (int i = 0; i < rec->op_count; i++) {
        e->op_index = i;
        e->unit = rec->ops[i].unit;
        hd_op_row_of(rec->ops[i].kind)->forward(e, &rec->ops[i]);
    }
    finish_out(e, out);
    e->into = NULL;
    for (int i = rec->op_count - 1; i >= 0 && rec->shape.mode == HD_RECORD_TRAIN; i--) {
        e->op_index = i;
        e->unit = rec->ops[i].unit;
        emit_backward(e, &rec->ops[i]);
    }
    give_back_gradient(e);
    return e;
}
