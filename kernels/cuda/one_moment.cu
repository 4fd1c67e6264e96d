/* one_moment: Lion, and Muon's momentum, weights and pieces, on flat shards.
 *
 * Bytes per element: Lion 20 (weight and m in and out, the gradient in) and a copy; momentum 12 and
 * a step; step_along 8 with a step and a copy. A thread has MOMENTS_OWN neighbouring elements, of
 * which it loads packs of 16 bytes if they lie in one range and addresses allow; else one by one.
 * Every operation rounds by itself, as on the CPU, so both backends give the same bits.
 *
 * Not measured on a GPU yet. */
#include "kernels/cuda/moments.cuh"

enum { ONE_THREADS = 256, ONE_RESIDENT = 4 };

/* Factors of one step. */
struct one_step {
    float b1, b2, rest1, rest2, grad_factor, lr, weight_decay;
};

static __device__ __forceinline__ struct one_step step_of(const struct hd_step_state *block)
{
    struct one_step u;

    u.b1 = block->beta1;
    u.b2 = block->beta2;
    u.rest1 = __fsub_rn(1.0f, u.b1);
    u.rest2 = __fsub_rn(1.0f, u.b2);
    u.grad_factor = block->grad_factor;
    u.lr = block->lr;
    u.weight_decay = block->weight_decay;
    return u;
}

