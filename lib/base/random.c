#include "base/random.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>

void hd_random_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t ret_bits[4])
{
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    ret_bits[0] = c0;
    ret_bits[1] = c1;
    ret_bits[2] = c2;
    ret_bits[3] = c3;
}

/* Mixes bits with the finaliser of SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t hd_random_hash(const char *text)
{
    uint64_t h = 0xCBF29CE484222325u;

    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001B3u;
    return mix(h);
}

uint64_t hd_random_key(uint64_t seed, uint64_t stream)
{
    return mix(mix(seed + 0x9E3779B97F4A7C15u) ^ stream);
}

uint64_t hd_random_u64(uint64_t key, uint64_t index)
{
    uint32_t bits[4];

    hd_random_philox(key, index, 0, bits);
    return (uint64_t)bits[1] << 32 | bits[0];
}

double hd_random_uniform(uint64_t key, uint64_t index)
{
    return (double)(hd_random_u64(key, index) >> 11) * 0x1p-53;
}

void hd_random_normals(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, float ret_pair[2])
{
    uint32_t bits[4];
    double u, angle, radius;

    hd_random_philox(key, counter_lo, counter_hi, bits);
    u = ((double)(((uint64_t)bits[1] << 32 | bits[0]) >> 11) + 1) * 0x1p-53; /* range (0, 1] */
    angle = (double)(((uint64_t)bits[3] << 32 | bits[2]) >> 11) * 0x1p-53 * 6.283185307179586;
    radius = sqrt(-2 * log(u));
    ret_pair[0] = (float)(radius * cos(angle));
    ret_pair[1] = (float)(radius * sin(angle));
}

float hd_random_normal(uint64_t key, uint64_t index)
{
    float pair[2];

    hd_random_normals(key, index / 2, 1, pair);
    return pair[index % 2];
}

static uint64_t feistel(uint64_t key, int half_bits, uint64_t x)
{
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;

    for (uint64_t round = 0; round < 4; round++) {
        uint32_t bits[4];
        uint64_t next;

        hd_random_philox(key, right, round + 2, bits);
        next = left ^ (((uint64_t)bits[1] << 32 | bits[0]) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t hd_random_permute(uint64_t key, uint64_t count, uint64_t index)
{
    int half_bits = 1;

    while (half_bits < 32 && (UINT64_C(1) << (2 * half_bits)) < count)
        half_bits++;
    do /* cycle walking: ends because index < count lies on the cycle; takes fewer than 4 passes on
          average */
        index = feistel(key, half_bits, index);
    while (index >= count);
    return index;
}

enum hd_status hd_random_bytes(void *ret_bytes, size_t count)
{
    char *p = ret_bytes;

    while (count) {
        ssize_t n = getrandom(p, count, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hd_err(HD_IO, "cannot read random bytes from the kernel: %s", strerror(errno));
        p += n;
        count -= (size_t)n;
    }
    return HD_OK;
}
