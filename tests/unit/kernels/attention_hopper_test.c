/* attention by the kernels for Hopper GPUs (HEDDLE_CUDA_ATTENTION=wgmma) against double; a device with
 * another capability skips. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/attention_problem.h"

/* Tiles have 128 queries and 128 keys, and two stages: with more than 4 tiles of keys each stage is
 * filled three times.
 * B, q_len, kv_len, kv_stride, H, G, D, window, kv_filled, pad */
static const struct shape shapes[] = {
    {1, 200, 200, 200, 2, 1, 64, 0, -1, 0, .causal = true},
    {1, 33, 600, 610, 1, 1, 64, 0, -1, 8, .causal = false},
    {1, 140, 150, 155, 1, 1, 128, 90, -1, 8, .causal = true},
    {1, 20, 640, 640, 1, 1, 128, 0, -1, 0, .causal = false},
    {2, 70, 70, 70, 2, 1, 128, 0, -1, 0, .causal = true, .bound = true},
    {1, 70, 290, 290, 1, 1, 64, 0, -1, 0, .spread = 14},
    /* queries that see no key, in a block that has no tile either */
    {1, 150, 20, 20, 2, 1, 64, 0, -1, 0, .causal = true, .bound = true},
    {2, 60, 60, 60, 2, 2, 64, 0, -1, 8, .causal = true, .chunk = 17},
    {1, 40, 200, 200, 2, 1, 64, 0, -1, 0, .causal = true},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

/* Orders of emulated threads; a Hopper GPU has no narrow blocks. */
static const struct setting hopper_settings[] = {
    {.threads = 1}, {.threads = 1, .order = 1}, {.threads = 1, .order = 3}};

static struct device open_by(const char *kernels, const struct setting *setting)
{
    struct device device;

    (void)setenv("HEDDLE_CUDA_ATTENTION", kernels, 1);
    device = device_open(setting);
    (void)unsetenv("HEDDLE_CUDA_ATTENTION");
    return device;
}

static void skip_unless_hopper(void)
{
    struct hd_traits traits;

    on_backend()->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    if (traits.capability != 90) {
        print_message("the device has compute capability %d.%d; these kernels need 9.0\n",
                      traits.capability / 10, traits.capability % 10);
        skip();
    }
}

static void forward_is_the_reference(void **state)
{
    skip_unless_hopper();
    for (int i = 0; i < SHAPE_COUNT; i++) {
        const struct problem p = attention_problem(&shapes[i], HD_BF16);
        const int64_t rows = p.s->B * p.s->q_len, width = p.s->H * p.s->D;
        struct tensor *out = tensor_new(rows * p.ldq, p.dtype);
        struct tensor *lse = tensor_new(p.s->H * rows, HD_F32);
        struct tensor *top = tensor_new(p.s->H, HD_F32);
        struct hd_attention_forward_args args = attention_forward_args(&p, out, lse);
        const struct ref_attention naive = attention_naive(&p);
        double *naive_out = doubles(rows * width);
        struct device device = open_by("wgmma", &hopper_settings[i % 3]);

        assert_non_null(strstr(device.traits.isa, "_wgmma"));
        ref_attention(&naive, naive_out, doubles(p.s->H * rows), p.q->values, p.k->values,
                      p.v->values);
        tensor_poison(out);
        tensor_poison(lse);
        for (int64_t h = 0; h < p.s->H; h++)
            tensor_put(top, h, 0);
        args.top_score = top->data;
        device_launch(&device, HD_K_attention_forward, &args);
        assert_close("top_score", top, p.ref.top, FP32_UNITS);
        attention_check("out", &device, &p, gather_rows(out, rows, width, p.ldq), p.out, naive_out,
                        FP32_UNITS);
        assert_close("lse", lse, p.lse_exact, FP32_UNITS);
        device_close(&device);
        tensors_free();
    }
}

/* Launches backward and compares; returns the gradients as stored in ret. */
static void check_backward(const struct problem *p, enum hd_dtype grad_dtype, bool accumulate,
                           const struct setting *setting, struct gradient ret[3])
{
    attention_gradients(p, grad_dtype, accumulate, ret);
    (void)setenv("HEDDLE_CUDA_ATTENTION", "wgmma", 1);
    attention_check_backward(setting, p, grad_dtype, accumulate, ret);
    (void)unsetenv("HEDDLE_CUDA_ATTENTION");
}

static void backward_is_the_reference(void **state)
{
    skip_unless_hopper();
    for (int i = 0; i < SHAPE_COUNT; i++) {
        struct gradient gradients[3];
        struct problem p;

        if (shapes[i].D == 128 && shapes[i].kv_len > 300)
            continue; /* the dearest one tells no more than that of 64 channels */
        p = attention_problem(&shapes[i], HD_BF16);
        check_backward(&p, i % 2 ? HD_F32 : HD_BF16, i % 4 == 3, &hopper_settings[i % 3],
                       gradients);
        tensors_free();
    }
}

/* Goal: sums of dq have one order, whatever order blocks and threads begin in. */
static void backward_gives_equal_bits(void **state)
{
    static const struct shape shape = {.B = 1,
                                       .q_len = 40,
                                       .kv_len = 390,
                                       .kv_stride = 390,
                                       .H = 1,
                                       .G = 1,
                                       .D = 64,
                                       .kv_filled = -1,
                                       .causal = true};
    const struct problem p = attention_problem(&shape, HD_BF16);
    struct gradient one[3], other[3];

    skip_unless_hopper();
    check_backward(&p, HD_F32, false, &hopper_settings[0], one);
    for (int i = 1; i < 3; i++) {
        check_backward(&p, HD_F32, false, &hopper_settings[i], other);
        for (int k = 0; k < 3; k++)
            assert_same_bits("a gradient", one[k].got, other[k].got);
    }
    tensors_free();
}

/* Goal: the setting is what it says, or is refused. */
static void other_settings_are_refused(void **state)
{
    const struct hd_backend_options options = {.threads = 1};
    struct hd_backend *backend;
    struct device device;

    skip_unless_hopper();
    device = open_by("tiled", &settings[0]);
    assert_null(strstr(device.traits.isa, "_wgmma"));
    device_close(&device);
    (void)setenv("HEDDLE_CUDA_ATTENTION", "fast", 1);
    assert_int_equal(on_backend()->open(&options, &backend), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "is \"fast\"; it takes tiled, wgmma or cudnn"));
    (void)unsetenv("HEDDLE_CUDA_ATTENTION");
}

RUN_CASES()
