/* top: shows the state of the cluster; on a terminal, refreshes it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/rows.h"
#include "controller/cli/say.h"

enum { LIVE_JOBS_MAX = 1000, SHOWN_MAX = 50 };

struct top {
    struct cli *cli;
    Heddle__V1__ListJobsResponse *jobs; /* jobs that have not ended, newest first */
    Heddle__V1__ListNodesResponse *nodes;
    size_t running, queued, stopping, ready, devices, used, broken;
    double tokens_per_s;
    uv_timer_t timer;
    uv_signal_t interrupt;
    volatile sig_atomic_t interrupted;
};

/* ---- asking ----------------------------------------------------------------------------------*/

static void count(struct top *t)
{
    t->running = t->queued = t->stopping = t->ready = t->devices = t->used = t->broken = 0;
    t->tokens_per_s = 0;
    for (size_t i = 0; i < t->jobs->n_jobs; i++) {
        const Heddle__V1__JobStatus *j = t->jobs->jobs[i];

        t->running += j->state == HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING;
        t->queued += j->state == HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED;
        t->stopping += j->state == HEDDLE__V1__JOB_STATE__JOB_STATE_STOPPING;
        if (j->state == HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING && j->step > 0)
            t->tokens_per_s += j->tokens_per_s;
    }
    for (size_t i = 0; i < t->nodes->n_nodes; i++) {
        const Heddle__V1__NodeStatus *n = t->nodes->nodes[i];

        t->ready += n->state == HEDDLE__V1__NODE_STATE__NODE_STATE_READY;
        for (size_t d = 0; d < n->n_devices; d++) {
            t->devices++;
            t->used += show_is_held(n->devices[d]);
            t->broken += *n->devices[d]->problem != '\0';
        }
    }
}

static void forget(struct top *t)
{
    if (t->jobs)
        hd_rpc_message_free(&t->jobs->base);
    if (t->nodes)
        hd_rpc_message_free(&t->nodes->base);
    t->jobs = NULL;
    t->nodes = NULL;
}

static int ask(struct top *t)
{
    Heddle__V1__ListJobsRequest jobs = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__ListNodesRequest nodes = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__JobState states[] = {HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING,
                                     HEDDLE__V1__JOB_STATE__JOB_STATE_STOPPING,
                                     HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED};
    int code;

    jobs.states = states;
    jobs.n_states = sizeof states / sizeof states[0];
    jobs.limit = LIVE_JOBS_MAX;
    code = cli_call(t->cli, "ListJobs", &jobs.base, &t->jobs);
    if (code == CLI_CONTINUE)
        code = cli_call(t->cli, "ListNodes", &nodes.base, &t->nodes);
    if (code == CLI_CONTINUE)
        count(t);
    return code;
}

/* ---- showing ---------------------------------------------------------------------------------*/

/* Lists nodes that are not ready, one per line; ready ones are only counted. */
static void add_nodes(const struct top *t, struct hd_text *out)
{
    for (size_t i = 0; i < t->nodes->n_nodes; i++) {
        const Heddle__V1__NodeStatus *n = t->nodes->nodes[i];

        if (n->state == HEDDLE__V1__NODE_STATE__NODE_STATE_READY)
            continue;
        /* a reason is a clause about the node: "is lost", "has been unreachable for 40 s" */
        cli_say(out, n, *n->reason ? "node {name} {reason:people}\n" : "node {name} {state}\n");
    }
}

static void add_overview_text(const struct top *t, struct hd_text *out)
{
    const bool wide = t->cli->format == CLI_WIDE;
    char rate[32];
    struct cli_rows rows;
    size_t shown = 0;

    cli_format_count(t->tokens_per_s, rate);
    hd_text_add(out,
                "jobs: %zu running, %zu stopping, %zu queued%s   nodes: %zu of %zu ready   "
                "devices: %zu of %zu in use",
                t->running, t->stopping, t->queued, *t->jobs->next_page ? " at least" : "",
                t->ready, t->nodes->n_nodes, t->used, t->devices);
    if (t->broken)
        hd_text_add(out, ", %zu with a problem", t->broken);
    hd_text_add(out, "   %s tokens/s\n", rate);
    if (*t->nodes->warning) {
        cli_add_people(out, t->nodes->warning);
        hd_text_add(out, "\n");
    }
    add_nodes(t, out);
    hd_text_add(out, "\n");
    rows_begin(&rows, t->cli, &rows_top);
    for (int queued = 0; queued < 2; queued++) /* running jobs first */
        for (size_t i = 0; i < t->jobs->n_jobs && (wide || shown < SHOWN_MAX); i++)
            if ((t->jobs->jobs[i]->state == HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED) == queued) {
                rows_add(&rows, t->jobs->jobs[i]);
                shown++;
            }
    rows_end_in(&rows, out);
    if (shown < t->jobs->n_jobs)
        hd_text_add(out, "and %zu more; heddle jobs lists them\n", t->jobs->n_jobs - shown);
}

