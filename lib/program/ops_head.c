/* The head and its loss, composite ops: cross-entropy (head_loss), a loss of pairs of answers
 * (head_pairs), or one of sampled completions (head_policy).
 *
 * For each chunk of rows:  logits = x W^T (+ b);  loss += ...;  dlogits in place;  dx = dlogits W;
 * dW += dlogits^T x;  db += sum_r dlogits. The kernels of the loss map the logits (factor and cap)
 * as they read them. F computes these gradients too, so that logits are not kept for backward. If tp
 * splits the vocabulary, W and logits are this rank's shard, the ranks gather a few statistics per
 * row to compute the loss, and dx is a partial sum.
 *
 * W has rows of zeros behind the vocabulary (HD_PARAM_PAD): no product then has an odd extent,
 * which a GPU multiplies more slowly. The loss ignores their logits, and their dlogits are 0.
 *
 * A loss of pairs is a function of the sums of log-probabilities of whole answers, so it takes two
 * passes over the chunks: the first makes the log-probability of each target; these are summed by
 * answer, also over the ranks of cp; from the sums follow the loss and the factor of each row's
 * gradient; the second pass makes the gradients. With more than one chunk it recomputes the logits,
 * a quarter of the head's work, so that all logits never exist at once. A loss of completions does the same. */
#include "program/emit.h"

enum {
    HEAD_BYTES = 64 << 20,    /* largest chunk of logits, bytes, if traits.head_rows is 0 */
    HEAD_BYTES_MAX = 1 << 30, /* largest chunk of logits, bytes, if traits.head_rows is set */
    HEAD_ROWS_MIN = 64,
    HEAD_COLUMNS = 32
};

/* Returns the number of rows of one chunk of the head. Every chunk reads and writes the whole dW
 * (fp32) once: 8 V C bytes beside three products of 2 rows V C operations. A device of f FLOP/s and
 * b bytes/s spends (8/6) (f / b) / rows of the products' time on it. Chunks have equal rows,
 * multiples of HEAD_ROWS_MIN, except the last. */
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

struct head_state {
    const struct hd_op *op;
    struct hd_operand logits, dx;
    int64_t V, Vw, Vp; /* token ids of this rank's vocabulary shard; rows of its weight; columns of
                          its logits */
    int64_t C, first_row, rows;
    int64_t first; /* first token id of this rank's shard */
    int tp;        /* number of ranks that split the vocabulary */
    enum hd_dtype dtype;
    bool train_x, train_w, train_b;
    bool gradients;                 /* true if this pass over the chunks computes gradients */
    bool has_logits;                /* true if an earlier pass left the logits in memory, since
                                       there is only one chunk */
    struct hd_operand logp, weight; /* [R], for losses on pairs of answers: log-probability of each
                                       row's target, and factor of each row's gradient; else
                                       absent */
    struct hd_operand spread;       /* [R, HD_ENTROPY_WORDS], of each row's entropy; absent: not
                                       computed */
    struct hd_operand scores;       /* [R], log-probability of each row's target, beside the loss;
                                       absent: not computed */
    struct hd_operand records;      /* [R, k, 2], a teacher's records (hd_top_merge_args); absent:
                                       not computed */
};

struct hd_logit_map hd_emit_logit_map(const struct hd_op *op)
{
    return (struct hd_logit_map){.scale = (float)op->set.head.logit_scale,
                                 .cap = (float)op->set.head.cap};
}

bool hd_emit_maps_logits(const struct hd_op *op)
{
    const struct hd_logit_map map = hd_emit_logit_map(op);

    return map.cap > 0 || hd_factor_of(map.scale) != 1;
}

static struct hd_operand rows_of(const struct head_state *h, struct hd_operand vector,
                                 enum hd_dtype dtype)
{
    return vector.store ? hd_emit_at(vector, h->first_row, dtype) : vector;
}

/* Returns the record of the loss of one multi-token prediction head; an absent operand for the loss
 * of the next token. */
static struct hd_operand record_of(struct hd_emit *e, const struct hd_op *op)
{
    const int further = op->set.head.further;

