/* moe_route: the router of a mixture of experts: noise, scores, choice, sums, losses and gradients.
 * All values are fp32, one per row and expert: some megabytes per layer.
 *
 * Bytes: route_forward reads 4 R E (12 R E with noise) and writes 4 R E + 8 R K, each once: one
 * warp per row, in registers. route_backward reads probs twice, the second time from L1, the rest
 * once. route_counts reads each document's choices once, with a block for each document.
 * route_record reads probs once. route_noise writes 4 R E and is bound by Box-Muller in double
 * (some 200 operations per pair; in double, so that the host gets the same numbers). Launches cost
 * more than the bytes.
 *
 * Order of additions: over a row's experts first per lane (e, e + 32, ...), then in a butterfly;
 * route_record over rows first per warp (r, r + n, ...), then by warps and blocks, in double. The
 * same shape gives the same bits.
 *
 * On an H100 16 us for 16,384 rows of 64 experts, of which bytes need 3.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/random.cuh"
#include "kernels/document.h"

extern "C" {
#include "kernels/costs/costs.h"
}

enum {
    ROUTE_THREADS = 256,
    ROUTE_WARPS = ROUTE_THREADS / 32,
    ROUTE_RESIDENT = 6,
    ROUTE_EXPERTS_MAX = 512
};
#define ROUTE_NO_SCORE 1e-20f /* added to sums of scores, which may all underflow */

static dim3 route_grid(const struct hd_cuda_stream *s, int64_t rows)
{
    return dim3(grid_of(s, divide_up(rows, ROUTE_WARPS), ROUTE_RESIDENT));
}

/* ---- noise ---- */

static __global__ void __launch_bounds__(ROUTE_THREADS) route_noise(struct hd_route_noise_args a)
{
    const int64_t pairs = (a.E + 1) / 2, threads = (int64_t)gridDim.x * ROUTE_THREADS;
    const uint64_t key = random_key(a.key, (uint64_t)a.block->step);

    for (int64_t n = (int64_t)blockIdx.x * ROUTE_THREADS + threadIdx.x; n < a.R * pairs;
         n += threads) {
        const int64_t r = n / pairs, i = n % pairs;
        const float2 pair =
            random_normals(key, (uint32_t)i, (uint32_t)a.index[r], 0, (uint32_t)a.sample[r]);

        a.noise[r * a.E + 2 * i] = pair.x;
        if (2 * i + 1 < a.E)
            a.noise[r * a.E + 2 * i + 1] = pair.y;
    }
}

extern "C" enum hd_status hd_cuda_route_noise(struct hd_cuda_stream *s,
                                              const struct hd_route_noise_args *a)
{
    const int64_t blocks = divide_up(a->R * ((a->E + 1) / 2), ROUTE_THREADS);

    if (blocks == 0)
        return HD_OK;
    return HD_LAUNCH(s, route_noise, dim3(grid_of(s, blocks, ROUTE_RESIDENT)), dim3(ROUTE_THREADS),
                     0, *a);
}

/* ---- choice ---- */

/* Returns log(1 + exp(x)) without overflow, and without underflow to 0. */
static __device__ __forceinline__ float softplus(float x)
{
    return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

/* An expert and its score h. Order of choice: larger h first, on a tie the lower index; NaN is
 * last. */
struct cuda_choice {
    float h;
    int e;
};

static __device__ __forceinline__ bool is_before(struct cuda_choice a, struct cuda_choice b)
{
    return a.h > b.h || (a.h == b.h && a.e < b.e);
}

/* Stores that row r, which is no token, chooses no expert. */
static __device__ __forceinline__ void leave_out(const struct hd_route_forward_args &a, int64_t r,
                                                 int lane)
{
    for (int64_t e = lane; e < a.E; e += 32)
        a.probs[r * a.E + e] = 0;
    for (int64_t k = lane; k < a.K; k += 32) {
        a.chosen[r * a.K + k] = -1;
        a.gate[r * a.K + k] = 0;
    }
    if (lane == 0)
        a.lse[r] = 0;
}

static __device__ __forceinline__ float route_scale(const struct hd_route_form &form)
{
    return form.scale > 0 ? form.scale : 1;
}

/* Loads a row's logits, with their noise; a lane has every 32nd value, 0 beyond the row. */
template <int PER>
static __device__ __forceinline__ void load_logits(const struct hd_route_forward_args &a, int64_t r,
                                                   int lane, float *h)
{
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int64_t at = r * a.E + lane + i * 32;

        h[i] = lane + i * 32 < (int)a.E ? a.logits[at] : 0;
        if (a.noise_logits && lane + i * 32 < (int)a.E)
            h[i] += a.noise[at] * softplus(a.noise_logits[at]);
    }
}

