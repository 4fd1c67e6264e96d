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

/* code, stable name (API: in listings, manifests and JSON), bytes of one element */
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

size_t hd_dtype_size(enum hd_dtype dtype);      /* bytes of one element; 0 for an unknown code */
const char *hd_dtype_name(enum hd_dtype dtype); /* "bf16"; "unknown" for an unknown code */
bool hd_dtype_from_name(const char *name, enum hd_dtype *ret_dtype);

/* bf16 is the upper half of an fp32. Exact. */
static inline float hd_bf16_to_f32(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even; a NaN becomes a quiet NaN. Branch-free, so that compilers
 * vectorise loops over it. */
static inline uint16_t hd_f32_to_bf16(float value)
{
    uint32_t bits, rounded, quiet;

    memcpy(&bits, &value, sizeof bits);
    rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* The index of the first NaN or infinity; -1: all values are finite. */
int64_t hd_f32_find_nonfinite(const float *values, int64_t count);

float hd_f16_to_f32(uint16_t bits);  /* IEEE 754 binary16, subnormals included; exact */
uint16_t hd_f32_to_f16(float value); /* to nearest, ties to even; 65520 and above: infinity */

#endif
