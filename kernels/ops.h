/* ops: what the device operations compute, but those of a mixture of experts (ops_moe.h): one
 * struct of arguments per kernel, which is its contract in every backend.
 *
 * Shapes: R rows (tokens) held by this rank, C channels, H query heads, G key/value heads, D head
 * width, F feed-forward width, V vocabulary rows, B sequences. Matrices are row-major; `ld*` is the
 * distance between rows in elements. Outputs stand first, sizes last. Pointers marked "or NULL" may
 * be absent. Unless said otherwise outputs may not overlap inputs.
 *
 * Gradients of parameters are fp32 and follow one contract: `accumulate` 0 stores, 1 adds.
 * Gradients of activations are stored.
 *
 * Used by: kernels.h, which everybody includes.   Uses: base.   Threads: pure declarations.
 */
#ifndef HD_KERNELS_OPS_H
#define HD_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

enum {
    HD_TENSOR_ALIGN = 64,      /* every tensor starts on such a bound */
    HD_GRAD_CHUNK = 64 * 1024, /* elements per term of the gradient norm (DESIGN: fixed chunks) */
    HD_EXCHANGE_WORDS = 5      /* doubles per rank in the step's exchange: enum hd_exchange_word */
};

/* ---- The step block: what the host decides per step and what kernels find out, in device memory
 * ----
 *
 * Ops take pointers to it; neither model nor train branch on tensor contents. The host writes the
 * first part before a step and reads the second part once, after it. */
struct hd_step_block {
    /* written by the host before the step */
    int64_t step;        /* 1-based: number of this update, t in Adam's corrections */
    float lr;            /* learning rate of this step */
    float max_grad_norm; /* clip bound; 0: no clipping */
    float beta1, beta2, adam_eps, weight_decay;
    float loss_scale; /* factor on dlogits; 1 for fp32 and bf16 */
    int64_t request;  /* what this rank's host wants all ranks to know after the step: one number */
    /* accumulated by the programs of this rank; zeroed by step_begin */
    double loss_sum;      /* sum of -log p over this rank's targets */
    int64_t target_count; /* targets that were not masked */
    int64_t overflow;     /* != 0: a gradient was not finite or a bound was exceeded; no update */
    int32_t
        too_many_rows; /* != 0: more rows were sent to experts than there is room for; no update */
    /* results, set by step_finish, equal on all ranks */
    double mean_loss;     /* loss_sum / target_count over all ranks */
    double total_targets; /* over all ranks */
    double grad_norm;     /* L2 norm of the mean gradient, before clipping */
    float grad_factor; /* what adamw multiplies the summed gradient by: mean and clipping at once */
    int32_t skip_update; /* 1: overflow somewhere, adamw leaves everything as it is */
};

enum { HD_EXCHANGE_TOO_MANY_ROWS = 2 };

/* Words of one rank's record in the exchange that ends a step. */
enum hd_exchange_word {
    HD_EXCHANGE_LOSS,
    HD_EXCHANGE_TARGETS,
    HD_EXCHANGE_OVERFLOW, /* 1, and HD_EXCHANGE_TOO_MANY_ROWS more for that reason */
    HD_EXCHANGE_REQUEST,
    HD_EXCHANGE_SQUARES
};

/* ---- Argument structs
 * ---------------------------------------------------------------------------- */

/* What is done to the sums of a product, in fp32, before they are stored. */
enum hd_gemm_epilogue {
    HD_EPILOGUE_NONE,
    HD_EPILOGUE_GELU,         /* c = gelu(s), s what would be stored without; pre = s, if given */
    HD_EPILOGUE_GELU_BACKWARD /* c = s * gelu'(gelu_inp) */
};

/* c[M,N] (+)= op(a)[M,K] op(b)[K,N] (+ bias[N] on every row), products summed in fp32.
 * op(x) is x or its transpose: a is [M,K], or [K,M] with trans_a; b is [K,N], or [N,K] with
 * trans_b. c may be fp32 with bf16 factors (weight gradients). bias only without accumulate.
 * An epilogue (gelu: that of gelu_forward below) only without accumulate; the gradient's without
 * bias. The rows of pre and gelu_inp are as far apart as those of c.
 * dbias[m] (+)= sum_k op(a)[m,k], by the same switch as c: what bias_backward makes of the a of a
 * weight's gradient; only with trans_a, c in fp32, and neither bias nor epilogue. */
