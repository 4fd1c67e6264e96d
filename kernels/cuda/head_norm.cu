/* head_norm: RMSNorm, or LayerNorm, over the channels of each query and key head. A row is [q: H*D |
 * k: G*D | v: G*D]; v is copied.
 *
 * Bytes: forward 2 R (H+2G) D e; backward reads dout and, except for v, inp, and writes dinp; the
 * gradients of weights read dout and inp of q and k. A head is processed like a NARROW row of
 * norm.cu: by as many lanes as needed with four packs of 16 bytes each, so a warp processes eight
 * heads of 128 bf16 values with four loads in flight, without barriers. Heads of more than 128
 * packs are read twice, the second time from L1. On an H100 82% of a copy's
 * rate forward, 78% backward. LayerNorm has kernels of its own, which read a head two or three
 * times, all but the first time from L1; not yet measured on a GPU.
 */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/norm_weight.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/row_sums.cuh"

enum { HEAD_THREADS = 128, HEAD_PACKS = 4 };
template <bool BACKWARD>
/* fewer in backward, which has two tensors in flight */
constexpr int head_resident = BACKWARD ? 4 : 6;

template <typename T>
struct heads {
    T *out;      /* forward: out; backward: dinp */
    float *rstd; /* reciprocal of each head's norm, [R, H+G]: written forward, read backward */
    const T *inp, *dout, *q_weight, *k_weight;
    int64_t R, H, G, D;
    float eps;
};

/* Finds head i among the heads of all rows, H+2G per row. Returns false for a head of v; else sets
 * *ret_normed to the index of its rstd and *ret_weight to its weights. */
template <typename T>
static __device__ __forceinline__ bool find_head(const struct heads<T> &a, int64_t i,
                                                 int64_t *ret_normed, const T **ret_weight)
{
    const int64_t r = i / (a.H + 2 * a.G), h = i - r * (a.H + 2 * a.G);

    *ret_normed = r * (a.H + a.G) + h;
    if (h >= a.H + a.G)
        return false;
    *ret_weight = h < a.H ? a.q_weight : a.k_weight;
    return true;
}

/* Adds the terms of a pack to the sum over a head: squares, or with BACKWARD weight * dout * inp.
 */
template <bool BACKWARD, enum cuda_norm_weight W, typename T, int V>
static __device__ __forceinline__ float head_sum(float sum, const pack<T, V> &x,
                                                 const pack<T, V> &dout, const pack<T, V> &weight)
{
#pragma unroll
    for (int j = 0; j < V; j++) {
        const float v = to_float(x.at[j]);

        sum += BACKWARD ? factor_of<W>(weight.at[j]) * to_float(dout.at[j]) * v : v * v;
    }
    return sum;
}

/* Returns out = x * rstd * weight, or dinp = (weight * dout - x * rstd * mean) * rstd */
template <bool BACKWARD, enum cuda_norm_weight W, typename T, int V>
static __device__ __forceinline__ pack<T, V> head_pack(const pack<T, V> &x, const pack<T, V> &dout,
                                                       const pack<T, V> &weight, float mean,
                                                       float rstd)
{
    pack<T, V> y;

#pragma unroll
    for (int j = 0; j < V; j++) {
        const float xhat = to_float(x.at[j]) * rstd, w = factor_of<W>(weight.at[j]);

        y.at[j] =
            from_float<T>(BACKWARD ? (w * to_float(dout.at[j]) - xhat * mean) * rstd : xhat * w);
    }
    return y;
}

/* Normalizes the heads of rows, or computes the gradient (BACKWARD). FITS: the registers of a
 * head's lanes hold the whole head. dinp may alias dout: a thread reads an element before it writes
 * it. */
