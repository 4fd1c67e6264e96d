/* delta_backward: the gradients of the gated delta rule. A first pass computes the states before
 * each chunk, a second one goes through the chunks in reverse; a piece of work is one key head of
 * one sequence with the value heads that share it.
 *
 * With dM the gradient of the state after a chunk, dO that of the results:
 *   dU = A^T dO + (f K) dM,  dR = (I + L)^-T dU,  dV = beta dR,
 *   dA = dO U^T,  dL = -dR U^T, both on and below the diagonal,
 *   dQ = (e dO) M^T + (dA D) K,
 *   dK = -(beta e dR) M^T + f (U dM^T) + (dA D)^T Q + ((dL beta D) + (dL beta D)^T) K,
 *   dM <- e_last dM + Q^T (e dO) - K^T (beta e dR),
 * and the gradient of each exponential is that of its value times the value; c_i gets their sum,
 * and the gradient of g in row i is the sum of those of c in rows i and later. */
#include "kernels/cpu/delta.h"

struct delta_backward {
    const struct hd_gated_delta_backward_args *args;
    struct hd_costs_delta_layout layout;
};

INLINE float dot(const float *a, const float *b, int64_t count)
{
    vf sum = {0};

    FOR_VECTORS (i, n, 0, count)
        sum += vf_load_f32(a + i, n) * vf_load_f32(b + i, n);
    return vf_sum(sum);
}

/* Replaces dA by dA D and dL (given as -dL) by beta dL D + its transposed, and adds the gradients
 * of beta and of the decays. */
static void differentiate_products(const struct delta_head *h, const struct delta_chunk *c)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    const float *beta = delta_vector(h, DELTA_BETA), *sum = delta_vector(h, DELTA_C);
    float *dbeta = delta_vector(h, DELTA_DBETA), *dc = delta_vector(h, DELTA_DC);
    float *da = delta_area(h, l->da), *dl = delta_area(h, l->dl);
    const float *a = delta_area(h, l->a), *kk = delta_area(h, l->kk);

    for (int64_t i = 0; i < c->count; i++) {
        for (int64_t j = 0; j < i; j++) {
            const bool sees = c->document[j] == c->document[i];
            const float decay = sees ? expf(sum[i] - sum[j]) : 0;
            const float from_l = -dl[i * P + j] * kk[i * P + j] * decay;
            const float both = da[i * P + j] * a[i * P + j] + beta[i] * from_l;

            dbeta[i] += from_l;
            dc[i] += both;
            dc[j] -= both;
            da[i * P + j] *= decay;
            dl[i * P + j] *= -beta[i] * decay;
        }
        dl[i * P + i] = 0;
        for (int64_t j = i + 1; j < P; j++)
            da[i * P + j] = 0;
    }
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t j = 0; j < i; j++)
            dl[j * P + i] = dl[i * P + j];
}

/* Computes dR (area du), and the gradients through A and L, of one value head. */
static void differentiate_inside(const struct delta_head *h, const struct delta_chunk *c,
                                 const float *dm)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    const int64_t value = l->value, key = l->key, count = c->count;
    float *u_t = delta_area(h, l->transposed), *du = delta_area(h, l->du);
    float *dout = delta_area(h, l->dout), *da = delta_area(h, l->da), *dl = delta_area(h, l->dl);
    float *fk = delta_area(h, l->wide), *q = delta_area(h, l->q), *k = delta_area(h, l->k);
    float *dq = delta_area(h, l->dq), *dk = delta_area(h, l->dk);

    delta_scale_rows(fk, k, delta_vector(h, DELTA_F), count, key);
    delta_multiply_columns(du, value, delta_area(h, l->a), P, dout, value, count, value, count,
                           false);
    delta_multiply_rows(du, value, fk, key, dm, value, count, value, h->Dk, true);
    delta_solve_transposed(du, value, delta_area(h, l->l), count);
    delta_transpose(u_t, P, delta_area(h, l->u), value, count, h->Dv, P);
    delta_multiply_rows(da, P, dout, value, u_t, P, count, P, h->Dv, false);
    delta_multiply_rows(dl, P, du, value, u_t, P, count, P, h->Dv, false);
    differentiate_products(h, c);
    delta_multiply_rows(dq, key, da, P, k, key, count, key, count, true);
    delta_multiply_columns(dk, key, da, P, q, key, count, key, count, true);
    delta_multiply_rows(dk, key, dl, P, k, key, count, key, count, true);
}

