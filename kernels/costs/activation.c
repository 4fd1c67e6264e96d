#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(swiglu_forward)
HD_COSTS_NO_SCRATCH(swiglu_backward)
HD_COSTS_NO_SCRATCH(gelu_forward)
HD_COSTS_NO_SCRATCH(gelu_backward)

/* Counts operations per output element: exp, add, divide, two multiplies. */
void hd_cost_swiglu_forward(struct hd_costs *costs, const struct hd_swiglu_forward_args *a)
{
    const int64_t outputs = a->R * a->F, e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += 5.0 * (double)outputs;
    costs->read_bytes += 2 * outputs * e;
    costs->write_bytes += outputs * e;
}

/* Counts per pair of gate and up: the sigmoid (3), silu (1), dup (1), dgate = dout*up*s*(1 +
 * gate*(1 - s)) (6). */
void hd_cost_swiglu_backward(struct hd_costs *costs, const struct hd_swiglu_backward_args *a)
{
    const int64_t outputs = a->R * a->F, e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += 11.0 * (double)outputs;
    costs->read_bytes += 3 * outputs * e;
    costs->write_bytes += 2 * outputs * e;
}

void hd_cost_gelu_forward(struct hd_costs *costs, const struct hd_gelu_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += HD_COSTS_GELU_FLOPS * (double)a->N;
    costs->read_bytes += a->N * e;
    costs->write_bytes += a->N * e;
}

void hd_cost_gelu_backward(struct hd_costs *costs, const struct hd_gelu_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += HD_COSTS_GELU_BACKWARD_FLOPS * (double)a->N;
    costs->read_bytes += 2 * a->N * e;
    costs->write_bytes += a->N * e;
}
