/* jobs_dir: the file .heddle-probe in the jobs directory. With it a daemon checks that it sees the
 * controller's directory, and the controller that the directory is the one its database knows:
 *
 *     heddle-0f3a..                 random, new in each start of the controller
 *     cluster 8c1d..                id of the database; a restored backup or a move keeps it
 *     share 77e0..                  id of the directory, stored in the database at its first use
 *     state /var/lib/heddle on n1   state directory of the controller, for people
 *
 * An empty folder is not accepted as a new jobs directory: if the file system is not mounted, jobs
 * would start from scratch, and a later mount would hide what they wrote.
 *
 *   id in the     file in the directory             result
 *   database
 *   none          another cluster's                 the controller does not start
 *   none          this cluster's, or none           the directory gets an id, which is stored
 *   none          none, and no folder of any job    unavailable
 *                 that the database has
 *   an id         with this id                      used
 *   an id         with another id, or none          unavailable (heddle-controller adopt)
 *
 * While the directory is unavailable the controller serves, running attempts continue, and no job
 * starts. It is checked every CHECK_MS in libuv's thread pool, because a file server may not
 * respond.
 *
 * Two clusters in one directory would take each other's files for their own, because their job
 * numbers are equal. Earlier versions wrote no line `share`, the earliest ones no line `cluster`
 * either.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digits.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "controller/services/internal.h"
#include "controller/services/jobs_mark.h"

enum {
    CHECK_MS = 5000, /* period of the check of the jobs directory, ms */
    /* a check that takes longer than this, ms: the file server does not respond */
    SILENT_MS = 30000,
};

struct jobs_dir_check {
    uv_work_t work;
    struct controller *c; /* NULL: the controller was freed */
    bool busy;
    int64_t begun_ms;
    char path[HD_CTL_PATH_BYTES_MAX + 32];
    struct jobs_mark mark; /* content of the mark file .heddle-probe */
    struct hd_error error; /* error of reading the mark file */
};

static int64_t check_ms(const struct controller *c)
{
    return c->options.jobs_dir_check_ms ? c->options.jobs_dir_check_ms : CHECK_MS;
}

/* Writes the mark's line `state`; "" if the path is too long for a line. */
static void name_state(const struct controller *c, char ret_line[JOBS_MARK_STATE_MAX])
{
    jobs_mark_name_state(c->state_dir, ret_line);
}

static bool is_below(const char *dir, const char *above)
{
    const size_t n = strlen(above);

    return strncmp(dir, above, n) == 0 && dir[n] == '/';
}

/* Returns whether the state directory or the jobs directory is inside the other, as by default and
 * under heddle local: then both are lost together. */
static bool is_beside_state(const struct controller *c)
{
    return is_below(c->jobs_dir, c->state_dir) || is_below(c->state_dir, c->jobs_dir);
}

/* Checks that the mark does not name another cluster; HD_CONFLICT: it does. A mark of a cluster
 * whose database was recreated in this state directory is accepted if one directory is inside the
 * other: no other controller can be running there, because the state directory is locked. */
static enum hd_status check_cluster(const struct controller *c, const struct jobs_mark *mark,
                                    const char *path)
{
    char mine[JOBS_MARK_STATE_MAX];

    name_state(c, mine);
    if (!*mark->cluster || strcmp(mark->cluster, hd_store_cluster_id(c->store)) == 0 ||
        (*mine && strcmp(mark->state, mine) == 0 && is_beside_state(c)))
        return HD_OK;
    if (*mine && strcmp(mark->state, mine) == 0)
        return hd_err(HD_CONFLICT,
                      "the jobs directory %.500s belongs to a cluster whose controller had this "
                      "state directory, %.300s, and the database in it is another one: mount the "
                      "state directory if it is a disk of its own, or restore a backup. If that "
                      "cluster was given up, remove %.500s and start again",
                      c->jobs_dir, c->state_dir, path);
    return hd_err(HD_CONFLICT,
                  "the jobs directory %.600s belongs to another cluster, whose controller "
                  "has the state directory %s: give this one another --jobs-dir. If that "
                  "cluster was given up, remove %.600s and start again",
                  c->jobs_dir, *mark->state ? mark->state : "(not known)", path);
}

/* Checks that the directory is the one that the database knows, or may become it; HD_CONFLICT: the
 * message says why not. */
