/* attention_forward_tiled: forward on tensor cores (mma.sync m16n8k16), after FlashAttention-2 (Dao
 * 2023): each warp keeps its queries' bases, sums and results in registers over all keys.
 *
 * A block of 4 warps computes 128 queries of one head, 32 rows per warp, so that every fragment of
 * k and v that is read from shared memory is used for two products. There is one buffer for k and
 * one for v: v is copied while the scores are computed, the next k while the values are summed.
 * With so little shared memory two blocks run on a multiprocessor and hide each other's waits.
 *
 *   D    keys   shared memory   sums + scores (registers of a thread)   blocks per SM
 *   64   128    48 KiB          64 + 128                                2
 *   96   64     48 KiB          96 + 64                                 2
 *   128  64     64 KiB          128 + 64                                2 (also with 164 KiB)
 *
 * FLOPs: 4 D per visible pair, plus masked pairs at the edges of tiles. Bytes: q and out once, k
 * and v once per 128 queries of every head, mostly from L2, because neighbouring blocks share them:
 * 4 bytes per 4 * 128 FLOP, so it is compute-bound. exp(x) is computed as 2^(x log2 e) with log2 e
 * multiplied into the scale: one multiply-add and one MUFU per pair. The sums of a row are rescaled
 * only when its scores exceed their base by more than 2^8, which saves 128 multiplications of the
 * 1100 instructions of a step (D 128, 64 keys, 256 products). On an H100 216 TFLOP/s at 1k tokens
 * with heads of 64, 341 at 4k and 372 at 16k with heads of 128.
 *
 * Used by: attention_forward_{bf16,f16}.cu.   Uses: attention_tiles.
 */
#ifndef HD_KERNELS_CUDA_ATTENTION_FORWARD_TILED_CUH
#define HD_KERNELS_CUDA_ATTENTION_FORWARD_TILED_CUH

#include "kernels/cuda/attention_tiles.cuh"

enum { FORWARD_WARPS = 4, FORWARD_THREADS = FORWARD_WARPS * 32, FORWARD_QUERIES = 128 };
enum { FORWARD_MT = FORWARD_QUERIES / FORWARD_WARPS / 16 };
/* log2 of the factor by which an attention weight may exceed 1 before its row is rescaled */
enum { FORWARD_GROWTH = 8 };
#define FORWARD_NO_BASE (-1e30f) /* base of a row that has seen no key yet: below every score */

/* Number of keys per tile; half as many where slopes, dropout or, with 128 keys, a cap need
 * registers, too. */
template <int D, bool GENERAL, bool CAPPED>
struct forward_tile {
    enum { KEYS = (D == 64 ? 128 : 64) / (GENERAL || (CAPPED && D == 64) ? 2 : 1) };
};

/* Values that all threads of a block share, in shared memory to save registers. */
struct forward_place {
    struct attention_block block;
    int4 extent; /* extremes of the key ranges of the block's queries */
    const void *k, *v;
    int key_count;
    const int32_t *keys; /* indices of the keys */
    const int2 *queries; /* key ranges of the queries */
};

/* Values for slopes and dropout only. */
struct forward_extras {
    float slope; /* slope times log2 e */
    uint64_t step_key;
    int head;
};

/* Returns the query that a row of the tile computes; rows past the last query compute it again and
 * are not stored. */
static __device__ __forceinline__ int64_t forward_query(const struct attention *a, int b, int row)
{
    return (int64_t)b * a->q_len + (row < a->q_len ? row : a->q_len - 1);
}

template <int NT>
static __device__ __forceinline__ void
forward_scale(const struct attention *a, float score[FORWARD_MT][NT][4], float scale,
              const struct forward_extras *x, const int32_t *keys, int b, int first_query)
{
#pragma unroll
    for (int m = 0; m < FORWARD_MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first_query + fragment_row<FORWARD_MT>(m, half);
            const int32_t index = a->q_index[forward_query(a, b, row)];

#pragma unroll
            for (int n = 0; n < NT; n++) {
                const int2 key = *(const int2 *)(keys + fragment_column(n));
                float *s = score[m][n] + 2 * half;

                s[0] = s[0] * scale - x->slope * attention_distance(index, key.x);
                s[1] = s[1] * scale - x->slope * attention_distance(index, key.y);
            }
        }
}

