/* gated_norm: RMSNorm over the channels of each head, times SiLU of a gate; a warp per head.
 *
 * Bytes: forward 3 R H D e; backward reads dout, inp and gate and writes two gradients, 5 R H D e;
 * the second reading of a head comes from L1. Not yet measured on a GPU. */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/row_sums.cuh"

enum { NORM_THREADS = 256, NORM_WARPS = NORM_THREADS / 32, NORM_RESIDENT = 4 };

/* Loops over the heads that the thread's warp has. */
#define WARP_HEADS(i, count)                                                           \
    for (int64_t i = (int64_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32; i < (count); \
         i += (int64_t)gridDim.x * NORM_WARPS)

template <typename T>
static __global__ void __launch_bounds__(NORM_THREADS, NORM_RESIDENT)
    gated_norm_kernel(struct hd_gated_norm_forward_args a)
{
    const int lane = (int)threadIdx.x % 32;

    WARP_HEADS(i, a.R * a.H)
    {
        const T *x = (const T *)a.inp + i * a.D, *gate = (const T *)a.gate + i * a.D;
        float squares = 0, rstd;

        for (int64_t c = lane; c < a.D; c += 32)
            squares += to_float(x[c]) * to_float(x[c]);
        rstd = 1.0f / sqrtf(warp_add(squares) / (float)a.D + a.eps);
        if (lane == 0)
            a.rstd[i] = rstd;
        for (int64_t c = lane; c < a.D; c += 32) {
            const float z = to_float(gate[c]);

            ((T *)a.out)[i * a.D + c] = from_float<T>(
                to_float(x[c]) * rstd * to_float(((const T *)a.weight)[c]) * z * sigmoid<T>(z));
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(NORM_THREADS, NORM_RESIDENT)
    gated_norm_gradients(struct hd_gated_norm_backward_args a)
{
    const int lane = (int)threadIdx.x % 32;
    const T *weight = (const T *)a.weight;

    WARP_HEADS(i, a.R * a.H)
    {
        const T *x = (const T *)a.inp + i * a.D, *gate = (const T *)a.gate + i * a.D;
        const T *dout = (const T *)a.dout + i * a.D;
        const float rstd = a.rstd[i];
        float sum = 0, mean;

        for (int64_t c = lane; c < a.D; c += 32) {
            const float z = to_float(gate[c]);

            sum += to_float(dout[c]) * to_float(weight[c]) * z * sigmoid<T>(z) * to_float(x[c]);
        }
        mean = warp_add(sum) * rstd / (float)a.D;
        for (int64_t c = lane; c < a.D; c += 32) {
            const float z = to_float(gate[c]), s = sigmoid<T>(z), xhat = to_float(x[c]) * rstd;
            const float g = to_float(dout[c]) * to_float(weight[c]);

            ((T *)a.dinp)[i * a.D + c] = from_float<T>((g * z * s - xhat * mean) * rstd);
            ((T *)a.dgate)[i * a.D + c] = from_float<T>(g * xhat * s * (1.0f + z * (1.0f - s)));
        }
    }
}

static unsigned norm_grid(const struct hd_cuda_stream *s, int64_t heads)
{
    return grid_of(s, divide_up(heads, NORM_WARPS), NORM_RESIDENT);
}

extern "C" enum hd_status hd_cuda_gated_norm_forward(struct hd_cuda_stream *s,
                                                     const struct hd_gated_norm_forward_args *a)
{
    if (a->R * a->H == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (gated_norm_kernel<T>), dim3(norm_grid(s, a->R * a->H)),
                                    dim3(NORM_THREADS), 0, *a));
    return HD_OK;
}

extern "C" enum hd_status hd_cuda_gated_norm_backward(struct hd_cuda_stream *s,
                                                      const struct hd_gated_norm_backward_args *a)
{
    if (a->R * a->H == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (gated_norm_gradients<T>), dim3(norm_grid(s, a->R * a->H)),
                                    dim3(NORM_THREADS), 0, *a));
    return HD_OK;
}

/* Terms of the weight's gradient for row_sums.cuh, whose rows are heads. */
template <typename T>
struct gated_weight_terms {
    static constexpr int OUTPUTS = 1;
    template <int V>
    struct in {
        pack<T, V> dout, inp, gate;
        float rstd;
    };
    const T *dout, *inp, *gate;
    const float *rstd;
    int64_t D;

    template <int V>
    __device__ void load(in<V> &x, int64_t i, int64_t c) const
    {
        x.dout = pack_load<V>(dout + i * D + c);
        x.inp = pack_load<V>(inp + i * D + c);
        x.gate = pack_load<V>(gate + i * D + c);
        x.rstd = rstd[i];
    }
    template <int V>
    __device__ void add(float (&sums)[1][V], const in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float z = to_float(x.gate.at[j]);

            sums[0][j] +=
                to_float(x.dout.at[j]) * z * sigmoid<T>(z) * (to_float(x.inp.at[j]) * x.rstd);
        }
    }
};

extern "C" enum hd_status
hd_cuda_gated_norm_backward_weight(struct hd_cuda_stream *s,
                                   const struct hd_gated_norm_backward_weight_args *a)
{
    const struct cuda_row_sums sums = {
        {a->dweight}, (float *)a->scratch, a->R * a->H, a->D, a->accumulate};

    HD_CUDA_FLOATS(a->dtype, T, {
        const struct gated_weight_terms<T> terms = {
            (const T *)a->dout, (const T *)a->inp, (const T *)a->gate, a->rstd, a->D
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->D, a->dout, a->inp, a->gate)), T, V,
                      return row_sums_launch<V>(s, terms, sums));
    });
    return HD_OK;
}
