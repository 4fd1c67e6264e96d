/* gemm_row: one row times a transposed matrix, c[n] = sum_k a[k] b[n, k] (+ bias) (+ c), as
 * decoding does for every weight. It is memory-bound (one element of b per multiply-add), so each
 * row of b is read once, in order. Several rows at a time give independent sums. */
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/gemm.h"

enum { ROWS_AT_ONCE = 4 };

/* Applies the epilogue to the sum of one column. */
INLINE vf finish(const struct hd_gemm_args *a, vf sum, int64_t column)
{
    if (a->epilogue == HD_EPILOGUE_GELU)
        return gelu(vf_round(sum, a->c_dtype));
    if (a->epilogue == HD_EPILOGUE_GELU_BACKWARD)
        return sum * gelu_slope(vf_load(a->gelu_inp, column, 1, a->c_dtype));
    return sum;
}

INLINE void dot_rows(const struct hd_gemm_args *a, int64_t row, const int count,
                     enum hd_dtype dtype)
{
    vf sums[ROWS_AT_ONCE] = {{0}};

    FOR_VECTORS (k, n, 0, a->K) {
        const vf x = vf_load(a->a, k, n, dtype);

        UNROLL
        for (int i = 0; i < count; i++)
            sums[i] += x * vf_load(a->b, (row + i) * a->ldb + k, n, dtype);
    }
    for (int i = 0; i < count; i++) {
        const float old[2] = {a->bias ? vf_load(a->bias, row + i, 1, dtype)[0] : 0,
                              a->accumulate ? vf_load(a->c, row + i, 1, a->c_dtype)[0] : 0};

        const vf sum = vf_set(vf_sum(sums[i]) + old[0] + old[1]);

        if (a->pre)
            vf_store(a->pre, row + i, 1, sum, a->c_dtype);
        vf_store(a->c, row + i, 1, finish(a, sum, row + i), a->c_dtype);
    }
}

INLINE void compute_rows(const struct hd_gemm_args *a, int64_t begin, int64_t end,
                         enum hd_dtype dtype)
{
    int64_t row = begin;

    for (; row + ROWS_AT_ONCE <= end; row += ROWS_AT_ONCE)
        dot_rows(a, row, ROWS_AT_ONCE, dtype);
    for (; row < end; row++)
        dot_rows(a, row, 1, dtype);
}

static void compute(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_gemm_args *a = args;

    (void)thread;
    WITH_FLOATS(a->ab_dtype, T, compute_rows(a, begin, end, T));
}

void KERNEL(gemm_row)(struct hd_backend *cpu, const struct hd_gemm_args *args)
{
    const int64_t row_bytes = args->K * (int64_t)hd_dtype_size(args->ab_dtype);

    hd_cpu_parallel(cpu, args->N, hd_cpu_row_grain(row_bytes), compute, args);
}
