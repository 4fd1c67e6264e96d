/* lanes: sums over the threads that share a row.
 *
 * Butterflies: every lane adds the same pairs, so all of them get the same bits, and these depend
 * on the shape alone.
 *
 * Used by: head_norm, norm.   Uses: device.   Threads: every lane of a warp, or thread of a block,
 * calls.
 */
#ifndef HD_KERNELS_CUDA_LANES_CUH
#define HD_KERNELS_CUDA_LANES_CUH

#include "kernels/cuda/device.cuh"

enum { LANES_WARPS_MAX = 32 };

/* Over `lanes` neighbours, a power of two, 32 at most. */
static __device__ __forceinline__ float lanes_sum(float x, int lanes)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

/* Over the block; shared[LANES_WARPS_MAX] may be used again at once. */
static __device__ __forceinline__ float block_sum(float x, float *shared)
{
    const int warps = (int)blockDim.x / 32;

    x = lanes_sum(x, 32);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < warps; w++)
        x += shared[w];
    __syncthreads();
    return x;
}

#endif
