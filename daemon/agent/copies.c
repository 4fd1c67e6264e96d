#include "daemon/agent/copies.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "hub/s3.h"
#include "job/job.h"

enum {
    LOOK_MS = 1000,  /* pause between looks for new checkpoints */
    RETRY_MS = 5000, /* pause after a failure; doubles with each */
    RETRY_MAX_MS = 5 * 60000,
    RECORD_BYTES_MAX = 16 << 10,
    REMEMBERED = 64, /* copies remembered of a job, for folders in which no mark can be written */
    LOW_PRIORITY = 10
};

/* Mark of a checkpoint that has a copy: a file in its folder with the copy's name. */
#define COPY_MARK ".copied-to"

struct copy_job {
    struct copy_job *next;
    int64_t job;
    struct {
        int64_t attempt, step; /* 0: a free place */
    } copied[REMEMBERED];
    int next_copied;    /* place of the next one */
    char dir[PATH_MAX]; /* JOBS_DIR/JOB */
    char to_text[HD_JOB_PATH_MAX];
    struct hd_s3_name to;
    int64_t keep;
    bool alive;    /* an attempt of it runs on this node, or that is not known yet */
    bool is_known; /* copies_set_alive was called since the record was read or written */
    bool claimed, done;
    int64_t retry_ms, pause_ms; /* monotonic time of the next try; pause before it */
    char problem[HD_ERR_MAX];
    int64_t finished_ms; /* time of its newest finished copy; 0: none since heddled's start */
    int64_t waiting, oldest_ms; /* checkpoints without a copy; wall-clock time of the oldest */
};

struct agent_copies {
    char dir[PATH_MAX]; /* STATE_DIR/copies */
    const char *cluster;
    struct hd_s3_settings
        *settings; /* with the environment's keys; without a key they are read again */
    bool has_thread;
    pthread_t thread;
    volatile sig_atomic_t stop;  /* atomic */
    volatile int64_t sent_bytes; /* atomic */

    pthread_mutex_t mutex; /* of the rest */
    pthread_cond_t changed;
    struct copy_job *jobs;
    char busy[PATH_MAX]; /* folder of the checkpoint that is being copied; "": none */
    int64_t done, failed;
    struct copies_done recent[COPIES_DONE_MAX]; /* finished copies; that of number n, from 0, is at
                                                 * n modulo their number */
    int64_t told_ms; /* time of the newest finished copy that the controller was told of; 0: none */
    int64_t recent_count; /* finished copies in all */
};

/* ---- records ---- */

static enum hd_status write_record(const struct agent_copies *c, const struct copy_job *j)
{
    struct hd_text text = {0};
    char path[PATH_MAX + 32];
    enum hd_status st;

    hd_text_add(&text, "%s\n%s\n%" PRId64 "\n", j->dir, j->to_text, j->keep);
    (void)snprintf(path, sizeof path, "%s/%" PRId64, c->dir, j->job);
    st = hd_file_make_dirs(c->dir, 0700);
    if (!st)
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a record")
                         : hd_file_write_atomic(path, text.data, text.len_bytes, 0600);
    hd_text_free(&text);
    return st;
}

static void remove_record(const struct agent_copies *c, int64_t job)
{
    char path[PATH_MAX + 32];

    (void)snprintf(path, sizeof path, "%s/%" PRId64 ".problem", c->dir, job);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/%" PRId64, c->dir, job);
    (void)unlink(path);
}

/* Writes or removes the file with the job's problem, for commands on this machine. */
static void write_problem(const struct agent_copies *c, const struct copy_job *j)
{
    char path[PATH_MAX + 32];

    (void)snprintf(path, sizeof path, "%s/%" PRId64 ".problem", c->dir, j->job);
    if (*j->problem)
        (void)hd_file_write_atomic(path, j->problem, strlen(j->problem), 0600);
    else
        (void)unlink(path);
}

