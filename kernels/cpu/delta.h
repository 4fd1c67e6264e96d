/* delta: a chunk of the gated delta rule, shared by forward and backward (ops_delta.h has the
 * formulas and their letters).
 *
 * Used by: delta_forward.c, delta_backward.c, delta_segment.c.   Uses: costs, micro, transpose,
 * vecmath.
 */
#ifndef HD_KERNELS_CPU_DELTA_H
#define HD_KERNELS_CPU_DELTA_H

#include <assert.h>

#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vecmath.h"

enum { P = HD_DELTA_CHUNK }; /* distance of rows in [rows, rows] areas */
enum { SOLVE = 16 };         /* rows of a block of the triangular solution */

/* Vectors of a chunk, [P] each; index of each in the scratch area `vectors`. */
enum delta_vector_of {
    DELTA_BETA,
    DELTA_C,     /* sums of g from the chunk's first row on */
    DELTA_E,     /* factors of the state before the chunk */
    DELTA_F,     /* factors of the rows in the state after the chunk */
    DELTA_DBETA, /* gradients, backward only */
    DELTA_DC,
    DELTA_DE,
    DELTA_DF,
    DELTA_Q_RSTD, /* 1 / length of the rows of q, of k */
    DELTA_K_RSTD,
    DELTA_VECTORS
};
static_assert(DELTA_VECTORS == (int)HD_COSTS_DELTA_VECTORS, "the scratch has room for all");

/* One key head of one sequence, with the value heads that share it. */
struct delta_head {
    struct hd_costs_delta_layout layout;
    float *scratch;
    const void *qkv;
    const float *gates;
    const int32_t *bound;     /* bounds of the sequence's rows, or NULL */
    int64_t origin;           /* index of the first row, as bounds count; 0: whole sequences */
    bool continues;           /* without bounds: the first row's document has rows before it */
    int64_t row;              /* first row of the sequence in qkv */
    int64_t head;             /* index of the key head */
    int64_t G, H, Dk, Dv, ld; /* ld: distance of rows of qkv */
    float eps;
    enum hd_dtype dtype;
};

/* Makes key head head_ of sequence b_ from the arguments of forward or backward, whose members have
 * equal names, with the scratch of thread_. */
#define DELTA_HEAD_OF(a, layout_, b_, head_, thread_)                                             \
    (struct delta_head)                                                                           \
    {                                                                                             \
        .layout = *(layout_), .scratch = (float *)(a)->scratch + (thread_) * (layout_)->floats,   \
        .qkv = (a)->qkv, .gates = (a)->gates,                                                     \
        .bound = (a)->bound ? (a)->bound + (b_) * (a)->S : NULL,                                  \
        .origin = (a)->position ? (a)->position[(b_) * (a)->S] : 0,                               \
        .continues = (a)->position != NULL, .row = (b_) * (a)->S, .head = (head_), .G = (a)->G,   \
        .H = (a)->H, .Dk = (a)->Dk, .Dv = (a)->Dv, .ld = 2 * (a)->G * (a)->Dk + (a)->H * (a)->Dv, \
        .eps = (a)->eps, .dtype = (a)->dtype                                                      \
    }

/* Rows [first, first + count) of the sequence, count at most P. */
struct delta_chunk {
    int64_t first, count;
    int document[P]; /* index of each row's document in the chunk */
    bool continues;  /* document 0 began before the chunk */
};

INLINE float *delta_area(const struct delta_head *h, int64_t offset)
{
    return h->scratch + offset;
}

INLINE float *delta_vector(const struct delta_head *h, enum delta_vector_of which)
{
    return h->scratch + h->layout.vectors + (int64_t)which * P;
}

/* Returns the number of value heads of the key head. */
INLINE int64_t delta_group(const struct delta_head *h)
{
    return h->H / h->G;
}

/* Compute c[M, N] (+)= a b of areas in scratch, with a [M, K] (_rows), or the transposed of
 * a [K, M] (_columns). N is a multiple of 16. */
