/* jobs, cancel, hold, release: lists jobs, and changes those that the arguments name. */
#include <stdlib.h>
#include <string.h>

#include "controller/cli/rows.h"

enum { PAGE = 500 };

/* ---- jobs ---- */

static void add_job_state_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__JobStatus *j = item;
    char word[CLI_WORD_MAX];

    rows_cell(rows, cli_state_colour(j->state), "%s", cli_job_state(j->state, word));
}

static void add_start_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__JobStatus *j = item;
    const bool is_due =
        j->expected_start_unix_ms && j->expected_start_unix_ms <= cli_now_ms(rows->cli);
    char when[HD_CLOCK_TEXT_MAX];

    cli_format_when(rows->cli, j->expected_start_unix_ms, rows->cli->format, when);
    rows_cell(rows, NULL, "%s", is_due ? "now" : when);
}

static const struct rows_column job_columns[] = {
    {"JOB", ROWS_OF(Heddle__V1__JobStatus, job)},
    {"NAME", ROWS_OF(Heddle__V1__JobStatus, name)},
    {"OWNER", ROWS_OF(Heddle__V1__JobStatus, owner)},
    {"QUEUE", ROWS_OF(Heddle__V1__JobStatus, queue), .in_width = ROWS_WIDE_ONLY},
    {"PRIORITY", ROWS_OF(Heddle__V1__JobStatus, priority), .in_width = ROWS_WIDE_ONLY},
    {"STATE", .cell = add_job_state_cell},
    {"DEVICES", ROWS_OF(Heddle__V1__JobStatus, devices)},
    {"NODES", .text = "{nodes}", .in_width = ROWS_WIDE_ONLY},
    {"STEP", .text = "{step}/{steps}", .right = true},
    {"LOSS", .text = "[{step?}{loss:4}]", .right = true},
    {"TOK/S", .text = "[{step?}{tokens_per_s:count}]", .right = true},
    {"MFU", .text = "[{mfu:percent}]", .right = true, .in_width = ROWS_WIDE_OR_TOP},
    {"CKPT", ROWS_OF(Heddle__V1__JobStatus, checkpoint_step), .in_width = ROWS_WIDE_ONLY},
    {"RESTARTS", ROWS_OF(Heddle__V1__JobStatus, restarts), .in_width = ROWS_WIDE_ONLY},
    {"AGE", ROWS_OF(Heddle__V1__JobStatus, submitted_unix_ms), .form = ROWS_WHEN,
     .in_width = ROWS_NARROW_ONLY},
    {"SUBMITTED", ROWS_OF(Heddle__V1__JobStatus, submitted_unix_ms), .form = ROWS_WHEN,
     .in_width = ROWS_WIDE_ONLY},
    {"START", .cell = add_start_cell, .right = true, .in_width = ROWS_WIDE_ONLY},
    {"REASON", ROWS_OF(Heddle__V1__JobStatus, reason)},
};
static const struct rows_kind job_rows = {"JobList", "job", ROWS_COLUMNS(job_columns),
                                          .json = show_job_form};

const struct rows_kind rows_top = {"JobList", "job", ROWS_COLUMNS(job_columns), .is_top = true};

enum { STATES_MAX = 8 }; /* more than there are */

/* Appends the state that the first `len` characters of `text` name, unless it is there already. */
static int take_state(const char *text, size_t len, Heddle__V1__ListJobsRequest *request)
{
    const int count = (int)heddle__v1__job_state__descriptor.n_values;
    char word[CLI_WORD_MAX];
    int state = 1;

    while (state < count && (strlen(cli_job_state((Heddle__V1__JobState)state, word)) != len ||
                             strncmp(word, text, len) != 0))
        state++;
    if (state == count)
        return cli_usage("jobs: --state \"%.*s\" is not queued, running, stopping, succeeded, "
                         "failed or cancelled",
                         (int)len, text);
    for (size_t i = 0; i < request->n_states; i++)
        if ((int)request->states[i] == state)
            return CLI_CONTINUE;
    request->states[request->n_states++] = (Heddle__V1__JobState)state;
    return CLI_CONTINUE;
}

