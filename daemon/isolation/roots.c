#include "daemon/isolation/roots.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct open_how of linux/openat2.h, which older systems lack */
struct how {
    uint64_t flags, mode, resolve;
};
enum { SYS_OPENAT2 = 437, NO_MAGICLINKS = 0x02, NO_SYMLINKS = 0x04, BENEATH = 0x08 };

/* Opens the path `below` a root component by component, without openat2, for kernels before 5.6. */
static int walk(int root_fd, const char *below)
{
    int fd = dup(root_fd);

    while (fd >= 0 && *below) {
        const size_t n = strcspn(below, "/");
        char part[NAME_MAX + 1];
        struct stat info;
        int next;

        if (n > NAME_MAX || (n == 2 && memcmp(below, "..", 2) == 0)) {
            (void)close(fd);
            errno = n > NAME_MAX ? ENAMETOOLONG : EXDEV;
            return -1;
        }
        (void)snprintf(part, sizeof part, "%.*s", (int)n, below);
        next = n ? openat(fd, part, O_PATH | O_NOFOLLOW | O_CLOEXEC) : dup(fd);
        (void)close(fd);
        fd = next;
        if (fd >= 0 && fstat(fd, &info) == 0 && S_ISLNK(info.st_mode)) {
            (void)close(fd);
            errno = ELOOP;
            return -1;
        }
        below += n + (below[n] == '/');
    }
    return fd;
}

static int open_beneath(int root_fd, const char *below)
{
    const struct how how = {.flags = O_PATH | O_CLOEXEC,
                            .resolve = BENEATH | NO_SYMLINKS | NO_MAGICLINKS};
    const long fd = syscall(SYS_OPENAT2, root_fd, *below ? below : ".", &how, sizeof how);

    return fd < 0 && (errno == ENOSYS || errno == EPERM) ? walk(root_fd, below) : (int)fd;
}

/* Returns the part of `path` after the folder root[0, n); NULL: it is not inside that folder. */
static const char *below_root(const char *root, size_t n, const char *path)
{
    while (n > 1 && root[n - 1] == '/')
        n--;
    if (n == 1 && *path == '/')
        return path + 1;
    if (strncmp(root, path, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return NULL;
    path += n;
    return path + strspn(path, "/");
}

static enum hd_status find(const char *roots, const char *path, int *ret_fd)
{
    for (const char *root = roots; *root;) {
        const size_t n = strcspn(root, ":");
        const char *below = below_root(root, n, path);
        char folder[PATH_MAX];
        int root_fd;

        if (below && n < sizeof folder) {
            (void)snprintf(folder, sizeof folder, "%.*s", (int)n, root);
            root_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
            *ret_fd = root_fd < 0 ? -1 : open_beneath(root_fd, below);
            if (root_fd >= 0)
                (void)close(root_fd);
            return HD_OK;
        }
        root += n + (root[n] == ':');
    }
    return hd_err(HD_INVALID,
                  "%s is below none of the folders that this node allows for data (%s); put it "
                  "there, or have its operator add a folder to data_roots",
                  path, roots);
}

static enum hd_status explain(const char *path, int error)
{
    if (error == ELOOP || error == EXDEV)
        return hd_err(HD_INVALID,
                      "a part of %s is a link or `..`, which this node does not follow below its "
                      "data_roots; name the real path",
                      path);
    if (error == ENOENT || error == ENOTDIR)
        return hd_err(HD_NOT_FOUND, "%s does not exist on this node", path);
    return hd_err(HD_DENIED, "cannot open %s: %s", path, strerror(error));
}

enum hd_status hd_roots_open(const char *roots, const char *path, int *ret_fd)
{
    enum hd_status st = HD_OK;
    struct stat info;
    int fd = -1;

    if (roots)
        st = find(roots, path, &fd);
    else
        fd = open(path, O_PATH | O_CLOEXEC);
    if (st)
        return st;
    if (fd < 0)
        return explain(path, errno);
    if (fstat(fd, &info) < 0 || (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))) {
        (void)close(fd);
        return hd_err(HD_INVALID, "%s is neither a file nor a folder", path);
    }
    *ret_fd = fd;
    return HD_OK;
}

enum hd_status hd_roots_check(const char *roots)
{
    char folder[PATH_MAX];
    struct stat info;

    for (const char *root = roots; *root;) {
        const size_t n = strcspn(root, ":");

        if (snprintf(folder, sizeof folder, "%.*s", (int)n, root) >= (int)sizeof folder ||
            folder[0] != '/')
            return hd_err(HD_INVALID, "%.200s: write absolute folders, separated by ':'", root);
        if (stat(folder, &info) < 0 || !S_ISDIR(info.st_mode))
            return hd_err(HD_INVALID, "%s is no folder on this node", folder);
        root += n + (root[n] == ':');
    }
    return *roots ? HD_OK : hd_err(HD_INVALID, "no folder is named");
}