static __attribute__((noinline, unused)) void
delta_multiply_rows(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb,
                    int64_t M, int64_t N, int64_t K, bool add)
{
    micro_multiply(c, ldc, a, lda, 1, b, ldb, M, N, K, add);
}

static __attribute__((noinline, unused)) void
delta_multiply_columns(float *c, int64_t ldc, const float *a, int64_t lda, const float *b,
                       int64_t ldb, int64_t M, int64_t N, int64_t K, bool add)
{
    micro_multiply(c, ldc, a, 1, lda, b, ldb, M, N, K, add);
}

/* Sets to[j, i] = from[i, j] for i < rows, j < columns, and 0 for rows <= i < width. */
static __attribute__((noinline, unused)) void delta_transpose(float *to, int64_t ld_to,
                                                              const float *from, int64_t ld,
                                                              int64_t rows, int64_t columns,
                                                              int64_t width)
{
    pack_transposed(to, ld_to, from, 0, ld, rows, columns, width, HD_F32);
}

/* Finds the documents of a chunk. */
static __attribute__((unused)) struct delta_chunk delta_chunk_of(const struct delta_head *h,
                                                                 int64_t first, int64_t S)
{
    struct delta_chunk c = {.first = first, .count = S - first < P ? S - first : P};
    int document = 0;

    c.continues = h->bound ? first > h->bound[first] - h->origin : first > 0 || h->continues;
    for (int64_t i = 0; i < c.count; i++) {
        if (i > 0 && h->bound && h->bound[first + i] - h->origin == first + i)
            document++;
        c.document[i] = document;
    }
    return c;
}

/* Loads rows of q or k of a chunk, divided by their length and times `scale`, and sets rstd[i] to
 * 1 / length of row i. */
INLINE void load_normed(const struct delta_head *h, const struct delta_chunk *c, float *to,
                        float *rstd, int64_t column, float scale, enum hd_dtype dtype)
{
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t at = (h->row + c->first + i) * h->ld + column;
        vf squares = {0};

        FOR_VECTORS (d, n, 0, h->Dk) {
            const vf x = vf_load(h->qkv, at + d, n, dtype);

            squares += x * x;
        }
        rstd[i] = 1.0f / sqrtf(vf_sum(squares) + h->eps);
        FOR_VECTORS (d, n, 0, h->Dk)
            vf_store_f32(to + i * h->layout.key + d, n,
                         vf_load(h->qkv, at + d, n, dtype) * (rstd[i] * scale));
        FOR_VECTORS (d, n, h->Dk, h->layout.key)
            vf_store_f32(to + i * h->layout.key + d, n, (vf){0});
    }
}

/* Loads k of a chunk and multiplies it by itself: areas k, transposed and kk. */
static __attribute__((unused)) void delta_load_own_keys(const struct delta_head *h,
                                                        const struct delta_chunk *c)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    float *k = delta_area(h, l->k), *k_t = delta_area(h, l->transposed);

    WITH_FLOATS(
        h->dtype, T,
        load_normed(h, c, k, delta_vector(h, DELTA_K_RSTD), (h->G + h->head) * h->Dk, 1.0f, T));
    delta_transpose(k_t, P, k, l->key, c->count, h->Dk, P);
    delta_multiply_rows(delta_area(h, l->kk), P, k, l->key, k_t, P, c->count, P, h->Dk, false);
}

/* Loads q and k of a chunk and multiplies them: areas q, k, qk and kk. */
static __attribute__((unused)) void delta_load_keys(const struct delta_head *h,
                                                    const struct delta_chunk *c)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    float *q = delta_area(h, l->q);

    WITH_FLOATS(h->dtype, T,
                load_normed(h, c, q, delta_vector(h, DELTA_Q_RSTD), h->head * h->Dk,
                            1.0f / sqrtf((float)h->Dk), T));
    delta_load_own_keys(h, c);
    delta_multiply_rows(delta_area(h, l->qk), P, q, l->key, delta_area(h, l->transposed), P,
                        c->count, P, h->Dk, false);
}

