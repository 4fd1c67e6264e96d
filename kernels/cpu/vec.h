/* vec: vectors of the instruction set that a file is compiled for, with loads and stores that
 * convert bf16 and f16 to fp32 and back.
 *
 * A file that includes this is compiled once per instruction set (see CMakeLists.txt). The code
 * uses the vector extensions of gcc and clang; intrinsics are used only for operations that the
 * extensions lack: masked loads, maxima, square roots.
 *
 * Loops (FOR_VECTORS) have one body for whole vectors and for the remainder: vf_load() and
 * vf_store() take a count of lanes. So an element's result does not depend on its position in a row
 * or shard.
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
#elif defined(__AVX2__) /* CMakeLists.txt compiles it with FMA and F16C, too */
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

enum { VL = VEC_BYTES / 4 }; /* number of lanes of a vector: 32-bit values that it holds */

typedef float vf __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t vh __attribute__((vector_size(VEC_BYTES / 2)));   /* a vector of VL bf16 or f16
                                                                      values */
typedef float vf_half __attribute__((vector_size(VEC_BYTES / 2))); /* a vector of VL/2 floats */
typedef double vd __attribute__((vector_size(VEC_BYTES)));         /* a vector of VL/2 doubles */

#define INLINE static inline __attribute__((always_inline, unused))

/* Unrolls a loop whose vectors must stay in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Expand to a list of constants X(i), X(i + 1) ..., one for each lane, of a macro X of the lane's
 * number. */
#define LANES4(X, i) X(i), X(i + 1), X(i + 2), X(i + 3)
#if VEC_BYTES == 64
#define LANES(X) LANES4(X, 0), LANES4(X, 4), LANES4(X, 8), LANES4(X, 12)
#elif VEC_BYTES == 32
#define LANES(X) LANES4(X, 0), LANES4(X, 4)
#else
#define LANES(X) LANES4(X, 0)
#endif

/* Loops over elements [begin, end) in vectors of n elements from i on: first whole vectors with n =
 * VL (a compile-time constant in that copy of the body), then once with the remainder. */
#define FOR_VECTORS(i, n, begin, end)                                             \
    UNROLL                                                                        \
    for (int tail_ = 0; tail_ < 2; tail_++)                                       \
        for (int64_t whole_ = (begin) + ((end) - (begin)) / VL * VL,              \
                     n = tail_ ? (end)-whole_ : VL, i = tail_ ? whole_ : (begin); \
             i < (tail_ ? (end) : whole_); i += VL)

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

/* Returns mask[i] ? a[i] : b[i]; a lane of mask is all ones or zero, as comparisons return. */
INLINE vf vf_select(vi mask, vf a, vf b)
{
    return vf_from_bits((mask & vf_bits(a)) | (~mask & vf_bits(b)));
}

/* Returns the first n lanes of x, and `fill` in the others. */
INLINE vf vf_keep(vf x, int64_t n, float fill)
{
#define LANE(i) (i)
    const vi number = {LANES(LANE)};
#undef LANE
    return n == VL ? x : vf_select(number < (int32_t)n, x, vf_set(fill));
}

INLINE vf vf_max(vf a, vf b) /* returns the larger or smaller by lane; b if either is NaN */
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_select(a > b, a, b);
#endif
}

INLINE vf vf_min(vf a, vf b) /* returns the larger or smaller by lane; b if either is NaN */
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vf_select(a < b, a, b);
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

/* Return sum and maximum over the lanes, always combined in one order: halves, quarters, ... */
#define SWAP8(i) ((i) ^ 8)
#define SWAP4(i) ((i) ^ 4)
#define SWAP2(i) ((i) ^ 2)
#define SWAP1(i) ((i) ^ 1)
INLINE float vf_sum(vf x)
{
#if VEC_BYTES == 64
    x += __builtin_shufflevector(x, x, LANES(SWAP8));
#endif
#if VEC_BYTES >= 32
    x += __builtin_shufflevector(x, x, LANES(SWAP4));
#endif
    x += __builtin_shufflevector(x, x, LANES(SWAP2));
    x += __builtin_shufflevector(x, x, LANES(SWAP1));
    return x[0];
}

INLINE float vf_max_lane(vf x)
{
#if VEC_BYTES == 64
    x = vf_max(x, __builtin_shufflevector(x, x, LANES(SWAP8)));
#endif
#if VEC_BYTES >= 32
    x = vf_max(x, __builtin_shufflevector(x, x, LANES(SWAP4)));
#endif
    x = vf_max(x, __builtin_shufflevector(x, x, LANES(SWAP2)));
    x = vf_max(x, __builtin_shufflevector(x, x, LANES(SWAP1)));
    return x[0];
}

