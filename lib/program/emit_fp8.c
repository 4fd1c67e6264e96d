/* emit_fp8: products of linears whose factors are rounded to fp8 first (base/fp8.h).
 *
 * Values and weights become E4M3, gradients E5M2 (Micikevicius et al. 2022, section 3.1); sums and
 * results are as before. The factors of a product both have its depth in their rows, which is the
 * only layout that GPUs multiply in fp8, so a factor that has it in its columns is transposed while
 * it is encoded:
 *
 *     y  = x W^T      x [R, K]              W [N, K]
 *     dx = dy W       dy [R, N]             W transposed: [K, N]
 *     dW = dy^T x     dy transposed [N, R]  x transposed [K, R]
 *
 * Two products read an input x, and two a gradient dy, one of them transposed. Where one node can
 * make the codes of both orders, the tensor is read once:
 *
 *     x    without recompute forward makes both, and keeps the transposed codes for backward; x is
 *          then in bf16 only if another op reads it. With recompute few inputs of linears are kept,
 *          mostly attention's result, which its own backward reads in bf16: codes would be kept
 *          beside it. So backward makes the codes: both orders if it recomputes the linear too,
 *          else the transposed one
 *     dy   backward makes both; where dW is put off to program W, each program encodes dy itself
 *
 * Weights are encoded in each program in the order of its product. Values and scales do not change
 * within a micro-batch, so a second encoding has the codes of the first. Tensors that are gathered
 * or sent are bf16.
 *
 * The scale follows from the linear's buffer in the registry, or without one, and in the first
 * step, from the tensor itself: in this micro-batch, on this rank. */
#include "program/emit.h"

/* A factor of a product in memory, and whether the product reads it transposed. */
struct fp8_factor {
    enum hd_amax which;
    struct hd_operand inp;
    int64_t rows, columns;
    bool transpose;
};

static enum hd_fp8 format_of(enum hd_amax which)
{
    return which == HD_AMAX_GRAD ? HD_E5M2 : HD_E4M3;
}

static bool multiplies_fp8(const struct hd_emit *e)
{
    return e->options->fp8 && e->rec->shape.mode == HD_RECORD_TRAIN;
}

static struct hd_operand history_of(struct hd_emit *e, int buffer, enum hd_amax which)
{
    const struct hd_buffer *b;

    if (buffer < 0)
        return hd_emit_none();
    b = &e->registry->buffers[buffer];
    return hd_emit_at(hd_emit_global(e, HD_GLOBAL_BUFFERS), b->first + which * b->columns, HD_F32);
}

static struct hd_operand seen_of(struct hd_emit *e, int buffer, enum hd_amax which)
{
    if (buffer < 0)
        return hd_emit_none();
    return hd_emit_at(hd_emit_global(e, HD_GLOBAL_AMAX), (int64_t)buffer * HD_AMAX_COUNT + which,
                      HD_F32);
}

/* Emits the node that encodes a factor. with_other: the same node also writes the codes in the other
 * order, and ret_other names them; else ret_other is absent. */
static struct hd_fp8_codes encode(struct hd_emit *e, int buffer, const struct fp8_factor *f,
                                  bool with_other, struct hd_fp8_codes *ret_other)
{
    const int64_t count = f->rows * f->columns;
    const struct hd_operand amax = hd_emit_temp(e, "amax", HD_F32, HD_AMAX_PARTS, 0);
    const struct hd_operand factor = hd_emit_temp(e, "factor", HD_F32, 1, 0);
    struct hd_operand code = hd_emit_none(), transposed = hd_emit_none();

    if (!f->transpose || with_other)
        code = hd_emit_temp(e, "code", HD_U8, f->rows, f->columns);
    if (f->transpose || with_other)
        transposed = hd_emit_temp(e, "code", HD_U8, f->columns, f->rows);
    (void)hd_emit_fp8_amax(
        e,
        HD_ARGS(fp8_amax, .N = count,
                .history_len = buffer < 0 ? 0 : e->registry->buffers[buffer].columns),
        HD_OPERANDS(fp8_amax, .amax = amax, .inp = f->inp,
                    .history = history_of(e, buffer, f->which)));
    (void)hd_emit_fp8_encode(
        e, HD_ARGS(fp8_encode, .R = f->rows, .C = f->columns, .format = format_of(f->which)),
        HD_OPERANDS(fp8_encode, .code = code, .transposed = transposed, .factor = factor,
                    .seen = seen_of(e, buffer, f->which), .inp = f->inp, .amax = amax));
    *ret_other = (struct hd_fp8_codes){f->transpose ? code : transposed, factor};
    return (struct hd_fp8_codes){f->transpose ? transposed : code, factor};
}

