/* pairs: packs bf16 matrices into panels of words (panel.h); a word is two values that are
 * neighbours along the depth K of a product. Handles transposed matrices and odd sizes: the results
 * are whole panels, padded with zeros.
 *
 * Used by: gemm_blocked, attention_panels.   Uses: vec, transpose.   Threads: any.
 */
#ifndef HD_KERNELS_CPU_PAIRS_H
#define HD_KERNELS_CPU_PAIRS_H

#include "base/math.h"
#include "kernels/cpu/transpose.h"

/* Packs `from`, whose lines are along the depth, to words across it: to[k, i] = word k of line i =
 * from[i * ld + 2k], from[i * ld + 2k + 1], for k < words, i < width; zero past `lines` and
 * `depth`. */
INLINE void pack_pairs_transposed(uint32_t *to, int64_t ld_to, const uint16_t *from, int64_t ld,
                                  int64_t lines, int64_t depth, int64_t words, int64_t width)
{
    for (int64_t i = 0; i < width; i += VL) {
        const int64_t stored = hd_min(width - i, VL);

        for (int64_t k = 0; k < words; k += VL) {
            const int64_t n = hd_min(words - k, VL);
            vf x[VL];

            UNROLL
            for (int j = 0; j < VL; j++) {
                const int64_t left = i + j < lines ? depth - 2 * k : 0;
                const int64_t at = (i + j) * ld + 2 * k;

                x[j] = (vf){0};
                if (left >= 2 * VL)
                    memcpy(&x[j], from + at, sizeof x[j]);
                else if (left > 0)
                    memcpy(&x[j], from + at, (size_t)left * sizeof *from);
            }
            transpose_square(x);
            for (int64_t j = 0; j < n; j++)
                vf_store_f32((float *)to + (k + j) * ld_to + i, stored, x[j]);
        }
    }
}

/* Returns a vector of words: elements [j, j + n) of line `low` in the low halves, of the next line
 * in the high halves (zero without has_high). */
INLINE vu pair_lines(const uint16_t *low, int64_t ld, bool has_high, int64_t j, int64_t n)
{
    vu words = vu_widen(vh_load(low + j, n));

    if (has_high)
        words |= vu_widen(vh_load(low + ld + j, n)) << 16;
    return words;
}

/* Packs lines across the depth: to[k, j] = from[2k * ld + j], from[(2k + 1) * ld + j], for k <
 * words, j < width; zero past `columns` and `depth`. */
INLINE void pack_pairs(uint32_t *to, int64_t ld_to, const uint16_t *from, int64_t ld, int64_t depth,
                       int64_t columns, int64_t words, int64_t width)
{
    for (int64_t k = 0; k < words; k++) {
        const uint16_t *line = from + 2 * k * ld;

        if (2 * k >= depth) {
            memset(to + k * ld_to, 0, (size_t)width * sizeof *to);
            continue;
        }
        if (2 * (k + PREFETCH_ROWS) + 1 < depth) {
            prefetch_row(from, 2 * (k + PREFETCH_ROWS) * ld, columns, HD_BF16);
            prefetch_row(from, (2 * (k + PREFETCH_ROWS) + 1) * ld, columns, HD_BF16);
        }
        FOR_VECTORS (j, n, 0, columns) {
            const vu word = pair_lines(line, ld, 2 * k + 1 < depth, j, n);
            vf bits;

            memcpy(&bits, &word, sizeof bits);
            vf_store_f32((float *)to + k * ld_to + j, n, bits);
        }
        for (int64_t j = columns; j < width; j++)
            to[k * ld_to + j] = 0;
    }
}

/* Packs `from`, whose lines are across the depth, to words by column: to[j, k] = word k of column
 * j, that is lines 2k and 2k + 1. */
INLINE void pack_pairs_by_row(uint32_t *to, int64_t ld_to, const uint16_t *from, int64_t ld,
                              int64_t depth, int64_t columns, int64_t words, int64_t width)
{
    for (int64_t j = 0; j < width; j += VL)
        for (int64_t k = 0; k < words; k += VL) {
            const int64_t n = hd_min(columns - j, VL), stored = hd_min(words - k, VL);
            vf x[VL];

            for (int i = 0; i < VL; i++) {
                const int64_t line = 2 * (k + i);
                vu word = {0};

                if (n > 0 && line < depth)
                    word = pair_lines(from + line * ld, ld, line + 1 < depth, j, n);
                memcpy(&x[i], &word, sizeof word);
            }
            transpose_square(x);
            for (int i = 0; i < VL && j + i < width; i++)
                vf_store_f32((float *)to + (j + i) * ld_to + k, stored, x[i]);
        }
}

/* Copies `from`, whose lines are along the depth, as words: to[i, k] = word k of line i, padded
 * with zeros. */
INLINE void copy_lines(uint32_t *to, int64_t ld_to, const uint16_t *from, int64_t ld, int64_t lines,
                       int64_t depth, int64_t words, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        const size_t used = i < lines ? (size_t)depth * sizeof *from : 0;

        memcpy(to + i * ld_to, from + i * ld, used);
        memset((char *)(to + i * ld_to) + used, 0, (size_t)words * sizeof *to - used);
    }
}

#endif