INLINE void store_dv(const struct hd_gated_delta_backward_args *a, const struct delta_head *h,
                     const struct delta_chunk *c, int64_t head, enum hd_dtype dtype)
{
    const int64_t value = h->layout.value, column = 2 * h->G * h->Dk + head * h->Dv;
    const float *du = delta_area(h, h->layout.du), *km = delta_area(h, h->layout.km);
    const float *beta = delta_vector(h, DELTA_BETA), *e = delta_vector(h, DELTA_E);
    float *dbeta = delta_vector(h, DELTA_DBETA);

    for (int64_t i = 0; i < c->count; i++) {
        const int64_t at = (h->row + c->first + i) * h->ld + column;
        vf sum = {0};

        FOR_VECTORS (d, n, 0, h->Dv) {
            const vf dr = vf_load_f32(du + i * value + d, n);

            sum += dr *
                   (vf_load(h->qkv, at + d, n, dtype) - e[i] * vf_load_f32(km + i * value + d, n));
            vf_store(a->dqkv, at + d, n, beta[i] * dr, dtype);
        }
        dbeta[i] += vf_sum(sum);
    }
}

/* Adds the gradients that pass through the states before (m) and after the chunk (dm, which becomes
 * the gradient of m). */
static void differentiate_states(const struct delta_head *h, const struct delta_chunk *c,
                                 const float *m, float *dm)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    const int64_t value = l->value, key = l->key, count = c->count;
    const float *beta = delta_vector(h, DELTA_BETA), *e = delta_vector(h, DELTA_E);
    const float *f = delta_vector(h, DELTA_F), *k = delta_area(h, l->k);
    float *de = delta_vector(h, DELTA_DE), *df = delta_vector(h, DELTA_DF);
    float *t = delta_area(h, l->transposed), *wide = delta_area(h, l->wide);
    float *dout = delta_area(h, l->dout), *du = delta_area(h, l->du), *km = delta_area(h, l->km);
    float *dq = delta_area(h, l->dq), *dk = delta_area(h, l->dk), *qm = delta_area(h, l->qm);

    delta_transpose(t, key, dm, value, h->Dk, h->Dv, key);
    delta_multiply_rows(wide, key, delta_area(h, l->u), value, t, key, count, key, h->Dv, false);
    for (int64_t i = 0; i < count; i++) {
        df[i] = dot(wide + i * key, k + i * key, h->Dk);
        FOR_VECTORS (d, n, 0, key)
            vf_store_f32(dk + i * key + d, n,
                         vf_load_f32(dk + i * key + d, n) +
                             f[i] * vf_load_f32(wide + i * key + d, n));
    }
    delta_multiply_rows(qm, value, delta_area(h, l->q), key, m, value, count, value, h->Dk, false);
    for (int64_t i = 0; i < count; i++) {
        de[i] = dot(dout + i * value, qm + i * value, h->Dv) -
                beta[i] * dot(du + i * value, km + i * value, h->Dv);
        FOR_VECTORS (d, n, 0, value) {
            vf_store_f32(du + i * value + d, n,
                         -(beta[i] * e[i]) * vf_load_f32(du + i * value + d, n));
            vf_store_f32(dout + i * value + d, n, e[i] * vf_load_f32(dout + i * value + d, n));
        }
    }
    de[count - 1] += dot(dm, m, key * value);
    delta_transpose(t, key, m, value, h->Dk, h->Dv, key);
    delta_multiply_rows(dq, key, dout, value, t, key, count, key, h->Dv, true);
    delta_multiply_rows(dk, key, du, value, t, key, count, key, h->Dv, true);
    FOR_VECTORS (i, n, 0, key * value)
        vf_store_f32(dm + i, n, e[count - 1] * vf_load_f32(dm + i, n));
    delta_multiply_columns(dm, value, delta_area(h, l->q), key, dout, value, key, value, count,
                           true);
    delta_multiply_columns(dm, value, k, key, du, value, key, value, count, true);
}

/* Adds the gradients of e and f to those of c, and stores those of beta and g. */
static void store_dgates(const struct hd_gated_delta_backward_args *a, const struct delta_head *h,
                         const struct delta_chunk *c, int64_t head)
{
    const float *e = delta_vector(h, DELTA_E), *de = delta_vector(h, DELTA_DE);
    const float *f = delta_vector(h, DELTA_F), *df = delta_vector(h, DELTA_DF);
    float *dc = delta_vector(h, DELTA_DC), sum = 0;

    for (int64_t i = 0; i < c->count; i++) {
        dc[i] += de[i] * e[i] - df[i] * f[i];
        sum += df[i] * f[i];
    }
    for (int64_t i = c->count - 1; i >= 0; i--) {
        float *dgates = a->dgates + (h->row + c->first + i) * 2 * h->H;

        sum += dc[i];
        dgates[head] = delta_vector(h, DELTA_DBETA)[i];
        dgates[h->H + head] = sum;
    }
}

static void backward_value_head(const struct hd_gated_delta_backward_args *a,
                                const struct delta_head *h, const struct delta_chunk *c,
                                int64_t head, const float *m, float *dm)
{
    delta_load_gates(h, c, head);
    delta_decay(h, c);
    delta_new_values(h, c, head, m);
    WITH_FLOATS(a->dtype, T, delta_load_dout(a->dout, h, c, head, T));
    memset(delta_vector(h, DELTA_DBETA), 0, 2 * P * sizeof(float)); /* and DELTA_DC */
    differentiate_inside(h, c, dm);
    WITH_FLOATS(a->dtype, T, store_dv(a, h, c, head, T));
    differentiate_states(h, c, m, dm);
    store_dgates(a, h, c, head);
}