struct hd_gemm_args {
    void *c;              /* [M, N]   c_dtype  */
    void *pre;            /* [M, N]   c_dtype, with HD_EPILOGUE_GELU or NULL */
    float *dbias;         /* [M], or NULL */
    const void *a;        /*          ab_dtype */
    const void *b;        /*          ab_dtype */
    const void *bias;     /* [N]      ab_dtype, or NULL */
    const void *gelu_inp; /* [M, N]   c_dtype, with HD_EPILOGUE_GELU_BACKWARD, else NULL */
    void *scratch;
    int64_t M, N, K, lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
    enum hd_gemm_epilogue epilogue;
    enum hd_dtype ab_dtype, c_dtype;
};

/* out[r, n] = inp[r, n] + bias[n]; out may alias inp. For biases that a sum over ranks stands
 * before; elsewhere gemm adds them. */
struct hd_bias_forward_args {
    void *out;        /* [R, N]  dtype */
    const void *inp;  /* [R, N]  dtype */
    const void *bias; /* [N]     dtype */
    int64_t R, N;
    enum hd_dtype dtype;
};

/* dbias[n] (+)= sum_r dout[r, n] */
struct hd_bias_backward_args {
    float *dbias;     /* [N]             */
    const void *dout; /* [R, N]  dtype   */
    void *scratch;
    int64_t R, N, ldd;
    bool accumulate;
    enum hd_dtype dtype;
};

/* out[r,:] = weight[index[r] - first,:] (+ weight2[index2[r],:], the learned positions of GPT-2).
 * An index outside its table counts as a row of zeros: it is another rank's, whose table begins at
 * another `first`; the data room makes none that is nobody's. */
struct hd_embedding_forward_args {
    void *out;             /* [R, C]   dtype */
    const int32_t *index;  /* [R]            */
    const void *weight;    /* [V, C]   dtype */
    const int32_t *index2; /* [R], or NULL   */
    const void *weight2;   /* [V2, C] dtype, or NULL */
    int64_t R, C, V, V2, first;
    enum hd_dtype dtype;
};

/* dweight[v,:] (+)= sum over r with index[r] - first == v of dout[r,:], in ascending r
 * (deterministic).
 * Without accumulate the whole table is stored: rows that no index names become zero. */
struct hd_embedding_backward_args {
    float *dweight;       /* [V, C]        */
    const int32_t *index; /* [R]           */
    const void *dout;     /* [R, C]  dtype */
    void *scratch;
    int64_t R, C, V, first;
    bool accumulate;
    enum hd_dtype dtype;
};

/* sum[r,:] = inp[r,:] + add[r,:]   (only if add is given; else sum stands for inp)
 * out[r,:] = sum[r,:] * rstd[r] * weight[:],   rstd[r] = 1 / sqrt(mean_c sum[r,c]^2 + eps)
 * (Zhang & Sennrich 2019, "Root Mean Square Layer Normalization".) sum may alias inp or add. */
struct hd_rmsnorm_forward_args {
    void *out;          /* [R, C]  dtype          */
    void *sum;          /* [R, C]  dtype, or NULL exactly when add is */
    float *rstd;        /* [R]                    */
    const void *inp;    /* [R, C]  dtype          */
    const void *add;    /* [R, C]  dtype, or NULL */
    const void *weight; /* [C]     dtype          */
    int64_t R, C;
    float eps;
    enum hd_dtype dtype;
};

/* dinp[r,:] = rstd[r] * (w*dout[r,:] - xhat[r,:] * mean_c(w*dout[r,c]*xhat[r,c])) (+ add[r,:]),
 * xhat = inp * rstd. `inp` is what was normalised (the sum). dinp may alias add or dout. */
struct hd_rmsnorm_backward_args {
    void *dinp;         /* [R, C]  dtype          */
    const void *dout;   /* [R, C]  dtype          */
    const void *inp;    /* [R, C]  dtype          */
    const float *rstd;  /* [R]                    */
    const void *weight; /* [C]     dtype          */
    const void *add;    /* [R, C]  dtype, or NULL: the gradient that reaches inp by another way */
    int64_t R, C;
    enum hd_dtype dtype;
};

