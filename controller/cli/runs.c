#include "controller/cli/runs.h"
#include "base/grow.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"

/* First line of a marker. */
#define MARKER_FORM "heddle-run 1"

enum {
    MARKER_BYTES_MAX = 4 * RUN_PATH_MAX,
    SPACE_BELOW = 200, /* bytes reserved for paths below a run's folder */
    ENDING_MS = 15000, /* wait for the processes of a run whose heddle local was killed, ms */
    ENDING_PAUSE_MS = 50,
};

/* ---- paths ------------------------------------------------------------------------------------*/

enum hd_status runs_no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for a path");
}

enum hd_status runs_make_absolute(const char *path, struct hd_text *ret_path)
{
    char *cwd = getcwd(NULL, 0);

    if (!cwd)
        return hd_err(HD_IO, "cannot tell the working directory: %s", strerror(errno));
    hd_file_join(ret_path, cwd, path);
    free(cwd);
    return ret_path->failed ? runs_no_memory() : HD_OK;
}

enum hd_status runs_find_folder(const char *job_path, const char *state_dir,
                                struct hd_text *ret_folder)
{
    const char *slash = strcmp(job_path, "-") == 0 ? NULL : strrchr(job_path, '/');
    struct hd_text beside = {0};
    enum hd_status st;

    hd_text_add(&beside, "%.*sheddle-runs", slash ? (int)(slash - job_path) + 1 : 0, job_path);
    st = beside.failed ? runs_no_memory()
                       : runs_make_absolute(state_dir ? state_dir : beside.data, ret_folder);
    hd_text_free(&beside);
    return st;
}

/* ---- the marker -------------------------------------------------------------------------------*/

static void find_value(const char *text, const char *key, char ret_value[RUN_PATH_MAX])
{
    const char *at = strstr(text, key);
    const size_t n = at ? strcspn(at + strlen(key), "\n") : 0;

    ret_value[0] = '\0';
    if (at && n < RUN_PATH_MAX)
        (void)snprintf(ret_value, RUN_PATH_MAX, "%.*s", (int)n, at + strlen(key));
}

enum hd_status runs_read_marker(const char *dir, struct run_marker *ret_marker)
{
    char path[RUN_PATH_MAX + 32];
    struct hd_text text = {0};
    struct stat info;
    enum hd_status st;

    (void)snprintf(path, sizeof path, "%s/" RUN_MARKER, dir);
    if (lstat(path, &info) < 0 || !S_ISREG(info.st_mode))
        return hd_err(HD_NOT_FOUND, "%s is no run of heddle local", dir);
    st = hd_file_read(path, MARKER_BYTES_MAX, &text);
    if (!st && text.failed)
        st = runs_no_memory();
    if (!st && text.len_bytes && !hd_text_starts(text.data, MARKER_FORM "\n"))
        st = hd_err(HD_UNSUPPORTED, "%s was written by a newer version of Heddle", path);
    if (!st) {
        find_value(text.data ? text.data : "", "\njob_file ", ret_marker->job_file);
        find_value(text.data ? text.data : "", "\npath ", ret_marker->path);
    }
    hd_text_free(&text);
    return st;
}

enum hd_status runs_lock(const char *dir, int *ret_lock)
{
    char path[RUN_PATH_MAX + 32];
    enum hd_status st;

    (void)snprintf(path, sizeof path, "%s/" RUN_MARKER, dir);
    st = hd_file_lock(path, ret_lock);
    if (st == HD_CONFLICT)
        st = hd_err(HD_CONFLICT, "%s is in use by another heddle local", dir);
    return st;
}

static enum hd_status write_marker(const struct run_folder *run, const char *job_path)
{
    struct hd_text text = {0};
    char *file = strcmp(job_path, "-") == 0 ? NULL : realpath(job_path, NULL);
    enum hd_status st = HD_OK;

