/* gemm_glu: a product and the gated activation behind it, or its backward, in one launch, on Hopper GPUs by
 * wgmma and TMA, bf16 (Shazeer 2020 for the activation; persistent blocks with a producer warp as CUTLASS has
 * them, Thakkar et al. 2023).
 *
 *     forward    gate, up = a b^T, b [2F, K]                h = act(gate) * up      writes h, and gate and up if asked
 *     backward   dh = a b,         b [K, F]                 dgate, dup of dh        reads gate and up; dh is not written
 *
 * A block of 3 warp groups computes 128 rows of two halves of 128 columns: of gate and of up, or of dh one behind
 * the other. One warp of the last group, the producer, fills a ring of 4 stages of 64 depths, and goes on to the
 * block's next tile while the other two groups, with 64 rows each, are in the epilogue. Blocks stay for all tiles;
 * tiles that run at the same time are those of 16 tiles of rows, so that what they read is in the L2 cache.
 *
 *   shared memory 193 KiB, one block per multiprocessor; registers of a consumer: 128 of sums; 384 threads begin
 *   with 168, the producer's group gives back all but 40, so that the others have 232.
 *
 * Bytes beside the factors, per element of h: forward 6 with gate and up, 2 without (two launches: 10, 10);
 * backward 8 (two launches: 14). A stage is 48 KiB for 128 x 256 x 64 multiplications. Blocks share no stages
 * (clusters), so the L2 cache is read more often than by a library that has them.
 *
 * Rounding: sums are fp32 in one order, of ascending depth; gate, up and dh are rounded to bf16 and go through
 * the code of glu.cuh, as by the launches apart. So h has the bits that glu_forward makes of the gate and up that
 * are stored, and recomputing it gives them again; gate, up and dh differ from those of another product only where
 * that one adds in another order.
 *
 * Rows, columns and depths beyond the matrices are copied as zeros and not stored; K, F and the distances of rows
 * are multiples of 8 (TMA: 16 bytes). Not measured on a GPU yet; chosen by HEDDLE_CUDA_GLU=wgmma alone (backend.c).
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_map.cuh"

extern "C" {
#include "base/math.h"
}

enum {
    GLU_ROWS = 128,
    GLU_COLUMNS = 128, /* of each half */
    GLU_NT = GLU_COLUMNS / 8,
    GLU_DEPTH = TENSOR_MAP_COLUMNS,
    GLU_STAGES = 4,
    GLU_CONSUMERS = GLU_ROWS / 64, /* warp groups */
    GLU_THREADS = (GLU_CONSUMERS + 1) * WARP_GROUP,
    GLU_WARP = 32,
    GLU_CONSUMER_WARPS = GLU_CONSUMERS * WARP_GROUP / GLU_WARP,
    GLU_PRODUCER_REGISTERS = 40,
    GLU_CONSUMER_REGISTERS = 232,
    GLU_TOGETHER = 16 /* tiles of rows that run at the same time */
};

/* Elements of a stage: rows of a, then the two halves of b. */
enum {
    GLU_PART = GLU_ROWS * GLU_DEPTH,
    GLU_HALF = GLU_COLUMNS * GLU_DEPTH,
    GLU_STAGE = GLU_PART + 2 * GLU_HALF
};

struct glu_barriers {
    uint64_t full[GLU_STAGES], empty[GLU_STAGES];
};

/* Factors, sizes and tiles of a launch. */
struct glu_product {
    CUtensorMap a, b; /* [M, K]; [2F, K], backward [K, F] */
    int M, F, steps;  /* rows, columns of h; stages of the depth */
    int row_tiles, column_tiles;
    int second; /* columns from the first half of a tile to the second */
};

struct glu_place {
    int row, column;
};

/* Returns the first row, and the first column of the first half, of a tile. */
static __device__ __forceinline__ struct glu_place glu_place_of(const struct glu_product *p,
                                                                int tile, int width)
{
    const int band = GLU_TOGETHER * p->column_tiles, first = tile / band * GLU_TOGETHER;
    const int left = p->row_tiles - first, height = left < GLU_TOGETHER ? left : GLU_TOGETHER;

    return {(first + tile % band % height) * GLU_ROWS, tile % band / height * width};
}

