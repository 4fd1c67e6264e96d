/* backend: the function table of the CUDA plug-in: opens a device, enqueues kernels on streams. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/costs/attention_by.h"
#include "kernels/costs/costs.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn.h"

/* Status and hint for CUDA errors that users meet; other errors get HD_INTERNAL and no hint. */
static const struct {
    cudaError_t error;
    enum hd_status status;
    const char *hint;
} errors[] = {
    {cudaErrorMemoryAllocation, HD_NO_MEMORY, "the device has too little free memory"},
    {cudaErrorInsufficientDriver, HD_UNSUPPORTED,
     "no NVIDIA driver, or it is older than this CUDA runtime; install a newer driver"},
    {cudaErrorNoDevice, HD_UNSUPPORTED,
     "no GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {cudaErrorInvalidDevice, HD_INVALID, "no visible GPU has this number"},
    {cudaErrorNoKernelImageForDevice, HD_UNSUPPORTED,
     "the plug-in has no code for this GPU; rebuild it with HEDDLE_CUDA_ARCHITECTURES"},
    {cudaErrorDevicesUnavailable, HD_UNAVAILABLE, "another process uses the GPU exclusively"},
    {cudaErrorECCUncorrectable, HD_IO,
     "the GPU's memory has an uncorrectable ECC error; take the GPU out of service"},
    {cudaErrorIllegalAddress, HD_INTERNAL,
     "a kernel accessed memory out of bounds; run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer "
     "to see which"},
};

enum hd_status hd_cuda_check(cudaError_t error, const char *what)
{
    enum hd_status st = HD_INTERNAL;
    const char *hint = NULL;

    if (error == cudaSuccess)
        return HD_OK;
    (void)cudaGetLastError(); /* clears the error, which the next launch would report again */
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].error == error) {
            st = errors[i].status;
            hint = errors[i].hint;
        }
    return hd_err(st, "%s: %s: %s%s%s", what, cudaGetErrorName(error), cudaGetErrorString(error),
                  hint ? "; " : "", hint ? hint : "");
}

cudaError_t hd_cuda_turn(int device)
{
    int current = -1;
    cudaError_t error = cudaGetDevice(&current);

    if (!error && current != device)
        error = cudaSetDevice(device);
    return error;
}

enum hd_status hd_cuda_use(int device)
{
    return hd_cuda_check(hd_cuda_turn(device),
                         "an earlier launch failed, or the device cannot be used");
}

cudaError_t hd_cuda_widen(struct hd_backend *cuda, const void *kernel)
{
    struct cudaFuncAttributes attributes;
    int device = 0, most = 0;
    cudaError_t error;

    for (int i = 0; cuda && i < cuda->wide_count; i++)
        if (cuda->wide[i] == kernel)
            return cudaSuccess;
    error = cudaGetDevice(&device);
    if (!error)
        error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (!error)
        error = cudaFuncGetAttributes(&attributes, kernel);
    if (!error)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     most - (int)attributes.sharedSizeBytes);
    if (!error && cuda && cuda->wide_count < HD_CUDA_WIDE_MAX)
        cuda->wide[cuda->wide_count++] = kernel;
    return error;
}

static bool has_library(const struct hd_backend_options *options)
{
    return !options->force_plain &&
           (options->gemm_by == HD_GEMM_BY_BEST || options->gemm_by == HD_GEMM_BY_LIBRARY);
}

/* Writes the part of hd_traits.isa that names cuDNN. */
static enum hd_status name_cudnn(bool deterministic, int capability, char *ret_by,
                                 size_t size_bytes)
{
    int version;
    const enum hd_status st = hd_cuda_cudnn_load(&version);

    if (st)
        return hd_err_prefix(st, HD_ATTENTION_ENV "=cudnn");
    if (deterministic && capability / 10 == 10)
        return hd_err(
            HD_UNSUPPORTED,
            HD_ATTENTION_ENV
            "=cudnn: gradients by cuDNN are not deterministic on compute capability %d.%d; leave "
            "it out, or train.deterministic",
            capability / 10, capability % 10);
    (void)snprintf(ret_by, size_bytes, HD_BY_CUDNN "%d.%d.%d%.*s", version / 10000,
                   version / 100 % 100, version % 100, deterministic,
                   (const char[]){HD_BY_CUDNN_ORDERED, 0});
    return HD_OK;
}

