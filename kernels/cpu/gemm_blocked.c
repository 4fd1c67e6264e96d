/* gemm_blocked: matrix multiplication without a library.
 *
 * Why: oneDNN may be absent, may refuse a shape, or may want more scratch than its budget; tests
 * compare both. One thread computes a block of c at a time: for each slice of the depth it packs
 * its block of a and of b as fp32 (so bf16 factors cost one conversion) into panels that the
 * registers stream through, and adds to the block's sums in scratch. The sums go to c once, at the
 * end, with bias or the old c. Blocks and slices depend on the shape alone, so do the results.
 *
 * (Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication".)
 */
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/micro.h"
#include "kernels/cpu/transpose.h"
#include "kernels/dry/dry.h"

struct blocks {
    const struct hd_gemm_args *args;
    struct hd_dry_gemm_layout layout;
    int64_t rows, columns; /* of a block */
    int64_t across;        /* blocks side by side */
};

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Panels of MICRO_M rows, each [k, MICRO_M]; rows past the matrix are zero. */
INLINE void pack_a(const struct hd_gemm_args *a, float *packed, int64_t row, int64_t rows,
                   int64_t k, int64_t depth, enum hd_dtype dtype)
{
    for (int64_t i = 0; i < rows; i += MICRO_M, packed += MICRO_M * depth) {
        const int m = (int)at_most(MICRO_M, rows - i);

        if (a->trans_a)
            pack_rows(packed, MICRO_M, a->a, k * a->lda + row + i, a->lda, depth, m, MICRO_M,
                      dtype);
        else
            pack_transposed(packed, MICRO_M, a->a, (row + i) * a->lda + k, a->lda, m, depth,
                            MICRO_M, dtype);
    }
}

/* Panels of MICRO_N columns, each [k, MICRO_N]; columns past the matrix are zero. */
INLINE void pack_b(const struct hd_gemm_args *a, float *packed, int64_t column, int64_t columns,
                   int64_t k, int64_t depth, enum hd_dtype dtype)
{
    for (int64_t j = 0; j < columns; j += MICRO_N, packed += MICRO_N * depth) {
        const int n = (int)at_most(MICRO_N, columns - j);

        if (a->trans_b)
            pack_transposed(packed, MICRO_N, a->b, (column + j) * a->ldb + k, a->ldb, n, depth,
                            MICRO_N, dtype);
        else
            pack_rows(packed, MICRO_N, a->b, k * a->ldb + column + j, a->ldb, depth, n, MICRO_N,
                      dtype);
    }
}

/* c = sums (+ c) (+ bias) for a block. */
INLINE void store_block(const struct hd_gemm_args *a, const float *sums, int64_t ld, int64_t row,
                        int64_t rows, int64_t column, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        FOR_VECTORS (j, n, 0, columns) {
            const int64_t at = (row + i) * a->ldc + column + j;
            vf x = vf_load_f32(sums + i * ld + j, n);

            if (a->bias)
                x += vf_load(a->bias, column + j, n, a->ab_dtype);
            if (a->accumulate)
                x += vf_load(a->c, at, n, a->c_dtype);
            vf_store(a->c, at, n, x, a->c_dtype);
        }
}

static void compute_block(const struct blocks *s, int64_t block, float *scratch)
{
    const struct hd_gemm_args *a = s->args;
    const int64_t row = block / s->across * s->rows, column = block % s->across * s->columns;
    const int64_t rows = at_most(s->rows, a->M - row), columns = at_most(s->columns, a->N - column);
    float *packed_a = scratch, *packed_b = packed_a + s->layout.a_floats;
    float *sums = packed_b + s->layout.b_floats;

    for (int64_t k = 0; k < a->K || k == 0; k += HD_DRY_GEMM_KC) {
        const int64_t depth = at_most(HD_DRY_GEMM_KC, a->K - k);

        if (a->ab_dtype == HD_BF16) {
            pack_a(a, packed_a, row, rows, k, depth, HD_BF16);
            pack_b(a, packed_b, column, columns, k, depth, HD_BF16);
        } else {
            pack_a(a, packed_a, row, rows, k, depth, HD_F32);
            pack_b(a, packed_b, column, columns, k, depth, HD_F32);
        }
        for (int64_t j = 0; j < columns; j += MICRO_N)
            for (int64_t i = 0; i < rows; i += MICRO_M)
                micro_block(MICRO_M, 2, sums + i * s->columns + j, s->columns, packed_a + i * depth,
                            1, MICRO_M, packed_b + j * depth, MICRO_N, depth, k > 0);
    }
    store_block(a, sums, s->columns, row, rows, column, columns);
}

static void compute_blocks(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct blocks *s = args;
    float *scratch = (float *)((char *)s->args->scratch + (int64_t)thread * s->layout.thread_bytes);

    for (int64_t block = begin; block < end; block++)
        compute_block(s, block, scratch);
}

void KERNEL(gemm_blocked)(struct hd_backend *cpu, const struct hd_gemm_args *args)
{
    struct blocks s = {.args = args, .layout = hd_dry_gemm_layout(args)};

    s.rows = s.layout.block_rows;
    s.columns = s.layout.block_columns;
    s.across = (args->N + s.columns - 1) / s.columns;
    hd_cpu_parallel(cpu, (args->M + s.rows - 1) / s.rows * s.across, 1, compute_blocks, &s);
}
