/* experts_compute: the products of an experts op, with their adapters and biases, and their
 * gradients. */
#include "program/experts.h"

static bool is_adapted(const struct experts *x, int which)
{
    return x->op->param[PARAM_A + 2 * which + 1] >= 0;
}

/* Returns the product whose A the adapter of product `which` has: up may have that of gate. */
static int a_of(const struct experts *x, int which)
{
    return x->op->param[PARAM_A + 2 * which] >= 0 ? which : HD_EXPERT_GATE;
}

static int64_t rank_of(const struct experts *x, int which)
{
    return x->e->registry->params[x->op->param[PARAM_A + 2 * a_of(x, which)]].local[1];
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

static struct hd_operand second_half(const struct experts *x, struct hd_operand o)
{
    return hd_emit_at(o, x->F, x->dtype);
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

bool hd_experts_drops(const struct experts *x)
{
    return x->op->set.dropout.p > 0;
}

/* Emits dropout of rows [T, K] that enter A of a product, or of their gradient, into new memory.
 * gate and up share a mask. */
static struct hd_operand drop(struct experts *x, int which, struct hd_operand in, int64_t K)
{
    const bool down = which == HD_EXPERT_DOWN;
    const struct hd_param *gate = &x->e->registry->params[x->op->param[PARAM_GATE]];
    const struct hd_param *a = &x->e->registry->params[x->op->param[PARAM_A + 2 * a_of(x, which)]];
    struct hd_dropout d = x->op->set.dropout;
    struct hd_operand out;

    if (!hd_experts_drops(x))
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
 * adapter; a is the input after dropout. Gate comes before up, which takes s A a from it if they have
 * one A. */
static void adapt(struct experts *x, int which, struct hd_operand c, int64_t ldc,
                  struct hd_operand a, int64_t N, int64_t K)
{
    const int param = PARAM_A + 2 * which;
    struct hd_operand inner;
    int64_t r;

    if (!is_adapted(x, which))
        return;
    r = rank_of(x, which);
    if (a_of(x, which) == which) {
        inner = rows(x, "inner", x->T_received, r);
        product(x, inner, r, a, K, param, r, K, true, false);
        x->inner[which] = scaled(x, inner, r);
    } else {
        x->inner[which] = x->inner[HD_EXPERT_GATE];
    }
    product(x, c, ldc, x->inner[which], r, param + 1, N, r, true, true);
}

/* Returns whether the adapters of gate and up have one A. */
static bool have_one_a(const struct experts *x)
{
    return is_adapted(x, HD_EXPERT_UP) && a_of(x, HD_EXPERT_UP) == HD_EXPERT_GATE;
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
    if (which == HD_EXPERT_GATE && have_one_a(x)) /* the inner rows of up are the same ones */
        product(x, inner, r, second_half(x, dy), ldd, PARAM_A + 2 * HD_EXPERT_UP + 1, r, N, false,
                true);
    x->dinner[which] = scaled(x, inner, r);
}

/* Emits dx[T, K] += s A^T B^T dy of products first to last, which read the same rows. */
static void adapter_input_gradient(struct experts *x, int first, int last, struct hd_operand dx,
                                   int64_t K)
{
    struct hd_operand sum = dx;
    int adapted = 0, which = first;

    for (int p = first; p <= last; p++) {
        if (!is_adapted(x, p) || a_of(x, p) != p)
            continue;
        if (hd_experts_drops(x) && !adapted)
            sum = rows(x, "ddropped", x->T_received, K);
        product(x, sum, K, x->dinner[p], rank_of(x, p), PARAM_A + 2 * p, K, rank_of(x, p), false,
                adapted > 0 || !hd_experts_drops(x));
        which = p;
        adapted++;
    }
    if (!adapted || !hd_experts_drops(x))
        return;
    sum = drop(x, which, sum, K);
    (void)hd_emit_add(x->e, HD_ARGS(add, .N = x->T_received * K, .dtype = x->dtype),
                      HD_OPERANDS(add, .out = dx, .a = dx, .b = sum));
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

/* Emits c[T, ldc] += the bias of product `which`, if it has one. The results of down are partial
 * sums over tp ranks: the first rank adds the bias, once. */
static void add_bias(struct experts *x, int which, struct hd_operand c, int64_t ldc)
{
    const int param = x->op->param[PARAM_BIAS + which];

    if (param < 0 || (which == HD_EXPERT_DOWN && x->e->registry->coord.tp != 0))
        return;
    (void)set_even_rows(
        x, hd_emit_expert_bias_forward(x->e,
                                       HD_ARGS(expert_bias_forward, .E = x->El, .T = x->T_received,
                                               .N = x->e->registry->params[param].local[1],
                                               .ldo = ldc, .dtype = x->dtype),
                                       HD_OPERANDS(expert_bias_forward, .out = c,
                                                   .bias = hd_emit_weight(x->e, param, x->dtype),
                                                   .counts = x->expert_counts)));
}

struct hd_operand hd_experts_compute(struct experts *x)
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

/* ---- backward ---- */

void hd_experts_compute_backward(struct experts *x)
{
    const struct hd_operand dactivated = rows(x, "dactivated", x->T_received, x->F);

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
    if (!have_one_a(x))
        adapter_gradient(x, HD_EXPERT_UP, second_half(x, x->dhidden), 2 * x->F, x->F);
}

struct hd_operand hd_experts_entered_gradient(struct experts *x)
{
    const struct hd_operand dentered = rows(x, "dentered", x->T_received, x->C);

    product(x, dentered, x->C, x->dhidden, 2 * x->F, PARAM_GATE, x->C, x->F, false, false);
    product(x, dentered, x->C, second_half(x, x->dhidden), 2 * x->F, PARAM_UP, x->C, x->F, false,
            true);
    adapter_input_gradient(x, HD_EXPERT_GATE, HD_EXPERT_UP, dentered, x->C);
    return dentered;
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
    const int param = x->op->param[PARAM_BIAS + which];
    struct hd_operand grad;
    bool first;

    if (!hd_op_trains_param(x->e->registry, x->op, PARAM_BIAS + which))
        return;
    grad = hd_emit_param_grad(x->e, param, 1, &first);
    hd_emit_contributes(
        set_even_rows(x, hd_emit_expert_bias_backward(
                             x->e,
                             HD_ARGS(expert_bias_backward, .E = x->El, .T = x->T_received,
                                     .N = x->e->registry->params[param].local[1], .ldd = ldd,
                                     .dtype = x->dtype),
                             HD_OPERANDS(expert_bias_backward, .dbias = grad, .dout = dout,
                                         .counts = x->expert_counts))),
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
    if (a_of(x, which) == which)
        expert_weight_gradient(x, a, x->dinner[which], rank_of(x, which), rank_of(x, which), in, N);
}

void hd_experts_compute_weights(struct experts *x)
{
    struct hd_operand entered;

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
}