/* ---- Producer ---- */

template <bool BACKWARD>
static __device__ __forceinline__ void glu_fill(const struct glu_product *p, bf16 *stage,
                                                uint64_t *full, struct glu_place at, int depth)
{
    bf16 *const halves = stage + GLU_PART;

    mbarrier_arrive_expect(full, GLU_STAGE * sizeof(bf16));
    copy_box(stage, &p->a, full, depth, at.row);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bf16 *const to = halves + half * GLU_HALF;
        const int column = at.column + half * p->second;

        if (BACKWARD) {
            copy_box(to, &p->b, full, column, depth);
            copy_box(to + GLU_HALF / 2, &p->b, full, column + GLU_COLUMNS / 2, depth);
        } else {
            copy_box(to, &p->b, full, depth, column);
        }
    }
}

template <bool BACKWARD>
static __device__ __forceinline__ void
glu_produce(const struct glu_product *p, struct glu_barriers *barriers, bf16 *stages, int width)
{
    int count = 0;

    for (int tile = blockIdx.x; tile < p->row_tiles * p->column_tiles; tile += gridDim.x) {
        const struct glu_place at = glu_place_of(p, tile, width);

        for (int step = 0; step < p->steps; step++, count++) {
            const int stage = count % GLU_STAGES;

            mbarrier_wait(barriers->empty + stage, (unsigned)(count / GLU_STAGES + 1) % 2);
            glu_fill<BACKWARD>(p, stages + stage * GLU_STAGE, barriers->full + stage, at,
                               step * GLU_DEPTH);
        }
    }
}

/* ---- Consumers ---- */

/* Adds the product of a stage to the sums of both halves, as one group of wgmma. */
template <bool BACKWARD>
static __device__ __forceinline__ void glu_multiply(float (&left)[GLU_NT][4],
                                                    float (&right)[GLU_NT][4], const bf16 *rows,
                                                    const bf16 *halves, bool adds)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < GLU_DEPTH; k += 16) {
        const uint64_t a = wgmma_tile(rows, 0) + wgmma_along_rows(k);
        const unsigned wide = BACKWARD ? GLU_HALF / 2 * sizeof(bf16) : 0;
        const uint64_t along = BACKWARD ? wgmma_along_tile(k) : wgmma_along_rows(k);

        wgmma<false, BACKWARD>(left, a, wgmma_tile(halves, wide) + along, adds || k > 0);
        wgmma<false, BACKWARD>(right, a, wgmma_tile(halves + GLU_HALF, wide) + along,
                               adds || k > 0);
    }
    wgmma_commit();
}

/* Transposes 4 x 4 words of the 4 lanes of a quad: word i of lane j and word j of lane i. */
static __device__ __forceinline__ void quad_transpose(uint32_t (&w)[4])
{
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
        const bool odd = threadIdx.x & distance;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & distance)
                continue;
            const uint32_t other =
                __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + distance], distance);

            w[i] = odd ? other : w[i];
            w[i + distance] = odd ? w[i + distance] : other;
        }
    }
}

/* Returns, rounded, 8 columns that follow each other of the sums of a quad: lane j of it has columns
 * 8 (n + j) .. of row lane / 4 + 8 half. All lanes of a warp call it. */
static __device__ __forceinline__ pack<bf16, 8> glu_columns(const float (&sums)[GLU_NT][4], int n,
                                                            int half)
{
    uint32_t w[4];
    pack<bf16, 8> columns;

#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = pack_two<bf16>(sums[n + i][2 * half], sums[n + i][2 * half + 1]);
    quad_transpose(w);
    memcpy(&columns, w, sizeof columns);
    return columns;
}

/* Epilogues: store what follows from the rounded sums of both halves at row r; c is the column of the
 * first. */
template <enum hd_activation ACT>
struct glu_epilogue_forward {
    static constexpr bool BACKWARD = false;
    static constexpr int WIDTH = GLU_COLUMNS;
    struct glu_forward<ACT, bf16> op;
    bf16 *pre; /* [M, 2F], or NULL */

