/* ops: the contract of each device operation, except those of attention (ops_attention.h), of gated
 * delta layers (ops_delta.h), of mixtures of experts (ops_moe.h), of losses (ops_loss.h) and of
 * optimizers with one moment (ops_update.h): one argument struct per kernel, the same for every backend.
 *
 * Shapes: R rows (tokens) held by this rank, C channels, H query heads, G key/value heads, D head
 * width, F feed-forward width, V vocabulary rows, B sequences. Matrices are row-major; `ld*` is the
 * distance between rows in elements. In a struct, outputs come first and sizes last. The caller
 * owns all memory. Only pointers marked "or NULL" may be NULL. Outputs may not overlap inputs
 * unless the comment allows it.
 *
 * (+)= stores (`accumulate` false) or adds (true). Gradients of parameters are fp32 and have this
 * switch. Gradients of activations are stored.
 *
 * Used by: kernels.h; do not include it directly.   Uses: base.   Threads: pure declarations.
 */
#ifndef HD_KERNELS_OPS_H
#define HD_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/encoding.h"
#include "base/fp8.h"
#include "base/math.h"
#include "base/quant.h"

enum {
    HD_TENSOR_ALIGN = 64,     /* bytes: alignment of every tensor */
    HD_SCRATCH_ALIGN = 256,   /* bytes: alignment of scratch, which cuBLASLt demands of its
                                 workspace */
    HD_GRAD_CHUNK = 4 * 1024, /* elements per chunk: the gradient norm has one partial sum of
                                 squares per chunk, and ZeRO splits a bucket only between chunks */
    HD_EXCHANGE_WORDS = 24    /* doubles per rank in the exchange at the end of a step: enum
                                 hd_exchange_word */
};

/* Returns the bytes that a tensor of size_bytes takes with its padding. */
static inline int64_t hd_tensor_align(int64_t size_bytes)
{
    return hd_round_up(size_bytes, HD_TENSOR_ALIGN);
}

/* Returns the value of a factor in an argument struct: 1 if the member is 0. */
static inline float hd_factor_of(float factor)
{
    return factor != 0 ? factor : 1;
}

/* Numbers of a step on completions (hd_policy_args): sums over tokens, or as said, then maxima. */
enum hd_policy_word {
    HD_POLICY_TOKENS,         /* number of tokens that count */
    HD_POLICY_COMPLETIONS,    /* number of completions that have such tokens */
    HD_POLICY_CLIPPED_LOW,    /* number of tokens whose ratio is below its limit */
    HD_POLICY_CLIPPED_HIGH,   /* number of tokens whose ratio is above its limit */
    HD_POLICY_KL_SUM,         /* sum of the divergences from the reference */
    HD_POLICY_DIFFERENCE_SUM, /* sum of |logp - sampled| */
    HD_POLICY_RATIO_SUM,      /* sum of exp(logp - sampled) */
    HD_POLICY_ENTROPY_SUM,    /* sum of the entropies of the rows, in nats */
    HD_POLICY_DIFFERENCE_MAX, /* largest |logp - sampled| */
    HD_POLICY_RATIO_MAX,      /* largest exp(logp - sampled) */
    HD_POLICY_WORDS,
    HD_POLICY_MAXIMA = HD_POLICY_DIFFERENCE_MAX /* index of the first maximum */
};

/* ---- The step state: inputs and results of one training step, in device memory ----
 *
 * Kernels read and write it through pointers, so the host never branches on tensor contents within
 * a step. The host writes the first group of members before a step and reads the others once, after
 * the step. */
