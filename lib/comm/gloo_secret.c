#include "comm/gloo_secret.h"

#include <assert.h>
#include <string.h>

enum { BLOCK = 64, PROVED_MAX = 448 };

/* SHA-256 round constants: the first 32 bits of the fractions of the cube roots of the first 64
 * primes. */
static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int by)
{
    return x >> by | x << (32 - by);
}

static void take_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], v[8];

    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        const uint32_t a = w[t - 15], b = w[t - 2];

        w[t] = w[t - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[t - 7] +
               (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int t = 0; t < 64; t++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t first = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) +
                               ((e & v[5]) ^ (~e & v[6])) + rounds[t] + w[t];
        const uint32_t second =
            (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));

        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += first;
        v[0] = first + second;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

void hd_gloo_hash(const void *data, size_t size_bytes, uint8_t ret_hash[HD_GLOO_HASH_BYTES])
{
    /* SHA-256 initial state: the first 32 bits of the fractions of the square roots of the first 8
     * primes */
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *at = data;
    uint8_t tail[2 * BLOCK] = {0};
    size_t left = size_bytes, tail_bytes;

    for (; left >= BLOCK; left -= BLOCK, at += BLOCK)
        take_block(state, at);
    if (left > 0)
        memcpy(tail, at, left);
    tail[left] = 0x80; /* padding of SHA-256: 0x80, zeros, and the message's length in bits in the
                          last 8 bytes */
    tail_bytes = left + 9 <= BLOCK ? BLOCK : 2 * BLOCK;
    for (int i = 0; i < 8; i++)
        tail[tail_bytes - 1 - (size_t)i] = (uint8_t)((uint64_t)size_bytes * 8 >> (8 * i));
    for (size_t done = 0; done < tail_bytes; done += BLOCK)
        take_block(state, tail + done);
    for (int i = 0; i < 32; i++)
        ret_hash[i] = (uint8_t)(state[i / 4] >> (24 - i % 4 * 8));
}

void hd_gloo_proof(const uint8_t key[HD_GLOO_HASH_BYTES], const void *data, size_t size_bytes,
                   uint8_t ret_proof[HD_GLOO_HASH_BYTES])
{
    uint8_t inner[BLOCK + PROVED_MAX], outer[BLOCK + HD_GLOO_HASH_BYTES];

    assert(size_bytes <= PROVED_MAX);
    for (int i = 0; i < BLOCK; i++) {
        const uint8_t k = i < HD_GLOO_HASH_BYTES ? key[i] : 0;

        inner[i] = k ^ 0x36;
        outer[i] = k ^ 0x5c;
    }
    memcpy(inner + BLOCK, data, size_bytes);
    hd_gloo_hash(inner, BLOCK + size_bytes, outer + BLOCK);
    hd_gloo_hash(outer, sizeof outer, ret_proof);
}

bool hd_gloo_same(const uint8_t *a, const uint8_t *b, size_t size_bytes)
{
    uint8_t different = 0;

    for (size_t i = 0; i < size_bytes; i++)
        different |= a[i] ^ b[i];
    return different == 0;
}