    if (!further)
        return hd_emit_none();
    return hd_emit_at(hd_emit_global(e, HD_GLOBAL_FURTHER),
                      (int64_t)(further - 1) * HD_FURTHER_WORDS, HD_F64);
}

/* Emits the cross-entropy of one chunk's logits, whose gradient (dlogits) overwrites the logits. */
static void head_loss(struct hd_emit *e, const struct head_state *h, struct hd_operand target)
{
    const int64_t words = h->rows * HD_CROSS_ENTROPY_STATS;
    const struct hd_operand dlogits = h->gradients ? h->logits : hd_emit_none();
    const struct hd_operand logp = rows_of(h, h->logp, HD_F32);
    const struct hd_operand weight = rows_of(h, h->weight, HD_F32);
    const struct hd_operand block = hd_emit_global(e, HD_GLOBAL_STEP_STATE);
    const struct hd_operand record = record_of(e, h->op);
    /* the z-loss is one of training, and of the model's own targets */
    const float z = h->gradients && !record.store ? (float)h->op->set.head.z_loss : 0;
    struct hd_operand mine, all;

    if (h->tp == 1) {
        (void)hd_emit_cross_entropy(
            e,
            HD_ARGS(cross_entropy, .R = h->rows, .V = h->V, .Vp = h->Vp,
                    .map = hd_emit_logit_map(h->op), .z = z, .dtype = h->dtype),
            HD_OPERANDS(cross_entropy, .dlogits = dlogits, .logp = logp, .record = record,
                        .block = block, .logits = h->logits, .target = target, .weight = weight));
        return;
    }
    mine = hd_emit_temp(e, "stats", HD_F32, h->rows, HD_CROSS_ENTROPY_STATS);
    all = hd_emit_temp(e, "all_stats", HD_F32, h->tp * h->rows, HD_CROSS_ENTROPY_STATS);
    (void)hd_emit_cross_entropy_stats(
        e,
        HD_ARGS(cross_entropy_stats, .R = h->rows, .V = h->V, .Vp = h->Vp, .first = h->first,
                .map = hd_emit_logit_map(h->op), .dtype = h->dtype),
        HD_OPERANDS(cross_entropy_stats, .stats = mine, .logits = h->logits, .target = target));
    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = HD_GROUP_TP,
                               .count = words, .dtype = HD_F32),
                       HD_OPERANDS(comm, .received = all, .sent = mine));
    (void)hd_emit_cross_entropy_shared(
        e,
        HD_ARGS(cross_entropy_shared, .R = h->rows, .V = h->V, .Vp = h->Vp, .P = h->tp,
                .first = h->first, .map = hd_emit_logit_map(h->op), .z = z, .dtype = h->dtype),
        HD_OPERANDS(cross_entropy_shared, .dlogits = dlogits, .logp = logp, .record = record,
                    .block = block, .logits = h->logits, .stats = all, .target = target,
                    .weight = weight));
}

/* Emits the log-probabilities of one chunk's targets in an evaluation. The kernel adds losses or
 * writes these, so that it runs a second time. */
static void head_scores(struct hd_emit *e, const struct head_state *h, struct hd_operand target)
{
    struct head_state second = *h;

    second.logp = h->scores;
    head_loss(e, &second, target);
}

/* Emits the numbers from which the entropy of each row of one chunk follows. */
static void head_spread(struct hd_emit *e, const struct head_state *h, struct hd_operand target)
{
    (void)hd_emit_entropy(
        e,
        HD_ARGS(entropy, .R = h->rows, .V = h->V, .Vp = h->Vp, .map = hd_emit_logit_map(h->op),
                .dtype = h->dtype),
        HD_OPERANDS(entropy,
                    .spread = hd_emit_at(h->spread, h->first_row * HD_ENTROPY_WORDS, HD_F32),
                    .logits = h->logits, .target = target));
}

/* Returns how many of this rank's columns are token ids that distillation compares. */
static int64_t real_columns(const struct head_state *h)
{
    const int64_t real = h->op->set.distill.vocab - h->first;

    return real < 0 ? 0 : real < h->V ? real : h->V;
}

