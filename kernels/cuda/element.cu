/* element: add, clamp, cast and zero on flat tensors; copy_columns on matrices.  Bytes: every element is
 * read or written once, in packs of 16 bytes if addresses and distances are aligned: add 3 N e,
 * clamp 2 N e forward and 3 N e backward, cast N (e + e'), copy_columns R N (e + e'), zero its size. Memory-bound. Not yet measured on a
 * GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/map.cuh"

template <typename T>
struct add {
    static constexpr int UNROLL = 2;
    template <int V>
    struct in {
        pack<T, V> a, b;
    };
    T *out;
    const T *a, *b;
    int64_t N;
    float factor;

    __device__ int64_t rows() const
    {
        return N;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t, int64_t i) const
    {
        x.a = pack_load<V>(a + i);
        x.b = pack_load<V>(b + i);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t, int64_t i) const
    {
        pack<T, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(to_float(x.a.at[j]) + factor * to_float(x.b.at[j]));
        pack_store(out + i, y);
    }
};

extern "C" enum hd_status hd_cuda_add(struct hd_cuda_stream *s, const struct hd_add_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct add<T> op = {
            (T *)a->out, (const T *)a->a, (const T *)a->b, a->N, hd_factor_of(a->factor)
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->out, a->a, a->b)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

template <typename T>
struct cuda_clamp {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
    };
    T *out;
    const T *inp;
    int64_t N;
    float limit;

    __device__ int64_t rows() const
    {
        return N;
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
        for (int j = 0; j < V; j++) {
            const float v = to_float(x.x.at[j]);

            y.at[j] = from_float<T>(v > limit ? limit : v < -limit ? -limit : v);
        }
        pack_store(out + i, y);
    }
};

extern "C" enum hd_status hd_cuda_clamp_forward(struct hd_cuda_stream *s,
                                                const struct hd_clamp_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_clamp<T> op = {
            (T *)a->out, (const T *)a->inp, a->N, a->limit
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->out, a->inp)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

template <typename T>
struct cuda_clamp_backward {
    static constexpr int UNROLL = 2;
    template <int V>
    struct in {
        pack<T, V> dout, x;
    };
    T *dinp;
    const T *dout, *inp;
    int64_t N;
    float limit;

    __device__ int64_t rows() const
    {
        return N;
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
        for (int j = 0; j < V; j++) {
            const float v = to_float(x.x.at[j]);

            y.at[j] = v > limit || v < -limit ? from_float<T>(0.0f) : x.dout.at[j];
        }
        pack_store(dinp + i, y);
    }
};

extern "C" enum hd_status hd_cuda_clamp_backward(struct hd_cuda_stream *s,
                                                 const struct hd_clamp_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_clamp_backward<T> op = {
            (T *)a->dinp, (const T *)a->dout, (const T *)a->inp, a->N, a->limit
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(0, a->dinp, a->dout, a->inp)), T, V,
                      return map_launch_flat<V>(s, op, a->N));
    });
}

/* Converts an element with the same bits as base/dtype.h: a NaN keeps its sign and the upper bits
 * of its payload, which the hardware conversions do not guarantee. */
template <typename To, typename From>
struct recoded {
    static __device__ __forceinline__ To of(From x)
    {
        return recoded<To, float>::of(recoded<float, From>::of(x));
    }
};

template <typename T>
struct recoded<T, T> {
    static __device__ __forceinline__ T of(T x)
    {
        return x;
    }
};

static __device__ __forceinline__ uint32_t half_of_nan(float x, bf16)
{
    return __float_as_uint(x) >> 16 | 0x40;
}

static __device__ __forceinline__ uint32_t half_of_nan(float x, f16)
{
    const uint32_t bits = __float_as_uint(x);

    return (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff);
}

template <typename To>
struct recoded<To, float> {
    static __device__ __forceinline__ To of(float x)
    {
        To y = from_float<To>(x);

        if (x != x) {
            const uint16_t bits = (uint16_t)half_of_nan(x, y);

            memcpy(&y, &bits, sizeof y);
        }
        return y;
    }
};

template <>
struct recoded<float, float> {
    static __device__ __forceinline__ float of(float x)
    {
        return x;
    }
};

template <>
struct recoded<float, bf16> {
    static __device__ __forceinline__ float of(bf16 x)
    {
        return to_float(x);
    }
};

