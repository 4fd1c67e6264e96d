/* norm: RMSNorm and LayerNorm, with the residual added first, and their gradients.
 *
 * Bytes: forward reads inp and add and writes sum and out, 4 R C e (2 R C e without add); backward
 * reads dout, inp and add and writes dinp, 4 R C e. The gradients of weights alone read dout and
 * inp, 2 R C e; with the gradient of the input they come from the same pass, for the partial sums
 * only: a block then has a chunk of rows (hd_costs_device_row_chunks) and each thread the sums of
 * its columns, in registers, so that the result depends on R and C alone. Each row is read once: a
 * thread keeps its part, up to four packs of 16 bytes per tensor, in registers until the sums over
 * the row are known. The shape depends on the bytes of a row:
 * - NARROW, up to 2 KB: a row is shared by a power of two of lanes, a warp at most; a block of 128
 *   threads has 4 rows or more, and no barrier.
 * - WIDE, up to 32 KB: a block of up to 1024 threads per row, two packs per thread; backward up
 *   to 24 KB and 768 threads.
 * - LONG: a block per row that reads the row again for each sum and for the result, mostly from L2.
 * The grid fills the device once; blocks process rows in turn. Per multiprocessor, forward has 512
 * or 1024 threads with 2 to 8 loads of 16 bytes in flight, backward 384 or 768 with 4 to 12: at
 * least 32 KB, while 3.3 TB/s at 700 ns latency need some 18 KB. Weights come from L1. Rows that
 * are unaligned, or not whole packs, are read by elements. On an H100 forward and backward reach 91
 * to 94% of a copy's rate, backward with weights 53 to 58% with rows of 4 KB, 71% with 1.5 KB.
 *
 * The variance is computed from deviations from the mean, as in kernels/cpu/norm.c. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/norm_weight.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/row_sums.cuh"

/* How rows are distributed over threads (see the file's comment): determines threads, packs per
 * thread, and blocks per multiprocessor. */
enum norm_shape { NARROW, WIDE, LONG };
constexpr int NARROW_THREADS = 128, NARROW_PACKS = 4, NARROW_FORWARD = 4, NARROW_BACKWARD = 3;
constexpr int WIDE_FORWARD = 1024, WIDE_BACKWARD = 768, WIDE_PACKS = 2;
/* backward with gradients of weights: blocks per multiprocessor (NARROW), threads (WIDE) */
[[maybe_unused]] constexpr int NARROW_WEIGHTS = 2;
constexpr int WIDE_WEIGHTS = 512;
constexpr int LONG_THREADS = 512, LONG_RESIDENT = 2;
static_assert(HD_COSTS_NORM_WEIGHTS_ROW_BYTES == WIDE_WEIGHTS * WIDE_PACKS * HD_COSTS_PACK_BYTES,
              "the rows of which a block makes the gradients of weights");

template <enum norm_shape SHAPE>
constexpr int packs_of = SHAPE == NARROW ? NARROW_PACKS : WIDE_PACKS;

/* Arguments of forward; mean and bias are for LayerNorm only, whose bias may be NULL. */
template <typename T>
struct cuda_norm_forward {
    T *out, *sum;
    float *mean, *rstd;
    const T *inp, *add, *weight, *bias;
    int64_t R, C;
    float eps, factor;
};

template <typename T>
struct cuda_norm_backward {
    T *dinp;
    const T *dout, *inp;
    const float *mean, *rstd;
    const T *weight, *add;
    int64_t R, C;
    float *partial;     /* partial sums of the weight gradients: [chunks, 1 or 2, C] */
    int64_t chunk_rows; /* rows per block with weight gradients, else all rows */
};

/* A thread's row among the rows that the block processes at a time, and its lane in the row. */
struct norm_place {
    int rows, row, width, lane;
};

template <enum norm_shape SHAPE>
static __device__ __forceinline__ struct norm_place place_of(int lanes)
{
    if (SHAPE == NARROW)
        return {NARROW_THREADS / lanes, (int)threadIdx.x / lanes, lanes, (int)threadIdx.x % lanes};
    return {1, 0, (int)blockDim.x, (int)threadIdx.x};
}

template <enum norm_shape SHAPE>
static __device__ __forceinline__ float row_sum(float x, const struct norm_place &p, float *shared)
{
    return SHAPE == NARROW ? lanes_add(x, p.width) : block_add(x, shared);
}

