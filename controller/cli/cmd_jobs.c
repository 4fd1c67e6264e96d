/* jobs, show, events, cancel: what the controller knows of jobs. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

enum { PAGE = 500 };

/* The colours of states: never the only sign of anything. */
static const char *state_colour(Heddle__V1__JobState state)
{
    switch (state) {
    case HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING:
    case HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED:
        return "32";
    case HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED:
        return "31";
    case HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED:
    case HEDDLE__V1__JOB_STATE__JOB_STATE_STOPPING:
        return "33";
    default:
        return NULL;
    }
}

/* "3m05s" ago for people, the time itself with -o wide. */
static void format_when(int64_t unix_ms, enum cli_format format, char ret_text[HD_CLOCK_TEXT_MAX])
{
    int64_t age_ms = hd_clock_wall_ms() - unix_ms;

    ret_text[0] = '\0';
    if (!unix_ms)
        return;
    if (format == CLI_WIDE)
        hd_clock_format_utc(unix_ms, ret_text);
    else
        hd_clock_format_span(age_ms > 0 ? age_ms : 0, ret_text);
}

static void add_nodes(struct hd_text *out, const Heddle__V1__JobStatus *job)
{
    for (size_t i = 0; i < job->n_nodes; i++)
        hd_text_add(out, "%s%s", i ? "," : "", job->nodes[i]);
    if (!out->data)
        hd_text_add(out, "%s", "");
}

/* ---- jobs ---- */

static const struct table_column job_columns[] = {
    {"JOB", true},  {"NAME", false}, {"OWNER", false}, {"STATE", false}, {"DEVICES", true},
    {"STEP", true}, {"LOSS", true},  {"TOK/S", true},  {"AGE", true},    {"REASON", false},
};
static const struct table_column job_wide_columns[] = {
    {"JOB", true},    {"NAME", false},    {"OWNER", false},    {"STATE", false},  {"DEVICES", true},
    {"NODES", false}, {"STEP", true},     {"LOSS", true},      {"TOK/S", true},   {"MFU", true},
    {"CKPT", true},   {"RESTARTS", true}, {"SUBMITTED", true}, {"REASON", false},
};

static void add_job_row(struct table *table, const Heddle__V1__JobStatus *j, enum cli_format format)
{
    char word[CLI_WORD_MAX], when[HD_CLOCK_TEXT_MAX], rate[32] = "", loss[32] = "";
    bool stepped = j->step > 0, wide = format == CLI_WIDE;
    struct hd_text nodes = {0};

    add_nodes(&nodes, j);
    format_when(j->submitted_unix_ms, format, when);
    if (stepped)
        cli_format_count(j->tokens_per_s, rate);
    table_begin_row(table);
    table_add(table, NULL, "%llu", (unsigned long long)j->job);
    table_add(table, NULL, "%s", j->name);
    table_add(table, NULL, "%s", j->owner);
    table_add(table, state_colour(j->state), "%s", cli_job_state(j->state, word));
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
    table_add(table, NULL, "%s", j->reason);
    hd_text_free(&nodes);
}

/* Where jobs go: a table that is rendered at the end, or JSON as they come. */
struct job_sink {
    enum cli_format format;
    struct table table;
    struct show_list list;
    struct hd_text out;
};

static void sink_begin(struct job_sink *sink, enum cli_format format)
{
    bool wide = format == CLI_WIDE;

    sink->format = format;
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
    if (sink->format < CLI_JSON) {
        add_job_row(&sink->table, job, sink->format);
        return;
    }
    show_item_begin(&sink->list);
    show_job(&sink->list.writer, job, false);
    show_item_end(&sink->list);
}

/* Prints when `print`, frees in any case. */
static void sink_end(struct job_sink *sink, const struct cli *cli, bool print)
{
    if (sink->format >= CLI_JSON)
        show_list_end(&sink->list);
    else if (print)
        table_render(&sink->table, cli->colour,
                     sink->format == CLI_WIDE ? 0 : table_terminal_columns(), &sink->out);
    if (print)
        (void)cli_out(&sink->out);
    if (sink->format < CLI_JSON)
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
        limit -= (int64_t)page->n_jobs;
        free(next);
        next = *page->next_page && page->n_jobs ? strdup(page->next_page) : NULL;
        hd_rpc_message_free(&page->base);
        if (!next)
            break;
    }
    free(next);
    return code;
}

