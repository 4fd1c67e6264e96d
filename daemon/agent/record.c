/* record: the records of attempts in STATE_DIR/attempts, and the list of attempts read from them.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "daemon/agent/local.h"
#include "daemon/agent/owner.h"

enum { RECORD_BYTES_MAX = 4 * PATH_MAX };

static enum hd_status record_path(const struct locals *all, int64_t job, int64_t attempt,
                                  struct hd_text *ret_path)
{
    hd_text_add(ret_path, "%s/attempts/%" PRId64 "-%" PRId64, all->state_dir, job, attempt);
    return ret_path->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

enum hd_status local_record(struct agent_attempt *l)
{
    struct hd_text path = {0}, text = {0};
    enum hd_status st = record_path(l->all, l->job, l->attempt, &path);

    hd_text_add(&text, "attempt_dir %s\ncheckpoint_dir %s\nrun_dir %s\n", l->attempt_dir,
                l->checkpoint_dir, l->run_dir);
    /* an older build refuses a record with this line, instead of running the attempt as heddled's
     * own user */
    if (l->run_as)
        hd_text_add(&text, "run_as %s\n", l->run_as);
    hd_text_add(&text, "end\n");
    if (!st && text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a record");
    if (!st)
        st = hd_file_write_atomic(path.data, text.data, text.len_bytes, 0600);
    l->recorded = !st;
    hd_text_free(&text);
    hd_text_free(&path);
    return st;
}

void local_free(struct agent_attempt *l)
{
    agent_outbox_close(l->outbox);
    free(l->attempt_dir);
    free(l->checkpoint_dir);
    free(l->run_dir);
    free(l->run_as);
    free(l->puts);
    free(l);
}

static enum hd_status local_new(struct locals *all, int64_t job, int64_t attempt,
                                const char *attempt_dir, const char *checkpoint_dir,
                                const char *run_dir, const char *run_as,
                                struct agent_attempt **ret_local)
{
    struct agent_attempt *l = calloc(1, sizeof *l);
    enum hd_status st;

    if (!l)
        return hd_err(HD_NO_MEMORY, "no memory for an attempt");
    *l = (struct agent_attempt){.all = all, .job = job, .attempt = attempt, .fd = -1};
    l->attempt_dir = strdup(attempt_dir);
    l->checkpoint_dir = strdup(checkpoint_dir);
    l->run_dir = strdup(run_dir);
    l->run_as = run_as && *run_as ? strdup(run_as) : NULL;
    l->puts = calloc(HD_ATTEMPT_RANKS_MAX, sizeof *l->puts);
    if (!l->attempt_dir || !l->checkpoint_dir || !l->run_dir || !l->puts ||
        (run_as && *run_as && !l->run_as))
        st = hd_err(HD_NO_MEMORY, "no memory for an attempt");
    else
        st = agent_outbox_open(run_dir, &l->outbox);
    if (st) {
        local_free(l);
        return st;
    }
    *ret_local = l;
    return HD_OK;
}

static void link_in(struct agent_attempt *l)
{
    l->next = l->all->first;
    l->all->first = l;
}

/* Parses "KEY VALUE\n" at *at and advances *at. */
static char *take_value(char **at, const char *key)
{
    const size_t n = strlen(key);
    char *value, *end;

    if (strncmp(*at, key, n) != 0 || (*at)[n] != ' ')
        return NULL;
    value = *at + n + 1;
    end = strchr(value, '\n');
    if (!end)
        return NULL;
    *end = '\0';
    *at = end + 1;
    return value;
}

void local_job_dir(const struct agent_attempt *l, char ret_dir[PATH_MAX])
{
    const char *slash = strrchr(l->attempt_dir, '/');

    (void)snprintf(ret_dir, PATH_MAX, "%.*s", slash ? (int)(slash - l->attempt_dir) : 0,
                   l->attempt_dir);
}

enum hd_status local_check_owner(const struct agent_attempt *l)
{
    char job_dir[PATH_MAX];

    local_job_dir(l, job_dir);
    return owner_check(job_dir, l->all->cluster, l->job);
}

/* A supervisor that is just starting is not noticed yet, which is harmless: of two supervisors one
 * gets the run directory, and the other refuses to run. */
bool local_was_started(const struct agent_attempt *l)
{
    struct hd_attempt_process process;
    struct hd_link_report end;

    if (local_check_owner(l))
        return false;
    return hd_attempt_process_read(l->run_dir, &process) != HD_NOT_FOUND ||
           hd_attempt_read_end(l->run_dir, &end) != HD_NOT_FOUND;
}

/* Returns whether a new attempt has the number of another attempt that already ran on this node and
 * ended: the controller's database was restored from an older backup. */
static bool is_of_before(const struct agent_attempt *l)
{
    struct hd_attempt_process process;

    return local_was_started(l) && !(hd_attempt_process_read(l->run_dir, &process) == HD_OK &&
                                     hd_attempt_process_alive(&process));
}