    __device__ __forceinline__ void finish(const pack<bf16, 8> &gate, const pack<bf16, 8> &up,
                                           int64_t r, int64_t c) const
    {
        const typename glu_forward<ACT, bf16>::template in<8> x = {gate, up};

        if (c >= op.F)
            return;
        if (pre) {
            pack_store(pre + r * 2 * op.F + c, gate);
            pack_store(pre + r * 2 * op.F + op.F + c, up);
        }
        op.store(x, r, c);
    }
};

template <enum hd_activation ACT>
struct glu_epilogue_backward {
    static constexpr bool BACKWARD = true;
    static constexpr int WIDTH = 2 * GLU_COLUMNS;
    struct glu_backward<ACT, bf16> op;

    __device__ __forceinline__ void one(const pack<bf16, 8> &dh, int64_t r, int64_t c) const
    {
        typename glu_backward<ACT, bf16>::template in<8> x;

        if (c >= op.F)
            return;
        x.dout = dh;
        x.gate = pack_load<8>(op.inp + r * 2 * op.F + c);
        x.up = pack_load<8>(op.inp + r * 2 * op.F + op.F + c);
        op.store(x, r, c);
    }
    __device__ __forceinline__ void finish(const pack<bf16, 8> &left, const pack<bf16, 8> &right,
                                           int64_t r, int64_t c) const
    {
        one(left, r, c);
        one(right, r, c + GLU_COLUMNS);
    }
};

template <typename Epilogue>
static __device__ __forceinline__ void
glu_finish(const Epilogue &epilogue, const struct glu_product *p, struct glu_place at,
           const float (&left)[GLU_NT][4], const float (&right)[GLU_NT][4])
{
    const int lane = threadIdx.x % GLU_WARP;
    const int row = at.row + threadIdx.x / GLU_WARP * 16 + lane / 4;

#pragma unroll
    for (int n = 0; n < GLU_NT; n += 4)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const pack<bf16, 8> x = glu_columns(left, n, half), y = glu_columns(right, n, half);

            if (row + 8 * half < p->M)
                epilogue.finish(x, y, row + 8 * half, at.column + 8 * (n + lane % 4));
        }
}

template <typename Epilogue>
static __device__ __forceinline__ void
glu_consume(const Epilogue &epilogue, const struct glu_product *p, struct glu_barriers *barriers,
            const bf16 *stages)
{
    const bool is_first = threadIdx.x % GLU_WARP == 0;
    const int rows = threadIdx.x / WARP_GROUP * 64 * GLU_DEPTH;
    float left[GLU_NT][4], right[GLU_NT][4];
    int count = 0;

    for (int tile = blockIdx.x; tile < p->row_tiles * p->column_tiles; tile += gridDim.x) {
        wgmma_pin(left);
        wgmma_pin(right);
        for (int step = 0; step < p->steps; step++, count++) {
            const int stage = count % GLU_STAGES;
            const bf16 *const at = stages + stage * GLU_STAGE;

            mbarrier_wait(barriers->full + stage, (unsigned)(count / GLU_STAGES) % 2);
            glu_multiply<Epilogue::BACKWARD>(left, right, at + rows, at + GLU_PART, step > 0);
            wgmma_wait<1>(); /* the stage before this one was read */
            if (is_first && step > 0)
                mbarrier_arrive(barriers->empty + (count - 1) % GLU_STAGES);
        }
        wgmma_wait<0>();
        wgmma_pin(left);
        wgmma_pin(right);
        if (is_first)
            mbarrier_arrive(barriers->empty + (count - 1) % GLU_STAGES);
        glu_finish(epilogue, p, glu_place_of(p, tile, Epilogue::WIDTH), left, right);
    }
}

