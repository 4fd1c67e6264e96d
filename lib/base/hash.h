/* hash: XXH64 checksums of stored bytes, which detect damage. Not cryptographic.
 *
 * XXH64 with seed 0, by the xxHash library if its header was found at build time, otherwise by
 * hash_own.c. Both give the same value on every machine.
 *
 * Used by: checkpoint, data and other packages that store or compare bytes.   Uses: libc, xxHash.
 * Threads: one thread at a time uses a struct hd_hash. */
#ifndef HD_BASE_HASH_H
#define HD_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HD_HASH_TEXT_MAX = 17 }; /* 16 hexadecimal digits and NUL */

struct hd_hash { /* private state of an unfinished hash */
    uint64_t state[12];
};

uint64_t hd_hash_bytes(const void *data, size_t size_bytes);

/* Hash bytes that come in pieces: call hd_hash_begin once and hd_hash_add any number of times;
 * hd_hash_value returns the hash of all bytes added so far. */
void hd_hash_begin(struct hd_hash *ret_hash);
void hd_hash_add(struct hd_hash *hash, const void *data, size_t size_bytes);
uint64_t hd_hash_value(const struct hd_hash *hash);

/* Writes a hash as exactly 16 lower-case hexadecimal digits. */
void hd_hash_format(uint64_t value, char ret_text[HD_HASH_TEXT_MAX]);
bool hd_hash_parse(const char *text, uint64_t *ret_value);

#endif
