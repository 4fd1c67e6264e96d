/* reserve: allocates a rank's private memory in host memory, and queries resident memory. Only for
 * lib/train.
 *
 * The memory is aligned to 2 MiB and uses huge pages if the system has them. hd_private_reserve
 * touches every page, with as many threads as the rank has, so that no step has page faults. An
 * inaccessible guard page follows the memory.
 *
 * Threads: the rank's; helper threads have ended when a function returns.
 */
#ifndef HD_TRAIN_RESERVE_H
#define HD_TRAIN_RESERVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hd_private {
    char *base;
    void *map; /* address of the whole mapping, for munmap */
    size_t map_bytes;
};

/* Reserves size_bytes > 0 of memory and touches each page with `threads` threads. HD_NO_MEMORY: no
 * address space, or not enough memory for the pages. */
enum hd_status hd_private_reserve(int64_t size_bytes, int threads, struct hd_private *ret_private);
void hd_private_release(struct hd_private *memory);

/* Returns the resident bytes of this process; 0: /proc cannot be read. */
int64_t hd_memory_resident_bytes(void);
/* Returns how many bytes of the memory [base, base + size_bytes) are in huge pages; counts whole
 * mappings of /proc/self/smaps. */
int64_t hd_memory_huge_bytes(const void *base, int64_t size_bytes);

#endif
