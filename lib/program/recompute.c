/* recompute: chooses the values that forward keeps for backward, and recomputes the others.
 *
 * Backward gets a value by hd_emit_value. If forward did not keep it, the ops that compute it are
 * emitted a second time, back to values that were kept: in B, or in W if they are cheap. Each op is
 * recomputed at most once per program; values that only B needs are not recomputed in W. Gradients
 * have equal bits under every policy: kernels, shapes and inputs are those of forward, random
 * numbers depend on their site and element alone, and ops with effects (losses, a router's choice
 * and its record) are never recomputed.
 *
 *   none       keeps every result but the rows that sequence parallelism gathers
 *   selective  recomputes cheap results: of norms, activations, copies and casts, and keys and
 *              values of latents (Korthikanti et al. 2022, "Reducing Activation Recomputation in
 *              Large Transformer Models", recompute attention's scores, which the attention kernels
 *              here never store)
 *   full       keeps only the inputs of segments of K units (Chen et al. 2016, "Training Deep Nets
 *              with Sublinear Memory Cost")
 *
 * Statistics of a norm are kept unless the norm itself is recomputed; they are small.
 */
#include <string.h>

#include "program/emit.h"

/* ---- choosing the values to keep ---- */

static const struct hd_op *producer_of(const struct hd_emit *e, const struct hd_tensor *t)
{
    return e->producer[t->id] < 0 ? NULL : &e->rec->ops[e->producer[t->id]];
}

/* Returns true if the op's result is in the memory of its input, or is a view of a batch field. */
static bool is_view(const struct hd_emit *e, const struct hd_op *op)
{
    return op->kind == HD_OP_tp_rows || (op->kind == HD_OP_copy_to_tp && !e->registry->sequence);
}

/* Returns true if recomputing GELU gives the bits that forward gave: GELU is a separate pass, or
 * its epilogue computes from the values that it stores. Otherwise the epilogue of a product works
 * on sums that were not stored, and compilers may contract it with their last addition. */
static bool gelu_is_apart(const struct hd_traits *t, enum hd_dtype dtype)
{
    if (hd_traits_is_cuda(t))
        return t->gelu_separate || dtype == HD_F32;
    return t->gemm_scratch_bytes > 0 && !(dtype == HD_BF16 && t->own_bf16);
}

static bool is_cheap(const struct hd_emit *e, const struct hd_op *op)
{
    if (op->kind == HD_OP_activation && op->set.act == HD_ACT_GELU_TANH &&
        !e->options->fp8 && /* products in fp8 have no epilogue */
        !gelu_is_apart(&e->options->traits, op->out->dtype))
        return false;
    return op->set.rebuilt || hd_op_row_of(op->kind)->cheap;
}

static bool is_block(const struct hd_unit *unit)
{
    return strstr(unit->kind, "block") != NULL;
}

/* Sets ret_segment[unit] to the number of the segment of each unit: K blocks in a row form a
 * segment; embedding and head are segments by themselves. */
static void number_segments(const struct hd_emit *e, int *ret_segment)
{
    const struct hd_unit *units = e->registry->units;
    const int most = e->options->recompute.units > 0 ? e->options->recompute.units : 1;
    int length = 0, segment = 0;

    for (int u = 0; u < e->registry->unit_count; u++) {
        const bool begins =
            u == 0 || !is_block(&units[u]) || !is_block(&units[u - 1]) || length == most;

        segment += begins;
        length = begins ? 1 : length + 1;
        ret_segment[u] = segment;
    }
}

/* Marks as kept, for the full policy, the values that a segment reads from another one. */
static void keep_segments(struct hd_emit *e)
{
    int *segment = hd_arena_array(e->arena, (size_t)e->registry->unit_count + 1, sizeof *segment);

    if (!segment)
        return;
    number_segments(e, segment);
    for (int i = 0; i < e->rec->op_count; i++)
        for (int k = 0; k < e->rec->ops[i].in_count; k++) {
            const struct hd_tensor *t = e->rec->ops[i].in[k];
            const struct hd_op *from = producer_of(e, t);

            if (from && segment[from->unit] != segment[e->rec->ops[i].unit])
                e->keeps[t->id] = true;
        }
}

/* Marks as kept, for the selective policy, all results but the cheap ones. The result of an op in
 * place shares the memory of its input: both are kept, or neither. */
