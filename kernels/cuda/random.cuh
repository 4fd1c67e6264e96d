/* random: the counter-based generator of base/random.h on the device, and dropout.
 *
 * The same key and counter give the same bits as on the host. Dropout masks and router noise depend
 * only on a value's position in the batch and model (ops.h), so all backends and layouts agree. A
 * call of the generator costs some 80 integer instructions and gives four words for four
 * neighbouring values: use all four if possible.
 *
 * Used by: dropout, attention, moe_route.   Uses: device, base/random's definitions.
 * Threads: pure functions.
 */
#ifndef HD_KERNELS_CUDA_RANDOM_CUH
#define HD_KERNELS_CUDA_RANDOM_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

/* Returns the four words of Philox4x32-10 for the counter {c0, c1, c2, c3}, 32 bits each from the
 * lowest on. */
static __device__ __forceinline__ uint4 philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                               uint32_t c3)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;

        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* Returns word number i of the four, i < 4. */
static __device__ __forceinline__ uint32_t philox_word(uint4 words, uint32_t i)
{
    const uint32_t low = i & 1 ? words.y : words.x, high = i & 1 ? words.w : words.z;

    return i & 2 ? high : low;
}

static __device__ __forceinline__ uint64_t random_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* Returns hd_random_key's result on the device. */
static __device__ __forceinline__ uint64_t random_key(uint64_t seed, uint64_t stream)
{
    return random_mix(random_mix(seed + 0x9E3779B97F4A7C15ull) ^ stream);
}

/* Returns hd_random_normals' result on the device. */
static __device__ __forceinline__ float2 random_normals(uint64_t key, uint32_t c0, uint32_t c1,
                                                        uint32_t c2, uint32_t c3)
{
    const uint4 bits = philox(key, c0, c1, c2, c3);
    /* u is uniform in (0, 1]. */
    const double u = ((double)(((uint64_t)bits.y << 32 | bits.x) >> 11) + 1) * 0x1p-53;
    const double angle =
        (double)(((uint64_t)bits.w << 32 | bits.z) >> 11) * 0x1p-53 * 6.283185307179586;
    const double radius = sqrt(-2 * log(u));

    return make_float2((float)(radius * cos(angle)), (float)(radius * sin(angle)));
}

/* ---- Dropout: passed to kernels by value ---- */

struct cuda_drop {
    const struct hd_step_state *block;
    uint64_t key;
    uint32_t threshold; /* a value whose random word is below this is dropped */
    float scale;        /* factor of kept values, 1 / (1 - p) */
};

/* Computes a kernel's dropout parameters from the probability p. HD_INVALID: p is outside [0, 1).
 */
static inline enum hd_status drop_of(const char *kernel, uint64_t key,
                                     const struct hd_step_state *block, float p,
                                     struct cuda_drop *ret_drop)
{
    if (!(p >= 0 && p < 1))
        return hd_err(HD_INVALID, "%s: the probability of dropout is %g; it must be in [0, 1)",
                      kernel, (double)p);
    ret_drop->block = block;
    ret_drop->key = key;
    ret_drop->threshold = (uint32_t)((double)p * 4294967296.0);
    ret_drop->scale = (float)(1 / (1 - (double)p));
    return HD_OK;
}

/* Returns the generator's key of the current training step; call it once per thread. */
static __device__ __forceinline__ uint64_t drop_step_key(const struct cuda_drop &drop)
{
    return random_key(drop.key, (uint64_t)drop.block->step);
}

/* Returns the random words for values number 4 * call .. 4 * call + 3 (see ops.h). */
static __device__ __forceinline__ uint4 drop_words(uint64_t step_key, uint32_t call, uint32_t index,
                                                   uint32_t head, uint32_t sample)
{
    return philox(step_key, call, index, head, sample);
}

/* Returns the dropout factor of a value by its random word: 0 if it is dropped, else the scale. */
static __device__ __forceinline__ float drop_factor(const struct cuda_drop &drop, uint32_t word)
{
    return word < drop.threshold ? 0.0f : drop.scale;
}

#endif