static void show_overview(struct hd_json_writer *w, const void *item)
{
    const struct top *t = item;

    hd_json_add_int64(w, "jobs_running", (int64_t)t->running);
    hd_json_add_int64(w, "jobs_stopping", (int64_t)t->stopping);
    hd_json_add_int64(w, "jobs_queued", (int64_t)t->queued);
    hd_json_add_int64(w, "nodes", (int64_t)t->nodes->n_nodes);
    hd_json_add_int64(w, "nodes_ready", (int64_t)t->ready);
    hd_json_add_int64(w, "devices", (int64_t)t->devices);
    hd_json_add_int64(w, "devices_in_use", (int64_t)t->used);
    hd_json_add_int64(w, "devices_with_a_problem", (int64_t)t->broken);
    hd_json_add_real(w, "tokens_per_s", t->tokens_per_s);
    hd_json_begin(w, "jobs", '[');
    for (size_t i = 0; i < t->jobs->n_jobs; i++)
        show_item(w, &t->jobs->jobs[i]->base, show_job_form);
    hd_json_end(w, ']');
}

static const struct rows_kind overview_rows = {"Overview", "overview", .show = show_overview};

/* Prints one picture. screen: clears the terminal first. */
static int show_once(struct top *t, bool screen)
{
    struct hd_text out = {0};
    int code = ask(t);

    if (code == CLI_CONTINUE) {
        if (screen)
            hd_text_add(&out, "\033[H\033[J");
        if (t->cli->format >= CLI_JSON) {
            struct cli_rows rows;

            rows_begin(&rows, t->cli, &overview_rows);
            rows_add(&rows, t);
            rows_end_in(&rows, &out);
        } else {
            add_overview_text(t, &out);
        }
        if (!cli_out(&out))
            code = cli_out_end(CLI_OK);
        (void)fflush(stdout);
    }
    hd_text_free(&out);
    forget(t);
    return code;
}

/* ---- again and again -------------------------------------------------------------------------*/

static void on_timer(uv_timer_t *timer)
{
    uv_stop(timer->loop);
}

static void on_top_interrupt(uv_signal_t *handle, int number)
{
    struct top *t = handle->data;

    (void)number;
    t->interrupted = 1;
    uv_stop(handle->loop);
}

static int show_always(struct top *t, int64_t interval_s)
{
    uv_loop_t *loop = &t->cli->loop;
    int code = CLI_CONTINUE;

    if (uv_timer_init(loop, &t->timer) || uv_signal_init(loop, &t->interrupt))
        return cli_fail(hd_err(HD_IO, "cannot wait for time and signals"));
    t->timer.data = t->interrupt.data = t;
    (void)uv_signal_start(&t->interrupt, on_top_interrupt, SIGINT);
    t->cli->interrupted = &t->interrupted;
    while (code == CLI_CONTINUE && !t->interrupted) {
        code = show_once(t, true);
        (void)uv_timer_start(&t->timer, on_timer, (uint64_t)interval_s * 1000, 0);
        if (code == CLI_CONTINUE && !t->interrupted)
            (void)uv_run(loop, UV_RUN_DEFAULT);
    }
    cli_close_handle(t->cli, &t->timer);
    cli_close_handle(t->cli, &t->interrupt);
    t->cli->interrupted = NULL;
    /* Ctrl-C is the normal end */
    return code == CLI_CONTINUE || code == CLI_INTERRUPTED ? CLI_OK : code;
}

static int cli_top(struct cli *cli, int argc, char **argv)
{
    struct top t = {.cli = cli};
    int64_t interval_s = 2;
    bool once = false;
    const struct cli_flag flags[] = {
        {"interval", 0, CLI_FLAG_INT, &interval_s, "SECONDS", .min = 1, .max = 3600,
         .help = "between two pictures; else 2"},
        {"once", 0, CLI_FLAG_BOOL, &once, .help = "once, also on a terminal"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 0);

    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    if (once || cli->format >= CLI_JSON || !isatty(STDOUT_FILENO)) {
        code = show_once(&t, false);
        return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
    }
    return show_always(&t, interval_s);
}

const struct cli_body cli_body_top = {
    .usage = "Usage: heddle top [--interval SECONDS] [--once] [-o FORMAT]\n",
    .about = "Shows jobs that have not ended, those that run first, with nodes that are not\n"
             "ready, again and again until Ctrl-C. Without a terminal, and with -o json, once.\n",
    .examples = "heddle top --interval 5",
    .run = cli_top,
};