static bool parse_record(char *text, struct copy_job *j)
{
    char *rest, *dir = strtok_r(text, "\n", &rest), *to = strtok_r(NULL, "\n", &rest);
    const char *keep = strtok_r(NULL, "\n", &rest);

    if (!dir || !to || !keep || strlen(dir) >= sizeof j->dir || strlen(to) >= sizeof j->to_text ||
        hd_text_to_int64(keep, 0, INT64_MAX, &j->keep) || hd_s3_parse(to, &j->to))
        return false;
    memcpy(j->dir, dir, strlen(dir) + 1);
    memcpy(j->to_text, to, strlen(to) + 1);
    return true;
}

static void read_copies_of(struct agent_copies *c, const char *name)
{
    struct hd_text text = {0};
    char path[PATH_MAX + 300];
    struct copy_job *j = calloc(1, sizeof *j);

    (void)snprintf(path, sizeof path, "%s/%s", c->dir, name);
    if (j && !hd_text_to_int64(name, 1, INT64_MAX, &j->job) &&
        !hd_file_read(path, RECORD_BYTES_MAX, &text) && text.data && parse_record(text.data, j)) {
        j->alive = true;
        j->next = c->jobs;
        c->jobs = j;
        j = NULL;
    }
    free(j);
    hd_text_free(&text);
}

/* ---- one checkpoint ---- */

/* Opens a folder of the job without following links below JOBS_DIR/JOB, whose owner may be a user
 * with other rights than heddled. */
