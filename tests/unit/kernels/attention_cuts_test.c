/* attention_cuts: attention of every length, and however its work is cut: over blocks, over parts
 * of the heads that share keys, over threads. */
#include <stdlib.h>

#include "kernels/costs/costs.h"
#include "tests/unit/kernels/attention_problem.h"

/* Goal: no length is special. Method: all up to half a tile of tensor cores and those around a
 * whole one, each of one width, encoding and number of heads that share keys. */
static void every_length_is_right(void **state)
{
    static const int64_t widths[] = {64, 96, 128}, shared[] = {1, 4, 8};

    for (int64_t i = 0; i < 69; i++) {
        const int64_t length = i < 65 ? i + 1 : i + 62; /* 1 .. 65, 127 .. 130 */
        const struct shape shape = {.B = 1,
                                    .q_len = length,
                                    .kv_len = length,
                                    .kv_stride = length,
                                    .H = shared[i / 3 % 3],
                                    .G = 1,
                                    .D = widths[i % 3],
                                    .kv_filled = -1,
                                    .causal = true};
        const struct problem p = attention_problem(&shape, i % 2 ? HD_F16 : HD_BF16);
        const struct ref_attention naive = attention_naive(&p);
        const struct setting *setting = &settings[i % setting_count];
        struct tensor *out = tensor_new(p.q->count, p.dtype);
        struct tensor *lse = tensor_new(p.lse->count, HD_F32);
        struct hd_attention_forward_args args = attention_forward_args(&p, out, lse);
        double *naive_out = doubles(p.q->count);
        struct device device = device_open(setting);
        struct gradient gradients[3];

        ref_attention(&naive, naive_out, doubles(p.lse->count), p.q->values, p.k->values,
                      p.v->values);
        device_launch(&device, HD_K_attention_forward, &args);
        attention_check("out", &device, &p, out, p.out, naive_out, FP32_UNITS);
        assert_close("lse", lse, p.lse_exact, FP32_UNITS);
        device_close(&device);
        attention_gradients(&p, p.dtype, false, gradients);
        attention_check_backward(setting, &p, p.dtype, false, gradients);
        tensors_free();
    }
}

/* Goal: on a GPU, dk and dv are right however the heads that share keys are cut into parts: not,
 * into parts of several, of one, of unequal numbers; where a part sees nothing of a tile of keys,
 * too. Method: one shape of each against the reference. 512 blocks are asked for with a head of 64
 * channels, else 256; a shape has `tiles` of 128 keys times B times G of them for each part. What
 * the parts cost is scratch, fp32 sums for dk and dv of every part, that fp32 programs of the same
 * shape do without. */