int cli_jobs(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__JobState states[8];
    struct cli_list names = {.count = 0};
    const char *owner = NULL;
    int64_t limit = 100;
    struct job_sink sink;
    const struct cli_flag flags[] = {
        {"state", 0, CLI_FLAG_LIST, &names, 0, 0},
        {"owner", 0, CLI_FLAG_TEXT, &owner, 0, 0},
        {"limit", 'n', CLI_FLAG_INT, &limit, 1, 1000000},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 0);

    for (size_t i = 0; i < names.count && code == CLI_CONTINUE; i++)
        code = i < 8 ? take_state(names.items[i], &states[i]) : cli_usage("jobs: too many --state");
    request.states = states;
    request.n_states = names.count;
    request.owner = owner ? (char *)owner : request.owner;
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    sink_begin(&sink, cli->format);
    code = list_jobs(cli, &request, limit, &sink);
    sink_end(&sink, cli, code == CLI_CONTINUE);
    return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
}

/* ---- show ---- */

static void add_fact(struct hd_text *out, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void add_fact(struct hd_text *out, const char *name, const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!*text)
        return;
    hd_text_add(out, "%-12s", name);
    cli_add_clean(out, text);
    hd_text_add(out, "\n");
}

static void add_progress_facts(struct hd_text *out, const Heddle__V1__JobStatus *j)
{
    char rate[32];

    add_fact(out, "step", "%lld of %lld", (long long)j->step, (long long)j->steps);
    if (j->step) {
        cli_format_count(j->tokens_per_s, rate);
        add_fact(out, "loss", "%.4f", j->loss);
        add_fact(out, "rate", "%s tok/s", rate);
    }
    if (j->mfu > 0)
        add_fact(out, "mfu", "%.1f%%", 100 * j->mfu);
    if (j->checkpoint_step)
        add_fact(out, "checkpoint", "step %lld", (long long)j->checkpoint_step);
}

static void add_layout(struct hd_text *out, const Heddle__V1__Plan *p)
{
    const struct hd_plan_sizes sizes = {.pp = p->pp,
                                        .dp = p->dp,
                                        .cp = p->cp,
                                        .tp = p->tp,
                                        .ep = p->ep,
                                        .sequence = p->sequence,
                                        .cp_exchange = (enum hd_plan_exchange)p->cp_exchange};
    struct hd_text layout = {0};
    char word[CLI_WORD_MAX];

    cli_add_layout(&sizes, &layout);
    add_fact(out, "layout", "%s, micro-batch %d x %d, zero %d, schedule %s, recompute %s, %s",
             layout.failed ? "?" : layout.data, p->micro_batch, p->micro_batches, p->zero,
             p->schedule, p->recompute, cli_precision(p->precision, word));
    hd_text_free(&layout);
}

/* "0-1 on n1, 2 on n2": ranks of a node are neighbours. */
static void add_ranks(struct hd_text *out, const Heddle__V1__Plan *p)
{
    struct hd_text places = {0};

    for (size_t first = 0, last; first < p->n_ranks; first = last + 1) {
        last = first;
        while (last + 1 < p->n_ranks &&
               strcmp(p->ranks[last + 1]->node, p->ranks[first]->node) == 0)
            last++;
        hd_text_add(&places, "%s%d", first ? ", " : "", p->ranks[first]->rank);
        if (last > first)
            hd_text_add(&places, "-%d", p->ranks[last]->rank);
        hd_text_add(&places, " on %s", p->ranks[first]->node);
    }
    add_fact(out, "ranks", "%s", places.failed ? "?" : places.len_bytes ? places.data : "");
    hd_text_free(&places);
}

