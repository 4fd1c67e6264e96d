/* qk_norm: RMSNorm over all query channels and over all key channels of a row. A row is [q: H*D | k:
 * G*D | v: G*D]; v is copied. The columns of q, of k or of v are called a part here.
 *
 * Bytes: forward 2 R (H+2G) D e; backward reads dout and, except for v, inp, and writes dinp; with
 * the sums of several ranks q and k are read once more before. A block processes one part of a row,
 * which it reads twice if it adds the sums itself, the second time mostly from L1 or L2. Not yet
 * measured on a GPU. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/norm_weight.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/row_sums.cuh"

enum { PART_THREADS = 256, PART_RESIDENT = 4 };

template <typename T>
struct qk_parts {
    T *out;       /* forward: out; backward: dinp; of sums alone NULL */
    float *rstd;  /* [R, 2]: written forward, read backward */
    float *given; /* [R, 2]: sums; written if they alone are computed, else read; NULL: the block
                     adds them */
    const T *inp, *dout, *q_weight, *k_weight;
    int64_t R, q, k, ranks; /* columns of q, and of k */
    float eps;
};

/* A part of a row: its first element in the tensors, its columns, and its index of [R, 2]. */
struct qk_part {
    int64_t at, columns, statistic;
};

/* Returns part `which` (0: q, 1: k, 2: v) of row r. */
template <typename T>
static __device__ __forceinline__ struct qk_part part_of(const struct qk_parts<T> &a, int64_t r,
                                                         int which)
{
    const int64_t first = which == 0 ? 0 : which == 1 ? a.q : a.q + a.k;

    return {r * (a.q + 2 * a.k) + first, which ? a.k : a.q, 2 * r + which};
}

/* Returns the block's sum of squares of a part, or with BACKWARD of weight * dout * inp. */
template <bool BACKWARD, enum cuda_norm_weight W, int V, typename T>
static __device__ __forceinline__ float
part_sum(const struct qk_parts<T> &a, const struct qk_part &p, const T *weight, float *shared)
{
    float sum = 0;

#pragma unroll 2
    for (int64_t c = (int64_t)threadIdx.x * V; c < p.columns; c += PART_THREADS * V) {
        const pack<T, V> x = pack_load<V>(a.inp + p.at + c);
        pack<T, V> dout, w;

        if (BACKWARD) {
            dout = pack_load<V>(a.dout + p.at + c);
            w = weight_load<W, V>(weight + c);
        }
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float v = to_float(x.at[j]);

            sum += BACKWARD ? factor_of<W>(w.at[j]) * to_float(dout.at[j]) * v : v * v;
        }
    }
    return block_add(sum, shared);
}

/* Computes the sums alone, of q and k; blockIdx.y is the part. */
template <typename T, int V, bool BACKWARD, enum cuda_norm_weight W>
static __global__ void __launch_bounds__(PART_THREADS, PART_RESIDENT)
    sum_parts(struct qk_parts<T> a)
{
    HD_SHARED(float, shared, BLOCK_WARPS);

    for (int64_t r = blockIdx.x; r < a.R; r += gridDim.x) {
        const struct qk_part p = part_of(a, r, (int)blockIdx.y);
        const float sum =
            part_sum<BACKWARD, W, V>(a, p, blockIdx.y ? a.k_weight : a.q_weight, shared);

        if (threadIdx.x == 0)
            a.given[p.statistic] = sum;
    }
}

/* Normalises q and k, or computes the gradient (BACKWARD), and copies v; blockIdx.y is the part.
 * dinp may alias dout: a thread reads an element before it writes it, and the block's sum is
 * complete before. */
template <typename T, int V, bool BACKWARD, enum cuda_norm_weight W>
static __global__ void __launch_bounds__(PART_THREADS, PART_RESIDENT)
    norm_parts(struct qk_parts<T> a)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    const T *copied = BACKWARD ? a.dout : a.inp;
    const T *weight = blockIdx.y ? a.k_weight : a.q_weight;
    const int64_t begin = (int64_t)threadIdx.x * V, step = PART_THREADS * V;

    for (int64_t r = blockIdx.x; r < a.R; r += gridDim.x) {
        const struct qk_part p = part_of(a, r, (int)blockIdx.y);
        float sum, mean = 0, rstd;

        if (blockIdx.y == 2) {
            for (int64_t c = begin; c < p.columns; c += step)
                pack_store(a.out + p.at + c, pack_load<V>(copied + p.at + c));
            continue;
        }
        sum = a.given ? a.given[p.statistic] : part_sum<BACKWARD, W, V>(a, p, weight, shared);
        if (BACKWARD) {
            rstd = a.rstd[p.statistic];
            mean = sum * rstd / (float)(p.columns * a.ranks);
        } else {
            rstd = 1.0f / sqrtf(sum / (float)(p.columns * a.ranks) + a.eps);
            if (threadIdx.x == 0)
                a.rstd[p.statistic] = rstd;
        }
#pragma unroll 2
        for (int64_t c = begin; c < p.columns; c += step) {
            const pack<T, V> x = pack_load<V>(a.inp + p.at + c);
            const pack<T, V> w = weight_load<W, V>(weight + c);
            pack<T, V> dout, y;

            if (BACKWARD)
                dout = pack_load<V>(a.dout + p.at + c);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float xhat = to_float(x.at[j]) * rstd, f = factor_of<W>(w.at[j]);

                y.at[j] = from_float<T>(BACKWARD ? (f * to_float(dout.at[j]) - xhat * mean) * rstd
                                                 : xhat * f);
            }
            pack_store(a.out + p.at + c, y);
        }
    }
}

