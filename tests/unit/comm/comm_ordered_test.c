/* comm: ordered sums and maxima by every instruction set that this processor runs, bit for bit as
 * plain scalar loops of this file make them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "comm/comm_internal.h"
#include "comm/ordered_isa.h"
#include "tests/program/test.h"

enum { INPUTS = 5, ELEMS = 2777, ROOM = ELEMS * 8 + 64 };

static _Alignas(64) char inputs[INPUTS][ROOM], result[ROOM], expected[ROOM];

static double read_as_double(const void *at, int64_t i, enum hd_dtype dtype)
{
    switch (dtype) {
    case HD_F32:
        return ((const float *)at)[i];
    case HD_BF16:
        return hd_bf16_to_f32(((const uint16_t *)at)[i]);
    case HD_F16:
        return hd_f16_to_f32(((const uint16_t *)at)[i]);
    default:
        return ((const double *)at)[i];
    }
}

static void write_rounded(void *at, int64_t i, enum hd_dtype dtype, float f, double d)
{
    switch (dtype) {
    case HD_F32:
        ((float *)at)[i] = f;
        break;
    case HD_BF16:
        ((uint16_t *)at)[i] = hd_f32_to_bf16(f);
        break;
    case HD_F16:
        ((uint16_t *)at)[i] = hd_f32_to_f16(f);
        break;
    default:
        ((double *)at)[i] = d;
        break;
    }
}

static bool is_float(enum hd_dtype dtype)
{
    return dtype == HD_F32 || dtype == HD_BF16 || dtype == HD_F16 || dtype == HD_F64;
}

/* A sum in fp32 (f64 in f64), each step rounded; `volatile` keeps the steps apart and scalar. */
static void expect_float(const char *const *in, int in_count, int64_t i, enum hd_dtype dtype,
                         bool max)
{
    volatile float f = (float)read_as_double(in[0], i, dtype);
    volatile double d = read_as_double(in[0], i, dtype);

    for (int p = 1; p < in_count; p++) {
        const double x = read_as_double(in[p], i, dtype);

        if (max) {
            f = isnan(f) || isnan(x) ? NAN : f > (float)x ? f : (float)x;
            d = isnan(d) || isnan(x) ? NAN : d > x ? d : x;
        } else {
            f = f + (float)x;
            d = d + x;
        }
    }
    write_rounded(expected, i, dtype, f, d);
}

static void expect_integer(const char *const *in, int in_count, int64_t i, enum hd_dtype dtype,
                           bool max)
{
    const size_t size = hd_dtype_size(dtype);
    uint64_t sum = 0;
    int64_t most = INT64_MIN;

    for (int p = 0; p < in_count; p++) {
        const char *at = in[p] + (size_t)i * size;
        const int64_t x = dtype == HD_I32   ? *(const int32_t *)at
                          : dtype == HD_I64 ? *(const int64_t *)at
                                            : *(const uint8_t *)at;

        sum += (uint64_t)x;
        most = x > most ? x : most;
    }
    if (max)
        sum = (uint64_t)most;
    memcpy(expected + (size_t)i * size, &sum, size); /* the low bytes: modulo 2^n */
}

/* Which NaN a sum of NaNs gives is nobody's promise; that it is one is. */
static void assert_same(int64_t i, enum hd_dtype dtype)
{
    const size_t size = hd_dtype_size(dtype);

    if (is_float(dtype) && isnan(read_as_double(expected, i, dtype)))
        assert_true(isnan(read_as_double(result, i, dtype)));
    else
        assert_memory_equal(result + (size_t)i * size, expected + (size_t)i * size, size);
}

static void check(enum hd_ordered_isa isa, enum hd_dtype dtype, enum hd_comm_reduce reduce,
                  int in_count, int64_t count, int shift)
{
    const size_t size = hd_dtype_size(dtype), skip = (size_t)shift * size;
    const char *in[INPUTS];

    for (int p = 0; p < in_count; p++)
        in[p] = inputs[p] + skip;
    memset(result, 0x5a, sizeof result);
    hd_ordered_reduce_by(isa, result, (const void *const *)in, in_count, count, dtype, reduce,
                         false);
    for (int64_t i = 0; i < count; i++) {
        if (is_float(dtype))
            expect_float(in, in_count, i, dtype, reduce == HD_COMM_MAX);
        else
            expect_integer(in, in_count, i, dtype, reduce == HD_COMM_MAX);
        assert_same(i, dtype);
    }
    assert_int_equal((unsigned char)result[(size_t)count * size], 0x5a); /* and no further */
}

/* Any bits at all: NaNs, infinities and subnormals among them. */
static void every_instruction_set_gives_the_bits_of_plain_loops(void **state)
{
    static const int64_t counts[] = {0, 1, 7, 16, 33, 1023, 1024, 1025, ELEMS};

    for (int p = 0; p < INPUTS; p++) {
        for (size_t b = 0; b < ROOM; b += 8) {
            const uint64_t bits = hd_random_u64((uint64_t)p + 1, b);

            memcpy(inputs[p] + b, &bits, 8);
        }
    }
    for (int isa = 0; isa < HD_ORDERED_ISA_COUNT; isa++) {
        if (!hd_ordered_runs((enum hd_ordered_isa)isa))
            continue;
        print_message("by instruction set %d\n", isa);
        for (int dtype = 0; dtype < HD_DTYPE_COUNT; dtype++) {
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                for (int in_count = 1; in_count <= INPUTS; in_count += 2) {
                    check((enum hd_ordered_isa)isa, (enum hd_dtype)dtype, HD_COMM_SUM, in_count,
                          counts[c], (int)c % 4);
                    check((enum hd_ordered_isa)isa, (enum hd_dtype)dtype, HD_COMM_MAX, in_count,
                          counts[c], (int)c % 4);
                }
            }
        }
    }
}

/* In steps of 1 KiB of all inputs together, 16 members have a line of 64 bytes each; 17 would have
 * none, and a sum that adds nothing never ends. */
static void a_step_of_a_sum_adds_something_of_however_many(void **state)
{
    assert_int_equal(hd_comm_step_bytes(1024, 1), 1024);
    assert_int_equal(hd_comm_step_bytes(1024, 3), 320); /* 341, to a line */
    assert_int_equal(hd_comm_step_bytes(1024, 16), 64);
    assert_int_equal(hd_comm_step_bytes(1024, 17), 64);
    assert_int_equal(hd_comm_step_bytes(1024, HD_COMM_RANKS_MAX), 64);
}

RUN_CASES()
