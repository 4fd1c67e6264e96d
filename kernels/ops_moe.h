/* ops_moe: the contracts of the device operations of mixtures of experts; see also ops.h.
 *
 * E experts; the router chooses K of them per row (K "choices" per row). The R rows are Q runs of
 * R/Q rows; a run is a stretch of consecutive positions of one sequence. Without context
 * parallelism a run is a whole sequence. With zig-zag context parallelism each rank holds `runs` =
 * 2 runs of each of its B = Q / runs sequences; the runs of a sequence are adjacent. S = R / B * P
 * is the length of a whole sequence, over all P ranks.
 *
 * A sequence is a window of the data. It holds documents, and empty rows, such as the end of a
 * window that conversations do not fill. A document is a conversation, or each answer of a pair;
 * for other text the whole window is one document. `begins` is the index in the sequence at which a
 * row's document begins, `lengths` the number of its tokens; 0: the row is empty. An empty row
 * chooses no expert (chosen -1) and is in no count; its result is zeros. The balancing loss and the
 * capacity depend on one document only: not on the length of the window, on its other documents, or
 * on the ranks that hold its rows.
 *
 * A buffer in expert order has a capacity of T rows, fixed when the program is recorded: first the
 * counts[0] rows of expert 0, then those of expert 1, ... Kernels neither read nor write the unused
 * rows at the end. Counts that sum to more than T set overflow and are reduced to fit.
 * Costs count all T rows; for an expected number of rows n, pass the same arguments with T = n.
 *
 * Routing is computed in fp32, whatever the dtype of the rows.
 *
 * Used by: kernels.h; do not include it directly.   Uses: base.   Threads: pure declarations.
 */
#ifndef HD_KERNELS_OPS_MOE_H
#define HD_KERNELS_OPS_MOE_H

#include "kernels/ops.h"

/* Position of a rank's R rows in whole sequences, as Q runs. A sequence has P * runs pieces of R/Q
 * rows each, on P ranks (context parallelism). With runs = 2, rank p holds pieces p and 2P-1-p;
 * with runs = 1, piece p. */
struct hd_row_runs {
    int64_t Q, runs, P, rank;
};

/* noise[r,e] = standard normal numbers that depend on a row's position in the batch, not on
 * sharding (as dropout in ops.h): e = 2i and 2i + 1 are the pair of hd_random_normals
 * (base/random.h) with key hd_random_key(key, block->step), counter {i, index[r], 0, sample[r]};
 * `key` is hd_dropout_key of the job's seed, the layer and the router's site in the layer. */
struct hd_route_noise_args {
    float *noise;          /* [R, E] */
    const int32_t *sample; /* [R] */
    const int32_t *index;  /* [R] */
    const struct hd_step_state *block;
    uint64_t key;
    int64_t R, E;
};

/* How a router makes scores of its logits. */
enum hd_route_score {
    HD_ROUTE_SOFTMAX,
    HD_ROUTE_SIGMOID /* each expert by itself (DeepSeek-V3, 2024) */
};

/* Value of a group of experts, by which groups are kept. */
enum hd_route_groups {
    HD_ROUTE_GROUPS_BEST,    /* its best expert's (DeepSeek-V2, 2024) */
    HD_ROUTE_GROUPS_BEST_TWO /* sum of its two best experts' (DeepSeek-V3) */
};

/* Scores and choice of a router. All zeros: the K largest of a softmax. */
struct hd_route_form {
    enum hd_route_score score;
    enum hd_route_groups rule;
    int64_t groups; /* groups of adjacent experts, of which a row uses `kept`; 0 or 1: no groups */
    int64_t kept;
    float scale; /* factor of all gates; 0: 1 */
};
enum { HD_ROUTE_GROUPS_MAX = 64 }; /* most groups */

