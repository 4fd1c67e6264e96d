/* glu: gated activations (ops.h, glu_forward and glu_backward) as operations of map.cuh.
 *
 * Used by: activation.cu, gemm_glu_hopper.cu, which give the same bits.   Uses: activation.cuh, map.
 */
#ifndef HD_KERNELS_CUDA_GLU_CUH
#define HD_KERNELS_CUDA_GLU_CUH

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/map.cuh"

/* Gate and up projection of HD_ACT_OSS after clamping; NaN stays NaN. */
struct cuda_clamped {
    float gate, up;
};

static __device__ __forceinline__ struct cuda_clamped clamp(float gate, float up, float limit)
{
    const float most = up > limit ? limit : up;

    return {gate > limit ? limit : gate, most < -limit ? -limit : most};
}

template <enum hd_activation ACT, typename T>
struct glu_forward {
    static constexpr int UNROLL = 2, OUTPUTS = 1;
    template <int V>
    struct in {
        pack<T, V> gate, up;
    };
    T *out;
    const T *inp;
    const int32_t *counts;
    int64_t R, F, groups;
    float alpha, limit;

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
    __device__ __forceinline__ float one(float gate, float up) const
    {
        if (ACT == HD_ACT_OSS) {
            const struct cuda_clamped x = clamp(gate, up, limit);

            return (x.up + 1.0f) * x.gate * sigmoid<T>(alpha * x.gate);
        }
        return activate<ACT, T>(gate) * up;
    }
    template <int V>
    __device__ __forceinline__ void values(const in<V> &x, pack<T, V> (&y)[1]) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            y[0].at[j] = from_float<T>(one(to_float(x.gate.at[j]), to_float(x.up.at[j])));
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t f) const
    {
        pack<T, V> y[1];

        values(x, y);
        pack_store(out + r * F + f, y[0]);
    }
    template <int V>
    __device__ void load_at(in<V> &x, int64_t r, int64_t f, int64_t) const
    {
        load(x, r, f);
    }
    __device__ __host__ T *result() const
    {
        return out;
    }
};

/* Computes the gradients of a gated activation, of SwiGLU with s = sigmoid(gate): dup = dout * gate
 * * s, dgate = dout * up * s * (1 + gate * (1 - s)). A thread reads gate and up before it writes
 * their gradients: dinp may alias inp. */
template <enum hd_activation ACT, typename T>
struct glu_backward {
    static constexpr int UNROLL = 1, OUTPUTS = 2;
    template <int V>
    struct in {
        pack<T, V> dout, gate, up;
    };
    T *dinp;
    const T *dout, *inp;
    const int32_t *counts;
    int64_t R, F, groups;
    float alpha, limit;

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
    /* Sets the gradients of an element; those of HD_ACT_OSS are 0 for a value that was clamped. */
    __device__ __forceinline__ void one(float d, float gate, float up, float *ret_dgate,
                                        float *ret_dup) const
    {
        if (ACT == HD_ACT_OSS) {
            const struct cuda_clamped x = clamp(gate, up, limit);
            const float s = sigmoid<T>(alpha * x.gate);

            *ret_dgate = gate > limit
                             ? 0.0f
                             : d * (x.up + 1.0f) * (s * (1.0f + alpha * x.gate * (1.0f - s)));
            *ret_dup = up > limit || up < -limit ? 0.0f : d * (x.gate * s);
        } else if (ACT == HD_ACT_SILU) {
            const float s = sigmoid<T>(gate);

            *ret_dgate = d * up * s * (1.0f + gate * (1.0f - s));
            *ret_dup = d * (gate * s);
        } else {
            *ret_dgate = d * up * activation_slope<ACT, T>(gate);
            *ret_dup = d * activate<ACT, T>(gate);
        }
    }
    /* Sets the gradients of gate and up projection. */
    template <int V>
    __device__ __forceinline__ void values(const in<V> &x, pack<T, V> (&y)[2]) const
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            float of_gate, of_up;

            one(to_float(x.dout.at[j]), to_float(x.gate.at[j]), to_float(x.up.at[j]), &of_gate,
                &of_up);
            y[0].at[j] = from_float<T>(of_gate);
            y[1].at[j] = from_float<T>(of_up);
        }
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t f) const
    {
        pack<T, V> y[2];

        values(x, y);
        pack_store(dinp + r * 2 * F + f, y[0]);
        pack_store(dinp + r * 2 * F + F + f, y[1]);
    }
    template <int V>
    __device__ void load_at(in<V> &x, int64_t r, int64_t f, int64_t) const
    {
        load(x, r, f);
    }
    __device__ __host__ T *result() const
    {
        return dinp;
    }
};

#endif
