/* kernels: the table of device operations. One row per kernel, the same in every backend.
 *
 * A kernel is a pure function of its arguments: tensors by address, sizes and switches by value. It
 * allocates nothing, keeps no state between launches and is deterministic for given thread count,
 * instruction set and library versions. What it needs besides (scratch) is sized here, in plain C,
 * as a function of its arguments and the traits of the target device (kernels/dry), so that a
 * machine without the device can plan it to the byte.
 *
 * Shapes: R rows (tokens) held by this rank, C channels, H query heads, G key/value heads, D head
 * width, F feed-forward width, V vocabulary rows, B sequences. Matrices are row-major; `ld*` is the
 * distance between rows in elements. Outputs stand first, sizes last. Pointers marked "or NULL" may
 * be absent. Unless said otherwise outputs may not overlap inputs.
 *
 * Gradients of parameters are fp32 and follow one contract: `accumulate` 0 stores, 1 adds.
 * Gradients of activations are stored.
 *
 * Used by: program (records and runs), the backends (implement), plan (prices).   Uses: base.
 * Threads: pure declarations; a backend's launch belongs to the thread that owns the stream.
 */
#ifndef HD_KERNELS_H
#define HD_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum {
    HD_KERNEL_ABI = 6,          /* raised when an argument struct or a function of the table
                                   changes its meaning */
    HD_TENSOR_ALIGN = 64,       /* every tensor starts on such a bound */
    HD_GRAD_CHUNK = 64 * 1024,  /* elements per term of the gradient norm (DESIGN: fixed chunks) */
    HD_EXCHANGE_WORDS = 5,      /* doubles per rank in the step's exchange: enum hd_exchange_word */
    HD_KERNEL_OPERANDS_MAX = 16 /* pointers in one argument struct */
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

/* ---- Mixture of experts
 *
 * E experts, K of them chosen per row. The R rows are Q runs of R/Q rows; a run holds consecutive
 * places of one sequence. Without context parallelism a run is a sequence; with the zig-zag cut
 * each rank holds `runs` = 2 runs of every one of its B = Q / runs sequences, which stand next to
 * each other. S is the length of a whole sequence, over all ranks.
 *
 * A buffer in expert order has room for T rows, a bound fixed at recording: first the counts[0]
 * rows of expert 0, then those of expert 1, ... Rows behind the last expert's are nobody's: no
 * kernel reads or writes them. Counts that would not fit set overflow and are cut to what fits.
 * Costs are those of T rows in use: who expects n rows prices the same arguments with T = n.
 *
 * Everything about routing is fp32, whatever the rows are. */

/* noise[r,e] = standard normal numbers that depend on a row's place in the job, as what dropout
 * drops does: e = 2i and 2i + 1 are the two of hd_random_normals (base/random.h) with the key
 * hd_random_key(key, block->step) and the counter {i, index[r], 0, sample[r]}; `key` is
 * hd_dropout_key of the job's seed, the layer and the router's site in it. */
struct hd_route_noise_args {
    float *noise;          /* [R, E] */
    const int32_t *sample; /* [R] */
    const int32_t *index;  /* [R] */
    const struct hd_step_block *block;
    uint64_t key;
    int64_t R, E;
};

/* The top-k softmax router. With h = logits, or, for noisy gating,
 *   h[r,e] = logits[r,e] + noise[r,e] * softplus(noise_logits[r,e]),  softplus(x) = log(1 + exp(x))
 * (Shazeer et al. 2017, "Outrageously Large Neural Networks": H(x)):
 *   probs[r,:] = softmax(h[r,:]),  lse[r] = log sum_e exp(h[r,e]),
 *   chosen[r,:] = the K largest of h[r,:], largest first; of equal ones the lower index first,
 *   gate[r,k] = probs[r,chosen[r,k]], or, to `renormalize`, that divided by the sum over the K,
 * which is softmax(KeepTopK(h)) of Shazeer and what Mixtral does (Jiang et al. 2024). The same h
 * chooses, weighs and enters the losses. With K = 1 a renormalized gate is 1 and passes no gradient
 * to the router. */
struct hd_route_forward_args {
    float *probs;              /* [R, E] */
    float *lse;                /* [R]    */
    int32_t *chosen;           /* [R, K] */
    float *gate;               /* [R, K] */
    const float *logits;       /* [R, E] */
    const float *noise_logits; /* [R, E], or NULL: no noise */
    const float *noise;        /* [R, E], or NULL exactly when noise_logits is */
    int64_t R, E, K;
    bool renormalize;
};

