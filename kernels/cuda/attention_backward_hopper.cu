/* attention backward on Hopper GPUs, by wgmma and TMA, bf16, heads of 64 and 128: 5 products a pair,
 * where attention_backward_tiled.cuh needs 7, because dq is added where ds is. Every sum of dq has the
 * order of key tiles, so that bits repeat.
 *
 * A block of 3 warp groups has 128 keys of a key head. The producer, one warp of the last group, copies
 * k and v once, and 64 queries' q and dout at a time to two stages. The other two groups have 64 keys
 * each and compute, with keys as rows as the tiled kernel does, for 64 queries at a time:
 *     p = exp2(scale k q^T - lse), dp = v dout^T, ds = p * (dp - delta)
 *     dv += p dout, dk += ds q    left factors in registers
 *     dq = ds^T k                 64 queries x 64 channels by one group; ds goes through shared memory
 * With heads of 128 each group has its half of the channels of dq; with 64 the groups alternate.
 *
 * dq is added to fp32 sums in scratch, in turns: a counter for every 64 queries and 64 channels of a
 * head says how many blocks have added, and a block adds when these are as many as there are key tiles
 * before its own that the queries see. The first one stores. A block's number is the ticket that it
 * draws when it begins, and it waits for blocks with lower tickets only: these have begun, so that they
 * end, whatever else the device runs. A last kernel scales the sums and rounds them.
 *
 *   D    shared memory   registers of a consumer: dk, dv + p, dp + dq   blocks per SM
 *   64    97 KiB          64 + 64 + 32                                  1
 *   128  161 KiB         128 + 64 + 32                                  1
 *
 * Bytes: q and dout once per 128 keys, fp32 dq read and written once per 128 keys, all mostly in L2; dq
 * once more at the end. Not measured on a GPU yet; chosen by HEDDLE_CUDA_ATTENTION=wgmma alone.
 */
#include "kernels/cuda/attention_backward_tiled.cuh"
#include "kernels/cuda/attention_hopper.cuh"

enum {
    ORDERED_KEYS = BACKWARD_KEYS,
    ORDERED_QUERIES = HD_COSTS_ATTENTION_TURN, /* of a stage */
    ORDERED_NT = ORDERED_QUERIES / 8,
    ORDERED_STAGES = 2,
    ORDERED_CONSUMERS = ORDERED_KEYS / 64, /* warp groups */
    ORDERED_CONSUMER_THREADS = ORDERED_CONSUMERS * WARP_GROUP,
    ORDERED_THREADS = ORDERED_CONSUMER_THREADS + WARP_GROUP,
    ORDERED_CONSUMER_WARPS = ORDERED_CONSUMER_THREADS / ATTENTION_WARP,
    ORDERED_PRODUCER_REGISTERS = 24,
    ORDERED_CONSUMER_REGISTERS = 240,
    /* elements of 64 columns of a tile of keys, and of queries */
    ORDERED_KEYS_PART = ORDERED_KEYS * TENSOR_MAP_COLUMNS,
    ORDERED_QUERIES_PART = ORDERED_QUERIES * TENSOR_MAP_COLUMNS,
    ORDERED_PARTS_MAX = HD_COSTS_ATTENTION_TURNS, /* of 64 channels */
    /* numbers of barriers: all consumers; each group of them */
    ORDERED_ALL_CONSUMERS = 1,
    ORDERED_ONE_CONSUMER = 2
};

struct ordered_backward {
    CUtensorMap q, dout, k, v; /* [B, length, heads * D] */
    struct attention_backward f;
    float *dq; /* sums, [B, H, q_pad, D] */
    /* the next ticket; then [B, H, q_pad / 64, PARTS_MAX]: how many blocks have added */
    unsigned *turns;
};

struct ordered_barriers {
    uint64_t keys_full, full[ORDERED_STAGES], empty[ORDERED_STAGES];
    int2 steps
        [ORDERED_STAGES]; /* of the tile iterator, and the query head; behind the last one -1 */
};