/* Adds the residual: x = inp + factor * add, rounded to T: the norm uses the stored values, as
 * backward does. */
template <typename T, int V>
static __device__ __forceinline__ void add_pack(pack<T, V> &x, const pack<T, V> &y, float factor)
{
#pragma unroll
    for (int j = 0; j < V; j++)
        x.at[j] = from_float<T>(to_float(x.at[j]) + factor * to_float(y.at[j]));
}

/* Adds the terms of a pack to a sum over the row. */
template <typename T, int V>
static __device__ __forceinline__ float pack_sum(float sum, const pack<T, V> &x)
{
#pragma unroll
    for (int j = 0; j < V; j++)
        sum += to_float(x.at[j]);
    return sum;
}

template <typename T, int V>
static __device__ __forceinline__ float pack_squares(float sum, const pack<T, V> &x, float mean)
{
#pragma unroll
    for (int j = 0; j < V; j++) {
        const float d = to_float(x.at[j]) - mean;

        sum += d * d;
    }
    return sum;
}

/* Stores out = (x - mean) * rstd * weight (+ bias) from column c on */
template <bool MEAN, enum cuda_norm_weight W, typename T, int V>
static __device__ __forceinline__ void store_norm(const struct cuda_norm_forward<T> &a,
                                                  const pack<T, V> &x, int64_t at, int64_t c,
                                                  float mean, float rstd)
{
    const pack<T, V> weight = weight_load<W, V>(a.weight + c);
    pack<T, V> bias = {}, out;

    if (MEAN && a.bias)
        bias = pack_load<V>(a.bias + c);
#pragma unroll
    for (int j = 0; j < V; j++) {
        const float d = MEAN ? to_float(x.at[j]) - mean : to_float(x.at[j]);
        const float y = d * rstd * factor_of<W>(weight.at[j]);

        out.at[j] = from_float<T>(MEAN ? y + to_float(bias.at[j]) : y);
    }
    pack_store(a.out + at + c, out);
}

template <typename T, int V, bool MEAN, enum cuda_norm_weight W, enum norm_shape SHAPE>
static __global__ void __launch_bounds__(SHAPE == NARROW ? NARROW_THREADS : WIDE_FORWARD,
                                         SHAPE == NARROW ? NARROW_FORWARD : 1)
    norm_forward(struct cuda_norm_forward<T> a, int lanes)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    constexpr int PACKS = packs_of<SHAPE>;
    const struct norm_place p = place_of<SHAPE>(lanes);
    const int C = (int)a.C;

    for (int64_t first = (int64_t)blockIdx.x * p.rows; first < a.R;
         first += (int64_t)gridDim.x * p.rows) {
        const int64_t r = first + p.row, at = r * C;
        const bool mine = r < a.R;
        pack<T, V> x[PACKS], y[PACKS];
        float sum = 0, mean = 0, rstd;

#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (p.lane + k * p.width) * V;

            if (mine && c < C) {
                x[k] = pack_load<V>(a.inp + at + c);
                if (a.add)
                    y[k] = pack_load<V>(a.add + at + c);
            }
        }
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (p.lane + k * p.width) * V;

            if (mine && c < C) {
                if (a.add) {
                    add_pack(x[k], y[k], a.factor);
                    pack_store(a.sum + at + c, x[k]);
                }
                sum = MEAN ? pack_sum(sum, x[k]) : pack_squares(sum, x[k], 0.0f);
            }
        }
        sum = row_sum<SHAPE>(sum, p, shared) / (float)C;
        if (MEAN) {
            mean = sum;
            sum = 0;
#pragma unroll
            for (int k = 0; k < PACKS; k++)
                if (mine && (p.lane + k * p.width) * V < C)
                    sum = pack_squares(sum, x[k], mean);
            sum = row_sum<SHAPE>(sum, p, shared) / (float)C;
        }
        rstd = 1.0f / sqrtf(sum + a.eps);
        if (mine && p.lane == 0) {
            a.rstd[r] = rstd;
            if (MEAN)
                a.mean[r] = mean;
        }
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (p.lane + k * p.width) * V;

            if (mine && c < C)
                store_norm<MEAN, W>(a, x[k], at, c, mean, rstd);
        }
    }
}