/* dweight[c] (+)= sum_r dout[r,c] * inp[r,c] * rstd[r] */
struct hd_rmsnorm_backward_weight_args {
    float *dweight;    /* [C]           */
    const void *dout;  /* [R, C]  dtype */
    const void *inp;   /* [R, C]  dtype */
    const float *rstd; /* [R]           */
    void *scratch;
    int64_t R, C;
    bool accumulate;
    enum hd_dtype dtype;
};

/* sum as in rmsnorm; out[r,:] = (sum[r,:] - mean[r]) * rstd[r] * weight[:] + bias[:],
 * rstd[r] = 1 / sqrt(var_c sum[r,c] + eps), the biased variance.
 * (Ba, Kiros & Hinton 2016, "Layer Normalization".) */
struct hd_layernorm_forward_args {
    void *out;          /* [R, C]  dtype          */
    void *sum;          /* [R, C]  dtype, or NULL exactly when add is */
    float *mean;        /* [R]                    */
    float *rstd;        /* [R]                    */
    const void *inp;    /* [R, C]  dtype          */
    const void *add;    /* [R, C]  dtype, or NULL */
    const void *weight; /* [C]     dtype          */
    const void *bias;   /* [C]     dtype          */
    int64_t R, C;
    float eps;
    enum hd_dtype dtype;
};

/* With xhat = (inp - mean) * rstd and g = weight * dout:
 * dinp = rstd * (g - mean_c(g) - xhat * mean_c(g * xhat)) (+ add) */
struct hd_layernorm_backward_args {
    void *dinp;         /* [R, C]  dtype          */
    const void *dout;   /* [R, C]  dtype          */
    const void *inp;    /* [R, C]  dtype          */
    const float *mean;  /* [R]                    */
    const float *rstd;  /* [R]                    */
    const void *weight; /* [C]     dtype          */
    const void *add;    /* [R, C]  dtype, or NULL */
    int64_t R, C;
    enum hd_dtype dtype;
};

/* dweight[c] (+)= sum_r dout[r,c] * xhat[r,c],   dbias[c] (+)= sum_r dout[r,c] */
struct hd_layernorm_backward_weight_args {
    float *dweight;    /* [C]           */
    float *dbias;      /* [C]           */
    const void *dout;  /* [R, C]  dtype */
    const void *inp;   /* [R, C]  dtype */
    const float *mean; /* [R]           */
    const float *rstd; /* [R]           */
    void *scratch;
    int64_t R, C;
    bool accumulate;
    enum hd_dtype dtype;
};

/* RMSNorm over the D channels of each head of q and k in rows [q: H*D | k: G*D | v: G*D]:
 *   out[r,h,:] = inp[r,h,:] * rstd[r,h] * weight[:],  rstd[r,h] = 1 / sqrt(mean_d inp[r,h,d]^2 +
 * eps) with q_weight for the first H heads and k_weight for the next G; v is copied. (Henry et al.
 * 2020, "Query-Key Normalization for Transformers", with the norm of Qwen3.) */
struct hd_head_norm_forward_args {
    void *out;            /* [R, H+2G, D]  dtype */
    float *rstd;          /* [R, H+G]            */
    const void *inp;      /* [R, H+2G, D]  dtype */
    const void *q_weight; /* [D]  dtype          */
    const void *k_weight; /* [D]  dtype          */
    int64_t R, H, G, D;
    float eps;
    enum hd_dtype dtype;
};

/* Per head as rmsnorm_backward; the gradient of v is that of its copy. dinp may alias dout. */
struct hd_head_norm_backward_args {
    void *dinp;           /* [R, H+2G, D]  dtype */
    const void *dout;     /* [R, H+2G, D]  dtype */
    const void *inp;      /* [R, H+2G, D]  dtype */
    const float *rstd;    /* [R, H+G]            */
    const void *q_weight; /* [D]  dtype          */
    const void *k_weight; /* [D]  dtype          */
    int64_t R, H, G, D;
    enum hd_dtype dtype;
};

