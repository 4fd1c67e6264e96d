/* norm_backward: the gradients of RMSNorm and LayerNorm.
 *
 * Bytes: reads dout, inp and add and writes dinp, 4 R C e. The gradients of weights alone read dout
 * and inp, 2 R C e; with the gradient of the input they come from the same pass, for the partial
 * sums only: a block then has a chunk of rows (hd_costs_device_row_chunks) and each thread the sums
 * of its columns, in registers, so that the result depends on R and C alone. So do the partial sums
 * of what is stored, for the bias of the linear before. On an H100 91 to 94%
 * of a copy's rate, with weights 53 to 58% with rows of 4 KB, 71% with 1.5 KB. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/row_sums.cuh"

/* Blocks per multiprocessor (NARROW) and threads of a block (WIDE), alone and with gradients of
 * weights. */
constexpr int NARROW_BACKWARD = 3, WIDE_BACKWARD = 768;
[[maybe_unused]] constexpr int NARROW_WEIGHTS = 2;
constexpr int WIDE_WEIGHTS = 512;
static_assert(HD_COSTS_NORM_WEIGHTS_ROW_BYTES == WIDE_WEIGHTS * WIDE_PACKS * HD_COSTS_PACK_BYTES,
              "the rows of which a block makes the gradients of weights");

/* Results of a launch: the gradient of the input, also those of the weights, and also the partial
 * sums of the stored gradient. */
enum norm_results { OF_INPUT, AND_WEIGHTS, AND_SUMS };

template <typename T>
struct cuda_norm_backward {
    T *dinp;
    const T *dout, *inp;
    const float *mean, *rstd;
    const T *weight, *add;
    int64_t R, C;
    float *sums;        /* partial sums of dinp: [chunks, C], or NULL */
    float *partial;     /* partial sums of the weight gradients: [chunks, 1 or 2, C] */
    int64_t chunk_rows; /* rows per block with weight gradients, else all rows */
};

/* Terms of a pack: g = weight * dout and xhat = (inp - mean) * rstd, per element j. */
template <bool MEAN, cuda_norm_weight W, typename T, int V>
struct terms {
    pack<T, V> dout, inp, weight;

    __device__ __forceinline__ float g(int j) const
    {
        return factor_of<W>(weight.at[j]) * to_float(dout.at[j]);
    }
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
};

/* Number of sums over rows: for the weights, and for dinp behind them. */
template <bool MEAN>
constexpr int weights_of = MEAN ? 2 : 1;
template <bool MEAN, norm_results RESULTS>
constexpr int sums_of = weights_of<MEAN> + (RESULTS == AND_SUMS ? 1 : 0);

/* Sums of a thread over the rows of its block, of its columns. */
template <int V, bool MEAN, norm_shape SHAPE, norm_results RESULTS>
struct column_sums {
    float at[packs_of<SHAPE>][sums_of<MEAN, RESULTS>][V] = {};

    template <typename Terms, typename T>
    __device__ __forceinline__ void add(int k, const Terms &t, float mean, float rstd,
                                        const pack<T, V> &dinp)
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float d = to_float(t.dout.at[j]);

            at[k][0][j] += d * t.xhat(j, mean, rstd);
            if (MEAN)
                at[k][weights_of<MEAN> - 1][j] += d;
            if (RESULTS == AND_SUMS)
                at[k][sums_of<MEAN, RESULTS> - 1][j] += to_float(dinp.at[j]);
        }
    }
};

/* Stores the sums of this block's threads, those of several rows in the order of the rows that they
 * share: partial[o, c], and of dinp sums[c]. `shared`: V floats per thread and sum, if rows share a
 * block. */
template <int V, bool MEAN, enum norm_shape SHAPE, enum norm_results RESULTS>
static __device__ __forceinline__ void
store_column_sums(const struct column_sums<V, MEAN, SHAPE, RESULTS> &of_thread,
                  const struct norm_place &p, float *partial, float *sums, int64_t C, float *shared)
{
    constexpr int OUTPUTS = sums_of<MEAN, RESULTS>;
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
                    shared[sums_place(p.row * OUTPUTS * columns + i)] = of_thread.at[k][o][j];
                else if (left + p.lane * V < C)
                    (o < weights_of<MEAN> ? partial + o * C : sums)[left + p.lane * V + j] =
                        of_thread.at[k][o][j];
            }
        if (SHAPE != NARROW)
            continue;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < OUTPUTS * columns; i += NARROW_THREADS) {
            float sum = 0;

            for (int row = 0; row < p.rows; row++)
                sum += shared[sums_place(row * OUTPUTS * columns + i)];
            if (left + i % columns < C) {
                /* a name: GCC 12's sanitizer computes the % of (a ? b : c)[i % n] in one arm only */
                float *to = i / columns < weights_of<MEAN> ? partial + i / columns * C : sums;
                to[left + i % columns] = sum;
            }
        }
        __syncthreads();
    }
}

