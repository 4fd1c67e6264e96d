#include "controller/cli/watch.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/bar.h"
#include "controller/cli/eta.h"
#include "controller/cli/lines.h"
#include "controller/cli/progress.h"
#include "controller/show/show.h"
#include "spec/spec.h"

enum {
    TICK_MS = 100, /* shortest time between two drawings of the bar */
    RETRY_MS = 500,
    SUMMARY_MS = 60000, /* time between two summaries where there is no bar */
    SIGNALS = 4
};

static const int signals[SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};

struct watched_job {
    struct cli *cli;
    const struct watch_options *options;
    struct hd_rpc_call *call; /* the WatchJob call; NULL: not connected */
    bool ever_connected;
    /* time when the connection was lost, time of the next try to connect; 0: connected */
    int64_t down_since_ms, retry_at_ms;
    uint64_t after; /* sequence number of the last entry of the history that has arrived */
    uv_signal_t signal[SIGNALS];
    uv_timer_t tick;
    int interrupts;
    int code; /* exit code of the command; CLI_CONTINUE: still watching */

    Heddle__V1__GetJobResponse *job; /* job with spec and attempts; NULL: not fetched */
    struct hd_rpc_call *job_call; /* call that refetches `job` for an attempt's plan; NULL: none */
    int32_t placement_of;         /* attempt for which job_call runs */

    struct progress progress;
    struct eta eta;
    struct lines lines;
    int64_t log_every; /* steps between two lines about a step; 0: chosen by hd_cli_log_step */
    int32_t attempt;
    Heddle__V1__JobState state;
    char reason[HD_ERR_MAX], stale[HD_ERR_MAX]; /* texts of JobStatus that were printed last */
    int64_t state_at_ms; /* time at which the state arrived whose line is held back; 0: none */
    struct bar bar;
    bool has_bar, bar_changed, first_item;
    int64_t summary_step;  /* step of the last summary */
    int64_t summary_at_ms; /* time (hd_clock_now_ms) of the next summary, without a bar */
    bool unread;           /* standard output cannot be written any more */
    bool before_resume; /* entries that arrive now are from before the resume: stored, not shown */
    struct hd_text out;
};

/* ---- the bar ---- */

/* Appends the bar's line while no step was reported, at most `columns` wide. */
static void add_state(struct watched_job *w, int columns, struct hd_text *line)
{
    char word[CLI_WORD_MAX];
    struct hd_text text = {0};

    if (w->down_since_ms)
        hd_text_add(&text, "controller not reachable, trying again");
    else if (w->options->one_machine && !w->attempt)
        hd_text_add(&text, "starting");
    else
        hd_text_add(&text, "job %llu %s", (unsigned long long)w->options->job,
                    cli_job_state(w->state, word));
    cli_add_cut(line, text.failed ? "" : text.data, columns);
    hd_text_free(&text);
}

static void draw_bar(struct watched_job *w)
{
    const struct progress_style style = {
        .columns = bar_terminal_columns(),
        .colour = w->lines.error_colour,
        .utf8 = bar_has_blocks(),
    };
    struct hd_text line = {0};

    if (!w->has_bar || w->code != CLI_CONTINUE)
        return;
    if (w->down_since_ms || !w->progress.step)
        add_state(w, style.columns - 1, &line);
    else
        progress_render(&w->progress, &style, &line);
    bar_put(&w->bar, line.failed ? "" : line.data, style.columns - 1);
    hd_text_free(&line);
    w->bar_changed = false;
}

/* ---- what is shown of an entry ---- */

static void stop(struct watched_job *w, int code)
{
    if (w->code == CLI_CONTINUE)
        w->code = code;
    uv_stop(&w->cli->loop);
}

/* Handles a failed standard output: the pipe's reader has closed it, the disk is full, or the
 * terminal hung up. `heddle watch` ends; the job of `heddle local` continues. */
static void give_up_output(struct watched_job *w)
{
    if (!w->options->on_interrupt)
        stop(w, CLI_OK);
    else if (!w->unread)
        cli_note("heddle: standard output cannot be written any more; the job goes on, and Ctrl-C "
                 "stops it");
    w->unread = true;
}

static void print_above_bar(struct watched_job *w, struct hd_text *text)
{
    bar_clear(&w->bar);
    if (!cli_out(text))
        give_up_output(w);
    w->bar_changed = true;
}

