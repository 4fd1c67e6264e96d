/* delta_gates: beta and the logarithm of the decay of gated delta layers; a thread per row and
 * value head. Bytes: forward 2 R H (e + 4). Not yet measured on a GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/pack.cuh"

enum { GATES_THREADS = 256 };

/* Returns log(1 + e^x). */
static __device__ __forceinline__ float delta_softplus(float x)
{
    return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

template <typename T>
static __global__ void __launch_bounds__(GATES_THREADS)
    gates_forward_kernel(struct hd_delta_gates_forward_args a)
{
    const int64_t i = (int64_t)blockIdx.x * GATES_THREADS + threadIdx.x;
    const int64_t h = i % a.H, at = i / a.H * 2 * a.H + h;
    const T *inp = (const T *)a.inp;

    if (i >= a.R * a.H)
        return;
    a.gates[at] = sigmoid<float>(to_float(inp[at]));
    a.gates[at + a.H] = -expf(a.A_log[h]) * delta_softplus(to_float(inp[at + a.H]) + a.dt_bias[h]);
}

template <typename T>
static __global__ void __launch_bounds__(GATES_THREADS)
    gates_backward_kernel(struct hd_delta_gates_backward_args a)
{
    const int64_t i = (int64_t)blockIdx.x * GATES_THREADS + threadIdx.x;
    const int64_t h = i % a.H, at = i / a.H * 2 * a.H + h;
    const T *inp = (const T *)a.inp;

    if (i < a.R * a.H) {
        const float beta = sigmoid<float>(to_float(inp[at])), A = expf(a.A_log[h]);
        const float x = to_float(inp[at + a.H]) + a.dt_bias[h], dg = a.dgates[at + a.H];
        const float da = -dg * A * sigmoid<float>(x);

        ((T *)a.dinp)[at] = from_float<T>(a.dgates[at] * beta * (1.0f - beta));
        ((T *)a.dinp)[at + a.H] = from_float<T>(da);
        if (a.terms) {
            a.terms[at] = -dg * A * delta_softplus(x);
            a.terms[at + a.H] = da;
        }
    }
}

extern "C" enum hd_status hd_cuda_delta_gates_forward(struct hd_cuda_stream *s,
                                                      const struct hd_delta_gates_forward_args *a)
{
    if (a->R * a->H == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (gates_forward_kernel<T>),
                                    dim3((unsigned)divide_up(a->R * a->H, GATES_THREADS)),
                                    dim3(GATES_THREADS), 0, *a));
    return HD_OK;
}

extern "C" enum hd_status hd_cuda_delta_gates_backward(struct hd_cuda_stream *s,
                                                       const struct hd_delta_gates_backward_args *a)
{
    if (a->R * a->H == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (gates_backward_kernel<T>),
                                    dim3((unsigned)divide_up(a->R * a->H, GATES_THREADS)),
                                    dim3(GATES_THREADS), 0, *a));
    return HD_OK;
}
