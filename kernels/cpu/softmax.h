/* softmax: the exponential of attention in fp32 vectors.
 *
 * Used by: attention.c, attention_backward.c.   Uses: vecmath.
 */
#ifndef HD_KERNELS_CPU_SOFTMAX_H
#define HD_KERNELS_CPU_SOFTMAX_H

#include "kernels/cpu/vecmath.h"

/* Returns vf_exp(x), bit by bit, for x <= 88 or NaN, in fewer instructions: for the weights of a
 * softmax. Multiplying by 2^n, instead of adding n to the exponent, keeps NaN without a test. */
INLINE vf vf_exp_weight(vf x)
{
#if defined(__AVX512F__)
    return vf_exp(x);
#else
    const float round = 12582912.0f, low = -87.3365402f;
    const vf shifted = x * 1.44269504f + round;
    const vf n = shifted - round;
    const vf r = (x - n * 0.693145751953125f) - n * 1.428606765e-6f;
    vf g = vf_set(1.39262135e-3f);

    g = g * r + 8.36320297e-3f;
    g = g * r + 4.16665544e-2f;
    g = g * r + 1.66665768e-1f;
    g = g * r + 0.5f;
    g = (g * r) * r + r + 1.0f;
    g *= vf_from_bits((vi)(((vu)vf_bits(shifted) << 23) + 0x3f800000u)); /* 0x3f800000: 1.0f */
    return vf_from_bits(vf_bits(g) & ~(x < low));
#endif
}

#endif
