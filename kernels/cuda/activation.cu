/* activation: activations, alone and as gates.
 *
 * Bytes: glu 3 R F e forward (two halves of a row in, one out), 5 R F e backward; activation 2 N e
 * and 3 N e: each tensor is read or written once, in packs of 16 bytes. Memory-bound: in the time
 * of the 6 bytes per output of glu in bf16 an H100 issues some 56 instructions, and SwiGLU needs
 * 17. bf16 and f16 use the fast exponential; its error of 2 units of 2^-22 is far below their
 * rounding. SwiGLU and the tanh form of GELU reach 86 to 93% of a copy's rate on an H100; the
 * others are not measured. With codes of the result (fp8.cuh) they run by tiles, and write 1 or 2 bytes an
 * element more, but not the 2 of the result if no other kernel reads it.
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/row_sums.cuh"

extern "C" {
#include "kernels/costs/costs.h"
}

template <enum hd_activation ACT>
static enum hd_status glu_forward_launch(struct hd_cuda_stream *s,
                                         const struct hd_glu_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct glu_forward<ACT, T> op = {
            (T *)a->out, (const T *)a->inp, a->counts, a->R, a->F, a->groups, a->alpha, a->limit
        };

        if constexpr (is_bf16<T>)
            if (has_codes(a))
                return fp8_map_launch<HD_E4M3>(s, op, a, a->R, a->F);
        HD_PACK_WIDTH((pack_fits_wide<T>(a->F, a->out, a->inp)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->F));
    });
}

extern "C" enum hd_status hd_cuda_glu_forward(struct hd_cuda_stream *s,
                                              const struct hd_glu_forward_args *a)
{
    HD_CUDA_ACTIVATION(a->act, A, return glu_forward_launch<A>(s, a));
    return glu_forward_launch<HD_ACT_OSS>(s, a);
}

template <enum hd_activation ACT>
static enum hd_status glu_backward_launch(struct hd_cuda_stream *s,
                                          const struct hd_glu_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct glu_backward<ACT, T> op = {
            (T *)a->dinp, (const T *)a->dout,
                (const T *)a->inp, a->counts, a->R, a->F, a->groups, a->alpha, a->limit
        };

        if constexpr (is_bf16<T>)
            if (has_codes(a))
                return fp8_map_launch<HD_E5M2>(s, op, a, a->R, a->F);
        HD_PACK_WIDTH((pack_fits_wide<T>(a->F, a->dinp, a->dout, a->inp)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->F));
    });
}

extern "C" enum hd_status hd_cuda_glu_backward(struct hd_cuda_stream *s,
                                               const struct hd_glu_backward_args *a)
{
    HD_CUDA_ACTIVATION(a->act, A, return glu_backward_launch<A>(s, a));
    return glu_backward_launch<HD_ACT_OSS>(s, a);
}

/* Returns the number of elements in use, of N elements in R rows. */
static __device__ __forceinline__ int64_t elements_in_use(const int32_t *counts, int64_t groups,
                                                          int64_t R, int64_t N)
{
    return counts ? rows_in_use(counts, groups, R) * (N / R) : N;
}

template <enum hd_activation ACT, typename T>
struct activation_forward {
    static constexpr int UNROLL = 4, OUTPUTS = 1;
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
    __device__ __forceinline__ void values(const in<V> &x, pack<T, V> (&y)[1]) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            y[0].at[j] = from_float<T>(activate<ACT, T>(to_float(x.x.at[j])));
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t i) const
    {
        pack<T, V> y[1];

        values(x, y);
        pack_store(out + i, y[0]);
    }
    template <int V>
    __device__ void load_at(in<V> &x, int64_t r, int64_t c, int64_t C) const
    {
        load(x, 0, r * C + c);
    }
    __device__ __host__ T *result() const
    {
        return out;
    }
};

template <enum hd_activation ACT>
static enum hd_status activation_forward_launch(struct hd_cuda_stream *s,
                                                const struct hd_activation_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct activation_forward<ACT, T> op = {
            (T *)a->out, (const T *)a->inp, a->counts, a->N, a->R, a->groups
        };

        if constexpr (is_bf16<T>)
            if (has_codes(a))
                return fp8_map_launch<HD_E4M3>(s, op, a, a->R, a->N / a->R);
        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->out, a->inp)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

