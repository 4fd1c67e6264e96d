/* dtype: conversions against exhaustive definitions. */
#include <math.h>

#include "base/dtype.h"
#include "tests/program/test.h"

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The value of a binary16 by the formula of IEEE 754, in double. */
static double f16_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;
    const double sign = bits & 0x8000 ? -1.0 : 1.0;

    if (exponent == 31)
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, -24);
    return sign * ldexp(1024 + mantissa, exponent - 25);
}

static void every_f16_has_its_value_and_comes_back(void **state)
{
    for (uint32_t b = 0; b <= 0xffff; b++) {
        const float value = hd_f16_to_f32((uint16_t)b);

        if (isnan(f16_value((uint16_t)b))) {
            assert_true(isnan(value));
            assert_true(isnan(hd_f16_to_f32(hd_f32_to_f16(value))));
            continue;
        }
        assert_true((double)value == f16_value((uint16_t)b));
        assert_int_equal(signbit(value) != 0, b >> 15);
        assert_int_equal(hd_f32_to_f16(value), b);
    }
}

static void every_bf16_is_the_upper_half_and_comes_back(void **state)
{
    for (uint32_t b = 0; b <= 0xffff; b++) {
        const float value = hd_bf16_to_f32((uint16_t)b);

        if (isnan(value)) {
            assert_true(isnan(hd_bf16_to_f32(hd_f32_to_bf16(value))));
            continue;
        }
        assert_int_equal(hd_f32_to_bf16(value), b);
    }
}

/* Goal: rounding is to the nearest, ties to even. Method: for neighbours a < b of the short type,
 * the middle goes to the even one, and what is next to the middle to its own side. */
static void short_floats_round_to_the_nearest_ties_to_even(void **state)
{
    for (uint32_t b = 0; b < 0x7bff; b++) { /* all finite neighbours of f16, also subnormal */
        const float middle = (hd_f16_to_f32((uint16_t)b) + hd_f16_to_f32((uint16_t)(b + 1))) / 2;

        assert_int_equal(hd_f32_to_f16(middle), b & 1 ? b + 1 : b);
        assert_int_equal(hd_f32_to_f16(nextafterf(middle, 0.0f)), b);
        assert_int_equal(hd_f32_to_f16(nextafterf(middle, 1e9f)), b + 1);
        assert_int_equal(hd_f32_to_f16(-middle), 0x8000u | (b & 1 ? b + 1 : b));
    }
    for (uint32_t b = 0; b < 0x7f7f; b++) { /* the middle of bf16 neighbours by its bits */
        assert_int_equal(hd_f32_to_bf16(from_bits(b << 16 | 0x8000)), b & 1 ? b + 1 : b);
        assert_int_equal(hd_f32_to_bf16(from_bits(b << 16 | 0x7fff)), b);
        assert_int_equal(hd_f32_to_bf16(from_bits(b << 16 | 0x8001)), b + 1);
    }
}

static void too_large_becomes_infinity(void **state)
{
    /* the largest f16 is 65504; half a step above it, 65520, is the first that rounds away */
    assert_int_equal(hd_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(hd_f32_to_f16(nextafterf(65520.0f, 0.0f)), 0x7bff);
    assert_int_equal(hd_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(hd_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(hd_f32_to_bf16(from_bits(0x7f7fffff)), 0x7f80);
}

static void names_and_sizes_belong_together(void **state)
{
    enum hd_dtype dtype;

    for (int t = 0; t < HD_DTYPE_COUNT; t++) {
        assert_true(hd_dtype_from_name(hd_dtype_name((enum hd_dtype)t), &dtype));
        assert_int_equal(dtype, t);
    }
    assert_int_equal(hd_dtype_size(HD_BF16), 2);
    assert_int_equal(hd_dtype_size(HD_I64), sizeof(int64_t));
    assert_int_equal(hd_dtype_size(HD_DTYPE_COUNT), 0);
    assert_false(hd_dtype_from_name("fp32", &dtype));
    assert_string_equal(hd_dtype_name(HD_DTYPE_COUNT), "unknown");
}

RUN_CASES()
