/* activation: the activations of enum hd_activation (ops.h) and their derivatives. T is the dtype
 * of the final result, as in gelu.cuh.
 *
 * Used by: activation.cu, glu.cuh.   Uses: gelu.cuh.
 */
#ifndef HD_KERNELS_CUDA_ACTIVATION_CUH
#define HD_KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/gelu.cuh"

/* Runs the statement with A, a constant, equal to act. */
#define HD_ONE_ACTIVATION(act, A, ...)          \
    case act: {                                 \
        constexpr enum hd_activation A = (act); \
        __VA_ARGS__;                            \
        break;                                  \
    }
#define HD_CUDA_ACTIVATION(act, A, ...)                     \
    switch (act) {                                          \
        HD_ONE_ACTIVATION(HD_ACT_SILU, A, __VA_ARGS__)      \
        HD_ONE_ACTIVATION(HD_ACT_GELU_TANH, A, __VA_ARGS__) \
        HD_ONE_ACTIVATION(HD_ACT_GELU_ERF, A, __VA_ARGS__)  \
        HD_ONE_ACTIVATION(HD_ACT_RELU2, A, __VA_ARGS__)     \
        HD_ONE_ACTIVATION(HD_ACT_RELU, A, __VA_ARGS__)      \
    default:                                                \
        break;                                              \
    }

/* Returns exp(-x^2 / 2) and sets *ret_phi to Phi(x), the normal distribution, by the polynomial of
 * kernels/cpu/activation.h. */
template <typename T>
static __device__ __forceinline__ float normal(float x, float *ret_phi)
{
    const float bell = sizeof(T) == 4 ? expf(-0.5f * x * x) : __expf(-0.5f * x * x);
    const float t = sizeof(T) == 4 ? 1.0f / (1.0f + 0.35f * fabsf(x))
                                   : __fdividef(1.0f, 1.0f + 0.35f * fabsf(x));
    float tail = -2.91459281e-2f;

    tail = tail * t + 1.43971682e-1f;
    tail = tail * t - 2.55714238e-1f;
    tail = tail * t + 1.59174129e-1f;
    tail = tail * t - 2.31098123e-2f;
    tail = tail * t + 1.05507992e-1f;
    tail = tail * t + 1.19832873e-1f;
    tail = tail * t + 1.39861867e-1f;
    tail = tail * t + 1.39621407e-1f;
    tail = tail * t * bell;
    *ret_phi = x > 0 ? 1.0f - tail : tail;
    return bell;
}

/* Returns max(x, 0); NaN for NaN. */
static __device__ __forceinline__ float positive(float x)
{
    return x < 0 ? 0.0f : x;
}

/* Returns act(x); HD_ACT_OSS is not a function of x alone. */
template <enum hd_activation ACT, typename T>
static __device__ __forceinline__ float activate(float x)
{
    float phi;

    if (ACT == HD_ACT_GELU_TANH)
        return gelu<T>(x);
    if (ACT == HD_ACT_RELU2)
        return positive(x) * positive(x);
    if (ACT == HD_ACT_RELU)
        return positive(x);
    if (ACT == HD_ACT_SILU)
        return x * sigmoid<T>(x);
    (void)normal<T>(x, &phi);
    return x * phi;
}

/* Returns act'(x). */
template <enum hd_activation ACT, typename T>
static __device__ __forceinline__ float activation_slope(float x)
{
    float phi, bell, s;

    if (ACT == HD_ACT_GELU_TANH)
        return gelu_slope<T>(x);
    if (ACT == HD_ACT_RELU2)
        return 2.0f * positive(x);
    if (ACT == HD_ACT_RELU)
        return x > 0 ? 1.0f : 0.0f;
    if (ACT == HD_ACT_SILU) {
        s = sigmoid<T>(x);
        return s * (1.0f + x * (1.0f - s));
    }
    bell = normal<T>(x, &phi);
    return phi + 0.398942280f * x * bell;
}

#endif