    hd_text_add(&text, MARKER_FORM "\njob_file %s\npath %s\n", file ? file : "", run->path);
    free(file);
    if (text.failed)
        st = runs_no_memory();
    if (!st && (st = hd_file_write_all(run->lock, text.data, text.len_bytes)))
        st = hd_err_prefix(st, "%s/" RUN_MARKER, run->path);
    hd_text_free(&text);
    return st;
}

/* ---- making -----------------------------------------------------------------------------------*/

/* Appends NAME-20260301-120000-a1b2c3; the random part keeps two runs of one job file apart. */
static enum hd_status add_new_name(const char *name, struct hd_text *path)
{
    const time_t now = (time_t)(hd_clock_wall_ms() / 1000);
    unsigned char tail[3];
    char when[32] = "";
    struct tm tm;
    enum hd_status st = hd_random_bytes(tail, sizeof tail);

    if (st)
        return st;
    if (gmtime_r(&now, &tm))
        (void)strftime(when, sizeof when, "%Y%m%d-%H%M%S", &tm);
    hd_text_add(path, "/%s-%s-%02x%02x%02x", name, when, tail[0], tail[1], tail[2]);
    return HD_OK;
}

static enum hd_status name_run(const char *job_path, const char *state_dir, const char *dir,
                               const char *name, struct hd_text *ret_path)
{
    enum hd_status st;

    if (dir && strchr(dir, '/'))
        return runs_make_absolute(dir, ret_path);
    st = runs_find_folder(job_path, state_dir, ret_path);
    if (!st && dir)
        hd_text_add(ret_path, "/%s", dir);
    else if (!st)
        st = add_new_name(name, ret_path);
    return st;
}

static enum hd_status check_dir(const char *dir)
{
    const char *wrong = strcmp(dir, "") == 0                              ? "is empty"
                        : strcmp(dir, ".") == 0 || strcmp(dir, "..") == 0 ? "is no name"
                        : strcmp(dir, RUN_LATEST) == 0 ? "is the name of the link to the newest run"
                        : dir[strcspn(dir, "\n")]      ? "has a line break"
                                                       : NULL;

    return wrong ? hd_err(HD_INVALID, "--dir %s: %s; give the name of a new folder", dir, wrong)
                 : HD_OK;
}

/* Returns whether the marker is empty: heddle local was killed while it made the folder, and no run
 * began. */
static bool is_empty_marker(const char *dir, const char *name)
{
    char path[RUN_PATH_MAX + 32];
    struct stat info;

    (void)snprintf(path, sizeof path, "%s/" RUN_MARKER, dir);
    return strcmp(name, RUN_MARKER) == 0 && lstat(path, &info) == 0 && S_ISREG(info.st_mode) &&
           !info.st_size;
}

/* Fails with HD_EXISTS if the folder is not empty. */
static enum hd_status check_empty(const char *path)
{
    const struct dirent *entry;
    bool has_more = false;
    DIR *d = opendir(path);

    if (!d)
        return errno == ENOENT ? HD_OK : hd_err(HD_IO, "cannot read %s: %s", path, strerror(errno));
    while ((entry = readdir(d)))
        has_more |= strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                    !is_empty_marker(path, entry->d_name);
    (void)closedir(d);
    return has_more ? hd_err(HD_EXISTS,
                             "%s is there already, and not empty; give another --dir, or go on "
                             "with that run: --resume",
                             path)
                    : HD_OK;
}

void runs_link_latest(const struct run_folder *run, bool only_if_there)
{
    const char *name = strrchr(run->path, '/') + 1;
    const int folder_len = (int)(name - run->path);
    char link[RUN_PATH_MAX + 32], part[RUN_PATH_MAX + 64];
    struct stat info;
    bool is_there;

    (void)snprintf(link, sizeof link, "%.*s" RUN_LATEST, folder_len, run->path);
    (void)snprintf(part, sizeof part, "%.*s." RUN_LATEST ".%ld", folder_len, run->path,
                   (long)getpid());
    is_there = lstat(link, &info) == 0;
    if (is_there ? !S_ISLNK(info.st_mode) : only_if_there)
        return;
    (void)unlink(part); /* left by a killed process with the same number */
    if (symlink(name, part) < 0 || rename(part, link) < 0) {
        cli_note("heddle: cannot make the link %s: %s", link, strerror(errno));
        (void)unlink(part);
    }
}

