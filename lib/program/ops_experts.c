/* A mixture of SwiGLU experts, a composite op (Shazeer et al. 2017, "Outrageously Large Neural
 * Networks"; Lepikhin et al. 2020, "GShard"; Jiang et al. 2024, "Mixtral of Experts").
 *
 *   route     logits = x Wr^T in fp32, the K experts of each row and their gates
 *   dispatch  rows in expert order -> all_to_all over ep -> in the order of this rank's experts
 *   compute   grouped GEMMs over each expert's rows: gate and up, SwiGLU, down
 *   combine   all_to_all back; a row is the sum of its experts' results, weighted by its gates
 *
 * With router.gate_input a row is weighted by its gates before its experts instead: the kernels of
 * dispatch and combine change places, forward and backward.
 *
 * With dropout before adapters the sample and index of each row are dispatched like the row. A mask
 * depends on sample, index, expert and channel alone; backward recomputes it.
 *
 * The numbers of rows depend on the data: counts are device tensors, buffers have fixed capacities,
 * and exceeding a capacity sets too_many_rows in the step state. Losses and expert capacity are
 * functions of whole documents; with context parallelism the cp ranks first gather the experts that
 * their rows chose. A row without a token chooses no expert (ops_moe.h).
 *
 * With tensor parallelism all tp ranks route the same rows identically and hold a shard of each
 * expert's F. The result and the gradients of gates, x and router are then partial sums; to the
 * gradients of the router's own losses each rank adds 1/tp.
 */
#include <math.h>

#include "base/math.h"
#include "program/experts.h"

static struct hd_operand block_field(struct hd_emit *e, size_t offset)
{
    struct hd_operand block = hd_emit_global(e, HD_GLOBAL_STEP_STATE);

    block.offset_bytes = (int64_t)offset;
    return block;
}

/* ---- sizes ---- */

static bool decodes_experts(const struct experts *x)
{
    return x->e->rec->shape.mode == HD_RECORD_DECODE;
}

/* Returns the largest number of rows of one sequence that one expert accepts: the capacity of one
 * document that fills the sequence. The capacities of several documents are each rounded up, so if
 * documents share a sequence, one more row is allowed for every ROWS_OF_A_DOCUMENT rows. */
static int64_t sequence_bound(const struct experts *x)
{
    enum { ROWS_OF_A_DOCUMENT = 32 };
    const int64_t whole = (int64_t)ceil(x->capacity * (double)(x->S * x->K) / (double)x->E);
    const int64_t more = hd_divide_up(x->S, ROWS_OF_A_DOCUMENT);

    return whole + (x->e->rec->shape.bounded ? more : 0);
}

/* Returns the largest number of rows that this rank sends to experts: all choices of its rows, or
 * fewer if the router has a capacity. With context parallelism all choices of a sequence for one
 * expert may be among this rank's rows. */
static int64_t sent_bound(const struct experts *x)
{
    const int64_t all = x->R * x->K;

    if (x->capacity > 0 && !x->e->rec->shape.bounded)
        return hd_min(all, x->E * sequence_bound(x) * x->B);
    return all;
}

/* Returns the number of different dp indices, each with its own sequences, in this rank's ep
 * group. */
static int64_t dp_indices_of_ep_group(const struct hd_registry *r)
{
    const int64_t cp = r->mesh.sizes.cp, ep = r->mesh.sizes.ep;
    const int64_t first = (r->coord.dp * cp + r->coord.cp) / ep * ep;

    return (first + ep - 1) / cp - first / cp + 1;
}

/* Returns the number of rows of this rank's receive buffer, for rows from P ranks: limited by the
 * job's expert_rows, or by the capacity of whole sequences if that is more; without both, all
 * choices of all ranks. */
static int64_t received_bound(const struct experts *x)
{
    const int64_t even = x->R * x->K, all = even * x->P;
    const int64_t sequences = x->B * dp_indices_of_ep_group(x->e->registry);
    const int64_t asked = (int64_t)ceil(x->router->expert_rows * (double)even);

    if (x->P == 1)
        return sent_bound(x);
    if (decodes_experts(x)) /* few rows, whose choices need not be even */
        return all;
    if (x->capacity > 0)
        return hd_min(all, hd_max(asked, x->El * sequence_bound(x) * sequences));
    return asked > 0 ? hd_min(all, asked) : all;
}

