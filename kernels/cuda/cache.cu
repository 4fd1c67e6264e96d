/* cache: appends new rows to a key/value cache.  Bytes: 2 B new_rows N e. Reads `filled` on the
 * device. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/map.cuh"

/* New row r is row r % new_rows of sequence r / new_rows. E is an integer type of the dtype's size;
 * elements are copied bit by bit. */
template <typename E>
struct cuda_append {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<E, V> x;
    };
    E *cache;
    const E *inp;
    const int32_t *filled, *slot;
    int64_t *overflow;
    int64_t B, cache_rows, new_rows, ldi, ldc;

    /* Returns the number of filled rows of sequence b in the cache; an invalid number counts as a
     * full slot. */
    __device__ int64_t begin(int64_t b) const
    {
        const int64_t n = filled[b];

        return n < 0 || n > cache_rows ? cache_rows : n;
    }
    __device__ int64_t rows() const
    {
        if (blockIdx.x == 0)
            for (int64_t b = threadIdx.x; b < B; b += blockDim.x)
                if (begin(b) + new_rows > cache_rows)
                    *overflow = 1; /* a race without harm: all threads that write, write 1 */
        return B * new_rows;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.x = pack_load<V>(inp + r * ldi + c);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t c) const
    {
        const int64_t b = r / new_rows, row = begin(b) + r - b * new_rows;

        if (row < cache_rows)
            pack_store(cache + (slot[b] * cache_rows + row) * ldc + c, x.x);
    }
};

template <typename E>
static enum hd_status append_as(struct hd_cuda_stream *s, const struct hd_cache_append_args *a)
{
    const struct cuda_append<E> op = {
        (E *)a->cache, (const E *)a->inp, a->filled, a->slot, a->overflow, a->B, a->rows,
            a->new_rows, a->ldi, a->ldc
    };
    const bool wide = a->N % pack_wide<E> == 0 && pack_fits_wide<E>(a->ldi, a->inp) &&
                      pack_fits_wide<E>(a->ldc, a->cache);

    HD_PACK_WIDTH(wide, E, V, return map_launch_rows<V>(s, op, a->B * a->new_rows, a->N));
}

extern "C" enum hd_status hd_cuda_cache_append(struct hd_cuda_stream *s,
                                               const struct hd_cache_append_args *a)
{
    switch (hd_dtype_size(a->dtype)) {
    case 2:
        return append_as<uint16_t>(s, a);
    case 4:
        return append_as<uint32_t>(s, a);
    default:
        return hd_err(HD_UNSUPPORTED, "cache_append: the cuda backend has no kernel for %s",
                      hd_dtype_name(a->dtype));
    }
}
