/* track: sends a run's metrics to a tracking server of MLflow.
 *
 *     RUN/history.jsonl, or lines of `heddle watch JOB -o jsonl` -> buffer -> hub/mlflow.h
 *
 * This process reads what a run has written, so a server that is slow or away never holds a step. A
 * full buffer stops the reading, nothing is dropped. It may be killed at any time: run again, it finds
 * its run on the server by a tag and sends everything anew, which the server recognises.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "controller/cli/cli.h"
#include "controller/cli/runs.h"
#include "hub/mlflow.h"
#include "job/job.h"
#include "job/metrics.h"
#include "version/version.h"

enum {
    BUFFER_MAX = 100000, /* metrics that wait; more are not read */
    LINE_BYTES_MAX = 1 << 20,
    READ_BYTES = 64 << 10,
    FLUSH_MS = 5000,      /* metrics are collected this long, then sent in one call */
    TICK_MS = 200,        /* longest wait for input */
    PAUSE_MIN_MS = 1000,  /* after a failed call; doubles */
    PAUSE_MAX_MS = 60000, /* longest such pause */
    PARAMS_MAX = 512
};

struct tracker {
    struct hd_mlflow *mlflow;
    const char *experiment;
    char name[128], job_file[PATH_MAX];
    char identity[512];    /* folder or job, and the time of the first line; "": none yet */
    char folder[PATH_MAX]; /* of the run; "": the lines come from standard input */
    int input;             /* descriptor */
    int marker;            /* descriptor of the run's marker; -1: none */
    struct hd_text text;   /* bytes read, from the beginning of a line */
    struct hd_mlflow_metric *metrics;
    size_t count;
    struct hd_arena arena; /* parameters */
    struct hd_mlflow_pair params[PARAMS_MAX];
    size_t param_count, params_sent;
    /* the run lacks tags or parameters; its tags or its state were sent */
    bool is_new, has_begun;
    bool is_open, has_ended, at_end, told_away;
    char state[16];                      /* RUNNING until the job has ended */
    int64_t first_ms, last_ms;           /* times of the first and newest line; 0: none yet */
    int64_t next_ms, pause_ms, ended_ms; /* monotonic: next call; when the input ended */
    int64_t sent;
};

/* ---- lines ---- */

/* Reads "2026-03-01T12:00:00.123Z" as ms since 1970; 0: it is no such time. */
static int64_t time_of(const struct hd_json *line)
{
    const char *text = hd_json_text(line, "time"), *rest;
    struct tm tm = {.tm_year = 0};

    if (!text)
        return 0;
    rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    return rest ? (int64_t)timegm(&tm) * 1000 +
                      (*rest == '.' ? (int64_t)(strtod(rest, NULL) * 1000 + 0.5) : 0)
                : 0;
}

static bool number_of(const struct hd_json *line, const char *key, double *ret_value)
{
    const struct hd_json *member = hd_json_member(line, key);

    if (!member || member->kind != HD_JSON_NUMBER)
        return false;
    *ret_value = strtod(member->text, NULL);
    return true;
}

static void add_metric(struct tracker *t, const char *key, double value, double step)
{
    struct hd_mlflow_metric *m = &t->metrics[t->count++];

    *m = (struct hd_mlflow_metric){.value = value, .step = (int64_t)step, .time_ms = t->last_ms};
    (void)snprintf(m->key, sizeof m->key, "%s", key);
}

static const char *state_of(const char *state)
{
    return strcmp(state, "succeeded") == 0   ? "FINISHED"
           : strcmp(state, "cancelled") == 0 ? "KILLED"
                                             : "FAILED";
}

/* Names the run by the time of its first line, too: a folder that is removed and used again, or a job
 * of another controller, is another run. */
static void identify(struct tracker *t, const struct hd_json *line, int64_t time_ms)
{
    double job;

    t->first_ms = time_ms;
    if (*t->folder) {
        (void)snprintf(t->identity, sizeof t->identity, "%.460s of %lld", t->folder,
                       (long long)time_ms);
    } else if (number_of(line, "job", &job)) {
        (void)snprintf(t->name, sizeof t->name, "job-%.0f", job);
        (void)snprintf(t->identity, sizeof t->identity, "job %.0f of %lld", job,
                       (long long)time_ms);
    }
}

