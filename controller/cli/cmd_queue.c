/* queue, hold, release, explain: shows the queues, holds jobs back, and says why jobs wait. */
#include <stdio.h>
#include <string.h>

#include "controller/cli/show.h"
#include "controller/cli/table.h"

/* ---- queue ------------------------------------------------------------------------------------*/

static void add_limit(struct table *table, int32_t limit)
{
    if (limit)
        table_add(table, NULL, "%d", limit);
    else
        table_add(table, NULL, "%s", "");
}

static void add_queue_row(struct table *table, const Heddle__V1__QueueStatus *q)
{
    table_begin_row(table);
    table_add(table, NULL, "%s", q->name);
    table_add(table, NULL, "%d", q->weight);
    table_add(table, NULL, "%lld", (long long)q->devices_held);
    if (q->closed) /* closed: its jobs get no further devices */
        table_add(table, NULL, "closed");
    else
        add_limit(table, q->devices_max);
    add_limit(table, q->user_devices_max);
    table_add(table, NULL, "%lld", (long long)q->jobs_waiting);
}

static int print_queues(struct cli *cli, Heddle__V1__QueueStatus *const *queues, size_t count)
{
    static const struct table_column columns[] = {{"QUEUE", false},   {"WEIGHT", true},
                                                  {"HELD", true},     {"MAX", true},
                                                  {"USER MAX", true}, {"WAITING", true}};
    struct hd_text out = {0};
    struct show_list list;
    struct table table;

    if (cli->format >= CLI_JSON)
        show_list_begin(&list, &out, cli->format, "QueueList", "queue");
    else
        table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        if (cli->format < CLI_JSON) {
            add_queue_row(&table, queues[i]);
            continue;
        }
        show_item_begin(&list);
        show_queue(&list.writer, queues[i]);
        show_item_end(&list);
    }
    if (cli->format >= CLI_JSON) {
        show_list_end(&list);
    } else {
        table_render(&table, cli->colour, table_terminal_columns(), &out);
        table_done(&table);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
    return cli_out_end(CLI_OK);
}

static int list_queues(struct cli *cli)
{
    Heddle__V1__ListQueuesRequest request = HEDDLE__V1__LIST_QUEUES_REQUEST__INIT;
    Heddle__V1__ListQueuesResponse *response = NULL;
    int code = cli_connect(cli);

    if (code == CLI_CONTINUE)
        code = cli_call(cli, "ListQueues", &heddle__v1__list_queues_response__descriptor,
                        &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    code = print_queues(cli, response->queues, response->n_queues);
    hd_rpc_message_free(&response->base);
    return code;
}

/* Changes of `heddle queue set`; -1: unchanged. */
struct queue_setting {
    int64_t devices_max, user_devices_max, weight;
    bool closed, open;
};

static bool is_given(const struct queue_setting *s)
{
    return s->devices_max >= 0 || s->user_devices_max >= 0 || s->weight >= 0 || s->closed ||
           s->open;
}

static int set_queue(struct cli *cli, const struct queue_setting *s)
{
    Heddle__V1__SetQueueRequest request = HEDDLE__V1__SET_QUEUE_REQUEST__INIT;
    Heddle__V1__SetQueueResponse *response = NULL;
    int code;

    if (s->closed && s->open)
        return cli_usage("queue set: --closed and --open; give one of them");
    code = cli_connect(cli);
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
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "SetQueue", &heddle__v1__set_queue_response__descriptor, &request.base,
                        &response);
    if (code != CLI_CONTINUE)
        return code;
    code = print_queues(cli, &response->queue, 1);
    hd_rpc_message_free(&response->base);
    return code;
}

static int remove_queue(struct cli *cli)
{
    Heddle__V1__RemoveQueueRequest request = HEDDLE__V1__REMOVE_QUEUE_REQUEST__INIT;
    Heddle__V1__RemoveQueueResponse *response = NULL;
    struct hd_text out = {0};
    struct show_list list;
    int code = cli_connect(cli);

    request.name = cli->args[1];
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "RemoveQueue", &heddle__v1__remove_queue_response__descriptor,
                        &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "RemovedQueueList", "removed_queue");
        show_item_begin(&list);
        hd_json_add_string(&list.writer, "name", response->name);
        show_item_end(&list);
        show_list_end(&list);
    } else {
        hd_text_add(&out, "queue ");
        cli_add_clean(&out, response->name);
        hd_text_add(&out, " removed\n");
    }
    (void)cli_out(&out);
    hd_text_free(&out);
    hd_rpc_message_free(&response->base);
    return cli_out_end(CLI_OK);
}

int cli_queue(struct cli *cli, int argc, char **argv)
{
    struct queue_setting setting = {-1, -1, -1, false, false};
    const struct cli_flag flags[] = {
        {"devices-max", 0, CLI_FLAG_INT, &setting.devices_max, 0, INT32_MAX},
        {"user-devices-max", 0, CLI_FLAG_INT, &setting.user_devices_max, 0, INT32_MAX},
        {"weight", 0, CLI_FLAG_INT, &setting.weight, 1, 1000},
        {"closed", 0, CLI_FLAG_BOOL, &setting.closed, 0, 0},
        {"open", 0, CLI_FLAG_BOOL, &setting.open, 0, 0},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 2);

    if (code != CLI_CONTINUE)
        return code;
    if (strcmp(cli->args[0], "set") == 0 && cli->arg_count == 2)
        return set_queue(cli, &setting);
    if (strcmp(cli->args[0], "set") == 0)
        return cli_usage("queue set: the queue's name is missing");
    if (strcmp(cli->args[0], "ls") != 0 && strcmp(cli->args[0], "rm") != 0)
        return cli_usage("queue: '%s' is not a command of heddle queue; these are ls, set and rm",
                         cli->args[0]);
    if (strcmp(cli->args[0], "rm") == 0) {
        if (cli->arg_count == 1)
            return cli_usage("queue rm: the queue's name is missing");
        if (is_given(&setting))
            return cli_usage("queue rm: takes no limit, weight or state; heddle queue set does");
        return remove_queue(cli);
    }
    if (cli->arg_count > 1 || is_given(&setting))
        return cli_usage("queue ls: takes no name, limit, weight or state; heddle queue set does");
    return list_queues(cli);
}

