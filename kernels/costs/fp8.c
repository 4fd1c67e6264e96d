#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(fp8_amax)
HD_COSTS_NO_SCRATCH(fp8_encode)
HD_COSTS_NO_SCRATCH(fp8_history)

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

void hd_cost_fp8_gemm(struct hd_costs *costs, const struct hd_fp8_gemm_args *a)
{
    const int64_t c = a->M * a->N * (int64_t)hd_dtype_size(a->c_dtype);

    costs->flops += 2.0 * (double)a->M * (double)a->N * (double)a->K;
    costs->read_bytes += a->M * a->K + a->N * a->K + (a->bias ? 2 * a->N : 0) + 2 * 4;
    costs->read_bytes += a->accumulate || a->add ? c : 0;
    costs->write_bytes += c;
}

/* Counts the reading of an amax history, from which the scale is taken in all steps but the
 * first. */
void hd_cost_fp8_amax(struct hd_costs *costs, const struct hd_fp8_amax_args *a)
{
    const int64_t bytes = a->N * (int64_t)hd_dtype_size(HD_BF16);

    costs->flops += (double)(a->history ? a->history_len : a->N);
    costs->read_bytes += a->history ? a->history_len * 4 : bytes;
    costs->write_bytes += HD_AMAX_PARTS * 4;
}

/* Counts two operations per element: a maximum and a product with the scale. */
void hd_cost_fp8_encode(struct hd_costs *costs, const struct hd_fp8_encode_args *a)
{
    costs->flops += 2.0 * (double)a->R * (double)a->C;
    costs->read_bytes += a->R * a->C * (int64_t)hd_dtype_size(HD_BF16) + HD_AMAX_PARTS * 4;
    costs->write_bytes += ((a->code ? 1 : 0) + (a->transposed ? 1 : 0)) * a->R * a->C + 4;
}

void hd_costs_add_codes(struct hd_costs *costs, int orders, bool only, int64_t history_len,
                        int64_t N)
{
    if (!orders)
        return;
    costs->flops += 2.0 * (double)N;
    costs->read_bytes += history_len * 4;
    costs->write_bytes += (orders - (only ? (int64_t)hd_dtype_size(HD_BF16) : 0)) * N + 4;
}

void hd_cost_fp8_history(struct hd_costs *costs, const struct hd_fp8_history_args *a)
{
    costs->read_bytes += a->N * a->history_len * 4;
    costs->write_bytes += a->N * a->history_len * 4;
}
