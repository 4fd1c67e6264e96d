#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(dropout)

/* Counts a multiply per element; the mask is computed with integers. */
void hd_cost_dropout(struct hd_costs *costs, const struct hd_dropout_args *a)
{
    const int64_t bytes = a->R * a->C * (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)(a->R * a->C);
    costs->read_bytes += bytes + a->R * 8;
    costs->write_bytes += bytes;
}
