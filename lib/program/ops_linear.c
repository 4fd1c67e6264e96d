/* Ops with weight matrices: embedding, linear, head + cross-entropy, logits.
 *
 * linear:  y = x W^T + b,   dx = dy W,   dW += dy^T x,   db += sum_r dy. */
#include "program/emit.h"

/* ---- embedding ---- */

static void embedding_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *out = op->out;
    const struct hd_param *params = e->registry->params;
    bool positions = op->param[1] >= 0;
    const struct hd_embedding_forward_args args = {
        .R = out->dim[0],
        .C = out->dim[1],
        .V = params[op->param[0]].local[0],
        .V2 = positions ? params[op->param[1]].local[0] : 0,
        .first = params[op->param[0]].start[0],
        .dtype = out->dtype,
    };

    (void)hd_emit_embedding_forward(
        e, &args,
        HD_OPERANDS(
            embedding_forward, .out = hd_emit_result(e, op), .index = hd_emit_value(e, op->in[0]),
            .weight = hd_emit_weight(e, op->param[0], out->dtype),
            .index2 = positions ? hd_emit_value(e, op->in[1]) : hd_emit_none(),
            .weight2 = positions ? hd_emit_weight(e, op->param[1], out->dtype) : hd_emit_none()));
}

static void embedding_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    for (int i = 0; i < 2; i++) {
        bool first;
        struct hd_operand grad;

        if (!hd_op_trains_param(e->registry, op, i))
            continue;
        grad = hd_emit_param_grad(e, op->param[i], 1, &first);
        hd_emit_contributes(
            hd_emit_embedding_backward(e,
                                       HD_ARGS(embedding_backward, .R = op->out->dim[0],
                                               .C = op->out->dim[1],
                                               .V = e->registry->params[op->param[i]].local[0],
                                               .first = e->registry->params[op->param[i]].start[0],
                                               .dtype = op->out->dtype),
                                       HD_OPERANDS(embedding_backward, .dweight = grad,
                                                   .index = hd_emit_value(e, op->in[i]),
                                                   .dout = hd_emit_grad(e, op->out))),
            first);
    }
}

const struct hd_op_row hd_op_row_embedding = {.forward = embedding_forward,
                                              .backward_weights = embedding_backward_weights};

/* ---- linear ---- */

/* The span is trainable or frozen as a whole, since its parameters are in one part. */
static void linear_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0], *y = op->out;
    const int64_t K = x->dim[1], N = y->dim[1];
    struct hd_quant_factor codes;
    const struct hd_operand w = hd_emit_factor(e, op->param[0], op->span, x->dtype, &codes);

    (void)hd_emit_product(
        e, op, HD_AMAX_INPUT, HD_AMAX_WEIGHT,
        HD_ARGS(gemm, .M = x->dim[0], .N = N, .K = K, .lda = K, .ldb = K, .ldc = N, .trans_b = true,
                .ab_dtype = x->dtype, .c_dtype = y->dtype, .b_codes = codes),
        HD_OPERANDS(gemm, .c = hd_emit_result(e, op), .a = hd_emit_value(e, x), .b = w,
                    .bias = op->param[1] >= 0 ? hd_emit_weight(e, op->param[1], x->dtype)
                                              : hd_emit_none()));
}

static void linear_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0], *y = op->out;
    const int64_t K = x->dim[1], N = y->dim[1];
    struct hd_quant_factor codes;
    struct hd_operand dx, w;
    bool accumulate;

    if (!x->needs_grad)
        return;
    if (hd_op_trains_param(e->registry, op, 0))
        hd_emit_prepare(e, x); /* also so that a gather overlaps with the GEMM of dx */
    dx = hd_emit_grad_sum(e, x, &accumulate);
    w = hd_emit_factor(e, op->param[0], op->span, x->dtype, &codes);
    (void)hd_emit_product(e, op, HD_AMAX_GRAD, HD_AMAX_WEIGHT,
                          HD_ARGS(gemm, .M = x->dim[0], .N = K, .K = N, .lda = N, .ldb = K,
                                  .ldc = K, .accumulate = accumulate, .ab_dtype = y->dtype,
                                  .c_dtype = x->dtype, .b_codes = codes),
                          HD_OPERANDS(gemm, .c = dx, .a = hd_emit_grad(e, y), .b = w));
    if (!accumulate)
        hd_emit_add_grad(e, x, dx, true);
}

void hd_emit_bias_gradient(struct hd_emit *e, int bias, int span, const struct hd_tensor *y)
{
    const struct hd_op op = {.param = {bias, -1}, .span = span};
    struct hd_operand grad;
    bool first;

    if (!hd_op_trains_param(e->registry, &op, 0))
        return;
    grad = hd_emit_param_grad(e, bias, span, &first);
    hd_emit_contributes(hd_emit_bias_backward(
                            e,
                            HD_ARGS(bias_backward, .R = y->dim[0], .N = y->dim[1], .ldd = y->dim[1],
                                    .dtype = y->dtype),
                            HD_OPERANDS(bias_backward, .dbias = grad, .dout = hd_emit_grad(e, y))),
                        first);
}