struct hd_step_state {
    /* members that the host writes before the step */
    int64_t step;        /* 1-based: number of this step; random numbers depend on it */
    int64_t update;      /* 1-based: number of this update, t in Adam's bias correction; skipped
                            steps do not count */
    float lr;            /* learning rate of this step */
    float max_grad_norm; /* clipping threshold; 0: no clipping */
    float beta1, beta2, adam_eps, weight_decay;
    float loss_scale;     /* factor by which gradients of the losses are multiplied; 1 for fp32 and
                             bf16 */
    float loss_per_token; /* factor by which gradients of losses per token, for example a router's,
                             are multiplied: targets of the step / tokens of the step, over all
                             ranks; with grad_factor it makes these losses means over the tokens. 1
                             if every token has a target */
    int64_t request;      /* request code that this rank sends to all ranks with its record of the
                             step; kernels only copy it */
    double busy_ms;  /* this rank's time in the previous step without waits for other ranks, in ms;
                        < 0: unknown */
    int64_t awaited; /* rank that this rank waited for longest in the previous step, plus 1; 0:
                        none, or unknown */
    double kl;       /* KTO: the KL term of this step (hd_preference_args) */
    double loss_limit, norm_limit; /* a loss or gradient norm above its limit is a spike; 0: no
                                      limit */
    /* members that the programs of this rank accumulate; step_begin zeroes them */
    double loss_sum;       /* sum of -log p over this rank's targets */
    int64_t target_count;  /* number of targets that were not masked; with a preference objective:
                              number of pairs, by KTO of answers */
    int64_t overflow;      /* != 0: a gradient was not finite, a target was invalid or a buffer too
                              small; the update is skipped */
    int32_t too_many_rows; /* != 0: an expert buffer was too small for its rows; the update is
                              skipped */
    double margin_sum;     /* sum of the margins of pairs of answers (defined at
                              hd_preference_args) */
    double correct_pairs;  /* number of pairs with a positive margin */
    double answer_targets; /* number of targets in the answers of pairs */
    double reward_sum;     /* sum of the mean rewards of both answers of pairs */
    double z_sum; /* sum of log^2 Z over this rank's targets, with a z-loss (cross_entropy);
                              0 without */
    double policy[HD_POLICY_WORDS];   /* numbers of this rank's completions */
    double distill_sum, distill_rows; /* distillation: sum of the divergences from the teacher over
                                         this rank's targets with a teacher's record, and their
                                         number; 0 without (hd_distill_args) */
    /* results, which step_finish sets to equal values on all ranks */
    double mean_loss;                                /* loss_sum / target_count over all ranks */
    double total_targets;                            /* number of targets of all ranks; with pairs
                                                        of answers: number of pairs */
    double mean_margin, pair_accuracy, pair_targets; /* mean margin, fraction of pairs with a
                                                        positive margin, and targets, over the pairs
                                                        of all ranks; 0 without pairs */
    double mean_reward;
    double mean_z;                        /* z_sum / target_count over all ranks */
    double policy_total[HD_POLICY_WORDS]; /* numbers of the completions of all ranks */
    double mean_distill;                  /* distill_sum / distill_rows over all ranks */
    double grad_norm;    /* L2 norm of the mean gradient over all parameters, before clipping */
    float grad_factor;   /* factor by which adamw multiplies the summed gradient: division to the
                            mean, and clipping */
    int32_t skip_update; /* 1: adamw changes no weight in this step; step_finish decides */
    int32_t spike;       /* 1: skip_update is set only because a value is above its limit */
};

enum { HD_EXCHANGE_TOO_MANY_ROWS = 2 };

/* Words of one rank's record in the exchange of records at the end of a step. */
enum hd_exchange_word {
    HD_EXCHANGE_LOSS,
    HD_EXCHANGE_TARGETS,
    HD_EXCHANGE_OVERFLOW, /* 1 for an overflow, plus HD_EXCHANGE_TOO_MANY_ROWS if expert rows
                             exceeded their buffer */
    HD_EXCHANGE_REQUEST,
    HD_EXCHANGE_BUSY_MS,
    HD_EXCHANGE_AWAITED,
    HD_EXCHANGE_SQUARES,
    HD_EXCHANGE_MARGIN,
    HD_EXCHANGE_CORRECT,
    HD_EXCHANGE_ANSWER_TARGETS,
    HD_EXCHANGE_REWARD,
    HD_EXCHANGE_Z,
    HD_EXCHANGE_DISTILL,
    HD_EXCHANGE_DISTILL_ROWS,
    HD_EXCHANGE_POLICY /* HD_POLICY_WORDS words */
};

/* ---- Argument structs ---- */

/* Activations act(x), with sigmoid(x) = 1 / (1 + exp(-x)). */
enum hd_activation {
    HD_ACT_SILU,      /* x sigmoid(x) */
    HD_ACT_GELU_TANH, /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the tanh form of GPT-2
                         (Hendrycks & Gimpel 2016) */
    HD_ACT_GELU_ERF,  /* x Phi(x), Phi(x) = 0.5 (1 + erf(x / sqrt(2))) (the same paper) */
    HD_ACT_RELU2,     /* max(x, 0)^2 (So et al. 2021, "Primer") */
    HD_ACT_RELU,      /* max(x, 0) (Nair & Hinton 2010) */
    HD_ACT_OSS        /* glu only: the clamped unit of GPT-OSS, see glu_forward */
};

/* Epilogues: operations applied to the fp32 result s of a GEMM (s includes the bias) before it is
 * stored. */
