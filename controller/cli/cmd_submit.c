/* submit: a job file on its way to the controller. */
#include "controller/cli/submit.h"

#include <stdio.h>
#include <time.h>

#include "base/random.h"
#include "checkpoint/hf.h"
#include "controller/cli/show.h"
#include "controller/cli/watch.h"
#include "spec/spec.h"

enum { SUBMIT_TRIES = 6, SUBMIT_PAUSE_MS = 300 };

/* What its config.json asks for and is not done. That it can be read was found by reading the job.
 */
static void note_model(const Heddle__V1__ModelSpec *model)
{
    struct hd_text notes = {0};
    struct hd_job job = {0};

    if (*model->from_dir && !hd_source_is_checkpoint(model->from_dir) &&
        !hd_hf_read_config(model->from_dir, &job, &notes) && notes.len_bytes)
        cli_note("heddle: model.from: %s", notes.data);
    hd_text_free(&notes);
}

int cli_read_spec(const char *path, const struct cli_list *overrides,
                  Heddle__V1__JobSpec **ret_spec)
{
    enum hd_status st = hd_spec_read_file(path, overrides->items, overrides->count, ret_spec);
    struct hd_text line = {0};

    if (!st) {
        note_model((*ret_spec)->model);
        return CLI_CONTINUE;
    }
    cli_add_clean(&line, hd_err_message()); /* FILE:LINE: first, where editors look for it */
    hd_text_add(&line, "\n");
    if (!line.failed)
        (void)fputs(line.data, stderr);
    hd_text_free(&line);
    return st == HD_INVALID || st == HD_UNSUPPORTED || st == HD_NOT_FOUND ? CLI_USAGE
                                                                          : cli_exit_of(st);
}

/* The controller knows a job by this for ever: a repeat after a lost reply makes no second job. */
static enum hd_status make_request_id(char ret_id[CLI_REQUEST_ID_MAX])
{
    unsigned char bytes[16];
    enum hd_status st = hd_random_bytes(bytes, sizeof bytes);

    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(ret_id + 2 * i, 3, "%02x", bytes[i]);
    return st;
}

/* ret_id: what the controller knows the request by. */
static int submit_spec(struct cli *cli, Heddle__V1__JobSpec *spec, const char *request_id,
                       char ret_id[CLI_REQUEST_ID_MAX],
                       Heddle__V1__SubmitJobResponse **ret_response)
{
    Heddle__V1__SubmitJobRequest request = HEDDLE__V1__SUBMIT_JOB_REQUEST__INIT;
    char *id = ret_id;
    enum hd_status st = HD_OK;

    if (!request_id)
        st = make_request_id(id);
    request.request_id = request_id ? (char *)request_id : id;
    request.spec = spec;
    for (int try = 0; !st; try++) {
        st = cli_try_call(cli, "SubmitJob", &heddle__v1__submit_job_response__descriptor,
                          &request.base, ret_response);
        if (!st)
            return CLI_CONTINUE;
        if ((st != HD_UNAVAILABLE && st != HD_TIMEOUT && st != HD_ABORTED) || try == SUBMIT_TRIES)
            break;
        (void)nanosleep(&(struct timespec){.tv_nsec = SUBMIT_PAUSE_MS * 1000000L}, NULL);
        st = HD_OK; /* the same request id again */
    }
    return cli_fail(st);
}

int cli_submit_spec(struct cli *cli, Heddle__V1__JobSpec *spec, const char *request_id,
                    Heddle__V1__SubmitJobResponse **ret_response)
{
    char id[CLI_REQUEST_ID_MAX];

    return submit_spec(cli, spec, request_id, id, ret_response);
}

static void print_submitted(struct cli *cli, const Heddle__V1__JobStatus *job, bool quiet)
{
    struct hd_text out = {0};
    struct show_list list;
    char word[CLI_WORD_MAX];

    if (quiet) {
        hd_text_add(&out, "%llu\n", (unsigned long long)job->job);
    } else if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "JobList", "job");
        show_item_begin(&list);
        show_job(&list.writer, job, false);
        show_item_end(&list);
        show_list_end(&list);
    } else {
        hd_text_add(&out, "job %llu ", (unsigned long long)job->job);
        cli_add_clean(&out, job->name);
        hd_text_add(&out, " %s", cli_job_state(job->state, word));
        if (*job->reason) {
            hd_text_add(&out, ": ");
            cli_add_clean(&out, job->reason);
        }
        hd_text_add(&out, "\n");
    }
    (void)cli_out(&out);
    hd_text_free(&out);
}

static int submit(struct cli *cli, Heddle__V1__JobSpec *spec, const char *request_id, bool watch,
                  bool quiet)
{
    Heddle__V1__SubmitJobResponse *response = NULL;
    struct watch_options options = {0};
    char id[CLI_REQUEST_ID_MAX];
    int code = submit_spec(cli, spec, request_id, id, &response);

    if ((code == CLI_UNREACHABLE || code == CLI_FAILED) && !request_id)
        cli_note("  the job may have been accepted all the same; submitted again with\n"
                 "  --request-id %s  it is never a second one",
                 id);
    if (code != CLI_CONTINUE)
        return code;
    options.job = response->job->job;
    if (!watch || (cli->format <= CLI_WIDE && !quiet))
        print_submitted(cli, response->job, quiet);
    if (!watch && !quiet && cli->format <= CLI_WIDE)
        cli_note("  next: heddle watch %llu | heddle logs -f %llu | heddle cancel %llu",
                 (unsigned long long)options.job, (unsigned long long)options.job,
                 (unsigned long long)options.job);
    hd_rpc_message_free(&response->base);
    if (!watch)
        return cli_out_end(CLI_OK);
    options.quiet = quiet;
    code = cli_watch_job(cli, &options);
    if (code == CLI_INTERRUPTED)
        cli_note("heddle: job %llu goes on; heddle watch %llu | heddle cancel %llu",
                 (unsigned long long)options.job, (unsigned long long)options.job,
                 (unsigned long long)options.job);
    return code;
}

int cli_submit(struct cli *cli, int argc, char **argv)
{
    bool watch = false, quiet = false;
    const char *request_id = NULL;
    struct cli_list overrides = {.count = 0};
    Heddle__V1__JobSpec *spec = NULL;
    const struct cli_flag flags[] = {
        {"watch", 'w', CLI_FLAG_BOOL, &watch, 0, 0},
        {"set", 0, CLI_FLAG_LIST, &overrides, 0, 0},
        {"quiet", 'q', CLI_FLAG_BOOL, &quiet, 0, 0},
        {"request-id", 0, CLI_FLAG_TEXT, &request_id, 0, 0},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_read_spec(cli->args[0], &overrides, &spec);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = submit(cli, spec, request_id, watch, quiet);
    hd_spec_free(spec);
    return code;
}
