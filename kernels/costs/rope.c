#include "kernels/costs/costs.h"

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
