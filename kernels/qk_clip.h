/* qk_clip: factor of a row (hd_qk_clip_args in ops_update.h); one code for every backend.
 *
 * Used by: kernels/cpu, kernels/cuda.   Uses: kernels.h.   Threads: a pure function. */
#ifndef HD_KERNELS_QK_CLIP_H
#define HD_KERNELS_QK_CLIP_H

#include <math.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
#define HD_QK_CLIP_FUNCTION static __device__ __forceinline__
#else
#define HD_QK_CLIP_FUNCTION static inline
#endif

/* Returns the factor of row `row`; 1: the row does not change. */
HD_QK_CLIP_FUNCTION float hd_qk_clip_factor(const struct hd_qk_clip_args *a, int64_t row)
{
    const int64_t head = a->first_head + row / a->head_rows * a->head_step;
    const float *tops = a->top_score + head / a->group * a->group;
    const float power = row % a->head_rows < a->split ? a->power : a->rest_power;
    float top = 0;

    for (int64_t i = 0; i < a->group; i++)
        top = tops[i] > top ? tops[i] : top;
    if (!(top > a->threshold) || isinf(top) || power == 0)
        return 1;
    return (float)pow((double)a->threshold / (double)top, (double)power);
}

#endif
