/* logits: maps of logits, and maxima and sums of exponentials of their rows.
 *
 * Used by: cross_entropy, distill.   Uses: vecmath.   Threads: any.
 */
#ifndef HD_KERNELS_CPU_LOGITS_H
#define HD_KERNELS_CPU_LOGITS_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vecmath.h"

/* Ways in which logits are mapped before the softmax: a compile-time constant in every use. */
enum map_kind { MAP_NONE, MAP_SCALE, MAP_CAP };

/* Runs the statement with M, a constant, equal to the kind of the map. */
#define WITH_MAP(map, M, ...)                        \
    do {                                             \
        if ((map).cap > 0) {                         \
            const enum map_kind M = MAP_CAP;         \
                                                     \
            __VA_ARGS__;                             \
        } else if (hd_factor_of((map).scale) != 1) { \
            const enum map_kind M = MAP_SCALE;       \
                                                     \
            __VA_ARGS__;                             \
        } else {                                     \
            const enum map_kind M = MAP_NONE;        \
                                                     \
            __VA_ARGS__;                             \
        }                                            \
    } while (0)

/* Returns tanh(scale * z / cap), for a map with a cap. */
INLINE vf squashed(vf z, struct hd_logit_map map)
{
    return vf_tanh(z * (hd_factor_of(map.scale) / map.cap));
}

/* Returns the mapped logits. */
INLINE vf mapped(vf z, struct hd_logit_map map, enum map_kind kind)
{
    if (kind == MAP_CAP)
        return map.cap * squashed(z, map);
    return kind == MAP_SCALE ? z * map.scale : z;
}

/* Returns 1 - (z' / cap)^2 for mapped logits z': the slope of the map, without its scale. */
INLINE vf logit_slope(vf mapped_logits, struct hd_logit_map map)
{
    const vf t = mapped_logits / map.cap;

    return 1.0f - t * t;
}

/* Returns the maximum of a row's logits. The map is increasing: that of the mapped logits is the
 * map of the maximum. */
INLINE float row_max(const void *logits, int64_t row, int64_t V, enum hd_dtype dtype)
{
    vf lane_max = vf_set(-INFINITY);

    FOR_VECTORS (v, n, 0, V) {
        lane_max = vf_max(lane_max, vf_keep(vf_load(logits, row + v, n, dtype), n, -INFINITY));
    }
    return vf_max_lane(lane_max);
}

INLINE float mapped_max(const void *logits, int64_t row, int64_t V, struct hd_logit_map map,
                        enum map_kind kind, enum hd_dtype dtype)
{
    return mapped(vf_set(row_max(logits, row, V, dtype)), map, kind)[0];
}

INLINE float row_sum(const void *logits, int64_t row, int64_t V, float max, struct hd_logit_map map,
                     enum map_kind kind, enum hd_dtype dtype)
{
    vf sums = {0};

    FOR_VECTORS (v, n, 0, V) {
        const vf y = mapped(vf_load(logits, row + v, n, dtype), map, kind);

        sums += vf_exp(vf_keep(y - max, n, -INFINITY));
    }
    return vf_sum(sums);
}

#endif
