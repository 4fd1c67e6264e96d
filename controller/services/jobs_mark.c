#include "controller/services/jobs_mark.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digits.h"
#include "base/file.h"
#include "base/text.h"
#include "controller/store/store.h"

enum { MARK_BYTES_MAX = 4096, /* bytes; limit of daemons, too */ STATE_SHOWN_MAX = 400 };

/* Copies the text behind `word` on the line of the mark file that begins with it; "" if there is no
 * such line. */
static void find_line(const char *text, const char *word, char *ret_line, size_t size)
{
    const char *at = strstr(text, word);

    at = at ? at + strlen(word) : "";
    (void)snprintf(ret_line, size, "%.*s", (int)strcspn(at, "\n"), at);
}

enum hd_status jobs_mark_read(const char *path, struct jobs_mark *ret_mark)
{
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(path, MARK_BYTES_MAX, &text);

    *ret_mark = (struct jobs_mark){.first = ""};
    if (!st && hd_text_starts(text.data, "heddle-") && hd_text_is_utf8(text.data, text.len_bytes)) {
        find_line(text.data, "\ncluster ", ret_mark->cluster, sizeof ret_mark->cluster);
        find_line(text.data, "\nshare ", ret_mark->share, sizeof ret_mark->share);
        find_line(text.data, "\nstate ", ret_mark->state, sizeof ret_mark->state);
        (void)snprintf(ret_mark->first, sizeof ret_mark->first, "%.*s",
                       (int)strcspn(text.data, "\n"), text.data);
    }
    hd_text_free(&text);
    return st;
}

enum hd_status jobs_mark_write(const char *path, const struct jobs_mark *mark)
{
    struct hd_text text = {0};
    enum hd_status st;

    hd_text_add(&text, "%s\ncluster %s\nshare %s\n", mark->first, mark->cluster, mark->share);
    if (*mark->state)
        hd_text_add(&text, "state %s\n", mark->state);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for %s", path)
                     : hd_file_write_atomic(path, text.data, text.len_bytes, 0644);
    hd_text_free(&text);
    return st;
}

void jobs_mark_name_state(const char *state_dir, char ret_line[JOBS_MARK_STATE_MAX])
{
    char host[256] = "?";

    (void)gethostname(host, sizeof host - 1);
    ret_line[0] = '\0';
    if (strlen(state_dir) <= STATE_SHOWN_MAX && !strchr(state_dir, '\n'))
        (void)snprintf(ret_line, JOBS_MARK_STATE_MAX, "%.400s on %.64s", state_dir, host);
}

/* ---- heddle-controller adopt ------------------------------------------------------------------*/

static enum hd_status mark_for(const char *path, const char *cluster, const char *state_dir,
                               struct jobs_mark *mark)
{
    enum hd_status st = jobs_mark_read(path, mark);

    if (st && st != HD_NOT_FOUND)
        return st;
    if (*mark->cluster && strcmp(mark->cluster, cluster) != 0)
        return hd_err(HD_CONFLICT,
                      "%s names another cluster, whose controller has the state directory %s; if "
                      "that one was given up, remove the file, and run this again",
                      path, *mark->state ? mark->state : "(not known)");
    if (*mark->share)
        return HD_OK;
    st = hd_hex_make_id(mark->share);
    if (st)
        return st;
    (void)snprintf(mark->first, sizeof mark->first, "heddle-adopted");
    (void)snprintf(mark->cluster, sizeof mark->cluster, "%s", cluster);
    jobs_mark_name_state(state_dir, mark->state);
    return jobs_mark_write(path, mark);
}

/* Refuses a folder that has none of the newest jobs with checkpoints: its file system is probably
 * not mounted.
 */
static enum hd_status check_has_jobs(const char *state, const char *jobs_dir)
{
    enum { JOBS_MAX = 64 };
    uint64_t jobs[JOBS_MAX];
    size_t count;
    enum hd_status st = hd_store_read_saved_jobs(state, jobs, JOBS_MAX, &count);

    for (size_t i = 0; !st && i < count; i++) {
        char path[PATH_MAX];

        (void)snprintf(path, sizeof path, "%.4000s/%" PRIu64, jobs_dir, jobs[i]);
        if (hd_file_exists(path))
            return HD_OK;
    }
    if (st || !count)
        return st;
    return hd_err(
        HD_CONFLICT,
        "%s has no folder of any job that has checkpoints (the newest is %" PRIu64
        "): is its share mounted? Only if these checkpoints are gone for good, run this again "
        "with the word empty: heddle-controller adopt empty ..",
        jobs_dir, jobs[0]);
}

/* Writes the absolute path of the jobs directory; jobs_dir NULL: `jobs` in the state directory. */
static enum hd_status find_jobs_dir(const char *state, const char *jobs_dir,
                                    char ret_folder[PATH_MAX])
{
    char path[PATH_MAX];
    struct stat info;

    if (jobs_dir)
        (void)snprintf(path, sizeof path, "%.4000s", jobs_dir);
    else
        (void)snprintf(path, sizeof path, "%.4000s/jobs", state);
    if (!realpath(path, ret_folder))
        return hd_err(HD_NOT_FOUND,
                      "cannot find the jobs directory %s: %s; mount the share, or make "
                      "the folder",
                      path, strerror(errno));
    if (stat(ret_folder, &info) < 0 || !S_ISDIR(info.st_mode))
        return hd_err(HD_INVALID, "%s is no folder; --jobs-dir is the controller's", ret_folder);
    return HD_OK;
}

enum hd_status jobs_mark_adopt(const char *state_dir, const char *jobs_dir, bool also_empty,
                               char ret_folder[PATH_MAX])
{
    char cluster[HD_JOBS_SHARE_MAX], share[HD_JOBS_SHARE_MAX], path[PATH_MAX], state[PATH_MAX];
    struct hd_batch *batch;
    struct jobs_mark mark;
    enum hd_status st;

    if (!realpath(state_dir, state))
        return hd_err(HD_NOT_FOUND, "cannot open %s: %s; --state-dir is the controller's",
                      state_dir, strerror(errno));
    st = hd_store_read_ids(state, cluster, share);
    if (st)
        return st;
    st = find_jobs_dir(state, jobs_dir, ret_folder);
    if (st)
        return st;
    if (!also_empty)
        st = check_has_jobs(state, ret_folder);
    if (st)
        return st;
    (void)snprintf(path, sizeof path, "%.4000s/" JOBS_DIR_MARK, ret_folder);
    st = mark_for(path, cluster, state, &mark);
    if (st)
        return st;
    batch = hd_batch_new();
    if (!batch)
        return hd_err(HD_NO_MEMORY, "no memory for the id of a directory");
    hd_batch_add_jobs_share(batch, mark.share);
    return hd_store_write(state, batch);
}