/* Computes a LONG row. A thread reads only the elements of sum that it wrote itself. */
template <typename T, int V, bool MEAN, enum cuda_norm_weight W>
static __global__ void __launch_bounds__(LONG_THREADS, LONG_RESIDENT)
    norm_forward_long(struct cuda_norm_forward<T> a)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    const int64_t begin = (int64_t)threadIdx.x * V, step = LONG_THREADS * V;

    for (int64_t r = blockIdx.x; r < a.R; r += gridDim.x) {
        const T *from = (a.add ? a.sum : a.inp) + r * a.C;
        float sum = 0, mean = 0, rstd;

        for (int64_t c = begin; c < a.C; c += step) {
            pack<T, V> x = pack_load<V>(a.inp + r * a.C + c);

            if (a.add) {
                add_pack(x, pack_load<V>(a.add + r * a.C + c), a.factor);
                pack_store(a.sum + r * a.C + c, x);
            }
            sum = MEAN ? pack_sum(sum, x) : pack_squares(sum, x, 0.0f);
        }
        sum = block_add(sum, shared) / (float)a.C;
        if (MEAN) {
            mean = sum;
            sum = 0;
            for (int64_t c = begin; c < a.C; c += step)
                sum = pack_squares(sum, pack_load<V>(from + c), mean);
            sum = block_add(sum, shared) / (float)a.C;
        }
        rstd = 1.0f / sqrtf(sum + a.eps);
        if (threadIdx.x == 0) {
            a.rstd[r] = rstd;
            if (MEAN)
                a.mean[r] = mean;
        }
        for (int64_t c = begin; c < a.C; c += step)
            store_norm<MEAN, W>(a, pack_load<V>(from + c), r * a.C, c, mean, rstd);
    }
}

/* Returns the shape for rows of C elements in packs of V, and the number of threads that share a
 * row. */
template <int V>
static enum norm_shape norm_shape_of(int64_t C, int wide_threads, int *ret_lanes)
{
    *ret_lanes = 1;
    if (C > (int64_t)wide_threads * WIDE_PACKS * V)
        return LONG;
    if (C > 32 * NARROW_PACKS * V) {
        *ret_lanes = (int)divide_up(C, 32 * WIDE_PACKS * V) * 32;
        return WIDE;
    }
    while (*ret_lanes * NARROW_PACKS * V < C)
        *ret_lanes *= 2;
    return NARROW;
}

template <bool MEAN, enum cuda_norm_weight W, int V, typename T>
static enum hd_status norm_forward_launch(struct hd_cuda_stream *s,
                                          const struct cuda_norm_forward<T> &a)
{
    int lanes;

    if (a.R == 0)
        return HD_OK;
    switch (norm_shape_of<V>(a.C, WIDE_FORWARD, &lanes)) {
    case NARROW:
        return HD_LAUNCH(s, (norm_forward<T, V, MEAN, W, NARROW>),
                         dim3(grid_of(s, divide_up(a.R, NARROW_THREADS / lanes), NARROW_FORWARD)),
                         dim3(NARROW_THREADS), 0, a, lanes);
    case WIDE:
        return HD_LAUNCH(s, (norm_forward<T, V, MEAN, W, WIDE>),
                         dim3(grid_of(s, a.R, WIDE_FORWARD / lanes)), dim3((unsigned)lanes), 0, a,
                         lanes);
    case LONG:
        break;
    }
    return HD_LAUNCH(s, (norm_forward_long<T, V, MEAN, W>), dim3(grid_of(s, a.R, LONG_RESIDENT)),
                     dim3(LONG_THREADS), 0, a);
}

extern "C" enum hd_status hd_cuda_rmsnorm_forward(struct hd_cuda_stream *s,
                                                  const struct hd_rmsnorm_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_norm_forward<T> f = {
            (T *)a->out, (T *)a->sum, NULL, a->rstd, (const T *)a->inp, (const T *)a->add,
                (const T *)a->weight, NULL, a->R, a->C, a->eps, hd_factor_of(a->factor)
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->out, a->sum, a->inp, a->add, a->weight)), T, V, {
            if (a->one_plus)
                return norm_forward_launch<false, WEIGHT_ONE_PLUS, V>(s, f);
            return norm_forward_launch<false, WEIGHT_PLAIN, V>(s, f);
        });
    });
}

