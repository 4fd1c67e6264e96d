/* Tests that the emulated cuBLASLt refuses what NVIDIA's library refuses. */
#include <cublasLt.h>
#include <string.h>

#include "base/dtype.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

enum { ROWS = 16, COLUMNS = 8, DEPTH = 256, CHOICES = 4, ELEMENTS = ROWS * DEPTH };

/* d [ROWS, COLUMNS] = a [ROWS, DEPTH] b [DEPTH, COLUMNS] of bf16, column-major, and what a case
 * changes about it. */
struct operation {
    cudaDataType ab_type, d_type;
    cublasLtEpilogue_t epilogue;
    int32_t bias_type; /* -1: not set */
    int64_t aux_ld, a_ld, c_ld;
    size_t aux_offset, bias_offset, a_offset, c_offset, d_offset; /* of the address, in bytes */
    bool splits; /* with a workspace, so that an algorithm with split-K is the first */
    size_t workspace_offset;
    uint32_t align_a;
    float beta;
};

static const struct operation usual = {.ab_type = CUDA_R_16BF,
                                       .d_type = CUDA_R_16BF,
                                       .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                       .bias_type = -1,
                                       .aux_ld = ROWS,
                                       .a_ld = ROWS,
                                       .c_ld = ROWS,
                                       .align_a = 16};

static struct made {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulPreference_t preference;
    unsigned char *memory; /* PIECES of PIECE bytes: a, b, d, bias, aux, workspace */
} m;
enum { PIECE = ELEMENTS * 4, PIECES = 6, WORKSPACE_BYTES = 4096 };

static void make(const struct operation *o)
{
    const void *bias, *aux;
    const uint64_t workspace_bytes = o->splits ? WORKSPACE_BYTES : 0;
    void *memory;

    assert_int_equal(cudaMalloc(&memory, (size_t)PIECES * PIECE), cudaSuccess);
    memset(memory, 0, (size_t)PIECES * PIECE);
    m = (struct made){.memory = memory};
    bias = m.memory + 3 * PIECE + o->bias_offset;
    aux = m.memory + 4 * PIECE + o->aux_offset;
    assert_int_equal(cublasLtCreate(&m.handle), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&m.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
#define SET(attribute, value)                                                                 \
    assert_int_equal(cublasLtMatmulDescSetAttribute(m.desc, CUBLASLT_MATMUL_DESC_##attribute, \
                                                    &(value), sizeof(value)),                 \
                     0)
    SET(EPILOGUE, o->epilogue);
    SET(BIAS_DATA_TYPE, o->bias_type);
    SET(BIAS_POINTER, bias);
    SET(EPILOGUE_AUX_POINTER, aux);
    SET(EPILOGUE_AUX_LD, o->aux_ld);
#undef SET
    assert_int_equal(cublasLtMatrixLayoutCreate(&m.a, o->ab_type, ROWS, DEPTH, o->a_ld), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&m.b, o->ab_type, DEPTH, COLUMNS, DEPTH), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&m.c, o->d_type, ROWS, COLUMNS, o->c_ld), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&m.d, o->d_type, ROWS, COLUMNS, ROWS), 0);
    assert_int_equal(cublasLtMatmulPreferenceCreate(&m.preference), 0);
    assert_int_equal(cublasLtMatmulPreferenceSetAttribute(m.preference,
                                                          CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &workspace_bytes, sizeof workspace_bytes),
                     0);
    for (int i = 0; i < 4; i++) {
        const uint32_t align = i == 0 ? o->align_a : 16;

        assert_int_equal(
            cublasLtMatmulPreferenceSetAttribute(
                m.preference,
                (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES +
                                                       i),
                &align, sizeof align),
            0);
    }
}

static void unmake(void)
{
    cublasLtMatmulPreferenceDestroy(m.preference);
    cublasLtMatrixLayoutDestroy(m.a);
    cublasLtMatrixLayoutDestroy(m.b);
    cublasLtMatrixLayoutDestroy(m.c);
    cublasLtMatrixLayoutDestroy(m.d);
    cublasLtMatmulDescDestroy(m.desc);
    cublasLtDestroy(m.handle);
    cudaFree(m.memory);
}