/* Stores the gradients of rows of q or k from those of n(x) * scale. */
INLINE void store_normed(const struct hd_gated_delta_backward_args *a, const struct delta_head *h,
                         const struct delta_chunk *c, const float *grad, const float *normed,
                         const float *rstd, int64_t column, float scale, enum hd_dtype dtype)
{
    const int64_t key = h->layout.key;

    for (int64_t i = 0; i < c->count; i++) {
        const float along = dot(grad + i * key, normed + i * key, h->Dk) / scale;

        FOR_VECTORS (d, n, 0, h->Dk)
            vf_store(a->dqkv, (h->row + c->first + i) * h->ld + column + d, n,
                     rstd[i] * (scale * vf_load_f32(grad + i * key + d, n) -
                                along * vf_load_f32(normed + i * key + d, n)),
                     dtype);
    }
}

/* Sets the states [group, key, value] of the value heads of a key head, in padded scratch, to those
 * of sequence b in from [B, H, Dk, Dv]; NULL: to zeros. */
static void begin_states(const struct delta_head *h, float *states, const float *from, int64_t b)
{
    const int64_t group = delta_group(h), size = h->layout.key * h->layout.value;

    memset(states, 0, (size_t)(group * size) * sizeof *states);
    for (int64_t n = 0; from && n < group; n++)
        delta_take_state(states + n * size, h->layout.value,
                         from + (b * h->H + h->head * group + n) * h->Dk * h->Dv, h->Dk, h->Dv);
}

/* Computes the states of all value heads before each chunk. */
static void compute_states(const struct delta_head *h, int64_t S, const float *initial, int64_t b)
{
    const int64_t group = delta_group(h), size = h->layout.key * h->layout.value;
    float *states = delta_area(h, h->layout.state);

    begin_states(h, states, initial, b);
    for (int64_t at = 0; at + P < S; at += P) {
        const struct delta_chunk c = delta_chunk_of(h, at, S);

        delta_load_keys(h, &c);
        for (int64_t n = 0; n < group; n++) {
            float *m = states + (at / P * group + n) * size;

            delta_load_gates(h, &c, h->head * group + n);
            delta_decay(h, &c);
            delta_new_values(h, &c, h->head * group + n, m);
            delta_advance(h, &c, m + group * size, m);
        }
    }
}

static void backward_sequence(const struct hd_gated_delta_backward_args *a,
                              const struct delta_head *h, int64_t b)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    const int64_t group = delta_group(h), size = l->key * l->value;
    const float scale = 1.0f / sqrtf((float)h->Dk);
    float *dm = delta_area(h, l->dstate), *states = delta_area(h, l->state);
    float *dq = delta_area(h, l->dq), *dk = delta_area(h, l->dk);

    compute_states(h, a->S, a->initial, b);
    begin_states(h, dm, a->dfinal, b);
    for (int64_t chunk = l->chunks - 1; chunk >= 0; chunk--) {
        const struct delta_chunk c = delta_chunk_of(h, chunk * P, a->S);

        delta_load_keys(h, &c);
        memset(dq, 0, (size_t)(P * l->key) * sizeof *dq);
        memset(dk, 0, (size_t)(P * l->key) * sizeof *dk);
        for (int64_t n = 0; n < group; n++)
            backward_value_head(a, h, &c, h->head * group + n, states + (chunk * group + n) * size,
                                dm + n * size);
        WITH_FLOATS(a->dtype, T, {
            store_normed(a, h, &c, dq, delta_area(h, l->q), delta_vector(h, DELTA_Q_RSTD),
                         h->head * h->Dk, scale, T);
            store_normed(a, h, &c, dk, delta_area(h, l->k), delta_vector(h, DELTA_K_RSTD),
                         (h->G + h->head) * h->Dk, 1.0f, T);
        });
    }
}

static void backward_heads(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct delta_backward *f = args;
    const struct hd_gated_delta_backward_args *a = f->args;

    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / a->G;
        const struct delta_head h = DELTA_HEAD_OF(a, &f->layout, b, i % a->G, thread);

        backward_sequence(a, &h, b);
    }
}

enum hd_status KERNEL(gated_delta_backward)(struct hd_backend *cpu,
                                            const struct hd_gated_delta_backward_args *args)
{
    const struct delta_backward f = {args, hd_costs_delta_backward_layout(args, &cpu->traits)};
    enum hd_status st = hd_cpu_check_float("gated_delta_backward", args->dtype);

    if (!st)
        st = hd_costs_check_delta(args->G, args->H, args->Dk, args->Dv);
    if (!st)
        hd_cpu_parallel(cpu, args->B * args->G, 1, backward_heads, &f);
    return st;
}
