/* vec: vectors of the instruction set that a file is compiled for, and the loads and stores that
 * turn short floats into fp32 and back.
 *
 * A file that includes this is compiled once per instruction set (see CMakeLists.txt). Everything
 * is written with the vector extensions of gcc and clang; intrinsics stand only where those have no
 * word: masked loads, maxima, square roots.
 *
 * Loops have one body for whole vectors and for the rest of a row: vf_load() and vf_store() take a
 * count of lanes. So an element's result does not depend on where in a row or in a shard it lies.
 *
 * Used by: the kernels in this folder.   Uses: base (dtype).   Threads: any.
 */
#ifndef HD_KERNELS_CPU_VEC_H
#define HD_KERNELS_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

enum { VL = VEC_BYTES / 4 }; /* lanes: floats in a vector */

typedef float vf __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t vh __attribute__((vector_size(VEC_BYTES / 2)));   /* VL short floats */
typedef float vf_half __attribute__((vector_size(VEC_BYTES / 2))); /* VL/2 floats */
typedef double vd __attribute__((vector_size(VEC_BYTES)));         /* VL/2 doubles */

#define INLINE static inline __attribute__((always_inline, unused))

/* Before a loop whose vectors must stay in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* A constant list of VL values made from a macro of the lane's number. */
#define LANES4(X, i) X(i), X(i + 1), X(i + 2), X(i + 3)
#if VEC_BYTES == 64
#define LANES(X) LANES4(X, 0), LANES4(X, 4), LANES4(X, 8), LANES4(X, 12)
#elif VEC_BYTES == 32
#define LANES(X) LANES4(X, 0), LANES4(X, 4)
#else
#define LANES(X) LANES4(X, 0)
#endif

INLINE int lanes(int64_t rest) /* how many of VL lanes a row with `rest` elements left fills */
{
    return rest < VL ? (int)rest : VL;
}

INLINE vf vf_set(float x)
{
    return x - (vf){0};
}

INLINE vi vf_bits(vf x)
{
    vi bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE vf vf_from_bits(vi bits)
{
    vf x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* mask[i] (all ones or zero, as comparisons give it) ? a[i] : b[i] */
INLINE vf vf_select(vi mask, vf a, vf b)
{
    return vf_from_bits((mask & vf_bits(a)) | (~mask & vf_bits(b)));
}

/* The first n lanes of x, `fill` in the others. */
INLINE vf vf_keep(vf x, int n, float fill)
{
#define LANE(i) (i)
    const vi number = {LANES(LANE)};
#undef LANE
    return n == VL ? x : vf_select(number < n, x, vf_set(fill));
}

INLINE vf vf_max(vf a, vf b) /* b where either is NaN */
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_select(a > b, a, b);
#endif
}

INLINE vf vf_sqrt(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < VL; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* Sum and maximum over the lanes, in a fixed order. */
INLINE float vf_sum(vf x)
{
    float lane[VL];

    memcpy(lane, &x, sizeof lane);
    for (int step = VL / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            lane[i] += lane[i + step];
    return lane[0];
}

INLINE float vf_max_lane(vf x)
{
    float lane[VL];

    memcpy(lane, &x, sizeof lane);
    for (int step = VL / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            lane[i] = lane[i] > lane[i + step] ? lane[i] : lane[i + step];
    return lane[0];
}

/* n floats from p on, zero in the other lanes. */
INLINE vf vf_load_f32(const float *p, int n)
{
    vf x;

#if defined(__AVX512F__)
    x = (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
    if (n == VL) {
        memcpy(&x, p, sizeof x);
    } else {
        x = (vf){0};
        for (int i = 0; i < n; i++)
            x[i] = p[i];
    }
#endif
    return x;
}

INLINE void vf_store_f32(float *p, int n, vf x)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)x);
#else
    if (n == VL)
        memcpy(p, &x, sizeof x);
    else
        for (int i = 0; i < n; i++)
            p[i] = x[i];
#endif
}

INLINE vf vf_from_bf16(vh half)
{
    const vu wide = __builtin_convertvector(half, vu) << 16;
    vf x;

    memcpy(&x, &wide, sizeof x);
    return x;
}

INLINE vh vf_to_bf16(vf x) /* to nearest even; NaN stays NaN: hd_f32_to_bf16 on every lane */
{
    vu bits, rounded, quiet, nan;

    memcpy(&bits, &x, sizeof bits);
    rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    quiet = (bits >> 16) | 0x40u;
    nan = (vu)((bits & 0x7fffffffu) > 0x7f800000u);
    return __builtin_convertvector((nan & quiet) | (~nan & rounded), vh);
}

INLINE vf vf_load_bf16(const uint16_t *p, int n)
{
    vh half;

#if defined(__AVX512BW__) && defined(__AVX512VL__)
    half = (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1u), p);
#else
    if (n == VL) {
        memcpy(&half, p, sizeof half);
    } else {
        half = (vh){0};
        for (int i = 0; i < n; i++)
            half[i] = p[i];
    }
#endif
    return vf_from_bf16(half);
}

INLINE void vf_store_bf16(uint16_t *p, int n, vf x)
{
    const vh half = vf_to_bf16(x);

#if defined(__AVX512BW__) && defined(__AVX512VL__)
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1u), (__m256i)half);
#else
    if (n == VL)
        memcpy(p, &half, sizeof half);
    else
        for (int i = 0; i < n; i++)
            p[i] = half[i];
#endif
}

/* Elements [i, i + n) of a tensor of `dtype`, which is a constant where this is inlined. */
INLINE vf vf_load(const void *tensor, int64_t i, int n, enum hd_dtype dtype)
{
    return dtype == HD_BF16 ? vf_load_bf16((const uint16_t *)tensor + i, n)
                            : vf_load_f32((const float *)tensor + i, n);
}

INLINE void vf_store(void *tensor, int64_t i, int n, vf x, enum hd_dtype dtype)
{
    if (dtype == HD_BF16)
        vf_store_bf16((uint16_t *)tensor + i, n, x);
    else
        vf_store_f32((float *)tensor + i, n, x);
}

#endif
