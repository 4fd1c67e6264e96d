/* encoding: numbers stored as 8-bit codes in blocks that share a scale.
 *
 * A block is a fixed number of neighbouring elements, a power of two from 8 to 256. It has one code
 * per element and one fp32 scale: element = value(code) * scale. Two maps give codes their values,
 * both by the dynamic tree of Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"
 * (section 1.3 and figure 2). Read as binary digits, the code of a magnitude is
 *
 *     E zeros, a one, and n digits of a fraction f:   10^-E * (0.1 + 0.9 * (f + 0.5) / 2^n)
 *
 * These values are the centres of 2^n equal intervals of [0.1, 1] * 10^-E, for E = 0 to 6. So large
 * numbers have many digits, and small ones a wide range.
 *
 *     signed     a sign and 7 digits: n = 6 - E; 127 magnitudes from 5.5e-7 to 0.993 of each sign.
 *                0x00 is 0, and 0x80, which would be -0, is 1
 *     unsigned   8 digits: n = 7 - E, one more; 254 magnitudes from 3.25e-7 to 0.996. 0x00 is 0,
 *                and 0x01, whose E would be 7, is 1
 *
 * Encoding takes the nearest value, with these rules:
 *  1. The scale is the element of the largest magnitude, with its sign (of equal ones the positive
 *     one), so that this element's code is that of 1 and its value is exact. So encoding decoded
 *     values gives the original codes and scale, bit for bit.
 *  2. The scale's magnitude is at least HD_SCALE_MIN, so that no value times the scale loses
 *     digits, and finite, so that no product is NaN.
 *  3. With the unsigned map a number > 0 never gets code 0: a second moment of 0 with a first
 *     moment that is not 0 would make an optimizer step of unlimited size.
 *  4. A block of zeros has scale 0 and codes 0, so zeroed memory is a run of such blocks.
 *
 * In memory the scales of a run of whole blocks come first, then its codes, each aligned to 16
 * bytes.
 *
 * Used by: kernels, program, train.   Uses: libc.   Threads: any. */
#ifndef HD_BASE_ENCODING_H
#define HD_BASE_ENCODING_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HD_ON_DEVICE __host__ __device__
#else
#define HD_ON_DEVICE
#endif

enum hd_map { HD_MAP_SIGNED, HD_MAP_UNSIGNED };

enum {
    HD_BLOCK_MIN = 8, /* elements per block; in smaller blocks the fp32 scale would take at least as
                         many bytes as the 1-byte codes */
    HD_BLOCK_MAX = 256,
    HD_ENCODING_ALIGN = 16 /* bytes; alignment of the scales and of the codes */
};

/* Returns the bytes of the scales of `count` elements, a multiple of `block`, padded to
 * HD_ENCODING_ALIGN: the offset of the codes in memory. */
HD_ON_DEVICE static inline int64_t hd_encoding_scales_bytes(int64_t count, int64_t block)
{
    const int64_t bytes = count / block * (int64_t)sizeof(float);

    return (bytes + HD_ENCODING_ALIGN - 1) / HD_ENCODING_ALIGN * HD_ENCODING_ALIGN;
}

/* Returns the bytes that `count` elements take as scales and codes; with `block` 0, as plain
 * fp32. */
HD_ON_DEVICE static inline int64_t hd_encoding_bytes(int64_t count, int64_t block)
{
    if (!block)
        return count * (int64_t)sizeof(float);
    return hd_encoding_scales_bytes(count, block) +
           (count + HD_ENCODING_ALIGN - 1) / HD_ENCODING_ALIGN * HD_ENCODING_ALIGN;
}

