/* The head of a reward model and its loss of pairs of answers, a composite op.
 *
 * An answer's reward is its last row, after the model's last norm, times one vector. One product
 * per answer replaces the logits, and F computes the gradients too, as in ops_head.c.
 *
 * The rows are those outside of enter and leave (ops_tensor_parallel.c): with sequence parallelism
 * each tp rank has different rows; the ranks sum their values, where a rank has zeros for rows of
 * the others, so that all have the value of every row. Over cp the sums of answers are reduced. The
 * gradient of a row, and its contribution to the weight's gradient, is computed by the rank that
 * has the row. */
#include "program/emit.h"

struct reward {
    const struct hd_op *op;
    int64_t N, R, first; /* number of rows of this rank's sequences; number of those that this rank
                            has; index of the first of them */
    int64_t C;
    enum hd_dtype dtype;
    struct hd_operand x, weight, answer;
};

static struct reward reward_of(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *x = op->in[0];
    struct reward r = {.op = op,
                       .N = op->in[1]->dim[0],
                       .R = x->dim[0],
                       .C = x->dim[1],
                       .dtype = x->dtype,
                       .x = hd_emit_value(e, x),
                       .answer = hd_emit_value(e, op->in[1]),
                       .weight = hd_emit_weight(e, op->param[0], x->dtype)};

    r.first = r.R < r.N ? e->registry->coord.tp * r.R : 0;
    return r;
}

/* Emits the head's value of each of the N rows, summed over tp ranks if they split the rows, into
 * `value` [N]. */
static void emit_values(struct hd_emit *e, const struct reward *r, struct hd_operand value)
{
    (void)hd_emit_score_forward(e,
                                HD_ARGS(score_forward, .N = r->N, .R = r->R, .C = r->C,
                                        .first = r->first, .dtype = r->dtype),
                                HD_OPERANDS(score_forward, .value = value, .x = r->x,
                                            .weight = r->weight, .answer = r->answer));
    if (r->R < r->N)
        (void)hd_emit_comm(e,
                           HD_ARGS(comm, .kind = HD_COMM_ALL_REDUCE, .group = HD_GROUP_TP,
                                   .count = r->N, .dtype = HD_F32),
                           HD_OPERANDS(comm, .received = value, .sent = value));
}

/* Emits the values of all rows as an output for the host, without a loss. */
static void emit_scores(struct hd_emit *e, const struct reward *r)
{
    struct hd_operand value = {0};

    value.store = hd_emit_store(
        e, &(struct hd_store){
               .kind = HD_STORE_OUTPUT, .name = "scores", .dtype = HD_F32, .rows = r->N});
    emit_values(e, r, value);
}

static void emit_gradients(struct hd_emit *e, const struct reward *r, struct hd_operand pull,
                           bool train_x, bool train_w)
{
    const struct hd_operand dx =
        train_x ? hd_emit_temp(e, "grad", r->dtype, r->R, r->C) : hd_emit_none();
    bool first = false;
    const struct hd_operand dweight =
        train_w ? hd_emit_param_grad(e, r->op->param[0], 1, &first) : hd_emit_none();
    struct hd_node *node =
        hd_emit_score_backward(e,
                               HD_ARGS(score_backward, .N = r->N, .R = r->R, .C = r->C,
                                       .first = r->first, .dtype = r->dtype),
                               HD_OPERANDS(score_backward, .dx = dx, .dweight = dweight,
                                           .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE),
                                           .pull = pull, .x = r->x, .weight = r->weight));

    if (train_w)
        hd_emit_contributes(node, first);
    if (train_x)
        hd_emit_add_grad(e, r->op->in[0], dx, true);
}

static void head_reward_forward(struct hd_emit *e, const struct hd_op *op)
{
    const struct reward r = reward_of(e, op);
    const bool train = e->rec->shape.mode == HD_RECORD_TRAIN;
    const bool train_x = train && op->in[0]->needs_grad;
    const bool train_w = train && hd_op_trains_param(e->registry, op, 0);
    struct hd_pair_rows rows = {.answer = r.answer};
    struct hd_operand pull;

    if (e->rec->shape.mode == HD_RECORD_EVAL && e->rec->shape.scores) {
        emit_scores(e, &r);
        return;
    }
    rows.value = hd_emit_temp(e, "reward", HD_F32, r.N, 0);
    emit_values(e, &r, rows.value);
    pull = hd_emit_pair_losses(e, op, &rows, train_x || train_w);
    if (train_x || train_w)
        emit_gradients(e, &r, pull, train_x, train_w);
}

const struct hd_op_row hd_op_row_head_reward = {.forward = head_reward_forward};
