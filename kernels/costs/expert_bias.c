#include "base/math.h"
#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(expert_bias_forward)
HD_COSTS_NO_SCRATCH(expert_bias_backward)

/* Counts the biases of at most T experts, since no more can have rows. */
void hd_cost_expert_bias_forward(struct hd_costs *costs,
                                 const struct hd_expert_bias_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    costs->flops += (double)a->T * (double)a->N;
    costs->read_bytes += (a->T + hd_min(a->E, a->T)) * a->N * e + 4 * a->E;
    costs->write_bytes += a->T * a->N * e;
}

/* Counts without accumulate a write of every expert's gradient; with it, a read and a write for
 * experts with rows only. */
void hd_cost_expert_bias_backward(struct hd_costs *costs,
                                  const struct hd_expert_bias_backward_args *a)
{
    const int64_t added = hd_min(a->E, a->T) * a->N * 4;

    costs->flops += (double)a->T * (double)a->N;
    costs->read_bytes += a->T * a->N * (int64_t)hd_dtype_size(a->dtype) + 4 * a->E;
    costs->read_bytes += a->accumulate ? added : 0;
    costs->write_bytes += a->accumulate ? added : a->E * a->N * 4;
}