/* Returns HD_UNSUPPORTED, for a setting that asks for wgmma, where there is none; `instead` is the
 * default. */
static enum hd_status refuse_without_wgmma(const char *setting, const char *instead, int capability)
{
    const char *missing = NULL;

#if !defined(HD_HOPPER) && !defined(HD_CUDASIM)
    missing = "a plug-in built by nvcc 12.0 or newer";
#endif
    if (capability != HD_WGMMA_CAPABILITY)
        missing = "a GPU of compute capability 9.0 (H100, H200)";
    return missing ? hd_err(HD_UNSUPPORTED, "%s=wgmma needs %s; leave it out, or set it to %s",
                            setting, missing, instead)
                   : HD_OK;
}

/* Reads where gated activations are computed, and writes the part of hd_traits.isa that says it; "":
 * in launches of their own. */
static enum hd_status read_glu(int capability, char *ret_by, size_t size_bytes)
{
    const char *wish = getenv(HD_GLU_ENV);

    ret_by[0] = '\0';
    if (!wish || !*wish || !strcmp(wish, "separate"))
        return HD_OK;
    if (strcmp(wish, "wgmma") != 0)
        return hd_err(HD_INVALID, HD_GLU_ENV " is \"%s\"; it takes separate or wgmma", wish);
    (void)snprintf(ret_by, size_bytes, HD_BY_GLU);
    return refuse_without_wgmma(HD_GLU_ENV, "separate", capability);
}

/* Reads what is to compute attention, and writes the part of hd_traits.isa that names it; "": the kernels
 * for all GPUs. */
static enum hd_status read_attention(const struct hd_backend_options *options, int capability,
                                     char *ret_by, size_t size_bytes)
{
    const char *wish = getenv(HD_ATTENTION_ENV);

    ret_by[0] = '\0';
    if (!wish || !*wish || !strcmp(wish, "tiled"))
        return HD_OK;
    if (!strcmp(wish, "cudnn"))
        return name_cudnn(options->deterministic, capability, ret_by, size_bytes);
    if (strcmp(wish, "wgmma") != 0)
        return hd_err(HD_INVALID, HD_ATTENTION_ENV " is \"%s\"; it takes tiled, wgmma or cudnn",
                      wish);
    (void)snprintf(ret_by, size_bytes, HD_BY_WGMMA);
    return refuse_without_wgmma(HD_ATTENTION_ENV, "tiled", capability);
}

static enum hd_status look_at(const struct hd_backend_options *options, struct hd_traits *ret_t)
{
    struct hd_traits *t = ret_t;
    struct cudaDeviceProp device;
    char glu_by[sizeof HD_BY_GLU], attention_by[sizeof t->isa];
    enum hd_status st;
    int version = 0;

    hd_traits_of_gpu(0, 0, 0, has_library(options), t);
    st = hd_cuda_check(cudaRuntimeGetVersion(&version), "cuda");
    if (!st)
        st = hd_cuda_check(cudaGetDeviceProperties(&device, options->device), "cuda");
    if (st)
        return hd_err_prefix(st, "device %d", options->device);
    st = read_attention(options, device.major * 10 + device.minor, attention_by,
                        sizeof attention_by);
    if (!st)
        st = read_glu(device.major * 10 + device.minor, glu_by, sizeof glu_by);
    if (st)
        return st;
    hd_traits_of_gpu(device.multiProcessorCount, device.major * 10 + device.minor,
                     (int64_t)device.totalGlobalMem, has_library(options), t);
    if (has_library(options))
        hd_cuda_gemm_library_name(t->library, sizeof t->library);
    t->gelu_separate = options->epilogues_separate;
    (void)snprintf(t->isa, sizeof t->isa, "sm_%d_cuda_%d.%d%s%s", t->capability, version / 1000,
                   version % 1000 / 10, glu_by, attention_by);
    return HD_OK;
}

/* Sets *ret_traits to the device's traits; on failure they have no multiprocessors, and opening the
 * backend reports the reason. */
static void describe(const struct hd_backend_options *options, struct hd_traits *ret_traits)
{
    (void)look_at(options, ret_traits);
}