static struct experts describe(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *in = op->in[0];
    /* in decode a rank has whole sequences */
    const bool decode = e->rec->shape.mode == HD_RECORD_DECODE;
    const int32_t cp = decode ? 1 : e->registry->mesh.sizes.cp;
    const struct hd_param *gate = &e->registry->params[op->param[PARAM_GATE]];
    struct experts x = {
        .e = e,
        .op = op,
        .router = &op->set.router,
        .dtype = in->dtype,
        .R = in->dim[0],
        .C = in->dim[1],
        .F = gate->local[1],
        .E = gate->shape[0],
        .K = op->set.router.K,
        .El = gate->local[0],
        .P = gate->shape[0] / gate->local[0],
        .B = e->rec->shape.B,
        .S = e->rec->shape.S * cp,
        .at = {.runs = cp > 1 ? 2 : 1, .P = cp, .rank = cp > 1 ? e->registry->coord.cp : 0}};

    x.at.Q = x.B * x.at.runs;
    /* not in decode: a call has only some rows of a document, and capacity is per whole document */
    if (x.router->capacity > 0 && !decode)
        x.capacity = x.router->capacity;
    x.T_sent = sent_bound(&x);
    x.T_received = received_bound(&x);
    if (x.T_received > INT32_MAX)
        hd_emit_fail(e, hd_err(HD_LIMIT,
                               "a rank's experts would need buffers of %lld rows; lower "
                               "parallel.micro_batch, or set parallel.expert_rows",
                               (long long)x.T_received));
    return x;
}

/* ---- dispatch ---- */

/* Exchanges row counts: how many rows each of this rank's experts gets from each rank. */
static void exchange_counts(struct experts *x)
{
    const struct hd_operand mine = x->expert_counts;

    if (x->P == 1)
        return;
    x->all_counts = numbers(x, "all_counts", HD_I32, x->P, x->El);
    x->received = numbers(x, "received_counts", HD_I32, x->P, 0);
    x->expert_counts = numbers(x, "expert_counts", HD_I32, x->El, 0);
    (void)hd_emit_comm(x->e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_TO_ALL, .group = HD_GROUP_EP,
                               .count = x->El, .dtype = HD_I32),
                       HD_OPERANDS(comm, .received = x->all_counts, .sent = mine));
}

static void regroup(struct experts *x, struct hd_operand out, struct hd_operand in, bool inverse,
                    bool first)
{
    (void)set_even_rows(
        x, hd_emit_regroup(x->e,
                           HD_ARGS(regroup, .P = x->P, .E = x->El, .T = x->T_received, .C = x->C,
                                   .inverse = inverse, .dtype = x->dtype),
                           HD_OPERANDS(regroup, .out = out,
                                       .counts = first ? x->expert_counts : hd_emit_none(),
                                       .block = first ? hd_emit_global(x->e, HD_GLOBAL_STEP_STATE)
                                                      : hd_emit_none(),
                                       .inp = in, .all_counts = x->all_counts)));
}

static void send_rows(struct experts *x, struct hd_operand received, struct hd_operand sent,
                      bool back, bool first)
{
    const struct hd_node_rows rows = {.sent_max = back ? x->T_received : x->T_sent,
                                      .received_max = back ? x->T_sent : x->T_received,
                                      .elements = x->C,
                                      .even = x->T_sent};

    (void)hd_emit_comm(
        x->e,
        HD_ARGS(comm, .kind = HD_COMM_ALL_TO_ALL_V, .group = HD_GROUP_EP,
                .count = rows.received_max, .dtype = x->dtype, .rows = rows),
        HD_OPERANDS(comm, .received = received, .sent = sent,
                    .sent_counts = back ? x->received : x->sent,
                    .received_counts = first ? x->received : hd_emit_none(),
                    .exceeded = block_field(x->e, offsetof(struct hd_step_state, too_many_rows))));
}

/* Emits the move of rows, which are in the order of their slots, to the ranks of their experts,
 * where they are ordered by expert. `first`: this call also writes the counts of rows, which later
 * calls use. */
static struct hd_operand dispatch(struct experts *x, struct hd_operand in, bool first)
{
    struct hd_operand arrived, out;

    if (x->P == 1)
        return in;
    arrived = rows(x, "arrived", x->T_received, x->C);
    out = rows(x, "for_experts", x->T_received, x->C);
    send_rows(x, arrived, in, false, first);
    regroup(x, out, arrived, false, first);
    return out;
}

/* Emits the move of the experts' rows back to the ranks and slots from which dispatch took them. */
static struct hd_operand undispatch(struct experts *x, struct hd_operand in)
{
    struct hd_operand leaving, out;

