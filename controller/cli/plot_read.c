/* plot_read: the history of a run, from its folder or from the controller. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/json.h"
#include "controller/cli/plot.h"
#include "controller/show/show.h"

enum {
    LINE_ARENA_BYTES = 1 << 20,
    LINE_VALUES_MAX = 10000,
    LINE_DEPTH_MAX = 16,
    /* the controller sends what it has without a pause; after this time without an entry, all was
     * read, ms */
    PAUSE_MS = 1500,
};

/* Makes room for one more element. Returns false, and sets run->failed, if out of memory. */
static bool extend(struct plot_run *run, void *array, size_t count, size_t *capacity, size_t bytes)
{
    run->failed = !hd_grow(array, count, capacity, bytes) || run->failed;
    return !run->failed;
}

void plot_add_step(struct plot_run *run, const struct plot_step *step)
{
    while (run->step_count && run->steps[run->step_count - 1].step >= step->step)
        run->step_count--;
    while (run->validation_count && run->validations[run->validation_count - 1].step >= step->step)
        run->validation_count--;
    if (extend(run, &run->steps, run->step_count, &run->step_capacity, sizeof *step))
        run->steps[run->step_count++] = *step;
}

void plot_add_validation(struct plot_run *run, const struct plot_validation *validation)
{
    while (run->validation_count &&
           run->validations[run->validation_count - 1].step > validation->step)
        run->validation_count--;
    for (size_t i = run->validation_count; i-- && run->validations[i].step == validation->step;)
        if (strcmp(run->validations[i].set, validation->set) == 0) { /* done again */
            run->validations[i] = *validation;
            return;
        }
    if (extend(run, &run->validations, run->validation_count, &run->validation_capacity,
               sizeof *validation))
        run->validations[run->validation_count++] = *validation;
}

void plot_free_run(struct plot_run *run)
{
    free(run->steps);
    free(run->validations);
}

/* ---- a run's folder ---- */

static double number(const struct hd_json *line, const char *key)
{
    const struct hd_json *member = hd_json_member(line, key);

    return member && member->kind == HD_JSON_NUMBER ? strtod(member->text, NULL) : NAN;
}

static void take_line(const struct hd_json *line, const struct plot_options *options,
                      struct plot_run *run)
{
    const char *type = hd_json_text(line, "type"), *set = hd_json_text(line, "set");
    const double step = number(line, "step");

    if (!type || !(step >= 0 && step < 1e15))
        return;
    if (strcmp(type, "step") == 0) {
        struct plot_step s = {.step = (int64_t)step};

        s.tokens = fmax(number(line, "tokens"), 0);
        s.ms = fmax(number(line, "step_ms"), 0);
        for (int k = 0; k < options->metric_count; k++)
            s.values[k] = number(line, plot_metric_name(options->metrics[k]));
        plot_add_step(run, &s);
    } else if (strcmp(type, "validation") == 0) {
        struct plot_validation v = {
            .step = (int64_t)step,
            .loss = number(line, hd_json_member(line, "score") ? "score" : "loss")};

        (void)snprintf(v.set, sizeof v.set, "%s", set ? set : "");
        plot_add_validation(run, &v);
    }
}

static void read_history_line(const char *line, size_t bytes, const struct plot_options *options,
                              struct plot_run *run)
{
    const struct hd_json_limits limits = {LINE_VALUES_MAX, LINE_DEPTH_MAX};
    const struct hd_json *root;
    struct hd_arena arena;

    hd_arena_init(&arena, LINE_ARENA_BYTES);
    if (bytes < LINE_ARENA_BYTES &&
        hd_json_parse_line(&arena, line, bytes, &limits, &root) == HD_OK)
        take_line(root, options, run);
    hd_arena_done(&arena);
}

static void read_lines(FILE *file, const struct plot_options *options, struct plot_run *run)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t bytes;

    while ((bytes = getline(&line, &size, file)) > 0)
        read_history_line(line, (size_t)bytes, options, run);
    free(line);
}

enum hd_status plot_read_folder(const char *path, const struct plot_options *options,
                                struct plot_run *ret_run)
{
    static const char *const places[] = {"history.jsonl", "../history.jsonl"};
    FILE *file = NULL;
    char name[4200];

