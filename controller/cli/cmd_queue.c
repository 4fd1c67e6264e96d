/* queue, explain: shows and changes the queues, and says why jobs wait. */
#include <string.h>

#include "controller/cli/rows.h"
#include "controller/cli/say.h"

/* ---- queue ------------------------------------------------------------------------------------*/

static void add_max_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__QueueStatus *q = item;

    if (q->closed) /* its jobs get no further devices */
        rows_cell(rows, NULL, "closed");
    else if (q->devices_max)
        rows_cell(rows, NULL, "%d", q->devices_max);
    else
        rows_cell(rows, NULL, "%s", "");
}

static const struct rows_column queue_columns[] = {
    {"QUEUE", ROWS_OF(Heddle__V1__QueueStatus, name)},
    {"WEIGHT", ROWS_OF(Heddle__V1__QueueStatus, weight)},
    {"HELD", ROWS_OF(Heddle__V1__QueueStatus, devices_held)},
    {"MAX", .cell = add_max_cell, .right = true},
    {"USER MAX", ROWS_OF(Heddle__V1__QueueStatus, user_devices_max), .form = ROWS_SOME},
    {"WAITING", ROWS_OF(Heddle__V1__QueueStatus, jobs_waiting)},
};
static const struct rows_kind queue_rows = {"QueueList", "queue", ROWS_COLUMNS(queue_columns),
                                            .json = "*"};

static int list_queues(struct cli *cli)
{
    const Heddle__V1__ListQueuesRequest request = HEDDLE__V1__LIST_QUEUES_REQUEST__INIT;

    return rows_ask(cli, "ListQueues", &request.base, "queues", &queue_rows);
}

/* Changes of `heddle queue set`; -1: unchanged. */
struct queue_setting {
    int64_t devices_max, user_devices_max, weight;
    bool closed, open;
};

static int set_queue(struct cli *cli, const struct queue_setting *s)
{
    Heddle__V1__SetQueueRequest request = HEDDLE__V1__SET_QUEUE_REQUEST__INIT;

    if (s->closed && s->open)
        return cli_usage("queue set: --closed and --open; give one of them");
    request.name = cli->args[1];
    if (s->devices_max >= 0) {
        request._devices_max_case = HEDDLE__V1__SET_QUEUE_REQUEST___DEVICES_MAX_DEVICES_MAX;
        request.devices_max = (int32_t)s->devices_max;
    }
    if (s->user_devices_max >= 0) {
        request._user_devices_max_case =
            HEDDLE__V1__SET_QUEUE_REQUEST___USER_DEVICES_MAX_USER_DEVICES_MAX;
        request.user_devices_max = (int32_t)s->user_devices_max;
    }
    if (s->weight >= 0) {
        request._weight_case = HEDDLE__V1__SET_QUEUE_REQUEST___WEIGHT_WEIGHT;
        request.weight = (int32_t)s->weight;
    }
    if (s->closed || s->open) {
        request._closed_case = HEDDLE__V1__SET_QUEUE_REQUEST___CLOSED_CLOSED;
        request.closed = s->closed;
    }
    return rows_ask(cli, "SetQueue", &request.base, "queue", &queue_rows);
}

static const struct rows_kind removed_rows = {"RemovedQueueList", "removed_queue", .json = "name",
                                              .text = "queue {name} removed\n"};

static int remove_queue(struct cli *cli)
{
    Heddle__V1__RemoveQueueRequest request = HEDDLE__V1__REMOVE_QUEUE_REQUEST__INIT;

    request.name = cli->args[1];
    return rows_ask(cli, "RemoveQueue", &request.base, NULL, &removed_rows);
}

