/* moe_rows: moves rows of a mixture of experts: into expert order, back into row order weighted by
 * the gates, and between the (rank, expert) and (expert, rank) orders.
 *
 * Bytes: permute reads R rows and writes one row per slot, backward the reverse; so does combine,
 * whose backward reads a row's gradient once per choice, mostly from cache; regroup moves T rows.
 * Rows are moved in units of 16 bytes if addresses and widths are aligned, four per lane in flight:
 * 64 bytes times 1024 threads per multiprocessor, 3.5 times what 3.3 TB/s at 700 ns latency need.
 * The slot is looked up once, by one warp per row. assign reads the choices three times, some
 * hundred kilobytes, with one block per run; its time is 3 x R K / (Q 1024) iterations. With a
 * capacity one thread per expert walks the R K / Q choices of a run.
 *
 * Order: slots ascend in (expert, r, k): every warp counts the experts in its stretch of a run, the
 * counts are summed in the order of warps, and each warp numbers its stretch, lanes in order. Sums
 * over k are in ascending order; sums over C first per lane, then in a butterfly. One thread of one
 * launch writes the step state.
 *
 * On an H100 79 to 90% of a copy's rate.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/document.h"

extern "C" {
#include "kernels/costs/costs.h"
}

enum { ROWS_THREADS = 256, ROWS_WARPS = ROWS_THREADS / 32, ROWS_RESIDENT = 4, ROWS_UNROLL = 4 };

static dim3 rows_grid(const struct hd_cuda_stream *s, int64_t rows)
{
    return dim3(grid_of(s, divide_up(rows, ROWS_WARPS), ROWS_RESIDENT));
}

static __host__ __device__ __forceinline__ int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- Rows as bytes, for kernels that only move them ---- */

/* Macro: runs the statements with U, the widest integer type such that rows of `bytes` bytes at a
 * and b are whole, aligned units; runs nothing if not even 2 bytes fit. */
#define HD_ROW_UNITS(bytes, a, b, U, ...)                                           \
    do {                                                                            \
        const uint64_t bound = (uint64_t)(bytes) | (uintptr_t)(a) | (uintptr_t)(b); \
                                                                                    \
        if (bound % 16 == 0) {                                                      \
            typedef uint4 U;                                                        \
            __VA_ARGS__;                                                            \
        } else if (bound % 4 == 0) {                                                \
            typedef uint32_t U;                                                     \
            __VA_ARGS__;                                                            \
        } else if (bound % 2 == 0) {                                                \
            typedef uint16_t U;                                                     \
            __VA_ARGS__;                                                            \
        }                                                                           \
    } while (0)

static enum hd_status odd_rows(const char *kernel, enum hd_dtype dtype)
{
    return hd_err(HD_UNSUPPORTED,
                  "%s: the cuda backend does not support rows of %s, or odd addresses", kernel,
                  hd_dtype_name(dtype));
}

/* Copies a row of `units` units to the rows slot[0 .. K) of `out`, with one warp. */
template <typename U>
static __device__ __forceinline__ void copy_row_to_slots(U *out, const U *row, const int32_t *slot,
                                                         int64_t K, int64_t units)
{
    for (int64_t i = threadIdx.x % 32; i < units; i += 32 * ROWS_UNROLL) {
        U x[ROWS_UNROLL];

#pragma unroll
        for (int u = 0; u < ROWS_UNROLL; u++)
            if (i + u * 32 < units)
                x[u] = row[i + u * 32];
        for (int64_t k = 0; k < K; k++) {
            const int64_t to = slot[k];

            if (to < 0)
                continue;
#pragma unroll
            for (int u = 0; u < ROWS_UNROLL; u++)
                if (i + u * 32 < units)
                    out[to * units + i + u * 32] = x[u];
        }
    }
}

/* ---- assign ---- */

enum { ASSIGN_THREADS = 1024, ASSIGN_SHARED_BYTES = 96 * 1024 };

/* Returns the scratch of assign, [Q, E]: at first the number of kept choices, later the first slot
 * of each run and expert. */
static __device__ __forceinline__ int64_t *next_of(const struct hd_assign_args &a)
{
    return (int64_t *)a.scratch;
}

