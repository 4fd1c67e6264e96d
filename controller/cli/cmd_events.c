/* events: lists the events of a job, or of nodes and controller. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/rows.h"
#include "controller/cli/say.h"

enum {
    PAGE = 500,
    FOLLOW_POLLS = 20, /* checks for Ctrl-C between two requests for new events */
    FOLLOW_POLL_US = 50000,
};

static void add_rank_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__Event *e = item;

    if (e->rank >= 0)
        rows_cell(rows, NULL, "%d", e->rank);
    else
        rows_cell(rows, NULL, "%s", "");
}

static const struct rows_column event_columns[] = {
    {"TIME", ROWS_OF(Heddle__V1__Event, time_unix_ms), .form = ROWS_TIME},
    {"KIND", ROWS_OF(Heddle__V1__Event, kind)},
    {"ATTEMPT", .text = "[{attempt}]", .right = true},
    {"NODE", ROWS_OF(Heddle__V1__Event, node)},
    {"RANK", .cell = add_rank_cell, .right = true},
    {"MESSAGE", .text = "{message:people}"},
};
static const struct rows_kind event_rows = {"EventList", "event", ROWS_COLUMNS(event_columns),
                                            .json = show_event_form};

/* Appends an event as one line. */
static void add_event_line(const struct cli *cli, struct hd_text *out, const void *item)
{
    const Heddle__V1__Event *e = item;
    char when[HD_CLOCK_TEXT_MAX];

    (void)cli;
    hd_clock_format_utc(e->time_unix_ms, when);
    hd_text_add(out, "%s ", when);
    cli_add_clean(out, e->kind);
    hd_text_add(out, "%*s ", strlen(e->kind) < 12 ? 12 - (int)strlen(e->kind) : 0, "");
    cli_say(out, e, "[attempt {attempt} ][{node} ]");
    if (e->rank >= 0)
        hd_text_add(out, "rank %d ", e->rank);
    cli_say(out, e, "{message:people}\n");
}

/* Events that are followed: lines, and of JSON always one object a line. */
static const struct rows_kind followed_rows = {"EventList", "event", .json = show_event_form,
                                               .line = add_event_line};

/* Adds all events from the request's place on to the rows; follow: prints each page as it comes. */
static int add_events(struct cli *cli, Heddle__V1__ListEventsRequest *request,
                      struct cli_rows *rows, bool follow)
{
    Heddle__V1__ListEventsResponse *page = NULL;
    bool more = true;
    int code = CLI_CONTINUE;

    while (more && code == CLI_CONTINUE && !ferror(stdout)) {
        code = cli_call(cli, "ListEvents", &request->base, &page);
        if (code != CLI_CONTINUE)
            break;
        for (size_t i = 0; i < page->n_events; i++) {
            request->after_sequence = page->events[i]->sequence;
            rows_add(rows, page->events[i]);
        }
        more = page->more && page->n_events;
        hd_rpc_message_free(&page->base);
        if (follow)
            (void)rows_flush(rows);
    }
    return code;
}

/* ---- following -------------------------------------------------------------------------------*/

static int has_ended(struct cli *cli, uint64_t job, bool *ret_ended)
{
    Heddle__V1__GetJobResponse *response = NULL;
    int code;

    *ret_ended = false;
    if (!job) /* events of the cluster have no end */
        return CLI_CONTINUE;
    code = cli_get_job(cli, job, &response);
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
    struct cli_rows rows;
    int code = CLI_CONTINUE;

    if (cli->format == CLI_JSON)
        cli->format = CLI_JSONL;
    rows_begin(&rows, cli, &followed_rows);
    cli_catch_stop(SIGINT, NULL);
    cli->interrupted = &cli_stopped_by;
    while (code == CLI_CONTINUE && !cli_stopped_by && !ferror(stdout)) {
        code = has_ended(cli, request->job, &ended);
        if (code == CLI_CONTINUE)
            code = add_events(cli, request, &rows, true);
        if (ended)
            break;
        for (int i = 0; i < FOLLOW_POLLS && code == CLI_CONTINUE && !cli_stopped_by; i++) {
            (void)uv_run(&cli->loop, UV_RUN_NOWAIT);
            (void)usleep(FOLLOW_POLL_US);
        }
    }
    code = rows_end(&rows, code);
    return code == CLI_OK && cli_stopped_by ? CLI_INTERRUPTED : code;
}

static int cli_events(struct cli *cli, int argc, char **argv)
{
    bool follow = false;
    const struct cli_flag flags[] = {
        {"follow", 'f', CLI_FLAG_BOOL, &follow,
         .help = "also new ones, in lines, until the job's end or Ctrl-C"},
    };
    Heddle__V1__ListEventsRequest request = HEDDLE__V1__LIST_EVENTS_REQUEST__INIT;
    struct cli_rows rows;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 1);

    request.limit = PAGE;
    if (code == CLI_CONTINUE && cli->arg_count)
        code = cli_find_job_or_run(cli, cli->args[0], &request.job);
    if (code != CLI_CONTINUE)
        return code;
    if (follow)
        return follow_events(cli, &request);
    rows_begin(&rows, cli, &event_rows);
    return rows_end(&rows, add_events(cli, &request, &rows, false));
}

const struct cli_body cli_body_events = {
    .usage = "Usage: heddle events [JOB|RUN] [-f] [-o FORMAT]\n",
    .about = "Prints all events of a job, oldest first: who requested it, where and when its\n"
             "attempts started, how each rank ended. Without JOB: events of nodes.\n",
    .examples = "heddle events 7",
    .run = cli_events,
};
