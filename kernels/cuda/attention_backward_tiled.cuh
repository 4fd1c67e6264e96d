/* attention_backward_tiled: backward on tensor cores, in two kernels that both recompute the
 * scores: one with a block per tile of keys for dk and dv, one with a block per tile of queries for
 * dq. This takes 7 products of D multiply-adds per pair instead of 5, but every sum is computed by
 * one warp in a fixed order: no atomics, no fp32 buffer for dq, repeatable bits. A kernel with fp32
 * atomics for dq would take 5/7 of the products, but read and write dq once per tile of keys.
 *
 * For dk and dv the scores are transposed, with keys as rows: then, in both kernels, the fragments
 * of p and ds are left factors of the next products (attention_tiles.cuh), and shared memory holds
 * only q, k, v and dout. The query heads that share a key head are summed in order within a block.
 * If that gives too few blocks, they are split into parts, depending on the shape only
 * (hd_costs_attention_backward_mask_extents); the sums of each part go to scratch in fp32, and a
 * third
 * kernel adds them in order. Copies to shared memory are one stage ahead of the products.
 *
 *   dk, dv  D    warps  keys x queries   shared memory   sums + p, ds (registers)   blocks per SM
 *           64   4      128 x 32         49 KiB          128 + 64                   2
 *           96   8      128 x 64         97 KiB          96 + 64                    1
 *           128  8      128 x 64         129 KiB         128 + 64                   1
 *           128  8      128 x 32         97 KiB          if a block has 99 KiB (sm_86, 89, 12x)
 *   dq      64   4      32 x 128         49 KiB          64 + 64                    2
 *           96   4      32 x 128         73 KiB          96 + 64                    2
 *           128  4      32 x 128         97 KiB          128 + 64                   2 (*)
 *   (*) 1 on multiprocessors with 164 KiB of shared memory
 *
 * FLOPs: 14 D per visible pair, of which 10 D are counted as cost. Bytes: q and dout once per 128
 * keys of every head, k and v once per 128 queries, mostly from L2, because neighbouring blocks
 * share them. Reads of shared memory, 0.05 to 0.07 bytes per FLOP, limit the products before the
 * tensor cores do. docs/decisions/gpu-row-kernels-and-attention.md says how many blocks a launch
 * has. On an H100 156 TFLOP/s of five products at 1k tokens, 222 at 4k, 246 at 16k, with heads of
 * 64; the 2 warps of a scheduler issue an instruction every 2.7 cycles, and the tensor cores are
 * busy 40% of the time (1k).
 *
 * Used by: attention_backward_{bf16,f16}.cu.   Uses: attention_tiles.
 */
#ifndef HD_KERNELS_CUDA_ATTENTION_BACKWARD_TILED_CUH
#define HD_KERNELS_CUDA_ATTENTION_BACKWARD_TILED_CUH

#include "kernels/cuda/attention_tiles.cuh"

/* Destination of a block's sums for dk and dv: the gradients themselves or, if the query heads are
 * split into parts, the fp32 sums of its part in scratch. dk and dv point to the block's first key
 * and the head's first channel; rows are ldk and ldv elements apart. */
struct backward_sums {
    void *dk, *dv;
    int64_t ldk, ldv;
    enum hd_dtype dtype;
    bool accumulate;
};

/* Values that all threads of a block share; in shared memory, which saves registers. */
struct backward_place {
    /* tile of the block; its head is a key head for dk and dv, a query head for dq */
    struct attention_block block;
    int2 key_extent;     /* least and largest index of the block's keys; for dk and dv */
    int4 query_extent;   /* extremes of the key ranges of the block's queries; for dq */
    const int32_t *keys; /* indices of the keys */
    const int2 *queries; /* key ranges of the queries */
    uint64_t step_key;
    const void *k, *v;        /* k and v of the block's sequence and key head; for dq */
    int2 heads;               /* first and last query head; for dk and dv */
    struct backward_sums sum; /* destination of the sums; for dk and dv */
};

/* Stores two neighbouring elements at index `at`, which is even. */
template <typename T>
static __device__ __forceinline__ void backward_store(void *to, int64_t at, enum hd_dtype dtype,
                                                      bool accumulate, float low, float high)
{
    if (dtype == HD_F32) {
        float2 *pair = (float2 *)((float *)to + at);
        const float2 old = accumulate ? *pair : make_float2(0, 0);

        *pair = make_float2(old.x + low, old.y + high);
    } else {
        store_pair<T>(to, at, low, high);
    }
}

/* Stores the sums over the 128 rows of a tile of the values that backward_store<T> has stored, of
 * scale * x, to `to` [D]: those of a thread, of the lanes of a column, then of the warps, each in
 * order. All threads of the block must call; `shared` has room for WARPS rows of D floats, and no
 * thread may be reading it. */
