/* hopper_probe: small kernels that use what hopper.cuh has, correctly and wrongly. */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "tests/cudasim/hopper_probe.h"

enum { COLUMNS = TENSOR_MAP_COLUMNS, CHUNK = 8 };

static __device__ const uint16_t *element(const unsigned char *tile, int row, int column)
{
    const int chunk = column / CHUNK ^ row % 8;

    return (const uint16_t *)(const void *)tile + row * COLUMNS + chunk * CHUNK + column % CHUNK;
}

/* ---- A box ---- */

struct box_task {
    CUtensorMap map;
    uint16_t *out;
    int at[4], rank, rows;
};

__global__ void box_kernel(const __grid_constant__ struct box_task t)
{
    HD_SHARED(uint64_t, barrier, 1);
    HD_SHARED_DYNAMIC(unsigned char, shared);
    unsigned char *tile = hopper_tiles(shared);

    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, (unsigned)(t.rows * COLUMNS * 2));
        if (t.rank == 2)
            copy_box(tile, &t.map, barrier, t.at[0], t.at[1]);
        else if (t.rank == 3)
            copy_box(tile, &t.map, barrier, t.at[0], t.at[1], t.at[2]);
        else
            copy_box(tile, &t.map, barrier, t.at[0], t.at[1], t.at[2], t.at[3]);
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    for (int i = (int)threadIdx.x; i < t.rows * COLUMNS; i += (int)blockDim.x)
        t.out[i] = *element(tile, i / COLUMNS, i % COLUMNS);
}

static enum hd_status encode(CUtensorMap *ret_map, const struct probe_box *box)
{
    struct tensor_map_shape shape = {};

    shape.rank = box->rank;
    shape.box_rows = box->rows;
    for (int i = 0; i < box->rank; i++)
        shape.sizes[i] = box->sizes[i];
    for (int i = 0; i < box->rank - 1; i++)
        shape.strides[i] = box->strides[i];
    return tensor_map_encode(ret_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, box->base, &shape);
}

enum hd_status probe_box(struct hd_cuda_stream *s, uint16_t *out, const struct probe_box *box)
{
    struct box_task t = {};
    const enum hd_status st = encode(&t.map, box);

    if (st)
        return st;
    t.out = out;
    t.rank = box->rank;
    t.rows = box->rows;
    memcpy(t.at, box->at, sizeof t.at);
    return HD_LAUNCH(s, box_kernel, dim3(1), dim3(32),
                     (size_t)(box->rows * COLUMNS * 2 + HOPPER_TILES_SLACK), t);
}

/* ---- A stream of boxes through two stages ---- */

enum { STAGES = 2, ROWS = 8, TILE_BYTES = ROWS * COLUMNS * 2, CONSUMERS = 2 };

struct stream_task {
    CUtensorMap map;
    float *out;
    int tiles;
    enum probe_hopper_mistake mistake;
};

__global__ void stream_kernel(const __grid_constant__ struct stream_task t)
{
    HD_SHARED(uint64_t, full, STAGES);
    HD_SHARED(uint64_t, empty, STAGES);
    HD_SHARED_DYNAMIC(unsigned char, shared);
    unsigned char *tiles = hopper_tiles(shared);
    const unsigned warp = threadIdx.x / 32, thread = threadIdx.x - 32;
    const bool other = t.mistake == PROBE_OTHER_PARITY;
    float sums[ROWS] = {};

    if (threadIdx.x == 0 && t.mistake != PROBE_INIT_MISSING) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, CONSUMERS);
        }
        if (t.mistake != PROBE_INIT_UNFENCED)
            mbarrier_init_fence();
    }
    if (threadIdx.x == 0 && t.mistake == PROBE_WORD_OVERWRITTEN)
        full[0] = 0;
    __syncthreads();
    for (int i = 0; i < t.tiles; i++) {
        const int stage = i % STAGES;
        const unsigned round = (unsigned)(i / STAGES) % 2;
        unsigned char *tile = tiles + stage * TILE_BYTES;

        if (warp == 0) {
            if (threadIdx.x != 0)
                continue;
            if (t.mistake != PROBE_WRITE_BEFORE_EMPTY)
                mbarrier_wait(empty + stage, round ^ 1);
            mbarrier_arrive_expect(full + stage, t.mistake == PROBE_BYTES_TOO_MANY ? TILE_BYTES + 16
                                                 : t.mistake == PROBE_BYTES_TOO_FEW
                                                     ? TILE_BYTES - 16
                                                     : TILE_BYTES);
            copy_box(tile + (t.mistake == PROBE_BOX_MISALIGNED ? 128 : 0), &t.map, full + stage, 0,
                     i * ROWS);
            continue;
        }
        if (t.mistake == PROBE_END_BEFORE_BOX)
            continue;
        if (t.mistake != PROBE_READ_BEFORE_FULL)
            mbarrier_wait(full + stage, round ^ (other ? 1 : 0));
        for (int row = 0; row < ROWS; row++)
            sums[row] += hd_bf16_to_f32(*element(tile, row, (int)thread));
        __syncwarp();
        if (thread % 32 == 0 && t.mistake != PROBE_ARRIVAL_MISSING) {
            mbarrier_arrive(empty + stage);
            if (t.mistake == PROBE_ARRIVAL_TOO_MANY)
                mbarrier_arrive(empty + stage);
        }
    }
    for (int row = 0; warp > 0 && row < ROWS; row++)
        t.out[row * COLUMNS + thread] = sums[row];
}

