#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(row_gate_forward)
HD_COSTS_NO_SCRATCH(row_gate_backward)
HD_COSTS_NO_SCRATCH(sigmoid_gate_forward)
HD_COSTS_NO_SCRATCH(sigmoid_gate_backward)

/* Counts one product per element; the sigmoids of the rows are not counted. */
void hd_cost_row_gate_forward(struct hd_costs *costs, const struct hd_row_gate_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->C;

    costs->flops += (double)elements;
    costs->read_bytes += (elements + a->R) * e;
    costs->write_bytes += elements * e;
}

/* Counts per element: the product for dy, and a product and its sum for dg. */
void hd_cost_row_gate_backward(struct hd_costs *costs, const struct hd_row_gate_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->C;

    costs->flops += 3.0 * (double)elements;
    costs->read_bytes += (2 * elements + a->R) * e;
    costs->write_bytes += (elements + a->R) * e;
}

/* Counts per element: exponential, addition and division of the sigmoid, and a product. */
void hd_cost_sigmoid_gate_forward(struct hd_costs *costs,
                                  const struct hd_sigmoid_gate_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += 4.0 * (double)a->N;
    costs->read_bytes += 2 * a->N * e;
    costs->write_bytes += a->N * e;
}

/* Counts per element: the sigmoid, its derivative (2), and three products. */
void hd_cost_sigmoid_gate_backward(struct hd_costs *costs,
                                   const struct hd_sigmoid_gate_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += 8.0 * (double)a->N;
    costs->read_bytes += 3 * a->N * e;
    costs->write_bytes += 2 * a->N * e;
}