enum hd_gemm_epilogue {
    HD_EPILOGUE_NONE,
    HD_EPILOGUE_GELU,          /* c = gelu(s), HD_ACT_GELU_TANH; pre = s, unless pre is NULL.
                                 s is rounded to c's encoding first, but not on a GPU */
    HD_EPILOGUE_GELU_BACKWARD, /* c = s * gelu'(gelu_inp) */
    /* The two of glu_forward and glu_backward below with `act`, where s has the columns of gate and
     * up, or is the gradient of the result. s is rounded to c's encoding first, as the two launches
     * would. Computed only where hd_gemm_takes_epilogue says so, else HD_UNSUPPORTED */
    HD_EPILOGUE_GLU,         /* c[M, N / 2] = act(s[:, :N / 2]) * s[:, N / 2:]; pre as for GELU */
    HD_EPILOGUE_GLU_BACKWARD /* c[M, 2 N]: the gradient of gelu_inp[M, 2 N], gate and up */
};

/* c[M,N] (+)= op(a)[M,K] op(b)[K,N] (+ bias[N] on every row) (+ add[M,N]), summed in fp32.
 * op(x) is x or its transpose: a is [M,K], or [K,M] with trans_a; b is [K,N], or [N,K] with
 * trans_b. c may be fp32 with 16-bit factors (weight gradients). pre, gelu_inp and add have row
 * distance ldc, too; pre of HD_EPILOGUE_GLU has N.
 * If c has 16 bits, a GPU's library may round the product to c's encoding before it adds a bias, a
 * residual or the old c, as two launches would.
 * b may be quantised (base/quant.h): its matrices, one below the other, are [N,K] with trans_b,
 * else [K,N]; a value is decoded to fp32 and rounded to ab_dtype before it is multiplied.
 * HD_INVALID: bias, add or an epilogue with accumulate; GELU_BACKWARD with bias; add with an
 * epilogue; codes of another shape. */
struct hd_gemm_args {
    void *c;              /* [M, N]   c_dtype  */
    void *pre;            /* [M, N]   c_dtype, with HD_EPILOGUE_GELU or _GLU, or NULL */
    const void *a;        /*          ab_dtype */
    const void *b;        /*          ab_dtype */
    const void *bias;     /* [N]      ab_dtype, or NULL */
    const void *gelu_inp; /* [M, N]   c_dtype, with the epilogues of backward, else NULL */
    const void *add;      /* [M, N]   c_dtype, or NULL: a residual */
    void *scratch;
    int64_t M, N, K, lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
    enum hd_gemm_epilogue epilogue;
    enum hd_activation act; /* with HD_EPILOGUE_GLU and its backward */
    enum hd_dtype ab_dtype, c_dtype;
    struct hd_quant_factor b_codes; /* encoding of b; if its quant is not NONE, b has codes in this
                                       encoding and ldb is ignored */
};

/* ---- Products in fp8 (base/fp8.h) ----
 *
 * The magnitude that scales a tensor is the maximum of HD_AMAX_PARTS partial maxima, which a device
 * computes in one pass. */
enum {
    HD_AMAX_PARTS = 256,
    HD_FP8_SIDE = 16,        /* M, N and K of a product in fp8 are multiples of this number */
    HD_FP8_FACTOR_ALIGN = 16 /* bytes: cuBLASLt launches no product whose scale factor has a smaller
                                alignment (H100) */
};

/* Sets amax so that max(amax) = max(history), if that is not 0; inp is then not read. Else (no
 * history, or only zeros) max(amax) is the largest |inp[i]|, so the tensor is scaled by its current
 * values. Elements that are not finite do not count. */
struct hd_fp8_amax_args {
    float *amax;          /* [HD_AMAX_PARTS] */
    const void *inp;      /* [N]  bf16       */
    const float *history; /* [history_len], or NULL: none */
    int64_t N, history_len;
};

/* code[r,c] = transposed[c,r] = hd_fp8_code(inp[r,c] * 2^e), e = hd_fp8_exponent(max(amax)),
 * *factor = 2^-e. *seen = max(*seen, |inp|) over finite elements. */
struct hd_fp8_encode_args {
    uint8_t *code;       /* [R, C], or NULL */
    uint8_t *transposed; /* [C, R], or NULL; one of the two is given */
    float *factor;       /* one value */
    float *seen;         /* one value: largest magnitude so far, or NULL */
    const void *inp;     /* [R, C]  bf16 */
    const float *amax;   /* [HD_AMAX_PARTS] */
    int64_t R, C;
    enum hd_fp8 format;
};

/* Members of a kernel whose result a product in fp8 reads, for the codes of it: those that fp8_amax and
 * fp8_encode make of the result as it is stored, in bf16; E4M3 of values, E5M2 of gradients. They are
 * made in the pass that computes the result if max(history) > 0, else behind it, from the result.
 * code, code_t, factor of decoding, seen and history are as in fp8_encode_args and fp8_amax_args.
 * Not with counts or sums. code and code_t NULL: no codes. */