extern "C" enum hd_status hd_cuda_layernorm_forward(struct hd_cuda_stream *s,
                                                    const struct hd_layernorm_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_norm_forward<T> f = {
            (T *)a->out, (T *)a->sum, a->mean, a->rstd, (const T *)a->inp, (const T *)a->add,
                (const T *)a->weight, (const T *)a->bias, a->R, a->C, a->eps,
                hd_factor_of(a->factor)
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->out, a->sum, a->inp, a->add, a->weight) &&
                       pack_fits_wide<T>(a->C, a->bias)),
                      T, V, {
                          HD_NORM_WEIGHT(a->weight, a->one_plus, W,
                                         return norm_forward_launch<true, W, V>(s, f));
                      });
    });
}

/* Terms of a pack: g = weight * dout and xhat = (inp - mean) * rstd, per element j. */
template <bool MEAN, enum cuda_norm_weight W, typename T, int V>
struct terms {
    pack<T, V> dout, inp, weight;

    __device__ __forceinline__ float g(int j)
        const {return factor_of<W>(weight.at[j]) * to_float(dout.at[j]);}
__device__ __forceinline__ float xhat(int j, float mean, float rstd) const
{
    return (MEAN ? to_float(inp.at[j]) - mean : to_float(inp.at[j])) * rstd;
}
/* Adds element terms to the two sums over a row. */
__device__ __forceinline__ void add(float &sum, float &products, float mean, float rstd) const
{
#pragma unroll
    for (int j = 0; j < V; j++) {
        sum += g(j);
        products += g(j) * xhat(j, mean, rstd);
    }
}
__device__ __forceinline__ pack<T, V> dinp(bool with_add, const pack<T, V> &add, float mean,
                                           float rstd, float mean_g, float mean_gx) const
{
    pack<T, V> out;

#pragma unroll
    for (int j = 0; j < V; j++) {
        const float centred = MEAN ? g(j) - mean_g : g(j);
        float d = (centred - xhat(j, mean, rstd) * mean_gx) * rstd;

        if (with_add)
            d += to_float(add.at[j]);
        out.at[j] = from_float<T>(d);
    }
    return out;
}
}
;

/* Sums of a thread over the rows of its block, for the weight gradients of its columns. */
template <int V, bool MEAN, enum norm_shape SHAPE>
struct weight_sums {
    static constexpr int OUTPUTS = MEAN ? 2 : 1; float at[packs_of<SHAPE>][OUTPUTS][V] = {};

    template <typename Terms>
    __device__ __forceinline__ void add(int k, const Terms &t, float mean, float rstd){
#pragma unroll
        for (int j = 0; j < V; j++){const float d = to_float(t.dout.at[j]);

                                    at[k][0][j] += d * t.xhat(j, mean, rstd);
                                    if (MEAN) at[k][OUTPUTS - 1][j] += d;}
}
}
;

/* Stores partial[o, c] of this block: the sums of its threads, those of several rows in the order
 * of the rows that they share. `shared`: OUTPUTS * V floats per thread, if rows share a block. */
template <int V, bool MEAN, enum norm_shape SHAPE>
static __device__ __forceinline__ void
store_weight_sums(const struct weight_sums<V, MEAN, SHAPE> &sums, const struct norm_place &p,
                  float *partial, int64_t C, float *shared)
{
    constexpr int OUTPUTS = MEAN ? 2 : 1;
    const int columns = p.width * V;

#pragma unroll
    for (int k = 0; k < packs_of<SHAPE>; k++) {
        const int64_t left = (int64_t)k * columns;

#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
            for (int j = 0; j < V; j++) {
                const int i = o * columns + p.lane * V + j;

                if (SHAPE == NARROW)
                    shared[sums_place(p.row * OUTPUTS * columns + i)] = sums.at[k][o][j];
                else if (left + p.lane * V < C)
                    partial[o * C + left + p.lane * V + j] = sums.at[k][o][j];
            }
        if (SHAPE != NARROW)
            continue;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < OUTPUTS * columns; i += NARROW_THREADS) {
            float sum = 0;

            for (int row = 0; row < p.rows; row++)
                sum += shared[sums_place(row * OUTPUTS * columns + i)];
            if (left + i % columns < C)
                partial[i / columns * C + left + i % columns] = sum;
        }
        __syncthreads();
    }
}

