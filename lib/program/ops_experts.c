/* A mixture of SwiGLU experts, a composite op (Shazeer et al. 2017, "Outrageously Large Neural
 * Networks"; Lepikhin et al. 2020, "GShard"; Jiang et al. 2024, "Mixtral of Experts").
 *
 *   route     logits = x Wr^T in fp32, the K experts of each row and their gates
 *   dispatch  rows in expert order -> all_to_all over ep -> in the order of this rank's experts
 *   compute   grouped GEMMs over each expert's rows: gate and up, SwiGLU, down
 *   combine   all_to_all back; a row is the sum of its experts' results, weighted by its gates
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
#include "program/emit.h"

/* State of the op: sizes, and operands that backward needs from forward, kept per micro-batch. */
struct experts {
    struct hd_emit *e;
    const struct hd_op *op;
    const struct hd_router *router;
    enum hd_dtype dtype;
    int64_t R, C, F, E, K;      /* R: rows of this rank; E: experts of all ranks; K: experts per
                                   row */
    int64_t El, P, B, S;        /* El: experts of this rank; P: ranks that split the experts; S:
                                   rows of a whole sequence */
    struct hd_row_runs at;      /* positions of this rank's R rows in whole sequences (ops_moe.h) */
    double capacity;            /* expert capacity of the router; 0: no limit */
    int64_t T_sent, T_received; /* capacities in rows of the buffers that this rank sends and
                                   receives */
    /* operands of fp32 or int32 */
    struct hd_operand noise_logits, noise, probs, lse, chosen, gate;
    struct hd_operand all_chosen; /* [cp, R, K]: choices of all ranks that have rows of these
                                     sequences */
    struct hd_operand slot, sent, all_counts, received, expert_counts;
    /* operands of rows of C or F channels */
    struct hd_operand entered, hidden, activated, returned;
    /* [T_received], with dropout before adapters: sample and index of the rows of this rank's
     * experts */
    struct hd_operand sample, index;
    /* [T_received, r] of each product that has an adapter: s A x, and s B^T dy */
    struct hd_operand inner[HD_EXPERT_PRODUCTS], dinner[HD_EXPERT_PRODUCTS];
    /* operands computed in B, which W reads for the gradients of weights */
    struct hd_operand dhidden, dresult, dlogits, dnoise_logits;
};

static struct hd_operand block_field(struct hd_emit *e, size_t offset)
{
    struct hd_operand block = hd_emit_global(e, HD_GLOBAL_STEP_STATE);

    block.offset_bytes = (int64_t)offset;
    return block;
}

/* ---- sizes ---- */

/* Returns the largest number of rows of one sequence that one expert accepts: the capacity of one
 * document that fills the sequence. The capacities of several documents are each rounded up, so if
 * documents share a sequence, one more row is allowed for every ROWS_OF_A_DOCUMENT rows. */
