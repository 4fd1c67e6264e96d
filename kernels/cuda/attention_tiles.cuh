/* attention_tiles: tiles of bf16 and fp16 in shared memory, and their products on tensor cores.
 *
 * A tile is rows of D elements in chunks of 16 bytes, whose order within a row depends on the row:
 * the eight rows that one ldmatrix phase reads, and the eight chunks that one phase of a copy
 * writes, then lie in different banks. Two kinds of product are all that attention needs, forward
 * and backward:
 *   multiply_rows:     acc[m, n] += a_tile[m, :] . b_tile[n, :]         (scores, dout v^T)
 *   multiply_weights:  acc[m, :] += sum_n weights[m, n] b_tile[n, :]    (sums of values, gradients)
 * The weights of the second are what the first left in registers: the fragment of a sum, rounded,
 * is the fragment of a left factor, so they never pass through shared memory.
 *
 * A warp owns 16 * MT rows of the left factor. A fragment of the right one that is loaded once
 * serves MT products. The loop over the channels of multiply_rows is unrolled by as much as leaves
 * no sum spilled (128 of d 128 and 64 scores leave 63 registers for the rest): the assembler then
 * loads the fragments of one step under the products of another.
 *
 * Used by: attention_forward_tiled.cuh, attention_backward_tiled.cuh.   Uses: ptx.
 */
#ifndef HD_KERNELS_CUDA_ATTENTION_TILES_CUH
#define HD_KERNELS_CUDA_ATTENTION_TILES_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ptx.cuh"

/* Chunks are told apart by bits of the address that the row, whose length is a multiple of them,
 * and the tile's bound of 128 bytes leave alone: chunk `step` + `chunk` lies at that of chunk
 * `chunk` with the bits of `step` turned over. So an address is reckoned once, and what follows
 * costs an exclusive or or, for constants beyond those bits, nothing. A row of 96 elements is a
 * line of 128 bytes and a half: rows two apart begin in the same half, hence the other rule. */
template <int D>
static __device__ __forceinline__ unsigned tile_at(unsigned row, unsigned chunk)
{
    return row * D + (chunk ^ (D % 64 ? row / 2 % 4 : row % 8)) * 8;
}

/* How far behind element tile_at(row, chunk) chunk `step` more stands: its low bits are turned
 * over, the others added. */
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

/* Starts the copy of ROWS rows of distance ld; those from `count` on are zeros. */
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

/* Where element i of this thread's part of acc[m][n] stands: a thread has two neighbouring columns
 * of two rows, 8 apart, of every 16 x 8. */
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

/* Two neighbours at element `at`, which is even; rows start on 16 bytes. */
template <typename T>
static __device__ __forceinline__ void store_pair(void *to, int64_t at, float low, float high)
{
    *(uint32_t *)((T *)to + at) = pack_two<T>(low, high);
}

#endif