/* counts[q,e] = number of choices of e in run q, prob_sums[q,e] = sum over its rows of probs[r,e].
 */
struct hd_route_sums_args {
    int32_t *counts;  /* [Q, E] */
    float *prob_sums; /* [Q, E] */
    const int32_t *chosen;
    const float *probs;
    int64_t R, E, K, Q;
};

/* Of the sums of P ranks, in rank order, that share every sequence: over whole sequences
 *   counts[b,e], prob_sums[b,e] = sums over the ranks and over the runs of b,
 * and before this rank's runs: taken[q,e] = sum of the counts of all runs of the sequence that
 * stand before run q in it. With runs = 2, rank p holds the pieces p and 2P-1-p of a sequence; with
 * runs = 1 piece p. */
struct hd_route_totals_args {
    int32_t *counts;            /* [B, E] */
    float *prob_sums;           /* [B, E] */
    int32_t *taken;             /* [Q, E] */
    const int32_t *all_counts;  /* [P, Q, E] */
    const float *all_prob_sums; /* [P, Q, E] */
    int64_t E, Q, runs, P, rank;
};

/* Words of a router's record; behind them stands the load: the choices of each expert. */
enum hd_route_word {
    HD_ROUTE_ROWS,
    HD_ROUTE_BALANCE,
    HD_ROUTE_Z,
    HD_ROUTE_DROPPED, /* choices beyond the capacity */
    HD_ROUTE_WORDS
};

/* Adds to record what this rank's rows contribute, so that the records of all ranks that hold
 * different rows add up to that of the batch, under every layout:
 *   balance += sum_r E sum_e f[b,e] P[b,e],  b the sequence of row r,  f[b,e] = counts[b,e] / (K
 * S), P[b,e] = prob_sums[b,e] / S:  the balancing loss of each sequence, once for each of its rows
 *   here (Lepikhin et al. 2020, "GShard"; Fedus et al. 2021, "Switch Transformers"); 1 per row at
 *   balance. f is a share of the choices: implementations that divide by S alone have K times that;
 *   z += sum_r lse[r]^2 (Zoph et al. 2022, "ST-MoE");
 *   dropped += the choices that assign drops with this capacity;  load[e] += sum_q run_counts[q,e].
 * Divided by the rows they are means over the batch. Coefficients are whoever reports' business. */
struct hd_route_record_args {
    double *record;            /* [HD_ROUTE_WORDS + E] */
    const int32_t *counts;     /* [B, E], of whole sequences */
    const float *prob_sums;    /* [B, E], of whole sequences */
    const int32_t *run_counts; /* [Q, E] */
    const int32_t *taken;      /* [Q, E], or NULL: zeros */
    const float *lse;          /* [R] */
    int64_t R, E, K, Q, runs, S, capacity;
};

/* Gradients of L = (what gate leads to) + share * loss_scale * (balance * record's balance + z *
 * record's z), f constant:
 *   dh[r,e] = probs[r,e] (t[e] - sum_j probs[r,j] t[j] + 2 c_z lse[r]) + the gates' part,
 *   t[e] = c_b E f[b,e], c = coefficient * share * loss_scale; gates' part:
 *   plain: probs as above for t = dgate at the chosen; renormalized: at the chosen
 *   gate[r,k] (dgate[r,k] - sum_j gate[r,j] dgate[r,j]).
 * dlogits = dh,  dnoise_logits = dh * noise * sigmoid(noise_logits).
 *
 * The losses weigh one per row, as a target does in cross_entropy: the step's factor, one over all
 * targets, makes means of all of them, whatever the layout. `share`: where n ranks compute the same
 * rows and their gradients are added (tensor parallelism), each gives 1/n. */
struct hd_route_backward_args {
    float *dlogits;            /* [R, E] */
    float *dnoise_logits;      /* [R, E], or NULL exactly when noise_logits is */
    const float *dgate;        /* [R, K] */
    const float *probs;        /* [R, E] */
    const float *lse;          /* [R]    */
    const int32_t *chosen;     /* [R, K] */
    const float *gate;         /* [R, K] */
    const float *noise_logits; /* [R, E], or NULL */
    const float *noise;        /* [R, E], or NULL */
    const int32_t *counts;     /* [B, E], of whole sequences; or NULL: no balancing loss */
    const struct hd_step_block *block;
    int64_t R, E, K, B, S;
    float balance, z, share;
    bool renormalize;
};