/* Sets beta, c, e and f of value head `head`. */
static __attribute__((unused)) void delta_load_gates(const struct delta_head *h,
                                                     const struct delta_chunk *c, int64_t head)
{
    float *beta = delta_vector(h, DELTA_BETA), *sum = delta_vector(h, DELTA_C);
    float *e = delta_vector(h, DELTA_E), *f = delta_vector(h, DELTA_F);
    const int last = c->document[c->count - 1];
    float total = 0;

    for (int64_t i = 0; i < c->count; i++) {
        const float *gates = h->gates + (h->row + c->first + i) * 2 * h->H;

        beta[i] = gates[head];
        total += gates[h->H + head];
        sum[i] = total;
    }
    for (int64_t i = 0; i < c->count; i++) {
        e[i] = c->continues && c->document[i] == 0 ? expf(sum[i]) : 0;
        f[i] = c->document[i] == last ? expf(total - sum[i]) : 0;
    }
}

/* Sets a[i, :] and l[i, :] of the areas `a` and `l`: A and -L, zero above the diagonal. qk NULL:
 * only l. */
INLINE void decay_row(const struct delta_chunk *c, int64_t i, float beta, const float *sum,
                      const float *qk, const float *kk, float *a, float *l)
{
    int64_t begin = i;

    while (begin > 0 && c->document[begin - 1] == c->document[i])
        begin--;
    FOR_VECTORS (j, n, 0, P) {
        if (qk)
            vf_store_f32(a + j, n, (vf){0});
        vf_store_f32(l + j, n, (vf){0});
    }
    FOR_VECTORS (j, n, begin, i) {
        const vf decay = vf_exp(vf_keep(sum[i] - vf_load_f32(sum + j, n), n, 0));

        if (qk)
            vf_store_f32(a + j, n, vf_load_f32(qk + j, n) * decay);
        vf_store_f32(l + j, n, -beta * vf_load_f32(kk + j, n) * decay);
    }
    if (qk)
        a[i] = qk[i];
}

/* Sets the areas a and l from qk and kk; without `queries` only l. */
static __attribute__((unused)) void delta_decay_of(const struct delta_head *h,
                                                   const struct delta_chunk *c, bool queries)
{
    const struct hd_costs_delta_layout *l = &h->layout;

    for (int64_t i = 0; i < c->count; i++)
        decay_row(c, i, delta_vector(h, DELTA_BETA)[i], delta_vector(h, DELTA_C),
                  queries ? delta_area(h, l->qk) + i * P : NULL, delta_area(h, l->kk) + i * P,
                  delta_area(h, l->a) + i * P, delta_area(h, l->l) + i * P);
}

static __attribute__((unused)) void delta_decay(const struct delta_head *h,
                                                const struct delta_chunk *c)
{
    delta_decay_of(h, c, true);
}

/* Solves (I + L) x = x for rows [0, count) of x [., width], given l = -L. */
static __attribute__((unused)) void delta_solve(float *x, int64_t width, const float *l,
                                                int64_t count)
{
    for (int64_t i = 0; i < count; i += SOLVE) {
        const int64_t end = i + SOLVE < count ? i + SOLVE : count;

        if (i > 0)
            delta_multiply_rows(x + i * width, width, l + i * P, P, x, width, end - i, width, i,
                                true);
        for (int64_t r = i + 1; r < end; r++)
            for (int64_t j = i; j < r; j++)
                FOR_VECTORS (d, n, 0, width)
                    vf_store_f32(x + r * width + d, n,
                                 vf_load_f32(x + r * width + d, n) +
                                     l[r * P + j] * vf_load_f32(x + j * width + d, n));
    }
}

/* Computes dR in place of dU: solves (I + L)^T x = x, given l = -L. */
static __attribute__((unused)) void delta_solve_transposed(float *x, int64_t width, const float *l,
                                                           int64_t count)
{
    for (int64_t i = (count - 1) / SOLVE * SOLVE; i >= 0; i -= SOLVE) {
        const int64_t end = i + SOLVE < count ? i + SOLVE : count;

        if (end < count)
            delta_multiply_columns(x + i * width, width, l + end * P + i, P, x + end * width, width,
                                   end - i, width, count - end, true);
        for (int64_t r = end - 2; r >= i; r--)
            for (int64_t j = r + 1; j < end; j++)
                FOR_VECTORS (d, n, 0, width)
                    vf_store_f32(x + r * width + d, n,
                                 vf_load_f32(x + r * width + d, n) +
                                     l[j * P + r] * vf_load_f32(x + j * width + d, n));
    }
}

