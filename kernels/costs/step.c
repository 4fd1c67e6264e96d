#include "kernels/costs/costs.h"

/* The step state is a few words in cache; its bytes are not counted. */
HD_COSTS_NO_SCRATCH(step_begin)
HD_COSTS_NO_SCRATCH(square_sums)
HD_COSTS_NO_SCRATCH(step_record)
HD_COSTS_NO_SCRATCH(step_finish)

void hd_cost_step_begin(struct hd_costs *costs, const struct hd_step_begin_args *a)
{
    (void)costs;
    (void)a;
}

void hd_cost_square_sums(struct hd_costs *costs, const struct hd_square_sums_args *a)
{
    costs->flops += 2.0 * (double)a->N;
    costs->read_bytes += a->N * 4;
    costs->write_bytes += (a->N + HD_GRAD_CHUNK - 1) / HD_GRAD_CHUNK * 8;
}

/* Counts the record only: the chunk sums are one double per HD_GRAD_CHUNK elements. */
void hd_cost_step_record(struct hd_costs *costs, const struct hd_step_record_args *a)
{
    (void)a;
    costs->write_bytes += HD_EXCHANGE_WORDS * 8;
}

void hd_cost_step_finish(struct hd_costs *costs, const struct hd_step_finish_args *a)
{
    costs->flops += (double)(21 * a->ranks);
    costs->read_bytes += a->ranks * HD_EXCHANGE_WORDS * 8;
}
