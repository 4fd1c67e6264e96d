/* norm: how the rows of a norm are distributed over threads.
 *
 * Each row is read once: a thread keeps its part, up to four packs of 16 bytes per tensor, in
 * registers until the sums over the row are known. The shape depends on the bytes of a row:
 * - NARROW, up to 2 KB: a row is shared by a power of two of lanes, a warp at most; a block of 128
 *   threads has 4 rows or more, and no barrier.
 * - WIDE, up to 32 KB: a block of up to 1024 threads per row, two packs per thread; backward up
 *   to 24 KB and 768 threads.
 * - LONG: a block per row that reads the row again for each sum and for the result, mostly from L2.
 * The grid fills the device once; blocks process rows in turn. Per multiprocessor, forward has 512
 * or 1024 threads with 2 to 8 loads of 16 bytes in flight, backward 384 or 768 with 4 to 12: at
 * least 32 KB, while 3.3 TB/s at 700 ns latency need some 18 KB. Weights come from L1. Rows that
 * are unaligned, or not whole packs, are read by elements.
 *
 * Used by: norm_forward.cu, norm_backward.cu.   Uses: block, norm_weight, pack.
 */
#ifndef HD_KERNELS_CUDA_NORM_CUH
#define HD_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/norm_weight.cuh"
#include "kernels/cuda/pack.cuh"

enum norm_shape { NARROW, WIDE, LONG };
constexpr int NARROW_THREADS = 128, NARROW_PACKS = 4, WIDE_PACKS = 2;
constexpr int LONG_THREADS = 512, LONG_RESIDENT = 2;

template <norm_shape SHAPE>
constexpr int packs_of = SHAPE == NARROW ? NARROW_PACKS : WIDE_PACKS;

/* A thread's row among the rows that the block processes at a time, and its lane in the row. */
struct norm_place {
    int rows, row, width, lane;
};

template <enum norm_shape SHAPE>
static __device__ __forceinline__ struct norm_place place_of(int lanes)
{
    if (SHAPE == NARROW)
        return {NARROW_THREADS / lanes, (int)threadIdx.x / lanes, lanes, (int)threadIdx.x % lanes};
    return {1, 0, (int)blockDim.x, (int)threadIdx.x};
}

template <enum norm_shape SHAPE>
static __device__ __forceinline__ float row_sum(float x, const struct norm_place &p, float *shared)
{
    return SHAPE == NARROW ? lanes_add(x, p.width) : block_add(x, shared);
}

/* Returns the shape for rows of C elements in packs of V, and the number of threads that share a
 * row. */
template <int V>
static enum norm_shape norm_shape_of(int64_t C, int wide_threads, int *ret_lanes)
{
    *ret_lanes = 1;
    if (C > (int64_t)wide_threads * WIDE_PACKS * V)
        return LONG;
    if (C > 32 * NARROW_PACKS * V) {
        *ret_lanes = (int)divide_up(C, 32 * WIDE_PACKS * V) * 32;
        return WIDE;
    }
    while (*ret_lanes * NARROW_PACKS * V < C)
        *ret_lanes *= 2;
    return NARROW;
}

#endif
