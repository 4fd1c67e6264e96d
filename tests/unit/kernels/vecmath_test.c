/* vecmath: the promised accuracy, for the instruction set this program is compiled for. */
#include <math.h>
#include <string.h>

#if defined(__AVX2__)
#include <cpuid.h>
#endif

#include "kernels/cpu/softmax.h"
#include "kernels/cpu/transpose.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"

static bool runs_here(void)
{
#if defined(__AVX512BF16__)
    return __builtin_cpu_supports("avx512bf16");
#elif defined(__AVX512F__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
    unsigned eax, ebx, ecx, edx;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
#else
    return true;
#endif
}

#define SKIP_WITHOUT_ISA()                                            \
    do {                                                              \
        if (!runs_here()) {                                           \
            print_message("skipped: this processor lacks the set\n"); \
            skip();                                                   \
        }                                                             \
    } while (0)

/* Goal: at most 1.5 units in the last place, 0 below, infinity above; for x <= 88 vf_exp_weight has
 * the same bits. Method: every 97th float
 * (fewer under sanitizers), all exponents and both signs, against exp in double. The unit of the
 * result is 2^-23 of its power of two. */
enum { STRIDE = HD_TEST_SANITIZED ? 1601 : 97 };
static void exp_is_within_one_and_a_half_units(void **state)
{
    double worst = 0;
    int64_t tested = 0;

    SKIP_WITHOUT_ISA();
    for (uint64_t bits = 0; bits < UINT64_C(0x100000000); bits += (uint64_t)VL * STRIDE) {
        vf x, y, weight;

        for (int i = 0; i < VL; i++) {
            const uint32_t pattern = (uint32_t)(bits + (uint64_t)i * STRIDE);
            float value;

            memcpy(&value, &pattern, sizeof value);
            x[i] = value;
        }
        y = vf_exp(x);
        weight = vf_exp_weight(x);
        for (int i = 0; i < VL; i++) {
            const double want = exp((double)x[i]);

            if (!(x[i] > 88))
                assert_true(isnan(x[i]) ? isnan(weight[i]) : weight[i] == y[i]);
            if (isnan(x[i])) {
                assert_true(isnan(y[i]));
            } else if (x[i] < -87.3365402f) {
                assert_true(y[i] == 0);
            } else if (want > (double)3.4028234e38f) {
                assert_true(isinf(y[i]));
            } else {
                int exponent;

                (void)frexp(want, &exponent);
                worst = fmax(worst, fabs((double)y[i] - want) / ldexp(1, exponent - 24));
                tested++;
            }
        }
    }
    print_message("worst error of exp: %.3f units over %lld values\n", worst, (long long)tested);
    assert_true(tested > 1000 * 1000 * 1000 / STRIDE);
    assert_true(worst <= 1.5);
}

/* Every 61st float of [0, 1], against log1p in double. */
static void log1p_is_within_two_and_a_half_units(void **state)
{
    const float one = 1;
    uint32_t last;
    double worst = 0;

    SKIP_WITHOUT_ISA();
    memcpy(&last, &one, sizeof last);
    for (uint32_t bits = 0; bits <= last; bits += HD_TEST_SANITIZED ? 1009 : 61) {
        float x;
        double want;
        int exponent;

        memcpy(&x, &bits, sizeof x);
        want = log1p((double)x);
        (void)frexp(want, &exponent);
        if (fpclassify(x) == FP_NORMAL)
            worst =
                fmax(worst, fabs((double)vf_log1p(vf_set(x))[0] - want) / ldexp(1, exponent - 24));
    }
    print_message("worst error of log1p: %.3f units\n", worst);
    assert_true(worst <= 2.5);
    assert_true(vf_log1p(vf_set(0))[0] == 0);
    assert_true(fabs((double)vf_log1p(vf_set(1))[0] - log(2)) <= 2 * 0x1p-24);
    assert_true(isnan(vf_log1p(vf_set(NAN))[0]));
}

