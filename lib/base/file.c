#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/uid.h"

enum { UMASK_DEFAULT = 0027 };

enum hd_status hd_file_write_status(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EROFS:
    case EIO:
    case ESTALE:    /* NFS: the server no longer has the file */
    case ETIMEDOUT: /* NFS mounted with `soft`: the server did not answer in time */
    case ENOTCONN:  /* FUSE: the file system's process has ended */
        return HD_STORAGE;
    default:
        return HD_IO;
    }
}

const char *hd_file_error_text(int error)
{
    struct rlimit limit;

    if (error != EFBIG)
        return strerror(error);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY)
        return "File too large: its file system has a limit on the size of files";
    return "File too large: there is a limit on the size of files (ulimit -f, or LimitFSIZE= of a "
           "unit of systemd; prlimit --fsize=unlimited --pid PID lifts that of a process)";
}

void hd_file_ignore_size_signal(void)
{
    (void)signal(SIGXFSZ, SIG_IGN);
}

/* Writes "alice (uid 1000)", or "uid 1000" if the user's name cannot be found. */
static void name_self(char ret_user[HD_UID_NAME_MAX + 32])
{
    const unsigned uid = (unsigned)geteuid();
    char name[HD_UID_NAME_MAX];

    if (hd_uid_name(uid, name))
        (void)snprintf(ret_user, HD_UID_NAME_MAX + 32, "%s (uid %u)", name, uid);
    else
        (void)snprintf(ret_user, HD_UID_NAME_MAX + 32, "uid %u", uid);
}

enum hd_status hd_file_cannot_open(const char *what, const char *path, int error)
{
    char user[HD_UID_NAME_MAX + 32];

    if (error != EACCES && error != EPERM)
        return hd_err(error == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open %s%s: %s", what, path,
                      strerror(error));
    name_self(user);
    if (access(path, R_OK) == 0) /* access(2) ignores Landlock rules */
        return hd_err(
            HD_DENIED,
            "cannot open %s%s: %s may read it, but the sandbox of this rank denies it: the "
            "job does not name the file, or names it by a link; name the file itself",
            what, path, user);
    return hd_err(HD_DENIED,
                  "cannot open %s%s: permission denied for %s; let that user read the file and "
                  "enter the folders above it (chmod, setfacl), or name another file",
                  what, path, user);
}

enum hd_status hd_file_write_all(int fd, const void *data, size_t size_bytes)
{
    const char *p = data;

    while (size_bytes) {
        ssize_t n = write(fd, p, size_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hd_err(hd_file_write_status(errno), "cannot write: %s",
                          hd_file_error_text(errno));
        p += n;
        size_bytes -= (size_t)n;
    }
    return HD_OK;
}

enum hd_status hd_file_pread_all(int fd, void *ret_data, size_t size_bytes, int64_t offset_bytes)
{
    char *p = ret_data;

    while (size_bytes) {
        ssize_t n = pread(fd, p, size_bytes, offset_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hd_err(HD_IO, "cannot read: %s", strerror(errno));
        if (n == 0)
            return hd_err(HD_CORRUPT, "the file is %zu bytes too short", size_bytes);
        p += n;
        offset_bytes += n;
        size_bytes -= (size_t)n;
    }
    return HD_OK;
}

/* Moves *offset past a hole of the file, if it is in one. Returns how many bytes of data, at most
 * max_bytes, follow before the next hole; max_bytes on a file system that does not report holes. */
static size_t pass_hole(int fd, int64_t *offset, size_t max_bytes)
{
    const off_t data = lseek(fd, *offset, SEEK_DATA);
    off_t hole;

    if (data > *offset)
        *offset = data;
    hole = data < 0 ? -1 : lseek(fd, *offset, SEEK_HOLE);
    return hole > *offset && (size_t)(hole - *offset) < max_bytes ? (size_t)(hole - *offset)
                                                                  : max_bytes;
}

enum hd_status hd_file_read_piece(const char *path, int64_t offset_bytes, void *ret_bytes,
                                  size_t max_bytes, size_t *ret_count, int64_t *ret_offset)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    enum hd_status st = HD_OK;
    struct stat info;
    ssize_t n = 0;

