/* experts_route: the router of an experts op: the choice of experts, its record and gradients. */
#include "program/experts.h"

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
    x->noise_logits = router_product(x, "noise_logits", in, op->param[PARAM_NOISE], hd_emit_none());
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
        router_product(x, "scores", in, x->op->param[PARAM_ROUTER], vector(x, PARAM_ROUTER_BIAS));

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

void hd_experts_route(struct experts *x)
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

/* ---- backward ---- */

void hd_experts_route_backward(struct experts *x, struct hd_operand dgate)
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

void hd_experts_router_gradient(struct experts *x, struct hd_operand dx, struct hd_operand dlogits,
                                int param, bool accumulate)
{
    (void)hd_emit_gemm(
        x->e,
        HD_ARGS(gemm, .M = x->R, .N = x->C, .K = x->E, .lda = x->E, .ldb = x->C, .ldc = x->C,
                .accumulate = accumulate, .ab_dtype = HD_F32, .c_dtype = HD_F32),
        HD_OPERANDS(gemm, .c = dx, .a = dlogits, .b = hd_emit_weight(x->e, param, HD_F32)));
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

void hd_experts_router_weights(struct experts *x)
{
    const struct hd_operand in = in_fp32(x);

    router_weight_gradient(x, PARAM_ROUTER, x->dlogits, in);
    router_bias_gradient(x);
    router_weight_gradient(x, PARAM_NOISE, x->dnoise_logits, in);
}