template <typename T, int D, int WARPS, int MT>
static __device__ __forceinline__ void backward_sum_rows(const float (&x)[MT][D / 8][4],
                                                         float scale, float *shared, float *to)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = 0;

#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    sum += to_float(from_float<T>(x[m][d][2 * half + i] * scale));
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, distance);
            if (lane < 4)
                shared[warp * D + fragment_column(d) + i] = sum;
        }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < D; c += WARPS * 32) {
        float sum = 0;

        for (int w = 0; w < WARPS; w++)
            sum += shared[w * D + c];
        to[c] = sum;
    }
    __syncthreads();
}

/* Returns where the sums of a tile's rows are stored, from column `column` on. */
static __device__ __forceinline__ float *backward_sums_of(const struct attention_backward *f,
                                                          const struct attention_block *block,
                                                          int column)
{
    const int64_t tiles = f->a.q_len / HD_ATTENTION_SUM_ROWS;

    return f->sums + (block->b * tiles + block->tile) * f->lddq + column;
}

static __device__ __forceinline__ int64_t backward_query(const struct attention *a, int b, int row)
{
    return (int64_t)b * a->q_len + (row < a->q_len ? row : a->q_len - 1);
}

/* Computes ds = p * (dweight - delta) * (1 - (score / top)^2) in place of dweight = dout v^T, and p
 * in place of the capped score, which is -inf for a hidden pair. */
static __device__ __forceinline__ void backward_differentiate_capped(float *score, float *dweight,
                                                                     float lse, float delta,
                                                                     float inverse_top)
{
    const float u = *score * inverse_top, p = exp2_approx(*score - lse);

    *dweight = p * (*dweight - delta) * fmaxf(1 - u * u, 0);
    *score = p;
}

/* ---- dk, dv: one block per 128 keys of a key head ---- */

enum { BACKWARD_KEYS = HD_COSTS_ATTENTION_KEYS };

/* Number of queries per stage of the copies to shared memory; fewer if a block has less shared
 * memory, with bitwise equal results. */
template <int D, bool GENERAL>
constexpr int backward_stage_queries(bool is_narrow)
{
    return D == 96 || (D == 128 && !GENERAL && !is_narrow) ? 64 : 32;
}

template <int D, bool GENERAL, int QUERIES>
struct backward_keys_tile {
    enum {
        WARPS = D == 64 && !GENERAL ? 4 : 8,
        MT = BACKWARD_KEYS / WARPS / 16,
        THREADS = WARPS * 32,
        NT = QUERIES / 8,
        STAGE = 2 * QUERIES * D /* elements of q and dout in one stage */
    };
    static size_t shared_bytes(size_t element_bytes)
    {
        return (2 * BACKWARD_KEYS * D + 2 * STAGE) * element_bytes + 2 * QUERIES * sizeof(float2);
    }
};

template <typename T, int D, int QUERIES, int THREADS>
static __device__ __forceinline__ void backward_load_queries(const struct attention_backward *f,
                                                             int b, int head, int tile, T *stage,
                                                             float2 *stats)
{
    const struct attention *a = &f->a;
    const int first = tile * QUERIES;
    const int64_t row = (int64_t)b * a->q_len + first;

    load_tile<T, D, QUERIES, THREADS>(stage, (const T *)a->q + row * a->ldq + head * D, a->ldq,
                                      a->q_len - first);
    load_tile<T, D, QUERIES, THREADS>(stage + QUERIES * D,
                                      (const T *)f->dout + row * f->lddo + head * D, f->lddo,
                                      a->q_len - first);
    if (threadIdx.x < QUERIES / 2)
        cp_async_16(stats + 2 * threadIdx.x,
                    f->stats + ((int64_t)b * a->H + head) * a->mask_extents.q_pad + first +
                        2 * threadIdx.x,
                    true);
}

/* Turns a tile of scores into attention weights p; rows of the tile are keys. With a cap the scores
 * are needed once more: attention_cap_tile takes the place of this function, and
 * backward_differentiate_keys computes p. */
