#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(latent_join_forward)
HD_COSTS_NO_SCRATCH(latent_join_backward)

/* Counts every element that is read or written once; the shared key is read once per row. */
void hd_cost_latent_join_forward(struct hd_costs *costs,
                                 const struct hd_latent_join_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), D = a->nope + a->rope;

    costs->read_bytes += a->R * (a->H * (D + a->nope + a->value) + a->rope) * e;
    costs->write_bytes += a->R * a->H * (2 * D + a->padded) * e;
}

/* Counts one add per element of k's rotated channels, whose sum over the heads is the gradient of
 * the shared key. The gradients of padding are not read. */
void hd_cost_latent_join_backward(struct hd_costs *costs,
                                  const struct hd_latent_join_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), D = a->nope + a->rope;
    const int64_t q = a->dq ? D : 0;

    costs->flops += (double)(a->R * a->H * a->rope);
    costs->read_bytes += a->R * a->H * (q + D + a->value) * e;
    costs->write_bytes += a->R * (a->H * (q + a->nope + a->value) + a->rope) * e;
}
