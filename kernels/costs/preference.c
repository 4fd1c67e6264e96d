#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(answer_sums)
HD_COSTS_NO_SCRATCH(preference)

void hd_cost_answer_sums(struct hd_costs *costs, const struct hd_answer_sums_args *a)
{
    costs->flops += (double)a->R * (a->reference ? 2 : 1);
    costs->read_bytes += a->R * (8 + (a->reference ? 4 : 0) + (a->target ? 4 : 0));
    costs->write_bytes += a->R / a->S * a->A * 16;
}

/* Counts bytes only; the few operations of each pair are not counted. */
void hd_cost_preference(struct hd_costs *costs, const struct hd_preference_args *a)
{
    costs->read_bytes += a->R * 4 + a->R / a->S * a->A * 16;
    costs->write_bytes += a->weight ? a->R * 4 : 0;
}
