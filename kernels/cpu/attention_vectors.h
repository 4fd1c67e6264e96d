/* attention_vectors: attention in vectors of fp32, for every supported dtype and shape: loads,
 * masks and products of tiles, shared by forward and backward.
 *
 * Used by: attention.c, attention_backward.c.   Uses: attention, micro, transpose, vecmath.
 */
#ifndef HD_KERNELS_CPU_ATTENTION_VECTORS_H
#define HD_KERNELS_CPU_ATTENTION_VECTORS_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vecmath.h"

enum { TILE = HD_COSTS_ATTENTION_TILE };

/* Loads rows[i, :] = scale * the vector of row i of a block of rows in tensor `from`, in fp32,
 * padded with zeros to `width`. */
INLINE void load_rows(const struct task *t, float *rows, const void *from, int64_t ld,
                      int64_t first, int64_t count, float scale, enum hd_dtype dtype)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = task_query(t, first + i) * ld + task_head(t, first + i) * t->D;

        if (i + PREFETCH_ROWS < count)
            prefetch_row(from, at + PREFETCH_ROWS * ld, t->D, dtype); /* row r + PREFETCH_ROWS is
                                                                         usually of the same head */
        FOR_VECTORS (d, n, 0, t->D)
            vf_store_f32(rows + i * t->width + d, n, vf_load(from, at + d, n, dtype) * scale);
        FOR_VECTORS (d, n, t->D, t->width)
            vf_store_f32(rows + i * t->width + d, n, (vf){0});
    }
}

/* Stores the `count` rows of a block as transposed tiles [width, TILE]. */
static void transpose_rows(const struct task *t, float *tiles, const float *rows, int64_t count)
{
    for (int64_t i = 0; i < count; i += TILE)
        pack_transposed(tiles + i * t->width, TILE, rows, i * t->width, t->width,
                        hd_min(TILE, count - i), t->D, TILE, HD_F32);
}

/* Copies the sample indices (kv_index) of a tile of keys, padded with zeros, to `index`. Returns
 * their minimum and maximum. */
static struct attention_extent load_keys(const struct task *t, int32_t *index, int64_t key,
                                         int64_t count)
{
    memcpy(index, t->kv_index + t->slot * t->kv_stride + key, (size_t)count * sizeof *index);
    memset(index + count, 0, (size_t)(TILE - count) * sizeof *index);
    return extent_of(index, count);
}

static void pack_keys_transposed(const struct task *t, float *to, const void *from, int64_t ld,
                                 int64_t key, int64_t count)
{
    WITH_FLOATS(t->dtype, T,
                pack_transposed(to, TILE, from, key_at(t, key, ld), ld, count, t->D, TILE, T));
}

static void pack_keys(const struct task *t, float *to, const void *from, int64_t ld, int64_t key,
                      int64_t count)
{
    WITH_FLOATS(t->dtype, T,
                pack_rows(to, t->width, from, key_at(t, key, ld), ld, count, t->D, t->width, T));
}

/* Caps the scores of `rows` rows against a tile of keys. */
static __attribute__((noinline)) void cap_tile(const struct task *t, float *scores, int64_t rows)
{
    const float inverse = 1.0f / t->cap;

    for (int64_t i = 0; i < rows * TILE; i += VL)
        vf_store_f32(scores + i, VL, t->cap * vf_tanh(vf_load_f32(scores + i, VL) * inverse));
}

/* Adds the ALiBi term to the scores of a row against a tile of keys; sets scores of keys that the
 * row does not see to -inf. */
INLINE void mask_row(const struct task *t, float *score, const struct mask_extent *mask_extent,
                     int64_t row, const int32_t *keys, int64_t count)
{
#define LANE(i) (i)
    const vi number = {LANES(LANE)};
#undef LANE
    const int32_t index = mask_extent->index[row], bound = mask_extent->bound[row];
    const int32_t last = t->causal ? index : INT32_MAX;
    const float slope = mask_extent->slope[row];

    for (int j = 0; j < TILE; j += VL) {
        vi key, hidden, distance;
        vf s = vf_load_f32(score + j, VL);

        memcpy(&key, keys + j, sizeof key);
        distance = index - key;
        s -= slope * __builtin_convertvector(distance, vf);
        hidden = (key > last) | (key < bound) | (number + j >= (int32_t)count);
        if (t->window < INT32_MAX)
            hidden |= distance >= t->window;
        vf_store_f32(score + j, VL, vf_select(hidden, vf_set(-INFINITY), s));
    }
}

INLINE void mask_tile(const struct task *t, float *scores, const struct mask_extent *mask_extent,
                      int64_t first, int64_t rows, const int32_t *keys, int64_t count,
                      enum cover cover)
{
    if (cover == ALL && count == TILE && !t->slopes)
        return;
    for (int64_t i = 0; i < rows; i++)
        mask_row(t, scores + i * TILE, mask_extent, first + i, keys, count);
}

/* Computes c[M, N] (+)= a[M, K] b[K, N]. a is a transposed tile [K, TILE]; in multiply_rows a is a
 * tile [M, TILE]. */
static __attribute__((noinline, unused)) void multiply_columns(float *c, int64_t ldc,
                                                               const float *a, const float *b,
                                                               int64_t ldb, int64_t M, int64_t N,
                                                               int64_t K, bool add)
{
    micro_multiply(c, ldc, a, 1, TILE, b, ldb, M, N, K, add);
}

static __attribute__((noinline, unused)) void multiply_rows(float *c, int64_t ldc, const float *a,
                                                            const float *b, int64_t ldb, int64_t M,
                                                            int64_t N, int64_t K, bool add)
{
    micro_multiply(c, ldc, a, TILE, 1, b, ldb, M, N, K, add);
}

#endif
