/* gemm_choose: describes a product to cuBLASLt and stores the algorithms that it offers.
 *
 * cuBLASLt uses column-major matrices: a row-major [M, N] is its [N, M] with the same leading
 * dimension, so c = op(a) op(b) is computed as c' = op(b)' op(a)'; its first factor is our b. The
 * heuristic's offers for a shape are cached: a launch is a lookup and one call.
 *
 * Split-K sums are allowed only with an fp32 reduction in a second step, in order; with
 * `deterministic` there is no split-K. The library may refuse an algorithm at its first launch,
 * although it offered it: then the next one of its list is tried. Each refusal is logged, because
 * nothing fails and the GPU would only seem slow.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/cuda/gemm_library.h"

enum {
    /* the library requires the leading dimension of pre and gelu_inp to be a multiple of this,
     * elements */
    AUX_ROW = 8,
    /* number of offers requested without timing: alternatives for refusals at a launch */
    UNTIMED_CANDIDATES = 4
};

void hd_cuda_gemm_library_name(char *ret_name, size_t size_bytes)
{
    const size_t version = cublasLtGetVersion();

    (void)snprintf(ret_name, size_bytes, "cuBLASLt-%zu.%zu.%zu", version / 10000,
                   version / 100 % 100, version % 100);
}

enum hd_status hd_cuda_gemm_open(const struct hd_backend *cuda,
                                 struct hd_cuda_gemm_state **ret_gemm)
{
    struct hd_cuda_gemm_state *gemm = calloc(1, sizeof *gemm);
    cublasStatus_t failed;
    enum hd_status st;