/* The top-k router. For an empty row chosen is -1, the other outputs are 0. With h = logits, or,
 * for noisy gating, h[r,e] = logits[r,e] + noise[r,e] * softplus(noise_logits[r,e]), softplus(x) =
 * log(1 + exp(x)) (Shazeer et al. 2017, "Outrageously Large Neural Networks": H(x)):
 *   softmax: probs[r,:] = softmax(h[r,:]),    lse[r] = log sum_e exp(h[r,e]),
 *   sigmoid: probs[r,e] = sigmoid(h[r,e]),    lse[r] = log(1e-20 + sum_e probs[r,e]),
 *   v[r,e] = probs[r,e] + select_bias[e],
 *   chosen[r,:] = the experts of the K largest v[r,:], largest first, on a tie the lower index,
 *   gate[r,k] = scale * probs[r,chosen[r,k]]; with `renormalize` these K probs are divided by their
 *   sum plus 1e-20.
 * With a softmax, without select bias and groups, v = h, and the renormalized gates are the softmax
 * of the chosen h: softmax(KeepTopK(h)) of Shazeer and what Mixtral does (Jiang et al. 2024). With
 * groups, group i is experts [i E/groups, (i+1) E/groups); experts of groups that are not among the
 * `kept` of largest value (on a tie the lower index) are not chosen. The losses use the same h.
 * With K = 1 a renormalized gate is 1 and passes no gradient to the router.
 * HD_INVALID unless 1 <= K <= E; with groups unless groups <= HD_ROUTE_GROUPS_MAX divides E, 1 <=
 * kept <= groups, K <= kept E/groups, and, for BEST_TWO, a group has two experts. */
struct hd_route_forward_args {
    float *probs;              /* [R, E] */
    float *lse;                /* [R]    */
    int32_t *chosen;           /* [R, K] */
    float *gate;               /* [R, K] */
    const float *logits;       /* [R, E] */
    const float *noise_logits; /* [R, E], or NULL: no noise */
    const float *noise;        /* [R, E], or NULL exactly when noise_logits is */
    const int32_t *lengths;    /* [R], or NULL: no row is empty */
    const float *select_bias;  /* [E], or NULL: zeros */
    struct hd_route_form form;
    int64_t R, E, K;
    bool renormalize;
};

/* counts[r,e] = choices of expert e by all rows of row r's document, for each row r that is the
 * first one of its document in its run (document.h); other rows of counts are not written. chosen
 * has the choices of all P ranks, in rank order. */
struct hd_route_counts_args {
    int32_t *counts;        /* [R, E] */
    const int32_t *chosen;  /* [P, R, K] */
    const int32_t *begins;  /* [R], or NULL: a document begins with its sequence */
    const int32_t *lengths; /* [R], or NULL: a document is a whole sequence */
    struct hd_row_runs at;
    int64_t R, E, K;
};

/* Words of a router's record. The load follows them: E words, the number of choices per expert. */
enum hd_route_word {
    HD_ROUTE_ROWS,
    HD_ROUTE_BALANCE,
    HD_ROUTE_Z,
    HD_ROUTE_DROPPED, /* number of choices that were dropped because they exceeded the expert
                         capacity */
    HD_ROUTE_WORDS
};

/* Adds to record the sums over this rank's rows that are not empty. The sum of the records of ranks
 * with different rows is the record of the whole batch, for every parallel layout:
 *   rows += 1,  z += lse[r]^2 (Zoph et al. 2022, "ST-MoE"),
 *   balance += E sum_e f[e] q[r,e], q = probs, or with a sigmoid probs[r,e] exp(-lse[r]),
 *   dropped += choices without a slot,  load[e] += choices of expert e,
 * where f[e] = (counts of expert e in the row's document) / (K n), n its tokens. The sum of balance
 * over a document is n E sum_e f[e] P[e] with P the mean of its q, n times the load-balancing
 * loss of Lepikhin et al. 2020 ("GShard") and Fedus et al. 2021 ("Switch Transformers"), 1 if the
 * load is even; with an f that divides by n alone it would be K times as large. Divide by the rows
 * for means over tokens. The caller applies the coefficients of the losses. */
struct hd_route_record_args {
    double *record;         /* [HD_ROUTE_WORDS + E] */
    const int32_t *counts;  /* [R, E], from route_counts */
    const int32_t *chosen;  /* [R, K], this rank's */
    const int32_t *slot;    /* [R, K], from assign */
    const float *probs;     /* [R, E] */
    const float *lse;       /* [R] */
    const int32_t *begins;  /* [R], or NULL; as in route_counts */
    const int32_t *lengths; /* [R], or NULL; as in route_counts */
    void *scratch;
    struct hd_row_runs at;
    int64_t R, E, K;
    enum hd_route_score score;
};