template <typename Epilogue>
static __global__ void __launch_bounds__(GLU_THREADS, 1)
    gemm_glu_kernel(const __grid_constant__ struct glu_product p, Epilogue epilogue)
{
    HD_SHARED(struct glu_barriers, barriers, 1);
    HD_SHARED_DYNAMIC(bf16, shared);
    bf16 *const stages = hopper_tiles(shared);

    if (threadIdx.x == 0) {
        for (int i = 0; i < GLU_STAGES; i++) {
            mbarrier_init(barriers->full + i, 1);
            mbarrier_init(barriers->empty + i, GLU_CONSUMER_WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x / WARP_GROUP == GLU_CONSUMERS) {
        registers_give<GLU_PRODUCER_REGISTERS>();
        if (threadIdx.x == GLU_CONSUMERS * WARP_GROUP)
            glu_produce<Epilogue::BACKWARD>(&p, barriers, stages, Epilogue::WIDTH);
    } else {
        registers_take<GLU_CONSUMER_REGISTERS>();
        glu_consume(epilogue, &p, barriers, stages);
    }
}

/* ---- Host ---- */

static enum hd_status glu_map(CUtensorMap *ret_map, const void *base, int64_t rows, int64_t columns,
                              int64_t ld, int box_rows)
{
    struct tensor_map_shape shape = {};

    shape.rank = 2;
    shape.box_rows = box_rows;
    shape.sizes[0] = columns;
    shape.sizes[1] = rows;
    shape.strides[0] = ld;
    return tensor_map_encode(ret_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, base, &shape);
}

template <typename Epilogue>
static enum hd_status glu_launch(struct hd_cuda_stream *s, const struct hd_gemm_args *a,
                                 const Epilogue &epilogue)
{
    const int64_t row_tiles = hd_divide_up(a->M, GLU_ROWS);
    const int64_t column_tiles = hd_divide_up(epilogue.op.F, Epilogue::WIDTH);
    struct glu_product p = {};
    enum hd_status st = glu_map(&p.a, a->a, a->M, a->K, a->lda, GLU_ROWS);

    if (!st)
        st = Epilogue::BACKWARD ? glu_map(&p.b, a->b, a->K, a->N, a->ldb, GLU_DEPTH)
                                : glu_map(&p.b, a->b, a->N, a->K, a->ldb, GLU_COLUMNS);
    if (st)
        return st;
    p.M = (int)a->M;
    p.F = (int)epilogue.op.F;
    p.steps = (int)hd_divide_up(a->K, GLU_DEPTH);
    p.row_tiles = (int)row_tiles;
    p.column_tiles = (int)column_tiles;
    p.second = Epilogue::BACKWARD ? (int)GLU_COLUMNS : p.F;
    return HD_LAUNCH(s, gemm_glu_kernel<Epilogue>, dim3(grid_of(s, row_tiles * column_tiles, 1)),
                     dim3(GLU_THREADS), GLU_STAGES * GLU_STAGE * sizeof(bf16) + HOPPER_TILES_SLACK,
                     p, epilogue);
}

template <enum hd_activation ACT>
static enum hd_status glu_launch_of(struct hd_cuda_stream *s, const struct hd_gemm_args *a)
{
    struct glu_epilogue_forward<ACT> forward = {
    };
    struct glu_epilogue_backward<ACT> backward = {
    };

    if (a->epilogue == HD_EPILOGUE_GLU) {
        forward.op.out = (bf16 *)a->c;
        forward.op.R = a->M;
        forward.op.F = a->N / 2;
        forward.pre = (bf16 *)a->pre;
        return glu_launch(s, a, forward);
    }
    backward.op.dinp = (bf16 *)a->c;
    backward.op.inp = (const bf16 *)a->gelu_inp;
    backward.op.R = a->M;
    backward.op.F = a->N;
    return glu_launch(s, a, backward);
}

extern "C" enum hd_status hd_cuda_gemm_glu(struct hd_cuda_stream *s, const struct hd_gemm_args *a)
{
    if (!pack_fits_wide<bf16>(0, a->a, a->b, a->c, a->pre, a->gelu_inp))
        return hd_err(HD_INVALID, "gemm: the matrices of a product with a gated activation begin "
                                  "at multiples of 16 bytes");
    return a->act == HD_ACT_SILU ? glu_launch_of<HD_ACT_SILU>(s, a)
                                 : glu_launch_of<HD_ACT_GELU_TANH>(s, a);
}