/* Gathers numbers of each row from all tp ranks; returns them in rank order. Without tp returns
 * `mine`. */
static struct hd_operand gather_rows(struct hd_emit *e, const struct head_state *h,
                                     const char *name, struct hd_operand mine, int64_t words)
{
    struct hd_operand all;

    if (h->tp == 1)
        return mine;
    all = hd_emit_temp(e, name, HD_F32, h->tp * h->rows, words);
    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = HD_GROUP_TP,
                               .count = h->rows * words, .dtype = HD_F32),
                       HD_OPERANDS(comm, .received = all, .sent = mine));
    return all;
}

/* Emits the loss of a student for one chunk's logits, which its gradient overwrites. */
static void head_distill(struct hd_emit *e, const struct head_state *h, struct hd_operand target)
{
    const struct hd_distill_settings *s = &h->op->set.distill;
    const int64_t words = HD_DISTILL_WORDS(s->k), from = h->first_row * s->k;
    const struct hd_operand ids = hd_emit_at(hd_emit_value(e, h->op->in[2]), from, HD_I32);
    const struct hd_operand logq = hd_emit_at(hd_emit_value(e, h->op->in[3]), from, HD_F32);
    const struct hd_operand mine = hd_emit_temp(e, "stats", HD_F32, h->rows, words);
    struct hd_operand all;

    (void)hd_emit_distill_stats(e,
                                HD_ARGS(distill_stats, .R = h->rows, .V = h->V, .Vp = h->Vp,
                                        .first = h->first, .real = real_columns(h), .k = s->k,
                                        .temperature = (float)s->temperature,
                                        .map = hd_emit_logit_map(h->op), .dtype = h->dtype),
                                HD_OPERANDS(distill_stats, .stats = mine, .logits = h->logits,
                                            .target = target, .ids = ids));
    all = gather_rows(e, h, "all_stats", mine, words);
    (void)hd_emit_distill(
        e,
        HD_ARGS(distill, .R = h->rows, .V = h->V, .Vp = h->Vp, .P = h->tp, .first = h->first,
                .real = real_columns(h), .k = s->k, .temperature = (float)s->temperature,
                .weight = (float)s->weight, .beta = (float)s->beta, .loss = s->loss,
                .tail = s->tail, .map = hd_emit_logit_map(h->op), .dtype = h->dtype),
        HD_OPERANDS(distill, .dlogits = h->gradients ? h->logits : hd_emit_none(),
                    .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE), .logits = h->logits,
                    .stats = all, .target = target, .ids = ids, .logq = logq));
}

/* Emits the teacher's records of one chunk. */
static void head_records(struct hd_emit *e, const struct head_state *h)
{
    const struct hd_distill_settings *s = &h->op->set.distill;
    const int64_t words = HD_TOP_WORDS(s->k);
    const struct hd_operand mine = hd_emit_temp(e, "top", HD_F32, h->rows, words);

    (void)hd_emit_top_logits(e,
                             HD_ARGS(top_logits, .R = h->rows, .V = real_columns(h), .Vp = h->Vp,
                                     .first = h->first, .k = s->k,
                                     .temperature = (float)s->temperature,
                                     .map = hd_emit_logit_map(h->op), .dtype = h->dtype),
                             HD_OPERANDS(top_logits, .top = mine, .logits = h->logits));
    (void)hd_emit_top_merge(
        e, HD_ARGS(top_merge, .R = h->rows, .P = h->tp, .k = s->k),
        HD_OPERANDS(top_merge, .out = hd_emit_at(h->records, h->first_row * 2 * s->k, HD_F32),
                    .top = gather_rows(e, h, "all_tops", mine, words)));
}

/* Emits one chunk's contribution to the gradient of the bias, from its dlogits. */
static void head_bias_gradient(struct hd_emit *e, const struct head_state *h)
{
    struct hd_operand grad;
    bool first;

    if (!h->gradients || !h->train_b)
        return;
    grad = hd_emit_param_grad(e, h->op->param[1], 1, &first);
    hd_emit_contributes(
        hd_emit_bias_backward(
            e, HD_ARGS(bias_backward, .R = h->rows, .N = h->Vw, .ldd = h->Vp, .dtype = h->dtype),
            HD_OPERANDS(bias_backward, .dbias = grad, .dout = h->logits)),
        first);
}

