/* delta: the operations of gated delta layers in double, row after row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/reference/reference.h"

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x * logistic(x);
}

static double silu_slope(double x)
{
    const double s = logistic(x);

    return s * (1 + x * (1 - s));
}

/* The sum of a convolution in channel c of row t of sequence b. */
static double conv_sum(const double *inp, const double *weight, const int32_t *bound, int64_t row,
                       int64_t t, int64_t c, int64_t N, int64_t W)
{
    const int64_t begin = bound ? bound[row + t] : 0;
    double sum = 0;

    for (int64_t j = 0; j < W && t - j >= begin; j++)
        sum += weight[c * W + W - 1 - j] * inp[(row + t - j) * N + c];
    return sum;
}

void ref_conv(double *out, const double *inp, const double *weight, const int32_t *bound, int64_t B,
              int64_t S, int64_t N, int64_t W, bool plain)
{
    for (int64_t i = 0; i < B * S * N; i++) {
        const int64_t r = i / N;
        const double sum = conv_sum(inp, weight, bound, r / S * S, r % S, i % N, N, W);

        out[i] = plain ? sum : silu(sum);
    }
}

void ref_conv_backward(double *dinp, double *dweight, const double *dout, const double *inp,
                       const double *weight, const int32_t *bound, int64_t B, int64_t S, int64_t N,
                       int64_t W, bool plain)
{
    memset(dinp, 0, (size_t)(B * S * N) * sizeof *dinp);
    memset(dweight, 0, (size_t)(N * W) * sizeof *dweight);
    for (int64_t i = 0; i < B * S * N; i++) {
        const int64_t r = i / N, c = i % N, row = r / S * S, t = r % S;
        const int64_t begin = bound ? bound[r] : 0;
        const double sum = conv_sum(inp, weight, bound, row, t, c, N, W);
        const double g = dout[i] * (plain ? 1 : silu_slope(sum));

        for (int64_t j = 0; j < W && t - j >= begin; j++) {
            dinp[(r - j) * N + c] += g * weight[c * W + W - 1 - j];
            dweight[c * W + W - 1 - j] += g * inp[(r - j) * N + c];
        }
    }
}

void ref_delta_gates(double *gates, const double *inp, const double *A_log, const double *dt_bias,
                     int64_t R, int64_t H)
{
    for (int64_t i = 0; i < R * H; i++) {
        const int64_t h = i % H, at = i / H * 2 * H + h;

        gates[at] = logistic(inp[at]);
        gates[at + H] = -exp(A_log[h]) * log1p(exp(inp[at + H] + dt_bias[h]));
    }
}

void ref_delta_gates_backward(double *dinp, double *dA_log, double *ddt_bias, const double *dgates,
                              const double *inp, const double *A_log, const double *dt_bias,
                              int64_t R, int64_t H)
{
    memset(dA_log, 0, (size_t)H * sizeof *dA_log);
    memset(ddt_bias, 0, (size_t)H * sizeof *ddt_bias);
    for (int64_t i = 0; i < R * H; i++) {
        const int64_t h = i % H, at = i / H * 2 * H + h;
        const double beta = logistic(inp[at]), x = inp[at + H] + dt_bias[h], A = exp(A_log[h]);

        dinp[at] = dgates[at] * beta * (1 - beta);
        dinp[at + H] = -dgates[at + H] * A * logistic(x);
        dA_log[h] -= dgates[at + H] * A * log1p(exp(x));
        ddt_bias[h] += dinp[at + H];
    }
}

/* q and k of a row's key head, divided by their length; 1 / lengths. */
struct unit_rows {
    double q[HD_DELTA_WIDTH_MAX], k[HD_DELTA_WIDTH_MAX], q_rstd, k_rstd;
};

static double unit_row(double *out, const double *x, int64_t n, double eps)
{
    double sum = eps, rstd;

    for (int64_t d = 0; d < n; d++)
        sum += x[d] * x[d];
    rstd = 1 / sqrt(sum);
    for (int64_t d = 0; d < n; d++)
        out[d] = x[d] * rstd;
    return rstd;
}

static struct unit_rows unit_rows_of(const struct ref_delta *a, const double *qkv_row, int64_t head)
{
    const int64_t key_head = head / (a->H / a->G);
    struct unit_rows u;