/* dq_weight[d] (+)= sum over r and h < H of dout[r,h,d] * inp[r,h,d] * rstd[r,h]; dk_weight over
 * the next G heads. */
struct hd_head_norm_backward_weight_args {
    float *dq_weight, *dk_weight; /* [D]                 */
    const void *dout;             /* [R, H+2G, D]  dtype */
    const void *inp;              /* [R, H+2G, D]  dtype */
    const float *rstd;            /* [R, H+G]            */
    void *scratch;
    int64_t R, H, G, D;
    bool accumulate;
    enum hd_dtype dtype;
};

/* Rotates, in place, each pair (x[r,h,i], x[r,h,i+D/2]), i < D/2, by the angle of its position:
 *   (a, b) -> (a cos - b sin, a sin + b cos),  angle = position[r] * frequency[i];
 * `inverse` turns back, which is the gradient. table[p, i] = {cos, sin} for position p, both times
 * the factor of a scaling that has one.
 * (Su et al. 2021, "RoFormer"; halves paired as in the Llama checkpoints of Hugging Face.)
 * H heads stand side by side in a row from x on, so q and k of a fused row go in one launch. */
struct hd_rope_args {
    void *x;                 /* [R, H, D] with row distance ldx, dtype, in place */
    const int32_t *position; /* [R], each in [0, P)                              */
    const float *table;      /* [P, D/2, 2]                                      */
    int64_t R, H, D, P, ldx;
    bool inverse;
    enum hd_dtype dtype;
};

/* ---- Dropout: what is dropped depends on where a value stands in the job, not on the layout ----
 *
 * Of the 128 bits of Philox4x32-10 (base/random.h) at counter {number / 4, index, head, sample}, 32
 * bits each from the lowest on, a value takes word number % 4 and is dropped when it is less than
 * p * 2^32. The key is hd_random_key(key, block->step), where `key` is hd_dropout_key of the job's
 * seed, the layer and the site in it. sample: number of the sample in the step's global batch;
 * index: of the row in its sample; head: in the whole model, 0 where there is none; number: the
 * channel in the whole row, or, for attention's weights, the key's index in the sample. What stays
 * is multiplied by 1 / (1 - p). Numbers and indices are not negative; 0 <= p < 1. */
uint64_t hd_dropout_key(uint64_t seed, int64_t layer, int64_t site);

/* out[r,c] = dropped(channel first_channel + c of row r) ? 0 : inp[r,c] / (1 - p). Of a gradient it
 * is the gradient. */
struct hd_dropout_args {
    void *out;             /* [R, C]  dtype; may alias inp */
    const void *inp;       /* [R, C]  dtype */
    const int32_t *sample; /* [R] */
    const int32_t *index;  /* [R] */
    const struct hd_step_block *block;
    uint64_t key;
    int64_t R, C, first_channel;
    float p;
    enum hd_dtype dtype;
};

/* Attention of q_len queries against kv_len keys in each of B sequences, H query heads reading G
 * key/value heads (head h reads h / (H/G)); softmax over the visible keys j of
 *   scale * q_i . k_j - slopes[h] * (q_index[i] - kv_index[j])
 * Key j is visible to query i when all of these hold:
 *   causal:  kv_index[j] <= q_index[i]
 *   window:  q_index[i] - kv_index[j] < window           (window > 0)
 *   bounds:  kv_index[j] >= q_bound[i]                   (q_bound given: start of i's document)
 *   filled:  j < *kv_filled                              (kv_filled given: rows valid in a cache)
 * Row of query (b, i) is b*q_len + i; row of key (b, j) is b*kv_stride + j (kv_stride >= kv_len:
 * rows of a cache per sequence). Head h of row r starts at q + r*ldq + h*D; out, k and v alike.
 * lse[h, b*q_len + i] = log sum exp over visible keys, natural log: two results over disjoint keys
 * merge by it. No visible key: out = 0, lse = -inf.
 * Dropout (p > 0) takes weights away after the softmax, of which lse knows nothing, by the place of
 * (sample[b*q_len + i], first_head + h, q_index[i], kv_index[j]): see above.
 * Tiled with online softmax; an S x S matrix never exists (Dao et al. 2022, "FlashAttention"). */
