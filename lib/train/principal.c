#include "train/principal.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/arena.h"
#include "base/math.h"
#include "base/random.h"

enum {
    TILE = 8,        /* vectors that a product computes at a time */
    COLUMNS = 64,    /* columns of w that a product with its transpose computes at a time */
    MORE = 16,       /* vectors beside the r that are wanted */
    ROUNDS = 4,      /* products with w^T w */
    EXACT_MAX = 128, /* a matrix with so few rows or columns is decomposed exactly */
    SWEEPS_MAX = 60,
    THREADS_MAX = 64,
};

/* Vectors in tiles: element `row` of vector k is at[(k / TILE * rows + row) * TILE + k % TILE]. */
struct vectors {
    double *at;
    int64_t rows, count; /* count: a multiple of TILE; those behind the ones in use are 0 */
};

static double *element(const struct vectors *v, int64_t row, int64_t k)
{
    return &v->at[(k / TILE * v->rows + row) * TILE + k % TILE];
}

/* ---- products, on several threads ---- */

struct tall_product {
    const float *w;
    int64_t m, n;
    const struct vectors *in;
    struct vectors *out;
    bool transposed;
    int threads;
};

struct tall_product_thread {
    const struct tall_product *p;
    int index;
    pthread_t thread;
    bool started;
};

/* out[i, :] = sum_j w[i, j] in[j, :] for the rows [begin, end). */
static void multiply_rows(const struct tall_product *p, int64_t begin, int64_t end)
{
    for (int64_t t = 0; t < p->in->count; t += TILE) {
        const double *x = element(p->in, 0, t);

        for (int64_t i = begin; i < end; i++) {
            const float *w = p->w + i * p->n;
            double sum[TILE] = {0};

            for (int64_t j = 0; j < p->n; j++)
                for (int c = 0; c < TILE; c++)
                    sum[c] += (double)w[j] * x[j * TILE + c];
            memcpy(element(p->out, i, t), sum, sizeof sum);
        }
    }
}

/* out[j, :] = sum_i w[i, j] in[i, :] for the columns [begin, end), at most COLUMNS. */
static void multiply_columns(const struct tall_product *p, int64_t begin, int64_t end)
{
    double sum[COLUMNS][TILE];

    for (int64_t t = 0; t < p->in->count; t += TILE) {
        const double *y = element(p->in, 0, t);

        memset(sum, 0, sizeof sum);
        for (int64_t i = 0; i < p->m; i++) {
            const float *w = p->w + i * p->n + begin;

            for (int64_t j = 0; j < end - begin; j++)
                for (int c = 0; c < TILE; c++)
                    sum[j][c] += (double)w[j] * y[i * TILE + c];
        }
        memcpy(element(p->out, begin, t), sum, (size_t)(end - begin) * sizeof sum[0]);
    }
}

static void *run_product(void *of)
{
    const struct tall_product_thread *t = of;
    const struct tall_product *p = t->p;
    const int64_t all = p->transposed ? p->n : p->m;
    const int64_t blocks = (all + COLUMNS - 1) / COLUMNS;

    for (int64_t b = t->index; b < blocks; b += p->threads) {
        const int64_t begin = b * COLUMNS, end = hd_min(begin + COLUMNS, all);

        if (p->transposed)
            multiply_columns(p, begin, end);
        else
            multiply_rows(p, begin, end);
    }
    return NULL;
}

/* Computes out = w in, or w^T in. What a thread that does not start would compute, this one does. */
static void multiply(const struct tall_product *p)
{
    struct tall_product_thread threads[THREADS_MAX];

    for (int i = 0; i < p->threads; i++) {
        threads[i] = (struct tall_product_thread){.p = p, .index = i};
        threads[i].started =
            i > 0 && pthread_create(&threads[i].thread, NULL, run_product, &threads[i]) == 0;
    }
    for (int i = 0; i < p->threads; i++)
        if (threads[i].started)
            (void)pthread_join(threads[i].thread, NULL);
        else
            (void)run_product(&threads[i]);
}

/* ---- small matrices ---- */

static double dot(const struct vectors *x, int64_t i, const struct vectors *y, int64_t k)
{
    double sum = 0;

    for (int64_t r = 0; r < x->rows; r++)
        sum += *element(x, r, i) * *element(y, r, k);
    return sum;
}

/* Makes the first `count` vectors orthonormal (Gram & Schmidt, twice). A vector that depends on those
 * before becomes 0. */
static void orthonormalize(const struct vectors *v, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        const double before = sqrt(dot(v, k, v, k));
        double norm = before;

        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = 0; i < k; i++) {
                const double part = dot(v, i, v, k);

                for (int64_t r = 0; r < v->rows; r++)
                    *element(v, r, k) -= part * *element(v, r, i);
            }
        norm = sqrt(dot(v, k, v, k));
        for (int64_t r = 0; r < v->rows; r++)
            *element(v, r, k) *= norm > 1e-12 * before ? 1 / norm : 0;
    }
}

/* Rotates rows and columns i and k of the symmetric g [l, l] so that g[i, k] is 0, and columns of p. */
static void rotate(double *g, double *p, int64_t l, int64_t i, int64_t k)
{
    const double theta = (g[k * l + k] - g[i * l + i]) / (2 * g[i * l + k]);
    const double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
    const double c = 1 / sqrt(t * t + 1), s = t * c;

    for (int64_t j = 0; j < l; j++) {
        const double x = g[j * l + i], y = g[j * l + k];

        g[j * l + i] = c * x - s * y;
        g[j * l + k] = s * x + c * y;
    }
    for (int64_t j = 0; j < l; j++) {
        const double x = g[i * l + j], y = g[k * l + j];

        g[i * l + j] = c * x - s * y;
        g[k * l + j] = s * x + c * y;
    }
    for (int64_t j = 0; j < l; j++) {
        const double x = p[j * l + i], y = p[j * l + k];

        p[j * l + i] = c * x - s * y;
        p[j * l + k] = s * x + c * y;
    }
}

