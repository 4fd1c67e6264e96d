/* deletion: removes checkpoints that the controller has given up, and folders of removed jobs.
 *
 * A checkpoint is renamed first, so that a partly removed one never looks complete, then removed in
 * libuv's thread pool, because it may be large.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/folder.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/tree.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/owner.h"

enum { MANIFEST_BYTES_MAX = 64 << 20, TRY_AGAIN_MS = 30000 };

static enum hd_status check_manifest(const char *path, const char *hash)
{
    struct hd_text manifest = {0};
    char found[HD_HASH_TEXT_MAX];
    enum hd_status st = hd_folder_read(path, "manifest.json", MANIFEST_BYTES_MAX, &manifest);

    if (!st) {
        hd_hash_format(hd_hash_bytes(manifest.data, manifest.len_bytes), found);
        if (strcmp(found, hash) != 0)
            st = hd_err(HD_CONFLICT, "%s holds another checkpoint (%s) than the one to remove (%s)",
                        path, found, hash);
    }
    hd_text_free(&manifest);
    return st == HD_NOT_FOUND ? HD_OK : st;
}

/* Checks that the path has no "." or ".." and that its last component is a checkpoint's name. */
static enum hd_status check_path(const char *path)
{
    const char *name = strrchr(path, '/');

    if (path[0] != '/' || strstr(path, "/../") || strstr(path, "/./") || !name ||
        !hd_text_starts(name, "/step-") || strlen(path) + 16 > PATH_MAX)
        return hd_err(HD_INVALID, "%s is not the path of a checkpoint", path);
    return HD_OK;
}

/* Renames the folder to `aside` and flushes the rename before any file is removed: otherwise a
 * power failure could leave the old name with part of its files. */
static enum hd_status move_aside(const char *path, const char *aside)
{
    if (rename(path, aside) < 0)
        return errno == ENOENT ? HD_OK
               : errno == EBUSY
                   ? hd_err(HD_CONFLICT, "%s stays, because a file system is mounted there", path)
                   : hd_err(HD_IO, "cannot move %s aside: %s", path, strerror(errno));
    return hd_folder_sync_of(path);
}

/* Checks that the path is JOBS_DIR/JOB and a folder: a link could lead anywhere. */
static enum hd_status check_job_dir(const char *path, const char *jobs_dir, int64_t job)
{
    char expected[PATH_MAX + 32];
    struct stat info;

    (void)snprintf(expected, sizeof expected, "%s/%" PRId64, jobs_dir, job);
    if (job < 1 || jobs_dir[0] != '/' || strcmp(path, expected) != 0 ||
        strlen(path) + 16 > PATH_MAX)
        return hd_err(HD_INVALID, "%s is not the folder of job %" PRId64 " in %s", path, job,
                      jobs_dir);
    if (lstat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return hd_err(HD_CONFLICT, "%s is no folder; remove it yourself", path);
    return HD_OK;
}

static enum hd_status remove_through(const char *path)
{
    char aside[PATH_MAX];
    enum hd_status st;

    (void)snprintf(aside, sizeof aside, "%s.removed", path);
    st = hd_tree_remove(aside, hd_tree_marks, NULL); /* left by an interrupted deletion */
    if (!st)
        st = move_aside(path, aside);
    return st ? st : hd_tree_remove(aside, hd_tree_marks, NULL);
}

/* Checks whose the job's folder JOBS_DIR/JOB is, for a checkpoint at
 * JOBS_DIR/JOB/attempt-K/checkpoints/step-N. */
static enum hd_status check_checkpoint_owner(const struct agent_deletion *d)
{
    char job_dir[PATH_MAX];
    size_t n = strlen(d->path);

    for (int i = 0; i < 3; i++)
        while (n > 0 && d->path[--n] != '/')
            ;
    if (!n || n >= sizeof job_dir)
        return HD_OK; /* deletion_remove refuses this path later (check_path) */
    (void)snprintf(job_dir, sizeof job_dir, "%.*s", (int)n, d->path);
    return owner_check(job_dir, d->cluster, d->job);
}

enum hd_status deletion_remove(const char *path, const char *hash)
{
    enum hd_status st = check_path(path);

    if (!st)
        st = check_manifest(path, hash);
    return st ? st : remove_through(path);
}

enum hd_status deletion_remove_job(const char *path, const char *jobs_dir, int64_t job)
{
    enum hd_status st = check_job_dir(path, jobs_dir, job);