template <int MT, int NT, bool GENERAL>
static __device__ __forceinline__ void
backward_softmax_keys(const struct attention *a, const struct backward_place *place,
                      float score[MT][NT][4], const float2 *stats, int head, int first_key,
                      int first_query)
{
    const float scale = a->scale * ATTENTION_LOG2E;
    const float slope = GENERAL && a->slopes ? a->slopes[head] * ATTENTION_LOG2E : 0;

#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float4 stat = *(const float4 *)(stats + fragment_column(n));
        int32_t index[2] = {};

        if (GENERAL && a->slopes)
#pragma unroll
            for (int i = 0; i < 2; i++)
                index[i] = a->q_index[backward_query(a, place->block.b,
                                                     first_query + fragment_column(n) + i)];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float s = fmaf(score[m][n][i], scale, i % 2 ? -stat.z : -stat.x);

                if (GENERAL && a->slopes)
                    s -= slope *
                         attention_distance(index[i % 2],
                                            place->keys[first_key + fragment_row<MT>(m, i / 2)]);
                score[m][n][i] = exp2_approx(s);
            }
    }
}

/* Sets the attention weights of invisible (query, key) pairs to 0, capped scores to -inf; skipped
 * if all pairs of the tile are visible. */
template <int MT, int NT, bool CAPPED>
static __device__ __forceinline__ void backward_mask_keys(const struct backward_place *place,
                                                          float weight[MT][NT][4], int first_key,
                                                          int first_query)
{
    int32_t key[MT][2];

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            key[m][half] = place->keys[first_key + fragment_row<MT>(m, half)];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int4 sees = *(const int4 *)(place->queries + first_query + fragment_column(n));

#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!attention_sees(i % 2 ? make_int2(sees.z, sees.w) : make_int2(sees.x, sees.y),
                                    key[m][i / 2]))
                    weight[m][n][i] = CAPPED ? -INFINITY : 0;
    }
}

/* Computes ds = p * (dweight - delta) in place of dweight = dout v^T, for a tile. With dropout,
 * dweight is first multiplied by the dropout factors, and so is `weight`, from which dv is
 * computed. */
template <int MT, int NT, bool GENERAL, bool CAPPED>
static __device__ __forceinline__ void
backward_differentiate_keys(const struct attention *a, const struct backward_place *place,
                            float weight[MT][NT][4], float dweight[MT][NT][4], const float2 *stats,
                            int head, int first_key, int first_query)
{
    const float inverse_top = CAPPED ? 1 / attention_cap_of(a).top : 0;

#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float4 stat = *(const float4 *)(stats + fragment_column(n));

#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float *p = &weight[m][n][i], *d = &dweight[m][n][i], stays = 1;

                if (CAPPED) {
                    backward_differentiate_capped(p, d, i % 2 ? stat.z : stat.x,
                                                  i % 2 ? stat.w : stat.y, inverse_top);
                    continue;
                }
                if (GENERAL && a->sample) {
                    const int64_t query =
                        backward_query(a, place->block.b, first_query + fragment_column(n) + i % 2);

                    stays =
                        attention_stays(a->drop, place->step_key,
                                        place->keys[first_key + fragment_row<MT>(m, i / 2)],
                                        a->q_index[query], a->first_head + head, a->sample[query]);
                }
                *d = *p * (*d * stays - (i % 2 ? stat.w : stat.y));
                *p *= stays;
            }
    }
}

/* Returns the address of element number `at` of a tensor. */
static __device__ __forceinline__ void *backward_element(void *tensor, int64_t at,
                                                         enum hd_dtype dtype)
{
    return (char *)tensor + at * (dtype == HD_F32 ? 4 : 2);
}

/* Finds tile, key head, part and heads of the block with this number; run by one thread. */
template <int D>
static __device__ __forceinline__ void backward_place_keys(const struct attention_backward *f,
                                                           struct backward_place *place,
                                                           unsigned number)
{
    const struct attention *a = &f->a;
    const int tiles = (a->kv_len + BACKWARD_KEYS - 1) / BACKWARD_KEYS, shared = a->H / a->G;
    struct attention_block block = attention_block_of(a, tiles, a->G * f->parts, number);
    const int part = block.head % f->parts, last = (part + 1) * f->part_heads;
    struct backward_sums sum;
    int64_t row;

    /* most queries see the first keys, so their blocks start first */
    block.tile = tiles - 1 - block.tile;
    block.head /= f->parts;
    place->block = block;
    place->heads = make_int2(block.head * shared + part * f->part_heads,
                             block.head * shared + (last < shared ? last : shared) - 1);
    place->key_extent = attention_key_extent<BACKWARD_KEYS>(
        a->mask_extents.key_extents +
            (int64_t)block.b * (a->mask_extents.kv_pad / ATTENTION_GRANULE),
        block.tile);
    place->keys = a->mask_extents.keys + (int64_t)block.b * a->mask_extents.kv_pad;
    place->queries = a->mask_extents.queries + (int64_t)block.b * a->mask_extents.q_pad;
    if (f->parts > 1) {
        row = (((int64_t)block.b * a->G + block.head) * f->parts + part) * a->kv_len +
              block.tile * BACKWARD_KEYS;
        sum.dk = f->parts_dk + row * D;
        sum.dv = f->parts_dv + row * D;
        sum.ldk = sum.ldv = D;
        sum.dtype = HD_F32;
        sum.accumulate = false;
    } else {
        row = block.b * a->kv_stride + block.tile * BACKWARD_KEYS;
        sum.dk = backward_element(f->dk, row * f->lddk + block.head * D, f->grad_dtype);
        sum.dv = backward_element(f->dv, row * f->lddv + block.head * D, f->grad_dtype);
        sum.ldk = f->lddk;
        sum.ldv = f->lddv;
        sum.dtype = f->grad_dtype;
        sum.accumulate = f->accumulate;
    }
    place->sum = sum;
}

