/* comm: combine and exchange_rows (see hd_combine_args and hd_exchange_rows_args in kernels.h), for
 * collectives between ranks on one device, and for the sums of collectives between devices.
 *
 * combine reads every input and writes every output once: (ins + outs) * count elements. If all
 * buffers are aligned to 16 bytes, a thread moves 16 bytes at a time and has the loads of four
 * inputs in flight. One thread sums an element, in the order of the inputs, so the result does not
 * depend on the grid, and an output may be an input. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/vec.cuh"

enum { THREADS = 256, BLOCKS_PER_MULTIPROCESSOR = 8 };

struct operands {
    void *out[HD_COMBINE_MAX];
    const void *in[HD_COMBINE_MAX];
    /* distance of the inputs, bytes: input m is at in[0] + m * stride; 0: input m is at in[m] */
    int64_t stride;
    int outs, ins;
};

template <typename T>
__device__ __forceinline__ const T *input(const struct operands &p, int m)
{
    return p.stride ? reinterpret_cast<const T *>(static_cast<const char *>(p.in[0]) + m * p.stride)
                    : static_cast<const T *>(p.in[m]);
}

/* The type in which elements of type T are added: `wide`. */
template <typename T>
struct lane { /* T = bf16, f16 or fp32 */
    using wide = float;
    static __device__ __forceinline__ wide load(T x)
    {
        return to_float(x);
    }
    static __device__ __forceinline__ T store(wide x)
    {
        return from_float<T>(x);
    }
    static __device__ __forceinline__ wide add(wide a, wide b)
    {
        return __fadd_rn(a, b);
    }
};

template <typename T, typename Modular>
struct exact_lane {
    using wide = T;
    static __device__ __forceinline__ wide load(T x)
    {
        return x;
    }
    static __device__ __forceinline__ T store(wide x)
    {
        return x;
    }
    static __device__ __forceinline__ wide add(wide a, wide b)
    {
        return static_cast<T>(static_cast<Modular>(a) + static_cast<Modular>(b));
    }
};

template <>
struct lane<double> : exact_lane<double, double> {
};
template <>
struct lane<int32_t> : exact_lane<int32_t, uint32_t> {
};
template <>
struct lane<int64_t> : exact_lane<int64_t, uint64_t> {
};
template <>
struct lane<uint8_t> : exact_lane<uint8_t, uint8_t> {
};

template <typename T, bool MAX>
__device__ __forceinline__ typename lane<T>::wide join(typename lane<T>::wide a,
                                                       typename lane<T>::wide b)
{
    if (MAX)
        return b > a || b != b ? b : a; /* NaN if a or b is NaN */
    return lane<T>::add(a, b);
}

/* Rounds a sum to the output type Out: T, or float for sums of bf16 that are not rounded. */
template <typename T, typename Out>
__device__ __forceinline__ Out result(typename lane<T>::wide sum)
{
    if constexpr (sizeof(T) == sizeof(Out))
        return lane<T>::store(sum);
    else
        return sum;
}

template <typename T, typename Out, bool MAX>
__global__ void combine_kernel(struct operands p, int64_t count)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += stride) {
        typename lane<T>::wide sum = lane<T>::load(static_cast<const T *>(p.in[0])[i]);

#pragma unroll 4
        for (int m = 1; m < p.ins; m++)
            sum = join<T, MAX>(sum, lane<T>::load(input<T>(p, m)[i]));
        for (int o = 0; o < p.outs; o++)
            static_cast<Out *>(p.out[o])[i] = result<T, Out>(sum);
    }
}

/* Combines buffers of float types, 16 bytes at a time; count is a multiple of the elements in 16
 * bytes. */
template <typename T, typename Out, bool MAX>
__global__ void combine_vec_kernel(struct operands p, int64_t count)
{
    constexpr int N = vec_width<T>();
    const int64_t stride = (int64_t)gridDim.x * blockDim.x * N;

    for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * N; i < count; i += stride) {
        float sum[N], x[N];

        load_vec(sum, static_cast<const T *>(p.in[0]) + i);
#pragma unroll 4
        for (int m = 1; m < p.ins; m++) {
            load_vec(x, input<T>(p, m) + i);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] = join<T, MAX>(sum[k], x[k]);
        }
        for (int o = 0; o < p.outs; o++)
            store_vec(static_cast<Out *>(p.out[o]) + i, sum);
    }
}