template <typename T, int V, bool BACKWARD, enum cuda_norm_weight W, bool FITS>
static __global__ void __launch_bounds__(HEAD_THREADS, head_resident<BACKWARD>)
    norm_heads(struct heads<T> a, int lanes)
{
    const int group = (int)threadIdx.x / lanes, lane = (int)threadIdx.x % lanes;
    const int64_t groups = HEAD_THREADS / lanes, count = a.R * (a.H + 2 * a.G);
    const T *copied = BACKWARD ? a.dout : a.inp;

    for (int64_t first = blockIdx.x * groups; first < count; first += gridDim.x * groups) {
        const int64_t i = first + group, at = i * a.D;
        int64_t normed = 0;
        const T *weight = NULL;
        const bool norm = i < count && find_head(a, i, &normed, &weight);
        const bool copy = i < count && !norm;
        pack<T, V> x[HEAD_PACKS], dout[HEAD_PACKS], w;
        float sum = 0, mean = 0, rstd = 0;

        if (FITS) {
#pragma unroll
            for (int k = 0; k < HEAD_PACKS; k++) {
                const int64_t c = (int64_t)(lane + k * lanes) * V;

                if (norm && c < a.D) {
                    x[k] = pack_load<V>(a.inp + at + c);
                    if (BACKWARD)
                        dout[k] = pack_load<V>(a.dout + at + c);
                }
            }
#pragma unroll
            for (int k = 0; k < HEAD_PACKS; k++) {
                const int64_t c = (int64_t)(lane + k * lanes) * V;

                if (norm && c < a.D) {
                    if (BACKWARD)
                        w = weight_load<W, V>(weight + c);
                    sum = head_sum<BACKWARD, W>(sum, x[k], dout[k], w);
                }
            }
        } else if (norm) {
            for (int64_t c = (int64_t)lane * V; c < a.D; c += lanes * V) {
                if (BACKWARD) {
                    w = weight_load<W, V>(weight + c);
                    dout[0] = pack_load<V>(a.dout + at + c);
                }
                sum = head_sum<BACKWARD, W>(sum, pack_load<V>(a.inp + at + c), dout[0], w);
            }
        }
        sum = lanes_add(sum, lanes);
        if (BACKWARD && norm) {
            rstd = a.rstd[normed];
            mean = sum * rstd / (float)a.D;
        } else if (norm) {
            rstd = 1.0f / sqrtf(sum / (float)a.D + a.eps);
            if (lane == 0)
                a.rstd[normed] = rstd;
        }
        if (FITS) {
#pragma unroll
            for (int k = 0; k < HEAD_PACKS; k++) {
                const int64_t c = (int64_t)(lane + k * lanes) * V;

                if (norm && c < a.D) {
                    w = weight_load<W, V>(weight + c);
                    pack_store(a.out + at + c,
                               head_pack<BACKWARD, W>(x[k], dout[k], w, mean, rstd));
                }
            }
        } else if (norm) {
            for (int64_t c = (int64_t)lane * V; c < a.D; c += lanes * V) {
                w = weight_load<W, V>(weight + c);
                if (BACKWARD)
                    dout[0] = pack_load<V>(a.dout + at + c);
                pack_store(a.out + at + c, head_pack<BACKWARD, W>(pack_load<V>(a.inp + at + c),
                                                                  dout[0], w, mean, rstd));
            }
        }
        if (copy)
            for (int64_t c = (int64_t)lane * V; c < a.D; c += lanes * V)
                pack_store(a.out + at + c, pack_load<V>(copied + at + c));
    }
}

template <bool BACKWARD, enum cuda_norm_weight W, int V, typename T>
static enum hd_status heads_launch(struct hd_cuda_stream *s, const struct heads<T> &a)
{
    const int64_t count = a.R * (a.H + 2 * a.G);
    int lanes = 1;
    unsigned grid;

    if (count == 0)
        return HD_OK;
    while (lanes < 32 && lanes * HEAD_PACKS * V < a.D)
        lanes *= 2;
    grid = grid_of(s, divide_up(count, HEAD_THREADS / lanes), head_resident<BACKWARD>);
    if (a.D <= lanes * HEAD_PACKS * V)
        return HD_LAUNCH(s, (norm_heads<T, V, BACKWARD, W, true>), dim3(grid), dim3(HEAD_THREADS),
                         0, a, lanes);
    return HD_LAUNCH(s, (norm_heads<T, V, BACKWARD, W, false>), dim3(grid), dim3(HEAD_THREADS), 0,
                     a, lanes);
}

/* ---- LayerNorm, with a weight for each head ---- */

/* Normalizes the heads of rows, or computes the gradient (BACKWARD). a.rstd has the rows [rstd: H+G |
 * mean: H+G]. dinp may alias dout: a thread reads an element before it writes it. */