/* Gives every choice its place in a buffer in expert order: slot[r,k], ascending in (expert, r, k).
 * With a capacity > 0 a sequence sends an expert at most so many rows, the first in the order of
 * the sequence (row, then k; so what comes later changes nothing): those beyond get slot -1. taken
 * says how many choices stand before a run in its sequence. Without capacity nothing is dropped.
 * counts[e] = rows of e in the buffer; sent[p] = rows for rank p of P, which holds experts
 * [p E/P, (p+1) E/P). More than T rows: overflow is set, those from T on get slot -1. */
struct hd_assign_args {
    int32_t *slot;   /* [R, K] */
    int32_t *counts; /* [E]    */
    int32_t *sent;   /* [P]    */
    struct hd_step_block *block;
    const int32_t *chosen;     /* [R, K] */
    const int32_t *run_counts; /* [Q, E]: of route_sums */
    const int32_t *taken;      /* [Q, E], or NULL: zeros */
    void *scratch;
    int64_t R, E, K, Q, T, P, capacity;
};

/* out[slot[r,k],:] = inp[r,:] for every choice that has a slot. */
struct hd_permute_forward_args {
    void *out;           /* [T, C]  dtype */
    const void *inp;     /* [R, C]  dtype */
    const int32_t *slot; /* [R, K]        */
    int64_t R, K, C, T;
    enum hd_dtype dtype;
};

/* dinp[r,:] = sum_k dout[slot[r,k],:] over the choices that have a slot, in fp32 and ascending k.
 */
struct hd_permute_backward_args {
    void *dinp;          /* [R, C]  dtype */
    const void *dout;    /* [T, C]  dtype */
    const int32_t *slot; /* [R, K]        */
    int64_t R, K, C, T;
    enum hd_dtype dtype;
};

/* out[r,:] = sum_k gate[r,k] * inp[slot[r,k],:] over the choices that have a slot, in fp32 and
 * ascending k; a row without any gets zeros. */
struct hd_combine_forward_args {
    void *out;           /* [R, C]  dtype */
    const void *inp;     /* [T, C]  dtype */
    const float *gate;   /* [R, K]        */
    const int32_t *slot; /* [R, K]        */
    int64_t R, K, C, T;
    enum hd_dtype dtype;
};

/* dinp[slot[r,k],:] = gate[r,k] * dout[r,:],  dgate[r,k] = sum_c dout[r,c] * inp[slot[r,k],c];
 * dgate is 0 for a choice without a slot. dinp may alias inp. */
struct hd_combine_backward_args {
    void *dinp;          /* [T, C]  dtype */
    float *dgate;        /* [R, K]        */
    const void *dout;    /* [R, C]  dtype */
    const void *inp;     /* [T, C]  dtype */
    const float *gate;   /* [R, K]        */
    const int32_t *slot; /* [R, K]        */
    int64_t R, K, C, T;
    enum hd_dtype dtype;
};

/* Rows from P ranks for this rank's E experts stand in (rank, expert) order as they arrive, in
 * (expert, rank) order for the experts: out = inp in the second order, or, `inverse`, out in the
 * first order from inp in the second. counts[e] = sum_p all_counts[p,e]. */
struct hd_regroup_args {
    void *out;                   /* [T, C]  dtype */
    int32_t *counts;             /* [E], or NULL  */
    struct hd_step_block *block; /* gets overflow; or NULL on ways that others went before */
    const void *inp;             /* [T, C]  dtype */
    const int32_t *all_counts;   /* [P, E]        */
    void *scratch;
    int64_t P, E, T, C;
    bool inverse;
    enum hd_dtype dtype;
};

/* For every expert e and its rows i: c[i,:] (+)= a[i,:] op(b[e]); b[e] is [K, N], or with trans_b
 * the transpose of an [N, K], as weights of linear layers are kept: trans_b is their forward pass,
 * without it their gradient for inputs. Sums are fp32. A row's result depends on nothing but the
 * row, its expert and, by way of T, the shapes: not on how many rows an expert has. */
