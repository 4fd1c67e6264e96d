#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(dora_squares)
HD_COSTS_NO_SCRATCH(dora_inverse)
HD_COSTS_NO_SCRATCH(dora_scale)

/* Counts per row of W: K squares, r products of length r with G, and r terms with P. */
void hd_cost_dora_squares(struct hd_costs *costs, const struct hd_dora_squares_args *a)
{
    const double N = (double)a->N, K = (double)a->K, r = (double)a->r;

    costs->flops += N * (2 * K + r * (2 * r + 4));
    costs->read_bytes += hd_costs_factor_bytes(&a->codes, a->N, a->K, a->dtype);
    costs->read_bytes += a->N * a->r * ((int64_t)hd_dtype_size(a->dtype) + 4) + a->r * a->r * 4;
    costs->write_bytes += a->N * 4;
}

void hd_cost_dora_inverse(struct hd_costs *costs, const struct hd_dora_inverse_args *a)
{
    costs->flops += 2 * (double)a->N;
    costs->read_bytes += a->N * 4;
    costs->write_bytes += a->N * 4;
}

void hd_cost_dora_scale(struct hd_costs *costs, const struct hd_dora_scale_args *a)
{
    const int64_t bytes = a->R * a->N * (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)(a->R * a->N);
    costs->read_bytes += bytes + 2 * a->N * 4;
    costs->write_bytes += bytes;
}

/* Returns the bytes of one partial sum of N floats per chunk of rows. */
int64_t hd_scratch_dora_backward(const struct hd_dora_backward_args *args,
                                 const struct hd_traits *traits)
{
    return hd_costs_row_chunks_on(traits, args->R).count * args->N * (int64_t)sizeof(float);
}

void hd_cost_dora_backward(struct hd_costs *costs, const struct hd_dora_backward_args *a)
{
    costs->flops += 2 * (double)a->R * (double)a->N;
    costs->read_bytes += 2 * a->R * a->N * (int64_t)hd_dtype_size(a->dtype);
    costs->read_bytes += a->N * 4 + (a->accumulate ? a->N * 4 : 0);
    costs->write_bytes += a->N * 4;
}