template <typename T, int V, bool BACKWARD>
static __global__ void __launch_bounds__(HEAD_THREADS, head_resident<BACKWARD>)
    center_heads(struct heads<T> a, int lanes)
{
    const int group = (int)threadIdx.x / lanes;
    const int64_t begin = (int64_t)threadIdx.x % lanes * V, step = (int64_t)lanes * V;
    const int64_t groups = HEAD_THREADS / lanes, all = a.H + 2 * a.G, normed = a.H + a.G;
    const T *copied = BACKWARD ? a.dout : a.inp;

    for (int64_t first = blockIdx.x * groups; first < a.R * all; first += gridDim.x * groups) {
        const int64_t i = first + group, at = i * a.D, r = i / all, h = i - r * all;
        const bool norm = i < a.R * all && h < normed, copy = i < a.R * all && h >= normed;
        const T *weight = (h < a.H ? a.q_weight + h * a.D : a.k_weight + (h - a.H) * a.D);
        float *rstd_at = a.rstd + 2 * r * normed + h, mean = 0, rstd = 0, sum = 0, products = 0;

        if (BACKWARD && norm) {
            rstd = rstd_at[0];
            mean = rstd_at[normed];
        }
        for (int64_t c = begin; norm && c < a.D; c += step) {
            const pack<T, V> x = pack_load<V>(a.inp + at + c);
            pack<T, V> dout, w;

            if (BACKWARD) {
                dout = pack_load<V>(a.dout + at + c);
                w = pack_load<V>(weight + c);
            }
#pragma unroll
            for (int j = 0; j < V; j++)
                if (BACKWARD) {
                    const float g = to_float(w.at[j]) * to_float(dout.at[j]);

                    sum += g;
                    products += g * ((to_float(x.at[j]) - mean) * rstd);
                } else {
                    sum += to_float(x.at[j]);
                }
        }
        sum = lanes_add(sum, lanes) / (float)a.D;
        if (!BACKWARD) {
            mean = sum;
            for (int64_t c = begin; norm && c < a.D; c += step) {
                const pack<T, V> x = pack_load<V>(a.inp + at + c);

#pragma unroll
                for (int j = 0; j < V; j++)
                    products += (to_float(x.at[j]) - mean) * (to_float(x.at[j]) - mean);
            }
        }
        products = lanes_add(products, lanes) / (float)a.D;
        if (!BACKWARD && norm) {
            rstd = 1.0f / sqrtf(products + a.eps);
            if (begin == 0) {
                rstd_at[0] = rstd;
                rstd_at[normed] = mean;
            }
        }
        for (int64_t c = begin; norm && c < a.D; c += step) {
            const pack<T, V> x = pack_load<V>(a.inp + at + c), w = pack_load<V>(weight + c);
            pack<T, V> dout, y;

            if (BACKWARD)
                dout = pack_load<V>(a.dout + at + c);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float xhat = (to_float(x.at[j]) - mean) * rstd, f = to_float(w.at[j]);

                y.at[j] = from_float<T>(
                    BACKWARD ? (f * to_float(dout.at[j]) - sum - xhat * products) * rstd
                             : xhat * f);
            }
            pack_store(a.out + at + c, y);
        }
        for (int64_t c = begin; copy && c < a.D; c += step)
            pack_store(a.out + at + c, pack_load<V>(copied + at + c));
    }
}

template <bool BACKWARD, int V, typename T>
static enum hd_status center_launch(struct hd_cuda_stream *s, const struct heads<T> &a)
{
    const int64_t count = a.R * (a.H + 2 * a.G);
    int lanes = 1;

    if (count == 0)
        return HD_OK;
    while (lanes < 32 && lanes * HEAD_PACKS * V < a.D)
        lanes *= 2;
    return HD_LAUNCH(
        s, (center_heads<T, V, BACKWARD>),
        dim3(grid_of(s, divide_up(count, HEAD_THREADS / lanes), head_resident<BACKWARD>)),
        dim3(HEAD_THREADS), 0, a, lanes);
}

/* ---- both norms ---- */

extern "C" enum hd_status hd_cuda_head_norm_forward(struct hd_cuda_stream *s,
                                                    const struct hd_head_norm_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct heads<T> h = {
            (T *)a->out, a->rstd, (const T *)a->inp, NULL, (const T *)a->q_weight,
                (const T *)a->k_weight, a->R, a->H, a->G, a->D, a->eps
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->D, a->out, a->inp, a->q_weight, a->k_weight)), T, V, {
            if (a->layer)
                return center_launch<false, V>(s, h);
            HD_NORM_WEIGHT(a->q_weight, a->one_plus, W, return heads_launch<false, W, V>(s, h));
        });
    });
}

extern "C" enum hd_status hd_cuda_head_norm_backward(struct hd_cuda_stream *s,
                                                     const struct hd_head_norm_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct heads<T> h = {
            (T *)a->dinp, (float *)a->rstd, (const T *)a->inp, (const T *)a->dout,
                (const T *)a->q_weight, (const T *)a->k_weight, a->R, a->H, a->G, a->D, 0
        };

        HD_PACK_WIDTH(
            (pack_fits_wide<T>(a->D, a->dinp, a->dout, a->inp, a->q_weight, a->k_weight)), T, V, {
                if (a->layer)
                    return center_launch<true, V>(s, h);
                HD_NORM_WEIGHT(a->q_weight, a->one_plus, W, return heads_launch<true, W, V>(s, h));
            });
    });
}