struct hd_grouped_gemm_args {
    void *c;               /* [T, N]  c_dtype  */
    const void *a;         /* [T, K]  ab_dtype */
    const void *b;         /* E matrices, ab_dtype, stride_b elements from one to the next */
    const int32_t *counts; /* [E] */
    void *scratch;
    int64_t E, T, N, K, lda, ldb, ldc, stride_b;
    bool trans_b, accumulate;
    enum hd_dtype ab_dtype, c_dtype;
};

/* For every expert e, over its rows i: c[e] (+)= sum_i a[i,:]^T b[i,:]: the gradient of weights
 * [M, N] with a the gradient of the outputs and b the inputs. An expert without rows has a gradient
 * of zeros. */
struct hd_grouped_gemm_weight_args {
    float *c;              /* E matrices [M, N], stride_c elements from one to the next */
    const void *a;         /* [T, M]  ab_dtype */
    const void *b;         /* [T, N]  ab_dtype */
    const int32_t *counts; /* [E] */
    void *scratch;
    int64_t E, T, M, N, lda, ldb, ldc, stride_c;
    bool accumulate;
    enum hd_dtype ab_dtype;
};

/* ---- The table
 * ------------------------------------------------------------------------------------
 *
 * One row per kernel: its name (argument struct hd_NAME_args) and its tensors: R read, W written,
 * RW both, S scratch. The order of rows and operands is part of the ABI hash. */
#define HD_KERNEL_LIST(K)                                                                         \
    K(gemm, W(c) W(pre) W(dbias) R(a) R(b) R(bias) R(gelu_inp) S(scratch))                        \
    K(bias_forward, W(out) R(inp) R(bias))                                                        \
    K(bias_backward, W(dbias) R(dout) S(scratch))                                                 \
    K(embedding_forward, W(out) R(index) R(weight) R(index2) R(weight2))                          \
    K(embedding_backward, W(dweight) R(index) R(dout) S(scratch))                                 \
    K(rmsnorm_forward, W(out) W(sum) W(rstd) R(inp) R(add) R(weight))                             \
    K(rmsnorm_backward, W(dinp) R(dout) R(inp) R(rstd) R(weight) R(add))                          \
    K(rmsnorm_backward_weight, W(dweight) R(dout) R(inp) R(rstd) S(scratch))                      \
    K(layernorm_forward, W(out) W(sum) W(mean) W(rstd) R(inp) R(add) R(weight) R(bias))           \
    K(layernorm_backward, W(dinp) R(dout) R(inp) R(mean) R(rstd) R(weight) R(add))                \
    K(layernorm_backward_weight, W(dweight) W(dbias) R(dout) R(inp) R(mean) R(rstd) S(scratch))   \
    K(head_norm_forward, W(out) W(rstd) R(inp) R(q_weight) R(k_weight))                           \
    K(head_norm_backward, W(dinp) R(dout) R(inp) R(rstd) R(q_weight) R(k_weight))                 \
    K(head_norm_backward_weight, W(dq_weight) W(dk_weight) R(dout) R(inp) R(rstd) S(scratch))     \
    K(rope, RW(x) R(position) R(table))                                                           \
    K(attention_forward, W(out) W(lse) R(q) R(k) R(v) R(q_index) R(kv_index) R(q_bound) R(slopes) \
                             R(kv_filled) R(sample) R(block) S(scratch))                          \
    K(attention_backward, W(dq) W(dk) W(dv) R(dout) R(q) R(k) R(v) R(out) R(lse) R(q_index)       \
                              R(kv_index) R(q_bound) R(slopes) R(sample) R(block) S(scratch))     \
    K(attention_merge, W(out) RW(acc) RW(lse) R(block_out) R(block_lse))                          \
    K(cache_append, RW(cache) RW(overflow) R(inp) R(filled))                                      \
    K(swiglu_forward, W(out) R(inp) R(counts))                                                    \
    K(swiglu_backward, W(dinp) R(dout) R(inp) R(counts))                                          \
    K(gelu_forward, W(out) R(inp) R(counts))                                                      \
    K(gelu_backward, W(dinp) R(dout) R(inp) R(counts))                                            \
    K(add, W(out) R(a) R(b))                                                                      \
    K(dropout, W(out) R(inp) R(sample) R(index) R(block))                                         \
    K(cast, W(out) R(inp))                                                                        \
    K(copy_columns, W(out) R(inp))                                                                \
    K(zero, W(out))                                                                               \
    K(cross_entropy, W(dlogits) RW(block) R(logits) R(target) S(scratch))                         \
    K(cross_entropy_stats, W(stats) R(logits) R(target))                                          \
    K(cross_entropy_shared, W(dlogits) RW(block) R(logits) R(stats) R(target) S(scratch))         \
    K(step_begin, RW(block))                                                                      \
    K(square_sums, W(sums) RW(block) R(grad))                                                     \
    K(step_record, W(record) R(block) R(sums))                                                    \
    K(step_finish, RW(block) R(records))                                                          \
    K(adamw, RW(weight) RW(m) RW(v) W(copy) R(grad) R(block) R(ranges))                           \
    K(route_noise, W(noise) R(sample) R(index) R(block))                                          \
    K(route_forward, W(probs) W(lse) W(chosen) W(gate) R(logits) R(noise_logits) R(noise))        \
    K(route_sums, W(counts) W(prob_sums) R(chosen) R(probs))                                      \
    K(route_totals, W(counts) W(prob_sums) W(taken) R(all_counts) R(all_prob_sums))               \
    K(route_record, RW(record) R(counts) R(prob_sums) R(run_counts) R(taken) R(lse))              \
    K(route_backward, W(dlogits) W(dnoise_logits) R(dgate) R(probs) R(lse) R(chosen) R(gate)      \
                          R(noise_logits) R(noise) R(counts) R(block))                            \
    K(assign, W(slot) W(counts) W(sent) RW(block) R(chosen) R(run_counts) R(taken) S(scratch))    \
    K(permute_forward, W(out) R(inp) R(slot))                                                     \
    K(permute_backward, W(dinp) R(dout) R(slot))                                                  \
    K(combine_forward, W(out) R(inp) R(gate) R(slot))                                             \
    K(combine_backward, W(dinp) W(dgate) R(dout) R(inp) R(gate) R(slot))                          \
    K(regroup, W(out) W(counts) RW(block) R(inp) R(all_counts) S(scratch))                        \
    K(grouped_gemm, W(c) R(a) R(b) R(counts) S(scratch))                                          \
    K(grouped_gemm_weight, W(c) R(a) R(b) R(counts) S(scratch))

