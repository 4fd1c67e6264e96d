/* vec: loads and stores N elements at a time as fp32, in accesses of 16 bytes.
 *
 *     constexpr int N = vec_width<T>();                  // 4 for fp32, 8 for bf16 and f16
 *     if (is_vec(out, C) && is_vec(inp, C)) {            // rows of C elements
 *         float x[N];
 *
 *         load_vec(x, inp + i);
 *         ...
 *         store_vec(out + i, x);
 *     }
 *
 * N may be any multiple of vec_width<T>(): then several loads are in flight. These are plain loads,
 * so an input may alias an output where ops.h allows it. Use __ldg only for memory that no thread
 * of the launch writes; the emulator checks that.
 *
 * Used by: the files *.cu of kernels/cuda.   Uses: device.cuh.
 * Threads: device code; is_vec also in launchers.
 */
#ifndef HD_KERNELS_CUDA_VEC_CUH
#define HD_KERNELS_CUDA_VEC_CUH

#include "kernels/cuda/device.cuh"

/* Returns the number of elements of type T in 16 bytes. */
template <typename T>
__host__ __device__ constexpr int vec_width()
{
    return 16 / static_cast<int>(sizeof(T));
}

/* Returns whether all rows of `ld` elements from `base` are aligned to 16 bytes; true if base is
 * NULL. */
template <typename T>
__host__ __device__ __forceinline__ bool is_vec(const T *base, int64_t ld)
{
    return reinterpret_cast<uintptr_t>(base) % 16 == 0 && ld % vec_width<T>() == 0;
}

#ifdef HD_CUDASIM
#define HD_VEC_HERE           , HD_CUDASIM_HERE
#define HD_VEC_CHECK(address) hd_cudasim_check_aligned(address, 16, HD_CUDASIM_SITE)
#else
#define HD_VEC_HERE
#define HD_VEC_CHECK(address) (void)0
#endif

/* Loads out[i] = from[i]; `from` is aligned to 16 bytes. */
template <int N>
__device__ __forceinline__ void load_vec(float (&out)[N], const float *from HD_VEC_HERE)
{
    static_assert(N % vec_width<float>() == 0, "a multiple of 16 bytes");
    HD_VEC_CHECK(from);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 four = *reinterpret_cast<const float4 *>(from + i);

        out[i] = four.x;
        out[i + 1] = four.y;
        out[i + 2] = four.z;
        out[i + 3] = four.w;
    }
}

template <int N, typename T>
__device__ __forceinline__ void load_vec(float (&out)[N], const T *from HD_VEC_HERE)
{
    static_assert(sizeof(T) == 2 && N % vec_width<T>() == 0, "a multiple of 16 bytes");
    HD_VEC_CHECK(from);
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        const uint4 eight = *reinterpret_cast<const uint4 *>(from + i);
        const T *one = reinterpret_cast<const T *>(&eight);

#pragma unroll
        for (int k = 0; k < 8; k++)
            out[i + k] = to_float(one[k]);
    }
}

/* Stores to[i] = from[i], rounded to nearest; `to` is aligned to 16 bytes. */
template <int N>
__device__ __forceinline__ void store_vec(float *to, const float (&from)[N] HD_VEC_HERE)
{
    static_assert(N % vec_width<float>() == 0, "a multiple of 16 bytes");
    HD_VEC_CHECK(to);
#pragma unroll
    for (int i = 0; i < N; i += 4)
        *reinterpret_cast<float4 *>(to + i) =
            make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
}

template <int N, typename T>
__device__ __forceinline__ void store_vec(T *to, const float (&from)[N] HD_VEC_HERE)
{
    static_assert(sizeof(T) == 2 && N % vec_width<T>() == 0, "a multiple of 16 bytes");
    HD_VEC_CHECK(to);
#pragma unroll
    for (int i = 0; i < N; i += 8)
        *reinterpret_cast<uint4 *>(to + i) = make_uint4(
            pack_two<T>(from[i], from[i + 1]), pack_two<T>(from[i + 2], from[i + 3]),
            pack_two<T>(from[i + 4], from[i + 5]), pack_two<T>(from[i + 6], from[i + 7]));
}

#endif
