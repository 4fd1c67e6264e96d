/* attention on Hopper GPUs: forward by wgmma and TMA, bf16, heads of 64 and 128, after FlashAttention-3
 * (Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao 2024), without its turns of warp groups.
 *
 * A block of 3 warp groups computes 128 queries of one head. One warp of the last group, the producer,
 * copies tiles of 128 keys and values to two stages; the other two groups have 64 queries each. The
 * scores of the next tile are computed while the values of this one are summed, and the softmax of the
 * next tile runs beside that sum. Masks, the order of tiles and of blocks, and what is stored are those
 * of attention_forward_tiled.cuh.
 *
 *   D    shared memory   registers of a consumer: sums + scores + weights   blocks per SM
 *   64    80 KiB         32 + 64 + 32                                       1
 *   128  160 KiB         64 + 64 + 32                                       1
 *
 * Registers: 384 threads begin with 168; the producer's group gives back all but 40, so that the others
 * have 232. Not measured on a GPU yet; chosen by HEDDLE_CUDA_ATTENTION=wgmma alone (backend.c).
 */
#include "kernels/cuda/attention_forward_tiled.cuh"
#include "kernels/cuda/attention_hopper.cuh"

enum {
    HOPPER_QUERIES = FORWARD_QUERIES,
    HOPPER_KEYS = 128,
    HOPPER_NT = HOPPER_KEYS / 8,
    HOPPER_STAGES = 2,
    HOPPER_CONSUMERS = HOPPER_QUERIES / 64, /* warp groups */
    HOPPER_THREADS = (HOPPER_CONSUMERS + 1) * WARP_GROUP,
    HOPPER_CONSUMER_WARPS = HOPPER_CONSUMERS * WARP_GROUP / ATTENTION_WARP,
    HOPPER_PRODUCER_REGISTERS = 40,
    HOPPER_CONSUMER_REGISTERS = 232
};

/* Elements of a tile of 64 columns; a tile of D columns is D / 64 of them. */
enum { HOPPER_PART = HOPPER_KEYS * TENSOR_MAP_COLUMNS };

struct hopper_forward {
    CUtensorMap q, k, v; /* [B, length, heads * D] */
    struct attention_forward f;
};

struct hopper_barriers {
    uint64_t q_full, k_full[HOPPER_STAGES], v_full[HOPPER_STAGES];
    uint64_t k_empty[HOPPER_STAGES], v_empty[HOPPER_STAGES];
};

template <int D>
static __device__ __forceinline__ void
hopper_produce(const struct hopper_forward *h, const struct forward_place *place,
               struct hopper_barriers *barriers, bf16 *q_tile, bf16 *stages)
{
    const struct attention *a = &h->f.a;
    const bool is_first = threadIdx.x % ATTENTION_WARP == 0;
    const int group = place->block.head / (a->H / a->G);
    struct attention_tile_iterator iterator = attention_tile_begin();
    int count = 0;

    if (is_first) {
        mbarrier_arrive_expect(&barriers->q_full, HOPPER_QUERIES * D * sizeof(bf16));
        hopper_load<D, HOPPER_QUERIES>(q_tile, &h->q, &barriers->q_full, place->block.head,
                                       place->block.tile * HOPPER_QUERIES, place->block.b);
    }
    for (int step; (step = attention_next_keys<HOPPER_KEYS>(&iterator, a, place->block.b,
                                                            &place->extent)) >= 0;
         count++) {
        const int stage = count % HOPPER_STAGES;
        const unsigned free_parity = (unsigned)(count / HOPPER_STAGES + 1) % 2;
        bf16 *const k_tile = stages + 2 * stage * HOPPER_KEYS * D;
        const int first_key = attention_step_tile(step) * HOPPER_KEYS;

        if (is_first) {
            mbarrier_wait(barriers->k_empty + stage, free_parity);
            mbarrier_arrive_expect(barriers->k_full + stage, HOPPER_KEYS * D * sizeof(bf16));
            hopper_load<D, HOPPER_KEYS>(k_tile, &h->k, barriers->k_full + stage, group, first_key,
                                        place->block.b);
            mbarrier_wait(barriers->v_empty + stage, free_parity);
            mbarrier_arrive_expect(barriers->v_full + stage, HOPPER_KEYS * D * sizeof(bf16));
            hopper_load<D, HOPPER_KEYS>(k_tile + HOPPER_KEYS * D, &h->v, barriers->v_full + stage,
                                        group, first_key, place->block.b);
        }
        __syncwarp();
    }
}