/* Returns the experts that the rows of run q chose on this rank. */
static __device__ __forceinline__ const int32_t *choices_of(const struct hd_assign_args &a,
                                                            int64_t q)
{
    return a.chosen + (a.at.rank * a.R + q * (a.R / a.at.Q)) * a.K;
}

/* Keeps every choice of a run (no capacity), one block per run: sets slot to 0, and to -1 for rows
 * that choose no expert. */
static __global__ void __launch_bounds__(ASSIGN_THREADS) assign_all(struct hd_assign_args a)
{
    HD_SHARED_DYNAMIC(int, counted);
    const int64_t choices = a.R / a.at.Q * a.K, q = blockIdx.x;
    const int32_t *chosen = choices_of(a, q);

    for (int64_t e = threadIdx.x; e < a.E; e += blockDim.x)
        counted[e] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < choices; i += blockDim.x) {
        const int32_t e = chosen[i];

        a.slot[q * choices + i] = e >= 0 ? 0 : -1;
        if (e >= 0)
            (void)atomicAdd(&counted[e], 1);
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.E; e += blockDim.x)
        next_of(a)[q * a.E + e] = counted[e];
}

enum { KEEP_THREADS = 128, KEEP_ROWS = 256, KEEP_WORDS = 8192 };

/* Returns the number of rows that a block handles together: their choices, capacities and
 * beginnings are in shared memory. 0: not even one row fits. */
static __host__ __device__ __forceinline__ int64_t keep_rows(int64_t K)
{
    return at_most(KEEP_ROWS, KEEP_WORDS / (K + 2));
}

/* Applies the experts' capacities. Block (x, q) reads the choices of run q (ops_moe.h) in order, and
 * each thread decides for one of KEEP_THREADS experts. Sets slot to 0 for the choices that are kept,
 * the first ones of each document up to the capacity, and to -1 for the others. */
static __global__ void __launch_bounds__(KEEP_THREADS) assign_keep(struct hd_assign_args a)
{
    HD_SHARED_DYNAMIC(int, chosen);
    const int64_t run_rows = a.R / a.at.Q, q = blockIdx.y, rows = keep_rows(a.K);
    const int e = (int)(blockIdx.x * KEEP_THREADS + threadIdx.x);
    int *capacity = chosen + rows * a.K, *starts = capacity + rows;
    int64_t kept = 0, seen = 0;

    if (run_rows > 0) { /* choices of expert e by the first row's document in earlier
                           pieces of the sequence */
        const struct hd_document_row d =
            hd_document_of(&a.at, a.R, a.begins, a.lengths, q * run_rows);

        for (int64_t place = d.begin; d.length > 0 && place < d.place; place++)
            for (int64_t k = 0; k < a.K; k++)
                seen += a.chosen[hd_row_of_place(&a.at, a.R, q / a.at.runs, place) * a.K + k] == e;
    }
    for (int64_t from = 0; from < run_rows; from += rows) {
        const int64_t count = at_most(rows, run_rows - from), first = q * run_rows + from;

        __syncthreads();
        for (int64_t i = threadIdx.x; i < count * a.K; i += KEEP_THREADS)
            chosen[i] = choices_of(a, q)[from * a.K + i];
        for (int64_t j = threadIdx.x; j < count; j += KEEP_THREADS) {
            const struct hd_document_row d =
                hd_document_of(&a.at, a.R, a.begins, a.lengths, first + j);

            capacity[j] =
                (int)at_most(hd_document_capacity(a.capacity, d.length, a.K, a.E), INT32_MAX);
            starts[j] = d.place == d.begin;
        }
        __syncthreads();
        for (int64_t j = 0; j < count; j++) {
            seen = starts[j] ? 0 : seen;
            for (int64_t k = 0; k < a.K; k++) {
                const int one = chosen[j * a.K + k];

                if (one == e) {
                    a.slot[(first + j) * a.K + k] = seen < capacity[j] ? 0 : -1;
                    kept += seen < capacity[j];
                    seen++;
                } else if (one < 0 && e == 0) {
                    a.slot[(first + j) * a.K + k] = -1;
                }
            }
        }
    }
    if (e < a.E)
        next_of(a)[q * a.E + e] = kept;
}

/* Computes the first slot of each (expert, run) in this order, and counts, sent, overflow; run by
 * one block. */
