/* panel: the innermost products of own GEMM on bf16, one per kind of hardware, compiled apart with
 * that hardware's flags and chosen when the backend is opened.
 *
 * A product takes a panel of rows of a and a panel of HD_PANEL_COLUMNS columns of b, each `words`
 * words deep (a word: two bf16 values that follow each other along the depth, the first in the low
 * half), and stores their product. The panel of b is [words, HD_PANEL_COLUMNS]; that of a is
 * [words, rows], or [rows, words] where by_row.
 *
 * Used by: kernels/cpu only.   Threads: any; begin() and end() stand around the products of one
 * thread, and no other code that uses tiles runs between them.
 */
#ifndef HD_KERNELS_CPU_PANEL_H
#define HD_KERNELS_CPU_PANEL_H

#include <stdbool.h>
#include <stdint.h>

enum { HD_PANEL_COLUMNS = 32, HD_PANEL_ROWS_MAX = 32 };

/* c[rows, HD_PANEL_COLUMNS] = a b (+ c) (+ bias). Word (i, k) of a lies i * a_row_bytes +
 * k * a_word_bytes behind a. */
struct hd_cpu_product {
    const char *a;
    const uint32_t *b;
    void *c;              /* fp32 or bf16 */
    const uint16_t *bias; /* bf16, or NULL */
    int64_t words, a_row_bytes, a_word_bytes, ldc;
    bool is_bf16; /* c is */
    bool add;     /* c += a b, fp32 only */
};

struct hd_cpu_panels {
    int rows;
    bool by_row;
    void (*begin)(void); /* NULL: nothing to do */
    void (*end)(void);
    /* c[rows, HD_PANEL_COLUMNS] = a b, in fp32; words is a multiple of 16. */
    void (*multiply)(float *c, const uint32_t *a, const uint32_t *b, int64_t words);
    /* A whole tile of c at once, with a packed or as it lies in memory; NULL: there is only
     * multiply(), for which a must be packed. */
    void (*multiply_into)(const struct hd_cpu_product *product);
    /* The first `rows` (1 to this->rows) rows of a product whose a lies row by row and whose c is
     * fp32 without bias: attention's. Where by_row, words is a multiple of 16, and a and c have
     * room for a multiple of 16 rows, of which those past `rows` mean nothing. */
    void (*multiply_rows)(const struct hd_cpu_product *product, int rows);
};

#ifdef HEDDLE_CPU_X86
extern const struct hd_cpu_panels hd_cpu_panels_pairs; /* needs avx512_bf16 */
extern const struct hd_cpu_panels hd_cpu_panels_tiles; /* needs amx_bf16 and the system's leave */
#endif
extern const struct hd_cpu_panels hd_cpu_panels_model; /* plain C */

#endif
