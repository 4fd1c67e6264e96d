/* ops_attention: the contracts of the device operations of attention: norms of queries and keys,
 * positions, attention itself and its cache; see also ops.h.
 *
 * Used by: kernels.h; do not include it directly.   Uses: base.   Threads: pure declarations.
 */
#ifndef HD_KERNELS_OPS_ATTENTION_H
#define HD_KERNELS_OPS_ATTENTION_H

#include "kernels/ops.h"

/* RMSNorm over the D channels of each head of q and k in rows [q: H*D | k: G*D | v: G*D]:
 *   out[r,h,:] = inp[r,h,:] * rstd[r,h] * weight[:],
 *   rstd[r,h] = 1 / sqrt(mean_d inp[r,h,d]^2 + eps),
 * with q_weight for the first H heads and k_weight for the next G; v is copied. The factor is 1 +
 * weight with one_plus, and 1 if the weights are NULL. (Henry et al. 2020, "Query-Key Normalization
 * for Transformers", with the norm of Qwen3.)
 * With `layer`, LayerNorm with a weight vector for each head and no bias (Dehghani et al. 2023,
 * "Scaling Vision Transformers to 22 Billion Parameters"): x = inp[r,h,:] - mean[r,h] takes the
 * place of inp, also in rstd, and weight[h,:] that of weight; rstd then has the R rows [rstd: H+G |
 * mean: H+G]. Not with one_plus, nor without weights. */
struct hd_head_norm_forward_args {
    void *out;            /* [R, H+2G, D]  dtype                     */
    float *rstd;          /* [R, H+G], with layer [R, 2*(H+G)]       */
    const void *inp;      /* [R, H+2G, D]  dtype                     */
    const void *q_weight; /* [D], with layer [H, D]  dtype, or NULL  */
    const void *k_weight; /* [D], with layer [G, D]  dtype, or NULL exactly when q_weight is */
    int64_t R, H, G, D;
    float eps;
    bool one_plus, layer;
    enum hd_dtype dtype;
};

/* The gradient of head_norm_forward's input: rmsnorm_backward, with `layer` layernorm_backward, for
 * each head of q and k; the gradient of v is copied. dinp may alias dout. */
struct hd_head_norm_backward_args {
    void *dinp;        /* [R, H+2G, D]  dtype */
    const void *dout;  /* [R, H+2G, D]  dtype */
    const void *inp;   /* [R, H+2G, D]  dtype */
    const float *rstd; /* rstd and weights of head_norm_forward */
    const void *q_weight;
    const void *k_weight;
    int64_t R, H, G, D;
    bool one_plus, layer;
    enum hd_dtype dtype;
};

/* dq_weight[d] (+)= sum over r and h < H of dout[r,h,d] * inp[r,h,d] * rstd[r,h]; dk_weight over
 * the next G heads. With `layer`, the sum over r for each head, of inp[r,h,d] - mean[r,h]. */
struct hd_head_norm_backward_weight_args {
    float *dq_weight, *dk_weight; /* [D], with layer [H, D] and [G, D] */
    const void *dout;             /* [R, H+2G, D]  dtype */
    const void *inp;              /* [R, H+2G, D]  dtype */
    const float *rstd;            /* rstd of head_norm_forward */
    void *scratch;
    int64_t R, H, G, D;
    bool accumulate, layer;
    enum hd_dtype dtype;
};

/* RMSNorm over all query channels of a row, and over all its key channels, in rows [q: H*D | k: G*D
 * | v: G*D] of which this rank has a part (Groeneveld et al. 2024, "OLMo", version 2). With q as the
 * columns c < H*D, `ranks` tp ranks, and sums over the columns of all of them:
 *   out[r,c] = inp[r,c] * rstd[r,0] * w[c],  rstd[r,0] = 1 / sqrt(sum_c inp[r,c]^2 / n + eps),
 * n = H*D*ranks, w as in head_norm_forward; k likewise with rstd[r,1] and n = G*D*ranks; v is
 * copied. If several ranks hold one key head, all their copies are in sum and n.
 *
 * qk_norm_sums computes this rank's part of such sums; the caller adds those of all ranks:
 *   sums[r,0] = sum over c < H*D of inp[r,c]^2, or, with dout, of w[c]*dout[r,c]*inp[r,c];
 *   sums[r,1] = the sum over the columns of k. */