static enum hd_status open_checkpoint(const struct copy_job *j, const char *path, int *ret_fd)
{
    const char *below = path + strlen(j->dir);
    int fd = open(j->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    while (fd >= 0 && *below) {
        char part[NAME_MAX + 1];
        int next;

        below += strspn(below, "/");
        (void)snprintf(part, sizeof part, "%.*s", (int)strcspn(below, "/"), below);
        below += strcspn(below, "/");
        next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        (void)close(fd);
        fd = next;
    }
    if (fd < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open %s: %s", path,
                      strerror(errno));
    *ret_fd = fd;
    return HD_OK;
}

/* Marks the checkpoint as copied, for heddle checkpoint ls and for find_next. Without a mark, which
 * the folder may not allow, heddled compares the copy with the checkpoint again after a restart. */
static void mark(int dir_fd, const char *to)
{
    int fd;

    /* the folder is the job's: what has this name, perhaps a FIFO or a link, is never opened */
    (void)unlinkat(dir_fd, COPY_MARK ".part", 0);
    fd = openat(dir_fd, COPY_MARK ".part",
                O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    if (hd_file_write_all(fd, to, strlen(to)) == HD_OK)
        (void)renameat(dir_fd, COPY_MARK ".part", dir_fd, COPY_MARK);
    (void)close(fd);
}

static bool has_mark(const char *checkpoint, const char *to)
{
    struct hd_text text = {0};
    char path[PATH_MAX];
    bool is;

    (void)snprintf(path, sizeof path, "%s/" COPY_MARK, checkpoint);
    is = !hd_file_read(path, HD_JOB_PATH_MAX + 200, &text) && text.data &&
         strcmp(text.data, to) == 0;
    hd_text_free(&text);
    return is;
}

/* Writes the name of a checkpoint's copy, s3://BUCKET/PREFIX/attempt-K/step-N. */
static void name_copy(const struct copy_job *j, const char *path,
                      char ret_to[HD_JOB_PATH_MAX + 200])
{
    const char *attempt = path + strlen(j->dir) + 1, *step = strrchr(path, '/');

    (void)snprintf(ret_to, HD_JOB_PATH_MAX + 200, "%s/%.*s%s", j->to_text,
                   (int)strcspn(attempt, "/"), attempt, step);
}

static enum hd_status copy_one(struct agent_copies *c, const struct hd_s3_settings *settings,
                               struct copy_job *j, const char *path)
{
    char to[HD_JOB_PATH_MAX + 200], owner[200];
    struct hd_ckpt_summary summary;
    struct hd_s3_name name;
    int dir_fd = -1;
    struct hd_s3_copy copy = {.settings = settings,
                              .name = &name,
                              .origin = summary.hash,
                              .stop = &c->stop,
                              .sent_bytes = &c->sent_bytes};
    enum hd_status st = HD_OK;

    name_copy(j, path, to);
    st = hd_s3_parse(to, &name);
    (void)snprintf(owner, sizeof owner, "cluster %.100s job %" PRId64,
                   c->cluster && *c->cluster ? c->cluster : "local", j->job);
    if (!st && !j->claimed)
        st = hd_s3_claim(settings, &j->to, owner, &c->stop);
    j->claimed = !st;
    if (!st)
        st = hd_ckpt_summarize(path, &summary);
    if (!st)
        st = open_checkpoint(j, path, &dir_fd);
    copy.dir_fd = dir_fd;
    if (!st)
        st = hd_s3_copy_folder(&copy);
    if (!st)
        mark(dir_fd, to);
    if (dir_fd >= 0)
        (void)close(dir_fd);
    return st;
}

/* Removes older copies than the newest `keep`, unless their checkpoints are still there. */
static enum hd_status remove_old(struct agent_copies *c, const struct hd_s3_settings *settings,
                                 const struct copy_job *j)
{
    struct hd_s3_checkpoint *items = NULL;
    struct hd_arena arena;
    size_t count = 0;
    enum hd_status st = HD_OK;

    hd_arena_init(&arena, 0);
    if (j->keep > 0)
        st = hd_s3_list_copies(settings, &j->to, &c->stop, &arena, &items, &count);
    for (size_t i = (size_t)j->keep; i < count && !st && j->keep > 0; i++) {
        const char *step = strchr(items[i].name, '/');
        char path[PATH_MAX];
        struct hd_s3_name name = j->to;

        (void)snprintf(path, sizeof path, "%s/%.*s/checkpoints%s/manifest.json", j->dir,
                       (int)(step - items[i].name), items[i].name, step);
        if (hd_file_exists(path))
            continue;
        (void)snprintf(name.key, sizeof name.key, "%s/%s", j->to.key, items[i].name);
        st = hd_s3_remove_copy(settings, &name, &c->stop);
        if (!st)
            hd_log(HD_LOG_INFO, "job %" PRId64 ": removed the old copy %s/%s", j->job, j->to_text,
                   items[i].name);
    }
    hd_arena_done(&arena);
    return st;
}

/* ---- a job ---- */

static bool is_remembered(const struct copy_job *j, int64_t attempt, int64_t step)
{
    for (int i = 0; i < REMEMBERED; i++)
        if (j->copied[i].attempt == attempt && j->copied[i].step == step)
            return true;
    return false;
}

/* Finds the newest checkpoint without a copy; counts them. Returns whether there is one. */
static bool find_next(struct copy_job *j, char ret_path[PATH_MAX], int64_t *ret_attempt,
                      int64_t *ret_step)
{
    DIR *dir = opendir(j->dir);
    const struct dirent *entry;
    int64_t newest_step = -1, waiting = 0, oldest_ms = 0, newest_attempt = -1;

    while (dir && (entry = readdir(dir))) {
        struct hd_ckpt_place *places = NULL;
        char attempt_dir[PATH_MAX];
        int64_t attempt;
        size_t count = 0;

        if (!hd_text_starts(entry->d_name, "attempt-") ||
            hd_text_to_int64(entry->d_name + strlen("attempt-"), 1, INT32_MAX, &attempt) ||
            snprintf(attempt_dir, sizeof attempt_dir, "%s/%s", j->dir, entry->d_name) >=
                (int)sizeof attempt_dir ||
            hd_ckpt_list(attempt_dir, &places, &count))
            continue;
        for (size_t i = 0; i < count; i++) {
            char to[HD_JOB_PATH_MAX + 200];
            struct hd_ckpt_summary summary;

            name_copy(j, places[i].path, to);
            if (is_remembered(j, attempt, places[i].step) || has_mark(places[i].path, to) ||
                hd_ckpt_summarize(places[i].path, &summary))
                continue;
            waiting++;
            if (!oldest_ms || summary.time_ms < oldest_ms)
                oldest_ms = summary.time_ms;
            if (places[i].step < newest_step ||
                (places[i].step == newest_step && attempt < newest_attempt))
                continue;
            newest_step = places[i].step;
            newest_attempt = attempt;
            (void)snprintf(ret_path, PATH_MAX, "%s", places[i].path);
        }
        hd_ckpt_places_free(places, count);
    }
    if (dir)
        (void)closedir(dir);
    j->waiting = waiting;
    j->oldest_ms = oldest_ms;
    *ret_attempt = newest_attempt;
    *ret_step = newest_step;
    return waiting;
}

static void set_busy(struct agent_copies *c, const char *path)
{
    (void)pthread_mutex_lock(&c->mutex);
    (void)snprintf(c->busy, sizeof c->busy, "%s", path);
    (void)pthread_mutex_unlock(&c->mutex);
}

/* Remembers a finished copy, for the controller's event. Call under the mutex. */
static void remember_done(struct agent_copies *c, const struct copy_job *j, const char *path,
                          int64_t attempt, int64_t step)
{
    struct copies_done *d = &c->recent[c->recent_count % COPIES_DONE_MAX];
    const int64_t before =
        c->recent_count ? c->recent[(c->recent_count - 1) % COPIES_DONE_MAX].time_ms : 0;
    char to[HD_JOB_PATH_MAX + 200];

    name_copy(j, path, to);
    *d = (struct copies_done){
        .job = j->job, .attempt = attempt, .step = step, .time_ms = hd_clock_wall_ms()};
    d->time_ms = d->time_ms > before ? d->time_ms : before + 1;
    (void)snprintf(d->to, sizeof d->to, "%s", to);
    c->recent_count++;
}

/* Notes how a copy went. A checkpoint that was deleted before its turn is no failure. */
static void settle(struct agent_copies *c, struct copy_job *j, enum hd_status st, const char *path)
{
    char problem[HD_ERR_MAX] = "";

    if (st == HD_ABORTED && c->stop)
        return;
    if (st && st != HD_NOT_FOUND)
        (void)snprintf(problem, sizeof problem, "%s", hd_err_message());
    else if (st && hd_file_exists(path))
        (void)snprintf(problem, sizeof problem, "%s", hd_err_message());
    (void)pthread_mutex_lock(&c->mutex);
    c->done += !st;
    c->failed += *problem != '\0';
    if (*problem) {
        if (strcmp(problem, j->problem) != 0)
            hd_log(HD_LOG_WARN, "job %" PRId64 ": cannot copy %s to %s: %s", j->job, path,
                   j->to_text, problem);
        j->pause_ms = j->pause_ms ? 2 * j->pause_ms : RETRY_MS;
        if (j->pause_ms > RETRY_MAX_MS)
            j->pause_ms = RETRY_MAX_MS;
        j->retry_ms = hd_clock_now_ms() + j->pause_ms;
    } else {
        j->pause_ms = j->retry_ms = 0;
        if (!st)
            hd_log(HD_LOG_INFO, "job %" PRId64 ": copied %s to %s", j->job, path, j->to_text);
    }
    memcpy(j->problem, problem, sizeof problem);
    write_problem(c, j);
    (void)pthread_mutex_unlock(&c->mutex);
}

/* Copies one checkpoint of the job, with a copy of its record, since the loop may change that.
 * Returns whether there was one. Call under the mutex, which it gives up meanwhile. */
static bool copy_next(struct agent_copies *c, struct copy_job *shared)
{
    struct hd_s3_settings *settings = malloc(sizeof *settings);
    struct copy_job *j = malloc(sizeof *j);
    char path[PATH_MAX];
    int64_t attempt = 0, step = 0;
    bool found = false;
    enum hd_status st = HD_OK;

    if (!settings || !j) {
        free(settings);
        free(j);
        shared->retry_ms = hd_clock_now_ms() + RETRY_MS;
        return false;
    }
    *j = *shared;
    (void)pthread_mutex_unlock(&c->mutex);
    found = find_next(j, path, &attempt, &step);
    if (found) {
        set_busy(c, path);
        if (*c->settings->keys.id)
            memcpy(settings, c->settings, sizeof *settings);
        else
            st = hd_s3_read_settings(settings); /* files of keys may have changed */
        if (!st)
            st = copy_one(c, settings, j, path);
        set_busy(c, "");
        settle(c, shared, st, path);
        if (!st && remove_old(c, settings, j))
            hd_log(HD_LOG_WARN, "job %" PRId64 ": cannot remove old copies in %s: %s", j->job,
                   j->to_text, hd_err_message());
    }
    (void)pthread_mutex_lock(&c->mutex);
    shared->waiting = j->waiting - (found && !st);
    shared->oldest_ms = shared->waiting ? j->oldest_ms : 0;
    shared->claimed = j->claimed && strcmp(j->to_text, shared->to_text) == 0;
    if (found && !st) {
        remember_done(c, j, path, attempt, step);
        shared->finished_ms = c->recent[(c->recent_count - 1) % COPIES_DONE_MAX].time_ms;
    }
    if (found && !st && strcmp(j->to_text, shared->to_text) == 0) {
        shared->copied[shared->next_copied].attempt = attempt;
        shared->copied[shared->next_copied].step = step;
        shared->next_copied = (shared->next_copied + 1) % REMEMBERED;
    }
    explicit_bzero(settings, sizeof *settings);
    free(settings);
    free(j);
    return found;
}

/* ---- the thread ---- */

static void forget_done(struct agent_copies *c)
{
    struct copy_job **at = &c->jobs;

    while (*at) {
        struct copy_job *j = *at;

        if (!j->done) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        remove_record(c, j->job);
        free(j);
    }
}

/* Waits until the next look, under the mutex. */
static void wait_a_look(struct agent_copies *c)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOOK_MS / 1000;
    (void)pthread_cond_timedwait(&c->changed, &c->mutex, &until);
}

static void *run_copies(void *user)
{
    struct agent_copies *c = user;

    (void)setpriority(PRIO_PROCESS, 0, LOW_PRIORITY); /* on Linux: of the calling thread alone */
    (void)pthread_mutex_lock(&c->mutex);
    while (!__atomic_load_n(&c->stop, __ATOMIC_RELAXED)) {
        bool any = false;

        /* only this thread removes jobs, so `j` outlives the unlocked part */
        for (struct copy_job *j = c->jobs; j && !c->stop; j = j->next) {
            const bool may_end = j->is_known && !j->alive;
            bool found;

            if (j->retry_ms > hd_clock_now_ms())
                continue;
            found = copy_next(c, j);
            /* meanwhile the job may have begun another attempt; heddle local ends when the record is
             * gone, so the controller is told of the last copy before */
            j->done = !found && may_end && j->finished_ms <= c->told_ms && j->is_known &&
                      !j->alive && !c->stop && j->retry_ms <= hd_clock_now_ms();
            any |= found;
        }
        forget_done(c);
        if (!any && !c->stop)
            wait_a_look(c);
    }
    (void)pthread_mutex_unlock(&c->mutex);
    return NULL;
}

static void start_thread(struct agent_copies *c)
{
    sigset_t all, before;

    if (c->has_thread || !c->jobs)
        return;
    (void)sigfillset(&all); /* signals are the loop's */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    c->has_thread = pthread_create(&c->thread, NULL, run_copies, c) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!c->has_thread)
        hd_log(HD_LOG_WARN, "cannot start the thread that copies checkpoints");
}

