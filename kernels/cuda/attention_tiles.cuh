/* attention_tiles: tiles of bf16 and fp16 in shared memory, and their products on tensor cores.
 *
 * A tile is rows of D elements in chunks of 16 bytes. The order of chunks depends on the row
 * (swizzling), so that the eight rows of an ldmatrix phase, and the eight chunks of a copy phase,
 * are in different banks. Attention needs two kinds of product, forward and backward:
 *   multiply_rows:     acc[m, n] += a_tile[m, :] . b_tile[n, :]         (scores, dout v^T)
 *   multiply_weights:  acc[m, :] += sum_n weights[m, n] b_tile[n, :]    (sums of values, gradients)
 * The weights of the second product are results of the first in registers: the fragment of a sum,
 * rounded, is also the fragment of a left factor, so weights do not pass through shared memory.
 *
 * A warp computes 16 * MT rows of the left factor; each loaded fragment of the right factor is used
 * for MT products. The channel loop of multiply_rows is unrolled as far as no sum is spilled (with
 * D 128, 128 sums and 64 scores leave 63 registers): the assembler then overlaps the loads of one
 * step with the products of another.
 *
 * Used by: attention_forward_tiled.cuh, attention_backward_tiled.cuh.   Uses: ptx.
 */
#ifndef HD_KERNELS_CUDA_ATTENTION_TILES_CUH
#define HD_KERNELS_CUDA_ATTENTION_TILES_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ptx.cuh"

/* Returns the swizzled position of a chunk of 16 bytes in a tile. Tiles are aligned to 128 bytes
 * and rows are a multiple of 128 bytes (except D 96), so the low bits of an address select the
 * chunk, and chunk `step` + `chunk` is at the address of `chunk` XOR the low bits of `step`. So an
 * address is computed once; later ones cost one XOR, or nothing if `step` is a constant above those
 * bits. A row of 96 elements has 192 bytes: every second row begins in the middle of 128 bytes,
 * hence the different rule. */
template <int D>
static __device__ __forceinline__ unsigned tile_at(unsigned row, unsigned chunk)
{
    return row * D + (chunk ^ (D % 64 ? row / 2 % 4 : row % 8)) * 8;
}

/* Returns the element position of chunk `step` + `chunk` in a tile, given that of `chunk`: low bits
 * by XOR, others added. */
template <int D>
static __device__ __forceinline__ unsigned tile_step(unsigned at, unsigned step)
{
    enum : unsigned { LOW = D % 64 ? 3 : 7 };

    return (at ^ (step & LOW) * 8) + (step & ~LOW) * 8;
}
template <int D>
static __device__ __forceinline__ shared_at tile_step_of(shared_at at, unsigned step)
{
    enum : unsigned { LOW = D % 64 ? 3 : 7 };

    return (at ^ (step & LOW) * 16) + (step & ~LOW) * 16;
}

/* Starts an asynchronous copy of ROWS rows, ld elements apart, to a tile; rows from `count` on
 * become zeros. */
template <typename T, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void load_tile(T *tile, const T *rows, int64_t ld, int count)
{
    enum : unsigned { LANES = D % 64 ? 4 : 8, STEP = THREADS / LANES };
    const unsigned row = threadIdx.x / LANES, chunk = threadIdx.x % LANES;
    const T *from = rows + row * ld + chunk * 8;

    static_assert(ROWS % STEP == 0 && STEP % 8 == 0, "every thread copies as much");
#pragma unroll
    for (unsigned i = 0; i < ROWS; i += STEP) {
#pragma unroll
        for (unsigned step = 0; step < D / 8; step += LANES)
            cp_async_16(tile + i * D + tile_step<D>(tile_at<D>(row, chunk), step), from + step * 8,
                        (int)(row + i) < count);
        from += STEP * ld;
    }
}

