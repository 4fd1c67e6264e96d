/* delta_state: convolution and gated delta rule in decoding. A sequence in parts of any length,
 * with the state of its slot between them, gives what it gives at once. */
#include "tests/unit/kernels/harness.h"

enum { SLOTS = 3, ROWS = 81, G = 1, H = 2, DK = 16, DV = 8, N = 2 * G * DK + H * DV, W = 4 };

/* Lengths of the parts, which add up to ROWS: shorter than the convolution, whose slot then holds rows
 * from before the sequence, longer than a chunk of the rule, one row. */
static const int32_t parts[] = {2, 70, 1, 1, 7};
enum { PARTS = sizeof parts / sizeof parts[0], MOST = 70 };

/* Numbers of the two sequences of a call: the first has a part, the second is padding, whose slot
 * must not change. */
struct filled {
    int32_t before[2], after[2], slot[2];
};
static struct filled *filled_at(int32_t begin, int32_t count)
{
    const struct filled f = {{begin, ROWS}, {begin + count, 0}, {2, 0}};

    return reachable(&f, sizeof f);
}

/* Returns the rows of a part in a call of two sequences of MOST rows; all else is NaN. */
static struct tensor *part_of(const struct tensor *all, int64_t begin, int64_t count, int64_t width)
{
    struct tensor *part = tensor_new(2 * MOST * width, all->dtype);

    for (int64_t i = 0; i < count * width; i++)
        tensor_put(part, i, all->values[begin * width + i]);
    return part;
}

static void check_rows(const char *what, const struct tensor *got, const double *want,
                       int64_t begin, int64_t count, int64_t width, double rounding)
{
    for (int64_t i = 0; i < count * width; i++)
        assert_close_at(what, begin * width + i, tensor_get(got, i), want[begin * width + i],
                        rounding);
}

static void check_conv_of(struct device *device, enum hd_dtype dtype, double rounding, bool plain)
{
    const struct tensor *inp = tensor_random((int64_t)ROWS * N, dtype, 1, 1);
    const struct tensor *weight = tensor_random((int64_t)N * W, dtype, 1, 2);
    struct tensor *kept = tensor_new((int64_t)SLOTS * (W - 1) * N, dtype);
    double *want = doubles((int64_t)ROWS * N);
    int32_t begin = 0;

    ref_conv(want, inp->values, weight->values, NULL, 1, ROWS, N, W, plain);
    for (int i = 0; i < PARTS; begin += parts[i++]) {
        const struct filled *filled = filled_at(begin, parts[i]);
        struct tensor *out = tensor_new((int64_t)2 * MOST * N, dtype);
        struct hd_conv_forward_args a = {.out = out->data,
                                         .state = kept->data,
                                         .inp = part_of(inp, begin, parts[i], N)->data,
                                         .weight = weight->data,
                                         .before = filled->before,
                                         .after = filled->after,
                                         .slot = filled->slot,
                                         .B = 2,
                                         .S = MOST,
                                         .N = N,
                                         .W = W,
                                         .plain = plain,
                                         .dtype = dtype};

        device_launch(device, HD_K_conv_forward, &a);
        check_rows("conv", out, want, begin, parts[i], N, rounding);
    }
    assert_true(tensor_get(kept, 0) != tensor_get(kept, 0)); /* slot 0 is still NaN */
}

/* Results are below 16 and are rounded once. */
static void check_conv(struct device *device)
{
    check_conv_of(device, HD_F32, 2e-5, false);
    check_conv_of(device, HD_F32, 2e-5, true);
    check_conv_of(device, HD_BF16, 16 * 0x1p-9, false);
    check_conv_of(device, HD_F16, 16 * 0x1p-12, false);
}

static void check_delta(struct device *device)
{
    const struct ref_delta ref = {
        .B = 1, .S = ROWS, .G = G, .H = H, .Dk = DK, .Dv = DV, .eps = 1e-6};
    const struct tensor *qkv = tensor_random((int64_t)ROWS * N, HD_F32, 1, 1);
    struct tensor *gates = tensor_new((int64_t)ROWS * 2 * H, HD_F32);
    struct tensor *states = tensor_new((int64_t)SLOTS * H * DK * DV, HD_F32);
    double *want = doubles((int64_t)ROWS * H * DV);
    int32_t begin = 0;

    for (int64_t i = 0; i < gates->count; i++)
        tensor_put(gates, i, i / H % 2 ? -0.03 * (double)(i % 5) : 0.1 * (double)(i % 9));
    ref_gated_delta(&ref, want, qkv->values, gates->values);
    for (int i = 0; i < PARTS; begin += parts[i++]) {
        const struct filled *filled = filled_at(begin, parts[i]);
        struct tensor *out = tensor_new((int64_t)2 * MOST * H * DV, HD_F32);
        struct hd_gated_delta_forward_args a = {.out = out->data,
                                                .state = states->data,
                                                .qkv = part_of(qkv, begin, parts[i], N)->data,
                                                .gates =
                                                    part_of(gates, begin, parts[i], 2 * H)->data,
                                                .before = filled->before,
                                                .after = filled->after,
                                                .slot = filled->slot,
                                                .B = 2,
                                                .S = MOST,
                                                .G = G,
                                                .H = H,
                                                .Dk = DK,
                                                .Dv = DV,
                                                .eps = 1e-6f,
                                                .dtype = HD_F32};

        device_launch(device, HD_K_gated_delta_forward, &a);
        check_rows("delta", out, want, begin, parts[i], (int64_t)H * DV, 2e-5);
    }
    assert_true(tensor_get(states, 0) != tensor_get(states, 0)); /* slot 0 is still NaN */
}

static void everywhere(void (*check)(struct device *device))
{
    for (int setting = 0; setting < setting_count; setting++) {
        struct device device = device_open(&settings[setting]);

        check(&device);
        device_close(&device);
        tensors_free();
    }
}

static void a_convolution_in_parts_is_that_of_the_whole(void **state)
{
    everywhere(check_conv);
}

static void a_delta_rule_in_parts_is_that_of_the_whole(void **state)
{
    everywhere(check_delta);
}

RUN_CASES()
