/* query_factor: multiplies queries by a factor of their row's position.
 *
 * Bytes: 2 R N e, in place; a row's position and factor come from L1 and L2. Not yet measured on a
 * GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/map.cuh"

template <typename T>
struct cuda_query_factor {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
        float factor;
    };
    T *x;
    const int32_t *position;
    const float *table;
    int64_t R, ldx;

    __device__ int64_t rows() const
    {
        return R;
    }
    template <int V>
    __device__ void load(in<V> &to, int64_t r, int64_t c) const
    {
        to.x = pack_load<V>(x + r * ldx + c);
        to.factor = table[position[r]];
    }
    template <int V>
    __device__ void store(const in<V> &from, int64_t r, int64_t c) const
    {
        pack<T, V> y;

#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] = from_float<T>(to_float(from.x.at[j]) * from.factor);
        pack_store(x + r * ldx + c, y);
    }
};

extern "C" enum hd_status hd_cuda_query_factor(struct hd_cuda_stream *s,
                                               const struct hd_query_factor_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_query_factor<T> op = {
            (T *)a->x, a->position, a->table, a->R, a->ldx
        };

        HD_PACK_WIDTH((a->N % pack_wide<T> == 0 && pack_fits_wide<T>(a->ldx, a->x)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->N));
    });
}
