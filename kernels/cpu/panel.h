/* panel: the inner loops of own bf16 GEMM, one set per kind of hardware. Each is compiled with its
 * hardware's flags; the backend chooses one when it is opened.
 *
 * A product multiplies a panel of rows of a by a panel of HD_PANEL_COLUMNS columns of b. Both are
 * `words` words deep; a word is two bf16 values that are neighbours along the depth K, the first in
 * the low half. The panel of b is [words, HD_PANEL_COLUMNS]; that of a is [words, rows], or [rows,
 * words] if by_row.
 *
 * Used by: kernels/cpu only.   Threads: any. Each thread calls begin() before its first product and
 * end() after its last; in between it must not run other code that uses tiles.
 */
#ifndef HD_KERNELS_CPU_PANEL_H
#define HD_KERNELS_CPU_PANEL_H

#include <stdbool.h>
#include <stdint.h>

enum { HD_PANEL_COLUMNS = 32, HD_PANEL_ROWS_MAX = 32 };

/* Arguments of a product of two panels, c[rows, HD_PANEL_COLUMNS] = a b (+ c) (+ bias). Word (i, k)
 * of a is at the address a + i * a_row_bytes + k * a_word_bytes. */
struct hd_cpu_product {
    const char *a;
    const uint32_t *b;
    void *c;              /* result [rows, HD_PANEL_COLUMNS], fp32 or bf16, rows ldc elements
                             apart */
    const uint16_t *bias; /* bias [HD_PANEL_COLUMNS] in bf16, or NULL */
    int64_t words, a_row_bytes, a_word_bytes, ldc;
    bool is_bf16; /* true: c is bf16; false: fp32 */
    bool add;     /* true: c += a b, for fp32 c only; false: c = a b */
};

struct hd_cpu_panels {
    int rows;
    bool by_row;
    void (*begin)(void); /* prepares the calling thread for products; NULL: not needed */
    void (*end)(void);
    /* computes c[rows, HD_PANEL_COLUMNS] = a b in fp32, from packed panels a and b; words is a
     * multiple of 16 */
    void (*multiply)(float *c, const uint32_t *a, const uint32_t *b, int64_t words);
    /* computes a product and stores a whole tile directly in c; a is packed, or stored row by row
     * in the caller's matrix. NULL: not available, multiply() with packed a is used */
    void (*multiply_into)(const struct hd_cpu_product *product);
    /* for attention: computes only the first `rows` (1 to this->rows) rows; a is stored row by row,
     * c is fp32 without bias. With by_row, words must be a multiple of 16, and a and c must have
     * memory for a multiple of 16 rows; the rows past `rows` get arbitrary values */
    void (*multiply_rows)(const struct hd_cpu_product *product, int rows);
};

#ifdef HEDDLE_CPU_X86
extern const struct hd_cpu_panels hd_cpu_panels_pairs; /* inner loops with vdpbf16ps; need the CPU
                                                          feature avx512_bf16 */
extern const struct hd_cpu_panels hd_cpu_panels_tiles; /* inner loops with AMX tiles; need the CPU
                                                          feature amx_bf16 and the Linux kernel's
                                                          permission */
#endif
extern const struct hd_cpu_panels hd_cpu_panels_model; /* software model of AMX tiles in plain C,
                                                          for tests */

#endif
