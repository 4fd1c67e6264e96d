/* vecmath: elementary functions on vectors.
 *
 * vf_exp(x): relative error at most 1.5 units in the last place of fp32 for x in [-87.33, 88.72];
 * below that range 0 (no subnormal results), above it infinity; NaN gives NaN. Tested over all
 * exponents in tests/unit/kernels/vecmath_test.c.
 * vf_log1p(x): relative error at most 2.5 units in the last place for x in [0, 1]; NaN gives NaN.
 * vf_tanh(x): relative error at most 4 units in the last place; NaN gives NaN.
 *
 * Used by: the kernels in this folder.   Uses: vec.   Threads: any.
 */
#ifndef HD_KERNELS_CPU_VECMATH_H
#define HD_KERNELS_CPU_VECMATH_H

#include "kernels/cpu/vec.h"

/* Returns e^x = 2^n e^r, where n is the integer nearest to x / ln 2 and |r| <= ln 2 / 2. Adding 1.5
 * * 2^23 rounds to that integer and leaves it in the low bits. ln 2 is subtracted in two parts; n
 * times the first part is exact. e^r = 1 + r + r^2 g(r) with a minimax polynomial g (error of e^r:
 * 8e-9). */
INLINE vf vf_exp(vf x)
{
    const float round = 12582912.0f, low = -87.3365402f, high = 88.7228394f;
    const vf bounded = vf_min(vf_set(100.0f), x); /* 100 if x is larger, and for infinity; NaN for
                                                     NaN */
    const vf shifted = bounded * 1.44269504f + round;
    const vf n = shifted - round;
    const vf r = (bounded - n * 0.693145751953125f) - n * 1.428606765e-6f;
    vf g = vf_set(1.39262135e-3f);
    vf y;

    g = g * r + 8.36320297e-3f;
    g = g * r + 4.16665544e-2f;
    g = g * r + 1.66665768e-1f;
    g = g * r + 0.5f;
    y = (g * r) * r + r + 1.0f;
#if defined(__AVX512F__) /* scales y by 2^n: infinity on overflow; zero where x < low */
    (void)high;
    return (vf)_mm512_maskz_scalef_ps(
        _mm512_cmp_ps_mask((__m512)x, (__m512)vf_set(low), _CMP_NLT_UQ), (__m512)y, (__m512)n);
#else /* adds n to the exponent of y, which is correct between the two bounds */
    y = vf_from_bits((vi)((vu)vf_bits(y) + ((vu)vf_bits(shifted) << 23)));
    y = vf_select(x > high, vf_set(INFINITY), y);
    y = vf_select(x < low, vf_set(0.0f), y);
    return vf_select(x != x, x, y);
#endif
}

/* Returns log(1 + x) for x in [0, 1]: 2 artanh(s) with s = x / (2 + x) <= 1/3; the series is cut
 * before the term s^17 / 17. */
INLINE vf vf_log1p(vf x)
{
    const vf s = x / (2.0f + x), z = s * s;
    vf sum = vf_set(1.0f / 15);

    sum = sum * z + 1.0f / 13;
    sum = sum * z + 1.0f / 11;
    sum = sum * z + 1.0f / 9;
    sum = sum * z + 1.0f / 7;
    sum = sum * z + 1.0f / 5;
    sum = sum * z + 1.0f / 3;
    return 2.0f * (s + s * z * sum);
}

/* Returns tanh(x). Below 0.625 it is five levels of Lambert's continued fraction, x / (1 + x^2 / (3
 * + x^2 / (5 + ...))), with an error of 6e-10; above it is (e^2x - 1) / (e^2x + 1), where nothing
 * cancels. From 10 on the result is 1. */
INLINE vf vf_tanh(vf x)
{
    const vf bounded = vf_max(vf_set(-10.0f), vf_min(vf_set(10.0f), x)); /* NaN for NaN */
    const vf z = bounded * bounded, e = vf_exp(2.0f * bounded);
    const vi small = z < 0.390625f;

    return vf_select(small, bounded * ((z + 105.0f) * z + 945.0f), e - 1.0f) /
           vf_select(small, (15.0f * z + 420.0f) * z + 945.0f, e + 1.0f);
}

INLINE vf vf_sigmoid(vf x) /* returns 1 / (1 + e^-x) */
{
    return 1.0f / (1.0f + vf_exp(-x));
}

#endif