/* Bytes of a stage: q, dout and the queries' stats. */
template <int D>
static __device__ __forceinline__ unsigned ordered_stage_bytes(void)
{
    return ORDERED_QUERIES * (2 * D * sizeof(bf16) + sizeof(float2));
}

template <int D>
static __device__ __forceinline__ void
ordered_produce(const struct ordered_backward *h, const struct backward_place *place,
                struct ordered_barriers *barriers, bf16 *keys, bf16 *stages, float2 *stats)
{
    const struct attention *a = &h->f.a;
    const bool is_first = threadIdx.x % ATTENTION_WARP == 0;
    const int b = place->block.b, first_key = place->block.tile * ORDERED_KEYS;
    struct attention_tile_iterator iterator = attention_tile_begin();
    int head = place->heads.x, count = 0;

    for (int step = 0; step >= 0; count++) {
        const int stage = count % ORDERED_STAGES;
        bf16 *const tile = stages + 2 * stage * ORDERED_QUERIES * D;
        uint64_t *const full = barriers->full + stage;

        step = attention_next_queries<ORDERED_QUERIES>(&iterator, a, b, &place->key_extent, &head,
                                                       place->heads.y);
        if (is_first) {
            const int row = attention_step_tile(step) * ORDERED_QUERIES;

            if (count == 0 && step >= 0) {
                mbarrier_arrive_expect(&barriers->keys_full, 2 * ORDERED_KEYS * D * sizeof(bf16));
                hopper_load<D, ORDERED_KEYS>(keys, &h->k, &barriers->keys_full, place->block.head,
                                             first_key, b);
                hopper_load<D, ORDERED_KEYS>(keys + ORDERED_KEYS * D, &h->v, &barriers->keys_full,
                                             place->block.head, first_key, b);
            }
            mbarrier_wait(barriers->empty + stage, (unsigned)(count / ORDERED_STAGES + 1) % 2);
            barriers->steps[stage] = make_int2(step, head);
            if (step < 0) {
                mbarrier_arrive(full);
            } else {
                mbarrier_arrive_expect(full, ordered_stage_bytes<D>());
                hopper_load<D, ORDERED_QUERIES>(tile, &h->q, full, head, row, b);
                hopper_load<D, ORDERED_QUERIES>(tile + ORDERED_QUERIES * D, &h->dout, full, head,
                                                row, b);
                copy_bulk(stats + stage * ORDERED_QUERIES,
                          h->f.stats + ((int64_t)b * a->H + head) * a->mask_extents.q_pad + row,
                          ORDERED_QUERIES * sizeof(float2), full);
            }
        }
        __syncwarp();
    }
}

/* acc = rows (64 keys) times columns (64 queries) over D channels, as one group. */
template <int D>
static __device__ __forceinline__ void ordered_rows_product(float (&acc)[ORDERED_NT][4],
                                                            shared_at rows, shared_at columns)
{
    wgmma_pin(acc);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        const int part = k / TENSOR_MAP_COLUMNS;
        const unsigned column = k % TENSOR_MAP_COLUMNS;

        wgmma<false, false>(
            acc, wgmma_tile(rows + part * ORDERED_KEYS_PART * 2, 0) + wgmma_along_rows(column),
            wgmma_tile(columns + part * ORDERED_QUERIES_PART * 2, 0) + wgmma_along_rows(column),
            k > 0);
    }
    wgmma_commit();
}

/* acc += weights (64 keys x 64 queries, in registers) times a tile of queries, as one group. */
template <int D>
static __device__ __forceinline__ void
ordered_weights_product(float (&acc)[D / 8][4], const uint32_t (&weights)[ORDERED_NT / 2][4],
                        shared_at tile)
{
    wgmma_pin(acc);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ORDERED_NT / 2; k++)
        wgmma<true>(acc, weights[k],
                    wgmma_tile(tile, ORDERED_QUERIES_PART * 2) + wgmma_along_tile(16 * k), true);
    wgmma_commit();
}