static void heads_that_share_keys_are_cut(void **state)
{
    static const struct {
        int64_t B, q_len, kv_len, H, G, D, window, parts, part_heads;
    } cuts[] = {
        {32, 3, 3, 24, 8, 128, 0, 1, 3},    /* 1 x 32 x 8 = 256: enough */
        {16, 3, 5, 24, 8, 96, 0, 2, 2},     /* 128: 2 parts, of 2 heads and of 1 */
        {16, 2, 2, 40, 8, 128, 0, 2, 3},    /* 3 and 2 of 5 heads */
        {32, 3, 3, 16, 8, 64, 0, 2, 1},     /* 256 are half of 512 */
        {1, 130, 130, 12, 2, 128, 0, 6, 1}, /* 2 x 1 x 2: as many as there are */
        {1, 20, 280, 4, 2, 64, 40, 2, 1},   /* keys of the first tile that nobody sees */
        {2, 20, 150, 6, 2, 64, 0, 3, 1},
    };
    const struct hd_traits traits = {.multiprocessors = 1}; /* a GPU */

    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        const struct shape shape = {.B = cuts[i].B,
                                    .q_len = cuts[i].q_len,
                                    .kv_len = cuts[i].kv_len,
                                    .kv_stride = cuts[i].kv_len,
                                    .H = cuts[i].H,
                                    .G = cuts[i].G,
                                    .D = cuts[i].D,
                                    .window = cuts[i].window,
                                    .kv_filled = -1,
                                    .causal = true};
        const int64_t sums_bytes =
            cuts[i].parts * 2 * shape.B * shape.G * shape.kv_len * shape.D * 4;
        struct problem p = attention_problem(&shape, i % 4 > 1 ? HD_F16 : HD_BF16);
        struct hd_attention_backward_args args = attention_backward_args(&p), plain = args;
        const struct hd_costs_attention_mask_extents sights =
            hd_costs_attention_backward_mask_extents(&args);
        struct gradient gradients[3];

        plain.dtype = HD_F32;
        assert_int_equal(sights.parts, cuts[i].parts);
        assert_int_equal(sights.part_heads, cuts[i].part_heads);
        assert_int_equal(hd_scratch_attention_backward(&args, &traits) -
                             hd_scratch_attention_backward(&plain, &traits),
                         cuts[i].parts > 1 ? sums_bytes : 0);
        attention_gradients(&p, i % 2 ? HD_F32 : p.dtype, i % 2, gradients);
        attention_check_backward(&settings[(int)i % setting_count], &p, i % 2 ? HD_F32 : p.dtype,
                                 i % 2, gradients);
        tensors_free();
    }
}

static void bits_are_the_same_in_every_setting(const struct shape *shape)
{
    const struct problem p = attention_problem(shape, HD_BF16);
    const int64_t rows = p.s->B * p.s->q_len;
    struct tensor *out[3], *dq[3], *dk[3], *dv[3];

    for (int i = 0; i < 3; i++) {
        struct device device = device_open(&settings[i]);
        struct tensor *lse = tensor_new(p.lse->count, HD_F32);
        struct hd_attention_forward_args f;
        struct hd_attention_backward_args b = attention_backward_args(&p);

        out[i] = tensor_new(rows * p.ldq, HD_BF16);
        dq[i] = tensor_new(rows * p.ldq, HD_BF16);
        dk[i] = tensor_new(p.s->B * p.s->kv_stride * p.ldkv, HD_BF16);
        dv[i] = tensor_new(p.s->B * p.s->kv_stride * p.ldkv, HD_BF16);
        f = attention_forward_args(&p, out[i], lse);
        b.dq = dq[i]->data;
        b.dk = dk[i]->data;
        b.dv = dv[i]->data;
        b.grad_dtype = HD_BF16;
        device_launch(&device, HD_K_attention_forward, &f);
        device_launch(&device, HD_K_attention_backward, &b);
        device_close(&device);
        assert_same_bits("out", out[i], out[0]);
        assert_same_bits("dq", dq[i], dq[0]);
        assert_same_bits("dk", dk[i], dk[0]);
        assert_same_bits("dv", dv[i], dv[0]);
    }
    tensors_free();
}

/* Goal: results do not depend on the number of threads. Method: 1, 2 and 3 threads, bit for bit; of
 * a shape for plain code, and of one for tensor cores whose heads are cut into parts. */
static void threads_do_not_change_a_bit(void **state)
{
    static const struct shape plain = {.B = 1,
                                       .q_len = 130,
                                       .kv_len = 130,
                                       .kv_stride = 133,
                                       .H = 4,
                                       .G = 2,
                                       .D = 64,
                                       .kv_filled = -1,
                                       .pad = 3,
                                       .causal = true,
                                       .slopes = true};
    static const struct shape cut = {.B = 2,
                                     .q_len = 70,
                                     .kv_len = 150,
                                     .kv_stride = 150,
                                     .H = 4,
                                     .G = 1,
                                     .D = 64,
                                     .kv_filled = -1,
                                     .causal = true};

    bits_are_the_same_in_every_setting(&plain);
    bits_are_the_same_in_every_setting(&cut);
}

RUN_CASES()