/* Scores of the warp group's 64 queries with a tile of keys, as one group of wgmma. */
template <int D>
static __device__ __forceinline__ void hopper_scores(float (&score)[HOPPER_NT][4],
                                                     const bf16 *q_tile, const bf16 *k_tile)
{
    wgmma_pin(score);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        const int part = k / TENSOR_MAP_COLUMNS * HOPPER_PART;
        const unsigned column = k % TENSOR_MAP_COLUMNS;

        wgmma<false, false>(score, wgmma_tile(q_tile + part, 0) + wgmma_along_rows(column),
                            wgmma_tile(k_tile + part, 0) + wgmma_along_rows(column), k > 0);
    }
    wgmma_commit();
}

/* out += weights v, as one group. */
template <int D>
static __device__ __forceinline__ void
hopper_sum_values(float (&out)[D / 8][4], const uint32_t (&weights)[HOPPER_NT / 2][4],
                  const bf16 *v_tile)
{
    wgmma_pin(out);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HOPPER_NT / 2; k++)
        wgmma<true>(out, weights[k],
                    wgmma_tile(v_tile, HOPPER_PART * sizeof(bf16)) + wgmma_along_tile(16 * k),
                    true);
    wgmma_commit();
}

/* Replaces scores by exp2(factor * (score - base)) as forward_softmax does, but leaves the rescaling of
 * `out` to the caller, which is still being summed: by rescale[half], if the result is true. */
static __device__ __forceinline__ bool hopper_softmax(float (&score)[HOPPER_NT][4], float base[2],
                                                      float sum[2], float rescale[2], float *most,
                                                      float factor)
{
    bool any = false;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY, less, total = 0;
        bool grows;

#pragma unroll
        for (int n = 0; n < HOPPER_NT; n++)
            top = fmaxf(top, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        *most = fmaxf(*most, top);
        grows = (top - base[half]) * factor > FORWARD_GROWTH;
        rescale[half] = grows ? exp2_approx((base[half] - top) * factor) : 1;
        base[half] = grows ? top : base[half];
        any = __any_sync(0xffffffffu, grows) || any;
        less = base[half] * factor;
#pragma unroll
        for (int n = 0; n < HOPPER_NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float *s = &score[n][2 * half + i];

                *s = exp2_approx(fmaf(*s, factor, -less));
                total += *s;
            }
        sum[half] = sum[half] * rescale[half] + total;
    }
    return any;
}

/* The running softmax of a thread's two rows. */
struct hopper_rows {
    float base[1][2], sum[1][2], rescale[2];
    float most; /* largest score so far, at least 0 */
};

/* Makes weights of the scores of a tile; returns whether rows are to be rescaled. */
static __device__ __forceinline__ bool hopper_weigh(float (&score)[1][HOPPER_NT][4],
                                                    struct hopper_rows *rows,
                                                    const struct forward_place *place, int step,
                                                    float factor)
{
    if (!attention_step_is_whole(step))
        forward_mask<1, HOPPER_NT>(score, place->keys + attention_step_tile(step) * HOPPER_KEYS,
                                   place->queries);
    return hopper_softmax(score[0], rows->base[0], rows->sum[0], rows->rescale, &rows->most,
                          factor);
}

template <int D>
static __device__ __forceinline__ void
hopper_consume(const struct hopper_forward *h, const struct forward_place *place,
               struct hopper_barriers *barriers, const bf16 *q_tile, const bf16 *stages)
{
    const struct attention *a = &h->f.a;
    const float factor = a->scale * ATTENTION_LOG2E;
    const bool is_first = threadIdx.x % ATTENTION_WARP == 0;
    struct attention_tile_iterator iterator = attention_tile_begin();
    struct hopper_rows rows;
    float out[1][D / 8][4], score[1][HOPPER_NT][4];
    uint32_t weights[HOPPER_NT / 2][4];
    int step = attention_next_keys<HOPPER_KEYS>(&iterator, a, place->block.b, &place->extent);
    int stage = 0;       /* of the values that are summed next */
    unsigned parity = 0; /* of that stage's round */

