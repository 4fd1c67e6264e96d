/* random: counter-based random numbers. The same key and counter give the same number everywhere.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel Random Numbers: As Easy as 1, 2, 3")
 * maps a 64-bit key and a 128-bit counter to 128 random bits. There is no state to save. Initial
 * weights use the key of (seed, parameter name) and the global element index as counter, so a shard
 * has the same values in every layout.
 *
 * Used by: model, data, generation, control plane (ids, jitter).   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_RANDOM_H
#define HD_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Sets ret_bits[0..3] to the 128 bits that Philox4x32-10 gives for a counter and a key. */
void hd_random_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t ret_bits[4]);

uint64_t hd_random_hash(const char *text); /* hash of a text: FNV-1a 64, then a bit mixer */
uint64_t hd_random_key(uint64_t seed, uint64_t stream); /* independent key per (seed, stream) */
uint64_t hd_random_u64(uint64_t key, uint64_t index);
double hd_random_uniform(uint64_t key, uint64_t index); /* returns a number in [0, 1) with 53 random
                                                           bits */

/* Returns element `index` of the standard normal sequence of `key` (Box-Muller over 53-bit
 * uniforms; float result). Elements 2i and 2i+1 come from one Philox call. */
float hd_random_normal(uint64_t key, uint64_t index);
/* Sets ret_pair to two independent standard normal numbers, those of a key and a 128-bit
 * counter. */
void hd_random_normals(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, float ret_pair[2]);

/* Returns element `index` of a keyed permutation of [0, count), computed without a table: a Feistel
 * network of 4 Philox rounds on an even number of bits, applied until the value is below `count`
 * (cycle walking). index < count. */
uint64_t hd_random_permute(uint64_t key, uint64_t count, uint64_t index);

/* Fills memory with bytes from the kernel's generator, for ids and secrets. */
enum hd_status hd_random_bytes(void *ret_bytes, size_t count);

#endif