/* Gradients of L = (loss as a function of gate) + share * loss_scale * loss_per_token *
 * (balance * B + z * Z), where B and Z are the sums of route_record and f in B is a constant. With
 * c = coefficient * share * loss_scale * loss_per_token, t[e] = c_balance E f[e], q as in
 * route_record, and w = 1, or with a sigmoid w[e] = 1 - probs[r,e]:
 *   dh[r,e] = w[e] (q[r,e] (t[e] - sum_j q[r,j] t[j] + 2 c_z lse[r]) + gate part of e).
 * Gate part of an expert e, which is the row's k-th choice or not chosen:
 *   renormalize:      gate[r,k] (dgate[r,k] - sum_j gate[r,j] dgate[r,j] / scale), not chosen: 0;
 *   else, sigmoid:    gate[r,k] dgate[r,k], not chosen: 0;
 *   else, softmax:    the sigmoid's - probs[r,e] sum_j gate[r,j] dgate[r,j], also if not chosen.
 * dlogits = dh, dnoise_logits = dh * noise * sigmoid(noise_logits). An empty row gets zeros.
 *
 * These losses are means over the tokens of the step, like the main loss over its targets:
 * block->loss_per_token and grad_factor together divide by the tokens. `share`: if n ranks compute
 * the same rows and their gradients are summed (tensor parallelism), share is 1/n on each. */
struct hd_route_backward_args {
    float *dlogits;            /* [R, E] */
    float *dnoise_logits;      /* [R, E], or NULL exactly when noise_logits is */
    const float *dgate;        /* [R, K] */
    const float *probs;        /* [R, E] */
    const float *lse;          /* [R]    */
    const int32_t *chosen;     /* [R, K], this rank's */
    const float *gate;         /* [R, K] */
    const float *noise_logits; /* [R, E], or NULL */
    const float *noise;        /* [R, E], or NULL */
    const int32_t *counts;     /* [R, E], from route_counts; or NULL: no balancing loss */
    const int32_t *begins;     /* [R], or NULL; as in route_counts */
    const int32_t *lengths;    /* [R], or NULL; as in route_counts */
    const struct hd_step_state *block;
    struct hd_row_runs at;
    struct hd_route_form form; /* score and scale are read */
    int64_t R, E, K;
    float balance, z, share;
    bool renormalize;
};

/* bias[e] += rate * sign(mean of load - load[e]), unless block->skip_update: experts that had few
 * rows in a step are chosen more often in the next (Wang et al. 2024, "Auxiliary-Loss-Free Load
 * Balancing"). load is that of the router's record, the sum over all ranks. */
struct hd_route_bias_args {
    float *bias;        /* [E] */
    const double *load; /* [E] */
    const struct hd_step_state *block;
    int64_t E;
    float rate;
};

/* Assigns each choice a row of a buffer in expert order: slot[r,k], ascending in (expert, r, k).
 * With capacity > 0 an expert takes at most ceil(capacity n K / E) choices of a document with n
 * tokens, the first ones in the order (row, k), so whether a choice is dropped never depends on
 * later rows; other choices are dropped: slot -1, as for an empty row. capacity 0: no choice is
 * dropped. chosen has the choices of all `at.P` ranks. counts[e] = rows of expert e in the buffer;
 * sent[p] = rows for rank p of P, which holds experts [p E/P, (p+1) E/P). If more than T rows are
 * needed, overflow is set and the rows from T on get slot -1. HD_INVALID unless P divides E. */
struct hd_assign_args {
    int32_t *slot;   /* [R, K] */
    int32_t *counts; /* [E]    */
    int32_t *sent;   /* [P]    */
    struct hd_step_state *block;
    const int32_t *chosen;  /* [at.P, R, K] */
    const int32_t *begins;  /* [R], or NULL; as in route_counts */
    const int32_t *lengths; /* [R], or NULL; as in route_counts */
    void *scratch;
    struct hd_row_runs at;
    int64_t R, E, K, T, P;
    double capacity;
};

/* out[slot[r,k],:] = inp[r,:] for every choice k of row r that has a slot (a row of the buffer in
 * expert order; assign). */
struct hd_permute_forward_args {
    void *out;           /* [T, C]  dtype */
    const void *inp;     /* [R, C]  dtype */
    const int32_t *slot; /* [R, K]        */
    int64_t R, K, C, T;
    enum hd_dtype dtype;
};

/* dinp[r,:] = sum_k dout[slot[r,k],:] over the choices k of row r that have a slot (assign), in
 * fp32, in ascending k. */
struct hd_permute_backward_args {
    void *dinp;          /* [R, C]  dtype */
    const void *dout;    /* [T, C]  dtype */
    const int32_t *slot; /* [R, K]        */
    int64_t R, K, C, T;
    enum hd_dtype dtype;
};

