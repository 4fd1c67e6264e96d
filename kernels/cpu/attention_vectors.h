/* attention_vectors: attention in vectors of fp32, for every supported dtype and shape: loads,
 * masks and products of tiles, shared by forward and backward.
 *
 * Used by: attention.c, attention_backward.c.   Uses: attention, micro, softmax, transpose.
 */
#ifndef HD_KERNELS_CPU_ATTENTION_VECTORS_H
#define HD_KERNELS_CPU_ATTENTION_VECTORS_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/transpose.h"

enum {
    TILE = HD_COSTS_ATTENTION_TILE,
    KEYS_LD = HD_COSTS_ATTENTION_KEYS_LD,
    STRIPS = (TILE + MICRO_M - 1) / MICRO_M /* strips of MICRO_M rows, or keys, of a tile */
};

/* Part of a tile of scores that is computed: for each strip of rows the number of keys, from the
 * tile's first one on, that one of its rows may see. The weights of all other pairs are 0. */
struct reach {
    int64_t keys[STRIPS];
};

/* Returns the channels of a row that products compute: D, rounded up to a vector. */
INLINE int64_t channels(const struct task *t)
{
    return hd_round_up(t->D, VL);
}

/* Loads rows[i, :] = scale * the vector of row i of a block of rows in tensor `from`, in fp32,
 * padded with zeros to whole vectors. */
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
        FOR_VECTORS (d, n, t->D, channels(t))
            vf_store_f32(rows + i * t->width + d, n, (vf){0});
    }
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

/* Keys of the tile behind the one at `key` that have been prefetched: packing would wait for them. */
struct ahead {
    int64_t key, end; /* of this tile of rows */
};

/* Takes up the share of a tile of rows, of which `left` are left. */
INLINE void look_ahead(struct ahead *a, const struct task *t, int64_t key, int64_t left)
{
    const int64_t end = hd_min(key + 2 * TILE, t->kv_len);

    a->end = a->key < end ? a->key + (end - a->key + left - 1) / left : a->key;
}

INLINE void prefetch_next_key(struct ahead *a, const struct task *t)
{
    if (a->key >= a->end)
        return;
    prefetch_row(t->k, key_at(t, a->key, t->ldk), t->D, t->dtype);
    prefetch_row(t->v, key_at(t, a->key, t->ldv), t->D, t->dtype);
    a->key++;
}

static void pack_keys_transposed(const struct task *t, float *to, const void *from, int64_t ld,
                                 int64_t key, int64_t count)
{
    WITH_FLOATS(t->dtype, T,
                pack_transposed(to, KEYS_LD, from, key_at(t, key, ld), ld, count, t->D, TILE, T));
}

