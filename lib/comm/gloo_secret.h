/* gloo_secret: SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104) for the handshake of
 * gloo_listener.c. Implemented here because the engine may depend on libc only.
 *
 * Used by: gloo_listener.c, tests.   Uses: libc.   Threads: any. */
#ifndef HD_COMM_GLOO_SECRET_H
#define HD_COMM_GLOO_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HD_GLOO_HASH_BYTES = 32 };

void hd_gloo_hash(const void *data, size_t size_bytes, uint8_t ret_hash[HD_GLOO_HASH_BYTES]);

/* Writes the HMAC-SHA-256 of `data` under `key`. size_bytes <= 448. */
void hd_gloo_proof(const uint8_t key[HD_GLOO_HASH_BYTES], const void *data, size_t size_bytes,
                   uint8_t ret_proof[HD_GLOO_HASH_BYTES]);

/* Returns whether the two byte strings are equal. Takes equal time for any contents, so that the
 * time tells an attacker nothing. */
bool hd_gloo_same(const uint8_t *a, const uint8_t *b, size_t size_bytes);

#endif