static void linear_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0], *y = op->out;
    const int64_t K = x->dim[1], N = y->dim[1];
    struct hd_operand grad;
    bool first;

    if (hd_op_trains_param(e->registry, op, 0)) {
        grad = hd_emit_param_grad(e, op->param[0], op->span, &first);
        hd_emit_contributes(
            hd_emit_product(
                e, op, HD_AMAX_GRAD, HD_AMAX_INPUT,
                HD_ARGS(gemm, .M = N, .N = K, .K = x->dim[0], .lda = N, .ldb = K, .ldc = K,
                        .trans_a = true, .ab_dtype = x->dtype, .c_dtype = HD_F32),
                HD_OPERANDS(gemm, .c = grad, .a = hd_emit_grad(e, y), .b = hd_emit_value(e, x))),
            first);
    }
    hd_emit_bias_gradient(e, op->param[1], op->span, y);
}

const struct hd_op_row hd_op_row_linear = {.forward = linear_forward,
                                           .backward_inputs = linear_backward_inputs,
                                           .backward_weights = linear_backward_weights};

/* ---- head + cross-entropy, a composite op ----
 *
 * For each chunk of rows:  logits = x W^T;  loss += ...;  dlogits in place;  dx = dlogits W;
 * dW += dlogits^T x.  F computes these gradients too, so that logits are not kept for backward. If
 * tp splits the vocabulary, W and logits are this rank's share, the ranks gather a few statistics
 * per row to compute the loss, and dx is a partial sum.
 *
 * W has rows of zeros behind the vocabulary (HD_PARAM_PAD): no product then has an odd extent,
 * which a GPU multiplies more slowly. The loss does not look at their logits, and their dlogits
 * are 0.
 */
enum {
    HEAD_BYTES = 64 << 20,    /* of logits at once, where the traits give no number of rows */
    HEAD_BYTES_MAX = 1 << 30, /* where they do */
    HEAD_ROWS_MIN = 64,
    HEAD_COLUMNS = 32
};

/* Every chunk reads and writes the whole dW (fp32) once: 8 V C bytes beside three products of 2
 * rows V C operations. A device of f FLOP/s and b bytes/s spends (8/6) (f / b) / rows of the
 * products' time on it. Chunks have equal rows, multiples of HEAD_ROWS_MIN, except the last. */
static int64_t head_chunk_rows(int64_t R, int64_t Vp, enum hd_dtype dtype,
                               const struct hd_traits *traits)
{
    const int64_t row_bytes = Vp * (int64_t)hd_dtype_size(dtype);
    int64_t rows = (traits->head_rows ? HEAD_BYTES_MAX : HEAD_BYTES) / row_bytes, chunks;

    if (traits->head_rows && rows > traits->head_rows)
        rows = traits->head_rows;
    if (rows < HEAD_ROWS_MIN)
        rows = HEAD_ROWS_MIN;
    chunks = (R + rows - 1) / rows;
    rows = (R + chunks - 1) / chunks;
    rows = (rows + HEAD_ROWS_MIN - 1) / HEAD_ROWS_MIN * HEAD_ROWS_MIN;
    return rows < R ? rows : R;
}

struct head {
    const struct hd_op *op;
    struct hd_operand logits, dx;
    int64_t V, Vw, Vp; /* words of this rank's share; rows of its weight; columns of logits */
    int64_t C, first_row, rows;
    int64_t first; /* first token id of this rank's share */
    int tp;        /* ranks that split the vocabulary */
    enum hd_dtype dtype;
    bool train_x, train_w;
};

/* Loss, and dlogits in place of the logits. */
static void head_loss(struct hd_emit *e, const struct head *h, struct hd_operand target)
{
    const int64_t words = h->rows * HD_CROSS_ENTROPY_STATS;
    const struct hd_operand dlogits = h->train_x || h->train_w ? h->logits : hd_emit_none();
    const struct hd_operand block = hd_emit_global(e, HD_GLOBAL_BLOCK);
    struct hd_operand mine, all;

    if (h->tp == 1) {
        (void)hd_emit_cross_entropy(
            e, HD_ARGS(cross_entropy, .R = h->rows, .V = h->V, .Vp = h->Vp, .dtype = h->dtype),
            HD_OPERANDS(cross_entropy, .dlogits = dlogits, .block = block, .logits = h->logits,
                        .target = target));
        return;
    }
    mine = hd_emit_temp(e, "stats", HD_F32, h->rows, HD_CROSS_ENTROPY_STATS);
    all = hd_emit_temp(e, "all_stats", HD_F32, h->tp * h->rows, HD_CROSS_ENTROPY_STATS);
    (void)hd_emit_cross_entropy_stats(
        e,
        HD_ARGS(cross_entropy_stats, .R = h->rows, .V = h->V, .Vp = h->Vp, .first = h->first,
                .dtype = h->dtype),
        HD_OPERANDS(cross_entropy_stats, .stats = mine, .logits = h->logits, .target = target));
    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = HD_GROUP_TP,
                               .count = words, .dtype = HD_F32),
                       HD_OPERANDS(comm, .received = all, .sent = mine));
    (void)hd_emit_cross_entropy_shared(
        e,
        HD_ARGS(cross_entropy_shared, .R = h->rows, .V = h->V, .Vp = h->Vp, .P = h->tp,
                .first = h->first, .dtype = h->dtype),
        HD_OPERANDS(cross_entropy_shared, .dlogits = dlogits, .block = block, .logits = h->logits,
                    .stats = all, .target = target));
}

