/* attention_panels: bf16 attention on panels of words; shared by forward and backward.
 *
 * All products use the inner loops of own GEMM (panel.h). Factors are packed once per block of rows
 * or tile of keys; sums and everything between the products are fp32. Left factors are stored row
 * by row; right factors are panels of 32 columns. Tiles of scores are computed, masked and rounded
 * one panel at a time; panels without a visible pair are skipped.
 *
 * Used by: attention_panels_*.c.   Uses: attention, pairs, panel, vecmath.
 */
#ifndef HD_KERNELS_CPU_ATTENTION_PANELS_H
#define HD_KERNELS_CPU_ATTENTION_PANELS_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vecmath.h"

enum { COLUMNS = HD_PANEL_COLUMNS };
_Static_assert((int)HD_COSTS_ATTENTION_PANEL == (int)HD_PANEL_COLUMNS, "the layout's panels");
_Static_assert((int)HD_COSTS_ATTENTION_PANEL == (int)HD_PANEL_ROWS_MAX, "the layout's panels");

INLINE int64_t panels_for(int64_t columns)
{
    return (columns + COLUMNS - 1) / COLUMNS;
}

/* Computes c[rows, COLUMNS] (+)= a b for one panel b of COLUMNS columns; a and c are stored row by
 * row. */
INLINE void multiply_panel(const struct hd_cpu_panels *panels, float *c, int64_t ldc,
                           const uint16_t *a, int64_t lda, const uint32_t *b, int64_t words,
                           int rows, bool add)
{
    const struct hd_cpu_product product = {.a = (const char *)a,
                                           .b = b,
                                           .c = c,
                                           .words = words,
                                           .a_row_bytes = lda * (int64_t)sizeof *a,
                                           .a_word_bytes = sizeof *b,
                                           .ldc = ldc,
                                           .add = add};

    panels->multiply_rows(&product, rows);
}

/* Copies the rows of a tensor that belong to a block of rows to contiguous memory, each padded with
 * zeros to `width`. */
INLINE void copy_task_rows(const struct task *t, uint16_t *to, const void *from, int64_t ld,
                           int64_t first, int64_t rows)
{
    const uint16_t *values = from;

    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = task_query(t, first + i) * ld + task_head(t, first + i) * t->D;

        if (i + PREFETCH_ROWS < rows)
            prefetch_row(values, at + PREFETCH_ROWS * ld, t->D, HD_BF16);
        memcpy(to + i * t->width, values + at, (size_t)t->D * sizeof *to);
        memset(to + i * t->width + t->D, 0, (size_t)(t->width - t->D) * sizeof *to);
    }
}

/* Rows of a block, each of whole panels, `ld` elements apart. */
struct block_rows {
    const uint16_t *at;
    int64_t ld;
};

/* Returns the rows of a tensor that belong to a block where they are; copies them to `copies` if they
 * are of several heads or have to be padded, or if `copy` says so. */
INLINE struct block_rows panel_rows_of(const struct task *t, uint16_t *copies, const void *from,
                                       int64_t ld, int64_t first, int64_t count, bool copy)
{
    const uint16_t *values = from;

    if (!copy && t->width == t->D && first / t->q_len == (first + count - 1) / t->q_len)
        return (struct block_rows){values + task_query(t, first) * ld + task_head(t, first) * t->D,
                                   ld};
    copy_task_rows(t, copies, from, ld, first, count);
    return (struct block_rows){copies, t->width};
}

/* Returns whether too many of the rows that a product reads together would meet in a set of the first
 * cache: more than two, of 64 sets with lines of 64 bytes and at least 8 ways. */
INLINE bool rows_collide(int64_t ld, int64_t width, int64_t rows)
{
    enum { SETS = 64, LINE = 64 };
    const int64_t step = ld * (int64_t)sizeof(uint16_t), lines = step / LINE;
    const int64_t apart =
        step % LINE ? 1 : hd_min(lines & -lines, SETS); /* between two rows' sets */
    const int64_t row_lines = (width * (int64_t)sizeof(uint16_t) + LINE - 1) / LINE;

    return ((rows * apart + SETS - 1) / SETS) * ((row_lines + apart - 1) / apart) > 2;
}

/* Prefetches `count` rows of keys or values, because packing reads them column by column. */
INLINE void prefetch_keys(const struct task *t, const uint16_t *rows, int64_t ld, int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        prefetch_row(rows, j * ld, t->D, HD_BF16);
}

/* Sets ret_extents to the minimum and maximum index of each panel of keys of a tile with `count`
 * keys; padding is not included. */
INLINE void key_extents(struct attention_extent *ret_extents, const int32_t *index, int64_t count)
{
    for (int64_t j = 0; j < count; j += COLUMNS)
        ret_extents[j / COLUMNS] = extent_of(index + j, hd_min(COLUMNS, count - j));
}

#endif
