/* attention_plain: attention in fp32 without tensor cores, for any dtype, head width and row
 * distance: for fp32 programs, and for the shapes that the tiled kernels do not support.
 *
 * 256 threads, 16 x 16: a thread computes some rows and every 16th column of the scores and of the
 * results, in registers. Tiles are converted to fp32 as they are loaded. Rows in shared memory are
 * padded by 4 floats against bank conflicts. Loads do not overlap with products.
 *
 *   forward   64 queries x 32 keys, 24 KiB (D 32) to 107 KiB (D 256) of shared memory
 *   dk, dv    32 keys x 32 queries, 26 to 139 KiB
 *   dq        32 queries x 32 keys, 26 to 139 KiB
 *
 * If a block of the device has less shared memory, wide heads use tiles of 32 queries forward, and
 * of 16 queries and keys backward; the results have the same bits.
 *
 * FLOPs as in the tiled kernels. Limited by shared memory: about 0.75 bytes per FLOP of the scores
 * allow a fifth of the fp32 peak. Not yet measured on a GPU. */
#include "kernels/cuda/attention.cuh"

enum { SIDE = 16, THREADS = SIDE * SIDE, ROW_PAD = 4 };

static __device__ __forceinline__ float element(const void *x, int64_t at, enum hd_dtype dtype)
{
    switch (dtype) {
    case HD_BF16:
        return to_float(((const bf16 *)x)[at]);
    case HD_F16:
        return to_float(((const f16 *)x)[at]);
    default:
        return ((const float *)x)[at];
    }
}

static __device__ __forceinline__ void put_element(void *x, int64_t at, float value,
                                                   enum hd_dtype dtype)
{
    switch (dtype) {
    case HD_BF16:
        ((bf16 *)x)[at] = from_float<bf16>(value);
        break;
    case HD_F16:
        ((f16 *)x)[at] = from_float<f16>(value);
        break;
    default:
        ((float *)x)[at] = value;
    }
}

/* Loads rows of a matrix into shared memory: tile[r, :] = row `first` + r (rows ld elements apart),
 * from element `at` on; zeros from row `count` on. */
template <int ROWS>
static __device__ __forceinline__ void load_rows(float *tile, const void *x, int64_t at, int64_t ld,
                                                 int count, int D, enum hd_dtype dtype)
{
    for (int i = (int)threadIdx.x; i < ROWS * D; i += THREADS) {
        const int row = i / D, d = i % D;

        tile[row * (D + ROW_PAD) + d] = row < count ? element(x, at + row * ld + d, dtype) : 0;
    }
}

/* Computes score[i][j] = a[a_row + i, :] . b[column + 16 j, :] */
template <int M, int N>
static __device__ __forceinline__ void dot_rows(float score[M][N], const float *a, const float *b,
                                                int a_row, int D)
{
    const int ld = D + ROW_PAD, column = (int)threadIdx.x % SIDE;

#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
            score[i][j] = 0;
    for (int d = 0; d < D; d += 4) {
        float4 x[M];

#pragma unroll
        for (int i = 0; i < M; i++)
            x[i] = *(const float4 *)(a + (a_row + i) * ld + d);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float4 y = *(const float4 *)(b + (column + SIDE * j) * ld + d);

#pragma unroll
            for (int i = 0; i < M; i++)
                score[i][j] += x[i].x * y.x + x[i].y * y.y + x[i].z * y.z + x[i].w * y.w;
        }
    }
}

/* Computes out[i][c] += sum_k weight(i, k) * tile[k, column + 16 c], weights at weight[i * row_step
 * + k * key_step] */
template <int M, int WIDTH>
static __device__ __forceinline__ void
add_weighted_rows(float out[M][WIDTH / SIDE], const float *weight, int row_step, int key_step,
                  const float *tile, int count, int D)
{
    const int ld = D + ROW_PAD, column = (int)threadIdx.x % SIDE;

    for (int k = 0; k < count; k++) {
        float w[M];

#pragma unroll
        for (int i = 0; i < M; i++)
            w[i] = weight[i * row_step + k * key_step];
#pragma unroll
        for (int c = 0; c < WIDTH / SIDE; c++)
            if (column + SIDE * c < D) {
                const float x = tile[k * ld + column + SIDE * c];

#pragma unroll
                for (int i = 0; i < M; i++)
                    out[i][c] += w[i] * x;
            }
    }
}

