/* logit_rows: a row of logits in a block: its softmax in one pass, which keeps the row in shared memory, and the
 * gradient from there. cross_entropy.cu says what this moves.
 *
 * Used by: cross_entropy, entropy.   Uses: block, logits, pack.
 */
#ifndef HD_KERNELS_CUDA_LOGIT_ROWS_CUH
#define HD_KERNELS_CUDA_LOGIT_ROWS_CUH

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/logits.cuh"
#include "kernels/cuda/pack.cuh"

enum { ROW_THREADS = 512, ROW_RESIDENT = 2, ROW_UNROLL = 3 };

/* ---- Rows ---- */

/* A row of logits in aligned packs of V elements: column 0 is element `shift` of the first pack. */
template <typename T, int V>
struct row {
    T *at;       /* address of column -shift, aligned to a pack */
    int shift;   /* elements before column 0 in the first pack, < V */
    int64_t end; /* one past the row's last element, relative to `at` */

    __device__ row(T *first, int64_t columns)
        : shift((int)(reinterpret_cast<uintptr_t>(first) / sizeof(T) % V))
    {
        at = first - shift;
        end = columns + shift;
    }
    __device__ bool is_whole(int64_t i) const
    {
        return i >= shift && i + V <= end;
    }
    __device__ bool has(int64_t i) const
    {
        return i >= shift && i < end;
    }
    __device__ int64_t packs() const
    {
        return (end + V - 1) / V;
    }
};

/* Loads the pack at element i of the row of logits (i is a multiple of V); -infinity for elements
 * outside the row. */
template <typename T, int V>
static __device__ __forceinline__ pack<T, V> row_load(const struct row<const T, V> &row, int64_t i)
{
    pack<T, V> x;

    if (row.is_whole(i))
        return pack_load<V>(row.at + i);
#pragma unroll
    for (int j = 0; j < V; j++)
        x.at[j] = row.has(i + j) ? row.at[i + j] : from_float<T>(-INFINITY);
    return x;
}