static void track_step(struct tracker *t, const struct hd_json *line, double step)
{
    char key[HD_MLFLOW_KEY_MAX];
    double value;

    for (int i = 0; i < HD_METRIC_COUNT; i++) {
        if (!number_of(line, hd_metrics[i].name, &value))
            continue;
        if (*hd_metrics[i].tag)
            (void)snprintf(key, sizeof key, "%s", hd_metrics[i].tag);
        else
            (void)snprintf(key, sizeof key, "train/%s", hd_metrics[i].name);
        add_metric(t, key, value, step);
    }
}

/* Adds the loss of a set, or a score, whose name says which: "NAME/acc". */
static void track_validation(struct tracker *t, const struct hd_json *line, double step)
{
    const char *set = hd_json_text(line, "set"), *name = set ? set : "";
    char key[HD_MLFLOW_KEY_MAX];
    double value;

    if (*name && number_of(line, "score", &value))
        (void)snprintf(key, sizeof key, "validation/%s", name);
    else if (number_of(line, "loss", &value))
        (void)snprintf(key, sizeof key, "validation/%s%sloss", name, *name ? "/" : "");
    else
        return;
    add_metric(t, key, value, step);
}

static void track_line(struct tracker *t, const struct hd_json *line)
{
    const char *type = hd_json_text(line, "type"), *state;
    const int64_t time_ms = time_of(line);
    double step;

    if (!type)
        return;
    t->last_ms = time_ms ? time_ms : t->last_ms;
    if (!t->first_ms && time_ms)
        identify(t, line, time_ms);
    if (strcmp(type, "end") == 0) {
        state = hd_json_text(line, "state");
        (void)snprintf(t->state, sizeof t->state, "%s", state_of(state ? state : ""));
        t->has_ended = true;
        return;
    }
    t->has_ended = false; /* the job was resumed */
    (void)strcpy(t->state, "RUNNING");
    if (!number_of(line, "step", &step) || !(step >= 0 && step < 1e15))
        return;
    if (strcmp(type, "step") == 0)
        track_step(t, line, step);
    else if (strcmp(type, "validation") == 0)
        track_validation(t, line, step);
}

static bool has_whole_line(const struct tracker *t)
{
    return t->text.len_bytes && memchr(t->text.data, '\n', t->text.len_bytes);
}

/* Takes the whole lines of the text that was read, as long as there is room for their metrics. */
static enum hd_status track_lines(struct tracker *t)
{
    const struct hd_json_limits limits = {10000, 16};
    size_t at = 0;
    char *end;

    while (t->count + HD_METRIC_COUNT < BUFFER_MAX && at < t->text.len_bytes &&
           (end = memchr(t->text.data + at, '\n', t->text.len_bytes - at)) != NULL) {
        const size_t len = (size_t)(end - t->text.data) - at;
        const struct hd_json *line;
        struct hd_arena arena;

        hd_arena_init(&arena, LINE_BYTES_MAX);
        if (len && hd_json_parse_line(&arena, t->text.data + at, len, &limits, &line) == HD_OK)
            track_line(t, line);
        hd_arena_done(&arena);
        at += len + 1;
    }
    if (at) {
        memmove(t->text.data, t->text.data + at, t->text.len_bytes - at);
        t->text.len_bytes -= at;
    }
    return t->text.len_bytes > LINE_BYTES_MAX && !has_whole_line(t)
               ? hd_err(HD_INVALID, "a line of the history is longer than 1 MiB")
               : HD_OK;
}

/* Returns whether a process still writes the run's history. */
static bool run_is_in_use(const struct tracker *t)
{
    if (t->marker < 0 || flock(t->marker, LOCK_SH | LOCK_NB) < 0)
        return t->marker >= 0 && errno == EWOULDBLOCK;
    (void)flock(t->marker, LOCK_UN);
    return false;
}

/* Reads more input, and waits for it for a moment. HD_IO: it cannot be read. */
static enum hd_status read_more_lines(struct tracker *t)
{
    char bytes[READ_BYTES];
    struct pollfd fd = {.fd = t->input, .events = POLLIN};
    const bool in_use = *t->folder && run_is_in_use(t); /* asked before the end is looked for */
    ssize_t n = 0;

    if (t->at_end || t->text.len_bytes > LINE_BYTES_MAX) {
        (void)poll(NULL, 0, TICK_MS);
        return HD_OK;
    }
    if (!*t->folder && poll(&fd, 1, TICK_MS) <= 0)
        return HD_OK;
    n = read(t->input, bytes, sizeof bytes);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN
                   ? HD_OK
                   : hd_err(HD_IO, "cannot read the history: %s", strerror(errno));
    if (n > 0)
        hd_text_add_bytes(&t->text, bytes, (size_t)n);
    else if (*t->folder && in_use && !t->has_ended)
        (void)poll(NULL, 0, TICK_MS);
    else
        t->at_end = true;
    return t->text.failed ? hd_err(HD_NO_MEMORY, "no memory for the history") : HD_OK;
}

