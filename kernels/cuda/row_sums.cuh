/* row_sums: sums over all rows, for the gradients of weights and biases.
 *
 * The rows are divided into chunks that depend on R only (hd_costs_device_row_chunks). A block adds
 * a chunk's rows for some 256 columns (32 packs): groups of L lanes read one row each, 256 / L rows
 * at a time, and each lane keeps the sums of its columns in registers; then the groups' sums are
 * added in order. The chunks' sums go to scratch, and a second launch adds them in order: the
 * result does not depend on the device or on timing.
 *
 * Bytes: the rows once; the partial sums, at most 256 rows of fp32, are written and read once: 3%
 * of the rows' bytes at R = 32k in bf16. Terms is a struct, passed by value, with
 *     OUTPUTS                       1 or 2 sums
 *     template <int V> struct in, load(in<V> &, r, c)    values read for V columns of row r
 *     add(float (&sums)[OUTPUTS][V], in<V>)               may also store a result for them
 *
 * Used by: activation, bias, conv, dora, gated_norm, head_norm, norm_backward, qk_norm.   Uses: device, pack, costs.
 */
#ifndef HD_KERNELS_CUDA_ROW_SUMS_CUH
#define HD_KERNELS_CUDA_ROW_SUMS_CUH

#include "kernels/cuda/pack.cuh"

extern "C" {
#include "kernels/costs/costs.h"
}

struct cuda_row_sums {
    float *out[2];  /* sums over all rows, [N] each; the second may be NULL, also if a kernel
                       computes its partial sums */
    float *partial; /* sums of the chunks of rows, [chunks, OUTPUTS, N] */
    int64_t R, N;
    bool accumulate;
};

enum { SUMS_THREADS = 256, SUMS_WARPS = 16 };

/* Returns the position of word i in shared memory, padded against bank conflicts: without padding,
 * lanes that store V columns each would use only 32 / V of the 32 banks. */
static __device__ __host__ __forceinline__ constexpr int sums_place(int i)
{
    return i + i / 32;
}

template <typename Terms, int V>
static __global__ void __launch_bounds__(SUMS_THREADS, 2)
    sum_rows(Terms terms, float *partial, int64_t R, int64_t N, int64_t chunk_rows, int lanes)
{
    constexpr int OUTPUTS = Terms::OUTPUTS;
    /* about 128 bytes in flight per thread */
    constexpr int BYTES = (int)sizeof(typename Terms::template in<V>);
    constexpr int UNROLL = BYTES > 48 ? 2 : BYTES > 16 ? 4 : 8;
    HD_SHARED(float, shared,
              /* sums of groups: [groups, OUTPUTS, lanes * V] */
              sums_place(SUMS_THREADS * V * OUTPUTS));
    const int groups = SUMS_THREADS / lanes, columns = lanes * V;
    const int lane = (int)threadIdx.x % lanes, group = (int)threadIdx.x / lanes;
    const int64_t left = (int64_t)blockIdx.x * columns, c = left + lane * V;
    const int64_t begin = (int64_t)blockIdx.y * chunk_rows;
    const int64_t end = begin + chunk_rows < R ? begin + chunk_rows : R;
    float sums[OUTPUTS][V] = {};

    if (c < N)
        for (int64_t r = begin + group; r < end; r += UNROLL * groups) {
            typename Terms::template in<V> x[UNROLL];

#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (r + u * groups < end)
                    terms.load(x[u], r + u * groups, c);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (r + u * groups < end)
                    terms.add(sums, x[u]);
        }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
        for (int j = 0; j < V; j++)
            shared[sums_place((group * OUTPUTS + o) * columns + lane * V + j)] = sums[o][j];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < OUTPUTS * columns; i += SUMS_THREADS) {
        const int64_t column = left + i % columns;
        float sum = 0;

        for (int g = 0; g < groups; g++)
            sum += shared[sums_place(g * OUTPUTS * columns + i)];
        if (column < N)
            partial[((int64_t)blockIdx.y * OUTPUTS + i / columns) * N + column] = sum;
    }
}

/* Adds the sums of all chunks of rows, for 32 columns per block; the block's warps process the
 * chunks in turn. blockIdx.y is the number of the output. */
static __global__ void __launch_bounds__(SUMS_WARPS * 32)
    add_chunks(struct cuda_row_sums s, int chunks)
{
    HD_SHARED(float, shared, SUMS_WARPS * 32);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t c = (int64_t)blockIdx.x * 32 + lane;
    float *out = blockIdx.y > 0 ? s.out[1] : s.out[0];
    float sum = 0;

    if (!out)
        return;
    if (c < s.N)
#pragma unroll 8
        for (int i = warp; i < chunks; i += SUMS_WARPS)
            sum += s.partial[((int64_t)i * gridDim.y + blockIdx.y) * s.N + c];
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (warp > 0 || c >= s.N)
        return;
    sum = 0;
    for (int w = 0; w < SUMS_WARPS; w++)
        sum += shared[w * 32 + lane];
    out[c] = s.accumulate ? out[c] + sum : sum;
}

/* Launches add_chunks for `outputs` sums. */
static inline enum hd_status add_chunks_launch(struct hd_cuda_stream *s,
                                               const struct cuda_row_sums &sums, int chunks,
                                               int outputs)
{
    return HD_LAUNCH(s, (add_chunks), dim3((unsigned)divide_up(sums.N, 32), (unsigned)outputs),
                     dim3(SUMS_WARPS * 32), 0, sums, chunks);
}

/* Launches the partial sums of all chunks of rows; V divides N and all distances between rows. */
template <int V, typename Terms>
static enum hd_status row_chunks_launch(struct hd_cuda_stream *s, const Terms &terms,
                                        float *partial, int64_t R, int64_t N, int64_t chunk_rows)
{
    int lanes = 1;

    if (N == 0 || R == 0)
        return HD_OK;
    while (lanes < 32 && lanes * V < N)
        lanes *= 2;
    return HD_LAUNCH(s, (sum_rows<Terms, V>),
                     dim3((unsigned)divide_up(N, lanes * V), (unsigned)divide_up(R, chunk_rows)),
                     dim3(SUMS_THREADS), 0, terms, partial, R, N, chunk_rows, lanes);
}

/* Launches the sums over all rows; V as above. */
template <int V, typename Terms>
static enum hd_status row_sums_launch(struct hd_cuda_stream *s, const Terms &terms,
                                      const struct cuda_row_sums &sums)
{
    const struct hd_costs_chunks chunks = hd_costs_device_row_chunks(sums.R);
    const enum hd_status st =
        row_chunks_launch<V>(s, terms, sums.partial, sums.R, sums.N, chunks.rows);

    return st || sums.N == 0 ? st : add_chunks_launch(s, sums, (int)chunks.count, Terms::OUTPUTS);
}

/* Computes partial sums of R rows of N values (`sums` of bias_backward), over pieces of `piece` rows;
 * 0: hd_costs_device_row_chunks; bias.cu. */
enum hd_status hd_cuda_sum_row_chunks(struct hd_cuda_stream *s, float *sums, const void *rows,
                                      int64_t R, int64_t N, int64_t piece, enum hd_dtype dtype);

#endif
