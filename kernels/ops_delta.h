/* ops_delta: the contracts of the device operations of gated delta layers (Yang et al. 2024, "Gated
 * Delta Networks: Improving Mamba2 with Delta Rule"), and of the gate of attention's output that
 * such models have; see also ops.h.
 *
 * A layer has G key heads of Dk channels and H value heads of Dv channels; H / G neighbouring value
 * heads share a key head. Rows are B sequences of S rows each; document bounds are indices of rows
 * within their sequence. A document's first row sees neither inputs nor a state of earlier rows.
 *
 * In decode, sequence b has the state in slot[b]. It has read before[b] tokens, 0: none, its state
 * is then taken as zeros; the first after[b] - before[b] of its S rows are its next tokens, and
 * other rows are not computed. Slots of sequences without next tokens are not changed.
 *
 * A sequence may be a segment of a longer one, with rows before and after it on other ranks. The
 * kernels then get what comes from the rows before (`halo`, `initial`), and `position`, the index
 * in the whole sequence of each row, which `bound` counts by; of it they read the first row of each
 * segment. A segment before which there is nothing has zeros in halo or initial.
 *
 * Used by: kernels.h; do not include it directly.   Uses: base.   Threads: pure declarations.
 */
#ifndef HD_KERNELS_OPS_DELTA_H
#define HD_KERNELS_OPS_DELTA_H

#include "kernels/ops.h"

enum {
    HD_CONV_WIDTH_MAX = 8,   /* most taps of a convolution */
    HD_DELTA_CHUNK = 64,     /* rows that gated_delta computes by products of matrices, between two
                              states */
    HD_DELTA_WIDTH_MAX = 256 /* most channels of a head */
};

/* Causal convolution along the rows, each channel by itself, then SiLU. With row t of a sequence
 * and W taps:
 *   pre[t,c] = sum over j < W of weight[c, W-1-j] * inp[t-j,c],   out = pre * sigmoid(pre),
 * or with `plain` out = pre, where rows before the row's document are zeros. With `state`, rows before the sequence's first
 * are the last W-1 inputs of the slot, which then become those of the sequence's end. */
struct hd_conv_forward_args {
    void *out;               /* [B*S, N]  dtype                                       */
    void *state;             /* [slots, W-1, N]  dtype, or NULL                       */
    const void *inp;         /* [B*S, N]  dtype                                       */
    const void *weight;      /* [N, W]  dtype                                         */
    const int32_t *bound;    /* [B*S]: row of the sequence at which the row's document begins; NULL:
                              row 0 */
    const int32_t *before;   /* [B]; NULL exactly when state is */
    const int32_t *after;    /* [B]; NULL exactly when state is */
    const int32_t *slot;     /* [B]; NULL exactly when state is */
    const void *halo;        /* [B, W-1, N]  dtype: the inputs before each segment; NULL: whole
                              sequences, or state is given */
    const int32_t *position; /* [B*S]; NULL exactly when halo is */
    int64_t B, S, N, W;      /* W from 2 to HD_CONV_WIDTH_MAX */
    bool plain;              /* true: without SiLU, as in short convolutions */
    enum hd_dtype dtype;
};

/* With g[t] = dout[t] * silu'(pre[t]), plain: dout[t]: dinp[t,c] = sum over j < W of weight[c, W-1-j] * g[t+j,c] of
 * the rows t+j that are in the sequence and in the row's document; dhalo is the same sum for the
 * rows of the halo. */
struct hd_conv_backward_args {
    void *dinp;              /* [B*S, N]  dtype            */
    float *dhalo;            /* [B, W-1, N]; NULL exactly when halo is */
    const void *dout;        /* [B*S, N]  dtype            */
    const void *inp;         /* [B*S, N]  dtype            */
    const void *weight;      /* [N, W]  dtype              */
    const int32_t *bound;    /* [B*S], or NULL             */
    const void *halo;        /* [B, W-1, N]  dtype, or NULL */
    const int32_t *position; /* [B*S]; NULL exactly when halo is */
    int64_t B, S, N, W;
    bool plain;
    enum hd_dtype dtype;
};

/* dweight[c, W-1-j] (+)= sum_t g[t,c] * inp[t-j,c], over rows t-j of the row's document. */
struct hd_conv_backward_weight_args {
    float *dweight;          /* [N, W]                     */
    const void *dout;        /* [B*S, N]  dtype            */
    const void *inp;         /* [B*S, N]  dtype            */
    const void *weight;      /* [N, W]  dtype              */
    const int32_t *bound;    /* [B*S], or NULL             */
    const void *halo;        /* [B, W-1, N]  dtype, or NULL */
    const int32_t *position; /* [B*S]; NULL exactly when halo is */
    void *scratch;
    int64_t B, S, N, W;
    bool accumulate, plain;
    enum hd_dtype dtype;
};