enum hd_kernel {
#define K(name, operands) HD_K_##name,
    HD_KERNEL_LIST(K)
#undef K
        HD_KERNEL_COUNT
};

enum hd_access { HD_READ = 1, HD_WRITE = 2, HD_READ_WRITE = 3, HD_SCRATCH = 4 };

/* What the passes know of a kernel without knowing its mathematics. */
struct hd_kernel_operand {
    const char *name;
    size_t offset; /* of the pointer in the argument struct */
    enum hd_access access;
};
struct hd_kernel_info {
    const char *name;
    size_t args_size_bytes;
    int operand_count;
    struct hd_kernel_operand operands[HD_KERNEL_OPERANDS_MAX];
};
const struct hd_kernel_info *hd_kernel_info(enum hd_kernel kernel);

/* Hash of names, argument sizes and operands of the whole list: two builds that agree on it agree
 * on the table. */
uint64_t hd_kernel_list_hash(void);

/* ---- Traits and costs: what planning needs of a device
 * ---------------------------------------------- */

/* How own code multiplies bf16 factors. */
enum hd_bf16_products {
    HD_BF16_WIDENED, /* as fp32 */
    HD_BF16_PAIRS,   /* vdpbf16ps: sums of products of pairs along the depth */
    HD_BF16_TILES    /* AMX, or its software model */
};

struct hd_traits {
    char backend[16]; /* "cpu" */
    char isa[32];     /* "avx512_bf16", "avx2", ...: part of the determinism facts */
    char library[32]; /* that multiplies: "oneDNN-2.6.0", or "own"; part of them too */
    int threads;      /* that share a launch */
    int vector_bytes;
    bool bf16_fast; /* bf16 GEMMs are faster than fp32: what precision `auto` asks */
    enum hd_bf16_products bf16_products;
    bool own_bf16;              /* own code multiplies bf16 factors although there is a library */
    int64_t page_bytes;         /* granule of a reservation */
    int64_t gemm_scratch_bytes; /* what a GEMM library may ask for per launch; 0: there is none */
    /* of a GPU; 0 on the CPU */
    int multiprocessors;
    int capability;       /* 80, 90, 100: major * 10 + minor */
    int64_t memory_bytes; /* of the device */
    /* of it, beside all that is reserved: by a process (context, kernels, libraries), and by each
     * communicator of NCCL. Assumed (HD_GPU_PROCESS_BYTES ..) unless somebody has measured them. */
    int64_t process_bytes, communicator_bytes;
    bool process_measured;
    /* GELU behind a product of its library, and the gradient of a bias beside one, are passes of
     * their own (hd_gemm_takes_epilogue says no). */
    bool gelu_apart, dbias_apart;
};