    u.q_rstd = unit_row(u.q, qkv_row + key_head * a->Dk, a->Dk, a->eps);
    u.k_rstd = unit_row(u.k, qkv_row + (a->G + key_head) * a->Dk, a->Dk, a->eps);
    for (int64_t d = 0; d < a->Dk; d++)
        u.q[d] /= sqrt((double)a->Dk);
    return u;
}

/* One row: decays the state m in place and adds the row's value; r: v - k^T (decayed m). */
static void step(const struct ref_delta *a, double *m, double *r, const struct unit_rows *u,
                 const double *v, double beta, double decay)
{
    for (int64_t j = 0; j < a->Dv; j++) {
        double seen = 0;

        for (int64_t i = 0; i < a->Dk; i++) {
            m[i * a->Dv + j] *= decay;
            seen += u->k[i] * m[i * a->Dv + j];
        }
        r[j] = v[j] - seen;
        for (int64_t i = 0; i < a->Dk; i++)
            m[i * a->Dv + j] += u->k[i] * beta * r[j];
    }
}

static bool begins(const struct ref_delta *a, int64_t b, int64_t t)
{
    return t == (a->bound ? a->bound[b * a->S + t] : 0);
}

/* Computes the states after each row of one head, states[t], and r[t]. */
static void run_head(const struct ref_delta *a, int64_t b, int64_t head, double *states, double *r,
                     const double *qkv, const double *gates)
{
    const int64_t size = a->Dk * a->Dv, ld = 2 * a->G * a->Dk + a->H * a->Dv;

    for (int64_t t = 0; t < a->S; t++) {
        const double *row = qkv + (b * a->S + t) * ld, *g = gates + (b * a->S + t) * 2 * a->H;
        const struct unit_rows u = unit_rows_of(a, row, head);

        if (begins(a, b, t))
            memset(states + t * size, 0, (size_t)size * sizeof *states);
        else
            memcpy(states + t * size, states + (t - 1) * size, (size_t)size * sizeof *states);
        step(a, states + t * size, r + t * a->Dv, &u, row + 2 * a->G * a->Dk + head * a->Dv,
             g[head], exp(g[a->H + head]));
    }
}

void ref_gated_delta(const struct ref_delta *a, double *out, const double *qkv, const double *gates)
{
    const int64_t size = a->Dk * a->Dv, ld = 2 * a->G * a->Dk + a->H * a->Dv;
    double *states = malloc((size_t)(a->S * size) * sizeof *states);
    double *r = malloc((size_t)(a->S * a->Dv) * sizeof *r);

    for (int64_t i = 0; i < a->B * a->H; i++) {
        const int64_t b = i / a->H, head = i % a->H;

        run_head(a, b, head, states, r, qkv, gates);
        for (int64_t t = 0; t < a->S; t++) {
            const struct unit_rows u = unit_rows_of(a, qkv + (b * a->S + t) * ld, head);

            for (int64_t j = 0; j < a->Dv; j++) {
                double sum = 0;

                for (int64_t d = 0; d < a->Dk; d++)
                    sum += u.q[d] * states[t * size + d * a->Dv + j];
                out[((b * a->S + t) * a->H + head) * a->Dv + j] = sum;
            }
        }
    }
    free(states);
    free(r);
}

/* Adds the gradient of x to dx, from that of x / length * scale. */
static void unit_row_backward(double *dx, const double *grad, const double *unit, double rstd,
                              double scale, int64_t n)
{
    double along = 0;

    for (int64_t d = 0; d < n; d++)
        along += grad[d] * unit[d] / scale;
    for (int64_t d = 0; d < n; d++)
        dx[d] += rstd * scale * (grad[d] - unit[d] / scale * along);
}

