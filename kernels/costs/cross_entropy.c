#include "kernels/costs/costs.h"

/* Returns the bytes of one double per row, for the row's loss; the losses are then added in
 * order. */
int64_t hd_scratch_cross_entropy(const struct hd_cross_entropy_args *args,
                                 const struct hd_traits *traits)
{
    (void)traits;
    return args->R * (int64_t)sizeof(double);
}

/* Counts per logit: maximum, subtraction, exp, add; for the gradient subtraction, exp and a
 * multiply. */
void hd_cost_cross_entropy(struct hd_costs *costs, const struct hd_cross_entropy_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)a->R * (double)a->V * (a->dlogits ? 7 : 4);
    costs->read_bytes += a->R * (a->V * e + 4 + (a->weight ? 4 : 0));
    costs->write_bytes += (a->dlogits ? a->R * a->Vp * e : 0) + (a->logp ? a->R * 4 : 0);
}

HD_COSTS_NO_SCRATCH(cross_entropy_stats)

void hd_cost_cross_entropy_stats(struct hd_costs *costs,
                                 const struct hd_cross_entropy_stats_args *a)
{
    costs->flops += (double)a->R * (double)a->V * 4;
    costs->read_bytes += a->R * (a->V * (int64_t)hd_dtype_size(a->dtype) + 4);
    costs->write_bytes += a->R * HD_CROSS_ENTROPY_STATS * 4;
}

int64_t hd_scratch_cross_entropy_shared(const struct hd_cross_entropy_shared_args *args,
                                        const struct hd_traits *traits)
{
    (void)traits;
    return args->R * (int64_t)sizeof(double);
}

/* Counts the gradient of cross_entropy; operations on the stats are not counted. */
void hd_cost_cross_entropy_shared(struct hd_costs *costs,
                                  const struct hd_cross_entropy_shared_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->read_bytes += a->R * (a->P * HD_CROSS_ENTROPY_STATS * 4 + 4 + (a->weight ? 4 : 0));
    costs->write_bytes += a->logp ? a->R * 4 : 0;
    if (!a->dlogits)
        return;
    costs->flops += (double)a->R * (double)a->V * 3;
    costs->read_bytes += a->R * a->V * e;
    costs->write_bytes += a->R * a->Vp * e;
}