enum hd_status probe_stream(struct hd_cuda_stream *s, float *out, const uint16_t *inp, int tiles,
                            enum probe_hopper_mistake mistake)
{
    struct probe_box box = {};
    struct stream_task t = {};
    enum hd_status st;

    box.base = inp;
    box.rank = 2;
    box.rows = ROWS;
    box.sizes[0] = COLUMNS;
    box.sizes[1] = tiles * ROWS;
    box.strides[0] = COLUMNS;
    st = encode(&t.map, &box);
    if (st)
        return st;
    t.out = out;
    t.tiles = tiles;
    t.mistake = mistake;
    return HD_LAUNCH(s, stream_kernel, dim3(1), dim3(32 * (1 + CONSUMERS)),
                     STAGES * TILE_BYTES + HOPPER_TILES_SLACK, t);
}

/* ---- Registers: 256 threads begin with 248 each of 256 ---- */

__global__ void registers_kernel(int *out, enum probe_hopper_mistake mistake)
{
    const bool first = threadIdx.x < WARP_GROUP;

    if (mistake == PROBE_REGISTERS_OF_HALF_A_WARP && threadIdx.x % 32 < 16)
        return;
    if (mistake == PROBE_REGISTERS_ODD)
        registers_give<100>();
    else if (!first)
        registers_take<256>();
    else if (mistake != PROBE_REGISTERS_NEVER_FREE)
        registers_give<240>();
    if (mistake == PROBE_GROUP_BARRIERS_DIFFER)
        group_barrier(1, first ? WARP_GROUP : 2 * WARP_GROUP);
    else if (!first || mistake != PROBE_GROUP_BARRIER_WITHOUT_ALL)
        group_barrier(1, 2 * WARP_GROUP);
    if (threadIdx.x == WARP_GROUP) {
        unsigned *turn = (unsigned *)out + 1;

        if (mistake != PROBE_TURN_NOT_WAITED_FOR)
            turn_wait(turn, mistake == PROBE_TURN_NEVER_COMES ? 3 : 0);
        turn_pass(turn, 1);
        *out = 1;
    }
}

enum hd_status probe_registers(struct hd_cuda_stream *s, int *out,
                               enum probe_hopper_mistake mistake)
{
    return HD_LAUNCH(s, registers_kernel, dim3(1), dim3(2 * WARP_GROUP), 0, out, mistake);
}

/* ---- Products of a warp group ---- */

struct product_task {
    CUtensorMap a, b;
    struct probe_wgmma p;
};

enum { M = 64, K = 64, A_BYTES = M * K * 2 };