/* Number of threads of the widest block of a shape. */
template <enum norm_shape SHAPE, bool WEIGHTS>
constexpr int backward_threads = SHAPE == NARROW ? NARROW_THREADS
                                 : WEIGHTS       ? WIDE_WEIGHTS
                                                 : WIDE_BACKWARD;

/* Computes the gradients of input and, with WEIGHTS, of weights. A thread reads an element before
 * it writes it: dinp may alias dout and add. */
template <typename T, int V, bool MEAN, enum cuda_norm_weight W, enum norm_shape SHAPE,
          bool WEIGHTS>
static __global__ void __launch_bounds__((backward_threads<SHAPE, WEIGHTS>), SHAPE != NARROW ? 1
                                                                             : WEIGHTS
                                                                                 ? NARROW_WEIGHTS
                                                                                 : NARROW_BACKWARD)
    norm_backward(struct cuda_norm_backward<T> a, int lanes)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    HD_SHARED(float, of_rows,
              WEIGHTS &&SHAPE == NARROW ? sums_place(NARROW_THREADS * V * (MEAN ? 2 : 1)) : 1);
    constexpr int PACKS = packs_of<SHAPE>;
    const struct norm_place p = place_of<SHAPE>(lanes);
    const int C = (int)a.C;
    const int64_t begin = WEIGHTS ? blockIdx.x * a.chunk_rows : (int64_t)blockIdx.x * p.rows;
    const int64_t step = WEIGHTS ? p.rows : (int64_t)gridDim.x * p.rows;
    const int64_t end = WEIGHTS && begin + a.chunk_rows < a.R ? begin + a.chunk_rows : a.R;
    struct weight_sums<V, MEAN, SHAPE> sums;

    for (int64_t first = begin; first < end; first += step) {
        const int64_t r = first + p.row, at = r * C;
        const bool mine = r < end;
        const float rstd = mine ? a.rstd[r] : 0.0f, mean = MEAN && mine ? a.mean[r] : 0.0f;
        struct terms<MEAN, W, T, V> t[PACKS];
        pack<T, V> add[PACKS];
        float sum = 0, products = 0;

#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (p.lane + k * p.width) * V;

            if (mine && c < C) {
                t[k].dout = pack_load<V>(a.dout + at + c);
                t[k].inp = pack_load<V>(a.inp + at + c);
                if (a.add)
                    add[k] = pack_load<V>(a.add + at + c);
            }
        }
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (p.lane + k * p.width) * V;

            if (mine && c < C) {
                t[k].weight = weight_load<W, V>(a.weight + c);
                t[k].add(sum, products, mean, rstd);
            }
        }
        if (MEAN)
            sum = row_sum<SHAPE>(sum, p, shared) / (float)C;
        products = row_sum<SHAPE>(products, p, shared) / (float)C;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (p.lane + k * p.width) * V;

            if (mine && c < C) {
                t[k].weight = weight_load<W, V>(a.weight + c);
                if (WEIGHTS)
                    sums.add(k, t[k], mean, rstd);
                pack_store(a.dinp + at + c, t[k].dinp(a.add, add[k], mean, rstd, sum, products));
            }
        }
    }
    if (WEIGHTS)
        store_weight_sums(sums, p, a.partial + blockIdx.x * (int64_t)(MEAN ? 2 : 1) * C, C,
                          of_rows);
}

template <typename T, int V, bool MEAN, enum cuda_norm_weight W>
static __global__ void __launch_bounds__(LONG_THREADS, LONG_RESIDENT)
    norm_backward_long(struct cuda_norm_backward<T> a)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    const int64_t begin = (int64_t)threadIdx.x * V, step = LONG_THREADS * V;

    for (int64_t r = blockIdx.x; r < a.R; r += gridDim.x) {
        const float rstd = a.rstd[r], mean = MEAN ? a.mean[r] : 0.0f;
        float sum = 0, products = 0;

#pragma unroll 2
        for (int64_t c = begin; c < a.C; c += step) {
            const struct terms<MEAN, W, T, V> t = {
                pack_load<V>(a.dout + r * a.C + c), pack_load<V>(a.inp + r * a.C + c),
                    weight_load<W, V>(a.weight + c)
            };

            t.add(sum, products, mean, rstd);
        }
        if (MEAN)
            sum = block_add(sum, shared) / (float)a.C;
        products = block_add(products, shared) / (float)a.C;
#pragma unroll 2
        for (int64_t c = begin; c < a.C; c += step) {
            const struct terms<MEAN, W, T, V> t = {
                pack_load<V>(a.dout + r * a.C + c), pack_load<V>(a.inp + r * a.C + c),
                    weight_load<W, V>(a.weight + c)
            };
            pack<T, V> add;

            if (a.add)
                add = pack_load<V>(a.add + r * a.C + c);
            pack_store(a.dinp + r * a.C + c, t.dinp(a.add, add, mean, rstd, sum, products));
        }
    }
}