static const struct table_column attempt_columns[] = {
    {"ATTEMPT", true}, {"STATE", false}, {"RANKS", true},    {"FROM STEP", true},
    {"STARTED", true}, {"CAUSE", false}, {"MESSAGE", false},
};

static void add_attempts(struct cli *cli, struct hd_text *out, const Heddle__V1__JobStatus *j)
{
    char word[CLI_WORD_MAX], when[HD_CLOCK_TEXT_MAX];
    struct table table;

    table_init(&table, attempt_columns, sizeof attempt_columns / sizeof attempt_columns[0]);
    for (size_t i = 0; i < j->n_attempts; i++) {
        const Heddle__V1__AttemptStatus *a = j->attempts[i];

        format_when(a->created_unix_ms, cli->format, when);
        table_begin_row(&table);
        table_add(&table, NULL, "%d", a->attempt);
        table_add(&table, NULL, "%s", cli_attempt_state(a->state, word));
        table_add(&table, NULL, "%zu", a->plan ? a->plan->n_ranks : 0);
        table_add(&table, NULL, "%lld",
                  a->base_checkpoint ? (long long)a->base_checkpoint->step : 0LL);
        table_add(&table, NULL, "%s", when);
        table_add(&table, NULL, "%s", a->end ? cli_end_cause(a->end->cause, word) : "");
        if (a->end && a->end->rank >= 0)
            table_add(&table, NULL, "rank %d on %s: %s", a->end->rank, a->end->node,
                      a->end->message);
        else
            table_add(&table, NULL, "%s", a->end ? a->end->message : "");
    }
    hd_text_add(out, "\n");
    table_render(&table, cli->colour, cli->format == CLI_WIDE ? 0 : table_terminal_columns(), out);
    table_done(&table);
}

static void show_facts(struct cli *cli, struct hd_text *out, const Heddle__V1__JobStatus *j)
{
    char word[CLI_WORD_MAX], when[HD_CLOCK_TEXT_MAX];
    struct hd_text nodes = {0};

    add_nodes(&nodes, j);
    add_fact(out, "job", "%llu %s", (unsigned long long)j->job, j->name);
    add_fact(out, "owner", "%s", j->owner);
    add_fact(out, "state", "%s", cli_job_state(j->state, word));
    add_fact(out, "reason", "%s", j->reason);
    hd_clock_format_utc(j->submitted_unix_ms, when);
    add_fact(out, "submitted", "%s", when);
    add_progress_facts(out, j);
    add_fact(out, "devices", "%d", j->devices);
    add_fact(out, "nodes", "%s", nodes.failed ? "?" : nodes.data);
    add_fact(out, "directory", "%s", j->directory);
    if (j->n_attempts && j->attempts[j->n_attempts - 1]->plan) {
        add_layout(out, j->attempts[j->n_attempts - 1]->plan);
        add_ranks(out, j->attempts[j->n_attempts - 1]->plan);
    }
    if (j->n_attempts)
        add_attempts(cli, out, j);
    hd_text_free(&nodes);
}

int cli_show(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    Heddle__V1__GetJobResponse *response = NULL;
    struct hd_text out = {0};
    struct show_list list;
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_parse_job(cli->args[0], &request.job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "GetJob", &heddle__v1__get_job_response__descriptor, &request.base,
                        &response);
    if (code != CLI_CONTINUE)
        return code;
    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "JobList", "job");
        show_item_begin(&list);
        show_job(&list.writer, response->job, true);
        show_item_end(&list);
        show_list_end(&list);
    } else {
        show_facts(cli, &out, response->job);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
    hd_rpc_message_free(&response->base);
    return cli_out_end(CLI_OK);
}

/* ---- events ---- */

static const struct table_column event_columns[] = {
    {"TIME", false}, {"KIND", false}, {"ATTEMPT", true},
    {"NODE", false}, {"RANK", true},  {"MESSAGE", false},
};

static void add_number(struct table *table, bool known, int32_t number)
{
    if (known)
        table_add(table, NULL, "%d", number);
    else
        table_add(table, NULL, "%s", "");
}