/* ---- the loop's functions ---- */

/* Removes a variable, and its value from /proc/PID/environ, which ranks of the same user could read. */
static void remove_variable(const char *name)
{
    char *value = getenv(name);

    if (value)
        explicit_bzero(value, strlen(value));
    (void)unsetenv(name);
}

enum hd_status copies_open(const char *state_dir, const char *cluster,
                           struct agent_copies **ret_copies)
{
    static const char *const secrets[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                                          "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"};
    struct agent_copies *c = calloc(1, sizeof *c);
    const struct dirent *entry;
    DIR *dir;

    if (c)
        c->settings = calloc(1, sizeof *c->settings);
    if (!c || !c->settings) {
        free(c);
        return hd_err(HD_NO_MEMORY, "no memory for copies of checkpoints");
    }
    (void)snprintf(c->dir, sizeof c->dir, "%.*s/copies", PATH_MAX - 10, state_dir);
    c->cluster = cluster;
    (void)pthread_mutex_init(&c->mutex, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    if (hd_s3_read_settings(c->settings)) { /* told again when a job needs them */
        const bool has_keys = getenv(secrets[1]);

        if (has_keys)
            hd_log(HD_LOG_WARN, "the keys of an object store in the environment are not used: %s",
                   hd_err_message());
        memset(c->settings, 0, sizeof *c->settings);
        for (size_t i = 0; has_keys && i < sizeof secrets / sizeof secrets[0]; i++)
            remove_variable(secrets[i]); /* ranks never inherit them */
    }
    if (*c->settings->keys.id && strcmp(c->settings->keys_from, secrets[0]) == 0)
        for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++)
            remove_variable(secrets[i]);
    else
        memset(c->settings, 0, sizeof *c->settings);
    dir = opendir(c->dir);
    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' && !strchr(entry->d_name, '.'))
            read_copies_of(c, entry->d_name);
    if (dir)
        (void)closedir(dir);
    start_thread(c);
    *ret_copies = c;
    return HD_OK;
}