static int64_t sequence_bound(const struct experts *x)
{
    enum { ROWS_OF_A_DOCUMENT = 32 };
    const int64_t whole = (int64_t)ceil(x->capacity * (double)(x->S * x->K) / (double)x->E);
    const int64_t more = (x->S + ROWS_OF_A_DOCUMENT - 1) / ROWS_OF_A_DOCUMENT;

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

static int64_t greatest(int64_t a, int64_t b)
{
    return a > b ? a : b;
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
    if (x->capacity > 0)
        return hd_min(all, greatest(asked, x->El * sequence_bound(x) * sequences));
    return asked > 0 ? hd_min(all, asked) : all;
}

static struct experts describe(struct hd_emit *e, const struct hd_op *op)
{
    const struct hd_tensor *in = op->in[0];
    const struct hd_mesh_sizes *sizes = &e->registry->mesh.sizes;
    const struct hd_param *gate = &e->registry->params[op->param[2]];
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
        .S = e->rec->shape.S * sizes->cp,
        .at = {.runs = sizes->cp > 1 ? 2 : 1, .P = sizes->cp, .rank = e->registry->coord.cp}};

    x.at.Q = x.B * x.at.runs;
    /* not in decode: a call has only some rows of a document, and capacity is per whole document */
    if (x.router->capacity > 0 && e->rec->shape.mode != HD_RECORD_DECODE)
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

static struct hd_operand numbers(struct experts *x, const char *name, enum hd_dtype dtype,
                                 int64_t rows, int64_t columns)
{
    return hd_emit_temp(x->e, name, dtype, rows, columns);
}

static struct hd_operand rows(struct experts *x, const char *name, int64_t count, int64_t width)
{
    return hd_emit_temp(x->e, name, x->dtype, count, width);
}

/* Sets, for cost estimates, the rows of a kernel over this rank's experts. With balanced routers a
 * rank receives as many rows as it sends. */
static struct hd_node *set_even_rows(const struct experts *x, struct hd_node *node)
{
    node->rows.even = x->T_sent;
    return node;
}

/* ---- route ---- */

/* Parameters of the op by index; A of product p is PARAM_A + 2 p, B the next one; -1: it has none. */
enum {
    PARAM_GATE = 2,
    PARAM_UP,
    PARAM_DOWN,
    PARAM_A,
    PARAM_ROUTER_BIAS = PARAM_A + 2 * HD_EXPERT_PRODUCTS,
    PARAM_SELECT_BIAS,
    PARAM_BIAS /* bias of product p: PARAM_BIAS + p */
};

/* Emits the cast of the op's input to fp32 and returns the result, which is not kept: backward
 * casts again. */
static struct hd_operand in_fp32(struct experts *x)
{
    const struct hd_operand value = hd_emit_value(x->e, x->op->in[0]);
    struct hd_operand widened;

    if (x->dtype == HD_F32)
        return value;
    widened = numbers(x, "widened", HD_F32, x->R, x->C);
    (void)hd_emit_cast(x->e,
                       HD_ARGS(cast, .N = x->R * x->C, .out_dtype = HD_F32, .inp_dtype = x->dtype),
                       HD_OPERANDS(cast, .out = widened, .inp = value));
    return widened;
}

/* Returns a parameter of the op in fp32; absent if the op does not have it. */
static struct hd_operand vector(struct experts *x, int which)
{
    const int param = x->op->param[which];

    return param < 0 ? hd_emit_none() : hd_emit_weight(x->e, param, HD_F32);
}

static struct hd_operand router_product(struct experts *x, const char *name, struct hd_operand in,
                                        int param, struct hd_operand bias)
{
    const struct hd_operand out = numbers(x, name, HD_F32, x->R, x->E);

    (void)hd_emit_gemm(x->e,
                       HD_ARGS(gemm, .M = x->R, .N = x->E, .K = x->C, .lda = x->C, .ldb = x->C,
                               .ldc = x->E, .trans_b = true, .ab_dtype = HD_F32, .c_dtype = HD_F32),
                       HD_OPERANDS(gemm, .c = out, .a = in,
                                   .b = hd_emit_weight(x->e, param, HD_F32), .bias = bias));
    return out;
}

static void add_noise(struct experts *x, struct hd_operand in)
{
    const struct hd_op *op = x->op;

    if (!x->router->noisy || x->e->rec->shape.mode != HD_RECORD_TRAIN)
        return;
    x->noise_logits = router_product(x, "noise_logits", in, op->param[1], hd_emit_none());
    x->noise = numbers(x, "noise", HD_F32, x->R, x->E);
    (void)hd_emit_route_noise(
        x->e,
        HD_ARGS(route_noise,
                .key = hd_dropout_key(x->router->seed, x->router->number, HD_SITE_ROUTER),
                .R = x->R, .E = x->E),
        HD_OPERANDS(route_noise, .noise = x->noise, .sample = hd_emit_value(x->e, op->in[3]),
                    .index = hd_emit_value(x->e, op->in[4]),
                    .block = hd_emit_global(x->e, HD_GLOBAL_STEP_STATE)));
}

/* ---- documents ---- */

static struct hd_operand lengths_of(struct experts *x)
{
    return hd_emit_value(x->e, x->op->in[1]);
}

static struct hd_operand begins_of(struct experts *x)
{
    return hd_emit_value(x->e, x->op->in[2]);
}

/* Emits the gather of all cp ranks' choices, so that each rank has those of whole sequences;
 * returns them. */
static struct hd_operand gather_choices(struct experts *x)
{
    const int64_t cp = x->at.P;
    struct hd_operand all;

    if (cp == 1)
        return x->chosen;
    all = numbers(x, "all_chosen", HD_I32, cp * x->R, x->K);
    (void)hd_emit_comm(x->e,
                       HD_ARGS(comm, .kind = HD_COMM_ALL_GATHER, .group = HD_GROUP_CP,
                               .count = x->R * x->K, .dtype = HD_I32),
                       HD_OPERANDS(comm, .received = all, .sent = x->chosen));
    return all;
}

/* Emits route_counts, the number of choices of each expert in each document; the counts are not
 * kept: backward recomputes them. */
static struct hd_operand count_choices(struct experts *x)
{
    const struct hd_operand counts = numbers(x, "counts", HD_I32, x->R, x->E);

    (void)hd_emit_route_counts(x->e,
                               HD_ARGS(route_counts, .at = x->at, .R = x->R, .E = x->E, .K = x->K),
                               HD_OPERANDS(route_counts, .counts = counts, .chosen = x->all_chosen,
                                           .begins = begins_of(x), .lengths = lengths_of(x)));
    return counts;
}

/* Emits probabilities, chosen experts and gates of every row. */
static void choose_experts(struct experts *x)
{
    const struct hd_operand in = in_fp32(x);
    const struct hd_operand logits =
        router_product(x, "scores", in, x->op->param[0], vector(x, PARAM_ROUTER_BIAS));

    add_noise(x, in);
    x->probs = numbers(x, "probs", HD_F32, x->R, x->E);
    x->lse = numbers(x, "lse", HD_F32, x->R, 0);
    x->chosen = numbers(x, "chosen", HD_I32, x->R, x->K);
    x->gate = numbers(x, "gate", HD_F32, x->R, x->K);
    (void)hd_emit_route_forward(
        x->e,
        HD_ARGS(route_forward, .R = x->R, .E = x->E, .K = x->K, .form = x->router->form,
                .renormalize = x->router->renormalize),
        HD_OPERANDS(route_forward, .probs = x->probs, .lse = x->lse, .chosen = x->chosen,
                    .gate = x->gate, .logits = logits, .noise_logits = x->noise_logits,
                    .noise = x->noise, .lengths = lengths_of(x),
                    .select_bias = vector(x, PARAM_SELECT_BIAS)));
}

/* Emits the router's record, which only the step's metrics use. */
static void write_record(struct experts *x)
{
    const struct hd_operand counts = count_choices(x);
    struct hd_operand record = hd_emit_global(x->e, HD_GLOBAL_ROUTES);

    record.offset_bytes = x->router->number * (HD_ROUTE_WORDS + x->E) * (int64_t)sizeof(double);
    (void)hd_emit_route_record(x->e,
                               HD_ARGS(route_record, .at = x->at, .R = x->R, .E = x->E, .K = x->K,
                                       .score = x->router->form.score),
                               HD_OPERANDS(route_record, .record = record, .counts = counts,
                                           .chosen = x->chosen, .slot = x->slot, .probs = x->probs,
                                           .lse = x->lse, .begins = begins_of(x),
                                           .lengths = lengths_of(x)));
}

/* Returns true if the op needs the choices of all rows of a document, also those on other cp
 * ranks. */
static bool needs_documents(const struct experts *x)
{
    return x->capacity > 0 || x->e->rec->shape.mode == HD_RECORD_TRAIN;
}

static void route(struct experts *x)
{
    struct hd_row_runs at = x->at;

    choose_experts(x);
    if (needs_documents(x)) {
        x->all_chosen = gather_choices(x);
    } else { /* the assign kernel needs only the choices of this rank's rows */
        x->all_chosen = x->chosen;
        at.P = 1;
        at.rank = 0;
    }
    x->slot = numbers(x, "slot", HD_I32, x->R, x->K);
    x->expert_counts = numbers(x, "expert_counts", HD_I32, x->E, 0);
    x->sent = numbers(x, "sent_counts", HD_I32, x->P, 0);
    (void)hd_emit_assign(
        x->e,
        HD_ARGS(assign, .at = at, .R = x->R, .E = x->E, .K = x->K, .T = x->T_sent, .P = x->P,
                .capacity = x->capacity),
        HD_OPERANDS(assign, .slot = x->slot, .counts = x->expert_counts, .sent = x->sent,
                    .block = hd_emit_global(x->e, HD_GLOBAL_STEP_STATE), .chosen = x->all_chosen,
                    .begins = begins_of(x), .lengths = lengths_of(x)));
    if (x->e->rec->shape.mode == HD_RECORD_TRAIN)
        write_record(x);
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

/* ---- compute ---- */

static bool is_adapted(const struct experts *x, int which)
{
    return x->op->param[PARAM_A + 2 * which] >= 0;
}

static int64_t rank_of(const struct experts *x, int which)
{
    return x->e->registry->params[x->op->param[PARAM_A + 2 * which]].local[1];
}

/* Emits c[T, N] (+)= a[T, K] times each expert's weights. */
static void product(struct experts *x, struct hd_operand c, int64_t ldc, struct hd_operand a,
                    int64_t lda, int param, int64_t N, int64_t K, bool trans, bool accumulate)
{
    const struct hd_param *p = &x->e->registry->params[x->op->param[param]];
    const int64_t stride = p->quant ? p->record_bytes : N * K;
    struct hd_quant_factor codes;
    const struct hd_operand w = hd_emit_factor(x->e, x->op->param[param], 1, x->dtype, &codes);

    (void)set_even_rows(
        x, hd_emit_grouped_gemm(
               x->e,
               HD_ARGS(grouped_gemm, .E = x->El, .T = x->T_received, .N = N, .K = K, .lda = lda,
                       .ldb = trans ? K : N, .ldc = ldc, .stride_b = stride, .trans_b = trans,
                       .accumulate = accumulate, .ab_dtype = x->dtype, .c_dtype = x->dtype,
                       .b_codes = codes),
               HD_OPERANDS(grouped_gemm, .c = c, .a = a, .b = w, .counts = x->expert_counts)));
}

/* Emits the multiplication of the result of a product with A or B by the adapter's scale s. */
static struct hd_operand scaled(struct experts *x, struct hd_operand in, int64_t r)
{
    const struct hd_operand out = rows(x, "inner", x->T_received, r);

    (void)hd_emit_copy_columns(x->e,
                               HD_ARGS(copy_columns, .R = x->T_received, .N = r, .ldo = r, .ldi = r,
                                       .factor = (float)x->op->set.scale, .out_dtype = x->dtype,
                                       .inp_dtype = x->dtype),
                               HD_OPERANDS(copy_columns, .out = out, .inp = in));
    return out;
}

static bool drops(const struct experts *x)
{
    return x->op->set.dropout.p > 0;
}

/* Emits dropout of rows [T, K] that enter A of a product, or of their gradient, into new memory.
 * gate and up share a mask. */
static struct hd_operand drop(struct experts *x, int which, struct hd_operand in, int64_t K)
{
    const bool down = which == HD_EXPERT_DOWN;
    const struct hd_param *gate = &x->e->registry->params[x->op->param[PARAM_GATE]];
    const struct hd_param *a = &x->e->registry->params[x->op->param[PARAM_A + 2 * which]];
    struct hd_dropout d = x->op->set.dropout;
    struct hd_operand out;

    if (!drops(x))
        return in;
    d.site = down ? x->op->set.down_site : d.site;
    out = rows(x, "dropped", x->T_received, K);
    (void)set_even_rows(
        x,
        hd_emit_dropout(x->e,
                        HD_ARGS(dropout, .key = hd_emit_dropout_key(&d), .R = x->T_received, .C = K,
                                .first_channel = a->start[2], .groups = x->El,
                                .first_group = gate->start[0], .p = (float)d.p, .dtype = x->dtype),
                        HD_OPERANDS(dropout, .out = out, .inp = in, .sample = x->sample,
                                    .index = x->index, .counts = x->expert_counts,
                                    .block = hd_emit_global(x->e, HD_GLOBAL_STEP_STATE))));
    return out;
}

/* Emits dropout of the rows that gate and up read, once for both. */
static struct hd_operand drop_entered(struct experts *x)
{
    const int which = is_adapted(x, HD_EXPERT_GATE) ? HD_EXPERT_GATE : HD_EXPERT_UP;

    return is_adapted(x, which) ? drop(x, which, x->entered, x->C) : x->entered;
}

/* Emits c[T, N] += s B (A a), the adapter's term of product `which`, if that product has an
 * adapter; a is the input after dropout. */
static void adapt(struct experts *x, int which, struct hd_operand c, int64_t ldc,
                  struct hd_operand a, int64_t N, int64_t K)
{
    const int param = PARAM_A + 2 * which;
    struct hd_operand inner;
    int64_t r;

    if (!is_adapted(x, which))
        return;
    r = rank_of(x, which);
    inner = rows(x, "inner", x->T_received, r);
    product(x, inner, r, a, K, param, r, K, true, false);
    x->inner[which] = scaled(x, inner, r);
    product(x, c, ldc, x->inner[which], r, param + 1, N, r, true, true);
}

/* Emits the gradient of the adapter's inner rows, s B^T dy, from dy [T, N]. */
static void adapter_gradient(struct experts *x, int which, struct hd_operand dy, int64_t ldd,
                             int64_t N)
{
    struct hd_operand inner;
    int64_t r;

    if (!is_adapted(x, which))
        return;
    r = rank_of(x, which);
    inner = rows(x, "dinner", x->T_received, r);
    product(x, inner, r, dy, ldd, PARAM_A + 2 * which + 1, r, N, false, false);
    x->dinner[which] = scaled(x, inner, r);
}

/* Emits dx[T, K] += s A^T B^T dy of products first to last, which read the same rows. */
static void adapter_input_gradient(struct experts *x, int first, int last, struct hd_operand dx,
                                   int64_t K)
{
    struct hd_operand sum = dx;
    int adapted = 0, which = first;

    for (int p = first; p <= last; p++) {
        if (!is_adapted(x, p))
            continue;
        if (drops(x) && !adapted)
            sum = rows(x, "ddropped", x->T_received, K);
        product(x, sum, K, x->dinner[p], rank_of(x, p), PARAM_A + 2 * p, K, rank_of(x, p), false,
                adapted > 0 || !drops(x));
        which = p;
        adapted++;
    }
    if (!adapted || !drops(x))
        return;
    sum = drop(x, which, sum, K);
    (void)hd_emit_add(x->e, HD_ARGS(add, .N = x->T_received * K, .dtype = x->dtype),
                      HD_OPERANDS(add, .out = dx, .a = dx, .b = sum));
}

static struct hd_operand second_half(const struct experts *x, struct hd_operand o)
{
    return hd_emit_at(o, x->F, x->dtype);
}

static struct hd_operand activate(struct experts *x)
{
    const struct hd_operand out = rows(x, "activated", x->T_received, x->F);

    (void)set_even_rows(
        x, hd_emit_glu_forward(
               x->e,
               HD_ARGS(glu_forward, .R = x->T_received, .F = x->F, .groups = x->El,
                       .alpha = (float)x->op->set.alpha, .limit = (float)x->op->set.limit,
                       .act = x->op->set.act, .dtype = x->dtype),
               HD_OPERANDS(glu_forward, .out = out, .inp = x->hidden, .counts = x->expert_counts)));
    return out;
}

static struct hd_emit_expert_rows rows_of_experts(const struct experts *x)
{
    return (struct hd_emit_expert_rows){x->El, x->T_received, x->T_sent, x->expert_counts,
                                        x->dtype};
}

/* Emits c[T, ldc] += the bias of product `which`, if it has one. The results of down are partial
 * sums over tp ranks: the first rank adds the bias, once. */
static void add_bias(struct experts *x, int which, struct hd_operand c, int64_t ldc)
{
    const struct hd_emit_expert_rows rows = rows_of_experts(x);
    const int param = x->op->param[PARAM_BIAS + which];

    if (param >= 0 && (which != HD_EXPERT_DOWN || x->e->registry->coord.tp == 0))
        hd_emit_expert_bias(x->e, &rows, param, c, ldc);
}

static struct hd_operand compute(struct experts *x)
{
    const struct hd_operand out = rows(x, "result", x->T_received, x->C);
    const struct hd_operand entered = drop_entered(x);

    x->hidden = rows(x, "hidden", x->T_received, 2 * x->F);
    product(x, x->hidden, 2 * x->F, x->entered, x->C, PARAM_GATE, x->F, x->C, true, false);
    product(x, second_half(x, x->hidden), 2 * x->F, x->entered, x->C, PARAM_UP, x->F, x->C, true,
            false);
    adapt(x, HD_EXPERT_GATE, x->hidden, 2 * x->F, entered, x->F, x->C);
    adapt(x, HD_EXPERT_UP, second_half(x, x->hidden), 2 * x->F, entered, x->F, x->C);
    add_bias(x, HD_EXPERT_GATE, x->hidden, 2 * x->F);
    add_bias(x, HD_EXPERT_UP, second_half(x, x->hidden), 2 * x->F);
    x->activated = activate(x);
    product(x, out, x->C, x->activated, x->F, PARAM_DOWN, x->C, x->F, true, false);
    if (is_adapted(x, HD_EXPERT_DOWN))
        adapt(x, HD_EXPERT_DOWN, out, x->C, drop(x, HD_EXPERT_DOWN, x->activated, x->F), x->C,
              x->F);
    add_bias(x, HD_EXPERT_DOWN, out, x->C);
    return out;
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
        route(x);
    permuted = rows(x, "permuted", x->T_sent, x->C);
    (void)hd_emit_permute_forward(e,
                                  HD_ARGS(permute_forward, .R = x->R, .K = x->K, .C = x->C,
                                          .T = x->T_sent, .dtype = x->dtype),
                                  HD_OPERANDS(permute_forward, .out = permuted,
                                              .inp = hd_emit_value(e, op->in[0]), .slot = x->slot));
    if (!recomputed)
        exchange_counts(x);
    x->entered = dispatch(x, permuted, !recomputed);
    if (!recomputed && drops(x)) {
        x->sample = dispatch_number(x, hd_emit_value(e, op->in[3]));
        x->index = dispatch_number(x, hd_emit_value(e, op->in[4]));
    }
    x->returned = undispatch(x, compute(x));
    (void)hd_emit_combine_forward(e,
                                  HD_ARGS(combine_forward, .R = x->R, .K = x->K, .C = x->C,
                                          .T = x->T_sent, .dtype = x->dtype),
                                  HD_OPERANDS(combine_forward, .out = hd_emit_result(e, op),
                                              .inp = x->returned, .gate = x->gate,
                                              .slot = x->slot));
}

/* ---- backward ---- */

static void route_backward(struct experts *x, struct hd_operand dgate)
{
    struct hd_emit *e = x->e;
    const bool noisy = x->noise.store, balances = x->router->balance != 0;
    const struct hd_operand counts = balances ? count_choices(x) : hd_emit_none();

    x->dlogits = numbers(x, "dscores", HD_F32, x->R, x->E);
    x->dnoise_logits = noisy ? numbers(x, "dnoise_logits", HD_F32, x->R, x->E) : hd_emit_none();
    (void)hd_emit_route_backward(
        e,
        HD_ARGS(route_backward, .at = x->at, .R = x->R, .E = x->E, .K = x->K,
                .balance = (float)x->router->balance, .z = (float)x->router->z,
                .share = 1.0f / (float)e->registry->mesh.sizes.tp, .form = x->router->form,
                .renormalize = x->router->renormalize),
        HD_OPERANDS(route_backward, .dlogits = x->dlogits, .dnoise_logits = x->dnoise_logits,
                    .dgate = dgate, .probs = x->probs, .lse = x->lse, .chosen = x->chosen,
                    .gate = x->gate, .noise_logits = x->noise_logits, .noise = x->noise,
                    .counts = counts, .begins = begins_of(x), .lengths = lengths_of(x),
                    .block = hd_emit_global(e, HD_GLOBAL_STEP_STATE)));
}

/* Emits dx (+)= dlogits W in fp32, with the weight W of the router or of its noise. */
static void router_gradient(struct experts *x, struct hd_operand dx, struct hd_operand dlogits,
                            int param, bool accumulate)
{
    (void)hd_emit_gemm(
        x->e,
        HD_ARGS(gemm, .M = x->R, .N = x->C, .K = x->E, .lda = x->E, .ldb = x->C, .ldc = x->C,
                .accumulate = accumulate, .ab_dtype = HD_F32, .c_dtype = HD_F32),
        HD_OPERANDS(gemm, .c = dx, .a = dlogits, .b = hd_emit_weight(x->e, param, HD_F32)));
}

/* Emits the gradient of x: through the experts, plus through the router. */
static void input_gradient(struct experts *x, struct hd_operand dentered)
{
    const struct hd_tensor *in = x->op->in[0];
    const struct hd_operand back = undispatch(x, dentered);
    const struct hd_operand dx = rows(x, "grad", x->R, x->C);
    struct hd_operand grad_fp32, narrow;

    (void)hd_emit_permute_backward(
        x->e,
        HD_ARGS(permute_backward, .R = x->R, .K = x->K, .C = x->C, .T = x->T_sent,
                .dtype = x->dtype),
        HD_OPERANDS(permute_backward, .dinp = dx, .dout = back, .slot = x->slot));
    grad_fp32 = x->dtype == HD_F32 ? dx : numbers(x, "grad", HD_F32, x->R, x->C);
    router_gradient(x, grad_fp32, x->dlogits, x->op->param[0], x->dtype == HD_F32);
    if (x->noise.store)
        router_gradient(x, grad_fp32, x->dnoise_logits, x->op->param[1], true);
    hd_emit_add_grad(x->e, in, dx, true);
    if (x->dtype == HD_F32)
        return;
    narrow = rows(x, "grad", x->R, x->C);
    (void)hd_emit_cast(x->e,
                       HD_ARGS(cast, .N = x->R * x->C, .out_dtype = x->dtype, .inp_dtype = HD_F32),
                       HD_OPERANDS(cast, .out = narrow, .inp = grad_fp32));
    hd_emit_add_grad(x->e, in, narrow, true);
}

static void experts_backward_inputs(struct hd_emit *e, const struct hd_op *op)
{
    struct hd_operand dreturned, dgate, dactivated, dentered;
    struct experts *x;

    (void)hd_emit_value(e, op->out); /* emits again the forward of rows that were not kept */
    x = *hd_emit_state(e);
    if (!x)
        return; /* forward has failed and left no state */
    dreturned = rows(x, "dreturned", x->T_sent, x->C);
    dgate = numbers(x, "dgate", HD_F32, x->R, x->K);
    (void)hd_emit_combine_backward(e,
                                   HD_ARGS(combine_backward, .R = x->R, .K = x->K, .C = x->C,
                                           .T = x->T_sent, .dtype = x->dtype),
                                   HD_OPERANDS(combine_backward, .dinp = dreturned, .dgate = dgate,
                                               .dout = hd_emit_grad(e, op->out), .inp = x->returned,
                                               .gate = x->gate, .slot = x->slot));
    x->dresult = dispatch(x, dreturned, false);
    dactivated = rows(x, "dactivated", x->T_received, x->F);
    product(x, dactivated, x->F, x->dresult, x->C, PARAM_DOWN, x->F, x->C, false, false);
    adapter_gradient(x, HD_EXPERT_DOWN, x->dresult, x->C, x->C);
    adapter_input_gradient(x, HD_EXPERT_DOWN, HD_EXPERT_DOWN, dactivated, x->F);
    x->dhidden = rows(x, "dhidden", x->T_received, 2 * x->F);
    (void)set_even_rows(
        x, hd_emit_glu_backward(x->e,
                                HD_ARGS(glu_backward, .R = x->T_received, .F = x->F,
                                        .groups = x->El, .alpha = (float)x->op->set.alpha,
                                        .limit = (float)x->op->set.limit, .act = x->op->set.act,
                                        .dtype = x->dtype),
                                HD_OPERANDS(glu_backward, .dinp = x->dhidden, .dout = dactivated,
                                            .inp = x->hidden, .counts = x->expert_counts)));
    adapter_gradient(x, HD_EXPERT_GATE, x->dhidden, 2 * x->F, x->F);
    adapter_gradient(x, HD_EXPERT_UP, second_half(x, x->dhidden), 2 * x->F, x->F);
    route_backward(x, dgate);
    if (!op->in[0]->needs_grad)
        return;
    dentered = rows(x, "dentered", x->T_received, x->C);
    product(x, dentered, x->C, x->dhidden, 2 * x->F, PARAM_GATE, x->C, x->F, false, false);
    product(x, dentered, x->C, second_half(x, x->dhidden), 2 * x->F, PARAM_UP, x->C, x->F, false,
            true);
    adapter_input_gradient(x, HD_EXPERT_GATE, HD_EXPERT_UP, dentered, x->C);
    input_gradient(x, dentered);
}

/* Returns the result of the experts' glu, which is cheap and recomputed by the policies that
 * recompute op_glu. */
static struct hd_operand activated(struct experts *x)
{
    const struct hd_emit *e = x->e;
    const bool in_b = x != e->frame[HD_FRAME_FORWARD].state[e->op_index]; /* true if B recomputed
                                                                             the whole op, so x is
                                                                             B's state */

    if (e->options->recompute.policy == HD_RECOMPUTE_NONE || (in_b && !e->options->split_backward))
        return x->activated;
    return activate(x);
}

/* Emits dW_e += sum over its rows of dout^T in, [M, N] for each expert. */
static void expert_weight_gradient(struct experts *x, int param, struct hd_operand dout,
                                   int64_t ldd, int64_t M, struct hd_operand in, int64_t N)
{
    struct hd_operand grad;
    bool first;

    if (!hd_op_trains_param(x->e->registry, x->op, param))
        return;
    grad = hd_emit_param_grad(x->e, x->op->param[param], 1, &first);
    hd_emit_contributes(
        set_even_rows(
            x, hd_emit_grouped_gemm_weight(
                   x->e,
                   HD_ARGS(grouped_gemm_weight, .E = x->El, .T = x->T_received, .M = M, .N = N,
                           .lda = ldd, .ldb = N, .ldc = N, .stride_c = M * N, .ab_dtype = x->dtype),
                   HD_OPERANDS(grouped_gemm_weight, .c = grad, .a = dout, .b = in,
                               .counts = x->expert_counts))),
        first);
}

/* Emits the gradient of the bias of product `which`, sums of rows of dout. That of down is whole on
 * every tp rank, and equal, as dout is. */
static void bias_gradient(struct experts *x, int which, struct hd_operand dout, int64_t ldd)
{
    const struct hd_emit_expert_rows rows = rows_of_experts(x);

    if (hd_op_trains_param(x->e->registry, x->op, PARAM_BIAS + which))
        hd_emit_expert_bias_grad(x->e, &rows, x->op->param[PARAM_BIAS + which], dout, ldd);
}

static void router_weight_gradient(struct experts *x, int param, struct hd_operand dlogits,
                                   struct hd_operand in)
{
    struct hd_operand grad;
    bool first;

    if (!dlogits.store || !hd_op_trains_param(x->e->registry, x->op, param))
        return;
    grad = hd_emit_param_grad(x->e, x->op->param[param], 1, &first);
    hd_emit_contributes(
        hd_emit_gemm(x->e,
                     HD_ARGS(gemm, .M = x->E, .N = x->C, .K = x->R, .lda = x->E, .ldb = x->C,
                             .ldc = x->C, .trans_a = true, .ab_dtype = HD_F32, .c_dtype = HD_F32),
                     HD_OPERANDS(gemm, .c = grad, .a = dlogits, .b = in)),
        first);
}

/* Emits the gradient of the bias of the router's logits. */
static void router_bias_gradient(struct experts *x)
{
    struct hd_operand grad;
    bool first;

    if (!hd_op_trains_param(x->e->registry, x->op, PARAM_ROUTER_BIAS))
        return;
    grad = hd_emit_param_grad(x->e, x->op->param[PARAM_ROUTER_BIAS], 1, &first);
    hd_emit_contributes(
        hd_emit_bias_backward(
            x->e, HD_ARGS(bias_backward, .R = x->R, .N = x->E, .ldd = x->E, .dtype = HD_F32),
            HD_OPERANDS(bias_backward, .dbias = grad, .dout = x->dlogits)),
        first);
}

/* Emits the adapter gradients of one product, from the gradient dy [T, M] of its output and its
 * input `in` [T, N] after dropout: dB += dy^T (s A x), dA += (s B^T dy)^T x. */
static void adapter_weight_gradients(struct experts *x, int which, struct hd_operand dy,
                                     int64_t ldd, int64_t M, struct hd_operand in, int64_t N)
{
    const int a = PARAM_A + 2 * which;

    if (!is_adapted(x, which))
        return;
    expert_weight_gradient(x, a + 1, dy, ldd, M, x->inner[which], rank_of(x, which));
    expert_weight_gradient(x, a, x->dinner[which], rank_of(x, which), rank_of(x, which), in, N);
}

static void experts_backward_weights(struct hd_emit *e, const struct hd_op *op)
{
    struct experts *x = *hd_emit_state(e);
    struct hd_operand in, entered;

    (void)op;
    if (!x)
        return;
    expert_weight_gradient(x, PARAM_DOWN, x->dresult, x->C, x->C, activated(x), x->F);
    expert_weight_gradient(x, PARAM_GATE, x->dhidden, 2 * x->F, x->F, x->entered, x->C);
    expert_weight_gradient(x, PARAM_UP, second_half(x, x->dhidden), 2 * x->F, x->F, x->entered,
                           x->C);
    bias_gradient(x, HD_EXPERT_DOWN, x->dresult, x->C);
    bias_gradient(x, HD_EXPERT_GATE, x->dhidden, 2 * x->F);
    bias_gradient(x, HD_EXPERT_UP, second_half(x, x->dhidden), 2 * x->F);
    if (is_adapted(x, HD_EXPERT_DOWN))
        adapter_weight_gradients(x, HD_EXPERT_DOWN, x->dresult, x->C, x->C,
                                 drop(x, HD_EXPERT_DOWN, activated(x), x->F), x->F);
    entered = drop_entered(x);
    adapter_weight_gradients(x, HD_EXPERT_GATE, x->dhidden, 2 * x->F, x->F, entered, x->C);
    adapter_weight_gradients(x, HD_EXPERT_UP, second_half(x, x->dhidden), 2 * x->F, x->F, entered,
                             x->C);
    in = in_fp32(x);
    router_weight_gradient(x, 0, x->dlogits, in);
    router_bias_gradient(x);
    router_weight_gradient(x, 1, x->dnoise_logits, in);
}

const struct hd_op_row hd_op_row_experts = {.forward = experts_forward,
                                            .backward_inputs = experts_backward_inputs,
                                            .backward_weights = experts_backward_weights};
