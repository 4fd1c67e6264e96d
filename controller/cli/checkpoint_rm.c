/* checkpoint rm: removes one checkpoint of a job. */
#include <stdio.h>

#include "controller/cli/found.h"
#include "controller/cli/show.h"

static int ask_to_remove(struct cli *cli, uint64_t job, int64_t step, bool check,
                         Heddle__V1__RemoveJobResponse **ret_response)
{
    Heddle__V1__RemoveJobRequest request = HEDDLE__V1__REMOVE_JOB_REQUEST__INIT;

    request.job = job;
    request.step = step;
    request.check = check;
    return cli_call(cli, "RemoveJob", &heddle__v1__remove_job_response__descriptor, &request.base,
                    ret_response);
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

int cli_remove_checkpoint(struct cli *cli, const char *name, int64_t step, bool yes)
{
    Heddle__V1__RemoveJobResponse *response = NULL;
    struct hd_text out = {0};
    struct show_list list;
    uint64_t job;
    int code;

    if (step <= 0)
        return cli_usage("checkpoint rm: --step N is missing: which one");
    code = cli_find_job(cli, name, &job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE && !yes)
        code = confirm_checkpoint(cli, job, step);
    if (code == CLI_CONTINUE)
        code = ask_to_remove(cli, job, step, false, &response);
    if (code != CLI_CONTINUE)
        return code;
    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "RemovedCheckpointList", "removed_checkpoint");
        show_item_begin(&list);
        hd_json_add_int64(&list.writer, "job", (int64_t)job);
        hd_json_add_int64(&list.writer, "step", step);
        hd_json_add_int64(&list.writer, "checkpoint_bytes", response->checkpoint_bytes);
        show_item_end(&list);
        show_list_end(&list);
    } else {
        hd_text_add(&out, "job %llu: the checkpoint of step %lld is removed\n",
                    (unsigned long long)job, (long long)step);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
    hd_rpc_message_free(&response->base);
    return cli_out_end(CLI_OK);
}
