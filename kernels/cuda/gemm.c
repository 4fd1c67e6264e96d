/* gemm: GEMM by cuBLASLt, with bias, epilogue (GELU or its derivative) and dbias; the only file
 * that includes cublasLt.h.
 *
 * cuBLASLt uses column-major matrices: a row-major [M, N] is its [N, M] with the same leading
 * dimension, so c = op(a) op(b) is computed as c' = op(b)' op(a)'; its first factor is our b. The
 * algorithm that the heuristic chose for a shape is cached: a launch is a lookup and one call. The
 * workspace is the op's scratch, so launches on several streams never share one.
 *
 * A GEMM that the library refuses (dtypes, leading dimensions or addresses that none of its kernels
 * supports) is computed by own code (gemm_own.cu). If only the epilogue or dbias is refused, the
 * library computes the plain GEMM, and GELU or the bias gradient is a separate launch, as in a
 * program without fusion. The library may also refuse an algorithm at its first launch, although
 * the heuristic offered it: then the next one of the heuristic's list is tried, and after the last
 * one the GEMM goes the way of a refused one. A line of the log tells each such refusal, because
 * nothing fails and the GPU would just seem slow. Split-K sums are allowed only with an fp32
 * reduction in a second step, in order; with `deterministic` there is no split-K, and dbias is a
 * separate launch, because the library does not document whether it is repeatable.
 *
 * Products in fp8 (fp8_gemm) go the same way, but there is no own code for them: what the library
 * refuses is an error, found by prepare before the first step. Of the layouts it has only the one
 * in which both factors have the depth in their rows, which is ours; their scales are device
 * pointers, and part of the description as a bias is. Sums with fewer bits (FAST_ACCUM) stay off.
 */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/costs/costs.h"
#include "kernels/cuda/cuda.h"

enum { BUCKETS = 64, CHOICES = 4, ALIGN_MAX = 16 };
enum { AUX_ROW = 8 }; /* the library needs ldc of pre and gelu_inp to be a multiple of it */

/* The key of the cache of algorithms. Compared by memcmp, so it is zeroed before it is filled. */
struct cuda_shape {
    int64_t M, N, K, lda, ldb, ldc;
    int32_t trans_a, trans_b, accumulate, epilogue, dbias, ab_dtype, c_dtype;
    int32_t align_a, align_b, align_c; /* alignment in bytes, 16 at most */
    int32_t align_bias, align_aux;     /* of bias or dbias, of pre or gelu_inp; 0: none */
    int32_t fp8_a, fp8_b;              /* the library's types of a and b in fp8; 0: ab_dtype */
};

/* The addresses that are part of the description, not of the call; NULL: none. */
struct cuda_addresses {
    const void *bias, *aux; /* bias: or dbias */
    const float *a_factor, *b_factor;
};

struct cuda_product {
    struct cuda_product *next;
    struct cuda_shape shape;
    bool taken; /* the library computes this shape; false: it refused */
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, c;
    struct cuda_algorithm {
        cublasLtMatmulAlgo_t algo;
        size_t workspace_bytes;
    } choices[CHOICES];       /* the heuristic's list, best first */
    int choice, choice_count; /* the one in use; those before it were refused at a launch */
};

struct hd_cuda_gemm {
    cublasLtHandle_t handle;
    struct cuda_product *products[BUCKETS];
};

void hd_cuda_gemm_library_name(char *ret_name, size_t size_bytes)
{
    const size_t version = cublasLtGetVersion();

    (void)snprintf(ret_name, size_bytes, "cuBLASLt-%zu.%zu.%zu", version / 10000,
                   version / 100 % 100, version % 100);
}

enum hd_status hd_cuda_gemm_open(const struct hd_backend *cuda, struct hd_cuda_gemm **ret_gemm)
{
    struct hd_cuda_gemm *gemm = calloc(1, sizeof *gemm);
    cublasStatus_t failed;

    if (!gemm)
        return hd_err(HD_NO_MEMORY, "no memory for the state of cuBLASLt");
    failed = cublasLtCreate(&gemm->handle);
    if (failed) {
        free(gemm);
        return hd_err(HD_INTERNAL, "cannot create a handle of %s: %s", cuda->traits.library,
                      cublasLtGetStatusString(failed));
    }
    *ret_gemm = gemm;
    return HD_OK;
}

