/* cuDNN, emulated: the setting is what it says or is refused with the reason, and of the library's plans the
 * first is taken that needs no more scratch than is planned and that repeats its bits, if that is asked for. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/kernels.h"
#include "kernels/plugin.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

enum { S = 8, D = 64, LD = 3 * D };

static enum hd_status open_with(bool deterministic, struct hd_backend **ret_backend)
{
    const struct hd_backend_options options = {.threads = 1, .deterministic = deterministic};
    enum hd_status st;

    assert_int_equal(setenv("HEDDLE_CUDA_ATTENTION", "cudnn", 1), 0);
    st = hd_backend_cuda()->open(&options, ret_backend);
    assert_int_equal(unsetenv("HEDDLE_CUDA_ATTENTION"), 0);
    return st;
}

static void what_the_setting_needs_is_told(void **state)
{
    static const struct {
        int version, capability;
        bool deterministic;
        const char *told;
    } cases[] = {
        {91701, 90, false,
         "HEDDLE_CUDA_ATTENTION=cudnn: cuDNN is version 9.17.1; 9.18 or a later 9 is needed"},
        {100100, 90, false,
         "HEDDLE_CUDA_ATTENTION=cudnn: cuDNN is version 10.1.0; 9.18 or a later 9 is needed"},
        {91800, 100, true,
         "HEDDLE_CUDA_ATTENTION=cudnn: gradients by cuDNN are not deterministic on compute "
         "capability 10.0; leave "
         "it out, or train.deterministic"},
    };
    struct hd_backend *backend;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hd_cudasim_cudnn_version(cases[i].version);
        hd_cudasim_kind(2, cases[i].capability);
        assert_int_equal(open_with(cases[i].deterministic, &backend), HD_UNSUPPORTED);
        assert_string_equal(hd_err_message(), cases[i].told);
    }
    hd_cudasim_cudnn_version(92800);
    hd_cudasim_cudnn_cuda(12090);
    hd_cudasim_kind(2, 90);
    assert_int_equal(open_with(false, &backend), HD_UNSUPPORTED);
    assert_non_null(
        strstr(hd_err_message(), "cuDNN is for CUDA 12, and this plug-in for CUDA 13; "));
    hd_cudasim_cudnn_cuda(0);
    hd_cudasim_kind(2, 100);
    assert_int_equal(open_with(false, &backend), HD_OK);
    hd_backend_cuda()->close(backend);
    hd_cudasim_kind(2, 90);
}

/* Goal: results depend on the library and on the order of sums, so that both are in the traits, which ranks
 * compare before they connect. */
static void traits_name_the_library(void **state)
{
    struct hd_traits traits;

    assert_int_equal(setenv("HEDDLE_CUDA_ATTENTION", "cudnn", 1), 0);
    hd_backend_cuda()->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    assert_non_null(strstr(traits.isa, "_cudnn_9.28.0"));
    assert_null(strstr(traits.isa, "_cudnn_9.28.0d"));
    hd_backend_cuda()->describe(&(struct hd_backend_options){.threads = 1, .deterministic = true},
                                &traits);
    assert_non_null(strstr(traits.isa, "_cudnn_9.28.0d"));
    assert_int_equal(unsetenv("HEDDLE_CUDA_ATTENTION"), 0);
}

static void *take(size_t bytes)
{
    void *memory = NULL;

    assert_int_equal(cudaMalloc(&memory, bytes), cudaSuccess);
    memset(memory, 0, bytes);
    return memory;
}

/* Launches a backward of one sequence of S rows of one head. */
static void launch(bool deterministic)
{
    static const int32_t index[S] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_traits traits;
    uint16_t *qkv = take(S * LD * 2), *grad = take(S * LD * 2), *out = take(S * D * 2);
    float *lse = take(S * sizeof *lse);
    struct hd_attention_backward_args a = {.dq = grad,
                                           .dk = grad + D,
                                           .dv = grad + 2 * D,
                                           .dout = out,
                                           .q = qkv,
                                           .k = qkv + D,
                                           .v = qkv + 2 * D,
                                           .out = out,
                                           .lse = lse,
                                           .q_index = index,
                                           .kv_index = index,
                                           .B = 1,
                                           .q_len = S,
                                           .kv_len = S,
                                           .kv_stride = S,
                                           .H = 1,
                                           .G = 1,
                                           .D = D,
                                           .ldq = LD,
                                           .ldk = LD,
                                           .ldv = LD,
                                           .ldo = D,
                                           .lddq = LD,
                                           .lddk = LD,
                                           .lddv = LD,
                                           .lddo = D,
                                           .scale = 1,
                                           .causal = true,
                                           .dtype = HD_BF16,
                                           .grad_dtype = HD_BF16};

    assert_int_equal(setenv("HEDDLE_CUDA_ATTENTION", "cudnn", 1), 0);
    hd_backend_cuda()->describe(
        &(struct hd_backend_options){.threads = 1, .deterministic = deterministic}, &traits);
    assert_int_equal(open_with(deterministic, &backend), HD_OK);
    a.scratch = take((size_t)hd_kernel_scratch_bytes(HD_K_attention_backward, &a, &traits));
    assert_int_equal(hd_backend_cuda()->stream_open(backend, HD_STREAM_FOR_COMPUTE, &stream),
                     HD_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hd_backend_cuda()->launch(stream, HD_K_attention_backward, &a), HD_OK);
    assert_int_equal(hd_backend_cuda()->synchronize(stream), HD_OK);
    hd_backend_cuda()->stream_close(stream);
    hd_backend_cuda()->close(backend);
    (void)cudaFree(a.scratch);
    (void)cudaFree(qkv);
    (void)cudaFree(grad);
    (void)cudaFree(out);
    (void)cudaFree(lse);
    assert_int_equal(hd_cudasim_leaks(), 0);
}

static void the_best_plan_that_is_allowed_is_taken(void **state)
{
    launch(false);
    assert_int_equal(hd_cudasim_cudnn_launches(1), 2);
    launch(true);
    assert_int_equal(hd_cudasim_cudnn_launches(0), 0);
    assert_int_equal(hd_cudasim_cudnn_launches(1), 2);
    assert_int_equal(hd_cudasim_cudnn_launches(2), 2);
}

/* Goal: a shape that the library does not compute is computed all the same. */
static void a_refused_shape_is_by_own_kernels(void **state)
{
    const uint64_t before = hd_cudasim_launches();

    hd_cudasim_cudnn_refuse(true);
    launch(false);
    hd_cudasim_cudnn_refuse(false);
    assert_int_equal(hd_cudasim_cudnn_launches(1), 2); /* as the case before left it */
    assert_true(hd_cudasim_launches() > before);
}

RUN_CASES()
