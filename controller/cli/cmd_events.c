/* events: lists the events of a job, or of nodes and controller. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

enum {
    PAGE = 500,
    FOLLOW_POLLS = 20, /* checks for Ctrl-C between two requests for new events */
    FOLLOW_POLL_US = 50000,
};

static const struct table_column event_columns[] = {
    {"TIME", false}, {"KIND", false}, {"ATTEMPT", true},
    {"NODE", false}, {"RANK", true},  {"MESSAGE", false},
};

static void add_known_number(struct table *table, bool known, int32_t number)
{
    if (known)
        table_add(table, NULL, "%d", number);
    else
        table_add(table, NULL, "%s", "");
}

static void add_event_row(struct table *table, const Heddle__V1__Event *e)
{
    char when[HD_CLOCK_TEXT_MAX];
    struct hd_text message = {0};

    cli_add_people(&message, e->message);
    hd_clock_format_utc(e->time_unix_ms, when);
    table_begin_row(table);
    table_add(table, NULL, "%s", when);
    table_add(table, NULL, "%s", e->kind);
    add_known_number(table, e->attempt > 0, e->attempt);
    table_add(table, NULL, "%s", e->node);
    add_known_number(table, e->rank >= 0, e->rank);
    table_add(table, NULL, "%s", message.failed ? "?" : message.data);
    hd_text_free(&message);
}

/* Prints all pages of events, each as it arrives; a table's column widths are per page. */
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

/* ---- following -------------------------------------------------------------------------------*/

static volatile sig_atomic_t interrupted;

static void on_events_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* Prints one event as a line, or as JSON. */
static void print_event(const struct cli *cli, const Heddle__V1__Event *e)
{
    char when[HD_CLOCK_TEXT_MAX];
    struct hd_json_writer writer;
    struct hd_text out = {0};

    if (cli->format >= CLI_JSON) {
        writer = (struct hd_json_writer){.out = &out};
        hd_json_begin(&writer, NULL, '{');
        hd_json_add_string(&writer, "type", "event");
        show_event(&writer, e);
        hd_json_end(&writer, '}');
    } else {
        hd_clock_format_utc(e->time_unix_ms, when);
        hd_text_add(&out, "%s %-12s ", when, e->kind);
        if (e->attempt > 0)
            hd_text_add(&out, "attempt %d ", e->attempt);
        if (*e->node)
            hd_text_add(&out, "%s ", e->node);
        if (e->rank >= 0)
            hd_text_add(&out, "rank %d ", e->rank);
        cli_add_people(&out, e->message);
    }
    hd_text_add(&out, "\n");
    (void)cli_out(&out);
    (void)fflush(stdout);
    hd_text_free(&out);
}

static int print_new(struct cli *cli, Heddle__V1__ListEventsRequest *request)
{
    Heddle__V1__ListEventsResponse *page = NULL;
    bool more = true;
    int code = CLI_CONTINUE;

    while (more && code == CLI_CONTINUE && !ferror(stdout)) {
        code = cli_call(cli, "ListEvents", &heddle__v1__list_events_response__descriptor,
                        &request->base, &page);
        if (code != CLI_CONTINUE)
            break;
        for (size_t i = 0; i < page->n_events; i++) {
            request->after_sequence = page->events[i]->sequence;
            print_event(cli, page->events[i]);
        }
        more = page->more && page->n_events;
        hd_rpc_message_free(&page->base);
    }
    return code;
}

static int has_ended(struct cli *cli, uint64_t job, bool *ret_ended)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    Heddle__V1__GetJobResponse *response = NULL;
    int code;

    *ret_ended = false;
    if (!job) /* events of the cluster have no end */
        return CLI_CONTINUE;
    request.job = job;
    code = cli_call(cli, "GetJob", &heddle__v1__get_job_response__descriptor, &request.base,
                    &response);
    if (code != CLI_CONTINUE)
        return code;
    *ret_ended = cli_job_ended(response->job->state);
    hd_rpc_message_free(&response->base);
    return CLI_CONTINUE;
}

/* Polls once a second, because events are rare, until the job has ended; its last event is stored
 * before its end. */
static int follow_events(struct cli *cli, Heddle__V1__ListEventsRequest *request)
{
    bool ended = false;
    int code = CLI_CONTINUE;

    (void)signal(SIGINT, on_events_interrupt);
    cli->interrupted = &interrupted;
    while (code == CLI_CONTINUE && !interrupted && !ferror(stdout)) {
        code = has_ended(cli, request->job, &ended);
        if (code == CLI_CONTINUE)
            code = print_new(cli, request);
        if (ended)
            break;
        for (int i = 0; i < FOLLOW_POLLS && code == CLI_CONTINUE && !interrupted; i++) {
            (void)uv_run(&cli->loop, UV_RUN_NOWAIT);
            (void)usleep(FOLLOW_POLL_US);
        }
    }
    return code != CLI_CONTINUE ? code : cli_out_end(interrupted ? CLI_INTERRUPTED : CLI_OK);
}

int cli_events(struct cli *cli, int argc, char **argv)
{
    bool follow = false;
    const struct cli_flag flags[] = {{"follow", 'f', CLI_FLAG_BOOL, &follow, 0, 0}};
    Heddle__V1__ListEventsRequest request = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    struct hd_text out = {0};
    struct show_list list;
    struct table table;
    int code = cli_parse(cli, argc, argv, flags, 1, 0, 1);

    request.limit = PAGE;
    if (code == CLI_CONTINUE && cli->arg_count)
        code = cli_find_job_or_run(cli, cli->args[0], &request.job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    if (follow)
        return follow_events(cli, &request);
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