/* Stores the sums of a block's keys. */
template <typename T, int D, int MT>
static __device__ __forceinline__ void
backward_store_keys(const struct attention *a, const struct backward_place *place,
                    const float dk[MT][D / 8][4], const float dv[MT][D / 8][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = fragment_row<MT>(m, half);
            const struct backward_sums *sum = &place->sum;

            if (place->block.tile * BACKWARD_KEYS + row >= a->kv_len)
                continue;
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                backward_store<T>(sum->dk, row * sum->ldk + fragment_column(d), sum->dtype,
                                  sum->accumulate, dk[m][d][2 * half] * a->scale,
                                  dk[m][d][2 * half + 1] * a->scale);
                backward_store<T>(sum->dv, row * sum->ldv + fragment_column(d), sum->dtype,
                                  sum->accumulate, dv[m][d][2 * half], dv[m][d][2 * half + 1]);
            }
        }
}

template <typename T, int D, bool GENERAL, int QUERIES, bool CAPPED>
static __global__ void __launch_bounds__(backward_keys_tile<D, GENERAL, QUERIES>::THREADS,
                                         256 / backward_keys_tile<D, GENERAL, QUERIES>::THREADS)
    backward_keys_kernel(struct attention_backward f)
{
    using tile_of = backward_keys_tile<D, GENERAL, QUERIES>;
    enum {
        MT = tile_of::MT,
        NT = tile_of::NT,
        THREADS = tile_of::THREADS,
        STAGE = tile_of::STAGE,
        UNROLL = D == 128 ? 4 : 2
    };
    HD_SHARED(struct backward_place, place, 1);
    HD_SHARED_DYNAMIC(T, shared);
    T *const k_tile = shared, *const v_tile = k_tile + BACKWARD_KEYS * D;
    T *const stages = v_tile + BACKWARD_KEYS * D;
    float2 *const stats = (float2 *)(stages + 2 * STAGE);
    const struct attention *a = &f.a;
    struct attention_tile_iterator iterator = attention_tile_begin();
    float dk[MT][D / 8][4], dv[MT][D / 8][4];
    int head, step, stage = 0;

    clear(dk);
    clear(dv);
    if (threadIdx.x == 0) {
        backward_place_keys<D>(&f, place, blockIdx.x);
        place->step_key = GENERAL && a->sample ? drop_step_key(a->drop) : 0;
    }
    __syncthreads();
    head = place->heads.x;
    step = attention_next_queries<QUERIES>(&iterator, a, place->block.b, &place->key_extent, &head,
                                           place->heads.y);
    if (step < 0 && place->sum.accumulate)
        return; /* no visible pair: adds nothing to the gradient */
    if (step >= 0) {
        const int first_key = place->block.tile * BACKWARD_KEYS;
        const int64_t row = place->block.b * a->kv_stride + first_key;

        load_tile<T, D, BACKWARD_KEYS, THREADS>(
            k_tile, (const T *)a->k + row * a->ldk + place->block.head * D, a->ldk,
            a->kv_len - first_key);
        load_tile<T, D, BACKWARD_KEYS, THREADS>(
            v_tile, (const T *)a->v + row * a->ldv + place->block.head * D, a->ldv,
            a->kv_len - first_key);
        backward_load_queries<T, D, QUERIES, THREADS>(&f, place->block.b, head,
                                                      attention_step_tile(step), stages, stats);
        cp_async_commit();
    }
    while (step >= 0) {
        const int now_head = head, first_query = attention_step_tile(step) * QUERIES;
        const bool is_whole = attention_step_is_whole(step);
        const T *q_tile = stages + stage * STAGE, *dout_tile = q_tile + QUERIES * D;
        float weight[MT][NT][4], dweight[MT][NT][4];

        step = attention_next_queries<QUERIES>(&iterator, a, place->block.b, &place->key_extent,
                                               &head, place->heads.y);
        cp_async_wait<0>();
        /* this stage of q and dout is complete; the other one may be overwritten */
        __syncthreads();
        if (step >= 0)
            backward_load_queries<T, D, QUERIES, THREADS>(
                &f, place->block.b, head, attention_step_tile(step), stages + (stage ^ 1) * STAGE,
                stats + (stage ^ 1) * QUERIES);
        cp_async_commit();
        clear(weight);
        multiply_rows<T, D, MT, NT, UNROLL>(weight, k_tile, q_tile);
        if (CAPPED)
            attention_cap_tile<MT, NT>(a, weight);
        else
            backward_softmax_keys<MT, NT, GENERAL>(a, place, weight, stats + stage * QUERIES,
                                                   now_head, place->block.tile * BACKWARD_KEYS,
                                                   first_query);
        if (!is_whole)
            backward_mask_keys<MT, NT, CAPPED>(place, weight, place->block.tile * BACKWARD_KEYS,
                                               first_query);
        clear(dweight);
        multiply_rows<T, D, MT, NT, UNROLL>(dweight, v_tile, dout_tile);
        backward_differentiate_keys<MT, NT, GENERAL, CAPPED>(
            a, place, weight, dweight, stats + stage * QUERIES, now_head,
            place->block.tile * BACKWARD_KEYS, first_query);
        multiply_weights<T, D, MT, NT>(dv, weight, dout_tile);
        multiply_weights<T, D, MT, NT>(dk, dweight, q_tile);
        stage ^= 1;
    }
    backward_store_keys<T, D, MT>(a, place, dk, dv);
    if (f.sums) {
        const int key_column = (a->H + place->block.head) * D;

        static_assert((int)BACKWARD_KEYS == (int)HD_ATTENTION_SUM_ROWS,
                      "a piece is a tile of keys");
        __syncthreads(); /* all have read the last stage */
        backward_sum_rows<T, D, tile_of::WARPS>(dk, a->scale, (float *)stages,
                                                backward_sums_of(&f, &place->block, key_column));
        backward_sum_rows<T, D, tile_of::WARPS>(
            dv, 1.0f, (float *)stages, backward_sums_of(&f, &place->block, key_column + a->G * D));
    }
}