void copies_close(struct agent_copies *copies)
{
    if (!copies)
        return;
    __atomic_store_n(&copies->stop, 1, __ATOMIC_RELAXED);
    (void)pthread_mutex_lock(&copies->mutex);
    (void)pthread_cond_signal(&copies->changed);
    (void)pthread_mutex_unlock(&copies->mutex);
    if (copies->has_thread)
        (void)pthread_join(copies->thread, NULL);
    while (copies->jobs) {
        struct copy_job *j = copies->jobs;

        copies->jobs = j->next;
        free(j);
    }
    (void)pthread_cond_destroy(&copies->changed);
    (void)pthread_mutex_destroy(&copies->mutex);
    explicit_bzero(copies->settings, sizeof *copies->settings);
    free(copies->settings);
    free(copies);
}

static struct copy_job *find_job(const struct agent_copies *c, int64_t job)
{
    for (struct copy_job *j = c->jobs; j; j = j->next)
        if (j->job == job)
            return j;
    return NULL;
}

/* Records the job; one that is recorded gets the values of the newest attempt. */
static enum hd_status record_job(struct agent_copies *c, int64_t job, const char *attempt_dir,
                                 const struct hd_job *spec)
{
    const char *slash = strrchr(attempt_dir, '/');
    struct copy_job *j = find_job(c, job);
    enum hd_status st = HD_OK;

    if (!j) {
        j = calloc(1, sizeof *j);
        if (!j)
            return hd_err(HD_NO_MEMORY, "no memory for a record");
        j->job = job;
        j->next = c->jobs;
        c->jobs = j;
    }
    st = hd_s3_parse(spec->checkpoint_copy_to, &j->to);
    (void)snprintf(j->dir, sizeof j->dir, "%.*s", (int)(slash - attempt_dir), attempt_dir);
    (void)snprintf(j->to_text, sizeof j->to_text, "%s", spec->checkpoint_copy_to);
    j->keep = spec->checkpoint_keep;
    j->alive = true;
    j->is_known = j->claimed = j->done = false;
    memset(j->copied, 0, sizeof j->copied);
    j->retry_ms = j->pause_ms = 0;
    return st ? st : write_record(c, j);
}