static void pack_keys(const struct task *t, float *to, const void *from, int64_t ld, int64_t key,
                      int64_t count)
{
    WITH_FLOATS(t->dtype, T,
                pack_rows(to, t->width, from, key_at(t, key, ld), ld, count, t->D, channels(t), T));
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

/* Finds the part of a tile of scores that is computed, for rows [first, first + rows) of a block: a
 * causal mask hides the keys behind a strip's last row. */
static struct reach find_reach(const struct task *t, const struct mask_extent *mask_extent,
                               int64_t first, int64_t rows, const int32_t *keys, int64_t count,
                               enum cover cover)
{
    struct reach reach;

    for (int64_t i = 0, strip = 0; i < rows; i += MICRO_M, strip++) {
        int64_t end = count;

        if (cover == SOME && t->causal) {
            const int32_t last =
                extent_of(mask_extent->index + first + i, hd_min(MICRO_M, rows - i)).max;

            while (end > 0 && keys[end - 1] > last)
                end--;
        }
        reach.keys[strip] = end;
    }
    return reach;
}

/* Returns the number of scores of row i of a tile that are computed: whole vectors. */
INLINE int64_t scores_of(const struct reach *reach, int64_t i)
{
    return hd_round_up(reach->keys[i / MICRO_M], VL);
}

/* Prefetches the block of c that a product computes next. */
INLINE void prefetch_block(const float *c, int64_t ldc)
{
    UNROLL
    for (int i = 0; i < MICRO_M; i++)
        for (int byte = 0; byte < MICRO_N * (int)sizeof *c; byte += 64)
            __builtin_prefetch((const char *)(c + i * ldc) + byte, 1);
}

/* Computes the scores [M, TILE] of rows a [M, D], `width` floats apart, and a transposed tile of
 * keys b [D, KEYS_LD]. A block of columns of b stays in the first cache while the rows pass. */
static __attribute__((noinline, unused)) void multiply_keys(float *scores, const float *a,
                                                            int64_t width, const float *b,
                                                            int64_t M, int64_t D,
                                                            const struct reach *reach)
{
    for (int64_t j = 0; j < TILE; j += MICRO_N)
        for (int64_t i = 0, strip = 0; i < M; i += MICRO_M, strip++)
            if (j + VL < reach->keys[strip])
                micro_rows((int)hd_min(MICRO_M, M - i), 2, scores + i * TILE + j, TILE,
                           a + i * width, width, 1, b + j, KEYS_LD, D, false);
            else if (j < reach->keys[strip])
                micro_rows((int)hd_min(MICRO_M, M - i), 1, scores + i * TILE + j, TILE,
                           a + i * width, width, 1, b + j, KEYS_LD, D, false);
}

/* Computes c[M, N] += a[M, keys] b[keys, N] with a tile of weights a; rows of b and c are `width`
 * floats apart. */
static __attribute__((noinline, unused)) void multiply_weights(float *c, const float *a,
                                                               const float *b, int64_t width,
                                                               int64_t M, int64_t N,
                                                               const struct reach *reach)
{
    for (int64_t j = 0; j < N; j += MICRO_N)
        for (int64_t i = 0, strip = 0; i < M; i += MICRO_M, strip++) {
            const int m = (int)hd_min(MICRO_M, M - i);
            float *to = c + i * width + j;

            prefetch_block(to + MICRO_M * width, width);
            if (N - j >= MICRO_N)
                micro_rows(m, 2, to, width, a + i * TILE, TILE, 1, b + j, width, reach->keys[strip],
                           true);
            else
                micro_rows(m, 1, to, width, a + i * TILE, TILE, 1, b + j, width, reach->keys[strip],
                           true);
        }
}

/* Computes c[keys, N] += transposed(a[M, keys]) b[M, N] with a tile of weights a, for `count` keys;
 * rows of b and c are `width` floats apart. */
static __attribute__((noinline, unused)) void
multiply_weights_transposed(float *c, const float *a, const float *b, int64_t width, int64_t count,
                            int64_t N, int64_t M, const struct reach *reach)
{
    int64_t begin[STRIPS]; /* first row that sees one of a strip's keys, at a strip of rows */

    for (int64_t k = 0, strip = 0; k < count; k += MICRO_M, strip++) {
        int64_t i = 0;

        while (i < M && reach->keys[i / MICRO_M] <= k)
            i += MICRO_M;
        begin[strip] = hd_min(i, M);
    }
    for (int64_t j = 0; j < N; j += MICRO_N)
        for (int64_t k = 0, strip = 0; k < count; k += MICRO_M, strip++) {
            const int m = (int)hd_min(MICRO_M, count - k);
            const int64_t i = begin[strip];
            float *to = c + k * width + j;

            prefetch_block(to + MICRO_M * width, width);
            if (N - j >= MICRO_N)
                micro_rows(m, 2, to, width, a + i * TILE + k, 1, TILE, b + i * width + j, width,
                           M - i, true);
            else
                micro_rows(m, 1, to, width, a + i * TILE + k, 1, TILE, b + i * width + j, width,
                           M - i, true);
        }
}

#endif