#if defined(__AVX512F__) /* CMakeLists.txt compiles it with BW, DQ and VL, too */
INLINE __mmask16 vf_mask(int64_t n)
{
    return (__mmask16)((1u << n) - 1u);
}
#elif defined(__AVX2__)
INLINE __m256i vf_mask(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

/* Returns a vector of n floats loaded from p, and zero in the other lanes. */
INLINE vf vf_load_f32(const float *p, int64_t n)
{
    vf x;

    if (n == VL)
        memcpy(&x, p, sizeof x);
#if defined(__AVX512F__)
    else
        x = (vf)_mm512_maskz_loadu_ps(vf_mask(n), p);
#elif defined(__AVX2__)
    else
        x = (vf)_mm256_maskload_ps(p, vf_mask(n));
#else
    else {
        x = (vf){0};
        for (int i = 0; i < n; i++)
            x[i] = p[i];
    }
#endif
    return x;
}

INLINE void vf_store_f32(float *p, int64_t n, vf x)
{
    if (n == VL)
        memcpy(p, &x, sizeof x);
#if defined(__AVX512F__)
    else
        _mm512_mask_storeu_ps(p, vf_mask(n), (__m512)x);
#elif defined(__AVX2__)
    else { /* stores by halves: masked stores are slow on AMD */
        vf_half half = __builtin_shufflevector(x, x, 0, 1, 2, 3);

        if (n & 4) {
            memcpy(p, &half, sizeof half);
            half = __builtin_shufflevector(x, x, 4, 5, 6, 7);
            p += 4;
        }
        if (n & 2) {
            memcpy(p, &half, 2 * sizeof *p);
            half = __builtin_shufflevector(half, half, 2, 3, 2, 3);
            p += 2;
        }
        if (n & 1)
            *p = half[0];
    }
#else
    else
        for (int i = 0; i < n; i++)
            p[i] = x[i];
#endif
}

/* Convert 16 bits to 32 and back; gcc 12 does not compile convertvector to these single
 * instructions. */
INLINE vu vu_widen(vh half)
{
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu16_epi32((__m256i)half);
#elif defined(__AVX2__)
    return (vu)_mm256_cvtepu16_epi32((__m128i)half);
#else
    return __builtin_convertvector(half, vu);
#endif
}

INLINE vh vu_narrow(vu wide) /* returns the low 16 bits of each lane, whose value is at most
                                0xffff */
{
#if defined(__AVX512F__)
    return (vh)_mm512_cvtepi32_epi16((__m512i)wide);
#elif defined(__AVX2__)
    return (vh)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)wide),
                                _mm256_extracti128_si256((__m256i)wide, 1));
#else
    return __builtin_convertvector(wide, vh);
#endif
}

INLINE vf vf_from_bf16(vh half)
{
    const vu wide = vu_widen(half) << 16;
    vf x;

    memcpy(&x, &wide, sizeof x);
    return x;
}

/* Returns x rounded to bf16, to nearest even; NaN stays NaN. Equal to hd_f32_to_bf16 per lane,
 * except that the AVX512-BF16 instruction treats subnormal values (below 1.2e-38) as zero. */
INLINE vh vf_to_bf16(vf x)
{
#if defined(__AVX512BF16__)
    return (vh)_mm512_cvtneps_pbh((__m512)x);
#else
    const vu bits = (vu)vf_bits(x);
    const vu rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
    const vf chosen = vf_select(x != x, vf_from_bits((vi)quiet), vf_from_bits((vi)rounded));

    return vu_narrow((vu)vf_bits(chosen) >> 16);
#endif
}

/* Returns f16 values converted exactly to fp32; a NaN becomes a quiet NaN. */
INLINE vf vf_from_f16(vh half)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)half);
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps((__m128i)half);
#else
    vf x = {0};

    for (int i = 0; i < VL; i++)
        x[i] = hd_f16_to_f32(half[i]);
    return x;
#endif
}

INLINE vh vf_to_f16(vf x) /* returns x rounded to f16, in each lane as hd_f32_to_f16 rounds */
{
#if defined(__AVX512F__)
    return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vh half = {0};

    for (int i = 0; i < VL; i++)
        half[i] = hd_f32_to_f16(x[i]);
    return half;
#endif
}

/* Returns a vector of n 16-bit values loaded from p, and zero in the other lanes. */
INLINE vh vh_load(const uint16_t *p, int64_t n)
{
    vh half;

    if (n == VL)
        memcpy(&half, p, sizeof half);
#if defined(__AVX512F__)
    else
        half = (vh)_mm256_maskz_loadu_epi16(vf_mask(n), p);
#else
    else {
        half = (vh){0};
        for (int i = 0; i < n; i++)
            half[i] = p[i];
    }
#endif
    return half;
}