static enum hd_status read_record(struct locals *all, int64_t job, int64_t attempt)
{
    struct hd_text path = {0}, text = {0};
    char *at, *attempt_dir, *checkpoint_dir, *run_dir, *run_as;
    struct agent_attempt *l;
    enum hd_status st = record_path(all, job, attempt, &path);

    if (!st)
        st = hd_file_read(path.data, RECORD_BYTES_MAX, &text);
    if (!st) {
        at = text.data;
        attempt_dir = take_value(&at, "attempt_dir");
        checkpoint_dir = attempt_dir ? take_value(&at, "checkpoint_dir") : NULL;
        run_dir = checkpoint_dir ? take_value(&at, "run_dir") : NULL;
        run_as = run_dir ? take_value(&at, "run_as") : NULL; /* the line may be absent */
        st = run_dir && strcmp(at, "end\n") == 0
                 ? local_new(all, job, attempt, attempt_dir, checkpoint_dir, run_dir, run_as, &l)
                 : hd_err(HD_CORRUPT, "%s is not an attempt's record", path.data);
    }
    if (!st) {
        l->state = local_was_started(l) ? LOCAL_ALIVE : LOCAL_PLANNED;
        l->alive_ms = hd_clock_now_ms();
        l->recorded = true;
        link_in(l);
    }
    hd_text_free(&text);
    hd_text_free(&path);
    return st;
}

enum hd_status locals_open(struct locals *locals)
{
    struct hd_text dir = {0};
    const struct dirent *entry;
    int64_t job, attempt;
    enum hd_status st;
    DIR *d = NULL;

    hd_text_add(&dir, "%s/attempts", locals->state_dir);
    st = dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                    : hd_file_make_dirs(dir.data, 0700);
    if (!st && !(d = opendir(dir.data)))
        st = hd_err(HD_IO, "cannot read %s: %s", dir.data, strerror(errno));
    while (!st && (entry = readdir(d))) {
        char tail;

        if (sscanf(entry->d_name, "%" SCNd64 "-%" SCNd64 "%c", &job, &attempt, &tail) == 2)
            st = read_record(locals, job, attempt);
    }
    if (d)
        (void)closedir(d);
    hd_text_free(&dir);
    return st;
}

struct agent_attempt *locals_find(const struct locals *locals, int64_t job, int64_t attempt)
{
    for (struct agent_attempt *l = locals->first; l; l = l->next)
        if (l->job == job && l->attempt == attempt)
            return l;
    return NULL;
}

static void fail_again(struct agent_attempt *l)
{
    char message[HD_LINK_TEXT_MAX];

    l->refused_run_dir = true;
    (void)snprintf(message, sizeof message,
                   "the folder %.700s is of an attempt of the same number that has ended here, and "
                   "that the controller does not know, as after its database was restored from a "
                   "backup: the job goes on in its next attempt",
                   l->attempt_dir);
    local_fail_launch(l, false, message);
}

enum hd_status locals_add(struct locals *locals, int64_t job, int64_t attempt,
                          const char *attempt_dir, const char *checkpoint_dir, const char *run_as,
                          struct agent_attempt **ret_local)
{
    struct hd_text run_dir = {0};
    struct agent_attempt *l;
    bool is_again = false;
    enum hd_status st;

    if (attempt_dir[0] != '/' || strchr(attempt_dir, '\n') || strchr(checkpoint_dir, '\n'))
        return hd_err(HD_INVALID, "the directory %s cannot be an attempt's", attempt_dir);
    hd_attempt_run_dir(&run_dir, attempt_dir, locals->node);
    st = run_dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                        : local_new(locals, job, attempt, attempt_dir, checkpoint_dir, run_dir.data,
                                    run_as, &l);
    if (!st && is_of_before(l)) {
        local_free(l);
        hd_text_add(&run_dir,
                    /* a folder that is never created, so that no old end or report is found in it
                     */
                    "/again");
        st = run_dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                            : local_new(locals, job, attempt, attempt_dir, checkpoint_dir,
                                        run_dir.data, run_as, &l);
        is_again = true;
    }
    hd_text_free(&run_dir);
    if (st)
        return st;
    l->state = LOCAL_PLANNED;
    if (is_again) {
        link_in(l);
        *ret_local = l;
        fail_again(l);
        return HD_OK;
    }
    st = local_record(l);
    if (st && st != HD_STORAGE) {
        local_free(l);
        return st;
    }
    link_in(l);
    *ret_local = l;
    return st;
}

static void take_out(struct agent_attempt *l)
{
    struct agent_attempt **at = &l->all->first;

    while (*at && *at != l)
        at = &(*at)->next;
    if (*at)
        *at = l->next;
}

void local_unrecord(struct agent_attempt *l)
{
    struct hd_text path = {0};

    if (record_path(l->all, l->job, l->attempt, &path) == HD_OK && unlink(path.data) < 0 &&
        errno != ENOENT)
        hd_log(HD_LOG_WARN, "cannot remove %s: %s", path.data, strerror(errno));
    hd_text_free(&path);
    take_out(l);
}