/* ---- Sum of the parts of dk and dv, in order ----  A thread adds 4 channels of a key, of dk or
 * dv. Bytes: every part once, the gradients once. */

enum { PARTS_THREADS = 256, PARTS_WIDTH = 4 };

template <typename T, int D>
static __global__ void __launch_bounds__(PARTS_THREADS)
    backward_parts_kernel(struct attention_backward f)
{
    const struct attention *a = &f.a;
    const int64_t at = (int64_t)blockIdx.x * PARTS_THREADS + threadIdx.x;
    const int channel = (int)(at % (D / PARTS_WIDTH)) * PARTS_WIDTH;
    /* row of the parts [B, G, kv_len] */
    const int64_t row = at / (D / PARTS_WIDTH);
    const int64_t key = row % a->kv_len, head = row / a->kv_len; /* head: row of [B, G] */
    const bool is_dv = blockIdx.y;
    const float4 *part = (const float4 *)((is_dv ? f.parts_dv : f.parts_dk) +
                                          (head * f.parts * a->kv_len + key) * D + channel);
    float4 sum;
    int64_t to;

    if (head >= (int64_t)a->B * a->G)
        return;
    sum = *part;
#pragma unroll 4
    for (int i = 1; i < f.parts; i++) {
        const float4 next = part[i * (int64_t)a->kv_len * (D / PARTS_WIDTH)];

        sum.x += next.x;
        sum.y += next.y;
        sum.z += next.z;
        sum.w += next.w;
    }
    to = (head / a->G * a->kv_stride + key) * (is_dv ? f.lddv : f.lddk) + head % a->G * D + channel;
    backward_store<T>(is_dv ? f.dv : f.dk, to, f.grad_dtype, f.accumulate, sum.x, sum.y);
    backward_store<T>(is_dv ? f.dv : f.dk, to + 2, f.grad_dtype, f.accumulate, sum.z, sum.w);
}

/* Adds the parts, if there are several. */
template <typename T, int D>
static enum hd_status backward_launch_parts(struct hd_cuda_stream *stream,
                                            const struct attention_backward *f)
{
    const int64_t sums = (int64_t)f->a.B * f->a.G * f->a.kv_len * (D / PARTS_WIDTH);

    if (f->parts <= 1)
        return HD_OK;
    return HD_LAUNCH(stream, (backward_parts_kernel<T, D>),
                     dim3((unsigned)attention_tiles(sums, PARTS_THREADS), 2), dim3(PARTS_THREADS),
                     0, *f);
}