#define HD_FP8_RESULT          \
    uint8_t *code, *code_t;    \
    float *code_factor, *seen; \
    const float *history;      \
    int64_t history_len;       \
    bool codes_only; /* no other kernel reads the result, so that it is written only if the \
                        codes are made behind it */

/* c[m,n] (+)= *a_factor *b_factor sum_k a[m,k] b[n,k] (+ bias[n]) (+ add[m,n]), summed in fp32.
 * Rows are stored without gaps. Only one of the formats may be E5M2. HD_INVALID: bias or add with
 * accumulate; a side that is no multiple of HD_FP8_SIDE; a factor at an address that is no multiple
 * of HD_FP8_FACTOR_ALIGN. */
struct hd_fp8_gemm_args {
    void *c;               /* [M, N]  c_dtype */
    const uint8_t *a;      /* [M, K]  a_format */
    const uint8_t *b;      /* [N, K]  b_format */
    const float *a_factor; /* one value, aligned to HD_FP8_FACTOR_ALIGN */
    const float *b_factor; /* one value, aligned to HD_FP8_FACTOR_ALIGN */
    const void *bias;      /* [N]  bf16, or NULL */
    const void *add;       /* [M, N]  c_dtype, or NULL: a residual */
    void *scratch;
    int64_t M, N, K;
    bool accumulate;
    enum hd_fp8 a_format, b_format;
    enum hd_dtype c_dtype; /* bf16 or fp32 */
};

/* The largest magnitudes of a step (`seen`) become the newest entry of each of the N amax
 * histories, whose oldest entry is dropped. Launched at the end of a step; a step that skips the
 * update changes no history. */
struct hd_fp8_history_args {
    float *history;    /* [N, history_len] */
    const float *seen; /* [N] */
    const struct hd_step_state *block;
    int64_t N, history_len;
};

/* out[r, n] = inp[r, n] + bias[n]; out may alias inp. Used for a bias after a sum over ranks; gemm
 * adds other biases. */
struct hd_bias_forward_args {
    void *out;        /* [R, N]  dtype */
    const void *inp;  /* [R, N]  dtype */
    const void *bias; /* [N]     dtype */
    int64_t R, N;
    enum hd_dtype dtype;
};

/* dbias[n] (+)= sum_r dout[r, n], or sum_p sums[p, n], in the order of p.
 *
 * `sums` are partial sums of rows: the rows are cut into P pieces (hd_row_sums_count of them, but
 * for attention), and sums[p, :] is the sum, in fp32, over piece p. Kernels that write the gradient
 * of a linear's result can write them, too: the gradient of the linear's bias then reads no rows
 * again. They add up the values as they are stored, in dtype. */
struct hd_bias_backward_args {
    float *dbias;      /* [N]                        */
    const void *dout;  /* [R, N]  dtype, or NULL     */
    const float *sums; /* [P, N], exactly without dout */
    void *scratch;     /* NULL with sums */
    int64_t R, N, ldd, P;
    bool accumulate;
    enum hd_dtype dtype;
};

/* out[r,:] = scale * weight[index[r] - first,:] (+ weight2[index2[r],:], the learned positions of
 * GPT-2). An index outside the table gives a row of zeros: it is in another rank's shard of the
 * vocabulary, which begins at another `first`.
 * (data/ never emits a token id outside every shard.) */
struct hd_embedding_forward_args {
    void *out;             /* [R, C]   dtype */
    const int32_t *index;  /* [R]            */
    const void *weight;    /* [V, C]   dtype */
    const int32_t *index2; /* [R], or NULL   */
    const void *weight2;   /* [V2, C] dtype, or NULL */
    int64_t R, C, V, V2, first;
    float scale; /* 0: 1 */
    enum hd_dtype dtype;
};

/* dweight[v,:] (+)= scale * sum over r with index[r] - first == v of dout[r,:], in a fixed order.
 * Without accumulate the whole table is stored: table rows to which no index points become zero. */
struct hd_embedding_backward_args {
    float *dweight;       /* [V, C]        */
    const int32_t *index; /* [R]           */
    const void *dout;     /* [R, C]  dtype */
    void *scratch;
    int64_t R, C, V, first;
    float scale; /* 0: 1 */
    bool accumulate;
    enum hd_dtype dtype;
};

/* sum[r,:] = inp[r,:] + factor * add[r,:]   (if add is NULL, read `sum` below as inp)
 * out[r,:] = sum[r,:] * rstd[r] * weight[:],   rstd[r] = 1 / sqrt(mean_c sum[r,c]^2 + eps)
 * (Zhang & Sennrich 2019, "Root Mean Square Layer Normalization".) sum may alias inp or add. */
