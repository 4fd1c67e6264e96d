#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(qk_norm_sums)
HD_COSTS_NO_SCRATCH(qk_norm_forward)
HD_COSTS_NO_SCRATCH(qk_norm_backward)

/* Returns the bytes of the weights, if there are any. */
static int64_t weight_bytes(const void *q_weight, int64_t H, int64_t G, int64_t D,
                            enum hd_dtype dtype)
{
    return q_weight ? (H + G) * D * (int64_t)hd_dtype_size(dtype) : 0;
}

/* Counts per element a square and an add; with dout one more multiply, and one for a weight. */
void hd_cost_qk_norm_sums(struct hd_costs *costs, const struct hd_qk_norm_sums_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), normed = a->R * (a->H + a->G) * a->D;

    costs->flops += (double)normed * (2 + (a->q_weight ? 1 : 0));
    costs->read_bytes +=
        normed * e * (a->dout ? 2 : 1) + weight_bytes(a->q_weight, a->H, a->G, a->D, a->dtype);
    costs->write_bytes += a->R * 2 * 4;
}

/* Counts per normalised element as head_norm_forward does, less the square and add if the sums are
 * given. v is copied. */
void hd_cost_qk_norm_forward(struct hd_costs *costs, const struct hd_qk_norm_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), normed = a->R * (a->H + a->G) * a->D;
    const int64_t elements = normed + a->R * a->G * a->D;

    costs->flops += (double)normed * ((a->sums ? 0 : 2) + (a->q_weight ? 2 : 1));
    costs->read_bytes += elements * e + (a->sums ? a->R * 2 * 4 : 0) +
                         weight_bytes(a->q_weight, a->H, a->G, a->D, a->dtype);
    costs->write_bytes += elements * e + a->R * 2 * 4;
}

/* Counts per normalised element w*dout, xhat, two multiplies and a subtraction, and if the sums are
 * not given a multiply and an add. */
void hd_cost_qk_norm_backward(struct hd_costs *costs, const struct hd_qk_norm_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), normed = a->R * (a->H + a->G) * a->D;
    const int64_t values = a->R * a->G * a->D;

    costs->flops += (double)normed * (4 + (a->sums ? 0 : 2) + (a->q_weight ? 1 : 0));
    costs->read_bytes += (2 * normed + values) * e + a->R * 2 * 4 * (a->sums ? 2 : 1) +
                         weight_bytes(a->q_weight, a->H, a->G, a->D, a->dtype);
    costs->write_bytes += (normed + values) * e;
}

/* Returns the bytes of one partial sum per chunk of rows, of the columns of q, and then of those of
 * k in the same memory. */
int64_t hd_scratch_qk_norm_backward_weight(const struct hd_qk_norm_backward_weight_args *args,
                                           const struct hd_traits *traits)
{
    const int64_t heads = args->H > args->G ? args->H : args->G;

    return hd_costs_row_chunks_on(traits, args->R).count * heads * args->D * (int64_t)sizeof(float);
}

void hd_cost_qk_norm_backward_weight(struct hd_costs *costs,
                                     const struct hd_qk_norm_backward_weight_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), columns = (a->H + a->G) * a->D;

    costs->flops += 3.0 * (double)(a->R * columns);
    costs->read_bytes += 2 * a->R * columns * e + a->R * 2 * 4 + (a->accumulate ? columns * 4 : 0);
    costs->write_bytes += columns * 4;
}