/* ---- dq: one block per 128 queries of a head ---- */

enum { BACKWARD_QUERIES = 128 };

/* Number of keys per stage of the copies to shared memory; fewer if a block has less shared memory.
 */
template <bool GENERAL>
constexpr int backward_stage_keys(bool is_narrow)
{
    return GENERAL && !is_narrow ? 64 : 32;
}

template <int D, bool GENERAL, int KEYS>
struct backward_queries_tile {
    enum {
        WARPS = GENERAL ? 8 : 4,
        MT = BACKWARD_QUERIES / WARPS / 16,
        THREADS = WARPS * 32,
        NT = KEYS / 8,
        STAGE = 2 * KEYS * D /* elements of k and v in one stage */
    };
    static size_t shared_bytes(size_t element_bytes)
    {
        return (2 * BACKWARD_QUERIES * D + 2 * STAGE) * element_bytes +
               BACKWARD_QUERIES * sizeof(float2);
    }
};

template <typename T, int D, int KEYS, int THREADS>
static __device__ __forceinline__ void backward_load_keys(const struct attention *a,
                                                          const struct backward_place *place,
                                                          int tile, T *stage)
{
    const int first = tile * KEYS;

    load_tile<T, D, KEYS, THREADS>(stage, (const T *)place->k + first * a->ldk, a->ldk,
                                   a->kv_len - first);
    load_tile<T, D, KEYS, THREADS>(stage + KEYS * D, (const T *)place->v + first * a->ldv, a->ldv,
                                   a->kv_len - first);
}

/* Turns a tile of scores into attention weights p; with a cap only masks the capped scores, from
 * which backward_differentiate_queries computes p. Rows of the tile are queries. */
template <int MT, int NT, bool GENERAL, bool CAPPED>
static __device__ __forceinline__ void
backward_softmax_queries(const struct attention *a, const struct backward_place *place,
                         float score[MT][NT][4], const float2 *stats, int first_key, bool is_whole)
{
    const struct attention_block *block = &place->block;
    const float scale = a->scale * ATTENTION_LOG2E;

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = fragment_row<MT>(m, half);
            const float lse = stats[row].x;

            if (!is_whole) {
                const int2 sees = place->queries[block->tile * BACKWARD_QUERIES + row];

#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const int2 keys = *(const int2 *)(place->keys + first_key + fragment_column(n));

                    if (!attention_sees(sees, keys.x))
                        score[m][n][2 * half] = -INFINITY;
                    if (!attention_sees(sees, keys.y))
                        score[m][n][2 * half + 1] = -INFINITY;
                }
            }
            if (GENERAL) { /* the scale may have any sign: keep -inf for hidden pairs */
                const float slope = a->slopes ? a->slopes[block->head] * ATTENTION_LOG2E : 0;
                const int32_t index =
                    a->q_index[backward_query(a, block->b, block->tile * BACKWARD_QUERIES + row)];

#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int32_t key = place->keys[first_key + fragment_column(n) + i];
                        float *s = &score[m][n][2 * half + i];

                        if (*s != -INFINITY)
                            *s = *s * scale - slope * attention_distance(index, key);
                        *s = exp2_approx(*s - lse);
                    }
            } else if (!CAPPED) {
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        score[m][n][2 * half + i] =
                            exp2_approx(fmaf(score[m][n][2 * half + i], scale, -lse));
            }
        }
}

/* Computes ds = p * (dweight - delta) in place of dweight = dout v^T, for a tile. */
template <int MT, int NT, bool GENERAL, bool CAPPED>
static __device__ __forceinline__ void
backward_differentiate_queries(const struct attention *a, const struct backward_place *place,
                               float weight[MT][NT][4], float dweight[MT][NT][4],
                               const float2 *stats, int first_key)
{
    const struct attention_block *block = &place->block;
    const float inverse_top = CAPPED ? 1 / attention_cap_of(a).top : 0;

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = fragment_row<MT>(m, half);
            const float delta = stats[row].y;
            int32_t index = 0, sample = 0;

            if (GENERAL && a->sample) {
                const int64_t query =
                    backward_query(a, block->b, block->tile * BACKWARD_QUERIES + row);

                index = a->q_index[query];
                sample = a->sample[query];
            }
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float *d = &dweight[m][n][2 * half + i];

                    if (CAPPED) {
                        backward_differentiate_capped(&weight[m][n][2 * half + i], d, stats[row].x,
                                                      delta, inverse_top);
                        continue;
                    }
                    if (GENERAL && a->sample)
                        *d *= attention_stays(a->drop, place->step_key,
                                              place->keys[first_key + fragment_column(n) + i],
                                              index, a->first_head + block->head, sample);
                    *d = weight[m][n][2 * half + i] * (*d - delta);
                }
        }
}