extern "C" enum hd_status hd_cuda_activation_forward(struct hd_cuda_stream *s,
                                                     const struct hd_activation_forward_args *a)
{
    if (a->counts && a->R == 0)
        return HD_OK;
    HD_CUDA_ACTIVATION(a->act, A, return activation_forward_launch<A>(s, a));
    return hd_costs_activation_check(a->act);
}

template <enum hd_activation ACT, typename T>
struct activation_backward {
    static constexpr int UNROLL = 2, OUTPUTS = 1;
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
    __device__ __forceinline__ pack<T, V> gradient(const in<V> &x) const
    {
        pack<T, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(to_float(x.dout.at[j]) *
                                    activation_slope<ACT, T>(to_float(x.x.at[j])));
        return y;
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t i) const
    {
        pack_store(dinp + i, gradient(x));
    }
    template <int V>
    __device__ __forceinline__ void values(const in<V> &x, pack<T, V> (&y)[1]) const
    {
        y[0] = gradient(x);
    }
    template <int V>
    __device__ void load_at(in<V> &x, int64_t r, int64_t c, int64_t C) const
    {
        load(x, 0, r * C + c);
    }
    __device__ __host__ T *result() const
    {
        return dinp;
    }
};

template <enum hd_activation ACT>
static enum hd_status activation_backward_launch(struct hd_cuda_stream *s,
                                                 const struct hd_activation_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct activation_backward<ACT, T> op = {
            (T *)a->dinp, (const T *)a->dout, (const T *)a->inp, a->counts, a->N, a->R, a->groups
        };

        if constexpr (is_bf16<T>)
            if (has_codes(a))
                return fp8_map_launch<HD_E5M2>(s, op, a, a->R, a->N / a->R);
        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->dinp, a->dout, a->inp)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

/* Computes activation_backward and adds up what it stores, for row_sums.cuh. */
template <enum hd_activation ACT, typename T>
struct activation_terms {
    static constexpr int OUTPUTS = 1;
    template <int V>
    struct in {
        typename activation_backward<ACT, T>::template in<V> x;
        int64_t at;
    };
    struct activation_backward<ACT, T> op;
    int64_t C;

    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.at = r * C + c;
        op.load(x.x, 0, x.at);
    }
    template <int V>
    __device__ void add(float (&sums)[1][V], const in<V> &x) const
    {
        const pack<T, V> y = op.gradient(x.x);

        pack_store(op.dinp + x.at, y);
#pragma unroll
        for (int j = 0; j < V; j++)
            sums[0][j] += to_float(y.at[j]);
    }
};

template <enum hd_activation ACT>
static enum hd_status activation_backward_sum(struct hd_cuda_stream *s,
                                              const struct hd_activation_backward_args *a)
{
    const int64_t C = a->N / a->R;

    HD_CUDA_FLOATS(a->dtype, T, {
        const struct activation_terms<ACT, T> terms = {
            {(T *)a->dinp, (const T *)a->dout, (const T *)a->inp, NULL, a->N, a->R, 0}, C
        };

        if (pack_fits_wide<T>(C, a->dinp, a->dout, a->inp))
            return row_chunks_launch<pack_wide<T>>(s, terms, a->sums, a->R, C,
                                                   hd_costs_device_row_chunks(a->R).rows);
    });
    {
        const enum hd_status st = activation_backward_launch<ACT>(s, a);

        return st ? st : hd_cuda_sum_row_chunks(s, a->sums, a->dinp, a->R, C, 0, a->dtype);
    }
}

extern "C" enum hd_status hd_cuda_activation_backward(struct hd_cuda_stream *s,
                                                      const struct hd_activation_backward_args *a)
{
    if ((a->counts || a->sums) && a->R == 0)
        return HD_OK;
    if (a->sums)
        HD_CUDA_ACTIVATION(a->act, A, return activation_backward_sum<A>(s, a));
    HD_CUDA_ACTIVATION(a->act, A, return activation_backward_launch<A>(s, a));
    return hd_costs_activation_check(a->act);
}
