#include <string.h>

#include "base/math.h"
#include "kernels/costs/costs.h"
#include "kernels/plugin.h"

struct hd_costs_gemm_layout hd_costs_lay_out_gemm(const struct hd_gemm_args *args,
                                                  const struct hd_traits *traits)
{
    const bool pairs = args->ab_dtype == HD_BF16 && traits->bf16_products != HD_BF16_WIDENED;
    const int64_t K = args->K > 0 ? args->K : 1, word = pairs ? 2 : 1; /* number of elements of K in
                                                                          a word of a panel */
    const int64_t words = pairs ? HD_COSTS_GEMM_PAIRS : HD_COSTS_GEMM_WORDS;
    const int64_t slices = hd_divide_up(hd_divide_up(K, word), words);
    /* the scratch is for this many rows: unlike l.rows it grows with M, as experts need it */
    const int64_t rows = hd_min(HD_COSTS_GEMM_SLAB / words, args->M);
    struct hd_costs_gemm_layout l = {.pairs = pairs, .rows = rows};

    if (!pairs && rows > 0) /* slabs of about equal size: each packs all of b */
        l.rows = hd_round_up(hd_divide_up(args->M, hd_divide_up(args->M, rows)),
                             HD_COSTS_GEMM_ROWS_ALIGN);
    l.columns = hd_min(HD_COSTS_GEMM_COLUMNS, args->N);
    l.words = hd_round_up(hd_divide_up(hd_divide_up(K, word), slices), HD_COSTS_GEMM_WORDS_ALIGN);
    l.depth = l.words * word;
    l.a_words = (rows + HD_COSTS_GEMM_PANEL) * l.words;
    /* the gaps of at most 112 panels fit into the 18 rows that no panel needs */
    l.a_gap = !pairs && l.words >= 128 ? HD_COSTS_GEMM_WORDS_ALIGN : 0;
    l.b_words = (l.columns + HD_COSTS_GEMM_PANEL) * l.words;
    if (args->c_dtype != HD_F32 && K > l.depth)
        l.sums_floats = rows * l.columns;
    if (hd_costs_gemm_is_encoded(args))
        l.strip_bytes = HD_COSTS_GEMM_PANEL * l.depth * (int64_t)hd_dtype_size(args->ab_dtype);
    l.scratch_bytes = hd_tensor_align(l.a_words * 4) + hd_tensor_align(l.b_words * 4) +
                      hd_tensor_align(l.sums_floats * 4) + traits->threads * l.strip_bytes;
    return l;
}

bool hd_costs_gemm_is_encoded(const struct hd_gemm_args *args)
{
    return args->b_codes.quant != HD_QUANT_NONE;
}

/* Returns the bytes of a factor that has codes, up to the second level of the scales of nf4, which is
 * that of the whole matrix and read little of. */
static struct hd_costs_factor_bytes encoded(const struct hd_quant_factor *codes, int64_t rows,
                                            int64_t count)
{
    const struct hd_quant_matrix *last = &codes->matrix[codes->count > 0 ? codes->count - 1 : 0];

    if (codes->quant == HD_QUANT_NF4) /* codes of 4 bits, and 8 bits per block */
        return (struct hd_costs_factor_bytes){
            last->second + HD_NF4_SECOND_SCALES * (int64_t)sizeof(float),
            hd_divide_up(count, 2) + hd_divide_up(count, HD_NF4_BLOCK)};
    return (struct hd_costs_factor_bytes){last->scales + last->rows * (int64_t)sizeof(float),
                                          count + rows * (int64_t)sizeof(float)};
}

struct hd_costs_factor_bytes hd_costs_factor(const struct hd_quant_factor *codes, int64_t rows,
                                             int64_t columns, int64_t ld, enum hd_dtype dtype)
{
    const int64_t size = (int64_t)hd_dtype_size(dtype);

    if (codes->quant != HD_QUANT_NONE)
        return encoded(codes, rows, rows * columns);
    return (struct hd_costs_factor_bytes){hd_costs_extent(rows, ld, columns) * size,
                                          rows * columns * size};
}

struct hd_costs_factor_bytes hd_costs_gemm_b(const struct hd_gemm_args *a)
{
    return hd_costs_factor(&a->b_codes, a->trans_b ? a->N : a->K, a->trans_b ? a->K : a->N, a->ldb,
                           a->ab_dtype);
}

