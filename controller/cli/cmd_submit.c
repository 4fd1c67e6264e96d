/* submit: gives a job to the controller. */
#include "controller/cli/submit.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "controller/cli/data_check.h"
#include "controller/cli/plan_file.h"
#include "controller/cli/show.h"
#include "controller/cli/watch.h"
#include "hf/hf.h"
#include "plan/plan.h"
#include "spec/spec.h"

enum {
    SUBMIT_TRIES = 6,
    SUBMIT_PAUSE_MS = 300,
    /* time after which no further try starts, ms; one try may last 20 s */
    SUBMIT_PATIENCE_MS = 30000,
};

/* Makes a random request id. The controller stores it with the job, so that a repeated request
 * makes no second job. */
static enum hd_status make_request_id(char ret_id[CLI_REQUEST_ID_MAX])
{
    unsigned char bytes[16];
    enum hd_status st = hd_random_bytes(bytes, sizeof bytes);

    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(ret_id + 2 * i, 3, "%02x", bytes[i]);
    return st;
}

/* Returns whether the controller may have taken a failed request: its answer was lost, or waits for
 * a disk. After any other failure no job was made. */
static bool may_have_happened(enum hd_status st)
{
    return st == HD_UNAVAILABLE || st == HD_TIMEOUT || st == HD_ABORTED || st == HD_IO ||
           st == HD_INTERNAL;
}

/* Submits the job again and again until the controller answers. Sets ret_id to the request id used,
 * and *ret_uncertain if the job may exist in spite of a failure. */
static int submit_spec(struct cli *cli, const struct hd_job *job, const char *request_id,
                       char ret_id[CLI_REQUEST_ID_MAX], bool *ret_uncertain,
                       Heddle__V1__SubmitJobResponse **ret_response)
{
    Heddle__V1__SubmitJobRequest request = HEDDLE__V1__SUBMIT_JOB_REQUEST__INIT;
    const int64_t end_ms = hd_clock_now_ms() + SUBMIT_PATIENCE_MS;
    char *id = ret_id;
    enum hd_status st = HD_OK;
    struct hd_arena arena;

    *ret_uncertain = false;
    if (!request_id)
        st = make_request_id(id);
    request.request_id = request_id ? (char *)request_id : id;
    hd_arena_init(&arena, 0);
    request.spec = hd_spec_to_message(job, &arena);
    if (!st && !request.spec)
        st = hd_err(HD_NO_MEMORY, "no memory for a job");
    for (int try = 0; !st; try++) {
        st = cli_try_call(cli, "SubmitJob", &heddle__v1__submit_job_response__descriptor,
                          &request.base, ret_response);
        if (!st)
            break;
        *ret_uncertain |= may_have_happened(st); /* true if any try may have made the job */
        if ((st != HD_UNAVAILABLE && st != HD_TIMEOUT && st != HD_ABORTED) || try == SUBMIT_TRIES ||
            hd_clock_now_ms() >= end_ms)
            break;
        (void)nanosleep(&(struct timespec){.tv_nsec = SUBMIT_PAUSE_MS * 1000000L}, NULL);
        st = HD_OK; /* retry with the same request id */
    }
    hd_arena_done(&arena);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

int cli_submit_spec(struct cli *cli, const struct hd_job *job, const char *request_id,
                    Heddle__V1__SubmitJobResponse **ret_response)
{
    char id[CLI_REQUEST_ID_MAX];
    bool uncertain;

    return submit_spec(cli, job, request_id, id, &uncertain, ret_response);
}

static void print_submitted(struct cli *cli, const Heddle__V1__JobStatus *job, bool quiet)
{
    struct hd_text out = {0};

    if (!quiet) {
        show_one_job(cli, job, true);
        return;
    }
    hd_text_add(&out, "%llu\n", (unsigned long long)job->job);
    (void)cli_out(&out);
    hd_text_free(&out);
}

static int submit_and_watch(struct cli *cli, const struct hd_job *job, const char *request_id,
                            bool watch, bool quiet, bool times)
{
    Heddle__V1__SubmitJobResponse *response = NULL;
    struct watch_options options = {.quiet = quiet, .times = times};
    char id[CLI_REQUEST_ID_MAX];
    bool uncertain;
    int code = submit_spec(cli, job, request_id, id, &uncertain, &response);

    if (code != CLI_CONTINUE && uncertain && !request_id) {
        cli_note("heddle: the controller may have accepted the job before its answer was lost;");
        cli_note("  to try again without making a second job: heddle submit --request-id %s", id);
    }
    if (code != CLI_CONTINUE)
        return code;
    cli_warn(response->warning);
    options.job = response->job->job;
    if (!watch || (cli->format <= CLI_WIDE && !quiet))
        print_submitted(cli, response->job, quiet);
    if (!watch && !quiet && cli->format <= CLI_WIDE)
        cli_note("  next: heddle watch %llu | heddle logs -f %llu | heddle cancel %llu",
                 (unsigned long long)options.job, (unsigned long long)options.job,
                 (unsigned long long)options.job);
    hd_rpc_message_free(&response->base);
    if (!watch) {
        code = cli_out_end(CLI_OK);
        if (code != CLI_OK)
            cli_note("heddle: the job was submitted nevertheless; it is job %llu",
                     (unsigned long long)options.job);
        return code;
    }
    code = cli_watch_job(cli, &options);
    if (cli_is_interrupted(code))
        cli_note("heddle: the watching has ended; job %llu goes on if it has not ended; heddle "
                 "watch %llu | heddle cancel "
                 "%llu",
                 (unsigned long long)options.job, (unsigned long long)options.job,
                 (unsigned long long)options.job);
    cli_print_next_commands(cli, options.job, code);
    return code;
}

/* Has the controller check the job without submitting it. */
static int dry_run(struct cli *cli, const struct hd_job *job, bool quiet)
{
    Heddle__V1__ValidateJobRequest request = HEDDLE__V1__VALIDATE_JOB_REQUEST__INIT;
    Heddle__V1__ValidateJobResponse *verdict = NULL;
    struct hd_text out = {0};
    struct show_list list;
    struct hd_arena arena;
    int code;

    hd_arena_init(&arena, 0);
    request.spec = hd_spec_to_message(job, &arena);
    code = request.spec
               ? cli_call(cli, "ValidateJob", &heddle__v1__validate_job_response__descriptor,
                          &request.base, &verdict)
               : cli_fail(hd_err(HD_NO_MEMORY, "no memory for a job"));
    hd_arena_done(&arena);
    if (code != CLI_CONTINUE)
        return code;
    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "VerdictList", "verdict");
        show_item_begin(&list);
        hd_json_add_string(&list.writer, "name", job->name);
        hd_json_add_bool(&list.writer, "accepted", true);
        hd_json_add_bool(&list.writer, "fits_now", verdict->fits_now);
        hd_json_add_string(&list.writer, "reason", verdict->reason);
        show_item_end(&list);
        show_list_end(&list);
    } else if (!quiet) {
        hd_text_add(&out, "%s would be taken, and would %s", job->name,
                    verdict->fits_now ? "start now" : "wait: ");
        if (!verdict->fits_now)
            cli_add_people(&out, verdict->reason);
        hd_text_add(&out, "; nothing was submitted\n");
    }
    (void)cli_out(&out);
    hd_text_free(&out);
    hd_rpc_message_free(&verdict->base);
    return cli_out_end(CLI_OK);
}

