/* activation: the activations of enum hd_activation (ops.h) and their derivatives, on vectors. The
 * argument `act` is a compile-time constant in every use (WITH_ACTIVATION).
 *
 * Used by: activation.   Uses: gelu, vecmath.   Threads: any.
 */
#ifndef HD_KERNELS_CPU_ACTIVATION_H
#define HD_KERNELS_CPU_ACTIVATION_H

#include "kernels/cpu/gelu.h"
#include "kernels/kernels.h"

/* Runs the statement with A, a constant, equal to act. */
#define WITH_ACTIVATION(act, A, ...)                     \
    switch (act) {                                       \
        ONE_ACTIVATION(HD_ACT_SILU, A, __VA_ARGS__)      \
        ONE_ACTIVATION(HD_ACT_GELU_TANH, A, __VA_ARGS__) \
        ONE_ACTIVATION(HD_ACT_GELU_ERF, A, __VA_ARGS__)  \
        ONE_ACTIVATION(HD_ACT_RELU2, A, __VA_ARGS__)     \
        ONE_ACTIVATION(HD_ACT_RELU, A, __VA_ARGS__)      \
        ONE_ACTIVATION(HD_ACT_OSS, A, __VA_ARGS__)       \
    }
#define ONE_ACTIVATION(act, A, ...)         \
    case act: {                             \
        const enum hd_activation A = (act); \
                                            \
        __VA_ARGS__;                        \
        break;                              \
    }

/* Returns exp(-x^2 / 2) and sets *ret_phi to Phi(x), the normal distribution. Phi(-|x|) is that
 * exponential times a minimax polynomial in t = 1 / (1 + 0.35 |x|), which is fitted to 0.5
 * erfcx(|x| / sqrt(2)) for |x| <= 14 (relative error 3e-8); beyond, Phi(-|x|) < 1e-44. */
INLINE vf normal(vf x, vf *ret_phi)
{
    const vf size = vf_max(-x, x), bell = vf_exp(-0.5f * x * x), t = 1.0f / (1.0f + 0.35f * size);
    vf tail = vf_set(-2.91459281e-2f);

    tail = tail * t + 1.43971682e-1f;
    tail = tail * t - 2.55714238e-1f;
    tail = tail * t + 1.59174129e-1f;
    tail = tail * t - 2.31098123e-2f;
    tail = tail * t + 1.05507992e-1f;
    tail = tail * t + 1.19832873e-1f;
    tail = tail * t + 1.39861867e-1f;
    tail = tail * t + 1.39621407e-1f;
    tail = tail * t * bell;
    *ret_phi = vf_select(x > 0.0f, 1.0f - tail, tail);
    return bell;
}

/* Returns act(x); HD_ACT_OSS is not a function of x alone. */
INLINE vf activate(vf x, enum hd_activation act)
{
    const vf positive = vf_max(vf_set(0), x);
    vf phi;

    if (act == HD_ACT_GELU_TANH)
        return gelu(x);
    if (act == HD_ACT_RELU2)
        return positive * positive;
    if (act == HD_ACT_RELU)
        return positive;
    if (act == HD_ACT_SILU)
        return x * vf_sigmoid(x);
    (void)normal(x, &phi);
    return x * phi;
}

/* Returns act'(x). That of x Phi(x) is Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi). */
INLINE vf activation_slope(vf x, enum hd_activation act)
{
    const vf s = vf_sigmoid(x);
    vf phi, bell;

    if (act == HD_ACT_GELU_TANH)
        return gelu_slope(x);
    if (act == HD_ACT_RELU2)
        return 2.0f * vf_max(vf_set(0), x);
    if (act == HD_ACT_RELU)
        return vf_select(x > 0.0f, vf_set(1), vf_set(0));
    if (act == HD_ACT_SILU)
        return s * (1.0f + x * (1.0f - s));
    bell = normal(x, &phi);
    return phi + 0.398942280f * x * bell;
}

#endif