/* Returns the codes of a factor, in the order of its product. The product of a linear's weights
 * reads input and gradient transposed; where the product before it may keep these codes, its
 * encoding makes them too. */
static struct hd_fp8_codes codes_of(struct hd_emit *e, const struct hd_op *linear, int buffer,
                                    const struct fp8_factor *f)
{
    const bool is_input = f->which == HD_AMAX_INPUT, is_grad = f->which == HD_AMAX_GRAD;
    struct hd_fp8_saved *made = &e->fp8_saved[e->op_index];
    struct hd_fp8_codes *saved = is_grad ? &made->gradient : &made->input, codes, other;
    const bool is_recomputed = e->into == &e->frame[HD_FRAME_B];
    const bool keeps_all = e->options->recompute.policy == HD_RECOMPUTE_NONE;
    const bool may_keep = (is_input && keeps_all && e->keeps[linear->in[0]->id]) ||
                          ((is_grad || (is_input && is_recomputed)) && !e->options->split_backward);

    if (f->transpose && (is_input || is_grad) && saved->code.store)
        return *saved;
    codes = encode(e, buffer, f,
                   may_keep && !f->transpose && !saved->code.store &&
                       hd_op_trains_param(e->registry, linear, 0),
                   &other);
    if (other.code.store)
        *saved = other;
    return codes;
}

static void check_sides(struct hd_emit *e, const struct hd_param *p, const struct hd_gemm_args *g)
{
    if (g->M % HD_FP8_SIDE == 0 && g->N % HD_FP8_SIDE == 0 && g->K % HD_FP8_SIDE == 0)
        return;
    hd_emit_fail(e, hd_err(HD_UNSUPPORTED,
                           "train.precision: fp8 multiplies matrices whose sides are multiples of "
                           "%d, but with %s a rank would multiply [%lld, %lld] by [%lld, %lld]; "
                           "change the model's widths, parallel.tp, or the rows of a micro-batch "
                           "(micro_batch x context / cp), or use bf16",
                           HD_FP8_SIDE, p->name, (long long)g->M, (long long)g->K, (long long)g->K,
                           (long long)g->N));
}

struct hd_node *hd_emit_product(struct hd_emit *e, const struct hd_op *linear, enum hd_amax a,
                                enum hd_amax b, const struct hd_gemm_args *g,
                                const struct hd_gemm_operands *operands)
{
    const struct hd_param *p = &e->registry->params[linear->param[0]];
    struct fp8_factor factor;
    struct hd_fp8_codes x, y;

    if (!multiplies_fp8(e) || p->adapter || p->quant)
        return hd_emit_gemm(e, g, operands);
    assert(g->ab_dtype == HD_BF16);
    check_sides(e, p, g);
    factor = (struct fp8_factor){.which = a,
                                 .inp = operands->a,
                                 .rows = g->trans_a ? g->K : g->M,
                                 .columns = g->trans_a ? g->M : g->K,
                                 .transpose = g->trans_a};
    x = codes_of(e, linear, p->buffer, &factor);
    factor = (struct fp8_factor){.which = b,
                                 .inp = operands->b,
                                 .rows = g->trans_b ? g->N : g->K,
                                 .columns = g->trans_b ? g->K : g->N,
                                 .transpose = !g->trans_b};
    y = codes_of(e, linear, p->buffer, &factor);
    return hd_emit_fp8_gemm(
        e,
        HD_ARGS(fp8_gemm, .M = g->M, .N = g->N, .K = g->K, .accumulate = g->accumulate,
                .a_format = format_of(a), .b_format = format_of(b), .c_dtype = g->c_dtype),
        HD_OPERANDS(fp8_gemm, .c = operands->c, .a = x.code, .b = y.code, .a_factor = x.factor,
                    .b_factor = y.factor, .bias = operands->bias));
}