void copies_add(struct agent_copies *copies, int64_t job, const char *attempt_dir,
                const char *resolved_job)
{
    struct hd_arena arena;
    struct hd_job *spec;

    hd_arena_init(&arena, 0);
    spec = hd_arena_alloc(&arena, sizeof *spec);
    if (spec && !hd_job_read(resolved_job, strlen(resolved_job), &arena, spec) &&
        *spec->checkpoint_copy_to) {
        (void)pthread_mutex_lock(&copies->mutex);
        if (record_job(copies, job, attempt_dir, spec))
            hd_log(HD_LOG_WARN,
                   "job %" PRId64 ": its checkpoints are copied while heddled runs, but after a "
                   "restart only when its next attempt begins: %s",
                   job, hd_err_message());
        start_thread(copies);
        (void)pthread_mutex_unlock(&copies->mutex);
    }
    hd_arena_done(&arena);
}

void copies_set_alive(struct agent_copies *copies, bool (*is_alive)(const void *user, int64_t job),
                      const void *user)
{
    (void)pthread_mutex_lock(&copies->mutex);
    for (struct copy_job *j = copies->jobs; j; j = j->next) {
        j->alive = is_alive(user, j->job);
        j->is_known = true;
    }
    (void)pthread_mutex_unlock(&copies->mutex);
}