static dim3 grid_for(const struct hd_cuda_stream *s, int64_t items)
{
    const int64_t blocks = (items + THREADS - 1) / THREADS;
    const int64_t most = (int64_t)s->cuda->traits.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;

    return dim3(static_cast<unsigned>(blocks < most ? blocks : most > 0 ? most : 1));
}

static bool all_on_bounds(const struct operands *p)
{
    uintptr_t bits = static_cast<uintptr_t>(p->stride);

    for (int m = 0; m < (p->stride ? 1 : p->ins); m++)
        bits |= reinterpret_cast<uintptr_t>(p->in[m]);
    for (int o = 0; o < p->outs; o++)
        bits |= reinterpret_cast<uintptr_t>(p->out[o]);
    return bits % 16 == 0;
}

/* Returns the arguments of combine without the first `done` elements of each buffer. */
template <typename T, typename Out>
static struct operands behind(struct operands p, int64_t done)
{
    for (int m = 0; m < (p.stride ? 1 : p.ins); m++)
        p.in[m] = static_cast<const T *>(p.in[m]) + done;
    for (int o = 0; o < p.outs; o++)
        p.out[o] = static_cast<Out *>(p.out[o]) + done;
    return p;
}

template <typename T, typename Out, bool MAX>
static enum hd_status combine_one_by_one(struct hd_cuda_stream *s, const struct operands &p,
                                         int64_t count)
{
    if (count == 0)
        return HD_OK;
    return HD_LAUNCH(s, (combine_kernel<T, Out, MAX>), grid_for(s, count), dim3(THREADS), 0, p,
                     count);
}

template <typename T, typename Out, bool MAX>
static enum hd_status combine_floats(struct hd_cuda_stream *s, const struct operands &p,
                                     int64_t count)
{
    const int64_t whole = all_on_bounds(&p) ? count / vec_width<T>() * vec_width<T>() : 0;
    enum hd_status st = HD_OK;

    if (whole)
        st = HD_LAUNCH(s, (combine_vec_kernel<T, Out, MAX>), grid_for(s, whole / vec_width<T>()),
                       dim3(THREADS), 0, p, whole);
    return st ? st : combine_one_by_one<T, Out, MAX>(s, behind<T, Out>(p, whole), count - whole);
}

template <bool MAX>
static enum hd_status combine(struct hd_cuda_stream *s, const struct operands &p, int64_t count,
                              enum hd_dtype dtype)
{
    switch (dtype) {
    case HD_F64:
        return combine_one_by_one<double, double, MAX>(s, p, count);
    case HD_I32:
        return combine_one_by_one<int32_t, int32_t, MAX>(s, p, count);
    case HD_I64:
        return combine_one_by_one<int64_t, int64_t, MAX>(s, p, count);
    case HD_U8:
        return combine_one_by_one<uint8_t, uint8_t, MAX>(s, p, count);
    default:
        break;
    }
    HD_CUDA_FLOATS(dtype, T, return combine_floats<T, T, MAX>(s, p, count));
    return HD_OK; /* unreachable */
}

extern "C" enum hd_status hd_cuda_comm_combine(struct hd_stream *stream,
                                               const struct hd_combine_args *args)
{
    struct hd_cuda_stream *s = reinterpret_cast<struct hd_cuda_stream *>(stream);
    const enum hd_status st = hd_cuda_use(s->cuda->device);
    struct operands p;

    if (st)
        return st;
    p.outs = args->outs;
    p.ins = args->ins;
    p.stride = args->in_stride_bytes;
    for (int i = 0; i < HD_COMBINE_MAX; i++) {
        p.out[i] = i < p.outs ? args->out[i] : nullptr;
        p.in[i] = i < (p.stride ? 1 : p.ins) ? args->in[i] : nullptr;
    }
    if (args->keep_fp32)
        return combine_floats<bf16, float, false>(s, p, args->count);
    return args->max ? combine<true>(s, p, args->count, args->dtype)
                     : combine<false>(s, p, args->count, args->dtype);
}

/* ---- exchange_rows: the counts are in device memory ---- */

enum { EXCHANGE_UNROLL = 4 };

