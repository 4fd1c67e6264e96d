/* gemm_random: fills the factors of a product with random numbers before its algorithms are timed.
 *
 * A GPU at its power limit clocks a product of zeros higher than one of other numbers, and orders
 * algorithms otherwise. Bytes: R N e are written, once for each product that is timed.
 * Not yet measured on a GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/random.cuh"

/* Number c of row r, from the random word of (key, r, c): uniform between -1 and 1. */
template <typename T>
static __device__ __forceinline__ T random_number(uint32_t word)
{
    return from_float<T>((float)(2 * (int32_t)(word >> 8) + 1 - (1 << 24)) * 0x1p-24f);
}

/* The number's code of fp8. Bit 3 is clear, so that it is finite in E4M3 and in E5M2. */
template <>
__device__ __forceinline__ uint8_t random_number<uint8_t>(uint32_t word)
{
    return (uint8_t)(word >> 24 & 0xf7u);
}

template <typename T>
struct cuda_random {
    static constexpr int UNROLL = 1;
    template <int V>
    struct in {
        uint4 words;
    };
    T *out;
    uint64_t key;
    int64_t R, ld;

    __device__ int64_t rows() const
    {
        return R;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.words = philox(key, (uint32_t)c, (uint32_t)r, (uint32_t)((uint64_t)r >> 32), 0);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t c) const
    {
        out[r * ld + c] = random_number<T>(x.words.x);
    }
};

extern "C" enum hd_status hd_cuda_gemm_random(struct hd_cuda_stream *s, void *factor,
                                              enum hd_dtype dtype, int64_t R, int64_t N, int64_t ld,
                                              uint64_t key)
{
    if (dtype == HD_U8) {
        const struct cuda_random<uint8_t> op = {
            (uint8_t *)factor, key, R, ld
        };

        return map_launch_rows<1>(s, op, R, N);
    }
    HD_CUDA_FLOATS(dtype, T, {
        const struct cuda_random<T> op = {
            (T *)factor, key, R, ld
        };

        return map_launch_rows<1>(s, op, R, N);
    });
}