/* Returns the index of the first range, from `low` on, that ends after the element. */
static __device__ __forceinline__ int64_t range_after(const struct hd_update_range *ranges,
                                                      int64_t low, int64_t range_count,
                                                      int64_t element)
{
    int64_t high = range_count - 1;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (ranges[middle].end <= element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

template <typename T>
static __device__ __forceinline__ void load_own(float *out, const T *from, bool wide, int64_t count)
{
    if (wide && count == MOMENTS_OWN) {
#pragma unroll
        for (int h = 0; h < MOMENTS_OWN; h += MOMENTS_HALF) {
            const pack<T, MOMENTS_HALF> p = pack_load<MOMENTS_HALF>(from + h);

#pragma unroll
            for (int j = 0; j < MOMENTS_HALF; j++)
                out[h + j] = to_float(p.at[j]);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < MOMENTS_OWN; j++)
        out[j] = j < count ? to_float(from[j]) : 0;
}

template <typename T>
static __device__ __forceinline__ void store_own(T *to, const float *from, bool wide, int64_t count)
{
    if (wide && count == MOMENTS_OWN) {
#pragma unroll
        for (int h = 0; h < MOMENTS_OWN; h += MOMENTS_HALF) {
            pack<T, MOMENTS_HALF> p;

#pragma unroll
            for (int j = 0; j < MOMENTS_HALF; j++)
                p.at[j] = from_float<T>(from[h + j]);
            pack_store(to + h, p);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < MOMENTS_OWN; j++)
        if (j < count)
            to[j] = from_float<T>(from[j]);
}

/* ---- updates with a moment ---- */

/* Arguments of Lion (`weight` set; `out` is the copy, or NULL) or of the momentum (`out` is the
 * step). */
template <typename Out>
struct moment_update {
    float *weight;
    char *m;
    Out *out;
    const float *grad;
    const struct hd_step_state *block;
    const struct hd_update_range *ranges;
    int64_t N, range_count;
    float momentum;
    bool nesterov, placed, wide;

    /* Updates `count` elements from `at` on, which lie in one range. */
    template <bool LION>
    __device__ __forceinline__ void update(const struct one_step &u,
                                           const struct hd_update_range *range, int64_t at,
                                           int64_t count, float *m_) const
    {
        const float lr = __fmul_rn(u.lr, range->lr_scale);
        const float decay = __fmul_rn(u.weight_decay, range->decay);
        float g[MOMENTS_OWN], w[MOMENTS_OWN];

        load_own(g, grad + at, wide, count);
        if (LION)
            load_own(w, weight + at, wide, count);
#pragma unroll
        for (int j = 0; j < MOMENTS_OWN; j++) {
            const float grad_j = __fmul_rn(g[j], u.grad_factor);

            if (LION) {
                const float c = __fadd_rn(__fmul_rn(m_[j], u.b1), __fmul_rn(grad_j, u.rest1));
                const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;

                w[j] = __fsub_rn(w[j], __fmul_rn(lr, __fadd_rn(sign, __fmul_rn(decay, w[j]))));
                m_[j] = __fadd_rn(__fmul_rn(m_[j], u.b2), __fmul_rn(grad_j, u.rest2));
            } else {
                m_[j] = __fadd_rn(__fmul_rn(m_[j], momentum), grad_j);
                w[j] = nesterov ? __fadd_rn(grad_j, __fmul_rn(m_[j], momentum)) : m_[j];
            }
        }
        if (LION)
            store_own(weight + at, w, wide, count);
        if (out)
            store_own(out + at, w, wide, count);
    }
};

/* Updates the elements [at, end) one by one where their ranges are not those of whole threads; all
 * their moments are fp32. */
template <bool LION, typename Out>
static __device__ __forceinline__ void
update_each(const struct moment_update<Out> &a, const struct one_step &u, int64_t at, int64_t end)
{
    int64_t k = 0;

#pragma unroll 1
    for (; at < end; at++) {
        const struct hd_update_range *range;
        float m[MOMENTS_OWN] = {0}, *place;

        k = range_after(a.ranges, k, a.range_count, at);
        range = &a.ranges[k];
        place =
            (float *)(a.m + (a.placed ? range->moments : 0)) + (at - (a.placed ? range->begin : 0));
        m[0] = *place;
        a.template update<LION>(u, range, at, 1, m);
        if (!a.block->skip_update)
            *place = m[0];
    }
}

template <bool LION, typename Out>
static __global__ void __launch_bounds__(ONE_THREADS) one_update(struct moment_update<Out> a)
{
    HD_SHARED(float, values, 256);
    const int64_t threads = (int64_t)gridDim.x * ONE_THREADS, lane = threadIdx.x % 32;
    const struct one_step u = step_of(a.block);
    const bool skips = a.block->skip_update != 0;
    int64_t k = 0;

    if (LION && skips)
        return;
    values[threadIdx.x] = hd_encoding_value((uint8_t)threadIdx.x, HD_MAP_SIGNED);
    __syncthreads();

    /* `at` minus the lane's offset is equal for all lanes of a warp, so all lanes leave the loop
     * together. */
    for (int64_t at = ((int64_t)blockIdx.x * ONE_THREADS + threadIdx.x) * MOMENTS_OWN;
         at - lane * MOMENTS_OWN < a.N; at += threads * MOMENTS_OWN) {
        struct hd_update_range range = {};
        struct own_moment own;
        float largest = 0, smallest = 0;
        int64_t lanes = 0;
        bool whole = false;

        if (at < a.N) {
            k = range_after(a.ranges, k, a.range_count, at);
            range = a.ranges[k];
            whole = a.wide && at + MOMENTS_OWN <= range.end;
            if (!whole)
                update_each<LION>(a, u, at, at + MOMENTS_OWN < a.N ? at + MOMENTS_OWN : a.N);
        }
        if (!a.placed)
            range.begin = range.moments = range.block = 0;
        if (whole) {
            lanes = range.block / MOMENTS_OWN;
            own.load(a.m + range.moments, &range, at - range.begin, values);
            a.template update<LION>(u, &range, at, MOMENTS_OWN, own.at);
            own.extremes(&largest, &smallest);
        }
        largest = lanes_max(largest, lanes);
        smallest = -lanes_max(-smallest, lanes);
        if (whole && !skips)
            own.store(a.m + range.moments, &range, at - range.begin, HD_MAP_SIGNED, largest,
                      smallest);
    }
}

template <bool LION, typename Out>
static enum hd_status one_launch(struct hd_cuda_stream *s, struct moment_update<Out> a)
{
    a.wide = pack_fits<float, MOMENTS_HALF>(a.grad, 0) &&
             pack_fits<float, MOMENTS_HALF>(a.weight, 0) && pack_fits<char, 16>(a.m, 0) &&
             pack_fits<Out, MOMENTS_HALF>(a.out, 0);
    if (a.placed && !a.wide)
        return hd_err(HD_INVALID, "%s: moments in blocks need tensors aligned to 16 bytes",
                      LION ? "lion" : "momentum");
    return HD_LAUNCH(s, (one_update<LION, Out>),
                     dim3(grid_of(s, divide_up(a.N, ONE_THREADS * MOMENTS_OWN), ONE_RESIDENT)),
                     dim3(ONE_THREADS), 0, a);
}

template <typename Out>
static enum hd_status lion_launch(struct hd_cuda_stream *s, const struct hd_lion_args *args)
{
    const struct moment_update<Out> a = {
        args->weight, (char *)args->m,
            (Out *)args->copy, args->grad, args->block, args->ranges, args->N, args->range_count, 0,
            false, args->moment_bytes > 0, false
    };

    return one_launch<true>(s, a);
}

template <typename Out>
static enum hd_status momentum_launch(struct hd_cuda_stream *s, const struct hd_momentum_args *args)
{
    const struct moment_update<Out> a = {
        nullptr, (char *)args->m, (Out *)args->step, args->grad, args->block, args->ranges, args->N,
            args->range_count, args->momentum, args->nesterov, args->moment_bytes > 0, false
    };

    return one_launch<false>(s, a);
}

extern "C" enum hd_status hd_cuda_lion(struct hd_cuda_stream *s, const struct hd_lion_args *a)
{
    if (a->N == 0 || a->range_count == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->copy ? a->copy_dtype : HD_F32, T, return lion_launch<T>(s, a));
}

extern "C" enum hd_status hd_cuda_momentum(struct hd_cuda_stream *s,
                                           const struct hd_momentum_args *a)
{
    if (a->N == 0 || a->range_count == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->dtype, T, return momentum_launch<T>(s, a));
}

/* ---- weights ---- */

template <typename Copy, typename Step>
static __global__ void __launch_bounds__(ONE_THREADS)
    step_weights(float *weight, Copy *copy, const Step *step, const struct hd_step_state *block,
                 const struct hd_update_range *ranges, int64_t N, int64_t range_count, bool wide)
{
    const int64_t threads = (int64_t)gridDim.x * ONE_THREADS;
    int64_t k = 0;

    if (block->skip_update)
        return;
    for (int64_t at = ((int64_t)blockIdx.x * ONE_THREADS + threadIdx.x) * MOMENTS_OWN; at < N;
         at += threads * MOMENTS_OWN) {
        const int64_t count = at + MOMENTS_OWN < N ? (int64_t)MOMENTS_OWN : N - at;
        float w[MOMENTS_OWN], o[MOMENTS_OWN];

        load_own(w, weight + at, wide, count);
        load_own(o, step + at, wide, count);
#pragma unroll
        for (int j = 0; j < MOMENTS_OWN; j++)
            if (j < count) {
                float lr, decay;

                k = range_after(ranges, k, range_count, at + j);
                lr = __fmul_rn(block->lr, ranges[k].lr_scale);
                decay = __fmul_rn(block->weight_decay, ranges[k].decay);
                w[j] = __fsub_rn(w[j], __fmul_rn(__fmul_rn(lr, decay), w[j]));
                w[j] = __fsub_rn(w[j], __fmul_rn(lr, o[j]));
            }
        store_own(weight + at, w, wide, count);
        if (copy)
            store_own(copy + at, w, wide, count);
    }
}

template <typename Copy, typename Step>
static enum hd_status step_launch(struct hd_cuda_stream *s, const struct hd_step_along_args *a)
{
    const bool wide = pack_fits<float, MOMENTS_HALF>(a->weight, 0) &&
                      pack_fits<Copy, MOMENTS_HALF>((const Copy *)a->copy, 0) &&
                      pack_fits<Step, MOMENTS_HALF>((const Step *)a->step, 0);

    return HD_LAUNCH(s, (step_weights<Copy, Step>),
                     dim3(grid_of(s, divide_up(a->N, ONE_THREADS * MOMENTS_OWN), ONE_RESIDENT)),
                     dim3(ONE_THREADS), 0, a->weight, (Copy *)a->copy, (const Step *)a->step,
                     a->block, a->ranges, a->N, a->range_count, wide);
}

extern "C" enum hd_status hd_cuda_step_along(struct hd_cuda_stream *s,
                                             const struct hd_step_along_args *a)
{
    if (a->N == 0 || a->range_count == 0)
        return HD_OK;
    if (a->dtype != HD_F32 && a->dtype != HD_BF16)
        return hd_err(HD_UNSUPPORTED, "step_along: the step is bf16 or fp32, not %s",
                      hd_dtype_name(a->dtype));
    HD_CUDA_FLOATS(a->copy ? a->copy_dtype : HD_F32, T,
                   if (a->dtype == HD_F32) return step_launch<T, float>(s, a);
                   return step_launch<T, bf16>(s, a));
}

/* ---- the average of weights ---- */

static __global__ void __launch_bounds__(ONE_THREADS)
    average_weights(float *ema, const float *weight, const struct hd_step_state *block, int64_t N,
                    float rate, bool wide)
{
    const int64_t threads = (int64_t)gridDim.x * ONE_THREADS;

    if (block->skip_update)
        return;
    for (int64_t at = ((int64_t)blockIdx.x * ONE_THREADS + threadIdx.x) * MOMENTS_OWN; at < N;
         at += threads * MOMENTS_OWN) {
        const int64_t count = at + MOMENTS_OWN < N ? (int64_t)MOMENTS_OWN : N - at;
        float e[MOMENTS_OWN], w[MOMENTS_OWN];

        load_own(e, ema + at, wide, count);
        load_own(w, weight + at, wide, count);
#pragma unroll
        for (int j = 0; j < MOMENTS_OWN; j++)
            if (j < count)
                e[j] = __fadd_rn(e[j], __fmul_rn(rate, __fsub_rn(w[j], e[j])));
        store_own(ema + at, e, wide, count);
    }
}

extern "C" enum hd_status hd_cuda_ema(struct hd_cuda_stream *s, const struct hd_ema_args *a)
{
    const bool wide =
        pack_fits<float, MOMENTS_HALF>(a->ema, 0) && pack_fits<float, MOMENTS_HALF>(a->weight, 0);

    if (a->N == 0)
        return HD_OK;
    return HD_LAUNCH(s, average_weights,
                     dim3(grid_of(s, divide_up(a->N, ONE_THREADS * MOMENTS_OWN), ONE_RESIDENT)),
                     dim3(ONE_THREADS), 0, a->ema, a->weight, a->block, a->N, a->rate, wide);
}

/* ---- pieces ---- */

/* Copies the elements of a piece by all blocks with its y. */
template <typename Word>
static __global__ void __launch_bounds__(ONE_THREADS)
    move_piece(Word *out, const Word *inp, const struct hd_piece *pieces, bool gathers)
{
    const struct hd_piece p = pieces[blockIdx.y];

    for (int64_t i = (int64_t)blockIdx.x * ONE_THREADS + threadIdx.x; i < p.count;
         i += (int64_t)gridDim.x * ONE_THREADS) {
        const int64_t in_box = p.begin + i;
        const int64_t matrix = p.origin + in_box / p.columns * p.pitch + in_box % p.columns;
        const int64_t packed = p.packed + i;

        out[gathers ? packed : matrix] = inp[gathers ? matrix : packed];
    }
}

extern "C" enum hd_status hd_cuda_move_pieces(struct hd_cuda_stream *s,
                                              const struct hd_move_pieces_args *a)
{
    enum { GRID_Y_MAX = 65535 };
    const int64_t blocks =
        a->piece_count ? divide_up(a->N / a->piece_count + 1, ONE_THREADS * 4) : 0;
    enum hd_status st = HD_OK;

    for (int64_t first = 0; !st && first < a->piece_count; first += GRID_Y_MAX) {
        const int64_t count =
            a->piece_count - first < GRID_Y_MAX ? a->piece_count - first : (int64_t)GRID_Y_MAX;
        const dim3 grid((unsigned)(blocks < 1024 ? blocks : 1024), (unsigned)count);

        if (hd_dtype_size(a->dtype) == 4)
            st = HD_LAUNCH(s, move_piece<uint32_t>, grid, dim3(ONE_THREADS), 0, (uint32_t *)a->out,
                           (const uint32_t *)a->inp, a->pieces + first, a->gathers);
        else
            st = HD_LAUNCH(s, move_piece<uint16_t>, grid, dim3(ONE_THREADS), 0, (uint16_t *)a->out,
                           (const uint16_t *)a->inp, a->pieces + first, a->gathers);
    }
    return st;
}