/* ---- parameters ---- */

static void add_param(struct tracker *t, const char *key, const char *value)
{
    if (t->param_count == PARAMS_MAX || !*value)
        return;
    t->params[t->param_count++] =
        (struct hd_mlflow_pair){hd_arena_strdup(&t->arena, key),
                                hd_arena_printf(&t->arena, "%.*s", HD_MLFLOW_VALUE_MAX, value)};
}

/* Adds the keys of the resolved job that a rank of the run read. */
static void read_params(struct tracker *t)
{
    char pattern[2 * PATH_MAX + 64];
    struct hd_job *job = hd_arena_alloc(&t->arena, sizeof *job);
    glob_t found = {0};
    size_t len = 0;

    for (const char *at = t->folder; *at; at++) {
        if (strchr("*?[\\", *at)) /* the folder is no pattern */
            pattern[len++] = '\\';
        pattern[len++] = *at;
    }
    (void)snprintf(pattern + len, sizeof pattern - len, "/*/attempt-*/nodes/*/job");
    if (job && glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc &&
        !hd_job_read_file(found.gl_pathv[found.gl_pathc - 1], &t->arena, job))
        for (size_t i = 0; i < hd_job_key_count; i++) {
            const struct hd_key *key = &hd_job_keys[i];
            struct hd_text value = {0};

            if (!key->hidden && key->kind != HD_KEY_FORM && !hd_job_format(key, job, &value) &&
                value.data)
                add_param(t, key->path, hd_job_word_in_file(key, value.data));
            hd_text_free(&value);
        }
    globfree(&found);
}

/* ---- the server ---- */

/* Opens the run on the server, and sends its parameters if it is new. */
static enum hd_status open_run(struct tracker *t)
{
    const struct passwd *user = getpwuid(geteuid());
    const struct hd_mlflow_pair tags[] = {
        {"mlflow.user", user ? user->pw_name : "unknown"},
        {"mlflow.source.name", *t->job_file ? t->job_file : "heddle"},
        {"heddle.version", hd_version}};
    enum hd_status st = HD_OK;

    if (!*hd_mlflow_run_id(t->mlflow))
        st =
            hd_mlflow_open(t->mlflow, t->experiment, t->identity, t->name, t->first_ms, &t->is_new);
    if (!st && !t->has_begun) {
        if (!t->is_new) /* parameters never change, so a resumed run keeps its first */
            t->params_sent = t->param_count;
        st = t->is_new
                 ? hd_mlflow_log(t->mlflow, NULL, 0, NULL, 0, tags, sizeof tags / sizeof tags[0])
                 : hd_mlflow_end(t->mlflow, "RUNNING", 0);
        t->has_begun = !st;
    }
    while (!st && t->params_sent < t->param_count) {
        const size_t left = t->param_count - t->params_sent;
        const size_t n = left < HD_MLFLOW_PARAMS_MAX ? left : HD_MLFLOW_PARAMS_MAX;

        st = hd_mlflow_log(t->mlflow, NULL, 0, t->params + t->params_sent, n, NULL, 0);
        if (st == HD_INVALID) { /* a job that was changed: its run keeps what it has */
            cli_note("heddle: parameters are not sent: %s", hd_err_message());
            st = HD_OK;
        }
        if (!st)
            t->params_sent += n;
    }
    if (!st && t->is_new)
        st = hd_mlflow_begin(t->mlflow);
    t->is_open = !st;
    if (t->is_open)
        cli_note("heddle: %s is run %s of experiment %s", t->name, hd_mlflow_run_id(t->mlflow),
                 t->experiment);
    return st;
}

static enum hd_status send_metrics(struct tracker *t)
{
    enum hd_status st = t->is_open ? HD_OK : open_run(t);

    while (!st && t->count && !cli_stopped_by) {
        const size_t n = t->count < HD_MLFLOW_METRICS_MAX ? t->count : HD_MLFLOW_METRICS_MAX;

        st = hd_mlflow_log(t->mlflow, t->metrics, n, NULL, 0, NULL, 0);
        if (st)
            break;
        memmove(t->metrics, t->metrics + n, (t->count - n) * sizeof *t->metrics);
        t->count -= n;
        t->sent += (int64_t)n;
    }
    return st;
}