static cublasStatus_t choose(cublasLtMatmulHeuristicResult_t found[CHOICES], int *ret_count)
{
    return cublasLtMatmulAlgoGetHeuristic(m.handle, m.desc, m.a, m.b, m.c, m.d, m.preference,
                                          CHOICES, found, ret_count);
}

/* True if the heuristic has an algorithm for it. */
static bool is_offered(const struct operation *o)
{
    cublasLtMatmulHeuristicResult_t found[CHOICES];
    cublasStatus_t status;
    int count = 0;

    make(o);
    status = choose(found, &count);
    assert_int_equal(status == CUBLAS_STATUS_SUCCESS, count > 0);
    unmake();
    return count > 0;
}

static struct operation with(cublasLtEpilogue_t epilogue)
{
    struct operation o = usual;

    o.epilogue = epilogue;
    return o;
}

static void a_bias_has_the_type_of_the_result(void **state)
{
    struct operation o = with(CUBLASLT_EPILOGUE_BIAS);

    assert_true(is_offered(&o)); /* bf16, as d */
    o.bias_type = CUDA_R_32F;
    assert_false(is_offered(&o));
    o.d_type = CUDA_R_32F;
    assert_true(is_offered(&o));
    o.bias_type = CUDA_R_16BF;
    assert_false(is_offered(&o));
}

static void the_input_of_gelu_is_aligned(void **state)
{
    static const cublasLtEpilogue_t both[] = {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_DGELU};

    for (int i = 0; i < 2; i++) {
        struct operation o = with(both[i]);

        assert_true(is_offered(&o));
        o.aux_ld = ROWS + 8;
        assert_true(is_offered(&o));
        o.aux_ld = ROWS + 4;
        assert_false(is_offered(&o));
        o.aux_ld = ROWS - 8;
        assert_false(is_offered(&o));
        o = with(both[i]);
        o.aux_offset = 8;
        assert_false(is_offered(&o));
        o = with(both[i]);
        o.d_type = CUDA_R_32F; /* GELU of fp32 from bf16 is not documented */
        assert_false(is_offered(&o));
    }
}

static void layouts_are_sound(void **state)
{
    struct operation o = usual;

    assert_true(is_offered(&o));
    o.a_ld = ROWS - 2;
    assert_false(is_offered(&o));
    o.a_ld = ROWS + 1; /* rows of bf16 at odd multiples of 2 bytes */
    assert_false(is_offered(&o));
    o = usual;
    o.align_a = 12; /* not a power of two */
    assert_false(is_offered(&o));
}

/* Launches `o` by an algorithm that was chosen for `chosen`. */
static cublasStatus_t launch(const struct operation *chosen, const struct operation *o)
{
    const float one = 1;
    cublasLtMatmulHeuristicResult_t found[CHOICES];
    cublasStatus_t status;
    unsigned char *d;
    int count = 0;

    make(chosen);
    assert_int_equal(choose(found, &count), 0);
    unmake();
    assert_int_equal(found[0].workspaceSize, chosen->splits ? WORKSPACE_BYTES : 0);
    make(o);
    d = m.memory + 2 * PIECE;
    status =
        cublasLtMatmul(m.handle, m.desc, &one, m.memory + o->a_offset, m.a, m.memory + PIECE, m.b,
                       &o->beta, d + o->c_offset, m.c, d + o->d_offset, m.d, &found[0].algo,
                       m.memory + 5 * PIECE + o->workspace_offset, found[0].workspaceSize, NULL);
    unmake();
    return status;
}

