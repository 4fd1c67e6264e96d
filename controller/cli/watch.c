#include "controller/cli/watch.h"

#include <langinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/progress.h"
#include "controller/cli/show.h"

enum {
    TICK_MS = 100,
    RETRY_MS = 500,
    LINE_MS = 1000, /* plain step lines are at least so far apart */
    SIGNALS = 4
};

static const int signals[SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};

struct watch {
    struct cli *cli;
    const struct watch_options *options;
    struct hd_rpc_call *call; /* NULL: between two connections */
    bool ever_connected;
    int64_t down_since_ms, retry_at_ms; /* while there is no connection */
    uint64_t after;                     /* last sequence seen */
    uv_signal_t signal[SIGNALS];
    uv_timer_t tick;
    int open_handles, interrupts;
    int code; /* CLI_CONTINUE until it is over */

    struct progress progress;
    int32_t attempt;
    Heddle__V1__JobState state;
    char reason[HD_ERR_MAX];
    bool bar, bar_changed, first_item;
    int bar_columns; /* width of what stands on the terminal; 0: nothing does */
    struct hd_text out, held;
    int64_t line_unix_ms; /* of the last plain step line */
};

/* ---- lines for people ---- */

/* The busiest expert in even shares: 1 where all have as many tokens. */
static void add_router(struct hd_text *out, const Heddle__V1__StepReport *s)
{
    double sum = 0, most = 0;

    for (size_t i = 0; i < s->n_expert_load; i++) {
        const double load = (double)s->expert_load[i];

        sum += load;
        most = load > most ? load : most;
    }
    hd_text_add(out, "  balance %.3f", s->router_balance);
    if (sum > 0)
        hd_text_add(out, "  busiest expert %.2fx", most * (double)s->n_expert_load / sum);
    if (s->router_dropped)
        hd_text_add(out, "  dropped %lld", (long long)s->router_dropped);
}

static void add_step_line(struct hd_text *out, int64_t steps, const Heddle__V1__StepReport *s)
{
    char rate[32];

    cli_format_count(s->tokens_per_s, rate);
    hd_text_add(out, "step %lld/%lld  loss %.4f  grad_norm %.3g  lr %.3g  %s tok/s  %.1f ms",
                (long long)s->step, (long long)steps, s->loss, s->grad_norm, s->lr, rate,
                s->step_ms);
    if (s->mfu > 0)
        hd_text_add(out, "  mfu %.1f%%", 100 * s->mfu);
    if (s->n_expert_load)
        add_router(out, s);
}

/* The end is told by the entry that follows. */
static bool says_the_end(const Heddle__V1__Event *e)
{
    return strcmp(e->kind, "succeeded") == 0 || strcmp(e->kind, "failed") == 0 ||
           strcmp(e->kind, "cancelled") == 0;
}

static void add_event_line(struct hd_text *out, const Heddle__V1__Event *e)
{
    hd_text_add(out, "%s: ", e->kind);
    cli_add_clean(out, e->message);
    if (*e->node || e->rank >= 0) {
        hd_text_add(out, " (");
        if (*e->node) {
            hd_text_add(out, "node ");
            cli_add_clean(out, e->node);
        }
        if (e->rank >= 0)
            hd_text_add(out, "%srank %d", *e->node ? ", " : "", e->rank);
        hd_text_add(out, ")");
    }
}

static void add_end_line(struct hd_text *out, uint64_t job, const Heddle__V1__JobEnd *end)
{
    char word[CLI_WORD_MAX];

    hd_text_add(out, "job %llu %s", (unsigned long long)job, cli_job_state(end->state, word));
    if (end->step)
        hd_text_add(out, " at step %lld", (long long)end->step);
    if (end->attempts > 1)
        hd_text_add(out, " in %d attempts", end->attempts);
    if (*end->reason) {
        hd_text_add(out, ": ");
        cli_add_clean(out, end->reason);
    }
}

