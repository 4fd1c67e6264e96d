/* runs_clean: `heddle local --clean`: lists the runs of a folder and removes old ones. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "controller/cli/rows.h"
#include "controller/cli/runs.h"

enum verdict { KEEP_NEWEST, KEEP_IN_USE, REMOVE };

struct cleaned {
    struct cli *cli;
    struct run_list runs;
    enum verdict *verdicts;
    int64_t *bytes;
    int *locks; /* lock descriptors of the runs to remove; -1: none */
    size_t remove_count;
    int64_t remove_bytes;
};

static int64_t add_tree(const char *path)
{
    struct stat info;
    int64_t bytes;
    const struct dirent *entry;
    DIR *d;

    if (lstat(path, &info) < 0)
        return 0;
    bytes = (int64_t)info.st_blocks * 512;
    d = S_ISDIR(info.st_mode) ? opendir(path) : NULL;
    while (d && (entry = readdir(d))) {
        char below[PATH_MAX];

        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            snprintf(below, sizeof below, "%s/%s", path, entry->d_name) < (int)sizeof below)
            bytes += add_tree(below);
    }
    if (d)
        (void)closedir(d);
    return bytes;
}

/* Chooses the runs to remove, and locks each until it is removed, so that it cannot be resumed
 * meanwhile. */
static enum hd_status judge(struct cleaned *c, int64_t keep)
{
    const size_t count = c->runs.count;

    c->verdicts = calloc(count + 1, sizeof *c->verdicts);
    c->bytes = calloc(count + 1, sizeof *c->bytes);
    c->locks = calloc(count + 1, sizeof *c->locks);
    if (!c->verdicts || !c->bytes || !c->locks)
        return hd_err(HD_NO_MEMORY, "no memory for a list of runs");
    for (size_t i = 0; i < count; i++) {
        const enum hd_status st = runs_lock(c->runs.items[i].path, &c->locks[i]);

        if (st)
            c->locks[i] = -1;
        c->bytes[i] = add_tree(c->runs.items[i].path);
        c->verdicts[i] = st ? KEEP_IN_USE : (int64_t)i < keep ? KEEP_NEWEST : REMOVE;
        if (c->verdicts[i] != REMOVE)
            continue;
        c->remove_count++;
        c->remove_bytes += c->bytes[i];
    }
    return HD_OK;
}

static const char *const verdict_words[] = {"keep", "in use", "remove"};

struct clean_row {
    const char *what, *path;
    int64_t size_bytes, used_ms;
};

static const struct rows_column clean_columns[] = {
    {.json = "path", ROWS_OF(struct clean_row, path)},
    {"WHAT", ROWS_OF(struct clean_row, what), .json = "what"},
    {"SIZE", ROWS_OF(struct clean_row, size_bytes), .form = ROWS_BYTES, .json = "size_bytes"},
    {"USED", ROWS_OF(struct clean_row, used_ms), .form = ROWS_TIME, .json = "used_at"},
    {"RUN", ROWS_OF(struct clean_row, path)},
};
static const struct rows_kind clean_rows = {"RunList", "run", ROWS_COLUMNS(clean_columns),
                                            .is_uncut = true};

static void show_runs(const struct cleaned *c)
{
    struct cli_rows rows;

    if (!c->runs.count && c->cli->format < CLI_JSON)
        return;
    rows_begin(&rows, c->cli, &clean_rows);
    for (size_t i = 0; i < c->runs.count; i++)
        rows_add(&rows, &(struct clean_row){verdict_words[c->verdicts[i]], c->runs.items[i].path,
                                            c->bytes[i], c->runs.items[i].used_ms});
    (void)rows_end(&rows, CLI_CONTINUE);
}

/* Removes one entry of a run's folder. HD_CONFLICT: it is the folder of another run or cluster. */
static enum hd_status remove_entry(const char *path)
{
    char mark[PATH_MAX + 32];

    for (size_t i = 0; hd_tree_marks[i]; i++) {
        (void)snprintf(mark, sizeof mark, "%s/%s", path, hd_tree_marks[i]);
        if (hd_file_exists(mark))
            return hd_err(HD_CONFLICT, "%s stays: it is a folder of another run or cluster", path);
    }
    return hd_tree_remove(path, hd_tree_marks, NULL);
}

/* Removes a run, its marker last, so that after a partial failure the next clean removes the rest.
 */
static enum hd_status remove_run(const char *path)
{
    enum hd_status st;
    struct hd_error story = {.status = HD_OK};
    const struct dirent *entry;
    char below[PATH_MAX];
    DIR *d = opendir(path);

    if (!d)
        return hd_err(HD_IO, "cannot read the folder %s: %s", path, strerror(errno));
    while ((entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            strcmp(entry->d_name, RUN_MARKER) == 0 || strcmp(entry->d_name, HD_MARK_JOBS_DIR) == 0)
            continue;
        (void)snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        st = remove_entry(below);
        if (st && !story.status)
            hd_err_save(st, &story);
    }
    (void)closedir(d);
    return story.status ? hd_err_restore(&story) : hd_tree_remove(path, hd_tree_marks, NULL);
}

