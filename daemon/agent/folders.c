#include "daemon/agent/folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "daemon/attempt/attempt.h"
#include "daemon/isolation/acl.h"

enum { DEPTH_MAX = 4 }; /* depth of an attempt's files: checkpoints/step-7/file */

/* Splits run_dir into the jobs directory and *ret_below, the rest of the path, such as
 * "7/attempt-2/nodes/n1". */
static enum hd_status find_base(const char *attempt_dir, const char *run_dir,
                                char ret_base[PATH_MAX], const char **ret_below)
{
    size_t n = strlen(attempt_dir);

    for (int parts = 0; parts < 2; parts++)
        while (n > 1 && attempt_dir[--n] != '/')
            ;
    if (n >= PATH_MAX || attempt_dir[n] != '/')
        return hd_err(HD_INVALID, "the directory %s cannot be an attempt's", attempt_dir);
    (void)snprintf(ret_base, PATH_MAX, "%.*s", (int)n, attempt_dir);
    *ret_below = run_dir + n + 1;
    return HD_OK;
}

enum hd_status folders_make(const char *attempt_dir, const char *run_dir, bool may_make_base)
{
    char base[PATH_MAX];
    const char *below;
    enum hd_status st = find_base(attempt_dir, run_dir, base, &below);

    if (!st && may_make_base)
        st = hd_file_make_dirs(base, 0755);
    else if (!st && !hd_file_exists(base))
        st = hd_err(HD_STORAGE,
                    "the jobs directory %s is not there; if it is a file system, mount it again",
                    base);
    return st ? st : hd_file_make_dirs_below(base, below, 0755);
}

/* ---- access for the job's user --------------------------------------------------------------- */

struct sharing {
    struct hd_acl_share share;
    char base[PATH_MAX];
    enum hd_status st; /* first failure of all steps */
};

/* Opens a folder below the jobs directory without following links. Returns -1 after a failure,
 * which is in s->st. */
static int open_below(struct sharing *s, const char *below)
{
    int fd = s->st ? -1 : open(s->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char copy[PATH_MAX], why[HD_FILE_WHY_MAX], *rest = copy, *name;

    (void)snprintf(copy, sizeof copy, "%s", below);
    while (fd >= 0 && (name = strsep(&rest, "/"))) {
        const int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        const int error = errno;

        (void)close(fd);
        fd = next;
        errno = error;
    }
    if (fd < 0 && !s->st) {
        const int error = errno;

        (void)snprintf(copy, sizeof copy, "%.2000s/%.2000s", s->base, below);
        s->st =
            hd_err(error == ELOOP || error == ENOTDIR ? HD_CONFLICT : hd_file_write_status(error),
                   "cannot open the directory %s: %s", copy, hd_file_explain(error, copy, why));
    }
    return fd;
}

/* Creates a folder below the jobs directory if it is missing, and gives the job's user access to
 * it. */
static void share(struct sharing *s, const char *below, bool is_gate, bool sticky)
{
    char path[PATH_MAX];
    int fd;

    if (s->st)
        return;
    s->st = hd_file_make_dirs_below(s->base, below, 0755);
    fd = open_below(s, below);
    if (fd < 0)
        return;
    s->share.is_gate = is_gate;
    s->share.sticky = sticky;
    (void)snprintf(path, sizeof path, "%.2000s/%.2000s", s->base, below);
    s->st = hd_acl_grant(fd, path, &s->share);
    (void)close(fd);
}

/* Makes files readable that heddled created with a restrictive umask; the job's folder, which
 * others cannot enter (the gate), protects them. */
static void open_up(int dir_fd, int depth)
{
    DIR *dir = fdopendir(dir_fd);
    const struct dirent *entry;
    struct stat info;

    if (!dir)
        (void)close(dir_fd);
    while (dir && (entry = readdir(dir))) {
        int fd;

        if (entry->d_name[0] == '.' ||
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0 ||
            info.st_uid != geteuid() || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)))
            continue;
        fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &info) < 0 || info.st_uid != geteuid()) {
            if (fd >= 0)
                (void)close(fd);
            continue;
        }
        (void)fchmod(fd, (info.st_mode & 07777) | S_IROTH | (S_ISDIR(info.st_mode) ? S_IXOTH : 0));
        if (S_ISDIR(info.st_mode) && depth < DEPTH_MAX)
            open_up(fd, depth + 1);
        else
            (void)close(fd);
    }
    if (dir)
        (void)closedir(dir);
}