struct hd_qk_norm_sums_args {
    float *sums;          /* [R, 2]                                   */
    const void *inp;      /* [R, (H+2G)*D]  dtype                     */
    const void *dout;     /* [R, (H+2G)*D]  dtype, or NULL            */
    const void *q_weight; /* [H*D]  dtype, or NULL; NULL without dout */
    const void *k_weight; /* [G*D]  dtype, or NULL; NULL without dout */
    int64_t R, H, G, D;
    bool one_plus;
    enum hd_dtype dtype;
};
struct hd_qk_norm_forward_args {
    void *out;            /* [R, (H+2G)*D]  dtype */
    float *rstd;          /* [R, 2]               */
    const void *inp;      /* [R, (H+2G)*D]  dtype */
    const float *sums;    /* [R, 2], those of all ranks; NULL if ranks is 1: the kernel adds them */
    const void *q_weight; /* [H*D]  dtype, or NULL */
    const void *k_weight; /* [G*D]  dtype, or NULL exactly when q_weight is */
    int64_t R, H, G, D, ranks;
    float eps;
    bool one_plus;
    enum hd_dtype dtype;
};

/* dinp[r,c] = rstd * (w[c]*dout[r,c] - xhat * rstd * sums / n), xhat = inp[r,c] * rstd, with rstd,
 * sums and n of q or of k; the gradient of v is copied. Ranks that hold one key head have partial
 * gradients dout, whose sum is the gradient; their results dinp are partial in the same way. dinp
 * may alias dout. */
struct hd_qk_norm_backward_args {
    void *dinp;           /* [R, (H+2G)*D]  dtype  */
    const void *dout;     /* [R, (H+2G)*D]  dtype  */
    const void *inp;      /* [R, (H+2G)*D]  dtype  */
    const float *rstd;    /* [R, 2]                */
    const float *sums;    /* [R, 2]; qk_norm_sums with dout, of all ranks; NULL if ranks is 1 */
    const void *q_weight; /* [H*D]  dtype, or NULL */
    const void *k_weight; /* [G*D]  dtype, or NULL */
    int64_t R, H, G, D, ranks;
    bool one_plus;
    enum hd_dtype dtype;
};

/* dq_weight[c] (+)= sum_r dout[r,c] * inp[r,c] * rstd[r,0]; dk_weight over the columns of k with
 * rstd[r,1]. */
struct hd_qk_norm_backward_weight_args {
    float *dq_weight;  /* [H*D]                */
    float *dk_weight;  /* [G*D]                */
    const void *dout;  /* [R, (H+2G)*D]  dtype */
    const void *inp;   /* [R, (H+2G)*D]  dtype */
    const float *rstd; /* [R, 2]               */
    void *scratch;
    int64_t R, H, G, D;
    bool accumulate;
    enum hd_dtype dtype;
};

/* Rotates, in place, pairs of the W = `rotated` channels from `first` on of each head, which are
 * called c[0] to c[W-1]; the other channels of the head do not change. Pair i, i < W/2, is c[i] and
 * c[i+W/2], or c[2i] and c[2i+1] if `interleaved`. It rotates by the angle of its position:
 *   (a, b) -> (a cos - b sin, a sin + b cos),  angle = position[r] * frequency[i];
 * `inverse` rotates by the negative angle, which is the gradient. table[p, i] = {cos, sin} for
 * position p, both multiplied by the attention factor if the RoPE scaling has one.
 * (Su et al. 2021, "RoFormer"; halves paired as in the Llama checkpoints of Hugging Face.)
 * The H heads of a row are contiguous, so one launch can rotate q and k of a fused row. */
