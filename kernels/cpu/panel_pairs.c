/* panel_pairs: products of panels by vdpbf16ps. 14 x 2 vectors of sums stay in registers for the
 * whole depth; a word of a is broadcast by the instruction itself. */
#include <immintrin.h>

#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"

enum { ROWS = 14 };

static void multiply(float *c, const uint32_t *a, const uint32_t *b, int64_t words)
{
    __m512 sums[ROWS][2];

    UNROLL
    for (int i = 0; i < ROWS; i++)
        sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < words; k++) {
        const __m512bh left = (__m512bh)_mm512_loadu_si512(b + k * HD_PANEL_COLUMNS);
        const __m512bh right = (__m512bh)_mm512_loadu_si512(b + k * HD_PANEL_COLUMNS + VL);

        UNROLL
        for (int i = 0; i < ROWS; i++) {
            const __m512bh x = (__m512bh)_mm512_set1_epi32((int32_t)a[k * ROWS + i]);

            sums[i][0] = _mm512_dpbf16_ps(sums[i][0], x, left);
            sums[i][1] = _mm512_dpbf16_ps(sums[i][1], x, right);
        }
    }
    UNROLL
    for (int i = 0; i < ROWS; i++) {
        _mm512_storeu_ps(c + i * HD_PANEL_COLUMNS, sums[i][0]);
        _mm512_storeu_ps(c + i * HD_PANEL_COLUMNS + VL, sums[i][1]);
    }
}

const struct hd_cpu_panels hd_cpu_panels_pairs = {.rows = ROWS, .multiply = multiply};