/* Points `latest` to the newest remaining run if it led to a removed one; removes it if no run is
 * left. */
static void mend_latest(const struct cleaned *c, const char *folder)
{
    char link[RUN_PATH_MAX + 32];
    struct stat info;

    (void)snprintf(link, sizeof link, "%s/" RUN_LATEST, folder);
    if (lstat(link, &info) < 0 || !S_ISLNK(info.st_mode) || stat(link, &info) == 0)
        return;
    (void)unlink(link);
    for (size_t i = 0; i < c->runs.count; i++) {
        struct run_folder run = {.lock = -1};

        if (!hd_file_is_dir(c->runs.items[i].path))
            continue;
        (void)snprintf(run.path, sizeof run.path, "%s", c->runs.items[i].path);
        runs_link_latest(&run, false);
        return;
    }
}

static int remove_runs(struct cleaned *c, const char *folder)
{
    int code = CLI_OK;
    size_t removed = 0;
    int64_t bytes = 0;
    char size[32];

    for (size_t i = 0; i < c->runs.count; i++) {
        enum hd_status st;

        if (c->verdicts[i] != REMOVE)
            continue;
        st = remove_run(c->runs.items[i].path);
        if (st) {
            code = cli_fail(st);
            continue;
        }
        removed++;
        bytes += c->bytes[i];
    }
    mend_latest(c, folder);
    hd_text_format_bytes(bytes, size);
    if (!removed)
        cli_note("heddle: no run was removed");
    else
        cli_note("heddle: removed %zu run%s, %s", removed, removed == 1 ? "" : "s", size);
    return code;
}

/* Asks on a terminal whether to remove the runs, and removes them. Without a terminal --yes is
 * required. */
static int confirm_and_remove(struct cleaned *c, const char *folder, bool yes)
{
    char question[128], remedy[160], size[32];
    int code;

    if (!c->remove_count && !c->runs.count)
        cli_note("heddle: there was nothing to remove: %s has no runs", folder);
    else if (!c->remove_count)
        cli_note("heddle: there was nothing to remove: of the %zu run%s in %s the newest stay, and "
                 "those in use",
                 c->runs.count, c->runs.count == 1 ? "" : "s", folder);
    if (!c->remove_count)
        return CLI_OK;
    hd_text_format_bytes(c->remove_bytes, size);
    (void)snprintf(question, sizeof question, "remove %zu run%s, %s, with all checkpoints?",
                   c->remove_count, c->remove_count == 1 ? "" : "s", size);
    (void)snprintf(remedy, sizeof remedy, "to %.*s, add --yes", (int)strcspn(question, "?"),
                   question);
    code = yes ? CLI_CONTINUE : cli_confirm(question, "nothing was removed", remedy);
    return code == CLI_CONTINUE ? remove_runs(c, folder) : code;
}

static enum hd_status find_folder(const struct clean_options *options, struct hd_text *ret_folder,
                                  char **ret_job_file)
{
    const char *where = options->where ? options->where : ".";
    struct stat info;
    enum hd_status st;

    if (options->where && stat(where, &info) < 0)
        return hd_err(HD_NOT_FOUND, "cannot open %s: %s; give a folder of runs, or a job file",
                      where, strerror(errno));
    if (options->where && S_ISDIR(info.st_mode))
        return runs_make_absolute(where, ret_folder);
    st = runs_find_folder(options->where ? where : "-", options->state_dir, ret_folder);
    if (!st && options->where && !(*ret_job_file = realpath(where, NULL)))
        st = hd_err(HD_IO, "cannot find %s: %s", where, strerror(errno));
    return st;
}

int runs_clean(struct cli *cli, const struct clean_options *options)
{
    struct cleaned c = {.cli = cli};
    struct hd_text folder = {0};
    char *job_file = NULL;
    size_t others = 0;
    int code;
    enum hd_status st = find_folder(options, &folder, &job_file);

    if (!st)
        st = runs_list(folder.data, job_file, &c.runs, &others);
    if (!st)
        st = judge(&c, options->keep);
    if (st) {
        code = cli_fail(st);
    } else {
        show_runs(&c);
        if (others)
            cli_note("heddle: %zu other folder%s in %s left alone: heddle local has not made them, "
                     "or an older "
                     "version has",
                     others, others == 1 ? "" : "s", folder.data);
        code = confirm_and_remove(&c, folder.data, options->yes);
    }
    for (size_t i = 0; c.locks && i < c.runs.count; i++)
        if (c.locks[i] >= 0)
            (void)close(c.locks[i]);
    free(c.verdicts);
    free(c.bytes);
    free(c.locks);
    runs_free_list(&c.runs);
    free(job_file);
    hd_text_free(&folder);
    return cli_out_end(code);
}