/* Reads the values of --state, "queued,running" each. */
static int take_states(const struct cli_list *lists, Heddle__V1__ListJobsRequest *request)
{
    int code = CLI_CONTINUE;

    for (size_t i = 0; i < lists->count; i++) {
        const char *text = lists->items[i], *end;

        for (; text && code == CLI_CONTINUE; text = *end ? end + 1 : NULL) {
            end = text + strcspn(text, ",");
            code = take_state(text, (size_t)(end - text), request);
        }
    }
    return code;
}

static int list_jobs(struct cli *cli, Heddle__V1__ListJobsRequest *request, int64_t limit,
                     struct cli_rows *rows)
{
    Heddle__V1__ListJobsResponse *page = NULL;
    char *next = NULL;
    int code = CLI_CONTINUE;

    while (code == CLI_CONTINUE && limit > 0) {
        request->limit = limit < PAGE ? (int32_t)limit : PAGE;
        request->page = next ? next : (char *)protobuf_c_empty_string;
        code = cli_call(cli, "ListJobs", &request->base, &page);
        if (code != CLI_CONTINUE)
            break;
        for (size_t i = 0; i < page->n_jobs; i++)
            rows_add(rows, page->jobs[i]);
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

static int cli_jobs(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__JobState states[STATES_MAX];
    struct cli_list state_lists = {.count = 0};
    const char *owner = NULL, *name = NULL;
    int64_t limit = 100;
    struct cli_rows rows;
    const struct cli_flag flags[] = {
        {"state", 0, CLI_FLAG_LIST, &state_lists, "STATE,..",
         .help = "only jobs in one of these states: queued, running,\n"
                 "stopping, succeeded, failed, cancelled"},
        {"owner", 0, CLI_FLAG_TEXT, &owner, "NAME",
         .help = "only jobs of this owner, as in the column OWNER"},
        {"name", 0, CLI_FLAG_TEXT, &name, "PATTERN",
         .help = "only jobs of this name; * is any text, ? one character"},
        {"limit", 'n', CLI_FLAG_INT, &limit, "COUNT", .min = 1, .max = 1000000,
         .help = "at most COUNT jobs; else 100"},
        {"-o wide", .kind = CLI_FLAG_NOTE, .help = "more columns, nothing cut"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 0);

    request.states = states;
    if (code == CLI_CONTINUE)
        code = take_states(&state_lists, &request);
    request.owner = owner ? (char *)owner : request.owner;
    request.name = name ? (char *)name : request.name;
    if (code != CLI_CONTINUE)
        return code;
    rows_begin(&rows, cli, &job_rows);
    return rows_end(&rows, list_jobs(cli, &request, limit, &rows));
}

const struct cli_body cli_body_jobs = {
    .usage = "Usage: heddle jobs [--state STATE,..] [--owner NAME] [--name PATTERN]\n"
             "                   [-n COUNT] [-o FORMAT]\n",
    .about = "Lists jobs, newest first. REASON says what a queued job waits for, or what\n"
             "is wrong with a running one.\n",
    .examples = "heddle jobs --state queued,running -o wide",
    .run = cli_jobs,
};

/* ---- cancel, hold, release ---- */

static const struct rows_kind cancelled_rows = {"JobList", "job", .json = show_job_form,
                                                .text = "job {job} {state}\n"};

/* Changes one job and adds it to the rows. Requests and responses of these calls begin alike: a job's
 * number, and the job. */
struct change {
    const char *method;
    ProtobufCMessage *request;
    uint64_t *job;                /* member of the request */
    const struct rows_kind *kind; /* how a changed job is printed */
};

static int change_one(struct cli *cli, const struct change *change, uint64_t job,
                      struct cli_rows *rows)
{
    Heddle__V1__HoldJobResponse *response = NULL;
    int code;

    *change->job = job;
    code = cli_call(cli, change->method, change->request, &response);
    if (code != CLI_CONTINUE)
        return code;
    rows_add(rows, response->job);
    hd_rpc_message_free(&response->base);
    return CLI_CONTINUE;
}

/* Changes the jobs of the arguments, and asks before that where a pattern names them. A failure does
 * not keep the remaining jobs from being changed. */
static int change_jobs(struct cli *cli, const struct change *change, bool yes)
{
    struct cli_picked jobs = {.shows = !yes};
    struct cli_rows rows;
    int code = cli_find_jobs(cli, 0, CLI_PICK_LIVE, &jobs), end;

    if (code == CLI_CONTINUE)
        code = cli_confirm_jobs(cli, &jobs, yes);
    if (code != CLI_CONTINUE) {
        cli_free_jobs(&jobs);
        return code;
    }
    rows_begin(&rows, cli, change->kind);
    for (size_t i = 0; i < jobs.count; i++) {
        const int one = change_one(cli, change, jobs.numbers[i], &rows);

        code = one == CLI_CONTINUE ? code : one;
    }
    end = rows_end(&rows, CLI_CONTINUE);
    cli_free_jobs(&jobs);
    return code == CLI_CONTINUE ? end : code;
}

_Static_assert(offsetof(Heddle__V1__CancelJobResponse, job) ==
                       offsetof(Heddle__V1__HoldJobResponse, job) &&
                   offsetof(Heddle__V1__ReleaseJobResponse, job) ==
                       offsetof(Heddle__V1__HoldJobResponse, job),
               "responses to changes of jobs have the job in one place");

static int cli_cancel(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__CancelJobRequest request = HEDDLE__V1__CANCEL_JOB_REQUEST__INIT;
    const struct change change = {"CancelJob", &request.base, &request.job, &cancelled_rows};
    bool now = false, yes = false;
    const struct cli_flag flags[] = {
        {"now", 0, CLI_FLAG_BOOL, &now, .help = "kill the ranks, without a checkpoint"},
        {"yes", 'y', CLI_FLAG_BOOL, &yes, .help = "do not ask"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, CLI_ARGS_ANY);

    request.now = now;
    return code == CLI_CONTINUE ? change_jobs(cli, &change, yes) : code;
}

const struct cli_body cli_body_cancel = {
    .usage = "Usage: heddle cancel JOB|PATTERN... [--now] [--yes]\n",
    .about = "Stops jobs. The ranks write a checkpoint first. The command returns when the\n"
             "controller has stored the decision; heddle wait JOB returns when the ranks have\n"
             "ended. A PATTERN such as 'sweep-*' stops all jobs of such names that have not\n"
             "ended; it lists them, and asks.\n",
    .examples = "heddle cancel 7\n"
                "heddle cancel 'sweep-*'",
    .run = cli_cancel,
};

static int cli_hold(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__HoldJobRequest request = HEDDLE__V1__HOLD_JOB_REQUEST__INIT;
    const struct change change = {"HoldJob", &request.base, &request.job, &rows_job_state};
    bool yes = false;
    const struct cli_flag flags[] = {
        {"yes", 'y', CLI_FLAG_BOOL, &yes,
         .help = "do not ask before a PATTERN such as 'sweep-*' holds jobs"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, CLI_ARGS_ANY);

    return code == CLI_CONTINUE ? change_jobs(cli, &change, yes) : code;
}

const struct cli_body cli_body_hold = {
    .usage = "Usage: heddle hold JOB|PATTERN... [--yes] [-o FORMAT]\n",
    .about = "Keeps waiting jobs from being started until heddle release. A job that runs\n"
             "goes on to its end; it is held when it would wait again, after a failure or\n"
             "when it gave way to another job.\n",
    .examples = "heddle hold 7 8",
    .run = cli_hold,
};

static int cli_release(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ReleaseJobRequest request = HEDDLE__V1__RELEASE_JOB_REQUEST__INIT;
    const struct change change = {"ReleaseJob", &request.base, &request.job, &rows_job_state};
    bool yes = false;
    const struct cli_flag flags[] = {
        {"yes", 'y', CLI_FLAG_BOOL, &yes,
         .help = "do not ask before a PATTERN such as 'sweep-*' releases jobs"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, CLI_ARGS_ANY);

    return code == CLI_CONTINUE ? change_jobs(cli, &change, yes) : code;
}

const struct cli_body cli_body_release = {
    .usage = "Usage: heddle release JOB|PATTERN... [--yes] [-o FORMAT]\n",
    .about = "Lets jobs that heddle hold holds start again.\n",
    .examples = "heddle release 7 8",
    .run = cli_release,
};
