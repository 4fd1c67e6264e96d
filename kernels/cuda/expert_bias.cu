/* expert_bias: adds each expert's bias to its rows; the gradient, a sum over an expert's rows.
 *
 * The counts of rows are in device memory, which the host does not read: each block computes the
 * first rows of the experts itself. Bytes: 2 T N e forward, T N e backward. Forward a warp takes a
 * row, backward a block a piece of columns of one expert, whose rows its warps divide: each lane
 * adds every eighth row in order, then the warps' sums are added in order. Not yet measured on a
 * GPU. */
#include "kernels/cuda/pack.cuh"

enum { BIAS_THREADS = 256, BIAS_WARPS = BIAS_THREADS / 32, BIAS_RESIDENT = 4 };

/* Computes begins [E + 1]: each expert's first row, T at most. All threads call; ends with a
 * barrier. */
static __device__ __forceinline__ void expert_begins(int32_t *begins, const int32_t *counts,
                                                     int64_t E, int64_t T)
{
    for (int64_t e = threadIdx.x; e < E; e += blockDim.x)
        begins[e + 1] = counts[e];
    __syncthreads();
    if (threadIdx.x == 0) {
        int64_t end = 0;

        begins[0] = 0;
        for (int64_t e = 0; e < E; e++) {
            end += begins[e + 1];
            end = end < T ? end : T;
            begins[e + 1] = (int32_t)end;
        }
    }
    __syncthreads();
}

template <typename T, int V>
static __global__ void __launch_bounds__(BIAS_THREADS)
    expert_bias_forward_kernel(struct hd_expert_bias_forward_args a)
{
    HD_SHARED_DYNAMIC(int32_t, begins);
    int64_t e = 0;

    expert_begins(begins, a.counts, a.E, a.T);
    for (int64_t r = (int64_t)blockIdx.x * BIAS_WARPS + threadIdx.x / 32; r < begins[a.E];
         r += (int64_t)gridDim.x * BIAS_WARPS) {
        T *out = (T *)a.out + r * a.ldo;

        while (begins[e + 1] <= r)
            e++;
        for (int64_t c = threadIdx.x % 32 * V; c < a.N; c += 32 * V) {
            const pack<T, V> b = pack_load<V>((const T *)a.bias + e * a.N + c);
            const pack<T, V> x = pack_load<V>(out + c);
            pack<T, V> y;

#pragma unroll
            for (int j = 0; j < V; j++)
                y.at[j] = from_float<T>(to_float(x.at[j]) + to_float(b.at[j]));
            pack_store(out + c, y);
        }
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(BIAS_THREADS)
    expert_bias_backward_kernel(struct hd_expert_bias_backward_args a)
{
    HD_SHARED_DYNAMIC(int32_t, begins);
    HD_SHARED(float, part, BIAS_WARPS * 32 * V);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t pieces = (a.N + 32 * V - 1) / (32 * V);

    expert_begins(begins, a.counts, a.E, a.T);
    for (int64_t i = blockIdx.x; i < a.E * pieces; i += gridDim.x) {
        const int64_t e = i / pieces, first = i % pieces * (32 * V), c = first + lane * V;
        float sums[V];

#pragma unroll
        for (int j = 0; j < V; j++)
            sums[j] = 0;
        for (int64_t r = begins[e] + warp; c < a.N && r < begins[e + 1]; r += BIAS_WARPS) {
            const pack<T, V> x = pack_load<V>((const T *)a.dout + r * a.ldd + c);

#pragma unroll
            for (int j = 0; j < V; j++)
                sums[j] += to_float(x.at[j]);
        }
#pragma unroll
        for (int j = 0; j < V; j++)
            part[(warp * 32 + lane) * V + j] = sums[j];
        __syncthreads();
        for (int64_t j = threadIdx.x; j < 32 * V && first + j < a.N; j += BIAS_THREADS) {
            float *to = a.dbias + e * a.N + first + j;
            float sum = a.accumulate ? *to : 0;

            for (int w = 0; w < BIAS_WARPS; w++)
                sum += part[w * 32 * V + j];
            *to = sum;
        }
        __syncthreads(); /* the next piece overwrites the sums */
    }
}

static size_t first_rows_bytes(int64_t E)
{
    return (size_t)(E + 1) * sizeof(int32_t);
}

extern "C" enum hd_status hd_cuda_expert_bias_forward(struct hd_cuda_stream *s,
                                                      const struct hd_expert_bias_forward_args *a)
{
    if (a->T <= 0 || a->N <= 0 || a->E <= 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T, {
        const bool wide = a->N % pack_wide<T> == 0 && pack_fits_wide<T>(a->ldo, a->out) &&
                          pack_fits_wide<T>(a->N, a->bias);

        HD_PACK_WIDTH(wide, T, V,
                      return HD_LAUNCH(s, (expert_bias_forward_kernel<T, V>),
                                       dim3(grid_of(s, divide_up(a->T, BIAS_WARPS), BIAS_RESIDENT)),
                                       dim3(BIAS_THREADS), first_rows_bytes(a->E), *a));
    });
}

extern "C" enum hd_status hd_cuda_expert_bias_backward(struct hd_cuda_stream *s,
                                                       const struct hd_expert_bias_backward_args *a)
{
    if (a->N <= 0 || a->E <= 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T, {
        const bool wide = a->N % pack_wide<T> == 0 && pack_fits_wide<T>(a->ldd, a->dout);

        HD_PACK_WIDTH(
            wide, T, V,
            return HD_LAUNCH(s, (expert_bias_backward_kernel<T, V>),
                             dim3(grid_of(s, a->E * divide_up(a->N, 32 * V), BIAS_RESIDENT)),
                             dim3(BIAS_THREADS), first_rows_bytes(a->E), *a));
    });
}
