/* dora: norms of the rows of a weight plus its low-rank adapter; rows scaled by magnitude / norm.
 *
 * Squares: one block per row. Its threads add the squares of their weights, RUN neighbours at a
 * time, whose codes share one scale; then those terms of the adapter whose index falls to the
 * thread; the total as in block.cuh. Bytes: the weight once, and r values of P and of B per row.
 * Scale: 2 R N e. Backward: 2 R N e and the partial sums (row_sums.cuh).
 *
 * Not yet measured on a GPU.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/row_sums.cuh"

enum { SQUARES_THREADS = 256, SQUARES_RUN = 8 };

/* Returns the sum of squares of up to RUN neighbouring weights of a row. */
template <typename T>
static __device__ __forceinline__ float squares_of_run(const struct hd_dora_squares_args &a,
                                                       const struct decode_values &values,
                                                       int64_t row, int64_t column, int count)
{
    float sum = 0;

    if (a.codes.quant != HD_QUANT_NONE) {
        T run[SQUARES_RUN];

        decode_run<T>(a.codes, a.codes.matrix[0], (const char *)a.weight, values, row, column,
                      count, run);
        for (int i = 0; i < count; i++)
            sum += to_float(run[i]) * to_float(run[i]);
        return sum;
    }
    for (int i = 0; i < count; i++) {
        const float w = to_float(((const T *)a.weight)[row * a.K + column + i]);

        sum += w * w;
    }
    return sum;
}

/* Returns this thread's share of the adapter's contribution to the square of a row's norm: terms i,
 * i + threads, ... */
template <typename T>
static __device__ __forceinline__ float added_to_row(const struct hd_dora_squares_args &a,
                                                     int64_t row)
{
    const T *const b = (const T *)a.b + row * a.r;
    float sum = 0;

    for (int64_t i = threadIdx.x; i < a.r; i += SQUARES_THREADS) {
        float of_g = 0;

        for (int64_t j = 0; j < a.r; j++)
            of_g += to_float(b[j]) * a.g[i * a.r + j];
        sum += to_float(b[i]) * (2 * a.scale * a.p[i * a.N + row] + a.scale * a.scale * of_g);
    }
    return sum;
}

template <typename T>
static __global__ void __launch_bounds__(SQUARES_THREADS)
    squares_rows(struct hd_dora_squares_args a, struct decode_values values)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    const int64_t row = blockIdx.x;
    float sum = 0;

    for (int64_t k = (int64_t)threadIdx.x * SQUARES_RUN; k < a.K;
         k += SQUARES_THREADS * SQUARES_RUN)
        sum += squares_of_run<T>(a, values, row, k,
                                 a.K - k < SQUARES_RUN ? (int)(a.K - k) : (int)SQUARES_RUN);
    sum += added_to_row<T>(a, row);
    sum = block_add(sum, shared);
    if (threadIdx.x == 0)
        a.squares[row] = sum;
}

extern "C" enum hd_status hd_cuda_dora_squares(struct hd_cuda_stream *s,
                                               const struct hd_dora_squares_args *a)
{
    if (a->N == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, squares_rows<T>, dim3((unsigned)a->N), dim3(SQUARES_THREADS),
                                    0, *a, decode_nf4_values()));
}

struct dora_inverse {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<float, V> x;
    };
    float *inverse;
    const float *squares;
    int64_t N;

    __device__ int64_t rows() const
    {
        return N;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t, int64_t n) const
    {
        x.x = pack_load<V>(squares + n);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t n) const
    {
        pack<float, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = x.x.at[j] > 0.0f ? 1.0f / sqrtf(x.x.at[j]) : 0.0f;
        pack_store(inverse + n, y);
    }
};

extern "C" enum hd_status hd_cuda_dora_inverse(struct hd_cuda_stream *s,
                                               const struct hd_dora_inverse_args *a)
{
    const struct dora_inverse op = {a->inverse, a->squares, a->N};

    return map_launch_flat<1>(s, op, a->N);
}

template <typename T>
struct dora_scale {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
    };
    T *out;
    const T *inp;
    const float *magnitude, *inverse;
    int64_t R, ldo, ldi;

    __device__ int64_t rows() const
    {
        return R;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.x = pack_load<V>(inp + r * ldi + c);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t c) const
    {
        pack<T, V> y;

#pragma unroll
        /* magnitude and inverse norm are read mostly from the L1 cache */
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(to_float(x.x.at[j]) * (magnitude[c + j] * inverse[c + j]));
        pack_store(out + r * ldo + c, y);
    }
};

extern "C" enum hd_status hd_cuda_dora_scale(struct hd_cuda_stream *s,
                                             const struct hd_dora_scale_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        constexpr int W = pack_wide<T>;
        const struct dora_scale<T> op = {
            (T *)a->out, (const T *)a->inp, a->magnitude, a->inverse, a->R, a->ldo, a->ldi
        };
        const bool wide =
            a->N % W == 0 && pack_fits<T, W>(a->out, a->ldo) && pack_fits<T, W>(a->inp, a->ldi);

        HD_PACK_WIDTH(wide, T, V, return map_launch_rows<V>(s, op, a->R, a->N));
    });
}

template <typename T>
struct magnitude_terms {
    static constexpr int OUTPUTS = 1;
    template <int V>
    struct in {
        pack<T, V> dout, inp;
        /* inverse norms of these columns, read from the L1 cache when they are needed */
        const float *inverse;
    };
    const T *dout, *inp;
    const float *inverse;
    int64_t ldd, ldi;

    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.dout = pack_load<V>(dout + r * ldd + c);
        x.inp = pack_load<V>(inp + r * ldi + c);
        x.inverse = inverse + c;
    }
    template <int V>
    __device__ void add(float (&sums)[1][V], const in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            sums[0][j] += to_float(x.dout.at[j]) * to_float(x.inp.at[j]) * x.inverse[j];
    }
};

extern "C" enum hd_status hd_cuda_dora_backward(struct hd_cuda_stream *s,
                                                const struct hd_dora_backward_args *a)
{
    const struct cuda_row_sums sums = {
        {a->dmagnitude}, (float *)a->scratch, a->R, a->N, a->accumulate};

    HD_CUDA_FLOATS(a->dtype, T, {
        const struct magnitude_terms<T> terms = {
            (const T *)a->dout, (const T *)a->inp, a->inverse, a->ldd, a->ldi
        };
        const bool wide = a->N % pack_wide<T> == 0 && pack_fits_wide<T>(a->ldd, a->dout) &&
                          pack_fits_wide<T>(a->ldi, a->inp);

        HD_PACK_WIDTH(wide, T, V, return row_sums_launch<V>(s, terms, sums));
    });
}
