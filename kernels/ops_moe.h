/* ops_moe: what the device operations of a mixture of experts compute; shapes and rules as in
 * ops.h.
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
 * Everything about routing is fp32, whatever the rows are.
 *
 * Used by: kernels.h, which everybody includes.   Uses: base.   Threads: pure declarations.
 */
#ifndef HD_KERNELS_OPS_MOE_H
#define HD_KERNELS_OPS_MOE_H

#include "kernels/ops.h"

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

#endif
