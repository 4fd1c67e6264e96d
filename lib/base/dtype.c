#include "base/dtype.h"

static const struct {
    const char *name;
    size_t size_bytes;
} dtypes[] = {
#define X(code, name, size_bytes) {name, size_bytes},
    HD_DTYPE_LIST(X)
#undef X
};

size_t hd_dtype_size(enum hd_dtype dtype)
{
    return (unsigned)dtype < HD_DTYPE_COUNT ? dtypes[dtype].size_bytes : 0;
}

const char *hd_dtype_name(enum hd_dtype dtype)
{
    return (unsigned)dtype < HD_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

bool hd_dtype_from_name(const char *name, enum hd_dtype *ret_dtype)
{
    for (int i = 0; i < HD_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *ret_dtype = (enum hd_dtype)i;
            return true;
        }
    }
    return false;
}

/* binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits; binary32: 1, 8 (bias 127), 23. */
float hd_f16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t mantissa = bits & 0x3ffu;
    uint32_t wide;
    float value;

    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact in fp32 */
        value = (float)mantissa * 0x1p-24f;
        memcpy(&wide, &value, sizeof wide);
        wide |= sign;
    } else if (exponent == 31) {
        wide = sign | 0x7f800000u | mantissa << 13;
    } else {
        wide = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t hd_f32_to_f16(float value)
{
    uint32_t bits, magnitude, sign;

    memcpy(&bits, &value, sizeof bits);
    sign = (bits >> 16) & 0x8000u;
    magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) /* NaN: quiet, upper payload bits kept */
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 leaves multiples of 2^-24, rounded */
        float shifted;

        memcpy(&shifted, &magnitude, sizeof shifted);
        shifted += 0.5f;
        memcpy(&magnitude, &shifted, sizeof magnitude);
        return (uint16_t)(sign | (magnitude - 0x3f000000u));
    }
    magnitude +=
        0xfffu + ((magnitude >> 13) & 1u); /* ties to even; the carry may enter the exponent */
    return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

int64_t hd_f32_find_nonfinite(const float *values, int64_t count)
{
    enum { BLOCK = 4096 };
    const uint32_t exponent = 0x7f800000u; /* all ones in a NaN and in an infinity, in no other */

    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t n = count - at < BLOCK ? count - at : BLOCK;
        uint32_t bits, found = 0;

        for (int64_t i = 0; i < n; i++) { /* without a branch: vector code */
            memcpy(&bits, values + at + i, sizeof bits);
            found |= (bits & exponent) == exponent;
        }
        for (int64_t i = 0; found && i < n; i++) {
            memcpy(&bits, values + at + i, sizeof bits);
            if ((bits & exponent) == exponent)
                return at + i;
        }
    }
    return -1;
}
