/* encoding: codes of 8 bits in blocks, against the maps built in double from the paper's rule. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/encoding.h"
#include "base/random.h"
#include "tests/program/test.h"
#include "tests/reference/reference.h"

static const enum hd_map maps[] = {HD_MAP_SIGNED, HD_MAP_UNSIGNED};

static int find(const double *values, double value)
{
    for (int i = 0; i < 256; i++)
        if ((float)values[i] == (float)value)
            return i;
    return -1;
}

/* The published properties: 256 different values, 0 and 1 among them, and of the signed map those
 * of either sign are alike, apart from 1. */
static void a_map_has_256_values_with_0_and_1(void **state)
{
    for (int m = 0; m < 2; m++) {
        double want[256];
        bool seen[256] = {false};

        ref_dynamic_map(want, m == 0);
        for (int i = 1; i < 256; i++)
            assert_true(want[i - 1] < want[i]);
        for (int code = 0; code < 256; code++) {
            const int at = find(want, (double)hd_encoding_value((uint8_t)code, maps[m]));

            assert_true(at >= 0 && !seen[at]);
            seen[at] = true;
        }
        assert_true(hd_encoding_value(0, maps[m]) == 0);
        assert_true(find(want, 0) >= 0 && find(want, 1) == 255);
        for (int i = 0; m == 0 && i < 256; i++)
            assert_true((want[i] == 1) == (find(want, -want[i]) < 0));
    }
}

static double nearest_distance(const double values[256], double x)
{
    double least = INFINITY;

    for (int i = 0; i < 256; i++)
        least = fmin(least, fabs(values[i] - x));
    return least;
}

/* All magnitudes from 1e-9 to 1, 0.01 % apart, and every value and every midpoint of neighbours.
 * What is as near to two values within the rounding of fp32 may get either. A number > 0 of the
 * unsigned map gets no 0. */
static void a_number_gets_the_nearest_code(void **state)
{
    for (int m = 0; m < 2; m++) {
        double values[256], all[256 * 3];
        int count = 0;

        ref_dynamic_map(values, m == 0);
        for (int i = 0; i < 256; i++)
            all[count++] = values[i];
        for (int i = 1; i < 256; i++) {
            all[count++] = (values[i] + values[i - 1]) / 2;
            all[count++] = (values[i] + values[i - 1]) / 2 * (1 + 1e-5);
        }
        for (double x = 1e-9; x < 1; x *= 1.0001)
            for (int k = 0; k < 2 - m; k++) {
                const float tried = (float)(k ? -x : x);
                const uint8_t code = hd_encoding_code(tried, maps[m]);
                const double off = fabs((double)hd_encoding_value(code, maps[m]) - (double)tried);

                if (m == 1 && code == 0)
                    fail_msg("%g > 0 became 0", (double)tried);
                if (m == 1 && x < 3.25e-7)
                    assert_true(hd_encoding_value(code, maps[m]) == 3.25e-7f);
                else
                    assert_true(off <= nearest_distance(values, (double)tried) + 2e-7 * x);
            }
        for (int i = 0; i < count; i++) {
            const uint8_t code = hd_encoding_code((float)all[i], maps[m]);
            const double off = fabs((double)hd_encoding_value(code, maps[m]) - all[i]);

            if (m == 0 || all[i] == 0 || all[i] >= 3.25e-7)
                assert_true(off <= nearest_distance(values, all[i]) + 2e-7 * fabs(all[i]));
        }
    }
}

/* Blocks of numbers of many sizes, made by `kind`: with the largest of either sign, twice with both
 * signs, of zeros, subnormal, infinite. */
enum { KINDS = 6 };
static void fill(float *values, int64_t count, int kind, enum hd_map map, uint64_t key)
{
    for (int64_t i = 0; i < count; i++) {
        const double power = 10 * hd_random_normal(key, (uint64_t)i);
        const float sign = i % 3 ? 1 : -1;

        values[i] = kind == 0 ? 0 : sign * (float)exp(kind == 1 ? power / 100 : power / 2);
        values[i] *= kind == 4 ? 1e-40f : 1;
        if (map == HD_MAP_UNSIGNED)
            values[i] = fabsf(values[i]);
    }
    if (kind == 3)
        values[5] = 1e9f, values[3] = map == HD_MAP_SIGNED ? -1e9f : 1e9f;
    if (kind == 5)
        values[count - 1] = INFINITY;
}

/* Goal: a checkpoint keeps moments in fp32, and loading it gives the codes and scales back. Method:
 * encode, decode, encode. */
static void what_was_decoded_has_the_same_codes_and_scales(void **state)
{
    for (int64_t block = HD_BLOCK_MIN; block <= HD_BLOCK_MAX; block *= 2)
        for (int test = 0; test < 2 * KINDS * 20; test++) {
            enum { COUNT = 2 * HD_BLOCK_MAX };
            const enum hd_map map = maps[test % 2];
            const int kind = test / 2 % KINDS;
            float values[COUNT], decoded[COUNT], scales[2][COUNT / HD_BLOCK_MIN];
            uint8_t codes[2][COUNT];

            fill(values, COUNT, kind, map, hd_random_key((uint64_t)test, (uint64_t)block));
            hd_encode(map, block, COUNT, values, scales[0], codes[0]);
            hd_decode(map, block, COUNT, scales[0], codes[0], decoded);
            hd_encode(map, block, COUNT, decoded, scales[1], codes[1]);
            assert_memory_equal(codes[1], codes[0], COUNT);
            assert_memory_equal(scales[1], scales[0],
                                (size_t)(COUNT / block) * sizeof scales[0][0]);
            for (int64_t i = 0; i < COUNT; i++) {
                const float scale = scales[0][i / block];

                assert_true(isfinite(decoded[i]));
                assert_true(values[i] != 0 || decoded[i] == 0);
                assert_true(map == HD_MAP_SIGNED || values[i] == 0 || decoded[i] > 0);
                if (fabsf(values[i]) == fabsf(scale) && values[i] * scale > 0)
                    assert_true(decoded[i] == values[i]); /* the largest is exact */
            }
        }
}

static void a_block_of_zeros_is_memory_of_zeros(void **state)
{
    static const float zeros[16];
    static const uint8_t no_codes[16];
    float scales[2] = {1, 1}, values[16];
    uint8_t codes[16];

    for (int m = 0; m < 2; m++) {
        hd_encode(maps[m], 8, 16, zeros, scales, codes);
        assert_memory_equal(scales, zeros, sizeof scales);
        assert_memory_equal(codes, no_codes, sizeof codes);
        hd_decode(maps[m], 8, 16, zeros, no_codes, values);
        assert_memory_equal(values, zeros, sizeof values);
    }
}

/* 40 elements in blocks of 8: 5 scales are 20 bytes, aligned 32; 40 codes are aligned 48. */
static void bytes_of_blocks_are_scales_and_codes(void **state)
{
    assert_int_equal(hd_encoding_scales_bytes(40, 8), 32);
    assert_int_equal(hd_encoding_bytes(40, 8), 32 + 48);
    assert_int_equal(hd_encoding_bytes(4096, 256), 4 * 16 + 4096);
    assert_int_equal(hd_encoding_bytes(40, 0), 160);
}

RUN_CASES()
