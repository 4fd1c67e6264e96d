/* latent: queries, keys and values of multi-head latent attention, joined into rows for attention,
 * and their gradients.
 *
 * Bytes: forward reads q, kv and k_rope and writes out once, R H (3 D + nope + value + padded) e;
 * backward the same in the opposite direction. Memory-bound: packs of 16 bytes if all widths allow
 * it. The gradient of the shared key is a kernel of its own, one thread per pack of a row, which
 * reads the heads in order: consecutive threads read consecutive packs. Not yet measured on a GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/map.cuh"

/* Widths of the channels, and their places in a row of `out`. */
struct latent_shape {
    int64_t R, H, nope, rope, value, padded;

    __host__ __device__ int64_t width() const
    {
        return nope + rope;
    }
    __host__ __device__ int64_t columns() const
    {
        return H * (2 * width() + padded);
    }
};

template <typename T>
struct latent_join {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
    };
    T *out;
    const T *q, *kv, *k_rope;
    struct latent_shape s;

    __device__ int64_t rows() const
    {
        return s.R;
    }
    /* Returns the address of element c of row r before it is joined; NULL: it is padding. */
    __device__ const T *source(int64_t r, int64_t c) const
    {
        const int64_t D = s.width(), W = s.nope + s.value;
        const int64_t k = c - s.H * D, v = k - s.H * D;

        if (k < 0)
            return q + r * s.H * D + c;
        if (v < 0) {
            const int64_t h = k / D, d = k % D;

            return d < s.nope ? kv + (r * s.H + h) * W + d : k_rope + r * s.rope + d - s.nope;
        }
        return v % s.padded < s.value ? kv + (r * s.H + v / s.padded) * W + s.nope + v % s.padded
                                      : NULL;
    }
    template <int V>
    __device__ void load(in<V> &to, int64_t r, int64_t c) const
    {
        const T *from = source(r, c);

        to.x = from ? pack_load<V>(from) : pack<T, V>{};
    }
    template <int V>
    __device__ void store(const in<V> &from, int64_t r, int64_t c) const
    {
        pack_store(out + r * s.columns() + c, from.x);
    }
};

extern "C" enum hd_status hd_cuda_latent_join_forward(struct hd_cuda_stream *s,
                                                      const struct hd_latent_join_forward_args *a)
{
    const struct latent_shape shape = {a->R, a->H, a->nope, a->rope, a->value, a->padded};

    HD_CUDA_FLOATS(a->dtype, T, {
        const struct latent_join<T> op = {
            (T *)a->out, (const T *)a->q, (const T *)a->kv, (const T *)a->k_rope, shape
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->nope, a->out, a->q, a->kv, a->k_rope) &&
                       pack_fits_wide<T>(a->rope, NULL) && pack_fits_wide<T>(a->value, NULL) &&
                       pack_fits_wide<T>(a->padded, NULL)),
                      T, V, return map_launch_rows<V>(s, op, a->R, shape.columns()));
    });
}

/* Copies the gradients of q (columns c < q_columns) and kv. */
template <typename T>
struct latent_split {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
    };
    T *dq, *dkv;
    const T *dout;
    int64_t q_columns;
    struct latent_shape s;

    __device__ int64_t rows() const
    {
        return s.R;
    }
    template <int V>
    __device__ void load(in<V> &to, int64_t r, int64_t c) const
    {
        const int64_t D = s.width(), W = s.nope + s.value, first = s.H * D;
        const int64_t kv = c - q_columns, h = kv / W, d = kv % W;
        const int64_t at = kv < 0       ? c
                           : d < s.nope ? first + h * D + d
                                        : 2 * first + h * s.padded + d - s.nope;

        to.x = pack_load<V>(dout + r * s.columns() + at);
    }
    template <int V>
    __device__ void store(const in<V> &from, int64_t r, int64_t c) const
    {
        T *to = c < q_columns ? dq + r * q_columns + c
                              : dkv + r * s.H * (s.nope + s.value) + c - q_columns;

        pack_store(to, from.x);
    }
};

enum { LATENT_THREADS = 256, LATENT_RESIDENT = 4 };

/* dk_rope[r, c] = sum over heads of dout's key channels nope + c, for V channels per thread. */
template <typename T, int V>
static __global__ void __launch_bounds__(LATENT_THREADS, LATENT_RESIDENT)
    sum_shared_key(T *dk_rope, const T *dout, struct latent_shape s)
{
    const int64_t packs = s.rope / V, count = s.R * packs, D = s.width();

    for (int64_t n = (int64_t)blockIdx.x * LATENT_THREADS + threadIdx.x; n < count;
         n += (int64_t)gridDim.x * LATENT_THREADS) {
        const int64_t r = n / packs, c = n % packs * V;
        const T *from = dout + r * s.columns() + s.H * D + s.nope + c;
        float sum[V] = {};
        pack<T, V> y;

        for (int64_t h = 0; h < s.H; h++) {
            const pack<T, V> x = pack_load<V>(from + h * D);

#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] += to_float(x.at[j]);
        }
#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(sum[j]);
        pack_store(dk_rope + r * s.rope + c, y);
    }
}

template <int V, typename T>
static enum hd_status split_launch(struct hd_cuda_stream *s, const struct latent_split<T> &op,
                                   T *dk_rope)
{
    const int64_t kv_columns = op.s.H * (op.s.nope + op.s.value);
    const int64_t packs = op.s.R * (op.s.rope / V);
    const enum hd_status st = map_launch_rows<V>(s, op, op.s.R, op.q_columns + kv_columns);

    if (st || !packs)
        return st;
    return HD_LAUNCH(s, (sum_shared_key<T, V>),
                     dim3(grid_of(s, divide_up(packs, LATENT_THREADS), LATENT_RESIDENT)),
                     dim3(LATENT_THREADS), 0, dk_rope, op.dout, op.s);
}

extern "C" enum hd_status hd_cuda_latent_join_backward(struct hd_cuda_stream *s,
                                                       const struct hd_latent_join_backward_args *a)
{
    const struct latent_shape shape = {a->R, a->H, a->nope, a->rope, a->value, a->padded};

    HD_CUDA_FLOATS(a->dtype, T, {
        const struct latent_split<T> op = {
            (T *)a->dq, (T *)a->dkv, (const T *)a->dout, a->dq ? a->H *shape.width() : 0, shape
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->nope, a->dq, a->dkv, a->dk_rope, a->dout) &&
                       pack_fits_wide<T>(a->rope, NULL) && pack_fits_wide<T>(a->value, NULL) &&
                       pack_fits_wide<T>(a->padded, NULL)),
                      T, V, return split_launch<V>(s, op, (T *)a->dk_rope));
    });
}
