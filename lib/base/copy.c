#include "base/copy.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum hd_status hd_file_copy_rest(int from, int to, const char *path)
{
    char chunk[64 << 10];
    enum hd_status st = HD_OK;
    ssize_t n;

    do
        n = copy_file_range(from, NULL, to, NULL, 1 << 30, 0);
    while (n > 0);
    if (n == 0)
        return HD_OK;
    do { /* between two file systems */
        n = read(from, chunk, sizeof chunk);
        if (n > 0)
            st = hd_file_write_all(to, chunk, (size_t)n);
    } while (!st && (n > 0 || (n < 0 && errno == EINTR)));
    if (!st && n < 0)
        st = hd_err(HD_IO, "cannot copy: %s", strerror(errno));
    return st ? hd_err_prefix(st, "%s", path) : HD_OK;
}
