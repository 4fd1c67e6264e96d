/* checkpoint rm: removes one checkpoint of a job. */

#include "controller/cli/found.h"
#include "controller/cli/rows.h"

static int ask_to_remove(struct cli *cli, uint64_t job, int64_t step, bool check,
                         Heddle__V1__RemoveJobResponse **ret_response)
{
    Heddle__V1__RemoveJobRequest request = HEDDLE__V1__REMOVE_JOB_REQUEST__INIT;

    request.job = job;
    request.step = step;
    request.check = check;
    return cli_call(cli, "RemoveJob", &request.base, ret_response);
}

/* Asks before the removal, unless --yes. Returns CLI_CONTINUE if the checkpoint may be removed,
 * else an exit code. */
static int confirm_checkpoint(struct cli *cli, uint64_t job, int64_t step)
{
    Heddle__V1__RemoveJobResponse *response = NULL;
    char size[32];
    int code = ask_to_remove(cli, job, step, true, &response);

    if (code != CLI_CONTINUE)
        return code;
    hd_text_format_bytes(response->checkpoint_bytes, size);
    cli_note("job %llu: the checkpoint of step %lld, %s", (unsigned long long)job, (long long)step,
             size);
    hd_rpc_message_free(&response->base);
    return cli_confirm("remove it?", "nothing was removed", "to remove the checkpoint, add --yes");
}

struct removed_checkpoint {
    uint64_t job;
    int64_t step, checkpoint_bytes;
};

static void add_removed_checkpoint(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct removed_checkpoint *removed = item;

    (void)cli;
    hd_text_add(out, "job %llu: the checkpoint of step %lld is removed\n",
                (unsigned long long)removed->job, (long long)removed->step);
}

static const struct rows_column removed_columns[] = {
    {.json = "job", ROWS_OF(struct removed_checkpoint, job)},
    {.json = "step", ROWS_OF(struct removed_checkpoint, step)},
    {.json = "checkpoint_bytes", ROWS_OF(struct removed_checkpoint, checkpoint_bytes)},
};
static const struct rows_kind removed_rows = {"RemovedCheckpointList", "removed_checkpoint",
                                              ROWS_COLUMNS(removed_columns),
                                              .line = add_removed_checkpoint};

int cli_remove_checkpoint(struct cli *cli, const char *name, int64_t step, bool yes)
{
    struct removed_checkpoint removed = {.step = step};
    Heddle__V1__RemoveJobResponse *response = NULL;
    int code;

    if (step <= 0)
        return cli_usage("checkpoint rm: --step N is missing: which one");
    code = cli_find_job(cli, name, &removed.job);
    if (code == CLI_CONTINUE && !yes)
        code = confirm_checkpoint(cli, removed.job, step);
    if (code == CLI_CONTINUE)
        code = ask_to_remove(cli, removed.job, step, false, &response);
    if (code != CLI_CONTINUE)
        return code;
    removed.checkpoint_bytes = response->checkpoint_bytes;
    hd_rpc_message_free(&response->base);
    return rows_print_one(cli, &removed_rows, &removed);
}