    if (x->P == 1)
        return in;
    leaving = rows(x, "leaving", x->T_received, x->C);
    out = rows(x, "returned", x->T_sent, x->C);
    regroup(x, leaving, in, true, false);
    send_rows(x, out, leaving, true, false);
    return out;
}

/* Dispatches one number of each row, so that it follows its row to the experts. The kernels that
 * move rows copy 4 bytes of any type. */
static struct hd_operand dispatch_number(const struct experts *x, struct hd_operand of_rows)
{
    struct experts narrow = *x;
    struct hd_operand permuted;

    narrow.C = 1;
    narrow.dtype = HD_F32;
    permuted = rows(&narrow, "place", narrow.T_sent, 1);
    (void)hd_emit_permute_forward(
        x->e,
        HD_ARGS(permute_forward, .R = narrow.R, .K = narrow.K, .C = 1, .T = narrow.T_sent,
                .dtype = HD_F32),
        HD_OPERANDS(permute_forward, .out = permuted, .inp = of_rows, .slot = narrow.slot));
    return dispatch(&narrow, permuted, false);
}

/* Emits the copy of each row of `in` [R, C] to the slots of its choices, and returns these rows. */
static struct hd_operand scatter(struct experts *x, struct hd_operand in)
{
    const struct hd_operand out = rows(x, "permuted", x->T_sent, x->C);

    (void)hd_emit_permute_forward(
        x->e,
        HD_ARGS(permute_forward, .R = x->R, .K = x->K, .C = x->C, .T = x->T_sent,
                .dtype = x->dtype),
        HD_OPERANDS(permute_forward, .out = out, .inp = in, .slot = x->slot));
    return out;
}

/* Does what scatter does, with each row times the gate of the choice. */
static struct hd_operand scatter_weighted(struct experts *x, struct hd_operand in)
{
    const struct hd_operand out = rows(x, "permuted", x->T_sent, x->C);

    (void)hd_emit_combine_backward(
        x->e,
        HD_ARGS(combine_backward, .R = x->R, .K = x->K, .C = x->C, .T = x->T_sent,
                .dtype = x->dtype),
        HD_OPERANDS(combine_backward, .dinp = out, .dout = in, .gate = x->gate, .slot = x->slot));
    return out;
}

/* Emits into `out` [R, C] the sum of the rows `in` in the slots of each row's choices. */
static void gather(struct experts *x, struct hd_operand out, struct hd_operand in)
{
    (void)hd_emit_permute_backward(
        x->e,
        HD_ARGS(permute_backward, .R = x->R, .K = x->K, .C = x->C, .T = x->T_sent,
                .dtype = x->dtype),
        HD_OPERANDS(permute_backward, .dinp = out, .dout = in, .slot = x->slot));
}

/* Does what gather does, with each row times the gate of the choice. */
static void gather_weighted(struct experts *x, struct hd_operand out, struct hd_operand in)
{
    (void)hd_emit_combine_forward(
        x->e,
        HD_ARGS(combine_forward, .R = x->R, .K = x->K, .C = x->C, .T = x->T_sent,
                .dtype = x->dtype),
        HD_OPERANDS(combine_forward, .out = out, .inp = in, .gate = x->gate, .slot = x->slot));
}

/* Emits the gradients of the gates: products of a row, [R, C], and what is in the slots of its
 * choices. */
static struct hd_operand gate_gradient(struct experts *x, struct hd_operand of_rows,
                                       struct hd_operand in_slots)
{
    const struct hd_operand dgate = numbers(x, "dgate", HD_F32, x->R, x->K);

    (void)hd_emit_combine_backward(x->e,
                                   HD_ARGS(combine_backward, .R = x->R, .K = x->K, .C = x->C,
                                           .T = x->T_sent, .dtype = x->dtype),
                                   HD_OPERANDS(combine_backward, .dgate = dgate, .dout = of_rows,
                                               .inp = in_slots, .gate = x->gate, .slot = x->slot));
    return dgate;
}

/* Emits forward. If recomputed, it moves rows and computes with the choices of the first
 * emission. */