/* out[r,:] = sum_k gate[r,k] * inp[slot[r,k],:] over the choices k of row r that have a slot
 * (assign), in fp32 and ascending k; a row whose choices have no slot gets zeros. */
struct hd_combine_forward_args {
    void *out;           /* [R, C]  dtype */
    const void *inp;     /* [T, C]  dtype */
    const float *gate;   /* [R, K]        */
    const int32_t *slot; /* [R, K]        */
    int64_t R, K, C, T;
    enum hd_dtype dtype;
};

/* dinp[slot[r,k],:] = gate[r,k] * dout[r,:],  dgate[r,k] = sum_c dout[r,c] * inp[slot[r,k],c];
 * dgate is 0 for a choice without a slot. dinp may alias inp. Either result may be left out: where
 * gates multiply the inputs of experts, `dout` is these rows x, the first result alone is forward's
 * gate[r,k] * x[r,:], and the second, with `inp` the gradient of those products, is dgate. */
struct hd_combine_backward_args {
    void *dinp;          /* [T, C]  dtype, or NULL */
    float *dgate;        /* [R, K], or NULL        */
    const void *dout;    /* [R, C]  dtype */
    const void *inp;     /* [T, C]  dtype, or NULL exactly when dgate is */
    const float *gate;   /* [R, K]        */
    const int32_t *slot; /* [R, K]        */
    int64_t R, K, C, T;
    enum hd_dtype dtype;
};

/* Reorders the rows that P ranks sent to this rank's E experts, from (rank, expert) order, in which
 * they arrive, to (expert, rank) order; `inverse` reorders them back.
 * counts[e] = sum_p all_counts[p,e]. */
struct hd_regroup_args {
    void *out;                   /* [T, C]  dtype */
    int32_t *counts;             /* [E], or NULL  */
    struct hd_step_state *block; /* overflow is set if counts sum to more than T; NULL: an earlier
                                    regroup has checked this */
    const void *inp;             /* [T, C]  dtype */
    const int32_t *all_counts;   /* [P, E]: number of rows from each rank for each expert */
    void *scratch;
    int64_t P, E, T, C;
    bool inverse;
    enum hd_dtype dtype;
};

/* c[i,:] (+)= a[i,:] op(b[e]) for every expert e and each of its rows i, summed in fp32; b[e] is
 * [K, N], or [N, K] with trans_b. Weights of linear layers are stored [N, K]: forward uses trans_b,
 * the gradient of the inputs does not. A row's result depends only on the row, its expert and the
 * sizes in the arguments, not on how many rows each expert has. b may be quantised as in gemm, one
 * matrix per expert; b_codes describes the first one. */
struct hd_grouped_gemm_args {
    void *c;               /* [T, N]  c_dtype  */
    const void *a;         /* [T, K]  ab_dtype */
    const void *b;         /* E matrices, ab_dtype, stride_b elements from one to the next;
                              quantised: stride_b bytes */
    const int32_t *counts; /* [E] */
    void *scratch;
    int64_t E, T, N, K, lda, ldb, ldc, stride_b;
    bool trans_b, accumulate;
    enum hd_dtype ab_dtype, c_dtype;
    struct hd_quant_factor b_codes;
};

/* c[e] (+)= sum_i a[i,:]^T b[i,:] for every expert e, over its rows i: the gradient of weights
 * [M, N], where a is the gradient of the outputs and b the inputs. An expert without rows gets a
 * gradient of zeros. */
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

/* out[i,:] += bias[e,:] for every expert e and each of its rows i. */
struct hd_expert_bias_forward_args {
    void *out;             /* [T, N]  dtype, rows ldo elements apart */
    const void *bias;      /* [E, N]  dtype */
    const int32_t *counts; /* [E] */
    int64_t E, T, N, ldo;
    enum hd_dtype dtype;
};

/* dbias[e,:] (+)= sum_i dout[i,:] for every expert e, over its rows i, in fp32. An expert without
 * rows gets zeros, or with `accumulate` nothing. */
struct hd_expert_bias_backward_args {
    float *dbias;          /* [E, N] */
    const void *dout;      /* [T, N]  dtype, rows ldd elements apart */
    const int32_t *counts; /* [E] */
    int64_t E, T, N, ldd;
    bool accumulate;
    enum hd_dtype dtype;
};

#endif
