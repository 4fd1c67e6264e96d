/* distill: the k largest logits of a row (a teacher's record), and the loss of distillation.
 *
 * One block per row. top_logits: thread t has columns t, t + 512, ... and its largest one; the block
 * takes the largest of all threads k times, and each time only the thread that had it looks for its
 * next one, so that the row is read little more than once. distill_stats reads a row twice. In
 * `distill` one thread computes the row's numbers in double, by the code of the CPU
 * (kernels/distill.h); then all threads write the gradient, in place, and thread j that of kept id j.
 * A column is found to be kept by a set of bits of its lower bits, and only then in the list.
 *
 * Sums are in the order of block.cuh, the same shape gives the same bits. Not yet measured on a GPU.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/logits.cuh"
#include "kernels/distill.h"

enum { TOP_THREADS = 512, DISTILL_THREADS = 256, KEPT_WORDS = 256, SUM_THREADS = 256 };

/* ---- The largest logits ---- */

/* A column and its y; an id of INT32_MAX: none. */
struct top_candidate {
    float y;
    int32_t id;
};

static __device__ __forceinline__ bool comes_first(struct top_candidate a, struct top_candidate b)
{
    return a.y > b.y || (a.y == b.y && a.id < b.id);
}

/* Returns the first candidate of all threads. */
static __device__ __forceinline__ struct top_candidate first_of(struct top_candidate c,
                                                                float *shared_y, int32_t *shared_id)
{
    const int warps = (int)blockDim.x / 32;

#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        struct top_candidate other;

        other.y = __shfl_xor_sync(0xffffffffu, c.y, distance);
        other.id = __shfl_xor_sync(0xffffffffu, c.id, distance);
        c = comes_first(other, c) ? other : c;
    }
    if (threadIdx.x % 32 == 0) {
        shared_y[threadIdx.x / 32] = c.y;
        shared_id[threadIdx.x / 32] = c.id;
    }
    __syncthreads();
    for (int w = 0; w < warps; w++) {
        const struct top_candidate other = {shared_y[w], shared_id[w]};

        c = comes_first(other, c) ? other : c;
    }
    __syncthreads();
    return c;
}

/* Returns this thread's first column behind `last`. */
template <enum cuda_map_kind M, typename T>
static __device__ __forceinline__ struct top_candidate
next_top(const T *logits, int64_t V, float inverse, const struct cuda_map &m,
         struct top_candidate last)
{
    struct top_candidate best = {-INFINITY, INT32_MAX};

    for (int64_t v = threadIdx.x; v < V; v += TOP_THREADS) {
        const struct top_candidate c = {mapped<M, T>(to_float(logits[v]), m) * inverse, (int32_t)v};

        if (comes_first(last, c) && comes_first(c, best))
            best = c;
    }
    return best;
}

template <enum cuda_map_kind M, typename T>
static __global__ void __launch_bounds__(TOP_THREADS)
    top_rows(struct hd_top_logits_args a, struct cuda_map m)
{
    HD_SHARED(float, shared_y, BLOCK_WARPS);
    HD_SHARED(int32_t, shared_id, BLOCK_WARPS);
    const T *logits = (const T *)a.logits + (int64_t)blockIdx.x * a.Vp;
    float *top = a.top + (int64_t)blockIdx.x * HD_TOP_WORDS(a.k);
    const float inverse = 1.0f / a.temperature;
    struct top_candidate mine =
        next_top<M, T>(logits, a.V, inverse, m, top_candidate{INFINITY, -1});
    float max = -INFINITY, sum = 0;

    for (int64_t j = 0; j < a.k; j++) {
        const struct top_candidate c = first_of(mine, shared_y, shared_id);

        max = j == 0 ? c.y : max;
        if (threadIdx.x == 0) {
            top[2 + 2 * j] = c.y;
            top[3 + 2 * j] = c.id == INT32_MAX ? -1.0f : (float)(a.first + c.id);
        }
        if (c.id != INT32_MAX && c.id == mine.id)
            mine = next_top<M, T>(logits, a.V, inverse, m, c);
    }
    for (int64_t v = threadIdx.x; v < a.V; v += TOP_THREADS)
        sum += exp_of<T>(mapped<M, T>(to_float(logits[v]), m) * inverse - max);
    sum = block_add(sum, shared_y);
    if (threadIdx.x > 0)
        return;
    top[0] = max;
    top[1] = sum;
}