    if (!gemm)
        return hd_err(HD_NO_MEMORY, "no memory for the state of cuBLASLt");
    failed = cublasLtCreate(&gemm->handle);
    if (failed) {
        free(gemm);
        return hd_err(HD_INTERNAL, "cannot create a handle of %s: %s", cuda->traits.library,
                      cublasLtGetStatusString(failed));
    }
    st = hd_cuda_choices_open(cuda, gemm);
    if (st) {
        hd_cuda_gemm_close(gemm);
        return st;
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

void hd_cuda_gemm_close(struct hd_cuda_gemm_state *gemm)
{
    if (!gemm)
        return;
    for (int i = 0; i < HD_CUDA_GEMM_BUCKETS; i++)
        while (gemm->products[i]) {
            struct cuda_product *p = gemm->products[i];

            gemm->products[i] = p->next;
            free_product(p);
        }
    (void)cublasLtDestroy(gemm->handle);
    hd_cuda_choices_close(gemm);
    free(gemm);
}

static cudaDataType_t cublas_type_of(enum hd_dtype dtype)
{
    return dtype == HD_BF16 ? CUDA_R_16BF : dtype == HD_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static unsigned bucket_of(const struct cuda_shape *shape)
{
    const unsigned char *bytes = (const unsigned char *)shape;
    uint64_t hash = 14695981039346656037u; /* offset basis of FNV-1a */

    for (size_t i = 0; i < sizeof *shape; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return (unsigned)((hash >> 32) % HD_CUDA_GEMM_BUCKETS);
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

    switch ((enum hd_gemm_epilogue)s->epilogue) {
    case HD_EPILOGUE_GELU:
        return aux ? (bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
                   : (bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU);
    case HD_EPILOGUE_GELU_BACKWARD:
        return CUBLASLT_EPILOGUE_DGELU;
    case HD_EPILOGUE_NONE:
    case HD_EPILOGUE_GLU: /* own code alone has these two */
    case HD_EPILOGUE_GLU_BACKWARD:
        break;
    }
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Describes the GEMM to the library as a column-major product: [N, M] = op of our b times op of our
 * a. */
static cublasStatus_t make_matmul(const struct hd_backend *cuda, struct cuda_product *p)
{
    const struct cuda_shape *s = &p->shape;
    const bool tf32 = cuda->options.tf32 && s->ab_dtype == HD_F32;
    const cudaDataType_t ab = cublas_type_of((enum hd_dtype)s->ab_dtype);
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
        failed = set(p->matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)ab);
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
        failed = cublasLtMatrixLayoutCreate(&p->c, cublas_type_of((enum hd_dtype)s->c_dtype),
                                            (uint64_t)s->N, (uint64_t)s->M, s->ldc);
    return failed;
}

cublasStatus_t hd_cuda_product_place(const struct cuda_product *p, const struct cuda_addresses *at)
{
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *address;
    } all[] = {{CUBLASLT_MATMUL_DESC_BIAS_POINTER, at->bias},
               {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at->aux},
               {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at->b_factor}, /* the library's a is our b */
               {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at->a_factor}};
    cublasStatus_t failed = CUBLAS_STATUS_SUCCESS;

    for (size_t i = 0; !failed && i < sizeof all / sizeof all[0]; i++)
        if (all[i].address)
            failed = cublasLtMatmulDescSetAttribute(p->matmul, all[i].attribute, &all[i].address,
                                                    sizeof all[i].address);
    return failed;
}

/* Requests the library's algorithms for a product, and sets p->supported unless the library cannot
 * compute this shape. Any other failure is an error: if the GEMM silently used own code, the GPU
 * would only seem slow. */
static enum hd_status choose_algorithms(const struct hd_backend *cuda, struct cuda_product *p,
                                        const struct cuda_addresses *at)
{
    const struct cuda_shape *s = &p->shape;
    const uint64_t budget = (uint64_t)cuda->traits.gemm_scratch_bytes;
    const int wanted = cuda->gemm->path ? HD_CUDA_CANDIDATES_MAX : UNTIMED_CANDIDATES;
    cublasLtMatmulHeuristicResult_t found[HD_CUDA_CANDIDATES_MAX];
    cublasLtMatmulPreference_t preference = NULL;
    int count = 0;
    cublasStatus_t failed;

    if (s->align_aux && (s->ldc % AUX_ROW || s->align_aux < HD_CUDA_GEMM_ALIGN_MAX))
        /* This rule is documented in the library's header, so the code does not wait for the
         * library's refusal. */
        return HD_OK;
    if (s->epilogue && cuda->traits.gelu_separate)
        return HD_OK;
    failed = make_matmul(cuda, p);
    if (!failed)
        failed = hd_cuda_product_place(p, at);
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
        failed = prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                        (uint32_t)(s->align_add ? s->align_add : s->align_c));
    if (!failed)
        failed =
            prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)s->align_c);
    if (!failed)
        failed = cublasLtMatmulAlgoGetHeuristic(cuda->gemm->handle, p->matmul, p->a, p->b, p->c,
                                                p->c, preference, wanted, found, &count);
    for (int i = 0; !failed && i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= budget)
            p->candidates[p->candidate_count++] = (struct cuda_algorithm){
                .algo = found[i].algo, .workspace_bytes = found[i].workspaceSize};
    p->supported = p->candidate_count > 0;
    if (preference)
        (void)cublasLtMatmulPreferenceDestroy(preference);
    if (!failed || failed == CUBLAS_STATUS_NOT_SUPPORTED || failed == CUBLAS_STATUS_INVALID_VALUE)
        return HD_OK;
    return hd_err(failed == CUBLAS_STATUS_ALLOC_FAILED ? HD_NO_MEMORY : HD_INTERNAL,
                  "gemm: cuBLASLt found no algorithm for [%lld,%lld] x [%lld,%lld]: %s",
                  (long long)s->M, (long long)s->K, (long long)s->K, (long long)s->N,
                  cublasLtGetStatusString(failed));
}

enum hd_status hd_cuda_product_find(const struct hd_backend *cuda, const struct cuda_shape *shape,
                                    const struct cuda_addresses *at,
                                    struct cuda_product **ret_product)
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
        st = choose_algorithms(cuda, p, at);
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

cublasStatus_t hd_cuda_product_launch(const struct hd_backend *cuda, const struct cuda_product *p,
                                      int candidate, const struct hd_gemm_args *args,
                                      cudaStream_t stream)
{
    const struct cuda_algorithm *algorithm = &p->candidates[candidate];
    const float one = 1, beta = args->accumulate || args->add ? 1 : 0;

    return cublasLtMatmul(cuda->gemm->handle, p->matmul, &one, args->b, p->a, args->a, p->b, &beta,
                          args->add ? args->add : args->c, p->c, args->c, p->c, &algorithm->algo,
                          args->scratch, algorithm->workspace_bytes, stream);
}

bool hd_cuda_product_is_refused(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

void hd_cuda_product_refuse(const struct hd_backend *cuda, struct cuda_product *p, int candidate,
                            const struct hd_gemm_args *args, cublasStatus_t refusal)
{
    const bool is_plain = !args->epilogue && !args->add;

    p->candidates[candidate].refused = true;
    p->choice = 0;
    while (p->choice < p->candidate_count && p->candidates[p->choice].refused)
        p->choice++;
    p->supported = p->choice < p->candidate_count;
    hd_log(HD_LOG_WARN,
           "gemm: %s refused its algorithm %d of %d for [%lld,%lld] x [%lld,%lld] of %s%s when it "
           "was launched: %s; %s",
           cuda->traits.library, candidate + 1, p->candidate_count, (long long)args->M,
           (long long)args->K, (long long)args->K, (long long)args->N,
           p->shape.fp8_a ? "fp8" : hd_dtype_name(args->ab_dtype),
           args->epilogue ? " with GELU"
           : args->add    ? " with a residual"
                          : "",
           cublasLtGetStatusString(refusal),
           p->supported     ? "the next one is tried"
           : p->shape.fp8_a ? "nothing else multiplies fp8"
           : is_plain       ? "Heddle's own kernel computes it from now on, which is slower"
                            : "it is a plain product and a launch of its own from now on");
}
