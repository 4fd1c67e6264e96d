#include "kernels/costs/costs.h"

struct hd_costs_embedding_layout
hd_costs_lay_out_embedding(const struct hd_embedding_backward_args *args)
{
    const int64_t word = (int64_t)sizeof(int32_t);
    const int64_t pieces = (args->R + HD_COSTS_EMBEDDING_PIECE - 1) / HD_COSTS_EMBEDDING_PIECE;
    struct hd_costs_embedding_layout layout = {0};

    layout.rows = layout.begin + hd_tensor_align((args->V + 1) * word);
    layout.pieces = layout.rows + hd_tensor_align(args->R * word);
    layout.scratch_bytes = layout.pieces + 2 * pieces * args->C * (int64_t)sizeof(float);
    return layout;
}

/* Returns the scratch of a counting sort of the rows by index: [V + 1] begins and [R] sorted
 * rows. */
int64_t hd_scratch_embedding_backward(const struct hd_embedding_backward_args *args,
                                      const struct hd_traits *traits)
{
    if (hd_traits_is_cuda(traits))
        return hd_costs_lay_out_embedding(args).scratch_bytes;
    return (args->V + 1 + args->R) * (int64_t)sizeof(int64_t);
}
