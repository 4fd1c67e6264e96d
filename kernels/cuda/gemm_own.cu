/* gemm_own: GEMM without a library: for arguments that cuBLASLt does not support (odd leading
 * dimensions, unaligned addresses, some mixes of dtypes, K = 0), and for all GEMMs if the library
 * is disabled.
 *
 * Bytes: a tile reads its rows of a and its columns of b once, so a is read N / 64 times and b M /
 * 64 times, partly from L2; tiles of neighbouring blocks share rows of a. The aim is correct
 * results for all arguments, not the speed of the library.
 */
#include "kernels/cuda/device.cuh"

#include "base/math.h"
#include "kernels/cuda/tile.cuh"

enum { SIZE = 64, GRID_MAX = 65535 };

/* Computes the tiles of the result, numbered with columns fastest: blocks that run at the same time
 * share rows of a. */
template <typename T, bool A_INNER, bool B_INNER>
__global__ void __launch_bounds__(mma_shape<SIZE>::THREADS)
    gemm_mma_kernel(factor<T> a, factor<T> b, struct gemm_target c, int64_t columns)
{
    HD_SHARED_DYNAMIC(T, shared);
    const int64_t tile = blockIdx.y * static_cast<int64_t>(gridDim.x) + blockIdx.x;

    if (tile / columns * SIZE < c.rows)
        mma_tile<T, SIZE, A_INNER, B_INNER>(shared, a, b, c, tile / columns * SIZE,
                                            tile % columns * SIZE);
}

template <typename T>
__global__ void __launch_bounds__(PLAIN_THREADS)
    gemm_plain_kernel(factor<T> a, bool a_inner, factor<T> b, bool b_inner, struct gemm_target c,
                      int64_t columns)
{
    HD_SHARED(float, shared, PLAIN_FLOATS);
    const int64_t tile = blockIdx.y * static_cast<int64_t>(gridDim.x) + blockIdx.x;

    if (tile / columns * PLAIN_SIZE < c.rows)
        plain_tile(shared, a, a_inner, b, b_inner, c, tile / columns * PLAIN_SIZE,
                   tile % columns * PLAIN_SIZE);
}

static dim3 grid_of_tiles(int64_t tiles)
{
    const int64_t y = hd_divide_up(tiles, GRID_MAX);

    return dim3(static_cast<unsigned>(hd_divide_up(tiles, y)), static_cast<unsigned>(y));
}

template <typename T>
static enum hd_status launch_gemm(struct hd_cuda_stream *stream, const struct hd_gemm_args *args,
                                  const struct gemm_target &c, bool on_mma)
{
    const int64_t K = args->K > 0 ? args->K : 0;
    const factor<T> a = {static_cast<const T *>(args->a), args->lda, args->M, K};
    const factor<T> b = {static_cast<const T *>(args->b), args->ldb, args->N, K};
    const int64_t columns = hd_divide_up(args->N, SIZE);
    const dim3 grid = grid_of_tiles(hd_divide_up(args->M, SIZE) * columns);
    static_assert((int)SIZE == (int)PLAIN_SIZE, "both ways have one grid");

    if constexpr (sizeof(T) == 2) {
        const size_t bytes = mma_shape<SIZE>::SHARED_BYTES;
        const dim3 block(mma_shape<SIZE>::THREADS);

        if (on_mma && args->trans_a)
            return args->trans_b ? HD_LAUNCH(stream, (gemm_mma_kernel<T, false, true>), grid, block,
                                             bytes, a, b, c, columns)
                                 : HD_LAUNCH(stream, (gemm_mma_kernel<T, false, false>), grid,
                                             block, bytes, a, b, c, columns);
        if (on_mma)
            return args->trans_b ? HD_LAUNCH(stream, (gemm_mma_kernel<T, true, true>), grid, block,
                                             bytes, a, b, c, columns)
                                 : HD_LAUNCH(stream, (gemm_mma_kernel<T, true, false>), grid, block,
                                             bytes, a, b, c, columns);
    }
    return HD_LAUNCH(stream, gemm_plain_kernel<T>, grid, dim3(PLAIN_THREADS), 0, a, !args->trans_a,
                     b, args->trans_b, c, columns);
}

extern "C" enum hd_status hd_cuda_gemm_own(struct hd_cuda_stream *stream,
                                           const struct hd_gemm_args *args)
{
    const struct gemm_target c = {
        {args->c, args->ldc, args->M, args->N, args->c_dtype, args->accumulate},
        args->bias,
        args->ab_dtype,
        args->epilogue,
        args->pre,
        args->gelu_inp,
        args->add};
    const bool on_mma = !stream->cuda->options.force_plain &&
                        is_mma_factor(args->a, args->lda, args->ab_dtype) &&
                        is_mma_factor(args->b, args->ldb, args->ab_dtype);

    HD_CUDA_FLOATS(args->ab_dtype, T, return launch_gemm<T>(stream, args, c, on_mma));
    return HD_OK;
}