static void free_product(struct cuda_product *p)
{
    if (p->matmul)
        (void)cublasLtMatmulDescDestroy(p->matmul);
    if (p->a)
        (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        (void)cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

void hd_cuda_gemm_close(struct hd_cuda_gemm *gemm)
{
    if (!gemm)
        return;
    for (int i = 0; i < BUCKETS; i++)
        while (gemm->products[i]) {
            struct cuda_product *p = gemm->products[i];

            gemm->products[i] = p->next;
            free_product(p);
        }
    (void)cublasLtDestroy(gemm->handle);
    free(gemm);
}

static cudaDataType_t type_of(enum hd_dtype dtype)
{
    return dtype == HD_BF16 ? CUDA_R_16BF : dtype == HD_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static int32_t align_of(const void *address)
{
    const uintptr_t bits = (uintptr_t)address | ALIGN_MAX;

    return (int32_t)(bits & -bits);
}

/* If a matrix has one row, its ld has no meaning: it is replaced, so that it does not lead to
 * another cache entry or to a shape that the library refuses. */
static int64_t distance(int64_t ld, int64_t rows, int64_t columns)
{
    return rows == 1 ? columns : ld;
}

/* The library's auxiliary matrix: GELU's input, written by forward and read by backward. */
static const void *aux_of(const struct hd_gemm_args *args)
{
    return args->epilogue == HD_EPILOGUE_GELU_BACKWARD ? args->gelu_inp : args->pre;
}

static const void *bias_of(const struct hd_gemm_args *args)
{
    return args->dbias ? args->dbias : args->bias;
}

static struct cuda_addresses addresses_of(const struct hd_gemm_args *args)
{
    return (struct cuda_addresses){.bias = bias_of(args), .aux = aux_of(args)};
}

static void shape_of(const struct hd_gemm_args *args, struct cuda_shape *ret_shape)
{
    struct cuda_shape *s = ret_shape;

    memset(s, 0, sizeof *s);
    s->M = args->M;
    s->N = args->N;
    s->K = args->K;
    s->lda = args->trans_a ? distance(args->lda, args->K, args->M)
                           : distance(args->lda, args->M, args->K);
    s->ldb = args->trans_b ? distance(args->ldb, args->N, args->K)
                           : distance(args->ldb, args->K, args->N);
    s->ldc = distance(args->ldc, args->M, args->N);
    s->trans_a = args->trans_a;
    s->trans_b = args->trans_b;
    s->accumulate = args->accumulate;
    s->epilogue = (int32_t)args->epilogue;
    s->ab_dtype = (int32_t)args->ab_dtype;
    s->c_dtype = (int32_t)args->c_dtype;
    s->align_a = align_of(args->a);
    s->align_b = align_of(args->b);
    s->align_c = align_of(args->c);
    s->dbias = args->dbias != NULL;
    s->align_bias = bias_of(args) ? align_of(bias_of(args)) : 0;
    s->align_aux = aux_of(args) ? align_of(aux_of(args)) : 0;
}

static unsigned bucket_of(const struct cuda_shape *shape)
{
    const unsigned char *bytes = (const unsigned char *)shape;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */

    for (size_t i = 0; i < sizeof *shape; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return (unsigned)((hash >> 32) % BUCKETS);
}

static cublasStatus_t set(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
                          int32_t value)
{
    return cublasLtMatmulDescSetAttribute(matmul, attribute, &value, sizeof value);
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference,
                             cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
}

static cublasLtEpilogue_t epilogue_of(const struct cuda_shape *s)
{
    const bool bias = s->align_bias, aux = s->align_aux;

    if (s->dbias) /* sums of the library's second factor, our a, over K */
        return CUBLASLT_EPILOGUE_BGRADB;
    switch ((enum hd_gemm_epilogue)s->epilogue) {
    case HD_EPILOGUE_GELU:
        return aux ? (bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
                   : (bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU);
    case HD_EPILOGUE_GELU_BACKWARD:
        return CUBLASLT_EPILOGUE_DGELU;
    case HD_EPILOGUE_NONE:
        break;
    }
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Describes the GEMM to the library: [N, M] = op of our b times op of our a. */
static cublasStatus_t make_matmul(const struct hd_backend *cuda, struct cuda_product *p)
{
    const struct cuda_shape *s = &p->shape;
    const bool tf32 = cuda->options.tf32 && s->ab_dtype == HD_F32;
    const cudaDataType_t ab = type_of((enum hd_dtype)s->ab_dtype);
    const cudaDataType_t a_type = s->fp8_a ? (cudaDataType_t)s->fp8_a : ab;
    const cudaDataType_t b_type = s->fp8_b ? (cudaDataType_t)s->fp8_b : ab;
    const int8_t fast_accum = 0;
    cublasStatus_t failed;

    failed = cublasLtMatmulDescCreate(
        &p->matmul, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!failed)
        failed =
            set(p->matmul, CUBLASLT_MATMUL_DESC_TRANSA, s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (!failed)
        failed =
            set(p->matmul, CUBLASLT_MATMUL_DESC_TRANSB, s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (!failed)
        failed = set(p->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, (int32_t)epilogue_of(s));
    if (!failed && s->align_aux)
        failed = cublasLtMatmulDescSetAttribute(p->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                                &s->ldc, sizeof s->ldc);
    if (!failed && s->align_bias)
        failed = set(p->matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                     s->dbias ? (int32_t)CUDA_R_32F : (int32_t)ab);
    if (!failed && s->fp8_a)
        failed = cublasLtMatmulDescSetAttribute(p->matmul, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                                                &fast_accum, sizeof fast_accum);
    if (!failed)
        failed = cublasLtMatrixLayoutCreate(&p->a, b_type, (uint64_t)(s->trans_b ? s->K : s->N),
                                            (uint64_t)(s->trans_b ? s->N : s->K), s->ldb);
    if (!failed)
        failed = cublasLtMatrixLayoutCreate(&p->b, a_type, (uint64_t)(s->trans_a ? s->M : s->K),
                                            (uint64_t)(s->trans_a ? s->K : s->M), s->lda);
    if (!failed)
        failed = cublasLtMatrixLayoutCreate(&p->c, type_of((enum hd_dtype)s->c_dtype),
                                            (uint64_t)s->N, (uint64_t)s->M, s->ldc);
    return failed;
}

static cublasStatus_t set_addresses(const struct cuda_product *p, const struct cuda_addresses *at)
{
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *address;
    } all[] = {{CUBLASLT_MATMUL_DESC_BIAS_POINTER, at->bias},
               {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at->aux},
               {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at->b_factor}, /* its a is our b */
               {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at->a_factor}};
    cublasStatus_t failed = CUBLAS_STATUS_SUCCESS;

    for (size_t i = 0; !failed && i < sizeof all / sizeof all[0]; i++)
        if (all[i].address)
            failed = cublasLtMatmulDescSetAttribute(p->matmul, all[i].attribute, &all[i].address,
                                                    sizeof all[i].address);
    return failed;
}

/* Sets p->taken unless the library cannot compute this shape. Any other failure is an error: if the
 * GEMM silently used own code, the GPU would just seem slow. */
static enum hd_status choose(const struct hd_backend *cuda, struct cuda_product *p,
                             const struct cuda_addresses *at)
{
    const struct cuda_shape *s = &p->shape;
    const uint64_t budget = (uint64_t)cuda->traits.gemm_scratch_bytes;
    cublasLtMatmulHeuristicResult_t found[CHOICES];
    cublasLtMatmulPreference_t preference = NULL;
    int count = 0;
    cublasStatus_t failed;

    if (s->align_aux && (s->ldc % AUX_ROW || s->align_aux < ALIGN_MAX))
        return HD_OK; /* the rule of the library's header, checked here: do not rely on a refusal */
    if ((s->dbias && cuda->traits.dbias_apart) || (s->epilogue && cuda->traits.gelu_apart))
        return HD_OK;
    failed = make_matmul(cuda, p);
    if (!failed)
        failed = set_addresses(p, at);
    if (!failed)
        failed = cublasLtMatmulPreferenceCreate(&preference);
    if (!failed)
        failed = cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &budget, sizeof budget);
    if (!failed)
        failed = prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                        cuda->options.deterministic ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                    : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    if (!failed)
        failed =
            prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)s->align_b);
    if (!failed)
        failed =
            prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)s->align_a);
    if (!failed)
        failed =
            prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)s->align_c);
    if (!failed)
        failed =
            prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)s->align_c);
    if (!failed)
        failed = cublasLtMatmulAlgoGetHeuristic(cuda->gemm->handle, p->matmul, p->a, p->b, p->c,
                                                p->c, preference, CHOICES, found, &count);
    for (int i = 0; !failed && i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= budget)
            p->choices[p->choice_count++] =
                (struct cuda_algorithm){found[i].algo, found[i].workspaceSize};
    p->taken = p->choice_count > 0;
    if (preference)
        (void)cublasLtMatmulPreferenceDestroy(preference);
    if (!failed || failed == CUBLAS_STATUS_NOT_SUPPORTED || failed == CUBLAS_STATUS_INVALID_VALUE)
        return HD_OK;
    return hd_err(failed == CUBLAS_STATUS_ALLOC_FAILED ? HD_NO_MEMORY : HD_INTERNAL,
                  "gemm: cuBLASLt found no algorithm for [%lld,%lld] x [%lld,%lld]: %s",
                  (long long)s->M, (long long)s->K, (long long)s->K, (long long)s->N,
                  cublasLtGetStatusString(failed));
}