/* Diagonalises the symmetric g [l, l] (Jacobi): the columns of p are its vectors. */
static void diagonalize(double *g, double *p, int64_t l)
{
    for (int64_t i = 0; i < l; i++)
        for (int64_t k = 0; k < l; k++)
            p[i * l + k] = i == k;
    for (int sweep = 0; sweep < SWEEPS_MAX; sweep++) {
        bool done = true;

        for (int64_t i = 0; i < l; i++)
            for (int64_t k = i + 1; k < l; k++)
                if (fabs(g[i * l + k]) > 1e-15 * sqrt(fabs(g[i * l + i] * g[k * l + k]))) {
                    rotate(g, p, l, i, k);
                    done = false;
                }
        if (done)
            return;
    }
}

/* ---- the decomposition ---- */

struct decomposition {
    const float *w;
    int64_t m, n, r, l; /* l: vectors of the subspace */
    int threads;
    struct vectors left, right; /* [m], [n] */
    double *gram, *turn;        /* [l, l] */
};

static enum hd_status make_vectors(struct hd_arena *arena, int64_t rows, int64_t count,
                                   struct vectors *ret)
{
    *ret = (struct vectors){.rows = rows, .count = (count + TILE - 1) / TILE * TILE};
    ret->at = hd_arena_array(arena, (size_t)(ret->rows * ret->count), sizeof *ret->at);
    return ret->at ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to decompose a weight");
}

static void apply(struct decomposition *d, bool transposed)
{
    const struct tall_product p = {.w = d->w,
                                   .m = d->m,
                                   .n = d->n,
                                   .in = transposed ? &d->left : &d->right,
                                   .out = transposed ? &d->right : &d->left,
                                   .transposed = transposed,
                                   .threads = d->threads};

    multiply(&p);
}

/* Makes `left` an orthonormal basis of the subspace, and `right` = w^T left. */
static void find_subspace(struct decomposition *d)
{
    const uint64_t key = hd_random_key(0, hd_random_hash("principal"));

    for (int64_t j = 0; j < d->n; j++)
        for (int64_t k = 0; k < d->l; k++)
            *element(&d->right, j, k) = (double)hd_random_normal(key, (uint64_t)(j * d->l + k));
    for (int round = 0; round < ROUNDS; round++) {
        orthonormalize(&d->right, d->l);
        apply(d, false);
        orthonormalize(&d->left, d->l);
        apply(d, true);
    }
}

/* Sets the factors from the vectors of the largest values of (w^T left)^T (w^T left). */
static void take_largest(const struct decomposition *d, float *ret_a, float *ret_b)
{
    const int64_t l = d->l;

    for (int64_t i = 0; i < l; i++)
        for (int64_t k = 0; k <= i; k++)
            d->gram[i * l + k] = d->gram[k * l + i] = dot(&d->right, i, &d->right, k);
    diagonalize(d->gram, d->turn, l);
    for (int64_t k = 0; k < d->r; k++) {
        int64_t best = 0;
        double root;

        for (int64_t i = 1; i < l; i++)
            if (d->gram[i * l + i] > d->gram[best * l + best])
                best = i;
        root = sqrt(sqrt(fmax(d->gram[best * l + best], 0))); /* of the singular value */
        for (int64_t i = 0; i < d->m; i++) {
            double sum = 0;

            for (int64_t c = 0; c < l; c++)
                sum += *element(&d->left, i, c) * d->turn[c * l + best];
            ret_b[i * d->r + k] = (float)(sum * root);
        }
        for (int64_t j = 0; j < d->n; j++) {
            double sum = 0;

            for (int64_t c = 0; c < l; c++)
                sum += *element(&d->right, j, c) * d->turn[c * l + best];
            ret_a[k * d->n + j] = root > 0 ? (float)(sum / root) : 0;
        }
        d->gram[best * l + best] = -1;
    }
}

enum hd_status hd_principal_find(const float *w, int64_t m, int64_t n, int64_t r, int threads,
                                 float *ret_a, float *ret_b)
{
    const int64_t least = hd_min(m, n);
    struct decomposition d = {.w = w, .m = m, .n = n, .r = r};
    struct hd_arena arena;
    enum hd_status st;

    d.l = least <= EXACT_MAX ? least : hd_min(r + MORE, least);
    d.threads = threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads;
    hd_arena_init(&arena, 0);
    st = make_vectors(&arena, m, d.l, &d.left);
    if (!st)
        st = make_vectors(&arena, n, d.l, &d.right);
    d.gram = hd_arena_array(&arena, (size_t)(d.l * d.l), sizeof *d.gram);
    d.turn = hd_arena_array(&arena, (size_t)(d.l * d.l), sizeof *d.turn);
    if (!st && hd_arena_failed(&arena))
        st = hd_err(HD_NO_MEMORY, "no memory to decompose a weight");
    if (!st) {
        find_subspace(&d);
        take_largest(&d, ret_a, ret_b);
    }
    hd_arena_done(&arena);
    return st;
}
