/* Learned keys and values that every query of an attention op sees (Li & Liang 2021,
 * "Prefix-Tuning"), a part of that op. The prefix is one more block of keys, without mask, window
 * or bounds, merged by log-sum-exp like the blocks of context-parallel ranks: each rank merges it
 * once into the result of its own queries, and its gradients are summed over ranks like those of
 * any parameter.
 *
 * All sequences share the block, so the kernels treat all rows as one sequence: the attention
 * backward then sums the gradients of keys and values over all rows, and no separate sum is needed.
 */

#include "program/emit_attention.h"

enum { KEYS, VALUES };

static int64_t width_of(const struct hd_emit_attention *a)
{
    return a->G * a->D;
}

/* Returns the queries of all sequences as one sequence that attends to every key of the prefix. */
static struct hd_emit_attention unmasked(const struct hd_emit_attention *a)
{
    struct hd_emit_attention all = *a;

    all.B = 1;
    all.S = a->R;
    all.bounds = hd_emit_none();
    all.window = all.chunk = 0;
    all.causal = false;
    if (a->dropout_key) { /* key numbers begin at 0 here too: another site gives other random
                             numbers */
        struct hd_dropout d = a->op->set.dropout;

        d.site = HD_SITE_PREFIX;
        all.dropout_key = hd_emit_dropout_key(&d);
    }
    return all;
}

static struct hd_emit_keys keys_of(struct hd_emit *e, const struct hd_emit_attention *a)
{
    const int64_t P = a->op->set.prefix;
    const struct hd_zigzag whole = {.S = P, .P = 1};

    return (struct hd_emit_keys){.k = hd_emit_weight(e, a->op->param[KEYS], a->dtype),
                                 .v = hd_emit_weight(e, a->op->param[VALUES], a->dtype),
                                 .index = hd_emit_positions(e, 1, &whole),
                                 .rows = P,
                                 .ld = width_of(a),
                                 .pairs = a->R * P};
}

bool hd_emit_has_prefix(const struct hd_op *op)
{
    return op->set.prefix > 0;
}

void hd_emit_prefix_forward(struct hd_emit *e, const struct hd_emit_attention *a,
                            struct hd_operand sum, struct hd_operand lse)
{
    const struct hd_emit_attention all = unmasked(a);
    const struct hd_emit_keys keys = keys_of(e, a);
    const struct hd_operand out = hd_emit_temp(e, "attended", a->dtype, a->R, a->H * a->D);
    const struct hd_operand out_lse = hd_emit_temp(e, "lse", HD_F32, a->H, a->R);

    hd_emit_attend(e, &all, &keys, out, out_lse);
    (void)hd_emit_attention_merge(
        e, HD_ARGS(attention_merge, .R = a->R, .H = a->H, .D = a->D, .dtype = a->dtype),
        HD_OPERANDS(attention_merge, .out = hd_emit_result(e, a->op), .acc = sum, .lse = lse,
                    .block_out = out, .block_lse = out_lse));
}

void hd_emit_attend_with_prefix(struct hd_emit *e, const struct hd_emit_attention *a,
                                const struct hd_emit_keys *keys, struct hd_operand lse)
{
    const int64_t columns = a->H * a->D;
    const struct hd_operand sum = hd_emit_temp(e, "merged", HD_F32, a->R, columns);
    const struct hd_operand out = hd_emit_temp(e, "attended", a->dtype, a->R, columns);
    const struct hd_operand out_lse = hd_emit_temp(e, "lse", HD_F32, a->H, a->R);

    hd_emit_attend(e, a, keys, out, out_lse);
    (void)hd_emit_attention_merge(
        e,
        HD_ARGS(attention_merge, .R = a->R, .H = a->H, .D = a->D, .first = true, .dtype = a->dtype),
        HD_OPERANDS(attention_merge, .acc = sum, .lse = lse, .block_out = out,
                    .block_lse = out_lse));
    hd_emit_prefix_forward(e, a, sum, lse);
}

