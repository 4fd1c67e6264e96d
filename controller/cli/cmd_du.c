/* du: shows the disk usage of checkpoints. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/cli/show.h"
#include "controller/cli/table.h"

enum { NEWEST = 1000 }; /* limit of jobs examined if none is named */

static const struct table_column columns[] = {
    {"JOB", true}, {"NAME", false}, {"STATE", false}, {"CHECKPOINTS", true}, {"BYTES", true},
};

struct usage {
    uint64_t job;
    char name[128], state[CLI_WORD_MAX];
    int64_t checkpoints, bytes;
};

struct usages {
    struct usage *items; /* one item per job; capacity for the named jobs, or for NEWEST */
    size_t count;
};

static int add_checkpoints(struct cli *cli, const Heddle__V1__JobStatus *job, struct usage *u)
{
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;
    char word[CLI_WORD_MAX];
    int code;

    *u = (struct usage){.job = job->job};
    (void)snprintf(u->name, sizeof u->name, "%s", job->name);
    (void)snprintf(u->state, sizeof u->state, "%s", cli_job_state(job->state, word));
    request.job = job->job;
    code = cli_call(cli, "ListCheckpoints", &heddle__v1__list_checkpoints_response__descriptor,
                    &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    for (size_t i = 0; i < response->n_checkpoints; i++)
        u->bytes += response->checkpoints[i]->size_bytes;
    u->checkpoints = (int64_t)response->n_checkpoints;
    hd_rpc_message_free(&response->base);
    return CLI_CONTINUE;
}

static int add_given(struct cli *cli, struct usages *all)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    int code = CLI_CONTINUE;

    for (int i = 0; code == CLI_CONTINUE && i < cli->arg_count; i++) {
        Heddle__V1__GetJobResponse *response = NULL;

        code = cli_find_job(cli, cli->args[i], &request.job);
        if (code == CLI_CONTINUE)
            code = cli_call(cli, "GetJob", &heddle__v1__get_job_response__descriptor, &request.base,
                            &response);
        if (code == CLI_CONTINUE)
            code = add_checkpoints(cli, response->job, &all->items[all->count++]);
        if (response)
            hd_rpc_message_free(&response->base);
    }
    return code;
}

static int add_newest(struct cli *cli, struct usages *all)
{
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    Heddle__V1__ListJobsResponse *response = NULL;
    int code;

    request.limit = NEWEST;
    code = cli_call(cli, "ListJobs", &heddle__v1__list_jobs_response__descriptor, &request.base,
                    &response);
    if (code != CLI_CONTINUE)
        return code;
    for (size_t i = 0; code == CLI_CONTINUE && i < response->n_jobs; i++) {
        code = add_checkpoints(cli, response->jobs[i], &all->items[all->count]);
        all->count += all->items[all->count].checkpoints > 0;
    }
    if (code == CLI_CONTINUE && *response->next_page)
        cli_note("heddle: only the %d newest jobs were looked at; name others", NEWEST);
    hd_rpc_message_free(&response->base);
    return code;
}

static int by_bytes(const void *a, const void *b)
{
    const struct usage *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return (x->job > y->job) - (x->job < y->job);
}

static void print_usages(const struct cli *cli, const struct usages *all)
{
    struct hd_text out = {0};
    struct show_list list;
    struct table table;
    const bool json = cli->format >= CLI_JSON;

    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    if (json)
        show_list_begin(&list, &out, cli->format, "DiskUsageList", "disk_usage");
    for (size_t i = 0; i < all->count; i++) {
        const struct usage *u = &all->items[i];
        char size[32];

        hd_text_format_bytes(u->bytes, size);
        if (json) {
            show_item_begin(&list);
            hd_json_add_int64(&list.writer, "job", (int64_t)u->job);
            hd_json_add_string(&list.writer, "name", u->name);
            hd_json_add_string(&list.writer, "state", u->state);
            hd_json_add_int64(&list.writer, "checkpoints", u->checkpoints);
            hd_json_add_int64(&list.writer, "checkpoint_bytes", u->bytes);
            show_item_end(&list);
            continue;
        }
        table_begin_row(&table);
        table_add(&table, NULL, "%" PRIu64, u->job);
        table_add(&table, NULL, "%s", u->name);
        table_add(&table, NULL, "%s", u->state);
        table_add(&table, NULL, "%lld", (long long)u->checkpoints);
        table_add(&table, NULL, "%s", size);
    }
    if (json)
        show_list_end(&list);
    else
        table_render(&table, cli->colour, 0, &out);
    (void)cli_out(&out);
    table_done(&table);
    hd_text_free(&out);
}

int cli_du(struct cli *cli, int argc, char **argv)
{
    struct usages all = {.items = NULL};
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, CLI_ARGS_ANY);

    if (code == CLI_CONTINUE)
        all.items = calloc(cli->arg_count ? (size_t)cli->arg_count : NEWEST, sizeof *all.items);
    if (code == CLI_CONTINUE && !all.items)
        code = cli_fail(hd_err(HD_NO_MEMORY, "no memory for a list of jobs"));
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli->arg_count ? add_given(cli, &all) : add_newest(cli, &all);
    if (code == CLI_CONTINUE) {
        if (!cli->arg_count)
            qsort(all.items, all.count, sizeof all.items[0], by_bytes);
        print_usages(cli, &all);
        code = cli_out_end(CLI_OK);
    }
    free(all.items);
    return code;
}