struct hd_attention_forward_args {
    void *out;                /* [B*q_len, H, D]  ldo, dtype */
    float *lse;               /* [H, B*q_len]                */
    const void *q;            /* [B*q_len, H, D]  ldq, dtype */
    const void *k;            /* [B*kv_stride, G, D] ldk     */
    const void *v;            /* [B*kv_stride, G, D] ldv     */
    const int32_t *q_index;   /* [B*q_len] index in the sample, ascending within a sequence */
    const int32_t *kv_index;  /* [B*kv_stride]                                              */
    const int32_t *q_bound;   /* [B*q_len], or NULL          */
    const float *slopes;      /* [H], or NULL (ALiBi, Press et al. 2022) */
    const int32_t *kv_filled; /* one value, or NULL          */
    const int32_t *sample;    /* [B*q_len], or NULL: no dropout */
    const struct hd_step_block *block; /* or NULL: no dropout    */
    void *scratch;
    uint64_t dropout_key;
    int64_t B, q_len, kv_len, kv_stride, H, G, D, ldq, ldk, ldv, ldo;
    int64_t first_head; /* of the model's; matters to dropout alone */
    int64_t window;     /* 0: none */
    int64_t pairs; /* for costs: visible pairs of a head and sequence; 0: as in a whole sequence */
    float scale, dropout; /* dropout: p */
    bool causal;
    enum hd_dtype dtype;
};

/* The gradient of the above. out and lse are those of the *merged* result (attention_merge), so
 * that blocks of keys are differentiated one by one, each launch forming delta anew:
 *   p = exp(score - lse),  delta = rowsum(dout * out),  dv += p^T dout,
 *   ds = p * (dout v^T - delta),  dq += scale * ds k,  dk += scale * ds^T q
 * With dropout the p of dv, and dout v^T, are 0 where forward dropped and divided by 1 - dropout
 * elsewhere. grad_dtype is dtype (stored, accumulate 0) or fp32 (accumulate 0 or 1: added into dq,
 * dk, dv). */
struct hd_attention_backward_args {
    void *dq;         /* [B*q_len, H, D]      lddq, grad_dtype */
    void *dk;         /* [B*kv_stride, G, D]  lddk, grad_dtype */
    void *dv;         /* [B*kv_stride, G, D]  lddv, grad_dtype */
    const void *dout; /* [B*q_len, H, D]  lddo, dtype      */
    const void *q, *k, *v, *out;
    const float *lse;
    const int32_t *q_index, *kv_index;
    const int32_t *q_bound; /* or NULL */
    const float *slopes;    /* or NULL */
    const int32_t *sample;  /* as above, with what follows for dropout */
    const struct hd_step_block *block;
    void *scratch;
    uint64_t dropout_key;
    int64_t B, q_len, kv_len, kv_stride, H, G, D, ldq, ldk, ldv, ldo, lddq, lddk, lddv, lddo;
    int64_t first_head;
    int64_t window;
    int64_t pairs; /* as above */
    float scale, dropout;
    bool causal, accumulate;
    enum hd_dtype dtype, grad_dtype;
};

/* Adds attention over one more block of keys to what is there, over disjoint ones:
 *   new[h,r] = log(exp lse[h,r] + exp block_lse[h,r])
 *   acc[r,h,:] = exp(lse - new) acc[r,h,:] + exp(block_lse - new) block_out[r,h,:],  lse = new
 * A row that neither sees (-inf both) stays 0 and -inf. `first`: acc and lse are stored as the
 * block's, whatever was there. With `out`, for the last block, the result is rounded into it in the
 * same pass, and acc is not written: it is of no use any more. */
struct hd_attention_merge_args {
    void *out;              /* [R, H, D]  dtype, or NULL          */
    float *acc;             /* [R, H, D]; not looked at with `first` and `out` */
    float *lse;             /* [H, R]                             */
    const void *block_out;  /* [R, H, D]  dtype                   */
    const float *block_lse; /* [H, R]                             */
    int64_t R, H, D;
    bool first;
    enum hd_dtype dtype;
};

/* cache[b*rows + *filled + i, :] = inp[b*new_rows + i, :] for i < new_rows, N channels from rows of
 * distance ldi into rows of distance ldc. Rows past the end of the cache are dropped and *overflow
 * set. */