static void close_cuda(struct hd_backend *cuda)
{
    if (!cuda)
        return;
    (void)cudaSetDevice(cuda->device); /* not hd_cuda_use: keep the error message */
    hd_cuda_gemm_close(cuda->gemm);
    hd_cuda_cudnn_close(cuda->cudnn);
    hd_cuda_staging_free(cuda->staging);
    free(cuda);
}

static enum hd_status ask_for_sizes(struct hd_backend *cuda)
{
    const struct {
        enum cudaDeviceAttr attribute;
        int *ret;
    } sizes[] = {
        {cudaDevAttrL2CacheSize, &cuda->l2_bytes},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, &cuda->shared_bytes},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &cuda->shared_bytes_all},
    };
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && !st; i++)
        st = hd_cuda_check(cudaDeviceGetAttribute(sizes[i].ret, sizes[i].attribute, cuda->device),
                           "cannot read the sizes of the device's cache and shared memory");
    return st;
}

static enum hd_status open_cuda(const struct hd_backend_options *options,
                                struct hd_backend **ret_backend)
{
    struct hd_backend *cuda = calloc(1, sizeof *cuda);
    bool ordered;
    enum hd_status st;

    if (!cuda)
        return hd_err(HD_NO_MEMORY, "no memory for the cuda backend");
    cuda->options = *options;
    cuda->device = options->device;
    st = look_at(options, &cuda->traits);
    if (!st && cuda->traits.capability < 80)
        st = hd_err(HD_UNSUPPORTED,
                    "device %d has compute capability %d.%d; Heddle needs 8.0 (A100) or newer",
                    options->device, cuda->traits.capability / 10, cuda->traits.capability % 10);
    if (!st)
        st = hd_cuda_read_graphs(&cuda->takes_graphs);
    if (!st)
        st = hd_cuda_check(cudaSetDevice(options->device), "cannot use the device");
    if (!st)
        st = ask_for_sizes(cuda);
    if (!st)
        st = hd_cuda_staging_new(&cuda->staging);
    if (!st && has_library(options))
        st = hd_cuda_gemm_open(cuda, &cuda->gemm);
    if (!st && hd_costs_attention_is_by_cudnn(&cuda->traits, &ordered))
        st = hd_cuda_cudnn_open(&cuda->cudnn);
    if (st) {
        close_cuda(cuda);
        return st;
    }
    if (cuda->cudnn || hd_costs_attention_is_by_wgmma(&cuda->traits))
        hd_log(HD_LOG_INFO,
               "device %d: attention by %s where it takes the shape (" HD_ATTENTION_ENV ")",
               cuda->device, strstr(cuda->traits.isa, cuda->cudnn ? HD_BY_CUDNN : HD_BY_WGMMA) + 1);
    if (strstr(cuda->traits.isa, HD_BY_GLU))
        hd_log(HD_LOG_INFO,
               "device %d: gated activations inside products where it takes the shape (" HD_GLU_ENV
               ")",
               cuda->device);
    *ret_backend = cuda;
    return HD_OK;
}

static enum hd_status stream_open(struct hd_backend *cuda, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream)
{
    struct hd_cuda_stream *s = calloc(1, sizeof *s);
    int least = 0, greatest = 0;
    enum hd_status st;

    if (!s)
        return hd_err(HD_NO_MEMORY, "no memory for a stream of the cuda backend");
    st = hd_cuda_use(cuda->device);
    if (!st)
        st = hd_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                           "cannot read the range of stream priorities");
    if (!st)
        st = hd_cuda_check(
            cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking,
                                         purpose == HD_STREAM_FOR_COMM ? greatest : least),
            "cannot create a stream");
    if (st) {
        free(s);
        return st;
    }
    s->stream.table = hd_backend_cuda();
    s->cuda = cuda;
    *ret_stream = &s->stream;
    return HD_OK;
}

static void stream_close(struct hd_stream *stream)
{
    struct hd_cuda_stream *s = (struct hd_cuda_stream *)stream;

    if (!s)
        return;
    hd_cuda_graphs_free(s);
    (void)cudaStreamDestroy(s->handle);
    free(s);
}

