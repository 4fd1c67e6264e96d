#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(rope)

/* Counts four multiplies and two adds per pair of channels, and one row of the table per row of
 * x. */
void hd_cost_rope(struct hd_costs *costs, const struct hd_rope_args *a)
{
    const int64_t elements = a->R * a->H * a->D;

    costs->flops += 3.0 * (double)elements;
    costs->read_bytes += elements * (int64_t)hd_dtype_size(a->dtype) + a->R * (4 + a->D * 4);
    costs->write_bytes += elements * (int64_t)hd_dtype_size(a->dtype);
}