    *ret_count = 0;
    *ret_offset = offset_bytes > 0 ? offset_bytes : 0;
    if (fd < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open %s: %s", path,
                      strerror(errno));
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
        st = hd_err(HD_IO, "%s is no regular file", path);
    } else {
        if (offset_bytes < 0 && info.st_size > -offset_bytes)
            *ret_offset = info.st_size + offset_bytes;
        n = pread(fd, ret_bytes, pass_hole(fd, ret_offset, max_bytes), *ret_offset);
        if (n < 0)
            st = hd_err(HD_IO, "cannot read %s: %s", path, strerror(errno));
    }
    (void)close(fd);
    if (n > 0)
        *ret_count = (size_t)n;
    return st;
}

/* Writes to ret_dir the path of the folder that contains `path`. ret_dir and `path` may be one
 * buffer. */
static enum hd_status parent_of(const char *path, char ret_dir[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    const size_t n = !slash ? 1 : slash == path ? 1 : (size_t)(slash - path);

    if (n >= PATH_MAX)
        return hd_err(HD_INVALID, "the path %s is too long", path);
    memmove(ret_dir, slash ? path : ".", n);
    ret_dir[n] = '\0';
    return HD_OK;
}

/* Returns the blocks that this user may use: root also uses reserved ones. */
static uint64_t usable_blocks(const struct statvfs *fs)
{
    return geteuid() == 0 ? fs->f_bfree : fs->f_bavail;
}

int64_t hd_file_free_bytes(const char *path)
{
    struct statvfs fs;

    return statvfs(path, &fs) < 0 ? -1 : (int64_t)(usable_blocks(&fs) * fs.f_frsize);
}

enum hd_status hd_file_check_space(const char *path, int64_t bytes)
{
    char free_text[32], wanted_text[32], dir[PATH_MAX];
    struct statvfs fs;
    enum hd_status st = HD_OK;
    uint64_t blocks;
    int failed;

    (void)snprintf(dir, sizeof dir, "%s", path);
    while ((failed = statvfs(dir, &fs)) < 0 && errno == ENOENT && !st && strcmp(dir, "/") != 0)
        st = parent_of(dir, dir);
    if (st)
        return st;
    if (failed < 0)
        return hd_err(hd_file_write_status(errno), "cannot examine the file system of %s: %s", path,
                      strerror(errno));
    if (fs.f_flag & ST_RDONLY)
        return hd_err(HD_STORAGE, "%s is in a file system that is mounted read-only", path);
    blocks = usable_blocks(&fs);
    if (fs.f_files && !fs.f_ffree)
        return hd_err(HD_STORAGE,
                      "no space: the file system of %s has no inode left for a new file", path);
    if (!fs.f_blocks || !fs.f_frsize || blocks >= (uint64_t)bytes / fs.f_frsize + 1)
        return HD_OK;
    hd_text_format_bytes((int64_t)(blocks * fs.f_frsize), free_text);
    hd_text_format_bytes(bytes, wanted_text);
    return hd_err(HD_STORAGE, "no space: %s needed, %s free in %s", wanted_text, free_text, path);
}

enum hd_status hd_file_sync_dir(const char *path)
{
    enum hd_status st = HD_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot open the directory %s: %s", path,
                      strerror(errno));
    if (fsync(fd) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot flush the directory %s: %s", path,
                    strerror(errno));
    (void)close(fd);
    return st;
}

/* Writes to a device (a terminal, /dev/stdout, /dev/null), which must not be replaced by a file. */
static enum hd_status write_device(const char *path, const void *data, size_t size_bytes)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    enum hd_status st;

    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot open %s: %s", path, strerror(errno));
    st = hd_file_write_all(fd, data, size_bytes);
    if (st)
        (void)hd_err_prefix(st, "%s", path);
    (void)close(fd);
    return st;
}