struct hd_cache_append_args {
    void *cache;           /* [B*rows, N]      dtype */
    int64_t *overflow;     /* one value              */
    const void *inp;       /* [B*new_rows, N]  dtype */
    const int32_t *filled; /* one value: rows already valid */
    int64_t B, rows, new_rows, N, ldi, ldc;
    enum hd_dtype dtype;
};

/* out[r,f] = silu(inp[r,f]) * inp[r,F+f],  silu(x) = x / (1 + exp(-x)): gate left, up right.
 * (Shazeer 2020, "GLU Variants Improve Transformer".)
 * With counts only the first counts[0] + .. + counts[groups-1] rows are computed, R at most; the
 * rest is neither read nor written: what experts' rows need. So it is in the three that follow. */
struct hd_swiglu_forward_args {
    void *out;             /* [R, F]   dtype */
    const void *inp;       /* [R, 2F]  dtype */
    const int32_t *counts; /* [groups], or NULL: all rows */
    int64_t R, F, groups;
    enum hd_dtype dtype;
};

struct hd_swiglu_backward_args {
    void *dinp;            /* [R, 2F]  dtype; may alias inp */
    const void *dout;      /* [R, F]   dtype */
    const void *inp;       /* [R, 2F]  dtype */
    const int32_t *counts; /* [groups], or NULL */
    int64_t R, F, groups;
    enum hd_dtype dtype;
};

/* out = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))  (Hendrycks & Gimpel 2016, the tanh form of
 * GPT-2). out may alias inp. */
struct hd_gelu_forward_args {
    void *out;             /* [N]  dtype */
    const void *inp;       /* [N]  dtype */
    const int32_t *counts; /* [groups] of rows of N / R elements, or NULL: all N */
    int64_t N, R, groups;  /* R is looked at only with counts */
    enum hd_dtype dtype;
};

struct hd_gelu_backward_args {
    void *dinp;            /* [N]  dtype; may alias inp or dout */
    const void *dout;      /* [N]  dtype */
    const void *inp;       /* [N]  dtype */
    const int32_t *counts; /* [groups], or NULL */
    int64_t N, R, groups;
    enum hd_dtype dtype;
};

/* out = a + b; out may alias either */
struct hd_add_args {
    void *out;
    const void *a, *b; /* [N]  dtype */
    int64_t N;
    enum hd_dtype dtype;
};

/* out = inp in another encoding, to nearest even */
struct hd_cast_args {
    void *out;       /* [N]  out_dtype */
    const void *inp; /* [N]  inp_dtype */
    int64_t N;
    enum hd_dtype out_dtype, inp_dtype;
};

/* out[r, n] = inp[r, n] for N columns of rows that are ldo and ldi elements apart, in another
 * encoding if that is asked, to nearest even. */
struct hd_copy_columns_args {
    void *out;       /* [R, N]  ldo, out_dtype */
    const void *inp; /* [R, N]  ldi, inp_dtype */
    int64_t R, N, ldo, ldi;
    enum hd_dtype out_dtype, inp_dtype;
};

/* out[0 .. size_bytes) = 0 */
struct hd_zero_args {
    void *out;
    int64_t size_bytes;
};

/* Softmax cross-entropy over V of Vp columns (columns from V on are padding, never predicted):
 *   loss_sum += sum_r -log softmax(logits[r,:])[target[r]],  target_count += number of targets >=
 * 0; with dlogits: dlogits[r,v] = loss_scale * (softmax(logits[r,:])[v] - [v == target[r]]), 0 in
 * padding and in rows whose target is negative (masked: no loss, no gradient). dlogits may alias
 * logits. Rows are added in ascending order in double. A target from V on is nobody's: no loss, no
 * gradient, and overflow is set. */
struct hd_cross_entropy_args {
    void *dlogits; /* [R, Vp]  dtype, or NULL */
    struct hd_step_block *block;
    const void *logits;    /* [R, Vp]  dtype          */
    const int32_t *target; /* [R]                     */
    void *scratch;
    int64_t R, V, Vp;
    enum hd_dtype dtype;
};

