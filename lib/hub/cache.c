/* cache: the folders of the cache of huggingface_hub. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "hub_internal.h"

enum { FOLDER_MODE = 0777, FILE_MODE = 0644, LOCK_MODE = 0664, LOCK_PAUSE_MS = 50 };

void hub_add_folder(struct hd_text *out, const char *cache, const struct hd_hub_name *name)
{
    hd_text_add(out, "%s/%s--", cache, name->is_dataset ? "datasets" : "models");
    for (const char *at = name->repo; *at; at++)
        hd_text_add(out, *at == '/' ? "--" : "%c", *at);
}

/* Writes and renames a file `part`, which is open. */
static enum hd_status write_part(int fd, const char *part, const char *path, const char *text,
                                 size_t bytes)
{
    enum hd_status st = hd_file_write_all(fd, text, bytes);

    if (st)
        return hd_err_prefix(st, "%s", part);
    if (fchmod(fd, FILE_MODE) < 0 || fsync(fd) < 0 || rename(part, path) < 0)
        return hd_err(hd_file_write_status(errno), "cannot write %s: %s", path,
                      hd_file_error_text(errno));
    return HD_OK;
}

enum hd_status hub_write_file(const char *path, const char *text, size_t bytes)
{
    char part[PATH_MAX];
    enum hd_status st = hd_folder_make_of(path, FOLDER_MODE);
    int fd;

    if (st)
        return st;
    /* a random name: another machine that shares the cache may have a process of this number */
    if (snprintf(part, sizeof part, "%s.XXXXXX", path) >= (int)sizeof part)
        return hd_err(HD_INVALID, "%.200s: the path is too long", path);
    fd = mkostemp(part, O_CLOEXEC);
    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot create a file beside %s: %s", path,
                      hd_file_error_text(errno));
    st = write_part(fd, part, path, text, bytes);
    (void)close(fd);
    if (st)
        (void)unlink(part);
    return st;
}

enum hd_status hub_read_ref(const char *folder, const char *revision,
                            char ret_commit[HD_HUB_COMMIT_MAX])
{
    struct hd_text path = {0}, text = {0};
    enum hd_status st;

    hd_text_add(&path, "%s/refs/%s", folder, revision);
    st = path.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                     : hd_file_read(path.data, 256, &text);
    if (!st && text.data)
        text.data[strcspn(text.data, " \r\n")] = '\0';
    if (!st && (!text.data || !hub_is_commit(text.data)))
        st = hd_err(HD_NOT_FOUND, "%s holds no commit", path.data);
    if (!st)
        memcpy(ret_commit, text.data, HD_HUB_COMMIT_MAX);
    hd_text_free(&path);
    hd_text_free(&text);
    return st && st != HD_NO_MEMORY ? HD_NOT_FOUND : st;
}

enum hd_status hub_write_ref(const char *folder, const char *revision, const char *commit)
{
    char now[HD_HUB_COMMIT_MAX];
    struct hd_text path = {0};
    enum hd_status st;

    if (hub_is_commit(revision) ||
        (!hub_read_ref(folder, revision, now) && strcmp(now, commit) == 0))
        return HD_OK;
    hd_text_add(&path, "%s/refs/%s", folder, revision);
    st = path.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                     : hub_write_file(path.data, commit, strlen(commit));
    hd_text_free(&path);
    return st;
}

bool hub_has_file(const char *snapshot, const char *path, int64_t size_bytes)
{
    char file[PATH_MAX];
    struct stat info;

    return snprintf(file, sizeof file, "%s/%s", snapshot, path) < (int)sizeof file &&
           stat(file, &info) == 0 && S_ISREG(info.st_mode) &&
           (size_bytes < 0 || info.st_size == size_bytes);
}

/* Appends the relative path from a file of a snapshot to its blob: ../../blobs/ETAG, with one more
 * ".." for each folder of the file's path. */
static void add_target(struct hd_text *out, const char *path, const char *etag)
{
    for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/'))
        hd_text_add(out, "../");
    hd_text_add(out, "../../blobs/%s", etag);
}

/* Makes the link by rename, since a broken one may be in its place. */
static enum hd_status make_link(const char *target, const char *path)
{
    char part[PATH_MAX];
    enum hd_status st = HD_OK;

    if (snprintf(part, sizeof part, "%s.part.%ld.%lx", path, (long)getpid(),
                 (unsigned long)(uintptr_t)&part) >= (int)sizeof part)
        return hd_err(HD_INVALID, "%.200s: the path is too long", path);
    (void)unlink(part);
    if (symlink(target, part) < 0 || rename(part, path) < 0) {
        st = hd_err(hd_file_write_status(errno), "cannot make the link %s: %s", path,
                    hd_file_error_text(errno));
        (void)unlink(part);
    }
    return st;
}

enum hd_status hub_link_blob(const char *folder, const char *commit, const struct hd_hub_file *file)
{
    struct hd_text path = {0}, target = {0};
    enum hd_status st = HD_OK;

