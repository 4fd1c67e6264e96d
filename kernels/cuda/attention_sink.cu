/* attention_sink: adds a learned score per head to the softmax of finished attention, and its
 * gradient row by row.
 *
 * Eight lanes share a head of a row, 8 channels each at a time: a head of 64 channels is 128
 * contiguous bytes. Bytes: 2 R H D e of out forward, of dout and out backward, 4 to 8 per head and
 * row; nothing is read twice, so it takes the time of a copy. Not yet measured on a GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/vec.cuh"

enum { LANES = 8, THREADS = 256, WIDTH = 8 /* WIDTH: elements of a lane at a time */ };

/* Head and row of a group of eight lanes. */
struct sink_place {
    int64_t at, lse; /* index in [R, H]; in [H, R] */
    int lane, head;
    bool is_there;
};

static __device__ __forceinline__ struct sink_place sink_place_of(int64_t R, int64_t H)
{
    struct sink_place p;

    p.at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    p.lane = (int)threadIdx.x % LANES;
    p.is_there = p.at < R * H;
    p.head = p.is_there ? (int)(p.at % H) : 0;
    p.lse = p.is_there ? p.head * R + p.at / H : 0;
    return p;
}

/* With m the larger of lse and sink and e = exp(-|difference|), the new lse is m + log(1 + e), and
 * the keys keep 1 / (1 + e) or e / (1 + e) of their weights; 0 if the row sees no key. */
template <typename T, bool IS_VEC>
static __global__ void __launch_bounds__(THREADS)
    sink_forward_kernel(struct hd_attention_sink_forward_args a)
{
    const struct sink_place p = sink_place_of(a.R, a.H);
    const float sink = to_float(((const T *)a.sink)[p.head]), lse = p.is_there ? a.lse[p.lse] : 0;
    const float e = expf(-fabsf(lse - sink)), factor = (lse < sink ? e : 1) / (1 + e);

    __syncwarp(0xffffffffu); /* every lane has read lse */
    if (!p.is_there)
        return;
    if (p.lane == 0)
        a.lse[p.lse] = (lse < sink ? sink : lse) + log1pf(e);
    for (int64_t d = p.lane * WIDTH; d < a.D; d += LANES * WIDTH) {
        T *out = (T *)a.out + p.at * a.D + d;
        const int n = a.D - d < WIDTH ? (int)(a.D - d) : WIDTH;

        if (IS_VEC) {
            float x[WIDTH];

            load_vec(x, out);
            for (int i = 0; i < WIDTH; i++)
                x[i] *= factor;
            store_vec(out, x);
        } else {
            for (int i = 0; i < n; i++)
                out[i] = from_float<T>(to_float(out[i]) * factor);
        }
    }
}

template <typename T, bool IS_VEC>
static __global__ void __launch_bounds__(THREADS)
    sink_backward_kernel(struct hd_attention_sink_backward_args a)
{
    const struct sink_place p = sink_place_of(a.R, a.H);
    float sum = 0;

    for (int64_t d = p.lane * WIDTH; p.is_there && d < a.D; d += LANES * WIDTH) {
        const T *dout = (const T *)a.dout + p.at * a.D + d;
        const T *out = (const T *)a.out + p.at * a.D + d;
        const int n = a.D - d < WIDTH ? (int)(a.D - d) : WIDTH;

        if (IS_VEC) {
            float x[WIDTH], y[WIDTH];

            load_vec(x, dout);
            load_vec(y, out);
            for (int i = 0; i < WIDTH; i++)
                sum += x[i] * y[i];
        } else {
            for (int i = 0; i < n; i++)
                sum += to_float(dout[i]) * to_float(out[i]);
        }
    }
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (p.is_there && p.lane == 0)
        a.dsink[p.at] = -expf(to_float(((const T *)a.sink)[p.head]) - a.lse[p.lse]) * sum;
}

static enum hd_status sink_check(const char *kernel, int64_t R, int64_t H)
{
    if (R * H > (int64_t)INT32_MAX * (THREADS / LANES))
        return hd_err(HD_UNSUPPORTED, "%s: %lld rows of %lld heads exceed a grid", kernel,
                      (long long)R, (long long)H);
    return HD_OK;
}

static dim3 sink_grid(int64_t R, int64_t H)
{
    return dim3((unsigned)((R * H * LANES + THREADS - 1) / THREADS));
}

template <typename T>
static enum hd_status sink_forward_launch(struct hd_cuda_stream *s,
                                          const struct hd_attention_sink_forward_args *a)
{
    if (a->D % WIDTH == 0 && is_vec((const T *)a->out, a->D))
        return HD_LAUNCH(s, (sink_forward_kernel<T, true>), sink_grid(a->R, a->H), dim3(THREADS), 0,
                         *a);
    return HD_LAUNCH(s, (sink_forward_kernel<T, false>), sink_grid(a->R, a->H), dim3(THREADS), 0,
                     *a);
}

extern "C" enum hd_status
hd_cuda_attention_sink_forward(struct hd_cuda_stream *s,
                               const struct hd_attention_sink_forward_args *a)
{
    const enum hd_status st = sink_check("attention_sink_forward", a->R, a->H);

    if (st || a->R * a->H == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T, return sink_forward_launch<T>(s, a));
    return HD_OK;
}

template <typename T>
static enum hd_status sink_backward_launch(struct hd_cuda_stream *s,
                                           const struct hd_attention_sink_backward_args *a)
{
    if (a->D % WIDTH == 0 && is_vec((const T *)a->dout, a->D) && is_vec((const T *)a->out, a->D))
        return HD_LAUNCH(s, (sink_backward_kernel<T, true>), sink_grid(a->R, a->H), dim3(THREADS),
                         0, *a);
    return HD_LAUNCH(s, (sink_backward_kernel<T, false>), sink_grid(a->R, a->H), dim3(THREADS), 0,
                     *a);
}

extern "C" enum hd_status
hd_cuda_attention_sink_backward(struct hd_cuda_stream *s,
                                const struct hd_attention_sink_backward_args *a)
{
    const enum hd_status st = sink_check("attention_sink_backward", a->R, a->H);

    if (st || a->R * a->H == 0)
        return st;
    HD_CUDA_FLOATS(a->dtype, T, return sink_backward_launch<T>(s, a));
    return HD_OK;
}
