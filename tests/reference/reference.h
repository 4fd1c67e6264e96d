/* reference: every operation of the model once more, in double and in plain loops, forward and
 * gradient. What the kernels are compared with; its gradients are compared with central
 * differences.
 *
 * Tensors are dense and row-major. Gradients are stored, not added. Letters as in ops.h.
 *
 * Used by: tests.   Uses: kernels (enums).   Threads: pure functions.
 */
#ifndef HD_TESTS_REFERENCE_H
#define HD_TESTS_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* c[M,N] = op(a) op(b) + bias (or NULL) */
void ref_gemm(double *c, const double *a, const double *b, const double *bias, int64_t M, int64_t N,
              int64_t K, bool trans_a, bool trans_b);

/* out[r,:] = weight[index[r],:] + weight2[index2[r],:] (index2 or NULL); outside a table: zeros */
void ref_embedding(double *out, const int32_t *index, const double *weight, const int32_t *index2,
                   const double *weight2, int64_t R, int64_t C, int64_t V, int64_t V2);
void ref_embedding_backward(double *dweight, const int32_t *index, const double *dout, int64_t R,
                            int64_t C, int64_t V);

void ref_rmsnorm(double *out, double *rstd, const double *inp, const double *weight, int64_t R,
                 int64_t C, double eps);
/* dinp or dweight may be NULL */
void ref_rmsnorm_backward(double *dinp, double *dweight, const double *dout, const double *inp,
                          const double *weight, int64_t R, int64_t C, double eps);

/* bias or NULL */
void ref_layernorm(double *out, double *mean, double *rstd, const double *inp, const double *weight,
                   const double *bias, int64_t R, int64_t C, double eps);
void ref_layernorm_backward(double *dinp, double *dweight, double *dbias, const double *dout,
                            const double *inp, const double *weight, int64_t R, int64_t C,
                            double eps);

/* x[R,H,D] in place; channels first to first + W of each head turn, in halves or in neighbours;
 * table[P, W/2, {cos, sin}] */
struct ref_rope {
    int64_t W, first;
    bool interleaved, inverse;
};
void ref_rope(double *x, const int32_t *position, const double *table, int64_t R, int64_t H,
              int64_t D, const struct ref_rope *turn);

/* Dense: q, out [B*q_len, H, D], k, v [B*kv_stride, G, D], lse [H, B*q_len]. */
struct ref_attention {
    int64_t B, q_len, kv_len, kv_stride, H, G, D, window, chunk;
    const int32_t *q_index, *kv_index, *q_bound; /* q_bound or NULL */
    const double *slopes;                        /* or NULL */
    const double *sinks;                         /* score per head without a value, or NULL */
    const double *factor;                        /* on weights [B, H, q_len, kv_len], or NULL */
    const int32_t *kv_filled;                    /* [B], or NULL: all */
    double *top;                                 /* [H], raised to the largest visible scores,
                                                    sinks not counted; or NULL */
    double scale, cap;                           /* cap 0: none */
    bool causal;
    bool is_naive;  /* every operation's result is rounded; sums are not while they grow */
    int naive_bits; /* significant ones, to which it is: 11 of f16; 0: 8, of bf16 */
};
void ref_attention(const struct ref_attention *a, double *out, double *lse, const double *q,
                   const double *k, const double *v);
/* out and lse may be of a merged result. Rows of dk and dv past kv_len are zero. */
void ref_attention_backward(const struct ref_attention *a, double *dq, double *dk, double *dv,
                            const double *dout, const double *q, const double *k, const double *v,
                            const double *out, const double *lse);
/* dsinks[H] */
void ref_attention_sinks_backward(const struct ref_attention *a, double *dsinks, const double *dout,
                                  const double *out, const double *lse);

/* A gated activation; alpha and limit are those of HD_ACT_OSS. */
struct ref_glu {
    enum hd_activation act;
    double alpha, limit;
};
void ref_glu(double *out, const double *inp, int64_t R, int64_t F, struct ref_glu kind);
void ref_glu_backward(double *dinp, const double *dout, const double *inp, int64_t R, int64_t F,
                      struct ref_glu kind);
/* Return act(x) and its derivative, for any act but HD_ACT_OSS. */
double ref_act(double x, enum hd_activation act);
double ref_act_slope(double x, enum hd_activation act);
void ref_gelu(double *out, const double *inp, int64_t N);
void ref_gelu_backward(double *dinp, const double *dout, const double *inp, int64_t N);