int cli_submit(struct cli *cli, int argc, char **argv)
{
    bool watch = false, quiet = false, times = false, dry = false;
    const char *request_id = NULL, *plan = NULL;
    struct cli_list overrides = {.count = 0};
    const struct hd_json *epoch = NULL;
    struct hd_job *job = NULL;
    struct hd_arena arena;
    const struct cli_flag flags[] = {
        {"watch", 'w', CLI_FLAG_BOOL, &watch, 0, 0},
        {"set", 0, CLI_FLAG_LIST, &overrides, 0, 0},
        {"quiet", 'q', CLI_FLAG_BOOL, &quiet, 0, 0},
        {"times", 0, CLI_FLAG_BOOL, &times, 0, 0},
        {"request-id", 0, CLI_FLAG_TEXT, &request_id, 0, 0},
        {"plan", 0, CLI_FLAG_TEXT, &plan, 0, 0},
        {"dry-run", 0, CLI_FLAG_BOOL, &dry, 0, 0},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE && dry && (watch || request_id))
        code = cli_usage("submit: --dry-run submits nothing: leave out %s",
                         watch ? "--watch" : "--request-id");
    hd_arena_init(&arena, 0);
    if (code == CLI_CONTINUE && plan)
        code = plan_file_read_job(cli->args[0], plan, &overrides, &arena, &job);
    else if (code == CLI_CONTINUE)
        code = dry ? cli_read_spec_and_epoch(cli->args[0], &overrides, &arena, &job, &epoch)
                   : cli_read_spec(cli->args[0], &overrides, &arena, &job);
    if (code == CLI_CONTINUE) /* before the connection starts threads */
        code = data_check_tokenizer(job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = dry ? dry_run(cli, job, quiet)
                   : submit_and_watch(cli, job, request_id, watch, quiet, times);
    hd_arena_done(&arena);
    return code;
}