static inline bool hd_traits_is_cuda(const struct hd_traits *traits)
{
    return traits->multiprocessors > 0;
}

/* The stated constants: what the device's memory is used for that no plan knows to the byte.
 * Assumptions, not measured with Heddle on a GPU: half a GiB per context is what others report, and
 * as much again is left for kernels that are loaded late and for stacks; a communicator has buffers
 * of NCCL_BUFFSIZE (4 MiB) and two smaller ones per channel and peer, for some tens of these. */
enum {
    HD_GPU_PROCESS_BYTES = 1 << 30,
    HD_GPU_LATE_BYTES = 512 << 20, /* of a process's: what is loaded when it is first launched */
    HD_GPU_COMMUNICATOR_BYTES = 512 << 20
};

/* The traits of a GPU follow from these three; the backend that opens one adds versions to isa and
 * library. library: whether a library multiplies. */
void hd_traits_of_gpu(int multiprocessors, int capability, int64_t memory_bytes, bool library,
                      struct hd_traits *ret_traits);

/* A GPU as its maker's data sheet has it: to plan where there is none, and for the rate that MFU is
 * quoted against. Its memory is what boards report (nvidia-smi, ECC on), for the GB of their names
 * are neither 10^9 nor 2^30 bytes; plans have HD_GPU_KEPT_BYTES less: what programs are offered is
 * 0.5 (H100) to 1.1 GiB (GH200) less than that. */
enum { HD_GPU_KEPT_BYTES = 1280 << 20 };
struct hd_gpu_kind {
    const char *word; /* on the command line: "h100-pcie" */
    const char *name; /* words of the name that the runtime has for it; of several kinds with the
                         same ones the rates are equal, and else the first kind counts whose words
                         a name contains */
    const char *text; /* for people: "H100 PCIe 80 GB" */
    int multiprocessors, capability, memory_mib; /* 2^20 bytes */
    bool memory_guessed; /* no report was at hand: the least that boards of such a name have */
    double memory_gb_per_s;
    double half, tf32, single; /* 10^12 operations per second: bf16 and f16, and TF32, dense, on
                                  tensor cores; fp32 without them */
};
const struct hd_gpu_kind *hd_gpu_kinds(size_t *ret_count);
const struct hd_gpu_kind *hd_gpu_kind_find(const char *word); /* NULL: unknown */
/* What it is sold with for products of this encoding, in operations per second. */
double hd_gpu_kind_rate(const struct hd_gpu_kind *kind, enum hd_dtype dtype, bool tf32);
void hd_gpu_kind_traits(const struct hd_gpu_kind *kind, struct hd_traits *ret_traits);

/* Traits as one word, for the program that plans and cannot look at the device itself. Both sides
 * are one build: HD_INVALID for the word of another. */
enum { HD_TRAITS_TEXT_MAX = 1024 };
void hd_traits_write(const struct hd_traits *traits, char ret_text[HD_TRAITS_TEXT_MAX]);
enum hd_status hd_traits_read(const char *text, struct hd_traits *ret_traits);

/* Scratch that a launch with these arguments needs on such a device; 0 for most. Pointers in args
 * are not looked at, except for being NULL or not. */
int64_t hd_kernel_scratch_bytes(enum hd_kernel kernel, const void *args,
                                const struct hd_traits *traits);

/* Whether such a device does the epilogue of this product, or dbias, in the product's own pass over
 * memory: what the fuse pass asks before it joins the two. Elsewhere the launch is as right, and no
 * faster than two. */
bool hd_gemm_takes_epilogue(const struct hd_gemm_args *args, const struct hd_traits *traits);

/* Floating point operations and bytes that must cross memory at least once. */
struct hd_costs {
    double flops;
    int64_t read_bytes, write_bytes;
};
void hd_kernel_cost_add(struct hd_costs *costs, enum hd_kernel kernel, const void *args);
/* The same with `rows` rows of the buffers that have a bound T in use: what mixtures of experts
 * work with. Other kernels cost what they cost. */