/* out = the map of N logits: cap * tanh(scale * z / cap), scale * z if cap is 0; a scale of 0 is 1.
 * ref_map_backward turns the gradient of mapped logits into that of the logits, in place. */
void ref_map_logits(double *out, const double *logits, int64_t N, double scale, double cap);
void ref_map_backward(double *dlogits, const double *logits, int64_t N, double scale, double cap);

/* out[r,:] = y[r,:] * sigmoid(g[r]) for R rows of C */
void ref_row_gate(double *out, const double *y, const double *g, int64_t R, int64_t C);
void ref_row_gate_backward(double *dy, double *dg, const double *dout, const double *y,
                           const double *g, int64_t R, int64_t C);

/* Returns the sum of losses; dlogits [R, Vp] or NULL, for a loss factor of loss_scale. */
double ref_cross_entropy(double *dlogits, const double *logits, const int32_t *target, int64_t R,
                         int64_t V, int64_t Vp, double loss_scale);

/* Returns the sum of log^2 Z over the rows with a target, and adds the gradient of z times it, times
 * loss_scale, to dlogits. */
double ref_z_loss(double *dlogits, const double *logits, const int32_t *target, int64_t R,
                  int64_t V, int64_t Vp, double z, double loss_scale);

/* Gated delta layers (ops_delta.h), row after row. bound or NULL; rows are B*S. */
void ref_conv(double *out, const double *inp, const double *weight, const int32_t *bound, int64_t B,
              int64_t S, int64_t N, int64_t W, bool plain);
void ref_conv_backward(double *dinp, double *dweight, const double *dout, const double *inp,
                       const double *weight, const int32_t *bound, int64_t B, int64_t S, int64_t N,
                       int64_t W, bool plain);
/* gates[R, 2, H] from inp[R, 2, H] */
void ref_delta_gates(double *gates, const double *inp, const double *A_log, const double *dt_bias,
                     int64_t R, int64_t H);
void ref_delta_gates_backward(double *dinp, double *dA_log, double *ddt_bias, const double *dgates,
                              const double *inp, const double *A_log, const double *dt_bias,
                              int64_t R, int64_t H);
struct ref_delta {
    int64_t B, S, G, H, Dk, Dv;
    const int32_t *bound; /* [B*S], or NULL */
    double eps;
};
/* out[B*S, H*Dv] from rows [q | k | v] and gates[B*S, 2, H] */
void ref_gated_delta(const struct ref_delta *a, double *out, const double *qkv,
                     const double *gates);
void ref_gated_delta_backward(const struct ref_delta *a, double *dqkv, double *dgates,
                              const double *dout, const double *qkv, const double *gates);
/* heads of D channels, R of them */
void ref_gated_norm(double *out, double *rstd, const double *inp, const double *gate,
                    const double *weight, int64_t R, int64_t D, double eps);
void ref_gated_norm_backward(double *dinp, double *dgate, double *dweight, const double *dout,
                             const double *inp, const double *gate, const double *weight, int64_t R,
                             int64_t D, double eps);

/* The router as route_forward in ops_moe.h describes it; noise_logits and noise may be NULL. h[R,E]
 * are the logits with their noise. */
void ref_route(double *h, double *probs, double *lse, int32_t *chosen, double *gate,
               const double *logits, const double *noise_logits, const double *noise, int64_t R,
               int64_t E, int64_t K, bool renormalize);

/* The router with other scores and choices. Groups 0: none; bias NULL: zeros. */
struct ref_route_form {
    bool sigmoid, best_two;
    int64_t groups, kept;
    double scale;
    const double *select_bias; /* [E] */
};
void ref_route_by(const struct ref_route_form *form, double *probs, double *lse, int32_t *chosen,
                  double *gate, const double *h, int64_t R, int64_t E, int64_t K, bool renormalize);

struct ref_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;
};
void ref_adamw(const struct ref_adamw *a, double *weight, double *m, double *v, const double *grad,
               int64_t N);

/* The values of dynamic tree quantisation in ascending order (Dettmers et al. 2022): for each
 * exponent E = 0 .. 6 the interval [0.1, 1] * 10^-E is cut into 2^(6-E) equal pieces, without signs
 * into twice as many; the centres of the pieces, with both signs or one, and 0 and 1. */
void ref_dynamic_map(double ret_values[256], int is_signed);

#endif
