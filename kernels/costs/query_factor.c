#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(query_factor)

/* Counts a multiply per element; a row reads its position and one factor. */
void hd_cost_query_factor(struct hd_costs *costs, const struct hd_query_factor_args *a)
{
    const int64_t elements = a->R * a->N;

    costs->flops += (double)elements;
    costs->read_bytes += elements * (int64_t)hd_dtype_size(a->dtype) + a->R * (4 + 4);
    costs->write_bytes += elements * (int64_t)hd_dtype_size(a->dtype);
}