/* Arguments of score_of and stays. */
struct pairs {
    const struct attention *a;
    const int32_t *keys;
    const int2 *queries;
    uint64_t step_key;
    float slope;
    int b, head;
};

static __device__ __forceinline__ struct pairs pairs_of(const struct attention *a, int b, int head)
{
    struct pairs p;

    p.a = a;
    p.keys = a->mask_extents.keys + (int64_t)b * a->mask_extents.kv_pad;
    p.queries = a->mask_extents.queries + (int64_t)b * a->mask_extents.q_pad;
    p.step_key = a->sample ? drop_step_key(a->drop) : 0;
    p.slope = a->slopes ? a->slopes[head] : 0;
    p.b = b;
    p.head = head;
    return p;
}

/* Returns the score of a (query, key) pair; -inf if the pair is not visible, including rows that
 * are padding. query and key: row numbers in the sequence. */
static __device__ __forceinline__ float score_of(const struct pairs *p, float product, int query,
                                                 int key)
{
    const int32_t index = p->keys[key];

    if (!attention_sees(p->queries[query], index))
        return -INFINITY;
    product *= p->a->scale;
    if (p->a->cap > 0)
        return p->a->cap * tanhf(product / p->a->cap);
    if (p->a->slopes)
        product -= p->slope *
                   attention_distance(p->a->q_index[(int64_t)p->b * p->a->q_len + query], index);
    return product;
}

/* Returns the derivative of a capped score with respect to the uncapped one; 0 for a pair that is
 * not visible. */
static __device__ __forceinline__ float plain_cap_slope(const struct pairs *p, float score)
{
    const float u = score / p->a->cap;

    return fmaxf(1 - u * u, 0);
}

/* Returns the dropout factor of a (query, key) pair's weight; `query` must not be padding. */
static __device__ __forceinline__ float stays(const struct pairs *p, int query, int key)
{
    const int64_t row = (int64_t)p->b * p->a->q_len + query;

    if (!p->a->sample || query >= p->a->q_len)
        return 1;
    return attention_stays(p->a->drop, p->step_key, p->keys[key], p->a->q_index[row],
                           p->a->first_head + p->head, p->a->sample[row]);
}

static __device__ __forceinline__ int64_t query_row(const struct attention *a, int b, int query)
{
    return (int64_t)b * a->q_len + query;
}

static __device__ __forceinline__ int64_t key_row(const struct attention *a, int b, int key)
{
    return attention_slot(a, b) * a->kv_stride + key;
}

/* ---- Forward ---- */

enum { FORWARD_KEYS = 32, FORWARD_N = FORWARD_KEYS / SIDE, FORWARD_LD = FORWARD_KEYS + 1 };

/* Computes attention weights from a tile of scores, in shared memory, and rescales the rows' sums
 * so far. */
