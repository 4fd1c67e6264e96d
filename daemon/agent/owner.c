#include "daemon/agent/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { MARK_BYTES_MAX = 256 };

static bool make_mark(char ret_mark[MARK_BYTES_MAX], const char *cluster, int64_t job)
{
    return cluster && *cluster &&
           snprintf(ret_mark, MARK_BYTES_MAX, "cluster %s\njob %" PRId64 "\n", cluster, job) <
               MARK_BYTES_MAX;
}

static enum hd_status name_file(char ret_path[PATH_MAX], const char *job_dir)
{
    return snprintf(ret_path, PATH_MAX, "%s/" OWNER_FILE, job_dir) < PATH_MAX
               ? HD_OK
               : hd_err(HD_INVALID, "the path %s is too long", job_dir);
}

/* Reads the mark of a job's folder; "" if it is missing, unreadable or incomplete. In a folder of
 * an older version a job's user may have made a link or a pipe with this name, which is not opened.
 */
static void read_mark(const char *path, char ret_mark[MARK_BYTES_MAX])
{
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, ret_mark, MARK_BYTES_MAX - 1);

    ret_mark[n > 0 && ret_mark[n - 1] == '\n' ? n : 0] = '\0';
    if (fd >= 0)
        (void)close(fd);
}

enum hd_status owner_check(const char *job_dir, const char *cluster, int64_t job)
{
    char path[PATH_MAX], mine[MARK_BYTES_MAX], found[MARK_BYTES_MAX];
    enum hd_status st = name_file(path, job_dir);

    if (st || !make_mark(mine, cluster, job))
        return st;
    read_mark(path, found);
    if (!found[0] || strcmp(found, mine) == 0)
        return HD_OK;
    for (char *c = found; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f)
            *c = ' ';
    return hd_err(HD_CONFLICT,
                  "the folder %.700s is another job's: its file " OWNER_FILE
                  " says \"%.100s\", and "
                  "this is job %" PRId64 " of the cluster %s. Does the controller of another "
                  "cluster use the jobs directory? Give each one a --jobs-dir of its own",
                  job_dir, found, job, cluster);
}

/* Writes the mark of a job's folder, and never replaces a file: if two clusters race, the second
 * finds the first one's mark. */
static enum hd_status write_mark(const char *path, const char *mark)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    enum hd_status st;

    if (fd < 0) /* without the permission to create the mark, the folder stays without one */
        return errno == EEXIST || errno == EACCES || errno == EPERM
                   ? HD_OK
                   : hd_err(hd_file_write_status(errno), "cannot create %s: %s", path,
                            strerror(errno));
    st = hd_file_write_all(fd, mark, strlen(mark));
    if (st)
        (void)hd_err_prefix(st, "%s", path);
    if (!st && fsync(fd) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot flush %s: %s", path, strerror(errno));
    (void)close(fd);
    if (st)
        (void)unlink(path);
    return st;
}

enum hd_status owner_acquire(const char *job_dir, const char *cluster, int64_t job)
{
    char path[PATH_MAX], mark[MARK_BYTES_MAX];
    enum hd_status st = name_file(path, job_dir);

    if (!st && make_mark(mark, cluster, job))
        st = write_mark(path, mark);
    return st ? st : owner_check(job_dir, cluster, job);
}
