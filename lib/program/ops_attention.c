/* RoPE and attention. q, k and v of a token are in one row: [q: H*D | k: G*D | v: G*D]. */
#include <math.h>

#include "program/emit_attention.h"

/* ---- RoPE and the factor of queries, in place; backward applies the inverse rotation, or the same
 * factor, also in place ---- */

/* Returns the number of positions that the op's tables have. */
static int64_t positions_of(const struct hd_emit *e)
{
    return e->rec->shape.first_position + e->rec->shape.context;
}

static void emit_rope(struct hd_emit *e, const struct hd_op *op, struct hd_operand x, bool inverse)
{
    const int64_t P = positions_of(e), D = op->set.head_width;
    const struct hd_rope *rope = op->set.rope;
    const struct hd_rope_args args = {.R = op->in[0]->dim[0],
                                      .H = op->set.heads,
                                      .D = D,
                                      .P = P,
                                      .ldx = op->in[0]->dim[1],
                                      .rotated = rope->rotated,
                                      .first = rope->first,
                                      .inverse = inverse,
                                      .interleaved = rope->interleaved,
                                      .dtype = op->in[0]->dtype};

    (void)hd_emit_rope(e, &args,
                       HD_OPERANDS(rope, .x = x, .position = hd_emit_value(e, op->in[1]),
                                   .table = hd_emit_angles(e, P, D, rope)));
}

static void rope_forward(struct hd_emit *e, const struct hd_op *op)
{
    emit_rope(e, op, hd_emit_result(e, op), false);
}

/* Returns true if the op's input needs a gradient, which is to be computed in the memory of the
 * result's gradient. Fails if another tensor uses that memory. */
static bool changes_grad_in_place(struct hd_emit *e, const struct hd_op *op)
{
    if (op->in[0]->needs_grad && !e->grads[op->out->id].own) {
        hd_emit_fail(e, hd_err(HD_INTERNAL,
                               "%s: its gradient is shared and cannot be changed in "
                               "place",
                               op->out->name));
        return false;
    }
    return op->in[0]->needs_grad;
}

static void rope_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    struct hd_operand grad = hd_emit_grad(e, op->out);

    if (!changes_grad_in_place(e, op))
        return;
    emit_rope(e, op, grad, true);
    hd_emit_add_grad(e, op->in[0], grad, true);
}

const struct hd_op_row hd_op_row_rope = {.forward = rope_forward,
                                         .backward_inputs = rope_backward_inputs};

static void emit_query_factor(struct hd_emit *e, const struct hd_op *op, struct hd_operand x)
{
    const int64_t P = positions_of(e);

    (void)hd_emit_query_factor(
        e,
        HD_ARGS(query_factor, .R = op->in[0]->dim[0], .N = op->set.heads * op->set.head_width,
                .P = P, .ldx = op->in[0]->dim[1], .dtype = op->in[0]->dtype),
        HD_OPERANDS(query_factor, .x = x, .position = hd_emit_value(e, op->in[1]),
                    .table = hd_emit_query_factors(e, P, &op->set.query_factor)));
}

static void query_factor_forward(struct hd_emit *e, const struct hd_op *op)
{
    emit_query_factor(e, op, hd_emit_result(e, op));
}

static void query_factor_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    struct hd_operand grad = hd_emit_grad(e, op->out);

    if (!changes_grad_in_place(e, op))
        return;
    emit_query_factor(e, op, grad);
    hd_emit_add_grad(e, op->in[0], grad, true);
}

const struct hd_op_row hd_op_row_query_factor = {.forward = query_factor_forward,
                                                 .backward_inputs = query_factor_backward_inputs};

/* ---- attention ---- */