/* Returns the first of the warp's values in the order of choice after `last`; NaN counts as
 * -infinity. */
template <int PER>
static __device__ __forceinline__ struct cuda_choice next_choice(const float *h, int count,
                                                                 int lane, struct cuda_choice last)
{
    struct cuda_choice best = {-INFINITY, INT32_MAX};

#pragma unroll
    for (int i = 0; i < PER; i++) {
        const struct cuda_choice one = {h[i] == h[i] ? h[i] : -INFINITY, lane + i * 32};

        if (one.e < count && is_before(last, one) && is_before(one, best))
            best = one;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const struct cuda_choice other = {__shfl_xor_sync(0xffffffffu, best.h, distance),
                                          __shfl_xor_sync(0xffffffffu, best.e, distance)};

        best = is_before(other, best) ? other : best;
    }
    return best;
}

/* Returns the value of group g of `size` experts, from the values v of all experts of the row. */
template <int PER>
static __device__ __forceinline__ float group_value(const struct hd_route_form &form,
                                                    const float *v, int lane, int g, int size)
{
    float best = -INFINITY, second = -INFINITY;

#pragma unroll
    for (int i = 0; i < PER; i++)
        if ((lane + i * 32) / size == g) {
            second = fmaxf(second, fminf(best, v[i]));
            best = fmaxf(best, v[i]);
        }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, distance);

        second = fmaxf(fmaxf(second, __shfl_xor_sync(0xffffffffu, second, distance)),
                       fminf(best, other));
        best = fmaxf(best, other);
    }
    return form.rule == HD_ROUTE_GROUPS_BEST_TWO ? best + second : best;
}

/* Sets the values v of experts in groups that are not kept to -infinity. */
template <int PER>
static __device__ __forceinline__ void keep_groups(const struct hd_route_forward_args &a, int lane,
                                                   float *v)
{
    const int groups = (int)a.form.groups, size = (int)a.E / (groups > 1 ? groups : 1);
    float value[2] = {-INFINITY, -INFINITY}; /* values of groups lane and lane + 32 */
    struct cuda_choice last = {INFINITY, -1};
    uint64_t kept = 0;

    if (groups <= 1)
        return;
    for (int g = 0; g < groups; g++) {
        const float one = group_value<PER>(a.form, v, lane, g, size);

        value[0] = g == lane ? one : value[0];
        value[1] = g == lane + 32 ? one : value[1];
    }
    for (int64_t i = 0; i < a.form.kept; i++) {
        last = next_choice<2>(value, groups, lane, last);
        kept |= (uint64_t)1 << last.e;
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (lane + i * 32 < (int)a.E && !(kept >> ((lane + i * 32) / size) & 1))
            v[i] = -INFINITY;
}

/* Replaces a row's logits by its scores and stores them. Returns lse. */
template <int PER>
static __device__ __forceinline__ float scores(const struct hd_route_forward_args &a, int64_t r,
                                               int lane, float *h)
{
    const bool sigmoid = a.form.score == HD_ROUTE_SIGMOID;
    const int E = (int)a.E;
    float max = -INFINITY, sum = 0;

#pragma unroll
    for (int i = 0; i < PER; i++)
        max = lane + i * 32 < E ? fmaxf(max, h[i]) : max;
    max = warp_max(max);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        h[i] = lane + i * 32 >= E ? 0 : sigmoid ? 1 / (1 + expf(-h[i])) : expf(h[i] - max);
        sum += h[i];
    }
    sum = warp_add(sum);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        h[i] *= sigmoid ? 1 : 1 / sum;
        if (lane + i * 32 < E)
            a.probs[r * a.E + lane + i * 32] = h[i];
    }
    return sigmoid ? logf(sum + ROUTE_NO_SCORE) : max + logf(sum);
}

/* Routes by scores: a sigmoid's, with a select bias, or in groups. As route_rows, one row per
 * warp. */