/* Goal: at most 4 units in the last place, 1 from 10 on. Method: every 61st float of [2^-20, 16]
 * with alternating signs, against tanh in double. */
static void tanh_is_within_four_units(void **state)
{
    const float low = 0x1p-20f, high = 16;
    uint32_t bits, last;
    double worst = 0;

    SKIP_WITHOUT_ISA();
    memcpy(&bits, &low, sizeof bits);
    memcpy(&last, &high, sizeof last);
    for (; bits <= last; bits += HD_TEST_SANITIZED ? 1009 : 61) {
        float x;
        double want;
        int exponent;

        memcpy(&x, &bits, sizeof x);
        x = bits % 2 ? -x : x;
        want = tanh((double)x);
        (void)frexp(want, &exponent);
        worst = fmax(worst, fabs((double)vf_tanh(vf_set(x))[0] - want) / ldexp(1, exponent - 24));
    }
    print_message("worst error of tanh: %.3f units\n", worst);
    assert_true(worst <= 4);
    assert_true(vf_tanh(vf_set(0))[0] == 0);
    assert_true(vf_tanh(vf_set(INFINITY))[0] == 1 && vf_tanh(vf_set(-INFINITY))[0] == -1);
    assert_true(isnan(vf_tanh(vf_set(NAN))[0]));
}

static void sigmoid_ends_at_0_and_1(void **state)
{
    static const float inputs[] = {-200, -88, -20, -1, 0, 1, 20, 200};

    SKIP_WITHOUT_ISA();
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        const float got = vf_sigmoid(vf_set(inputs[i]))[0];
        const double want = 1 / (1 + exp(-(double)inputs[i]));

        assert_true(fabs((double)got - want) <= 3 * 0x1p-24 * want + 0x1p-126);
    }
}

/* The instruction takes subnormal values for zero and keeps their sign. */
static uint16_t rounded(float value)
{
#if defined(__AVX512BF16__)
    if (fpclassify(value) == FP_SUBNORMAL)
        return signbit(value) ? 0x8000 : 0;
#endif
    return hd_f32_to_bf16(value);
}

static void bf16_conversion_is_that_of_base(void **state)
{
    SKIP_WITHOUT_ISA();
    for (uint64_t bits = 0; bits < UINT64_C(0x100000000);
         bits += HD_TEST_SANITIZED ? 65537 : 4099) {
        const uint32_t pattern = (uint32_t)bits;
        float value;
        uint16_t stored[VL];

        memcpy(&value, &pattern, sizeof value);
        vf_store_bf16(stored, VL, vf_set(value));
        if (stored[VL - 1] != rounded(value))
            fail_msg("%08x becomes %04x", pattern, stored[VL - 1]);
    }
}

/* Every f16 becomes the value that base gives it, and comes back; a NaN comes back quiet. */
static void every_f16_is_loaded_and_stored(void **state)
{
    SKIP_WITHOUT_ISA();
    for (uint32_t first = 0; first < 0x10000; first += VL) {
        uint16_t halves[VL], stored[VL];
        vf x;

        for (uint32_t i = 0; i < VL; i++)
            halves[i] = (uint16_t)(first + i);
        x = vf_load(halves, 0, VL, HD_F16);
        vf_store(stored, 0, VL, x, HD_F16);
        for (int i = 0; i < VL; i++) {
            const float value = hd_f16_to_f32(halves[i]);

            assert_true(isnan(value) ? isnan(x[i]) : x[i] == value);
            assert_int_equal(stored[i], isnan(value) ? halves[i] | 0x200 : halves[i]);
        }
    }
}

/* Goal: to the nearest, ties to even, 65520 and more to infinity, subnormals kept. Method: between
 * neighbours a < b of f16 the middle goes to the even one, and what is next to the middle to its
 * own side. The successor of the largest number is infinity, at 65536. */