/* The two numbers of each row and value head from inp = [b: H | a: H]:
 *   beta = sigmoid(b),   g = -exp(A_log) * softplus(a + dt_bias),  the logarithm of the decay. */
struct hd_delta_gates_forward_args {
    float *gates;         /* [R, 2, H]: beta, g */
    const void *inp;      /* [R, 2, H]  dtype   */
    const float *A_log;   /* [H]                */
    const float *dt_bias; /* [H]                */
    int64_t R, H;
    enum hd_dtype dtype;
};

/* The gradient of delta_gates_forward's input; terms = {dg * g, da} are the terms of the gradients
 * of A_log and of dt_bias, which are their sums over rows. */
struct hd_delta_gates_backward_args {
    void *dinp;           /* [R, 2, H]  dtype         */
    float *terms;         /* [R, 2, H], or NULL       */
    const float *dgates;  /* [R, 2, H]                */
    const void *inp;      /* [R, 2, H]  dtype         */
    const float *A_log;   /* [H]                      */
    const float *dt_bias; /* [H]                      */
    int64_t R, H;
    enum hd_dtype dtype;
};

/* The gated delta rule, for each value head with its state M [Dk, Dv] in fp32, which is zero
 * before a document's first row. With q and k of a row divided by their length,
 *   n(x) = x / sqrt(sum x^2 + eps),   qn = n(q) / sqrt(Dk),   kn = n(k),
 *   M <- exp(g) M,   M <- M + kn (beta (v - kn^T M)),   out = qn^T M.
 * Rows of qkv are [q: G*Dk | k: G*Dk | v: H*Dv].
 *
 * Chunks of HD_DELTA_CHUNK rows of a sequence are computed by products of matrices. With the rows
 * of a chunk, c_i the sum of g up to row i, D_ij = exp(c_i - c_j) for j <= i in the same document,
 * else 0, e_i = exp(c_i) while the chunk's first document lasts if it is that of the rows before,
 * else 0, f_j = exp(c_last - c_j) in the chunk's last document, else 0:
 *   (I + L) U = beta (V - e (K M)),  L_ij = beta_i D_ij k_i.k_j for j < i,
 *   out = e (Q M) + A U,  A_ij = D_ij q_i.k_j for j <= i,
 *   M <- e_last M + (f K)^T U. */
struct hd_gated_delta_forward_args {
    void *out;             /* [B*S, H*Dv]  dtype                                   */
    float *state;          /* [slots, H, Dk, Dv], or NULL                          */
    const void *qkv;       /* [B*S, 2*G*Dk + H*Dv]  dtype                          */
    const float *gates;    /* [B*S, 2, H]: beta, g                                 */
    const int32_t *bound;  /* [B*S], or NULL                                       */
    const int32_t *before; /* [B]; NULL exactly when state is                      */
    const int32_t *after;  /* [B]; NULL exactly when state is                      */
    const int32_t *slot;   /* [B]; NULL exactly when state is                      */
    const float *initial;  /* [B, H, Dk, Dv]: M before each segment; NULL: whole sequences, or state
                              is given */
    const int32_t *position; /* [B*S]; NULL exactly when initial is                */
    void *scratch;
    int64_t B, S, G, H, Dk, Dv; /* G divides H; widths are multiples of 8, at most
                                   HD_DELTA_WIDTH_MAX */
    float eps;
    enum hd_dtype dtype;
};

/* The gradients of gated_delta_forward without slots. The kernel recomputes the state before each
 * chunk, in scratch. The gradient of `initial` is no result: delta_prefix computes it for all
 * segments. */
struct hd_gated_delta_backward_args {
    void *dqkv;              /* [B*S, 2*G*Dk + H*Dv]  dtype */
    float *dgates;           /* [B*S, 2, H]                 */
    const void *dout;        /* [B*S, H*Dv]  dtype          */
    const void *qkv;         /* [B*S, 2*G*Dk + H*Dv]  dtype */
    const float *gates;      /* [B*S, 2, H]                 */
    const int32_t *bound;    /* [B*S], or NULL              */
    const float *initial;    /* [B, H, Dk, Dv], or NULL     */
    const float *dfinal;     /* [B, H, Dk, Dv]: gradient of M after each segment; NULL exactly when
                             initial is */
    const int32_t *position; /* [B*S]; NULL exactly when initial is */
    void *scratch;
    int64_t B, S, G, H, Dk, Dv;
    float eps;
    enum hd_dtype dtype;
};

/* A segment as a function of the state before it, M_after = T M_before + M_own, per value head: T
 * is the product of the transitions of its rows, exp(g) (I - beta kn kn^T), or zero if a document
 * begins in the segment; M_own is M_after of a segment before which the state is zero. Both go
 * through the chunks as states do, T with no values and from the unit matrix on. */
