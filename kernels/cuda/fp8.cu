/* fp8: the scale of a tensor, its codes, and the history of maxima. gemm.c multiplies the codes.
 *
 * Bytes of R x C elements: fp8_encode 3 R C, with codes of both orders 4 R C; transposed by tiles of
 * 64 x 64 in shared memory, so that both sides are whole lines. fp8_amax 2 R C without a history, else only
 * the history: all blocks read it and return. Codes are made by the integer operations of
 * base/fp8.h, some fifteen per element, because the conversion instructions clamp infinities.
 *
 * The maximum is independent of order, so any partition and atomics give the same bits. *seen is a
 * non-negative float, whose bits are ordered like integers.
 *
 * Not yet measured on a GPU.
 */
#include "kernels/cuda/fp8.cuh"

enum { FP8_UNROLL = 4 };
static_assert((int)HD_AMAX_PARTS <= (int)FP8_THREADS, "a thread has a part");

/* ---- amax ---- */

template <int V>
static __device__ __forceinline__ float fp8_largest(const bf16 *inp, int64_t N)
{
    const int64_t thread = (int64_t)blockIdx.x * FP8_THREADS + threadIdx.x;
    const int64_t threads = (int64_t)gridDim.x * FP8_THREADS, packs = N / V;
    float most = 0;

    for (int64_t i = thread; i < packs; i += FP8_UNROLL * threads) {
        pack<bf16, V> x[FP8_UNROLL];

#pragma unroll
        for (int u = 0; u < FP8_UNROLL; u++)
            if (i + u * threads < packs)
                x[u] = pack_load<V>(inp + (i + u * threads) * V);
#pragma unroll
        for (int u = 0; u < FP8_UNROLL; u++)
#pragma unroll
            for (int j = 0; j < V && i + u * threads < packs; j++)
                most = hd_fp8_larger(most, to_float(x[u].at[j]));
    }
    if (thread < N % V)
        most = hd_fp8_larger(most, to_float(inp[packs * V + thread]));
    return most;
}

/* Computes partial maxima of |inp| into amax[HD_AMAX_PARTS]: each block writes one; the first block
 * sets the unused ones behind them to 0. */
template <int V>
static __global__ void __launch_bounds__(FP8_THREADS)
    fp8_amax(float *amax, const bf16 *inp, const float *history, int64_t N, int64_t history_len)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    float most = 0;

    for (int64_t i = threadIdx.x; i < history_len; i += FP8_THREADS)
        most = fmaxf(most, history[i]);
    most = block_max(most, shared);
    if (most > 0) /* uniform branch: all threads have the same value */
        most = blockIdx.x == 0 ? most : 0;
    else
        most = block_max(fp8_largest<V>(inp, N), shared);
    if (threadIdx.x == 0)
        amax[blockIdx.x] = most;
    if (blockIdx.x == 0)
        for (int p = (int)gridDim.x + (int)threadIdx.x; p < HD_AMAX_PARTS; p += FP8_THREADS)
            amax[p] = 0;
}

extern "C" enum hd_status hd_cuda_fp8_amax(struct hd_cuda_stream *s,
                                           const struct hd_fp8_amax_args *a)
{
    const int64_t history_len = a->history ? a->history_len : 0;

    HD_PACK_WIDTH((pack_fits_wide<bf16>(0, a->inp)), bf16, V, {
        int64_t blocks = divide_up(a->N, FP8_THREADS * FP8_UNROLL * V);

        blocks = blocks < 1 ? 1 : blocks > HD_AMAX_PARTS ? (int64_t)HD_AMAX_PARTS : blocks;
        return HD_LAUNCH(s, fp8_amax<V>, dim3((unsigned)blocks), dim3(FP8_THREADS), 0, a->amax,
                         (const bf16 *)a->inp, a->history, a->N, history_len);
    });
}

/* ---- codes ---- */

/* Returns the scale 2^e of the tensor from its maxima, in every thread; the first block writes the
 * factor for decoding. */
