/* drop: dropout masks as bytes: 0xff for a value that is dropped, 0 for one that is kept. The
 * generator is Philox4x32-10 of base/random; ops.h defines its key and counter. A "number" is the
 * channel or the key index, in the notation of ops.h.
 *
 * Four numbers share a call of the generator. Each 64-bit lane computes one call: the low half
 * holds a word of its state; the high half has arbitrary bits and is ignored.
 *
 * Used by: dropout, attention.   Uses: vec, base/random.   Threads: any.
 */
#ifndef HD_KERNELS_CPU_DROP_H
#define HD_KERNELS_CPU_DROP_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/random.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

enum {
    CALLS = VEC_BYTES / 8,  /* number of calls of the generator computed at a time: one per 64-bit
                               lane */
    DROP_LINE_PAD = 4 * VL, /* bytes that drop_line may write past `count` bytes */
    DROP_NUMBERS_MAX = 256, /* largest `count` of drop_numbers */
    DROP_ROWS = 32          /* number of rows of a mask of drop_panel */
};

typedef uint64_t vq __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t vq_low __attribute__((vector_size(VEC_BYTES / 2)));
typedef uint8_t vq_bytes __attribute__((vector_size(VEC_BYTES / 8)));
typedef int8_t vf_bytes __attribute__((vector_size(VL)));

struct drop {
    uint64_t round_key[10][2]; /* round keys derived from the step's key: 32 bits each */
    uint32_t threshold;        /* a random word below this threshold drops the value to which it
                                  belongs */
    float scale;               /* 1 / (1 - p), the factor of kept values */
};

/* Words of the generator's counter that all values of a row share: index, head and sample. */
struct drop_place {
    uint32_t index, head, sample;
};

/* Words of the generator's counter for DROP_ROWS rows, for drop_panel. */
struct drop_places {
    uint64_t index[DROP_ROWS], head[DROP_ROWS], sample[DROP_ROWS];
};

/* Sets *ret_drop to the keys and threshold of the current step (block->step). HD_INVALID for a p
 * outside [0, 1). */
INLINE enum hd_status drop_of(const char *kernel, uint64_t key, const struct hd_step_state *block,
                              float p, struct drop *ret_drop)
{
    uint64_t step_key;

    if (!(p >= 0 && p < 1))
        return hd_err(HD_INVALID, "%s: the probability of dropout is %g; it must be in [0, 1)",
                      kernel, (double)p);
    step_key = hd_random_key(key, (uint64_t)block->step);
    ret_drop->threshold = (uint32_t)((double)p * 0x1p32);
    ret_drop->scale = (float)(1 / (1 - (double)p));
    for (uint32_t round = 0; round < 10; round++) {
        ret_drop->round_key[round][0] = (uint32_t)step_key + round * 0x9E3779B9u;
        ret_drop->round_key[round][1] = (uint32_t)(step_key >> 32) + round * 0xBB67AE85u;
    }
    return HD_OK;
}

INLINE vq vq_multiply_low(vq a, uint32_t b)
{
#if defined(__AVX512F__)
    return (vq)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    return (vq)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__) /* SSE2 is part of every x86-64, so also used by the plain kernels */
    return (vq)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
    return (a & UINT32_MAX) * b;
#endif
}

INLINE vq vq_xor(vq a, vq b, vq c)
{
#if defined(__AVX512F__)
    return (vq)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
#else
    return a ^ b ^ c;
#endif
}

INLINE vq_low vq_narrow(vq wide)
{
#if defined(__AVX512F__)
    return (vq_low)_mm512_cvtepi64_epi32((__m512i)wide);
#elif defined(__AVX2__)
    return (vq_low)_mm256_castsi256_si128(
        _mm256_permutevar8x32_epi32((__m256i)wide, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0)));
#else
    return __builtin_convertvector(wide, vq_low);
#endif
}

INLINE vq_bytes vq_narrow_to_bytes(vq wide)
{
#if defined(__AVX512F__)
    const __m128i bytes = _mm512_cvtepi64_epi8((__m512i)wide);
    vq_bytes low;

    memcpy(&low, &bytes, sizeof low);
    return low;
#else
    return __builtin_convertvector(wide, vq_bytes);
#endif
}

INLINE vq vq_set(uint64_t x)
{
    return x - (vq){0};
}

/* Computes one call of the generator per lane, for counter words c0 to c3, and sets ret_words to
 * its four random words. */
INLINE void drop_calls(const struct drop *d, vq c0, vq c1, vq c2, vq c3, vq ret_words[4])
{
    UNROLL
    for (int round = 0; round < 10; round++) {
        const vq p0 = vq_multiply_low(c0, 0xD2511F53u), p1 = vq_multiply_low(c2, 0xCD9E8D57u);

        c0 = vq_xor(p1 >> 32, c1, vq_set(d->round_key[round][0]));
        c1 = p1;
        c2 = vq_xor(p0 >> 32, c3, vq_set(d->round_key[round][1]));
        c3 = p0;
    }
    ret_words[0] = c0;
    ret_words[1] = c1;
    ret_words[2] = c2;
    ret_words[3] = c3;
}

/* Returns, in the low half of each lane, `bits` if the random word of the lane drops its value,
 * else zero. */
