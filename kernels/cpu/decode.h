/* decode: values of a quantised factor (base/quant.h), rounded to the encoding that is multiplied.
 *
 * nf4: the 16 products of a value and the scale are rounded once for each run within a block, then
 * looked up by code.
 *
 * Used by: gemm_blocked, gemm_row.   Uses: vec.   Threads: any. */
#ifndef HD_KERNELS_CPU_DECODE_H
#define HD_KERNELS_CPU_DECODE_H

#include "base/quant.h"
#include "kernels/cpu/vec.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { DECODE_SCALES = 64 }; /* number of nf4 block scales that are decoded at a time */

/* Unpacks the 4-bit codes [first, first + count) of a record to one byte per code. */
INLINE void decode_nibbles(const uint8_t *codes, int64_t first, int64_t count, uint8_t *ret_codes)
{
    int64_t i = 0;

    if (first % 2 && count > 0)
        ret_codes[i++] = codes[first / 2] & 15;
    codes += (first + i) / 2;
#if defined(__SSE2__)
    for (; i + 32 <= count; i += 32, codes += 16) {
        const __m128i both = _mm_loadu_si128((const __m128i *)codes), four = _mm_set1_epi8(15);
        const __m128i upper = _mm_and_si128(_mm_srli_epi16(both, 4), four);
        const __m128i lower = _mm_and_si128(both, four);

        _mm_storeu_si128((__m128i *)(ret_codes + i), _mm_unpacklo_epi8(upper, lower));
        _mm_storeu_si128((__m128i *)(ret_codes + i + 16), _mm_unpackhi_epi8(upper, lower));
    }
#endif
    for (; i + 1 < count; i += 2, codes++) {
        ret_codes[i] = (uint8_t)(*codes >> 4);
        ret_codes[i + 1] = *codes & 15;
    }
    if (i < count)
        ret_codes[i] = (uint8_t)(*codes >> 4);
}

/* Returns table[index[i]] of 16 values; from registers where 16 floats fit, without memory
 * access. */
INLINE vf look_up_16(const float table[HD_NF4_VALUES], vi index)
{
#if defined(__AVX512F__)
    return (vf)_mm512_permutexvar_ps((__m512i)index, _mm512_loadu_ps(table));
#elif defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)index);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)index);

    /* blendv selects by the sign bit: bit 3 of the index is moved there */
    return (vf)_mm256_blendv_ps(low, high,
                                _mm256_castsi256_ps(_mm256_slli_epi32((__m256i)index, 28)));
#else
    return vf_lookup(table, index);
#endif
}

/* Decodes `count` elements from `first` on, all in one block of nf4, whose 16 possible values are
 * `values`. */
INLINE void decode_run(const float values[HD_NF4_VALUES], const uint8_t *codes, int64_t first,
                       int64_t count, float scale, void *to, int64_t at, enum hd_dtype dtype)
{
    float scaled[HD_NF4_VALUES];
    uint8_t code[HD_NF4_BLOCK];

    FOR_VECTORS (i, n, 0, HD_NF4_VALUES)
        vf_store_f32(scaled + i, n, vf_load_f32(values + i, n) * vf_set(scale));
    decode_nibbles(codes, first, count, code);
    FOR_VECTORS (i, n, 0, count)
        vf_store(to, at + i, n, look_up_16(scaled, vi_load_u8(code + i, n)), dtype);
}

/* Decodes elements [first, first + count), in row-major order, of an nf4 matrix. */
INLINE void decode_nf4(const struct hd_quant_matrix *m, const char *memory, int64_t first,
                       int64_t count, void *to, int64_t at, enum hd_dtype dtype)
{
    const float *values = hd_nf4_values();
    const int64_t last = (first + count - 1) / HD_NF4_BLOCK;
    float scales[DECODE_SCALES];
    int64_t done = 0;

    for (int64_t b = first / HD_NF4_BLOCK; b <= last; b += DECODE_SCALES) {
        const int64_t n = last + 1 - b < DECODE_SCALES ? last + 1 - b : DECODE_SCALES;

        hd_nf4_scales(m, memory, b, n, scales);
        for (int64_t k = 0; k < n; k++) {
            const int64_t end = (b + k + 1) * HD_NF4_BLOCK - first;
            const int64_t run = (end < count ? end : count) - done;

            decode_run(values, (const uint8_t *)memory + m->at, first + done, run, scales[k], to,
                       at + done, dtype);
            done += run;
        }
    }
}

/* Decodes `count` 8-bit codes of one row, which has one scale. */
INLINE void decode_bytes(const uint8_t *codes, float scale, bool int8, int64_t count, void *to,
                         int64_t at, enum hd_dtype dtype)
{
    enum { PIECE = 256 };
    float values[PIECE];

    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < PIECE ? count - done : PIECE;
        for (int64_t i = 0; int8 && i < n; i++)
            values[i] = hd_int8_value((int8_t)codes[done + i], scale);
        for (int64_t i = 0; !int8 && i < n; i++)
            values[i] = hd_fp8_value(codes[done + i], HD_E4M3) * scale;
        FOR_VECTORS (i, lanes, 0, n)
            vf_store(to, at + done + i, lanes, vf_load_f32(values + i, lanes), dtype);
    }
}

/* Decodes to[i * ld + j] = row `row` + i, column `column` + j of the factor, for i < rows, j <
 * columns. */
INLINE void decode_box(const struct hd_quant_factor *f, const void *memory, int64_t row,
                       int64_t rows, int64_t column, int64_t columns, void *to, int64_t ld,
                       enum hd_dtype dtype)
{
    const struct hd_quant_matrix *m = f->matrix;

    for (int64_t i = 0; i < rows; i++, row++) {
        int64_t first;

        while (row >= m->rows)
            row -= m++->rows;
        first = row * f->columns + column;
        if (f->quant == HD_QUANT_NF4)
            decode_nf4(m, memory, first, columns, to, i * ld, dtype);
        else
            decode_bytes((const uint8_t *)memory + m->at + first,
                         ((const float *)((const char *)memory + m->scales))[row],
                         f->quant == HD_QUANT_INT8, columns, to, i * ld, dtype);
    }
}

#endif