static __global__ void __launch_bounds__(ASSIGN_THREADS) assign_spans(struct hd_assign_args a)
{
    HD_SHARED(int64_t, shared, BLOCK_WARPS);
    int64_t *next = next_of(a);
    int64_t place = 0;

    for (int64_t base = 0; base < a.E * a.at.Q; base += ASSIGN_THREADS) {
        const int64_t n = base + threadIdx.x, at = n % a.at.Q * a.E + n / a.at.Q;
        int64_t all;
        const int64_t before = block_scan(n < a.E * a.at.Q ? next[at] : 0, shared, &all);

        if (n < a.E * a.at.Q)
            next[at] = place + before;
        place += all;
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.E; e += ASSIGN_THREADS) {
        const int64_t begin = a.at.Q > 0 ? next[e] : 0;
        const int64_t end = a.at.Q > 0 && e + 1 < a.E ? next[e + 1] : place;

        a.counts[e] = (int32_t)(at_most(end, a.T) - at_most(begin, a.T));
    }
    __syncthreads();
    for (int64_t p = threadIdx.x; p < a.P; p += ASSIGN_THREADS) {
        int32_t sent = 0;

        for (int64_t e = p * (a.E / a.P); e < (p + 1) * (a.E / a.P); e++)
            sent += a.counts[e];
        a.sent[p] = sent;
    }
    if (threadIdx.x == 0 && place > a.T)
        a.block->overflow = 1;
}

/* Returns the bit mask of the lanes with the same `e` as this lane, among those with takes_part. */
static __device__ __forceinline__ unsigned equal_lanes(bool takes_part, int e, int bits)
{
    unsigned lanes = __ballot_sync(0xffffffffu, takes_part);

    for (int bit = 0; bit < bits; bit++) {
        const unsigned ones = __ballot_sync(0xffffffffu, e >> bit & 1);

        lanes &= e >> bit & 1 ? ones : ~ones;
    }
    return lanes;
}

/* Assigns slots to the kept choices of a run, one block per run. counted[w, e]: number of kept
 * choices of expert e in the part of the run that warp w handles; later the number of kept choices
 * of e that precede the next one of warp w. */
static __global__ void __launch_bounds__(ASSIGN_THREADS)
    assign_run(struct hd_assign_args a, int bits)
{
    HD_SHARED_DYNAMIC(int, counted);
    const int64_t choices = a.R / a.at.Q * a.K, E = a.E;
    const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    const int64_t stretch = (choices + warps * 32 - 1) / (warps * 32) * 32;
    const int64_t begin = warp * stretch, end = at_most(begin + stretch, choices);
    const int32_t *chosen = choices_of(a, blockIdx.x);
    const int64_t *next = next_of(a) + blockIdx.x * E;
    int32_t *slot = a.slot + blockIdx.x * choices;
    int *own = counted + warp * E;

    for (int64_t i = threadIdx.x; i < warps * E; i += blockDim.x)
        counted[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t i = begin + lane; i < end; i += 32)
        if (slot[i] >= 0)
            (void)atomicAdd(&own[chosen[i]], 1);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < E; e += blockDim.x) {
        int before = 0;

        for (int w = 0; w < warps; w++) {
            const int count = counted[w * E + e];

            counted[w * E + e] = before;
            before += count;
        }
    }
    __syncthreads();
    for (int64_t i = begin + lane; i - lane < end; i += 32) {
        const bool is_one = i < end && slot[i] >= 0;
        const int e = is_one ? chosen[i] : 0;
        const unsigned equals = equal_lanes(is_one, e, bits);
        const int before = is_one ? own[e] + __popc(equals & ((1u << lane) - 1)) : 0;

        __syncwarp();
        if (is_one) {
            const int64_t place = next[e] + before;

            slot[i] = place < a.T ? (int32_t)place : -1;
            if (equals >> lane == 1) /* last lane with this e: it advances the count */
                own[e] = before + 1;
        }
        __syncwarp();
    }
}

