#include "daemon/supervisor/log_bound.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { PAGE_BYTES = 4096, DISK_BLOCK_BYTES = 512 /* unit of st_blocks */ };

static enum hd_status failed(const char *what)
{
    return hd_err(hd_file_write_status(errno), "cannot %s the log: %s", what, strerror(errno));
}

enum hd_status sup_log_cut(int fd, int64_t begin, int64_t *ret_end)
{
    char *tail = malloc(SUP_LOG_CUT_TAIL);
    enum hd_status st = HD_OK;
    struct stat info;
    ssize_t n = 0;

    if (!tail)
        return hd_err(HD_NO_MEMORY, "no memory for the end of a log");
    if (fstat(fd, &info) < 0)
        st = failed("examine");
    *ret_end = st ? 0 : info.st_size - SUP_LOG_CUT_TAIL;
    if (!st && *ret_end > begin) {
        n = pread(fd, tail, SUP_LOG_CUT_TAIL, *ret_end);
        if (n < 0 || ftruncate(fd, begin) < 0 || ftruncate(fd, info.st_size) < 0 ||
            pwrite(fd, tail, (size_t)n, *ret_end) != n)
            st = failed("cut");
    }
    free(tail);
    return st;
}

static enum hd_status make_hole(int fd, int64_t begin, int64_t *end)
{
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, *end - begin) == 0)
        return HD_OK;
    if (errno == EOPNOTSUPP || errno == ENOSYS)
        return sup_log_cut(fd, begin, end);
    return failed("make a hole in");
}

/* Writes the line before the hole, which says how much of the log is missing. Its length is fixed,
 * so that the line of a larger hole replaces it. */
static enum hd_status report(int fd, int64_t begin, int64_t end, int64_t limit_bytes)
{
    char line[160];
    const int n = snprintf(line, sizeof line,
                           "\n[heddle: this log had grown beyond %" PRId64
                           " MiB; from here to byte %-19" PRId64 " it was removed]\n",
                           limit_bytes >> 20, end);

    return pwrite(fd, line, (size_t)n, begin - n) == n ? HD_OK : failed("mark the hole in");
}

static enum hd_status bound(int fd, int64_t limit_bytes, int64_t *ret_size_bytes)
{
    const int64_t begin = limit_bytes / 4 / PAGE_BYTES * PAGE_BYTES;
    struct stat info;
    enum hd_status st;
    int64_t end;

    if (fstat(fd, &info) < 0)
        return failed("examine");
    *ret_size_bytes = info.st_size;
    if (!S_ISREG(info.st_mode) || info.st_size <= limit_bytes ||
        info.st_blocks * DISK_BLOCK_BYTES <= limit_bytes)
        return HD_OK;
    end = (info.st_size - limit_bytes / 2) / PAGE_BYTES * PAGE_BYTES;
    st = make_hole(fd, begin, &end);
    return st ? st : report(fd, begin, end, limit_bytes);
}

enum hd_status sup_log_bound(const char *path, int64_t limit_bytes, int64_t *ret_size_bytes)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    enum hd_status st;

    *ret_size_bytes = 0;
    if (fd < 0)
        return errno == ENOENT ? HD_OK : hd_err(HD_IO, "cannot open %s: %s", path, strerror(errno));
    st = bound(fd, limit_bytes, ret_size_bytes);
    (void)close(fd);
    return st ? hd_err_prefix(st, "%s", path) : HD_OK;
}
