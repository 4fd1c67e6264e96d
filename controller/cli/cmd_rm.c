/* rm: removes ended jobs and their folders. */
#include <stdio.h>
#include <string.h>

#include "controller/cli/rows.h"
#include "controller/cli/say.h"

int cli_remove(struct cli *cli, const struct cli_removal *removal,
               Heddle__V1__RemoveJobResponse **ret_response)
{
    Heddle__V1__RemoveJobRequest request = HEDDLE__V1__REMOVE_JOB_REQUEST__INIT;

    request.job = removal->job;
    request.step = removal->step;
    request.check = removal->check;
    return cli_call(cli, "RemoveJob", &request.base, ret_response);
}

/* Notes the ended jobs whose job files name this job's files. They keep their own files, but those
 * without a checkpoint can no longer be resumed. */
static void note_users(const Heddle__V1__RemoveJobResponse *r)
{
    struct hd_text text = {0};

    if (!r->n_users)
        return;
    hd_text_add(&text,
                "heddle: named by the job files of ended jobs, which keep their own files: ");
    for (size_t i = 0; i < r->n_users; i++)
        hd_text_add(&text, "%s%llu", i ? ", " : "", (unsigned long long)r->users[i]);
    hd_text_add(&text, "; one without a checkpoint of its own cannot be resumed then");
    cli_note_text(&text);
}

/* Shows what would be removed and asks whether to. Returns CLI_CONTINUE if all jobs may be removed.
 */
static int show_what_goes(struct cli *cli, const uint64_t *jobs, int count)
{
    int code = CLI_CONTINUE;

    for (int i = 0; i < count; i++) {
        Heddle__V1__RemoveJobResponse *response = NULL;
        struct hd_text line = {0};
        char size[32];
        const int one =
            cli_remove(cli, &(struct cli_removal){.job = jobs[i], .check = true}, &response);

        if (one != CLI_CONTINUE) {
            code = one;
            continue;
        }
        hd_text_format_bytes(response->checkpoint_bytes, size);
        cli_say(&line, response, "job {job.job} {job.name} ({job.state}): ");
        if (response->checkpoints)
            hd_text_add(&line, "%lld checkpoint%s, %s, and all else in ",
                        (long long)response->checkpoints, response->checkpoints == 1 ? "" : "s",
                        size);
        else
            hd_text_add(&line, "no checkpoint; all in ");
        cli_say(&line, response, "{job.directory}");
        cli_note_text(&line);
        note_users(response);
        hd_rpc_message_free(&response->base);
    }
    return code;
}

static void show_removed_job(struct hd_json_writer *w, const void *item)
{
    const Heddle__V1__RemoveJobResponse *r = item;

    show_members(w, &r->job->base, "job name directory");
    show_members(w, &r->base, "checkpoints checkpoint_bytes waits_for?");
}

static const struct rows_kind removed_rows = {
    "RemovedJobList", "removed_job", .show = show_removed_job,
    .text = "job {job.job} removed[; its files on node {waits_for} go when that node is "
            "connected again]\n"};

static int remove_all(struct cli *cli, const uint64_t *jobs, int count)
{
    struct cli_rows rows;
    int code = CLI_CONTINUE, end;

    rows_begin(&rows, cli, &removed_rows);
    for (int i = 0; i < count; i++) { /* a failure does not stop the remaining jobs */
        Heddle__V1__RemoveJobResponse *response = NULL;
        const int one = cli_remove(cli, &(struct cli_removal){.job = jobs[i]}, &response);

        if (one != CLI_CONTINUE) {
            code = one;
            continue;
        }
        rows_add(&rows, response);
        hd_rpc_message_free(&response->base);
    }
    end = rows_end(&rows, CLI_CONTINUE);
    return code == CLI_CONTINUE ? end : code;
}

static int confirm_jobs(int count)
{
    char question[64];

    (void)snprintf(question, sizeof question, count == 1 ? "remove it?" : "remove all %d?", count);
    return cli_confirm(question, "nothing was removed",
                       count == 1 ? "to remove the job, add --yes"
                                  : "to remove these jobs, add --yes");
}

static int cli_rm(struct cli *cli, int argc, char **argv)
{
    struct cli_picked jobs = {.count = 0};
    bool yes = false;
    const struct cli_flag flags[] = {
        {"yes", 'y', CLI_FLAG_BOOL, &yes, .help = "do not ask"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, CLI_ARGS_ANY);

    if (code == CLI_CONTINUE)
        code = cli_find_jobs(cli, 0, CLI_PICK_ENDED, &jobs);
    if (code == CLI_CONTINUE && !yes)
        code = show_what_goes(cli, jobs.numbers, (int)jobs.count);
    if (code == CLI_CONTINUE && !yes)
        code = confirm_jobs((int)jobs.count);
    if (code == CLI_CONTINUE)
        code = remove_all(cli, jobs.numbers, (int)jobs.count);
    cli_free_jobs(&jobs);
    return code;
}

const struct cli_body cli_body_rm = {
    .usage = "Usage: heddle rm JOB|PATTERN... [--yes] [-o FORMAT]\n",
    .about = "Removes jobs that have ended, for good: from all lists, and their folders in the\n"
             "jobs directory with all checkpoints, which the nodes that ran them delete. Says\n"
             "what will go, and asks. A PATTERN such as 'sweep-*' means all jobs of such names\n"
             "that have ended. A job whose files a job that has not ended names, as in\n"
             "train.init_from, is not removed.\n",
    .examples = "heddle rm 7 8",
    .run = cli_rm,
};
