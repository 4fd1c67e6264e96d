/* score: the reward of an answer, read at its last row, and its gradients.
 *
 * Only few rows have a value. Forward: one block per row, which returns at once if the row has
 * none; its threads add their channels, then as in block.cuh. Backward: a block writes rows of dx,
 * zeros for most; a thread adds its channels of dweight over the rows in ascending order, so the
 * same shape gives the same bits.
 *
 * Not yet measured on a GPU.
 */
#include "kernels/cuda/block.cuh"

enum { SCORE_THREADS = 256, COLUMN_THREADS = 64 };

template <typename T>
static __global__ void __launch_bounds__(SCORE_THREADS) score_rows(struct hd_score_forward_args a)
{
    HD_SHARED(float, shared, BLOCK_WARPS);
    const int64_t i = blockIdx.x, r = i - a.first;
    const T *const x = (const T *)a.x, *const weight = (const T *)a.weight;
    float sum = 0;

    /* uniform branch: all threads of the block return */
    if (r < 0 || r >= a.R || a.answer[i] < 0) {
        if (threadIdx.x == 0)
            a.value[i] = 0;
        return;
    }
    for (int64_t c = threadIdx.x; c < a.C; c += SCORE_THREADS)
        sum += to_float(x[r * a.C + c]) * to_float(weight[c]);
    sum = block_add(sum, shared);
    if (threadIdx.x == 0)
        a.value[i] = sum;
}

extern "C" enum hd_status hd_cuda_score_forward(struct hd_cuda_stream *s,
                                                const struct hd_score_forward_args *a)
{
    if (a->N == 0)
        return HD_OK;
    HD_CUDA_FLOATS(
        a->dtype, T,
        return HD_LAUNCH(s, score_rows<T>, dim3((unsigned)a->N), dim3(SCORE_THREADS), 0, *a));
}

/* Returns d loss / d value of row r, times the loss scale. */
static __device__ __forceinline__ float slope_of(const struct hd_score_backward_args &a, int64_t r)
{
    return -a.pull[a.first + r] * a.block->loss_scale;
}

template <typename T>
static __global__ void __launch_bounds__(SCORE_THREADS)
    score_dx_rows(struct hd_score_backward_args a)
{
    const int64_t r = blockIdx.x;
    const float slope = slope_of(a, r);
    const T *const weight = (const T *)a.weight;
    T *const dx = (T *)a.dx + r * a.C;

    for (int64_t c = threadIdx.x; c < a.C; c += SCORE_THREADS)
        dx[c] = from_float<T>(slope == 0 ? 0 : slope * to_float(weight[c]));
}

template <typename T>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    score_dweight_columns(struct hd_score_backward_args a)
{
    const int64_t c = (int64_t)blockIdx.x * COLUMN_THREADS + threadIdx.x;
    const T *const x = (const T *)a.x;
    float sum;

    if (c >= a.C)
        return;
    sum = a.accumulate ? a.dweight[c] : 0;
    for (int64_t r = 0; r < a.R; r++) {
        const float slope = slope_of(a, r);

        if (slope != 0)
            sum += slope * to_float(x[r * a.C + c]);
    }
    a.dweight[c] = sum;
}

extern "C" enum hd_status hd_cuda_score_backward(struct hd_cuda_stream *s,
                                                 const struct hd_score_backward_args *a)
{
    const dim3 columns((unsigned)((a->C + COLUMN_THREADS - 1) / COLUMN_THREADS));
    enum hd_status st = HD_OK;

    HD_CUDA_FLOATS(a->dtype, T, {
        if (a->dx && a->R > 0)
            st = HD_LAUNCH(s, score_dx_rows<T>, dim3((unsigned)a->R), dim3(SCORE_THREADS), 0, *a);
        if (!st && a->dweight)
            st = HD_LAUNCH(s, score_dweight_columns<T>, columns, dim3(COLUMN_THREADS), 0, *a);
        return st;
    });
}