template <typename T, int V>
static __device__ __forceinline__ void row_store(const struct row<T, V> &row, int64_t i,
                                                 const pack<T, V> &x)
{
    if (row.is_whole(i)) {
        pack_store(row.at + i, x);
        return;
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        if (row.has(i + j))
            row.at[i + j] = x.at[j];
}

/* Running maximum and sum of exp(x - max) of a row; initially -infinity and 0. */
struct softmax {
    float max, sum;
};

/* replaces -inf, because -inf - -inf is NaN */
static __device__ __forceinline__ float finite_max(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

template <enum cuda_map_kind M, typename T, int V>
static __device__ __forceinline__ void softmax_add(struct softmax *s, const pack<T, V> &x,
                                                   const struct cuda_map &m)
{
    float max = s->max, base, sum = 0, y[V];

#pragma unroll
    for (int j = 0; j < V; j++) {
        y[j] = mapped<M, T>(to_float(x.at[j]), m);
        max = fmaxf(max, y[j]);
    }
    base = finite_max(max);
#pragma unroll
    for (int j = 0; j < V; j++)
        sum += exp_of<T>(y[j] - base);
    s->sum = s->sum * exp_of<T>(s->max - base) + sum;
    s->max = max;
}

/* Merges the running maxima and sums of all threads of the block. */
template <typename T>
static __device__ __forceinline__ struct softmax softmax_join(struct softmax s, float *shared)
{
    const float max = block_max(s.max, shared);

    s.sum = block_add(s.sum * exp_of<T>(s.max - finite_max(max)), shared);
    s.max = max;
    return s;
}

/* A pack as one word: unpacked only when it is needed, so that several loads can be in flight
 * (row_load waits for each load). */
template <typename T, int W>
struct raw_pack {
    using word = typename pack_word<sizeof(pack<T, W>)>::type;
    word w;

    __device__ __forceinline__ void load(const pack<T, W> *from)
    {
        w = *reinterpret_cast<const word *>(from);
    }
    __device__ __forceinline__ pack<T, W> get() const
    {
        pack<T, W> x;

        memcpy(&x, &w, sizeof x);
        return x;
    }
};

/* Computes maximum and sum of exponentials over the row's columns; packs below `kept` are stored in
 * `cache`. */
template <enum cuda_map_kind M, typename T, int W>
static __device__ __forceinline__ struct softmax
softmax_row(const struct row<const T, W> &row, const struct cuda_map &m, pack<T, W> *cache,
            int64_t kept, float *shared)
{
    const int64_t packs = row.packs(), threads = blockDim.x;
    struct softmax s = {-INFINITY, 0};

    for (int64_t i = threadIdx.x; i < packs; i += ROW_UNROLL * threads) {
        struct raw_pack<T, W> x[ROW_UNROLL];

#pragma unroll
        for (int u = 0; u < ROW_UNROLL; u++)
            if (row.is_whole((i + u * threads) * W))
                x[u].load(reinterpret_cast<const pack<T, W> *>(row.at + (i + u * threads) * W));
#pragma unroll
        for (int u = 0; u < ROW_UNROLL; u++)
            if (i + u * threads < packs) {
                const int64_t at = (i + u * threads) * W;
                const pack<T, W> y = row.is_whole(at) ? x[u].get() : row_load<T, W>(row, at);

                if (i + u * threads < kept)
                    cache[i + u * threads] = y;
                softmax_add<M>(&s, y, m);
            }
    }
    return softmax_join<T>(s, shared);
}

/* Values from which the gradient of a row of logits is computed, for mapped logits y: factor *
 * exp(y - max), minus `target_less` at the target, with a cap times its slope; 0 from column V
 * on. */
struct gradient {
    float max, factor, target_less;
    int64_t target; /* column of the target; negative: none */
    int64_t V;
    struct cuda_map m;
};

/* Returns the gradient of one logit, with `less` subtracted before the slope. */
template <enum cuda_map_kind M, typename T>
static __device__ __forceinline__ float gradient_at(const struct gradient &g, T logit, float less)
{
    const float y = mapped<M, T>(to_float(logit), g.m);
    const float d = exp_of<T>(y - g.max) * g.factor - less;

    return M == MAP_CAP ? d * cap_slope(y, g.m) : d;
}

template <enum cuda_map_kind M, typename T, int W>
static __device__ __forceinline__ pack<T, W> gradient_of(const struct gradient &g, pack<T, W> x,
                                                         int64_t column)
{
    pack<T, W> d;

    if (column + W <= g.V && (g.target < column || g.target >= column + W)) {
#pragma unroll
        for (int j = 0; j < W; j++)
            d.at[j] = from_float<T>(gradient_at<M>(g, x.at[j], 0.0f));
        return d;
    }
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float less = column + j == g.target ? g.target_less : 0.0f;

        d.at[j] = from_float<T>(column + j >= g.V ? 0.0f : gradient_at<M>(g, x.at[j], less));
    }
    return d;
}

/* Writes the gradient of a row of logits. A thread writes only packs that it has read, so out may
 * be inp. Both have the same `shift`. */
template <enum cuda_map_kind M, typename T, int W>
static __device__ __forceinline__ void
gradient_row(const struct row<T, W> &out, const struct row<const T, W> &inp,
             const pack<T, W> *cache, int64_t kept, const struct gradient &g)
{
    const int64_t packs = out.packs(), threads = blockDim.x;

    kept = kept < inp.packs() ? kept : inp.packs();
    for (int64_t i = threadIdx.x; i < packs; i += ROW_UNROLL * threads) {
        struct raw_pack<T, W> x[ROW_UNROLL];

#pragma unroll
        for (int u = 0; u < ROW_UNROLL; u++) {
            const int64_t at = (i + u * threads) * W;

            if (i + u * threads < kept)
                x[u].load(&cache[i + u * threads]);
            else if (inp.is_whole(at))
                x[u].load(reinterpret_cast<const pack<T, W> *>(inp.at + at));
        }
#pragma unroll
        for (int u = 0; u < ROW_UNROLL; u++)
            if (i + u * threads < packs) {
                const int64_t at = (i + u * threads) * W;
                const pack<T, W> y = i + u * threads < kept || inp.is_whole(at)
                                         ? x[u].get()
                                         : row_load<T, W>(inp, at);

                row_store(out, at, gradient_of<M, T, W>(g, y, at - out.shift));
            }
    }
}

template <typename T, int W>
static __device__ __forceinline__ void zero_row(const struct row<T, W> &out)
{
    pack<T, W> zero;

#pragma unroll
    for (int j = 0; j < W; j++)
        zero.at[j] = from_float<T>(0);
    for (int64_t i = threadIdx.x; i < out.packs(); i += blockDim.x)
        row_store(out, i * W, zero);
}

/* ---- Launching ---- */

/* Returns the block size for a row of `packs` packs of logits. */
static inline dim3 row_threads(int64_t packs)
{
    const int64_t threads = divide_up(divide_up(packs, ROW_UNROLL), 32) * 32;

    return dim3((unsigned)(threads < ROW_THREADS ? threads : (int64_t)ROW_THREADS));
}

/* Returns how much shared memory a block may use for its row of logits, bytes, if ROW_RESIDENT
 * blocks run on a multiprocessor: 112 KB on an H100, 80 on an A100, 48 on an L4. The system takes 1
 * KB per block, static arrays some more. */
static inline int64_t cache_bytes_max(const struct hd_backend *cuda)
{
    const int64_t bytes = cuda->shared_bytes_all / ROW_RESIDENT - 2 * 1024;

    return bytes < cuda->shared_bytes - 1024 ? bytes : cuda->shared_bytes - 1024;
}

/* Returns whether rows of a and b have the same `shift`, so that aligned packs fit both. */
template <typename T>
static inline bool rows_are_packs(const void *a, const void *b)
{
    return (uintptr_t)a % sizeof(T) == 0 && (!b || ((uintptr_t)a - (uintptr_t)b) % 16 == 0);
}

/* Returns the factor of a row's gradient, `unit`, times the scale of the map. */
template <enum cuda_map_kind M>
static __device__ __forceinline__ float unit_of(float unit, const struct hd_logit_map &map)
{
    return M == MAP_NONE || map.scale == 0 ? unit : unit * map.scale;
}

#endif
