#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(top_logits)
HD_COSTS_NO_SCRATCH(top_merge)
HD_COSTS_NO_SCRATCH(distill_stats)

/* Counts a comparison, and as cross_entropy the exponential and its sum. */
void hd_cost_top_logits(struct hd_costs *costs, const struct hd_top_logits_args *a)
{
    costs->flops += (double)a->R * (double)a->V * 4;
    costs->read_bytes += a->R * a->V * (int64_t)hd_dtype_size(a->dtype);
    costs->write_bytes += a->R * HD_TOP_WORDS(a->k) * 4;
}

/* Counts bytes only; the operations on k numbers of a row are not counted. */
void hd_cost_top_merge(struct hd_costs *costs, const struct hd_top_merge_args *a)
{
    costs->read_bytes += a->P * a->R * HD_TOP_WORDS(a->k) * 4;
    costs->write_bytes += a->R * 2 * a->k * 4;
}

/* Counts the maximum and sum of cross_entropy_stats twice: of all columns and of the real ones at
 * the temperature. */
void hd_cost_distill_stats(struct hd_costs *costs, const struct hd_distill_stats_args *a)
{
    costs->flops += (double)a->R * (double)(a->V + a->real) * 4;
    costs->read_bytes += a->R * (a->V * (int64_t)hd_dtype_size(a->dtype) + 4 + 4 * a->k);
    costs->write_bytes += a->R * HD_DISTILL_WORDS(a->k) * 4;
}

/* Returns room for two losses of each row. */
int64_t hd_scratch_distill(const struct hd_distill_args *args, const struct hd_traits *traits)
{
    (void)traits;
    return args->R * 2 * (int64_t)sizeof(double);
}

/* Counts both gradients; operations on the stats are not counted. */
void hd_cost_distill(struct hd_costs *costs, const struct hd_distill_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->read_bytes += a->R * (a->P * HD_DISTILL_WORDS(a->k) * 4 + 4 + 8 * a->k);
    if (!a->dlogits)
        return;
    costs->flops += (double)a->R * (double)(a->V + a->real) * 3;
    costs->read_bytes += a->R * a->V * e;
    costs->write_bytes += a->R * a->Vp * e;
}
