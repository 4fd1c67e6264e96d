/* attention_backward: computes delta and launches the gradient kernels. Always deterministic: see
 * attention_backward_tiled.cuh. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/row_sums.cuh"
#include "kernels/cuda/vec.cuh"

/* ---- stats: delta = rowsum(dout * out), and the log-sum-exp ----
 *
 * Eight lanes share a head of a query, 8 channels each at a time: a head of 64 channels is 128
 * contiguous bytes. Bytes: dout and out once, 12 per head and query; memory-bound. */

enum { STATS_LANES = 8, STATS_THREADS = 256, STATS_WIDTH = 8 };

struct stats_task {
    float2 *stats; /* log-sum-exp and delta of each query, [B, H, q_pad] */
    const void *dout, *out;
    const float *lse;
    int64_t ldo, lddo, rows; /* leading dimensions of out and dout; rows: B * q_pad */
    int32_t B, q_len, q_pad, H, D;
    float lse_factor;
};

template <typename T, bool IS_VEC>
static __device__ __forceinline__ float channels_product(const T *a, const T *b)
{
    float x[STATS_WIDTH], y[STATS_WIDTH], sum = 0;

    if (IS_VEC) {
        load_vec(x, a);
        load_vec(y, b);
    } else {
        for (int i = 0; i < STATS_WIDTH; i++) {
            x[i] = to_float(a[i]);
            y[i] = to_float(b[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < STATS_WIDTH; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Computes log-sum-exp and delta of one query and head per eight lanes. Rows that see no key, and
 * rows that pad a tile, have lse = -inf; it is replaced by +inf, which makes every attention weight
 * p zero. */
template <typename T, bool IS_VEC>
static __global__ void __launch_bounds__(STATS_THREADS) stats_kernel(struct stats_task t)
{
    const int64_t at = ((int64_t)blockIdx.x * STATS_THREADS + threadIdx.x) / STATS_LANES;
    const int lane = (int)threadIdx.x % STATS_LANES, head = (int)(at % t.H);
    const int64_t row = at / t.H;
    const int b = (int)(row / t.q_pad), query = (int)(row % t.q_pad);
    const bool is_there = row < t.rows && query < t.q_len;
    float delta = 0, lse = -INFINITY;

    if (is_there) {
        const int64_t place = (int64_t)b * t.q_len + query;
        const T *dout = (const T *)t.dout + place * t.lddo + head * t.D;
        const T *out = (const T *)t.out + place * t.ldo + head * t.D;

        for (int d = lane * STATS_WIDTH; d < t.D; d += STATS_LANES * STATS_WIDTH)
            delta += channels_product<T, IS_VEC>(dout + d, out + d);
        lse = t.lse[(int64_t)head * t.B * t.q_len + place];
    }
    for (int distance = STATS_LANES / 2; distance > 0; distance /= 2)
        delta += __shfl_xor_sync(0xffffffffu, delta, distance);
    if (lane == 0 && row < t.rows)
        t.stats[((int64_t)b * t.H + head) * t.q_pad + query] =
            make_float2(lse == -INFINITY ? INFINITY : lse * t.lse_factor, delta);
}

template <typename T>
static enum hd_status launch_stats(struct hd_cuda_stream *stream, const struct stats_task *t)
{
    const int64_t threads = t->rows * t->H * STATS_LANES;
    const dim3 grid((unsigned)((threads + STATS_THREADS - 1) / STATS_THREADS));

    if (is_vec((const T *)t->dout, t->lddo) && is_vec((const T *)t->out, t->ldo) &&
        t->D % vec_width<T>() == 0)
        return HD_LAUNCH(stream, (stats_kernel<T, true>), grid, dim3(STATS_THREADS), 0, *t);
    return HD_LAUNCH(stream, (stats_kernel<T, false>), grid, dim3(STATS_THREADS), 0, *t);
}

/* ---- Launching ---- */

static bool backward_is_tiled(const struct hd_attention_backward_args *a)
{
    const int64_t e = (int64_t)hd_dtype_size(a->dtype), g = (int64_t)hd_dtype_size(a->grad_dtype);

    return hd_costs_attention_is_tiled(a->dtype, a->D) && attention_scores_are_tiled(a) &&
           attention_rows_are_aligned(a->dout, a->lddo, e) &&
           attention_rows_are_aligned(a->q, a->ldq, e) &&
           attention_rows_are_aligned(a->k, a->ldk, e) &&
           attention_rows_are_aligned(a->v, a->ldv, e) &&
           attention_rows_are_aligned(a->dq, a->lddq, g) &&
           attention_rows_are_aligned(a->dk, a->lddk, g) &&
           attention_rows_are_aligned(a->dv, a->lddv, g);
}

static enum hd_status check_backward(const struct hd_attention_backward_args *a)
{
    const int64_t granules = (a->q_len + a->kv_len) / ATTENTION_GRANULE + 8;
    enum hd_status st =
        attention_check("attention_backward", a->dtype, a->H, a->G, a->D, a->B * a->H * granules);

    if (!st)
        st = attention_check_scores("attention_backward", a->cap, a->slopes != NULL, a->chunk,
                                    a->causal);
    if (!st && a->grad_dtype != a->dtype && a->grad_dtype != HD_F32)
        st = hd_err(HD_UNSUPPORTED, "attention_backward: gradients of %s must be %s or f32, not %s",
                    hd_dtype_name(a->dtype), hd_dtype_name(a->dtype), hd_dtype_name(a->grad_dtype));
    return st;
}

/* Computes the partial sums of the gradients' rows in a pass of its own, if the launch asks for them. */
static enum hd_status sum_gradient_rows(struct hd_cuda_stream *cuda,
                                        const struct hd_attention_backward_args *args)
{
    return args->sums ? hd_cuda_sum_row_chunks(cuda, args->sums, args->dq, args->B * args->q_len,
                                               (args->H + 2 * args->G) * args->D,
                                               HD_ATTENTION_SUM_ROWS, args->dtype)
                      : HD_OK;
}

extern "C" enum hd_status hd_cuda_attention_backward(struct hd_cuda_stream *cuda,
                                                     const struct hd_attention_backward_args *args)
{
    const struct hd_costs_attention_mask_extents mask_extents =
        hd_costs_attention_backward_mask_extents(args);
    const bool is_tiled = backward_is_tiled(args);
    struct attention_backward f = {};
    struct stats_task t = {};
    bool by_wgmma = false, sums_in_passing, done;
    enum hd_status st = check_backward(args);

    if (!st)
        st = hd_costs_attention_check_sums(args);

    if (!st && args->dropout != 0)
        st = attention_dropout("attention_backward", args->dropout, args->dropout_key, args->block,
                               args->sample, args->first_head, &f.a);
    if (st || args->B * args->H * (args->q_len + args->kv_len) == 0)
        return st;
    st = hd_cuda_cudnn_backward(cuda, args, &done);
    if (st || done)
        return st ? st : sum_gradient_rows(cuda, args);
    attention_set(&f.a, args, &mask_extents);
    f.dq = args->dq;
    f.dk = args->dk;
    f.dv = args->dv;
#if defined(HD_HOPPER) || defined(HD_CUDASIM)
    by_wgmma = is_tiled && hd_costs_attention_is_by_wgmma(&cuda->cuda->traits) &&
               attention_backward_hopper_takes(&f.a);
#endif
    sums_in_passing = args->sums && is_tiled && !by_wgmma && mask_extents.parts == 1;
    f.sums = sums_in_passing ? args->sums : NULL;
    f.dout = args->dout;
    f.lddo = args->lddo;
    f.lddq = args->lddq;
    f.lddk = args->lddk;
    f.lddv = args->lddv;
    f.grad_dtype = args->grad_dtype;
    f.accumulate = args->accumulate;
    f.parts = (int32_t)mask_extents.parts;
    f.part_heads = (int32_t)mask_extents.part_heads;
    f.parts_dk = (float *)((char *)args->scratch + mask_extents.parts_dk);
    f.parts_dv = (float *)((char *)args->scratch + mask_extents.parts_dv);
    t.stats = (float2 *)((char *)args->scratch + mask_extents.stats);
    f.stats = t.stats;
    t.dout = args->dout;
    t.out = args->out;
    t.lse = args->lse;
    t.ldo = args->ldo;
    t.lddo = args->lddo;
    t.rows = args->B * mask_extents.q_pad;
    t.B = f.a.B;
    t.q_len = f.a.q_len;
    t.q_pad = f.a.mask_extents.q_pad;
    t.H = f.a.H;
    t.D = f.a.D;
    t.lse_factor = is_tiled ? ATTENTION_LOG2E : 1;
    st = attention_launch_mask_extents(
        cuda, &f.a.mask_extents, args->q_index, args->kv_index, args->q_bound, NULL, NULL, args->B,
        args->q_len, args->kv_len, args->kv_stride, args->window, args->chunk, args->causal);
    if (!st && t.rows > 0)
        HD_CUDA_FLOATS(args->dtype, T, st = launch_stats<T>(cuda, &t));
    if (st)
        return st;
    if (!is_tiled)
        st = attention_backward_plain(cuda, &f);
#if defined(HD_HOPPER) || defined(HD_CUDASIM)
    else if (by_wgmma)
        st = attention_backward_hopper(cuda, &f, args->scratch,
                                       hd_costs_attention_lay_in_order(args, &mask_extents));
#endif
    else
        st = args->dtype == HD_BF16 ? attention_backward_tiled_bf16(cuda, &f)
                                    : attention_backward_tiled_f16(cuda, &f);
    return st || sums_in_passing ? st : sum_gradient_rows(cuda, args);
}
