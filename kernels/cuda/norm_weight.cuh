/* norm_weight: the factors w by which norms multiply normalised values: the weight, 1 + weight in
 * fp32, or 1. A kernel is compiled once per form that it is used with.
 *
 * Used by: norm, head_norm, qk_norm.   Uses: pack.
 * Threads: pure functions.
 */
#ifndef HD_KERNELS_CUDA_NORM_WEIGHT_CUH
#define HD_KERNELS_CUDA_NORM_WEIGHT_CUH

#include "kernels/cuda/pack.cuh"

enum cuda_norm_weight { WEIGHT_PLAIN, WEIGHT_ONE_PLUS, WEIGHT_NONE };

/* Loads the weights of V channels; with WEIGHT_NONE returns a pack that factor_of does not read. */
template <enum cuda_norm_weight W, int V, typename T>
static __device__ __forceinline__ pack<T, V> weight_load(const T *from)
{
    if (W == WEIGHT_NONE)
        return pack<T, V>{};
    return pack_load<V>(from);
}

template <enum cuda_norm_weight W, typename T>
static __device__ __forceinline__ float factor_of(T weight)
{
    return W == WEIGHT_NONE       ? 1.0f
           : W == WEIGHT_ONE_PLUS ? 1.0f + to_float(weight)
                                  : to_float(weight);
}

/* Macro: runs the statements with a constant W for a kernel whose weights may be NULL. */
#define HD_NORM_WEIGHT(weight, one_plus, W, ...)                 \
    do {                                                         \
        if (!(weight)) {                                         \
            constexpr enum cuda_norm_weight W = WEIGHT_NONE;     \
            __VA_ARGS__;                                         \
        } else if (one_plus) {                                   \
            constexpr enum cuda_norm_weight W = WEIGHT_ONE_PLUS; \
            __VA_ARGS__;                                         \
        } else {                                                 \
            constexpr enum cuda_norm_weight W = WEIGHT_PLAIN;    \
            __VA_ARGS__;                                         \
        }                                                        \
    } while (0)

#endif