void watch_add_line(struct hd_text *out, uint64_t job, int64_t steps,
                    const Heddle__V1__WatchJobResponse *entry)
{
    char word[CLI_WORD_MAX];

    switch (entry->body_case) {
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP:
        add_step_line(out, steps, entry->step);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_VALIDATION:
        hd_text_add(out, "validation at step %lld: loss %.4f", (long long)entry->validation->step,
                    entry->validation->loss);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_CHECKPOINT:
        hd_text_add(out, "checkpoint at step %lld: ", (long long)entry->checkpoint->step);
        cli_add_clean(out, entry->checkpoint->path);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT:
        if (!says_the_end(entry->event))
            add_event_line(out, entry->event);
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS:
        hd_text_add(out, "job %llu %s", (unsigned long long)job,
                    cli_job_state(entry->status->state, word));
        if (*entry->status->reason) {
            hd_text_add(out, ": ");
            cli_add_clean(out, entry->status->reason);
        }
        break;
    case HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END:
        add_end_line(out, job, entry->end);
        break;
    default:
        break;
    }
}

/* ---- the bar ---- */

static int bar_terminal_columns(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        return size.ws_col;
    return 80;
}

/* After the terminal became narrower the line may cover several rows: go up over all of them. */
static void bar_clear(struct watch *w)
{
    int columns = bar_terminal_columns();
    int rows = w->bar_columns > columns ? (w->bar_columns - 1) / columns : 0;

    if (!w->bar_columns)
        return;
    if (rows)
        (void)fprintf(stderr, "\033[%dA", rows);
    (void)fputs("\r\033[J", stderr);
    w->bar_columns = 0;
}

static void bar_draw(struct watch *w)
{
    const struct progress_style style = {
        .columns = bar_terminal_columns(),
        .colour = w->cli->colour,
        .utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0,
    };
    struct hd_text line = {0};
    char word[CLI_WORD_MAX];

    if (!w->bar || w->code != CLI_CONTINUE)
        return;
    bar_clear(w);
    if (w->down_since_ms)
        hd_text_add(&line, "controller not reachable, trying again");
    else if (!w->progress.step)
        hd_text_add(&line, "job %llu %s", (unsigned long long)w->options->job,
                    cli_job_state(w->state, word));
    else
        progress_render(&w->progress, &style, &line);
    if (!line.failed) {
        (void)fputs(line.data, stderr);
        w->bar_columns = style.columns - 1;
    }
    hd_text_free(&line);
    w->bar_changed = false;
}

/* ---- what is shown of an entry ---- */

static void stop(struct watch *w, int code)
{
    if (w->code == CLI_CONTINUE)
        w->code = code;
    uv_stop(&w->cli->loop);
}

static void print(struct watch *w, struct hd_text *text)
{
    bar_clear(w);
    if (!cli_out(text))
        stop(w, CLI_OK); /* nobody reads any more: cli_out_end tells why */
    w->bar_changed = true;
}

static void show_json(struct watch *w, const Heddle__V1__WatchJobResponse *entry)
{
    struct hd_json_writer writer = {.out = &w->out};
    bool lines = w->cli->format == CLI_JSONL;

    if (!lines)
        hd_text_add(&w->out, "%s\n", w->first_item ? "" : ",");
    if (show_history(&writer, w->options->job, entry)) {
        if (lines)
            hd_text_add(&w->out, "\n");
        w->first_item = false;
        print(w, &w->out);
    }
    hd_text_clear(&w->out);
}

/* Best effort: a full disk must not end the watching; the file ends early then. */
static void keep_history(struct watch *w, const Heddle__V1__WatchJobResponse *entry)
{
    struct hd_text line = {0};
    struct hd_json_writer writer = {.out = &line};

    if (show_history(&writer, w->options->job, entry) && !line.failed)
        (void)fprintf(w->options->history, "%s\n", line.data);
    hd_text_free(&line);
}

