/* attention: forward and backward against double, over the whole contract of the header. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/attention_problem.h"

/* Key tiles are 64 long (on panels 256, 128 or 126) and blocks of rows 512: lengths on both sides
 * of each. */
/* B, q_len, kv_len, kv_stride, H, G, D, window, kv_filled, pad */
static const struct shape shapes[] = {
    /* of a whole tile one key of one row is hidden: by the order, the window, a document's start */
    {1, 10, 72, 72, 1, 1, 8, 0, -1, 0, .causal = true},
    {1, 10, 72, 72, 1, 1, 8, 71, -1, 0, .causal = false},
    {1, 124, 192, 192, 1, 1, 8, 0, -1, 0, .bound = true},
    /* the last key that a row of the tile after next sees is the last of a tile */
    {1, 200, 200, 200, 1, 1, 8, 66, -1, 0, .causal = true},
    {1, 1, 2, 2, 1, 1, 8, 0, -1, 0, .causal = false},
    {2, 65, 65, 65, 2, 2, 40, 0, -1, 0, .causal = true},
    {1, 130, 130, 133, 4, 2, 64, 0, -1, 3, .causal = true, .slopes = true},
    {2, 70, 70, 70, 3, 1, 24, 17, -1, 8, .causal = true},
    {2, 100, 100, 128, 2, 1, 16, 0, -1, 0, .causal = true, .bound = true},
    {3, 1, 150, 160, 8, 2, 32, 0, 77, 0, .causal = true, .slopes = true},
    {1, 5, 90, 90, 2, 1, 128, 64, 90, 1, .causal = true, .bound = true, .slopes = true},
    {1, 33, 200, 200, 1, 1, 256, 0, -1, 0, .slopes = true},
    {1, 300, 300, 300, 4, 2, 8, 90, -1, 0, .causal = true, .bound = true},
    {1, 261, 275, 280, 6, 3, 72, 140, -1, 1, .causal = true},
    {1, 40, 20, 20, 2, 2, 48, 0, -1, 0, .causal = true, .bound = true},
    /* every restriction and the slopes at once, over several tiles */
    {1, 200, 230, 230, 4, 2, 32, 90, -1, 0, .causal = true, .bound = true, .slopes = true},
    /* tiles of tensor cores, 128 queries and 64 or 128 keys: left out, masked and whole ones; rows
     * on bounds of 16 bytes, as those kernels take them */
    {1, 300, 300, 300, 4, 2, 64, 0, -1, 0, .causal = true},
    {1, 128, 256, 256, 1, 1, 64, 0, -1, 8, .causal = false},
    {1, 261, 275, 280, 2, 1, 128, 90, -1, 8, .causal = true},
    {2, 130, 130, 130, 4, 1, 96, 0, -1, 8, .causal = true, .bound = true},
    {1, 40, 200, 200, 2, 1, 64, 0, -1, 0, .slopes = true},
    {1, 200, 230, 230, 2, 2, 128, 90, -1, 0, .causal = true, .bound = true, .slopes = true},
    {1, 150, 150, 150, 1, 1, 96, 40, -1, 0, .causal = true, .slopes = true},
    {3, 1, 150, 160, 8, 2, 64, 0, 77, 0, .causal = true},
    {1, 9, 150, 150, 2, 1, 96, 0, 0, 0, .causal = false},
    /* an emulated device's L2 holds two heads of three: blocks come in sections of two and one */
    {1, 130, 40, 40, 3, 3, 64, 0, -1, 0, .causal = false},
    /* scores so wide that most rows find a larger one behind their first tile of keys: by so much
     * that what they summed is rescaled, or by less */
    {1, 70, 290, 290, 2, 1, 64, 0, -1, 0, .spread = 14},
    {1, 70, 290, 290, 2, 1, 128, 0, -1, 0, .spread = 14, .causal = true, .slopes = true},
    {1, 40, 20, 20, 8, 1, 128, 0, -1, 0, .causal = true, .bound = true},
    /* caps so small that most scores are near them, in whole tiles, masked ones and the last one */
    {1, 70, 290, 290, 2, 1, 64, 0, -1, 0, .spread = 4, .cap = 1.5},
    {2, 66, 70, 70, 2, 1, 24, 0, -1, 1, .spread = 3, .cap = 0.75, .causal = true},
    {1, 130, 130, 130, 2, 2, 96, 0, -1, 0, .spread = 4, .cap = 1.5, .causal = true},
    /* number 32: with it bf16 and f16 meet each setting of an emulated device, narrow blocks too */
    {1, 130, 150, 150, 2, 1, 128, 40, -1, 0, .spread = 4, .cap = 0.75, .causal = true,
     .bound = true},
    /* chunks: from the beginning; from the beginning of documents, which are longer, with windows;
     * of a cache */
    {1, 140, 140, 140, 2, 1, 64, 0, -1, 0, .chunk = 37, .causal = true},
    {1, 100, 110, 110, 2, 2, 16, 9, -1, 0, .chunk = 14, .causal = true, .bound = true},
    {3, 1, 150, 160, 8, 2, 64, 0, 150, 0, .chunk = 48, .spread = 4, .cap = 1.5, .causal = true},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

/* An error of the score of 2^-24 relative to its size (some 10) changes p by as much. */
static void forward_is_the_reference(void **state)
{
    for (int i = 0; i < SHAPE_COUNT * float_type_count; i++) {
        const struct problem p =
            attention_problem(&shapes[i / float_type_count], float_types[i % float_type_count]);
        const int64_t rows = p.s->B * p.s->q_len, width = p.s->H * p.s->D;
        struct tensor *out = tensor_new(rows * p.ldq, p.dtype);
        struct tensor *lse = tensor_new(p.s->H * rows, HD_F32);
        struct tensor *top = tensor_new(p.s->H, HD_F32);
        struct hd_attention_forward_args args = attention_forward_args(&p, out, lse);
        const struct ref_attention naive = attention_naive(&p);
        double *naive_out = doubles(rows * width);

        ref_attention(&naive, naive_out, doubles(p.s->H * rows), p.q->values, p.k->values,
                      p.v->values);
        for (int setting = 0; setting < attention_setting_count; setting++) {
            struct device device;

            if (!setting_is_in_turn(setting, i) || !setting_takes(setting, p.dtype))
                continue;
            device = device_open(&settings[setting]);
            tensor_poison(out);
            tensor_poison(lse);
            for (int64_t h = 0; h < p.s->H; h++)
                tensor_put(top, h, 0);
            args.top_score = p.s->slopes && !p.s->causal ? NULL : top->data;
            device_launch(&device, HD_K_attention_forward, &args);
            if (args.top_score)
                assert_close("top_score", top, p.ref.top, FP32_UNITS);
            attention_check("out", &device, &p, gather_rows(out, rows, width, p.ldq), p.out,
                            naive_out, FP32_UNITS);
            assert_close("lse", lse, p.lse_exact, FP32_UNITS);
            device_close(&device);
        }
        tensors_free();
    }
}

/* Goal: the largest score of a step survives later launches. Method: a head whose score is larger
 * already keeps it, the other one is raised. */
static void a_larger_top_score_stays(void **state)
{
    static const struct shape shape = {1, 70, 70, 70, 2, 1, 64, 0, -1, 0, .causal = true};

    for (int i = 0; i < float_type_count; i++) {
        const struct problem p = attention_problem(&shape, float_types[i]);
        struct tensor *out = tensor_new(70 * p.ldq, p.dtype), *lse = tensor_new(140, HD_F32);
        struct tensor *top = tensor_new(2, HD_F32);
        struct hd_attention_forward_args args = attention_forward_args(&p, out, lse);
        struct device device = device_open(&settings[0]);

        tensor_put(top, 0, 0);
        tensor_put(top, 1, 1e6);
        args.top_score = top->data;
        device_launch(&device, HD_K_attention_forward, &args);
        assert_close("top_score", top, (const double[]){p.ref.top[0], 1e6}, FP32_UNITS);
        assert_true(p.ref.top[0] > 0.5);
        device_close(&device);
        tensors_free();
    }
}

/* Shapes with queries that see nothing must be among the tested ones. */
static void some_queries_see_no_key(void **state)
{
    int64_t blind = 0;

    for (int i = 0; i < SHAPE_COUNT; i++) {
        const struct problem p = attention_problem(&shapes[i], HD_F32);

        for (int64_t r = 0; r < p.lse->count; r++)
            blind += isinf(p.lse_exact[r]) ? 1 : 0;
        tensors_free();
    }
    assert_true(blind > 0);
}

/* An encoding, its gradients' and whether they are added. */
static const struct kind {
    enum hd_dtype dtype, grad_dtype;
    bool accumulate;
} kinds[] = {{HD_F32, HD_F32, false},  {HD_F32, HD_F32, true},  {HD_BF16, HD_BF16, false},
             {HD_BF16, HD_F32, false}, {HD_BF16, HD_F32, true}, {HD_F16, HD_F16, false},
             {HD_F16, HD_F32, true}};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

static void backward_is_the_reference(void **state)
{
    for (int i = 0; i < SHAPE_COUNT * KIND_COUNT; i++) {
        const struct kind *kind = &kinds[i % KIND_COUNT];
        const struct shape *shape = &shapes[i / KIND_COUNT];
        struct gradient gradients[3];
        struct problem p;

        if (shape->kv_filled >= 0)
            continue; /* backward has no cache */
        p = attention_problem(shape, kind->dtype);
        attention_gradients(&p, kind->grad_dtype, kind->accumulate, gradients);
        for (int setting = 0; setting < attention_setting_count; setting++)
            if (setting_is_in_turn(setting, i) && setting_takes(setting, p.dtype))
                attention_check_backward(&settings[setting], &p, kind->grad_dtype, kind->accumulate,
                                         gradients);
        tensors_free();
    }
}

static void a_head_width_that_does_not_fit_is_refused(void **state)
{
    static const int64_t widths[] = {4, 12, 264};
    struct device device = device_open(&settings[0]);

    for (int i = 0; i < 3; i++) {
        struct hd_attention_forward_args f = {.B = 1,
                                              .q_len = 1,
                                              .kv_len = 1,
                                              .kv_stride = 1,
                                              .H = 1,
                                              .G = 1,
                                              .D = widths[i],
                                              .dtype = HD_F32};
        struct hd_attention_backward_args b = {.B = 1,
                                               .q_len = 1,
                                               .kv_len = 1,
                                               .kv_stride = 1,
                                               .H = 1,
                                               .G = 1,
                                               .D = widths[i],
                                               .dtype = HD_F32,
                                               .grad_dtype = HD_F32};

        assert_int_equal(device_try(&device, HD_K_attention_forward, &f), HD_UNSUPPORTED);
        assert_non_null(strstr(hd_err_message(), "multiples of 8 up to 256"));
        assert_int_equal(device_try(&device, HD_K_attention_backward, &b), HD_UNSUPPORTED);
    }
    device_close(&device);
}

RUN_CASES()