/* Cross-entropy of a vocabulary that several ranks share (Shoeybi et al. 2020, section 3): each
 * holds the logits of V of all tokens, from token `first` on, and none ever sees all of them. A row
 * needs three numbers of each rank: with m = max_v logits[r,v] over its V columns
 *   stats[r,:] = {m, sum_v exp(logits[r,v] - m), logits[r, target[r] - first] or 0, 1 if the target
 *                 is among the V, else 0} */
struct hd_cross_entropy_stats_args {
    float *stats;          /* [R, HD_CROSS_ENTROPY_STATS] */
    const void *logits;    /* [R, Vp]  dtype              */
    const int32_t *target; /* [R]                         */
    int64_t R, V, Vp, first;
    enum hd_dtype dtype;
};
enum { HD_CROSS_ENTROPY_STATS = 4 };

/* The same as cross_entropy for this rank's V columns, with the stats of all P ranks, in rank
 * order: M = max_p m_p,  Z = sum_p sum_p exp(m_p - M),  loss = log Z + M - sum of the target's
 * logits Every rank adds the same losses to its block. A target that is nobody's sets overflow. */
struct hd_cross_entropy_shared_args {
    void *dlogits; /* [R, Vp]  dtype, or NULL; may alias logits */
    struct hd_step_block *block;
    const void *logits;    /* [R, Vp]  dtype                 */
    const float *stats;    /* [P, R, HD_CROSS_ENTROPY_STATS] */
    const int32_t *target; /* [R]                            */
    void *scratch;
    int64_t R, V, Vp, P, first;
    enum hd_dtype dtype;
};

/* Zeroes what a step accumulates: loss_sum, target_count, overflow, too_many_rows. */
struct hd_step_begin_args {
    struct hd_step_block *block;
};

/* sums[i] = sum of grad[j]^2 in double over chunk i: j in [i*HD_GRAD_CHUNK, (i+1)*HD_GRAD_CHUNK).
 * A gradient that is not finite sets block->overflow. */
struct hd_square_sums_args {
    double *sums; /* [ceil(N / HD_GRAD_CHUNK)] */
    struct hd_step_block *block;
    const float *grad; /* [N] */
    int64_t N;
};

/* Writes this rank's record for the exchange: {loss_sum, target_count, overflow, request, sum of
 * chunk sums in ascending order}. Several ranks may hold one loss (tp): one of them counts it, in
 * the records of the others it is 0. */
struct hd_step_record_args {
    double *record; /* [HD_EXCHANGE_WORDS] */
    const struct hd_step_block *block;
    const double *sums; /* [chunks] */
    int64_t chunks;
    bool counts_loss;
};

/* Adds the records of all ranks in rank order and sets the results in the block:
 *   n = total targets,  grad_norm = sqrt(sum of squares) / (n * loss_scale),
 *   grad_factor = min(1, max_grad_norm / grad_norm) / (n * loss_scale)   (no clipping: 1 / (n *
 * scale)). Overflow anywhere, n == 0 or a norm that is not finite: skip_update. */
struct hd_step_finish_args {
    struct hd_step_block *block;
    const double *records; /* [ranks, HD_EXCHANGE_WORDS] */
    int64_t ranks;
};

/* Elements [begin, end) of a flat part share these factors. */
struct hd_update_range {
    int64_t begin, end;
    float decay, lr_scale; /* multiply weight_decay and lr */
};

/* AdamW over a flat part, with t = block->step and g = grad * block->grad_factor:
 *   m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2,  mh = m / (1-b1^t),  vh = v / (1-b2^t),
 *   w = w - lr * (mh / (sqrt(vh) + eps) + weight_decay * w)
 * (Loshchilov & Hutter 2019.) copy, if given, gets w in copy_dtype in the same pass. Ranges are
 * ascending, disjoint and cover [0, N). block->skip_update: nothing changes. */
struct hd_adamw_args {
    float *weight;     /* [N] master */
    float *m, *v;      /* [N] */
    void *copy;        /* [N] copy_dtype, or NULL */
    const float *grad; /* [N] sum over the step's targets */
    const struct hd_step_block *block;
    const struct hd_update_range *ranges; /* [range_count] */
    int64_t N, range_count;
    enum hd_dtype copy_dtype;
};

#endif