/* Sets the time of the next try if a call failed because the server is away, which is told once.
 * Returns whether it is away. */
static bool pause_if_away(struct tracker *t, enum hd_status st)
{
    if (st != HD_UNAVAILABLE && st != HD_TIMEOUT && st != HD_IO)
        return false;
    if (!t->told_away)
        cli_note("heddle: %s; training goes on, what is not sent is kept and tried again",
                 hd_err_message());
    t->told_away = true;
    t->pause_ms = t->pause_ms ? 2 * t->pause_ms : PAUSE_MIN_MS;
    if (t->pause_ms > PAUSE_MAX_MS)
        t->pause_ms = PAUSE_MAX_MS;
    t->next_ms = hd_clock_now_ms() + t->pause_ms;
    return true;
}

/* Sends what waits, if it is time, and tells when a server that was away is back. */
static enum hd_status flush_metrics(struct tracker *t)
{
    const int64_t now = hd_clock_now_ms();
    enum hd_status st;

    if (now < t->next_ms || !t->first_ms || (!t->count && t->is_open))
        return HD_OK;
    st = send_metrics(t);
    if (pause_if_away(t, st))
        return HD_OK;
    if (!st && t->told_away)
        cli_note("heddle: the tracking server answers again");
    if (!st)
        t->told_away = false;
    t->pause_ms = 0;
    t->next_ms = t->at_end ? 0 : now + FLUSH_MS;
    return st == HD_ABORTED ? HD_OK : st;
}

/* Sends the state in which the run has ended, if it is time and nothing else waits. *ret_sent: it is
 * there, or never will be. */
static enum hd_status send_end(struct tracker *t, bool *ret_sent)
{
    enum hd_status st;

    *ret_sent = false;
    if (!t->is_open || t->count || t->text.len_bytes || hd_clock_now_ms() < t->next_ms)
        return HD_OK;
    st = hd_mlflow_end(t->mlflow, t->has_ended ? t->state : "KILLED", t->last_ms);
    if (pause_if_away(t, st))
        return HD_OK;
    *ret_sent = true;
    return st;
}

/* Follows the run to its end. patience_ms: how long a server that is away is waited for then. */
static enum hd_status follow_run(struct tracker *t, int64_t patience_ms)
{
    enum hd_status st = HD_OK;
    bool sent;

    while (!st && !cli_stopped_by) {
        st = read_more_lines(t);
        if (!st)
            st = track_lines(t);
        if (st)
            break;
        if (t->at_end && !t->ended_ms) {
            t->ended_ms = hd_clock_now_ms();
            t->next_ms = t->pause_ms ? t->next_ms : 0;
        }
        st = flush_metrics(t);
        if (st || !t->at_end)
            continue;
        if (!t->first_ms)
            return hd_err(HD_INVALID,
                          "there is no line of a job's history; heddle watch JOB -o jsonl "
                          "writes them");
        if (!has_whole_line(t))
            t->text.len_bytes = 0; /* a line that a killed process did not end */
        st = send_end(t, &sent);
        if (st || sent)
            return st;
        if (hd_clock_now_ms() - t->ended_ms > patience_ms)
            return hd_err(HD_UNAVAILABLE,
                          "the run has ended, and its state and %zu metrics were not sent: %s; "
                          "run heddle track again later",
                          t->count, hd_err_message());
    }
    return st;
}

/* ---- the command ---- */

/* Reads the name of the job file from the run's marker. */
static void read_job_file_name(struct tracker *t)
{
    struct run_marker marker;

    if (!runs_read_marker(t->folder, &marker))
        (void)snprintf(t->job_file, sizeof t->job_file, "%s", marker.job_file);
}

/* Opens the history of a run's folder, or standard input. */
static enum hd_status open_input(struct tracker *t, const char *target)
{
    char path[PATH_MAX + 32];
    const char *slash;