/* Terms of the weight gradients for row_sums.cuh, whose rows are heads [first, first + count) of
 * every row. */
template <typename T>
struct head_terms {
    static constexpr int OUTPUTS = 1;
    template <int V>
    struct in {
        pack<T, V> dout, inp;
        float rstd;
    };
    const T *dout, *inp;
    const float *rstd;
    /* range of heads; normed: heads with a norm per row; heads: all heads per row */
    int64_t first, count, normed, heads, D;

    template <int V>
    __device__ void load(in<V> &x, int64_t i, int64_t c) const
    {
        const int64_t r = i / count, h = first + i - r * count, at = (r * heads + h) * D + c;

        x.dout = pack_load<V>(dout + at);
        x.inp = pack_load<V>(inp + at);
        x.rstd = rstd[r * normed + h];
    }
    template <int V>
    __device__ void add(float (&sums)[1][V], const in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            sums[0][j] += to_float(x.dout.at[j]) * (to_float(x.inp.at[j]) * x.rstd);
    }
};

/* Terms of the weight gradients of LayerNorm for row_sums.cuh, whose columns are those of heads
 * `first` on. */
template <typename T>
struct centered_terms {
    static constexpr int OUTPUTS = 1;
    template <int V>
    struct in {
        pack<T, V> dout, inp;
        float rstd, mean;
    };
    const T *dout, *inp;
    const float *rstd;
    int64_t first, normed, heads, D;

    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        const int64_t at = (r * heads + first) * D + c, h = first + c / D;

        x.dout = pack_load<V>(dout + at);
        x.inp = pack_load<V>(inp + at);
        x.rstd = rstd[2 * r * normed + h];
        x.mean = rstd[(2 * r + 1) * normed + h];
    }
    template <int V>
    __device__ void add(float (&sums)[1][V], const in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            sums[0][j] += to_float(x.dout.at[j]) * ((to_float(x.inp.at[j]) - x.mean) * x.rstd);
    }
};

static enum hd_status sum_centered(struct hd_cuda_stream *s,
                                   const struct hd_head_norm_backward_weight_args *a)
{
    const int64_t normed = a->H + a->G;
    enum hd_status st = HD_OK;

    HD_CUDA_FLOATS(a->dtype, T, {
        for (int k = 0; !st && k < 2; k++) {
            const struct cuda_row_sums sums = {{k ? a->dk_weight : a->dq_weight},
                                               (float *)a->scratch,
                                               a->R,
                                               (k ? a->G : a->H) * a->D,
                                               a->accumulate};
            const struct centered_terms<T> terms = {
                (const T *)a->dout,
                    (const T *)a->inp, a->rstd, k ? a->H : 0, normed, normed + a->G, a->D
            };

            HD_PACK_WIDTH((pack_fits_wide<T>(a->D, a->dout, a->inp)), T, V,
                          st = row_sums_launch<V>(s, terms, sums));
        }
    });
    return st;
}

extern "C" enum hd_status
hd_cuda_head_norm_backward_weight(struct hd_cuda_stream *s,
                                  const struct hd_head_norm_backward_weight_args *a)
{
    const int64_t normed = a->H + a->G, rows[2] = {a->R * a->H, a->R * a->G};
    float *const partial[2] = {(float *)a->scratch,
                               (float *)a->scratch +
                                   hd_costs_device_row_chunks(rows[0]).count * a->D};
    enum hd_status st = HD_OK;

    if (a->layer)
        return sum_centered(s, a);
    HD_CUDA_FLOATS(a->dtype, T, {
        for (int k = 0; !st && k < 2; k++) {
            const struct cuda_row_sums sums = {
                {k ? a->dk_weight : a->dq_weight}, partial[k], rows[k], a->D, a->accumulate};
            const struct head_terms<T> terms = {
                (const T *)a->dout, (const T *)a->inp, a->rstd, k ? a->H : 0, k ? a->G : a->H,
                    normed, normed + a->G, a->D
            };

            HD_PACK_WIDTH((pack_fits_wide<T>(a->D, a->dout, a->inp)), T, V,
                          st = row_sums_launch<V>(s, terms, sums));
        }
    });
    return st;
}