static enum hd_status find_shape(const struct hd_backend *cuda, const struct cuda_shape *shape,
                                 const struct cuda_addresses *at, struct cuda_product **ret_product)
{
    struct cuda_product **bucket = &cuda->gemm->products[bucket_of(shape)], *p;
    enum hd_status st;

    for (p = *bucket; p; p = p->next)
        if (!memcmp(&p->shape, shape, sizeof *shape))
            break;
    if (!p) {
        p = calloc(1, sizeof *p);
        if (!p)
            return hd_err(HD_NO_MEMORY, "gemm: no memory for a cuBLASLt algorithm");
        p->shape = *shape;
        st = choose(cuda, p, at);
        if (st) {
            free_product(p);
            return st;
        }
        p->next = *bucket;
        *bucket = p;
    }
    *ret_product = p;
    return HD_OK;
}

static enum hd_status find_product(const struct hd_backend *cuda, const struct hd_gemm_args *args,
                                   struct cuda_product **ret_product)
{
    const struct cuda_addresses at = addresses_of(args);
    struct cuda_shape shape;

    shape_of(args, &shape);
    return find_shape(cuda, &shape, &at, ret_product);
}

static enum hd_status check(const struct hd_gemm_args *args)
{
    const enum hd_dtype ab = args->ab_dtype, c = args->c_dtype;

