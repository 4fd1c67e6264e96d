/* activation: SwiGLU and GELU.
 *
 * Bytes: swiglu 3 R F e forward (two halves of a row in, one out), 5 R F e backward; gelu 2 N e and
 * 3 N e: each tensor is read or written once, in packs of 16 bytes. Memory-bound: in the time of
 * the 6 bytes per output of swiglu in bf16 an H100 issues some 56 instructions, and swiglu
 * needs 17. bf16 and f16 use the fast exponential; its error of 2 units of 2^-22 is far below
 * their rounding. On an H100 86 to 93% of a copy's rate.
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/map.cuh"

template <typename T>
struct swiglu_forward {
    static constexpr int UNROLL = 2;
    template <int V>
    struct in {
        pack<T, V> gate, up;
    };
    T *out;
    const T *inp;
    const int32_t *counts;
    int64_t R, F, groups;

    __device__ int64_t rows() const
    {
        return rows_in_use(counts, groups, R);
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t f) const
    {
        x.gate = pack_load<V>(inp + r * 2 * F + f);
        x.up = pack_load<V>(inp + r * 2 * F + F + f);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t f) const
    {
        pack<T, V> y;

#pragma unroll
        for (int j = 0; j < V; j++) {
            const float gate = to_float(x.gate.at[j]);

            y.at[j] = from_float<T>(gate * sigmoid<T>(gate) * to_float(x.up.at[j]));
        }
        pack_store(out + r * F + f, y);
    }
};

extern "C" enum hd_status hd_cuda_swiglu_forward(struct hd_cuda_stream *s,
                                                 const struct hd_swiglu_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct swiglu_forward<T> op = {
            (T *)a->out, (const T *)a->inp, a->counts, a->R, a->F, a->groups
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->F, a->out, a->inp)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->F));
    });
}

/* Computes the gradients of SwiGLU. With s = sigmoid(gate): dup = dout * gate * s, dgate = dout *
 * up * s * (1 + gate * (1 - s)). A thread reads gate and up before it writes their gradients: dinp
 * may alias inp. */
template <typename T>
struct swiglu_backward {
    static constexpr int UNROLL = 1;
    template <int V>
    struct in {
        pack<T, V> dout, gate, up;
    };
    T *dinp;
    const T *dout, *inp;
    const int32_t *counts;
    int64_t R, F, groups;

    __device__ int64_t rows() const
    {
        return rows_in_use(counts, groups, R);
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t f) const
    {
        x.dout = pack_load<V>(dout + r * F + f);
        x.gate = pack_load<V>(inp + r * 2 * F + f);
        x.up = pack_load<V>(inp + r * 2 * F + F + f);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t f) const
    {
        pack<T, V> dgate, dup;

#pragma unroll
        for (int j = 0; j < V; j++) {
            const float d = to_float(x.dout.at[j]), gate = to_float(x.gate.at[j]);
            const float gated = sigmoid<T>(gate);

            dgate.at[j] =
                from_float<T>(d * to_float(x.up.at[j]) * gated * (1.0f + gate * (1.0f - gated)));
            dup.at[j] = from_float<T>(d * (gate * gated));
        }
        pack_store(dinp + r * 2 * F + f, dgate);
        pack_store(dinp + r * 2 * F + F + f, dup);
    }
};

extern "C" enum hd_status hd_cuda_swiglu_backward(struct hd_cuda_stream *s,
                                                  const struct hd_swiglu_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct swiglu_backward<T> op = {
            (T *)a->dinp, (const T *)a->dout, (const T *)a->inp, a->counts, a->R, a->F, a->groups
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->F, a->dinp, a->dout, a->inp)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->F));
    });
}

/* Returns the number of elements in use, of N elements in R rows. */
static __device__ __forceinline__ int64_t elements_in_use(const int32_t *counts, int64_t groups,
                                                          int64_t R, int64_t N)
{
    return counts ? rows_in_use(counts, groups, R) * (N / R) : N;
}

template <typename T>
struct gelu_forward {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
    };
    T *out;
    const T *inp;
    const int32_t *counts;
    int64_t N, R, groups;

    __device__ int64_t rows() const
    {
        return elements_in_use(counts, groups, R, N);
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t, int64_t i) const
    {
        x.x = pack_load<V>(inp + i);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t i) const
    {
        pack<T, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(gelu<T>(to_float(x.x.at[j])));
        pack_store(out + i, y);
    }
};

extern "C" enum hd_status hd_cuda_gelu_forward(struct hd_cuda_stream *s,
                                               const struct hd_gelu_forward_args *a)
{
    if (a->counts && a->R == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct gelu_forward<T> op = {
            (T *)a->out, (const T *)a->inp, a->counts, a->N, a->R, a->groups
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->out, a->inp)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

template <typename T>
struct gelu_backward {
    static constexpr int UNROLL = 2;
    template <int V>
    struct in {
        pack<T, V> dout, x;
    };
    T *dinp;
    const T *dout, *inp;
    const int32_t *counts;
    int64_t N, R, groups;

    __device__ int64_t rows() const
    {
        return elements_in_use(counts, groups, R, N);
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t, int64_t i) const
    {
        x.dout = pack_load<V>(dout + i);
        x.x = pack_load<V>(inp + i);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t i) const
    {
        pack<T, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(to_float(x.dout.at[j]) * gelu_slope<T>(to_float(x.x.at[j])));
        pack_store(dinp + i, y);
    }
};

extern "C" enum hd_status hd_cuda_gelu_backward(struct hd_cuda_stream *s,
                                                const struct hd_gelu_backward_args *a)
{
    if (a->counts && a->R == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct gelu_backward<T> op = {
            (T *)a->dinp, (const T *)a->dout, (const T *)a->inp, a->counts, a->N, a->R, a->groups
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->dinp, a->dout, a->inp)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}