template <bool MEAN, enum cuda_norm_weight W, int V, typename T>
static enum hd_status norm_backward_launch(struct hd_cuda_stream *s,
                                           const struct cuda_norm_backward<T> &a)
{
    int lanes;

    if (a.R == 0)
        return HD_OK;
    switch (norm_shape_of<V>(a.C, WIDE_BACKWARD, &lanes)) {
    case NARROW:
        return HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, NARROW, false>),
                         dim3(grid_of(s, divide_up(a.R, NARROW_THREADS / lanes), NARROW_BACKWARD)),
                         dim3(NARROW_THREADS), 0, a, lanes);
    case WIDE:
        return HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, WIDE, false>),
                         dim3(grid_of(s, a.R, WIDE_BACKWARD / lanes)), dim3((unsigned)lanes), 0, a,
                         lanes);
    case LONG:
        break;
    }
    return HD_LAUNCH(s, (norm_backward_long<T, V, MEAN, W>), dim3(grid_of(s, a.R, LONG_RESIDENT)),
                     dim3(LONG_THREADS), 0, a);
}

/* Launches the gradients of input and weights. Rows must be whole packs, of
 * HD_COSTS_NORM_WEIGHTS_ROW_BYTES at most. */
template <bool MEAN, enum cuda_norm_weight W, typename T>
static enum hd_status backward_with_weights(struct hd_cuda_stream *s,
                                            struct cuda_norm_backward<T> a,
                                            const struct cuda_row_sums &sums)
{
    constexpr int V = pack_wide<T>;
    const struct hd_costs_chunks chunks = hd_costs_device_row_chunks(a.R);
    const dim3 grid((unsigned)chunks.count);
    enum hd_status st = HD_OK;
    int lanes;

    if (a.C == 0)
        return HD_OK;
    a.partial = sums.partial;
    a.chunk_rows = chunks.rows;
    if (a.R > 0 && norm_shape_of<V>(a.C, WIDE_WEIGHTS, &lanes) == NARROW)
        st = HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, NARROW, true>), grid, dim3(NARROW_THREADS),
                       0, a, lanes);
    else if (a.R > 0)
        st = HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, WIDE, true>), grid, dim3((unsigned)lanes),
                       0, a, lanes);
    return st ? st : add_chunks_launch(s, sums, (int)chunks.count, MEAN ? 2 : 1);
}

static bool is_short(int64_t C, enum hd_dtype dtype)
{
    return C * (int64_t)hd_dtype_size(dtype) <= HD_COSTS_NORM_WEIGHTS_ROW_BYTES;
}

template <enum cuda_norm_weight W, typename T>
static enum hd_status rmsnorm_backward_as(struct hd_cuda_stream *s,
                                          const struct hd_rmsnorm_backward_args *a)
{
    const struct cuda_norm_backward<T> b = {
        (T *)a->dinp, (const T *)a->dout, (const T *)a->inp, NULL, a->rstd, (const T *)a->weight,
            (const T *)a->add, a->R, a->C, NULL, a->R
    };
    const bool wide = pack_fits_wide<T>(a->C, a->dinp, a->dout, a->inp, a->weight, a->add);
    enum hd_status st = HD_OK;

    if (a->dweight && wide && is_short(a->C, a->dtype))
        return backward_with_weights<false, W>(
            s, b, {{a->dweight}, (float *)a->scratch, a->R, a->C, a->accumulate});
    if (a->dweight) { /* weights first: the gradient of the input may overwrite dout */
        const struct hd_rmsnorm_backward_weight_args w = {
            a->dweight, a->dout, a->inp, a->rstd, a->scratch, a->R, a->C, a->accumulate, a->dtype};

        st = hd_cuda_rmsnorm_backward_weight(s, &w);
    }
    if (st)
        return st;
    HD_PACK_WIDTH(wide, T, V, return norm_backward_launch<false, W, V>(s, b));
}