    if ((ab != HD_F32 && ab != HD_BF16 && ab != HD_F16) ||
        (c != HD_F32 && c != HD_BF16 && c != HD_F16))
        return hd_err(HD_UNSUPPORTED,
                      "gemm: the cuda backend multiplies f32, bf16 and f16, not %s "
                      "into %s",
                      hd_dtype_name(ab), hd_dtype_name(c));
    return hd_costs_gemm_check(args);
}

/* *ret_part: the part of args that the library computes in one call. If the library refuses the
 * epilogue or dbias, it is the plain GEMM (with GELU only if rows have no gaps, because
 * gelu_forward needs a flat tensor). A dbias with accumulate is computed into scratch first. */
static enum hd_status find_way(const struct hd_backend *cuda, const struct hd_gemm_args *args,
                               struct hd_gemm_args *ret_part, struct cuda_product **ret_product)
{
    enum hd_status st;

    *ret_part = *args;
    if (args->dbias && args->accumulate)
        ret_part->dbias = hd_costs_gemm_dbias(args, &cuda->traits).scratch;
    st = find_product(cuda, ret_part, ret_product);
    if (st || (*ret_product)->taken || (!args->epilogue && !args->dbias) ||
        (args->epilogue && distance(args->ldc, args->M, args->N) != args->N))
        return st;
    ret_part->dbias = NULL;
    ret_part->epilogue = HD_EPILOGUE_NONE;
    ret_part->pre = NULL;
    ret_part->gelu_inp = NULL;
    if (args->pre)
        ret_part->c = args->pre;
    return find_product(cuda, ret_part, ret_product);
}

enum hd_status hd_cuda_gemm_prepare(struct hd_backend *cuda, const struct hd_gemm_args *args)
{
    struct hd_gemm_args part;
    struct cuda_product *p;

    if (args->M <= 0 || args->N <= 0 || hd_costs_gemm_is_own(args, &cuda->traits))
        return HD_OK;
    return find_way(cuda, args, &part, &p);
}

enum hd_status hd_cuda_gemm_taken(const struct hd_backend *cuda, const struct hd_gemm_args *args,
                                  bool *ret_taken)
{
    struct hd_gemm_args part = *args;
    struct cuda_product *p = NULL;
    enum hd_status st = check(args);

    if (!st && args->M > 0 && args->N > 0 && !hd_costs_gemm_is_own(args, &cuda->traits))
        st = find_way(cuda, args, &part, &p);
    if (!st)
        *ret_taken =
            p && p->taken && part.epilogue == args->epilogue && !part.dbias == !args->dbias;
    return st;
}