static void add_event_row(struct table *table, const Heddle__V1__Event *e)
{
    char when[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(e->time_unix_ms, when);
    table_begin_row(table);
    table_add(table, NULL, "%s", when);
    table_add(table, NULL, "%s", e->kind);
    add_number(table, e->attempt > 0, e->attempt);
    table_add(table, NULL, "%s", e->node);
    add_number(table, e->rank >= 0, e->rank);
    table_add(table, NULL, "%s", e->message);
}

/* Pages until the last; each is shown as it comes, a table with widths of its own per page. */
static int list_events(struct cli *cli, Heddle__V1__ListEventsRequest *request, struct table *table,
                       struct show_list *list)
{
    Heddle__V1__ListEventsResponse *page = NULL;
    bool more = true;
    int code = CLI_CONTINUE;

    while (more && code == CLI_CONTINUE) {
        code = cli_call(cli, "ListEvents", &heddle__v1__list_events_response__descriptor,
                        &request->base, &page);
        if (code != CLI_CONTINUE)
            break;
        for (size_t i = 0; i < page->n_events; i++) {
            request->after_sequence = page->events[i]->sequence;
            if (cli->format < CLI_JSON) {
                add_event_row(table, page->events[i]);
                continue;
            }
            show_item_begin(list);
            show_event(&list->writer, page->events[i]);
            show_item_end(list);
        }
        more = page->more && page->n_events;
        hd_rpc_message_free(&page->base);
    }
    return code;
}

int cli_events(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ListEventsRequest request = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    struct hd_text out = {0};
    struct show_list list;
    struct table table;
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, 1);

    request.limit = PAGE;
    if (code == CLI_CONTINUE && cli->arg_count)
        code = cli_parse_job(cli->args[0], &request.job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    table_init(&table, event_columns, sizeof event_columns / sizeof event_columns[0]);
    if (cli->format >= CLI_JSON)
        show_list_begin(&list, &out, cli->format, "EventList", "event");
    code = list_events(cli, &request, &table, &list);
    if (code == CLI_CONTINUE) {
        if (cli->format >= CLI_JSON)
            show_list_end(&list);
        else
            table_render(&table, cli->colour,
                         cli->format == CLI_WIDE ? 0 : table_terminal_columns(), &out);
        (void)cli_out(&out);
        code = cli_out_end(CLI_OK);
    }
    table_done(&table);
    hd_text_free(&out);
    return code;
}

/* ---- cancel ---- */

static int cancel_one(struct cli *cli, const char *name, bool now, struct job_sink *sink)
{
    Heddle__V1__CancelJobRequest request = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    Heddle__V1__CancelJobResponse *response = NULL;
    char word[CLI_WORD_MAX];
    int code = cli_parse_job(name, &request.job);

    request.now = now;
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "CancelJob", &heddle__v1__cancel_job_response__descriptor,
                        &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    if (sink->format >= CLI_JSON)
        sink_add(sink, response->job);
    else
        hd_text_add(&sink->out, "job %llu %s\n", (unsigned long long)response->job->job,
                    cli_job_state(response->job->state, word));
    hd_rpc_message_free(&response->base);
    return CLI_CONTINUE;
}

int cli_cancel(struct cli *cli, int argc, char **argv)
{
    bool now = false;
    const struct cli_flag flags[] = {{"now", 0, CLI_FLAG_BOOL, &now, 0, 0}};
    struct job_sink sink = {.format = CLI_TABLE};
    int code = cli_parse(cli, argc, argv, flags, 1, 1, 1000);

    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    sink.format = cli->format;
    if (cli->format >= CLI_JSON)
        sink_begin(&sink, cli->format);
    for (int i = 0; i < cli->arg_count; i++) { /* one that fails does not save the others */
        int one = cancel_one(cli, cli->args[i], now, &sink);

        code = one == CLI_CONTINUE ? code : one;
    }
    if (cli->format >= CLI_JSON)
        show_list_end(&sink.list);
    (void)cli_out(&sink.out);
    hd_text_free(&sink.out);
    return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
}
