#include "tests/reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sorted.h"

void ref_gemm(double *c, const double *a, const double *b, const double *bias, int64_t M, int64_t N,
              int64_t K, bool trans_a, bool trans_b)
{
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            double sum = bias ? bias[j] : 0;

            for (int64_t k = 0; k < K; k++)
                sum += a[trans_a ? k * M + i : i * K + k] * b[trans_b ? j * K + k : k * N + j];
            c[i * N + j] = sum;
        }
}

static void add_table_row(double *out, int32_t index, const double *weight, int64_t C, int64_t V)
{
    for (int64_t c = 0; index >= 0 && index < V && c < C; c++)
        out[c] += weight[index * C + c];
}

void ref_embedding(double *out, const int32_t *index, const double *weight, const int32_t *index2,
                   const double *weight2, int64_t R, int64_t C, int64_t V, int64_t V2)
{
    memset(out, 0, (size_t)(R * C) * sizeof *out);
    for (int64_t r = 0; r < R; r++) {
        add_table_row(out + r * C, index[r], weight, C, V);
        if (index2)
            add_table_row(out + r * C, index2[r], weight2, C, V2);
    }
}

void ref_embedding_backward(double *dweight, const int32_t *index, const double *dout, int64_t R,
                            int64_t C, int64_t V)
{
    memset(dweight, 0, (size_t)(V * C) * sizeof *dweight);
    for (int64_t r = 0; r < R; r++)
        for (int64_t c = 0; index[r] >= 0 && index[r] < V && c < C; c++)
            dweight[index[r] * C + c] += dout[r * C + c];
}

static double inverse_rms(const double *x, int64_t C, double eps)
{
    double squares = 0;

    for (int64_t c = 0; c < C; c++)
        squares += x[c] * x[c];
    return 1 / sqrt(squares / (double)C + eps);
}

void ref_rmsnorm(double *out, double *rstd, const double *inp, const double *weight, int64_t R,
                 int64_t C, double eps)
{
    for (int64_t r = 0; r < R; r++) {
        rstd[r] = inverse_rms(inp + r * C, C, eps);
        for (int64_t c = 0; c < C; c++)
            out[r * C + c] = inp[r * C + c] * rstd[r] * weight[c];
    }
}

/* With n = x s, s = (mean x^2 + eps)^(-1/2):  dn_c/dx_k = s [c == k] - s^3 x_c x_k / C. */
void ref_rmsnorm_backward(double *dinp, double *dweight, const double *dout, const double *inp,
                          const double *weight, int64_t R, int64_t C, double eps)
{
    if (dweight)
        memset(dweight, 0, (size_t)C * sizeof *dweight);
    for (int64_t r = 0; r < R; r++) {
        const double *x = inp + r * C, *dy = dout + r * C;
        const double s = inverse_rms(x, C, eps);
        double dot = 0;

        for (int64_t c = 0; c < C; c++)
            dot += dy[c] * weight[c] * x[c];
        for (int64_t k = 0; dinp && k < C; k++)
            dinp[r * C + k] = s * dy[k] * weight[k] - s * s * s * x[k] * dot / (double)C;
        for (int64_t c = 0; dweight && c < C; c++)
            dweight[c] += dy[c] * x[c] * s;
    }
}

static void moments(const double *x, int64_t C, double eps, double *ret_mean, double *ret_rstd)
{
    double mean = 0, variance = 0;

    for (int64_t c = 0; c < C; c++)
        mean += x[c] / (double)C;
    for (int64_t c = 0; c < C; c++)
        variance += (x[c] - mean) * (x[c] - mean) / (double)C;
    *ret_mean = mean;
    *ret_rstd = 1 / sqrt(variance + eps);
}

void ref_layernorm(double *out, double *mean, double *rstd, const double *inp, const double *weight,
                   const double *bias, int64_t R, int64_t C, double eps)
{
    for (int64_t r = 0; r < R; r++) {
        moments(inp + r * C, C, eps, &mean[r], &rstd[r]);
        for (int64_t c = 0; c < C; c++)
            out[r * C + c] =
                (inp[r * C + c] - mean[r]) * rstd[r] * weight[c] + (bias ? bias[c] : 0);
    }
}

