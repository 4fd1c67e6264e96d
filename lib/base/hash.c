#include "base/hash.h"

#include <stdio.h>
#include <string.h>

#include "base/hash_own.h"

#if defined __has_include
#if __has_include(<xxhash.h>) && !defined HEDDLE_NO_XXHASH
#define HAVE_XXHASH 1
#endif
#endif

#ifdef HAVE_XXHASH

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH64_state_t) <= sizeof(struct hd_hash), "the state must fit in hd_hash");

void hd_hash_begin(struct hd_hash *ret_hash)
{
    XXH64_state_t s;

    (void)XXH64_reset(&s, 0);
    memset(ret_hash, 0, sizeof *ret_hash);
    memcpy(ret_hash, &s, sizeof s);
}

void hd_hash_add(struct hd_hash *hash, const void *data, size_t size_bytes)
{
    XXH64_state_t s;

    if (!size_bytes)
        return;
    memcpy(&s, hash, sizeof s);
    (void)XXH64_update(&s, data, size_bytes);
    memcpy(hash, &s, sizeof s);
}

uint64_t hd_hash_value(const struct hd_hash *hash)
{
    XXH64_state_t s;

    memcpy(&s, hash, sizeof s);
    return XXH64_digest(&s);
}

#else

void hd_hash_begin(struct hd_hash *ret_hash)
{
    hd_hash_own_begin(ret_hash);
}

void hd_hash_add(struct hd_hash *hash, const void *data, size_t size_bytes)
{
    hd_hash_own_add(hash, data, size_bytes);
}

uint64_t hd_hash_value(const struct hd_hash *hash)
{
    return hd_hash_own_value(hash);
}

#endif

uint64_t hd_hash_bytes(const void *data, size_t size_bytes)
{
    struct hd_hash hash;

    hd_hash_begin(&hash);
    hd_hash_add(&hash, data, size_bytes);
    return hd_hash_value(&hash);
}

void hd_hash_format(uint64_t value, char ret_text[HD_HASH_TEXT_MAX])
{
    (void)snprintf(ret_text, HD_HASH_TEXT_MAX, "%016llx", (unsigned long long)value);
}

bool hd_hash_parse(const char *text, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (int i = 0; i < 16; i++) {
        char c = text[i];

        if (c >= '0' && c <= '9')
            value = value << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        else
            return false;
    }
    if (text[16])
        return false;
    *ret_value = value;
    return true;
}