static void f16_is_rounded_to_the_nearest_ties_to_even(void **state)
{
    SKIP_WITHOUT_ISA();
    for (uint16_t a = 0; a < 0x7c00; a++) {
        const uint16_t b = (uint16_t)(a + 1), even = a & 1 ? b : a;
        const float low = hd_f16_to_f32(a), high = b == 0x7c00 ? 65536.0f : hd_f16_to_f32(b);
        const float middle = (low + high) / 2;
        const float values[] = {middle, nextafterf(middle, 0.0f), nextafterf(middle, 1e9f)};
        const uint16_t want[] = {even, a, b};

        for (int i = 0; i < 3; i++) {
            uint16_t stored[2] = {0};

            vf_store(stored, 0, 1, vf_set(values[i]), HD_F16);
            vf_store(stored, 1, 1, vf_set(-values[i]), HD_F16);
            assert_int_equal(stored[0], want[i]);
            assert_int_equal(stored[1], want[i] | 0x8000);
        }
    }
}

static void f16_conversion_is_that_of_base(void **state)
{
    SKIP_WITHOUT_ISA();
    for (uint64_t bits = 0; bits < UINT64_C(0x100000000);
         bits += HD_TEST_SANITIZED ? 65537 : 4099) {
        const uint32_t pattern = (uint32_t)bits;
        float value;
        uint16_t stored[VL];

        memcpy(&value, &pattern, sizeof value);
        vf_store(stored, 0, VL, vf_set(value), HD_F16);
        if (stored[VL - 1] != hd_f32_to_f16(value))
            fail_msg("%08x becomes %04x", pattern, stored[VL - 1]);
    }
}

/* Every count of lanes loads and stores exactly that many, and zeroes the rest of the vector. */
static void parts_of_vectors_touch_only_their_lanes(void **state)
{
    SKIP_WITHOUT_ISA();
    for (int n = 0; n <= VL; n++) {
        float from[VL], to[VL];
        uint16_t short_from[VL], short_to[VL];
        vf x;

        for (int i = 0; i < VL; i++) {
            from[i] = (float)i + 1;
            short_from[i] = hd_f32_to_bf16((float)i + 1);
            to[i] = -1;
            short_to[i] = 7;
        }
        x = vf_load_f32(from, n);
        vf_store_f32(to, n, x + 1);
        for (int i = 0; i < VL; i++) {
            assert_true(x[i] == (i < n ? (float)i + 1 : 0));
            assert_true(to[i] == (i < n ? (float)i + 2 : -1));
        }
        x = vf_load_bf16(short_from, n);
        vf_store_bf16(short_to, n, x);
        for (int i = 0; i < VL; i++) {
            assert_true(x[i] == (i < n ? (float)i + 1 : 0));
            assert_int_equal(short_to[i], i < n ? short_from[i] : 7);
        }
        for (int i = 0; i < VL; i++) {
            short_from[i] = hd_f32_to_f16((float)i + 1);
            short_to[i] = 7;
        }
        x = vf_load(short_from, 0, n, HD_F16);
        vf_store(short_to, 0, n, x, HD_F16);
        for (int i = 0; i < VL; i++) {
            assert_true(x[i] == (i < n ? (float)i + 1 : 0));
            assert_int_equal(short_to[i], i < n ? short_from[i] : 7);
        }
        x = vf_keep(vf_set(3), n, 5);
        for (int i = 0; i < VL; i++)
            assert_true(x[i] == (i < n ? 3 : 5));
    }
}

static void blocks_are_transposed(void **state)
{
    enum { ROWS = 21, COLUMNS = 19, LD = 23, WIDTH = 24 };
    float from[ROWS * LD], to[COLUMNS * WIDTH];

    SKIP_WITHOUT_ISA();
    for (int i = 0; i < ROWS * LD; i++)
        from[i] = (float)i;
    memset(to, 0xff, sizeof to);
    pack_transposed(to, WIDTH, from, 0, LD, ROWS, COLUMNS, WIDTH, HD_F32);
    for (int j = 0; j < COLUMNS; j++)
        for (int i = 0; i < WIDTH; i++)
            assert_true(to[j * WIDTH + i] == (i < ROWS ? from[i * LD + j] : 0));
}

RUN_CASES()