/* Returns the value that the map gives to a code, not multiplied by the block's scale. */
HD_ON_DEVICE static inline float hd_encoding_value(uint8_t code, enum hd_map map)
{
    const int digits = map == HD_MAP_SIGNED ? 7 : 8;
    const int magnitude = code & ((1 << digits) - 1);
    int count = 1 << (digits - 1); /* 2^n */
    double power = 1, value;       /* 10^E */

    if (code == (map == HD_MAP_SIGNED ? 0x80 : 0x01))
        return 1;
    if (magnitude == 0)
        return 0;
    while (magnitude < count) {
        count /= 2;
        power *= 10;
    }
    value = (0.1 + 0.9 * (magnitude - count + 0.5) / count) / power;
    return (float)(magnitude == code ? value : -value);
}

/* Returns the magnitude below which E is one more, E': with `power` = 10^E' and `count` = 2^n of
 * E', the midpoint of the neighbouring values 10^-E' (1 - 0.45 / 2^n) and 10^-E' (1 + 2.25 / 2^n).
 */
HD_ON_DEVICE static inline float hd_encoding_decade(int count, float power)
{
    return (1 + 0.9f / (float)count) / power;
}

/* Returns the code whose value is nearest to x, which is in [-1, 1], or in [0, 1] for the unsigned
 * map. */
HD_ON_DEVICE static inline uint8_t hd_encoding_code(float x, enum hd_map map)
{
    const bool is_signed = map == HD_MAP_SIGNED;
    const float magnitude = x < 0 ? -x : x;
    const float smallest = is_signed ? 0.55e-6f : 0.325e-6f;
    int count = is_signed ? 64 : 128, code;
    float power = 1, fraction;

    if (x > 1 - 0.225f / (float)count)
        return is_signed ? 0x80 : 0x01;
    if (is_signed ? magnitude < smallest / 2 : x <= 0)
        return 0;
    for (int e = 0; e < 6 && magnitude < hd_encoding_decade(count / 2, power * 10); e++) {
        count /= 2;
        power *= 10;
    }
    fraction = (magnitude * power - 0.1f) * ((float)count / 0.9f);
    fraction = fraction > 0 ? fraction : 0;
    code = count + (fraction < (float)(count - 1) ? (int)fraction : count - 1);
    return (uint8_t)(x < 0 ? code | 0x80 : code);
}

#define HD_SCALE_MIN 0x1p-100f

/* Returns the scale of a block from its largest and smallest element (unsigned map: the largest,
 * and 0). If all magnitudes are below HD_SCALE_MIN, the scale is 0, or HD_SCALE_MIN with the
 * unsigned map and an element > 0. */
HD_ON_DEVICE static inline float hd_encoding_scale(enum hd_map map, float largest, float smallest)
{
    const float scale = largest >= -smallest ? largest : smallest;
    const float magnitude = scale < 0 ? -scale : scale;

    if (magnitude > FLT_MAX)
        return scale < 0 ? -FLT_MAX : FLT_MAX;
    if (magnitude < HD_SCALE_MIN)
        return magnitude > 0 && map == HD_MAP_UNSIGNED ? HD_SCALE_MIN : 0;
    return scale;
}

/* Returns the number by which elements are divided to get values: the scale, or 1 for a block of
 * zeros. */
HD_ON_DEVICE static inline float hd_encoding_divisor(float scale)
{
    return scale == 0 ? 1 : scale;
}

/* Returns element / divisor, the number in [-1, 1] whose nearest code is searched; never 0 for an
 * element > 0. */
HD_ON_DEVICE static inline float hd_encoding_quotient(float element, float divisor)
{
    const float x = element / divisor;

    return element > 0 && x == 0 ? FLT_MIN : x;
}

/* hd_encode converts whole blocks of fp32 values to codes and scales; hd_decode converts them back.
 * For the host: kernels have their own loops. */
void hd_encode(enum hd_map map, int64_t block, int64_t count, const float *values,
               float *ret_scales, uint8_t *ret_codes);
void hd_decode(enum hd_map map, int64_t block, int64_t count, const float *scales,
               const uint8_t *codes, float *ret_values);

#endif
