/* block: sums, maxima and prefix sums over all threads of a block, in an order that depends only on
 * the number of threads.
 *
 * Lanes of a warp are reduced by a butterfly of shuffles; then every thread adds the results of the
 * warps in ascending order. So all threads get the same bits, in every launch.
 *
 * Used by: cross_entropy, delta, embedding, fp8, gated_norm, head_norm, moe_route, moe_rows,
 * newton_schulz, norm, step.   Uses: device.
 * Threads: all threads of a block must call; `shared` has BLOCK_WARPS values and may be reused by
 * the next call at once.
 */
#ifndef HD_KERNELS_CUDA_BLOCK_CUH
#define HD_KERNELS_CUDA_BLOCK_CUH

#include "kernels/cuda/device.cuh"

enum { BLOCK_WARPS = 32 };

template <typename T>
static __device__ __forceinline__ T warp_add(T x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

/* Returns the sum of x over `lanes` neighbouring lanes of a warp; lanes is a power of two. */
static __device__ __forceinline__ float lanes_add(float x, int lanes)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

template <typename T>
static __device__ __forceinline__ T block_add(T x, T *shared)
{
    const int warps = (int)blockDim.x / 32;

    x = warp_add(x);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int w = 1; w < warps; w++)
        x += shared[w];
    __syncthreads();
    return x;
}

/* Returns the largest x of all threads of the block. */
static __device__ __forceinline__ float block_max(float x, float *shared)
{
    const int warps = (int)blockDim.x / 32;

    x = warp_max(x);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int w = 1; w < warps; w++)
        x = fmaxf(x, shared[w]);
    __syncthreads();
    return x;
}

/* Returns the sum of x over the block's threads before this one. Sets *ret_all to the sum over all
 * threads. */
static __device__ __forceinline__ int64_t block_scan(int64_t x, int64_t *shared, int64_t *ret_all)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int warps = (int)blockDim.x / 32;
    int64_t upto = x, before = 0, all = 0;

#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int64_t left = __shfl_up_sync(0xffffffffu, upto, (unsigned)distance);

        upto += lane >= distance ? left : 0;
    }
    if (lane == 31)
        shared[warp] = upto;
    __syncthreads();
    for (int w = 0; w < warps; w++) {
        before += w < warp ? shared[w] : 0;
        all += shared[w];
    }
    __syncthreads();
    *ret_all = all;
    return before + upto - x;
}

#endif
