/* cudasim_device: CUDA C++ for a host compiler: qualifiers, built-in variables, intrinsics.
 *
 * kernels/cuda may use only what is declared here. Add what is missing, with a case in
 * tests/cudasim/cudasim_test.c. A result that is undefined on a device is poison here.
 *
 * Used by: kernels/cuda/device.cuh under HD_CUDASIM.   Uses: cudasim_engine.h, libm.
 * Threads: device code runs on the fibers of a launch only.
 */
#ifndef HD_CUDASIM_DEVICE_H
#define HD_CUDASIM_DEVICE_H

#include <cudasim_engine.h>
#include <math.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__

#define threadIdx (hd_cudasim_self->thread)
#define blockIdx  (hd_cudasim_self->block)
#define blockDim  (hd_cudasim_self->block_dim)
#define gridDim   (hd_cudasim_self->grid_dim)
#define warpSize  32

/* ---- Vector types ---- */

#define HD_CUDASIM_MAKE2(name, type)               \
    static inline name make_##name(type x, type y) \
    {                                              \
        name v;                                    \
        v.x = x;                                   \
        v.y = y;                                   \
        return v;                                  \
    }
#define HD_CUDASIM_MAKE4(name, type)                               \
    static inline name make_##name(type x, type y, type z, type w) \
    {                                                              \
        name v;                                                    \
        v.x = x;                                                   \
        v.y = y;                                                   \
        v.z = z;                                                   \
        v.w = w;                                                   \
        return v;                                                  \
    }
HD_CUDASIM_MAKE2(int2, int)
HD_CUDASIM_MAKE2(uint2, unsigned)
HD_CUDASIM_MAKE2(float2, float)
HD_CUDASIM_MAKE2(double2, double)
HD_CUDASIM_MAKE2(longlong2, long long)
HD_CUDASIM_MAKE2(ulonglong2, unsigned long long)
HD_CUDASIM_MAKE4(int4, int)
HD_CUDASIM_MAKE4(uint4, unsigned)
HD_CUDASIM_MAKE4(float4, float)
#undef HD_CUDASIM_MAKE2
#undef HD_CUDASIM_MAKE4

/* ---- Barriers, votes, shuffles ---- */

/* The caller's source line, as default arguments of functions that may report errors. */
#define HD_CUDASIM_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define HD_CUDASIM_SITE \
    hd_cudasim_site     \
    {                   \
        file, line      \
    }

static inline void __syncthreads(HD_CUDASIM_HERE)
{
    (void)hd_cudasim_barrier(HD_CUDASIM_BARRIER, 0, HD_CUDASIM_SITE);
}

static inline int __syncthreads_or(int predicate, HD_CUDASIM_HERE)
{
    return hd_cudasim_barrier(HD_CUDASIM_BARRIER_OR, predicate, HD_CUDASIM_SITE);
}

static inline int __syncthreads_and(int predicate, HD_CUDASIM_HERE)
{
    return hd_cudasim_barrier(HD_CUDASIM_BARRIER_AND, predicate, HD_CUDASIM_SITE);
}

static inline int __syncthreads_count(int predicate, HD_CUDASIM_HERE)
{
    return hd_cudasim_barrier(HD_CUDASIM_BARRIER_COUNT, predicate, HD_CUDASIM_SITE);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, HD_CUDASIM_HERE)
{
    hd_cudasim_syncwarp(mask, HD_CUDASIM_SITE);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, HD_CUDASIM_HERE)
{
    return hd_cudasim_ballot(mask, predicate, HD_CUDASIM_SITE);
}

static inline int __any_sync(unsigned mask, int predicate, HD_CUDASIM_HERE)
{
    return hd_cudasim_ballot(mask, predicate, HD_CUDASIM_SITE) != 0;
}

static inline int __all_sync(unsigned mask, int predicate, HD_CUDASIM_HERE)
{
    return hd_cudasim_ballot(mask, !predicate, HD_CUDASIM_SITE) == 0;
}

/* Only the caller's lane: of all results that a device may give, the one that reveals errors. */
static inline unsigned __activemask(void)
{
    return 1u << hd_cudasim_lane();
}

