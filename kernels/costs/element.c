#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(add)
HD_COSTS_NO_SCRATCH(clamp_forward)
HD_COSTS_NO_SCRATCH(clamp_backward)
HD_COSTS_NO_SCRATCH(cast)
HD_COSTS_NO_SCRATCH(copy_columns)
HD_COSTS_NO_SCRATCH(zero)

void hd_cost_add(struct hd_costs *costs, const struct hd_add_args *a)
{
    const int64_t bytes = a->N * (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)a->N * (hd_costs_scales(a->factor) ? 2 : 1);
    costs->read_bytes += 2 * bytes;
    costs->write_bytes += bytes;
}

/* Counts two comparisons per element, as backward does. */
void hd_cost_clamp_forward(struct hd_costs *costs, const struct hd_clamp_forward_args *a)
{
    const int64_t bytes = a->N * (int64_t)hd_dtype_size(a->dtype);

    costs->flops += 2 * (double)a->N;
    costs->read_bytes += bytes;
    costs->write_bytes += bytes;
}

void hd_cost_clamp_backward(struct hd_costs *costs, const struct hd_clamp_backward_args *a)
{
    const int64_t bytes = a->N * (int64_t)hd_dtype_size(a->dtype);

    costs->flops += 2 * (double)a->N;
    costs->read_bytes += 2 * bytes;
    costs->write_bytes += bytes;
}

void hd_cost_cast(struct hd_costs *costs, const struct hd_cast_args *a)
{
    costs->read_bytes += a->N * (int64_t)hd_dtype_size(a->inp_dtype);
    costs->write_bytes += a->N * (int64_t)hd_dtype_size(a->out_dtype);
}

void hd_cost_copy_columns(struct hd_costs *costs, const struct hd_copy_columns_args *a)
{
    costs->flops += a->factor == 1 ? 0 : (double)(a->R * a->N);
    costs->read_bytes += a->R * a->N * (int64_t)hd_dtype_size(a->inp_dtype);
    costs->write_bytes += a->R * a->N * (int64_t)hd_dtype_size(a->out_dtype);
}

void hd_cost_zero(struct hd_costs *costs, const struct hd_zero_args *a)
{
    costs->write_bytes += a->size_bytes;
}
