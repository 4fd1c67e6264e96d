/* hash: XXH64 of bytes on disk, so that a flipped bit is seen. No protection against an adversary.
 *
 * XXH64 with seed 0, by the xxHash library where its header was there at build time, else by our
 * own code from the published specification; both give the same numbers on every machine.
 *
 * Used by: checkpoint, data, whoever stores or compares bytes.   Uses: libc, xxHash if present.
 * Threads: a hash in progress has one owner.
 */
#ifndef HD_BASE_HASH_H
#define HD_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HD_HASH_TEXT_MAX = 17 }; /* 16 hexadecimal digits and NUL */

struct hd_hash { /* in progress; private */
    uint64_t state[12];
};

uint64_t hd_hash_bytes(const void *data, size_t size_bytes);

/* The same in pieces: begin, add .. add, value (which may be asked for at any time). */
void hd_hash_begin(struct hd_hash *ret_hash);
void hd_hash_add(struct hd_hash *hash, const void *data, size_t size_bytes);
uint64_t hd_hash_value(const struct hd_hash *hash);

/* As text: exactly 16 lower-case hexadecimal digits. */
void hd_hash_format(uint64_t value, char ret_text[HD_HASH_TEXT_MAX]);
bool hd_hash_parse(const char *text, uint64_t *ret_value);

#endif
