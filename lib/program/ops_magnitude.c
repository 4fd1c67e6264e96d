/* Magnitudes of rows (Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation"), behind a
 * linear and its adapter of low rank:
 *
 *     u = W x + s B A x       linear, low_rank
 *     y = m / |W + s B A| u   magnitude     dm += sum_r dy u / |.|,  du = m / |.| dy
 *
 * The norm of a row of W + s B A follows from W A^T and A A^T, products as narrow as the adapter
 * (ops.h). Each forward pass computes it, which is cheap beside products of hundreds of rows with
 * the same W; the factors do not change between the micro-batches of a step, but W may have been
 * gathered for this pass alone. F keeps 1 / norm, [N], so the recomputed op only scales. In
 * decode a pass has few rows and weights do not change: S computes the inverse once, into a cache.
 *
 * Where tp splits the columns of W, its ranks add the squares of their columns. */
#include "program/emit.h"

static int param_of(const struct hd_op *op, int target, int which)
{
    return op->param[HD_MAGNITUDE_PARAMS * target + which];
}

static int target_count(const struct hd_op *op)
{
    return op->param_count / HD_MAGNITUDE_PARAMS;
}

/* Emits the product of A [r, K] with the transpose of a matrix [N, K]: fp32 [r, N]. */
static struct hd_operand times_a(struct hd_emit *e, const char *name, int a, struct hd_operand b,
                                 int64_t N, const struct hd_quant_factor *codes,
                                 enum hd_dtype dtype)
{
    const struct hd_param *p = &e->registry->params[a];
    const int64_t r = p->local[0], K = p->local[1];
    const struct hd_operand out = hd_emit_temp(e, name, HD_F32, r, N);

    (void)hd_emit_gemm(e,
                       HD_ARGS(gemm, .M = r, .N = N, .K = K, .lda = K, .ldb = K, .ldc = N,
                               .trans_b = true, .ab_dtype = dtype, .c_dtype = HD_F32,
                               .b_codes = *codes),
                       HD_OPERANDS(gemm, .c = out, .a = hd_emit_weight(e, a, dtype), .b = b));
    return out;
}

/* Emits the inverse norms 1 / |W + s B A| of the N rows of a target's matrix, [N]. */
static void emit_inverse(struct hd_emit *e, const struct hd_op *op, int target,
                         struct hd_operand inverse)
{
    const enum hd_dtype dtype = op->out->dtype;
    const int a = param_of(op, target, HD_MAGNITUDE_A), b = param_of(op, target, HD_MAGNITUDE_B);
    const struct hd_param *pb = &e->registry->params[b];
    const int64_t N = pb->local[0], r = pb->local[1], K = e->registry->params[a].local[1];
    const struct hd_quant_factor plain = {.quant = HD_QUANT_NONE};
    const struct hd_operand squares = hd_emit_temp(e, "squares", HD_F32, N, 0);
    struct hd_quant_factor codes;
    struct hd_operand w, p, g;

    w = hd_emit_factor(e, param_of(op, target, HD_MAGNITUDE_W), 1, dtype, &codes);
    p = times_a(e, "a_w", a, w, N, &codes, dtype);
    g = times_a(e, "a_a", a, hd_emit_weight(e, a, dtype), r, &plain, dtype);
    (void)hd_emit_dora_squares(e,
                               HD_ARGS(dora_squares, .N = N, .K = K, .r = r,
                                       .scale = (float)op->set.scale, .dtype = dtype,
                                       .codes = codes),
                               HD_OPERANDS(dora_squares, .squares = squares, .weight = w,
                                           .b = hd_emit_weight(e, b, dtype), .p = p, .g = g));
    if (op->set.summed && e->registry->mesh.sizes.tp > 1)
        (void)hd_emit_comm(e,
                           HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = HD_GROUP_TP,
                                   .count = N, .dtype = HD_F32),
                           HD_OPERANDS(comm, .received = squares, .sent = squares));
    (void)hd_emit_dora_inverse(e, HD_ARGS(dora_inverse, .N = N),
                               HD_OPERANDS(dora_inverse, .inverse = inverse, .squares = squares));
}