template <enum cuda_map_kind M>
static enum hd_status top_typed(struct hd_cuda_stream *s, const struct hd_top_logits_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (top_rows<M, T>), dim3((unsigned)a->R), dim3(TOP_THREADS), 0,
                                    *a, map_of(a->map)));
}

extern "C" enum hd_status hd_cuda_top_logits(struct hd_cuda_stream *s,
                                             const struct hd_top_logits_args *a)
{
    if (a->R == 0)
        return HD_OK;
    HD_WITH_MAP(a->map, M, return top_typed<M>(s, a));
}

/* Merges the descending lists of all ranks, in one thread per row. Of equal ones the lower rank's,
 * whose ids are lower, comes first. */
static __global__ void __launch_bounds__(SUM_THREADS) merge_tops(struct hd_top_merge_args a)
{
    const int64_t r = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    float *out = a.out + r * 2 * a.k;
    double max = -INFINITY, sum = 0, log_z;
    float last = INFINITY, last_id = -1;

    if (r >= a.R)
        return;
    for (int64_t p = 0; p < a.P; p++)
        max = fmax(max, (double)a.top[(p * a.R + r) * HD_TOP_WORDS(a.k)]);
    for (int64_t p = 0; p < a.P; p++) {
        const float *top = a.top + (p * a.R + r) * HD_TOP_WORDS(a.k);

        sum += top[1] > 0 ? (double)top[1] * exp((double)top[0] - max) : 0;
    }
    log_z = max + log(sum);
    for (int64_t j = 0; j < a.k; j++) {
        float y = -INFINITY, id = -1;

        for (int64_t p = 0; p < a.P; p++) {
            const float *list = a.top + (p * a.R + r) * HD_TOP_WORDS(a.k) + 2;
            int64_t at = 0;

            while (at < a.k &&
                   (list[2 * at] > last || (list[2 * at] == last && list[2 * at + 1] <= last_id)))
                at++;
            if (at < a.k && list[2 * at] > y) {
                y = list[2 * at];
                id = list[2 * at + 1];
            }
        }
        out[2 * j] = (float)((double)y - log_z);
        out[2 * j + 1] = id;
        last = y;
        last_id = id;
    }
}

extern "C" enum hd_status hd_cuda_top_merge(struct hd_cuda_stream *s,
                                            const struct hd_top_merge_args *a)
{
    if (a->R == 0)
        return HD_OK;
    return HD_LAUNCH(s, merge_tops, dim3((unsigned)((a->R + SUM_THREADS - 1) / SUM_THREADS)),
                     dim3(SUM_THREADS), 0, *a);
}

/* ---- Kept columns ---- */

/* Makes the set of a row's kept columns; all threads call it. */
static __device__ __forceinline__ void make_set(unsigned *set, const int32_t *ids, int64_t k,
                                                int64_t first)
{
    for (int i = (int)threadIdx.x; i < KEPT_WORDS; i += DISTILL_THREADS)
        set[i] = 0;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < k; j += DISTILL_THREADS)
        if (ids[j] >= first) {
            const int64_t column = ids[j] - first;

            (void)atomicOr(&set[column / 32 % KEPT_WORDS], 1u << (column % 32));
        }
    __syncthreads();
}