/* Loads the gradients of the results of value head `head` in a chunk: area dout. */
INLINE void delta_load_dout(const void *results, const struct delta_head *h,
                            const struct delta_chunk *c, int64_t head, enum hd_dtype dtype)
{
    float *dout = delta_area(h, h->layout.dout);

    for (int64_t i = 0; i < c->count; i++) {
        FOR_VECTORS (d, n, 0, h->Dv)
            vf_store_f32(
                dout + i * h->layout.value + d, n,
                vf_load(results, ((h->row + c->first + i) * h->H + head) * h->Dv + d, n, dtype));
        FOR_VECTORS (d, n, h->Dv, h->layout.value)
            vf_store_f32(dout + i * h->layout.value + d, n, (vf){0});
    }
}

/* Computes km = K M and u = U of value head `head` (its index among those of the key head: `n`),
 * with the state m before the chunk. */
static __attribute__((unused)) void delta_new_values(const struct delta_head *h,
                                                     const struct delta_chunk *c, int64_t head,
                                                     const float *m)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    const float *beta = delta_vector(h, DELTA_BETA), *e = delta_vector(h, DELTA_E);
    float *u = delta_area(h, l->u), *km = delta_area(h, l->km);

    delta_multiply_rows(km, l->value, delta_area(h, l->k), l->key, m, l->value, c->count, l->value,
                        h->Dk, false);
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t at = (h->row + c->first + i) * h->ld + 2 * h->G * h->Dk + head * h->Dv;

        WITH_FLOATS(h->dtype, T, {
            FOR_VECTORS (d, n, 0, h->Dv)
                vf_store_f32(u + i * l->value + d, n,
                             beta[i] * (vf_load(h->qkv, at + d, n, T) -
                                        e[i] * vf_load_f32(km + i * l->value + d, n)));
        });
        FOR_VECTORS (d, n, h->Dv, l->value)
            vf_store_f32(u + i * l->value + d, n, (vf){0});
    }
    delta_solve(u, l->value, delta_area(h, l->l), c->count);
}

/* Computes to[i, :] = factor[i] * from[i, :] for the rows of a chunk. */
static __attribute__((unused)) void
delta_scale_rows(float *to, const float *from, const float *factor, int64_t count, int64_t width)
{
    for (int64_t i = 0; i < count; i++)
        FOR_VECTORS (d, n, 0, width)
            vf_store_f32(to + i * width + d, n, factor[i] * vf_load_f32(from + i * width + d, n));
}

/* Computes the state after the chunk, out = e_last m + (f K)^T U; out may be m. */
static __attribute__((unused)) void
delta_advance(const struct delta_head *h, const struct delta_chunk *c, float *out, const float *m)
{
    const struct hd_costs_delta_layout *l = &h->layout;
    const float decay = delta_vector(h, DELTA_E)[c->count - 1];
    float *fk = delta_area(h, l->wide);

    delta_scale_rows(fk, delta_area(h, l->k), delta_vector(h, DELTA_F), c->count, l->key);
    FOR_VECTORS (i, n, 0, l->key * l->value)
        vf_store_f32(out + i, n, decay * vf_load_f32(m + i, n));
    delta_multiply_columns(out, l->value, fk, l->key, delta_area(h, l->u), l->value, l->key,
                           l->value, c->count, true);
}

/* Copy a matrix of `columns` columns between padded scratch m, `width` floats a row, and memory. */
static __attribute__((unused)) void delta_take_state(float *m, int64_t width, const float *state,
                                                     int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(m + i * width, state + i * columns, (size_t)columns * sizeof *m);
}

static __attribute__((unused)) void delta_put_state(float *state, const float *m, int64_t width,
                                                    int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(state + i * columns, m + i * width, (size_t)columns * sizeof *m);
}

#endif
