/* attention: forward and backward against double, over the whole contract of the header. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/attention_problem.h"

/* Key tiles are 64 long (on panels 256, 128 or 126) and blocks of rows 512: lengths on both sides
 * of each. */
static const struct shape shapes[] = {
    /* of a whole tile one key of one row is hidden: by the order, the window, a document's start */
    {.B = 1,
     .q_len = 10,
     .kv_len = 72,
     .kv_stride = 72,
     .H = 1,
     .G = 1,
     .D = 8,
     .kv_filled = -1,
     .causal = true},
    {.B = 1,
     .q_len = 10,
     .kv_len = 72,
     .kv_stride = 72,
     .H = 1,
     .G = 1,
     .D = 8,
     .kv_filled = -1,
     .window = 71},
    {.B = 1,
     .q_len = 124,
     .kv_len = 192,
     .kv_stride = 192,
     .H = 1,
     .G = 1,
     .D = 8,
     .kv_filled = -1,
     .bound = true},
    /* the last key that a row of the tile after next sees is the last of a tile */
    {.B = 1,
     .q_len = 200,
     .kv_len = 200,
     .kv_stride = 200,
     .H = 1,
     .G = 1,
     .D = 8,
     .kv_filled = -1,
     .window = 66,
     .causal = true},
    {.B = 1, .q_len = 1, .kv_len = 2, .kv_stride = 2, .H = 1, .G = 1, .D = 8, .kv_filled = -1},
    {.B = 2,
     .q_len = 65,
     .kv_len = 65,
     .kv_stride = 65,
     .H = 2,
     .G = 2,
     .D = 40,
     .kv_filled = -1,
     .causal = true},
    {.B = 1,
     .q_len = 130,
     .kv_len = 130,
     .kv_stride = 133,
     .H = 4,
     .G = 2,
     .D = 64,
     .kv_filled = -1,
     .pad = 3,
     .causal = true,
     .slopes = true},
    {.B = 2,
     .q_len = 70,
     .kv_len = 70,
     .kv_stride = 70,
     .H = 3,
     .G = 1,
     .D = 24,
     .kv_filled = -1,
     .window = 17,
     .pad = 8,
     .causal = true},
    {.B = 2,
     .q_len = 100,
     .kv_len = 100,
     .kv_stride = 128,
     .H = 2,
     .G = 1,
     .D = 16,
     .kv_filled = -1,
     .causal = true,
     .bound = true},
    {.B = 3,
     .q_len = 1,
     .kv_len = 150,
     .kv_stride = 160,
     .H = 8,
     .G = 2,
     .D = 32,
     .kv_filled = 77,
     .causal = true,
     .slopes = true},
    {.B = 1,
     .q_len = 5,
     .kv_len = 90,
     .kv_stride = 90,
     .H = 2,
     .G = 1,
     .D = 128,
     .kv_filled = 90,
     .window = 64,
     .causal = true,
     .bound = true,
     .slopes = true,
     .pad = 1},
    {.B = 1,
     .q_len = 33,
     .kv_len = 200,
     .kv_stride = 200,
     .H = 1,
     .G = 1,
     .D = 256,
     .kv_filled = -1,
     .slopes = true},
    {.B = 1,
     .q_len = 300,
     .kv_len = 300,
     .kv_stride = 300,
     .H = 4,
     .G = 2,
     .D = 8,
     .kv_filled = -1,
     .window = 90,
     .causal = true,
     .bound = true},
    {.B = 1,
     .q_len = 261,
     .kv_len = 275,
     .kv_stride = 280,
     .H = 6,
     .G = 3,
     .D = 72,
     .kv_filled = -1,
     .window = 140,
     .pad = 1,
     .causal = true},
    {.B = 1,
     .q_len = 40,
     .kv_len = 20,
     .kv_stride = 20,
     .H = 2,
     .G = 2,
     .D = 48,
     .kv_filled = -1,
     .causal = true,
     .bound = true},
    /* every restriction and the slopes at once, over several tiles */
    {.B = 1,
     .q_len = 200,
     .kv_len = 230,
     .kv_stride = 230,
     .H = 4,
     .G = 2,
     .D = 32,
     .kv_filled = -1,
     .window = 90,
     .causal = true,
     .bound = true,
     .slopes = true},
    /* tiles of tensor cores, 128 queries and 64 or 128 keys: left out, masked and whole ones; rows
     * on bounds of 16 bytes, as those kernels take them */
    {.B = 1,
     .q_len = 300,
     .kv_len = 300,
     .kv_stride = 300,
     .H = 4,
     .G = 2,
     .D = 64,
     .kv_filled = -1,
     .causal = true},
    {.B = 1,
     .q_len = 128,
     .kv_len = 256,
     .kv_stride = 256,
     .H = 1,
     .G = 1,
     .D = 64,
     .kv_filled = -1,
     .pad = 8},
    {.B = 1,
     .q_len = 261,
     .kv_len = 275,
     .kv_stride = 280,
     .H = 2,
     .G = 1,
     .D = 128,
     .kv_filled = -1,
     .window = 90,
     .pad = 8,
     .causal = true},
    {.B = 2,
     .q_len = 130,
     .kv_len = 130,
     .kv_stride = 130,
     .H = 4,
     .G = 1,
     .D = 96,
     .kv_filled = -1,
     .pad = 8,
     .causal = true,
     .bound = true},
    {.B = 1,
     .q_len = 40,
     .kv_len = 200,
     .kv_stride = 200,
     .H = 2,
     .G = 1,
     .D = 64,
     .kv_filled = -1,
     .slopes = true},
    {.B = 1,
     .q_len = 200,
     .kv_len = 230,
     .kv_stride = 230,
     .H = 2,
     .G = 2,
     .D = 128,
     .kv_filled = -1,
     .window = 90,
     .causal = true,
     .bound = true,
     .slopes = true},
    {.B = 1,
     .q_len = 150,
     .kv_len = 150,
     .kv_stride = 150,
     .H = 1,
     .G = 1,
     .D = 96,
     .kv_filled = -1,
     .window = 40,
     .causal = true,
     .slopes = true},
    {.B = 3,
     .q_len = 1,
     .kv_len = 150,
     .kv_stride = 160,
     .H = 8,
     .G = 2,
     .D = 64,
     .kv_filled = 77,
     .causal = true},
    {.B = 1, .q_len = 9, .kv_len = 150, .kv_stride = 150, .H = 2, .G = 1, .D = 96, .kv_filled = 0},
    /* an emulated device's L2 holds two heads of three: blocks come in sections of two and one */
    {.B = 1, .q_len = 130, .kv_len = 40, .kv_stride = 40, .H = 3, .G = 3, .D = 64, .kv_filled = -1},
    /* scores so wide that most rows find a larger one behind their first tile of keys: by so much
     * that what they summed is rescaled, or by less */
    {.B = 1,
     .q_len = 70,
     .kv_len = 290,
     .kv_stride = 290,
     .H = 2,
     .G = 1,
     .D = 64,
     .kv_filled = -1,
     .spread = 14},
    {.B = 1,
     .q_len = 70,
     .kv_len = 290,
     .kv_stride = 290,
     .H = 2,
     .G = 1,
     .D = 128,
     .kv_filled = -1,
     .spread = 14,
     .causal = true,
     .slopes = true},
    {.B = 1,
     .q_len = 40,
     .kv_len = 20,
     .kv_stride = 20,
     .H = 8,
     .G = 1,
     .D = 128,
     .kv_filled = -1,
     .causal = true,
     .bound = true},
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
            device_launch(&device, HD_K_attention_forward, &args);
            attention_check("out", &device, &p, gather_rows(out, rows, width, p.ldq), p.out,
                            naive_out, FP32_UNITS);
            assert_close("lse", lse, p.lse_exact, FP32_UNITS);
            device_close(&device);
        }
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