/* Makes files of earlier attempts readable. Removes the job's `silences` file (learned hang
 * timeouts) if another user made it, because the job's user cannot replace it; the timeouts are
 * learned again. */
static void open_earlier(struct sharing *s, const char *job, const char *this_attempt)
{
    const int job_fd = open_below(s, job);
    const int list_fd = job_fd < 0 ? -1 : dup(job_fd);
    DIR *dir = list_fd < 0 ? NULL : fdopendir(list_fd);
    const struct dirent *entry;
    struct stat info;

    while (dir && (entry = readdir(dir))) {
        int fd;

        if (strcmp(entry->d_name, "silences") == 0 &&
            fstatat(job_fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            info.st_uid != s->share.job)
            (void)unlinkat(job_fd, entry->d_name, 0);
        if (!hd_text_starts(entry->d_name, "attempt-") || strcmp(entry->d_name, this_attempt) == 0)
            continue;
        fd = openat(job_fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &info) == 0 && info.st_uid == geteuid()) {
            (void)fchmod(fd, (info.st_mode & 07777) | S_IROTH | S_IXOTH);
            open_up(fd, 0);
        } else if (fd >= 0) {
            (void)close(fd);
        }
    }
    if (dir)
        (void)closedir(dir);
    else if (list_fd >= 0)
        (void)close(list_fd);
    if (job_fd >= 0)
        (void)close(job_fd);
}

/* Lets the job's user pass through the jobs directory, as users of other jobs do. */
static void let_pass(struct sharing *s)
{
    const int fd = s->st ? -1 : open(s->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (!s->st && fd < 0)
        s->st = hd_err(hd_file_write_status(errno), "cannot open the directory %s: %s", s->base,
                       strerror(errno));
    else if (fd >= 0)
        s->st = hd_acl_let_pass(fd, s->base, s->share.job);
    if (s->st == HD_DENIED) /* the jobs directory is not heddled's */
        s->st = hd_err(HD_DENIED,
                       "users of jobs may not pass through the jobs directory %s, which is not "
                       "heddled's own; run: chmod o+x %s",
                       s->base, s->base);
    if (fd >= 0)
        (void)close(fd);
}

/* Makes the job file, which heddled has written, readable for the job's user. */
static void show_job_file(struct sharing *s, const char *below)
{
    const int dir_fd = open_below(s, below);
    const int fd =
        dir_fd < 0 ? -1 : openat(dir_fd, HD_ATTEMPT_JOB_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && fchmod(fd, 0644) < 0)
        s->st = hd_err(HD_IO, "cannot let the job's user read %s: %s", HD_ATTEMPT_JOB_FILE,
                       strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    if (dir_fd >= 0)
        (void)close(dir_fd);
}

enum hd_status folders_share(const char *attempt_dir, const char *run_dir, uid_t job_uid)
{
    static const char *const kept[] = {"tokens", "tensorboard", "choices"};
    static const char *const own[] = {"logs", "checkpoints", "nodes"};
    const mode_t mask = umask(0);
    struct sharing s = {
        .share = {.job = job_uid, .daemon = geteuid(), .group_reads = !(mask & S_IRGRP)}};
    char job[PATH_MAX], attempt[PATH_MAX], below[PATH_MAX + 16];
    const char *run_below;

    (void)umask(mask);
    s.st = find_base(attempt_dir, run_dir, s.base, &run_below);
    if (s.st)
        return s.st;
    (void)snprintf(attempt, sizeof attempt, "%s", attempt_dir + strlen(s.base) + 1);
    (void)snprintf(job, sizeof job, "%.*s", (int)strcspn(attempt, "/"), attempt);
    /* first, because the later calls make files readable that the gate must protect */
    share(&s, job, true, true);
    share(&s, attempt, false, true);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        (void)snprintf(below, sizeof below, "%s/%s", attempt, own[i]);
        share(&s, below, false, true);
    }
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        (void)snprintf(below, sizeof below, "%s/%s", job, kept[i]);
        share(&s, below, false, false);
    }
    open_earlier(&s, job, attempt + strlen(job) + 1);
    share(&s, run_below, false, false);
    show_job_file(&s, run_below);
    let_pass(&s);
    return s.st;
}
