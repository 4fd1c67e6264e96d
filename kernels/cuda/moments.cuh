/* moments: 8-bit codes of optimizers' moments, of which a thread has MOMENTS_OWN neighbours.
 *
 * Used by: adamw, one_moment.   Uses: device, pack, base (encoding).   Threads: all lanes of a warp
 * must call lanes_max.
 */
#ifndef HD_KERNELS_CUDA_MOMENTS_CUH
#define HD_KERNELS_CUDA_MOMENTS_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/pack.cuh"

enum { MOMENTS_OWN = HD_BLOCK_MIN, MOMENTS_HALF = MOMENTS_OWN / 2 };

/* One moment (m or v) of a thread's weights. */
struct own_moment {
    float at[MOMENTS_OWN];

    /* Loads the moment from a run of fp32 values or from blocks of codes. in_run: number of
     * elements of the run before this thread's. */
    __device__ __forceinline__ void load(const char *run, const struct hd_update_range *range,
                                         int64_t in_run, const float *values)
    {
        if (!range->block) {
#pragma unroll
            for (int h = 0; h < MOMENTS_OWN; h += MOMENTS_HALF) {
                const pack<float, MOMENTS_HALF> p =
                    pack_load<MOMENTS_HALF>((const float *)run + in_run + h);

#pragma unroll
                for (int j = 0; j < MOMENTS_HALF; j++)
                    at[h + j] = p.at[j];
            }
        } else {
            const float scale = ((const float *)run)[in_run / range->block];
            const pack<uint8_t, MOMENTS_OWN> codes = pack_load<MOMENTS_OWN>(
                (const uint8_t *)run +
                hd_encoding_scales_bytes(range->end - range->begin, range->block) + in_run);

#pragma unroll
            for (int j = 0; j < MOMENTS_OWN; j++)
                at[j] = __fmul_rn(values[codes.at[j]], scale);
        }
    }

    /* Stores the moment in the form in which `load` reads it; the largest and smallest elements of
     * the block of codes must be known. */
    __device__ __forceinline__ void store(char *run, const struct hd_update_range *range,
                                          int64_t in_run, enum hd_map map, float largest,
                                          float smallest) const
    {
        if (!range->block) {
#pragma unroll
            for (int h = 0; h < MOMENTS_OWN; h += MOMENTS_HALF) {
                pack<float, MOMENTS_HALF> p;

#pragma unroll
                for (int j = 0; j < MOMENTS_HALF; j++)
                    p.at[j] = at[h + j];
                pack_store((float *)run + in_run + h, p);
            }
        } else {
            const float scale = hd_encoding_scale(map, largest, smallest);
            const float divisor = hd_encoding_divisor(scale);
            pack<uint8_t, MOMENTS_OWN> codes;

#pragma unroll
            for (int j = 0; j < MOMENTS_OWN; j++)
                codes.at[j] = hd_encoding_code(hd_encoding_quotient(at[j], divisor), map);
            if (in_run % range->block == 0)
                ((float *)run)[in_run / range->block] = scale;
            pack_store((uint8_t *)run +
                           hd_encoding_scales_bytes(range->end - range->begin, range->block) +
                           in_run,
                       codes);
        }
    }

    __device__ __forceinline__ void extremes(float *largest, float *smallest) const
    {
#pragma unroll
        for (int j = 0; j < MOMENTS_OWN; j++) {
            *largest = fmaxf(*largest, at[j]);
            *smallest = fminf(*smallest, at[j]);
        }
    }
};

/* Returns the largest x of `lanes` neighbouring lanes; `lanes` is a power of two and may differ
 * between lanes. */
static __device__ __forceinline__ float lanes_max(float x, int64_t lanes)
{
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, distance);

        x = distance < lanes ? fmaxf(x, other) : x;
    }
    return x;
}

#endif
