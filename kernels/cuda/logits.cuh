/* logits: maps of logits, and exponentials whose precision suits their dtype.
 *
 * Used by: logit_rows, distill.   Uses: device.
 * Threads: pure functions.
 */
#ifndef HD_KERNELS_CUDA_LOGITS_CUH
#define HD_KERNELS_CUDA_LOGITS_CUH

#include "kernels/cuda/device.cuh"

/* Returns exp(x); the fast version for bf16 and f16 logits, whose relative error, some |x| 2^-23,
 * is far below their rounding. */
template <typename T>
static __device__ __forceinline__ float exp_of(float x)
{
    return __expf(x);
}

template <>
__device__ __forceinline__ float exp_of<float>(float x)
{
    return expf(x);
}

/* ---- Maps of logits (struct hd_logit_map) ---- */

enum cuda_map_kind { MAP_NONE, MAP_SCALE, MAP_CAP };

/* A map of kind M: with a cap z' = cap * tanh(in * z), else z' = in * z. */
struct cuda_map {
    float in, cap;
};

static struct cuda_map map_of(const struct hd_logit_map &m)
{
    const float scale = hd_factor_of(m.scale);

    return {m.cap > 0 ? scale / m.cap : scale, m.cap};
}

/* Runs the statement with M, a constant, equal to the kind of the map. */
#define HD_WITH_MAP(map, M, ...)                    \
    if ((map).cap > 0) {                            \
        constexpr enum cuda_map_kind M = MAP_CAP;   \
        __VA_ARGS__;                                \
    } else if (hd_factor_of((map).scale) != 1) {    \
        constexpr enum cuda_map_kind M = MAP_SCALE; \
        __VA_ARGS__;                                \
    } else {                                        \
        constexpr enum cuda_map_kind M = MAP_NONE;  \
        __VA_ARGS__;                                \
    }

/* Returns tanh(u), for bf16 and f16 logits by the fast exponential, with an absolute error of some
 * units of 2^-23. */
template <typename T>
static __device__ __forceinline__ float tanh_of(float u)
{
    return 1.0f - __fdividef(2.0f, __expf(2.0f * u) + 1.0f);
}

template <>
__device__ __forceinline__ float tanh_of<float>(float u)
{
    return tanhf(u);
}

/* Returns the mapped logit. -infinity, which is in no column, stays -infinity. */
template <enum cuda_map_kind M, typename T>
static __device__ __forceinline__ float mapped(float z, const struct cuda_map &m)
{
    if (M == MAP_CAP)
        return z == -INFINITY ? z : m.cap * tanh_of<T>(m.in * z);
    return M == MAP_SCALE ? m.in * z : z;
}

/* Returns 1 - (z' / cap)^2 for a mapped logit z': the slope of the map, without its scale. */
static __device__ __forceinline__ float cap_slope(float mapped_logit, const struct cuda_map &m)
{
    const float t = mapped_logit / m.cap;

    return 1.0f - t * t;
}

#endif