static void head_chunk(struct hd_emit *e, const struct head *h)
{
    const struct hd_tensor *x = h->op->in[0];
    struct hd_operand rows = hd_emit_at(hd_emit_value(e, x), h->first_row * h->C, h->dtype);
    struct hd_operand weight = hd_emit_weight(e, h->op->param[0], h->dtype);
    struct hd_operand target = hd_emit_at(hd_emit_value(e, h->op->in[1]), h->first_row, HD_I32);
    bool first;

    (void)hd_emit_gemm(e,
                       HD_ARGS(gemm, .M = h->rows, .N = h->Vw, .K = h->C, .lda = h->C, .ldb = h->C,
                               .ldc = h->Vp, .trans_b = true, .ab_dtype = h->dtype,
                               .c_dtype = h->dtype),
                       HD_OPERANDS(gemm, .c = h->logits, .a = rows, .b = weight));
    head_loss(e, h, target);
    if (h->train_x)
        (void)hd_emit_gemm(e,
                           HD_ARGS(gemm, .M = h->rows, .N = h->C, .K = h->Vw, .lda = h->Vp,
                                   .ldb = h->C, .ldc = h->C, .ab_dtype = h->dtype,
                                   .c_dtype = h->dtype),
                           HD_OPERANDS(gemm, .c = hd_emit_at(h->dx, h->first_row * h->C, h->dtype),
                                       .a = h->logits, .b = weight));
    if (h->train_w) {
        struct hd_operand grad = hd_emit_param_grad(e, h->op->param[0], 1, &first);

        hd_emit_contributes(
            hd_emit_gemm(e,
                         HD_ARGS(gemm, .M = h->Vw, .N = h->C, .K = h->rows, .lda = h->Vp,
                                 .ldb = h->C, .ldc = h->C, .trans_a = true, .ab_dtype = h->dtype,
                                 .c_dtype = HD_F32),
                         HD_OPERANDS(gemm, .c = grad, .a = h->logits, .b = rows)),
            first);
    }
}

static void head_loss_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const bool train = e->rec->shape.mode == HD_RECORD_TRAIN;
    const struct hd_param *weight = &e->registry->params[op->param[0]];
    struct head h = {.op = op,
                     .V = weight->real[0],
                     .Vw = weight->local[0],
                     .first = weight->start[0],
                     .tp = weight->shares,
                     .C = x->dim[1],
                     .dtype = x->dtype,
                     .train_x = train && x->needs_grad,
                     .train_w = train && hd_op_trains_param(e->registry, op, 0)};
    const int64_t R = x->dim[0];
    int64_t step;

    h.Vp = (weight->local[0] + HEAD_COLUMNS - 1) / HEAD_COLUMNS * HEAD_COLUMNS;
    /* from the padded share: equal on all ranks */
    step = head_chunk_rows(R, h.Vp, h.dtype, &e->options->traits);
    h.logits = hd_emit_temp(e, "logits", h.dtype, step, h.Vp);
    if (h.train_x)
        h.dx = hd_emit_temp(e, "grad", h.dtype, R, h.C);
    for (; h.first_row < R; h.first_row += step) {
        h.rows = R - h.first_row < step ? R - h.first_row : step;
        head_chunk(e, &h);
    }
    if (h.train_x)
        hd_emit_add_grad(e, x, h.dx, true);
}

const struct hd_op_row hd_op_row_head_loss = {.forward = head_loss_forward};

/* ---- logits ---- */

static void logits_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    const int64_t V = e->registry->params[op->param[0]].local[0], C = x->dim[1];
    struct hd_store *out = hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_OUTPUT,
                                                               .name = "logits",
                                                               .dtype = HD_F32,
                                                               .rows = x->dim[0],
                                                               .columns = V});

    (void)hd_emit_gemm(e,
                       HD_ARGS(gemm, .M = x->dim[0], .N = V, .K = C, .lda = C, .ldb = C, .ldc = V,
                               .trans_b = true, .ab_dtype = x->dtype, .c_dtype = HD_F32),
                       HD_OPERANDS(gemm, .c = {out, 0}, .a = hd_emit_value(e, x),
                                   .b = hd_emit_weight(e, op->param[0], x->dtype)));
}

const struct hd_op_row hd_op_row_logits = {.forward = logits_forward};
