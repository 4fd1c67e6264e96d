/* fp8: codes of a kernel's result, made in the pass that computes it (HD_FP8_RESULT in ops.h).
 *
 * The scale follows from the history of maxima, which every block reads. Where the history has only zeros, in
 * the first step, the kernel writes its result alone, and fp8_behind, one block, makes the codes from it:
 * slow, but once. Elementwise kernels run as fp8_map: a block computes a tile of 64 x 64, so that
 * both orders of codes are whole lines.
 *
 * An operation has, for packs of V elements: in<V>, OUTPUTS (tensors beside each other in a row of the
 * result), load_at(in<V> &, r, c, C), values(in<V>, pack<bf16, V> (&)[OUTPUTS]) and result(), where
 * the values go; NULL: nowhere.
 *
 * Used by: fp8, activation, norm_forward.   Uses: block, pack.
 */
#ifndef HD_KERNELS_CUDA_FP8_CUH
#define HD_KERNELS_CUDA_FP8_CUH

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/pack.cuh"

enum { FP8_THREADS = 256, FP8_TILE = 64, FP8_APART = FP8_TILE + 4 };

struct cuda_fp8_result {
    uint8_t *code, *transposed; /* NULL: not in this order */
    float *factor, *seen;
    const float *history;
    int64_t history_len;
    bool only;
};

template <typename Args>
static inline struct cuda_fp8_result fp8_result_of(const Args *a)
{
    return {a->code,      a->code_t,  a->code_factor,
            a->seen,      a->history, a->history ? a->history_len : 0,
            a->codes_only};
}

template <typename Args>
static inline bool has_codes(const Args *a)
{
    return a->code || a->code_t;
}

/* Codes are made of this type alone. */
template <typename T>
constexpr bool is_bf16 = false;
template <>
constexpr bool is_bf16<bf16> = true;

/* Enqueues the kernel that makes the codes of the result if the history has only zeros. */
extern "C" enum hd_status hd_cuda_fp8_behind(struct hd_cuda_stream *s,
                                             const struct cuda_fp8_result *f, const void *result,
                                             int64_t R, int64_t C, enum hd_fp8 format);

/* Returns the scale 2^e by the history, in every thread; 0: the history has only zeros. The first
 * block writes the factor for decoding. */
template <enum hd_fp8 FORMAT>
static __device__ __forceinline__ float fp8_scale_of(const struct cuda_fp8_result &f, float *shared)
{
    float most = 0;
    int e;

    for (int64_t i = threadIdx.x; i < f.history_len; i += blockDim.x)
        most = fmaxf(most, f.history[i]);
    most = block_max(most, shared);
    if (!(most > 0))
        return 0;
    e = hd_fp8_exponent(most, FORMAT);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *f.factor = hd_fp8_power(-e);
    return hd_fp8_power(e);
}

static __device__ __forceinline__ void fp8_see(float *seen, float most, float *shared)
{
    if (!seen)
        return;
    most = block_max(most, shared);
    if (threadIdx.x == 0 && most > 0)
        (void)atomicMax(reinterpret_cast<unsigned *>(seen), __float_as_uint(most));
}

/* Returns the codes of a pack, and makes *most the largest magnitude so far. */
template <enum hd_fp8 FORMAT, int V>
static __device__ __forceinline__ pack<uint8_t, V> fp8_codes(const pack<bf16, V> &x, float power,
                                                             float *most)
{
    pack<uint8_t, V> y;

#pragma unroll
    for (int j = 0; j < V; j++) {
        *most = hd_fp8_larger(*most, to_float(x.at[j]));
        y.at[j] = hd_fp8_encode(to_float(x.at[j]), power, FORMAT);
    }
    return y;
}

/* Computes the tile of rows from r0 and columns from c0 on and stores its codes, as it is and
 * transposed; with power 0 only its values. A row of the tile in shared memory is a column of the
 * result, 17 words apart. A thread computes V elements of a row and stores BYTES codes of a column.
 * Returns the thread's largest magnitude. */
