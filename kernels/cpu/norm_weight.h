/* norm_weight: the factors w by which norms multiply normalised values: the weight, 1 + weight in
 * fp32, or 1. A kernel is compiled once per form.
 *
 * Used by: norm, head_norm, qk_norm.   Uses: vec.
 */
#ifndef HD_KERNELS_CPU_NORM_WEIGHT_H
#define HD_KERNELS_CPU_NORM_WEIGHT_H

#include "kernels/cpu/vec.h"

enum norm_weight { WEIGHT_PLAIN, WEIGHT_ONE_PLUS, WEIGHT_NONE };

/* Returns x * w for n channels from c on. `form` is a constant where this is inlined. */
INLINE vf times_weight(vf x, const void *weight, int64_t c, int64_t n, enum norm_weight form,
                       enum hd_dtype dtype)
{
    if (form == WEIGHT_NONE)
        return x;
    return x * (form == WEIGHT_ONE_PLUS ? 1.0f + vf_load(weight, c, n, dtype)
                                        : vf_load(weight, c, n, dtype));
}

INLINE enum norm_weight norm_weight_of(const void *weight, bool one_plus)
{
    return !weight ? WEIGHT_NONE : one_plus ? WEIGHT_ONE_PLUS : WEIGHT_PLAIN;
}

/* Macro: runs the statement with a constant W, equal to `form`. */
#define WITH_NORM_WEIGHT(form, W, ...)                  \
    do {                                                \
        switch (form) {                                 \
        case WEIGHT_PLAIN: {                            \
            const enum norm_weight W = WEIGHT_PLAIN;    \
                                                        \
            __VA_ARGS__;                                \
            break;                                      \
        }                                               \
        case WEIGHT_ONE_PLUS: {                         \
            const enum norm_weight W = WEIGHT_ONE_PLUS; \
                                                        \
            __VA_ARGS__;                                \
            break;                                      \
        }                                               \
        case WEIGHT_NONE: {                             \
            const enum norm_weight W = WEIGHT_NONE;     \
                                                        \
            __VA_ARGS__;                                \
            break;                                      \
        }                                               \
        }                                               \
    } while (0)

#endif