extern "C" enum hd_status hd_cuda_rmsnorm_backward(struct hd_cuda_stream *s,
                                                   const struct hd_rmsnorm_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        if (a->one_plus)
            return rmsnorm_backward_as<WEIGHT_ONE_PLUS, T>(s, a);
        return rmsnorm_backward_as<WEIGHT_PLAIN, T>(s, a);
    });
}

template <enum cuda_norm_weight W, typename T>
static enum hd_status layernorm_backward_as(struct hd_cuda_stream *s,
                                            const struct hd_layernorm_backward_args *a)
{
    const struct cuda_norm_backward<T> b = {
        (T *)a->dinp, (const T *)a->dout, (const T *)a->inp, a->mean, a->rstd, (const T *)a->weight,
            (const T *)a->add, a->R, a->C, NULL, a->R
    };
    const bool wide = pack_fits_wide<T>(a->C, a->dinp, a->dout, a->inp, a->weight, a->add);
    enum hd_status st = HD_OK;

    if (a->dweight && wide && is_short(a->C, a->dtype))
        return backward_with_weights<true, W>(
            s, b, {{a->dweight, a->dbias}, (float *)a->scratch, a->R, a->C, a->accumulate});
    if (a->dweight) { /* weights first: the gradient of the input may overwrite dout */
        const struct hd_layernorm_backward_weight_args w = {
            a->dweight, a->dbias, a->dout, a->inp,        a->mean, a->rstd,
            a->scratch, a->R,     a->C,    a->accumulate, a->dtype};

        st = hd_cuda_layernorm_backward_weight(s, &w);
    }
    if (st)
        return st;
    HD_PACK_WIDTH(wide, T, V, return norm_backward_launch<true, W, V>(s, b));
}

extern "C" enum hd_status hd_cuda_layernorm_backward(struct hd_cuda_stream *s,
                                                     const struct hd_layernorm_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        HD_NORM_WEIGHT(a->weight, a->one_plus, W, return layernorm_backward_as<W, T>(s, a));
    });
}

/* Terms of the weight gradients for row_sums.cuh: dout * xhat, and for LayerNorm also dout. */
template <typename T, bool MEAN>
struct weight_terms {
    static constexpr int OUTPUTS = MEAN ? 2 : 1;
    template <int V>
    struct in {
        pack<T, V> dout, inp;
        float mean, rstd;
    };
    const T *dout, *inp;
    const float *mean, *rstd;
    int64_t C;

    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.dout = pack_load<V>(dout + r * C + c);
        x.inp = pack_load<V>(inp + r * C + c);
        x.mean = MEAN ? mean[r] : 0.0f;
        x.rstd = rstd[r];
    }
    template <int V>
    __device__ void add(float (&sums)[OUTPUTS][V], const in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float d = to_float(x.dout.at[j]);

            sums[0][j] += d * ((to_float(x.inp.at[j]) - x.mean) * x.rstd);
            if (MEAN)
                sums[OUTPUTS - 1][j] += d;
        }
    }
};

extern "C" enum hd_status
hd_cuda_rmsnorm_backward_weight(struct hd_cuda_stream *s,
                                const struct hd_rmsnorm_backward_weight_args *a)
{
    const struct cuda_row_sums sums = {
        {a->dweight}, (float *)a->scratch, a->R, a->C, a->accumulate};

    HD_CUDA_FLOATS(a->dtype, T, {
        const struct weight_terms<T, false> terms = {
            (const T *)a->dout, (const T *)a->inp, NULL, a->rstd, a->C
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->dout, a->inp)), T, V,
                      return row_sums_launch<V>(s, terms, sums));
    });
}

extern "C" enum hd_status
hd_cuda_layernorm_backward_weight(struct hd_cuda_stream *s,
                                  const struct hd_layernorm_backward_weight_args *a)
{
    const struct cuda_row_sums sums = {
        {a->dweight, a->dbias}, (float *)a->scratch, a->R, a->C, a->accumulate};

    HD_CUDA_FLOATS(a->dtype, T, {
        const struct weight_terms<T, true> terms = {
            (const T *)a->dout, (const T *)a->inp, a->mean, a->rstd, a->C
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->dout, a->inp)), T, V,
                      return row_sums_launch<V>(s, terms, sums));
    });
}
