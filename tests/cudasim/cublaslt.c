/* cublaslt: emulates cuBLASLt with plain loops, in the order of the stream: column-major layouts,
 * types, sums as tensor cores compute them (tensor.c; of fp32 factors plain fp32), beta, bias and
 * its gradient, GELU and its derivative, the workspace and its limit.
 *
 * It refuses what NVIDIA's library refuses, as far as that is documented or known:
 * - combinations of types that its table does not have; a bias, or gradient of a bias, of another
 *   type than d;
 * - ld less than rows; for bf16 and f16, ld and addresses that are not multiples of 4 bytes;
 * - an auxiliary matrix whose ld is not a multiple of 8 elements, or whose address is not one of 16
 *   bytes;
 * - of fp8 (types ending in 8F): anything before compute capability 8.9; other operations than a
 *   transposed and b not ("TN"); both factors in E5M2; sides, ld and promised alignments that are
 *   no multiples of 16; another bias than bf16; another epilogue than a bias; and, to notice it,
 *   sums with fewer bits (FAST_ACCUM);
 * - factors of fp8 at addresses that are no multiples of 16, when it is launched, as on an H100;
 * - c in the place of d with another layout; addresses that are not multiples of an element;
 * - a launch of another operation or layout than the algorithm was chosen for, or with a pointer of
 *   less alignment (of a bias: less than at that time).
 * Into 16 bits it rounds where cuBLASLt 13.1 was seen to round on an H100: the product, before it
 * adds c in the place of d, or a bias behind split-K or beside c.
 * It overwrites the whole workspace that it requested, so that no caller relies on the contents.
 */
#include <cublasLt.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/fp8.h"
#include "tests/cudasim/internal.h"

static _Atomic uint64_t products, products_of[HD_CUDASIM_OFFERS];
static _Atomic double offer_ms[HD_CUDASIM_OFFERS];
static _Atomic bool epilogues_known = true, epilogues_run = true;

void hd_cudasim_epilogues(bool known)
{
    epilogues_known = known;
}

void hd_cudasim_epilogues_run(bool run)
{
    epilogues_run = run;
}

static _Atomic int refusals, refusal_status;

void hd_cudasim_refuse_products(int count, int status)
{
    refusal_status = status;
    refusals = count;
}

uint64_t hd_cudasim_products(void)
{
    return products;
}

uint64_t hd_cudasim_products_of(int offer)
{
    return products_of[offer];
}

void hd_cudasim_offer_ms(const double ms[HD_CUDASIM_OFFERS])
{
    for (int i = 0; i < HD_CUDASIM_OFFERS; i++)
        offer_ms[i] = ms[i];
}

struct cublasLtContext {
    int open;
};

struct hd_cudasim_matmul {
    cublasComputeType_t compute;
    int32_t trans_a, trans_b, bias_type; /* bias_type -1: the type of d */
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    const float *a_scale, *b_scale; /* NULL: 1 */
    int8_t fast_accum;
};

struct hd_cudasim_layout {
    cudaDataType type;
    int64_t rows, columns, ld;
};

struct hd_cudasim_preference {
    uint64_t workspace_bytes;
    uint32_t reduction, align[4]; /* a, b, c, d */
};

/* The contents of a cublasLtMatmulAlgo_t, which callers copy by bytes. */
struct choice {
    uint64_t magic, workspace_bytes;
    uint64_t problem; /* problem_of what it was chosen for */
    uint32_t align[4], align_bias;
    uint16_t splits, offer; /* offer: its place in the list */
};
_Static_assert(sizeof(struct choice) <= sizeof(cublasLtMatmulAlgo_t), "a choice fits");
enum { MAGIC = 0x6c74, SPLIT_BYTES = 4096, AUX_ALIGN = 16, FP8_ALIGN = 16, FP8_FROM = 89 };

size_t cublasLtGetVersion(void)
{
    const char *wish = getenv("HD_CUDASIM_CUBLASLT_VERSION");

    return wish ? strtoull(wish, NULL, 10) : 130100;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "the emulated cuBLASLt succeeded";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the emulated cuBLASLt found no memory";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "the emulated cuBLASLt was given an invalid value";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "the emulated cuBLASLt has no code for this device";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the emulated cuBLASLt could not launch";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the emulated cuBLASLt does not support this";
    }
    return "unknown";
}