template <int PER>
static __global__ void __launch_bounds__(ROUTE_THREADS)
    route_by_scores(struct hd_route_forward_args a)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * ROUTE_WARPS;

    for (int64_t r = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32; r < a.R; r += warps) {
        float h[PER], v[PER], lse, sum = 0, factor;
        struct cuda_choice last = {INFINITY, -1};

        if (a.lengths && !a.lengths[r]) {
            leave_out(a, r, lane);
            continue;
        }
        load_logits<PER>(a, r, lane, h);
        lse = scores<PER>(a, r, lane, h);
        if (lane == 0)
            a.lse[r] = lse;
#pragma unroll
        for (int i = 0; i < PER; i++)
            v[i] = lane + i * 32 >= (int)a.E ? -INFINITY
                   : a.select_bias           ? h[i] + a.select_bias[lane + i * 32]
                                             : h[i];
        keep_groups<PER>(a, lane, v);
        for (int64_t k = 0; k < a.K; k++) {
            float gate = 0;

            last = next_choice<PER>(v, (int)a.E, lane, last);
#pragma unroll
            for (int i = 0; i < PER; i++)
                gate = last.e == lane + i * 32 ? h[i] : gate;
            gate = __shfl_sync(0xffffffffu, gate, last.e % 32);
            sum += gate;
            if (lane == k % 32) {
                a.chosen[r * a.K + k] = last.e;
                a.gate[r * a.K + k] = gate;
            }
        }
        factor = route_scale(a.form) / (a.renormalize ? sum + ROUTE_NO_SCORE : 1);
        for (int64_t k = lane; k < a.K; k += 32) /* no barrier: a lane reads only its own writes */
            a.gate[r * a.K + k] *= factor;
    }
}

/* Routes one row of at most 32 * PER values per warp; a lane has every 32nd value. */
template <int PER>
static __global__ void __launch_bounds__(ROUTE_THREADS) route_rows(struct hd_route_forward_args a)
{
    const int lane = (int)threadIdx.x % 32, E = (int)a.E;
    const int64_t warps = (int64_t)gridDim.x * ROUTE_WARPS;

    for (int64_t r = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32; r < a.R; r += warps) {
        float h[PER], sum = 0, chosen_sum = 0, max = 0;
        struct cuda_choice last = {INFINITY, -1};

        if (a.lengths && !a.lengths[r]) {
            leave_out(a, r, lane);
            continue;
        }
        load_logits<PER>(a, r, lane, h);
        for (int64_t k = 0; k < a.K; k++) {
            float weight;

            last = next_choice<PER>(h, E, lane, last);
            max = k == 0 ? last.h : max;
            weight = expf(last.h - max);
            chosen_sum += weight;
            if (lane == k % 32) {
                a.chosen[r * a.K + k] = last.e;
                a.gate[r * a.K + k] = weight;
            }
        }
#pragma unroll
        for (int i = 0; i < PER; i++) {
            h[i] = lane + i * 32 < E ? expf(h[i] - max) : 0;
            sum += h[i];
        }
        sum = warp_add(sum);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (lane + i * 32 < E)
                a.probs[r * a.E + lane + i * 32] = h[i] * (1 / sum);
        if (lane == 0)
            a.lse[r] = max + logf(sum);
        for (int64_t k = lane; k < a.K; k += 32) /* no barrier: a lane reads only its own writes */
            a.gate[r * a.K + k] *= route_scale(a.form) / (a.renormalize ? chosen_sum : sum);
    }
}

/* Launches the kernel of this way to choose, for rows of at most 32 * PER experts. */
template <int PER>
static enum hd_status route_up_to(struct hd_cuda_stream *s, const struct hd_route_forward_args *a)
{
    if (a->form.score == HD_ROUTE_SIGMOID || a->select_bias || a->form.groups > 1)
        return HD_LAUNCH(s, route_by_scores<PER>, route_grid(s, a->R), dim3(ROUTE_THREADS), 0, *a);
    return HD_LAUNCH(s, route_rows<PER>, route_grid(s, a->R), dim3(ROUTE_THREADS), 0, *a);
}

extern "C" enum hd_status hd_cuda_route_forward(struct hd_cuda_stream *s,
                                                const struct hd_route_forward_args *a)
{
    const enum hd_status st = hd_costs_route_check(a);

    if (st)
        return st;
    if (a->E > ROUTE_EXPERTS_MAX)
        return hd_err(HD_UNSUPPORTED,
                      "route_forward: the cuda backend supports at most %d experts, not %lld",
                      (int)ROUTE_EXPERTS_MAX, (long long)a->E);
    if (a->R == 0)
        return HD_OK;
    if (a->E <= 32)
        return route_up_to<1>(s, a);
    if (a->E <= 64)
        return route_up_to<2>(s, a);
    if (a->E <= 128)
        return route_up_to<4>(s, a);
    if (a->E <= 256)
        return route_up_to<8>(s, a);
    return route_up_to<ROUTE_EXPERTS_MAX / 32>(s, a);
}