static enum hd_status launch_kernel(struct hd_stream *stream, enum hd_kernel kernel,
                                    const void *args)
{
    struct hd_cuda_stream *s = (struct hd_cuda_stream *)stream;
    const enum hd_status st = hd_cuda_use(s->cuda->device);

    if (st)
        return st;
    switch (kernel) {
#define K(name, ...)  \
    case HD_K_##name: \
        return hd_cuda_##name(s, args);
#include "kernels/kernels.def"
    case HD_KERNEL_COUNT:
        break;
    }
    return hd_err(HD_INTERNAL, "the cuda backend has no kernel number %d; the numbers end at %d",
                  (int)kernel, (int)HD_KERNEL_COUNT - 1);
}

static enum hd_status synchronize(struct hd_stream *stream)
{
    struct hd_cuda_stream *s = (struct hd_cuda_stream *)stream;
    cudaError_t error = hd_cuda_turn(s->cuda->device);

    if (!error)
        error = cudaStreamSynchronize(s->handle);
    return hd_cuda_check(error, HD_CUDA_LAUNCHED_FAILED);
}

/* Prepares the products of an iteration from x to the scratch and back. */
static enum hd_status prepare_newton(struct hd_backend *cuda,
                                     const struct hd_newton_schulz_args *args)
{
    const struct hd_costs_newton_layout l = hd_costs_lay_out_newton(args, &cuda->traits);
    enum hd_status st = hd_costs_newton_check(args);

    for (int k = 0; !st && k < 2 * HD_NEWTON_PRODUCTS; k++) {
        const struct hd_gemm_args g =
            hd_costs_newton_bound(args, &l, (enum hd_newton_product)(k / 2),
                                  k % 2 ? args->scratch : args->x, k % 2 ? args->x : args->scratch);

        st = hd_cuda_gemm_prepare(cuda, &g);
    }
    return st;
}

static enum hd_status prepare(struct hd_backend *cuda, enum hd_kernel kernel, const void *args)
{
    const enum hd_status st = hd_cuda_use(cuda->device);

    if (!st && kernel == HD_K_fp8_gemm)
        return hd_cuda_fp8_gemm_prepare(cuda, args);
    if (!st && kernel == HD_K_newton_schulz)
        return prepare_newton(cuda, args);
    if (!st)
        (void)hd_cuda_cudnn_computes(cuda, kernel, args); /* makes the plan of a shape */
    return !st && kernel == HD_K_gemm ? hd_cuda_gemm_prepare(cuda, args) : st;
}

static enum hd_status computed_by(struct hd_backend *cuda, enum hd_kernel kernel, const void *args,
                                  const char **ret_by)
{
    bool supported = false;
    enum hd_status st = hd_cuda_use(cuda->device);

    if (!st && kernel == HD_K_gemm)
        st = hd_cuda_gemm_supported(cuda, args, &supported);
    /* The library must compute an fp8 product, because own code for it does not exist. */
    if (!st && kernel == HD_K_fp8_gemm) {
        st = hd_cuda_fp8_gemm_supported(cuda, args);
        supported = !st;
    }
    if (!st)
        *ret_by = supported ? cuda->traits.library
                  : hd_cuda_cudnn_computes(cuda, kernel, args)
                      ? strstr(cuda->traits.isa, HD_BY_CUDNN) + 1
                      : "own";
    return st;
}

static double measure_peak(struct hd_backend *cuda, enum hd_dtype dtype)
{
    struct cudaDeviceProp device;
    int clock_khz = 0;

    if (cudaGetDeviceProperties(&device, cuda->device) ||
        cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, cuda->device))
        return 0;
    return hd_cuda_peak(device.name, cuda->traits.capability, cuda->traits.multiprocessors,
                        1000.0 * clock_khz, dtype, cuda->options.tf32);
}

static struct hd_backend_table table = {
    .abi = HD_KERNEL_ABI,
    .table_bytes = sizeof table,
    .name = "cuda",
    .device = &hd_cuda_device_table,
    .describe = describe,
    .open = open_cuda,
    .close = close_cuda,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .launch = launch_kernel,
    .synchronize = synchronize,
    .prepare = prepare,
    .measure_peak = measure_peak,
    .computed_by = computed_by,
    .choices = hd_cuda_gemm_choices,
    .choose = hd_cuda_gemm_choose,
    .keep_choices = hd_cuda_gemm_keep_choices,
};

/* the hash is computed at run time: this field is not a constant expression */
static void hash_table(void)
{
    table.kernel_list_hash = hd_kernel_list_hash();
}

const struct hd_backend_table *hd_backend_cuda(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, hash_table);
    return &table;
}
