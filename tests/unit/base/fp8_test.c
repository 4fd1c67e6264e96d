/* fp8: both formats against their definition, and against PyTorch's casts. */
#include <math.h>

#include "base/dtype.h"
#include "base/fp8.h"
#include "tests/program/test.h"

static const enum hd_fp8 formats[] = {HD_E4M3, HD_E5M2};
enum { FORMATS = 2 };

/* The value of a code by the table of the paper, in double. */
static double value_of(int code, enum hd_fp8 format)
{
    const int digits = format == HD_E4M3 ? 3 : 2, bias = format == HD_E4M3 ? 7 : 15;
    const int magnitude = code & 0x7f, mantissa = magnitude & ((1 << digits) - 1);
    const int exponent = magnitude >> digits;
    const double sign = code & 0x80 ? -1 : 1;

    if (format == HD_E4M3 && magnitude == 0x7f)
        return (double)NAN;
    if (format == HD_E5M2 && exponent == 31)
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - digits);
    return sign * ldexp((1 << digits) + mantissa, exponent - bias - digits);
}

static void every_code_has_its_value_and_comes_back(void **state)
{
    for (int f = 0; f < FORMATS; f++)
        for (int code = 0; code < 256; code++) {
            const double want = value_of(code, formats[f]);
            const float value = hd_fp8_value((uint8_t)code, formats[f]);

            assert_int_equal(isnan(value), isnan(want));
            if (isnan(want))
                continue;
            assert_true((double)value == want);
            assert_int_equal(signbit(value) != 0, code >> 7);
            if (isfinite(value)) {
                assert_int_equal(hd_fp8_code(value, formats[f]), code);
                assert_true(hd_bf16_to_f32(hd_f32_to_bf16(value)) == value);
            }
        }
}

/* Goal: as for the short floats (dtype_test). */
static void codes_are_the_nearest_ties_to_even(void **state)
{
    for (int f = 0; f < FORMATS; f++)
        for (int code = 0; code < (formats[f] == HD_E4M3 ? 0x7e : 0x7b); code++) {
            const float middle = (hd_fp8_value((uint8_t)code, formats[f]) +
                                  hd_fp8_value((uint8_t)(code + 1), formats[f])) /
                                 2;

            assert_int_equal(hd_fp8_code(middle, formats[f]), code & 1 ? code + 1 : code);
            assert_int_equal(hd_fp8_code(nextafterf(middle, 0.0f), formats[f]), code);
            assert_int_equal(hd_fp8_code(nextafterf(middle, 1e9f), formats[f]), code + 1);
            assert_int_equal(hd_fp8_code(-middle, formats[f]), 0x80 | (code & 1 ? code + 1 : code));
        }
}

static void what_is_too_large_becomes_the_largest_and_what_is_not_finite_nan(void **state)
{
    static const float large[] = {449,      464,      465,  480,   61440,
                                  65535.0f, 65536.0f, 1e9f, 1e38f, 0x1.fffffep127f};

    for (int f = 0; f < FORMATS; f++) {
        const uint8_t most = formats[f] == HD_E4M3 ? 0x7e : 0x7b;

        assert_true(hd_fp8_value(most, formats[f]) == hd_fp8_largest(formats[f]));
        for (size_t i = f ? 4 : 0; i < sizeof large / sizeof large[0]; i++) {
            assert_int_equal(hd_fp8_code(large[i], formats[f]), most);
            assert_int_equal(hd_fp8_code(-large[i], formats[f]), most | 0x80);
        }
        assert_true(isnan(hd_fp8_value(hd_fp8_code(INFINITY, formats[f]), formats[f])));
        assert_true(isnan(hd_fp8_value(hd_fp8_code(-INFINITY, formats[f]), formats[f])));
        assert_true(isnan(hd_fp8_value(hd_fp8_code(NAN, formats[f]), formats[f])));
        /* also where the product with a scale is */
        assert_int_equal(hd_fp8_encode(1e38f, 0x1p100f, formats[f]), most);
        assert_int_equal(hd_fp8_encode(-1e38f, 0x1p100f, formats[f]), most | 0x80);
        assert_true(
            isnan(hd_fp8_value(hd_fp8_encode(INFINITY, 0x1p-100f, formats[f]), formats[f])));
    }
}

/* Goal: the largest scale with which nothing is clamped. Method: the largest element times the
 * scale is at most the largest value, times twice the scale it is not; at all binades and at the
 * bound within each. */
static void the_scale_uses_the_range(void **state)
{
    for (int f = 0; f < FORMATS; f++) {
        const double most = (double)hd_fp8_largest(formats[f]);

        for (int power = -80; power < 80; power++) {
            const float bound = ldexpf(0.875f, power);
            const float amax[] = {ldexpf(0.5f, power), bound, nextafterf(bound, 1e38f),
                                  ldexpf(0.99f, power)};

            for (int i = 0; i < 4; i++) {
                const int e = hd_fp8_exponent(amax[i], formats[f]);

                assert_true(hd_fp8_power(e) == ldexpf(1, e));
                assert_true(ldexp((double)amax[i], e) <= most);
                assert_true(ldexp((double)amax[i], e + 1) > most);
            }
        }
        assert_int_equal(hd_fp8_exponent(0, formats[f]), 0);
        assert_int_equal(hd_fp8_exponent(1e-44f, formats[f]), HD_FP8_EXPONENT_MAX);
        assert_true(hd_fp8_exponent(0x1.fffffep127f, formats[f]) >= -HD_FP8_EXPONENT_MAX - 20);
    }
    assert_true(hd_fp8_larger(1, -2) == 2);
    assert_true(hd_fp8_larger(1, NAN) == 1);
    assert_true(hd_fp8_larger(1, -INFINITY) == 1);
}

static void codes_are_those_of_pytorch(void **state)
{
    static const struct {
        enum hd_fp8 format;
        float value;
        uint8_t code;
    } golden[] = {
#include "fp8_codes.inc"
    };

    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++)
        assert_int_equal(hd_fp8_code(golden[i].value, golden[i].format), golden[i].code);
}

RUN_CASES()