/* ---- hold and release -------------------------------------------------------------------------*/

static int hold_one(struct cli *cli, uint64_t number, bool hold, struct show_list *list,
                    struct hd_text *out)
{
    const Heddle__V1__JobStatus *job;
    Heddle__V1__HoldJobRequest held = HEDDLE__V1__HOLD_JOB_REQUEST__INIT;
    Heddle__V1__ReleaseJobRequest released = HEDDLE__V1__RELEASE_JOB_REQUEST__INIT;
    Heddle__V1__HoldJobResponse *of_hold = NULL;
    Heddle__V1__ReleaseJobResponse *of_release = NULL;
    int code;

    released.job = held.job = number;
    if (hold)
        code = cli_call(cli, "HoldJob", &heddle__v1__hold_job_response__descriptor, &held.base,
                        &of_hold);
    else
        code = cli_call(cli, "ReleaseJob", &heddle__v1__release_job_response__descriptor,
                        &released.base, &of_release);
    if (code != CLI_CONTINUE)
        return code;
    job = hold ? of_hold->job : of_release->job;
    if (cli->format >= CLI_JSON)
        show_job_item(list, job);
    else
        show_job_line(out, job, false);
    hd_rpc_message_free(hold ? &of_hold->base : &of_release->base);
    return CLI_CONTINUE;
}

static int hold_all(struct cli *cli, int argc, char **argv, bool hold)
{
    bool yes = false;
    const struct cli_flag flags[] = {{"yes", 'y', CLI_FLAG_BOOL, &yes, 0, 0}};
    struct cli_picked jobs = {.count = 0};
    struct hd_text out = {0};
    struct show_list list;
    int code = cli_parse(cli, argc, argv, flags, 1, 1, CLI_ARGS_ANY);

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
        show_list_begin(&list, &out, cli->format, "JobList", "job");
    for (size_t i = 0; i < jobs.count; i++) { /* a failure does not stop the remaining jobs */
        int one = hold_one(cli, jobs.numbers[i], hold, &list, &out);

        code = one == CLI_CONTINUE ? code : one;
    }
    if (cli->format >= CLI_JSON)
        show_list_end(&list);
    (void)cli_out(&out);
    hd_text_free(&out);
    cli_free_jobs(&jobs);
    return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
}

int cli_hold(struct cli *cli, int argc, char **argv)
{
    return hold_all(cli, argc, argv, true);
}

int cli_release(struct cli *cli, int argc, char **argv)
{
    return hold_all(cli, argc, argv, false);
}

/* ---- explain ----------------------------------------------------------------------------------*/

static void print_explained(const struct cli *cli, const Heddle__V1__JobStatus *job)
{
    char word[CLI_WORD_MAX], when[HD_CLOCK_TEXT_MAX];
    struct hd_text out = {0};

    hd_text_add(&out, "job %llu ", (unsigned long long)job->job);
    cli_add_clean(&out, job->name);
    hd_text_add(&out, " %s in queue ", cli_job_state(job->state, word));
    cli_add_clean(&out, job->queue);
    hd_text_add(&out, ", priority %d%s\n", job->priority, job->held ? ", held" : "");
    if (*job->reason) {
        hd_text_add(&out, "  reason    ");
        cli_add_clean(&out, job->reason);
        hd_text_add(&out, "\n");
    }
    for (size_t i = 0; i < job->n_blockers; i++) {
        hd_text_add(&out, i ? "            " : "  waits     ");
        cli_add_clean(&out, job->blockers[i]->kind);
        hd_text_add(&out, ": ");
        cli_add_clean(&out, job->blockers[i]->message);
        hd_text_add(&out, "\n");
    }
    if (job->expected_start_unix_ms && job->expected_start_unix_ms <= cli_now_ms(cli)) {
        hd_text_add(&out, "  start     expected at any moment\n");
    } else if (job->expected_start_unix_ms) {
        hd_clock_format_utc(job->expected_start_unix_ms, when);
        hd_text_add(&out, "  start     expected at %s\n", when);
    } else if (job->state == HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED) {
        hd_text_add(&out, "  start     not known yet\n");
    }
    (void)cli_out(&out);
    hd_text_free(&out);
}

int cli_explain(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ExplainJobRequest request = HEDDLE__V1__EXPLAIN_JOB_REQUEST__INIT;
    Heddle__V1__ExplainJobResponse *response = NULL;
    int code = cli_call_about_job(cli, argc, argv, true, "ExplainJob",
                                  &heddle__v1__explain_job_response__descriptor, &request.base,
                                  &request.job, &response);

    if (code != CLI_CONTINUE)
        return code;
    cli_warn(response->job->stale);
    if (cli->format >= CLI_JSON)
        show_one_job(cli, response->job, true);
    else
        print_explained(cli, response->job);
    hd_rpc_message_free(&response->base);
    return cli_out_end(CLI_OK);
}
