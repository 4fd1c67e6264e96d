/* tile: the AMX operations that own GEMM needs, either as intrinsics (HD_TILE_HARDWARE) or as a
 * software model in plain C with the same results, rounding included. panel_tiles.c is compiled
 * with both; without AMX, tests run the model.
 *
 * A tile has 16 rows of 64 bytes: 16 x 16 fp32 sums, or 16 x 16 words of a factor. Tiles have the
 * constant numbers 0 to 7.
 *
 * Used by: panel_tiles.c.   Threads: hardware tiles are per thread; the model's are local
 * variables.
 */
#ifndef HD_KERNELS_CPU_TILE_H
#define HD_KERNELS_CPU_TILE_H

#include <stdint.h>
#include <string.h>

enum { TILE_ROWS = 16, TILE_WORDS = 16, TILE_COUNT = 8 };

#ifdef HD_TILE_HARDWARE
#include <immintrin.h>

/* Operand of the AMX instruction that configures tiles (LDTILECFG): palette 1, all tiles at their
 * full size. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tiles_begin(void)
{
    struct tile_config config = {.palette = 1};

    for (int i = 0; i < TILE_COUNT; i++) {
        config.row_bytes[i] = 4 * TILE_WORDS;
        config.rows[i] = TILE_ROWS;
    }
    /* gcc 12 assumes that only 8 bytes of the operand are read, and would remove other stores */
    __asm__ volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
}

static inline void tiles_end(void)
{
    _tile_release();
}

#define TILES_DECLARE                    (void)0
#define tile_zero(t)                     _tile_zero(t)
#define tile_load(t, from, stride_bytes) _tile_loadd(t, from, stride_bytes)
#define tile_store(t, to, stride_bytes)  _tile_stored(t, to, stride_bytes)
#define tile_multiply_add(sums, a, b)    _tile_dpbf16ps(sums, a, b)
#else

struct tile {
    uint32_t word[TILE_ROWS][TILE_WORDS];
};

static inline void tiles_begin(void)
{
}

static inline void tiles_end(void)
{
}

static inline float tile_low(uint32_t word)
{
    const uint32_t bits = word << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float tile_high(uint32_t word)
{
    return tile_low(word >> 16);
}

static inline void tile_model_load(struct tile *t, const void *from, int64_t stride_bytes)
{
    for (int i = 0; i < TILE_ROWS; i++)
        memcpy(t->word[i], (const char *)from + i * stride_bytes, sizeof t->word[i]);
}

static inline void tile_model_store(const struct tile *t, void *to, int64_t stride_bytes)
{
    for (int i = 0; i < TILE_ROWS; i++)
        memcpy((char *)to + i * stride_bytes, t->word[i], sizeof t->word[i]);
}

/* Multiplies and adds as TDPBF16PS does by Intel's manual: products of low halves and of high
 * halves are summed separately along the depth; the two sums are added, then added to the old
 * value. Intel fuses each product with its addition, which makes no difference: the product of two
 * 8-bit mantissas is exact in fp32. (AMX treats subnormal values as zero; this model does not.) */
static inline void tile_model_multiply_add(struct tile *sums, const struct tile *a,
                                           const struct tile *b)
{
    for (int m = 0; m < TILE_ROWS; m++)
        for (int n = 0; n < TILE_WORDS; n++) {
            float low = 0, high = 0, sum;

            for (int k = 0; k < TILE_WORDS; k++) {
                low += tile_low(a->word[m][k]) * tile_low(b->word[k][n]);
                high += tile_high(a->word[m][k]) * tile_high(b->word[k][n]);
            }
            memcpy(&sum, &sums->word[m][n], sizeof sum);
            sum += low + high;
            memcpy(&sums->word[m][n], &sum, sizeof sum);
        }
}

#define TILES_DECLARE                    struct tile tiles[TILE_COUNT]
#define tile_zero(t)                     memset(&tiles[t], 0, sizeof tiles[t])
#define tile_load(t, from, stride_bytes) tile_model_load(&tiles[t], from, stride_bytes)
#define tile_store(t, to, stride_bytes)  tile_model_store(&tiles[t], to, stride_bytes)
#define tile_multiply_add(sums, a, b)    tile_model_multiply_add(&tiles[sums], &tiles[a], &tiles[b])
#endif

#endif