template <typename T, int D, bool GENERAL, int KEYS, bool CAPPED>
static __global__ void __launch_bounds__(backward_queries_tile<D, GENERAL, KEYS>::THREADS,
                                         256 / backward_queries_tile<D, GENERAL, KEYS>::THREADS)
    backward_queries_kernel(struct attention_backward f)
{
    using tile_of = backward_queries_tile<D, GENERAL, KEYS>;
    enum {
        MT = tile_of::MT,
        NT = tile_of::NT,
        THREADS = tile_of::THREADS,
        STAGE = tile_of::STAGE,
        UNROLL = 4
    };
    HD_SHARED(struct backward_place, place, 1);
    HD_SHARED_DYNAMIC(T, shared);
    T *const q_tile = shared, *const dout_tile = q_tile + BACKWARD_QUERIES * D;
    T *const stages = dout_tile + BACKWARD_QUERIES * D;
    float2 *const stats = (float2 *)(stages + 2 * STAGE);
    const struct attention *a = &f.a;
    struct attention_tile_iterator iterator = attention_tile_begin();
    float dq[MT][D / 8][4];
    int step, stage = 0;

    clear(dq);
    if (threadIdx.x == 0) {
        const int tiles = (a->q_len + BACKWARD_QUERIES - 1) / BACKWARD_QUERIES;
        const struct attention_block block = attention_block_of(a, tiles, a->H, blockIdx.x);
        const int group = block.head / (a->H / a->G);

        place->block = block;
        place->query_extent = attention_query_extent<BACKWARD_QUERIES>(
            a->mask_extents.query_extents +
                (int64_t)block.b * (a->mask_extents.q_pad / ATTENTION_GRANULE),
            block.tile);
        place->step_key = GENERAL && a->sample ? drop_step_key(a->drop) : 0;
        place->keys = a->mask_extents.keys + (int64_t)block.b * a->mask_extents.kv_pad;
        place->queries = a->mask_extents.queries + (int64_t)block.b * a->mask_extents.q_pad;
        place->k = (const T *)a->k + block.b * a->kv_stride * a->ldk + group * D;
        place->v = (const T *)a->v + block.b * a->kv_stride * a->ldv + group * D;
    }
    __syncthreads();
    step = attention_next_keys<KEYS>(&iterator, a, place->block.b, &place->query_extent);
    if (step < 0 && f.accumulate)
        return; /* no visible pair: adds nothing to the gradient */
    if (step >= 0) {
        const int first = place->block.tile * BACKWARD_QUERIES;
        const int64_t row = (int64_t)place->block.b * a->q_len + first;

        load_tile<T, D, BACKWARD_QUERIES, THREADS>(
            q_tile, (const T *)a->q + row * a->ldq + place->block.head * D, a->ldq,
            a->q_len - first);
        load_tile<T, D, BACKWARD_QUERIES, THREADS>(
            dout_tile, (const T *)f.dout + row * f.lddo + place->block.head * D, f.lddo,
            a->q_len - first);
        if (threadIdx.x < BACKWARD_QUERIES / 2)
            cp_async_16(stats + 2 * threadIdx.x,
                        f.stats +
                            ((int64_t)place->block.b * a->H + place->block.head) *
                                a->mask_extents.q_pad +
                            first + 2 * threadIdx.x,
                        true);
        backward_load_keys<T, D, KEYS, THREADS>(a, place, attention_step_tile(step), stages);
        cp_async_commit();
    }
    while (step >= 0) {
        const int first_key = attention_step_tile(step) * KEYS;
        const bool is_whole = attention_step_is_whole(step);
        const T *k_tile = stages + stage * STAGE, *v_tile = k_tile + KEYS * D;
        float weight[MT][NT][4], dweight[MT][NT][4];

        step = attention_next_keys<KEYS>(&iterator, a, place->block.b, &place->query_extent);
        cp_async_wait<0>();
        __syncthreads(); /* this stage of k and v is complete; the other one may be overwritten */
        if (step >= 0)
            backward_load_keys<T, D, KEYS, THREADS>(a, place, attention_step_tile(step),
                                                    stages + (stage ^ 1) * STAGE);
        cp_async_commit();
        clear(weight);
        multiply_rows<T, D, MT, NT, UNROLL>(weight, q_tile, k_tile);
        if (CAPPED)
            attention_cap_tile<MT, NT>(a, weight);
        backward_softmax_queries<MT, NT, GENERAL, CAPPED>(a, place, weight, stats, first_key,
                                                          is_whole);
        clear(dweight);
        multiply_rows<T, D, MT, NT, UNROLL>(dweight, dout_tile, v_tile);
        backward_differentiate_queries<MT, NT, GENERAL, CAPPED>(a, place, weight, dweight, stats,
                                                                first_key);
        multiply_weights<T, D, MT, NT>(dq, dweight, k_tile);
        stage ^= 1;
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = place->block.tile * BACKWARD_QUERIES + fragment_row<MT>(m, half);
            const int64_t row = (int64_t)place->block.b * a->q_len + query;

            if (query >= a->q_len)
                continue;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
                backward_store<T>(f.dq, row * f.lddq + place->block.head * D + fragment_column(d),
                                  f.grad_dtype, f.accumulate, dq[m][d][2 * half] * a->scale,
                                  dq[m][d][2 * half + 1] * a->scale);
        }
    if (f.sums) {
        static_assert((int)BACKWARD_QUERIES == (int)HD_ATTENTION_SUM_ROWS, "a piece is a tile");
        __syncthreads(); /* all have read the last stage */
        backward_sum_rows<T, D, tile_of::WARPS>(
            dq, a->scale, (float *)stages,
            backward_sums_of(&f, &place->block, place->block.head * D));
    }
}

