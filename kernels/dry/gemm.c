#include "kernels/dry/dry.h"

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t x, int64_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

static int64_t divide_up(int64_t x, int64_t by)
{
    return (x + by - 1) / by;
}

struct hd_dry_gemm_layout hd_dry_gemm_layout(const struct hd_gemm_args *args,
                                             const struct hd_traits *traits)
{
    const bool pairs = args->ab_dtype == HD_BF16 && traits->bf16_products != HD_BF16_WIDENED;
    const int64_t K = args->K > 0 ? args->K : 1, word = pairs ? 2 : 1; /* elements in a word */
    const int64_t slices = divide_up(divide_up(K, word), HD_DRY_GEMM_WORDS);
    struct hd_dry_gemm_layout l = {.pairs = pairs};

    l.rows = at_most(HD_DRY_GEMM_ROWS, args->M);
    l.columns = at_most(HD_DRY_GEMM_COLUMNS, args->N);
    l.words = round_up(divide_up(divide_up(K, word), slices), HD_DRY_GEMM_WORDS_ALIGN);
    l.depth = l.words * word;
    l.a_words = (l.rows + HD_DRY_GEMM_PANEL) * l.words;
    l.b_words = (l.columns + HD_DRY_GEMM_PANEL) * l.words;
    if (args->c_dtype != HD_F32 && K > l.depth)
        l.sums_floats = l.rows * l.columns;
    l.scratch_bytes =
        hd_dry_align(l.a_words * 4) + hd_dry_align(l.b_words * 4) + hd_dry_align(l.sums_floats * 4);
    return l;
}

bool hd_dry_gemm_is_row(const struct hd_gemm_args *args)
{
    return args->M == 1 && args->trans_b && (!args->trans_a || args->lda == 1);
}

bool hd_dry_gemm_is_own(const struct hd_gemm_args *args, const struct hd_traits *traits)
{
    if (hd_traits_is_cuda(traits)) /* where fp32 factors have an fp32 product or none */
        return args->K <= 0 || !traits->gemm_scratch_bytes ||
               (args->ab_dtype == HD_F32 && args->c_dtype != HD_F32) ||
               (args->bias && args->c_dtype != args->ab_dtype);
    return hd_dry_gemm_is_row(args) || args->K <= 0 || !traits->gemm_scratch_bytes ||
           (args->ab_dtype == HD_BF16 && traits->own_bf16);
}

/* A library computes within its budget, own code within its panels. The library may refuse a shape,
 * so there is room for both. On a GPU own code has its tiles in shared memory and needs none. */
int64_t hd_dry_scratch_gemm(const struct hd_gemm_args *args, const struct hd_traits *traits)
{
    const bool panels = !hd_dry_gemm_is_row(args) && !hd_traits_is_cuda(traits);
    const int64_t own = panels ? hd_dry_gemm_layout(args, traits).scratch_bytes : 0;

    return own > traits->gemm_scratch_bytes || hd_dry_gemm_is_own(args, traits)
               ? own
               : traits->gemm_scratch_bytes;
}

void hd_dry_cost_gemm(struct hd_costs *costs, const struct hd_gemm_args *a)
{
    const int64_t ab = (int64_t)hd_dtype_size(a->ab_dtype), c = (int64_t)hd_dtype_size(a->c_dtype);

    costs->flops += 2.0 * (double)a->M * (double)a->N * (double)a->K;
    costs->read_bytes += (a->M * a->K + a->K * a->N + (a->bias ? a->N : 0)) * ab;
    costs->read_bytes += a->accumulate ? a->M * a->N * c : 0;
    costs->write_bytes += a->M * a->N * c;
}
