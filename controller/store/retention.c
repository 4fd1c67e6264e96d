/* retention: deletes old history by the policy's rules, a few jobs per batch, so that no commit
 * takes long.
 *
 *   jobs.pruned  0: all history is kept
 *                1: the steps are downsampled
 *                2: only the newest event and step are kept, and one event that says so
 *
 * A job that is resumed starts again at 0 (UPDATE_JOB). Jobs, attempts and checkpoints stay.
 */
#include <stdio.h>

#include "base/pieces.h"
#include "controller/store/store_internal.h"

enum { JOBS_A_BATCH = HD_PIECE(20, 2), DAY_MS = 86400000 };

/* Sets jobs to the job numbers in column 0 of a statement's rows, at most JOBS_A_BATCH. */
static enum hd_status find(struct store_db *db, sqlite3_stmt *s, int64_t jobs[JOBS_A_BATCH],
                           size_t *ret_count)
{
    enum hd_status st = HD_OK;

    *ret_count = 0;
    while (*ret_count < JOBS_A_BATCH && store_db_next(db, s, &st))
        jobs[(*ret_count)++] = sqlite3_column_int64(s, 0);
    (void)sqlite3_reset(s);
    return st;
}

static enum hd_status forget(struct store_db *db, int64_t job, int64_t now_ms, const char *why)
{
    static const enum store_statement each[] = {STORE_PRUNE_EVENTS, STORE_PRUNE_STEPS,
                                                STORE_DELETE_VALIDATIONS};
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < sizeof each / sizeof each[0]; i++)
        st = store_db_run(db, each[i], "i", job);
    if (!st)
        st = store_db_run(db, STORE_REPORT_PRUNED, "iit", job, now_ms, why);
    return st ? st : store_db_run(db, STORE_SET_PRUNED, "in", job, 2);
}

static enum hd_status forget_all(struct store_db *db, sqlite3_stmt *found, int64_t now_ms,
                                 const char *why)
{
    int64_t jobs[JOBS_A_BATCH];
    size_t count;
    enum hd_status st = find(db, found, jobs, &count);

    for (size_t i = 0; !st && i < count; i++)
        st = forget(db, jobs[i], now_ms, why);
    return st;
}

/* Downsamples the step records of a job to `lines`: keeps the first, every n-th, and the newest. */
static enum hd_status prune_steps(struct store_db *db, int64_t job, int64_t lines)
{
    sqlite3_stmt *s = store_db_bind(db, STORE_COUNT_STEPS, "i", job);
    bool row = false;
    enum hd_status st = s ? store_db_step(db, s, &row) : HD_INTERNAL;
    const int64_t count = !st && row ? sqlite3_column_int64(s, 0) : 0;

    if (s)
        (void)sqlite3_reset(s);
    if (!st && count > lines && lines > 1) /* the newest step is one of the lines */
        st = store_db_run(db, STORE_DOWNSAMPLE_STEPS, "ii", job,
                          (count - 1 + lines - 2) / (lines - 1));
    return st ? st : store_db_run(db, STORE_SET_PRUNED, "in", job, 1);
}

static enum hd_status downsample_all(struct store_db *db, const struct hd_prune_record *p)
{
    int64_t jobs[JOBS_A_BATCH];
    size_t count;
    enum hd_status st = find(
        db, store_db_bind(db, STORE_FIND_LONG, "i", p->now_ms - p->step_lines_ms), jobs, &count);

    for (size_t i = 0; !st && i < count; i++)
        st = prune_steps(db, jobs[i], p->step_lines);
    return st;
}

enum hd_status store_prune(struct store_db *db, const struct hd_prune_record *p)
{
    char why[96];
    enum hd_status st = HD_OK;

    if (p->history_ms) {
        (void)snprintf(why, sizeof why, "older history was removed: keep history %lld",
                       (long long)(p->history_ms / DAY_MS));
        st = forget_all(db, store_db_bind(db, STORE_FIND_OLD, "i", p->now_ms - p->history_ms),
                        p->now_ms, why);
    }
    if (!st && p->history_jobs) {
        (void)snprintf(why, sizeof why, "older history was removed: keep history-jobs %lld",
                       (long long)p->history_jobs);
        st = forget_all(db, store_db_bind(db, STORE_FIND_MANY, "i", p->history_jobs), p->now_ms,
                        why);
    }
    return !st && p->step_lines ? downsample_all(db, p) : st;
}
