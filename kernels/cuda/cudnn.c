/* cudnn: loads cuDNN, and keeps a plan for each shape of attention that a backend launches. HEDDLE_CUDNN
 * may contain the library's path.
 *
 * A causal mask by the indices of a launch is the mask by rows if queries and keys are the same rows, whose
 * indices ascend. Never run on a GPU; cuDNN 9.28 makes plans of these graphs for compute capabilities 8.0 to 10.0.
 */
#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/costs/attention_by.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/library.h"

static struct hd_cudnn_calls calls;

/* ---- loading ---- */

static char load_error[256];

/* First version whose backward takes lengths that are no multiple of 128 without another mask, and that
 * sets sums of dq to zero itself; 9.10 had errors in attention. */
enum { VERSION_MIN = 91800, VERSION_END = 100000 };

static void load_cudnn(void)
{
#ifdef HD_CUDASIM
#define X(name) calls.name = name;
    HD_CUDNN_CALL_LIST(X)
#undef X
#else
    const char *named = getenv("HEDDLE_CUDNN");
    void *library = named ? dlopen(named, RTLD_NOW | RTLD_LOCAL) : hd_library_open("libcudnn.so.9");

    if (!library) {
        (void)snprintf(load_error, sizeof load_error, "%s", dlerror());
        return;
    }
#define X(name)                                                                       \
    *(void **)&calls.name = dlsym(library, #name);                                    \
    if (!calls.name) {                                                                \
        (void)snprintf(load_error, sizeof load_error, "libcudnn.so.9 has no " #name); \
        return;                                                                       \
    }
    HD_CUDNN_CALL_LIST(X)
#undef X
#endif
}

enum hd_status hd_cuda_cudnn_load(int *ret_version)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int version, built_for, runtime = 0;
    enum hd_status st;

    (void)pthread_once(&once, load_cudnn);
    if (load_error[0])
        return hd_err(HD_UNSUPPORTED,
                      "cannot load cuDNN: %s; install it (package libcudnn9-cuda-13, or pip "
                      "install nvidia-cudnn-cu13), or set HEDDLE_CUDNN to the path of "
                      "libcudnn.so.9, or HEDDLE_CUDA_LIBRARIES to its folder",
                      load_error);
    version = (int)calls.cudnnGetVersion();
    if (version < VERSION_MIN || version >= VERSION_END)
        return hd_err(HD_UNSUPPORTED, "cuDNN is version %d.%d.%d; 9.18 or a later 9 is needed",
                      version / 10000, version / 100 % 100, version % 100);
    /* A cuDNN for another CUDA loads that CUDA's cuBLASLt; where it is not installed, cuDNN ends the
     * process. */
    built_for = (int)calls.cudnnGetCudartVersion() / 1000;
    st = hd_cuda_check(cudaRuntimeGetVersion(&runtime), "cannot compare cuDNN's CUDA version");
    if (!st && built_for != runtime / 1000)
        st =
            hd_err(HD_UNSUPPORTED,
                   "cuDNN is for CUDA %d, and this plug-in for CUDA %d; install the other one (pip "
                   "install nvidia-cudnn-cu%d)",
                   built_for, runtime / 1000, runtime / 1000);
    if (!st)
        *ret_version = version;
    return st;
}

/* ---- plans ---- */

enum { SHAPES_MAX = 64 }; /* per backend; launches of further shapes are computed by own kernels */

struct hd_cuda_cudnn {
    cudnnHandle_t handle;
    struct known_shape {
        struct hd_cudnn_shape shape;
        cudnnBackendDescriptor_t plan; /* NULL: the library refused the shape */
    } known[SHAPES_MAX];
    int count;
};

enum hd_status hd_cuda_cudnn_open(struct hd_cuda_cudnn **ret_cudnn)
{
    struct hd_cuda_cudnn *cudnn = calloc(1, sizeof *cudnn);
    int version;
    enum hd_status st =
        cudnn ? hd_cuda_cudnn_load(&version) : hd_err(HD_NO_MEMORY, "no memory for cuDNN");
    cudnnStatus_t status;

    if (!st && (status = calls.cudnnCreate(&cudnn->handle)))
        st = hd_err(HD_UNSUPPORTED, "cannot open cuDNN: %s", calls.cudnnGetErrorString(status));
    if (st) {
        free(cudnn);
        return st;
    }
    *ret_cudnn = cudnn;
    return HD_OK;
}

void hd_cuda_cudnn_close(struct hd_cuda_cudnn *cudnn)
{
    if (!cudnn)
        return;
    for (int i = 0; i < cudnn->count; i++)
        if (cudnn->known[i].plan)
            (void)calls.cudnnBackendDestroyDescriptor(cudnn->known[i].plan);
    (void)calls.cudnnDestroy(cudnn->handle);
    free(cudnn);
}

static void log_refusal(const struct hd_cudnn_shape *s, const char *why)
{
    hd_log(HD_LOG_WARN,
           "attention: %s of %lld sequences of %lld tokens, %lld heads of %lld channels with %lld "
           "of keys, is "
           "computed by Heddle's own kernels: %s",
           s->backward ? "backward" : "forward", (long long)s->B, (long long)s->S, (long long)s->H,
           (long long)s->D, (long long)s->G, why);
}

/* Returns the plan of a shape; NULL: the library has none. */
static cudnnBackendDescriptor_t find(struct hd_cuda_cudnn *cudnn,
                                     const struct hd_cudnn_shape *shape)
{
    const struct hd_costs_cudnn_scratch scratch = hd_costs_cudnn_lay_out(
        shape->backward, shape->deterministic, shape->B, shape->S, shape->H, shape->G, shape->D);
    struct known_shape *known;

    for (int i = 0; i < cudnn->count; i++)
        if (!memcmp(&cudnn->known[i].shape, shape, sizeof *shape))
            return cudnn->known[i].plan;
    if (cudnn->count == SHAPES_MAX)
        return NULL;
    known = &cudnn->known[cudnn->count++];
    known->shape = *shape;
    if (hd_cudnn_plan_make(&calls, cudnn->handle, shape, scratch.workspace_bytes, &known->plan))
        log_refusal(shape, hd_err_message());
    return known->plan;
}

/* ---- launches ---- */

static bool are_aligned(const void *base, int64_t ld)
{
    return ((uintptr_t)base | (uintptr_t)(ld * 2)) % 16 == 0;
}

static bool is_ordered(const struct hd_backend *cuda)
{
    bool ordered;

    (void)hd_costs_attention_is_by_cudnn(&cuda->traits, &ordered);
    return ordered;
}

/* Members of a shape that forward and backward have in common. */
#define SHAPE_OF(a)                                                                       \
    .B = (a)->B, .S = (a)->q_len, .H = (a)->H, .G = (a)->G, .D = (a)->D, .ldq = (a)->ldq, \
    .ldk = (a)->ldk, .ldv = (a)->ldv, .ldo = (a)->ldo, .dtype = (int64_t)(a)->dtype
#define ARE_ROWS_ALIGNED(a)                                            \
    (are_aligned((a)->q, (a)->ldq) && are_aligned((a)->k, (a)->ldk) && \
     are_aligned((a)->v, (a)->ldv) && are_aligned((a)->out, (a)->ldo))

static cudnnBackendDescriptor_t forward_plan(struct hd_backend *cuda,
                                             const struct hd_attention_forward_args *a)
{
    const struct hd_cudnn_shape shape = {SHAPE_OF(a)};

    if (!cuda->cudnn || !hd_costs_cudnn_has_forward(a) || a->q_index != a->kv_index ||
        !ARE_ROWS_ALIGNED(a))
        return NULL;
    return find(cuda->cudnn, &shape);
}

static cudnnBackendDescriptor_t backward_plan(struct hd_backend *cuda,
                                              const struct hd_attention_backward_args *a)
{
    const struct hd_cudnn_shape shape = {SHAPE_OF(a),
                                         .lddo = a->lddo,
                                         .lddq = a->lddq,
                                         .lddk = a->lddk,
                                         .lddv = a->lddv,
                                         .backward = 1,
                                         .deterministic = is_ordered(cuda)};

    if (!cuda->cudnn || !hd_costs_cudnn_has_backward(a) || a->q_index != a->kv_index ||
        !ARE_ROWS_ALIGNED(a) || !are_aligned(a->dout, a->lddo) || !are_aligned(a->dq, a->lddq) ||
        !are_aligned(a->dk, a->lddk) || !are_aligned(a->dv, a->lddv))
        return NULL;
    return find(cuda->cudnn, &shape);
}

static enum hd_status run(struct hd_cuda_stream *stream, cudnnBackendDescriptor_t plan,
                          void *memory[HD_CUDNN_MEMORY_COUNT], float scale, void *workspace)
{
    cudnnHandle_t handle = stream->cuda->cudnn->handle;
    float masked_out = -INFINITY, one = 1;
    const cudnnStatus_t status = calls.cudnnSetStream(handle, stream->handle);

    if (status)
        return hd_err(HD_INTERNAL, "cuDNN takes no stream: %s", calls.cudnnGetErrorString(status));
    memory[HD_CUDNN_SCALE] = &scale;
    memory[HD_CUDNN_MASKED_OUT] = &masked_out;
    if (memory[HD_CUDNN_DELTA])
        memory[HD_CUDNN_ONE] = &one;
    return hd_cudnn_plan_run(&calls, handle, plan, memory, workspace);
}

enum hd_status hd_cuda_cudnn_forward(struct hd_cuda_stream *stream,
                                     const struct hd_attention_forward_args *a, bool *ret_done)
{
    cudnnBackendDescriptor_t plan = forward_plan(stream->cuda, a);
    void *memory[HD_CUDNN_MEMORY_COUNT] = {
        [HD_CUDNN_Q] = (void *)a->q, [HD_CUDNN_K] = (void *)a->k, [HD_CUDNN_V] = (void *)a->v,
        [HD_CUDNN_OUT] = a->out,     [HD_CUDNN_LSE] = a->lse,
    };

    *ret_done = plan != NULL;
    return plan ? run(stream, plan, memory, a->scale, a->scratch) : HD_OK;
}

enum hd_status hd_cuda_cudnn_backward(struct hd_cuda_stream *stream,
                                      const struct hd_attention_backward_args *a, bool *ret_done)
{
    cudnnBackendDescriptor_t plan = backward_plan(stream->cuda, a);
    const bool ordered = is_ordered(stream->cuda);
    const struct hd_costs_cudnn_scratch scratch =
        hd_costs_cudnn_lay_out(true, ordered, a->B, a->q_len, a->H, a->G, a->D);
    char *base = a->scratch;
    void *memory[HD_CUDNN_MEMORY_COUNT] = {
        [HD_CUDNN_Q] = (void *)a->q,
        [HD_CUDNN_K] = (void *)a->k,
        [HD_CUDNN_V] = (void *)a->v,
        [HD_CUDNN_OUT] = (void *)a->out,
        [HD_CUDNN_LSE] = (void *)a->lse,
        [HD_CUDNN_DOUT] = (void *)a->dout,
        [HD_CUDNN_DQ] = a->dq,
        [HD_CUDNN_DK] = a->dk,
        [HD_CUDNN_DV] = a->dv,
        [HD_CUDNN_DELTA] = base + scratch.delta,
        [HD_CUDNN_DQ_SUM] = ordered ? NULL : base + scratch.dq_sum,
    };

    *ret_done = plan != NULL;
    return plan ? run(stream, plan, memory, a->scale, base + scratch.workspace) : HD_OK;
}

bool hd_cuda_cudnn_computes(struct hd_backend *cuda, enum hd_kernel kernel, const void *args)
{
    return kernel == HD_K_attention_forward    ? forward_plan(cuda, args) != NULL
           : kernel == HD_K_attention_backward ? backward_plan(cuda, args) != NULL
                                               : false;
}