template <typename T>
static inline T hd_cudasim_shuffle_any(enum hd_cudasim_shuffle kind, unsigned mask, T value,
                                       unsigned operand, int width, hd_cudasim_site site)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;

    memcpy(&bits, &value, sizeof value);
    bits = hd_cudasim_shuffle(kind, mask, bits, operand, (unsigned)width, site);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, HD_CUDASIM_HERE)
{
    return hd_cudasim_shuffle_any(HD_CUDASIM_SHUFFLE_LANE, mask, value, (unsigned)lane, width,
                                  HD_CUDASIM_SITE);
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32,
                               HD_CUDASIM_HERE)
{
    return hd_cudasim_shuffle_any(HD_CUDASIM_SHUFFLE_UP, mask, value, lanes, width,
                                  HD_CUDASIM_SITE);
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32,
                                 HD_CUDASIM_HERE)
{
    return hd_cudasim_shuffle_any(HD_CUDASIM_SHUFFLE_DOWN, mask, value, lanes, width,
                                  HD_CUDASIM_SITE);
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, HD_CUDASIM_HERE)
{
    return hd_cudasim_shuffle_any(HD_CUDASIM_SHUFFLE_XOR, mask, value, (unsigned)lanes, width,
                                  HD_CUDASIM_SITE);
}

/* ---- Atomics: across fibers, and across the OS threads that launch ---- */

#define HD_CUDASIM_ATOMIC(name, type, builtin)              \
    static inline type name(type *address, type operand)    \
    {                                                       \
        hd_cudasim_preempt();                               \
        return builtin(address, operand, __ATOMIC_RELAXED); \
    }
HD_CUDASIM_ATOMIC(atomicAdd, int, __atomic_fetch_add)
HD_CUDASIM_ATOMIC(atomicAdd, unsigned, __atomic_fetch_add)
HD_CUDASIM_ATOMIC(atomicAdd, unsigned long long, __atomic_fetch_add)
HD_CUDASIM_ATOMIC(atomicOr, int, __atomic_fetch_or)
HD_CUDASIM_ATOMIC(atomicOr, unsigned, __atomic_fetch_or)
HD_CUDASIM_ATOMIC(atomicOr, unsigned long long, __atomic_fetch_or)
HD_CUDASIM_ATOMIC(atomicAnd, int, __atomic_fetch_and)
HD_CUDASIM_ATOMIC(atomicAnd, unsigned, __atomic_fetch_and)
HD_CUDASIM_ATOMIC(atomicExch, int, __atomic_exchange_n)
HD_CUDASIM_ATOMIC(atomicExch, unsigned, __atomic_exchange_n)
HD_CUDASIM_ATOMIC(atomicExch, unsigned long long, __atomic_exchange_n)
#undef HD_CUDASIM_ATOMIC

/* new = expression of `old` and `operand`, by compare and exchange */
#define HD_CUDASIM_ATOMIC_BY_EXCHANGE(name, type, expression)                            \
    static inline type name(type *address, type operand)                                 \
    {                                                                                    \
        type old, made;                                                                  \
                                                                                         \
        hd_cudasim_preempt();                                                            \
        __atomic_load(address, &old, __ATOMIC_RELAXED);                                  \
        do                                                                               \
            made = (expression);                                                         \
        while (!__atomic_compare_exchange(address, &old, &made, false, __ATOMIC_RELAXED, \
                                          __ATOMIC_RELAXED));                            \
        return old;                                                                      \
    }
HD_CUDASIM_ATOMIC_BY_EXCHANGE(atomicAdd, float, old + operand)
HD_CUDASIM_ATOMIC_BY_EXCHANGE(atomicAdd, double, old + operand)
HD_CUDASIM_ATOMIC_BY_EXCHANGE(atomicMax, int, old > operand ? old : operand)
HD_CUDASIM_ATOMIC_BY_EXCHANGE(atomicMax, unsigned, old > operand ? old : operand)
HD_CUDASIM_ATOMIC_BY_EXCHANGE(atomicMin, int, old < operand ? old : operand)
HD_CUDASIM_ATOMIC_BY_EXCHANGE(atomicMin, unsigned, old < operand ? old : operand)
HD_CUDASIM_ATOMIC_BY_EXCHANGE(atomicExch, float, operand)
#undef HD_CUDASIM_ATOMIC_BY_EXCHANGE