static __device__ __forceinline__ float fp8_scale(const float *amax, float *factor,
                                                  enum hd_fp8 format, float *shared)
{
    const float part = (int)threadIdx.x < HD_AMAX_PARTS ? amax[threadIdx.x] : 0;
    const int e = hd_fp8_exponent(block_max(part, shared), format);

    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *factor = hd_fp8_power(-e);
    return hd_fp8_power(e);
}

template <int V, enum hd_fp8 FORMAT>
static __global__ void __launch_bounds__(FP8_THREADS)
    fp8_encode(uint8_t *code, float *factor, float *seen, const bf16 *inp, const float *amax,
               int64_t N)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    const float power = fp8_scale(amax, factor, FORMAT, shared);
    const int64_t thread = (int64_t)blockIdx.x * FP8_THREADS + threadIdx.x;
    const int64_t threads = (int64_t)gridDim.x * FP8_THREADS, packs = N / V;
    float most = 0;

    for (int64_t i = thread; i < packs; i += threads) {
        pack_store(code + i * V, fp8_codes<FORMAT>(pack_load<V>(inp + i * V), power, &most));
    }
    if (thread < N % V) {
        const float x = to_float(inp[packs * V + thread]);

        most = hd_fp8_larger(most, x);
        code[packs * V + thread] = hd_fp8_encode(x, power, FORMAT);
    }
    fp8_see(seen, most, shared);
}

/* The elements of a tensor, as an operation of fp8_tile. */
struct fp8_source {
    static constexpr int OUTPUTS = 1;
    template <int V>
    using in = pack<bf16, V>;
    const bf16 *inp;

    template <int V>
    __device__ void load_at(pack<bf16, V> &x, int64_t r, int64_t c, int64_t C) const
    {
        x = pack_load<V>(inp + r * C + c);
    }
    template <int V>
    __device__ void values(const pack<bf16, V> &x, pack<bf16, V> (&y)[1]) const
    {
        y[0] = x;
    }
    __device__ bf16 *result() const
    {
        return nullptr;
    }
};

/* Encodes tile (blockIdx.x, blockIdx.y) of columns and rows and stores it transposed, and, with
 * f.code, as it is. */
template <enum hd_fp8 FORMAT, int V>
static __global__ void __launch_bounds__(FP8_THREADS)
    fp8_encode_transposed(struct cuda_fp8_result f, const bf16 *inp, const float *amax, int64_t R,
                          int64_t C)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    constexpr int WORDS = FP8_TILE * FP8_APART / 4;
    HD_SHARED(uint32_t, words, WORDS);
    const float power = fp8_scale(amax, f.factor, FORMAT, shared);
    const struct fp8_source op = {inp};

    fp8_see(f.seen,
            fp8_tile<FORMAT, V>(op, f, (uint8_t *)words, power, R, C,
                                (int64_t)blockIdx.y * FP8_TILE, (int64_t)blockIdx.x * FP8_TILE),
            shared);
}

template <enum hd_fp8 FORMAT, int V>
static enum hd_status fp8_transposed_launch(struct hd_cuda_stream *s,
                                            const struct hd_fp8_encode_args *a)
{
    const struct cuda_fp8_result f = {a->code, a->transposed, a->factor, a->seen, NULL, 0, false};

    return HD_LAUNCH(s, (fp8_encode_transposed<FORMAT, V>),
                     dim3((unsigned)divide_up(a->C, FP8_TILE), (unsigned)divide_up(a->R, FP8_TILE)),
                     dim3(FP8_THREADS), 0, f, (const bf16 *)a->inp, a->amax, a->R, a->C);
}

/* ---- codes of a result, behind the kernel that computed it ---- */

