/* moe_route: the router of a mixture of experts: noise, top-k softmax, sums, losses and gradients.
 * Everything is fp32, and a row has one value per expert: some megabytes per layer.
 *
 * Bytes: route_forward reads 4 R E (12 R E with noise) and writes 4 R E + 8 R K, each once: one
 * warp per row, in registers. route_backward reads probs twice, the second time from L1, the rest
 * once. route_sums reads probs once and chosen once per 32 experts. route_noise writes 4 R E and is
 * bound by Box-Muller in double (some 200 operations per pair; in double, so that the host gets the
 * same numbers). route_totals and route_record move kilobytes. Launches cost more than the bytes.
 *
 * Order of additions: over a row's experts first per lane (e, e + 32, ...), then in a butterfly;
 * over a run's rows first per thread (r, r + n, ...), then by halves; route_record as in block.cuh,
 * in double; route_totals by ranks, then runs. The same shape gives the same bits.
 *
 * On an H100 16 us for 16,384 rows of 64 experts, of which bytes need 3. */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/random.cuh"

enum {
    ROUTE_THREADS = 256,
    ROUTE_WARPS = ROUTE_THREADS / 32,
    ROUTE_RESIDENT = 6,
    ROUTE_EXPERTS_MAX = 512
};

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

static __device__ __forceinline__ float softplus(float x) /* without overflow or underflow to 0 */
{
    return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

/* An expert and its h. Order of choice: larger h first, on a tie the lower index; NaN is last. */
struct cuda_choice {
    float h;
    int e;
};

static __device__ __forceinline__ bool is_before(struct cuda_choice a, struct cuda_choice b)
{
    return a.h > b.h || (a.h == b.h && a.e < b.e);
}

/* One warp per row of at most 32 * PER values; a lane has every 32nd value. */
template <int PER>
static __global__ void __launch_bounds__(ROUTE_THREADS) route_rows(struct hd_route_forward_args a)
{
    const int lane = (int)threadIdx.x % 32, E = (int)a.E;
    const int64_t warps = (int64_t)gridDim.x * ROUTE_WARPS;

    for (int64_t r = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32; r < a.R; r += warps) {
        float h[PER], sum = 0, chosen_sum = 0, max = 0;
        struct cuda_choice last = {INFINITY, -1};

#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int64_t at = r * a.E + lane + i * 32;

            h[i] = lane + i * 32 < E ? a.logits[at] : 0;
            if (a.noise_logits && lane + i * 32 < E)
                h[i] += a.noise[at] * softplus(a.noise_logits[at]);
        }
        for (int64_t k = 0; k < a.K; k++) { /* finds the next expert after the previous choice */
            struct cuda_choice best = {-INFINITY, INT32_MAX};
            float weight;

#pragma unroll
            for (int i = 0; i < PER; i++) {
                const struct cuda_choice one = {h[i] == h[i] ? h[i] : -INFINITY, lane + i * 32};

                if (one.e < E && is_before(last, one) && is_before(one, best))
                    best = one;
            }
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) {
                const struct cuda_choice other = {__shfl_xor_sync(0xffffffffu, best.h, distance),
                                                  __shfl_xor_sync(0xffffffffu, best.e, distance)};

                best = is_before(other, best) ? other : best;
            }
            last = best;
            max = k == 0 ? best.h : max;
            weight = expf(best.h - max);
            chosen_sum += weight;
            if (lane == k % 32) {
                a.chosen[r * a.K + k] = best.e;
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
        for (int64_t k = lane; k < a.K; k += 32) /* a lane reads what it wrote itself */
            a.gate[r * a.K + k] *= 1 / (a.renormalize ? chosen_sum : sum);
    }
}

extern "C" enum hd_status hd_cuda_route_forward(struct hd_cuda_stream *s,
                                                const struct hd_route_forward_args *a)
{
    const dim3 threads(ROUTE_THREADS);

    if (a->K < 1 || a->K > a->E)
        return hd_err(HD_INVALID, "route_forward: cannot choose %lld of %lld experts",
                      (long long)a->K, (long long)a->E);
    if (a->E > ROUTE_EXPERTS_MAX)
        return hd_err(HD_UNSUPPORTED,
                      "route_forward: the cuda backend supports at most %d experts, not %lld",
                      (int)ROUTE_EXPERTS_MAX, (long long)a->E);
    if (a->R == 0)
        return HD_OK;
    if (a->E <= 32)
        return HD_LAUNCH(s, route_rows<1>, route_grid(s, a->R), threads, 0, *a);
    if (a->E <= 64)
        return HD_LAUNCH(s, route_rows<2>, route_grid(s, a->R), threads, 0, *a);
    if (a->E <= 128)
        return HD_LAUNCH(s, route_rows<4>, route_grid(s, a->R), threads, 0, *a);
    if (a->E <= 256)
        return HD_LAUNCH(s, route_rows<8>, route_grid(s, a->R), threads, 0, *a);
    return HD_LAUNCH(s, route_rows<ROUTE_EXPERTS_MAX / 32>, route_grid(s, a->R), threads, 0, *a);
}

/* ---- sums and losses ---- */

enum { SUMS_THREADS = 1024, SUMS_EXPERTS = 32 };

/* Block (x, q) computes run q, SUMS_EXPERTS experts from x * SUMS_EXPERTS on; `columns`
 * neighbouring threads, a power of two, share a row. */
static __global__ void __launch_bounds__(SUMS_THREADS)
    route_sums(struct hd_route_sums_args a, int columns)
{
    HD_SHARED(float, sums, SUMS_THREADS);
    HD_SHARED(int, counts, SUMS_EXPERTS);
    const int column = (int)threadIdx.x % columns, group = (int)threadIdx.x / columns;
    const int groups = SUMS_THREADS / columns;
    const int64_t rows = a.R / a.Q, q = blockIdx.y, first = (int64_t)blockIdx.x * SUMS_EXPERTS;
    const int64_t e = first + column;
    float sum = 0;

    if (threadIdx.x < SUMS_EXPERTS)
        counts[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = q * rows * a.K + threadIdx.x; i < (q + 1) * rows * a.K; i += SUMS_THREADS) {
        const int64_t at = a.chosen[i] - first;

        if (at >= 0 && at < SUMS_EXPERTS)
            (void)atomicAdd(&counts[at], 1);
    }
    if (e < a.E)
#pragma unroll 8
        for (int64_t r = q * rows + group; r < (q + 1) * rows; r += groups)
            sum += a.probs[r * a.E + e];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = groups / 2; half > 0; half /= 2) {
        if (group < half)
            sums[threadIdx.x] += sums[threadIdx.x + half * columns];
        __syncthreads();
    }
    if (group == 0 && e < a.E) {
        a.prob_sums[q * a.E + e] = sums[column];
        a.counts[q * a.E + e] = counts[column];
    }
}