static void head_chunk(struct hd_emit *e, const struct head_state *h)
{
    const struct hd_tensor *x = h->op->in[0];
    struct hd_operand rows = hd_emit_at(hd_emit_value(e, x), h->first_row * h->C, h->dtype);
    struct hd_operand weight = hd_emit_weight(e, h->op->param[0], h->dtype);
    struct hd_operand target = hd_emit_at(hd_emit_value(e, h->op->in[1]), h->first_row, HD_I32);
    bool first;

    if (!h->has_logits)
        (void)hd_emit_gemm(
            e,
            HD_ARGS(gemm, .M = h->rows, .N = h->Vw, .K = h->C, .lda = h->C, .ldb = h->C,
                    .ldc = h->Vp, .trans_b = true, .ab_dtype = h->dtype, .c_dtype = h->dtype),
            HD_OPERANDS(gemm, .c = h->logits, .a = rows, .b = weight,
                        .bias = hd_emit_weight_or_none(e, h->op->param[1], h->dtype)));
    if (h->op->in_count > 2 && h->op->kind == HD_OP_head_loss)
        head_distill(e, h, target);
    else
        head_loss(e, h, target);
    if (h->spread.store)
        head_spread(e, h, target);
    if (h->scores.store)
        head_scores(e, h, target);
    if (h->records.store)
        head_records(e, h);
    if (h->gradients && h->train_x)
        (void)hd_emit_gemm(e,
                           HD_ARGS(gemm, .M = h->rows, .N = h->C, .K = h->Vw, .lda = h->Vp,
                                   .ldb = h->C, .ldc = h->C, .ab_dtype = h->dtype,
                                   .c_dtype = h->dtype),
                           HD_OPERANDS(gemm, .c = hd_emit_at(h->dx, h->first_row * h->C, h->dtype),
                                       .a = h->logits, .b = weight));
    if (h->gradients && h->train_w) {
        struct hd_operand grad = hd_emit_param_grad(e, h->op->param[0], 1, &first);

        hd_emit_contributes(
            hd_emit_gemm(e,
                         HD_ARGS(gemm, .M = h->Vw, .N = h->C, .K = h->rows, .lda = h->Vp,
                                 .ldb = h->C, .ldc = h->C, .trans_a = true, .ab_dtype = h->dtype,
                                 .c_dtype = HD_F32),
                         HD_OPERANDS(gemm, .c = grad, .a = h->logits, .b = rows)),
            first);
    }
    head_bias_gradient(e, h);
}

/* Emits one pass of the head over all rows, in chunks of `step` rows. */
static void head_pass(struct hd_emit *e, struct head_state *h, int64_t step)
{
    const int64_t R = h->op->in[0]->dim[0];

    for (h->first_row = 0; h->first_row < R; h->first_row += step) {
        h->rows = R - h->first_row < step ? R - h->first_row : step;
        head_chunk(e, h);
    }
}

/* Returns the state of the head: its sizes and new memory for logits. Sets *ret_step to the number
 * of rows of a chunk. */
static struct head_state head_of(struct hd_emit *e, const struct hd_op *op, int64_t *ret_step)
{
    const struct hd_tensor *x = op->in[0];
    const bool train = e->rec->shape.mode == HD_RECORD_TRAIN;
    const struct hd_param *weight = &e->registry->params[op->param[0]];
    struct head_state h = {.op = op,
                           .V = weight->real[0],
                           .Vw = weight->local[0],
                           .first = weight->start[0],
                           .tp = weight->shards,
                           .C = x->dim[1],
                           .dtype = x->dtype,
                           .train_x = train && x->needs_grad,
                           .train_w = train && hd_op_trains_param(e->registry, op, 0),
                           .train_b = train && hd_op_trains_param(e->registry, op, 1)};