int64_t hd_costs_gemm_columns(const struct hd_gemm_args *args)
{
    return args->epilogue == HD_EPILOGUE_GLU            ? args->N / 2
           : args->epilogue == HD_EPILOGUE_GLU_BACKWARD ? 2 * args->N
                                                        : args->N;
}

int64_t hd_costs_epilogue_flops(const struct hd_gemm_args *args)
{
    switch (args->epilogue) {
    case HD_EPILOGUE_NONE:
        break;
    case HD_EPILOGUE_GELU:
        return args->M * args->N * HD_COSTS_GELU_FLOPS;
    case HD_EPILOGUE_GELU_BACKWARD:
        return args->M * args->N * HD_COSTS_GELU_BACKWARD_FLOPS;
    case HD_EPILOGUE_GLU:
        return args->M * (args->N / 2) * hd_costs_glu_flops(args->act, false);
    case HD_EPILOGUE_GLU_BACKWARD:
        return args->M * args->N * hd_costs_glu_flops(args->act, true);
    }
    return 0;
}

struct hd_costs_slabs hd_costs_gemm_slabs(const struct hd_gemm_args *args)
{
    const int64_t column_bytes = args->K * (int64_t)hd_dtype_size(args->ab_dtype);
    const int64_t whole = HD_COSTS_DECODED_BYTES / (column_bytes > 0 ? column_bytes : 1) /
                          HD_COSTS_DECODED_COLUMNS * HD_COSTS_DECODED_COLUMNS;
    struct hd_costs_slabs s = {.columns =
                                   hd_min(whole ? whole : HD_COSTS_DECODED_COLUMNS, args->N)};

    s.decoded_bytes = hd_round_up(s.columns * column_bytes, HD_SCRATCH_ALIGN);
    return s;
}

static void *after(const void *data, int64_t elements, enum hd_dtype dtype)
{
    return data ? (char *)data + elements * (int64_t)hd_dtype_size(dtype) : NULL;
}

struct hd_gemm_args hd_costs_gemm_slab(const struct hd_gemm_args *args, int64_t first)
{
    const struct hd_costs_slabs s = hd_costs_gemm_slabs(args);
    struct hd_gemm_args part = *args;

    part.N = hd_min(s.columns, args->N - first);
    part.b = args->scratch;
    part.ldb = args->trans_b ? args->K : part.N;
    part.b_codes = (struct hd_quant_factor){.quant = HD_QUANT_NONE};
    part.c = after(args->c, first, args->c_dtype);
    part.pre = after(args->pre, first, args->c_dtype);
    part.gelu_inp = after(args->gelu_inp, first, args->c_dtype);
    part.add = after(args->add, first, args->c_dtype);
    part.bias = after(args->bias, first, args->ab_dtype);
    part.scratch = args->scratch ? (char *)args->scratch + s.decoded_bytes : NULL;
    return part;
}

/* Returns HD_INVALID unless the quantised b has the shape of the factor that b_codes describes. */
static enum hd_status check_codes(const struct hd_gemm_args *args)
{
    const struct hd_quant_factor *f = &args->b_codes;
    const int64_t rows = args->trans_b ? args->N : args->K;
    const int64_t columns = args->trans_b ? args->K : args->N;
    int64_t sum = 0;

    for (int i = 0; i < f->count; i++)
        sum += f->matrix[i].rows;
    if (sum == rows && f->columns == columns)
        return HD_OK;
    return hd_err(HD_INVALID, "gemm: b is [%lld, %lld], its codes are of [%lld, %lld]",
                  (long long)rows, (long long)columns, (long long)sum, (long long)f->columns);
}

enum hd_status hd_costs_gemm_check(const struct hd_gemm_args *args)
{
    if (hd_costs_gemm_is_gated(args))
        return hd_err(HD_UNSUPPORTED, "gemm: gated activations are computed inside products on "
                                      "Hopper GPUs alone, with " HD_GLU_ENV "=wgmma");
    if (hd_costs_gemm_is_encoded(args) && check_codes(args))
        return HD_INVALID;
    if (args->bias && args->accumulate)
        return hd_err(HD_INVALID, "gemm: bias is not allowed together with accumulate");
    if (args->add && (args->accumulate || args->epilogue))
        return hd_err(HD_INVALID, "gemm: add is not allowed together with accumulate or an "
                                  "epilogue");
    if (args->epilogue &&
        (args->accumulate || (args->epilogue == HD_EPILOGUE_GELU_BACKWARD && args->bias)))
        return hd_err(HD_INVALID, "gemm: an epilogue is not allowed together with accumulate, and "
                                  "HD_EPILOGUE_GELU_BACKWARD not together with bias");
    if ((args->pre && args->epilogue != HD_EPILOGUE_GELU) ||
        !args->gelu_inp != (args->epilogue != HD_EPILOGUE_GELU_BACKWARD))
        return hd_err(HD_INVALID, "gemm: pre is only allowed with HD_EPILOGUE_GELU; gelu_inp must "
                                  "be set exactly with HD_EPILOGUE_GELU_BACKWARD");
    return HD_OK;
}

