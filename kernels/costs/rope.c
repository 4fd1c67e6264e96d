#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(rope)

enum hd_status hd_costs_check_rope(const struct hd_rope_args *args)
{
    const int64_t width = hd_rope_args_width(args);

    if (width % 2)
        return hd_err(HD_UNSUPPORTED,
                      "rope: %lld channels of a head rotate; the number must be even",
                      (long long)width);
    if (args->first < 0 || args->first + width > args->D)
        return hd_err(
            HD_UNSUPPORTED, "rope: channels %lld to %lld rotate, but a head has %lld channels",
            (long long)args->first, (long long)(args->first + width - 1), (long long)args->D);
    return HD_OK;
}

/* Counts four multiplies and two adds per pair of channels, and one row of the table per row of
 * x. */
void hd_cost_rope(struct hd_costs *costs, const struct hd_rope_args *a)
{
    const int64_t width = hd_rope_args_width(a), elements = a->R * a->H * width;

    costs->flops += 3.0 * (double)elements;
    costs->read_bytes += elements * (int64_t)hd_dtype_size(a->dtype) + a->R * (4 + width * 4);
    costs->write_bytes += elements * (int64_t)hd_dtype_size(a->dtype);
}
