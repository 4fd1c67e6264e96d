/* conv: causal convolution along the rows, each channel by itself, then SiLU or nothing.
 *
 * A thread computes one channel, neighbouring threads neighbouring channels, of a run of rows; rows
 * that it reads several times come from L1. Bytes: forward 2 R N e, backward 3 R N e. Not yet
 * measured on a GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/row_sums.cuh"

enum { CONV_THREADS = 128, CONV_ROWS = 16 /* rows of a thread */ };

/* The arguments that the kernels have in common, and one channel of one sequence. */
template <typename T>
struct conv_channel {
    const T *inp, *weight;
    const int32_t *bound; /* [rows of the sequence], or NULL */
    const T *state;       /* the last W - 1 inputs before the rows, or NULL: zeros */
    int64_t origin;       /* index of the first row, as bounds count */
    int64_t c, N, W;
    bool plain; /* true: no SiLU behind the sum */

    /* Returns the number of taps whose rows are in the document of row t; they may be in the
     * state. */
    __device__ int taps(int64_t t) const
    {
        const int64_t seen = bound ? t + 1 - (bound[t] - origin) : state ? W : t + 1;

        return (int)(seen < W ? seen : W);
    }
    __device__ float input(int64_t t) const
    {
        return to_float(t < 0 ? state[(W - 1 + t) * N + c] : inp[t * N + c]);
    }
    __device__ float factor(int j) const /* weight of the j-th row before the current one */
    {
        return to_float(weight[c * W + W - 1 - j]);
    }
    __device__ float sum(int64_t t) const
    {
        const int count = taps(t);
        float x = 0;

        for (int j = 0; j < count; j++)
            x += factor(j) * input(t - j);
        return x;
    }
    /* Returns the gradient of the sum of row t, whose result has the gradient `dout`. */
    __device__ float sum_gradient(int64_t t, T dout) const
    {
        float x, s;

        if (plain)
            return to_float(dout);
        x = sum(t);
        s = sigmoid<T>(x);
        return to_float(dout) * s * (1.0f + x * (1.0f - s));
    }
};

/* Returns the channel of a thread in sequence b; channels from N on are those of idle threads. */
template <typename T, typename Args>
static __device__ struct conv_channel<T> channel_of(const Args &a, int64_t b) {
    struct conv_channel<T> x;

    x.inp = (const T *)a.inp + b * a.S * a.N;
    x.weight = (const T *)a.weight;
    x.bound = a.bound ? a.bound + b * a.S : NULL;
    x.origin = a.position ? a.position[b * a.S] : 0;
    x.state = a.halo ? (const T *)a.halo + b * (a.W - 1) * a.N : NULL;
    x.c = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    x.N = a.N;
    x.W = a.W;
    x.plain = a.plain;
    return x;
}

template <typename T>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_forward_kernel(struct hd_conv_forward_args a)
{
    const int64_t b = blockIdx.z, begin = (int64_t)blockIdx.y * CONV_ROWS;
    struct conv_channel<T> x = channel_of<T>(a, b);
    int64_t rows = a.S;

    if (a.state) {
        rows = a.after[b] - a.before[b];
        x.state = a.before[b] > 0 ? (const T *)a.state + a.slot[b] * (a.W - 1) * a.N : NULL;
    }
    for (int64_t t = begin; x.c < a.N && t < rows && t < begin + CONV_ROWS; t++) {
        const float pre = x.sum(t);

        ((T *)a.out)[(b * a.S + t) * a.N + x.c] =
            from_float<T>(x.plain ? pre : pre * sigmoid<T>(pre));
    }
}

/* Moves the last W - 1 inputs of each sequence into its slot; a thread per channel. */
template <typename T>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_state_kernel(struct hd_conv_forward_args a)
{
    const int64_t b = blockIdx.z, rows = a.after[b] - a.before[b];
    T *state = (T *)a.state + a.slot[b] * (a.W - 1) * a.N;
    struct conv_channel<T> x = channel_of<T>(a, b);

    x.state = state;
    for (int64_t i = 0; rows > 0 && x.c < a.N && i < a.W - 1; i++) {
        const int64_t t = rows - (a.W - 1) + i;

        state[i * a.N + x.c] = from_float<T>(t < 0 && a.before[b] == 0 ? 0 : x.input(t));
    }
}

static dim3 conv_grid(int64_t N, int64_t S, int64_t B)
{
    return dim3((unsigned)divide_up(N, CONV_THREADS), (unsigned)divide_up(S, CONV_ROWS),
                (unsigned)B);
}

