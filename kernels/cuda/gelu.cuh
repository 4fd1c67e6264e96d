/* gelu: the sigmoid, GELU in the tanh form and its derivative (ops.h, HD_ACT_GELU_TANH).
 *
 * 0.5 (1 + tanh(u)) is sigmoid(2u), so gelu(x) = x * sigmoid(2u) with u = c (x + 0.044715 x^3),
 * c = sqrt(2 / pi). T is the dtype of the final result: bf16 and f16 use the fast exponential; its
 * error of 2 units of 2^-22 is far below their rounding.
 *
 * Used by: activation, conv, delta_gates, gate, gated_norm, tile.cuh.   Uses: device.cuh.
 */
#ifndef HD_KERNELS_CUDA_GELU_CUH
#define HD_KERNELS_CUDA_GELU_CUH

#include "kernels/cuda/device.cuh"

#define GELU_TWO_C 1.595769122f /* 2 sqrt(2 / pi) */

/* Returns 1 / (1 + exp(-x)). An exact division would take as long as the rest of an element. */
template <typename T>
static __device__ __forceinline__ float sigmoid(float x)
{
    return sizeof(T) == 4 ? 1.0f / (1.0f + expf(-x)) : __fdividef(1.0f, 1.0f + __expf(-x));
}

template <typename T>
static __device__ __forceinline__ float gelu_gate(float x)
{
    return sigmoid<T>(GELU_TWO_C * (x + 0.044715f * x * x * x));
}

template <typename T>
static __device__ __forceinline__ float gelu(float x)
{
    return x * gelu_gate<T>(x);
}

/* Returns d gelu / dx = s + x s (1 - s) d(2u)/dx,  d(2u)/dx = 2c (1 + 3 * 0.044715 x^2) */
template <typename T>
static __device__ __forceinline__ float gelu_slope(float x)
{
    const float gate = gelu_gate<T>(x), slope = GELU_TWO_C * (1.0f + 0.134145f * x * x);

    return gate + x * gate * (1.0f - gate) * slope;
}

#endif