/* Returns whether q and k of all rows, and the weights, begin at whole packs. */
template <typename T>
static bool parts_fit(const struct qk_parts<T> &a)
{
    return pack_fits_wide<T>(a.q, a.out, a.inp, a.dout, a.q_weight) &&
           pack_fits_wide<T>(a.k, a.k_weight);
}

template <bool BACKWARD, enum cuda_norm_weight W, int V, typename T>
static enum hd_status sums_launch(struct hd_cuda_stream *s, const struct qk_parts<T> &a)
{
    if (a.R == 0)
        return HD_OK;
    return HD_LAUNCH(s, (sum_parts<T, V, BACKWARD, W>), dim3(grid_of(s, a.R, PART_RESIDENT), 2),
                     dim3(PART_THREADS), 0, a);
}

template <bool BACKWARD, enum cuda_norm_weight W, int V, typename T>
static enum hd_status parts_launch(struct hd_cuda_stream *s, const struct qk_parts<T> &a)
{
    if (a.R == 0)
        return HD_OK;
    return HD_LAUNCH(s, (norm_parts<T, V, BACKWARD, W>), dim3(grid_of(s, a.R, PART_RESIDENT), 3),
                     dim3(PART_THREADS), 0, a);
}

extern "C" enum hd_status hd_cuda_qk_norm_sums(struct hd_cuda_stream *s,
                                               const struct hd_qk_norm_sums_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct qk_parts<T> p = {
            NULL, NULL, a->sums, (const T *)a->inp, (const T *)a->dout, (const T *)a->q_weight,
                (const T *)a->k_weight, a->R, a->H * a->D, a->G * a->D, 1, 0
        };

        HD_PACK_WIDTH(parts_fit(p), T, V, {
            if (!a->dout)
                return sums_launch<false, WEIGHT_NONE, V>(s, p);
            HD_NORM_WEIGHT(a->q_weight, a->one_plus, W, return sums_launch<true, W, V>(s, p));
        });
    });
}

extern "C" enum hd_status hd_cuda_qk_norm_forward(struct hd_cuda_stream *s,
                                                  const struct hd_qk_norm_forward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct qk_parts<T> p = {
            (T *)a->out, a->rstd, (float *)a->sums, (const T *)a->inp, NULL, (const T *)a->q_weight,
                (const T *)a->k_weight, a->R, a->H * a->D, a->G * a->D, a->ranks, a->eps
        };

        HD_PACK_WIDTH(
            parts_fit(p), T, V,
            HD_NORM_WEIGHT(a->q_weight, a->one_plus, W, return parts_launch<false, W, V>(s, p)));
    });
}

extern "C" enum hd_status hd_cuda_qk_norm_backward(struct hd_cuda_stream *s,
                                                   const struct hd_qk_norm_backward_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct qk_parts<T> p = {
            (T *)a->dinp, (float *)a->rstd, (float *)a->sums, (const T *)a->inp, (const T *)a->dout,
                (const T *)a->q_weight,
                (const T *)a->k_weight, a->R, a->H * a->D, a->G * a->D, a->ranks, 0
        };

        HD_PACK_WIDTH(
            parts_fit(p), T, V,
            HD_NORM_WEIGHT(a->q_weight, a->one_plus, W, return parts_launch<true, W, V>(s, p)));
    });
}

/* Terms of the weight gradients of a part for row_sums.cuh. */
template <typename T>
struct part_terms {
    static constexpr int OUTPUTS = 1;
    template <int V>
    struct in {
        pack<T, V> dout, inp;
        float rstd;
    };
    const T *dout, *inp; /* the first column of the part */
    const float *rstd;   /* [R, 2], from the part's element on */
    int64_t ld;

    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.dout = pack_load<V>(dout + r * ld + c);
        x.inp = pack_load<V>(inp + r * ld + c);
        x.rstd = rstd[2 * r];
    }
    template <int V>
    __device__ void add(float (&sums)[1][V], const in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            sums[0][j] += to_float(x.dout.at[j]) * (to_float(x.inp.at[j]) * x.rstd);
    }
};

/* The sums of k follow those of q on the stream, in the same scratch. */
extern "C" enum hd_status
hd_cuda_qk_norm_backward_weight(struct hd_cuda_stream *s,
                                const struct hd_qk_norm_backward_weight_args *a)
{
    const int64_t q = a->H * a->D, k = a->G * a->D;
    enum hd_status st = HD_OK;

    HD_CUDA_FLOATS(a->dtype, T, {
        const bool wide = pack_fits_wide<T>(q, a->dout, a->inp) && pack_fits_wide<T>(k, NULL);

        for (int part = 0; !st && part < 2; part++) {
            const int64_t first = part ? q : 0;
            const struct cuda_row_sums sums = {{part ? a->dk_weight : a->dq_weight},
                                               (float *)a->scratch,
                                               a->R,
                                               part ? k : q,
                                               a->accumulate};
            const struct part_terms<T> terms = {
                (const T *)a->dout + first, (const T *)a->inp + first, a->rstd + part, q + 2 * k
            };

            HD_PACK_WIDTH(wide, T, V, st = row_sums_launch<V>(s, terms, sums));
        }
    });
    return st;
}
