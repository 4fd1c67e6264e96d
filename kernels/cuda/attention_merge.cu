/* attention_merge: merges attention over two blocks of keys.
 *
 * Eight lanes share a head of a row: each computes the two factors itself, then reads and writes 8
 * channels at a time. Bytes: R H D e of block_out, 8 per element for reading and writing acc (less
 * with `first` or `out`), and 12 per head and row; nothing is read twice. Accesses are of 16 bytes,
 * a head of 64 channels is 128 contiguous bytes, so it takes the time of a copy. Not yet measured
 * on a GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/vec.cuh"

enum { LANES = 8, THREADS = 256, WIDTH = 8 /* WIDTH: elements of a lane at a time */ };

struct cuda_factors {
    float old, block, lse;
};

/* Returns the factors by which the results of both blocks of keys are multiplied. With m the larger
 * of the two lse and e = exp(-|difference|), the merged lse is m + log(1 + e); the factors of the
 * larger and the smaller are 1 / (1 + e) and e / (1 + e). */
static __device__ struct cuda_factors factors_of(float old, float block)
{
    struct cuda_factors f = {0, 0, -INFINITY};

    if (old == -INFINITY && block == -INFINITY)
        return f;
    const float e = expf(-fabsf(block - old)), more = 1 / (1 + e), less = e / (1 + e);

    f.old = block < old ? more : less;
    f.block = block < old ? less : more;
    f.lse = (block < old ? old : block) + log1pf(e);
    return f;
}

template <typename T, bool IS_VEC>
static __global__ void __launch_bounds__(THREADS) merge_kernel(struct hd_attention_merge_args a)
{
    /* index of row and head */
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    const int lane = (int)threadIdx.x % LANES;
    const bool is_there = at < a.R * a.H;
    const int64_t place = is_there ? at % a.H * a.R + at / a.H : 0;
    struct cuda_factors f = {0, 1, 0};

    if (is_there) {
        const float block = a.block_lse[place];

        if (a.first)
            f.lse = block;
        else
            f = factors_of(a.lse[place], block);
    }
    __syncwarp(0xffffffffu); /* every lane has read lse */
    if (!is_there)
        return;
    if (lane == 0)
        a.lse[place] = f.lse;
    if (!a.first && !a.out && f.block == 0)
        return; /* a row that sees no key of the block keeps its acc */
    for (int64_t d = lane * WIDTH; d < a.D; d += LANES * WIDTH) {
        const T *from = (const T *)a.block_out + at * a.D + d;
        float *acc = a.acc + at * a.D + d, x[WIDTH], old[WIDTH];
        const int n = a.D - d < WIDTH ? (int)(a.D - d) : WIDTH;

        if (IS_VEC) {
            load_vec(x, from);
            for (int i = 0; i < WIDTH && !a.first; i += 4) {
                const float4 four = *(const float4 *)(acc + i);

                old[i] = four.x;
                old[i + 1] = four.y;
                old[i + 2] = four.z;
                old[i + 3] = four.w;
            }
        } else {
            for (int i = 0; i < WIDTH; i++) {
                x[i] = i < n ? to_float(from[i]) : 0;
                old[i] = i < n && !a.first ? acc[i] : 0;
            }
        }
        if (!a.first)
            for (int i = 0; i < WIDTH; i++)
                x[i] = old[i] * f.old + x[i] * f.block;
        if (IS_VEC && a.out) {
            store_vec((T *)a.out + at * a.D + d, x);
        } else if (IS_VEC) {
            store_vec(acc, x);
        } else {
            for (int i = 0; i < n; i++)
                if (a.out)
                    ((T *)a.out)[at * a.D + d + i] = from_float<T>(x[i]);
                else
                    acc[i] = x[i];
        }
    }
}

template <typename T>
static enum hd_status merge_launch(struct hd_cuda_stream *stream,
                                   const struct hd_attention_merge_args *args)
{
    const int64_t threads = args->R * args->H * LANES;
    const dim3 grid((unsigned)((threads + THREADS - 1) / THREADS));
    const bool is_vec_all = args->D % WIDTH == 0 && is_vec((const T *)args->out, args->D) &&
                            is_vec(args->acc, args->D) &&
                            is_vec((const T *)args->block_out, args->D);

    if (is_vec_all)
        return HD_LAUNCH(stream, (merge_kernel<T, true>), grid, dim3(THREADS), 0, *args);
    return HD_LAUNCH(stream, (merge_kernel<T, false>), grid, dim3(THREADS), 0, *args);
}

extern "C" enum hd_status hd_cuda_attention_merge(struct hd_cuda_stream *cuda,
                                                  const struct hd_attention_merge_args *args)
{
    if (args->R * args->H == 0)
        return HD_OK;
    if (args->R * args->H > (int64_t)INT32_MAX * (THREADS / LANES))
        return hd_err(HD_UNSUPPORTED, "attention_merge: %lld rows of %lld heads exceed a grid",
                      (long long)args->R, (long long)args->H);
    HD_CUDA_FLOATS(args->dtype, T, return merge_launch<T>(cuda, args));
    return HD_OK;
}