enum hd_status hd_file_write_atomic(const char *path, const void *data, size_t size_bytes,
                                    mode_t mode)
{
    char part[PATH_MAX], dir[PATH_MAX];
    struct stat info;
    enum hd_status st;
    int fd;

    if (stat(path, &info) == 0 && S_ISCHR(info.st_mode))
        return write_device(path, data, size_bytes);
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return hd_err(HD_INVALID, "%s exists and is not a regular file", path);

    if (snprintf(part, sizeof part, "%s.part.%d", path, (int)getpid()) >= (int)sizeof part)
        return hd_err(HD_INVALID, "the path %s is too long", path);
    st = parent_of(path, dir);
    if (st)
        return st;
    /* O_NONBLOCK: if another user has created a FIFO under this name, open fails instead of waiting
     * for a reader */
    fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode);
    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot create %s: %s", path, strerror(errno));

    st = hd_file_write_all(fd, data, size_bytes);
    if (st)
        (void)hd_err_prefix(st, "%s", part);
    if (!st && fsync(fd) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot flush %s: %s", part, strerror(errno));
    if (close(fd) < 0 && !st)
        st = hd_err(hd_file_write_status(errno), "cannot close %s: %s", part, strerror(errno));
    if (!st && rename(part, path) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot rename %s to %s: %s", part, path,
                    strerror(errno));
    if (st) {
        (void)unlink(part); /* best effort: the caller needs the first error */
        return st;
    }
    return hd_file_sync_dir(dir); /* the new name is durable only when its directory is */
}

/* Opens a file for reading and never waits: a FIFO without a writer would block open. */
static int open_at_once(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

/* Sets *ret_fd to an open file of an allowed kind, and *ret_info to what fstat says of it; closes
 * any other. Refuses folders here, because open accepts them and only a read would fail. */
static enum hd_status need_kind(int fd, const char *path, bool may_be_stream, int *ret_fd,
                                struct stat *ret_info)
{
    enum hd_status st = HD_OK;

    if (fstat(fd, ret_info) < 0)
        st = hd_err(HD_IO, "cannot examine %s: %s", path, strerror(errno));
    else if (S_ISDIR(ret_info->st_mode))
        st = hd_err(HD_INVALID, "%s is a folder, not a file", path);
    else if (!S_ISREG(ret_info->st_mode) && !may_be_stream)
        st = hd_err(HD_INVALID,
                    "%s is not a regular file (a pipe or a device); copy its data to one", path);
    if (st)
        (void)close(fd);
    else
        *ret_fd = fd;
    return st;
}

static enum hd_status open_to_read(const char *path, bool may_be_stream, int *ret_fd,
                                   struct stat *ret_info)
{
    const int fd = open_at_once(path);

    if (fd < 0 && errno == ENOENT)
        return hd_err(HD_NOT_FOUND, "cannot open %s: %s", path, strerror(errno));
    if (fd < 0)
        return hd_err(errno == ELOOP || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ENXIO
                          ? HD_INVALID
                          : HD_IO,
                      "cannot open %s: %s", path, strerror(errno));
    return need_kind(fd, path, may_be_stream, ret_fd, ret_info);
}

enum hd_status hd_file_open_regular(const char *what, const char *path, int *ret_fd)
{
    const int fd = open_at_once(path);
    struct stat info;

    return fd < 0 ? hd_file_cannot_open(what, path, errno)
                  : need_kind(fd, path, false, ret_fd, &info);
}

enum hd_status hd_file_check_regular(const char *path)
{
    struct stat info;

    if (stat(path, &info) < 0 || S_ISREG(info.st_mode))
        return HD_OK; /* the caller will open the file and report the error itself */
    return hd_err(HD_INVALID, "%s is %s", path,
                  S_ISDIR(info.st_mode) ? "a folder, not a file"
                                        : "not a regular file (a pipe or a device)");
}

/* Waits until fd has data to read or is at the end of its data. Returns HD_INVALID if neither
 * happens within patience_ms. */
static enum hd_status wait_for_bytes(int fd, const char *path, int patience_ms)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int ready;

    do
        ready = poll(&wait, 1, patience_ms);
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return hd_err(HD_IO, "cannot wait for %s: %s", path, strerror(errno));
    if (!ready)
        return hd_err(HD_INVALID,
                      "nothing came from %s within %d s: it is no regular file, and no program "
                      "writes to it; give a file, or start that program first",
                      path, (patience_ms + 999) / 1000);
    return HD_OK;
}