/* Makes a run's folder and the marker in it; on failure removes what it made. */
static enum hd_status make_folder(struct run_folder *run, const char *job_path)
{
    char marker[RUN_PATH_MAX + 32];
    enum hd_status st;

    run->was_there = hd_file_is_dir(run->path);
    st = hd_file_make_dirs(run->path, 0750);
    if (!st)
        st = hd_file_make_plain(run->path, RUN_PATH_MAX - SPACE_BELOW);
    if (!st)
        st = runs_lock(run->path, &run->lock);
    if (!st && (st = write_marker(run, job_path))) {
        (void)snprintf(marker, sizeof marker, "%s/" RUN_MARKER, run->path);
        (void)unlink(marker);
    }
    if (st && !run->was_there)
        /* fails, as it should, if another heddle local has begun to use the folder */
        (void)rmdir(run->path);
    if (st == HD_IO || st == HD_STORAGE)
        st = hd_err_prefix(
            st, "cannot make a folder for the run; choose another place with --state-dir");
    return st;
}

enum hd_status run_make(const char *job_path, const char *state_dir, const char *dir,
                        const char *name, struct run_folder *ret_run)
{
    struct run_folder run = {.lock = -1};
    struct hd_text path = {0};
    enum hd_status st = dir ? check_dir(dir) : HD_OK;

    if (!st)
        st = name_run(job_path, state_dir, dir, name, &path);
    if (!st && path.failed)
        st = runs_no_memory();
    while (!st && path.len_bytes > 1 && path.data[path.len_bytes - 1] == '/')
        path.data[--path.len_bytes] = '\0';
    if (!st &&
        snprintf(run.path, sizeof run.path, "%s", path.data) >= (int)sizeof run.path - SPACE_BELOW)
        st = hd_err(HD_INVALID, "the path of the run's folder is too long; choose a shorter one "
                                "with --state-dir");
    hd_text_free(&path);
    if (!st && dir)
        st = check_empty(run.path);
    if (!st)
        st = make_folder(&run, job_path);
    if (st) {
        run_close(&run);
        return st;
    }
    run.is_elsewhere = dir && strchr(dir, '/');
    *ret_run = run;
    return HD_OK;
}

void run_close(struct run_folder *run)
{
    if (run->lock >= 0)
        (void)close(run->lock);
    run->lock = -1;
}

/* ---- the list of runs -------------------------------------------------------------------------*/

void runs_free_list(struct run_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].path);
    free(list->items);
}

static enum hd_status add_run(struct run_list *list, const char *path, int64_t used_ms)
{
    if (!hd_grow(&list->items, list->count, &list->capacity, sizeof *list->items))
        return runs_no_memory();
    list->items[list->count].path = strdup(path);
    list->items[list->count].used_ms = used_ms;
    return list->items[list->count].path ? (list->count++, HD_OK) : runs_no_memory();
}

static int newest_first(const void *left, const void *right)
{
    const struct run_entry *a = left, *b = right;

    if (a->used_ms != b->used_ms)
        return a->used_ms < b->used_ms ? 1 : -1;
    return strcmp(b->path, a->path);
}

