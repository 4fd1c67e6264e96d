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
    {1, 300, 300, 300, 2, 1, 64, 0, -1, 0, .causal = true},
    {1, 33, 600, 610, 1, 1, 64, 0, -1, 8, .causal = false},
    {1, 261, 275, 280, 2, 1, 128, 90, -1, 8, .causal = true},
    {1, 20, 640, 640, 1, 1, 128, 0, -1, 0, .causal = false},
    {2, 130, 130, 130, 2, 1, 128, 0, -1, 0, .causal = true, .bound = true},
    {1, 70, 290, 290, 2, 1, 64, 0, -1, 0, .spread = 14},
    /* queries that see no key, in a block that has no tile either */
    {1, 150, 20, 20, 2, 1, 64, 0, -1, 0, .causal = true, .bound = true},
    {2, 60, 60, 60, 2, 2, 64, 0, -1, 8, .causal = true, .chunk = 17},
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
        struct hd_attention_forward_args args = attention_forward_args(&p, out, lse);
        const struct ref_attention naive = attention_naive(&p);
        double *naive_out = doubles(rows * width);
        struct device device = open_by("wgmma", &hopper_settings[i % 3]);

        assert_non_null(strstr(device.traits.isa, "_wgmma"));
        ref_attention(&naive, naive_out, doubles(p.s->H * rows), p.q->values, p.k->values,
                      p.v->values);
        tensor_poison(out);
        tensor_poison(lse);
        device_launch(&device, HD_K_attention_forward, &args);
        attention_check("out", &device, &p, gather_rows(out, rows, width, p.ldq), p.out, naive_out,
                        FP32_UNITS);
        assert_close("lse", lse, p.lse_exact, FP32_UNITS);
        device_close(&device);
        tensors_free();
    }
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
    assert_non_null(strstr(hd_err_message(), "is \"fast\"; it takes tiled or wgmma"));
    (void)unsetenv("HEDDLE_CUDA_ATTENTION");
}

RUN_CASES()
