/* fp8: the two floating-point formats of 8 bits, and the scale of a tensor in them.
 *
 *             sign  exponent  mantissa  bias  largest  smallest normal  smallest   not finite
 *     E4M3      1       4         3        7     448        2^-6          2^-9     NaN 0x7f, 0xff
 *     E5M2      1       5         2       15   57344        2^-14         2^-16    as IEEE 754
 *
 * (Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1.) E4M3 has no infinities: the
 * codes that would be infinities are numbers.
 *
 * A tensor has one scale, a power of two: code = round(element * 2^e), element = value(code) *
 * 2^-e. Encoding rounds to the nearest value, ties to even. A finite number beyond the largest
 * value becomes the largest value; NaN and infinity become NaN in both formats, so results computed
 * from them show the fault. Every decoded element is exactly a bf16 number.
 *
 * Used by: kernels.   Uses: libc.   Threads: any. */
#ifndef HD_BASE_FP8_H
#define HD_BASE_FP8_H

#include <stdint.h>
#include <string.h>

#include "base/encoding.h" /* HD_ON_DEVICE */

enum hd_fp8 { HD_E4M3, HD_E5M2 };

#define HD_FP8_FINITE_MAX 0x1.fffffep127f /* largest finite fp32 */

enum {
    HD_FP8_NAN = 0x7f,
    HD_FP8_EXPONENT_MAX = 100 /* limit of |e| in a scale 2^e: no decoded element is subnormal */
};

HD_ON_DEVICE static inline float hd_fp8_largest(enum hd_fp8 format)
{
    return format == HD_E4M3 ? 448.0f : 57344.0f;
}

HD_ON_DEVICE static inline float hd_fp8_value(uint8_t code, enum hd_fp8 format)
{
    const int mantissa_bits = format == HD_E4M3 ? 3 : 2, bias = format == HD_E4M3 ? 7 : 15;
    const uint32_t magnitude = code & 0x7fu;
    /* lowest code, without its sign bit, that is not a finite number */
    const uint32_t infinite = format == HD_E4M3 ? 0x7fu : 0x7cu;
    const uint32_t shifted = magnitude << (23 - mantissa_bits);
    const uint32_t power = (uint32_t)(127 + 127 - bias) << 23; /* fp32 bits of 2^(127 - bias) */
    uint32_t bits;
    float value, factor;

    memcpy(&value, &shifted, sizeof value);
    memcpy(&factor, &power, sizeof factor);
    value *= factor;
    memcpy(&bits, &value, sizeof bits);
    if (magnitude >= infinite)
        bits = magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u;
    bits |= (uint32_t)(code & 0x80u) << 24;
    memcpy(&value, &bits, sizeof value);
    return value;
}

HD_ON_DEVICE static inline uint8_t hd_fp8_code(float value, enum hd_fp8 format)
{
    const int mantissa_bits = format == HD_E4M3 ? 3 : 2, bias = format == HD_E4M3 ? 7 : 15;
    const int dropped = 23 - mantissa_bits;
    const uint32_t largest = format == HD_E4M3 ? 0x7eu : 0x7bu;
    const uint32_t least = (uint32_t)(128 - bias) << 23; /* fp32 bits of the smallest normal number
                                                            of the format */
    /* fp32 bits of a number whose sum with x rounds x to a multiple of the smallest subnormal
     * number */
    const uint32_t rounder = (uint32_t)(127 + 1 - bias - mantissa_bits + 23) << 23;
    uint32_t bits, magnitude, normal, subnormal, code;
    float sum, addend;

    memcpy(&bits, &value, sizeof bits);
    magnitude = bits & 0x7fffffffu;
    /* a carry out of the mantissa may increment the exponent, which is the right rounding */
    normal = (magnitude - ((uint32_t)(127 - bias) << 23) + ((1u << (dropped - 1)) - 1) +
              ((magnitude >> dropped) & 1u)) >>
             dropped;
    memcpy(&sum, &magnitude, sizeof sum);
    memcpy(&addend, &rounder, sizeof addend);
    sum += addend;
    memcpy(&subnormal, &sum, sizeof subnormal);
    subnormal -= rounder;
    code = magnitude < least ? subnormal : normal;
    /* magnitudes of 65536 and above, and codes above the largest, become the largest finite
     * value */
    code = magnitude >= 0x47800000u || code > largest ? largest : code;
    code = magnitude >= 0x7f800000u ? (uint32_t)HD_FP8_NAN : code;
    return (uint8_t)((bits >> 24 & 0x80u) | code);
}

/* Returns e of the largest scale 2^e with which `amax` does not exceed the format's largest value;
 * 0 for a tensor of zeros. amax must be finite. */
HD_ON_DEVICE static inline int hd_fp8_exponent(float amax, enum hd_fp8 format)
{
    /* the largest values of the formats are 0.875 * 2^9 and 0.875 * 2^16 */
    const int top = format == HD_E4M3 ? 9 : 16;
    uint32_t bits;
    int e;

    memcpy(&bits, &amax, sizeof bits);
    if (bits == 0)
        return 0;
    e = top - ((int)(bits >> 23) - 126) - ((bits & 0x7fffffu) > 0x600000u);
    if (e > HD_FP8_EXPONENT_MAX)
        return HD_FP8_EXPONENT_MAX;
    return e < -HD_FP8_EXPONENT_MAX ? -HD_FP8_EXPONENT_MAX : e;
}

/* Returns 2^e for |e| <= HD_FP8_EXPONENT_MAX. */
HD_ON_DEVICE static inline float hd_fp8_power(int e)
{
    const uint32_t bits = (uint32_t)(127 + e) << 23;
    float power;

    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Returns the code of element * 2^e, with power = 2^e. A finite element gets a finite code even if
 * the product overflows. */
HD_ON_DEVICE static inline uint8_t hd_fp8_encode(float element, float power, enum hd_fp8 format)
{
    const float much = 65536; /* any number above the largest value of both formats */
    float scaled = element * power;

    scaled = scaled > much && element <= HD_FP8_FINITE_MAX ? much : scaled;
    scaled = scaled < -much && element >= -HD_FP8_FINITE_MAX ? -much : scaled;
    return hd_fp8_code(scaled, format);
}

/* Returns the larger of amax and |element|; amax if the element is not finite. */
HD_ON_DEVICE static inline float hd_fp8_larger(float amax, float element)
{
    const float magnitude = element < 0 ? -element : element;

    return magnitude > amax && magnitude <= HD_FP8_FINITE_MAX ? magnitude : amax;
}

#endif
