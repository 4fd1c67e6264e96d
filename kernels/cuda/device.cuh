/* device: every kernel file includes this first. It makes one source compile as CUDA with nvcc, and
 * as C++ with the host compiler for the emulator of tests/cudasim (HD_CUDASIM).
 *
 *     template <typename T>
 *     __global__ void scale_kernel(T *out, const T *inp, float factor, int64_t n)
 *     {
 *         HD_SHARED(float, part, 32);                              // float part[32], shared
 *         HD_SHARED_DYNAMIC(float, rows);                          // float *rows, shared
 *         const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
 *
 *         if (i < n)
 *             out[i] = from_float<T>(to_float(inp[i]) * factor);
 *     }
 *
 *     extern "C" enum hd_status hd_cuda_scale(struct hd_cuda_stream *s,
 *                                             const struct hd_scale_args *a)
 *     {
 *         if (a->n == 0)
 *             return HD_OK;                                        // a grid may not be empty
 *         HD_CUDA_FLOATS(a->dtype, T,
 *                        return HD_LAUNCH(s, scale_kernel<T>, dim3((a->n + 255) / 256),
 *                                         dim3(256), 0, (T *)a->out, (const T *)a->inp,
 *                                         a->factor, a->n));
 *     }
 *
 * Do not use <<<>>>, __shared__ or asm; tests/cudasim/README.md lists what the emulator supports.
 *
 * Used by: the files *.cu of kernels/cuda.   Uses: cuda.h, the toolkit or the emulator.
 * Threads: HD_LAUNCH enqueues on the stream of the calling thread's backend.
 */
#ifndef HD_KERNELS_CUDA_DEVICE_CUH
#define HD_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifdef HD_CUDASIM
#include <cudasim_device.h>
#endif

#include "kernels/cuda/cuda.h"

using bf16 = __nv_bfloat16;
using f16 = __half;

/* ---- Shared memory ---- */

/* HD_SHARED(type, name, count): a shared array type name[count], aligned to 128 bytes; count is a
 * constant. HD_SHARED_DYNAMIC(type, name): type *name, the dynamic shared memory of the launch;
 * every use in a kernel refers to the same bytes. */