bool copies_is_busy(struct agent_copies *copies, const char *checkpoint_dir)
{
    bool is;

    if (!copies)
        return false;
    (void)pthread_mutex_lock(&copies->mutex);
    is = *copies->busy && strcmp(copies->busy, checkpoint_dir) == 0;
    (void)pthread_mutex_unlock(&copies->mutex);
    return is;
}

void copies_get_problem(struct agent_copies *copies, int64_t job, char *ret_text, size_t size)
{
    const struct copy_job *j;

    ret_text[0] = '\0';
    (void)pthread_mutex_lock(&copies->mutex);
    j = find_job(copies, job);
    if (j && *j->problem)
        (void)snprintf(ret_text, size, "a checkpoint cannot be copied: %s", j->problem);
    (void)pthread_mutex_unlock(&copies->mutex);
}

int64_t copies_newest_ms(struct agent_copies *copies)
{
    int64_t newest_ms;

    (void)pthread_mutex_lock(&copies->mutex);
    newest_ms = copies->recent_count
                    ? copies->recent[(copies->recent_count - 1) % COPIES_DONE_MAX].time_ms
                    : 0;
    (void)pthread_mutex_unlock(&copies->mutex);
    return newest_ms;
}

void copies_set_told(struct agent_copies *copies, int64_t time_ms)
{
    (void)pthread_mutex_lock(&copies->mutex);
    copies->told_ms = time_ms;
    (void)pthread_mutex_unlock(&copies->mutex);
}

size_t copies_get_done(struct agent_copies *copies, struct copies_done ret_done[COPIES_DONE_MAX])
{
    size_t count = 0;

    (void)pthread_mutex_lock(&copies->mutex);
    for (int64_t n = copies->recent_count > COPIES_DONE_MAX ? copies->recent_count - COPIES_DONE_MAX
                                                            : 0;
         n < copies->recent_count; n++)
        ret_done[count++] = copies->recent[n % COPIES_DONE_MAX];
    (void)pthread_mutex_unlock(&copies->mutex);
    return count;
}

void copies_get_stats(struct agent_copies *copies, struct copies_stats *ret_stats)
{
    int64_t oldest_ms = 0;

    (void)pthread_mutex_lock(&copies->mutex);
    *ret_stats =
        (struct copies_stats){.done = copies->done,
                              .failed = copies->failed,
                              .sent_bytes = __atomic_load_n(&copies->sent_bytes, __ATOMIC_RELAXED)};
    for (const struct copy_job *j = copies->jobs; j; j = j->next) {
        ret_stats->waiting += j->waiting;
        if (j->oldest_ms && (!oldest_ms || j->oldest_ms < oldest_ms))
            oldest_ms = j->oldest_ms;
    }
    (void)pthread_mutex_unlock(&copies->mutex);
    if (oldest_ms)
        ret_stats->oldest_seconds = (double)(hd_clock_wall_ms() - oldest_ms) / 1e3;
}
