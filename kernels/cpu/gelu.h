/* gelu: GELU (HD_ACT_GELU_TANH in ops.h) and its derivative, on vectors.
 *
 * 0.5 (1 + tanh(u)) is sigmoid(2u), so gelu(x) = x * sigmoid(2u) with u = c (x + 0.044715 x^3),
 * c = sqrt(2 / pi).
 *
 * Used by: activation, gemm_row, gemm_blocked.   Uses: vecmath.   Threads: any.
 */
#ifndef HD_KERNELS_CPU_GELU_H
#define HD_KERNELS_CPU_GELU_H

#include "kernels/cpu/vecmath.h"

#define GELU_TWO_C 1.595769122f /* 2 sqrt(2 / pi) */

INLINE vf gelu_gate(vf x)
{
    return vf_sigmoid(GELU_TWO_C * (x + 0.044715f * x * x * x));
}

INLINE vf gelu(vf x)
{
    return x * gelu_gate(x);
}

/* Returns d gelu / dx = s + x s (1 - s) d(2u)/dx, with d(2u)/dx = 2c (1 + 3 * 0.044715 x^2). */
INLINE vf gelu_slope(vf x)
{
    const vf s = gelu_gate(x);

    return s + x * s * (1.0f - s) * (GELU_TWO_C * (1.0f + 0.134145f * x * x));
}

#endif
