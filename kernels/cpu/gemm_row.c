/* gemm_row: one row times a transposed matrix, c[n] = sum_k a[k] b[n, k] (+ bias) (+ c or add), as
 * decoding does for every weight. It is memory-bound (one element of b per multiply-add), so each
 * row of b is read once, in order. Several rows are summed at a time, because their sums are
 * independent. Rows of a quantised b are decoded one piece at a time. */
#include "kernels/costs/costs.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/gemm.h"

/* Rows of b that are summed at a time; elements of a row of b that are decoded at a time. */
enum { ROWS_AT_ONCE = 4, PIECE = 256 };

/* Returns the sum of one column of c with the GEMM's epilogue applied. */
INLINE vf apply_row_epilogue(const struct hd_gemm_args *a, vf sum, int64_t column)
{
    if (a->epilogue == HD_EPILOGUE_GELU)
        return gelu(vf_round(sum, a->c_dtype));
    if (a->epilogue == HD_EPILOGUE_GELU_BACKWARD)
        return sum * gelu_slope(vf_load(a->gelu_inp, column, 1, a->c_dtype));
    return sum;
}

/* Adds to sums[i] the products of columns [column, column + columns) of a and of row i of `count`
 * rows of b, the first of which begins at element `at` of b. */
INLINE void add_row_products(vf sums[ROWS_AT_ONCE], const struct hd_gemm_args *a, int64_t column,
                             int64_t columns, const void *b, int64_t at, int64_t ldb,
                             const int count, enum hd_dtype dtype)
{
    FOR_VECTORS (k, n, 0, columns) {
        const vf x = vf_load(a->a, column + k, n, dtype);

        UNROLL
        for (int i = 0; i < count; i++)
            sums[i] += x * vf_load(b, at + i * ldb + k, n, dtype);
    }
}

/* Adds to sums[i] the products of a and of row `row` + i of a quantised b, for i < count. */
INLINE void add_decoded(vf sums[ROWS_AT_ONCE], const struct hd_gemm_args *a, int64_t row,
                        const int count, enum hd_dtype dtype)
{
    float decoded[ROWS_AT_ONCE * PIECE]; /* memory for elements of dtype, which may be half as wide
                                            as a float */

    for (int64_t k = 0; k < a->K; k += PIECE) {
        const int64_t n = a->K - k < PIECE ? a->K - k : PIECE;

        decode_box(&a->b_codes, a->b, row, count, k, n, decoded, PIECE, dtype);
        add_row_products(sums, a, k, n, decoded, 0, PIECE, count, dtype);
    }
}

INLINE void dot_rows(const struct hd_gemm_args *a, int64_t row, const int count,
                     enum hd_dtype dtype)
{
    vf sums[ROWS_AT_ONCE] = {{0}};

    if (a->b_codes.quant)
        add_decoded(sums, a, row, count, dtype);
    else
        add_row_products(sums, a, 0, a->K, a->b, row * a->ldb, a->ldb, count, dtype);
    for (int i = 0; i < count; i++) {
        const void *old_c = a->accumulate ? a->c : a->add;
        const float old[2] = {a->bias ? vf_load(a->bias, row + i, 1, dtype)[0] : 0,
                              old_c ? vf_load(old_c, row + i, 1, a->c_dtype)[0] : 0};

        const vf sum = vf_set(vf_sum(sums[i]) + old[0] + old[1]);

        if (a->pre)
            vf_store(a->pre, row + i, 1, sum, a->c_dtype);
        vf_store(a->c, row + i, 1, apply_row_epilogue(a, sum, row + i), a->c_dtype);
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
    const int64_t row_bytes =
        hd_costs_factor(&args->b_codes, 1, args->K, args->K, args->ab_dtype).moved_bytes;

    hd_cpu_parallel(cpu, args->N, hd_cpu_row_grain(row_bytes), compute, args);
}