    h.Vp = (weight->local[0] + HEAD_COLUMNS - 1) / HEAD_COLUMNS * HEAD_COLUMNS;
    h.gradients = h.train_x || h.train_w || h.train_b;
    /* computed from the padded width of the shard, so all ranks get an equal number */
    *ret_step = head_chunk_rows(x->dim[0], h.Vp, h.dtype, &e->options->traits);
    h.logits = hd_emit_temp(e, "logits", h.dtype, *ret_step, h.Vp);
    if (h.train_x)
        h.dx = hd_emit_temp(e, "grad", h.dtype, x->dim[0], h.C);
    return h;
}

/* Returns memory for the log-probabilities of the targets; in an evaluation the host reads it. */
static struct hd_operand new_logp(struct hd_emit *e, int64_t R)
{
    struct hd_operand o = {0};

    if (e->rec->shape.mode == HD_RECORD_TRAIN)
        return hd_emit_temp(e, "logp", HD_F32, R, 0);
    o.store = hd_emit_store(
        e, &(struct hd_store){.kind = HD_STORE_OUTPUT, .name = "logp", .dtype = HD_F32, .rows = R});
    return o;
}

static void head_loss_forward(struct hd_emit *e, const struct hd_op *op)
{
    int64_t step;
    struct head_state h = head_of(e, op, &step);

    if (e->rec->shape.mode == HD_RECORD_EVAL && e->rec->shape.scores)
        h.scores = new_logp(e, op->in[0]->dim[0]);
    if (e->rec->shape.mode == HD_RECORD_EVAL && op->set.distill.k)
        h.records.store =
            hd_emit_store(e, &(struct hd_store){.kind = HD_STORE_OUTPUT,
                                                .name = "records",
                                                .dtype = HD_F32,
                                                .rows = op->in[0]->dim[0] * 2 * op->set.distill.k});
    head_pass(e, &h, step);
    if (h.train_x)
        hd_emit_add_grad(e, op->in[0], h.dx, true);
}

const struct hd_op_row hd_op_row_head_loss = {.forward = head_loss_forward};

/* ---- pairs ---- */

/* Emits the sums of the rows' values by answer, added over the cp ranks that have rows of the
 * answers; returns them. */
static struct hd_operand emit_answer_sums(struct hd_emit *e, const struct hd_pair_rows *rows,
                                          int64_t R, int64_t S, int64_t A)
{
    const int64_t answers = R / S * A;
    struct hd_operand sums = hd_emit_temp(e, "answer_sums", HD_F64, answers, 2);

    (void)hd_emit_answer_sums(e, HD_ARGS(answer_sums, .R = R, .S = S, .A = A),
                              HD_OPERANDS(answer_sums, .sums = sums, .logp = rows->value,
                                          .reference = rows->reference, .answer = rows->answer,
                                          .target = rows->target));
    if (e->registry->mesh.sizes.cp > 1)
        (void)hd_emit_comm(e,
                           HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = HD_GROUP_CP,
                                   .count = 2 * answers, .dtype = HD_F64),
                           HD_OPERANDS(comm, .received = sums, .sent = sums));
    return sums;
}

struct hd_operand hd_emit_pair_losses(struct hd_emit *e, const struct hd_op *op,
                                      const struct hd_pair_rows *rows, bool train)
{
    const int64_t S = e->rec->shape.S, R = e->rec->shape.B * S;
    const int64_t A = hd_answers_max(e->rec->shape.context);
    const struct hd_operand sums = emit_answer_sums(e, rows, R, S, A);
    const struct hd_operand weight =
        train ? hd_emit_temp(e, "weight", HD_F32, R, 0) : hd_emit_none();

    (void)hd_emit_preference(
        e,
        HD_ARGS(preference, .R = R, .S = S, .A = A, .objective = op->set.preference,
                .factors = op->set.factors, .counts = e->registry->coord.cp == 0),
        HD_OPERANDS(preference, .weight = weight, .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE),
                    .sums = sums, .answer = rows->answer));
    return weight;
}

