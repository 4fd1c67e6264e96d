/* top: shows the state of the cluster; on a terminal, refreshes it. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

enum { LIVE_JOBS_MAX = 1000, SHOWN_MAX = 50 };

static const struct table_column columns[] = {
    {"JOB", true},     {"NAME", false}, {"OWNER", false},  {"STATE", false},
    {"DEVICES", true}, {"STEP", true},  {"LOSS", true},    {"TOK/S", true},
    {"MFU", true},     {"AGE", true},   {"REASON", false},
};

struct top {
    struct cli *cli;
    Heddle__V1__ListJobsResponse *jobs; /* jobs that have not ended, newest first */
    Heddle__V1__ListNodesResponse *nodes;
    size_t running, queued, stopping, ready, devices, used, broken;
    double tokens_per_s;
    uv_timer_t timer;
    uv_signal_t interrupt;
    volatile sig_atomic_t interrupted;
    int open_handles;
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
    code = cli_call(t->cli, "ListJobs", &heddle__v1__list_jobs_response__descriptor, &jobs.base,
                    &t->jobs);
    if (code == CLI_CONTINUE)
        code = cli_call(t->cli, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                        &nodes.base, &t->nodes);
    if (code == CLI_CONTINUE)
        count(t);
    return code;
}

/* ---- showing ---------------------------------------------------------------------------------*/

static void add_top_row(const struct cli *cli, struct table *table, const Heddle__V1__JobStatus *j)
{
    char word[CLI_WORD_MAX], rate[32] = "", loss[32] = "", mfu[32] = "", age[HD_CLOCK_TEXT_MAX];

    if (j->step > 0) {
        cli_format_count(j->tokens_per_s, rate);
        (void)snprintf(loss, sizeof loss, "%.4f", j->loss);
    }
    if (j->mfu > 0)
        (void)snprintf(mfu, sizeof mfu, "%.1f%%", 100 * j->mfu);
    cli_format_when(cli, j->submitted_unix_ms, CLI_TABLE, age);
    table_begin_row(table);
    table_add(table, NULL, "%" PRIu64, j->job);
    table_add(table, NULL, "%s", j->name);
    table_add(table, NULL, "%s", j->owner);
    table_add(table, cli_state_colour(j->state), "%s", cli_job_state(j->state, word));
    table_add(table, NULL, "%d", j->devices);
    table_add(table, NULL, "%lld/%lld", (long long)j->step, (long long)j->steps);
    table_add(table, NULL, "%s", loss);
    table_add(table, NULL, "%s", rate);
    table_add(table, NULL, "%s", mfu);
    table_add(table, NULL, "%s", age);
    table_add(table, NULL, "%s", j->reason);
}

/* Lists nodes that are not ready, one per line; ready ones are only counted. */
static void add_nodes(const struct top *t, struct hd_text *out)
{
    char word[CLI_WORD_MAX];

    for (size_t i = 0; i < t->nodes->n_nodes; i++) {
        const Heddle__V1__NodeStatus *n = t->nodes->nodes[i];

        if (n->state == HEDDLE__V1__NODE_STATE__NODE_STATE_READY)
            continue;
        hd_text_add(out, "node ");
        cli_add_clean(out, n->name);
        hd_text_add(out, " %s: ", cli_node_state(n->state, word));
        cli_add_people(out, n->reason);
        hd_text_add(out, "\n");
    }
}

static void add_overview_text(const struct top *t, struct hd_text *out)
{
    const bool wide = t->cli->format == CLI_WIDE;
    char rate[32];
    struct table table;
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
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (int queued = 0; queued < 2; queued++) /* running jobs first */
        for (size_t i = 0; i < t->jobs->n_jobs && (wide || shown < SHOWN_MAX); i++)
            if ((t->jobs->jobs[i]->state == HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED) == queued) {
                add_top_row(t->cli, &table, t->jobs->jobs[i]);
                shown++;
            }
    table_render(&table, t->cli->colour, wide ? 0 : table_terminal_columns(), out);
    table_done(&table);
    if (shown < t->jobs->n_jobs)
        hd_text_add(out, "and %zu more; heddle jobs lists them\n", t->jobs->n_jobs - shown);
}