template <int WIDTH, int M>
static __device__ __forceinline__ void
attention_softmax(const struct pairs *p, float score[M][FORWARD_N], float *weights,
                  float out[M][WIDTH / SIDE], float max[M], float sum[M], int first_query,
                  int first_key)
{
    const int column = (int)threadIdx.x % SIDE, row = (int)threadIdx.x / SIDE * M;

#pragma unroll
    for (int i = 0; i < M; i++) {
        float top = max[i], rescale;

#pragma unroll
        for (int j = 0; j < FORWARD_N; j++) {
            score[i][j] =
                score_of(p, score[i][j], first_query + row + i, first_key + column + SIDE * j);
            top = fmaxf(top, score[i][j]);
        }
        for (int distance = SIDE / 2; distance > 0; distance /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
        rescale = max[i] == top ? 1 : expf(max[i] - top);
        max[i] = top;
        sum[i] *= rescale;
#pragma unroll
        for (int c = 0; c < WIDTH / SIDE; c++)
            out[i][c] *= rescale;
#pragma unroll
        for (int j = 0; j < FORWARD_N; j++) {
            const int key = first_key + column + SIDE * j;
            float w = top == -INFINITY ? 0 : expf(score[i][j] - top);

            sum[i] += w;
            if (p->a->sample && w != 0)
                w *= stays(p, first_query + row + i, key);
            weights[(row + i) * FORWARD_LD + column + SIDE * j] = w;
        }
    }
}

template <int WIDTH, int ROWS>
static __global__ void __launch_bounds__(THREADS, 1)
    forward_plain_kernel(struct attention_forward f)
{
    enum { M = ROWS / SIDE };
    HD_SHARED_DYNAMIC(float, shared);
    const struct attention *a = &f.a;
    const int D = a->D, ld = D + ROW_PAD, column = (int)threadIdx.x % SIDE;
    const int row = (int)threadIdx.x / SIDE * M;
    float *q_tile = shared, *tile = q_tile + ROWS * ld, *weights = tile + FORWARD_KEYS * ld;
    const struct attention_block block =
        attention_block_of(a, (a->q_len + ROWS - 1) / ROWS, a->H, blockIdx.x);
    const int first_query = block.tile * ROWS, group = block.head / (a->H / a->G);
    const int key_count = attention_key_count(a, block.b);
    const struct pairs pairs = pairs_of(a, block.b, block.head);
    const int4 extent = attention_query_extent<ROWS>(
        a->mask_extents.query_extents +
            (int64_t)block.b * (a->mask_extents.q_pad / ATTENTION_GRANULE),
        block.tile);
    struct attention_tile_iterator iterator = attention_tile_begin();
    float out[M][WIDTH / SIDE] = {}, max[M], sum[M] = {}, top = 0;

    for (int i = 0; i < M; i++)
        max[i] = -INFINITY;
    load_rows<ROWS>(q_tile, a->q, query_row(a, block.b, first_query) * a->ldq + block.head * D,
                    a->ldq, a->q_len - first_query, D, a->dtype);
    for (int step = attention_next_keys<FORWARD_KEYS>(&iterator, a, block.b, &extent); step >= 0;
         step = attention_next_keys<FORWARD_KEYS>(&iterator, a, block.b, &extent)) {
        const int first_key = attention_step_tile(step) * FORWARD_KEYS;
        const int count =
            key_count - first_key < FORWARD_KEYS ? key_count - first_key : FORWARD_KEYS;
        float score[M][FORWARD_N];

        __syncthreads(); /* the tile of the previous v may be overwritten */
        load_rows<FORWARD_KEYS>(tile, a->k, key_row(a, block.b, first_key) * a->ldk + group * D,
                                a->ldk, count, D, a->dtype);
        __syncthreads();
        dot_rows<M, FORWARD_N>(score, q_tile, tile, row, D);
        attention_softmax<WIDTH, M>(&pairs, score, weights, out, max, sum, first_query, first_key);
        __syncthreads(); /* the tile of k may be overwritten */
        load_rows<FORWARD_KEYS>(tile, a->v, key_row(a, block.b, first_key) * a->ldv + group * D,
                                a->ldv, count, D, a->dtype);
        __syncthreads();
        add_weighted_rows<M, WIDTH>(out, weights + row * FORWARD_LD, FORWARD_LD, 1, tile, count, D);
    }
#pragma unroll
    for (int i = 0; i < M; i++) {
        const int query = first_query + row + i;
        const int64_t at = query_row(a, block.b, query);
        float total = sum[i], factor;

        for (int distance = SIDE / 2; distance > 0; distance /= 2)
            total += __shfl_xor_sync(0xffffffffu, total, distance);
        factor = total != 0 ? 1 / total : 0;
        top = fmaxf(top, max[i]);
        if (query >= a->q_len)
            continue;
#pragma unroll
        for (int c = 0; c < WIDTH / SIDE; c++)
            if (column + SIDE * c < D)
                put_element(f.out, at * f.ldo + block.head * D + column + SIDE * c,
                            out[i][c] * factor, a->dtype);
        if (column == 0)
            f.lse[(int64_t)block.head * a->B * a->q_len + at] = max[i] + logf(total);
    }
    attention_raise_top_score(&f, block.head, top);
}

/* ---- Backward ---- */

/* Template argument TILE of the backward kernels: number of queries, and of keys, per tile. */

static __device__ __forceinline__ void put_gradient(const struct attention_backward *f, void *to,
                                                    int64_t at, float value)
{
    if (f->accumulate)
        value += ((const float *)to)[at];
    put_element(to, at, value, f->grad_dtype);
}

/* Computes for one tile of queries and one of keys weights[query, key] = p (for dv) and dweights =
 * ds; all tiles are in shared memory. */
template <int TILE>
static __device__ __forceinline__ void
differentiate(const struct pairs *p, const float *q_tile, const float *dout_tile,
              const float *k_tile, const float *v_tile, const float2 *stats, float *weights,
              float *dweights, int first_query, int first_key)
{
    enum { M = TILE / SIDE, WEIGHTS_LD = TILE + 1 };
    const int row = (int)threadIdx.x / SIDE * M, column = (int)threadIdx.x % SIDE, D = p->a->D;
    float weight[M][M], dweight[M][M];

    dot_rows<M, M>(weight, q_tile, k_tile, row, D);
    dot_rows<M, M>(dweight, dout_tile, v_tile, row, D);
#pragma unroll
    for (int i = 0; i < M; i++) {
        const float2 stat = stats[first_query + row + i];

#pragma unroll
        for (int j = 0; j < M; j++) {
            const int query = first_query + row + i, key = first_key + column + SIDE * j;
            const int at = (row + i) * WEIGHTS_LD + column + SIDE * j;
            const float score = score_of(p, weight[i][j], query, key), w = expf(score - stat.x);
            const float factor = stays(p, query, key);

            weights[at] = w * factor;
            dweights[at] = w * (dweight[i][j] * factor - stat.y);
            if (p->a->cap > 0)
                dweights[at] *= plain_cap_slope(p, score);
        }
    }
}

template <int WIDTH, int TILE>
static __global__ void __launch_bounds__(THREADS, 1) keys_kernel(struct attention_backward f)
{
    enum { M = TILE / SIDE, WEIGHTS_LD = TILE + 1 };
    HD_SHARED_DYNAMIC(float, shared);
    const struct attention *a = &f.a;
    const int D = a->D, ld = D + ROW_PAD, column = (int)threadIdx.x % SIDE;
    const int row = (int)threadIdx.x / SIDE * M, tiles = (a->kv_len + TILE - 1) / TILE;
    float *k_tile = shared, *v_tile = k_tile + TILE * ld, *q_tile = v_tile + TILE * ld;
    float *dout_tile = q_tile + TILE * ld, *weights = dout_tile + TILE * ld;
    float *dweights = weights + TILE * WEIGHTS_LD;
    const struct attention_block block = attention_block_of(a, tiles, a->G, blockIdx.x);
    const int tile = tiles - 1 - block.tile, first_key = tile * TILE; /* longest block first */
    const int heads = a->H / a->G;
    const int count = a->kv_len - first_key < TILE ? a->kv_len - first_key : TILE;
    const int2 extent = attention_key_extent<TILE>(
        a->mask_extents.key_extents +
            (int64_t)block.b * (a->mask_extents.kv_pad / ATTENTION_GRANULE),
        tile);
    struct attention_tile_iterator iterator = attention_tile_begin();
    float dk[M][WIDTH / SIDE] = {}, dv[M][WIDTH / SIDE] = {};
    int head = block.head * heads;
    int step = attention_next_queries<TILE>(&iterator, a, block.b, &extent, &head,
                                            (block.head + 1) * heads - 1);

    if (step < 0 && f.accumulate)
        return; /* no visible pair: adds nothing to the gradient */
    load_rows<TILE>(k_tile, a->k, key_row(a, block.b, first_key) * a->ldk + block.head * D, a->ldk,
                    count, D, a->dtype);
    load_rows<TILE>(v_tile, a->v, key_row(a, block.b, first_key) * a->ldv + block.head * D, a->ldv,
                    count, D, a->dtype);
    while (step >= 0) {
        const int first = attention_step_tile(step) * TILE;
        const int64_t at = query_row(a, block.b, first);
        const int queries = a->q_len - first < TILE ? a->q_len - first : TILE;
        const struct pairs pairs = pairs_of(a, block.b, head);
        const int64_t stats = ((int64_t)block.b * a->H + head) * a->mask_extents.q_pad;
        const int64_t q_at = at * a->ldq + head * D, dout_at = at * f.lddo + head * D;

        step = attention_next_queries<TILE>(&iterator, a, block.b, &extent, &head,
                                            (block.head + 1) * heads - 1);
        __syncthreads(); /* the previous tiles in shared memory may be overwritten */
        load_rows<TILE>(q_tile, a->q, q_at, a->ldq, queries, D, a->dtype);
        load_rows<TILE>(dout_tile, f.dout, dout_at, f.lddo, queries, D, a->dtype);
        __syncthreads();
        differentiate<TILE>(&pairs, q_tile, dout_tile, k_tile, v_tile, f.stats + stats, weights,
                            dweights, first, first_key);
        __syncthreads();
        add_weighted_rows<M, WIDTH>(dv, weights + row, 1, WEIGHTS_LD, dout_tile, queries, D);
        add_weighted_rows<M, WIDTH>(dk, dweights + row, 1, WEIGHTS_LD, q_tile, queries, D);
    }
#pragma unroll
    for (int i = 0; i < M; i++) {
        const int64_t at = key_row(a, block.b, first_key + row + i);

        if (row + i >= count)
            continue;
#pragma unroll
        for (int c = 0; c < WIDTH / SIDE; c++)
            if (column + SIDE * c < D) {
                const int64_t channel = block.head * D + column + SIDE * c;

                put_gradient(&f, f.dk, at * f.lddk + channel, dk[i][c] * a->scale);
                put_gradient(&f, f.dv, at * f.lddv + channel, dv[i][c]);
            }
    }
}

template <int WIDTH, int TILE>
static __global__ void __launch_bounds__(THREADS, 1) queries_kernel(struct attention_backward f)
{
    enum { M = TILE / SIDE, WEIGHTS_LD = TILE + 1 };
    HD_SHARED_DYNAMIC(float, shared);
    const struct attention *a = &f.a;
    const int D = a->D, ld = D + ROW_PAD, column = (int)threadIdx.x % SIDE;
    const int row = (int)threadIdx.x / SIDE * M;
    float *q_tile = shared, *dout_tile = q_tile + TILE * ld, *k_tile = dout_tile + TILE * ld;
    float *v_tile = k_tile + TILE * ld, *weights = v_tile + TILE * ld;
    float *dweights = weights + TILE * WEIGHTS_LD;
    const struct attention_block block =
        attention_block_of(a, (a->q_len + TILE - 1) / TILE, a->H, blockIdx.x);
    const int first = block.tile * TILE, group = block.head / (a->H / a->G);
    const int queries = a->q_len - first < TILE ? a->q_len - first : TILE;
    const int64_t at = query_row(a, block.b, first);
    const struct pairs pairs = pairs_of(a, block.b, block.head);
    const int4 extent = attention_query_extent<TILE>(
        a->mask_extents.query_extents +
            (int64_t)block.b * (a->mask_extents.q_pad / ATTENTION_GRANULE),
        block.tile);
    struct attention_tile_iterator iterator = attention_tile_begin();
    float dq[M][WIDTH / SIDE] = {};
    int step = attention_next_keys<TILE>(&iterator, a, block.b, &extent);

    if (step < 0 && f.accumulate)
        return; /* no visible pair: adds nothing to the gradient */
    load_rows<TILE>(q_tile, a->q, at * a->ldq + block.head * D, a->ldq, queries, D, a->dtype);
    load_rows<TILE>(dout_tile, f.dout, at * f.lddo + block.head * D, f.lddo, queries, D, a->dtype);
    while (step >= 0) {
        const int first_key = attention_step_tile(step) * TILE;
        const int count = a->kv_len - first_key < TILE ? a->kv_len - first_key : TILE;

        step = attention_next_keys<TILE>(&iterator, a, block.b, &extent);
        __syncthreads(); /* the previous tiles in shared memory may be overwritten */
        load_rows<TILE>(k_tile, a->k, key_row(a, block.b, first_key) * a->ldk + group * D, a->ldk,
                        count, D, a->dtype);
        load_rows<TILE>(v_tile, a->v, key_row(a, block.b, first_key) * a->ldv + group * D, a->ldv,
                        count, D, a->dtype);
        __syncthreads();
        differentiate<TILE>(&pairs, q_tile, dout_tile, k_tile, v_tile,
                            f.stats +
                                ((int64_t)block.b * a->H + block.head) * a->mask_extents.q_pad,
                            weights, dweights, first, first_key);
        __syncthreads();
        add_weighted_rows<M, WIDTH>(dq, dweights + row * WEIGHTS_LD, WEIGHTS_LD, 1, k_tile, count,
                                    D);
    }
#pragma unroll
    for (int i = 0; i < M; i++) {
        if (row + i >= queries)
            continue;
#pragma unroll
        for (int c = 0; c < WIDTH / SIDE; c++)
            if (column + SIDE * c < D)
                put_gradient(&f, f.dq, (at + row + i) * f.lddq + block.head * D + column + SIDE * c,
                             dq[i][c] * a->scale);
    }
}

/* ---- Launching ---- */

#define FOR_WIDTH(D, call, tile) \
    ((D) <= 64 ? call<64, tile> : (D) <= 128 ? call<128, tile> : call<256, tile>)

static size_t forward_bytes(const struct attention *a, int rows)
{
    return (size_t)((rows + FORWARD_KEYS) * (a->D + ROW_PAD) + rows * FORWARD_LD) * sizeof(float);
}

enum hd_status attention_forward_plain(struct hd_cuda_stream *stream,
                                       const struct attention_forward *f)
{
    const struct attention *a = &f->a;
    const bool is_narrow = forward_bytes(a, 64) > (size_t)stream->cuda->shared_bytes;
    const int rows = is_narrow ? 32 : 64;
    const int64_t blocks = attention_tiles(a->q_len, rows) * a->B * a->H;
    struct attention_forward launched = *f;

    launched.a.l2_group = attention_l2_group_of_queries(stream, a);
    return HD_LAUNCH(
        stream,
        (is_narrow ? forward_plain_kernel<256, 32> : FOR_WIDTH(a->D, forward_plain_kernel, 64)),
        dim3((unsigned)blocks), dim3(THREADS), forward_bytes(a, rows), launched);
}

static size_t backward_bytes(const struct attention *a, int tile)
{
    return (size_t)(4 * tile * (a->D + ROW_PAD) + 2 * tile * (tile + 1)) * sizeof(float);
}

enum hd_status attention_backward_plain(struct hd_cuda_stream *stream,
                                        const struct attention_backward *f)
{
    const struct attention *a = &f->a;
    const bool is_narrow = backward_bytes(a, 32) > (size_t)stream->cuda->shared_bytes;
    const int tile = is_narrow ? 16 : 32;
    const int64_t key_blocks = attention_tiles(a->kv_len, tile) * a->B * a->G;
    const int64_t query_blocks = attention_tiles(a->q_len, tile) * a->B * a->H;
    struct attention_backward launched = *f;
    enum hd_status st = HD_OK;

    launched.a.l2_group = attention_l2_group_of_keys(stream, a, (int64_t)a->B * a->G, a->H / a->G);
    if (key_blocks > 0)
        st =
            HD_LAUNCH(stream, (is_narrow ? keys_kernel<256, 16> : FOR_WIDTH(a->D, keys_kernel, 32)),
                      dim3((unsigned)key_blocks), dim3(THREADS), backward_bytes(a, tile), launched);
    launched.a.l2_group = attention_l2_group_of_queries(stream, a);
    if (!st && query_blocks > 0)
        st = HD_LAUNCH(
            stream, (is_narrow ? queries_kernel<256, 16> : FOR_WIDTH(a->D, queries_kernel, 32)),
            dim3((unsigned)query_blocks), dim3(THREADS), backward_bytes(a, tile), launched);
    return st;
}