static void keep_dear(struct hd_emit *e)
{
    for (int i = e->rec->op_count - 1; i >= 0; i--) {
        const struct hd_op *op = &e->rec->ops[i];

        if (op->out && !is_cheap(e, op))
            e->keeps[op->out->id] = true;
        if (op->out && op->out->same_store >= 0)
            e->keeps[op->out->same_store] = e->keeps[op->out->id];
    }
}

void hd_emit_choose_saved(struct hd_emit *e)
{
    const enum hd_recompute_policy policy = e->options->recompute.policy;

    for (int t = 0; t < e->rec->tensor_count; t++)
        e->keeps[t] = e->producer[t] < 0 || policy == HD_RECOMPUTE_NONE;
    if (policy == HD_RECOMPUTE_SELECTIVE)
        keep_dear(e);
    if (policy == HD_RECOMPUTE_FULL)
        keep_segments(e);
    for (int i = 0; i < e->rec->op_count; i++) {
        const struct hd_op *op = &e->rec->ops[i];

        if (op->kind == HD_OP_copy_to_tp || op->kind == HD_OP_tp_rows)
            e->keeps[op->out->id] = is_view(e, op) && e->keeps[op->in[0]->id];
    }
}

/* ---- recomputing ---- */

/* Returns true if a recomputed value of tensor t belongs in this frame; false: t is in B's frame,
 * or forward kept it. */
static bool belongs(const struct hd_emit *e, const struct hd_emit_frame *frame,
                    const struct hd_tensor *t)
{
    if (e->keeps[t->id])
        return false;
    return frame == &e->frame[HD_FRAME_B] || is_cheap(e, producer_of(e, t)) ||
           is_view(e, producer_of(e, t));
}

static void emit_op(struct hd_emit *e, struct hd_emit_frame *frame, int index)
{
    const struct hd_op *op = &e->rec->ops[index];
    struct hd_emit_frame *const into = e->into;
    const int op_index = e->op_index, unit = e->unit;
    const enum hd_call call = e->call;

    e->into = frame;
    e->op_index = index;
    e->unit = op->unit;
    e->call = frame == &e->frame[HD_FRAME_B] ? HD_CALL_B : HD_CALL_W;
    hd_op_row_of(op->kind)->forward(e, op);
    e->into = into;
    e->op_index = op_index;
    e->unit = unit;
    e->call = call;
}

/* Marks the op that computes tensor t for recomputation if the frame does not have t yet. Returns
 * the smaller of that op's index and `least`. */
static int mark(struct hd_emit *e, const struct hd_emit_frame *frame, const struct hd_tensor *t,
                int least)
{
    const int index = t->id < 0 ? -1 : e->producer[t->id];

    if (index < 0 || !belongs(e, frame, t) || frame->value[t->id].store)
        return least;
    e->recomputed[index] = true;
    return index < least ? index : least;
}

/* Emits again, in the order of forward, the ops on which tensor t depends and whose results the
 * frame does not have. */
static void emit_recompute(struct hd_emit *e, struct hd_emit_frame *frame,
                           const struct hd_tensor *t)
{
    const int last = e->producer[t->id];
    int first = mark(e, frame, t, last);

    for (int i = last; i >= first; i--)
        for (int k = 0; e->recomputed[i] && k < e->rec->ops[i].in_count; k++)
            first = mark(e, frame, e->rec->ops[i].in[k], first);
    for (int i = first; i <= last; i++) {
        if (e->recomputed[i])
            emit_op(e, frame, i);
        e->recomputed[i] = false;
    }
}

static struct hd_emit_frame *frame_for(struct hd_emit *e, const struct hd_tensor *t)
{
    struct hd_emit_frame *w = &e->frame[HD_FRAME_W];

    return e->call == HD_CALL_W && belongs(e, w, t) ? w : &e->frame[HD_FRAME_B];
}

struct hd_operand hd_emit_recompute(struct hd_emit *e, const struct hd_tensor *t)
{
    struct hd_emit_frame *frame = frame_for(e, t);

    if (!frame->value[t->id].store)
        emit_recompute(e, frame, t);
    return frame->value[t->id];
}

void hd_emit_prepare(struct hd_emit *e, const struct hd_tensor *t)
{
    if (!e->options->split_backward) {
        (void)hd_emit_value(e, t);
        return;
    }
    while (!e->keeps[t->id] && belongs(e, &e->frame[HD_FRAME_W], t))
        t = producer_of(e, t)->in[0];
    (void)hd_emit_value(e, t);
}
