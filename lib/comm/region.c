/* region: maps memory and page-faults it in immediately, so that a shortage is an error at
 * allocation time. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/comm_internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels return EINVAL */
#endif

/* Page-faults every page in on this thread, so that no later store can fail or page-fault. */
static enum hd_status touch(char *base, size_t size_bytes, int fd)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    (void)madvise(base, size_bytes, MADV_HUGEPAGE); /* best effort: without huge pages the memory is
                                                       only slower */
    while (madvise(base, size_bytes, MADV_POPULATE_WRITE) < 0) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno != EINVAL)
            return hd_err(HD_NO_MEMORY, "comm: cannot back %zu bytes of registered memory: %s",
                          size_bytes, strerror(errno));
        /* A kernel without MADV_POPULATE_WRITE: reserve the pages first, so that a shortage of
         * memory is an error and not a SIGBUS. */
        if (fd >= 0 && fallocate(fd, 0, 0, (off_t)size_bytes) < 0)
            return hd_err(HD_NO_MEMORY, "comm: cannot back %zu bytes of registered memory: %s",
                          size_bytes, strerror(errno));
        for (size_t at = 0; at < size_bytes; at += page)
            ((volatile char *)base)[at] = 0;
        break;
    }
    return HD_OK;
}

size_t hd_comm_whole_pages(size_t size_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (size_bytes + page - 1) / page * page;
}

enum hd_status hd_comm_map_region(size_t size_bytes, int fd, void **ret_base)
{
    const size_t bytes = hd_comm_whole_pages(size_bytes);
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    enum hd_status st;

    if (base == MAP_FAILED)
        return hd_err(HD_NO_MEMORY, "comm: cannot map %zu bytes of registered memory: %s", bytes,
                      strerror(errno));
    st = touch(base, bytes, fd);
    if (st) {
        (void)munmap(base, bytes);
        return st;
    }
    *ret_base = base;
    return HD_OK;
}