struct hd_emit_attention hd_emit_attention_of(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct hd_emit_attention a = {
        .R = x->dim[0],
        .H = op->set.heads,
        .G = op->set.kv_heads,
        .D = op->set.head_width,
        .ld = x->dim[1],
        .B = e->rec->shape.B,
        .S = e->rec->shape.S,
        .dtype = x->dtype,
        .op = op,
        .window = op->set.window,
        .chunk = op->set.chunk,
        .scale = op->set.scale != 0 ? (float)op->set.scale : 1 / sqrtf((float)op->set.head_width),
        .cap = (float)op->set.cap,
        .causal = op->set.causal,
        .q = hd_emit_value(e, x),
        .index = hd_emit_value(e, op->in[1]),
        .slopes = hd_emit_none()};

    if (op->set.alibi)
        a.slopes = hd_emit_slopes(e, op->set.heads, op->set.scaled_alibi ? a.scale : 0);
    if (op->set.dropout.p > 0) {
        a.samples = hd_emit_value(e, op->in[op->in_count - 1]);
        a.block = hd_emit_global(e, HD_GLOBAL_STEP_STATE);
        a.dropout_key = hd_emit_dropout_key(&op->set.dropout);
        a.first_head = e->registry->coord.tp * op->set.heads;
    }
    if (e->rec->shape.bounded && e->rec->shape.mode != HD_RECORD_DECODE)
        a.bounds = hd_emit_value(e, op->in[2]);
    return a;
}

struct hd_emit_keys hd_emit_own_keys(const struct hd_emit_attention *a, struct hd_operand qkv)
{
    return (struct hd_emit_keys){.k = hd_emit_at(qkv, a->H * a->D, a->dtype),
                                 .v = hd_emit_at(qkv, (a->H + a->G) * a->D, a->dtype),
                                 .index = a->index,
                                 .rows = a->S,
                                 .ld = a->ld};
}

/* Returns where forward of training collects the largest score of each of this rank's heads; absent
 * without QK-clip, and in a recomputation, which has the same scores. */
static struct hd_operand top_scores(struct hd_emit *e, const struct hd_emit_attention *a)
{
    const struct hd_qk_clip *clip = &e->registry->qk_clip;

    if (!(clip->threshold > 0) || e->rec->shape.mode != HD_RECORD_TRAIN || hd_emit_is_recomputed(e))
        return hd_emit_none();
    return hd_emit_at(hd_emit_global(e, HD_GLOBAL_SCORES),
                      e->unit * clip->heads + e->registry->coord.tp * a->H, HD_F32);
}

void hd_emit_attend(struct hd_emit *e, const struct hd_emit_attention *a,
                    const struct hd_emit_keys *keys, struct hd_operand out, struct hd_operand lse)
{
    (void)hd_emit_attention_forward(
        e,
        HD_ARGS(attention_forward, .B = a->B, .q_len = a->S, .kv_len = keys->rows,
                .kv_stride = keys->rows, .H = a->H, .G = a->G, .D = a->D, .ldq = a->ld,
                .ldk = keys->ld, .ldv = keys->ld, .ldo = a->H * a->D, .dropout_key = a->dropout_key,
                .first_head = a->first_head, .window = a->window, .chunk = a->chunk,
                .pairs = keys->pairs, .scale = a->scale, .dropout = (float)a->op->set.dropout.p,
                .cap = a->cap, .causal = a->causal, .dtype = a->dtype),
        HD_OPERANDS(attention_forward, .out = out, .lse = lse, .q = a->q, .k = keys->k,
                    .v = keys->v, .q_index = a->index, .kv_index = keys->index,
                    .q_bound = a->bounds, .slopes = a->slopes, .kv_filled = keys->filled,
                    .kv_slot = keys->slot, .sample = a->samples, .block = a->block,
                    .top_score = top_scores(e, a)));
}

void hd_emit_attend_backward(struct hd_emit *e, const struct hd_emit_attention *a,
                             const struct hd_emit_keys *keys,
                             const struct hd_emit_attention_grads *g)
{
    const struct hd_operand out = hd_emit_value(e, a->op->out);

    (void)hd_emit_attention_backward(
        e,
        HD_ARGS(attention_backward, .B = a->B, .q_len = a->S, .kv_len = keys->rows,
                .kv_stride = keys->rows, .H = a->H, .G = a->G, .D = a->D, .ldq = a->ld,
                .ldk = keys->ld, .ldv = keys->ld, .ldo = a->H * a->D, .lddq = g->ldq,
                .lddk = g->ldk, .lddv = g->ldk, .lddo = a->H * a->D, .dropout_key = a->dropout_key,
                .first_head = a->first_head, .window = a->window, .chunk = a->chunk,
                .pairs = keys->pairs, .scale = a->scale, .dropout = (float)a->op->set.dropout.p,
                .cap = a->cap, .causal = a->causal, .accumulate = g->accumulate, .dtype = a->dtype,
                .grad_dtype = g->dtype),
        HD_OPERANDS(attention_backward, .dq = g->dq, .dk = g->dk, .dv = g->dv,
                    .dout = hd_emit_grad(e, a->op->out), .q = a->q, .k = keys->k, .v = keys->v,
                    .out = out, .lse = hd_emit_get_stats(e)->lse, .q_index = a->index,
                    .kv_index = keys->index, .q_bound = a->bounds, .slopes = a->slopes,
                    .sample = a->samples, .block = a->block));
}