/* Number of threads of the widest block of a shape. */
template <norm_shape SHAPE, norm_results RESULTS>
constexpr int backward_threads = SHAPE == NARROW       ? NARROW_THREADS
                                 : RESULTS == OF_INPUT ? WIDE_BACKWARD
                                                       : WIDE_WEIGHTS;

/* Computes RESULTS. A thread reads an element before it writes it: dinp may alias dout and add. */
template <typename T, int V, bool MEAN, enum cuda_norm_weight W, enum norm_shape SHAPE,
          enum norm_results RESULTS>
static __global__ void __launch_bounds__((backward_threads<SHAPE, RESULTS>), SHAPE != NARROW ? 1
                                                                             : RESULTS == OF_INPUT
                                                                                 ? NARROW_BACKWARD
                                                                                 : NARROW_WEIGHTS)
    norm_backward(struct cuda_norm_backward<T> a, int lanes)
{
    constexpr bool WEIGHTS = RESULTS != OF_INPUT;
    HD_SHARED(float, shared, BLOCK_WARPS);
    constexpr int SHARED = WEIGHTS ? NARROW_THREADS * V * sums_of<MEAN, RESULTS> : 0;
    HD_SHARED(float, of_rows, SHAPE == NARROW ? sums_place(SHARED) + 1 : 1);
    constexpr int PACKS = packs_of<SHAPE>;
    const struct norm_place p = place_of<SHAPE>(lanes);
    const int C = (int)a.C;
    const int64_t begin = WEIGHTS ? blockIdx.x * a.chunk_rows : (int64_t)blockIdx.x * p.rows;
    const int64_t step = WEIGHTS ? p.rows : (int64_t)gridDim.x * p.rows;
    const int64_t end = WEIGHTS && begin + a.chunk_rows < a.R ? begin + a.chunk_rows : a.R;
    struct column_sums<V, MEAN, SHAPE, RESULTS> sums;

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
                const pack<T, V> dinp = t[k].dinp(a.add, add[k], mean, rstd, sum, products);

                if (WEIGHTS)
                    sums.add(k, t[k], mean, rstd, dinp);
                pack_store(a.dinp + at + c, dinp);
            }
        }
    }
    if (WEIGHTS)
        store_column_sums(sums, p, a.partial + blockIdx.x * (int64_t)weights_of<MEAN> * C,
                          RESULTS == AND_SUMS ? a.sums + blockIdx.x * (int64_t)C : nullptr, C,
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
        return HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, NARROW, OF_INPUT>),
                         dim3(grid_of(s, divide_up(a.R, NARROW_THREADS / lanes), NARROW_BACKWARD)),
                         dim3(NARROW_THREADS), 0, a, lanes);
    case WIDE:
        return HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, WIDE, OF_INPUT>),
                         dim3(grid_of(s, a.R, WIDE_BACKWARD / lanes)), dim3((unsigned)lanes), 0, a,
                         lanes);
    case LONG:
        break;
    }
    return HD_LAUNCH(s, (norm_backward_long<T, V, MEAN, W>), dim3(grid_of(s, a.R, LONG_RESIDENT)),
                     dim3(LONG_THREADS), 0, a);
}

/* Launches the gradients of input and weights, and sums if they are given. Rows must be whole packs, of
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
        st = a.sums ? HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, NARROW, AND_SUMS>), grid,
                                dim3(NARROW_THREADS), 0, a, lanes)
                    : HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, NARROW, AND_WEIGHTS>), grid,
                                dim3(NARROW_THREADS), 0, a, lanes);
    else if (a.R > 0)
        st = a.sums ? HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, WIDE, AND_SUMS>), grid,
                                dim3((unsigned)lanes), 0, a, lanes)
                    : HD_LAUNCH(s, (norm_backward<T, V, MEAN, W, WIDE, AND_WEIGHTS>), grid,
                                dim3((unsigned)lanes), 0, a, lanes);
    return st ? st : add_chunks_launch(s, sums, (int)chunks.count, weights_of<MEAN>);
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
            (const T *)a->add, a->R, a->C, a->sums, NULL, a->R
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
    HD_PACK_WIDTH(wide, T, V, st = norm_backward_launch<false, W, V>(s, b));
    return st || !a->sums ? st
                          : hd_cuda_sum_row_chunks(s, a->sums, a->dinp, a->R, a->C, 0, a->dtype);
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
            (const T *)a->add, a->R, a->C, a->sums, NULL, a->R
    };
    const bool wide = pack_fits_wide<T>(a->C, a->dinp, a->dout, a->inp, a->weight, a->add);
    enum hd_status st = HD_OK;

    if constexpr (W != WEIGHT_NONE)
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
    HD_PACK_WIDTH(wide, T, V, st = norm_backward_launch<true, W, V>(s, b));
    return st || !a->sums ? st
                          : hd_cuda_sum_row_chunks(s, a->sums, a->dinp, a->R, a->C, 0, a->dtype);
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