static void head_pairs_forward(struct hd_emit *e, const struct hd_op *op)
{
    const int64_t R = op->in[0]->dim[0];
    int64_t step;
    struct head_state h = head_of(e, op, &step);
    const bool train = h.gradients;
    struct hd_pair_rows rows = {.target = hd_emit_value(e, op->in[1]),
                                .answer = hd_emit_value(e, op->in[2])};

    h.gradients = false;
    h.logp = new_logp(e, R);
    head_pass(e, &h, step);
    rows.value = h.logp;
    if (op->in_count > 3)
        rows.reference = hd_emit_value(e, op->in[3]);
    h.weight = hd_emit_pair_losses(e, op, &rows, train);
    if (!train)
        return;
    h.gradients = true;
    h.has_logits = step >= R;
    h.logp = hd_emit_none();
    head_pass(e, &h, step);
    if (h.train_x)
        hd_emit_add_grad(e, op->in[0], h.dx, true);
}

const struct hd_op_row hd_op_row_head_pairs = {.forward = head_pairs_forward};

/* ---- completions ---- */

/* Returns the numbers of the entropies of all rows, of all tp ranks. */
static struct hd_operand gather_spread(struct hd_emit *e, const struct head_state *h, int64_t R)
{
    const int64_t words = R * HD_ENTROPY_WORDS;
    struct hd_operand all;

    if (h->tp == 1)
        return h->spread;
    all = hd_emit_temp(e, "all_spread", HD_F32, h->tp * R, HD_ENTROPY_WORDS);
    (void)hd_emit_comm(e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = HD_GROUP_TP,
                               .count = words, .dtype = HD_F32),
                       HD_OPERANDS(comm, .received = all, .sent = h->spread));
    return all;
}

/* Emits the loss of completions of the rows whose log-probabilities are h->logp. Returns the factor [R]
 * of each row's gradient, or an absent operand if this pass computes none. */
static struct hd_operand emit_policy(struct hd_emit *e, const struct head_state *h, bool train)
{
    const struct hd_op *op = h->op;
    const int64_t S = e->rec->shape.S, R = e->rec->shape.B * S;
    const int64_t A = hd_answers_max(e->rec->shape.context);
    const struct hd_operand sampled = hd_emit_value(e, op->in[3]);
    const struct hd_pair_rows rows = {.value = h->logp,
                                      .reference = sampled,
                                      .target = hd_emit_value(e, op->in[1]),
                                      .answer = hd_emit_value(e, op->in[2])};
    const struct hd_operand sums = emit_answer_sums(e, &rows, R, S, A);
    const struct hd_operand spread = gather_spread(e, h, R);
    const struct hd_operand weight =
        train ? hd_emit_temp(e, "weight", HD_F32, R, 0) : hd_emit_none();

    (void)hd_emit_policy(
        e,
        HD_ARGS(policy, .R = R, .S = S, .A = A, .P = h->tp, .factors = op->set.policy,
                .counts_answers = e->registry->coord.cp == 0),
        HD_OPERANDS(policy, .weight = weight, .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE),
                    .logp = h->logp, .sampled = sampled,
                    .reference = op->in_count > 5 ? hd_emit_value(e, op->in[5]) : hd_emit_none(),
                    .advantage = hd_emit_value(e, op->in[4]), .sums = sums, .answer = rows.answer,
                    .target = rows.target, .spread = spread));
    return weight;
}

static void head_policy_forward(struct hd_emit *e, const struct hd_op *op)
{
    const int64_t R = op->in[0]->dim[0];
    int64_t step;
    struct head_state h = head_of(e, op, &step);
    const bool train = h.gradients;

    h.gradients = false;
    h.logp = new_logp(e, R);
    h.spread = hd_emit_temp(e, "spread", HD_F32, R, HD_ENTROPY_WORDS);
    head_pass(e, &h, step);
    h.weight = emit_policy(e, &h, train);
    if (!train)
        return;
    h.gradients = true;
    h.has_logits = step >= R;
    h.logp = h.spread = hd_emit_none();
    head_pass(e, &h, step);
    if (h.train_x)
        hd_emit_add_grad(e, op->in[0], h.dx, true);
}

const struct hd_op_row hd_op_row_head_policy = {.forward = head_policy_forward};
