/* map: a file as bytes in memory, of which the system reads what is looked at. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "records_internal.h"

enum hd_status records_map(const char *path, const unsigned char **ret_bytes, int64_t *ret_count)
{
    struct stat info;
    void *bytes = NULL;
    int fd;
    enum hd_status st = hd_file_open_regular("the data file ", path, &fd);

    if (st)
        return st;
    if (fstat(fd, &info) < 0)
        st = hd_err(HD_IO, "cannot examine %s: %s", path, strerror(errno));
    if (!st && info.st_size) {
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            st = hd_err(HD_IO, "cannot map %s into memory: %s", path, strerror(errno));
    }
    (void)close(fd);
    if (st)
        return st;
    *ret_bytes = bytes;
    *ret_count = info.st_size;
    return HD_OK;
}

void records_unmap(const unsigned char *bytes, int64_t count)
{
    if (bytes)
        (void)munmap((void *)(uintptr_t)bytes, (size_t)count);
}