static int cli_queue(struct cli *cli, int argc, char **argv)
{
    struct queue_setting setting = {-1, -1, -1, false, false};
    const struct cli_flag flags[] = {
        {"devices-max", 0, CLI_FLAG_INT, &setting.devices_max, "N", .min = 0, .max = INT32_MAX,
         .help = "devices that its jobs may hold together; 0: no limit", .of = "set"},
        {"user-devices-max", 0, CLI_FLAG_INT, &setting.user_devices_max, "N", .min = 0,
         .max = INT32_MAX, .help = "that the jobs of one user may hold in it; 0: no limit",
         .of = "set"},
        {"weight", 0, CLI_FLAG_INT, &setting.weight, "W", .min = 1, .max = 1000,
         .help = "1 to 1000; of two queues with jobs of equal priority,\n"
                 "the one that holds less for its weight comes first",
         .of = "set"},
        {"closed", 0, CLI_FLAG_BOOL, &setting.closed,
         .help = "jobs may be submitted to it, and none of them starts;\n"
                 "those that run go on",
         .of = "set"},
        {"open", 0, CLI_FLAG_BOOL, &setting.open, .help = "they start again", .of = "set"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 2);

    if (code != CLI_CONTINUE)
        return code;
    if (cli_is_verb(cli, "set"))
        return set_queue(cli, &setting);
    return cli_is_verb(cli, "rm") ? remove_queue(cli) : list_queues(cli);
}

static const struct cli_verb queue_verbs[] = {
    {"ls", 0, 0, NULL},
    {"set", 1, 1, "the queue's name"},
    {"rm", 1, 1, "the queue's name"},
};

const struct cli_body cli_body_queue = {
    .usage = "Usage: heddle queue ls [-o FORMAT]\n"
             "       heddle queue set NAME [--devices-max N] [--user-devices-max N]\n"
             "                             [--weight W] [--closed | --open] [-o FORMAT]\n"
             "       heddle queue rm NAME [-o FORMAT]\n",
    .about = "ls lists the queues in which jobs wait (docs/scheduling.md). set makes or\n"
             "changes one; what is not given stays as it is. A lower limit stops no running\n"
             "job. rm removes one that no job waits or runs in; a job that has ended in it\n"
             "goes on, if it is resumed, in the queue default. set and rm are for admins.\n",
    .examples = "heddle queue set research --devices-max 64 --weight 2\n"
                "heddle queue set night --closed",
    CLI_VERBS(queue_verbs),
    .run = cli_queue,
};

/* ---- explain ----------------------------------------------------------------------------------*/

static void add_explained(const struct cli *cli, struct hd_text *out, const void *item)
{
    const Heddle__V1__JobStatus *job = item;
    char when[HD_CLOCK_TEXT_MAX];

    cli_say(out, job,
            "job {job} {name} {state} in queue {queue}, priority {priority}[{held?}, held]\n"
            "[  reason    {reason}\n]");
    for (size_t i = 0; i < job->n_blockers; i++) {
        hd_text_add(out, i ? "            " : "  waits     ");
        cli_say(out, job->blockers[i], "{kind}: {message}\n");
    }
    if (job->expected_start_unix_ms && job->expected_start_unix_ms <= cli_now_ms(cli)) {
        hd_text_add(out, "  start     expected at any moment\n");
    } else if (job->expected_start_unix_ms) {
        hd_clock_format_utc(job->expected_start_unix_ms, when);
        hd_text_add(out, "  start     expected at %s\n", when);
    } else if (job->state == HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED) {
        hd_text_add(out, "  start     not known yet\n");
    }
}

static const struct rows_kind explained_rows = {"JobList", "job", .json = show_job_form,
                                                .line = add_explained};

static int cli_explain(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ExplainJobRequest request = HEDDLE__V1__EXPLAIN_JOB_REQUEST__INIT;
    int code = cli_parse_job(cli, argc, argv, true, &request.job);

    return code == CLI_CONTINUE ? rows_ask(cli, "ExplainJob", &request.base, "job", &explained_rows)
                                : code;
}

const struct cli_body cli_body_explain = {
    .usage = "Usage: heddle explain JOB|RUN [-o FORMAT]\n",
    .about = "Says why a job waits: the first reason, everything else that keeps it waiting,\n"
             "and when it is expected to start, where that can be computed. Of a running job\n"
             "it says what is wrong, if anything is.\n",
    .examples = "heddle explain 7",
    .run = cli_explain,
};
