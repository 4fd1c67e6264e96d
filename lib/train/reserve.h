/* reserve: allocates a rank's private memory, and queries resident memory.
 *
 * Host memory is aligned to 2 MiB and uses huge pages if the system has them. hd_rank_reserve
 * (opened_rank.h) touches every page, with as many threads as the rank has, so that no step has page
 * faults. An inaccessible guard page follows it.
 *
 * Threads: the rank's; helper threads have ended when a function returns.
 */
#ifndef HD_TRAIN_RESERVE_H
#define HD_TRAIN_RESERVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"

struct hd_private {
    char *base;      /* memory of tensors, on the device if there is one */
    char *host_base; /* without a device: base */
    void *map;       /* address of the whole mapping of host memory, for munmap */
    size_t map_bytes;
};

struct hd_opened_rank;
/* Releases the memory of hd_rank_reserve, also after its failure. Call it before the backend is
 * closed. */
void hd_rank_release(struct hd_opened_rank *opened);

/* Returns the resident bytes of this process; 0: /proc cannot be read. */
int64_t hd_memory_resident_bytes(void);
/* Returns how many bytes of the memory [base, base + size_bytes) are in huge pages; counts whole
 * mappings of /proc/self/smaps. */
int64_t hd_memory_huge_bytes(const void *base, int64_t size_bytes);

#endif