void hd_kernel_cost_add_rows(struct hd_costs *costs, enum hd_kernel kernel, const void *args,
                             int64_t rows);

/* ---- Backends
 * ------------------------------------------------------------------------------------- */

struct hd_backend; /* one per rank */
struct hd_stream;  /* belongs to a backend instance */

/* Tests and measurements: who multiplies. */
enum hd_gemm_by {
    HD_GEMM_BY_BEST,      /* own code or the library, by what was measured to be faster */
    HD_GEMM_BY_OWN,       /* own code alone */
    HD_GEMM_BY_LIBRARY,   /* the library wherever it takes the shape */
    HD_GEMM_BY_WIDENED,   /* own code, bf16 factors widened to fp32 also where there is better */
    HD_GEMM_BY_TILE_MODEL /* own code, bf16 by the software model of a tile unit: slow and exact */
};

struct hd_backend_options {
    int threads;      /* >= 1; of the CPU */
    bool force_plain; /* tests: no library, no wide vectors; the portable paths */
    enum hd_gemm_by gemm_by;
    int device;         /* of the GPUs that this process sees */
    bool tf32;          /* fp32 products may round their factors to TF32 */
    bool deterministic; /* equal launches give equal bits, also where that is slower */
    /* Measurements: what traits call gelu_apart and dbias_apart, in launches too. */
    bool epilogues_apart;
};

/* What collectives between ranks on one device are made of (lib/comm); the arguments are copied. */
enum { HD_COMBINE_MAX = 64 };

/* out[o][i] = in[0][i] + in[1][i] + ... on every out: added from left to right, in fp32 for f32,
 * bf16 and f16, in f64 for f64, modulo 2^n for integers, and rounded once; or the maximum, NaN when
 * any of them is. An out may be one of the ins, else all are disjoint. */
struct hd_combine_args {
    void *out[HD_COMBINE_MAX];      /* [outs] of [count] */
    const void *in[HD_COMBINE_MAX]; /* [ins] of [count] */
    int outs, ins;                  /* >= 1 */
    int64_t count;                  /* elements, 0 is fine; nothing is known of their alignment */
    enum hd_dtype dtype;
    bool max;
};

/* What member `index` of `members` receives of an all_to_all_v: from each member the rows that it
 * counts for this one, in the order of members; they stand there behind what it counts for the
 * members before this one. When any member counts a negative number, more than its send_rows_max in
 * all, or members count more than recv_rows_max for any member, no row moves, recv_counts become 0
 * and *overflow becomes 1 (it is never set to 0). */
struct hd_exchange_rows_args {
    void *out;            /* [recv_rows_max[index]] rows */
    int32_t *recv_counts; /* [members] or NULL */
    int32_t *overflow;
    const void *send[HD_COMBINE_MAX];           /* [members] of rows */
    const int32_t *send_counts[HD_COMBINE_MAX]; /* [members] of [members] */
    int64_t send_rows_max[HD_COMBINE_MAX], recv_rows_max[HD_COMBINE_MAX];
    int members, index;
    int64_t row_bytes;
};

/* What a backend has whose tensors are not host memory and whose launches return before they have
 * run. Addresses of tensors mean nothing to the host then: bytes go in and out by write and read.
 * All functions but those of events and streams of different ranks belong to the thread of the
 * rank. Backends on several devices may be in one process: a function minds which device its
 * backend, stream or event is of, whichever thread calls it and whatever it used before; those of
 * `nccl` go to the calling thread's device, of a rank's process the only one that it sees. */