template <int N, bool TRANSPOSED_A, bool TRANSPOSED_B, bool BY_REGISTERS>
__global__ void product_kernel(const __grid_constant__ struct product_task t)
{
    HD_SHARED(uint64_t, barrier, 1);
    HD_SHARED_DYNAMIC(unsigned char, shared);
    unsigned char *a_tile = hopper_tiles(shared), *b_tile = a_tile + A_BYTES;
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const enum probe_hopper_mistake mistake = t.p.mistake;
    float d[N / 8][4];

    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, A_BYTES + K * N * 2);
        copy_box(a_tile, &t.a, barrier, 0, 0);
        for (int i = 0; i < (TRANSPOSED_B ? N / 64 : 1); i++)
            copy_box(b_tile + i * K * 128, &t.b, barrier, i * 64, 0);
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    for (unsigned n = 0; n < N / 8; n++)
        for (unsigned i = 0; i < 4; i++)
            d[n][i] = t.p.c[(warp * 16 + g + i / 2 * 8) * N + n * 8 + column + i % 2];
    if (mistake == PROBE_WARP_MISSING && warp == 2)
        return;
    wgmma_pin(d);
    if (mistake != PROBE_FENCE_MISSING)
        wgmma_fence();
    for (unsigned k = 0; k < K; k += 16) {
        const unsigned again = mistake == PROBE_WARPS_DIFFER && warp == 1 ? 0 : k;
        uint64_t b = wgmma_tile(b_tile, K * 128) +
                     (TRANSPOSED_B ? wgmma_along_tile(again) : wgmma_along_rows(again));
        const uint64_t a = wgmma_tile(a_tile + (mistake == PROBE_TILE_MISALIGNED ? 128 : 0), 0) +
                           (TRANSPOSED_A ? wgmma_along_tile(k) : wgmma_along_rows(k));

        if (mistake == PROBE_NO_SWIZZLE)
            b &= ~((uint64_t)3 << 62);
        if (BY_REGISTERS) {
            uint32_t fragment[4];

            for (unsigned i = 0; i < 4; i++)
                fragment[i] = *(const uint32_t *)(const void *)element(
                    a_tile, (int)(warp * 16 + g + i % 2 * 8), (int)(k + column + i / 2 * 8));
            wgmma<TRANSPOSED_B>(d, fragment, b, true);
        } else {
            wgmma<TRANSPOSED_A, TRANSPOSED_B>(d, a, b, true);
        }
    }
    if (mistake != PROBE_COMMIT_MISSING)
        wgmma_commit();
    if (mistake == PROBE_SUMS_READ_EARLY)
        t.p.d[0] = d[0][0];
    if (mistake == PROBE_SUMS_WRITTEN_EARLY)
        d[0][0] = 0;
    if (mistake == PROBE_FACTOR_OVERWRITTEN)
        b_tile[threadIdx.x] = 0;
    if (mistake == PROBE_WAIT_FOR_ALL_BUT_ONE)
        wgmma_wait<1>();
    else
        wgmma_wait<0>();
    wgmma_pin(d);
    for (unsigned n = 0; n < N / 8; n++)
        for (unsigned i = 0; i < 4; i++)
            if (mistake != PROBE_SUMS_READ_EARLY || threadIdx.x + n + i > 0)
                t.p.d[(warp * 16 + g + i / 2 * 8) * N + n * 8 + column + i % 2] = d[n][i];
}

template <int N>
static enum hd_status launch_product(struct hd_cuda_stream *s, const struct probe_wgmma *p)
{
    struct probe_box box = {};
    struct product_task t = {};
    void (*kernel)(struct product_task) =
        p->by_registers   ? (p->transposed_b ? product_kernel<N, false, true, true>
                                             : product_kernel<N, false, false, true>)
        : p->transposed_a ? (p->transposed_b ? product_kernel<N, true, true, false>
                                             : product_kernel<N, true, false, false>)
                          : (p->transposed_b ? product_kernel<N, false, true, false>
                                             : product_kernel<N, false, false, false>);
    enum hd_status st;

    t.p = *p;
    box.rank = 2;
    box.base = p->a;
    box.rows = 64;
    box.sizes[0] = box.sizes[1] = box.strides[0] = 64;
    st = encode(&t.a, &box);
    box.base = p->b;
    box.rows = p->transposed_b ? K : N;
    box.sizes[0] = box.strides[0] = p->transposed_b ? N : K;
    box.sizes[1] = box.rows;
    if (!st)
        st = encode(&t.b, &box);
    if (!st)
        st = HD_LAUNCH(s, kernel, dim3(1), dim3(WARP_GROUP),
                       (size_t)(A_BYTES + K * N * 2 + HOPPER_TILES_SLACK), t);
    return st;
}

enum hd_status probe_wgmma(struct hd_cuda_stream *s, const struct probe_wgmma *p)
{
    return p->N == 64 ? launch_product<64>(s, p) : launch_product<128>(s, p);
}
