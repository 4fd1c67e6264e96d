#include "kernels/costs/costs.h"

enum hd_status hd_costs_check_conv(int64_t W)
{
    if (W >= 2 && W <= HD_CONV_WIDTH_MAX)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "convolution: %lld taps; 2 to %d are supported", (long long)W,
                  HD_CONV_WIDTH_MAX);
}
