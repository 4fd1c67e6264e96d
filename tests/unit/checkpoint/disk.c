#include "disk.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { PENDING_MAX = 64 };

struct pending {
    char path[PATH_MAX];
    bool is_name; /* the name is not durable yet; else the bytes are not */
};

static struct {
    bool on;
    const char *below; /* of paths whose writes are watched */
    int calls, cut_at, complaints;
    char complaint[PATH_MAX + 64];
    struct pending pending[PENDING_MAX];
    int pending_count;
} disk;

ssize_t __real_write(int fd, const void *data, size_t size_bytes);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_mkdir(const char *path, mode_t mode);
int __real_remove(const char *path);
int __real_unlink(const char *path);
int __real_unlinkat(int dir_fd, const char *name, int flags);
ssize_t __wrap_write(int fd, const void *data, size_t size_bytes);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_remove(const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlinkat(int dir_fd, const char *name, int flags);

void disk_watch(void)
{
    disk_watch_below("/checkpoints/");
}

void disk_watch_below(const char *part)
{
    memset(&disk, 0, sizeof disk);
    disk.below = part;
    disk.on = true;
}

int disk_pending_count(void)
{
    return disk.pending_count;
}

int disk_call_count(void)
{
    return disk.calls;
}

int disk_complaint_count(void)
{
    return disk.complaints;
}

const char *disk_complaint(void)
{
    return disk.complaint;
}

void disk_cut_at(int call_number)
{
    disk.cut_at = call_number;
}

static void path_of(int fd, char ret_path[PATH_MAX])
{
    char link[64];
    ssize_t n;

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, ret_path, PATH_MAX - 1);
    ret_path[n > 0 ? n : 0] = '\0';
}

static bool is_pending(const char *path, bool is_name)
{
    for (int i = 0; i < disk.pending_count; i++)
        if (disk.pending[i].is_name == is_name && strcmp(disk.pending[i].path, path) == 0)
            return true;
    return false;
}

static void add_pending(const char *path, bool is_name)
{
    if (is_pending(path, is_name) || disk.pending_count == PENDING_MAX)
        return;
    disk.pending[disk.pending_count].is_name = is_name;
    (void)snprintf(disk.pending[disk.pending_count++].path, PATH_MAX, "%s", path);
}

static bool is_parent(const char *dir, const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && (size_t)(slash - path) == strlen(dir) && strncmp(dir, path, strlen(dir)) == 0;
}

/* The bytes of `path`, or, when it is a directory, the names in it, are on disk now. */
static void settle(const char *path, bool is_directory)
{
    int kept = 0;

    for (int i = 0; i < disk.pending_count; i++) {
        const struct pending *p = &disk.pending[i];

        if (is_directory ? p->is_name && is_parent(path, p->path)
                         : !p->is_name && strcmp(path, p->path) == 0)
            continue;
        if (kept != i)
            disk.pending[kept] = *p;
        kept++;
    }
    disk.pending_count = kept;
}

static void complain(const char *what, const char *path)
{
    if (disk.complaints++ == 0)
        (void)snprintf(disk.complaint, sizeof disk.complaint, "%s: %s", what, path);
}

static bool is_watched(const char *path)
{
    return strstr(path, disk.below) != NULL;
}

static bool is_cut(void)
{
    return ++disk.calls == disk.cut_at;
}

ssize_t __wrap_write(int fd, const void *data, size_t size_bytes)
{
    char path[PATH_MAX];

    path_of(fd, path);
    if (!disk.on || !is_watched(path))
        return __real_write(fd, data, size_bytes);
    if (is_cut()) {
        (void)!__real_write(fd, data, size_bytes / 2);
        _exit(DISK_CUT_STATUS);
    }
    add_pending(path, false);
    return __real_write(fd, data, size_bytes);
}

int __wrap_fsync(int fd)
{
    char path[PATH_MAX];
    struct stat info;
    int rc;

    if (!disk.on)
        return __real_fsync(fd);
    if (is_cut())
        _exit(DISK_CUT_STATUS);
    rc = __real_fsync(fd);
    path_of(fd, path);
    if (rc == 0 && fstat(fd, &info) == 0)
        settle(path, S_ISDIR(info.st_mode));
    return rc;
}

static bool is_last(const char *path, const char *ending)
{
    return strlen(path) >= strlen(ending) &&
           strcmp(path + strlen(path) - strlen(ending), ending) == 0;
}

int __wrap_rename(const char *from, const char *to)
{
    if (!disk.on)
        return __real_rename(from, to);
    if (is_cut())
        _exit(DISK_CUT_STATUS);
    if (is_pending(from, false))
        complain("renamed before its bytes were durable", from);
    if (strstr(to, "/manifest.json") && disk.pending_count)
        complain("the manifest came before this was durable", disk.pending[0].path);
    if (!strstr(to, ".part.") && disk.pending_count && (is_last(to, ".idx") || is_last(to, ".bin")))
        complain("a token file came before this was durable", disk.pending[0].path);
    add_pending(to, true);
    return __real_rename(from, to);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    int rc;

    if (!disk.on)
        return __real_mkdir(path, mode);
    if (is_cut())
        _exit(DISK_CUT_STATUS);
    rc = __real_mkdir(path, mode);
    if (rc == 0)
        add_pending(path, true);
    return rc;
}

/* Fails on a removal from a folder whose new name is not durable: after a power cut the file would
 * be missing below the old name. */
static void look_at_removal(const char *path)
{
    if (is_cut())
        _exit(DISK_CUT_STATUS);
    for (int i = 0; i < disk.pending_count; i++) {
        const struct pending *p = &disk.pending[i];

        if (p->is_name && strncmp(path, p->path, strlen(p->path)) == 0)
            complain("removed before its folder's new name was durable", path);
    }
}

int __wrap_unlink(const char *path)
{
    int rc;

    if (!disk.on)
        return __real_unlink(path);
    if (is_cut())
        _exit(DISK_CUT_STATUS);
    rc = __real_unlink(path);
    if (rc == 0 && is_last(path, ".idx")) /* the name is gone when its folder is flushed */
        add_pending(path, true);
    return rc;
}

int __wrap_remove(const char *path)
{
    if (disk.on)
        look_at_removal(path);
    return __real_remove(path);
}

int __wrap_unlinkat(int dir_fd, const char *name, int flags)
{
    char dir[PATH_MAX], path[2 * PATH_MAX];

    path_of(dir_fd, dir);
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    if (disk.on)
        look_at_removal(path);
    return __real_unlinkat(dir_fd, name, flags);
}