static void show_json(struct watched_job *w, const Heddle__V1__WatchJobResponse *entry)
{
    struct hd_json_writer writer = {.out = &w->out};
    bool lines = w->cli->format == CLI_JSONL;

    if (!lines)
        hd_text_add(&w->out, "%s\n", w->first_item ? "" : ",");
    if (show_history(&writer, w->options->job, entry)) {
        if (lines)
            hd_text_add(&w->out, "\n");
        w->first_item = false;
        print_above_bar(w, &w->out);
    }
    hd_text_clear(&w->out);
}

/* Writes an entry to the history file. A failure, such as a full disk, does not end the watching;
 * the file is then incomplete. */
static void keep_history(struct watched_job *w, const Heddle__V1__WatchJobResponse *entry)
{
    struct hd_text line = {0};
    struct hd_json_writer writer = {.out = &line};

    if (show_history(&writer, w->options->job, entry) && !line.failed)
        (void)fprintf(w->options->history, "%s\n", line.data);
    hd_text_free(&line);
}

/* Prints `text` as a line of its own on stderr and empties it. */
static void print_note(struct watched_job *w, struct hd_text *text)
{
    bar_clear(&w->bar);
    if (!text->failed && text->len_bytes)
        (void)fprintf(stderr, "%s\n", text->data); /* a failure cannot be reported */
    hd_text_clear(text);
    w->bar_changed = true;
}

static void show_line(struct watched_job *w, const Heddle__V1__WatchJobResponse *entry)
{
    const bool on_stdout = lines_add(&w->out, &w->lines, entry);

    if (!w->out.len_bytes)
        return;
    if (!on_stdout) {
        print_note(w, &w->out);
        return;
    }
    hd_text_add(&w->out, "\n");
    print_above_bar(w, &w->out);
}

/* Prints where an attempt runs, if the fetched job includes the attempt's plan; returns whether it
 * does. */
static bool show_placement(struct watched_job *w, int32_t attempt)
{
    const Heddle__V1__JobStatus *job = w->job ? w->job->job : NULL;

    for (size_t i = 0; job && i < job->n_attempts; i++) {
        if (job->attempts[i]->attempt != attempt || !job->attempts[i]->plan)
            continue;
        lines_add_placement(&w->out, &w->lines, job->attempts[i]);
        print_note(w, &w->out);
        return true;
    }
    return false;
}

static void on_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    struct watched_job *w = hd_rpc_call_user(call);

    (void)message;
    if (w->job)
        hd_rpc_message_free(&w->job->base);
    w->job = (Heddle__V1__GetJobResponse *)hd_rpc_call_take(call);
    if (w->code == CLI_CONTINUE)
        (void)show_placement(w, w->placement_of);
}

static void on_job_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct watched_job *w = hd_rpc_call_user(call);

    /* a failure only costs the line about the placement; WatchJob reports a lost controller */
    (void)status;
    (void)message;
    w->job_call = NULL;
}

/* Prints where an attempt runs, now or when the controller has answered. */
static void describe_placement(struct watched_job *w, int32_t attempt)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    static const struct hd_rpc_handler handler = {.on_msg = on_job, .on_done = on_job_done};

    if (show_placement(w, attempt))
        return;
    w->placement_of = attempt;
    request.job = w->options->job;
    if (!w->job_call &&
        cli_begin_call(w->cli, "GetJob", HD_RPC_UNARY, &request.base, &handler, w, &w->job_call))
        w->job_call = NULL;
}

/* Holds a state's line back for `hold_ms`: a job of `heddle local` waits briefly for its own
 * daemon, which is not worth a line. */
static void hold_state(struct watched_job *w)
{
    w->state_at_ms = hd_clock_now_ms();
}

static void show_held_state(struct watched_job *w)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__JobStatus status = HEDDLE__V1__JOB_STATUS__INIT;

    if (!w->state_at_ms || hd_clock_now_ms() - w->state_at_ms < w->options->hold_ms)
        return;
    w->state_at_ms = 0;
    status.state = w->state;
    status.reason = w->reason;
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS;
    entry.status = &status;
    show_line(w, &entry);
}

static void show_people(struct watched_job *w, const Heddle__V1__WatchJobResponse *entry)
{
    switch (entry->body_case) {
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP:
        if (!w->has_bar && hd_cli_log_step(entry->step->step, w->progress.steps, w->log_every))
            show_line(w, entry);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS:
        hold_state(w);
        show_held_state(w);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT:
        if (strcmp(entry->event->kind, "starting") == 0)
            describe_placement(w, entry->event->attempt);
        else
            show_line(w, entry);
        break;
    default:
        show_line(w, entry);
    }
}