enum hd_status hd_file_read_open(const char *path, size_t max_bytes, int patience_ms,
                                 struct hd_text *ret_text, struct stat *ret_info)
{
    int fd = -1;
    enum hd_status st = open_to_read(path, patience_ms > 0, &fd, ret_info);
    size_t total = 0;
    char chunk[16384];

    while (!st) {
        ssize_t n;

        if (patience_ms > 0 && (st = wait_for_bytes(fd, path, patience_ms)))
            break;
        n = read(fd, chunk, sizeof chunk);
        if (n < 0 && (errno == EINTR || (errno == EAGAIN && patience_ms > 0)))
            continue;
        if (n < 0)
            st = hd_err(HD_IO, "cannot read %s: %s", path, strerror(errno));
        if (n <= 0)
            break;
        total += (size_t)n;
        if (total > max_bytes)
            st = hd_err(HD_LIMIT, "%s is larger than the limit of %zu bytes", path, max_bytes);
        else
            hd_text_add_bytes(ret_text, chunk, (size_t)n);
    }
    explicit_bzero(chunk, sizeof chunk); /* clears the buffer, because the data may be a key */
    if (!st && total == 0)
        hd_text_add_bytes(ret_text, "", 0);
    if (fd >= 0)
        (void)close(fd);
    if (!st && ret_text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    return st;
}

enum hd_status hd_file_read_stream(const char *path, size_t max_bytes, int patience_ms,
                                   struct hd_text *ret_text)
{
    struct stat info;

    return hd_file_read_open(path, max_bytes, patience_ms, ret_text, &info);
}

enum hd_status hd_file_read(const char *path, size_t max_bytes, struct hd_text *ret_text)
{
    return hd_file_read_stream(path, max_bytes, 0, ret_text);
}

enum hd_status hd_file_make_plain(char *path, size_t max_bytes)
{
    char *plain;
    enum hd_status st = HD_OK;

    if (!strstr(path, "/."))
        return HD_OK;
    plain = realpath(path, NULL);
    if (!plain)
        return hd_err(HD_IO, "cannot find the folder %s: %s", path, strerror(errno));
    if (strlen(plain) >= max_bytes)
        st = hd_err(HD_INVALID, "the path %s is too long; choose a shorter one", plain);
    else
        memcpy(path, plain, strlen(plain) + 1);
    free(plain);
    return st;
}

enum hd_status hd_file_make_dirs(const char *path, mode_t mode)
{
    char dir[PATH_MAX], parent[PATH_MAX];
    enum hd_status st;

    if (snprintf(dir, sizeof dir, "%s", path) >= (int)sizeof dir)
        return hd_err(HD_INVALID, "the path %s is too long", path);
    for (char *p = dir + 1;; p++) {
        char end = *p;

        if (end != '/' && end != '\0')
            continue;
        *p = '\0';
        if (mkdir(dir, mode) == 0) {
            st = parent_of(dir, parent);
            if (!st)
                st = hd_file_sync_dir(parent);
            if (st)
                return st;
        } else if (errno != EEXIST) {
            return hd_err(hd_file_write_status(errno), "cannot create the directory %s: %s", dir,
                          strerror(errno));
        }
        if (!end)
            break;
        *p = end;
    }
    return HD_OK;
}

const char *hd_file_explain(int error, const char *path, char ret_text[HD_FILE_WHY_MAX])
{
    const int kept = errno; /* saved, because callers may use errno after this call */
    char above[PATH_MAX];
    const char *shown = path;
    struct stat info;
    int found = error == EACCES || error == EPERM ? lstat(path, &info) : -1;

    if (found < 0 && (error == EACCES || error == EPERM) && parent_of(path, above) == HD_OK) {
        shown = above;
        found = lstat(above, &info);
    }
    if (found < 0)
        (void)snprintf(ret_text, HD_FILE_WHY_MAX, "%s", hd_file_error_text(error));
    else
        (void)snprintf(ret_text, HD_FILE_WHY_MAX,
                       "%s: %.300s belongs to uid %u (mode %04o), and this program runs as uid %u; "
                       "if that is not meant, remove it or change its owner",
                       strerror(error), shown, (unsigned)info.st_uid,
                       (unsigned)info.st_mode & 07777, (unsigned)geteuid());
    errno = kept;
    return ret_text;
}

/* Creates the folder `name` in the folder dir_fd, if it is absent, and opens it. `path` names it in
 * messages. */
static enum hd_status enter_dir(int dir_fd, const char *name, const char *path, mode_t mode,
                                int *ret_fd)
{
    char why[HD_FILE_WHY_MAX];
    enum hd_status st = HD_OK;
    int fd;

    if (mkdirat(dir_fd, name, mode) == 0) {
        if (fsync(dir_fd) < 0)
            st = hd_err(hd_file_write_status(errno), "cannot flush the directory of %s: %s", path,
                        strerror(errno));
    } else if (errno != EEXIST) {
        st = hd_err(hd_file_write_status(errno), "cannot create the directory %s: %s", path,
                    hd_file_explain(errno, path, why));
    }
    if (st)
        return st;
    fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return hd_err(HD_CONFLICT,
                      "%s exists and is a link or a file, not a directory; Heddle writes nothing "
                      "through it. Find out who made it, and remove it",
                      path);
    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot open the directory %s: %s", path,
                      hd_file_explain(errno, path, why));
    *ret_fd = fd;
    return HD_OK;
}