INLINE void vh_store(uint16_t *p, int64_t n, vh half)
{
    if (n == VL)
        memcpy(p, &half, sizeof half);
#if defined(__AVX512F__)
    else
        _mm256_mask_storeu_epi16(p, vf_mask(n), (__m256i)half);
#else
    else
        for (int i = 0; i < n; i++)
            p[i] = half[i];
#endif
}

/* Returns a vector of n bytes loaded from p and widened to 32 bits, and zero in the other lanes. */
INLINE vi vi_load_u8(const uint8_t *p, int64_t n)
{
    vi x = {0};

#if defined(__AVX512F__)
    if (n == VL)
        return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif defined(__AVX2__)
    if (n == VL)
        return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#endif
    for (int i = 0; i < n; i++)
        x[i] = p[i];
    return x;
}

/* Stores the first n lanes of x, numbers from 0 to 255, as bytes at p. */
INLINE void vi_store_u8(uint8_t *p, int64_t n, vi x)
{
#if defined(__AVX512F__)
    _mm512_mask_cvtepi32_storeu_epi8(p, vf_mask(n), (__m512i)x);
#else
#if defined(__AVX2__)
    const __m128i half = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)x),
                                          _mm256_extracti128_si256((__m256i)x, 1));

    if (n == VL) {
        _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(half, half));
        return;
    }
#endif
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)x[i];
#endif
}

/* Returns table[index[i]] in each lane. */
INLINE vf vf_lookup(const float *table, vi index)
{
#if defined(__AVX512F__)
    return (vf)_mm512_i32gather_ps((__m512i)index, table, 4);
#elif defined(__AVX2__)
    return (vf)_mm256_i32gather_ps(table, (__m256i)index, 4);
#else
    vf x = {0};

    for (int i = 0; i < VL; i++)
        x[i] = table[index[i]];
    return x;
#endif
}

INLINE vf vf_load_bf16(const uint16_t *p, int64_t n)
{
    return vf_from_bf16(vh_load(p, n));
}

INLINE void vf_store_bf16(uint16_t *p, int64_t n, vf x)
{
    vh_store(p, n, vf_to_bf16(x));
}

/* Returns the bytes of an element of an encoding that kernels compute with; a constant where this
 * is inlined with a constant dtype. */
INLINE int64_t vf_element_bytes(enum hd_dtype dtype)
{
    return dtype == HD_F32 ? 4 : 2;
}

/* Prefetches the cache line of element i, which may be past the end of the tensor. */
INLINE void vf_prefetch(const void *tensor, int64_t i, enum hd_dtype dtype)
{
    __builtin_prefetch((const char *)tensor + i * vf_element_bytes(dtype));
}

/* Loads elements [i, i + n) of a tensor of `dtype`; dtype is a constant where this is inlined. */
INLINE vf vf_load(const void *tensor, int64_t i, int64_t n, enum hd_dtype dtype)
{
    return dtype == HD_BF16  ? vf_load_bf16((const uint16_t *)tensor + i, n)
           : dtype == HD_F16 ? vf_from_f16(vh_load((const uint16_t *)tensor + i, n))
                             : vf_load_f32((const float *)tensor + i, n);
}

INLINE void vf_store(void *tensor, int64_t i, int64_t n, vf x, enum hd_dtype dtype)
{
    if (dtype == HD_BF16)
        vf_store_bf16((uint16_t *)tensor + i, n, x);
    else if (dtype == HD_F16)
        vh_store((uint16_t *)tensor + i, n, vf_to_f16(x));
    else
        vf_store_f32((float *)tensor + i, n, x);
}

/* Returns x rounded as vf_store would store it. */
INLINE vf vf_round(vf x, enum hd_dtype dtype)
{
    if (dtype == HD_BF16)
        return vf_from_bf16(vf_to_bf16(x));
    return dtype == HD_F16 ? vf_from_f16(vf_to_f16(x)) : x;
}

/* Runs the statement with the constant T = dtype, which is one that kernels compute with
 * (hd_cpu_check_float): the functions that are inlined in it are compiled once per encoding. */
#define WITH_FLOATS(dtype, T, ...)           \
    do {                                     \
        if ((dtype) == HD_BF16) {            \
            const enum hd_dtype T = HD_BF16; \
                                             \
            __VA_ARGS__;                     \
        } else if ((dtype) == HD_F16) {      \
            const enum hd_dtype T = HD_F16;  \
                                             \
            __VA_ARGS__;                     \
        } else {                             \
            const enum hd_dtype T = HD_F32;  \
                                             \
            __VA_ARGS__;                     \
        }                                    \
    } while (0)

#endif