static const char *skip_digits(const char *text)
{
    return text + strspn(text, "0123456789");
}

/* Returns whether the texts differ only in numbers, as "silent for 16 s" and "silent for 17 s". */
static bool same_but_numbers(const char *a, const char *b)
{
    while (*a && *b) {
        const char *behind_a = skip_digits(a), *behind_b = skip_digits(b);

        if ((behind_a == a) != (behind_b == b) || (behind_a == a && *a != *b))
            return false;
        a = behind_a == a ? a + 1 : behind_a;
        b = behind_b == b ? b + 1 : behind_b;
    }
    return *a == *b;
}

/* Returns true if the status has not changed, numbers in its texts aside: each connection begins
 * with a status, and the seconds of a silent node grow. */
static bool is_old_status(struct watched_job *w, const Heddle__V1__JobStatus *status)
{
    if (status->state == w->state &&
        (w->cli->format >= CLI_JSON ? strcmp(status->reason, w->reason) == 0
                                    : same_but_numbers(status->reason, w->reason))) {
        (void)snprintf(w->reason, sizeof w->reason, "%s", status->reason);
        return true;
    }
    w->state = status->state;
    (void)snprintf(w->reason, sizeof w->reason, "%s", status->reason);
    return false;
}

/* Prints why the job makes no progress, also for `heddle wait`, which prints nothing else. */
static void note_stale(struct watched_job *w, const Heddle__V1__JobStatus *status)
{
    struct hd_text text = {0};

    if (strncmp(status->stale, w->stale, sizeof w->stale - 1) == 0)
        return;
    (void)snprintf(w->stale, sizeof w->stale, "%s", status->stale);
    hd_text_add(&text, "heddle: ");
    if (*w->stale)
        cli_add_clean(&text, w->stale);
    else
        hd_text_add(&text, "the controller writes its state again");
    if (*w->stale)
        hd_text_add(&text, "; job %llu may have gone on, and its end is told when that is over",
                    (unsigned long long)w->options->job);
    print_note(w, &text);
    hd_text_free(&text);
}

/* Resets the progress for a new attempt. The last validation loss stays in the bar until the next
 * one. */
static void begin_attempt(struct watched_job *w, int32_t attempt)
{
    if (attempt == w->attempt || !attempt)
        return;
    w->attempt = attempt;
    eta_restart(&w->eta);
}

static void take_step(struct watched_job *w, const Heddle__V1__StepReport *step)
{
    struct progress *p = &w->progress;

    eta_step(&w->eta, step->step, step->time_unix_ms);
    p->step = step->step;
    p->loss = step->loss;
    p->lr = step->lr;
    p->grad_norm = step->grad_norm;
    p->tokens_per_s = step->tokens_per_s;
    p->mfu = step->mfu;
}

/* Updates the job's progress from an entry. */
static void take(struct watched_job *w, const Heddle__V1__WatchJobResponse *entry)
{
    switch (entry->body_case) {
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS:
        w->progress.steps = w->eta.plan.steps = entry->status->steps;
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP:
        begin_attempt(w, entry->attempt);
        take_step(w, entry->step);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_VALIDATION:
        begin_attempt(w, entry->attempt);
        eta_validation(&w->eta, entry->validation->step, entry->validation->time_unix_ms);
        progress_validate(&w->progress, entry->validation->step, entry->validation->set,
                          entry->validation->loss);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_CHECKPOINT:
        begin_attempt(w, entry->attempt);
        eta_checkpoint(&w->eta, entry->checkpoint->step, entry->checkpoint->time_unix_ms);
        break;
    default:
        return;
    }
    w->progress.left_ms = eta_left_ms(&w->eta);
    w->bar_changed = true;
}

/* Returns whether an entry of the history is the event of the resume that this command made. */
static bool is_resume(const struct watched_job *w, const Heddle__V1__WatchJobResponse *entry)
{
    return entry->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT &&
           strcmp(entry->event->kind, "resumed") == 0 &&
           entry->event->attempt == w->options->resumed_attempt;
}