static enum hd_status check_share(const struct controller *c, const struct jobs_mark *mark)
{
    static const char advice[] =
        "If it is a share, mount it: nothing starts meanwhile, and running jobs go on. Only "
        "if the former one is gone for good, stop the controller and go on in this folder: "
        "heddle-controller adopt --state-dir %.300s --jobs-dir %.300s";
    char text[1024];

    (void)snprintf(text, sizeof text, advice, c->state_dir, c->jobs_dir);
    if (c->jobs_share[0] && strcmp(mark->share, c->jobs_share) != 0)
        return hd_err(
            HD_CONFLICT, "%.200s is not the cluster's jobs directory: it has %s. %s", c->jobs_dir,
            mark->share[0] || mark->first[0] ? "another " JOBS_DIR_MARK : "no " JOBS_DIR_MARK,
            text);
    if (!c->jobs_share[0] && !mark->share[0] && c->lacks_jobs)
        return hd_err(HD_CONFLICT,
                      "%.200s is not the cluster's jobs directory: it has none of the folders of "
                      "its jobs. %s",
                      c->jobs_dir, text);
    return HD_OK;
}

static void store_share(struct controller *c)
{
    struct hd_batch *batch = hd_batch_new();

    if (!batch) {
        controller_fail(c, hd_err(HD_NO_MEMORY, "no memory for the id of the jobs directory"));
        return;
    }
    hd_batch_add_jobs_share(batch, c->jobs_share);
    hd_store_commit(c->store, batch, NULL, NULL);
}

/* Writes the file, then the database row: if the controller is killed between the two, the id is in
 * the file, and the next start reads it. If the directory takes no writes, the controller still
 * serves: it uses the first line of an earlier start, or retries the write. */
static enum hd_status write_mark(struct controller *c, const struct jobs_mark *found,
                                 const char *path)
{
    struct jobs_mark mark = *found;
    const bool is_new = !c->jobs_share[0];
    enum hd_status st = HD_OK;

    (void)snprintf(mark.first, sizeof mark.first, "%s", c->probe);
    (void)snprintf(mark.cluster, sizeof mark.cluster, "%s", hd_store_cluster_id(c->store));
    name_state(c, mark.state);
    if (!is_new)
        (void)snprintf(mark.share, sizeof mark.share, "%s", c->jobs_share);
    else if (!mark.share[0])
        st = hd_hex_make_id(mark.share);
    if (!st)
        st = jobs_mark_write(path, &mark);
    if (st == HD_STORAGE && found->first[0] && (found->share[0] || !is_new)) {
        hd_log(HD_LOG_WARN, "%s", hd_err_message());
        (void)snprintf(c->probe, sizeof c->probe, "%s", found->first);
        st = HD_OK;
    }
    if (st)
        return st;
    c->jobs_marked = true;
    if (is_new) {
        (void)snprintf(c->jobs_share, sizeof c->jobs_share, "%s", mark.share);
        store_share(c);
    }
    return HD_OK;
}

/* Checks the mark file, writes it if necessary, and sets c->jobs_dir_problem to why the directory
 * cannot be used ("": it can). HD_CONFLICT: the directory belongs to another cluster. */
static enum hd_status judge(struct controller *c, const struct jobs_mark *mark, const char *path)
{
    enum hd_status st = check_cluster(c, mark, path);

    c->jobs_dir_problem[0] = '\0';
    if (st) {
        (void)snprintf(c->jobs_dir_problem, sizeof c->jobs_dir_problem, "%s", hd_err_message());
        return st;
    }
    st = check_share(c, mark);
    if (!st && c->jobs_marked && strcmp(mark->first, c->probe) != 0)
        st = hd_err(HD_CONFLICT,
                    "another controller with a copy of this database has begun to use %.300s: "
                    "stop one of the two",
                    c->jobs_dir);
    else if (!st && !c->jobs_marked)
        st = write_mark(c, mark, path);
    else if (st)
        c->jobs_marked = false; /* a directory that comes back gets a new mark */
    if (st)
        (void)snprintf(c->jobs_dir_problem, sizeof c->jobs_dir_problem, "%s", hd_err_message());
    return HD_OK;
}

enum hd_status jobs_dir_acquire(struct controller *c)
{
    char path[HD_CTL_PATH_BYTES_MAX + 32];
    struct jobs_mark mark;
    enum hd_status st;