template <int MT, int NT>
static __device__ __forceinline__ void forward_mask(float score[MT][NT][4], const int32_t *keys,
                                                    const int2 *queries)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int2 query = queries[fragment_row<MT>(m, half)];

#pragma unroll
            for (int n = 0; n < NT; n++) {
                const int2 key = *(const int2 *)(keys + fragment_column(n));
                float *s = score[m][n] + 2 * half;

                s[0] = attention_sees(query, key.x) ? s[0] : -INFINITY;
                s[1] = attention_sees(query, key.y) ? s[1] : -INFINITY;
            }
        }
}

/* Sets the attention weights that dropout drops to 0; the factor of kept weights is applied at the
 * end. */
template <int NT>
static __device__ __forceinline__ void
forward_drop(const struct attention *a, float weight[FORWARD_MT][NT][4],
             const struct forward_extras *x, const int32_t *keys, int b, int first_query)
{
#pragma unroll
    for (int m = 0; m < FORWARD_MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first_query + fragment_row<FORWARD_MT>(m, half);
            const int64_t query = forward_query(a, b, row);
            const uint32_t index = (uint32_t)a->q_index[query], sample = (uint32_t)a->sample[query];

#pragma unroll 1
            for (int n = 0; n < NT; n++) {
                const int2 key = *(const int2 *)(keys + fragment_column(n));
                uint4 words = drop_words(x->step_key, (uint32_t)key.x / 4, index,
                                         (uint32_t)(a->first_head + x->head), sample);
                bool drops[2];

                drops[0] = philox_word(words, (uint32_t)key.x % 4) < a->drop.threshold;
                if (key.x / 4 != key.y / 4) /* another call of the generator */
                    words = drop_words(x->step_key, (uint32_t)key.y / 4, index,
                                       (uint32_t)(a->first_head + x->head), sample);
                drops[1] = philox_word(words, (uint32_t)key.y % 4) < a->drop.threshold;
#pragma unroll
                for (int same = 0; same < NT; same++) /* registers need a constant index */
                    if (same == n) {
                        weight[m][same][2 * half] = drops[0] ? 0 : weight[m][same][2 * half];
                        weight[m][same][2 * half + 1] =
                            drops[1] ? 0 : weight[m][same][2 * half + 1];
                    }
            }
        }
}

/* Replaces scores by exp2(factor * (score - base)). A row's base is the largest score of its first
 * keys. It is replaced, and the row's sums are rescaled, only when a result would exceed 2^8: the
 * final division cancels the base, so it need not be the maximum. The four lanes of a row agree;
 * the multiplications are skipped if no row of the warp's eight rescales. *most becomes the largest
 * of itself and the scores of the thread's rows; scores of rows past the last query are 0. */
