/* du: shows the disk usage of checkpoints. */
#include <stdlib.h>

#include "base/arena.h"
#include "controller/cli/rows.h"

enum { NEWEST = 1000 }; /* limit of jobs examined if none is named */

struct usage {
    uint64_t job;
    char *name, *state; /* in the arena of all */
    int64_t checkpoints, bytes;
};

struct usages {
    struct usage *items; /* one item per job; capacity for the named jobs, or for NEWEST */
    size_t count;
    struct hd_arena arena;
};

static int add_checkpoints(struct cli *cli, const Heddle__V1__JobStatus *job, struct usages *all,
                           struct usage *u)
{
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;
    char word[CLI_WORD_MAX];
    int code;

    *u = (struct usage){.job = job->job,
                        .name = hd_arena_strdup(&all->arena, job->name),
                        .state = hd_arena_strdup(&all->arena, cli_job_state(job->state, word))};
    request.job = job->job;
    code = cli_call(cli, "ListCheckpoints", &request.base, &response);
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
    int code = CLI_CONTINUE;
    uint64_t job;

    for (int i = 0; code == CLI_CONTINUE && i < cli->arg_count; i++) {
        Heddle__V1__GetJobResponse *response = NULL;

        code = cli_find_job(cli, cli->args[i], &job);
        if (code == CLI_CONTINUE)
            code = cli_get_job(cli, job, &response);
        if (code == CLI_CONTINUE)
            code = add_checkpoints(cli, response->job, all, &all->items[all->count++]);
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
    code = cli_call(cli, "ListJobs", &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    for (size_t i = 0; code == CLI_CONTINUE && i < response->n_jobs; i++) {
        code = add_checkpoints(cli, response->jobs[i], all, &all->items[all->count]);
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

static const struct rows_column usage_columns[] = {
    {"JOB", ROWS_OF(struct usage, job), .json = "job"},
    {"NAME", ROWS_OF(struct usage, name), .json = "name"},
    {"STATE", ROWS_OF(struct usage, state), .json = "state"},
    {"CHECKPOINTS", ROWS_OF(struct usage, checkpoints), .json = "checkpoints"},
    {"BYTES", ROWS_OF(struct usage, bytes), .form = ROWS_BYTES, .json = "checkpoint_bytes"},
};
static const struct rows_kind usage_rows = {"DiskUsageList", "disk_usage",
                                            ROWS_COLUMNS(usage_columns), .is_uncut = true};

static int cli_du(struct cli *cli, int argc, char **argv)
{
    struct usages all = {.items = NULL};
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, CLI_ARGS_ANY);

    hd_arena_init(&all.arena, 0);
    if (code == CLI_CONTINUE)
        all.items = calloc(cli->arg_count ? (size_t)cli->arg_count : NEWEST, sizeof *all.items);
    if (code == CLI_CONTINUE && !all.items)
        code = cli_fail(hd_err(HD_NO_MEMORY, "no memory for a list of jobs"));
    if (code == CLI_CONTINUE)
        code = cli->arg_count ? add_given(cli, &all) : add_newest(cli, &all);
    if (code == CLI_CONTINUE && !cli->arg_count)
        qsort(all.items, all.count, sizeof all.items[0], by_bytes);
    if (code == CLI_CONTINUE)
        code = rows_print_array(cli, &usage_rows, all.items, all.count, sizeof all.items[0]);
    free(all.items);
    hd_arena_done(&all.arena);
    return code;
}

const struct cli_body cli_body_du = {
    .usage = "Usage: heddle du [JOB]... [-o FORMAT]\n",
    .about = "Says what checkpoints take on disk: of each job given, else of the 1000 newest,\n"
             "largest first. heddle checkpoint rm and heddle rm make room.\n",
    .examples = "heddle du 7",
    .run = cli_du,
};
