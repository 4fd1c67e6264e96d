/* dtype: the encodings of a tensor's elements, and conversions between the short floats and fp32.
 *
 * Used by: everything that holds tensors.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_DTYPE_H
#define HD_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The element types: code, stable name (part of the API: in listings, manifests and JSON), bytes of
 * one element. */
#define HD_DTYPE_LIST(X) \
    X(F32, "f32", 4)     \
    X(BF16, "bf16", 2)   \
    X(F16, "f16", 2)     \
    X(F64, "f64", 8)     \
    X(I32, "i32", 4)     \
    X(I64, "i64", 8)     \
    X(U8, "u8", 1)

enum hd_dtype {
#define X(code, name, size_bytes) HD_##code,
    HD_DTYPE_LIST(X)
#undef X
        HD_DTYPE_COUNT
};

size_t hd_dtype_size(enum hd_dtype dtype);      /* returns the bytes of one element; 0 for an
                                                   unknown code */
const char *hd_dtype_name(enum hd_dtype dtype); /* returns the stable name, such as "bf16";
                                                   "unknown" for an unknown code */
bool hd_dtype_from_name(const char *name, enum hd_dtype *ret_dtype);

/* Converts a bf16 to fp32, exactly. bf16 is the upper half of an fp32. This and the other
 * conversions are branch-free, so that compilers vectorise loops over them. */
static inline float hd_bf16_to_f32(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Converts an fp32 to bf16, rounded to nearest, ties to even; a NaN becomes a quiet NaN. */
static inline uint16_t hd_f32_to_bf16(float value)
{
    uint32_t bits, rounded, quiet;

    memcpy(&bits, &value, sizeof bits);
    rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* Converts an f16 to fp32, exactly, subnormals included. f16 is IEEE 754 binary16: 1 sign, 5
 * exponent (bias 15) and 10 mantissa bits; fp32 has 1, 8 (bias 127) and 23. */
static inline float hd_f16_to_f32(uint16_t bits)
{
    const uint32_t magnitude = (uint32_t)(bits & 0x7fffu) << 13;
    uint32_t wide;
    float value;

    memcpy(&value, &magnitude, sizeof value);
    value *= 0x1p112f; /* changes the bias of the exponent from 15 to 127 */
    memcpy(&wide, &value, sizeof wide);
    wide |= magnitude >= 0x0f800000u ? 0x7f800000u : 0; /* an f16 infinity or NaN gets the exponent
                                                           of one in fp32 */
    wide |= (uint32_t)(bits & 0x8000u) << 16;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Converts an fp32 to f16, rounded to nearest, ties to even; magnitudes of 65520 and above become
 * infinity; a NaN becomes a quiet NaN with the upper bits of its payload. */
static inline uint16_t hd_f32_to_f16(float value)
{
    uint32_t bits, magnitude, normal, subnormal, rounded;
    float shifted;

    memcpy(&bits, &value, sizeof bits);
    magnitude = bits & 0x7fffffffu;
    /* a carry out of the mantissa may increment the exponent, which is the right rounding */
    normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f; /* 0.5 plus the magnitude rounded to a multiple of 2^-24 */
    memcpy(&subnormal, &shifted, sizeof subnormal);
    subnormal -= 0x3f000000u;
    rounded = magnitude < 0x38800000u ? subnormal : normal; /* f16 is subnormal below 2^-14 */
    rounded = magnitude < 0x477ff000u ? rounded : 0x7c00u;  /* infinity from 65520 on */
    rounded = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : rounded;
    return (uint16_t)((bits >> 16 & 0x8000u) | rounded);
}

/* Converts bf16 or f16, as `dtype` says, exactly to fp32. */
static inline float hd_half_to_f32(enum hd_dtype dtype, uint16_t bits)
{
    return dtype == HD_F16 ? hd_f16_to_f32(bits) : hd_bf16_to_f32(bits);
}
static inline uint16_t hd_f32_to_half(enum hd_dtype dtype, float value)
{
    return dtype == HD_F16 ? hd_f32_to_f16(value) : hd_f32_to_bf16(value);
}

/* Returns the index of the first NaN or infinity; -1: all values are finite. */
int64_t hd_f32_find_nonfinite(const float *values, int64_t count);

#endif