struct hd_event; /* a point in the order of a stream */
struct hd_device_memory {
    int64_t total_bytes, free_bytes; /* of the device, which other processes may use, too */
    int64_t reserved_bytes; /* by `reserve` of this backend and not released: whole pages */
};
struct hd_nccl_table; /* kernels/nccl.h */
struct hd_device_table {
    /* Device memory of zeros, whole pages of traits.page_bytes at a bound of 256 bytes at least. A
     * rank reserves its plan once.
     * host_reachable: the host may use the addresses too while nothing runs (tests, debugging).
     * HD_NO_MEMORY says how much the device has and how much of it is free. release waits until
     * nothing runs on the device any more. */
    enum hd_status (*reserve)(struct hd_backend *backend, int64_t size_bytes, bool host_reachable,
                              void **ret_base);
    void (*release)(struct hd_backend *backend, void *base);
    /* As it is now; not within a step. */
    enum hd_status (*memory)(struct hd_backend *backend, struct hd_device_memory *ret_memory);
    /* In the stream's order. `host` may change when write returns; after read it holds the bytes as
     * they were behind everything launched so far. copy stays on the device. */
    enum hd_status (*write)(struct hd_stream *stream, void *device, const void *host,
                            int64_t size_bytes);
    enum hd_status (*read)(struct hd_stream *stream, void *host, const void *device,
                           int64_t size_bytes);
    enum hd_status (*copy)(struct hd_stream *stream, void *out, const void *inp,
                           int64_t size_bytes);
    /* Events order streams, also of several ranks of one process on one device. An event that was
     * never recorded is done. wait: what is launched on `stream` from now on runs behind the event
     * as it was last recorded. done never blocks; finish blocks the host. elapsed: between two
     * recorded and done ones that were made with `timed`. */
    enum hd_status (*event_new)(struct hd_backend *backend, bool timed,
                                struct hd_event **ret_event);
    void (*event_free)(struct hd_event *event);
    enum hd_status (*event_record)(struct hd_event *event, struct hd_stream *stream);
    enum hd_status (*event_wait)(struct hd_stream *stream, struct hd_event *event);
    enum hd_status (*event_done)(struct hd_event *event, bool *ret_done);
    enum hd_status (*event_finish)(struct hd_event *event);
    enum hd_status (*event_elapsed)(struct hd_event *begin, struct hd_event *end,
                                    double *ret_seconds);
    enum hd_status (*combine)(struct hd_stream *stream, const struct hd_combine_args *args);
    enum hd_status (*exchange_rows)(struct hd_stream *stream,
                                    const struct hd_exchange_rows_args *args);
    /* The calls of NCCL (kernels/nccl.h), whose library is loaded when this is first asked.
     * HD_UNSUPPORTED says what is missing. NULL: this backend was built without. */
    enum hd_status (*nccl)(const struct hd_nccl_table **ret_table);
};

/* What a stream is for. Where a device knows priorities, blocks of a stream that moves bytes for
 * others go first: they are few, and peers wait for them, while a layer's are many. */
enum hd_stream_purpose { HD_STREAM_FOR_COMPUTE, HD_STREAM_FOR_COMM };

struct hd_backend_table {
    uint32_t abi, table_bytes;
    uint64_t kernel_list_hash;
    const char *name;
    const struct hd_device_table *device; /* NULL: tensors are host memory, and a launch has run
                                             when it returns */
    /* Traits without opening anything: how a machine of this kind would run with these options. */
    void (*describe)(const struct hd_backend_options *options, struct hd_traits *ret_traits);
    enum hd_status (*open)(const struct hd_backend_options *options,
                           struct hd_backend **ret_backend);
    void (*close)(struct hd_backend *backend);
    enum hd_status (*stream_open)(struct hd_backend *backend, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream);
    void (*stream_close)(struct hd_stream *stream);
    /* Enqueues; on the CPU the compute stream runs at once. */
    enum hd_status (*launch)(struct hd_stream *stream, enum hd_kernel kernel, const void *args);
    enum hd_status (*synchronize)(struct hd_stream *stream);
    /* Prepares library objects for these arguments, so that later launches of the same shape
     * allocate nothing. Called once per op of a program before the first step. */
    enum hd_status (*prepare)(struct hd_backend *backend, enum hd_kernel kernel, const void *args);
    /* Achievable multiply-add rate in operations per second, measured in about 50 ms on this
     * backend's threads, or what a GPU is sold with: the peak that MFU is quoted against. */
    double (*measure_peak)(struct hd_backend *backend, enum hd_dtype dtype);
    /* Who computes such a launch: traits.library (all of it) or "own", for tests and measurements:
     * own code that serves where a library refuses is right, and slow. Chooses as prepare does.
     * NULL: this backend cannot tell. */
    enum hd_status (*computed_by)(struct hd_backend *backend, enum hd_kernel kernel,
                                  const void *args, const char **ret_by);
};

/* The embedded default. */
const struct hd_backend_table *hd_backend_cpu(void);

/* HD_UNSUPPORTED, naming both sides, when a table was built from another list. */
enum hd_status hd_backend_check(const struct hd_backend_table *table);

/* hd_launch(stream, op, &args): through the table the stream belongs to. */
enum hd_status hd_launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args);

#endif
