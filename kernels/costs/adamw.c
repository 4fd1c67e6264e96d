#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(adamw)

/* Counts per weight: grad_factor (1), m (3), v (4), both bias corrections (2), square root, add and
 * division (3), decay and step (4). Counts per moment in blocks: a product to decode; the maximum,
 * the division and the code to encode (4); both moments of every weight are counted. */
void hd_cost_adamw(struct hd_costs *costs, const struct hd_adamw_args *a)
{
    const int64_t moments = 2 * (a->moment_bytes ? a->moment_bytes : a->N * 4);

    costs->flops += (a->moment_bytes ? 17.0 + 2 * 5 : 17.0) * (double)a->N;
    costs->read_bytes += 2 * a->N * 4 + moments;
    costs->write_bytes += a->N * 4 + moments;
    costs->write_bytes += a->copy ? a->N * (int64_t)hd_dtype_size(a->copy_dtype) : 0;
}
