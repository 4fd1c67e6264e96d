/* bias: adds a bias to rows; its gradient, a sum over rows.
 *
 * Bytes: 2 R N e forward, R N e backward and the partial sums (row_sums.cuh), which alone are read
 * if another kernel has made them. On an H100 89% of a copy's rate forward, 66% backward. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/row_sums.cuh"

template <typename T>
struct bias_forward {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
    };
    T *out;
    const T *inp, *bias;
    int64_t R, N;

    __device__ int64_t rows() const
    {
        return R;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.x = pack_load<V>(inp + r * N + c);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t c) const
    {
        const pack<T, V> b = pack_load<V>(bias + c); /* the bias is read mostly from the L1 cache */
        pack<T, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(to_float(x.x.at[j]) + to_float(b.at[j]));
        pack_store(out + r * N + c, y);
    }
};

extern "C" enum hd_status hd_cuda_bias_forward(struct hd_cuda_stream *s,
                                               const struct hd_bias_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct bias_forward<T> op = {
            (T *)a->out, (const T *)a->inp, (const T *)a->bias, a->R, a->N
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->N, a->out, a->inp, a->bias)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->N));
    });
}

template <typename T>
struct bias_terms {
    static constexpr int OUTPUTS = 1;
    template <int V>
    struct in {
        pack<T, V> dout;
    };
    const T *dout;
    int64_t ldd;

    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.dout = pack_load<V>(dout + r * ldd + c);
    }
    template <int V>
    __device__ void add(float (&sums)[1][V], const in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            sums[0][j] += to_float(x.dout.at[j]);
    }
};

enum hd_status hd_cuda_sum_row_chunks(struct hd_cuda_stream *s, float *sums, const void *rows,
                                      int64_t R, int64_t N, int64_t piece, enum hd_dtype dtype)
{
    const int64_t chunk_rows = piece ? piece : hd_costs_device_row_chunks(R).rows;

    HD_CUDA_FLOATS(dtype, T, {
        const struct bias_terms<T> terms = {
            (const T *)rows, N
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(N, rows)), T, V,
                      return row_chunks_launch<V>(s, terms, sums, R, N, chunk_rows));
    });
}

/* Adds up the partial sums that another kernel has made. */
static enum hd_status add_given(struct hd_cuda_stream *s, const struct hd_bias_backward_args *a)
{
    const struct cuda_row_sums sums = {
        {a->dbias}, const_cast<float *>(a->sums), a->R, a->N, a->accumulate};

    return a->N == 0 ? HD_OK : add_chunks_launch(s, sums, (int)a->P, 1);
}

extern "C" enum hd_status hd_cuda_bias_backward(struct hd_cuda_stream *s,
                                                const struct hd_bias_backward_args *a)
{
    const struct cuda_row_sums sums = {{a->dbias}, (float *)a->scratch, a->R, a->N, a->accumulate};

    if (a->sums)
        return add_given(s, a);
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct bias_terms<T> terms = {
            (const T *)a->dout, a->ldd
        };
        const bool wide = a->N % pack_wide<T> == 0 && pack_fits_wide<T>(a->ldd, a->dout);

        HD_PACK_WIDTH(wide, T, V, return row_sums_launch<V>(s, terms, sums));
    });
}
