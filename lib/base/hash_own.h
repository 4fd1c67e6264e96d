/* hash_own: XXH64 without the xxHash library. Used by: hash.c, and the test that compares both. */
#ifndef HD_BASE_HASH_OWN_H
#define HD_BASE_HASH_OWN_H

#include "base/hash.h"

void hd_hash_own_begin(struct hd_hash *ret_hash);
void hd_hash_own_add(struct hd_hash *hash, const void *data, size_t size_bytes);
uint64_t hd_hash_own_value(const struct hd_hash *hash);

#endif