    (void)snprintf(c->probe, sizeof c->probe, "heddle-");
    st = hd_hex_make_id(c->probe + strlen(c->probe));
    if (st)
        return st;
    (void)snprintf(c->jobs_share, sizeof c->jobs_share, "%s", hd_store_jobs_share(c->store));
    (void)snprintf(path, sizeof path, "%s/" JOBS_DIR_MARK, c->jobs_dir);
    st = jobs_mark_read(path, &mark);
    if (st && st != HD_NOT_FOUND)
        (void)snprintf(c->jobs_dir_problem, sizeof c->jobs_dir_problem, "%s", hd_err_message());
    else
        st = judge(c, &mark, path);
    if (c->jobs_dir_problem[0] && st != HD_CONFLICT) {
        hd_log(HD_LOG_ERROR, "no job starts: %s", c->jobs_dir_problem);
        st = HD_OK;
    }
    c->probe_due_ms = hd_clock_now_ms() + check_ms(c);
    return st;
}

void jobs_dir_report(struct controller *c)
{
    const struct hd_core_event event = {.kind = HD_CORE_JOBS_DIR,
                                        .jobs_dir = {.problem = c->jobs_dir_problem}};

    transaction_begin(c);
    (void)transaction_step(c, &event);
    transaction_end(c);
}

/* ---- periodic checks --------------------------------------------------------------------------*/

static void report_change(struct controller *c, const char *before)
{
    if (strcmp(before, c->jobs_dir_problem) == 0)
        return;
    if (c->jobs_dir_problem[0])
        hd_log(HD_LOG_ERROR, "no job starts: %s", c->jobs_dir_problem);
    else
        hd_log(HD_LOG_INFO, "the jobs directory %s is seen again", c->jobs_dir);
    jobs_dir_report(c);
}

static void check(uv_work_t *work)
{
    struct jobs_dir_check *l = work->data;

    l->error.status = jobs_mark_read(l->path, &l->mark);
    if (l->error.status)
        hd_err_save(l->error.status, &l->error);
}

static void checked(uv_work_t *work, int status)
{
    struct jobs_dir_check *l = work->data;
    struct controller *c = l->c;
    char before[sizeof c->jobs_dir_problem];

    (void)status;
    l->busy = false;
    if (!c) {
        free(l);
        return;
    }
    if (c->stopping)
        return;
    memcpy(before, c->jobs_dir_problem, sizeof before);
    if (l->error.status && l->error.status != HD_NOT_FOUND)
        (void)snprintf(c->jobs_dir_problem, sizeof c->jobs_dir_problem, "%s", l->error.message);
    else
        (void)judge(c, &l->mark, l->path);
    report_change(c, before);
}

static void report_silence(struct controller *c, int64_t silent_ms)
{
    char before[sizeof c->jobs_dir_problem];

    if (silent_ms < SILENT_MS || c->jobs_dir_problem[0])
        return;
    memcpy(before, c->jobs_dir_problem, sizeof before);
    (void)snprintf(c->jobs_dir_problem, sizeof c->jobs_dir_problem,
                   "the jobs directory %.500s has not answered for %d s", c->jobs_dir,
                   SILENT_MS / 1000);
    report_change(c, before);
}

void jobs_dir_tick(struct controller *c)
{
    const int64_t now_ms = hd_clock_now_ms();
    struct jobs_dir_check *l = c->jobs_dir_check;

    if (l && l->busy)
        report_silence(c, now_ms - l->begun_ms);
    if ((l && l->busy) || now_ms < c->probe_due_ms)
        return;
    c->probe_due_ms = now_ms + check_ms(c);
    if (!l)
        l = c->jobs_dir_check = calloc(1, sizeof *l);
    if (!l)
        return;
    l->c = c;
    l->work.data = l;
    l->begun_ms = now_ms;
    (void)snprintf(l->path, sizeof l->path, "%s/" JOBS_DIR_MARK, c->jobs_dir);
    l->busy = uv_queue_work(c->loop, &l->work, check, checked) == 0;
}

void jobs_dir_close(struct controller *c)
{
    if (c->jobs_dir_check && c->jobs_dir_check->busy)
        c->jobs_dir_check->c = NULL; /* `checked` frees it */
    else
        free(c->jobs_dir_check);
    c->jobs_dir_check = NULL;
}
