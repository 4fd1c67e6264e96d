/* reserve: allocates a rank's private memory, and queries resident memory. Only for lib/train.
 *
 * Host memory is aligned to 2 MiB and uses huge pages if the system has them. hd_private_reserve
 * touches every page, with as many threads as the rank has, so that no step has page faults. An
 * inaccessible guard page follows it.
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
    const struct hd_device_table *device; /* NULL: base is host memory */
    struct hd_backend *backend;
};

/* Reserves size_bytes > 0 of memory for tensors and, if the backend has a device, host_bytes beside it;
 * touches each page of host memory with `threads` threads. HD_NO_MEMORY: no address space, or not
 * enough memory for the pages. hd_private_release also follows a failure, and comes before the
 * backend is closed. */
enum hd_status hd_private_reserve(const struct hd_backend_table *table, struct hd_backend *backend,
                                  int64_t size_bytes, int64_t host_bytes, int threads,
                                  struct hd_private *ret_private);
void hd_private_release(struct hd_private *memory); /* {0} is fine */

/* Returns the resident bytes of this process; 0: /proc cannot be read. */
int64_t hd_memory_resident_bytes(void);
/* Returns how many bytes of the memory [base, base + size_bytes) are in huge pages; counts whole
 * mappings of /proc/self/smaps. */
int64_t hd_memory_huge_bytes(const void *base, int64_t size_bytes);

#endif