    if (strcmp(target, "-") == 0) {
        t->input = dup(STDIN_FILENO);
        return t->input < 0 ? hd_err(HD_IO, "cannot read standard input: %s", strerror(errno))
                            : HD_OK;
    }
    if (!realpath(target, t->folder))
        return hd_err(HD_NOT_FOUND,
                      "%s: %s; name the folder of a run of heddle local; for a job of "
                      "the controller: heddle watch JOB -o jsonl | heddle track -",
                      target, strerror(errno));
    (void)snprintf(path, sizeof path, "%s/history.jsonl", t->folder);
    t->input = open(path, O_RDONLY | O_CLOEXEC);
    if (t->input < 0)
        return hd_err(HD_NOT_FOUND,
                      "%s has no history.jsonl, which heddle local writes; name the "
                      "folder of a run",
                      target);
    (void)snprintf(path, sizeof path, "%s/" RUN_MARKER, t->folder);
    t->marker = open(path, O_RDONLY | O_CLOEXEC);
    read_job_file_name(t);
    slash = strrchr(t->folder, '/');
    (void)snprintf(t->name, sizeof t->name, "%s", slash + 1);
    read_params(t);
    return HD_OK;
}

static int end_of_track(const struct tracker *t, enum hd_status st)
{
    if (cli_stopped_by) {
        cli_note(
            "heddle: %lld metrics were sent, and the run goes on if it has not ended; heddle track "
            "goes on, too",
            (long long)t->sent);
        return cli_exit_of_signal(cli_stopped_by);
    }
    if (st)
        return st == HD_INVALID ? cli_usage("track: %s", hd_err_message()) : cli_fail(st);
    cli_note("heddle: %lld metrics were sent; the run is %s", (long long)t->sent,
             t->has_ended ? t->state : "KILLED");
    return CLI_OK;
}

static int cli_track(struct cli *cli, int argc, char **argv)
{
    const char *uri = NULL, *experiment = NULL;
    int64_t patience_s = 600;
    const struct cli_flag flags[] = {
        {"mlflow", 0, CLI_FLAG_TEXT, &uri, "URL",
         .help = "else MLFLOW_TRACKING_URI; secrets: MLFLOW_TRACKING_TOKEN,\n"
                 "or _USERNAME and _PASSWORD"},
        {"experiment", 0, CLI_FLAG_TEXT, &experiment, "NAME",
         .help = "else MLFLOW_EXPERIMENT_NAME, or heddle"},
        {"patience", 0, CLI_FLAG_INT, &patience_s, "S", .min = 0, .max = 1 << 30,
         .help = "seconds to wait for a server that is away at the end;\n"
                 "else 600"},
    };
    struct hd_mlflow_settings settings;
    struct tracker *t;
    enum hd_status st;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code != CLI_CONTINUE)
        return code;
    t = calloc(1, sizeof *t);
    if (t)
        t->metrics = calloc(BUFFER_MAX, sizeof *t->metrics);
    if (!t || !t->metrics) {
        free(t);
        return cli_fail(hd_err(HD_NO_MEMORY, "no memory for metrics"));
    }
    t->experiment = experiment ? experiment : getenv("MLFLOW_EXPERIMENT_NAME");
    if (!t->experiment || !*t->experiment)
        t->experiment = "heddle";
    t->input = t->marker = -1;
    hd_arena_init(&t->arena, 0);
    (void)strcpy(t->state, "RUNNING");
    cli_catch_stop(SIGINT, NULL);
    cli_catch_stop(SIGTERM, NULL);
    st = hd_mlflow_read_settings(uri, &settings);
    if (!st)
        st = open_input(t, cli->args[0]);
    if (!st)
        st = hd_mlflow_new(&settings, &cli_stopped_by, &t->mlflow);
    explicit_bzero(&settings, sizeof settings);
    if (!st)
        st = follow_run(t, patience_s * 1000);
    code = end_of_track(t, st);
    hd_mlflow_free(t->mlflow);
    if (t->input >= 0)
        (void)close(t->input);
    if (t->marker >= 0)
        (void)close(t->marker);
    hd_arena_done(&t->arena);
    hd_text_free(&t->text);
    free(t->metrics);
    free(t);
    return code;
}

const struct cli_body cli_body_track = {
    .usage = "Usage: heddle track RUN|- [--mlflow URL] [--experiment NAME] [--patience S]\n",
    .about = "Sends the metrics of a run of heddle local to a tracking server of MLflow, and\n"
             "follows the run to its end; of a job of the controller:\n"
             "  heddle watch JOB -o jsonl | heddle track -\n"
             "No step waits for the server: one that is away is told once, and what is not\n"
             "sent is kept. Run again, it goes on in the same run of MLflow.\n",
    .examples = "heddle track heddle-runs/latest --mlflow http://127.0.0.1:5000",
    .run = cli_track,
};
