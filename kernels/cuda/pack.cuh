/* pack: V consecutive elements, read and written in one instruction.
 *
 * Memory-bound kernels have two variants: V elements in 16 bytes, if rows and addresses are
 * aligned; else V = 1. A pack keeps its dtype until it is used, so that many packs fit into
 * registers.
 *
 * Used by: the memory-bound kernels of kernels/cuda.   Uses: device, ptx.
 * Threads: pure functions.
 */
#ifndef HD_KERNELS_CUDA_PACK_CUH
#define HD_KERNELS_CUDA_PACK_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ptx.cuh"

template <typename T, int V>
struct alignas(sizeof(T) * V) pack {
    T at[V];
};

template <typename T>
constexpr int pack_wide = 16 / (int)sizeof(T);

/* Integer type with the size of a pack. */
template <int BYTES>
struct pack_word {
};
template <>
struct pack_word<1> {
    using type = unsigned char;
};
template <>
struct pack_word<2> {
    using type = unsigned short;
};
template <>
struct pack_word<4> {
    using type = unsigned;
};
template <>
struct pack_word<8> {
    using type = uint2;
};
template <>
struct pack_word<16> {
    using type = uint4;
};

/* Stores a word in one instruction. For a plain assignment of a struct or vector whose elements are
 * in separate registers, the compiler may emit eight stores of 2 bytes, each as expensive as one of
 * 16. */
template <typename Word>
static __device__ __forceinline__ void store_word(Word *to, Word w)
{
    *to = w;
}

static __device__ __forceinline__ void store_word(uint2 *to, uint2 w)
{
    store_8(to, w);
}

static __device__ __forceinline__ void store_word(uint4 *to, uint4 w)
{
    store_16(to, w);
}

template <int V, typename T>
static __device__ __forceinline__ pack<T, V> pack_load(const T *from)
{
    return *reinterpret_cast<const pack<T, V> *>(from);
}

template <typename T, int V>
static __device__ __forceinline__ void pack_store(T *to, const pack<T, V> &p)
{
    using word = typename pack_word<sizeof(pack<T, V>)>::type;
    word w;

    memcpy(&w, &p, sizeof w);
    store_word(reinterpret_cast<word *>(to), w);
}

/* Returns whether packs of V elements are aligned at `address` and at all rows `ld` elements apart;
 * true if address is NULL. */
template <typename T, int V>
static inline bool pack_fits(const void *address, int64_t ld)
{
    return (uintptr_t)address % (sizeof(T) * V) == 0 && ld % V == 0;
}

/* Returns whether packs of 16 bytes fit several tensors of type T with rows of N elements. */
template <typename T>
static inline bool pack_fits_wide(int64_t N, const void *a, const void *b = 0, const void *c = 0,
                                  const void *d = 0, const void *e = 0, const void *f = 0)
{
    constexpr int V = pack_wide<T>;

    return pack_fits<T, V>(a, N) && pack_fits<T, V>(b, N) && pack_fits<T, V>(c, N) &&
           pack_fits<T, V>(d, N) && pack_fits<T, V>(e, N) && pack_fits<T, V>(f, N);
}

/* Macro: runs the statements with a constant V: the number of elements in 16 bytes if `wide`, else
 * 1. */
#define HD_PACK_WIDTH(wide, T, V, ...)      \
    do {                                    \
        if (wide) {                         \
            constexpr int V = pack_wide<T>; \
            __VA_ARGS__;                    \
        } else {                            \
            constexpr int V = 1;            \
            __VA_ARGS__;                    \
        }                                   \
    } while (0)

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns a grid size: `blocks`, at most `resident` per multiprocessor of the device. */
static inline unsigned grid_of(const struct hd_cuda_stream *s, int64_t blocks, int resident)
{
    const int64_t most = (int64_t)s->cuda->traits.multiprocessors * resident;

    return (unsigned)(blocks < most ? blocks : most);
}

#endif