    q_tile += threadIdx.x / WARP_GROUP * 64 * TENSOR_MAP_COLUMNS;
    clear(out);
    rows.most = 0;
    for (int half = 0; half < 2; half++) {
        rows.base[0][half] = FORWARD_NO_BASE;
        rows.sum[0][half] = 0;
    }
    mbarrier_wait(&barriers->q_full, 0);
    if (step >= 0) {
        mbarrier_wait(barriers->k_full, 0);
        hopper_scores<D>(score[0], q_tile, stages);
        wgmma_wait<0>();
        wgmma_pin(score[0]);
        if (is_first)
            mbarrier_arrive(barriers->k_empty);
        (void)hopper_weigh(score, &rows, place, step, factor); /* nothing is summed yet */
        hopper_pack(weights, score[0]);
        while ((step = attention_next_keys<HOPPER_KEYS>(&iterator, a, place->block.b,
                                                        &place->extent)) >= 0) {
            const bf16 *const v_tile = stages + (2 * stage + 1) * HOPPER_KEYS * D;
            const int next = (stage + 1) % HOPPER_STAGES;
            const unsigned next_parity = next == 0 ? parity ^ 1 : parity;
            bool rescales;

            mbarrier_wait(barriers->k_full + next, next_parity);
            hopper_scores<D>(score[0], q_tile, stages + 2 * next * HOPPER_KEYS * D);
            mbarrier_wait(barriers->v_full + stage, parity);
            hopper_sum_values<D>(out[0], weights, v_tile);
            wgmma_wait<1>();
            wgmma_pin(score[0]);
            if (is_first)
                mbarrier_arrive(barriers->k_empty + next);
            rescales = hopper_weigh(score, &rows, place, step, factor);
            wgmma_wait<0>();
            wgmma_pin(out[0]);
            if (is_first)
                mbarrier_arrive(barriers->v_empty + stage);
            if (rescales)
#pragma unroll
                for (int d = 0; d < D / 8; d++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        out[0][d][i] *= rows.rescale[i / 2];
            hopper_pack(weights, score[0]);
            stage = next;
            parity = next_parity;
        }
        mbarrier_wait(barriers->v_full + stage, parity);
        hopper_sum_values<D>(out[0], weights, stages + (2 * stage + 1) * HOPPER_KEYS * D);
        wgmma_wait<0>();
        wgmma_pin(out[0]);
    }
    forward_store<bf16, D, 1>(&h->f, &place->block, out, rows.base, rows.sum, rows.most, a->scale);
}

template <int D>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_forward_kernel(const __grid_constant__ struct hopper_forward h)
{
    HD_SHARED(struct forward_place, place, 1);
    HD_SHARED(struct hopper_barriers, barriers, 1);
    HD_SHARED_DYNAMIC(bf16, shared);
    bf16 *const q_tile = hopper_tiles(shared), *const stages = q_tile + HOPPER_QUERIES * D;

    if (threadIdx.x == 0) {
        forward_place_set<bf16, D>(place, &h.f.a);
        mbarrier_init(&barriers->q_full, 1);
        for (int i = 0; i < HOPPER_STAGES; i++) {
            mbarrier_init(barriers->k_full + i, 1);
            mbarrier_init(barriers->v_full + i, 1);
            mbarrier_init(barriers->k_empty + i, HOPPER_CONSUMER_WARPS);
            mbarrier_init(barriers->v_empty + i, HOPPER_CONSUMER_WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x / WARP_GROUP == HOPPER_CONSUMERS) {
        registers_give<HOPPER_PRODUCER_REGISTERS>();
        if (threadIdx.x / ATTENTION_WARP == HOPPER_CONSUMER_WARPS)
            hopper_produce<D>(&h, place, barriers, q_tile, stages);
    } else {
        registers_take<HOPPER_CONSUMER_REGISTERS>();
        hopper_consume<D>(&h, place, barriers, q_tile, stages);
    }
}

/* ---- Host ---- */

bool attention_forward_hopper_takes(const struct attention *a)
{
    return hopper_takes(a) && !a->kv_filled && !a->kv_slot;
}

template <int D>
static enum hd_status hopper_launch(struct hd_cuda_stream *stream, const struct hopper_forward *h)
{
    const int64_t tiles = attention_tiles(h->f.a.q_len, HOPPER_QUERIES);

    return HD_LAUNCH(stream, hopper_forward_kernel<D>,
                     dim3((unsigned)(tiles * h->f.a.B * h->f.a.H)), dim3(HOPPER_THREADS),
                     (HOPPER_QUERIES + 2 * HOPPER_STAGES * HOPPER_KEYS) * D * sizeof(bf16) +
                         HOPPER_TILES_SLACK,
                     *h);
}

enum hd_status attention_forward_hopper(struct hd_cuda_stream *stream,
                                        const struct attention_forward *f)
{
    const struct attention *a = &f->a;
    struct hopper_forward h = {};
    enum hd_status st;

    h.f = *f;
    h.f.a.l2_group = attention_l2_group_of_queries(stream, a);
    st = hopper_map(&h.q, a->q, a->B, a->q_len, (int64_t)a->H * a->D, a->ldq, a->q_len,
                    HOPPER_QUERIES);
    if (!st)
        st = hopper_map(&h.k, a->k, a->B, a->kv_len, (int64_t)a->G * a->D, a->ldk, a->kv_stride,
                        HOPPER_KEYS);
    if (!st)
        st = hopper_map(&h.v, a->v, a->B, a->kv_len, (int64_t)a->G * a->D, a->ldv, a->kv_stride,
                        HOPPER_KEYS);
    if (st)
        return st;
    return a->D == 64 ? hopper_launch<64>(stream, &h) : hopper_launch<128>(stream, &h);
}