#ifdef HD_CUDASIM
#define HD_SHARED(type, name, count)                                                \
    static struct hd_cudasim_shared_site name##_site = {#name, __FILE__, __LINE__}; \
    type(&name)[count] =                                                            \
        *reinterpret_cast<type(*)[count]>(hd_cudasim_shared(&name##_site, sizeof(type[count])))
#define HD_SHARED_DYNAMIC(type, name) type *name = static_cast<type *>(hd_cudasim_shared_dynamic())
#else
#define HD_SHARED(type, name, count) __shared__ __align__(128) type name[count]
#define HD_SHARED_DYNAMIC(type, name)                           \
    extern __shared__ __align__(128) unsigned char hd_shared[]; \
    type *name = reinterpret_cast<type *>(hd_shared)
#endif

/* ---- Launching ---- */

/* Macro HD_LAUNCH(stream, kernel, grid, block, shared_bytes, args...), of type enum hd_status:
 * enqueues kernel(args...) with grid x block threads on the stream; arguments convert as in a call.
 * Write a kernel whose name has a comma in parentheses. Calls hd_cuda_widen if needed. A grid
 * without blocks is an error. */
#define HD_LAUNCH(stream, kernel, grid, block, shared_bytes, ...) \
    hd_cuda_launch((stream), #kernel, kernel, (grid), (block), (shared_bytes), ##__VA_ARGS__)

template <typename T>
struct hd_same {
    using type = T;
};

#ifdef HD_CUDASIM
template <typename Call>
static void hd_cuda_call(void *call)
{
    (*static_cast<Call *>(call))();
}
template <typename Call>
static void hd_cuda_forget(void *call)
{
    delete static_cast<Call *>(call);
}
#endif

template <typename... P>
static enum hd_status hd_cuda_launch(struct hd_cuda_stream *stream, const char *name,
                                     void (*kernel)(P...), dim3 grid, dim3 block,
                                     size_t shared_bytes, typename hd_same<P>::type... args)
{
    cudaError_t error = cudaSuccess;

    if (shared_bytes > HD_CUDA_SHARED_ANYWAY)
        error = hd_cuda_widen(stream->cuda, reinterpret_cast<const void *>(kernel));
#ifdef HD_CUDASIM
    if (error == cudaSuccess) {
        auto call = [=] { kernel(args...); };

        error = hd_cudasim_launch(stream->handle, reinterpret_cast<const void *>(kernel), name,
                                  grid, block, shared_bytes, hd_cuda_call<decltype(call)>,
                                  hd_cuda_forget<decltype(call)>, new decltype(call)(call));
    }
#else
    if (error == cudaSuccess) {
        void *parameters[] = {const_cast<void *>(reinterpret_cast<const void *>(&args))...,
                              nullptr};

        error = cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, parameters,
                                 shared_bytes, stream->handle);
    }
#endif
    if (error == cudaSuccess)
        return HD_OK;
    /* clears the error, which is reported here and must not be reported again */
    (void)cudaGetLastError();
    return hd_err(HD_INTERNAL,
                  "cannot launch %s on (%u,%u,%u) blocks of (%u,%u,%u) threads with %zu bytes of "
                  "shared memory: %s",
                  name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
                  cudaGetErrorString(error));
}

/* Macro HD_CUDA_FLOATS(dtype, T, statement): runs the statement with T = float, bf16 or f16
 * depending on dtype. For use in functions that return a status: returns HD_UNSUPPORTED for any
 * other dtype. */
#define HD_CUDA_FLOATS(dtype, T, ...)                                                        \
    switch (dtype) {                                                                         \
    case HD_F32: {                                                                           \
        using T = float;                                                                     \
        __VA_ARGS__;                                                                         \
        break;                                                                               \
    }                                                                                        \
    case HD_BF16: {                                                                          \
        using T = bf16;                                                                      \
        __VA_ARGS__;                                                                         \
        break;                                                                               \
    }                                                                                        \
    case HD_F16: {                                                                           \
        using T = f16;                                                                       \
        __VA_ARGS__;                                                                         \
        break;                                                                               \
    }                                                                                        \
    default:                                                                                 \
        return hd_err(HD_UNSUPPORTED, "%s: the cuda backend has no kernel for %s", __func__, \
                      hd_dtype_name(dtype));                                                 \
    }

/* ---- Conversions: to fp32 (exact), and from fp32, rounding to nearest even ---- */

__device__ __forceinline__ float to_float(float x)
{
    return x;
}

__device__ __forceinline__ float to_float(bf16 x)
{
#ifdef HD_CUDASIM
    return hd_bf16_to_f32(x.bits);
#else
    return __bfloat162float(x);
#endif
}

__device__ __forceinline__ float to_float(f16 x)
{
#ifdef HD_CUDASIM
    return hd_f16_to_f32(x.bits);
#else
    return __half2float(x);
#endif
}

template <typename T>
__device__ __forceinline__ T from_float(float x);

template <>
__device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}

template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x)
{
#ifdef HD_CUDASIM
    return bf16{hd_f32_to_bf16(x)};
#else
    return __float2bfloat16_rn(x);
#endif
}

template <>
__device__ __forceinline__ f16 from_float<f16>(float x)
{
#ifdef HD_CUDASIM
    return f16{hd_f32_to_f16(x)};
#else
    return __float2half_rn(x);
#endif
}

/* Packs two elements of 2 bytes into one register, as in mma fragments: `low` in the lower half. */
template <typename T>
__device__ __forceinline__ uint32_t pack_two(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack_two<bf16>(float low, float high)
{
#ifdef HD_CUDASIM
    return hd_f32_to_bf16(low) | (uint32_t)hd_f32_to_bf16(high) << 16;
#else
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

    return *reinterpret_cast<const uint32_t *>(&pair);
#endif
}

template <>
__device__ __forceinline__ uint32_t pack_two<f16>(float low, float high)
{
#ifdef HD_CUDASIM
    return hd_f32_to_f16(low) | (uint32_t)hd_f32_to_f16(high) << 16;
#else
    const __half2 pair = __floats2half2_rn(low, high);

    return *reinterpret_cast<const uint32_t *>(&pair);
#endif
}

#endif