static void on_entry(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__WatchJobResponse *entry = (const Heddle__V1__WatchJobResponse *)message;
    struct watched_job *w = hd_rpc_call_user(call);
    bool is_end = entry->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END;
    bool show = !w->options->quiet || is_end;

    if (w->code != CLI_CONTINUE)
        return;
    if (w->down_since_ms && w->ever_connected && !w->has_bar)
        cli_note("heddle: the controller is back");
    w->down_since_ms = 0;
    w->ever_connected = true;
    cli_wait_end(w->cli);
    if (entry->sequence)
        w->after = entry->sequence;
    take(w, entry);
    if (entry->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS) {
        note_stale(w, entry->status);
        show = show && !is_old_status(w, entry->status);
        /* the entry of the job's end follows and says so */
        show = show && !cli_job_ended(entry->status->state);
    }
    if (show && w->options->history)
        keep_history(w, entry);
    if (w->before_resume && entry->sequence) {
        w->before_resume = !is_resume(w, entry);
        show = false;
    }
    if (show && w->cli->format >= CLI_JSON)
        show_json(w, entry);
    else if (show)
        show_people(w, entry);
    if (is_end)
        stop(w, cli_exit_of_state(entry->end->state));
}

/* ---- the connection ---- */

static void lost(struct watched_job *w, enum hd_status status, const char *message)
{
    int64_t now_ms = hd_clock_now_ms();
    bool comes_back =
        status == HD_OK || status == HD_UNAVAILABLE || status == HD_TIMEOUT || status == HD_ABORTED;

    if (w->code != CLI_CONTINUE)
        return;
    if (!w->down_since_ms) {
        w->down_since_ms = now_ms;
        if (w->ever_connected && comes_back && status != HD_OK && !w->has_bar)
            cli_note("heddle: the controller does not answer (%s); the job is not affected, trying "
                     "again",
                     message);
    }
    w->retry_at_ms = now_ms + RETRY_MS;
    w->bar_changed = true;
    if (comes_back && w->ever_connected && now_ms - w->down_since_ms < watch_patience_ms(w->cli))
        return;
    bar_clear(&w->bar);
    status = hd_err(status ? status : HD_UNAVAILABLE, "%s", message);
    stop(w, cli_fail(w->ever_connected ? status : cli_explain_stream(w->cli, status)));
}

static void on_watch_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct watched_job *w = hd_rpc_call_user(call);

    w->call = NULL;
    lost(w, status, message);
}

static void begin(struct watched_job *w)
{
    Heddle__V1__WatchJobRequest request = HEDDLE__V1__WATCH_JOB_REQUEST__INIT;
    static const struct hd_rpc_handler handler = {.on_msg = on_entry, .on_done = on_watch_done};
    enum hd_status st;

    request.job = w->options->job;
    request.after_sequence = w->after;
    request.new_only = w->options->quiet && !w->after;
    st = cli_begin_call(w->cli, "WatchJob", HD_RPC_SERVER_STREAM, &request.base, &handler, w,
                        &w->call);
    if (st)
        lost(w, st, hd_err_message());
}

/* ---- signals and time ---- */

static void on_signal(uv_signal_t *handle, int number)
{
    struct watched_job *w = handle->data;

    if (number == SIGWINCH) {
        w->bar_changed = true;
        return;
    }
    bar_clear(&w->bar);
    w->interrupts++;
    if (!w->options->on_interrupt ||
        !w->options->on_interrupt(w->options->user, number, w->interrupts))
        stop(w, cli_exit_of_signal(number));
    w->bar_changed = true;
}

/* Without a bar, says once a minute on standard error how far the job is: lines of steps, which are
 * equal for equal runs, have no times. */
static void summarize(struct watched_job *w)
{
    const int64_t now_ms = hd_clock_now_ms();
    struct hd_text text = {0};

    if (w->has_bar || w->options->quiet || w->cli->format >= CLI_JSON || now_ms < w->summary_at_ms)
        return;
    w->summary_at_ms = now_ms + SUMMARY_MS;
    progress_summarize(&w->progress, &text);
    if (text.len_bytes && !text.failed && w->progress.step != w->summary_step)
        cli_note("heddle: %s", text.data);
    w->summary_step = w->progress.step;
    hd_text_free(&text);
}

static void on_watch_tick(uv_timer_t *timer)
{
    struct watched_job *w = timer->data;
    int code = w->options->on_tick ? w->options->on_tick(w->options->user) : CLI_CONTINUE;

    if (code != CLI_CONTINUE) {
        bar_clear(&w->bar);
        stop(w, code);
    }
    if (w->code == CLI_CONTINUE && !w->call && hd_clock_now_ms() >= w->retry_at_ms)
        begin(w);
    if (w->code == CLI_CONTINUE && w->cli->format < CLI_JSON)
        show_held_state(w);
    summarize(w);
    if (w->bar_changed)
        draw_bar(w);
}