static cublasStatus_t make(void *ret_object, size_t size_bytes)
{
    void *made = calloc(1, size_bytes);

    if (!made)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(ret_object, &made, sizeof made);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t unmake(void *object)
{
    if (!object)
        return CUBLAS_STATUS_INVALID_VALUE;
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return make(handle, sizeof **handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return unmake(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    cublasStatus_t failed;

    if (scale != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    failed = make(desc, sizeof **desc);
    if (!failed) {
        (*desc)->compute = compute;
        (*desc)->bias_type = -1;
        (*desc)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    }
    return failed;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return unmake(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size_bytes)
{
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        void *member;
        size_t size_bytes;
    } known[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &desc->trans_a, sizeof desc->trans_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, &desc->trans_b, sizeof desc->trans_b},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &desc->epilogue, sizeof desc->epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &desc->bias_type, sizeof desc->bias_type},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &desc->bias, sizeof desc->bias},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &desc->aux, sizeof desc->aux},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &desc->aux_ld, sizeof desc->aux_ld},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &desc->a_scale, sizeof desc->a_scale},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &desc->b_scale, sizeof desc->b_scale},
        {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &desc->fast_accum, sizeof desc->fast_accum},
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].attribute == attribute && known[i].size_bytes == size_bytes) {
            memcpy(known[i].member, value, size_bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    const cublasStatus_t failed = make(layout, sizeof **layout);

    if (!failed)
        **layout = (struct hd_cudasim_layout){type, (int64_t)rows, (int64_t)columns, ld};
    return failed;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return unmake(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    const cublasStatus_t failed = make(preference, sizeof **preference);

    if (!failed)
        **preference = (struct hd_cudasim_preference){.reduction = CUBLASLT_REDUCTION_SCHEME_MASK,
                                                      .align = {256, 256, 256, 256}};
    return failed;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return unmake(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size_bytes)
{
    void *member = &preference->workspace_bytes;
    size_t size = sizeof(uint64_t);

    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        member = &preference->reduction, size = sizeof(uint32_t);
    else if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        member = &preference->align[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
        size = sizeof(uint32_t);
    else if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (size_bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(member, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

static bool is_fp8(cudaDataType type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static int64_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2;
}

static bool is_laid_out(const struct hd_cudasim_layout *l)
{
    return l->rows > 0 && l->columns > 0 && l->ld >= l->rows;
}

static uint64_t mix(uint64_t hash, int64_t value)
{
    return (hash ^ (uint64_t)value) * UINT64_C(1099511628211);
}

/* A hash of what an algorithm is chosen for: the operation and the layouts, without addresses. */
static uint64_t problem_of(const struct hd_cudasim_matmul *desc, cublasLtMatrixLayout_t a,
                           cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                           cublasLtMatrixLayout_t d)
{
    const struct hd_cudasim_layout *all[] = {a, b, c, d};
    uint64_t hash = UINT64_C(14695981039346656037);

    hash = mix(mix(mix(hash, desc->compute), desc->trans_a), desc->trans_b);
    hash = mix(mix(mix(hash, desc->bias_type), desc->epilogue), desc->aux_ld);
    hash = mix(hash, desc->fast_accum);
    for (int i = 0; i < 4; i++) {
        hash = mix(mix(hash, all[i]->type), all[i]->ld);
        hash = mix(mix(hash, all[i]->rows), all[i]->columns);
    }
    return hash;
}

/* The bits of an epilogue. */
enum { WITH_BIAS = 4, WITH_GELU = 32, WITH_DGELU = 64, WITH_AUX = 128 };

/* Checks the documentation's demands on of factors in fp8. */
static bool is_supported_fp8(const struct hd_cudasim_matmul *desc,
                             const struct hd_cudasim_layout *a, const struct hd_cudasim_layout *b,
                             const struct hd_cudasim_layout *d)
{
    const struct hd_cudasim_layout *all[] = {a, b, d};

    if (hd_sim_capability() < FP8_FROM || !is_fp8(a->type) || !is_fp8(b->type) ||
        (a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2) || is_fp8(d->type) ||
        desc->trans_a != CUBLAS_OP_T || desc->trans_b != CUBLAS_OP_N || desc->fast_accum ||
        desc->compute != CUBLAS_COMPUTE_32F)
        return false;
    for (int i = 0; i < 3; i++)
        if (all[i]->rows % FP8_ALIGN || all[i]->columns % FP8_ALIGN ||
            all[i]->ld * size_of(all[i]->type) % FP8_ALIGN)
            return false;
    if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS)
        return (desc->bias_type < 0 ? (int32_t)d->type : desc->bias_type) == CUDA_R_16BF;
    return desc->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

/* True for the combinations of types in the documentation's table for 32-bit sums. */
static bool is_supported(const struct hd_cudasim_matmul *desc, const struct hd_cudasim_layout *a,
                         const struct hd_cudasim_layout *b, const struct hd_cudasim_layout *c,
                         const struct hd_cudasim_layout *d)
{
    if (c->type != d->type)
        return false;
    if (is_fp8(a->type) || is_fp8(b->type))
        return is_supported_fp8(desc, a, b, d);
    if (a->type != b->type || desc->a_scale || desc->b_scale)
        return false;
    if (a->type != d->type && d->type != CUDA_R_32F)
        return false;
    if (desc->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R_32F)
        return false;
    return !(desc->epilogue & WITH_BIAS) || desc->bias_type < 0 ||
           desc->bias_type == (int32_t)d->type;
}

/* True if the epilogue is supported: ld of the auxiliary matrix at least the rows of d and a
 * multiple of 8, its address of 16 bytes. GELU is documented for results of the factors' type only.
 */
static bool is_epilogue(const struct hd_cudasim_matmul *desc, const struct hd_cudasim_layout *a,
                        const struct hd_cudasim_layout *d)
{
    switch (desc->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
        return true;
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
        return a->type == d->type;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
        return a->type == d->type && desc->aux_ld >= d->rows && desc->aux_ld % 8 == 0 &&
               (uintptr_t)desc->aux % AUX_ALIGN == 0;
    }
    return false;
}

static uint32_t align_of(const void *data) /* 16 at most */
{
    const uintptr_t bits = (uintptr_t)data | 16;

    return (uint32_t)(bits & -bits);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *ret_count)
{
    const struct hd_cudasim_layout *all[] = {a, b, c, d};
    const int64_t K = desc->trans_a ? a->rows : a->columns;
    const int64_t K_of_b = desc->trans_b ? b->columns : b->rows;
    const bool may_split = preference->reduction & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int count = 0;

    *ret_count = 0;
    if (!handle || wanted < 1 || K != K_of_b || d->rows != (desc->trans_a ? a->columns : a->rows) ||
        d->columns != (desc->trans_b ? b->rows : b->columns))
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if (!is_laid_out(all[i]) || !preference->align[i] ||
            preference->align[i] & (preference->align[i] - 1))
            return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_epilogue(desc, a, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!epilogues_known && desc->epilogue > CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_supported(desc, a, b, c, d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++)
        if (preference->align[i] % (is_fp8(a->type) ? FP8_ALIGN : 4) != 0 ||
            all[i]->ld * size_of(all[i]->type) % 4 != 0)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    /* First split-K by two, if allowed and K is large enough; then two without split-K, which
     * differ in nothing that can be seen here, as tiles do not. */
    for (int i = 0; i < HD_CUDASIM_OFFERS && count < wanted; i++) {
        const uint16_t splits = i == 0 && may_split && K >= 256 ? 2 : 1;
        struct choice choice = {.magic = MAGIC,
                                .splits = splits,
                                .offer = (uint16_t)count,
                                .problem = problem_of(desc, a, b, c, d)};

        choice.workspace_bytes = splits > 1 ? SPLIT_BYTES : 0;
        if (choice.workspace_bytes > preference->workspace_bytes || (i == 0 && splits == 1))
            continue;
        memcpy(choice.align, preference->align, sizeof choice.align);
        choice.align_bias = align_of(desc->bias);
        memset(&results[count], 0, sizeof results[count]);
        memcpy(&results[count].algo, &choice, sizeof choice);
        results[count].workspaceSize = choice.workspace_bytes;
        results[count++].state = CUBLAS_STATUS_SUCCESS;
    }
    *ret_count = count;
    return count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

struct product {
    struct hd_cudasim_matmul desc;
    struct hd_cudasim_layout a, b, c, d;
    struct choice choice;
    const void *data_a, *data_b, *data_c;
    void *data_d, *workspace;
    float alpha, beta;
    cudaStream_t stream;
};

static float get(const void *data, int64_t i, cudaDataType type)
{
    if (is_fp8(type))
        return hd_fp8_value(((const uint8_t *)data)[i], type == CUDA_R_8F_E4M3 ? HD_E4M3 : HD_E5M2);
    return type == CUDA_R_32F    ? ((const float *)data)[i]
           : type == CUDA_R_16BF ? hd_bf16_to_f32(((const uint16_t *)data)[i])
                                 : hd_f16_to_f32(((const uint16_t *)data)[i]);
}

static void put(void *data, int64_t i, cudaDataType type, float value)
{
    if (type == CUDA_R_32F)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = type == CUDA_R_16BF ? hd_f32_to_bf16(value) : hd_f32_to_f16(value);
}

static float rounded(float value, cudaDataType type)
{
    float kept = value;

    if (type != CUDA_R_32F)
        kept = type == CUDA_R_16BF ? hd_bf16_to_f32(hd_f32_to_bf16(value))
                                   : hd_f16_to_f32(hd_f32_to_f16(value));
    return kept;
}

/* Rounds fp32 to 10 bits of mantissa, to nearest. */
static float to_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~UINT32_C(0x1fff);
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float *dense(const void *data, const struct hd_cudasim_layout *l, bool transposed, bool tf32)
{
    float *out = malloc((size_t)(l->rows * l->columns) * sizeof *out); /* [outer][depth] */

    if (!out)
        abort();
    for (int64_t j = 0; j < l->columns; j++)
        for (int64_t i = 0; i < l->rows; i++) {
            const float x = get(data, j * l->ld + i, l->type);

            out[transposed ? j * l->rows + i : i * l->columns + j] = tf32 ? to_tf32(x) : x;
        }
    return out;
}

/* Applies the epilogue to x, element (i, j) of d. */
static float finish(const struct product *p, int64_t i, int64_t j, float x)
{
    const float c = 0.7978845608f; /* sqrt(2 / pi) */
    const int64_t at = j * p->desc.aux_ld + i;
    float u, t;

    if (p->desc.epilogue & WITH_BIAS)
        x += get(p->desc.bias, i,
                 p->desc.bias_type < 0 ? p->d.type : (cudaDataType)p->desc.bias_type);
    if (p->desc.epilogue & WITH_GELU) {
        if (p->desc.epilogue & WITH_AUX)
            put(p->desc.aux, at, p->d.type, x);
        return 0.5f * x * (1 + tanhf(c * (x + 0.044715f * x * x * x)));
    }
    if (!(p->desc.epilogue & WITH_DGELU))
        return x;
    u = get(p->desc.aux, at, p->d.type);
    t = tanhf(c * (u + 0.044715f * u * u * u));
    return x * (0.5f * (1 + t) + 0.5f * u * (1 - t * t) * c * (1 + 3 * 0.044715f * u * u));
}

/* sum of a[k] b[k]: fp32 in order, or by tensor cores, `terms` products at a time. */
static float dot(const float *a, const float *b, int64_t K, int64_t terms)
{
    float sum = 0;

    if (!terms)
        for (int64_t k = 0; k < K; k++)
            sum += a[k] * b[k];
    else
        for (int64_t k = 0; k < K; k += terms)
            sum = hd_sim_tensor_add(sum, a + k, b + k, K - k < terms ? K - k : terms);
    return sum;
}

static void multiply(void *context)
{
    const struct product *p = context;
    const bool tf32 = p->desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const int64_t K = p->desc.trans_a ? p->a.rows : p->a.columns;
    const int64_t split = (K + (int64_t)p->choice.splits - 1) / (int64_t)p->choice.splits;
    const int64_t terms = tf32                      ? HD_SIM_TENSOR_TERMS / 2
                          : p->a.type != CUDA_R_32F ? HD_SIM_TENSOR_TERMS
                                                    : 0;
    const float factors = (p->desc.a_scale ? *p->desc.a_scale : 1) *
                          (p->desc.b_scale ? *p->desc.b_scale : 1); /* read when it runs */
    float *a = dense(p->data_a, &p->a, p->desc.trans_a, tf32);
    float *b = dense(p->data_b, &p->b, !p->desc.trans_b, tf32);

    if (p->choice.workspace_bytes)
        memset(p->workspace, 0xff, p->choice.workspace_bytes);
    for (int64_t j = 0; j < p->d.columns; j++)
        for (int64_t i = 0; i < p->d.rows; i++) {
            float sum = 0;

            for (int64_t begin = 0; begin < K; begin += split)
                sum += dot(&a[i * K + begin], &b[j * K + begin],
                           K - begin < split ? K - begin : split, terms);
            sum *= p->alpha * factors;
            if (p->beta != 0 && p->data_c == p->data_d)
                sum = rounded(sum, p->d.type);
            if (p->beta != 0) /* else c is not read */
                sum += p->beta * get(p->data_c, j * p->c.ld + i, p->c.type);
            if (p->desc.epilogue & WITH_BIAS && (p->choice.splits > 1 || p->beta != 0))
                sum = rounded(sum, p->d.type);
            put(p->data_d, j * p->d.ld + i, p->d.type, finish(p, i, j, sum));
        }
    free(a);
    free(b);
    hd_sim_pass(p->stream, offer_ms[p->choice.offer]);
}

static bool is_aligned(const void *data, uint32_t bytes)
{
    return (uintptr_t)data % bytes == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
                              cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t layout_c, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    struct product *p;
    struct choice choice;

    if (!handle || !desc || !alpha || !beta || !algo)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&choice, algo, sizeof choice);
    if (choice.magic != MAGIC || workspace_bytes < choice.workspace_bytes ||
        (choice.workspace_bytes && (!workspace || !is_aligned(workspace, 256))))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (choice.problem != problem_of(desc, layout_a, layout_b, layout_c, layout_d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!a || !b || !c || !d || (c == d && layout_c->ld != layout_d->ld) ||
        !is_aligned(a, (uint32_t)size_of(layout_a->type)) ||
        !is_aligned(b, (uint32_t)size_of(layout_b->type)) ||
        !is_aligned(c, (uint32_t)size_of(layout_c->type)) ||
        !is_aligned(d, (uint32_t)size_of(layout_d->type)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_aligned(a, choice.align[0]) || !is_aligned(b, choice.align[1]) ||
        !is_aligned(c, choice.align[2]) || !is_aligned(d, choice.align[3]))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (desc->epilogue & WITH_BIAS && (!desc->bias || !is_aligned(desc->bias, choice.align_bias)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (desc->epilogue & WITH_AUX && (!desc->aux || !is_aligned(desc->aux, AUX_ALIGN)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_aligned(desc->a_scale, FP8_ALIGN) || !is_aligned(desc->b_scale, FP8_ALIGN))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (refusals > 0) {
        refusals--;
        return (cublasStatus_t)refusal_status;
    }
    if (!epilogues_run && desc->epilogue & (WITH_GELU | WITH_DGELU))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    p = malloc(sizeof *p);
    if (!p)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *p = (struct product){.desc = *desc,
                          .a = *layout_a,
                          .b = *layout_b,
                          .c = *layout_c,
                          .d = *layout_d,
                          .choice = choice,
                          .data_a = a,
                          .data_b = b,
                          .data_c = c,
                          .data_d = d,
                          .workspace = workspace,
                          .stream = stream};
    memcpy(&p->alpha, alpha, sizeof p->alpha);
    memcpy(&p->beta, beta, sizeof p->beta);
    products++;
    products_of[choice.offer]++;
    return hd_sim_enqueue(stream, multiply, free, p) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