struct hd_rope_args {
    void *x;                 /* [R, H, D] with row distance ldx, dtype, in place */
    const int32_t *position; /* [R], each in [0, P)                              */
    const float *table;      /* [P, W/2, 2]                                      */
    int64_t R, H, D, P, ldx;
    int64_t rotated, first; /* rotated: even, first + rotated <= D; 0: all D channels */
    bool inverse, interleaved;
    enum hd_dtype dtype;
};

/* Returns W, the number of channels of a head that rotate. */
static inline int64_t hd_rope_args_width(const struct hd_rope_args *args)
{
    return args->rotated > 0 ? args->rotated : args->D;
}

/* x[r,c] *= table[position[r]] for c < N, in place. Backward is the same kernel on the gradient. */
struct hd_query_factor_args {
    void *x;                 /* [R, N] with row distance ldx, dtype, in place */
    const int32_t *position; /* [R], each in [0, P)                           */
    const float *table;      /* [P]                                           */
    int64_t R, N, P, ldx;
    enum hd_dtype dtype;
};

/* Rows [q: H*D | k: H*D | v: H*padded] of multi-head latent attention (DeepSeek-AI 2024,
 * "DeepSeek-V2"), D = nope + rope: head h of q is copied from q; k is the first nope channels of
 * kv's head, then k_rope, which all heads share; v is the other `value` channels of kv's head, then
 * zeros up to `padded` channels, the width that attention_forward needs. */
struct hd_latent_join_forward_args {
    void *out;          /* [R, H*(2*D + padded)]     dtype */
    const void *q;      /* [R, H, nope + rope]       dtype */
    const void *kv;     /* [R, H, nope + value]      dtype */
    const void *k_rope; /* [R, rope]                 dtype */
    int64_t R, H, nope, rope, value, padded;
    enum hd_dtype dtype;
};

/* The gradients: parts of dout are copied, and dk_rope[r,:] is the sum over the heads, in fp32 and
 * in their order, of the last rope channels of k's part. */
struct hd_latent_join_backward_args {
    void *dq;         /* [R, H, nope + rope]     dtype, or NULL */
    void *dkv;        /* [R, H, nope + value]    dtype */
    void *dk_rope;    /* [R, rope]               dtype */
    const void *dout; /* [R, H*(2*D + padded)]   dtype */
    int64_t R, H, nope, rope, value, padded;
    enum hd_dtype dtype;
};

/* Attention of q_len queries against kv_len keys in each of B sequences, H query heads reading G
 * key/value heads (head h reads h / (H/G)); softmax over the visible keys j of
 *   scale * q_i . k_j - slopes[h] * (q_index[i] - kv_index[j])    or, with cap > 0,
 *   cap * tanh(scale * q_i . k_j / cap)                           (Gemma Team 2024, "Gemma 2")
 * Key j is visible to query i when all of these hold:
 *   causal:  kv_index[j] <= q_index[i]
 *   window:  q_index[i] - kv_index[j] < window           (window > 0)
 *   bounds:  kv_index[j] >= q_bound[i]                   (q_bound not NULL: start of i's document)
 *   chunk:   kv_index[j] >= q_bound[i] + the largest multiple of chunk that is at most
 *            q_index[i] - q_bound[i], with q_bound 0 if NULL   (chunk > 0, causal only)
 *   filled:  j < kv_filled[b]                           (kv_filled not NULL: valid cache rows)
 * Row of query (b, i) is b*q_len + i; row of key (b, j) is kv_slot[b]*kv_stride + j, with b in
 * place of kv_slot[b] if kv_slot is NULL (kv_stride >= kv_len: rows of a slot of a cache). Head h
 * of row r starts at q + r*ldq + h*D, and likewise in out, k and v.
 * lse[h, b*q_len + i] = log sum exp over visible keys, natural log; attention_merge uses it to
 * merge results over disjoint keys. No visible key: out = 0, lse = -inf.
 * Dropout (p > 0) drops weights after the softmax; lse is the sum over all weights, dropped ones
 * included. Counter of a weight in the generator for dropout (ops.h, "Dropout"): sample[b*q_len +
 * i], head first_head + h, index q_index[i], number kv_index[j].
 * top_score[h] becomes the largest of itself, 0 and the scores of head h over visible pairs, before
 * dropout; a score that is NaN does not count. With slopes only if causal.
 * Tiled with online softmax; an S x S matrix never exists (Dao et al. 2022, "FlashAttention"). */
