#include "base/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

/* Copies the rest of an open file. */
static enum hd_status copy_rest(int from, int to, const char *path)
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

enum hd_status hd_file_copy(const char *from, const char *to, mode_t mode)
{
    const int in = open(from, O_RDONLY | O_CLOEXEC);
    enum hd_status st = HD_OK;
    int out;

    if (in < 0)
        return hd_file_cannot_open("", from, errno);
    out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    if (out < 0)
        st = hd_err(hd_file_write_status(errno), "cannot create %s: %s", to,
                    hd_file_error_text(errno));
    else
        st = copy_rest(in, out, to);
    if (out >= 0 && close(out) < 0 && !st)
        st = hd_err(hd_file_write_status(errno), "cannot write %s: %s", to,
                    hd_file_error_text(errno));
    (void)close(in);
    if (st && out >= 0)
        (void)unlink(to);
    return st;
}
