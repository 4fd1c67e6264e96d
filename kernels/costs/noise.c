#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(noise)

/* Counts a multiply and an add per element; the random numbers are computed with integers. */
void hd_cost_noise(struct hd_costs *costs, const struct hd_noise_args *a)
{
    const int64_t bytes = a->R * a->C * (int64_t)hd_dtype_size(a->dtype);

    costs->flops += 2 * (double)(a->R * a->C);
    costs->read_bytes += bytes + a->R * 12;
    costs->write_bytes += bytes;
}
