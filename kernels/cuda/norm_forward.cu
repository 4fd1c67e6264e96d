/* norm_forward: RMSNorm and LayerNorm, with the residual added first.
 *
 * Bytes: reads inp and add and writes sum and out, 4 R C e (2 R C e without add). On an H100 91 to
 * 94% of a copy's rate.
 *
 * With codes (fp8.cuh) a byte more is written for each of their orders, and, if no other kernel reads out,
 * the two of out are not. A block gathers transposed codes of NARROW_TILE or WIDE_TILE rows in shared memory
 * before it stores them; a row of this tile is a column of the result, a word longer than the tile.
 *
 * The variance is computed from deviations from the mean, as in kernels/cpu/norm.c. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/norm.cuh"

/* blocks per multiprocessor; threads, without and with codes, which need more registers */
constexpr int NARROW_FORWARD = 4, WIDE_FORWARD = 1024, WIDE_CODES = 512;
constexpr int NARROW_TILE = 32, WIDE_TILE = 8, TILE_WORD = 4; /* rows; the last one: also bytes */

/* Arguments of forward; mean and bias are for LayerNorm only, whose bias may be NULL. */
template <typename T>
struct cuda_norm_forward {
    T *out, *sum;
    float *mean, *rstd;
    const T *inp, *add, *weight, *bias;
    int64_t R, C;
    float eps, factor;
    struct cuda_fp8_result codes;
};

/* The scale of the codes, 0: not known yet; the largest magnitude that the thread has encoded; the tile of
 * transposed codes, and the bytes of one of its rows. */
struct norm_codes {
    float power, most;
    uint8_t *tile;
    int apart;
};

/* Stores the codes of rows r0 to r0 + rows as columns. Element j of pack k is in row j * packs + k of the
 * tile, so that stores of a warp into it meet different banks. */
template <int V>
static __device__ __forceinline__ void store_tile(uint8_t *to, const struct norm_codes &codes,
                                                  int rows, int64_t r0, int64_t R, int C)
{
    const int words = rows / TILE_WORD, packs = C / V;

    for (int i = (int)threadIdx.x; i < C * words; i += (int)blockDim.x) {
        const int row = i / words, word = i % words * TILE_WORD, c = row % packs * V + row / packs;

        if (r0 + word < R)
            pack_store(to + (int64_t)c * R + r0 + word,
                       pack_load<TILE_WORD>(codes.tile + row * codes.apart + word));
    }
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

/* Stores out = (x - mean) * rstd * weight (+ bias) from column c on, and its codes, in the tile as those of
 * row `row`. */
template <bool MEAN, enum cuda_norm_weight W, bool CODES, typename T, int V>
static __device__ __forceinline__ void
store_norm(const struct cuda_norm_forward<T> &a, const pack<T, V> &x, int64_t at, int64_t c,
           float mean, float rstd, struct norm_codes *codes, int row)
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
    if constexpr (CODES) {
        if (codes->power > 0) {
            const pack<uint8_t, V> y = fp8_codes<HD_E4M3>(out, codes->power, &codes->most);

            if (a.codes.code)
                pack_store(a.codes.code + at + c, y);
#pragma unroll
            for (int j = 0; j < V && a.codes.transposed; j++)
                codes->tile[(j * ((int)a.C / V) + (int)c / V) * codes->apart + row] = y.at[j];
            if (a.codes.only)
                return;
        }
    }
    pack_store(a.out + at + c, out);
}

template <typename T, int V, bool MEAN, enum cuda_norm_weight W, enum norm_shape SHAPE, bool CODES>
static __global__ void __launch_bounds__(SHAPE == NARROW ? NARROW_THREADS
                                         : CODES         ? WIDE_CODES
                                                         : WIDE_FORWARD,
                                         SHAPE == NARROW ? NARROW_FORWARD : 1)
    norm_forward(struct cuda_norm_forward<T> a, int lanes, int rows)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    constexpr int PACKS = packs_of<SHAPE>;
    const struct norm_place p = place_of<SHAPE>(lanes);
    const int C = (int)a.C;
    struct norm_codes codes = {0, 0, NULL, rows + TILE_WORD};

    if constexpr (CODES) {
        HD_SHARED_DYNAMIC(uint8_t, tile);

        codes.power = fp8_scale_of<HD_E4M3>(a.codes, shared);
        codes.tile = tile;
    }
    for (int64_t begin = (int64_t)blockIdx.x * rows; begin < a.R;
         begin += (int64_t)gridDim.x * rows) {
        for (int slot = p.row; slot < rows + p.row; slot += p.rows) {
            const int64_t r = begin + slot, at = r * C;
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
                    store_norm<MEAN, W, CODES>(a, x[k], at, c, mean, rstd, &codes, slot);
            }
        }
        if (CODES && a.codes.transposed && codes.power > 0) {
            __syncthreads();
            store_tile<V>(a.codes.transposed, codes, rows, begin, a.R, C);
            __syncthreads();
        }
    }
    if (CODES)
        fp8_see(a.codes.seen, codes.most, shared);
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
            store_norm<MEAN, W, false>(a, pack_load<V>(from + c), r * a.C, c, mean, rstd, NULL, 0);
    }
}