enum hd_status runs_list(const char *folder, const char *job_file, struct run_list *ret_list,
                         size_t *ret_others)
{
    struct run_list list = {.count = 0};
    enum hd_status st = HD_OK;
    const struct dirent *entry;
    DIR *d = opendir(folder);

    *ret_others = 0;
    if (!d)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot read the folder %s: %s",
                      folder, strerror(errno));
    while (!st && (entry = readdir(d))) {
        char path[RUN_PATH_MAX], marker[RUN_PATH_MAX + 32];
        struct run_marker found;
        struct stat info;

        if (entry->d_name[0] == '.' ||
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= (int)sizeof path ||
            lstat(path, &info) < 0 || !S_ISDIR(info.st_mode))
            continue;
        (void)snprintf(marker, sizeof marker, "%s/" RUN_MARKER, path);
        if (runs_read_marker(path, &found) || info.st_uid != geteuid() || stat(marker, &info) < 0)
            (*ret_others)++;
        else if (!job_file || strcmp(found.job_file, job_file) == 0)
            st = add_run(&list, path,
                         (int64_t)info.st_mtim.tv_sec * 1000 + info.st_mtim.tv_nsec / 1000000);
    }
    (void)closedir(d);
    if (list.count)
        qsort(list.items, list.count, sizeof *list.items, newest_first);
    if (st)
        runs_free_list(&list);
    else
        *ret_list = list;
    return st;
}

/* ---- going on ---------------------------------------------------------------------------------*/

/* Finds the newest run of a job file. */
static enum hd_status find_newest_run(const char *job_path, const char *state_dir,
                                      char ret_path[RUN_PATH_MAX])
{
    char *file = realpath(job_path, NULL);
    struct hd_text folder = {0};
    struct run_list list = {.count = 0};
    size_t others;
    enum hd_status st = file ? runs_find_folder(job_path, state_dir, &folder) : runs_no_memory();

    if (!st)
        st = runs_list(folder.data, file, &list, &others);
    if (st == HD_NOT_FOUND || (!st && !list.count))
        st = hd_err(HD_NOT_FOUND, "there is no run of %s in %s; start one with heddle local %s",
                    job_path, folder.data, job_path);
    if (!st)
        (void)snprintf(ret_path, RUN_PATH_MAX, "%s", list.items[0].path);
    runs_free_list(&list);
    hd_text_free(&folder);
    free(file);
    return st;
}

/* Finds the run's folder for `target`. */
static enum hd_status find_run(const char *target, const char *state_dir,
                               char ret_path[RUN_PATH_MAX], struct run_marker *ret_marker)
{
    char path[PATH_MAX];
    struct stat info;
    enum hd_status st;

    if (stat(target, &info) < 0)
        return target[strspn(target, "0123456789")] == '\0'
                   ? hd_err(HD_NOT_FOUND,
                            "there is no folder %s; a job of a controller goes on with: heddle "
                            "resume %s",
                            target, target)
                   : hd_err(HD_NOT_FOUND,
                            "cannot open %s: %s; give the folder of a run, such as "
                            "heddle-runs/" RUN_LATEST ", or the job file",
                            target, strerror(errno));
    if (S_ISREG(info.st_mode)) {
        st = find_newest_run(target, state_dir, ret_path);
        return st ? st : runs_read_marker(ret_path, ret_marker);
    }
    if (!realpath(target, path))
        return hd_err(HD_IO, "cannot find %s: %s", target, strerror(errno));
    st = runs_read_marker(path, ret_marker);
    /* target is the job's folder in the run */
    if (st == HD_NOT_FOUND && strcmp(strrchr(path, '/'), "/1") == 0) {
        *strrchr(path, '/') = '\0';
        st = runs_read_marker(path, ret_marker);
    }
    if (st == HD_NOT_FOUND)
        st = hd_err(HD_INVALID,
                    "%s is no run that heddle local can resume (one of an older version cannot be "
                    "resumed either); give the folder of a run, such as heddle-runs/" RUN_LATEST
                    ", or the job file",
                    target);
    if (!st && snprintf(ret_path, RUN_PATH_MAX, "%s", path) >= RUN_PATH_MAX)
        st = hd_err(HD_INVALID, "the path of the run's folder is too long");
    return st;
}

enum hd_status run_find(const char *target, char ret_path[RUN_PATH_MAX])
{
    struct run_marker marker;
    const enum hd_status st = find_run(target, NULL, ret_path, &marker);

    return st == HD_INVALID
               ? hd_err(st,
                        "%s is no run of heddle local; give the folder of a run, such as "
                        "heddle-runs/" RUN_LATEST ", or its job file",
                        target)
               : st;
}