extern "C" enum hd_status hd_cuda_route_sums(struct hd_cuda_stream *s,
                                             const struct hd_route_sums_args *a)
{
    int columns = 1;

    if (a->Q == 0 || a->E == 0)
        return HD_OK;
    while (columns < SUMS_EXPERTS && columns < a->E)
        columns *= 2;
    return HD_LAUNCH(s, route_sums, dim3((unsigned)divide_up(a->E, SUMS_EXPERTS), (unsigned)a->Q),
                     dim3(SUMS_THREADS), 0, *a, columns);
}

/* The number of the piece that is run `run` of rank p (see route_totals in ops_moe.h). */
static __device__ __forceinline__ int64_t piece_of(int64_t p, int64_t run, int64_t P)
{
    return run ? 2 * P - 1 - p : p;
}

/* One thread per run q and expert e: computes taken, and, if the run is the first one of its
 * sequence, the sequence's sums. */
static __global__ void __launch_bounds__(ROUTE_THREADS) route_totals(struct hd_route_totals_args a)
{
    const int64_t n = (int64_t)blockIdx.x * ROUTE_THREADS + threadIdx.x;
    const int64_t q = n / a.E, e = n % a.E, b = q / a.runs;
    const int64_t own = piece_of(a.rank, q % a.runs, a.P);
    int32_t count = 0, taken = 0;
    float sum = 0;

    if (q >= a.Q)
        return;
    for (int64_t p = 0; p < a.P; p++)
        for (int64_t run = 0; run < a.runs; run++) {
            const int64_t from = (p * a.Q + b * a.runs + run) * a.E + e;

            count += a.all_counts[from];
            taken += piece_of(p, run, a.P) < own ? a.all_counts[from] : 0;
            sum += a.all_prob_sums[from];
        }
    a.taken[n] = taken;
    if (q % a.runs == 0) {
        a.counts[b * a.E + e] = count;
        a.prob_sums[b * a.E + e] = sum;
    }
}