static void add_overview_json(const struct top *t, struct hd_text *out)
{
    struct show_list list;

    show_list_begin(&list, out, t->cli->format, "Overview", "overview");
    show_item_begin(&list);
    hd_json_add_int64(&list.writer, "jobs_running", (int64_t)t->running);
    hd_json_add_int64(&list.writer, "jobs_stopping", (int64_t)t->stopping);
    hd_json_add_int64(&list.writer, "jobs_queued", (int64_t)t->queued);
    hd_json_add_int64(&list.writer, "nodes", (int64_t)t->nodes->n_nodes);
    hd_json_add_int64(&list.writer, "nodes_ready", (int64_t)t->ready);
    hd_json_add_int64(&list.writer, "devices", (int64_t)t->devices);
    hd_json_add_int64(&list.writer, "devices_in_use", (int64_t)t->used);
    hd_json_add_int64(&list.writer, "devices_with_a_problem", (int64_t)t->broken);
    hd_json_add_real(&list.writer, "tokens_per_s", t->tokens_per_s);
    hd_json_begin(&list.writer, "jobs", '[');
    for (size_t i = 0; i < t->jobs->n_jobs; i++) {
        hd_json_begin(&list.writer, NULL, '{');
        show_job(&list.writer, t->jobs->jobs[i], false);
        hd_json_end(&list.writer, '}');
    }
    hd_json_end(&list.writer, ']');
    show_item_end(&list);
    show_list_end(&list);
}

/* Prints one picture. screen: clears the terminal first. */
static int show_once(struct top *t, bool screen)
{
    struct hd_text out = {0};
    int code = ask(t);

    if (code == CLI_CONTINUE) {
        if (screen)
            hd_text_add(&out, "\033[H\033[J");
        if (t->cli->format >= CLI_JSON)
            add_overview_json(t, &out);
        else
            add_overview_text(t, &out);
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

static void on_top_closed(uv_handle_t *handle)
{
    struct top *t = handle->data;

    t->open_handles--;
}

static int show_always(struct top *t, int64_t interval_s)
{
    uv_loop_t *loop = &t->cli->loop;
    int code = CLI_CONTINUE;

    if (uv_timer_init(loop, &t->timer) || uv_signal_init(loop, &t->interrupt))
        return cli_fail(hd_err(HD_IO, "cannot wait for time and signals"));
    t->open_handles = 2;
    t->timer.data = t->interrupt.data = t;
    (void)uv_signal_start(&t->interrupt, on_top_interrupt, SIGINT);
    t->cli->interrupted = &t->interrupted;
    while (code == CLI_CONTINUE && !t->interrupted) {
        code = show_once(t, true);
        (void)uv_timer_start(&t->timer, on_timer, (uint64_t)interval_s * 1000, 0);
        if (code == CLI_CONTINUE && !t->interrupted)
            (void)uv_run(loop, UV_RUN_DEFAULT);
    }
    uv_close((uv_handle_t *)&t->timer, on_top_closed);
    uv_close((uv_handle_t *)&t->interrupt, on_top_closed);
    while (t->open_handles)
        (void)uv_run(loop, UV_RUN_ONCE);
    t->cli->interrupted = NULL;
    /* Ctrl-C is the normal end */
    return code == CLI_CONTINUE || code == CLI_INTERRUPTED ? CLI_OK : code;
}

int cli_top(struct cli *cli, int argc, char **argv)
{
    struct top t = {.cli = cli};
    int64_t interval_s = 2;
    bool once = false;
    const struct cli_flag flags[] = {
        {"interval", 0, CLI_FLAG_INT, &interval_s, 1, 3600},
        {"once", 0, CLI_FLAG_BOOL, &once, 0, 0},
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