/* ---- Launching ---- */

template <typename T, int D, bool GENERAL, bool CAPPED, bool NARROW>
static enum hd_status backward_launch_tiles(struct hd_cuda_stream *stream,
                                            const struct attention_backward *f)
{
    enum {
        QUERIES = backward_stage_queries<D, GENERAL>(NARROW),
        KEYS = backward_stage_keys<GENERAL>(NARROW)
    };
    using keys = backward_keys_tile<D, GENERAL, QUERIES>;
    using queries = backward_queries_tile<D, GENERAL, KEYS>;
    const struct attention *a = &f->a;
    const int64_t key_units = (int64_t)a->B * a->G * f->parts;
    const int64_t key_blocks = attention_tiles(a->kv_len, BACKWARD_KEYS) * key_units;
    const int64_t query_blocks = attention_tiles(a->q_len, BACKWARD_QUERIES) * a->B * a->H;
    struct attention_backward launched = *f;
    enum hd_status st = HD_OK;

    launched.a.l2_group = attention_l2_group_of_keys(stream, a, key_units, f->part_heads);
    if (key_blocks > 0)
        st = HD_LAUNCH(stream, (backward_keys_kernel<T, D, GENERAL, QUERIES, CAPPED>),
                       dim3((unsigned)key_blocks), dim3(keys::THREADS),
                       keys::shared_bytes(sizeof(T)), launched);
    if (!st && key_blocks > 0)
        st = backward_launch_parts<T, D>(stream, f);
    launched.a.l2_group = attention_l2_group_of_queries(stream, a);
    if (!st && query_blocks > 0)
        st = HD_LAUNCH(stream, (backward_queries_kernel<T, D, GENERAL, KEYS, CAPPED>),
                       dim3((unsigned)query_blocks), dim3(queries::THREADS),
                       queries::shared_bytes(sizeof(T)), launched);
    return st;
}

/* bytes of dynamic shared memory: the largest stages plus static arrays */
enum { BACKWARD_WIDE_BYTES = 130 * 1024 };

template <typename T, int D, bool GENERAL, bool CAPPED>
static enum hd_status backward_launch_width(struct hd_cuda_stream *stream,
                                            const struct attention_backward *f)
{
    if constexpr (D == 128)
        if (stream->cuda->shared_bytes < BACKWARD_WIDE_BYTES)
            return backward_launch_tiles<T, D, GENERAL, CAPPED, true>(stream, f);
    return backward_launch_tiles<T, D, GENERAL, CAPPED, false>(stream, f);
}

template <typename T, bool GENERAL, bool CAPPED>
static enum hd_status backward_launch_variant(struct hd_cuda_stream *stream,
                                              const struct attention_backward *f)
{
    switch (f->a.D) {
    case 64:
        return backward_launch_width<T, 64, GENERAL, CAPPED>(stream, f);
    case 96:
        return backward_launch_width<T, 96, GENERAL, CAPPED>(stream, f);
    default:
        return backward_launch_width<T, 128, GENERAL, CAPPED>(stream, f);
    }
}

template <typename T>
static enum hd_status attention_backward_launch(struct hd_cuda_stream *stream,
                                                const struct attention_backward *f)
{
    if (f->a.cap > 0)
        return backward_launch_variant<T, false, true>(stream, f);
    return attention_has_extras(&f->a) ? backward_launch_variant<T, true, false>(stream, f)
                                       : backward_launch_variant<T, false, false>(stream, f);
}

#endif
