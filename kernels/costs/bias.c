#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(bias_forward)

void hd_cost_bias_forward(struct hd_costs *costs, const struct hd_bias_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)a->R * (double)a->N;
    costs->read_bytes += (a->R + 1) * a->N * e;
    costs->write_bytes += a->R * a->N * e;
}

/* Returns the bytes of one partial sum of N floats per chunk of rows; 0 if they are given. */
int64_t hd_scratch_bias_backward(const struct hd_bias_backward_args *args,
                                 const struct hd_traits *traits)
{
    if (args->sums)
        return 0;
    return hd_costs_row_chunks_on(traits, args->R).count * args->N * (int64_t)sizeof(float);
}

void hd_cost_bias_backward(struct hd_costs *costs, const struct hd_bias_backward_args *a)
{
    costs->flops += (double)(a->sums ? a->P : a->R) * (double)a->N;
    costs->read_bytes += a->sums ? a->P * a->N * (int64_t)sizeof *a->sums
                                 : a->R * a->N * (int64_t)hd_dtype_size(a->dtype);
    costs->read_bytes += a->accumulate ? a->N * 4 : 0;
    costs->write_bytes += a->N * 4;
}