extern "C" enum hd_status hd_cuda_assign(struct hd_cuda_stream *s, const struct hd_assign_args *a)
{
    int64_t warps = ASSIGN_THREADS / 32;
    enum hd_status st = HD_OK;
    int bits = 0;

    if (a->P < 1 || a->E % a->P)
        return hd_err(HD_INVALID, "assign: %lld ranks cannot hold equal shares of %lld experts",
                      (long long)a->P, (long long)a->E);
    while ((1ll << bits) < a->E)
        bits++;
    while (warps > 1 && warps * a->E * (int64_t)sizeof(int) > ASSIGN_SHARED_BYTES)
        warps /= 2;
    if (warps * a->E * (int64_t)sizeof(int) > ASSIGN_SHARED_BYTES)
        return hd_err(HD_UNSUPPORTED,
                      "assign: the cuda backend supports at most %d experts, not %lld",
                      ASSIGN_SHARED_BYTES / (int)sizeof(int), (long long)a->E);
    if (a->capacity > 0 && keep_rows(a->K) == 0)
        return hd_err(HD_UNSUPPORTED,
                      "assign: the cuda backend supports at most %d experts of a row, not %lld",
                      (int)KEEP_WORDS - 2, (long long)a->K);
    if (a->at.Q > 0 && a->capacity > 0)
        st = HD_LAUNCH(
            s, assign_keep, dim3((unsigned)divide_up(a->E, KEEP_THREADS), (unsigned)a->at.Q),
            dim3(KEEP_THREADS), (size_t)(keep_rows(a->K) * (a->K + 2)) * sizeof(int), *a);
    else if (a->at.Q > 0)
        st = HD_LAUNCH(s, assign_all, dim3((unsigned)a->at.Q), dim3(ASSIGN_THREADS),
                       (size_t)a->E * sizeof(int), *a);
    if (!st)
        st = HD_LAUNCH(s, assign_spans, dim3(1), dim3(ASSIGN_THREADS), 0, *a);
    if (!st && a->R * a->K > 0)
        st = HD_LAUNCH(s, assign_run, dim3((unsigned)a->at.Q), dim3((unsigned)(warps * 32)),
                       (size_t)(warps * a->E) * sizeof(int), *a, bits);
    return st;
}

/* ---- permute ---- */

template <typename U>
static __global__ void __launch_bounds__(ROWS_THREADS, ROWS_RESIDENT)
    permute_rows(U *out, const U *inp, const int32_t *slot, int64_t R, int64_t K, int64_t units)
{
    const int64_t warps = (int64_t)gridDim.x * ROWS_WARPS;

    for (int64_t r = (int64_t)blockIdx.x * ROWS_WARPS + threadIdx.x / 32; r < R; r += warps)
        copy_row_to_slots(out, inp + r * units, slot + r * K, K, units);
}

extern "C" enum hd_status hd_cuda_permute_forward(struct hd_cuda_stream *s,
                                                  const struct hd_permute_forward_args *a)
{
    const int64_t bytes = a->C * (int64_t)hd_dtype_size(a->dtype);

    if (a->R == 0 || bytes == 0)
        return HD_OK;
    HD_ROW_UNITS(bytes, a->out, a->inp, U,
                 return HD_LAUNCH(s, permute_rows<U>, rows_grid(s, a->R), dim3(ROWS_THREADS), 0,
                                  (U *)a->out, (const U *)a->inp, a->slot, a->R, a->K,
                                  bytes / (int64_t)sizeof(U)));
    return odd_rows("permute_forward", a->dtype);
}