#define HD_CUDASIM_ATOMIC_CAS(type)                                                            \
    static inline type atomicCAS(type *address, type expected, type wanted)                    \
    {                                                                                          \
        hd_cudasim_preempt();                                                                  \
        (void)__atomic_compare_exchange_n(address, &expected, wanted, false, __ATOMIC_RELAXED, \
                                          __ATOMIC_RELAXED);                                   \
        return expected;                                                                       \
    }
HD_CUDASIM_ATOMIC_CAS(int)
HD_CUDASIM_ATOMIC_CAS(unsigned)
HD_CUDASIM_ATOMIC_CAS(unsigned long long)
#undef HD_CUDASIM_ATOMIC_CAS

static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_block(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- Loads and stores with a hint ---- */

template <typename T>
static inline T hd_cudasim_load(const T *address, HD_CUDASIM_HERE)
{
    hd_cudasim_check_aligned(address, sizeof(T), HD_CUDASIM_SITE);
    return *address;
}
template <typename T>
static inline void hd_cudasim_store(T *address, T value, HD_CUDASIM_HERE)
{
    hd_cudasim_check_aligned(address, sizeof(T), HD_CUDASIM_SITE);
    *address = value;
}
/* Load through the read-only cache: it is an error if the launch also writes these bytes. */
template <typename T>
static inline T __ldg(const T *address, HD_CUDASIM_HERE)
{
    hd_cudasim_check_aligned(address, sizeof(T), HD_CUDASIM_SITE);
    hd_cudasim_is_constant(address, sizeof(T), HD_CUDASIM_SITE);
    return *address;
}
#define __ldcs hd_cudasim_load
#define __ldcg hd_cudasim_load
#define __stcs hd_cudasim_store
#define __stcg hd_cudasim_store

/* ---- Integers and bits ---- */

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline unsigned __brev(unsigned x)
{
    unsigned y = 0;

    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1u) << (31 - i);
    return y;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <typename To, typename From>
static inline To hd_cudasim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;

    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x)
{
    return hd_cudasim_bits<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return hd_cudasim_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return hd_cudasim_bits<float>(x);
}
static inline float __int_as_float(int x)
{
    return hd_cudasim_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return hd_cudasim_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return hd_cudasim_bits<double>(x);
}

#define HD_CUDASIM_EXTREMES(type)          \
    static inline type min(type a, type b) \
    {                                      \
        return a < b ? a : b;              \
    }                                      \
    static inline type max(type a, type b) \
    {                                      \
        return a > b ? a : b;              \
    }
HD_CUDASIM_EXTREMES(int)
HD_CUDASIM_EXTREMES(unsigned)
HD_CUDASIM_EXTREMES(long)
HD_CUDASIM_EXTREMES(unsigned long)
HD_CUDASIM_EXTREMES(long long)
HD_CUDASIM_EXTREMES(unsigned long long)
#undef HD_CUDASIM_EXTREMES

/* ---- Floats ---- */

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

/* Macros, because the C library has other functions of these names. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)

static inline float __fdividef(float x, float y) /* 0 if 1 / y is subnormal, as on the device */
{
    return fabsf(y) > 0x1p126f ? x * 0.0f : x / y;
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
/* Never contracted to a fused multiply-add, as on the device. */
static inline float __fadd_rn(float a, float b)
{
    volatile float sum = a + b;

    return sum;
}
static inline float __fsub_rn(float a, float b)
{
    volatile float difference = a - b;

    return difference;
}
static inline float __fmul_rn(float a, float b)
{
    volatile float product = a * b;

    return product;
}
static inline float __fdiv_rn(float a, float b)
{
    volatile float quotient = a / b;

    return quotient;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline float __frcp_rn(float a)
{
    return __fdiv_rn(1.0f, a);
}

#endif
