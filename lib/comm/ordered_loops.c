/* The loops of hd_ordered_reduce, compiled once per instruction set (ORDERED_ISA). Vector code adds
 * the same numbers in the same order as scalar code, so all variants give the same bits. */
#include <assert.h>
#include <string.h>

#include "base/pieces.h"
#include "comm/ordered_isa.h"

/* Inputs are processed in blocks of BLOCK elements, so that the accumulators fit the L1 cache.
 * `out` is written after all inputs of the block have been read, so it may be one of them. */
enum { BLOCK = HD_PIECE(1024, 40) };

/* ---- load a block into accumulators, add another, store ----
 *
 * One set of functions per pair (stored type, accumulator type). The loops are simple, so compilers
 * vectorise them. */

#define SAME(x) (x)

#define DEFINE_FAMILY(name, stored, keep_fp32, widen, narrow)                                  \
    static void name##_load(keep_fp32 *restrict acc, const stored *restrict in, int n)         \
    {                                                                                          \
        for (int i = 0; i < n; i++)                                                            \
            acc[i] = widen(in[i]);                                                             \
    }                                                                                          \
    static void name##_sum(keep_fp32 *restrict acc, const stored *restrict in, int n)          \
    {                                                                                          \
        for (int i = 0; i < n; i++)                                                            \
            acc[i] = (keep_fp32)(acc[i] + widen(in[i]));                                       \
    }                                                                                          \
    static void name##_max(keep_fp32 *restrict acc, const stored *restrict in, int n)          \
    {                                                                                          \
        for (int i = 0; i < n; i++) {                                                          \
            const keep_fp32 b = widen(in[i]);                                                  \
                                                                                               \
            acc[i] = b > acc[i] || b != b ? b : acc[i]; /* NaN stays: no b compares larger */  \
        }                                                                                      \
    }                                                                                          \
    static void name##_store(stored *restrict out, const keep_fp32 *restrict acc, int n)       \
    {                                                                                          \
        for (int i = 0; i < n; i++)                                                            \
            out[i] = narrow(acc[i]);                                                           \
    }                                                                                          \
    static void name##_reduce(stored *out, const void *const *in, int in_count, int64_t count, \
                              enum hd_comm_reduce reduce)                                      \
    {                                                                                          \
        keep_fp32 acc[BLOCK];                                                                  \
                                                                                               \
        for (int64_t at = 0; at < count; at += BLOCK) {                                        \
            const int n = count - at < BLOCK ? (int)(count - at) : BLOCK;                      \
                                                                                               \
            name##_load(acc, (const stored *)in[0] + at, n);                                   \
            for (int p = 1; p < in_count; p++) {                                               \
                if (reduce == HD_COMM_SUM)                                                     \
                    name##_sum(acc, (const stored *)in[p] + at, n);                            \
                else                                                                           \
                    name##_max(acc, (const stored *)in[p] + at, n);                            \
            }                                                                                  \
            name##_store(out + at, acc, n);                                                    \
        }                                                                                      \
    }

DEFINE_FAMILY(f32, float, float, SAME, SAME)
DEFINE_FAMILY(bf16, uint16_t, float, hd_bf16_to_f32, hd_f32_to_bf16)
DEFINE_FAMILY(f16, uint16_t, float, hd_f16_to_f32, hd_f32_to_f16)
DEFINE_FAMILY(f64, double, double, SAME, SAME)
DEFINE_FAMILY(u8, uint8_t, uint8_t, SAME, SAME)

/* Sums vectors of bf16 directly in the fp32 result. */
static void bf16_reduce_fp32(float *out, const void *const *in, int in_count, int64_t count)
{
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int n = count - at < BLOCK ? (int)(count - at) : BLOCK;

        bf16_load(out + at, (const uint16_t *)in[0] + at, n);
        for (int p = 1; p < in_count; p++)
            bf16_sum(out + at, (const uint16_t *)in[p] + at, n);
    }
}

/* Defines the functions of a signed integer type: added as unsigned (modulo 2^n), compared as
 * signed. */
#define DEFINE_SIGNED(name, signed_type, unsigned_type)                                      \
    static void name##_reduce(signed_type *out, const void *const *in, int in_count,         \
                              int64_t count, enum hd_comm_reduce reduce)                     \
    {                                                                                        \
        signed_type acc[BLOCK];                                                              \
                                                                                             \
        for (int64_t at = 0; at < count; at += BLOCK) {                                      \
            const int n = count - at < BLOCK ? (int)(count - at) : BLOCK;                    \
                                                                                             \
            memcpy(acc, (const signed_type *)in[0] + at, (size_t)n * sizeof acc[0]);         \
            for (int p = 1; p < in_count; p++) {                                             \
                const signed_type *b = (const signed_type *)in[p] + at;                      \
                                                                                             \
                for (int i = 0; i < n; i++) {                                                \
                    if (reduce == HD_COMM_SUM)                                               \
                        acc[i] = (signed_type)((unsigned_type)acc[i] + (unsigned_type)b[i]); \
                    else                                                                     \
                        acc[i] = b[i] > acc[i] ? b[i] : acc[i];                              \
                }                                                                            \
            }                                                                                \
            memcpy(out + at, acc, (size_t)n * sizeof acc[0]);                                \
        }                                                                                    \
    }

DEFINE_SIGNED(i32, int32_t, uint32_t)
DEFINE_SIGNED(i64, int64_t, uint64_t)

void ORDERED_NAME(ORDERED_ISA)(void *out, const void *const *in, int in_count, int64_t count,
                               enum hd_dtype dtype, enum hd_comm_reduce reduce, bool keep_fp32)
{
    switch (dtype) {
    case HD_F32:
        f32_reduce(out, in, in_count, count, reduce);
        return;
    case HD_BF16:
        if (keep_fp32)
            bf16_reduce_fp32(out, in, in_count, count);
        else
            bf16_reduce(out, in, in_count, count, reduce);
        return;
    case HD_F16:
        f16_reduce(out, in, in_count, count, reduce);
        return;
    case HD_F64:
        f64_reduce(out, in, in_count, count, reduce);
        return;
    case HD_I32:
        i32_reduce(out, in, in_count, count, reduce);
        return;
    case HD_I64:
        i64_reduce(out, in, in_count, count, reduce);
        return;
    case HD_U8:
        u8_reduce(out, in, in_count, count, reduce);
        return;
    case HD_DTYPE_COUNT:
        break;
    }
    assert(!"checked at launch");
}
