#include "base/math.h"
#include "kernels/costs/costs.h"

bool hd_costs_grouped_is_one_by_one(const struct hd_grouped_gemm_args *args)
{
    return args->T <= HD_COSTS_GROUPED_ONE_BY_ONE && args->trans_b;
}

struct hd_gemm_args hd_costs_grouped_product(const struct hd_grouped_gemm_args *args, int64_t rows)
{
    return (struct hd_gemm_args){.M = rows,
                                 .N = args->N,
                                 .K = args->K,
                                 .lda = args->lda,
                                 .ldb = args->ldb,
                                 .ldc = args->ldc,
                                 .trans_b = args->trans_b,
                                 .accumulate = args->accumulate,
                                 .ab_dtype = args->ab_dtype,
                                 .c_dtype = args->c_dtype,
                                 .b_codes = args->b_codes};
}

struct hd_gemm_args hd_costs_grouped_weight_product(const struct hd_grouped_gemm_weight_args *args,
                                                    int64_t rows)
{
    return (struct hd_gemm_args){.M = args->M,
                                 .N = args->N,
                                 .K = rows,
                                 .lda = args->lda,
                                 .ldb = args->ldb,
                                 .ldc = args->ldc,
                                 .trans_a = true,
                                 .accumulate = args->accumulate,
                                 .ab_dtype = args->ab_dtype,
                                 .c_dtype = HD_F32};
}

static int64_t begins_bytes(int64_t E)
{
    return hd_tensor_align((E + 1) * (int64_t)sizeof(int64_t));
}

int64_t hd_costs_grouped_slab_experts(const struct hd_grouped_gemm_args *args)
{
    const struct hd_gemm_args one = hd_costs_grouped_product(args, 1);
    const struct hd_costs_slabs slabs = hd_costs_gemm_slabs(&one);
    const int64_t fit = HD_COSTS_DECODED_BYTES / (slabs.decoded_bytes ? slabs.decoded_bytes : 1);

    if (slabs.columns < args->N || fit < 1)
        return 1;
    return hd_min(fit, args->E);
}

/* Returns a layout of the scratch for T rows, which is enough for every count of an expert, since
 * the scratch of a GEMM grows with its rows. */
struct hd_costs_grouped_layout hd_costs_lay_out_grouped(const struct hd_grouped_gemm_args *args,
                                                        const struct hd_traits *traits)
{
    const struct hd_gemm_args whole = hd_costs_grouped_product(args, args->T);
    const struct hd_gemm_args small =
        hd_costs_grouped_product(args, hd_min(args->T, HD_COSTS_GROUPED_SMALL));
    const int64_t shared = hd_costs_lay_out_gemm(&whole, traits).scratch_bytes;
    struct hd_costs_grouped_layout l = {.begins_bytes = begins_bytes(args->E)};

    if (hd_traits_is_cuda(traits)) /* every thread block computes the first rows of the experts
                                      itself */
        return (struct hd_costs_grouped_layout){
            .scratch_bytes = args->b_codes.quant ? hd_costs_grouped_slab_experts(args) *
                                                       hd_costs_gemm_slabs(&whole).decoded_bytes
                                                 : 0};
    if (hd_costs_grouped_is_one_by_one(args)) {
        l.scratch_bytes = l.begins_bytes;
        return l;
    }
    if (traits->threads > 1 && traits->threads * HD_COSTS_GROUPED_SMALL_PER_THREAD <= args->E)
        l.thread_bytes = hd_costs_lay_out_gemm(&small, traits).scratch_bytes;
    l.scratch_bytes = traits->threads * l.thread_bytes;
    l.scratch_bytes = l.begins_bytes + (shared > l.scratch_bytes ? shared : l.scratch_bytes);
    return l;
}

/* Returns the scratch for the largest product. K of a weight gradient is the number of rows of the
 * expert. A slice is at most HD_COSTS_GEMM_WORDS values deep, as words or as pairs, and the scratch is
 * largest if K is one slice of that depth. */
int64_t hd_scratch_grouped_gemm_weight(const struct hd_grouped_gemm_weight_args *args,
                                       const struct hd_traits *traits)
{
    const struct hd_gemm_args deepest =
        hd_costs_grouped_weight_product(args, hd_min(args->T, HD_COSTS_GEMM_WORDS));

    _Static_assert((int)HD_COSTS_GEMM_WORDS == 2 * (int)HD_COSTS_GEMM_PAIRS,
                   "slices of fp32 values and of pairs are equally deep");
    if (hd_traits_is_cuda(traits))
        return 0;
    return hd_costs_lay_out_gemm(&deepest, traits).scratch_bytes;
}

struct hd_costs_factor_bytes hd_costs_grouped_b(const struct hd_grouped_gemm_args *a)
{
    const struct hd_gemm_args one = hd_costs_grouped_product(a, 1);
    const bool encoded = hd_costs_gemm_is_encoded(&one);
    struct hd_costs_factor_bytes b = hd_costs_gemm_b(&one);

    b.extent_bytes +=
        (a->E - 1) * a->stride_b * (encoded ? 1 : (int64_t)hd_dtype_size(a->ab_dtype));
    b.moved_bytes *= hd_min(a->E, a->T);
    return b;
}
