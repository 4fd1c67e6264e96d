/* attention_sink: a learned score per head that joins the softmax of finished attention: the
 * kernels alone, and behind attention against a softmax with one more term. */
#include <math.h>

#include "tests/unit/kernels/attention_problem.h"

/* Pairs of log-sum-exp and sink: equal, near, far on either side, and a row without a key. */
static const double pairs[][2] = {{0, 0},     {3.5, 3.25}, {-2, 7},       {60, -60},
                                  {-300, 20}, {1000, 999}, {-INFINITY, 4}};
enum { PAIR_COUNT = sizeof pairs / sizeof pairs[0] };

/* Rows and heads on both sides of what is taken at a time (16 heads, a vector of rows); heads that
 * no vector divides. */
static const int64_t sizes[][3] = {{1, 1, 8}, {37, 3, 40}, {16, 17, 64}, {5, 40, 24}, {7, 3, 13}};
enum { SIZE_COUNT = sizeof sizes / sizeof sizes[0] };
enum { UNITS = 8 }; /* two exponents, a quotient and a product, each within 2 units */

struct finished {
    int64_t R, H, D;
    struct tensor *out, *lse, *dout, *sink;
    double *want_out, *want_lse;
};

/* Head h has the sink of a pair, and its rows log-sum-exps at the distances of all pairs. */
static struct finished make(const int64_t *size, enum hd_dtype dtype)
{
    const int64_t R = size[0], H = size[1], D = size[2];
    struct finished f = {.R = R,
                         .H = H,
                         .D = D,
                         .out = tensor_random(R * H * D, dtype, 1, 31),
                         .lse = tensor_new(R * H, HD_F32),
                         .dout = tensor_random(R * H * D, dtype, 1, 32),
                         .sink = tensor_new(H, dtype),
                         .want_out = doubles(R * H * D),
                         .want_lse = doubles(R * H)};

    for (int64_t h = 0; h < H; h++)
        tensor_put(f.sink, h, pairs[h % PAIR_COUNT][1]);
    for (int64_t i = 0; i < R * H; i++) {
        const double *pair = pairs[(i + i / PAIR_COUNT) % PAIR_COUNT];
        const double sink = f.sink->values[i / R];
        double max, total;

        tensor_put(f.lse, i, pair[0] - pair[1] + sink);
        max = fmax(f.lse->values[i], sink);
        total = exp(f.lse->values[i] - max) + exp(sink - max);
        f.want_lse[i] = max + log(total);
        for (int64_t at = (i % R * H + i / R) * D, d = at; d < at + D; d++) {
            if (isinf(pair[0])) /* what attention gives for no key */
                tensor_put(f.out, d, 0);
            f.want_out[d] = f.out->values[d] * exp(f.lse->values[i] - max) / total;
        }
    }
    return f;
}

static void sinks_take_their_share_of_the_weights(void **state)
{
    for (int i = 0; i < SIZE_COUNT * float_type_count; i++)
        for (int setting = 0; setting < setting_count; setting++) {
            struct finished f =
                make(sizes[i / float_type_count], float_types[i % float_type_count]);
            struct device device = device_open(&settings[setting]);
            struct hd_attention_sink_forward_args args = {.out = f.out->data,
                                                          .lse = f.lse->data,
                                                          .sink = f.sink->data,
                                                          .R = f.R,
                                                          .H = f.H,
                                                          .D = f.D,
                                                          .dtype = f.out->dtype};

            device_launch(&device, HD_K_attention_sink_forward, &args);
            assert_close("out", f.out, f.want_out, UNITS);
            for (int64_t r = 0; r < f.lse->count; r++) /* each in its own size */
                assert_close_at("lse", r, tensor_get(f.lse, r), f.want_lse[r],
                                UNITS * 0x1p-24 * fmax(1, fabs(f.want_lse[r])));
            device_close(&device);
            tensors_free();
        }
}

/* The weight of the sink, exp(sink - lse), at most 1, times the sum of D products: an error of D +
 * 8 units of their absolute values. */