/* Statuses that blame the algorithm or the operation, not the device: nothing was launched. */
static bool is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* Goes on to the next choice, and logs it. p->taken becomes false after the last one. */
static void skip_choice(const struct hd_backend *cuda, struct cuda_product *p,
                        const struct hd_gemm_args *args, cublasStatus_t refusal)
{
    const bool is_plain = !args->epilogue && !args->dbias;

    p->choice++;
    p->taken = p->choice < p->choice_count;
    hd_log(HD_LOG_WARN,
           "gemm: %s refused its algorithm %d of %d for [%lld,%lld] x [%lld,%lld] of %s%s when it "
           "was launched: %s; %s",
           cuda->traits.library, p->choice, p->choice_count, (long long)args->M, (long long)args->K,
           (long long)args->K, (long long)args->N,
           p->shape.fp8_a ? "fp8" : hd_dtype_name(args->ab_dtype),
           args->dbias      ? " with a bias gradient"
           : args->epilogue ? " with GELU"
                            : "",
           cublasLtGetStatusString(refusal),
           p->taken         ? "the next one is tried"
           : p->shape.fp8_a ? "nothing else multiplies fp8"
           : is_plain       ? "Heddle's own kernel computes it from now on, which is slower"
                            : "it is a plain product and a launch of its own from now on");
}

/* *ret_refused with HD_OK: the library refused each of its algorithms, and nothing was launched. */
static enum hd_status multiply(struct hd_cuda_stream *stream, struct cuda_product *p,
                               const struct hd_gemm_args *args, const struct cuda_addresses *at,
                               bool *ret_refused)
{
    const float one = 1, beta = args->accumulate ? 1 : 0;
    cublasStatus_t failed = set_addresses(p, at);

    while (!failed && p->taken) {
        const struct cuda_algorithm *choice = &p->choices[p->choice];

        failed = cublasLtMatmul(stream->cuda->gemm->handle, p->matmul, &one, args->b, p->a, args->a,
                                p->b, &beta, args->c, p->c, args->c, p->c, &choice->algo,
                                args->scratch, choice->workspace_bytes, stream->handle);
        if (!failed)
            break;
        if (is_refusal(failed)) {
            skip_choice(stream->cuda, p, args, failed);
            failed = CUBLAS_STATUS_SUCCESS;
        }
    }
    if (failed)
        return hd_err(HD_INTERNAL,
                      "gemm: cuBLASLt failed to multiply [%lld,%lld] x [%lld,%lld]: %s",
                      (long long)args->M, (long long)args->K, (long long)args->K,
                      (long long)args->N, cublasLtGetStatusString(failed));
    *ret_refused = !p->taken;
    return HD_OK;
}

/* Launches GELU, or its derivative, on the GEMM's result at `inp`. */
static enum hd_status pass_gelu(struct hd_cuda_stream *stream, const struct hd_gemm_args *args,
                                const void *inp)
{
    const struct hd_gelu_forward_args forward = {
        .out = args->c, .inp = inp, .N = args->M * args->N, .dtype = args->c_dtype};
    const struct hd_gelu_backward_args backward = {.dinp = args->c,
                                                   .dout = inp,
                                                   .inp = args->gelu_inp,
                                                   .N = args->M * args->N,
                                                   .dtype = args->c_dtype};

    return args->epilogue == HD_EPILOGUE_GELU ? hd_cuda_gelu_forward(stream, &forward)
                                              : hd_cuda_gelu_backward(stream, &backward);
}

/* Launches the operations of args that are not in `part`. */
static enum hd_status finish(struct hd_cuda_stream *stream, const struct hd_gemm_args *args,
                             const struct hd_gemm_args *part)
{
    const struct hd_bias_backward_args dbias = hd_costs_gemm_dbias(args, &stream->cuda->traits);
    const struct hd_add_args add = {
        .out = args->dbias, .a = args->dbias, .b = part->dbias, .N = args->M, .dtype = HD_F32};

    if (part->epilogue != args->epilogue)
        return pass_gelu(stream, args, part->c);
    if (part->dbias == args->dbias)
        return HD_OK;
    return part->dbias ? hd_cuda_add(stream, &add) : hd_cuda_bias_backward(stream, &dbias);
}