/* ---- backward ---- */

static struct hd_operand new_gradient(struct hd_emit *e, const struct hd_emit_attention *a,
                                      bool zero)
{
    const int64_t P = a->op->set.prefix, N = width_of(a);
    const struct hd_operand grad = hd_emit_temp(e, "prefix_grad", HD_F32, P, N);

    if (zero)
        (void)hd_emit_zero(e, HD_ARGS(zero, .size_bytes = P * N * (int64_t)sizeof(float)),
                           HD_OPERANDS(zero, .out = grad));
    return grad;
}

/* Emits the addition of grad [P, N] to the gradient of parameter span `which`, by the kernel for a
 * bias gradient over one row of P N elements. */
static void contribute(struct hd_emit *e, const struct hd_emit_attention *a, int which,
                       struct hd_operand grad)
{
    const int64_t count = a->op->set.prefix * width_of(a);
    struct hd_operand sum;
    bool first;

    if (!hd_op_trains_param(e->registry, a->op, which))
        return;
    sum = hd_emit_param_grad(e, a->op->param[which], 1, &first);
    hd_emit_contributes(
        hd_emit_bias_backward(
            e, HD_ARGS(bias_backward, .R = 1, .N = count, .ldd = count, .dtype = HD_F32),
            HD_OPERANDS(bias_backward, .dbias = sum, .dout = grad)),
        first);
}

void hd_emit_prefix_backward(struct hd_emit *e, const struct hd_emit_attention *a,
                             struct hd_operand dq, bool first)
{
    const struct hd_emit_attention all = unmasked(a);
    const struct hd_emit_keys keys = keys_of(e, a);
    const struct hd_operand dk = new_gradient(e, a, !first), dv = new_gradient(e, a, !first);

    hd_emit_attend_backward(e, &all, &keys,
                            &(struct hd_emit_attention_grads){.dq = dq,
                                                              .dk = dk,
                                                              .dv = dv,
                                                              .ldq = a->H * a->D,
                                                              .ldk = width_of(a),
                                                              .dtype = HD_F32,
                                                              .accumulate = !first});
    contribute(e, a, KEYS, dk);
    contribute(e, a, VALUES, dv);
}

static void round_columns(struct hd_emit *e, const struct hd_emit_attention *a,
                          struct hd_operand out, struct hd_operand inp, int64_t N)
{
    (void)hd_emit_copy_columns(e,
                               HD_ARGS(copy_columns, .R = a->R, .N = N, .ldo = a->ld, .ldi = N,
                                       .factor = 1, .out_dtype = a->dtype, .inp_dtype = HD_F32),
                               HD_OPERANDS(copy_columns, .out = out, .inp = inp));
}

void hd_emit_backward_with_prefix(struct hd_emit *e, const struct hd_emit_attention *a,
                                  struct hd_operand grad)
{
    const int64_t queries = a->H * a->D, width = 2 * width_of(a);
    const struct hd_operand dq = hd_emit_temp(e, "query_grad", HD_F32, a->R, queries);
    const struct hd_emit_keys keys = hd_emit_own_keys(a, a->q);
    struct hd_operand dkv;

    if (!grad.store) { /* no earlier unit trains: only the prefix needs gradients */
        hd_emit_prefix_backward(e, a, dq, true);
        return;
    }
    dkv = hd_emit_temp(e, "block_grad", HD_F32, a->R, width);
    hd_emit_attend_backward(
        e, a, &keys,
        &(struct hd_emit_attention_grads){.dq = dq,
                                          .dk = dkv,
                                          .dv = hd_emit_at(dkv, width_of(a), HD_F32),
                                          .ldq = queries,
                                          .ldk = width,
                                          .dtype = HD_F32});
    hd_emit_prefix_backward(e, a, dq, false);
    round_columns(e, a, grad, dq, queries);
    round_columns(e, a, hd_emit_at(grad, queries, a->dtype), dkv, width);
}