bool cli_ignores_hangup(void)
{
    struct sigaction action;

    return sigaction(SIGHUP, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static int open_handles(struct watched_job *w)
{
    for (int i = 0; i < SIGNALS; i++) {
        if (signals[i] == SIGHUP && cli_ignores_hangup())
            continue;
        if (uv_signal_init(&w->cli->loop, &w->signal[i]))
            return cli_fail(hd_err(HD_IO, "cannot wait for signals"));
        w->signal[i].data = w;
        if (uv_signal_start(&w->signal[i], on_signal, signals[i]))
            return cli_fail(hd_err(HD_IO, "cannot wait for signals"));
    }
    (void)uv_timer_init(&w->cli->loop, &w->tick); /* uv_timer_init never fails */
    w->tick.data = w;
    (void)uv_timer_start(&w->tick, on_watch_tick, TICK_MS, TICK_MS);
    return CLI_CONTINUE;
}

/* Closes all handles on the loop whose callbacks use w. */
static void close_handles(struct watched_job *w)
{
    if (w->call)
        hd_rpc_call_cancel(w->call);
    if (w->job_call)
        hd_rpc_call_cancel(w->job_call);
    if (w->tick.data) /* first: the loop runs meanwhile, and a tick would draw the bar anew */
        cli_close_handle(w->cli, &w->tick);
    for (int i = 0; i < SIGNALS; i++)
        if (w->signal[i].data)
            cli_close_handle(w->cli, &w->signal[i]);
    while (w->call || w->job_call)
        (void)uv_run(&w->cli->loop, UV_RUN_ONCE);
}

/* Fetches the job file and the plans of attempts, which the history does not contain. */
static int fetch_job(struct watched_job *w)
{
    const int code = cli_get_job(w->cli, w->options->job, &w->job);
    struct eta_plan plan = {.steps = 0};
    struct hd_arena arena;
    struct hd_job spec;

    if (code != CLI_CONTINUE)
        return code;
    plan.steps = w->job->job->steps;
    hd_arena_init(&arena, 0);
    if (w->job->job->spec && !hd_spec_from_message(w->job->job->spec, &arena, &spec)) {
        plan.validates = spec.validate_batches > 0 || *spec.choices;
        plan.validate_every = spec.validate_every;
        plan.checkpoints = true;
        plan.checkpoint_every = spec.checkpoint_every;
        w->log_every = w->options->log_every ? w->options->log_every : spec.log_every;
    }
    hd_arena_done(&arena);
    eta_init(&w->eta, &plan);
    if (!w->options->directory)
        w->lines.directory = w->job->job->directory;
    return CLI_CONTINUE;
}

int cli_watch_job(struct cli *cli, const struct watch_options *options)
{
    struct watched_job w = {
        .cli = cli, .options = options, .code = CLI_CONTINUE, .first_item = true};
    int code = CLI_CONTINUE;

    w.before_resume = options->resumed;
    w.progress.left_ms = -1;
    w.log_every = options->log_every;
    w.lines = (struct lines){.job = options->quiet ? options->job : 0,
                             .directory = options->directory ? options->directory : "",
                             .times = options->times,
                             .one_machine = options->one_machine,
                             .colour = cli->colour,
                             .error_colour = cli_has_colour(STDERR_FILENO),
                             .progress = &w.progress};
    w.summary_at_ms = hd_clock_now_ms() + SUMMARY_MS;
    w.has_bar = !options->quiet && cli->format <= CLI_WIDE && bar_is_possible();
    if (!options->quiet)
        code = fetch_job(&w);
    if (code != CLI_CONTINUE)
        return code;
    if (cli->format == CLI_JSON)
        (void)fputs("{\"api_version\":\"heddle/v1\",\"kind\":\"JobHistory\",\"items\":[", stdout);
    code = open_handles(&w);
    cli_wait_begin(cli);
    if (code == CLI_CONTINUE)
        begin(&w);
    while (code == CLI_CONTINUE && w.code == CLI_CONTINUE)
        (void)uv_run(&cli->loop, UV_RUN_ONCE);
    if (code == CLI_CONTINUE)
        code = w.code;
    else
        w.code = code;
    bar_clear(&w.bar);
    cli_wait_end(cli);
    close_handles(&w);
    if (cli->format == CLI_JSON)
        (void)fputs("\n]}\n", stdout);
    if (w.job)
        hd_rpc_message_free(&w.job->base);
    hd_text_free(&w.out);
    return cli_out_end(code);
}