struct hd_attention_forward_args {
    void *out;                /* [B*q_len, H, D]  ldo, dtype */
    float *lse;               /* [H, B*q_len]                */
    float *top_score;         /* [H], or NULL                */
    const void *q;            /* [B*q_len, H, D]  ldq, dtype */
    const void *k;            /* [slots*kv_stride, G, D] ldk; without kv_slot B slots       */
    const void *v;            /* [slots*kv_stride, G, D] ldv                                */
    const int32_t *q_index;   /* [B*q_len] index in the sample, ascending within a sequence unless
                                 every key is visible to every query                         */
    const int32_t *kv_index;  /* [slots*kv_stride]                                          */
    const int32_t *q_bound;   /* [B*q_len], or NULL          */
    const float *slopes;      /* [H], or NULL (ALiBi, Press et al. 2022) */
    const int32_t *kv_filled; /* [B], or NULL                */
    const int32_t *kv_slot;   /* [B], or NULL: slot b        */
    const int32_t *sample;    /* [B*q_len], sample of each query in the global batch, or NULL: no
                                 dropout */
    const struct hd_step_state *block; /* step state, whose step number the mask depends on; NULL:
                                          no dropout */
    void *scratch;
    uint64_t dropout_key;
    int64_t B, q_len, kv_len, kv_stride, H, G, D, ldq, ldk, ldv, ldo;
    int64_t first_head;   /* index of this rank's head 0 among all heads of the model; used by
                             dropout only */
    int64_t window;       /* in rows; 0: no window */
    int64_t chunk;        /* in rows; 0: no chunks */
    int64_t pairs;        /* for cost estimates only: visible (query, key) pairs per head and
                             sequence; 0: the queries are the last q_len positions of a whole
                             sequence */
    float scale, dropout; /* factor on scores; dropout probability */
    float cap;            /* bound of the scores' absolute values; 0: none; not with slopes */
    bool causal;
    enum hd_dtype dtype;
};

/* Gradients of attention_forward over one block of keys. out and lse belong to the *merged* result
 * (attention_merge) over all blocks of keys; each launch recomputes delta:
 *   p = exp(score - lse),  delta = rowsum(dout * out),  dv += p^T dout,
 *   ds = p * (dout v^T - delta),  dq += scale * ds k,  dk += scale * ds^T q
 * With cap > 0, ds is also multiplied by 1 - (score / cap)^2, the derivative of the capped score.
 * With dropout, dout v^T and the p in the formula of dv are 0 where forward dropped the weight, and
 * divided by 1 - dropout elsewhere. grad_dtype is dtype (only without accumulate) or fp32.
 *
 * sums are partial sums of the rows [dq | dk | dv] (bias_backward in ops.h), over pieces of
 * HD_ATTENTION_SUM_ROWS rows. HD_INVALID, unless the three are parts of rows without gaps, the
 * sequences are whole pieces, keys as many as queries, grad_dtype is dtype and nothing accumulates. */