INLINE vq drop_word(const struct drop *d, vq word, uint32_t bits)
{
#if defined(__AVX512F__)
    const __mmask16 drops =
        _mm512_cmplt_epu32_mask((__m512i)word, _mm512_set1_epi32((int32_t)d->threshold));

    return (vq)_mm512_maskz_mov_epi32(drops, _mm512_set1_epi32((int32_t)bits));
#else /* a negative difference has ones in the high half */
    return (((word & UINT32_MAX) - d->threshold) >> 32) & bits;
#endif
}

/* Computes the dropout mask of numbers [first, first + count) of a row and returns it, in `line`,
 * which has count + DROP_LINE_PAD bytes. drop_mask may read one vector past the end of the mask. */
INLINE const uint8_t *drop_line(const struct drop *d, struct drop_place place, uint8_t *line,
                                int64_t first, int64_t count)
{
    const int64_t skipped = first % 4;
    vq call = vq_set((uint64_t)first / 4);
    int64_t i;

    for (int lane = 0; lane < CALLS; lane++)
        call[lane] += (uint64_t)lane;
    for (i = 0; i < skipped + count; i += 4 * CALLS) {
        vq words[4];
        vq_low narrow;

        drop_calls(d, call, vq_set(place.index), vq_set(place.head), vq_set(place.sample), words);
        narrow = vq_narrow(drop_word(d, words[0], 0xff) | drop_word(d, words[1], 0xff00) |
                           drop_word(d, words[2], 0xff0000) | drop_word(d, words[3], 0xff000000));
        memcpy(line + i, &narrow, sizeof narrow);
        call += CALLS;
    }
    memset(line + i, 0, 4); /* the last vector read begins `skipped` bytes later and ends here */
    return line + skipped;
}

/* Computes the dropout mask of `count` numbers of a row in any order, with one drop_line per run of
 * consecutive numbers, and returns it, in `dropped`, which has count + DROP_LINE_PAD bytes. */
static inline __attribute__((unused)) const uint8_t *
drop_numbers(const struct drop *d, struct drop_place place, uint8_t *dropped,
             const int32_t *numbers, int64_t count)
{
    int32_t gaps = 0; /* 0: the numbers are consecutive */
    uint8_t line[DROP_NUMBERS_MAX + DROP_LINE_PAD];

    for (int64_t j = 0; j < count; j++)
        gaps |= numbers[j] - numbers[0] - (int32_t)j;
    if (!gaps)
        return drop_line(d, place, dropped, numbers[0], count);
    for (int64_t j = 0, end; j < count; j = end) {
        for (end = j + 1; end < count && numbers[end] == numbers[end - 1] + 1;)
            end++;
        memcpy(dropped + j, drop_line(d, place, line, numbers[j], end - j), (size_t)(end - j));
    }
    memset(dropped + count, 0, VL);
    return dropped;
}

/* Computes the dropout mask of DROP_ROWS rows: dropped[j][r] for numbers[j] and row r of `places`.
 * Neighbouring numbers of one call of the generator share that call. */
static inline __attribute__((unused)) void drop_panel(const struct drop *d,
                                                      const struct drop_places *places,
                                                      uint8_t dropped[][DROP_ROWS],
                                                      const int32_t *numbers, int64_t count)
{
    for (int64_t j = 0, end; j < count; j = end) {
        const int32_t call = numbers[j] / 4;

        for (end = j + 1; end < count && numbers[end] / 4 == call;)
            end++;
        for (int r = 0; r < DROP_ROWS; r += CALLS) {
            vq index, head, sample, words[4];

            memcpy(&index, places->index + r, sizeof index);
            memcpy(&head, places->head + r, sizeof head);
            memcpy(&sample, places->sample + r, sizeof sample);
            drop_calls(d, vq_set((uint64_t)call), index, head, sample, words);
            for (int64_t i = j; i < end; i++) {
                const vq_bytes bytes =
                    vq_narrow_to_bytes(drop_word(d, words[numbers[i] % 4], 0xff));

                memcpy(dropped[i] + r, &bytes, sizeof bytes);
            }
        }
    }
}

INLINE vi drop_mask(const uint8_t *dropped) /* returns VL lanes: all ones if the value is dropped,
                                               else zero */
{
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)dropped));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)dropped));
#else
    vf_bytes bytes;

    memcpy(&bytes, dropped, sizeof bytes);
    return __builtin_convertvector(bytes, vi);
#endif
}

INLINE vf drop_from(vf x, vi mask)
{
    return vf_from_bits(vf_bits(x) & ~mask);
}

/* Sets x[j] = dropped ? 0 : scale * x[j], for j < n rounded up to whole vectors. */
INLINE void drop_floats(float *x, const uint8_t *dropped, int64_t n, float scale)
{
    for (int64_t j = 0; j < n; j += VL)
        vf_store_f32(x + j, VL, drop_from(vf_load_f32(x + j, VL) * scale, drop_mask(dropped + j)));
}

/* Sets dropped values of bf16 x to 0, without a scale, for j < n rounded up to whole vectors. */
INLINE void drop_halves(uint16_t *x, const uint8_t *dropped, int64_t n)
{
    for (int64_t j = 0; j < n; j += VL) {
        const vh mask = vu_narrow(~(vu)drop_mask(dropped + j) & 0xffffu);
        const vh kept = vh_load(x + j, VL) & mask;

        memcpy(x + j, &kept, sizeof kept);
    }
}

#endif
