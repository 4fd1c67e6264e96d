#include "base/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

const char *const hd_tree_marks[] = {HD_MARK_JOBS_DIR, HD_MARK_RUN, NULL};

enum { DEPTH_MAX = 4096, STAYING_MAX = 4096 /* names remembered per folder */ };

/* ---- mounts ---- */

/* Identity of a folder's mount: the device distinguishes file systems, the mount number also two
 * mounts of one file system. */
struct file_identity {
    dev_t device;
    uint64_t mount; /* mount number; 0: unknown */
};

/* Returns the number in the line "mnt_id: N" of /proc/self/fdinfo/FD, its only source before Linux
 * 5.8; 0: unknown. */
static uint64_t read_fdinfo(int fd)
{
    static const char word[] = "mnt_id:";
    char path[48], text[512], *at;
    ssize_t n;
    int file;

    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    n = read(file, text, sizeof text - 1);
    (void)close(file);
    text[n > 0 ? n : 0] = '\0';
    at = strstr(text, word);
    return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

static uint64_t mount_of(int fd)
{
#ifdef STATX_MNT_ID
    struct statx info;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &info) == 0 && (info.stx_mask & STATX_MNT_ID))
        return info.stx_mnt_id;
#endif
    return read_fdinfo(fd);
}

static int find_identity(int fd, struct file_identity *ret_identity)
{
    struct stat info;

    if (fstat(fd, &info) < 0)
        return -1;
    *ret_identity = (struct file_identity){.device = info.st_dev, .mount = mount_of(fd)};
    return 0;
}

static bool is_same_identity(const struct file_identity *a, const struct file_identity *b)
{
    return a->device == b->device && a->mount == b->mount;
}