enum { HD_ATTENTION_SUM_ROWS = 128 };
struct hd_attention_backward_args {
    void *dq;         /* [B*q_len, H, D]      lddq, grad_dtype */
    void *dk;         /* [B*kv_stride, G, D]  lddk, grad_dtype */
    void *dv;         /* [B*kv_stride, G, D]  lddv, grad_dtype */
    float *sums;      /* [B*q_len / HD_ATTENTION_SUM_ROWS, (H + 2 G) D], or NULL */
    const void *dout; /* [B*q_len, H, D]  lddo, dtype      */
    const void *q, *k, *v, *out;
    const float *lse;
    const int32_t *q_index, *kv_index;
    const int32_t *q_bound; /* or NULL */
    const float *slopes;    /* or NULL */
    const int32_t *sample;  /* sample of attention_forward; NULL: no dropout */
    const struct hd_step_state *block;
    void *scratch;
    uint64_t dropout_key;
    int64_t B, q_len, kv_len, kv_stride, H, G, D, ldq, ldk, ldv, ldo, lddq, lddk, lddv, lddo;
    int64_t first_head;
    int64_t window, chunk;
    int64_t pairs; /* pairs of attention_forward */
    float scale, dropout, cap;
    bool causal, accumulate;
    enum hd_dtype dtype, grad_dtype;
};

/* Merges attention over one more block of keys (block_out, block_lse) into the result over earlier,
 * disjoint blocks (acc, lse):
 *   new[h,r] = log(exp lse[h,r] + exp block_lse[h,r])
 *   acc[r,h,:] = exp(lse - new) acc[r,h,:] + exp(block_lse - new) block_out[r,h,:],  lse = new
 * A row with no visible key (both lse are -inf) stays 0 and -inf. `first`: acc and lse are set to
 * the block's and their old values are ignored. With `out` (for the last block) the result is
 * rounded into out, and acc is not written. */
struct hd_attention_merge_args {
    void *out;              /* [R, H, D]  dtype, or NULL          */
    float *acc;             /* [R, H, D]; not used with both `first` and `out` */
    float *lse;             /* [H, R]                             */
    const void *block_out;  /* [R, H, D]  dtype                   */
    const float *block_lse; /* [H, R]                             */
    int64_t R, H, D;
    bool first;
    enum hd_dtype dtype;
};

/* Adds a learned score per head, an attention sink, to the softmax of finished attention; it has no
 * value (Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks"):
 *   new[h,r] = log(exp lse[h,r] + exp sink[h]),  out[r,h,:] *= exp(lse[h,r] - new),  lse = new
 * A row with no visible key gets out = 0 and lse = sink[h]. The backward of the keys is
 * attention_backward with the new out and lse. */
struct hd_attention_sink_forward_args {
    void *out;        /* [R, H, D]  dtype, in place */
    float *lse;       /* [H, R]            in place */
    const void *sink; /* [H]        dtype           */
    int64_t R, H, D;
    enum hd_dtype dtype;
};

/* Gradient of the sinks, row by row; the caller sums the rows:
 *   dsink[r,h] = -exp(sink[h] - lse[h,r]) * (dout[r,h,:] . out[r,h,:])
 * with out and lse as attention_sink_forward left them. */
struct hd_attention_sink_backward_args {
    float *dsink;     /* [R, H]            */
    const void *dout; /* [R, H, D]  dtype  */
    const void *out;  /* [R, H, D]  dtype  */
    const float *lse; /* [H, R]            */
    const void *sink; /* [H]        dtype  */
    int64_t R, H, D;
    enum hd_dtype dtype;
};

/* cache[slot[b]*rows + filled[b] + i, :] = inp[b*new_rows + i, :] for i < new_rows, N channels from
 * rows of distance ldi into rows of distance ldc. Rows that do not fit into their slot are dropped,
 * and *overflow is set to 1. */
struct hd_cache_append_args {
    void *cache;           /* [slots*rows, N]  dtype     */
    int64_t *overflow;     /* one value                  */
    const void *inp;       /* [B*new_rows, N]  dtype     */
    const int32_t *filled; /* [B]: number of rows of the slot that are already filled */
    const int32_t *slot;   /* [B]: cache slot of each sequence, all different */
    int64_t B, rows, new_rows, N, ldi, ldc;
    enum hd_dtype dtype;
};

#endif