/* Returns row `row` of the batch field HD_BATCH_FILLED: one int32 for each of the B sequences. */
static struct hd_operand filled_row(struct hd_emit *e, const struct hd_emit_attention *a, int row)
{
    struct hd_operand filled = hd_emit_value(e, a->op->in[2]);

    filled.offset_bytes += row * a->B * (int64_t)sizeof(int32_t);
    return filled;
}

/* Appends the new rows of k or v to this unit's cache and returns the cache. */
static struct hd_operand append_to_cache(struct hd_emit *e, const struct hd_emit_attention *a,
                                         const char *name, struct hd_operand rows)
{
    const int64_t N = a->G * a->D, context = e->rec->shape.context;
    struct hd_operand cache = hd_emit_cache(e, name, a->dtype, e->rec->shape.slots * context, N);
    struct hd_operand overflow = hd_emit_global(e, HD_GLOBAL_STEP_STATE);

    overflow.offset_bytes = offsetof(struct hd_step_state, overflow);
    (void)hd_emit_cache_append(e,
                               HD_ARGS(cache_append, .B = a->B, .rows = context, .new_rows = a->S,
                                       .N = N, .ldi = a->ld, .ldc = N, .dtype = a->dtype),
                               HD_OPERANDS(cache_append, .cache = cache, .overflow = overflow,
                                           .inp = rows, .filled = filled_row(e, a, 0),
                                           .slot = filled_row(e, a, 2)));
    return cache;
}

/* Emits the appending of the new keys and values to the unit's caches, and returns all rows of the
 * sequences' cache slots as the keys; member `filled` has the number of valid rows. */
static struct hd_emit_keys cached_keys(struct hd_emit *e, const struct hd_emit_attention *a)
{
    const struct hd_zigzag whole = {.S = e->rec->shape.context, .P = 1};
    const struct hd_emit_keys new = hd_emit_own_keys(a, a->q);
    const struct hd_emit_keys keys = {.k = append_to_cache(e, a, "keys", new.k),
                                      .v = append_to_cache(e, a, "values", new.v),
                                      .index = hd_emit_positions(e, e->rec->shape.slots, &whole),
                                      .filled = filled_row(e, a, 1),
                                      .slot = filled_row(e, a, 2),
                                      .rows = e->rec->shape.context,
                                      .ld = a->G * a->D};

    return keys;
}

/* ---- sinks: learned scores without a value (ops_attention.h) ----
 *
 * They are added once, after all blocks of keys: this rank's, those of other ranks and the prefix.
 * The backward of every block then runs with the final result and log-sum-exp. */

static int sinks_span(const struct hd_op *op)
{
    return op->param_count - 1;
}

static struct hd_operand sinks_of(struct hd_emit *e, const struct hd_emit_attention *a)
{
    return hd_emit_weight(e, a->op->param[sinks_span(a->op)], a->dtype);
}

static void add_sinks(struct hd_emit *e, const struct hd_emit_attention *a, struct hd_operand lse)
{
    (void)hd_emit_attention_sink_forward(
        e, HD_ARGS(attention_sink_forward, .R = a->R, .H = a->H, .D = a->D, .dtype = a->dtype),
        HD_OPERANDS(attention_sink_forward, .out = hd_emit_result(e, a->op), .lse = lse,
                    .sink = sinks_of(e, a)));
}