/* dq = ds^T k: 64 queries times 64 channels over the block's keys, as one group. */
static __device__ __forceinline__ void
ordered_queries_product(float (&dq)[TENSOR_MAP_COLUMNS / 8][4], shared_at ds, shared_at k_part)
{
    wgmma_pin(dq);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ORDERED_KEYS; k += 16)
        wgmma<true, true>(dq, wgmma_tile(ds, 0) + wgmma_along_tile(k),
                          wgmma_tile(k_part, 0) + wgmma_along_tile(k), k > 0);
    wgmma_commit();
}

/* Stores ds, [128 keys, 64 queries], with the swizzle of a box. */
static __device__ __forceinline__ void
ordered_store_ds(shared_at ds, const uint32_t (&weights)[ORDERED_NT / 2][4])
{
    const unsigned thread = hd_remade(threadIdx.x); /* not kept in registers from the loop before */
    const unsigned row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 4;
    const shared_at at = ds + row * 128 + column;

#pragma unroll
    for (unsigned k = 0; k < ORDERED_NT / 2; k++)
#pragma unroll
        for (unsigned i = 0; i < 4; i++) /* rows of half i % 2; 16-byte chunk 2 k + i / 2 */
            proxy_store_4(at + i % 2 * 8 * 128 + ((2 * k + i / 2) ^ row % 8) * 16, weights[k][i]);
}

/* Returns how many tiles of keys before the block's own the queries of this tile see. */
static __device__ __forceinline__ unsigned
ordered_earlier(const struct attention *a, const struct attention_block *block, int tile)
{
    const int4 queries = attention_query_extent<ORDERED_QUERIES>(
        a->mask_extents.query_extents +
            (int64_t)block->b * (a->mask_extents.q_pad / ATTENTION_GRANULE),
        tile);
    const int2 *extents = a->mask_extents.key_extents +
                          (int64_t)block->b * (a->mask_extents.kv_pad / ATTENTION_GRANULE);
    unsigned count = 0;

    for (int first = 0; first < block->tile; first += ATTENTION_WARP) {
        const int mine = first + (int)(threadIdx.x % ATTENTION_WARP);
        const bool sees =
            mine < block->tile &&
            attention_cover_of(queries, attention_key_extent<ORDERED_KEYS>(extents, mine)) !=
                ATTENTION_NOTHING;

        count += (unsigned)__popc(__ballot_sync(0xffffffffu, sees));
    }
    return count;
}

/* Returns the counter of 64 queries and 64 channels of a head. */
static __device__ __forceinline__ unsigned *ordered_turn(const struct ordered_backward *h, int b,
                                                         int head, int tile, int part)
{
    const int64_t tiles = h->f.a.mask_extents.q_pad / ORDERED_QUERIES;

    return h->turns + 1 + (((int64_t)b * h->f.a.H + head) * tiles + tile) * ORDERED_PARTS_MAX +
           part;
}

/* Adds 64 queries x 64 channels of dq when it is this block's turn; by one warp group. */
template <int D>
static __device__ __forceinline__ void
ordered_add_dq(const struct ordered_backward *h, const struct attention_block *block, int head,
               int tile, int part, const float (&dq)[TENSOR_MAP_COLUMNS / 8][4])
{
    const struct attention *a = &h->f.a;
    const unsigned earlier = ordered_earlier(a, block, tile);
    const unsigned barrier = ORDERED_ONE_CONSUMER + threadIdx.x / WARP_GROUP;
    unsigned *const turn = ordered_turn(h, block->b, head, tile, part);
    const int row = fragment_row<1>(0, 0) % 64;
    float *const to =
        h->dq +
        (((int64_t)block->b * a->H + head) * a->mask_extents.q_pad + tile * ORDERED_QUERIES + row) *
            D +
        part * TENSOR_MAP_COLUMNS + fragment_column(0);

    if (threadIdx.x % WARP_GROUP == 0)
        turn_wait(turn, earlier);
    group_barrier(barrier, WARP_GROUP);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < TENSOR_MAP_COLUMNS / 8; n++) {
            float2 *const pair = (float2 *)(to + half * 8 * D + n * 8);
            float2 sum = make_float2(dq[n][2 * half], dq[n][2 * half + 1]);

            if (earlier > 0) {
                const float2 old = __ldcg(pair);

                sum = make_float2(old.x + sum.x, old.y + sum.y);
            }
            __stcg(pair, sum);
        }
    __threadfence();
    group_barrier(barrier, WARP_GROUP);
    if (threadIdx.x % WARP_GROUP == 0)
        turn_pass(turn, earlier + 1);
}