struct hd_rmsnorm_forward_args {
    void *out;          /* [R, C]  dtype          */
    void *sum;          /* [R, C]  dtype, or NULL exactly when add is */
    float *rstd;        /* [R]                    */
    const void *inp;    /* [R, C]  dtype          */
    const void *add;    /* [R, C]  dtype, or NULL */
    const void *weight; /* [C]     dtype          */
    HD_FP8_RESULT
    int64_t R, C;
    float eps;
    float factor;  /* 0: 1 */
    bool one_plus; /* true: the factor is 1 + weight, computed in fp32 (Gemma) */
    enum hd_dtype dtype;
};

/* dinp[r,:] = rstd[r] * (w*dout[r,:] - xhat[r,:] * mean_c(w*dout[r,c]*xhat[r,c])) (+ add[r,:]),
 * xhat = inp * rstd, w = weight, or 1 + weight with one_plus. `inp` is what was normalised (the
 * sum). dinp may alias add or dout.
 * dweight, if given, is that of rmsnorm_backward_weight below, over the same rows. */
struct hd_rmsnorm_backward_args {
    void *dinp;         /* [R, C]  dtype          */
    float *dweight;     /* [C], or NULL           */
    float *sums;        /* [P, C], or NULL: partial sums of dinp (bias_backward) */
    const void *dout;   /* [R, C]  dtype          */
    const void *inp;    /* [R, C]  dtype          */
    const float *rstd;  /* [R]                    */
    const void *weight; /* [C]     dtype          */
    const void *add;    /* [R, C]  dtype, or NULL: gradient of inp from the residual path */
    void *scratch;      /* NULL without dweight */
    int64_t R, C;
    bool accumulate; /* true: dweight is added to instead of stored */
    bool one_plus;
    enum hd_dtype dtype;
};

/* dweight[c] (+)= sum_r dout[r,c] * inp[r,c] * rstd[r], for the factors weight and 1 + weight */
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

/* sum as in rmsnorm; out[r,:] = (sum[r,:] - mean[r]) * rstd[r] * w[:] + bias[:],
 * rstd[r] = 1 / sqrt(var_c sum[r,c] + eps), the biased variance; w = weight, 1 + weight with
 * one_plus, or 1 without a weight.
 * (Ba, Kiros & Hinton 2016, "Layer Normalization".) */
struct hd_layernorm_forward_args {
    void *out;          /* [R, C]  dtype          */
    void *sum;          /* [R, C]  dtype, or NULL exactly when add is */
    float *mean;        /* [R]                    */
    float *rstd;        /* [R]                    */
    const void *inp;    /* [R, C]  dtype          */
    const void *add;    /* [R, C]  dtype, or NULL */
    const void *weight; /* [C]     dtype, or NULL: the norm has no weight */
    const void *bias;   /* [C]     dtype, or NULL: the norm has no bias */
    HD_FP8_RESULT
    int64_t R, C;
    float eps;
    float factor; /* 0: 1 */
    bool one_plus;
    enum hd_dtype dtype;
};

/* With xhat = (inp - mean) * rstd and g = w * dout:
 * dinp = rstd * (g - mean_c(g) - xhat * mean_c(g * xhat)) (+ add)
 * dweight and dbias, if given, are those of layernorm_backward_weight below, over the same rows. */
struct hd_layernorm_backward_args {
    void *dinp;         /* [R, C]  dtype          */
    float *dweight;     /* [C], or NULL           */
    float *dbias;       /* [C], or NULL; NULL without dweight */
    float *sums;        /* [P, C], or NULL: partial sums of dinp (bias_backward) */
    const void *dout;   /* [R, C]  dtype          */
    const void *inp;    /* [R, C]  dtype          */
    const float *mean;  /* [R]                    */
    const float *rstd;  /* [R]                    */
    const void *weight; /* [C]     dtype, or NULL */
    const void *add;    /* [R, C]  dtype, or NULL */
    void *scratch;      /* NULL without dweight */
    int64_t R, C;
    bool accumulate; /* true: dweight and dbias are added to instead of stored */
    bool one_plus;
    enum hd_dtype dtype;
};

/* dweight[c] (+)= sum_r dout[r,c] * xhat[r,c],   dbias[c] (+)= sum_r dout[r,c] */
struct hd_layernorm_backward_weight_args {
    float *dweight;    /* [C]           */
    float *dbias;      /* [C], or NULL  */
    const void *dout;  /* [R, C]  dtype */
    const void *inp;   /* [R, C]  dtype */
    const float *mean; /* [R]           */
    const float *rstd; /* [R]           */
    void *scratch;
    int64_t R, C;
    bool accumulate;
    enum hd_dtype dtype;
};

