/* jobs, cancel: lists jobs and cancels them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

enum { PAGE = 500 };

/* ---- jobs ---- */

static const struct table_column job_columns[] = {
    {"JOB", true},  {"NAME", false}, {"OWNER", false}, {"STATE", false}, {"DEVICES", true},
    {"STEP", true}, {"LOSS", true},  {"TOK/S", true},  {"AGE", true},    {"REASON", false},
};
static const struct table_column job_wide_columns[] = {
    {"JOB", true},    {"NAME", false},   {"OWNER", false}, {"QUEUE", false},   {"PRIORITY", true},
    {"STATE", false}, {"DEVICES", true}, {"NODES", false}, {"STEP", true},     {"LOSS", true},
    {"TOK/S", true},  {"MFU", true},     {"CKPT", true},   {"RESTARTS", true}, {"SUBMITTED", true},
    {"START", true},  {"REASON", false},
};

static void add_job_row(const struct cli *cli, struct table *table, const Heddle__V1__JobStatus *j)
{
    char word[CLI_WORD_MAX], when[HD_CLOCK_TEXT_MAX], rate[32] = "", loss[32] = "";
    bool stepped = j->step > 0, wide = cli->format == CLI_WIDE;
    const bool is_due = j->expected_start_unix_ms && j->expected_start_unix_ms <= cli_now_ms(cli);
    struct hd_text nodes = {0};

    cli_add_nodes(&nodes, j);
    cli_format_when(cli, j->submitted_unix_ms, cli->format, when);
    if (stepped)
        cli_format_count(j->tokens_per_s, rate);
    table_begin_row(table);
    table_add(table, NULL, "%llu", (unsigned long long)j->job);
    table_add(table, NULL, "%s", j->name);
    table_add(table, NULL, "%s", j->owner);
    if (wide) {
        table_add(table, NULL, "%s", j->queue);
        table_add(table, NULL, "%d", j->priority);
    }
    table_add(table, cli_state_colour(j->state), "%s", cli_job_state(j->state, word));
    table_add(table, NULL, "%d", j->devices);
    if (wide)
        table_add(table, NULL, "%s", nodes.failed ? "?" : nodes.data);
    table_add(table, NULL, "%lld/%lld", (long long)j->step, (long long)j->steps);
    if (stepped)
        (void)snprintf(loss, sizeof loss, "%.4f", j->loss);
    table_add(table, NULL, "%s", loss);
    table_add(table, NULL, "%s", rate);
    if (wide) {
        if (j->mfu > 0)
            table_add(table, NULL, "%.1f%%", 100 * j->mfu);
        else
            table_add(table, NULL, "%s", "");
        table_add(table, NULL, "%lld", (long long)j->checkpoint_step);
        table_add(table, NULL, "%d", j->restarts);
    }
    table_add(table, NULL, "%s", when);
    if (wide) {
        cli_format_when(cli, j->expected_start_unix_ms, cli->format, when);
        table_add(table, NULL, "%s", is_due ? "now" : when);
    }
    table_add(table, NULL, "%s", j->reason);
    hd_text_free(&nodes);
}

/* Output of a job list: a table that is rendered at the end, or JSON items as they arrive. */
struct job_sink {
    const struct cli *cli;
    struct table table;
    struct show_list list;
    struct hd_text out;
};

static void sink_begin(struct job_sink *sink, const struct cli *cli)
{
    const enum cli_format format = cli->format;
    bool wide = format == CLI_WIDE;

    sink->cli = cli;
    sink->out = (struct hd_text){0};
    if (format >= CLI_JSON)
        show_list_begin(&sink->list, &sink->out, format, "JobList", "job");
    else
        table_init(&sink->table, wide ? job_wide_columns : job_columns,
                   wide ? sizeof job_wide_columns / sizeof job_wide_columns[0]
                        : sizeof job_columns / sizeof job_columns[0]);
}

static void sink_add(struct job_sink *sink, const Heddle__V1__JobStatus *job)
{
    if (sink->cli->format < CLI_JSON) {
        add_job_row(sink->cli, &sink->table, job);
        return;
    }
    show_job_item(&sink->list, job);
}

/* Prints the job list if `print`; frees it in any case. */
static void sink_end(struct job_sink *sink, bool print)
{
    const struct cli *cli = sink->cli;

    if (cli->format >= CLI_JSON)
        show_list_end(&sink->list);
    else if (print)
        table_render(&sink->table, cli->colour,
                     cli->format == CLI_WIDE ? 0 : table_terminal_columns(), &sink->out);
    if (print)
        (void)cli_out(&sink->out);
    if (cli->format < CLI_JSON)
        table_done(&sink->table);
    hd_text_free(&sink->out);
}