static struct hd_operand *sinks_grad_rows(struct hd_emit *e)
{
    return &e->frame[HD_FRAME_FORWARD].stats[e->op_index].sinks;
}

/* Emits the gradient of the sinks by row and head. It is computed in B, where the gradient of the
 * result is still in memory. */
static void differentiate_sinks(struct hd_emit *e, const struct hd_emit_attention *a)
{
    const struct hd_operand out = hd_emit_value(e, a->op->out);
    const struct hd_operand rows = hd_emit_temp(e, "sinks_grad", HD_F32, a->R, a->H);

    (void)hd_emit_attention_sink_backward(
        e, HD_ARGS(attention_sink_backward, .R = a->R, .H = a->H, .D = a->D, .dtype = a->dtype),
        HD_OPERANDS(attention_sink_backward, .dsink = rows, .dout = hd_emit_grad(e, a->op->out),
                    .out = out, .lse = hd_emit_get_stats(e)->lse, .sink = sinks_of(e, a)));
    *sinks_grad_rows(e) = rows;
}

static bool trains_sinks(const struct hd_emit *e, const struct hd_op *op)
{
    return op->set.has_sinks && hd_op_trains_param(e->registry, op, sinks_span(op));
}

/* Emits the sum of the sinks' gradients over rows, by the kernel for a bias gradient. */
static void attention_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const int64_t R = op->in[0]->dim[0], H = op->set.heads;
    struct hd_operand sum;
    bool first;

    if (!trains_sinks(e, op))
        return;
    sum = hd_emit_param_grad(e, op->param[sinks_span(op)], 1, &first);
    hd_emit_contributes(hd_emit_bias_backward(
                            e, HD_ARGS(bias_backward, .R = R, .N = H, .ldd = H, .dtype = HD_F32),
                            HD_OPERANDS(bias_backward, .dbias = sum, .dout = *sinks_grad_rows(e))),
                        first);
}

static void attention_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_emit_attention a = hd_emit_attention_of(e, op);
    const struct hd_operand lse = hd_emit_temp(e, "lse", HD_F32, a.H, a.R);
    const bool decodes = e->rec->shape.mode == HD_RECORD_DECODE;

    hd_emit_get_stats(e)->lse = lse;
    if (!decodes && e->registry->mesh.sizes.cp > 1) {
        hd_emit_context_forward(e, &a, lse);
    } else {
        const struct hd_emit_keys keys = decodes ? cached_keys(e, &a) : hd_emit_own_keys(&a, a.q);

        if (hd_emit_has_prefix(op))
            hd_emit_attend_with_prefix(e, &a, &keys, lse);
        else
            hd_emit_attend(e, &a, &keys, hd_emit_result(e, op), lse);
    }
    if (op->set.has_sinks)
        add_sinks(e, &a, lse);
}

static void attention_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const struct hd_emit_attention a = hd_emit_attention_of(e, op);
    const struct hd_emit_keys keys = hd_emit_own_keys(&a, a.q);
    struct hd_emit_keys grads;
    struct hd_operand grad;

    if (trains_sinks(e, op))
        differentiate_sinks(e, &a);
    if (!x->needs_grad) {
        if (hd_emit_has_prefix(op))
            hd_emit_backward_with_prefix(e, &a, hd_emit_none());
        return;
    }
    grad = hd_emit_temp(e, "grad", x->dtype, x->dim[0], x->dim[1]);
    grads = hd_emit_own_keys(&a, grad);
    if (e->registry->mesh.sizes.cp > 1)
        hd_emit_context_backward(e, &a, grad);
    else if (hd_emit_has_prefix(op))
        hd_emit_backward_with_prefix(e, &a, grad);
    else
        hd_emit_attend_backward(e, &a, &keys,
                                &(struct hd_emit_attention_grads){.dq = grad,
                                                                  .dk = grads.k,
                                                                  .dv = grads.v,
                                                                  .ldq = a.ld,
                                                                  .ldk = a.ld,
                                                                  .dtype = a.dtype});
    hd_emit_add_grad(e, x, grad, true);
}

const struct hd_op_row hd_op_row_attention = {.forward = attention_forward,
                                              .backward_inputs = attention_backward_inputs,
                                              .backward_weights = attention_backward_weights};