/* A step that was not shown, because others were just before, is shown before what comes next. */
static void show_lines(struct watch *w, const Heddle__V1__WatchJobResponse *entry)
{
    bool is_step = entry->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP;

    if (is_step && w->bar)
        return;
    if (is_step) {
        hd_text_clear(&w->held);
        watch_add_line(&w->held, w->options->job, w->progress.steps, entry);
        hd_text_add(&w->held, "\n");
        if (entry->step->time_unix_ms < w->line_unix_ms + LINE_MS &&
            entry->step->time_unix_ms >= w->line_unix_ms)
            return;
        w->line_unix_ms = entry->step->time_unix_ms;
        print(w, &w->held);
        return;
    }
    if (w->held.len_bytes)
        print(w, &w->held);
    watch_add_line(&w->out, w->options->job, w->progress.steps, entry);
    if (w->out.len_bytes) {
        hd_text_add(&w->out, "\n");
        print(w, &w->out);
    }
}

/* True when the status says nothing new: it comes first on each connection. */
static bool is_old_status(struct watch *w, const Heddle__V1__JobStatus *status)
{
    if (status->state == w->state && strcmp(status->reason, w->reason) == 0)
        return true;
    w->state = status->state;
    (void)snprintf(w->reason, sizeof w->reason, "%s", status->reason);
    return false;
}

static void take_step(struct watch *w, const Heddle__V1__WatchJobResponse *entry)
{
    if (entry->attempt != w->attempt)
        progress_restart(&w->progress);
    w->attempt = entry->attempt;
    progress_step(&w->progress, entry->step->step, entry->step->time_unix_ms);
    w->progress.loss = entry->step->loss;
    w->progress.tokens_per_s = entry->step->tokens_per_s;
    w->progress.mfu = entry->step->mfu;
    w->bar_changed = true;
}

static void on_entry(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__WatchJobResponse *entry = (const Heddle__V1__WatchJobResponse *)message;
    struct watch *w = hd_rpc_call_user(call);
    bool is_end = entry->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END;
    bool show = !w->options->quiet || is_end;

    if (w->code != CLI_CONTINUE)
        return;
    if (w->down_since_ms && w->ever_connected && !w->bar)
        cli_note("heddle: the controller is back");
    w->down_since_ms = 0;
    w->ever_connected = true;
    if (entry->sequence)
        w->after = entry->sequence;
    if (entry->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS) {
        w->progress.steps = entry->status->steps;
        show = show && !is_old_status(w, entry->status);
        show = show && !cli_job_ended(entry->status->state); /* the end says it */
        w->bar_changed = true;
    } else if (entry->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP) {
        take_step(w, entry);
    }
    if (show && w->options->history)
        keep_history(w, entry);
    if (show && w->cli->format >= CLI_JSON)
        show_json(w, entry);
    else if (show)
        show_lines(w, entry);
    if (is_end)
        stop(w, cli_exit_of_state(entry->end->state));
}

/* ---- the connection ---- */

static void lost(struct watch *w, enum hd_status status, const char *message)
{
    int64_t now_ms = hd_clock_now_ms();
    bool comes_back =
        status == HD_OK || status == HD_UNAVAILABLE || status == HD_TIMEOUT || status == HD_ABORTED;

    if (w->code != CLI_CONTINUE)
        return;
    if (!w->down_since_ms) {
        w->down_since_ms = now_ms;
        if (w->ever_connected && comes_back && status != HD_OK && !w->bar)
            cli_note("heddle: the controller does not answer (%s); the job is not affected, trying "
                     "again",
                     message);
    }
    w->retry_at_ms = now_ms + RETRY_MS;
    w->bar_changed = true;
    if (comes_back && w->ever_connected && now_ms - w->down_since_ms < WATCH_PATIENCE_MS)
        return;
    bar_clear(w);
    stop(w, cli_fail(hd_err(status ? status : HD_UNAVAILABLE, "%s", message)));
}

static void on_done(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct watch *w = hd_rpc_call_user(call);

    w->call = NULL;
    lost(w, status, message);
}