static __device__ __forceinline__ bool is_kept(const unsigned *set, const int32_t *ids, int64_t k,
                                               int64_t first, int64_t column)
{
    if (!(set[column / 32 % KEPT_WORDS] >> (column % 32) & 1u))
        return false;
    for (int64_t j = 0; j < k; j++)
        if (ids[j] >= 0 && ids[j] - first == column)
            return true;
    return false;
}

/* ---- Statistics ---- */

template <enum cuda_map_kind M, typename T>
static __global__ void __launch_bounds__(DISTILL_THREADS)
    distill_stats_rows(struct hd_distill_stats_args a, struct cuda_map m)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    HD_SHARED(unsigned, set, KEPT_WORDS);
    const int64_t r = blockIdx.x, target = a.target[r] - a.first;
    const T *logits = (const T *)a.logits + r * a.Vp;
    const int32_t *ids = a.ids + r * a.k;
    float *stats = a.stats + r * HD_DISTILL_WORDS(a.k);
    float max = -INFINITY, real_max = -INFINITY, sum = 0, rest = 0;

    make_set(set, ids, a.k, a.first);
    for (int64_t v = threadIdx.x; v < a.V; v += DISTILL_THREADS) {
        const float z = mapped<M, T>(to_float(logits[v]), m);

        max = fmaxf(max, z);
        real_max = v < a.real ? fmaxf(real_max, z) : real_max;
    }
    max = block_max(max, shared);
    real_max = block_max(real_max, shared) / a.temperature;
    for (int64_t v = threadIdx.x; v < a.V; v += DISTILL_THREADS) {
        const float z = mapped<M, T>(to_float(logits[v]), m);

        sum += exp_of<T>(z - max);
        if (v < a.real && !is_kept(set, ids, a.k, a.first, v))
            rest += exp_of<T>(z / a.temperature - real_max);
    }
    sum = block_add(sum, shared);
    rest = block_add(rest, shared);
    for (int64_t j = threadIdx.x; j < a.k; j += DISTILL_THREADS) {
        const int64_t column = ids[j] < 0 ? -1 : ids[j] - a.first;

        stats[6 + j] = column >= 0 && column < a.real
                           ? mapped<M, T>(to_float(logits[column]), m) / a.temperature
                           : 0;
    }
    if (threadIdx.x > 0)
        return;
    stats[0] = max;
    stats[1] = sum;
    stats[2] = target >= 0 && target < a.V ? mapped<M, T>(to_float(logits[target]), m) : 0;
    stats[3] = target >= 0 && target < a.V ? 1 : 0;
    stats[4] = real_max;
    stats[5] = rest;
}

template <enum cuda_map_kind M>
static enum hd_status distill_stats_typed(struct hd_cuda_stream *s,
                                          const struct hd_distill_stats_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (distill_stats_rows<M, T>), dim3((unsigned)a->R),
                                    dim3(DISTILL_THREADS), 0, *a, map_of(a->map)));
}

extern "C" enum hd_status hd_cuda_distill_stats(struct hd_cuda_stream *s,
                                                const struct hd_distill_stats_args *a)
{
    if (a->R == 0)
        return HD_OK;
    HD_WITH_MAP(a->map, M, return distill_stats_typed<M>(s, a));
}

/* ---- The loss ---- */

/* Returns a gradient times the slope of a cap at the mapped logit z. */
template <enum cuda_map_kind M>
static __device__ __forceinline__ float sloped(float gradient, float z, const struct cuda_map &m)
{
    return M == MAP_CAP ? gradient * cap_slope(z, m) : gradient;
}

