#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(cache_append)

void hd_cost_cache_append(struct hd_costs *costs, const struct hd_cache_append_args *a)
{
    const int64_t bytes = a->B * a->new_rows * a->N * (int64_t)hd_dtype_size(a->dtype);

    costs->read_bytes += bytes + 2 * a->B * 4; /* `filled` and `slot`: two int32 per sequence */
    costs->write_bytes += bytes;
}
