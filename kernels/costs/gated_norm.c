/* gated_norm: scratch and costs of the norm of heads with a gate. */
#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(gated_norm_forward)
HD_COSTS_NO_SCRATCH(gated_norm_backward)

/* Counts per element: 4 operations of rmsnorm, SiLU (4) and its product. */
void hd_cost_gated_norm_forward(struct hd_costs *costs, const struct hd_gated_norm_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->H * a->D;

    costs->flops += 9.0 * (double)elements;
    costs->read_bytes += (2 * elements + a->D) * e;
    costs->write_bytes += elements * e + a->R * a->H * 4;
}

/* Counts per element: 7 operations of rmsnorm's backward, SiLU and its derivative (8), and three
 * products. */
void hd_cost_gated_norm_backward(struct hd_costs *costs,
                                 const struct hd_gated_norm_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->H * a->D;

    costs->flops += 18.0 * (double)elements;
    costs->read_bytes += (3 * elements + a->D) * e + a->R * a->H * 4;
    costs->write_bytes += 2 * elements * e;
}

/* Returns the bytes of a partial sum of D floats per chunk of rows; each head counts as a row. */
int64_t hd_scratch_gated_norm_backward_weight(const struct hd_gated_norm_backward_weight_args *args,
                                              const struct hd_traits *traits)
{
    return hd_costs_row_chunks_on(traits, args->R * args->H).count * args->D *
           (int64_t)sizeof(float);
}

void hd_cost_gated_norm_backward_weight(struct hd_costs *costs,
                                        const struct hd_gated_norm_backward_weight_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->H * a->D;

    costs->flops += 8.0 * (double)elements;
    costs->read_bytes += 3 * elements * e + a->R * a->H * 4 + (a->accumulate ? a->D * 4 : 0);
    costs->write_bytes += a->D * 4;
}
