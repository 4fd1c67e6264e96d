#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(policy)

/* Counts bytes only; the few operations of each row are not counted. */
void hd_cost_policy(struct hd_costs *costs, const struct hd_policy_args *a)
{
    costs->read_bytes += a->R * (5 * 4 + (a->reference ? 4 : 0)) + a->R / a->S * a->A * 16 +
                         (a->spread ? a->P * a->R * HD_ENTROPY_WORDS * 4 : 0);
    costs->write_bytes += a->weight ? a->R * 4 : 0;
}