/* ---- Dropout: the mask depends on a value's position in the batch and model, not on sharding ----
 *
 * Philox4x32-10 (base/random.h) with the counter {number / 4, index, head, sample}, 32 bits each,
 * lowest first, gives four 32-bit words. A value is dropped if word (number % 4) is less than
 * p * 2^32; kept values are multiplied by 1 / (1 - p). HD_INVALID unless 0 <= p < 1. The key is
 * hd_random_key(key, block->step), where `key` is hd_dropout_key of the job's seed, the layer and
 * the dropout site in the layer. sample: number of the sample in the step's global batch; index:
 * index of the row in its sample; head: number of the head in the whole model, 0 outside attention;
 * number: the channel in the whole row, or, for attention weights, the key's index in the sample.
 * All are >= 0. */
uint64_t hd_dropout_key(uint64_t seed, int64_t layer, int64_t site);

/* out[r,c] = dropped(channel first_channel + c of row r) ? 0 : inp[r,c] / (1 - p). Backward is the
 * same kernel on the gradient. With `counts` the rows belong to `groups` experts, one expert after
 * the other: counts[i] rows of expert first_group + i; rows behind them are not written. */
struct hd_dropout_args {
    void *out;             /* [R, C]  dtype; may alias inp */
    const void *inp;       /* [R, C]  dtype */
    const int32_t *sample; /* [R] */
    const int32_t *index;  /* [R] */
    const struct hd_step_state *block;
    const int32_t *counts; /* [groups], or NULL */
    uint64_t key;
    int64_t R, C, first_channel, groups, first_group;
    float p;
    enum hd_dtype dtype;
};

/* Noise on embeddings (Jain et al. 2023, "NEFTune: Noisy Embeddings Improve Instruction Finetuning"):
 *   out[r,c] = inp[r,c] + alpha / sqrt(length[r] C) u,   u uniform in (-1, 1).
 * u = (2 (word >> 8) + 1) / 2^24 - 1, of the random word that dropout defines for channel c of row r,
 * with head 0 and the key of its own site. Rows with length 0, padding, are only copied. The gradient
 * of inp is that of out. */
struct hd_noise_args {
    void *out;             /* [R, C]  dtype; may alias inp */
    const void *inp;       /* [R, C]  dtype */
    const int32_t *sample; /* [R] */
    const int32_t *index;  /* [R] */
    const int32_t *length; /* [R] tokens of the row's conversation, or window of other text */
    const struct hd_step_state *block;
    uint64_t key;
    int64_t R, C;
    float alpha;
    enum hd_dtype dtype;
};

/* out[r,f] = act(inp[r,f]) * inp[r,F+f]: columns [0, F) are the gate, [F, 2F) the up projection.
 * (Shazeer 2020, "GLU Variants Improve Transformer".) With HD_ACT_OSS
 *   out = (u + 1) * g * sigmoid(alpha g),  g = min(gate, limit),  u = min(max(up, -limit), limit);
 * alpha and limit are not used otherwise. With counts (rows per expert) only the first counts[0] +
 * .. + counts[groups-1] rows are computed, R at most; other rows are neither read nor written.
 * glu_backward, activation_forward and activation_backward treat counts in the same way. */
struct hd_glu_forward_args {
    void *out;             /* [R, F]   dtype */
    const void *inp;       /* [R, 2F]  dtype */
    const int32_t *counts; /* [groups], or NULL: all rows */
    HD_FP8_RESULT
    int64_t R, F, groups;
    float alpha, limit;
    enum hd_activation act;
    enum hd_dtype dtype;
};

/* The gradient of glu_forward; that of a value beyond its limit is 0. */
struct hd_glu_backward_args {
    void *dinp;            /* [R, 2F]  dtype; may alias inp */
    const void *dout;      /* [R, F]   dtype */
    const void *inp;       /* [R, 2F]  dtype */
    const int32_t *counts; /* [groups], or NULL */
    HD_FP8_RESULT
    int64_t R, F, groups;
    float alpha, limit;
    enum hd_activation act;
    enum hd_dtype dtype;
};

/* out = act(inp); out may alias inp. HD_INVALID: HD_ACT_OSS, which needs an up projection. */
struct hd_activation_forward_args {
    void *out;             /* [N]  dtype */
    const void *inp;       /* [N]  dtype */
    const int32_t *counts; /* [groups]: number of rows, of N / R elements each; NULL: all N
                              elements */
    HD_FP8_RESULT
    int64_t N, R, groups; /* number of elements; of rows (used only with counts or codes); of
                              entries of counts */
    enum hd_activation act;
    enum hd_dtype dtype;
};

/* dinp = dout * act'(inp) */
struct hd_activation_backward_args {
    void *dinp;            /* [N]  dtype; may alias inp or dout */
    float *sums;           /* [P, N / R], or NULL: partial sums of the R rows of dinp
                              (bias_backward); not with counts */
    const void *dout;      /* [N]  dtype */
    const void *inp;       /* [N]  dtype */
    const int32_t *counts; /* [groups], or NULL */
    HD_FP8_RESULT
    int64_t N, R, groups; /* R is used only with counts, sums or codes */
    enum hd_activation act;
    enum hd_dtype dtype;
};