int hd_tree_is_mount(int dir_fd)
{
    const int above = openat(dir_fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct file_identity here, there;
    struct stat mine, its;
    int is = 0;

    if (above < 0)
        return 0;
    if (find_identity(dir_fd, &here) == 0 && find_identity(above, &there) == 0)
        is = !is_same_identity(&here, &there);
    if (!is && fstat(dir_fd, &mine) == 0 && fstat(above, &its) == 0)
        /* the root is its own parent */
        is = mine.st_dev == its.st_dev && mine.st_ino == its.st_ino;
    (void)close(above);
    return is;
}

/* ---- the walk ---- */

struct tree_level {
    DIR *dir; /* open folder of this level; NULL: closed to limit open descriptors, and later
                 reopened by ".." */
    dev_t device;
    ino_t inode;
    char *name;     /* name in the folder above; of level 0, its path */
    char **staying; /* names of entries of the folder that the walk has tried to remove and
                       cannot */
    size_t staying_count;
    bool given_up; /* true: there was no memory for `staying`, or it is full; a later call removes
                      the rest of the folder */
};

struct tree_walk {
    struct tree_level *levels;
    size_t depth, size; /* number of levels in use (the deepest is depth - 1); number allocated */
    size_t open_from;   /* index of the first level with an open DIR */
    const char *const *marks;
    struct file_identity identity; /* mount that contains `path`; folders of other mounts are not
                                      entered and not removed */
    struct hd_tree_left left;
};

/* Counts an entry that cannot be removed in w->left, which gets path and reason of the first one.
 * `name` is an entry of the deepest level's folder; NULL: that folder itself cannot be read. */
static void stays(struct tree_walk *w, const char *name, enum hd_tree_why why, int error)
{
    struct hd_tree_left *left = &w->left;
    size_t used = 0;

    if (left->count++)
        return;
    left->why = why;
    left->error = error;
    for (size_t i = 0; i < w->depth && used < sizeof left->path; i++)
        used += (size_t)snprintf(left->path + used, sizeof left->path - used, "%s%s", i ? "/" : "",
                                 w->levels[i].name);
    if (name && used < sizeof left->path)
        (void)snprintf(left->path + used, sizeof left->path - used, "%s%s", w->depth ? "/" : "",
                       name);
}

/* Remembers the name of an entry that cannot be removed, so that it is not tried again when the
 * walk reopens and rereads the folder. */
static void remember(struct tree_level *level, const char *name)
{
    char **grown = NULL, *copy = NULL;

    if (level->staying_count < STAYING_MAX)
        copy = strdup(name);
    if (copy)
        grown = realloc(level->staying, (level->staying_count + 1) * sizeof *grown);
    if (!grown) {
        free(copy);
        level->given_up = true;
        return;
    }
    level->staying = grown;
    grown[level->staying_count++] = copy;
}

static bool is_staying(const struct tree_level *level, const char *name)
{
    for (size_t i = 0; i < level->staying_count; i++)
        if (strcmp(level->staying[i], name) == 0)
            return true;
    return false;
}

static bool is_marked(const struct tree_walk *w, int dir_fd)
{
    struct stat info;

    for (size_t i = 0; w->marks && w->marks[i]; i++)
        if (fstatat(dir_fd, w->marks[i], &info, AT_SYMLINK_NOFOLLOW) == 0)
            return true;
    return false;
}

/* Adds a deepest level to the walk, for the folder dir_fd, and takes ownership of dir_fd. Returns 0
 * or an errno. */
static int push(struct tree_walk *w, int dir_fd, const char *name)
{
    struct tree_level level = {0};
    struct tree_level *grown;
    struct stat info;

    if (w->depth == w->size) {
        const size_t size = w->size ? 2 * w->size : 16;

        grown = realloc(w->levels, size * sizeof *grown);
        if (!grown) {
            (void)close(dir_fd);
            return ENOMEM;
        }
        w->levels = grown;
        w->size = size;
    }
    level.name = strdup(name);
    level.dir = level.name && fstat(dir_fd, &info) == 0 ? fdopendir(dir_fd) : NULL;
    if (!level.dir) {
        const int error = level.name ? errno : ENOMEM;

        free(level.name);
        (void)close(dir_fd);
        return error;
    }
    level.device = info.st_dev;
    level.inode = info.st_ino;
    if (w->depth - w->open_from >= HD_TREE_FILES - 2) { /* two more descriptors are needed besides
                                                           those of the levels */
        (void)closedir(w->levels[w->open_from].dir);
        w->levels[w->open_from++].dir = NULL;
    }
    w->levels[w->depth++] = level;
    return 0;
}

static void free_level(struct tree_level *level)
{
    if (level->dir)
        (void)closedir(level->dir);
    for (size_t i = 0; i < level->staying_count; i++)
        free(level->staying[i]);
    free(level->staying);
    free(level->name);
}

/* Reopens the folder above the deepest level. Returns false if ".." is no longer the folder from
 * which the walk entered this level. */
static bool reopen_above(struct tree_walk *w)
{
    struct tree_level *above = &w->levels[w->depth - 2];
    struct stat info;
    int fd;

    if (above->dir)
        return true;
    fd = openat(dirfd(w->levels[w->depth - 1].dir), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &info) == 0 && info.st_dev == above->device &&
        info.st_ino == above->inode)
        above->dir = fdopendir(fd);
    if (!above->dir && fd >= 0)
        (void)close(fd);
    if (above->dir)
        w->open_from = w->depth - 2;
    return above->dir != NULL;
}

/* Leaves the deepest level and removes its folder. Returns false at the end of the walk, or if
 * another process has moved a folder of the walk away. */
static bool pop(struct tree_walk *w)
{
    struct tree_level *level = &w->levels[w->depth - 1];
    struct tree_level *above = level - 1;

    if (w->depth == 1 || !reopen_above(w)) {
        if (w->depth > 1)
            stays(w, NULL, HD_TREE_FAILED, ENOENT);
        return false;
    }
    w->depth--;
    if (level->staying_count) {
        remember(above, level->name);
    } else if (unlinkat(dirfd(above->dir), level->name, AT_REMOVEDIR) < 0 && errno != ENOENT) {
        const int error = errno;

        stays(w, level->name, error == EBUSY ? HD_TREE_MOUNTED : HD_TREE_FAILED, error);
        remember(above, level->name);
    }
    free_level(level);
    return true;
}

/* Opens the folder `name` in the deepest level's folder and adds a level for it; if that is
 * impossible, counts `name` as an entry that remains. */