/* ---- sums and losses ---- */

/* Counts for each document how often each expert was chosen. A block visits rows blockIdx.x, +
 * gridDim.x, ...; at the first row of a document in its run it counts the document's choices. */
static __global__ void __launch_bounds__(ROUTE_THREADS) route_counts(struct hd_route_counts_args a)
{
    HD_SHARED_DYNAMIC(int, counts);
    const int64_t run_rows = a.R / a.at.Q;

    for (int64_t r = blockIdx.x; r < a.R; r += gridDim.x) {
        const struct hd_document_row d = hd_document_of(&a.at, a.R, a.begins, a.lengths, r);
        const int64_t b = r / run_rows / a.at.runs;

        if (d.first != r || !d.length)
            continue;
        for (int64_t e = threadIdx.x; e < a.E; e += ROUTE_THREADS)
            counts[e] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x, K = (int)a.K; i < (int)d.length * K; i += ROUTE_THREADS) {
            const int64_t row = hd_row_of_place(&a.at, a.R, b, d.begin + i / K);

            (void)atomicAdd(&counts[a.chosen[row * a.K + i % K]], 1);
        }
        __syncthreads();
        for (int64_t e = threadIdx.x; e < a.E; e += ROUTE_THREADS)
            a.counts[r * a.E + e] = counts[e];
        __syncthreads();
    }
}

extern "C" enum hd_status hd_cuda_route_counts(struct hd_cuda_stream *s,
                                               const struct hd_route_counts_args *a)
{
    if (a->R == 0 || a->E == 0)
        return HD_OK;
    return HD_LAUNCH(s, route_counts, dim3(grid_of(s, a->R, ROUTE_RESIDENT)), dim3(ROUTE_THREADS),
                     (size_t)a->E * sizeof(int), *a);
}

/* Adds the router's records of all rows, one warp per row; each block stores the sums of its rows
 * in scratch, [blocks, record]. */
static __global__ void __launch_bounds__(ROUTE_THREADS) route_record(struct hd_route_record_args a)
{
    HD_SHARED_DYNAMIC(int, load);
    HD_SHARED(double, shared, BLOCK_WARPS);
    HD_SHARED(int64_t, shared_count, BLOCK_WARPS);
    const int lane = (int)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * ROUTE_WARPS;
    double *part = (double *)a.scratch + blockIdx.x * (HD_ROUTE_WORDS + a.E);
    double balance = 0, z = 0;
    int64_t rows = 0, dropped = 0;

    for (int64_t e = threadIdx.x; e < a.E; e += ROUTE_THREADS)
        load[e] = 0;
    __syncthreads();
    for (int64_t r = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32; r < a.R; r += warps) {
        const struct hd_document_row d = hd_document_of(&a.at, a.R, a.begins, a.lengths, r);
        const int32_t *counts = a.counts + d.first * a.E;
        double sum = 0;

        if (!d.length)
            continue;
        for (int64_t e = lane; e < a.E; e += 32)
            sum += (double)counts[e] * (double)a.probs[r * a.E + e];
        if (a.score == HD_ROUTE_SIGMOID)
            sum *= exp(-(double)a.lse[r]);
        balance += sum * (double)a.E / ((double)a.K * (double)d.length);
        for (int64_t k = lane; k < a.K; k += 32) {
            (void)atomicAdd(&load[a.chosen[r * a.K + k]], 1);
            dropped += a.slot[r * a.K + k] < 0;
        }
        if (lane == 0) {
            z += (double)a.lse[r] * (double)a.lse[r];
            rows++;
        }
    }
    balance = block_add(balance, shared);
    z = block_add(z, shared);
    rows = block_add(rows, shared_count);
    dropped = block_add(dropped, shared_count);
    for (int64_t e = threadIdx.x; e < a.E; e += ROUTE_THREADS)
        part[HD_ROUTE_WORDS + e] = load[e];
    if (threadIdx.x > 0)
        return;
    part[HD_ROUTE_ROWS] = (double)rows;
    part[HD_ROUTE_BALANCE] = balance;
    part[HD_ROUTE_Z] = z;
    part[HD_ROUTE_DROPPED] = (double)dropped;
}