static void experts_forward(struct hd_emit *e, const struct hd_op *op)
{
    const bool recomputed = hd_emit_is_recomputed(e);
    const struct experts *first = e->frame[HD_FRAME_FORWARD].state[e->op_index];
    struct experts *x = hd_arena_alloc(e->arena, sizeof *x);
    struct hd_operand permuted;

    if (!x || (recomputed && !first)) {
        hd_emit_fail(e, hd_err(HD_NO_MEMORY, "no memory to compile a program"));
        return;
    }
    *x = recomputed ? *first : describe(e, op);
    *hd_emit_state(e) = x;
    if (!recomputed)
        hd_experts_route(x);
    permuted = x->router->gate_input ? scatter_weighted(x, hd_emit_value(e, op->in[0]))
                                     : scatter(x, hd_emit_value(e, op->in[0]));
    if (!recomputed)
        exchange_counts(x);
    x->entered = dispatch(x, permuted, !recomputed);
    if (!recomputed && hd_experts_drops(x)) {
        x->sample = dispatch_number(x, hd_emit_value(e, op->in[3]));
        x->index = dispatch_number(x, hd_emit_value(e, op->in[4]));
    }
    x->returned = undispatch(x, hd_experts_compute(x));
    if (x->router->gate_input)
        gather(x, hd_emit_result(e, op), x->returned);
    else
        gather_weighted(x, hd_emit_result(e, op), x->returned);
}

/* ---- backward ---- */

/* Emits the gradient of the op's input: the part through the experts plus the part through the
 * router. back: the gradient of each row of an expert's input, sent back to this rank, by slot
 * (position in the order in which rows were sent to the experts). */
static void input_gradient(struct experts *x, struct hd_operand back)
{
    const struct hd_tensor *in = x->op->in[0];
    const struct hd_operand dx = rows(x, "grad", x->R, x->C);
    struct hd_operand grad_fp32, narrow;

    if (x->router->gate_input)
        gather_weighted(x, dx, back);
    else
        gather(x, dx, back);
    grad_fp32 = x->dtype == HD_F32 ? dx : numbers(x, "grad", HD_F32, x->R, x->C);
    hd_experts_router_gradient(x, grad_fp32, x->dlogits, x->op->param[PARAM_ROUTER],
                               x->dtype == HD_F32);
    if (x->noise.store)
        hd_experts_router_gradient(x, grad_fp32, x->dnoise_logits, x->op->param[PARAM_NOISE], true);
    hd_emit_add_grad(x->e, in, dx, true);
    if (x->dtype == HD_F32)
        return;
    narrow = rows(x, "grad", x->R, x->C);
    (void)hd_emit_cast(x->e,
                       HD_ARGS(cast, .N = x->R * x->C, .out_dtype = x->dtype, .inp_dtype = HD_F32),
                       HD_OPERANDS(cast, .out = narrow, .inp = grad_fp32));
    hd_emit_add_grad(x->e, in, narrow, true);
}

/* Emits backward of an op whose gates multiply rows before the experts. */
static void backward_gated_inputs(struct experts *x)
{
    struct hd_operand back;

    x->dresult = dispatch(x, scatter(x, hd_emit_grad(x->e, x->op->out)), false);
    hd_experts_compute_backward(x);
    back = undispatch(x, hd_experts_entered_gradient(x));
    hd_experts_route_backward(x, gate_gradient(x, hd_emit_value(x->e, x->op->in[0]), back));
    if (x->op->in[0]->needs_grad)
        input_gradient(x, back);
}

static void experts_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    struct hd_operand dreturned, dgate;
    struct experts *x;

    (void)hd_emit_value(e, op->out); /* emits again the forward of rows that were not kept */
    x = *hd_emit_state(e);
    if (!x)
        return; /* forward has failed and left no state */
    if (x->router->gate_input) {
        backward_gated_inputs(x);
        return;
    }
    dreturned = rows(x, "dreturned", x->T_sent, x->C);
    dgate = numbers(x, "dgate", HD_F32, x->R, x->K);
    (void)hd_emit_combine_backward(e,
                                   HD_ARGS(combine_backward, .R = x->R, .K = x->K, .C = x->C,
                                           .T = x->T_sent, .dtype = x->dtype),
                                   HD_OPERANDS(combine_backward, .dinp = dreturned, .dgate = dgate,
                                               .dout = hd_emit_grad(e, op->out), .inp = x->returned,
                                               .gate = x->gate, .slot = x->slot));
    x->dresult = dispatch(x, dreturned, false);
    hd_experts_compute_backward(x);
    hd_experts_route_backward(x, dgate);
    if (!op->in[0]->needs_grad)
        return;
    input_gradient(x, undispatch(x, hd_experts_entered_gradient(x)));
}

static void experts_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    struct experts *x = *hd_emit_state(e);

    (void)op;
    if (!x)
        return;
    hd_experts_compute_weights(x);
    hd_experts_router_weights(x);
}

const struct hd_op_row hd_op_row_experts = {.forward = experts_forward,
                                            .backward_inputs = experts_backward_inputs,
                                            .backward_weights = experts_backward_weights};