template <enum hd_fp8 FORMAT, int V, typename Op>
static __device__ __forceinline__ float fp8_tile(const Op &op, const struct cuda_fp8_result &f,
                                                 uint8_t *tile, float power, int64_t R, int64_t C,
                                                 int64_t r0, int64_t c0)
{
    enum { BYTES = V > 1 ? 4 : 1, LANES = FP8_TILE / V, WRITERS = FP8_TILE / BYTES };
    const int column = (int)threadIdx.x % LANES * V, first = (int)threadIdx.x % WRITERS * BYTES;
    const bool stores = op.result() && !(f.only && power > 0);
    float most = 0;

    for (int r = (int)threadIdx.x / LANES; r < FP8_TILE; r += FP8_THREADS / LANES)
        if (r0 + r < R && c0 + column < C) {
            typename Op::template in<V> x;
            pack<bf16, V> y[Op::OUTPUTS];

            op.load_at(x, r0 + r, c0 + column, C);
            op.values(x, y);
#pragma unroll
            for (int o = 0; o < Op::OUTPUTS; o++) {
                const int64_t at = ((r0 + r) * Op::OUTPUTS + o) * C + c0 + column;

                if (stores)
                    pack_store(op.result() + at, y[o]);
                if (power > 0) {
                    const pack<uint8_t, V> codes = fp8_codes<FORMAT>(y[o], power, &most);

                    if (f.code)
                        pack_store(f.code + at, codes);
#pragma unroll
                    for (int j = 0; j < V && f.transposed; j++)
                        tile[(o * FP8_TILE + column + j) * FP8_APART + r] = codes.at[j];
                }
            }
        }
    if (!f.transposed || !(power > 0)) /* uniform: the same in all threads */
        return most;
    __syncthreads();
    for (int i = (int)threadIdx.x / WRITERS; i < Op::OUTPUTS * FP8_TILE;
         i += FP8_THREADS / WRITERS) {
        const int o = i / FP8_TILE, c = i % FP8_TILE;

        if (c0 + c < C && r0 + first < R)
            pack_store(f.transposed + (o * C + c0 + c) * R + r0 + first,
                       pack_load<BYTES>(tile + i * FP8_APART + first));
    }
    return most;
}

template <typename Op, enum hd_fp8 FORMAT>
static __global__ void __launch_bounds__(FP8_THREADS)
    fp8_map(Op op, struct cuda_fp8_result f, int64_t R, int64_t C)
{
    constexpr int WORDS = Op::OUTPUTS * FP8_TILE * FP8_APART / 4;
    HD_SHARED(float, shared, BLOCK_WARPS);
    HD_SHARED(uint32_t, words, WORDS);
    const float power = fp8_scale_of<FORMAT>(f, shared);

    fp8_see(f.seen,
            fp8_tile<FORMAT, pack_wide<bf16>>(op, f, (uint8_t *)words, power, R, C,
                                              (int64_t)blockIdx.y * FP8_TILE,
                                              (int64_t)blockIdx.x * FP8_TILE),
            shared);
}

/* Launches an elementwise operation on R rows of C columns, with the codes of its result. */
template <enum hd_fp8 FORMAT, typename Op, typename Args>
static enum hd_status fp8_map_launch(struct hd_cuda_stream *s, const Op &op, const Args *a,
                                     int64_t R, int64_t C)
{
    const struct cuda_fp8_result f = fp8_result_of(a);
    enum hd_status st;

    if (R % HD_FP8_SIDE || C % HD_FP8_SIDE || a->dtype != HD_BF16)
        return hd_err(HD_INVALID,
                      "codes of fp8: [%lld,%lld] is not bf16 or has a side that is no "
                      "multiple of %d",
                      (long long)R, (long long)C, HD_FP8_SIDE);
    st = HD_LAUNCH(s, (fp8_map<Op, FORMAT>),
                   dim3((unsigned)divide_up(C, FP8_TILE), (unsigned)divide_up(R, FP8_TILE)),
                   dim3(FP8_THREADS), 0, op, f, R, C);
    return st ? st : hd_cuda_fp8_behind(s, &f, op.result(), R, Op::OUTPUTS * C, FORMAT);
}

#endif