template <int D>
static __device__ __forceinline__ void
ordered_consume(const struct ordered_backward *h, const struct backward_place *place,
                struct ordered_barriers *barriers, shared_at keys, const float2 *all_stats)
{
    const struct attention *a = &h->f.a;
    const struct attention_block &block = place->block;
    const int group = (int)threadIdx.x / WARP_GROUP;
    const shared_at k_rows = keys + group * 64 * TENSOR_MAP_COLUMNS * 2;
    const shared_at stages = keys + 2 * ORDERED_KEYS * D * 2;
    const shared_at ds = stages + 2 * ORDERED_STAGES * ORDERED_QUERIES * D * 2;
    float dk[1][D / 8][4], dv[1][D / 8][4];
    int step = 0;

    clear(dk);
    clear(dv);
    for (int count = 0;; count++) {
        const int stage = count % ORDERED_STAGES;
        const int part = D == 64 ? 0 : group;
        const bool has_dq = D != 64 || count % ORDERED_CONSUMERS == group;
        const shared_at q_tile = stages + 2 * stage * ORDERED_QUERIES * D * 2;
        const shared_at dout_tile = q_tile + ORDERED_QUERIES * D * 2;
        const shared_at ds_tile = ds + count % 2 * ORDERED_KEYS_PART * 2;
        const float2 *const stats = all_stats + stage * ORDERED_QUERIES;
        float weight[1][ORDERED_NT][4], dweight[1][ORDERED_NT][4];
        uint32_t p[ORDERED_NT / 2][4], d[ORDERED_NT / 2][4];

        int head, tile, first_query;

        mbarrier_wait(barriers->full + stage, (unsigned)(count / ORDERED_STAGES) % 2);
        step = barriers->steps[stage].x;
        if (step < 0 && count == 0 && place->sum.accumulate)
            return; /* no visible pair: adds nothing to the gradient */
        if (step < 0)
            break;
        if (count == 0)
            mbarrier_wait(&barriers->keys_full, 0);
        head = barriers->steps[stage].y;
        tile = attention_step_tile(step);
        first_query = tile * ORDERED_QUERIES;
        ordered_rows_product<D>(weight[0], k_rows, q_tile);
        ordered_rows_product<D>(dweight[0], k_rows + ORDERED_KEYS * D * 2, dout_tile);
        wgmma_wait<1>();
        wgmma_pin(weight[0]);
        backward_softmax_keys<1, ORDERED_NT, false>(a, place, weight, stats, head,
                                                    block.tile * ORDERED_KEYS, first_query);
        if (!attention_step_is_whole(step))
            backward_mask_keys<1, ORDERED_NT, false>(place, weight, block.tile * ORDERED_KEYS,
                                                     first_query);
        hopper_pack(p, weight[0]);
        wgmma_wait<0>();
        wgmma_pin(dweight[0]);
        ordered_weights_product<D>(dv[0], p, dout_tile);
        backward_differentiate_keys<1, ORDERED_NT, false, false>(
            a, place, weight, dweight, stats, head, block.tile * ORDERED_KEYS, first_query);
        hopper_pack(d, dweight[0]);
        ordered_weights_product<D>(dk[0], d, q_tile);
        ordered_store_ds(ds_tile, d);
        proxy_fence();
        /* ds is there; the other one, of the step before, is read no more */
        group_barrier(ORDERED_ALL_CONSUMERS, ORDERED_CONSUMER_THREADS);
        if (has_dq) {
            float dq[TENSOR_MAP_COLUMNS / 8][4];

            ordered_queries_product(dq, ds_tile, keys + part * ORDERED_KEYS_PART * 2);
            wgmma_wait<0>();
            wgmma_pin(dq);
            wgmma_pin(dk[0]);
            wgmma_pin(dv[0]);
            if (threadIdx.x % ATTENTION_WARP == 0)
                mbarrier_arrive(barriers->empty + stage);
            ordered_add_dq<D>(h, &block, head, tile, part, dq);
        } else {
            wgmma_wait<0>();
            wgmma_pin(dk[0]);
            wgmma_pin(dv[0]);
            if (threadIdx.x % ATTENTION_WARP == 0)
                mbarrier_arrive(barriers->empty + stage);
        }
    }
    backward_store_keys<bf16, D, 1>(a, place, dk, dv);
}