template <int NT, int DT>
static __device__ __forceinline__ void
forward_softmax(float score[FORWARD_MT][NT][4], float out[FORWARD_MT][DT][4],
                float base[FORWARD_MT][2], float sum[FORWARD_MT][2], float *most, float factor)
{
#pragma unroll
    for (int m = 0; m < FORWARD_MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY, less, total = 0;
            bool grows;

#pragma unroll
            for (int n = 0; n < NT; n++)
                top = fmaxf(top, fmaxf(score[m][n][2 * half], score[m][n][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            *most = fmaxf(*most, top);
            grows = (top - base[m][half]) * factor > FORWARD_GROWTH;
            if (__any_sync(0xffffffffu, grows)) {
                const float rescale = grows ? exp2_approx((base[m][half] - top) * factor) : 1;

                base[m][half] = grows ? top : base[m][half];
                sum[m][half] *= rescale;
#pragma unroll
                for (int d = 0; d < DT; d++) {
                    out[m][d][2 * half] *= rescale;
                    out[m][d][2 * half + 1] *= rescale;
                }
            }
            less = base[m][half] * factor;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float *s = &score[m][n][2 * half + i];

                    *s = exp2_approx(fmaf(*s, factor, -less));
                    total += *s;
                }
            sum[m][half] += total;
        }
}

template <typename T, int D, int MT>
static __device__ __forceinline__ void
forward_store(const struct attention_forward *f, const struct attention_block *block,
              float out[MT][D / 8][4], const float base[MT][2], const float sum[MT][2], float most,
              float lse_factor)
{
    const struct attention *a = &f->a;

    attention_raise_top_score(f, block->head, most * lse_factor);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = block->tile * FORWARD_QUERIES + fragment_row<MT>(m, half);
            const int64_t query = (int64_t)block->b * a->q_len + row;
            float total = sum[m][half], factor;

            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            factor = total != 0 ? 1 / total : 0;
            if (a->sample)
                factor *= a->drop.scale;
            if (row >= a->q_len)
                continue;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
                store_pair<T>(f->out, query * f->ldo + block->head * D + fragment_column(d),
                              out[m][d][2 * half] * factor, out[m][d][2 * half + 1] * factor);
            if (threadIdx.x % 4 == 0)
                f->lse[(int64_t)block->head * a->B * a->q_len + query] =
                    base[m][half] * lse_factor + logf(total);
        }
}

/* Sets what all threads of the block share; called by one of them. */
template <typename T, int D>
static __device__ __forceinline__ void forward_place_set(struct forward_place *place,
                                                         const struct attention *a)
{
    const int tiles = (a->q_len + FORWARD_QUERIES - 1) / FORWARD_QUERIES;
    const struct attention_block block = attention_block_of(a, tiles, a->H, blockIdx.x);
    const int group = block.head / (a->H / a->G);
    const int64_t slot_row = attention_slot(a, block.b) * a->kv_stride;

    place->block = block;
    place->extent = attention_query_extent<FORWARD_QUERIES>(
        a->mask_extents.query_extents +
            (int64_t)block.b * (a->mask_extents.q_pad / ATTENTION_GRANULE),
        block.tile);
    place->k = (const T *)a->k + slot_row * a->ldk + group * D;
    place->v = (const T *)a->v + slot_row * a->ldv + group * D;
    place->key_count = attention_key_count(a, block.b);
    place->keys = a->mask_extents.keys + (int64_t)block.b * a->mask_extents.kv_pad;
    place->queries = a->mask_extents.queries + (int64_t)block.b * a->mask_extents.q_pad +
                     block.tile * FORWARD_QUERIES;
}

template <typename T, int D, bool GENERAL, bool CAPPED>
static __global__ void __launch_bounds__(FORWARD_THREADS, 2)
    forward_tiled_kernel(struct attention_forward f)
{
    enum { KEYS = forward_tile<D, GENERAL, CAPPED>::KEYS, NT = KEYS / 8 };
    HD_SHARED(struct forward_place, place, 1);
    HD_SHARED_DYNAMIC(T, shared);
    T *const q_tile = shared, *const k_tile = q_tile + FORWARD_QUERIES * D;
    T *const v_tile = k_tile + KEYS * D;
    const struct attention *a = &f.a;
    const float scale = a->scale * ATTENTION_LOG2E, factor = GENERAL || CAPPED ? 1 : scale;
    struct attention_tile_iterator iterator = attention_tile_begin();
    struct forward_extras extras = {};
    float out[FORWARD_MT][D / 8][4], base[FORWARD_MT][2], sum[FORWARD_MT][2];
    float most = 0;
    int step;

    clear(out);
#pragma unroll
    for (int m = 0; m < FORWARD_MT; m++)
        for (int half = 0; half < 2; half++) {
            base[m][half] = FORWARD_NO_BASE;
            sum[m][half] = 0;
        }
    if (threadIdx.x == 0)
        forward_place_set<T, D>(place, a);
    __syncthreads();
    if (GENERAL) {
        extras.slope = a->slopes ? a->slopes[place->block.head] * ATTENTION_LOG2E : 0;
        extras.step_key = a->sample ? drop_step_key(a->drop) : 0;
        extras.head = place->block.head;
    }
    step = attention_next_keys<KEYS>(&iterator, a, place->block.b, &place->extent);
    if (step >= 0) {
        load_tile<T, D, FORWARD_QUERIES, FORWARD_THREADS>(
            q_tile,
            (const T *)a->q +
                ((int64_t)place->block.b * a->q_len + place->block.tile * FORWARD_QUERIES) *
                    a->ldq +
                place->block.head * D,
            a->ldq, a->q_len - place->block.tile * FORWARD_QUERIES);
        load_tile<T, D, KEYS, FORWARD_THREADS>(
            k_tile, (const T *)place->k + (int64_t)attention_step_tile(step) * KEYS * a->ldk,
            a->ldk, place->key_count - attention_step_tile(step) * KEYS);
        cp_async_commit();
    }
    while (step >= 0) {
        const int first_key = attention_step_tile(step) * KEYS;
        const bool is_whole = attention_step_is_whole(step);
        float score[FORWARD_MT][NT][4];

        cp_async_wait<0>();
        __syncthreads(); /* k is complete; v may be overwritten */
        load_tile<T, D, KEYS, FORWARD_THREADS>(v_tile, (const T *)place->v + first_key * a->ldv,
                                               a->ldv, place->key_count - first_key);
        cp_async_commit();
        clear(score);
        multiply_rows<T, D, FORWARD_MT, NT, D == 128 ? 1 : 2>(score, q_tile, k_tile);
        if (GENERAL)
            forward_scale<NT>(a, score, scale, &extras, place->keys + first_key, place->block.b,
                              place->block.tile * FORWARD_QUERIES);
        if (CAPPED)
            attention_cap_tile<FORWARD_MT, NT>(a, score);
        if (!is_whole)
            forward_mask<FORWARD_MT, NT>(score, place->keys + first_key, place->queries);
        forward_softmax<NT, D / 8>(score, out, base, sum, &most, factor);
        if (GENERAL && a->sample)
            forward_drop<NT>(a, score, &extras, place->keys + first_key, place->block.b,
                             place->block.tile * FORWARD_QUERIES);
        step = attention_next_keys<KEYS>(&iterator, a, place->block.b, &place->extent);
        cp_async_wait<0>();
        __syncthreads(); /* v is complete; k may be overwritten */
        if (step >= 0)
            load_tile<T, D, KEYS, FORWARD_THREADS>(
                k_tile, (const T *)place->k + (int64_t)attention_step_tile(step) * KEYS * a->ldk,
                a->ldk, place->key_count - attention_step_tile(step) * KEYS);
        cp_async_commit();
        multiply_weights<T, D, FORWARD_MT, NT>(out, score, v_tile);
    }
    forward_store<T, D, FORWARD_MT>(&f, &place->block, out, base, sum, most,
                                    GENERAL || CAPPED ? ATTENTION_LN2 : a->scale);
}

template <typename T, int D, bool GENERAL, bool CAPPED>
static enum hd_status forward_launch_kernel(struct hd_cuda_stream *stream,
                                            const struct attention_forward *f)
{
    const int64_t tiles = attention_tiles(f->a.q_len, FORWARD_QUERIES);
    const int rows = FORWARD_QUERIES + 2 * forward_tile<D, GENERAL, CAPPED>::KEYS;
    struct attention_forward launched = *f;

    launched.a.l2_group = attention_l2_group_of_queries(stream, &f->a);
    return HD_LAUNCH(stream, (forward_tiled_kernel<T, D, GENERAL, CAPPED>),
                     dim3((unsigned)(tiles * f->a.B * f->a.H)), dim3(FORWARD_THREADS),
                     (size_t)(rows * D) * sizeof(T), launched);
}

template <typename T, int D>
static enum hd_status forward_launch_width(struct hd_cuda_stream *stream,
                                           const struct attention_forward *f)
{
    if (f->a.cap > 0)
        return forward_launch_kernel<T, D, false, true>(stream, f);
    return attention_has_extras(&f->a) ? forward_launch_kernel<T, D, true, false>(stream, f)
                                       : forward_launch_kernel<T, D, false, false>(stream, f);
}

template <typename T>
static enum hd_status attention_forward_launch(struct hd_cuda_stream *stream,
                                               const struct attention_forward *f)
{
    switch (f->a.D) {
    case 64:
        return forward_launch_width<T, 64>(stream, f);
    case 96:
        return forward_launch_width<T, 96>(stream, f);
    default:
        return forward_launch_width<T, 128>(stream, f);
    }
}

#endif