enum hd_status hd_file_make_dirs_below(const char *base, const char *below, mode_t mode)
{
    char path[PATH_MAX], *name;
    enum hd_status st = HD_OK;
    int fd, next = -1;

    if (snprintf(path, sizeof path, "%s/%s", base, below) >= (int)sizeof path)
        return hd_err(HD_INVALID, "the path %s/%s is too long", base, below);
    fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot open the directory %s: %s", base,
                      strerror(errno));
    name = path + strlen(base) + 1;
    while (!st && *name) {
        char *end = name + strcspn(name, "/");
        const bool last = !*end;

        *end = '\0';
        st = enter_dir(fd, name, path, mode, &next);
        if (!st) {
            (void)close(fd);
            fd = next;
        }
        if (!last)
            *end = '/';
        name = last ? end : end + 1;
    }
    (void)close(fd);
    return st;
}

enum hd_status hd_file_lock(const char *path, int *ret_fd)
{
    /* 0660: in a run directory another user's supervisor may create the file, and heddled opens it
     * by its group */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0660);

    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot open %s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        enum hd_status st = errno == EWOULDBLOCK
                                ? hd_err(HD_CONFLICT, "%s is locked by another process", path)
                                : hd_err(HD_IO, "cannot lock %s: %s", path, strerror(errno));

        (void)close(fd);
        return st;
    }
    *ret_fd = fd;
    return HD_OK;
}

enum hd_status hd_file_print(const char *text)
{
    errno = 0;
    if (fputs(text, stdout) >= 0 && fflush(stdout) == 0 && !ferror(stdout))
        return HD_OK;
    return hd_err(HD_IO, "cannot write to standard output: %s",
                  hd_file_error_text(errno ? errno : EIO));
}

enum hd_status hd_file_check_umask(const char *octal)
{
    char *end;
    const long given = strtol(octal, &end, 8);

    if (octal[0] >= '0' && octal[0] <= '7' && !*end && given <= 0077)
        return HD_OK;
    return hd_err(HD_INVALID, "%s: give three octal digits that begin with 0, such as 027 or 022",
                  octal);
}

enum hd_status hd_file_set_umask(const char *octal)
{
    const enum hd_status st = octal ? hd_file_check_umask(octal) : HD_OK;
    mode_t inherited;

    if (st)
        return st;
    inherited = umask(UMASK_DEFAULT); /* the umask can only be read by setting it */
    (void)umask(octal ? (mode_t)strtol(octal, NULL, 8) : inherited | UMASK_DEFAULT);
    return HD_OK;
}

bool hd_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool hd_file_is_dir(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

void hd_file_join(struct hd_text *ret_text, const char *dir, const char *path)
{
    if (path[0] == '/')
        hd_text_add(ret_text, "%s", path);
    else
        hd_text_add(ret_text, "%s/%s", dir, path);
}