    return st ? st : remove_through(path);
}

static void remove_one(uv_work_t *work)
{
    struct agent_deletion *d = work->data;
    enum hd_status st =
        d->attempt ? check_checkpoint_owner(d) : owner_check(d->path, d->cluster, d->job);

    if (!st)
        st = d->attempt ? deletion_remove(d->path, d->hash)
                        : deletion_remove_job(d->path, d->jobs_dir, d->job);
    d->error.status = st;
    if (st)
        hd_err_save(st, &d->error);
}

static void removed_one(uv_work_t *work, int status)
{
    struct agent_deletion *d = work->data;

    (void)status;
    d->busy = false;
    /* retries do not help: a mounted or marked part is never removed */
    d->left = d->error.status == HD_CONFLICT;
    d->done = d->error.status == HD_OK || d->left;
    if (d->left)
        hd_log(HD_LOG_WARN, "job %" PRId64 ": %s", d->job, d->error.message);
    else if (d->done)
        hd_log(HD_LOG_INFO, "removed the %s %s", d->attempt ? "checkpoint" : "folder", d->path);
    else
        hd_log(HD_LOG_WARN, "%s", d->error.message);
    d->agent->observed_dirty = true;
    agent_soon(d->agent);
}

static void deletion_free(struct agent_deletion *d)
{
    free(d->path);
    free(d->hash);
    free(d->jobs_dir);
    free(d->cluster);
    free(d);
}

static struct agent_deletion *find(struct agent *agent,
                                   const Heddle__V1__CheckpointDeletion *wanted)
{
    for (struct agent_deletion *d = agent->deletions; d; d = d->next)
        if (d->job == (int64_t)wanted->job && d->attempt == wanted->attempt &&
            d->step == wanted->step && strcmp(d->path, wanted->path) == 0 &&
            strcmp(d->hash, wanted->manifest_hash) == 0)
            return d;
    return NULL;
}

static struct agent_deletion *add(struct agent *agent, const Heddle__V1__CheckpointDeletion *wanted)
{
    struct agent_deletion *d = calloc(1, sizeof *d);

    if (!d)
        return NULL;
    d->agent = agent;
    d->job = (int64_t)wanted->job;
    d->attempt = wanted->attempt;
    d->step = wanted->step;
    d->path = strdup(wanted->path);
    d->hash = strdup(wanted->manifest_hash);
    d->jobs_dir = strdup(agent->jobs_dir);
    d->cluster = strdup(agent->identity.cluster);
    d->work.data = d;
    if (!d->path || !d->hash || !d->jobs_dir || !d->cluster) {
        deletion_free(d);
        return NULL;
    }
    d->next = agent->deletions;
    agent->deletions = d;
    return d;
}

/* Returns whether a process of the job whose folder is to be removed still runs on this node and
 * may write. */
static bool is_alive(const struct agent_deletion *d)
{
    for (const struct agent_attempt *l = d->agent->locals.first; l; l = l->next)
        if (l->job == d->job && l->state == LOCAL_ALIVE)
            return true;
    return false;
}

static void begin(struct agent_deletion *d)
{
    if (d->busy || d->done)
        return;
    d->tried_ms = hd_clock_now_ms();
    /* files hidden by a missing mount must not count as removed, and a checkpoint is not removed
     * while it is copied; deletion_tick retries
     */
    if (d->agent->locals.jobs_dir_away || (!d->attempt && is_alive(d)) ||
        copies_is_busy(d->agent->copies, d->path))
        return;
    d->busy = uv_queue_work(d->agent->loop, &d->work, remove_one, removed_one) == 0;
}

void deletion_tick(struct agent *agent)
{
    for (struct agent_deletion *d = agent->deletions; d; d = d->next)
        if (d->wanted && hd_clock_now_ms() - d->tried_ms >= TRY_AGAIN_MS)
            begin(d);
}

void deletion_take(struct agent *agent, const Heddle__V1__DesiredState *desired)
{
    struct agent_deletion **at = &agent->deletions;

    for (struct agent_deletion *d = agent->deletions; d; d = d->next)
        d->wanted = false;
    for (size_t i = 0; i < desired->n_deletions; i++) {
        struct agent_deletion *d = find(agent, desired->deletions[i]);

        if (!d)
            d = add(agent, desired->deletions[i]);
        if (!d)
            continue; /* the controller sends this deletion again */
        d->wanted = true;
        begin(d);
    }
    while (*at) {
        struct agent_deletion *d = *at;

        if (d->wanted || d->busy) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        deletion_free(d);
    }
}

void deletion_free_all(struct agent *agent)
{
    while (agent->deletions) {
        struct agent_deletion *d = agent->deletions;

        agent->deletions = d->next;
        deletion_free(d);
    }
}
