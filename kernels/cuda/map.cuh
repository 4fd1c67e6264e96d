/* map: elementwise kernels.
 *
 * An operation is a struct that is passed by value. It has
 *     UNROLL                                number of packs per thread in flight
 *     template <int V> struct in            values read for V elements
 *     load(in<V> &, r, c), store(in<V>, r, c)   for V elements of row r from column c on
 *     rows()                                rows in use; called by whole warps
 * A flat tensor is one row: r is 0, and rows() returns the number of elements in use.
 *
 * All blocks are on the device at once (three of 256 threads per multiprocessor, which allows 85
 * registers per thread) and step through the tensor together: 768 threads with UNROLL packs of 16
 * bytes of each input in flight, 24 to 96 KB per multiprocessor, while 3.3 TB/s at 700 ns latency
 * need some 18 KB. A thread keeps its column, so row and column cost one division.
 *
 * Used by: activation, bias, cache, dropout, element, embedding, glu.   Uses: device, pack.
 */
#ifndef HD_KERNELS_CUDA_MAP_CUH
#define HD_KERNELS_CUDA_MAP_CUH

#include "kernels/cuda/pack.cuh"

enum { MAP_THREADS = 256, MAP_RESIDENT = 3 };

template <typename Op, int V>
static __global__ void __launch_bounds__(MAP_THREADS, MAP_RESIDENT) map_rows(Op op, int64_t N)
{
    const int64_t packs = N / V, thread = (int64_t)blockIdx.x * MAP_THREADS + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * MAP_THREADS / packs; /* rows per step, >= 1 */
    const int64_t R = op.rows();
    const int64_t row = thread / packs, c = thread % packs * V;

    if (row >= step)
        return;
    for (int64_t r = row; r < R; r += Op::UNROLL * step) {
        typename Op::template in<V> x[Op::UNROLL];

#pragma unroll
        for (int u = 0; u < Op::UNROLL; u++)
            if (r + u * step < R)
                op.load(x[u], r + u * step, c);
#pragma unroll
        for (int u = 0; u < Op::UNROLL; u++)
            if (r + u * step < R)
                op.store(x[u], r + u * step, c);
    }
}

template <typename Op, int V>
static __global__ void __launch_bounds__(MAP_THREADS, MAP_RESIDENT) map_flat(Op op)
{
    const int64_t thread = (int64_t)blockIdx.x * MAP_THREADS + threadIdx.x;
    const int64_t threads = (int64_t)gridDim.x * MAP_THREADS;
    const int64_t N = op.rows(), packs = N / V;

    for (int64_t i = thread; i < packs; i += Op::UNROLL * threads) {
        typename Op::template in<V> x[Op::UNROLL];

#pragma unroll
        for (int u = 0; u < Op::UNROLL; u++)
            if (i + u * threads < packs)
                op.load(x[u], 0, (i + u * threads) * V);
#pragma unroll
        for (int u = 0; u < Op::UNROLL; u++)
            if (i + u * threads < packs)
                op.store(x[u], 0, (i + u * threads) * V);
    }
    if (thread < N % V) { /* remaining elements of the row, less than a pack */
        typename Op::template in<1> x;

        op.load(x, 0, packs * V + thread);
        op.store(x, 0, packs * V + thread);
    }
}

/* Launches an operation on R rows of N columns; V divides N and all distances between rows. */
template <int V, typename Op>
static enum hd_status map_launch_rows(struct hd_cuda_stream *s, const Op &op, int64_t R, int64_t N)
{
    const int64_t packs = N / V;
    int64_t blocks;

    if (R == 0 || N == 0)
        return HD_OK;
    blocks = grid_of(s, divide_up(R * packs, MAP_THREADS * Op::UNROLL), MAP_RESIDENT);
    if (blocks < divide_up(packs, MAP_THREADS))
        blocks = divide_up(packs, MAP_THREADS);
    return HD_LAUNCH(s, (map_rows<Op, V>), dim3((unsigned)blocks), dim3(MAP_THREADS), 0, op, N);
}

template <int V, typename Op>
static enum hd_status map_launch_flat(struct hd_cuda_stream *s, const Op &op, int64_t N)
{
    if (N == 0)
        return HD_OK;
    return HD_LAUNCH(s, (map_flat<Op, V>),
                     dim3(grid_of(s, divide_up(N, MAP_THREADS * Op::UNROLL * V), MAP_RESIDENT)),
                     dim3(MAP_THREADS), 0, op);
}

/* Returns the number of rows in use: the sum of `counts`, R at most. All lanes of a warp must call.
 */
static __device__ __forceinline__ int64_t rows_in_use(const int32_t *counts, int64_t groups,
                                                      int64_t R)
{
    long long rows = 0;

    if (!counts)
        return R;
    for (int64_t i = threadIdx.x % 32; i < groups; i += 32)
        rows += counts[i];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        rows += __shfl_xor_sync(0xffffffffu, rows, distance);
    return rows < R ? rows : R;
}

#endif