/* out[r,:] = y[r,:] * sigmoid(g[r]); out may alias y. (The gate of Qwen2-MoE's shared expert.) */
struct hd_row_gate_forward_args {
    void *out;     /* [R, C]  dtype */
    const void *y; /* [R, C]  dtype */
    const void *g; /* [R]     dtype */
    int64_t R, C;
    enum hd_dtype dtype;
};

/* With s = sigmoid(g[r]): dy[r,:] = dout[r,:] * s,  dg[r] = s (1 - s) sum_c dout[r,c] * y[r,c]. */
struct hd_row_gate_backward_args {
    void *dy;         /* [R, C]  dtype; may alias dout */
    void *dg;         /* [R]     dtype */
    const void *dout; /* [R, C]  dtype */
    const void *y;    /* [R, C]  dtype */
    const void *g;    /* [R]     dtype */
    int64_t R, C;
    enum hd_dtype dtype;
};

/* out = a + factor * b; out may alias a or b */
struct hd_add_args {
    void *out;
    const void *a, *b; /* [N]  dtype */
    int64_t N;
    float factor; /* 0: 1 */
    enum hd_dtype dtype;
};

/* out = min(max(inp, -limit), limit); out may alias inp. limit > 0; NaN stays NaN. */
struct hd_clamp_forward_args {
    void *out;       /* [N]  dtype */
    const void *inp; /* [N]  dtype */
    int64_t N;
    float limit;
    enum hd_dtype dtype;
};

/* dinp = dout where -limit <= inp <= limit, else 0; dinp may alias dout or inp */
struct hd_clamp_backward_args {
    void *dinp;       /* [N]  dtype */
    const void *dout; /* [N]  dtype */
    const void *inp;  /* [N]  dtype */
    int64_t N;
    float limit;
    enum hd_dtype dtype;
};

/* out = inp converted to out_dtype, rounded to nearest even */
struct hd_cast_args {
    void *out;       /* [N]  out_dtype */
    const void *inp; /* [N]  inp_dtype */
    int64_t N;
    enum hd_dtype out_dtype, inp_dtype;
};

/* out[r, n] = factor * inp[r, n] for N columns, in fp32, then rounded to nearest even. */
struct hd_copy_columns_args {
    void *out;       /* [R, N]  ldo, out_dtype */
    const void *inp; /* [R, N]  ldi, inp_dtype */
    int64_t R, N, ldo, ldi;
    float factor;
    enum hd_dtype out_dtype, inp_dtype;
};

/* ---- Magnitudes of rows (Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation") ----
 *
 *     y[r,n] = m[n] / |W + s B A|_n  (W x + s B A x)[r,n],  |.|_n the norm of row n
 *
 * The norm is a constant in backward (section 4.3 there). It needs no matrix of W's size:
 *
 *     |W + s B A|_n^2 = sum_k W[n,k]^2 + 2 s sum_i B[n,i] P[i,n] + s^2 sum_ij B[n,i] G[i,j] B[n,j]
 *     with P = A W^T [r, N] and G = A A^T [r, r]
 *
 * If tp splits the columns of W and A, the squares are this rank's term of a sum over tp. */

/* squares[n] = |W + s B A|_n^2 by the formula above. W may be quantised (base/quant.h), as one
 * matrix [N, K]; its values are rounded to dtype, like a product's. */
struct hd_dora_squares_args {
    float *squares;     /* [N]           */
    const void *weight; /* [N, K]  dtype */
    const void *b;      /* [N, r]  dtype */
    const float *p;     /* [r, N]        */
    const float *g;     /* [r, r]        */
    int64_t N, K, r;
    float scale; /* s */
    enum hd_dtype dtype;
    struct hd_quant_factor codes; /* encoding of weight; if its quant is not NONE, weight has codes
                                     in this encoding */
};

/* inverse[n] = 1 / sqrt(squares[n]); 0 if squares[n] is not positive, so that a row of zeros gives
 * 0. */
struct hd_dora_inverse_args {
    float *inverse;       /* [N]; may alias squares */
    const float *squares; /* [N] */
    int64_t N;
};

/* out[r,n] = inp[r,n] * (magnitude[n] * inverse[n]). The same kernel computes the gradient of inp
 * from the gradient of out. */
struct hd_dora_scale_args {
    void *out;              /* [R, N]  ldo, dtype; may alias inp if ldo = ldi */
    const void *inp;        /* [R, N]  ldi, dtype */
    const float *magnitude; /* [N]                */
    const float *inverse;   /* [N]                */
    int64_t R, N, ldo, ldi;
    enum hd_dtype dtype;
};