    hd_text_add(&path, "%s/snapshots/%s/%s", folder, commit, file->path);
    add_target(&target, file->path, hub_etag(file));
    if (path.failed || target.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    if (!st)
        st = hd_folder_make_of(path.data, FOLDER_MODE);
    if (!st)
        st = make_link(target.data, path.data);
    hd_text_free(&path);
    hd_text_free(&target);
    return st;
}

/* Tries to take the flock; HD_CONFLICT: another process has it. */
static enum hd_status try_lock(const char *path, int *ret_fd)
{
    struct stat held, named;
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, LOCK_MODE);

    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot open the lock %s: %s", path,
                      hd_file_error_text(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        const int error = errno;

        (void)close(fd);
        return error == EWOULDBLOCK
                   ? HD_CONFLICT
                   : hd_err(HD_IO,
                            "cannot lock %s: %s; the cache must be on a file system with "
                            "locks: set HF_HUB_CACHE",
                            path, strerror(error));
    }
    /* another program may have removed the file, and a third one locked a new file of its name */
    if (fstat(fd, &held) < 0 || stat(path, &named) < 0 || held.st_ino != named.st_ino ||
        held.st_dev != named.st_dev) {
        (void)close(fd);
        return HD_CONFLICT;
    }
    *ret_fd = fd;
    return HD_OK;
}

enum hd_status hub_lock_path(const char *path, const volatile sig_atomic_t *stop,
                             volatile int *ret_waits, int *ret_fd)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_MS * 1000000L};
    bool waits = false;
    enum hd_status st = hd_folder_make_of(path, FOLDER_MODE);

    while (!st && (st = try_lock(path, ret_fd)) == HD_CONFLICT) {
        if (!waits)
            __atomic_add_fetch(ret_waits, 1, __ATOMIC_RELAXED);
        waits = true;
        st = hub_is_stopped(stop) ? hd_err(HD_ABORTED, "interrupted") : HD_OK;
        if (!st)
            (void)nanosleep(&pause, NULL);
    }
    if (waits)
        __atomic_sub_fetch(ret_waits, 1, __ATOMIC_RELAXED);
    return st;
}

enum hd_status hub_lock_blob(const char *cache, const struct hd_hub_name *name, const char *etag,
                             const volatile sig_atomic_t *stop, volatile int *ret_waits,
                             int *ret_fd)
{
    struct hd_text locks = {0}, path = {0};
    enum hd_status st;

    hd_text_add(&locks, "%s/.locks", cache);
    if (!locks.failed)
        hub_add_folder(&path, locks.data, name);
    hd_text_add(&path, "/%s.lock", etag);
    st = locks.failed || path.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                                     : hub_lock_path(path.data, stop, ret_waits, ret_fd);
    hd_text_free(&locks);
    hd_text_free(&path);
    return st;
}

/* ---- names for jobs ---- */

/* Makes `named` a hard link to the file that `path` leads to. False: the file system, or the owner
 * of the file, does not allow it. */
static bool name_file(const char *path, const char *named)
{
    char real[PATH_MAX];
    struct stat is, wanted;

    if (!realpath(path, real) || stat(real, &wanted) < 0 || hd_folder_make_of(named, FOLDER_MODE))
        return false;
    if (lstat(named, &is) == 0) {
        if (is.st_ino == wanted.st_ino && is.st_dev == wanted.st_dev)
            return true;
        (void)unlink(named); /* it links to an earlier copy of the blob */
    }
    return link(real, named) == 0 || errno == EEXIST; /* another process may have been faster */
}

static bool has_links(const struct hd_hub_result *result)
{
    char path[PATH_MAX];
    struct stat info;

    for (size_t i = 0; i < result->file_count; i++)
        if (snprintf(path, sizeof path, "%s/%s", result->snapshot, result->files[i].path) <
                (int)sizeof path &&
            lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
            return true;
    return false;
}

void hd_hub_name_files(const struct hd_hub_result *result, char ret_folder[PATH_MAX])
{
    const size_t repo = strlen(result->snapshot) - strlen("/snapshots/") - strlen(result->commit);
    char folder[PATH_MAX], path[PATH_MAX], named[PATH_MAX];
    bool is_named =
        has_links(result) && snprintf(folder, sizeof folder, "%.*s/named/%s", (int)repo,
                                      result->snapshot, result->commit) < (int)sizeof folder;

    for (size_t i = 0; i < result->file_count && is_named; i++)
        is_named = snprintf(path, sizeof path, "%s/%s", result->snapshot, result->files[i].path) <
                       (int)sizeof path &&
                   snprintf(named, sizeof named, "%s/%s", folder, result->files[i].path) <
                       (int)sizeof named &&
                   name_file(path, named);
    memcpy(ret_folder, is_named ? folder : result->snapshot, PATH_MAX);
}
