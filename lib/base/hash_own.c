/* XXH64 from its specification (Yann Collet, "xxHash fast digest algorithm", xxhash_spec.md).
 *
 * Four lanes each take 8 bytes of every stripe of 32. The last, incomplete stripe is mixed in 8, 4
 * and 1 bytes at a time. Words are read as little-endian on every machine.
 */
#include "base/hash_own.h"

#include <string.h>

#define PRIME1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME3 UINT64_C(0x165667B19E3779F9)
#define PRIME4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME5 UINT64_C(0x27D4EB2F165667C5)

enum { STRIPE = 32 };

struct own {
    uint64_t lane[4];
    uint64_t total_bytes;
    unsigned char rest[STRIPE]; /* the incomplete stripe: total_bytes % STRIPE bytes */
};
_Static_assert(sizeof(struct own) <= sizeof(struct hd_hash), "the state must fit in hd_hash");

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t read_le(const unsigned char *p, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static uint64_t round_of(uint64_t lane, uint64_t word)
{
    return rotate(lane + word * PRIME2, 31) * PRIME1;
}

static void take_stripe(struct own *s, const unsigned char *p)
{
    for (int i = 0; i < 4; i++)
        s->lane[i] = round_of(s->lane[i], read_le(p + 8 * i, 8));
}

void hd_hash_own_begin(struct hd_hash *ret_hash)
{
    struct own s = {.lane = {PRIME1 + PRIME2, PRIME2, 0, 0 - PRIME1}};

    memset(ret_hash, 0, sizeof *ret_hash);
    memcpy(ret_hash, &s, sizeof s);
}

void hd_hash_own_add(struct hd_hash *hash, const void *data, size_t size_bytes)
{
    const unsigned char *p = data;
    struct own s;
    size_t waiting;

    memcpy(&s, hash, sizeof s);
    waiting = s.total_bytes % STRIPE;
    s.total_bytes += size_bytes;
    while (size_bytes && (waiting || size_bytes < STRIPE)) {
        size_t capacity = STRIPE - waiting;
        size_t n = size_bytes < capacity ? size_bytes : capacity;

        memcpy(s.rest + waiting, p, n);
        p += n;
        size_bytes -= n;
        waiting += n;
        if (waiting == STRIPE) {
            take_stripe(&s, s.rest);
            waiting = 0;
        }
    }
    for (; size_bytes >= STRIPE; p += STRIPE, size_bytes -= STRIPE)
        take_stripe(&s, p);
    if (size_bytes)
        memcpy(s.rest, p, size_bytes);
    memcpy(hash, &s, sizeof s);
}

static uint64_t merge_lanes(const uint64_t lane[4])
{
    uint64_t h =
        rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);

    for (int i = 0; i < 4; i++)
        h = (h ^ round_of(0, lane[i])) * PRIME1 + PRIME4;
    return h;
}

uint64_t hd_hash_own_value(const struct hd_hash *hash)
{
    const unsigned char *p;
    struct own s;
    uint64_t h;
    size_t left;

    memcpy(&s, hash, sizeof s);
    h = s.total_bytes >= STRIPE ? merge_lanes(s.lane) : PRIME5;
    h += s.total_bytes;
    left = s.total_bytes % STRIPE;
    p = s.rest;
    for (; left >= 8; p += 8, left -= 8)
        h = rotate(h ^ round_of(0, read_le(p, 8)), 27) * PRIME1 + PRIME4;
    if (left >= 4) {
        h = rotate(h ^ read_le(p, 4) * PRIME1, 23) * PRIME2 + PRIME3;
        p += 4;
        left -= 4;
    }
    for (; left; p++, left--)
        h = rotate(h ^ *p * PRIME5, 11) * PRIME1;
    h = (h ^ h >> 33) * PRIME2;
    h = (h ^ h >> 29) * PRIME3;
    return h ^ h >> 32;
}
