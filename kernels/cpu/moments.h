/* moments: what the kernels of optimizers share: the ranges of a shard, and 8-bit codes of moments.
 *
 * Used by: adamw, one_moment.   Uses: vec, base (encoding).   Threads: any; no state.
 */
#ifndef HD_KERNELS_CPU_MOMENTS_H
#define HD_KERNELS_CPU_MOMENTS_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Number of elements that a thread takes at a time: a multiple of every moments' block size. */
enum { MOMENTS_GRAIN = 16 * 1024 };

/* Returns the index of the first range that ends after `element`. */
INLINE int64_t range_at(const struct hd_update_range *ranges, int64_t range_count, int64_t element)
{
    int64_t low = 0, high = range_count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (ranges[middle].end <= element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Encodes n elements as hd_encoding_code does. The values of a decade of the map are the centres of
 * equal intervals, so the nearest value is the one whose interval contains x. */
INLINE void encode_vector(vf x, int64_t n, enum hd_map map, uint8_t *ret_codes)
{
    const bool is_signed = map == HD_MAP_SIGNED;
    const int top = is_signed ? 64 : 128;
    const vf magnitude = vf_max(x, -x);
    vf count = vf_set((float)top), power = vf_set(1), fraction;
    vi code, is_one;

    UNROLL
    for (int e = 1; e <= 6; e++) { /* unrolled, so that e, top >> e and powers[e] are constants */
        static const float powers[] = {1, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f, 1e6f};
        const vi below = magnitude < hd_encoding_decade(top >> e, powers[e]);

        count = vf_select(below, vf_set((float)(top >> e)), count);
        power = vf_select(below, vf_set(powers[e]), power);
    }
    fraction = (magnitude * power - 0.1f) * (count * (1 / 0.9f));
    fraction = vf_min(vf_max(fraction, vf_set(0)), count - 1.0f);
    code = __builtin_convertvector(count, vi) + __builtin_convertvector(fraction, vi);
    code |= (x < 0.0f) & 0x80;
    code &= ~(is_signed ? magnitude < 0.55e-6f / 2 : x <= 0.0f);
    is_one = x > 1 - 0.225f / (float)top;
    code = (is_one & (is_signed ? 0x80 : 0x01)) | (~is_one & code);
    vi_store_u8(ret_codes, n, code);
}

/* Encodes one block of a moment to 8-bit codes. Returns the block's scale. */
INLINE float encode(const float *elements, int64_t count, enum hd_map map, uint8_t *ret_codes)
{
    vf largest = vf_set(0), smallest = vf_set(0);
    float scale;

    FOR_VECTORS (i, n, 0, count) {
        const vf x = vf_load_f32(elements + i, n); /* lanes from n on are 0 and do not change the
                                                      maximum */

        largest = vf_max(largest, x);
        smallest = vf_min(smallest, x);
    }
    scale = hd_encoding_scale(map, vf_max_lane(largest), -vf_max_lane(-smallest));
    FOR_VECTORS (i, n, 0, count) {
        const vf element = vf_load_f32(elements + i, n);
        vf x = element / hd_encoding_divisor(scale); /* equals hd_encoding_quotient of each
                                                        element */

        x = vf_select((element > 0.0f) & (x == 0.0f), vf_set(FLT_MIN), x);
        encode_vector(x, n, map, ret_codes + i);
    }
    return scale;
}

#endif
