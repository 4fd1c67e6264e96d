#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(head_norm_forward)
HD_COSTS_NO_SCRATCH(head_norm_backward)

/* Returns the bytes of the weights of q and k. */
static int64_t head_weight_bytes(const void *weight, bool layer, int64_t H, int64_t G, int64_t D,
                                 enum hd_dtype dtype)
{
    return weight ? (layer ? H + G : 2) * D * (int64_t)hd_dtype_size(dtype) : 0;
}

/* Counts per normalised element as rmsnorm does: square and add, two multiplies, or one without a
 * weight; with `layer` as layernorm does without a bias. v is copied. */
void hd_cost_head_norm_forward(struct hd_costs *costs, const struct hd_head_norm_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), heads = a->R * (a->H + a->G);
    const int64_t elements = (heads + a->R * a->G) * a->D;

    costs->flops += (a->layer ? 6.0 : a->q_weight ? 4.0 : 3.0) * (double)(heads * a->D);
    costs->read_bytes +=
        elements * e + head_weight_bytes(a->q_weight, a->layer, a->H, a->G, a->D, a->dtype);
    costs->write_bytes += elements * e + heads * 4 * (a->layer ? 2 : 1);
}

/* Counts 7 operations per normalised element, as rmsnorm does, and 6 without a weight; with `layer`
 * 10, as layernorm does. */
void hd_cost_head_norm_backward(struct hd_costs *costs, const struct hd_head_norm_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), heads = a->R * (a->H + a->G);
    const int64_t values = a->R * a->G * a->D;

    costs->flops += (a->layer ? 10.0 : a->q_weight ? 7.0 : 6.0) * (double)(heads * a->D);
    costs->read_bytes += (2 * heads * a->D + values) * e + heads * 4 * (a->layer ? 2 : 1) +
                         head_weight_bytes(a->q_weight, a->layer, a->H, a->G, a->D, a->dtype);
    costs->write_bytes += (heads * a->D + values) * e;
}

/* Returns the bytes of two partial sums of D floats per chunk of rows: for queries and for keys. On
 * a GPU each head counts as a row: chunks of query heads, then chunks of key heads. With `layer`, one
 * sum for each head per chunk, of q and then of k in the same memory. */
int64_t hd_scratch_head_norm_backward_weight(const struct hd_head_norm_backward_weight_args *args,
                                             const struct hd_traits *traits)
{
    if (args->layer)
        return hd_costs_row_chunks_on(traits, args->R).count *
               (args->H > args->G ? args->H : args->G) * args->D * (int64_t)sizeof(float);
    if (hd_traits_is_cuda(traits))
        return (hd_costs_device_row_chunks(args->R * args->H).count +
                hd_costs_device_row_chunks(args->R * args->G).count) *
               args->D * (int64_t)sizeof(float);
    return hd_costs_row_chunks(args->R).count * 2 * args->D * (int64_t)sizeof(float);
}

void hd_cost_head_norm_backward_weight(struct hd_costs *costs,
                                       const struct hd_head_norm_backward_weight_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), heads = a->R * (a->H + a->G);
    const int64_t sums = (a->layer ? a->H + a->G : 2) * a->D * 4;

    costs->flops += (a->layer ? 4.0 : 3.0) * (double)(heads * a->D);
    costs->read_bytes +=
        2 * heads * a->D * e + heads * 4 * (a->layer ? 2 : 1) + (a->accumulate ? sums : 0);
    costs->write_bytes += sums;
}
