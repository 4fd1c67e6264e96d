/* reserve: the private half of a rank's memory, and what the system says of both. Only for
 * lib/train.
 *
 * Address space is taken first, at a bound of 2 MiB; then huge pages are asked for; then every page
 * is touched, once, by as many threads as the rank has. Behind the last byte stands a page that
 * nobody may touch.
 *
 * Threads: the rank's; helpers are gone when a function returns.
 */
#ifndef HD_TRAIN_RESERVE_H
#define HD_TRAIN_RESERVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hd_private {
    char *base;
    void *map; /* what to give back */
    size_t map_bytes;
};

/* HD_NO_MEMORY when it cannot be had or backed. size_bytes > 0. */
enum hd_status hd_private_reserve(int64_t size_bytes, int threads, struct hd_private *ret_private);
void hd_private_release(struct hd_private *memory);

/* Resident bytes of this process; 0 where /proc does not tell. */
int64_t hd_memory_resident_bytes(void);
/* Bytes of [base, base + size_bytes) that lie on huge pages. */
int64_t hd_memory_huge_bytes(const void *base, int64_t size_bytes);

#endif