static int take_state(const char *text, Heddle__V1__JobState *ret_state)
{
    char word[CLI_WORD_MAX];

    for (int i = 1; i < (int)heddle__v1__job_state__descriptor.n_values; i++) {
        *ret_state = (Heddle__V1__JobState)i;
        if (strcmp(cli_job_state(*ret_state, word), text) == 0)
            return CLI_CONTINUE;
    }
    return cli_usage("jobs: --state %s is not queued, running, stopping, succeeded, failed or "
                     "cancelled",
                     text);
}

static int list_jobs(struct cli *cli, Heddle__V1__ListJobsRequest *request, int64_t limit,
                     struct job_sink *sink)
{
    Heddle__V1__ListJobsResponse *page = NULL;
    char *next = NULL;
    int code = CLI_CONTINUE;

    while (code == CLI_CONTINUE && limit > 0) {
        request->limit = limit < PAGE ? (int32_t)limit : PAGE;
        request->page = next ? next : (char *)protobuf_c_empty_string;
        code = cli_call(cli, "ListJobs", &heddle__v1__list_jobs_response__descriptor,
                        &request->base, &page);
        if (code != CLI_CONTINUE)
            break;
        for (size_t i = 0; i < page->n_jobs; i++)
            sink_add(sink, page->jobs[i]);
        if (!next) /* once, after the first page */
            cli_warn(page->warning);
        limit -= (int64_t)page->n_jobs;
        free(next);
        next = *page->next_page && page->n_jobs ? strdup(page->next_page) : NULL;
        hd_rpc_message_free(&page->base);
        if (!next)
            break;
    }
    if (code == CLI_CONTINUE && next && cli->format <= CLI_WIDE)
        cli_note("heddle: there are more jobs; -n N shows N of them");
    free(next);
    return code;
}

int cli_jobs(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__JobState states[8];
    struct cli_list names = {.count = 0};
    const char *owner = NULL, *name = NULL;
    int64_t limit = 100;
    struct job_sink sink;
    const struct cli_flag flags[] = {
        {"state", 0, CLI_FLAG_LIST, &names, 0, 0},
        {"owner", 0, CLI_FLAG_TEXT, &owner, 0, 0},
        {"name", 0, CLI_FLAG_TEXT, &name, 0, 0},
        {"limit", 'n', CLI_FLAG_INT, &limit, 1, 1000000},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 0);

    for (size_t i = 0; i < names.count && code == CLI_CONTINUE; i++)
        code = i < 8 ? take_state(names.items[i], &states[i])
                     : cli_usage("jobs: more than 8 --state; leave some out");
    request.states = states;
    request.n_states = names.count;
    request.owner = owner ? (char *)owner : request.owner;
    request.name = name ? (char *)name : request.name;
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    sink_begin(&sink, cli);
    code = list_jobs(cli, &request, limit, &sink);
    sink_end(&sink, code == CLI_CONTINUE);
    return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
}

/* ---- cancel ---- */

static int cancel_one(struct cli *cli, uint64_t job, bool now, struct job_sink *sink)
{
    Heddle__V1__CancelJobRequest request = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    Heddle__V1__CancelJobResponse *response = NULL;
    char word[CLI_WORD_MAX];
    int code;

    request.job = job;
    request.now = now;
    code = cli_call(cli, "CancelJob", &heddle__v1__cancel_job_response__descriptor, &request.base,
                    &response);
    if (code != CLI_CONTINUE)
        return code;
    if (sink->cli->format >= CLI_JSON)
        sink_add(sink, response->job);
    else
        hd_text_add(&sink->out, "job %llu %s\n", (unsigned long long)response->job->job,
                    cli_job_state(response->job->state, word));
    hd_rpc_message_free(&response->base);
    return CLI_CONTINUE;
}

int cli_cancel(struct cli *cli, int argc, char **argv)
{
    bool now = false, yes = false;
    const struct cli_flag flags[] = {{"now", 0, CLI_FLAG_BOOL, &now, 0, 0},
                                     {"yes", 'y', CLI_FLAG_BOOL, &yes, 0, 0}};
    struct job_sink sink = {.cli = cli};
    struct cli_picked jobs = {.shows = true};
    int code = cli_parse(cli, argc, argv, flags, 2, 1, CLI_ARGS_ANY);

    jobs.shows = !yes;
    if (code == CLI_CONTINUE)
        code = cli_find_jobs(cli, 0, CLI_PICK_LIVE, &jobs);
    if (code == CLI_CONTINUE)
        code = cli_confirm_jobs(cli, &jobs, yes);
    if (code != CLI_CONTINUE) {
        cli_free_jobs(&jobs);
        return code;
    }
    if (cli->format >= CLI_JSON)
        sink_begin(&sink, cli);
    /* a failure does not keep the remaining jobs from being cancelled */
    for (size_t i = 0; i < jobs.count; i++) {
        int one = cancel_one(cli, jobs.numbers[i], now, &sink);

        code = one == CLI_CONTINUE ? code : one;
    }
    if (cli->format >= CLI_JSON)
        show_list_end(&sink.list);
    (void)cli_out(&sink.out);
    hd_text_free(&sink.out);
    cli_free_jobs(&jobs);
    return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
}
