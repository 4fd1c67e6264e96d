/* panel_tiles: products of panels with AMX tiles. Compiled twice: for AMX, and for its software
 * model (tile.h).
 *
 * A product uses 2 x 2 tiles of sums, two of a and two of b, so that each loaded tile is used
 * twice. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tile.h"

enum { ROWS = 2 * TILE_ROWS };
_Static_assert(HD_PANEL_COLUMNS == 2 * TILE_WORDS, "two tiles side by side");

static void multiply_panel_by_tiles(float *c, const uint32_t *a, const uint32_t *b, int64_t words)
{
    const int64_t row_bytes = words * 4, b_bytes = HD_PANEL_COLUMNS * 4;
    float *low = c + TILE_ROWS * HD_PANEL_COLUMNS;
    TILES_DECLARE;

    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t k = 0; k < words; k += TILE_WORDS) {
        tile_load(4, a + k, row_bytes);
        tile_load(6, b + k * HD_PANEL_COLUMNS, b_bytes);
        tile_load(7, b + k * HD_PANEL_COLUMNS + TILE_WORDS, b_bytes);
        tile_multiply_add(0, 4, 6);
        tile_multiply_add(1, 4, 7);
        tile_load(5, a + TILE_ROWS * words + k, row_bytes);
        tile_multiply_add(2, 5, 6);
        tile_multiply_add(3, 5, 7);
    }
    tile_store(0, c, b_bytes);
    tile_store(1, c + TILE_WORDS, b_bytes);
    tile_store(2, low, b_bytes);
    tile_store(3, low + TILE_WORDS, b_bytes);
}

/* Computes the first `rows` rows of a product of two panels. The sums start from c (add) or from
 * zero. For 16 rows or fewer, one row of tiles is used. */
static void multiply_rows_by_tiles(const struct hd_cpu_product *p, int rows)
{
    const bool two = rows > TILE_ROWS;
    const int64_t b_bytes = HD_PANEL_COLUMNS * 4, c_bytes = p->ldc * 4;
    const char *low_a = p->a + TILE_ROWS * p->a_row_bytes;
    float *c = p->c, *low = c + TILE_ROWS * p->ldc;
    TILES_DECLARE;

    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    if (p->add) {
        tile_load(0, c, c_bytes);
        tile_load(1, c + TILE_WORDS, c_bytes);
    }
    if (p->add && two) {
        tile_load(2, low, c_bytes);
        tile_load(3, low + TILE_WORDS, c_bytes);
    }
    for (int64_t k = 0; k < p->words; k += TILE_WORDS) {
        tile_load(4, p->a + k * 4, p->a_row_bytes);
        tile_load(6, p->b + k * HD_PANEL_COLUMNS, b_bytes);
        tile_load(7, p->b + k * HD_PANEL_COLUMNS + TILE_WORDS, b_bytes);
        tile_multiply_add(0, 4, 6);
        tile_multiply_add(1, 4, 7);
        if (two) {
            tile_load(5, low_a + k * 4, p->a_row_bytes);
            tile_multiply_add(2, 5, 6);
            tile_multiply_add(3, 5, 7);
        }
    }
    tile_store(0, c, c_bytes);
    tile_store(1, c + TILE_WORDS, c_bytes);
    if (two) {
        tile_store(2, low, c_bytes);
        tile_store(3, low + TILE_WORDS, c_bytes);
    }
}

#ifdef HD_TILE_HARDWARE
const struct hd_cpu_panels hd_cpu_panels_tiles = {
#else
const struct hd_cpu_panels hd_cpu_panels_model = {
#endif
    .rows = ROWS,
    .by_row = true,
    .begin = tiles_begin,
    .end = tiles_end,
    .multiply = multiply_panel_by_tiles,
    .multiply_rows = multiply_rows_by_tiles,
};