/* With d = x - mean and s = rstd:  dn_c/dx_k = s ([c == k] - 1/C) - s^3 d_c d_k / C. */
void ref_layernorm_backward(double *dinp, double *dweight, double *dbias, const double *dout,
                            const double *inp, const double *weight, int64_t R, int64_t C,
                            double eps)
{
    if (dweight)
        memset(dweight, 0, (size_t)C * sizeof *dweight);
    if (dbias)
        memset(dbias, 0, (size_t)C * sizeof *dbias);
    for (int64_t r = 0; r < R; r++) {
        const double *x = inp + r * C, *dy = dout + r * C;
        double mean, s, sum = 0, dot = 0;

        moments(x, C, eps, &mean, &s);
        for (int64_t c = 0; c < C; c++) {
            sum += dy[c] * weight[c];
            dot += dy[c] * weight[c] * (x[c] - mean);
        }
        for (int64_t k = 0; dinp && k < C; k++)
            dinp[r * C + k] = s * (dy[k] * weight[k] - sum / (double)C) -
                              s * s * s * (x[k] - mean) * dot / (double)C;
        for (int64_t c = 0; c < C; c++) {
            if (dweight)
                dweight[c] += dy[c] * (x[c] - mean) * s;
            if (dbias)
                dbias[c] += dy[c];
        }
    }
}

void ref_rope(double *x, const int32_t *position, const double *table, int64_t R, int64_t H,
              int64_t D, const struct ref_rope *turn)
{
    const int64_t half = turn->W / 2;

    for (int64_t r = 0; r < R; r++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < half; i++) {
                double *head = x + (r * H + h) * D + turn->first;
                double *a = head + (turn->interleaved ? 2 * i : i);
                double *b = head + (turn->interleaved ? 2 * i + 1 : i + half);
                const double *angle = table + (position[r] * half + i) * 2;
                const double c = angle[0], s = turn->inverse ? -angle[1] : angle[1];
                const double a0 = *a, b0 = *b;

                *a = a0 * c - b0 * s;
                *b = a0 * s + b0 * c;
            }
}

static bool is_visible(const struct ref_attention *a, int64_t b, int64_t i, int64_t j)
{
    const int64_t q = a->q_index[b * a->q_len + i], k = a->kv_index[b * a->kv_stride + j];

    if (a->causal && k > q)
        return false;
    if (a->window > 0 && q - k >= a->window)
        return false;
    if (a->q_bound && k < a->q_bound[b * a->q_len + i])
        return false;
    if (a->chunk > 0) {
        const int64_t start = a->q_bound ? a->q_bound[b * a->q_len + i] : 0;

        if ((k - start) / a->chunk != (q - start) / a->chunk)
            return false;
    }
    return !a->kv_filled || j < a->kv_filled[b];
}

/* To the nearest of so many significant bits, in an encoding whose range is that of the values
 * here.
 */
static double round_to_bits(double x, int bits)
{
    int exponent;
    const double fraction = frexp(x, &exponent);

    return isfinite(x) ? ldexp(nearbyint(ldexp(fraction, bits)), exponent - bits) : x;
}

static double result_of(const struct ref_attention *a, double x)
{
    return a->is_naive ? round_to_bits(x, a->naive_bits ? a->naive_bits : 8) : x;
}

static double score_of(const struct ref_attention *a, const double *q, const double *k, int64_t b,
                       int64_t h, int64_t i, int64_t j)
{
    const double *query = q + ((b * a->q_len + i) * a->H + h) * a->D;
    const double *key = k + ((b * a->kv_stride + j) * a->G + h / (a->H / a->G)) * a->D;
    double dot = 0;

    for (int64_t d = 0; d < a->D; d++)
        dot += query[d] * key[d];
    dot = result_of(a, result_of(a, dot) * a->scale);
    if (a->cap > 0)
        dot = a->cap * result_of(a, tanh(result_of(a, dot / a->cap)));
    if (a->slopes)
        dot -= a->slopes[h] *
               (double)(a->q_index[b * a->q_len + i] - a->kv_index[b * a->kv_stride + j]);
    return result_of(a, dot);
}

