#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(adamw)

/* Per weight: grad_factor (1), m (3), v (4), both bias corrections (2), square root, add and
 * division (3), decay and step (4). */
void hd_cost_adamw(struct hd_costs *costs, const struct hd_adamw_args *a)
{
    costs->flops += 17.0 * (double)a->N;
    costs->read_bytes += 4 * a->N * 4;
    costs->write_bytes += 3 * a->N * 4;
    costs->write_bytes += a->copy ? a->N * (int64_t)hd_dtype_size(a->copy_dtype) : 0;
}
