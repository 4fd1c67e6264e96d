/* conv: scratch and costs of the causal convolution. */
#include "kernels/costs/costs.h"

HD_COSTS_NO_SCRATCH(conv_forward)
HD_COSTS_NO_SCRATCH(conv_backward)

enum hd_status hd_costs_check_conv(int64_t W)
{
    if (W >= 2 && W <= HD_CONV_WIDTH_MAX)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "convolution: %lld taps; 2 to %d are supported", (long long)W,
                  HD_CONV_WIDTH_MAX);
}

/* Returns the bytes of the inputs before segments, `element` bytes each; 0: whole sequences. */
static int64_t halo_bytes(const void *halo, int64_t B, int64_t W, int64_t N, int64_t element)
{
    return halo ? B * (W - 1) * N * element : 0;
}

/* Counts per element: a product and a sum per tap, then exponential, addition, division and product
 * of SiLU. */
void hd_cost_conv_forward(struct hd_costs *costs, const struct hd_conv_forward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), R = a->B * a->S;
    const int64_t state = a->state ? a->B * (a->W - 1) * a->N * e : 0;

    costs->flops += (2.0 * (double)a->W + 4.0) * (double)(R * a->N);
    costs->read_bytes += (R + a->W) * a->N * e + state + (a->bound ? R * 4 : 0) +
                         halo_bytes(a->halo, a->B, a->W, a->N, e);
    costs->write_bytes += R * a->N * e + state;
}

/* Counts per element: the convolution, the derivative of SiLU and its product (8), and a product
 * and a sum per tap. */
void hd_cost_conv_backward(struct hd_costs *costs, const struct hd_conv_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), R = a->B * a->S;

    costs->flops += (4.0 * (double)a->W + 8.0) * (double)(R * a->N);
    costs->read_bytes += (2 * R + a->W) * a->N * e + (a->bound ? R * 4 : 0) +
                         halo_bytes(a->halo, a->B, a->W, a->N, e);
    costs->write_bytes += R * a->N * e + halo_bytes(a->halo, a->B, a->W, a->N, 4);
}

/* Returns the bytes of a partial sum per chunk of rows on a GPU; a CPU's thread has all rows of its
 * channels. */
int64_t hd_scratch_conv_backward_weight(const struct hd_conv_backward_weight_args *args,
                                        const struct hd_traits *traits)
{
    if (!hd_traits_is_cuda(traits))
        return 0;
    return hd_costs_device_row_chunks(args->B * args->S).count * args->N * args->W *
           (int64_t)sizeof(float);
}

void hd_cost_conv_backward_weight(struct hd_costs *costs,
                                  const struct hd_conv_backward_weight_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), R = a->B * a->S;

    costs->flops += (4.0 * (double)a->W + 8.0) * (double)(R * a->N);
    costs->read_bytes += (2 * R + a->W) * a->N * e + (a->bound ? R * 4 : 0) +
                         (a->accumulate ? a->N * a->W * 4 : 0) +
                         halo_bytes(a->halo, a->B, a->W, a->N, e);
    costs->write_bytes += a->N * a->W * 4;
}
