/* panel_pairs: products of panels with vdpbf16ps. 14 x 2 vectors of sums stay in registers for the
 * whole depth; words of a are broadcast. a is a packed panel, or stored row by row. */
#include <immintrin.h>

#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"

enum { ROWS = 14 };

INLINE __m512bh broadcast(const char *word)
{
    int32_t bits;

    memcpy(&bits, word, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

/* Adds the products of a panel of a and a panel of b to the sums. Uses four pointers with up to
 * four rows each, because 14 pointers would not fit into registers. */
INLINE void add_pair_products(__m512 sums[ROWS][2], const int rows_count, const char *a,
                              const int64_t row_bytes, const int64_t word_bytes, const uint32_t *b,
                              int64_t words)
{
    const char *rows[4] = {a, a + 4 * row_bytes, a + 8 * row_bytes, a + 12 * row_bytes};
    const int64_t three = 3 * row_bytes;

    for (int64_t k = 0; k < words; k++) {
        const __m512bh left = (__m512bh)_mm512_loadu_si512(b);
        const __m512bh right = (__m512bh)_mm512_loadu_si512(b + VL);

        UNROLL
        for (int i = 0; i < rows_count; i++) {
            const int64_t offset = i % 4 == 3 ? three : i % 4 * row_bytes;
            const __m512bh x = broadcast(rows[i / 4] + offset);

            sums[i][0] = _mm512_dpbf16_ps(sums[i][0], x, left);
            sums[i][1] = _mm512_dpbf16_ps(sums[i][1], x, right);
        }
        b += HD_PANEL_COLUMNS;
        UNROLL
        for (int i = 0; i < (rows_count + 3) / 4; i++) {
            rows[i] += word_bytes;
            __asm__("" : "+r"(rows[i])); /* keeps the compiler from using one pointer per row */
        }
    }
}

INLINE void clear(__m512 sums[ROWS][2], const int rows)
{
    UNROLL
    for (int i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = _mm512_setzero_ps();
}

INLINE void store_sums(__m512 sums[ROWS][2], const int rows, float *c, int64_t ldc)
{
    UNROLL
    for (int i = 0; i < rows; i++) {
        _mm512_storeu_ps(c + i * ldc, sums[i][0]);
        _mm512_storeu_ps(c + i * ldc + VL, sums[i][1]);
    }
}

static void multiply_panel_by_pairs(float *c, const uint32_t *a, const uint32_t *b, int64_t words)
{
    __m512 sums[ROWS][2];

    clear(sums, ROWS);
    add_pair_products(sums, ROWS, (const char *)a, sizeof *a, ROWS * sizeof *a, b, words);
    store_sums(sums, ROWS, c, HD_PANEL_COLUMNS);
}

/* Adds the old values of c to the sums, after all products, as store_tile() does for incomplete
 * tiles. */
INLINE void add_sums(__m512 sums[ROWS][2], const int rows, const float *c, int64_t ldc)
{
    UNROLL
    for (int i = 0; i < rows; i++) {
        sums[i][0] = _mm512_add_ps(sums[i][0], _mm512_loadu_ps(c + i * ldc));
        sums[i][1] = _mm512_add_ps(sums[i][1], _mm512_loadu_ps(c + i * ldc + VL));
    }
}

INLINE void add_panel_bias(__m512 sums[ROWS][2], const uint16_t *bias)
{
    const __m512 left = (__m512)vf_load_bf16(bias, VL);
    const __m512 right = (__m512)vf_load_bf16(bias + VL, VL);

    UNROLL
    for (int i = 0; i < ROWS; i++) {
        sums[i][0] = _mm512_add_ps(sums[i][0], left);
        sums[i][1] = _mm512_add_ps(sums[i][1], right);
    }
}

INLINE void store_bf16(__m512 sums[ROWS][2], uint16_t *c, int64_t ldc)
{
    UNROLL
    for (int i = 0; i < ROWS; i++) {
        vf_store_bf16(c + i * ldc, VL, (vf)sums[i][0]);
        vf_store_bf16(c + i * ldc + VL, VL, (vf)sums[i][1]);
    }
}

static void multiply_into(const struct hd_cpu_product *p)
{
    __m512 sums[ROWS][2];

    clear(sums, ROWS);
    if (p->a_row_bytes == sizeof(uint32_t)) /* a is packed: pass offsets that are compile-time
                                               constants */
        add_pair_products(sums, ROWS, p->a, sizeof(uint32_t), ROWS * sizeof(uint32_t), p->b,
                          p->words);
    else
        add_pair_products(sums, ROWS, p->a, p->a_row_bytes, sizeof(uint32_t), p->b, p->words);
    if (p->add)
        add_sums(sums, ROWS, p->c, p->ldc);
    if (p->bias)
        add_panel_bias(sums, p->bias);
    if (p->is_bf16)
        store_bf16(sums, p->c, p->ldc);
    else
        store_sums(sums, ROWS, p->c, p->ldc);
}

INLINE void multiply_count(const struct hd_cpu_product *p, const int rows)
{
    __m512 sums[ROWS][2];

    clear(sums, rows);
    add_pair_products(sums, rows, p->a, p->a_row_bytes, sizeof(uint32_t), p->b, p->words);
    if (p->add)
        add_sums(sums, rows, p->c, p->ldc);
    store_sums(sums, rows, p->c, p->ldc);
}

static void multiply_rows_by_pairs(const struct hd_cpu_product *p, int rows)
{
    switch (rows) {
#define COUNT(count)              \
    case count:                   \
        multiply_count(p, count); \
        break
        COUNT(1);
        COUNT(2);
        COUNT(3);
        COUNT(4);
        COUNT(5);
        COUNT(6);
        COUNT(7);
        COUNT(8);
        COUNT(9);
        COUNT(10);
        COUNT(11);
        COUNT(12);
        COUNT(13);
        COUNT(14);
#undef COUNT
    default:
        break;
    }
}

const struct hd_cpu_panels hd_cpu_panels_pairs = {.rows = ROWS,
                                                  .multiply = multiply_panel_by_pairs,
                                                  .multiply_into = multiply_into,
                                                  .multiply_rows = multiply_rows_by_pairs};
