/* qk_clip: scales the rows of queries and keys of heads whose scores exceeded the threshold. A block
 * computes the factor of a row and, unless it is 1, reads and writes the row's weights; in most steps
 * no head is clipped, and the launch reads scores alone.
 *
 * Not measured on a GPU yet. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/qk_clip.h"

enum { CLIP_THREADS = 128, CLIP_RESIDENT = 8 };

template <typename Copy>
static __global__ void __launch_bounds__(CLIP_THREADS) clip_rows(struct hd_qk_clip_args a)
{
    const int64_t end_row = (a.first + a.N + a.columns - 1) / a.columns;

    if (a.block->skip_update)
        return;
    for (int64_t row = a.first / a.columns + blockIdx.x; row < end_row; row += gridDim.x) {
        const float factor = hd_qk_clip_factor(&a, row);
        const int64_t begin = row * a.columns - a.first;

        if (!(factor < 1))
            continue;
        for (int64_t i = begin + threadIdx.x; i < begin + a.columns && i < a.N; i += CLIP_THREADS) {
            if (i < 0) /* the row begins before the shard */
                continue;
            a.weight[i] = __fmul_rn(a.weight[i], factor);
            if (a.copy)
                ((Copy *)a.copy)[i] = from_float<Copy>(a.weight[i]);
        }
    }
}

extern "C" enum hd_status hd_cuda_qk_clip(struct hd_cuda_stream *s, const struct hd_qk_clip_args *a)
{
    if (a->N == 0)
        return HD_OK;
    HD_CUDA_FLOATS(a->copy ? a->copy_dtype : HD_F32, T,
                   return HD_LAUNCH(s, clip_rows<T>,
                                    dim3(grid_of(s, a->N / a->columns + 2, CLIP_RESIDENT)),
                                    dim3(CLIP_THREADS), 0, *a));
}
