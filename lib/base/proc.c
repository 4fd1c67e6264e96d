#include "base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool hd_proc_read(const char *path, char *ret_text, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, ret_text, size - 1);

    if (fd >= 0)
        (void)close(fd);
    ret_text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

bool hd_proc_line(const char *path, char *ret_line, size_t size)
{
    (void)hd_proc_read(path, ret_line, size);
    ret_line[strcspn(ret_line, "\n")] = '\0';
    return ret_line[0];
}

enum hd_status hd_proc_stat_read(pid_t pid, struct hd_proc_stat *ret_stat)
{
    struct hd_proc_stat s = {0};
    char path[64], text[1024];
    const char *end;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!hd_proc_read(path, text, sizeof text))
        return hd_err(errno == ENOENT || errno == ESRCH ? HD_NOT_FOUND : HD_IO,
                      "cannot read %s: %s", path, strerror(errno));
    end = strrchr(text, ')'); /* end of the process's name, which may contain any character */
    /* state ppid pgrp session, 15 unused fields, starttime vsize rss */
    if (!end || sscanf(end + 1,
                       " %c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d "
                       "%" SCNd64 " %*u %" SCNd64,
                       &s.state, &s.parent, &s.session, &s.start_ticks, &s.resident_pages) != 5)
        return hd_err(HD_CORRUPT, "%s has an unexpected format", path);
    *ret_stat = s;
    return HD_OK;
}