extern "C" enum hd_status hd_cuda_conv_forward(struct hd_cuda_stream *s,
                                               const struct hd_conv_forward_args *a)
{
    enum hd_status st = hd_costs_check_conv(a->W);

    if (st || a->B * a->S * a->N == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T, {
        st = HD_LAUNCH(s, (conv_forward_kernel<T>), conv_grid(a->N, a->S, a->B), dim3(CONV_THREADS),
                       0, *a);
        if (!st && a->state)
            st = HD_LAUNCH(s, (conv_state_kernel<T>), conv_grid(a->N, 1, a->B), dim3(CONV_THREADS),
                           0, *a);
    });
    return st;
}

/* A thread keeps the gradients of the sums of the last W rows. */
template <typename T>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_backward_kernel(struct hd_conv_backward_args a)
{
    const int64_t b = blockIdx.z, begin = (int64_t)blockIdx.y * CONV_ROWS;
    const struct conv_channel<T> x = channel_of<T>(a, b);
    const T *dout = (const T *)a.dout + b * a.S * a.N;

    /* the first rows' threads also have the halo, rows -(W-1) to -1 */
    for (int64_t t = 1 - a.W; a.dhalo && begin == 0 && x.c < a.N && t < 0; t++) {
        float sum = 0;

        for (int64_t j = -t; j < a.W && t + j < a.S && x.taps(t + j) > j; j++)
            sum += x.factor((int)j) * x.sum_gradient(t + j, dout[(t + j) * a.N + x.c]);
        a.dhalo[(b * (a.W - 1) + a.W - 1 + t) * a.N + x.c] = sum;
    }
    for (int64_t t = begin; x.c < a.N && t < a.S && t < begin + CONV_ROWS; t++) {
        float sum = 0;

        for (int j = 0; j < a.W && t + j < a.S && x.taps(t + j) > j; j++)
            sum += x.factor(j) * x.sum_gradient(t + j, dout[(t + j) * a.N + x.c]);
        ((T *)a.dinp)[(b * a.S + t) * a.N + x.c] = from_float<T>(sum);
    }
}

extern "C" enum hd_status hd_cuda_conv_backward(struct hd_cuda_stream *s,
                                                const struct hd_conv_backward_args *a)
{
    const enum hd_status st = hd_costs_check_conv(a->W);

    if (st || a->B * a->S * a->N == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (conv_backward_kernel<T>), conv_grid(a->N, a->S, a->B),
                                    dim3(CONV_THREADS), 0, *a));
    return HD_OK;
}

/* Adds the terms of a chunk of rows, which may span sequences; a thread per channel. */
template <typename T>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_weight_kernel(struct hd_conv_backward_weight_args a, int64_t chunk_rows)
{
    const int64_t begin = (int64_t)blockIdx.y * chunk_rows, R = a.B * a.S;
    const int64_t end = begin + chunk_rows < R ? begin + chunk_rows : R;
    float sums[HD_CONV_WIDTH_MAX] = {};

    for (int64_t r = begin; r < end; r++) {
        const struct conv_channel<T> x = channel_of<T>(a, r / a.S);
        const int64_t t = r % a.S;

        if (x.c < a.N) {
            const float g = x.sum_gradient(t, ((const T *)a.dout)[r * a.N + x.c]);
            const int taps = x.taps(t);

#pragma unroll
            for (int j = 0; j < HD_CONV_WIDTH_MAX; j++)
                if (j < taps)
                    sums[j] += g * x.input(t - j);
        }
    }
    if ((int64_t)blockIdx.x * CONV_THREADS + threadIdx.x >= a.N)
        return;
#pragma unroll
    for (int j = 0; j < HD_CONV_WIDTH_MAX; j++)
        if (j < a.W)
            ((float *)a.scratch)[((int64_t)blockIdx.y * a.N + (int64_t)blockIdx.x * CONV_THREADS +
                                  threadIdx.x) *
                                     a.W +
                                 a.W - 1 - j] = sums[j];
}

extern "C" enum hd_status hd_cuda_conv_backward_weight(struct hd_cuda_stream *s,
                                                       const struct hd_conv_backward_weight_args *a)
{
    const struct hd_costs_chunks chunks = hd_costs_device_row_chunks(a->B * a->S);
    const struct cuda_row_sums sums = {
        {a->dweight}, (float *)a->scratch, a->B * a->S, a->N * a->W, a->accumulate};
    enum hd_status st = hd_costs_check_conv(a->W);

    if (st || a->N == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T, {
        if (chunks.count > 0)
            st = HD_LAUNCH(s, (conv_weight_kernel<T>),
                           dim3((unsigned)divide_up(a->N, CONV_THREADS), (unsigned)chunks.count),
                           dim3(CONV_THREADS), 0, *a, chunks.rows);
    });
    return st ? st : add_chunks_launch(s, sums, (int)chunks.count, 1);
}