static enum hd_status multiply_by_own(struct hd_cuda_stream *stream,
                                      const struct hd_gemm_args *args)
{
    struct hd_gemm_args part = *args;
    enum hd_status st = args->N > 0 ? hd_cuda_gemm_own(stream, args) : HD_OK;

    part.dbias = NULL;
    return st ? st : finish(stream, args, &part);
}

enum hd_status hd_cuda_gemm(struct hd_cuda_stream *stream, const struct hd_gemm_args *args)
{
    struct hd_gemm_args part;
    struct cuda_addresses at;
    struct cuda_product *p;
    bool refused = false;
    enum hd_status st = check(args);

    if (st || args->M <= 0)
        return st;
    if (args->N <= 0 || hd_costs_gemm_is_own(args, &stream->cuda->traits))
        return multiply_by_own(stream, args);
    st = find_way(stream->cuda, args, &part, &p);
    if (st)
        return st;
    if (!p->taken)
        return multiply_by_own(stream, args);
    at = addresses_of(&part);
    st = multiply(stream, p, &part, &at, &refused);
    if (refused) /* p remembers it: now find_way chooses another way */
        return hd_cuda_gemm(stream, args);
    return st ? st : finish(stream, args, &part);
}

/* ---- fp8 ---- */

static int32_t type_of_fp8(enum hd_fp8 format)
{
    return format == HD_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

static const char *name_of_fp8(enum hd_fp8 format)
{
    return format == HD_E4M3 ? "E4M3" : "E5M2";
}

static struct hd_gemm_args product_of_fp8(const struct hd_fp8_gemm_args *args)
{
    struct hd_gemm_args product = hd_costs_fp8_as_gemm(args);

    product.a = args->a;
    product.b = args->b;
    product.scratch = args->scratch;
    return product;
}

static struct cuda_addresses addresses_of_fp8(const struct hd_fp8_gemm_args *args)
{
    return (struct cuda_addresses){
        .bias = args->bias, .a_factor = args->a_factor, .b_factor = args->b_factor};
}

static enum hd_status refuse_fp8(const struct hd_backend *cuda, const struct hd_fp8_gemm_args *args)
{
    return hd_err(
        HD_UNSUPPORTED,
        "fp8_gemm: %s on a GPU of capability %d.%d does not multiply [%lld,%lld] in %s by "
        "[%lld,%lld] in %s; use bf16",
        cuda->gemm ? cuda->traits.library : "own code", cuda->traits.capability / 10,
        cuda->traits.capability % 10, (long long)args->M, (long long)args->K,
        name_of_fp8(args->a_format), (long long)args->K, (long long)args->N,
        name_of_fp8(args->b_format));
}

static enum hd_status find_fp8(const struct hd_backend *cuda, const struct hd_fp8_gemm_args *args,
                               struct cuda_product **ret_product)
{
    const struct hd_gemm_args product = product_of_fp8(args);
    const struct cuda_addresses at = addresses_of_fp8(args);
    struct cuda_shape shape;
    enum hd_status st = hd_costs_fp8_check(args);

    if (st)
        return st;
    if (!cuda->gemm || cuda->traits.capability < HD_GPU_FP8_FROM)
        return refuse_fp8(cuda, args);
    shape_of(&product, &shape);
    shape.fp8_a = type_of_fp8(args->a_format);
    shape.fp8_b = type_of_fp8(args->b_format);
    st = find_shape(cuda, &shape, &at, ret_product);
    return !st && !(*ret_product)->taken ? refuse_fp8(cuda, args) : st;
}

enum hd_status hd_cuda_fp8_gemm_prepare(struct hd_backend *cuda,
                                        const struct hd_fp8_gemm_args *args)
{
    struct cuda_product *p;

    return find_fp8(cuda, args, &p);
}

enum hd_status hd_cuda_fp8_gemm(struct hd_cuda_stream *stream, const struct hd_fp8_gemm_args *args)
{
    const struct hd_gemm_args product = product_of_fp8(args);
    const struct cuda_addresses at = addresses_of_fp8(args);
    struct cuda_product *p;
    bool refused = false;
    enum hd_status st = find_fp8(stream->cuda, args, &p);

    if (!st)
        st = multiply(stream, p, &product, &at, &refused);
    return !st && refused ? refuse_fp8(stream->cuda, args) : st;
}