/* Computes out[r] = sum over k of factor[r,k] * rows[slot[r,k]]; factor NULL: ones. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROWS_THREADS, ROWS_RESIDENT)
    sum_slots(T *out, const T *rows, const int32_t *slot, const float *factor, int64_t R, int64_t K,
              int64_t C)
{
    const int64_t warps = (int64_t)gridDim.x * ROWS_WARPS;

    for (int64_t r = (int64_t)blockIdx.x * ROWS_WARPS + threadIdx.x / 32; r < R; r += warps)
        for (int64_t c = threadIdx.x % 32 * V; c < C; c += 32 * V) {
            float sum[V] = {};
            pack<T, V> y;

#pragma unroll 4
            for (int64_t k = 0; k < K; k++) {
                const int64_t from = slot[r * K + k];
                const float f = factor ? factor[r * K + k] : 1.0f;

                if (from >= 0) {
                    const pack<T, V> x = pack_load<V>(rows + from * C + c);

#pragma unroll
                    for (int j = 0; j < V; j++)
                        sum[j] += to_float(x.at[j]) * f;
                }
            }
#pragma unroll
            for (int j = 0; j < V; j++)
                y.at[j] = from_float<T>(sum[j]);
            pack_store(out + r * C + c, y);
        }
}

static enum hd_status sum_slots_launch(struct hd_cuda_stream *s, void *out, const void *rows,
                                       const int32_t *slot, const float *factor, int64_t R,
                                       int64_t K, int64_t C, enum hd_dtype dtype)
{
    if (R == 0 || C == 0)
        return HD_OK;
    HD_CUDA_FLOATS(
        dtype, T,
        HD_PACK_WIDTH((pack_fits_wide<T>(C, out, rows)), T, V,
                      return HD_LAUNCH(s, (sum_slots<T, V>), rows_grid(s, R), dim3(ROWS_THREADS), 0,
                                       (T *)out, (const T *)rows, slot, factor, R, K, C)));
}

extern "C" enum hd_status hd_cuda_permute_backward(struct hd_cuda_stream *s,
                                                   const struct hd_permute_backward_args *a)
{
    return sum_slots_launch(s, a->dinp, a->dout, a->slot, NULL, a->R, a->K, a->C, a->dtype);
}

/* ---- combine ---- */

extern "C" enum hd_status hd_cuda_combine_forward(struct hd_cuda_stream *s,
                                                  const struct hd_combine_forward_args *a)
{
    return sum_slots_launch(s, a->out, a->inp, a->slot, a->gate, a->R, a->K, a->C, a->dtype);
}

/* Computes the gradients of combine, one warp per choice. A lane reads an element of inp before it
 * writes the same element of dinp: they may alias. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROWS_THREADS, ROWS_RESIDENT)
    combine_gradients(struct hd_combine_backward_args a)
{
    enum { UNROLL = 2 };
    const int64_t warps = (int64_t)gridDim.x * ROWS_WARPS;

    for (int64_t i = (int64_t)blockIdx.x * ROWS_WARPS + threadIdx.x / 32; i < a.R * a.K;
         i += warps) {
        const int64_t slot = a.slot[i];
        const float gate = a.gate[i];
        const T *dout = (const T *)a.dout + i / a.K * a.C, *inp = (const T *)a.inp + slot * a.C;
        T *dinp = (T *)a.dinp + slot * a.C;
        float dot = 0;

        for (int64_t c = threadIdx.x % 32 * V; slot >= 0 && c < a.C; c += UNROLL * 32 * V) {
            pack<T, V> x[UNROLL], dy[UNROLL];

#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (c + u * 32 * V < a.C) {
                    dy[u] = pack_load<V>(dout + c + u * 32 * V);
                    if (a.dgate)
                        x[u] = pack_load<V>(inp + c + u * 32 * V);
                }
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (c + u * 32 * V < a.C) {
                    pack<T, V> dx;

#pragma unroll
                    for (int j = 0; j < V; j++) {
                        if (a.dgate)
                            dot += to_float(dy[u].at[j]) * to_float(x[u].at[j]);
                        dx.at[j] = from_float<T>(to_float(dy[u].at[j]) * gate);
                    }
                    if (a.dinp)
                        pack_store(dinp + c + u * 32 * V, dx);
                }
        }
        dot = warp_add(dot);
        if (a.dgate && threadIdx.x % 32 == 0)
            a.dgate[i] = dot;
    }
}

extern "C" enum hd_status hd_cuda_combine_backward(struct hd_cuda_stream *s,
                                                   const struct hd_combine_backward_args *a)
{
    if (a->R * a->K == 0)
        return HD_OK;
    HD_CUDA_FLOATS(
        a->dtype, T,
        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->dinp, a->dout, a->inp)), T, V,
                      return HD_LAUNCH(s, (combine_gradients<T, V>), rows_grid(s, a->R * a->K),
                                       dim3(ROWS_THREADS), 0, *a)));
}

/* ---- regroup ---- */

enum { REGROUP_THREADS = 1024, REGROUP_STRETCH = 8 };

/* Computes the first row of rank p's rows of expert e in the order (p, e) (arrivals, followed by
 * the total), and in the order (e, p) (places); run by one block. */
