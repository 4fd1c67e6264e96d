#include "kernels/costs/costs.h"

bool hd_norm_takes_weights(const struct hd_traits *traits, int64_t C, enum hd_dtype dtype)
{
    const int64_t bytes = C * (int64_t)hd_dtype_size(dtype);

    return hd_traits_is_cuda(traits) && bytes % HD_COSTS_PACK_BYTES == 0 &&
           bytes <= HD_COSTS_NORM_WEIGHTS_ROW_BYTES;
}

bool hd_norm_takes_sums(const struct hd_traits *traits, int64_t C, enum hd_dtype dtype)
{
    return hd_norm_takes_weights(traits, C, dtype);
}

bool hd_norm_takes_codes(const struct hd_traits *traits, int64_t C)
{
    return !hd_traits_is_cuda(traits) ||
           (C % HD_FP8_SIDE == 0 &&
            C * (int64_t)hd_dtype_size(HD_BF16) <= HD_COSTS_NORM_WEIGHTS_ROW_BYTES);
}

int hd_costs_residual_flops(const void *add, float factor)
{
    return !add ? 0 : hd_costs_scales(factor) ? 2 : 1;
}

int hd_costs_layernorm_sums(const struct hd_traits *traits, const float *dbias)
{
    return dbias || hd_traits_is_cuda(traits) ? 2 : 1;
}
