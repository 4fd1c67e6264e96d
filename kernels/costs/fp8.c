#include "kernels/costs/costs.h"

struct hd_gemm_args hd_costs_fp8_as_gemm(const struct hd_fp8_gemm_args *a)
{
    return (struct hd_gemm_args){.c = a->c,
                                 .bias = a->bias,
                                 .add = a->add,
                                 .M = a->M,
                                 .N = a->N,
                                 .K = a->K,
                                 .lda = a->K,
                                 .ldb = a->K,
                                 .ldc = a->N,
                                 .trans_b = true,
                                 .accumulate = a->accumulate,
                                 .ab_dtype = HD_BF16,
                                 .c_dtype = a->c_dtype};
}

struct hd_costs_fp8_layout hd_costs_lay_out_fp8(const struct hd_fp8_gemm_args *args,
                                                const struct hd_traits *traits)
{
    const struct hd_gemm_args product = hd_costs_fp8_as_gemm(args);
    const int64_t size = (int64_t)hd_dtype_size(HD_BF16);
    struct hd_costs_fp8_layout l = {.a = 0};

    l.b = hd_tensor_align(args->M * args->K * size);
    l.gemm = l.b + args->N * args->K * size;
    l.gemm = (l.gemm + HD_SCRATCH_ALIGN - 1) / HD_SCRATCH_ALIGN * HD_SCRATCH_ALIGN;
    l.scratch_bytes = l.gemm + hd_scratch_gemm(&product, traits);
    return l;
}

struct hd_gemm_args hd_costs_fp8_product(const struct hd_fp8_gemm_args *args,
                                         const struct hd_traits *traits)
{
    const struct hd_costs_fp8_layout l = hd_costs_lay_out_fp8(args, traits);
    struct hd_gemm_args product = hd_costs_fp8_as_gemm(args);
    char *scratch = args->scratch;

    if (scratch) {
        product.a = scratch + l.a;
        product.b = scratch + l.b;
        product.scratch = scratch + l.gemm;
    }
    return product;
}

enum hd_status hd_costs_fp8_check(const struct hd_fp8_gemm_args *args)
{
    if (args->M % HD_FP8_SIDE || args->N % HD_FP8_SIDE || args->K % HD_FP8_SIDE)
        return hd_err(HD_INVALID,
                      "fp8_gemm: [%lld,%lld] x [%lld,%lld] has a side that is no "
                      "multiple of %d",
                      (long long)args->M, (long long)args->K, (long long)args->K,
                      (long long)args->N, HD_FP8_SIDE);
    if (((uintptr_t)args->a_factor | (uintptr_t)args->b_factor) % HD_FP8_FACTOR_ALIGN)
        return hd_err(HD_INVALID, "fp8_gemm: a factor's address is no multiple of %d bytes",
                      HD_FP8_FACTOR_ALIGN);
    if ((args->bias || args->add) && args->accumulate)
        return hd_err(HD_INVALID, "fp8_gemm: bias or add is not allowed together with accumulate");
    if (args->a_format == HD_E5M2 && args->b_format == HD_E5M2)
        return hd_err(HD_INVALID, "fp8_gemm: only one of the factors may be in E5M2");
    if (args->c_dtype != HD_BF16 && args->c_dtype != HD_F32)
        return hd_err(HD_INVALID, "fp8_gemm: c is bf16 or fp32, not %s",
                      hd_dtype_name(args->c_dtype));
    return HD_OK;
}

/* Returns, on a GPU, the scratch limit of the GEMM library, which alone multiplies fp8 there; on a
 * CPU the size of hd_costs_lay_out_fp8. */
int64_t hd_scratch_fp8_gemm(const struct hd_fp8_gemm_args *args, const struct hd_traits *traits)
{
    return hd_traits_is_cuda(traits) ? traits->gemm_scratch_bytes
                                     : hd_costs_lay_out_fp8(args, traits).scratch_bytes;
}