/* Copies one row with `lanes` neighbouring threads, each with several units U in flight. */
template <typename U>
static __device__ __forceinline__ void copy_row(U *out, const U *from, int64_t units, int lane,
                                                int lanes)
{
    for (int64_t i = lane; i < units; i += EXCHANGE_UNROLL * lanes) {
        U x[EXCHANGE_UNROLL];

#pragma unroll
        for (int u = 0; u < EXCHANGE_UNROLL; u++)
            if (i + u * lanes < units)
                x[u] = from[i + u * lanes];
#pragma unroll
        for (int u = 0; u < EXCHANGE_UNROLL; u++)
            if (i + u * lanes < units)
                out[i + u * lanes] = x[u];
    }
}

/* Exchanges rows. Every block computes the same offsets from the members^2 counts; then `lanes`
 * threads (a warp or a part of one) copy a row in units U of 1, 4 or 16 bytes: each row is read and
 * written once. */
template <typename U>
__global__ void exchange_rows_kernel(struct hd_exchange_rows_args a, int lanes)
{
    const int P = a.members, t = static_cast<int>(threadIdx.x);
    const int64_t units = a.row_bytes / static_cast<int64_t>(sizeof(U));
    const int64_t rows_at_once = (int64_t)gridDim.x * (THREADS / lanes);
    HD_SHARED(int32_t, counts, HD_COMBINE_MAX * HD_COMBINE_MAX);
    HD_SHARED(int64_t, from_row, HD_COMBINE_MAX);
    HD_SHARED(int64_t, to_row, HD_COMBINE_MAX + 1);
    bool bad = false;
    int m = 0; /* index of the member that sends this thread's row; it never decreases */

    for (int i = t; i < P * P; i += static_cast<int>(blockDim.x)) {
        counts[i] = a.send_counts[i / P][i % P];
        bad = bad || counts[i] < 0;
    }
    __syncthreads();
    if (t < P) {
        int64_t sent = 0, received = 0, from = 0, to = 0;

        for (int o = 0; o < P; o++) {
            if (o == a.index)
                from = sent;
            sent += counts[t * P + o];
            received += counts[o * P + t];
            to += o < t ? counts[o * P + a.index] : 0;
        }
        from_row[t] = from;
        to_row[t] = to;
        if (t == P - 1)
            to_row[P] = to + counts[t * P + a.index];
        bad = bad || sent > a.send_rows_max[t] || received > a.recv_rows_max[t];
    }
    bad = __syncthreads_or(bad);
    if (blockIdx.x == 0 && t < P && a.recv_counts)
        a.recv_counts[t] = bad ? 0 : counts[t * P + a.index];
    if (blockIdx.x == 0 && t == 0 && bad)
        *a.overflow = 1;
    if (bad)
        return;
    for (int64_t row = blockIdx.x * (int64_t)(THREADS / lanes) + t / lanes; row < to_row[P];
         row += rows_at_once) {
        while (row >= to_row[m + 1])
            m++;
        copy_row(static_cast<U *>(a.out) + row * units,
                 static_cast<const U *>(a.send[m]) + (from_row[m] + row - to_row[m]) * units, units,
                 t % lanes, lanes);
    }
}

template <typename U>
static enum hd_status exchange_by(struct hd_cuda_stream *s,
                                  const struct hd_exchange_rows_args *args)
{
    const int64_t units = args->row_bytes / static_cast<int64_t>(sizeof(U));
    const int64_t rows = args->recv_rows_max[args->index];
    int lanes = 1;

    while (lanes < 32 && lanes < units)
        lanes *= 2;
    /* The kernel is launched even without rows, because it checks the counts. */
    return HD_LAUNCH(s, exchange_rows_kernel<U>, grid_for(s, rows ? rows * lanes : 1),
                     dim3(THREADS), 0, *args, lanes);
}

extern "C" enum hd_status hd_cuda_comm_exchange_rows(struct hd_stream *stream,
                                                     const struct hd_exchange_rows_args *args)
{
    struct hd_cuda_stream *s = reinterpret_cast<struct hd_cuda_stream *>(stream);
    const enum hd_status st = hd_cuda_use(s->cuda->device);
    uintptr_t bits =
        reinterpret_cast<uintptr_t>(args->out) | static_cast<uintptr_t>(args->row_bytes);

    if (st)
        return st;
    for (int m = 0; m < args->members; m++)
        bits |= reinterpret_cast<uintptr_t>(args->send[m]);
    if (bits % 16 == 0)
        return exchange_by<uint4>(s, args);
    if (bits % 4 == 0)
        return exchange_by<uint32_t>(s, args);
    return exchange_by<uint8_t>(s, args);
}