/* The gradients of one row, from dm, that of its state, which becomes that of the state before. */
struct row_gradients {
    double *dq, *dk, *dv, *dbeta, *dg;
};
static void step_backward(const struct ref_delta *a, double *dm, const double *m,
                          const double *before, const double *r, const double *dout,
                          const struct unit_rows *u, double beta, double decay,
                          const struct row_gradients *grads)
{
    double dq[HD_DELTA_WIDTH_MAX] = {0}, dk[HD_DELTA_WIDTH_MAX] = {0};

    *grads->dbeta = *grads->dg = 0;
    for (int64_t j = 0; j < a->Dv; j++) {
        double du = 0, dr;

        for (int64_t i = 0; i < a->Dk; i++) {
            dq[i] += m[i * a->Dv + j] * dout[j];
            dm[i * a->Dv + j] += u->q[i] * dout[j];
            du += dm[i * a->Dv + j] * u->k[i];
            dk[i] += dm[i * a->Dv + j] * beta * r[j];
        }
        *grads->dbeta += du * r[j];
        dr = beta * du;
        grads->dv[j] = dr;
        for (int64_t i = 0; i < a->Dk; i++) {
            const double old = before ? before[i * a->Dv + j] : 0;

            dk[i] -= decay * old * dr;
            dm[i * a->Dv + j] -= u->k[i] * dr;
            *grads->dg += dm[i * a->Dv + j] * decay * old;
            dm[i * a->Dv + j] *= before ? decay : 0;
        }
    }
    unit_row_backward(grads->dq, dq, u->q, u->q_rstd, 1 / sqrt((double)a->Dk), a->Dk);
    unit_row_backward(grads->dk, dk, u->k, u->k_rstd, 1, a->Dk);
}

void ref_gated_delta_backward(const struct ref_delta *a, double *dqkv, double *dgates,
                              const double *dout, const double *qkv, const double *gates)
{
    const int64_t size = a->Dk * a->Dv, ld = 2 * a->G * a->Dk + a->H * a->Dv;
    double *states = malloc((size_t)(a->S * size) * sizeof *states);
    double *r = malloc((size_t)(a->S * a->Dv) * sizeof *r);
    double *dm = malloc((size_t)size * sizeof *dm);

    memset(dqkv, 0, (size_t)(a->B * a->S * ld) * sizeof *dqkv);
    for (int64_t i = 0; i < a->B * a->H; i++) {
        const int64_t b = i / a->H, head = i % a->H, key_head = head / (a->H / a->G);

        run_head(a, b, head, states, r, qkv, gates);
        memset(dm, 0, (size_t)size * sizeof *dm);
        for (int64_t t = a->S - 1; t >= 0; t--) {
            const int64_t row = b * a->S + t;
            const struct unit_rows u = unit_rows_of(a, qkv + row * ld, head);
            const double *g = gates + row * 2 * a->H;
            double *d = dqkv + row * ld, *dg = dgates + row * 2 * a->H;
            const struct row_gradients grads = {d + key_head * a->Dk, d + (a->G + key_head) * a->Dk,
                                                d + 2 * a->G * a->Dk + head * a->Dv, dg + head,
                                                dg + a->H + head};

            step_backward(a, dm, states + t * size,
                          begins(a, b, t) ? NULL : states + (t - 1) * size, r + t * a->Dv,
                          dout + (row * a->H + head) * a->Dv, &u, g[head], exp(g[a->H + head]),
                          &grads);
        }
    }
    free(states);
    free(r);
    free(dm);
}

void ref_gated_norm(double *out, double *rstd, const double *inp, const double *gate,
                    const double *weight, int64_t R, int64_t D, double eps)
{
    ref_rmsnorm(out, rstd, inp, weight, R, D, eps);
    for (int64_t i = 0; i < R * D; i++)
        out[i] *= silu(gate[i]);
}

void ref_gated_norm_backward(double *dinp, double *dgate, double *dweight, const double *dout,
                             const double *inp, const double *gate, const double *weight, int64_t R,
                             int64_t D, double eps)
{
    double *scaled = malloc((size_t)(R * D) * sizeof *scaled);
    double *rstd = malloc((size_t)R * sizeof *rstd);

    ref_rmsnorm(scaled, rstd, inp, weight, R, D, eps);
    for (int64_t i = 0; i < R * D; i++) {
        dgate[i] = dout[i] * scaled[i] * silu_slope(gate[i]);
        scaled[i] = dout[i] * silu(gate[i]);
    }
    ref_rmsnorm_backward(dinp, dweight, scaled, inp, weight, R, D, eps);
    free(scaled);
    free(rstd);
}