/* Adds the router's partial records of all blocks, in order. */
static __global__ void __launch_bounds__(ROUTE_THREADS)
    route_record_sum(struct hd_route_record_args a)
{
    const int64_t words = HD_ROUTE_WORDS + a.E;
    const double *parts = (const double *)a.scratch;

    for (int64_t i = threadIdx.x; i < words; i += ROUTE_THREADS) {
        double sum = 0;

        for (int64_t block = 0; block < HD_COSTS_RECORD_BLOCKS; block++)
            sum += parts[block * words + i];
        a.record[i] += sum;
    }
}

extern "C" enum hd_status hd_cuda_route_record(struct hd_cuda_stream *s,
                                               const struct hd_route_record_args *a)
{
    const enum hd_status st = HD_LAUNCH(s, route_record, dim3(HD_COSTS_RECORD_BLOCKS),
                                        dim3(ROUTE_THREADS), (size_t)a->E * sizeof(int), *a);

    return st ? st : HD_LAUNCH(s, route_record_sum, dim3(1), dim3(ROUTE_THREADS), 0, *a);
}

/* ---- gradients ---- */

static __global__ void __launch_bounds__(ROUTE_THREADS)
    route_backward(struct hd_route_backward_args a)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * ROUTE_WARPS;
    const float scale = a.share * a.block->loss_scale * a.block->loss_per_token;

    for (int64_t r = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32; r < a.R; r += warps) {
        const struct hd_document_row doc = hd_document_of(&a.at, a.R, a.begins, a.lengths, r);
        const int32_t *counts = a.counts && doc.length ? a.counts + doc.first * a.E : nullptr;
        const float per_count =
            counts ? a.balance * scale * (float)a.E / ((float)a.K * (float)doc.length) : 0;
        const int32_t *chosen = a.chosen + r * a.K;
        const float *probs = a.probs + r * a.E, *gate = a.gate + r * a.K;
        const float *dgate = a.dgate + r * a.K;
        const bool sigmoid = a.form.score == HD_ROUTE_SIGMOID;
        const float inverse = sigmoid ? expf(-a.lse[r]) : 1; /* 1 / sum of the probs */
        float mean = 0, gate_mean = 0, common;

        if (counts)
            for (int64_t e = lane; e < a.E; e += 32)
                mean += probs[e] * inverse * (float)counts[e] * per_count;
        mean = warp_add(mean);
        for (int64_t k = 0; k < a.K; k++)
            gate_mean += gate[k] * dgate[k];
        if (a.renormalize)
            gate_mean /= route_scale(a.form);
        else if (!sigmoid) /* then a gate is the scale times a probability */
            mean += gate_mean;
        common = 2 * a.z * scale * a.lse[r] - mean;
        for (int64_t e = lane; e < a.E; e += 32) {
            float d = probs[e] * inverse * ((counts ? (float)counts[e] * per_count : 0) + common);

            for (int64_t k = 0; k < a.K; k++)
                d += chosen[k] == e ? gate[k] * (dgate[k] - (a.renormalize ? gate_mean : 0)) : 0;
            d *= sigmoid ? 1 - probs[e] : 1;
            a.dlogits[r * a.E + e] = d;
            if (a.noise_logits)
                a.dnoise_logits[r * a.E + e] =
                    __fdividef(d * a.noise[r * a.E + e], 1 + expf(-a.noise_logits[r * a.E + e]));
        }
    }
}

extern "C" enum hd_status hd_cuda_route_backward(struct hd_cuda_stream *s,
                                                 const struct hd_route_backward_args *a)
{
    if (a->R == 0)
        return HD_OK;
    return HD_LAUNCH(s, route_backward, route_grid(s, a->R), dim3(ROUTE_THREADS), 0, *a);
}

/* ---- select bias ---- */

static __global__ void __launch_bounds__(ROUTE_THREADS) route_bias(struct hd_route_bias_args a)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    double sum = 0; /* sum of integers: exact in any order */

    for (int64_t e = threadIdx.x; e < a.E; e += ROUTE_THREADS)
        sum += a.load[e];
    sum = block_add(sum, shared);
    if (a.block->skip_update)
        return;
    for (int64_t e = threadIdx.x; e < a.E; e += ROUTE_THREADS) {
        const double lack = sum - (double)a.E * a.load[e];

        a.bias[e] += lack > 0 ? a.rate : lack < 0 ? -a.rate : 0;
    }
}

extern "C" enum hd_status hd_cuda_route_bias(struct hd_cuda_stream *s,
                                             const struct hd_route_bias_args *a)
{
    return HD_LAUNCH(s, route_bias, dim3(1), dim3(ROUTE_THREADS), 0, *a);
}
