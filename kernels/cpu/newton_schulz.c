#include "kernels/costs/costs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* ---- the norm ---- */

struct newton_sums {
    const void *x;
    double *sums;
    int64_t N;
    enum hd_dtype dtype;
};

INLINE double sum_squares(const struct newton_sums *s, int64_t begin, int64_t end,
                          enum hd_dtype dtype)
{
    vd low = {0}, high = {0};
    double sum = 0;

    FOR_VECTORS (i, n, begin, end) {
        const vf x = vf_load(s->x, i, n, dtype);
        vf_half half[2];
        vd wide;

        memcpy(half, &x, sizeof x);
        wide = __builtin_convertvector(half[0], vd);
        low += wide * wide;
        wide = __builtin_convertvector(half[1], vd);
        high += wide * wide;
    }
    low += high;
    for (int i = 0; i < VL / 2; i++)
        sum += low[i];
    return sum;
}

static void sum_parts(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct newton_sums *s = args;

    (void)thread;
    for (int64_t part = begin; part < end; part++) {
        const int64_t first = part * HD_COSTS_NEWTON_PART;
        const int64_t last =
            first + HD_COSTS_NEWTON_PART < s->N ? first + HD_COSTS_NEWTON_PART : s->N;

        s->sums[part] = s->dtype == HD_F32 ? sum_squares(s, first, last, HD_F32)
                                           : sum_squares(s, first, last, HD_BF16);
    }
}

/* ---- elements ---- */

struct division {
    const void *inp;
    void *out;
    float divisor;
    enum hd_dtype dtype;
};

INLINE void divide(const struct division *d, int64_t begin, int64_t end, enum hd_dtype dtype)
{
    FOR_VECTORS (i, n, begin, end)
        vf_store(d->out, i, n, vf_load(d->inp, i, n, dtype) / d->divisor, dtype);
}

static void divide_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct division *d = args;

    (void)thread;
    if (d->dtype == HD_F32)
        divide(d, begin, end, HD_F32);
    else
        divide(d, begin, end, HD_BF16);
}

struct polynomial {
    void *gram;
    const float *square;
    struct hd_newton_terms t;
    int64_t n;
    enum hd_dtype dtype;
};

/* Replaces rows of G by those of a I + b G + c G G. */
INLINE void polynomial_rows(const struct polynomial *p, int64_t begin, int64_t end,
                            enum hd_dtype dtype)
{
    for (int64_t row = begin; row < end; row++) {
        const int64_t first = row * p->n;

        FOR_VECTORS (i, n, first, first + p->n) {
            vf x = vf_load(p->gram, i, n, dtype) * p->t.b + vf_load_f32(p->square + i, n) * p->t.c;

            if (i <= first + row && first + row < i + n)
                x[first + row - i] += p->t.a;
            vf_store(p->gram, i, n, x, dtype);
        }
    }
}

static void polynomial_pieces(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct polynomial *p = args;

    (void)thread;
    if (p->dtype == HD_F32)
        polynomial_rows(p, begin, end, HD_F32);
    else
        polynomial_rows(p, begin, end, HD_BF16);
}

/* ---- iterations ---- */

enum { NEWTON_GRAIN = 16 * 1024 };

/* Divides the elements of `inp` by their norm. */
static void normalize(const struct hd_backend *cpu, const struct hd_newton_schulz_args *a,
                      const struct hd_costs_newton_layout *l, const void *inp, void *out)
{
    const int64_t elements = a->rows * a->columns;
    const struct newton_sums s = {inp, (double *)((char *)a->scratch + l->sums), elements,
                                  a->dtype};
    struct division d = {.inp = inp, .out = out, .dtype = a->dtype};
    double sum = 0;

    hd_cpu_parallel(cpu, l->parts, 4, sum_parts, &s);
    for (int64_t i = 0; i < l->parts; i++)
        sum += s.sums[i];
    d.divisor = sqrt(sum) > 1e-30 ? (float)sqrt(sum) : 1e-30f;
    hd_cpu_parallel(cpu, elements, NEWTON_GRAIN, divide_pieces, &d);
}

/* Sets `out` to the next iterate of `inp`. */
static enum hd_status iterate(struct hd_backend *cpu, const struct hd_newton_schulz_args *a,
                              const struct hd_costs_newton_layout *l, int64_t i, const void *inp,
                              void *out)
{
    char *scratch = a->scratch;
    const struct polynomial p = {scratch + l->gram, (float *)(scratch + l->square),
                                 hd_costs_newton_terms(a, i), l->n, a->dtype};
    enum hd_status st = HD_OK;

    for (int k = 0; !st && k < HD_NEWTON_PRODUCTS; k++) {
        const struct hd_gemm_args g =
            hd_costs_newton_bound(a, l, (enum hd_newton_product)k, inp, out);

        if (k == HD_NEWTON_STEP)
            hd_cpu_parallel(cpu, l->n, NEWTON_GRAIN / l->n + 1, polynomial_pieces, &p);
        st = KERNEL(gemm)(cpu, &g);
    }
    return st;
}

/* Iterates between a matrix and the scratch, begun so that the last iterate is in the matrix. */
enum hd_status KERNEL(newton_schulz)(struct hd_backend *cpu,
                                     const struct hd_newton_schulz_args *args)
{
    const struct hd_costs_newton_layout l = hd_costs_lay_out_newton(args, &cpu->traits);
    enum hd_status st = hd_costs_newton_check(args);

    for (int64_t k = 0; !st && k < args->count; k++) {
        char *x =
            (char *)args->x + k * args->rows * args->columns * (int64_t)hd_dtype_size(args->dtype);
        char *from = args->iterations % 2 ? args->scratch : x, *to = from == x ? args->scratch : x;

        normalize(cpu, args, &l, x, from);
        for (int64_t i = 0; !st && i < args->iterations; i++) {
            char *next = from;

            st = iterate(cpu, args, &l, i, from, to);
            from = to;
            to = next;
        }
    }
    return st;
}