/* Launches the kernel for rows that a thread's registers hold. */
template <bool MEAN, enum cuda_norm_weight W, int V, bool CODES, typename T>
static enum hd_status norm_forward_held(struct hd_cuda_stream *s,
                                        const struct cuda_norm_forward<T> &a, enum norm_shape shape,
                                        int lanes)
{
    const bool turned = CODES && a.codes.transposed;
    const int at_a_time = shape == NARROW ? NARROW_THREADS / lanes : 1;
    const int tile = shape == WIDE ? WIDE_TILE : at_a_time > NARROW_TILE ? at_a_time : NARROW_TILE;
    const int rows = turned ? tile : at_a_time;
    const size_t bytes = turned ? (size_t)a.C * (size_t)(rows + TILE_WORD) : 0;

    if (shape == NARROW)
        return HD_LAUNCH(s, (norm_forward<T, V, MEAN, W, NARROW, CODES>),
                         dim3(grid_of(s, divide_up(a.R, rows), NARROW_FORWARD)),
                         dim3(NARROW_THREADS), bytes, a, lanes, rows);
    return HD_LAUNCH(
        s, (norm_forward<T, V, MEAN, W, WIDE, CODES>),
        dim3(grid_of(s, divide_up(a.R, rows), (CODES ? WIDE_CODES : WIDE_FORWARD) / lanes)),
        dim3((unsigned)lanes), bytes, a, lanes, rows);
}

template <bool MEAN, enum cuda_norm_weight W, int V, typename T>
static enum hd_status norm_forward_launch(struct hd_cuda_stream *s,
                                          const struct cuda_norm_forward<T> &a)
{
    const bool coded = a.codes.code || a.codes.transposed;
    enum norm_shape shape;
    int lanes;

    if (a.R == 0)
        return HD_OK;
    shape = norm_shape_of<V>(a.C, coded ? WIDE_CODES : WIDE_FORWARD, &lanes);
    if constexpr (is_bf16<T> && V == pack_wide<bf16>) {
        if (coded && shape != LONG && a.R % HD_FP8_SIDE == 0) {
            const enum hd_status st = norm_forward_held<MEAN, W, V, true>(s, a, shape, lanes);

            return st ? st : hd_cuda_fp8_behind(s, &a.codes, a.out, a.R, a.C, HD_E4M3);
        }
    }
    if (coded)
        return hd_err(HD_UNSUPPORTED, "a norm of %lld rows of %lld channels makes no codes of fp8",
                      (long long)a.R, (long long)a.C);
    if (shape != LONG)
        return norm_forward_held<MEAN, W, V, false>(s, a, shape, lanes);
    return HD_LAUNCH(s, (norm_forward_long<T, V, MEAN, W>), dim3(grid_of(s, a.R, LONG_RESIDENT)),
                     dim3(LONG_THREADS), 0, a);
}

extern "C" enum hd_status hd_cuda_rmsnorm_forward(struct hd_cuda_stream *s,
                                                  const struct hd_rmsnorm_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_norm_forward<T> f = {
            (T *)a->out, (T *)a->sum, NULL, a->rstd, (const T *)a->inp, (const T *)a->add,
                (const T *)a->weight, NULL, a->R, a->C, a->eps, hd_factor_of(a->factor),
                fp8_result_of(a)
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
                hd_factor_of(a->factor), fp8_result_of(a)
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->out, a->sum, a->inp, a->add, a->weight) &&
                       pack_fits_wide<T>(a->C, a->bias)),
                      T, V, {
                          HD_NORM_WEIGHT(a->weight, a->one_plus, W,
                                         return norm_forward_launch<true, W, V>(s, f));
                      });
    });
}
