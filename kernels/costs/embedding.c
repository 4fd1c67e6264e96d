#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(embedding_forward)

/* Counts R rows of each table: the tables are assumed to have more rows than a micro-batch. */
void hd_cost_embedding_forward(struct hd_costs *costs, const struct hd_embedding_forward_args *a)
{
    const int64_t row_bytes = a->C * (int64_t)hd_dtype_size(a->dtype);
    const int tables = a->index2 ? 2 : 1;

    costs->flops +=
        (double)a->R * (double)a->C * ((a->index2 ? 1 : 0) + (hd_costs_scales(a->scale) ? 1 : 0));
    costs->read_bytes += tables * a->R * (row_bytes + 4);
    costs->write_bytes += a->R * row_bytes;
}

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

/* Counts reads and writes of dweight: with accumulate only table rows to which an index points, R
 * at most; without it, all table rows. */
void hd_cost_embedding_backward(struct hd_costs *costs, const struct hd_embedding_backward_args *a)
{
    const int64_t named = a->R < a->V ? a->R : a->V;

    costs->flops += (double)a->R * (double)a->C * (hd_costs_scales(a->scale) ? 2 : 1);
    costs->read_bytes += a->R * (a->C * (int64_t)hd_dtype_size(a->dtype) + 4);
    costs->read_bytes += a->accumulate ? named * a->C * 4 : 0;
    costs->write_bytes += (a->accumulate ? named : a->V) * a->C * 4;
}