/* Refuses a run folder that was moved: the controller's records hold checkpoint paths with the
 * original folder. */
static enum hd_status check_moved(const char *path, const struct run_marker *marker)
{
    char *made = realpath(marker->path, NULL);
    const bool same = made && strcmp(made, path) == 0;
    const bool is_copy = made && !same;
    struct hd_text link = {0};
    enum hd_status st;

    free(made);
    if (!*marker->path) /* empty marker: see is_empty_marker */
        return hd_err(HD_INVALID,
                      "no run has begun in %s: heddle local ended while it made the folder; start "
                      "one there by --dir, or elsewhere",
                      path);
    if (same)
        return HD_OK;
    if (is_copy)
        return hd_err(HD_CONFLICT,
                      "%s is a copy of %s, whose checkpoints its records name; go on with that one",
                      path, marker->path);
    hd_text_add(&link, "ln -s ");
    cli_add_quoted(&link, path);
    hd_text_add(&link, " ");
    cli_add_quoted(&link, marker->path);
    st = hd_err(HD_CONFLICT,
                "%s was made by another name, by which its records name its checkpoints; move it "
                "back, or link it: %s",
                path, link.failed ? "" : link.data);
    hd_text_free(&link);
    return st;
}

/* Waits until no process has the file locked; a missing file counts as unlocked. */
static enum hd_status await_unlocked(const char *path, const char *dir)
{
    const int64_t end_ms = hd_clock_now_ms() + ENDING_MS;
    enum hd_status st = HD_CONFLICT;
    int fd;

    while (hd_file_exists(path)) {
        st = hd_file_lock(path, &fd);
        if (!st)
            (void)close(fd);
        if (st != HD_CONFLICT)
            return st;
        if (hd_clock_now_ms() > end_ms)
            return hd_err(HD_CONFLICT, "processes of %s still run; end them first", dir);
        (void)nanosleep(&(struct timespec){.tv_nsec = ENDING_PAUSE_MS * 1000000L}, NULL);
    }
    return HD_OK;
}

/* Waits until the processes of a killed heddle local have ended, which they do within a moment. */
static enum hd_status await_end(const char *dir)
{
    char path[RUN_PATH_MAX + 96], attempt[RUN_PATH_MAX + 64];
    enum hd_status st;

    (void)snprintf(path, sizeof path, "%s/state/lock", dir);
    st = await_unlocked(path, dir);
    for (int k = 1; !st; k++) {
        (void)snprintf(attempt, sizeof attempt, "%s/1/attempt-%d", dir, k);
        if (!hd_file_is_dir(attempt))
            break;
        (void)snprintf(path, sizeof path, "%s/nodes/local/lock", attempt);
        st = await_unlocked(path, dir);
    }
    return st;
}

enum hd_status run_open(const char *target, const char *state_dir, struct run_folder *ret_run)
{
    struct run_folder run = {.lock = -1};
    struct run_marker marker;
    enum hd_status st = find_run(target, state_dir, run.path, &marker);

    if (!st)
        st = check_moved(run.path, &marker);
    if (!st) {
        (void)snprintf(run.path, sizeof run.path, "%s", marker.path);
        st = runs_lock(run.path, &run.lock);
    }
    if (!st)
        st = await_end(run.path);
    if (st) {
        run_close(&run);
        return st;
    }
    *ret_run = run;
    return HD_OK;
}

void run_is_newest(const struct run_folder *run, bool is_new)
{
    (void)futimens(run->lock, NULL);
    if (!is_new || !run->is_elsewhere)
        runs_link_latest(run, !is_new);
}

void run_discard(const struct run_folder *run)
{
    static const char *const names[] = {"state", "controller.log", RUN_MARKER};
    char path[RUN_PATH_MAX + 32];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", run->path, names[i]);
        if (hd_file_remove_tree(path))
            cli_note("heddle: %s", hd_err_message());
    }
    if (!run->was_there)
        (void)rmdir(run->path); /* fails, as it should, if the folder is not empty */
}
