/* newton_schulz: the iteration that makes a matrix nearly orthogonal.
 *
 * Three products per iteration by hd_cuda_gemm take nearly all of the time; besides them the norm
 * reads the matrix twice and writes it once, and the polynomial reads G and G G and writes G.
 * Squares are summed in double: threads in order of their elements, then parts as in block.cuh, so
 * every launch gives the same bits.
 *
 * Not measured on a GPU yet. */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/pack.cuh"

extern "C" {
#include "kernels/costs/costs.h"
}

enum { NEWTON_THREADS = 256 };

template <typename T>
static __global__ void __launch_bounds__(NEWTON_THREADS)
    newton_squares(double *sums, const T *x, int64_t N)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    const int64_t begin = (int64_t)blockIdx.x * HD_COSTS_NEWTON_PART;
    const int64_t end = begin + HD_COSTS_NEWTON_PART < N ? begin + HD_COSTS_NEWTON_PART : N;
    double sum = 0;

    for (int64_t i = begin + threadIdx.x; i < end; i += NEWTON_THREADS) {
        const double value = (double)to_float(x[i]);

        sum += value * value;
    }
    sum = block_add(sum, shared);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

/* Divides x by its norm; every block adds the sums of all parts in the same order. */
template <typename T>
static __global__ void __launch_bounds__(NEWTON_THREADS)
    newton_divide(T *out, const T *x, const double *sums, int64_t parts, int64_t N)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    double sum = 0;
    float divisor;

    for (int64_t i = threadIdx.x; i < parts; i += NEWTON_THREADS)
        sum += sums[i];
    sum = sqrt(block_add(sum, shared));
    divisor = sum > 1e-30 ? (float)sum : 1e-30f;
    for (int64_t i = (int64_t)blockIdx.x * NEWTON_THREADS + threadIdx.x; i < N;
         i += (int64_t)gridDim.x * NEWTON_THREADS)
        out[i] = from_float<T>(__fdiv_rn(to_float(x[i]), divisor));
}

/* Replaces G by a I + b G + c G G. */
template <typename T>
static __global__ void __launch_bounds__(NEWTON_THREADS)
    newton_polynomial(T *gram, const float *square, struct hd_newton_terms t, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * NEWTON_THREADS + threadIdx.x; i < n * n;
         i += (int64_t)gridDim.x * NEWTON_THREADS) {
        float x = __fmaf_rn(square[i], t.c, __fmul_rn(to_float(gram[i]), t.b));

        if (i / n == i % n)
            x = __fadd_rn(x, t.a);
        gram[i] = from_float<T>(x);
    }
}

static dim3 newton_grid(struct hd_cuda_stream *s, int64_t elements)
{
    return dim3(grid_of(s, divide_up(elements, NEWTON_THREADS * 4), 8));
}

template <typename T>
static enum hd_status normalize(struct hd_cuda_stream *s, const struct hd_newton_schulz_args *a,
                                const struct hd_costs_newton_layout *l, const T *x, T *out)
{
    double *sums = (double *)((char *)a->scratch + l->sums);
    const int64_t N = a->rows * a->columns;
    const enum hd_status st = HD_LAUNCH(s, newton_squares<T>, dim3((unsigned)l->parts),
                                        dim3(NEWTON_THREADS), 0, sums, x, N);

    return st ? st
              : HD_LAUNCH(s, newton_divide<T>, newton_grid(s, N), dim3(NEWTON_THREADS), 0, out, x,
                          sums, l->parts, N);
}

template <typename T>
static enum hd_status iterate(struct hd_cuda_stream *s, const struct hd_newton_schulz_args *a,
                              const struct hd_costs_newton_layout *l, int64_t i, const T *inp,
                              T *out)
{
    char *scratch = (char *)a->scratch;
    enum hd_status st = HD_OK;

    for (int k = 0; !st && k < HD_NEWTON_PRODUCTS; k++) {
        const struct hd_gemm_args g =
            hd_costs_newton_bound(a, l, (enum hd_newton_product)k, inp, out);

        if (k == HD_NEWTON_STEP)
            st = HD_LAUNCH(s, newton_polynomial<T>, newton_grid(s, l->n * l->n),
                           dim3(NEWTON_THREADS), 0, (T *)(scratch + l->gram),
                           (const float *)(scratch + l->square), hd_costs_newton_terms(a, i), l->n);
        if (!st)
            st = hd_cuda_gemm(s, &g);
    }
    return st;
}

template <typename T>
static enum hd_status orthogonalize(struct hd_cuda_stream *s, const struct hd_newton_schulz_args *a)
{
    const struct hd_costs_newton_layout l = hd_costs_lay_out_newton(a, &s->cuda->traits);
    enum hd_status st = HD_OK;

    for (int64_t k = 0; !st && k < a->count; k++) {
        T *x = (T *)a->x + k * a->rows * a->columns, *other = (T *)a->scratch;
        T *from = a->iterations % 2 ? other : x, *to = a->iterations % 2 ? x : other;

        st = normalize<T>(s, a, &l, x, from);
        for (int64_t i = 0; !st && i < a->iterations; i++) {
            T *next = from;

            st = iterate<T>(s, a, &l, i, from, to);
            from = to;
            to = next;
        }
    }
    return st;
}

extern "C" enum hd_status hd_cuda_newton_schulz(struct hd_cuda_stream *s,
                                                const struct hd_newton_schulz_args *a)
{
    const enum hd_status st = hd_costs_newton_check(a);

    if (st || a->rows == 0 || a->columns == 0)
        return st;
    return a->dtype == HD_F32 ? orthogonalize<float>(s, a) : orthogonalize<bf16>(s, a);
}