static void emit_norms(struct hd_emit *e, const struct hd_op *op)
{
    const enum hd_call call = e->call;
    const bool decode = e->rec->shape.mode == HD_RECORD_DECODE;

    for (int i = 0; i < target_count(op); i++) {
        const int64_t N = e->registry->params[param_of(op, i, HD_MAGNITUDE_M)].local[0];
        const struct hd_operand inverse = decode ? hd_emit_cache(e, "inverse", HD_F32, N, 0)
                                                 : hd_emit_temp(e, "inverse", HD_F32, N, 0);

        e->call = decode ? HD_CALL_S : call;
        emit_inverse(e, op, i, inverse);
        e->call = call;
        hd_emit_get_stats(e)->inverse[i] = inverse;
    }
}

static void copy_between(struct hd_emit *e, const struct hd_tensor *x, struct hd_operand out,
                         struct hd_operand inp, int64_t begin, int64_t end)
{
    if (begin < end)
        (void)hd_emit_copy_columns(
            e,
            HD_ARGS(copy_columns, .R = x->dim[0], .N = end - begin, .ldo = x->dim[1],
                    .ldi = x->dim[1], .factor = 1, .out_dtype = x->dtype, .inp_dtype = x->dtype),
            HD_OPERANDS(copy_columns, .out = hd_emit_at(out, begin, x->dtype),
                        .inp = hd_emit_at(inp, begin, x->dtype)));
}

/* Emits y from u, or du from dy, by scaling the columns of each target. Targets are in the order of
 * their columns. */
static void emit_scaled(struct hd_emit *e, const struct hd_op *op,
                        const struct hd_emit_stats *stats, struct hd_operand out,
                        struct hd_operand inp)
{
    const struct hd_tensor *x = op->in[0];
    int64_t done = 0;

    for (int i = 0; i < target_count(op); i++) {
        const int m = param_of(op, i, HD_MAGNITUDE_M);
        const int64_t N = e->registry->params[m].local[0], column = op->set.column[i];

        copy_between(e, x, out, inp, done, column);
        (void)hd_emit_dora_scale(e,
                                 HD_ARGS(dora_scale, .R = x->dim[0], .N = N, .ldo = x->dim[1],
                                         .ldi = x->dim[1], .dtype = x->dtype),
                                 HD_OPERANDS(dora_scale, .out = hd_emit_at(out, column, x->dtype),
                                             .inp = hd_emit_at(inp, column, x->dtype),
                                             .magnitude = hd_emit_weight(e, m, HD_F32),
                                             .inverse = stats->inverse[i]));
        done = column + N;
    }
    copy_between(e, x, out, inp, done, x->dim[1]);
}

/* Returns the statistics with the inverse norms that forward computed, also when the op is
 * recomputed. */
static const struct hd_emit_stats *norms_of(const struct hd_emit *e)
{
    return &e->frame[HD_FRAME_FORWARD].stats[e->op_index];
}

static void magnitude_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_operand u = hd_emit_value(e, op->in[0]);

    if (!hd_emit_is_recomputed(e))
        emit_norms(e, op);
    emit_scaled(e, op, norms_of(e), hd_emit_result(e, op), u);
}

static void magnitude_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *u = op->in[0];
    struct hd_operand du;

    if (!u->needs_grad)
        return;
    du = hd_emit_temp(e, "grad", u->dtype, u->dim[0], u->dim[1]);
    emit_scaled(e, op, norms_of(e), du, hd_emit_grad(e, op->out));
    hd_emit_add_grad(e, u, du, true);
}

static void magnitude_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *u = op->in[0];

    for (int i = 0; i < target_count(op); i++) {
        const int which = HD_MAGNITUDE_PARAMS * i + HD_MAGNITUDE_M;
        struct hd_operand grad;
        bool first;

        if (!hd_op_trains_param(e->registry, op, which))
            continue;
        grad = hd_emit_param_grad(e, op->param[which], 1, &first);
        hd_emit_contributes(
            hd_emit_dora_backward(
                e,
                HD_ARGS(dora_backward, .R = u->dim[0],
                        .N = e->registry->params[op->param[which]].local[0], .ldd = u->dim[1],
                        .ldi = u->dim[1], .dtype = u->dtype),
                HD_OPERANDS(dora_backward, .dmagnitude = grad,
                            .dout =
                                hd_emit_at(hd_emit_grad(e, op->out), op->set.column[i], u->dtype),
                            .inp = hd_emit_at(hd_emit_value(e, u), op->set.column[i], u->dtype),
                            .inverse = norms_of(e)->inverse[i])),
            first);
    }
}

const struct hd_op_row hd_op_row_magnitude = {.forward = magnitude_forward,
                                              .backward_inputs = magnitude_backward_inputs,
                                              .backward_weights = magnitude_backward_weights,
                                              .cheap = true};