/* Returns the factor of dropout on one weight. */
static double factor_of(const struct ref_attention *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return a->factor ? a->factor[((b * a->H + h) * a->q_len + i) * a->kv_len + j] : 1;
}

void ref_attention(const struct ref_attention *a, double *out, double *lse, const double *q,
                   const double *k, const double *v)
{
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t i = 0; i < a->q_len; i++) {
                double *o = out + ((b * a->q_len + i) * a->H + h) * a->D;
                double max = -INFINITY, sum = 0;

                memset(o, 0, (size_t)a->D * sizeof *o);
                for (int64_t j = 0; j < a->kv_len; j++)
                    if (is_visible(a, b, i, j))
                        max = fmax(max, score_of(a, q, k, b, h, i, j));
                if (a->top)
                    a->top[h] = fmax(a->top[h], max);
                if (a->sinks) {
                    max = fmax(max, a->sinks[h]);
                    sum = exp(a->sinks[h] - max);
                }
                for (int64_t j = 0; j < a->kv_len; j++) {
                    const double *value =
                        v + ((b * a->kv_stride + j) * a->G + h / (a->H / a->G)) * a->D;
                    double p;

                    if (!is_visible(a, b, i, j))
                        continue;
                    p = result_of(a, exp(score_of(a, q, k, b, h, i, j) - max));
                    sum += p;
                    p *= factor_of(a, b, h, i, j);
                    for (int64_t d = 0; d < a->D; d++)
                        o[d] += p * value[d];
                }
                for (int64_t d = 0; sum > 0 && d < a->D; d++)
                    o[d] = result_of(a, o[d] / sum);
                lse[h * a->B * a->q_len + b * a->q_len + i] = sum > 0 ? max + log(sum) : -INFINITY;
            }
}

void ref_attention_backward(const struct ref_attention *a, double *dq, double *dk, double *dv,
                            const double *dout, const double *q, const double *k, const double *v,
                            const double *out, const double *lse)
{
    const int64_t D = a->D;

    memset(dq, 0, (size_t)(a->B * a->q_len * a->H * D) * sizeof *dq);
    memset(dk, 0, (size_t)(a->B * a->kv_stride * a->G * D) * sizeof *dk);
    memset(dv, 0, (size_t)(a->B * a->kv_stride * a->G * D) * sizeof *dv);
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t i = 0; i < a->q_len; i++) {
                const int64_t at = ((b * a->q_len + i) * a->H + h) * D;
                double delta = 0;

                for (int64_t d = 0; d < D; d++)
                    delta += dout[at + d] * out[at + d];
                for (int64_t j = 0; j < a->kv_len; j++) {
                    const int64_t key = ((b * a->kv_stride + j) * a->G + h / (a->H / a->G)) * D;
                    const double factor = factor_of(a, b, h, i, j);
                    double score, p, dp = 0, ds;

                    if (!is_visible(a, b, i, j))
                        continue;
                    score = score_of(a, q, k, b, h, i, j);
                    p = result_of(a, exp(score - lse[h * a->B * a->q_len + b * a->q_len + i]));
                    for (int64_t d = 0; d < D; d++)
                        dp += dout[at + d] * v[key + d];
                    ds = result_of(a, p * result_of(a, result_of(a, dp) * factor - delta));
                    if (a->cap > 0)
                        ds = result_of(a, ds * (1 - score / a->cap * (score / a->cap)));
                    for (int64_t d = 0; d < D; d++) {
                        dv[key + d] += p * factor * dout[at + d];
                        dq[at + d] += a->scale * ds * k[key + d];
                        dk[key + d] += a->scale * ds * q[at + d];
                    }
                }
            }
}

