/* transpose: copies blocks of a tensor to padded scratch as fp32, transposed or not.
 *
 * Used by: gemm_blocked, attention, delta.   Uses: vec.   Threads: any.
 */
#ifndef HD_KERNELS_CPU_TRANSPOSE_H
#define HD_KERNELS_CPU_TRANSPOSE_H

#include <stdbool.h>

#include "kernels/cpu/vec.h"

enum { PREFETCH_ROWS = 12 };

/* Prefetches `columns` elements from `at` on. The hardware does not prefetch distant rows. */
INLINE void prefetch_row(const void *tensor, int64_t at, int64_t columns, enum hd_dtype dtype)
{
    const int64_t e = vf_element_bytes(dtype);
    const char *row = (const char *)tensor + at * e;

    for (int64_t byte = 0; byte < columns * e; byte += 64)
        __builtin_prefetch(row + byte, 0, 2);
}

/* Copies to[i, j] = from[at + i * ld + j] for i < rows, j < columns; zero for columns <= j <
 * width. */
INLINE void pack_rows(float *to, int64_t ld_to, const void *from, int64_t at, int64_t ld,
                      int64_t rows, int64_t columns, int64_t width, enum hd_dtype dtype)
{
    for (int64_t i = 0; i < rows; i++) {
        if (i + PREFETCH_ROWS < rows)
            prefetch_row(from, at + (i + PREFETCH_ROWS) * ld, columns, dtype);
        FOR_VECTORS (j, n, 0, columns)
            vf_store_f32(to + i * ld_to + j, n, vf_load(from, at + i * ld + j, n, dtype));
        FOR_VECTORS (j, n, columns, width)
            vf_store_f32(to + i * ld_to + j, n, (vf){0});
    }
}

/* Interleaves the lanes of two vectors by blocks of `s`: one step of a transposition. */
#define LOW(i)  (((i) / s % 2) ? (i)-s + VL : (i))
#define HIGH(i) (((i) / s % 2) ? (i) + VL : (i) + s)
#define SWAP_BLOCKS(a, b)                                           \
    do {                                                            \
        const vf low = __builtin_shufflevector(a, b, LANES(LOW));   \
        const vf high = __builtin_shufflevector(a, b, LANES(HIGH)); \
                                                                    \
        a = low;                                                    \
        b = high;                                                   \
    } while (0)

/* Transposes a VL x VL block in registers: swaps off-diagonal halves, quarters, ... lanes. */
INLINE void transpose_square(vf x[VL])
{
#define STEP(distance)                       \
    do {                                     \
        enum { s = distance };               \
        UNROLL                               \
        for (int i = 0; i < VL; i++)         \
            if (!(i & s))                    \
                SWAP_BLOCKS(x[i], x[i + s]); \
    } while (0)
#if VEC_BYTES == 64
    STEP(8);
#endif
#if VEC_BYTES >= 32
    STEP(4);
#endif
    STEP(2);
    STEP(1);
#undef STEP
}

/* Transposes to[j, i] = from[at + i * ld + j] for i < rows, j < columns; zero for rows <= i <
 * width. If rows of `to` are contiguous and shorter than a vector, all but the last are stored as
 * whole vectors, and the next row overwrites the excess. */
INLINE void pack_transposed(float *to, int64_t ld_to, const void *from, int64_t at, int64_t ld,
                            int64_t rows, int64_t columns, int64_t width, enum hd_dtype dtype)
{
    for (int64_t i = 0; i < width; i += VL) {
        const int64_t stored = width - i < VL ? width - i : VL;

        for (int64_t k = i + VL; k < i + 2 * VL && k < rows; k++)
            prefetch_row(from, at + k * ld, columns, dtype);
        FOR_VECTORS (j, n, 0, columns) {
            const int64_t first = at + i * ld + j;
            const bool contiguous = width < VL && ld_to == width;
            float *block = to + j * ld_to + i;
            vf x[VL];

            if (rows - i >= VL) {
                UNROLL
                for (int k = 0; k < VL; k++)
                    x[k] = vf_load(from, first + k * ld, n, dtype);
            } else {
                UNROLL
                for (int k = 0; k < VL; k++)
                    x[k] = i + k < rows ? vf_load(from, first + k * ld, n, dtype) : (vf){0};
            }
            transpose_square(x);
            if (n == VL && (stored == VL || (contiguous && j + VL < columns))) {
                UNROLL
                for (int k = 0; k < VL; k++)
                    vf_store_f32(block + k * ld_to, VL, x[k]);
            } else {
                for (int k = 0; k < n; k++)
                    vf_store_f32(block + k * ld_to, contiguous && j + k + 1 < columns ? VL : stored,
                                 x[k]);
            }
        }
    }
}

#endif