/* dmagnitude[n] (+)= inverse[n] * sum_r dout[r,n] * inp[r,n], where inp is the input of
 * dora_scale. */
struct hd_dora_backward_args {
    float *dmagnitude;    /* [N]                */
    const void *dout;     /* [R, N]  ldd, dtype */
    const void *inp;      /* [R, N]  ldi, dtype */
    const float *inverse; /* [N]                */
    void *scratch;
    int64_t R, N, ldd, ldi;
    bool accumulate;
    enum hd_dtype dtype;
};

/* out[0 .. size_bytes) = 0 */
struct hd_zero_args {
    void *out;
    int64_t size_bytes;
};

/* Zeroes the members of the step state that programs accumulate: loss_sum, target_count, overflow,
 * too_many_rows, the sums over pairs and the numbers of completions. */
struct hd_step_begin_args {
    struct hd_step_state *block;
};

/* sums[i] = sum of grad[j]^2 in double over chunk i: j in [i*HD_GRAD_CHUNK, (i+1)*HD_GRAD_CHUNK).
 * A gradient that is not finite sets block->overflow. */
struct hd_square_sums_args {
    double *sums; /* [ceil(N / HD_GRAD_CHUNK)] */
    struct hd_step_state *block;
    const float *grad; /* [N] */
    int64_t N;
};

/* Writes this rank's record for the exchange at the end of a step (enum hd_exchange_word); the word
 * for the sum of squares is the sum of `sums`, added in a fixed order. If several ranks compute the
 * same loss (tensor parallelism),
 * counts_loss is true on one of them; the others write 0 for loss and targets. */
struct hd_step_record_args {
    double *record; /* [HD_EXCHANGE_WORDS] */
    const struct hd_step_state *block;
    const double *sums; /* [chunks] */
    int64_t chunks;
    bool counts_loss;
};

/* Adds the records of all ranks in rank order and sets the results in the block:
 *   n = total targets,  grad_norm = sqrt(sum of squares) / (n * loss_scale),
 *   grad_factor = min(1, max_grad_norm / grad_norm) / (n * loss_scale)   (no clipping: min is 1).
 * With pairs n is the number of pairs, by which the sums of margins and of correct pairs are
 * divided, too. skip_update = 1 if any rank had an overflow, n == 0, or the norm is not finite;
 * else spike = 1, and skip_update = 1 as well, if the mean loss or the norm is above its limit. */
struct hd_step_finish_args {
    struct hd_step_state *block;
    const double *records; /* [ranks, HD_EXCHANGE_WORDS] */
    int64_t ranks;
};

/* Elements [begin, end) of an optimizer shard whose factors and encoding of moments are equal. */
struct hd_update_range {
    int64_t begin, end;
    float decay, lr_scale; /* factors by which the step's weight_decay and lr are multiplied */
    int64_t moments;       /* offset in bytes of this range's moments in m, and in v */
    int64_t block;         /* elements per block of the 8-bit moments (base/encoding.h); 0: moments
                              are fp32 */
};

/* AdamW over a flat shard of N parameters, with t = block->update and
 * g = grad * block->grad_factor:
 *   m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2,  mh = m / (1-b1^t),  vh = v / (1-b2^t),
 *   w = w - lr * (mh / (sqrt(vh) + eps) + weight_decay * w)
 * where lr and weight_decay are multiplied by lr_scale and decay of the element's range (Loshchilov
 * & Hutter 2019). copy, if not NULL, gets w in copy_dtype. Ranges are ascending, disjoint and cover
 * [0, N). If block->skip_update is set, no weight, moment or copy changes.
 *
 * With moment_bytes, m and v are encoded as their ranges say: fp32, or blocks of 8-bit codes, m by
 * the signed and v by the unsigned map. A block is decoded, updated in fp32 as above, which gives
 * w, and encoded with its new scale. Then the bounds of a range are multiples of its block and of
 * HD_BLOCK_MIN, and all addresses are multiples of HD_ENCODING_ALIGN bytes. */
struct hd_adamw_args {
    float *weight;     /* [N] master weights */
    void *m, *v;       /* [N] fp32; or moment_bytes bytes each */
    void *copy;        /* [N] copy_dtype, or NULL */
    const float *grad; /* [N] gradient, summed over the step's targets */
    const struct hd_step_state *block;
    const struct hd_update_range *ranges; /* [range_count] */
    int64_t N, range_count;
    int64_t moment_bytes; /* bytes of m, and of v, if ranges have offsets and encodings of their
                             moments; 0: m and v are fp32 [N] */
    enum hd_dtype copy_dtype;
};

#endif