    for (size_t i = 0; i < sizeof places / sizeof places[0] && !file; i++) {
        (void)snprintf(name, sizeof name, "%s/%s", path, places[i]);
        file = fopen(name, "re");
    }
    if (!file)
        return hd_err(
            HD_NOT_FOUND,
            "%s has no history.jsonl, which heddle local writes; name the folder of a run", path);
    read_lines(file, options, ret_run);
    (void)fclose(file);
    return ret_run->failed ? hd_err(HD_NO_MEMORY, "no memory for the history %s", name) : HD_OK;
}

/* ---- a job of the controller ---- */

struct history_reading {
    struct cli *cli;
    const struct plot_options *options;
    struct plot_run *run;
    struct hd_rpc_call *call;
    uv_timer_t pause;
    int64_t newest, last; /* the job's newest step when reading began; the last one that was read */
    int64_t begin_ms; /* controller's time when reading began; what is newer is not waited for */
    bool done, ended; /* ended: the job has ended, and all that is kept of it was read */
    enum hd_status status;
    char message[HD_ERR_MAX];
};

static void on_pause(uv_timer_t *timer)
{
    struct history_reading *r = timer->data;

    r->done = true;
    if (r->call)
        hd_rpc_call_cancel(r->call);
}

static void on_history(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__WatchJobResponse *entry = (const Heddle__V1__WatchJobResponse *)message;
    struct history_reading *r = hd_rpc_call_user(call);
    struct hd_text line = {0};
    struct hd_json_writer writer = {.out = &line};

    cli_wait_end(r->cli);
    (void)uv_timer_start(&r->pause, on_pause, PAUSE_MS, 0);
    if (entry->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END) {
        r->ended = true;
        on_pause(&r->pause);
    } else if (show_history(&writer, 0, entry) && !line.failed) {
        read_history_line(line.data, line.len_bytes, r->options, r->run);
    }
    hd_text_free(&line);
    if (entry->body_case != HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP)
        return;
    r->last = entry->step->step > r->last ? entry->step->step : r->last;
    if (entry->step->time_unix_ms >= r->begin_ms)
        on_pause(&r->pause);
}

static void on_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct history_reading *r = hd_rpc_call_user(call);

    r->call = NULL;
    if (!r->done) {
        r->status = status;
        (void)snprintf(r->message, sizeof r->message, "%s", message);
    }
    r->done = true;
    uv_stop(&r->cli->loop);
}

/* Names the run after the job, and sets *ret_newest to its newest step. */
static int read_job_name(struct cli *cli, uint64_t job, struct plot_run *run, int64_t *ret_newest)
{
    Heddle__V1__GetJobResponse *response = NULL;
    const int code = cli_get_job(cli, job, &response);

    if (code != CLI_CONTINUE)
        return code;
    (void)snprintf(run->name, sizeof run->name, "%llu %s", (unsigned long long)job,
                   response->job ? response->job->name : "");
    *ret_newest = response->job ? response->job->step : 0;
    hd_rpc_message_free(&response->base);
    return CLI_CONTINUE;
}

int plot_read_job(struct cli *cli, uint64_t job, const struct plot_options *options,
                  struct plot_run *ret_run)
{
    Heddle__V1__WatchJobRequest request = HEDDLE__V1__WATCH_JOB_REQUEST__INIT;
    struct history_reading r = {.cli = cli, .options = options, .run = ret_run};
    static const struct hd_rpc_handler handler = {.on_msg = on_history, .on_done = on_done};
    enum hd_status st;
    int code = read_job_name(cli, job, ret_run, &r.newest);

    if (code != CLI_CONTINUE)
        return code;
    r.begin_ms = cli_now_ms(cli);
    request.job = job;
    (void)uv_timer_init(&cli->loop, &r.pause);
    r.pause.data = &r;
    cli_wait_begin(cli);
    st =
        cli_begin_call(cli, "WatchJob", HD_RPC_SERVER_STREAM, &request.base, &handler, &r, &r.call);
    while (!st && r.call)
        (void)uv_run(&cli->loop, UV_RUN_DEFAULT);
    cli_wait_end(cli);
    cli_close_handle(cli, &r.pause);
    if (!st && r.status)
        st = hd_err(r.status, "%s", r.message);
    if (!st && !r.ended && r.last < r.newest)
        st = hd_err(HD_UNAVAILABLE,
                    "the history of job %llu came up to step %lld of %lld only; try again",
                    (unsigned long long)job, (long long)r.last, (long long)r.newest);
    if (!st && ret_run->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the history of job %llu", (unsigned long long)job);
    return st ? cli_fail(st) : CLI_CONTINUE;
}