template <>
struct recoded<float, f16> {
    static __device__ __forceinline__ float of(f16 x)
    {
        const float y = to_float(x);
        uint16_t bits;

        if (y == y)
            return y;
        memcpy(&bits, &x, sizeof bits);
        return __uint_as_float((uint32_t)(bits & 0x8000) << 16 | 0x7f800000u |
                               (uint32_t)(bits & 0x3ff) << 13);
    }
};

/* Copies N columns between matrices with different row distances. A flat tensor is one row. SCALED:
 * multiplies by `factor`. */
template <typename To, typename From, bool SCALED>
struct copy {
    static constexpr int UNROLL = sizeof(From) < sizeof(To) ? 8 : 4; /* 64 bytes in flight */
    template <int V>
    struct in {
        pack<From, V> x;
    };
    To *out;
    const From *inp;
    int64_t R, ldo, ldi;
    float factor;

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
        pack<To, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = SCALED ? recoded<To, float>::of(factor * recoded<float, From>::of(x.x.at[j]))
                             : recoded<To, From>::of(x.x.at[j]);
        pack_store(out + r * ldo + c, y);
    }
};

/* Pack width for two dtypes: the longer one fills 16 bytes, so that a warp accesses whole lines of
 * both. With 32 bytes per lane each access would touch half of every sector. */
template <typename To, typename From>
constexpr int copy_wide = pack_wide<To> < pack_wide<From> ? pack_wide<To> : pack_wide<From>;

template <typename To, typename From>
static enum hd_status cast_to(struct hd_cuda_stream *s, const struct hd_cast_args *a)
{
    constexpr int V = copy_wide<To, From>;
    const struct copy<To, From, false> op = {
        (To *)a->out, (const From *)a->inp, a->N, 0, 0, 1
    };

    if (pack_fits<To, V>(a->out, 0) && pack_fits<From, V>(a->inp, 0))
        return map_launch_flat<V>(s, op, a->N);
    return map_launch_flat<1>(s, op, a->N);
}

extern "C" enum hd_status hd_cuda_cast(struct hd_cuda_stream *s, const struct hd_cast_args *a)
{
    HD_CUDA_FLOATS(a->out_dtype, To,
                   HD_CUDA_FLOATS(a->inp_dtype, From, return cast_to<To, From>(s, a)));
}

template <typename To, typename From, bool SCALED>
static enum hd_status copy_to(struct hd_cuda_stream *s, const struct hd_copy_columns_args *a)
{
    constexpr int V = copy_wide<To, From>;
    const struct copy<To, From, SCALED> op = {
        (To *)a->out, (const From *)a->inp, a->R, a->ldo, a->ldi, a->factor
    };

    if (pack_fits<To, V>(a->out, a->ldo) && pack_fits<From, V>(a->inp, a->ldi) && a->N % V == 0)
        return map_launch_rows<V>(s, op, a->R, a->N);
    return map_launch_rows<1>(s, op, a->R, a->N);
}

extern "C" enum hd_status hd_cuda_copy_columns(struct hd_cuda_stream *s,
                                               const struct hd_copy_columns_args *a)
{
    HD_CUDA_FLOATS(a->out_dtype, To,
                   HD_CUDA_FLOATS(a->inp_dtype, From,
                                  return a->factor == 1 ? copy_to<To, From, false>(s, a)
                                                        : copy_to<To, From, true>(s, a)));
}

struct zero {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
    };
    unsigned char *out;
    int64_t size_bytes;

    __device__ int64_t rows() const
    {
        return size_bytes;
    }
    template <int V>
    __device__ void load(in<V> &, int64_t, int64_t) const
    {
    }
    template <int V>
    __device__ void store(const in<V> &, int64_t, int64_t i) const
    {
        const pack<unsigned char, V> zeros = {};

        pack_store(out + i, zeros);
    }
};

extern "C" enum hd_status hd_cuda_zero(struct hd_cuda_stream *s, const struct hd_zero_args *a)
{
    const struct zero op = {(unsigned char *)a->out, a->size_bytes};

    HD_PACK_WIDTH((pack_fits_wide<unsigned char>(0, a->out)), unsigned char, V,
                  return map_launch_flat<V>(s, op, a->size_bytes));
}
