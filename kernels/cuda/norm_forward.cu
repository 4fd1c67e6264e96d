/* norm_forward: RMSNorm and LayerNorm, with the residual added first.
 *
 * Bytes: reads inp and add and writes sum and out, 4 R C e (2 R C e without add). On an H100 91 to
 * 94% of a copy's rate.
 *
 * With codes (fp8.cuh) one byte more is written, or, if no other kernel reads out, one in place of two.
 *
 * The variance is computed from deviations from the mean, as in kernels/cpu/norm.c. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/norm.cuh"

/* blocks per multiprocessor; threads, without and with codes, which need more registers */
constexpr int NARROW_FORWARD = 4, WIDE_FORWARD = 1024, WIDE_CODES = 768;

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

/* The scale of the codes, 0: not known yet; the largest magnitude that the thread has encoded. */
struct norm_codes {
    float power, most;
};

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

/* Stores out = (x - mean) * rstd * weight (+ bias) from column c on, and its codes. */
template <bool MEAN, enum cuda_norm_weight W, bool CODES, typename T, int V>
static __device__ __forceinline__ void store_norm(const struct cuda_norm_forward<T> &a,
                                                  const pack<T, V> &x, int64_t at, int64_t c,
                                                  float mean, float rstd, struct norm_codes *codes)
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
            pack_store(a.codes.code + at + c, fp8_codes<HD_E4M3>(out, codes->power, &codes->most));
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
    norm_forward(struct cuda_norm_forward<T> a, int lanes)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    constexpr int PACKS = packs_of<SHAPE>;
    const struct norm_place p = place_of<SHAPE>(lanes);
    const int C = (int)a.C;
    struct norm_codes codes = {CODES ? fp8_scale_of<HD_E4M3>(a.codes, shared) : 0.0f, 0};

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
                store_norm<MEAN, W, CODES>(a, x[k], at, c, mean, rstd, &codes);
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
            store_norm<MEAN, W, false>(a, pack_load<V>(from + c), r * a.C, c, mean, rstd, NULL);
    }
}

/* Launches the kernel for rows that a thread's registers hold. */
template <bool MEAN, enum cuda_norm_weight W, int V, bool CODES, typename T>
static enum hd_status norm_forward_held(struct hd_cuda_stream *s,
                                        const struct cuda_norm_forward<T> &a, enum norm_shape shape,
                                        int lanes)
{
    if (shape == NARROW)
        return HD_LAUNCH(s, (norm_forward<T, V, MEAN, W, NARROW, CODES>),
                         dim3(grid_of(s, divide_up(a.R, NARROW_THREADS / lanes), NARROW_FORWARD)),
                         dim3(NARROW_THREADS), 0, a, lanes);
    return HD_LAUNCH(s, (norm_forward<T, V, MEAN, W, WIDE, CODES>),
                     dim3(grid_of(s, a.R, (CODES ? WIDE_CODES : WIDE_FORWARD) / lanes)),
                     dim3((unsigned)lanes), 0, a, lanes);
}

template <bool MEAN, enum cuda_norm_weight W, int V, typename T>
static enum hd_status norm_forward_launch(struct hd_cuda_stream *s,
                                          const struct cuda_norm_forward<T> &a)
{
    enum norm_shape shape;
    int lanes;

    if (a.R == 0)
        return HD_OK;
    shape = norm_shape_of<V>(a.C, a.codes.code ? WIDE_CODES : WIDE_FORWARD, &lanes);
    if constexpr (is_bf16<T> && V == pack_wide<bf16>) {
        if (a.codes.code && shape != LONG) {
            const enum hd_status st = norm_forward_held<MEAN, W, V, true>(s, a, shape, lanes);

            return st ? st : hd_cuda_fp8_behind(s, &a.codes, a.out, a.R, a.C, HD_E4M3);
        }
    }
    if (a.codes.code)
        return hd_err(HD_UNSUPPORTED, "a norm of %lld channels makes no codes of fp8",
                      (long long)a.C);
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