static __global__ void __launch_bounds__(REGROUP_THREADS)
    regroup_places(struct hd_regroup_args a, int64_t *places, int64_t *arrivals)
{
    HD_SHARED(int64_t, shared, BLOCK_WARPS);
    const int64_t count = a.P * a.E;
    int64_t place = 0, arrived = 0;

    for (int64_t base = 0; base < count; base += REGROUP_THREADS) {
        const int64_t n = base + threadIdx.x, at = n % a.P * a.E + n / a.P;
        int64_t all, all_arrived;
        const int64_t next =
            place + block_scan(n < count ? (int64_t)a.all_counts[at] : 0, shared, &all);
        const int64_t arrival =
            arrived + block_scan(n < count ? (int64_t)a.all_counts[n] : 0, shared, &all_arrived);

        if (n < count) {
            places[at] = next;
            arrivals[n] = arrival;
        }
        place += all;
        arrived += all_arrived;
    }
    if (threadIdx.x == 0) {
        arrivals[count] = arrived;
        if (place > a.T && a.block)
            a.block->overflow = 1;
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; a.counts && e < a.E; e += REGROUP_THREADS) {
        const int64_t end = e + 1 < a.E ? places[e + 1] : place;

        a.counts[e] = (int32_t)(at_most(end, a.T) - at_most(places[e], a.T));
    }
}

/* Moves REGROUP_STRETCH consecutive rows of the (rank, expert) order per warp: the warp finds rank
 * and expert of its first row by binary search, and advances both from row to row. */
template <typename U>
static __global__ void __launch_bounds__(ROWS_THREADS, ROWS_RESIDENT)
    regroup_rows(U *out, const U *inp, const int64_t *places, const int64_t *arrivals,
                 int64_t count, int64_t T, int64_t units, bool inverse)
{
    const int64_t warp = (int64_t)blockIdx.x * ROWS_WARPS + threadIdx.x / 32;
    const int64_t all = at_most(arrivals[count], T), begin = warp * REGROUP_STRETCH;
    const int64_t end = at_most(begin + REGROUP_STRETCH, all);
    int64_t low = 0, high = count - 1; /* binary search of the last arrivals[i] <= begin */

    if (begin >= all)
        return;
    while (low < high) {
        const int64_t middle = high - (high - low) / 2;

        if (arrivals[middle] <= begin)
            low = middle;
        else
            high = middle - 1;
    }
    for (int64_t r = begin; r < end; r++) {
        int32_t place;

        while (arrivals[low + 1] <= r)
            low++;
        place = (int32_t)at_most(places[low] + r - arrivals[low], INT32_MAX);
        if (place >= T)
            continue;
        if (inverse) {
            const int32_t to = (int32_t)r;

            copy_row_to_slots(out, inp + place * units, &to, 1, units);
        } else {
            copy_row_to_slots(out, inp + r * units, &place, 1, units);
        }
    }
}

extern "C" enum hd_status hd_cuda_regroup(struct hd_cuda_stream *s, const struct hd_regroup_args *a)
{
    const int64_t bytes = a->C * (int64_t)hd_dtype_size(a->dtype), count = a->P * a->E;
    const struct hd_costs_regroup_layout layout = hd_costs_lay_out_regroup(a);
    int64_t *places = (int64_t *)((char *)a->scratch + layout.places);
    int64_t *arrivals = (int64_t *)((char *)a->scratch + layout.arrivals);
    const dim3 blocks((unsigned)divide_up(a->T, REGROUP_STRETCH * ROWS_WARPS));
    const enum hd_status st =
        HD_LAUNCH(s, regroup_places, dim3(1), dim3(REGROUP_THREADS), 0, *a, places, arrivals);

    if (st || count == 0 || bytes == 0 || a->T == 0)
        return st;
    HD_ROW_UNITS(bytes, a->out, a->inp, U,
                 return HD_LAUNCH(s, regroup_rows<U>, blocks, dim3(ROWS_THREADS), 0, (U *)a->out,
                                  (const U *)a->inp, places, arrivals, count, a->T,
                                  bytes / (int64_t)sizeof(U), a->inverse));
    return odd_rows("regroup", a->dtype);
}