static void begin(struct watch *w)
{
    Heddle__V1__WatchJobRequest request = HEDDLE__V1__WATCH_JOB_REQUEST__INIT;
    char path[64];
    const struct hd_rpc_call_options options = {
        .path = cli_method_path("WatchJob", path),
        .kind = HD_RPC_SERVER_STREAM,
        .response = &heddle__v1__watch_job_response__descriptor,
        .handler = {.on_msg = on_entry, .on_done = on_done},
        .user = w,
    };
    enum hd_status st;

    request.job = w->options->job;
    request.after_sequence = w->after;
    request.new_only = w->options->quiet && !w->after;
    st = hd_rpc_client_call(w->cli->client, &options, &request.base, &w->call);
    if (st)
        lost(w, st, hd_err_message());
}

/* ---- signals and time ---- */

static void on_signal(uv_signal_t *handle, int number)
{
    struct watch *w = handle->data;

    if (number == SIGWINCH) {
        w->bar_changed = true;
        return;
    }
    bar_clear(w);
    w->interrupts++;
    if (!w->options->on_interrupt ||
        !w->options->on_interrupt(w->options->user, number, w->interrupts))
        stop(w, CLI_INTERRUPTED);
    w->bar_changed = true;
}

static void on_tick(uv_timer_t *timer)
{
    struct watch *w = timer->data;
    int code = w->options->on_tick ? w->options->on_tick(w->options->user) : CLI_CONTINUE;

    if (code != CLI_CONTINUE) {
        bar_clear(w);
        stop(w, code);
    }
    if (w->code == CLI_CONTINUE && !w->call && hd_clock_now_ms() >= w->retry_at_ms)
        begin(w);
    if (w->bar_changed)
        bar_draw(w);
}

static void on_closed(uv_handle_t *handle)
{
    struct watch *w = handle->data;

    w->open_handles--;
}

static int open_handles(struct watch *w)
{
    for (int i = 0; i < SIGNALS; i++) {
        if (uv_signal_init(&w->cli->loop, &w->signal[i]))
            return cli_fail(hd_err(HD_IO, "cannot wait for signals"));
        w->signal[i].data = w;
        w->open_handles++;
        if (uv_signal_start(&w->signal[i], on_signal, signals[i]))
            return cli_fail(hd_err(HD_IO, "cannot wait for signals"));
    }
    (void)uv_timer_init(&w->cli->loop, &w->tick); /* never fails */
    w->tick.data = w;
    w->open_handles++;
    (void)uv_timer_start(&w->tick, on_tick, TICK_MS, TICK_MS);
    return CLI_CONTINUE;
}

/* Leaves nothing on the loop that points to w. */
static void close_handles(struct watch *w)
{
    if (w->call)
        hd_rpc_call_cancel(w->call);
    for (int i = 0; i < SIGNALS; i++)
        if (w->signal[i].data)
            uv_close((uv_handle_t *)&w->signal[i], on_closed);
    if (w->tick.data)
        uv_close((uv_handle_t *)&w->tick, on_closed);
    while (w->call || w->open_handles)
        (void)uv_run(&w->cli->loop, UV_RUN_ONCE);
}

int cli_watch_job(struct cli *cli, const struct watch_options *options)
{
    struct watch w = {.cli = cli, .options = options, .code = CLI_CONTINUE, .first_item = true};
    const char *term = getenv("TERM");
    int code;

    w.bar = !options->quiet && cli->format <= CLI_WIDE && isatty(STDERR_FILENO) &&
            isatty(STDOUT_FILENO) && !(term && strcmp(term, "dumb") == 0);
    if (cli->format == CLI_JSON)
        (void)fputs("{\"api_version\":\"heddle/v1\",\"kind\":\"JobHistory\",\"items\":[", stdout);
    code = open_handles(&w);
    if (code == CLI_CONTINUE)
        begin(&w);
    while (code == CLI_CONTINUE && w.code == CLI_CONTINUE)
        (void)uv_run(&cli->loop, UV_RUN_ONCE);
    if (code == CLI_CONTINUE)
        code = w.code;
    else
        w.code = code;
    bar_clear(&w);
    close_handles(&w);
    if (cli->format == CLI_JSON)
        (void)fputs("\n]}\n", stdout);
    hd_text_free(&w.out);
    hd_text_free(&w.held);
    return cli_out_end(code);
}