bool hd_costs_gemm_is_row(const struct hd_gemm_args *args)
{
    return args->M == 1 && args->trans_b && (!args->trans_a || args->lda == 1);
}

bool hd_costs_gemm_is_own(const struct hd_gemm_args *args, const struct hd_traits *traits)
{
    if (hd_traits_is_cuda(traits)) /* cuBLASLt multiplies fp32 factors only into fp32 */
        return args->K <= 0 || hd_costs_gemm_is_gated(args) || !traits->gemm_scratch_bytes ||
               (args->ab_dtype == HD_F32 && args->c_dtype != HD_F32) ||
               ((args->bias || args->epilogue) && args->c_dtype != args->ab_dtype);
    return hd_costs_gemm_is_row(args) || args->K <= 0 || !traits->gemm_scratch_bytes ||
           args->epilogue || args->add || (args->ab_dtype == HD_BF16 && traits->own_bf16) ||
           hd_costs_gemm_is_encoded(args);
}

/* Returns whether the kernel for Hopper GPUs (cuda/gemm_glu_hopper.cu) computes this product: TMA needs
 * rows of whole 16 bytes, the factors are as a linear's forward and its gradient have them, and the
 * rows of c follow each other. */
static bool is_by_glu(const struct hd_gemm_args *a)
{
    const bool forward = a->epilogue == HD_EPILOGUE_GLU;

    return a->ab_dtype == HD_BF16 && a->c_dtype == HD_BF16 && !a->bias && !a->add &&
           !a->accumulate && !a->trans_a && a->trans_b == forward && !hd_costs_gemm_is_encoded(a) &&
           (a->act == HD_ACT_SILU || a->act == HD_ACT_GELU_TANH) && a->K > 0 && a->lda % 8 == 0 &&
           a->ldb % 8 == 0 && a->N % (forward ? 16 : 8) == 0 && a->ldc == hd_costs_gemm_columns(a);
}

/* Returns true if the GEMM can compute the epilogue or residual in its own pass. Own code applies
 * GELU to the complete sums on every device. cuBLASLt can also apply GELU and store its input, if
 * rows are multiples of 8 elements, unless traits forbid it; oneDNN does not here. A residual is
 * added by cuBLASLt (beta = 1) and by own code of a GPU; on a CPU it would save little, and change
 * the bits of its programs. */
bool hd_gemm_takes_epilogue(const struct hd_gemm_args *args, const struct hd_traits *traits)
{
    const bool by_gpu_library = hd_traits_is_cuda(traits) && !hd_costs_gemm_is_own(args, traits);
    struct hd_gemm_args plain = *args;

    if (hd_costs_gemm_is_gated(args))
        return strstr(traits->isa, HD_BY_GLU) && is_by_glu(args);
    if (args->add)
        return hd_traits_is_cuda(traits);
    plain.epilogue = HD_EPILOGUE_NONE;
    return hd_costs_gemm_is_own(&plain, traits) ||
           (by_gpu_library && args->ldc % 8 == 0 && !traits->gelu_separate);
}

/* Returns the larger of the library's scratch limit and the size of own code's panels, because the
 * library may refuse a shape. On a GPU own code keeps its tiles in shared memory and needs no
 * scratch. */
int64_t hd_scratch_gemm(const struct hd_gemm_args *args, const struct hd_traits *traits)
{
    const struct hd_gemm_args slab = hd_costs_gemm_slab(args, 0);
    const bool panels = !hd_costs_gemm_is_row(args) && !hd_traits_is_cuda(traits);
    const int64_t own = panels ? hd_costs_lay_out_gemm(args, traits).scratch_bytes : 0;

    if (hd_costs_gemm_is_encoded(args) && hd_traits_is_cuda(traits))
        return hd_costs_gemm_slabs(args).decoded_bytes + hd_scratch_gemm(&slab, traits);
    return own > traits->gemm_scratch_bytes || hd_costs_gemm_is_own(args, traits)
               ? own
               : traits->gemm_scratch_bytes;
}