static void enter(struct tree_walk *w, const char *name, int unlink_error)
{
    struct tree_level *level = &w->levels[w->depth - 1];
    enum hd_tree_why why = HD_TREE_FAILED;
    struct file_identity identity;
    int error = 0, fd;

    fd = openat(dirfd(level->dir), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return;
    if (fd < 0 || find_identity(fd, &identity) < 0)
        error = errno == ENOTDIR ? unlink_error : errno; /* `name` is a file that unlink refused to
                                                            remove */
    else if (!is_same_identity(&identity, &w->identity))
        why = HD_TREE_MOUNTED;
    else if (is_marked(w, fd))
        why = HD_TREE_MARKED;
    else if (w->depth == DEPTH_MAX)
        why = HD_TREE_TOO_DEEP;
    else
        why = HD_TREE_GONE;
    if (why == HD_TREE_GONE) {
        error = push(w, fd, name);
        if (!error)
            return;
        why = HD_TREE_FAILED;
    } else if (fd >= 0) {
        (void)close(fd);
    }
    stays(w, name, why, error);
    remember(level, name);
}

static void take_entry(struct tree_walk *w, const char *name)
{
    struct tree_level *level = &w->levels[w->depth - 1];
    int error;

    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || is_staying(level, name) ||
        unlinkat(dirfd(level->dir), name, 0) == 0 || errno == ENOENT)
        return;
    error = errno;
    if (error == EISDIR || error == EPERM) { /* POSIX allows unlink to fail with EPERM for a
                                                folder */
        enter(w, name, error);
        return;
    }
    stays(w, name, error == EBUSY ? HD_TREE_MOUNTED : HD_TREE_FAILED, error);
    remember(level, name);
}

static void walk(struct tree_walk *w)
{
    for (;;) {
        struct tree_level *level = &w->levels[w->depth - 1];
        const struct dirent *entry = level->given_up ? NULL : readdir(level->dir);

        if (entry)
            take_entry(w, entry->d_name);
        else if (!pop(w))
            return;
    }
}

/* ---- the whole ---- */

static enum hd_status report(const char *path, const struct hd_tree_left *left)
{
    static const char *const words[] = {
        [HD_TREE_MOUNTED] = "a file system is mounted there",
        [HD_TREE_MARKED] = "it is a folder of another run or cluster",
        [HD_TREE_TOO_DEEP] = "its folders are too deep",
    };
    static const char *const help[] = {
        [HD_TREE_MOUNTED] = "Nothing on it is deleted; unmount it, and remove the folder by hand",
        [HD_TREE_MARKED] = "If that one is given up, remove it by hand",
    };
    const char *word = left->why == HD_TREE_FAILED ? strerror(left->error) : words[left->why];

    if (left->why == HD_TREE_MOUNTED || left->why == HD_TREE_MARKED)
        return hd_err(
            HD_CONFLICT,
            "%s was not removed completely: %s remains, because %s (%zu entries remain). %s", path,
            left->path, word, left->count, help[left->why]);
    return hd_err(left->error ? hd_file_write_status(left->error) : HD_IO,
                  "cannot remove %s: %s: %s", path, left->path, word);
}

static void remove_folder(struct tree_walk *w, int fd, const char *path)
{
    int error;

    if (hd_tree_is_mount(fd) || find_identity(fd, &w->identity) < 0) {
        (void)close(fd);
        stays(w, path, HD_TREE_MOUNTED, 0);
        return;
    }
    error = push(w, fd, path);
    if (error) {
        stays(w, path, HD_TREE_FAILED, error);
        return;
    }
    walk(w);
    while (w->depth)
        free_level(&w->levels[--w->depth]);
}

enum hd_status hd_tree_remove(const char *path, const char *const *marks,
                              struct hd_tree_left *ret_left)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct tree_walk w = {.marks = marks};

    if (fd < 0 && errno != ENOTDIR && errno != ELOOP && errno != ENOENT)
        stays(&w, path, HD_TREE_FAILED, errno);
    else if (fd >= 0)
        remove_folder(&w, fd, path);
    if (!w.left.count && remove(path) < 0 && errno != ENOENT)
        stays(&w, path, errno == EBUSY ? HD_TREE_MOUNTED : HD_TREE_FAILED, errno);
    free(w.levels);
    if (ret_left)
        *ret_left = w.left;
    return w.left.count ? report(path, &w.left) : HD_OK;
}

enum hd_status hd_file_remove_tree(const char *path)
{
    return hd_tree_remove(path, NULL, NULL);
}