static void the_gradient_of_sinks_is_their_weight_times_the_result(void **state)
{
    for (int i = 0; i < SIZE_COUNT * float_type_count; i++)
        for (int setting = 0; setting < setting_count; setting++) {
            struct finished f =
                make(sizes[i / float_type_count], float_types[i % float_type_count]);
            struct tensor *dsink = tensor_new(f.R * f.H, HD_F32);
            struct tensor *lse = tensor_new(f.R * f.H, HD_F32);
            struct device device = device_open(&settings[setting]);
            struct hd_attention_sink_backward_args args = {.dsink = dsink->data,
                                                           .dout = f.dout->data,
                                                           .out = f.out->data,
                                                           .lse = lse->data,
                                                           .sink = f.sink->data,
                                                           .R = f.R,
                                                           .H = f.H,
                                                           .D = f.D,
                                                           .dtype = f.out->dtype};

            for (int64_t r = 0; r < lse->count; r++)
                tensor_put(lse, r, f.want_lse[r]);
            device_launch(&device, HD_K_attention_sink_backward, &args);
            for (int64_t at = 0; at < f.R * f.H; at++) {
                const int64_t h = at % f.H, r = at / f.H;
                const double weight = exp(f.sink->values[h] - lse->values[h * f.R + r]);
                double sum = 0, size = 0;

                for (int64_t d = at * f.D; d < (at + 1) * f.D; d++) {
                    sum += f.dout->values[d] * f.out->values[d];
                    size += fabs(f.dout->values[d] * f.out->values[d]);
                }
                assert_close_at("dsink", at, tensor_get(dsink, at), -weight * sum,
                                (double)(f.D + UNITS) * 0x1p-24 * weight * size + 1e-30);
            }
            device_close(&device);
            tensors_free();
        }
}

/* Goal: attention and its sinks are one softmax with a term more, in both directions. Method: fp32
 * against the reference, which has that term; one head pair per key head, a masked window. */
static void attention_and_sinks_are_one_softmax(void **state)
{
    /* B, q_len, kv_len, kv_stride, H, G, D, window, kv_filled, pad */
    static const struct shape shapes[] = {
        {2, 40, 40, 40, 4, 2, 16, 9, -1, 0, .causal = true, .sinks = true},
        {1, 30, 70, 70, 2, 1, 24, 0, -1, 0, .chunk = 20, .spread = 4, .cap = 1.5, .causal = true,
         .bound = true, .sinks = true}};

    for (int i = 0; i < 2; i++)
        for (int setting = 0; setting < attention_setting_count; setting++) {
            const struct problem p = attention_problem(&shapes[i], HD_F32);
            const int64_t R = p.s->B * p.s->q_len, H = p.s->H, D = p.s->D;
            struct tensor *out = tensor_new(R * H * D, HD_F32), *lse = tensor_new(H * R, HD_F32);
            struct tensor *dsink = tensor_new(R * H, HD_F32);
            struct hd_attention_forward_args args = attention_forward_args(&p, out, lse);
            struct hd_attention_sink_forward_args sink = {.out = out->data,
                                                          .lse = lse->data,
                                                          .sink = p.sinks->data,
                                                          .R = R,
                                                          .H = H,
                                                          .D = D,
                                                          .dtype = HD_F32};
            struct hd_attention_sink_backward_args back = {.dsink = dsink->data,
                                                           .dout = p.dout->data,
                                                           .out = out->data,
                                                           .lse = lse->data,
                                                           .sink = p.sinks->data,
                                                           .R = R,
                                                           .H = H,
                                                           .D = D,
                                                           .dtype = HD_F32};
            double *want = doubles(H);
            struct gradient gradients[3];
            struct device device;

            if (!setting_takes(setting, HD_F32)) {
                tensors_free();
                continue;
            }
            device = device_open(&settings[setting]);
            device_launch(&device, HD_K_attention_forward, &args);
            device_launch(&device, HD_K_attention_sink_forward, &sink);
            device_launch(&device, HD_K_attention_sink_backward, &back);
            device_close(&device);
            assert_close("out", out, p.out, 4 * FP32_UNITS);
            assert_close("lse", lse, p.lse_exact, FP32_UNITS);
            ref_attention_sinks_backward(&p.ref, want, p.dout->values, p.out, p.lse_exact);
            for (int64_t h = 0; h < H; h++) {
                double sum = 0, size = 0;

                for (int64_t r = 0; r < R; r++) {
                    sum += tensor_get(dsink, r * H + h);
                    size += fabs(tensor_get(dsink, r * H + h));
                }
                assert_true(size > 0.1);
                assert_close_at("dsinks", h, sum, want[h], 4 * FP32_UNITS * 0x1p-24 * size);
            }
            attention_gradients(&p, HD_F32, false, gradients);
            attention_check_backward(&settings[setting], &p, HD_F32, false, gradients);
            tensors_free();
        }
}

RUN_CASES()