template <typename T, int D, int MT, int NT, int UNROLL>
static __device__ __forceinline__ void multiply_rows(float acc[MT][NT][4], const T *a_tile,
                                                     const T *b_tile)
{
    const unsigned thread = hd_remade(threadIdx.x), lane = thread % ATTENTION_WARP;
    const unsigned a_row = thread / ATTENTION_WARP * 16 * MT + lane % 16;
    const unsigned b_row = lane % 8 + lane / 16 * 8;

    const shared_at a_at = hd_shared_address(a_tile + tile_at<D>(a_row, lane / 16));
    const shared_at b_at = hd_shared_address(b_tile + tile_at<D>(b_row, lane / 8 % 2));

    static_assert(NT % 2 == 0, "right fragments come in pairs");
#pragma unroll UNROLL
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[MT][4];

#pragma unroll
        for (int m = 0; m < MT; m++)
            ldmatrix_x4_at(a[m], tile_step_of<D>(a_at, 2 * k) + 32 * m * D);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];

            ldmatrix_x4_at(b, tile_step_of<D>(b_at, 2 * k) + 16 * n * D);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_m16n8k16<T>(acc[m][n], a[m], b);
                mma_m16n8k16<T>(acc[m][n + 1], a[m], b + 2);
            }
        }
    }
}

template <typename T, int D, int MT, int NT>
static __device__ __forceinline__ void
multiply_weights(float acc[MT][D / 8][4], const float weights[MT][NT][4], const T *b_tile)
{
    const unsigned lane = hd_remade(threadIdx.x) % ATTENTION_WARP;
    const shared_at b_at = hd_shared_address(b_tile + tile_at<D>(lane % 16, lane / 16));

#pragma unroll
    for (int k = 0; k < NT / 2; k++) {
        uint32_t a[MT][4];

#pragma unroll
        for (int m = 0; m < MT; m++) {
            const float *low = weights[m][2 * k], *high = weights[m][2 * k + 1];

            a[m][0] = pack_two<T>(low[0], low[1]);
            a[m][1] = pack_two<T>(low[2], low[3]);
            a[m][2] = pack_two<T>(high[0], high[1]);
            a[m][3] = pack_two<T>(high[2], high[3]);
        }
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            uint32_t b[4];

            ldmatrix_x4_trans_at(b, tile_step_of<D>(b_at, d) + 32 * k * D);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_m16n8k16<T>(acc[m][d], a[m], b);
                mma_m16n8k16<T>(acc[m][d + 1], a[m], b + 2);
            }
        }
    }
}

/* A cap on scores: cap tanh(scale x / cap), times log2 e, is top - 2 top / (1 + 2^(slope x)). Its
 * error is 2^-22 of `top`. */
struct attention_cap {
    float top, slope;
};

static __device__ __forceinline__ struct attention_cap attention_cap_of(const struct attention *a)
{
    struct attention_cap cap;

    cap.top = a->cap * ATTENTION_LOG2E;
    cap.slope = 2 * ATTENTION_LOG2E * a->scale / a->cap;
    return cap;
}

static __device__ __forceinline__ float attention_capped(const struct attention_cap &cap, float x)
{
    return cap.top - __fdividef(2 * cap.top, 1 + exp2_approx(cap.slope * x));
}

/* Caps a tile of scores. */
template <int MT, int NT>
static __device__ __forceinline__ void attention_cap_tile(const struct attention *a,
                                                          float score[MT][NT][4])
{
    const struct attention_cap cap = attention_cap_of(a);

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                score[m][n][i] = attention_capped(cap, score[m][n][i]);
}

template <int MT, int NT>
static __device__ __forceinline__ void clear(float (&acc)[MT][NT][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[m][n][i] = 0;
}

/* Returns the row (the next function: the column) of an element of acc[m][n]: a thread has two
 * neighbouring columns of two rows, 8 rows apart, of every 16 x 8 fragment. */
template <int MT>
static __device__ __forceinline__ int fragment_row(int m, int half)
{
    const int lane = (int)threadIdx.x % ATTENTION_WARP;

    return ((int)threadIdx.x / ATTENTION_WARP * MT + m) * 16 + half * 8 + lane / 4;
}
static __device__ __forceinline__ int fragment_column(int n)
{
    return n * 8 + (int)threadIdx.x % 4 * 2;
}

/* Stores two neighbouring elements at index `at`, which is even; rows are aligned to 16 bytes. */
template <typename T>
static __device__ __forceinline__ void store_pair(void *to, int64_t at, float low, float high)
{
    *(uint32_t *)((T *)to + at) = pack_two<T>(low, high);
}

#endif