/* One block: the scale needs the maximum of the whole tensor before the first code. */
template <enum hd_fp8 FORMAT>
static __global__ void __launch_bounds__(FP8_THREADS)
    fp8_behind(struct cuda_fp8_result f, const bf16 *inp, int64_t R, int64_t C)
{
    constexpr int WORDS = FP8_TILE * FP8_APART / 4, V = pack_wide<bf16>;
    HD_SHARED(float, shared, BLOCK_WARPS);
    HD_SHARED(uint32_t, words, WORDS);
    const struct fp8_source op = {inp};
    float most;
    int e;

    if (fp8_scale_of<FORMAT>(f, shared) > 0) /* uniform: the same in all threads */
        return;
    most = block_max(fp8_largest<V>(inp, R * C), shared);
    e = hd_fp8_exponent(most, FORMAT);
    if (threadIdx.x == 0)
        *f.factor = hd_fp8_power(-e);
    for (int64_t r0 = 0; r0 < R; r0 += FP8_TILE)
        for (int64_t c0 = 0; c0 < C; c0 += FP8_TILE) {
            (void)fp8_tile<FORMAT, V>(op, f, (uint8_t *)words, hd_fp8_power(e), R, C, r0, c0);
            __syncthreads(); /* the tile was read */
        }
    fp8_see(f.seen, most, shared);
}

extern "C" enum hd_status hd_cuda_fp8_behind(struct hd_cuda_stream *s,
                                             const struct cuda_fp8_result *f, const void *result,
                                             int64_t R, int64_t C, enum hd_fp8 format)
{
    if (format == HD_E4M3)
        return HD_LAUNCH(s, fp8_behind<HD_E4M3>, dim3(1), dim3(FP8_THREADS), 0, *f,
                         (const bf16 *)result, R, C);
    return HD_LAUNCH(s, fp8_behind<HD_E5M2>, dim3(1), dim3(FP8_THREADS), 0, *f,
                     (const bf16 *)result, R, C);
}

template <enum hd_fp8 FORMAT>
static enum hd_status fp8_launch(struct hd_cuda_stream *s, const struct hd_fp8_encode_args *a)
{
    const int64_t N = a->R * a->C;

    if (N == 0)
        return HD_OK;
    if (a->transposed) {
        const bool wide = pack_fits_wide<bf16>(a->C, a->inp, a->code) &&
                          pack_fits<uint8_t, 4>(a->transposed, a->R);

        HD_PACK_WIDTH(wide, bf16, V, return (fp8_transposed_launch<FORMAT, V>(s, a)));
    }
    HD_PACK_WIDTH((pack_fits_wide<bf16>(0, a->inp, a->code)), bf16, V,
                  return HD_LAUNCH(s, (fp8_encode<V, FORMAT>),
                                   dim3(grid_of(s, divide_up(N, FP8_THREADS * V), 8)),
                                   dim3(FP8_THREADS), 0, a->code, a->factor, a->seen,
                                   (const bf16 *)a->inp, a->amax, N));
}

extern "C" enum hd_status hd_cuda_fp8_encode(struct hd_cuda_stream *s,
                                             const struct hd_fp8_encode_args *a)
{
    return a->format == HD_E4M3 ? fp8_launch<HD_E4M3>(s, a) : fp8_launch<HD_E5M2>(s, a);
}

/* ---- history ---- */

static __global__ void __launch_bounds__(FP8_THREADS)
    fp8_history(float *history, const float *seen, const struct hd_step_state *block, int64_t N,
                int64_t history_len)
{
    const int64_t i = (int64_t)blockIdx.x * FP8_THREADS + threadIdx.x;
    float *row = history + i * history_len;

    if (i >= N || block->skip_update)
        return;
    for (int64_t k = history_len - 1; k > 0; k--)
        row[k] = row[k - 1];
    row[0] = seen[i];
}

extern "C" enum hd_status hd_cuda_fp8_history(struct hd_cuda_stream *s,
                                              const struct hd_fp8_history_args *a)
{
    if (a->N == 0)
        return HD_OK;
    return HD_LAUNCH(s, fp8_history, dim3((unsigned)divide_up(a->N, FP8_THREADS)),
                     dim3(FP8_THREADS), 0, a->history, a->seen, a->block, a->N, a->history_len);
}