template <int D>
static __global__ void __launch_bounds__(ORDERED_THREADS, 1)
    ordered_backward_kernel(const __grid_constant__ struct ordered_backward h)
{
    HD_SHARED(struct backward_place, place, 1);
    HD_SHARED(struct ordered_barriers, barriers, 1);
    HD_SHARED(float2, stats, ORDERED_STAGES * ORDERED_QUERIES);
    HD_SHARED_DYNAMIC(bf16, shared);
    bf16 *const keys = hopper_tiles(shared), *const stages = keys + 2 * ORDERED_KEYS * D;

    if (threadIdx.x == 0) {
        backward_place_keys<D>(&h.f, place, atomicAdd(h.turns, 1u));
        mbarrier_init(&barriers->keys_full, 1);
        for (int i = 0; i < ORDERED_STAGES; i++) {
            mbarrier_init(barriers->full + i, 1);
            mbarrier_init(barriers->empty + i, ORDERED_CONSUMER_WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x / WARP_GROUP == ORDERED_CONSUMERS) {
        registers_give<ORDERED_PRODUCER_REGISTERS>();
        if (threadIdx.x / ATTENTION_WARP == ORDERED_CONSUMER_WARPS)
            ordered_produce<D>(&h, place, barriers, keys, stages, stats);
    } else {
        registers_take<ORDERED_CONSUMER_REGISTERS>();
        ordered_consume<D>(&h, place, barriers, hd_shared_address(keys), stats);
    }
}

enum { CLEAR_THREADS = 256 };

static __global__ void __launch_bounds__(CLEAR_THREADS)
    ordered_clear_kernel(unsigned *turns, int64_t count)
{
    const int64_t at = (int64_t)blockIdx.x * CLEAR_THREADS + threadIdx.x;

    if (at < count)
        turns[at] = 0;
}

/* ---- dq: the sums, scaled and rounded ----  A thread has 4 channels. Queries that see no
 * key have no sums. Bytes: the sums and the gradients once. */

enum { DQ_THREADS = 256, DQ_WIDTH = 4 };

template <int D>
static __global__ void __launch_bounds__(DQ_THREADS) ordered_dq_kernel(struct ordered_backward h)
{
    const struct attention *a = &h.f.a;
    const int64_t at = (int64_t)blockIdx.x * DQ_THREADS + threadIdx.x;
    const int channel = (int)(at % (D / DQ_WIDTH)) * DQ_WIDTH;
    const int head = (int)(at / (D / DQ_WIDTH) % a->H);
    const int64_t row = at / (D / DQ_WIDTH) / a->H; /* of [B, q_len] */
    const int b = (int)(row / a->q_len), query = (int)(row % a->q_len);
    const int64_t to = row * h.f.lddq + head * D + channel;
    float4 sum = {};

    if (b >= a->B)
        return;
    if (*ordered_turn(&h, b, head, query / ORDERED_QUERIES, channel / TENSOR_MAP_COLUMNS) > 0)
        sum = *(const float4 *)(h.dq +
                                (((int64_t)b * a->H + head) * a->mask_extents.q_pad + query) * D +
                                channel);
    backward_store<bf16>(h.f.dq, to, h.f.grad_dtype, h.f.accumulate, sum.x * a->scale,
                         sum.y * a->scale);
    backward_store<bf16>(h.f.dq, to + 2, h.f.grad_dtype, h.f.accumulate, sum.z * a->scale,
                         sum.w * a->scale);
}

/* ---- Host ---- */

bool attention_backward_hopper_takes(const struct attention *a)
{
    return hopper_takes(a);
}

template <int D>
static enum hd_status ordered_launch(struct hd_cuda_stream *stream,
                                     const struct ordered_backward *h)
{
    const struct attention *a = &h->f.a;
    const int64_t units = (int64_t)a->B * a->G * h->f.parts;
    const int64_t threads = (int64_t)a->B * a->q_len * a->H * (D / DQ_WIDTH);
    const size_t elements =
        2 * ORDERED_KEYS * D + 2 * ORDERED_STAGES * ORDERED_QUERIES * D + 2 * ORDERED_KEYS_PART;
    enum hd_status st = HD_OK;

    if (a->kv_len > 0)
        st = HD_LAUNCH(stream, ordered_backward_kernel<D>,
                       dim3((unsigned)(attention_tiles(a->kv_len, ORDERED_KEYS) * units)),
                       dim3(ORDERED_THREADS), elements * sizeof(bf16) + HOPPER_TILES_SLACK, *h);
    if (!st && a->kv_len > 0)
        st = backward_launch_parts<bf16, D>(stream, &h->f);
    if (!st && threads > 0)
        st = HD_LAUNCH(stream, ordered_dq_kernel<D>,
                       dim3((unsigned)attention_tiles(threads, DQ_THREADS)), dim3(DQ_THREADS), 0,
                       *h);
    return st;
}

enum hd_status attention_backward_hopper(struct hd_cuda_stream *stream,
                                         const struct attention_backward *f, void *scratch,
                                         struct hd_costs_attention_in_order in_order)
{
    const struct attention *a = &f->a;
    const int64_t H = a->H, G = a->G, D = a->D;
    const int64_t counters = in_order.turns_bytes / (int64_t)sizeof(unsigned);
    float *const dq = (float *)((char *)scratch + in_order.dq);
    unsigned *const turns = (unsigned *)((char *)scratch + in_order.turns);
    struct ordered_backward h = {};
    enum hd_status st = HD_LAUNCH(stream, ordered_clear_kernel,
                                  dim3((unsigned)attention_tiles(counters, CLEAR_THREADS)),
                                  dim3(CLEAR_THREADS), 0, turns, counters);

    h.f = *f;
    h.dq = dq;
    h.turns = turns;
    h.f.a.l2_group =
        attention_l2_group_of_keys(stream, a, (int64_t)a->B * a->G * f->parts, f->part_heads);
    if (!st && a->q_len > 0)
        st = hopper_map(&h.q, a->q, a->B, a->q_len, H * D, a->ldq, a->q_len, ORDERED_QUERIES);
    if (!st && a->q_len > 0)
        st =
            hopper_map(&h.dout, f->dout, a->B, a->q_len, H * D, f->lddo, a->q_len, ORDERED_QUERIES);
    if (!st && a->kv_len > 0)
        st = hopper_map(&h.k, a->k, a->B, a->kv_len, G * D, a->ldk, a->kv_stride, ORDERED_KEYS);
    if (!st && a->kv_len > 0)
        st = hopper_map(&h.v, a->v, a->B, a->kv_len, G * D, a->ldv, a->kv_stride, ORDERED_KEYS);
    if (st)
        return st;
    return a->D == 64 ? ordered_launch<64>(stream, &h) : ordered_launch<128>(stream, &h);
}