void ref_attention_sinks_backward(const struct ref_attention *a, double *dsinks, const double *dout,
                                  const double *out, const double *lse)
{
    for (int64_t h = 0; h < a->H; h++) {
        dsinks[h] = 0;
        for (int64_t r = 0; r < a->B * a->q_len; r++)
            for (int64_t at = (r * a->H + h) * a->D; at < (r * a->H + h + 1) * a->D; at++)
                dsinks[h] -= exp(a->sinks[h] - lse[h * a->B * a->q_len + r]) * dout[at] * out[at];
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double normal_distribution(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

double ref_act(double x, enum hd_activation act)
{
    double y = x * sigmoid(x);

    if (act == HD_ACT_GELU_TANH)
        ref_gelu(&y, &x, 1);
    else if (act == HD_ACT_GELU_ERF)
        y = x * normal_distribution(x);
    else if (act == HD_ACT_RELU2)
        y = x > 0 ? x * x : 0;
    else if (act == HD_ACT_RELU)
        y = x > 0 ? x : 0;
    return y;
}

double ref_act_slope(double x, enum hd_activation act)
{
    const double one = 1;
    double slope = sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x));

    if (act == HD_ACT_GELU_TANH)
        ref_gelu_backward(&slope, &one, &x, 1);
    else if (act == HD_ACT_GELU_ERF)
        slope = normal_distribution(x) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    else if (act == HD_ACT_RELU2)
        slope = x > 0 ? 2 * x : 0;
    else if (act == HD_ACT_RELU)
        slope = x > 0 ? 1 : 0;
    return slope;
}

void ref_glu(double *out, const double *inp, int64_t R, int64_t F, struct ref_glu kind)
{
    for (int64_t r = 0; r < R; r++)
        for (int64_t f = 0; f < F; f++) {
            const double gate = inp[r * 2 * F + f], up = inp[r * 2 * F + F + f];
            const double g = fmin(gate, kind.limit), u = fmax(-kind.limit, fmin(kind.limit, up));

            out[r * F + f] = kind.act == HD_ACT_OSS ? (u + 1) * g * sigmoid(kind.alpha * g)
                                                    : ref_act(gate, kind.act) * up;
        }
}

void ref_glu_backward(double *dinp, const double *dout, const double *inp, int64_t R, int64_t F,
                      struct ref_glu kind)
{
    for (int64_t r = 0; r < R; r++)
        for (int64_t f = 0; f < F; f++) {
            const double gate = inp[r * 2 * F + f], up = inp[r * 2 * F + F + f];
            const double g = fmin(gate, kind.limit), u = fmax(-kind.limit, fmin(kind.limit, up));
            const double dy = dout[r * F + f], s = sigmoid(kind.alpha * g);
            double dgate = dy * up * ref_act_slope(gate, kind.act);
            double dup = dy * ref_act(gate, kind.act);

            if (kind.act == HD_ACT_OSS) {
                dgate = gate > kind.limit ? 0 : dy * (u + 1) * (s + kind.alpha * g * s * (1 - s));
                dup = fabs(up) > kind.limit ? 0 : dy * g * s;
            }
            dinp[r * 2 * F + f] = dgate;
            dinp[r * 2 * F + F + f] = dup;
        }
}

void ref_gelu(double *out, const double *inp, int64_t N)
{
    for (int64_t i = 0; i < N; i++) {
        const double x = inp[i];

        out[i] = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    }
}

void ref_gelu_backward(double *dinp, const double *dout, const double *inp, int64_t N)
{
    const double c = sqrt(2 / M_PI);

    for (int64_t i = 0; i < N; i++) {
        const double x = inp[i], t = tanh(c * (x + 0.044715 * x * x * x));
        const double dt = (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);

        dinp[i] = dout[i] * (0.5 * (1 + t) + 0.5 * x * dt);
    }
}

void ref_map_logits(double *out, const double *logits, int64_t N, double scale, double cap)
{
    for (int64_t i = 0; i < N; i++) {
        const double z = logits[i] * (scale > 0 ? scale : 1);

        out[i] = cap > 0 ? cap * tanh(z / cap) : z;
    }
}

void ref_map_backward(double *dlogits, const double *logits, int64_t N, double scale, double cap)
{
    for (int64_t i = 0; i < N; i++) {
        const double factor = scale > 0 ? scale : 1;
        const double t = cap > 0 ? tanh(factor * logits[i] / cap) : 0;

        dlogits[i] *= factor * (1 - t * t);
    }
}

void ref_row_gate(double *out, const double *y, const double *g, int64_t R, int64_t C)
{
    for (int64_t i = 0; i < R * C; i++)
        out[i] = y[i] * sigmoid(g[i / C]);
}

void ref_row_gate_backward(double *dy, double *dg, const double *dout, const double *y,
                           const double *g, int64_t R, int64_t C)
{
    for (int64_t r = 0; r < R; r++) {
        const double s = sigmoid(g[r]);

        dg[r] = 0;
        for (int64_t i = r * C; i < (r + 1) * C; i++) {
            dg[r] += dout[i] * y[i] * s * (1 - s);
            dy[i] = dout[i] * s;
        }
    }
}

double ref_cross_entropy(double *dlogits, const double *logits, const int32_t *target, int64_t R,
                         int64_t V, int64_t Vp, double loss_scale)
{
    double total = 0;

    for (int64_t r = 0; r < R; r++) {
        const double *x = logits + r * Vp;
        double max = -INFINITY, sum = 0;

        for (int64_t v = 0; v < V; v++)
            max = fmax(max, x[v]);
        for (int64_t v = 0; v < V; v++)
            sum += exp(x[v] - max);
        if (target[r] >= 0)
            total += log(sum) + max - x[target[r]];
        for (int64_t v = 0; dlogits && v < Vp; v++)
            dlogits[r * Vp + v] =
                target[r] < 0 || v >= V
                    ? 0
                    : loss_scale * (exp(x[v] - max) / sum - (v == target[r] ? 1 : 0));
    }
    return total;
}

double ref_z_loss(double *dlogits, const double *logits, const int32_t *target, int64_t R,
                  int64_t V, int64_t Vp, double z, double loss_scale)
{
    double total = 0;

    for (int64_t r = 0; r < R; r++) {
        const double *x = logits + r * Vp;
        double sum = 0, log_z;

        if (target[r] < 0)
            continue;
        for (int64_t v = 0; v < V; v++)
            sum += exp(x[v]);
        log_z = log(sum);
        total += log_z * log_z;
        for (int64_t v = 0; v < V; v++)
            dlogits[r * Vp + v] += loss_scale * z * 2 * log_z * exp(x[v]) / sum;
    }
    return total;
}

/* The k-th choice is the largest that is smaller than the one before, or as large and of a higher
 * index. */
static int32_t next_choice(const double *h, int64_t E, int32_t before)
{
    int32_t best = -1;

    for (int32_t e = 0; e < E; e++) {
        const bool is_left = before < 0 || h[e] < h[before] || (h[e] == h[before] && e > before);

        if (is_left && (best < 0 || h[e] > h[best]))
            best = e;
    }
    return best;
}

void ref_route(double *h, double *probs, double *lse, int32_t *chosen, double *gate,
               const double *logits, const double *noise_logits, const double *noise, int64_t R,
               int64_t E, int64_t K, bool renormalize)
{
    for (int64_t r = 0; r < R; r++) {
        double sum = 0, kept = 0;

        for (int64_t e = r * E; e < (r + 1) * E; e++) {
            h[e] = logits[e] + (noise ? noise[e] * log(1 + exp(noise_logits[e])) : 0);
            sum += exp(h[e]);
        }
        lse[r] = log(sum);
        for (int64_t e = r * E; e < (r + 1) * E; e++)
            probs[e] = exp(h[e]) / sum;
        for (int64_t k = 0; k < K; k++) {
            chosen[r * K + k] = next_choice(h + r * E, E, k ? chosen[r * K + k - 1] : -1);
            gate[r * K + k] = probs[r * E + chosen[r * K + k]];
            kept += gate[r * K + k];
        }
        for (int64_t k = 0; renormalize && k < K; k++)
            gate[r * K + k] /= kept;
    }
}

/* Sets the values of experts in groups that are not kept to -infinity. */
static void keep_groups(const struct ref_route_form *form, double *v, int64_t E)
{
    const int64_t groups = form->groups, size = groups ? E / groups : E;
    double value[64];
    bool kept[64] = {false};
    int32_t group = -1;

    for (int64_t g = 0; g < groups; g++) {
        const int32_t first = next_choice(v + g * size, size, -1);
        const int32_t second = form->best_two ? next_choice(v + g * size, size, first) : -1;

        value[g] = v[g * size + first] + (second < 0 ? 0 : v[g * size + second]);
    }
    for (int64_t i = 0; groups && i < form->kept; i++) {
        group = next_choice(value, groups, group);
        kept[group] = true;
    }
    for (int64_t e = 0; groups && e < E; e++)
        v[e] = kept[e / size] ? v[e] : -INFINITY;
}

void ref_route_by(const struct ref_route_form *form, double *probs, double *lse, int32_t *chosen,
                  double *gate, const double *h, int64_t R, int64_t E, int64_t K, bool renormalize)
{
    double *v = calloc((size_t)E, sizeof *v);

    for (int64_t r = 0; r < R; r++) {
        double sum = 0, all = 0;

        for (int64_t e = 0; e < E; e++)
            all += exp(h[r * E + e]);
        lse[r] = 0;
        for (int64_t e = 0; e < E; e++) {
            double *p = &probs[r * E + e];

            *p = form->sigmoid ? 1 / (1 + exp(-h[r * E + e])) : exp(h[r * E + e]) / all;
            lse[r] += form->sigmoid ? *p : exp(h[r * E + e]);
            v[e] = *p + (form->select_bias ? form->select_bias[e] : 0);
        }
        lse[r] = log(lse[r]);
        keep_groups(form, v, E);
        for (int64_t k = 0; k < K; k++) {
            chosen[r * K + k] = next_choice(v, E, k ? chosen[r * K + k - 1] : -1);
            gate[r * K + k] = probs[r * E + chosen[r * K + k]];
            sum += gate[r * K + k];
        }
        for (int64_t k = 0; k < K; k++)
            gate[r * K + k] *= form->scale / (renormalize ? sum : 1);
    }
    free(v);
}

void ref_adamw(const struct ref_adamw *a, double *weight, double *m, double *v, const double *grad,
               int64_t N)
{
    for (int64_t i = 0; i < N; i++) {
        double mh, vh;

        m[i] = a->beta1 * m[i] + (1 - a->beta1) * grad[i];
        v[i] = a->beta2 * v[i] + (1 - a->beta2) * grad[i] * grad[i];
        mh = m[i] / (1 - pow(a->beta1, (double)a->step));
        vh = v[i] / (1 - pow(a->beta2, (double)a->step));
        weight[i] -= a->lr * (mh / (sqrt(vh) + a->eps) + a->weight_decay * weight[i]);
    }
}

void ref_dynamic_map(double ret_values[256], int is_signed)
{
    int count = 0;

    for (int E = 0; E <= 6; E++) {
        const int pieces = (is_signed ? 64 : 128) >> E;

        for (int k = 0; k < pieces; k++) {
            const double low = 0.1 + 0.9 * k / pieces, high = 0.1 + 0.9 * (k + 1) / pieces;
            const double centre = (low + high) / 2 * pow(10, -E);

            ret_values[count++] = centre;
            if (is_signed)
                ret_values[count++] = -centre;
        }
    }
    ret_values[count++] = 0;
    ret_values[count++] = 1;
    sort_doubles(ret_values, (size_t)count);
}