static void a_launch_is_what_was_chosen_for(void **state)
{
    const struct operation gelu = with(CUBLASLT_EPILOGUE_GELU_AUX);
    struct operation o = usual;

    assert_int_equal(launch(&usual, &usual), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(launch(&gelu, &gelu), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(launch(&usual, &gelu), CUBLAS_STATUS_INVALID_VALUE);
    o.a_ld = ROWS + 8;
    assert_int_equal(launch(&usual, &o), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(launch(&o, &o), CUBLAS_STATUS_SUCCESS);
    o = usual;
    o.d_type = CUDA_R_32F;
    assert_int_equal(launch(&usual, &o), CUBLAS_STATUS_INVALID_VALUE);
}

static void addresses_are_checked_at_the_launch(void **state)
{
    struct operation o = usual, chosen;

    o.a_offset = 8; /* chosen for 16 */
    assert_int_equal(launch(&usual, &o), CUBLAS_STATUS_INVALID_VALUE);
    o = chosen = with(CUBLASLT_EPILOGUE_GELU_AUX);
    o.aux_offset = 8;
    assert_int_equal(launch(&chosen, &o), CUBLAS_STATUS_INVALID_VALUE);
    o = chosen = with(CUBLASLT_EPILOGUE_BIAS);
    o.bias_offset = 8;
    assert_int_equal(launch(&chosen, &o), CUBLAS_STATUS_INVALID_VALUE);
    o = usual;
    o.align_a = 1;
    o.a_offset = 1; /* half an element */
    assert_int_equal(launch(&usual, &o), CUBLAS_STATUS_INVALID_VALUE);
}

/* A multiple of 256 bytes, as the documentation of the workspace demands. */
static void the_workspace_is_aligned(void **state)
{
    static const size_t offsets[] = {0, 256, 64, 128};
    struct operation o = usual;

    o.splits = true;
    for (int i = 0; i < 4; i++) {
        o.workspace_offset = offsets[i];
        assert_int_equal(launch(&o, &o),
                         i < 2 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE);
    }
}

/* c may be d, if it has d's layout; elsewhere it has the alignment that was promised. */
static void a_result_in_the_place_of_c_has_its_layout(void **state)
{
    struct operation o = usual;

    o.beta = 1;
    o.c_ld = ROWS + 8;
    assert_int_equal(launch(&o, &o), CUBLAS_STATUS_INVALID_VALUE);
    o.d_offset = PIECE / 2;
    assert_int_equal(launch(&o, &o), CUBLAS_STATUS_SUCCESS);
    o.c_offset = 8;
    assert_int_equal(launch(&o, &o), CUBLAS_STATUS_INVALID_VALUE);
}

/* Goal: sums of bf16 factors truncate, those of fp32 factors round. Method: 1, and in the second
 * operation of the tensor cores 1.5 units of its last bit but one: kept whole by rounding. */
static void sums_of_bf16_truncate(void **state)
{
    const float one = 1, zero = 0;

    for (int wide = 0; wide < 2; wide++) {
        const cudaDataType type = wide ? CUDA_R_32F : CUDA_R_16BF;
        struct operation o = usual;
        cublasLtMatmulHeuristicResult_t found[CHOICES];
        int count = 0;
        float *d;

        o.ab_type = type;
        o.d_type = CUDA_R_32F;
        make(&o);
        for (int k = 0; k < DEPTH; k++) {
            const float x = k == 0 ? 1 : k == 8 ? 0x1.8p-24f : 0;

            for (int i = 0; i < ROWS; i++)
                if (wide)
                    ((float *)m.memory)[k * ROWS + i] = x;
                else
                    ((uint16_t *)m.memory)[k * ROWS + i] = hd_f32_to_bf16(x);
            for (int j = 0; j < COLUMNS; j++)
                if (wide)
                    ((float *)(m.memory + PIECE))[j * DEPTH + k] = 1;
                else
                    ((uint16_t *)(m.memory + PIECE))[j * DEPTH + k] = hd_f32_to_bf16(1);
        }
        d = (float *)(m.memory + 2 * PIECE);
        assert_int_equal(choose(found, &count), 0);
        assert_int_equal(cublasLtMatmul(m.handle, m.desc, &one, m.memory, m.a, m.memory + PIECE,
                                        m.b, &zero, d, m.c, d, m.d, &found[0].algo, NULL, 0, NULL),
                         CUBLAS_STATUS_SUCCESS);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            assert_true(d[i] == (wide ? 1 + 0x1p-23f : 1));
        unmake();
    }
}

/* ---- fp8 ---- */

/* d [N, M] = a' b, a [K, N] and b [K, M], and what a case changes about it. */
struct fp8_operation {
    int64_t M, N, K;
    cudaDataType a, b, d;
    int32_t trans_a, trans_b, bias_type;
    cublasLtEpilogue_t epilogue;
    uint32_t align;
    int8_t fast_accum;
    int capability;
};
static const struct fp8_operation usual_fp8 = {.M = 32,
                                               .N = 16,
                                               .K = 48,
                                               .a = CUDA_R_8F_E4M3,
                                               .b = CUDA_R_8F_E5M2,
                                               .d = CUDA_R_16BF,
                                               .trans_a = CUBLAS_OP_T,
                                               .trans_b = CUBLAS_OP_N,
                                               .bias_type = -1,
                                               .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                               .align = 16,
                                               .capability = 89};

static bool is_offered_fp8(const struct fp8_operation *o)
{
    cublasLtMatmulHeuristicResult_t found[CHOICES];
    int count = 0;

    hd_cudasim_kind(2, o->capability);
    m = (struct made){.handle = NULL};
    assert_int_equal(cublasLtCreate(&m.handle), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&m.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
#define SET(attribute, value)                                                                 \
    assert_int_equal(cublasLtMatmulDescSetAttribute(m.desc, CUBLASLT_MATMUL_DESC_##attribute, \
                                                    &(value), sizeof(value)),                 \
                     0)
    SET(TRANSA, o->trans_a);
    SET(TRANSB, o->trans_b);
    SET(EPILOGUE, o->epilogue);
    SET(BIAS_DATA_TYPE, o->bias_type);
    SET(FAST_ACCUM, o->fast_accum);
#undef SET
    assert_int_equal(cublasLtMatrixLayoutCreate(&m.a, o->a, (uint64_t)(o->trans_a ? o->K : o->N),
                                                (uint64_t)(o->trans_a ? o->N : o->K),
                                                o->trans_a ? o->K : o->N),
                     0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&m.b, o->b, (uint64_t)(o->trans_b ? o->M : o->K),
                                                (uint64_t)(o->trans_b ? o->K : o->M),
                                                o->trans_b ? o->M : o->K),
                     0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&m.c, o->d, (uint64_t)o->N, (uint64_t)o->M, o->N),
                     0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&m.d, o->d, (uint64_t)o->N, (uint64_t)o->M, o->N),
                     0);
    assert_int_equal(cublasLtMatmulPreferenceCreate(&m.preference), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(
            cublasLtMatmulPreferenceSetAttribute(
                m.preference,
                (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES +
                                                       i),
                &o->align, sizeof o->align),
            0);
    (void)choose(found, &count);
    unmake();
    hd_cudasim_kind(2, 90);
    return count > 0;
}

/* Goal: cuBLASLt's documentation "FP8 kernels": one case per sentence. */
static void products_of_fp8_have_one_layout_and_whole_sixteens(void **state)
{
    struct fp8_operation wrong[14];
    int count = 0;

    for (int i = 0; i < 14; i++)
        wrong[i] = usual_fp8;
    assert_true(is_offered_fp8(&usual_fp8));
    wrong[count++].capability = 80;
    wrong[count++].trans_a = CUBLAS_OP_N;
    wrong[count++].trans_b = CUBLAS_OP_T;
    wrong[count++].M = 24;
    wrong[count++].N = 24;
    wrong[count++].K = 40;
    wrong[count++].align = 8;
    wrong[count++].fast_accum = 1;
    wrong[count++].a = CUDA_R_8F_E5M2; /* as b */
    wrong[count++].a = CUDA_R_16BF;
    wrong[count++].d = CUDA_R_8F_E4M3;
    wrong[count++].epilogue = CUBLASLT_EPILOGUE_GELU;
    wrong[count].epilogue = CUBLASLT_EPILOGUE_BIAS;
    wrong[count++].bias_type = CUDA_R_32F;
    wrong[count].epilogue = CUBLASLT_EPILOGUE_BIAS;
    wrong[count].d = CUDA_R_32F;
    wrong[count++].bias_type = CUDA_R_32F;
    for (int i = 0; i < count; i++)
        if (is_offered_fp8(&wrong[i]))
            fail_msg("number %d is offered", i);
    wrong[0] = usual_fp8;
    wrong[0].epilogue = CUBLASLT_EPILOGUE_BIAS;
    assert_true(is_offered_fp8(&wrong[0])); /* bf16, as d */
    wrong[0].d = CUDA_R_32F;
    wrong[0].bias_type = CUDA_R_16BF;
    assert_true(is_offered_fp8(&wrong[0]));
}

RUN_CASES()
