/* attention by cuDNN (HEDDLE_CUDA_ATTENTION=cudnn) against double: by the emulated library, which computes
 * the graph that it is given, and on a GPU by NVIDIA's, if it is installed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/attention_problem.h"

/* B, q_len, kv_len, kv_stride, H, G, D, window, kv_filled, pad */
static const struct shape shapes[] = {
    {2, 70, 70, 70, 2, 2, 64, 0, -1, 0, .causal = true},
    {2, 40, 40, 40, 6, 2, 64, 0, -1, 8, .causal = true, .spread = 6},
    {1, 65, 65, 65, 2, 1, 128, 0, -1, 0, .causal = true},
};
static const enum hd_dtype dtypes[] = {HD_BF16, HD_F16, HD_BF16};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

static struct device open_by(const char *kernels, bool deterministic)
{
    const struct setting setting = {.threads = 1, .deterministic = deterministic};
    struct device device;

    (void)setenv("HEDDLE_CUDA_ATTENTION", kernels, 1);
    device = device_open(&setting);
    (void)unsetenv("HEDDLE_CUDA_ATTENTION");
    return device;
}

static void skip_without_library(void)
{
    struct hd_backend *backend = NULL;

    (void)setenv("HEDDLE_CUDA_ATTENTION", "cudnn", 1);
    if (on_backend()->open(&(struct hd_backend_options){.threads = 1}, &backend)) {
        (void)unsetenv("HEDDLE_CUDA_ATTENTION");
        print_message("%s\n", hd_err_message());
        skip();
    }
    (void)unsetenv("HEDDLE_CUDA_ATTENTION");
    on_backend()->close(backend);
}

static bool is_by_cudnn(struct device *device, enum hd_kernel kernel, const void *args)
{
    const char *by = "";

    assert_int_equal(on_backend()->computed_by(device->backend, kernel, args, &by), HD_OK);
    return strncmp(by, "cudnn_9.", 8) == 0;
}

static void forward_is_the_reference(void **state)
{
    skip_without_library();
    for (int i = 0; i < SHAPE_COUNT; i++) {
        const struct problem p = attention_problem(&shapes[i], dtypes[i]);
        const int64_t rows = p.s->B * p.s->q_len, width = p.s->H * p.s->D;
        struct tensor *out = tensor_new(rows * p.ldq, p.dtype);
        struct tensor *lse = tensor_new(p.s->H * rows, HD_F32);
        struct hd_attention_forward_args args = attention_forward_args(&p, out, lse);
        const struct ref_attention naive = attention_naive(&p);
        double *naive_out = doubles(rows * width);
        struct device device = open_by("cudnn", false);

        ref_attention(&naive, naive_out, doubles(p.s->H * rows), p.q->values, p.k->values,
                      p.v->values);
        tensor_poison(out);
        tensor_poison(lse);
        assert_true(is_by_cudnn(&device, HD_K_attention_forward, &args));
        device_launch(&device, HD_K_attention_forward, &args);
        attention_check("out", &device, &p, gather_rows(out, rows, width, p.ldq), p.out, naive_out,
                        FP32_UNITS);
        assert_close("lse", lse, p.lse_exact, FP32_UNITS * (p.s->spread > 0 ? p.s->spread : 1));
        device_close(&device);
        tensors_free();
    }
}

static void backward_is_the_reference(void **state)
{
    skip_without_library();
    for (int i = 0; i < 2 * SHAPE_COUNT; i++) {
        const struct setting setting = {.threads = 1, .deterministic = i >= SHAPE_COUNT};
        const struct problem p =
            attention_problem(&shapes[i % SHAPE_COUNT], dtypes[i % SHAPE_COUNT]);
        struct gradient gradients[3];

        attention_gradients(&p, p.dtype, false, gradients);
        (void)setenv("HEDDLE_CUDA_ATTENTION", "cudnn", 1);
        attention_check_backward(&setting, &p, p.dtype, false, gradients);
        (void)unsetenv("HEDDLE_CUDA_ATTENTION");
        tensors_free();
    }
}

/* Goal: the library never gets a launch whose mask is not the triangle, or that asks for more. */
static void what_is_not_plain_is_by_own_kernels(void **state)
{
    static const struct shape others[] = {
        {1, 40, 40, 40, 2, 1, 64, 8, -1, 0, .causal = true},
        {1, 40, 40, 40, 2, 1, 64, 0, -1, 0, .causal = false},
        {1, 40, 40, 40, 2, 1, 64, 0, -1, 0, .causal = true, .bound = true},
        {1, 40, 40, 40, 2, 1, 64, 0, -1, 0, .causal = true, .slopes = true},
        {1, 40, 40, 40, 2, 1, 64, 0, 30, 0, .causal = true},
        {1, 40, 40, 40, 2, 1, 64, 0, -1, 0, .causal = true, .chunk = 16},
        {1, 40, 40, 40, 2, 1, 64, 0, -1, 0, .causal = true, .cap = 20},
        {1, 40, 50, 50, 2, 1, 64, 0, -1, 0, .causal = true},
        {1, 40, 40, 40, 2, 1, 96, 0, -1, 0, .causal = true},
        {1, 40, 40, 40, 2, 1, 64, 0, -1, 4, .causal = true}, /* rows at 8 bytes */
    };
    struct hd_attention_forward_args args;
    struct hd_attention_backward_args back;
    struct tensor *out, *lse, *top;
    struct problem p;
    struct device device;

    skip_without_library();
    device = open_by("cudnn", false);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        p = attention_problem(&others[i], HD_BF16);
        out = tensor_new(others[i].q_len * p.ldq, p.dtype);
        lse = tensor_new(others[i].H * others[i].q_len, HD_F32);
        args = attention_forward_args(&p, out, lse);
        assert_false(is_by_cudnn(&device, HD_K_attention_forward, &args));
    }
    p = attention_problem(&shapes[0], HD_BF16);
    top = tensor_new(shapes[0].H, HD_F32);
    out = tensor_new(shapes[0].B * shapes[0].q_len * p.ldq, p.dtype);
    lse = tensor_new(shapes[0].B * shapes[0].H * shapes[0].q_len, HD_F32);
    args = attention_forward_args(&p, out, lse);
    assert_true(is_by_cudnn(&device, HD_K_attention_forward, &args));
    args.top_score = top->data;
    assert_false(is_by_cudnn(&device, HD_K_attention_forward, &args));
    args.top_score = NULL;
    args.kv_index =
        tensor_new(shapes[0].B * shapes[0].q_len, HD_I32)->data; /* keys of another rank */
    assert_false(is_by_cudnn(&device, HD_K_attention_forward, &args));
    back = attention_backward_args(&p);
    back.dq = back.dk = back.dv = out->data;
    back.grad_dtype = HD_BF16;
    assert_true(is_by_cudnn(&device, HD_K_attention_backward, &back));
    back.grad_dtype = HD_F32;
    assert_false(is_by_cudnn(&device, HD_K_attention_backward, &back));
    device_close(&device);
    device = open_by("tiled", false);
    args.kv_index = args.q_index;
    assert_false(is_by_cudnn(&device, HD_K_attention_forward, &args));
    device_close(&device);
    tensors_free();
}

RUN_CASES()
