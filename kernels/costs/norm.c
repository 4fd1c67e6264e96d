#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(rmsnorm_forward)
HD_COSTS_NO_SCRATCH(layernorm_forward)

bool hd_norm_takes_weights(const struct hd_traits *traits, int64_t C, enum hd_dtype dtype)
{
    const int64_t bytes = C * (int64_t)hd_dtype_size(dtype);

    return hd_traits_is_cuda(traits) && bytes % HD_COSTS_PACK_BYTES == 0 &&
           bytes <= HD_COSTS_NORM_WEIGHTS_ROW_BYTES;
}

bool hd_norm_takes_sums(const struct hd_traits *traits, int64_t C, enum hd_dtype dtype)
{
    return hd_norm_takes_weights(traits, C, dtype);
}

bool hd_norm_takes_codes(const struct hd_traits *traits, int64_t C)
{
    return !hd_traits_is_cuda(traits) ||
           (C % HD_FP8_SIDE == 0 &&
            C * (int64_t)hd_dtype_size(HD_BF16) <= HD_COSTS_NORM_CODES_ROW_BYTES);
}

static int residual_flops(const void *add, float factor)
{
    return !add ? 0 : hd_costs_scales(factor) ? 2 : 1;
}

/* Counts per element: square and add, two multiplies; one more to add the residual, and one for its
 * factor. The sum 1 + weight is not counted: it is one operation per column if a row's factors stay
 * in a cache. */
void hd_cost_rmsnorm_forward(struct hd_costs *costs, const struct hd_rmsnorm_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->C;

    costs->flops += (double)elements * (4 + residual_flops(a->add, a->factor));
    costs->read_bytes += (elements * (a->add ? 2 : 1) + a->C) * e;
    costs->write_bytes += elements * (a->sum ? 2 : 1) * e + a->R * 4;
    HD_COSTS_ADD_CODES(costs, a, elements);
}

/* Returns, with dweight, the bytes of one partial sum of C floats per chunk of rows; else 0. */
int64_t hd_scratch_rmsnorm_backward(const struct hd_rmsnorm_backward_args *args,
                                    const struct hd_traits *traits)
{
    return args->dweight
               ? hd_costs_row_chunks_on(traits, args->R).count * args->C * (int64_t)sizeof(float)
               : 0;
}

/* Counts per element: w*dout, xhat, their product's sum (2), then two multiplies and a subtraction;
 * with dweight one more product and sum, with sums one more sum. */
void hd_cost_rmsnorm_backward(struct hd_costs *costs, const struct hd_rmsnorm_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->C;

    costs->flops +=
        (double)elements * ((a->add ? 8 : 7) + (a->dweight ? 2 : 0) + (a->sums ? 1 : 0));
    costs->read_bytes += (elements * (a->add ? 3 : 2) + a->C) * e + a->R * 4 +
                         (a->dweight && a->accumulate ? a->C * 4 : 0);
    costs->write_bytes +=
        elements * e + (a->dweight ? a->C * 4 : 0) + hd_costs_sums_bytes(a->sums, a->R, a->C);
}

/* Returns the bytes of one partial sum of C floats per chunk of rows. */
int64_t hd_scratch_rmsnorm_backward_weight(const struct hd_rmsnorm_backward_weight_args *args,
                                           const struct hd_traits *traits)
{
    return hd_costs_row_chunks_on(traits, args->R).count * args->C * (int64_t)sizeof(float);
}

void hd_cost_rmsnorm_backward_weight(struct hd_costs *costs,
                                     const struct hd_rmsnorm_backward_weight_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->C;

    costs->flops += 3.0 * (double)elements;
    costs->read_bytes += 2 * elements * e + a->R * 4 + (a->accumulate ? a->C * 4 : 0);
    costs->write_bytes += a->C * 4;
}

/* Counts per element: the mean's add, deviation, square and add, normalise (5), weight, bias. */
void hd_cost_layernorm_forward(struct hd_costs *costs, const struct hd_layernorm_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->C;
    const int vectors = (a->weight ? 1 : 0) + (a->bias ? 1 : 0);

    costs->flops += (double)elements * (5 + vectors + residual_flops(a->add, a->factor));
    costs->read_bytes += (elements * (a->add ? 2 : 1) + vectors * a->C) * e;
    costs->write_bytes += elements * (a->sum ? 2 : 1) * e + 2 * a->R * 4;
    HD_COSTS_ADD_CODES(costs, a, elements);
}

/* Returns the number of sums over rows that the gradients of a LayerNorm's weights need. A GPU
 * computes both, and does not use that of dbias if it is absent. */
static int64_t layernorm_sums(const struct hd_traits *traits, const float *dbias)
{
    return dbias || hd_traits_is_cuda(traits) ? 2 : 1;
}

/* Returns, with dweight, the bytes of partial sums of C floats per chunk of rows, for dweight and
 * dbias; else 0. */
int64_t hd_scratch_layernorm_backward(const struct hd_layernorm_backward_args *args,
                                      const struct hd_traits *traits)
{
    return args->dweight
               ? hd_costs_row_chunks_on(traits, args->R).count *
                     layernorm_sums(traits, args->dbias) * args->C * (int64_t)sizeof(float)
               : 0;
}

/* Counts per element: g, if there is a weight, xhat (2), the sums of g and g*xhat (3), then 4 to
 * combine; with dweight one more product and sum, with dbias and with sums one more sum. */
void hd_cost_layernorm_backward(struct hd_costs *costs, const struct hd_layernorm_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->C;

    const int64_t sums = (a->dweight ? 1 : 0) + (a->dbias ? 1 : 0);

    costs->flops +=
        (double)elements * ((a->weight ? 10 : 9) + (a->add ? 1 : 0) + (a->dweight ? 2 : 0) +
                            (a->dbias ? 1 : 0) + (a->sums ? 1 : 0));
    costs->read_bytes += (elements * (a->add ? 3 : 2) + (a->weight ? a->C : 0)) * e + 2 * a->R * 4 +
                         (a->accumulate ? sums * a->C * 4 : 0);
    costs->write_bytes += elements * e + sums * a->C * 4 + hd_costs_sums_bytes(a->sums, a->R, a->C);
}

/* Returns the bytes of partial sums of C floats per chunk of rows: for dweight and dbias. */
int64_t hd_scratch_layernorm_backward_weight(const struct hd_layernorm_backward_weight_args *args,
                                             const struct hd_traits *traits)
{
    return hd_costs_row_chunks_on(traits, args->R).count * layernorm_sums(traits, args->dbias) *
           args->C * (int64_t)sizeof(float);
}

void hd_cost_layernorm_backward_weight(struct hd_costs *costs,
                                       const struct hd_layernorm_backward_weight_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), elements = a->R * a->C;

    const int64_t sums = a->dbias ? 2 : 1;

    costs->flops += (a->dbias ? 5.0 : 4.0) * (double)elements;
    costs->read_bytes += 2 * elements * e + 2 * a->R * 4 + (a->accumulate ? sums * a->C * 4 : 0);
    costs->write_bytes += sums * a->C * 4;
}
