#include "kernels/costs/costs.h"

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
