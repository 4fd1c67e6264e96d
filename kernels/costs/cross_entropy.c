#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(map_logits)

/* Returns the operations of mapping one logit: its factor; with a cap also 1 - 2 / (exp(2u) + 1)
 * (5) and its product with the cap. */
static int map_flops(struct hd_logit_map map)
{
    return map.cap > 0 ? 7 : hd_costs_scales(map.scale) ? 1 : 0;
}

/* Returns the operations that the map adds to the gradient of one logit: the map again, and with a
 * cap a product with 1 - t^2. A factor alone is part of a factor of the row. */
static int map_gradient_flops(struct hd_logit_map map)
{
    return map_flops(map) + (map.cap > 0 ? 3 : 0);
}

void hd_cost_map_logits(struct hd_costs *costs, const struct hd_map_logits_args *a)
{
    const int64_t bytes = a->N * (int64_t)hd_dtype_size(a->dtype);

    costs->flops += map_flops(a->map) * (double)a->N;
    costs->read_bytes += bytes;
    costs->write_bytes += bytes;
}

/* Returns the bytes of one double per row, for the row's loss, and with a z-loss of another one, for
 * its log Z; they are then added in order. */
int64_t hd_scratch_cross_entropy(const struct hd_cross_entropy_args *args,
                                 const struct hd_traits *traits)
{
    (void)traits;
    return args->R * (int64_t)sizeof(double) * (args->z > 0 ? 2 : 1);
}

/* Counts per logit: maximum, subtraction, exp, add; for the gradient subtraction, exp and a
 * multiply; and the map. A z-loss changes a factor of the row, which is not counted. */
void hd_cost_cross_entropy(struct hd_costs *costs, const struct hd_cross_entropy_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)a->R * (double)a->V *
                    (4 + map_flops(a->map) + (a->dlogits ? 3 + map_gradient_flops(a->map) : 0));
    costs->read_bytes += a->R * (a->V * e + 4 + (a->weight ? 4 : 0));
    costs->write_bytes += (a->dlogits ? a->R * a->Vp * e : 0) + (a->logp ? a->R * 4 : 0);
}

HD_COSTS_NO_SCRATCH(cross_entropy_stats)

void hd_cost_cross_entropy_stats(struct hd_costs *costs,
                                 const struct hd_cross_entropy_stats_args *a)
{
    costs->flops += (double)a->R * (double)a->V * (4 + map_flops(a->map));
    costs->read_bytes += a->R * (a->V * (int64_t)hd_dtype_size(a->dtype) + 4);
    costs->write_bytes += a->R * HD_CROSS_ENTROPY_STATS * 4;
}

int64_t hd_scratch_cross_entropy_shared(const struct hd_cross_entropy_shared_args *args,
                                        const struct hd_traits *traits)
{
    (void)traits;
    return args->R * (int64_t)sizeof(double) * (args->z > 0 ? 2 : 1);
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
    costs->flops += (double)a->R * (double)a->V * (3 + map_gradient_flops(a->map));
    costs->read_bytes += a->R * a->V * e;
    costs->write_bytes += a->R * a->Vp * e;
}

HD_COSTS_NO_SCRATCH(entropy)

/* Counts per logit: maximum, subtraction, exp, two adds, a multiply; and the map. */
void hd_cost_entropy(struct hd_costs *costs, const struct hd_entropy_args *a)
{
    costs->flops += (double)a->R * (double)a->V * (6 + map_flops(a->map));
    costs->read_bytes += a->R * (a->V * (int64_t)hd_dtype_size(a->dtype) + 4);
    costs->write_bytes += a->R * HD_ENTROPY_WORDS * 4;
}