extern "C" enum hd_status hd_cuda_route_totals(struct hd_cuda_stream *s,
                                               const struct hd_route_totals_args *a)
{
    const int64_t blocks = divide_up(a->Q * a->E, ROUTE_THREADS);

    if (blocks == 0)
        return HD_OK;
    return HD_LAUNCH(s, route_totals, dim3((unsigned)blocks), dim3(ROUTE_THREADS), 0, *a);
}

enum { ROUTE_RECORD_THREADS = 1024 };

static __device__ __forceinline__ int64_t dropped_of(const struct hd_route_record_args &a,
                                                     int64_t at)
{
    const int64_t room = a.capacity - (a.taken ? a.taken[at] : 0);
    const int64_t kept = room < 0 ? 0 : room;

    return a.capacity > 0 && a.run_counts[at] > kept ? a.run_counts[at] - kept : 0;
}

static __global__ void __launch_bounds__(ROUTE_RECORD_THREADS)
    route_record(struct hd_route_record_args a)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    HD_SHARED(int64_t, shared_count, BLOCK_WARPS);
    const int64_t B = a.Q / a.runs;
    double balance = 0, z = 0;
    int64_t dropped = 0;

    for (int64_t i = threadIdx.x; i < B * a.E; i += ROUTE_RECORD_THREADS)
        balance += (double)a.counts[i] * (double)a.prob_sums[i];
#pragma unroll 4
    for (int64_t r = threadIdx.x; r < a.R; r += ROUTE_RECORD_THREADS)
        z += (double)a.lse[r] * (double)a.lse[r];
    for (int64_t i = threadIdx.x; i < a.Q * a.E; i += ROUTE_RECORD_THREADS)
        dropped += dropped_of(a, i);
    for (int64_t e = threadIdx.x; e < a.E; e += ROUTE_RECORD_THREADS) {
        int64_t load = 0;

        for (int64_t q = 0; q < a.Q; q++)
            load += a.run_counts[q * a.E + e];
        a.record[HD_ROUTE_WORDS + e] += (double)load;
    }
    balance = block_add(balance, shared);
    z = block_add(z, shared);
    dropped = block_add(dropped, shared_count);
    if (threadIdx.x > 0)
        return;
    a.record[HD_ROUTE_ROWS] += (double)a.R;
    if (B > 0)
        a.record[HD_ROUTE_BALANCE] +=
            balance * (double)(a.R / B) * (double)a.E / ((double)a.K * (double)a.S * (double)a.S);
    a.record[HD_ROUTE_Z] += z;
    a.record[HD_ROUTE_DROPPED] += (double)dropped;
}

extern "C" enum hd_status hd_cuda_route_record(struct hd_cuda_stream *s,
                                               const struct hd_route_record_args *a)
{
    return HD_LAUNCH(s, route_record, dim3(1), dim3(ROUTE_RECORD_THREADS), 0, *a);
}

/* ---- gradients ---- */

static __global__ void __launch_bounds__(ROUTE_THREADS)
    route_backward(struct hd_route_backward_args a)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * ROUTE_WARPS;
    const float scale = a.share * a.block->loss_scale;
    const float per_count =
        a.counts ? a.balance * scale * (float)a.E / ((float)a.K * (float)a.S) : 0;

    for (int64_t r = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32; r < a.R; r += warps) {
        const int32_t *counts = a.counts ? a.counts + r / (a.R / a.B) * a.E : nullptr;
        const int32_t *chosen = a.chosen + r * a.K;
        const float *probs = a.probs + r * a.E, *gate = a.gate + r * a.K;
        const float *dgate = a.dgate + r * a.K;
        float mean = 0, gate_mean = 0, common;

        if (counts)
            for (int64_t e = lane; e < a.E; e += 32)
                mean += probs[e] * (float)counts[e] * per_count;
        mean = warp_add(mean);
        for (int64_t k = 0; k < a.K; k++)
            gate_mean += gate[k] * dgate[k];
        if (!a.renormalize) /* then a gate is a probability */
            mean += gate_mean;
        common = 2 * a.z * scale * a.lse[r] - mean;
        for (int64_t e = lane; e < a.E; e += 32) {
            float d = probs[e] * ((counts ? (float)counts[e] * per_count : 0) + common);

            for (int64_t k = 0; k < a.K; k++)
                d += chosen[k] == e ? gate[k] * (dgate[k] - (a.renormalize ? gate_mean : 0)) : 0;
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