struct hd_delta_summary_args {
    float *summary;          /* T of all segments [B, H, Dk, Dk], then M_own [B, H, Dk, Dv] */
    const void *qkv;         /* [B*S, 2*G*Dk + H*Dv]  dtype */
    const float *gates;      /* [B*S, 2, H]                 */
    const int32_t *bound;    /* [B*S], or NULL              */
    const int32_t *position; /* [B*S]                       */
    void *scratch;
    int64_t B, S, G, H, Dk, Dv;
    float eps;
    enum hd_dtype dtype;
};

/* The gradient of the state before a segment through its results alone; that of the whole is
 * dM_before = T^T dM_after + dstate. */
struct hd_delta_state_gradient_args {
    float *dstate;           /* [B, H, Dk, Dv]              */
    const void *dout;        /* [B*S, H*Dv]  dtype          */
    const void *qkv;         /* [B*S, 2*G*Dk + H*Dv]  dtype */
    const float *gates;      /* [B*S, 2, H]                 */
    const int32_t *bound;    /* [B*S], or NULL              */
    const int32_t *position; /* [B*S]                       */
    void *scratch;
    int64_t B, S, G, H, Dk, Dv;
    float eps;
    enum hd_dtype dtype;
};

/* Goes through the 2 P segments of each sequence in order, from M = 0 on, by M <- T M + X, and
 * stores M before the two segments of rank `rank` (mesh/zigzag.h: numbers rank and 2P-1-rank). With
 * `reverse`: from the last segment on, by M <- T^T M + X, and M after the two segments. */
struct hd_delta_prefix_args {
    float *state;           /* [B, 2, H, Dk, Dv] */
    const float *summaries; /* by rank [P]: T [B, 2, H, Dk, Dk], then X [B, 2, H, Dk, Dv] */
    int64_t P, rank, B, H, Dk, Dv;
    bool reverse;
};

/* RMSNorm over the D channels of each head, times SiLU of a gate:
 *   out[r,h,:] = inp[r,h,:] * rstd[r,h] * weight[:] * silu(gate[r,h,:]),
 *   rstd[r,h] = 1 / sqrt(mean_d inp[r,h,d]^2 + eps). */
struct hd_gated_norm_forward_args {
    void *out;          /* [R, H, D]  dtype */
    float *rstd;        /* [R, H]           */
    const void *inp;    /* [R, H, D]  dtype */
    const void *gate;   /* [R, H, D]  dtype */
    const void *weight; /* [D]  dtype       */
    int64_t R, H, D;
    float eps;
    enum hd_dtype dtype;
};

/* With y = dout * silu(gate), xhat = inp * rstd:
 *   dinp = rstd (weight y - xhat mean_d(weight y xhat)),   dgate = dout xhat weight silu'(gate). */
struct hd_gated_norm_backward_args {
    void *dinp;         /* [R, H, D]  dtype */
    void *dgate;        /* [R, H, D]  dtype */
    const void *dout;   /* [R, H, D]  dtype */
    const void *inp;    /* [R, H, D]  dtype */
    const void *gate;   /* [R, H, D]  dtype */
    const float *rstd;  /* [R, H]           */
    const void *weight; /* [D]  dtype       */
    int64_t R, H, D;
    enum hd_dtype dtype;
};

/* dweight[d] (+)= sum over r and h of dout[r,h,d] * silu(gate[r,h,d]) * inp[r,h,d] * rstd[r,h] */
struct hd_gated_norm_backward_weight_args {
    float *dweight;    /* [D]              */
    const void *dout;  /* [R, H, D]  dtype */
    const void *inp;   /* [R, H, D]  dtype */
    const void *gate;  /* [R, H, D]  dtype */
    const float *rstd; /* [R, H]           */
    void *scratch;
    int64_t R, H, D;
    bool accumulate;
    enum hd_dtype dtype;
};

/* out = y * sigmoid(g), with `plain` y * g, element by element; out may alias y or g. */
struct hd_sigmoid_gate_forward_args {
    void *out;     /* [N]  dtype */
    const void *y; /* [N]  dtype */
    const void *g; /* [N]  dtype */
    int64_t N;
    bool plain;
    enum hd_dtype dtype;
};

/* With s = sigmoid(g): dy = dout * s,  dg = dout * y * s (1 - s). With `plain`: dy = dout * g,
 * dg = dout * y. */
struct hd_sigmoid_gate_backward_args {
    void *dy;         /* [N]  dtype */
    void *dg;         /* [N]  dtype */
    const void *dout; /* [N]  dtype */
    const void *y;    /* [N]  dtype */
    const void *g;    /* [N]  dtype */
    int64_t N;
    bool plain;
    enum hd_dtype dtype;
};

#endif