template <enum cuda_map_kind M, typename T>
static __global__ void __launch_bounds__(DISTILL_THREADS)
    distill_rows(struct hd_distill_args a, struct cuda_map m)
{
    HD_SHARED(struct hd_distill_row, shared_row, 1);
    HD_SHARED(unsigned, set, KEPT_WORDS);
    const int64_t r = blockIdx.x, target = a.target[r] - a.first;
    const T *logits = (const T *)a.logits + r * a.Vp;
    T *dlogits = (T *)a.dlogits + r * a.Vp;
    const int32_t *ids = a.ids + r * a.k;
    double *losses = (double *)a.scratch + 2 * r;
    struct hd_distill_factors f;
    struct hd_distill_row row;

    if (threadIdx.x == 0) {
        row = hd_distill_row_of(&a, r);
        row.valid = row.valid && a.target[r] >= 0;
        losses[0] = row.valid ? row.label_loss : -INFINITY; /* -infinity: no valid target */
        losses[1] = row.divergence;
        shared_row[0] = row;
    }
    if (!a.dlogits)
        return;
    make_set(set, ids, a.k, a.first);
    row = shared_row[0];
    if (!row.valid) {
        for (int64_t v = threadIdx.x; v < a.Vp; v += DISTILL_THREADS)
            dlogits[v] = from_float<T>(0);
        return;
    }
    f = hd_distill_factors_of(&a, &row);
    for (int64_t v = threadIdx.x; v < a.Vp; v += DISTILL_THREADS) {
        const float z = v < a.V ? mapped<M, T>(to_float(logits[v]), m) : 0;
        float d = v < a.V ? exp_of<T>(z - (float)row.label_max) * (float)f.label : 0;

        if (v < a.real) {
            if (is_kept(set, ids, a.k, a.first, v))
                continue;
            if (f.rest != 0)
                d += exp_of<T>(z / a.temperature - (float)row.max) * (float)f.rest;
        }
        if (v == target)
            d -= (float)f.less;
        dlogits[v] = from_float<T>(v < a.V ? sloped<M>(d, z, m) : 0);
    }
    for (int64_t j = threadIdx.x; j < a.k; j += DISTILL_THREADS) {
        const int64_t column = ids[j] < 0 ? -1 : ids[j] - a.first;

        if (column >= 0 && column < a.real)
            dlogits[column] = from_float<T>(
                sloped<M>((float)hd_distill_kept_gradient(&a, &row, &f, r, j),
                          (float)(hd_distill_kept(&a, r, j) * (double)a.temperature), m));
    }
}

static __global__ void __launch_bounds__(SUM_THREADS) add_divergences(struct hd_distill_args a)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    const double *losses = (const double *)a.scratch;
    double loss = 0, count = 0, distill = 0, distilled = 0;
    int outside = 0;

    for (int64_t r = threadIdx.x; r < a.R; r += SUM_THREADS) {
        if (a.target[r] < 0)
            continue;
        if (losses[2 * r] == -INFINITY) {
            outside = 1;
            continue;
        }
        loss += losses[2 * r];
        count += 1;
        if (a.ids[r * a.k] >= 0) {
            distill += losses[2 * r + 1];
            distilled += 1;
        }
    }
    loss = block_add(loss, shared);
    count = block_add(count, shared);
    distill = block_add(distill, shared);
    distilled = block_add(distilled, shared);
    outside = __syncthreads_or(outside);
    if (threadIdx.x > 0)
        return;
    a.block->loss_sum += loss;
    a.block->target_count += (int64_t)count;
    a.block->distill_sum += distill;
    a.block->distill_rows += distilled;
    if (outside)
        a.block->overflow = 1;
}

template <enum cuda_map_kind M>
static enum hd_status distill_typed(struct hd_cuda_stream *s, const struct hd_distill_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T,
                   return HD_LAUNCH(s, (distill_rows<M, T>), dim3((unsigned)a->R),
                                    dim3(DISTILL_THREADS), 0, *a, map_of(a->map)));
}

extern "C" enum hd_status hd_cuda_distill(struct hd_cuda_stream *s, const struct hd_distill_args *a)
{
    enum hd_status st;

    if (a->R == 0)
        return HD_OK;
    HD_WITH_MAP(a->map, M, st = distill_typed<M>(s, a));
    return st ? st : HD_LAUNCH(s, add_divergences, dim3(1), dim3(SUM_THREADS), 0, *a);
}
