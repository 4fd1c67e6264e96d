/* resume, requeue: continues jobs; and prints how to continue a job that has ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "controller/cli/rows.h"
#include "controller/cli/submit.h"
#include "hf/hf.h"
#include "spec/spec.h"

/* Clears the stored weights path if it came with model.from or train.continue_from and an override
 * changes that key: the new folder then supplies the weights. */
static void follow_model(const struct cli_list *overrides, struct hd_job *stored)
{
    for (size_t i = 0; i < overrides->count; i++)
        if (((hd_text_starts(overrides->items[i], "model.from=") ||
              hd_text_starts(overrides->items[i], "model=")) &&
             strcmp(stored->init_from, stored->from_dir) == 0) ||
            hd_text_starts(overrides->items[i], "train.continue_from="))
            stored->init_from = "";
}

/* Returns the error of a changed job. If a change is to a key that cannot change, reports that
 * instead of its consequences. */
static enum hd_status refuse_fixed(const struct cli_list *overrides, const struct hd_job *stored,
                                   enum hd_status st)
{
    for (size_t i = 0; i < overrides->count; i++) {
        const char *item = overrides->items[i], *value = strchr(item, '=');
        struct hd_text path = {0}, before = {0};
        const struct hd_key *key;
        bool changes;

        hd_text_add(&path, "%.*s", value ? (int)(value - item) : 0, item);
        key = path.data && *path.data ? hd_job_find_key(path.data) : NULL;
        if (!key && path.data)
            key = hd_spec_find_renamed(path.data);
        changes = key && key->kind != HD_KEY_FORM && hd_job_key_is_fixed(key) &&
                  !hd_job_format(key, stored, &before) &&
                  strcmp(before.data ? before.data : "", value + 1) != 0;
        hd_text_free(&path);
        hd_text_free(&before);
        if (changes)
            return hd_err(st, HD_JOB_KEY_FIXED, key->path);
    }
    return st;
}

enum hd_status cli_change_spec(const Heddle__V1__JobStatus *status,
                               const struct cli_list *overrides, struct hd_arena *arena,
                               struct hd_job *ret_job)
{
    struct hd_job *stored = NULL;
    struct hd_text text = {0};
    struct hd_json_writer writer = {.out = &text};
    char *folder =
        /* stored paths are absolute; paths in --set are relative to the working directory */
        getcwd(NULL, 0);
    char name[48];
    enum hd_status st = cli_open_spec(status->spec, arena, &stored);

    if (!st) {
        follow_model(overrides, stored);
        hd_spec_add_file_json(stored, NULL, &writer);
        if (text.failed)
            st = hd_err(HD_NO_MEMORY, "no memory for a job");
    }
    if (!st) {
        const struct hd_spec_source source = {.name = name,
                                              .folder = folder ? folder : "/",
                                              .bytes = text.data,
                                              .size_bytes = text.len_bytes,
                                              .overrides = overrides->items,
                                              .override_count = overrides->count,
                                              .is_stored = true};

        (void)snprintf(name, sizeof name, "job %llu", (unsigned long long)status->job);
        st = hd_spec_read_yaml(&source, arena, ret_job);
        if (st == HD_INVALID)
            st = refuse_fixed(overrides, stored, st);
        if (!st && ret_job->steps == HD_SPEC_STEPS_UNKNOWN)
            st = hd_err(HD_INVALID,
                        "--set train.epochs: what an epoch is was counted when the job was "
                        "submitted; give train.steps");
    }
    hd_text_free(&text);
    free(folder);
    return st;
}

/* Checks that the base model's folder exists and has the weights with which the job began: each
 * attempt reads them again, since checkpoints leave them out. Only a machine that has the job's
 * data can tell that the folder is gone; elsewhere the nodes may still read it. */
static enum hd_status check_base(const Heddle__V1__JobStatus *status, struct hd_arena *arena)
{
    const unsigned long long number = (unsigned long long)status->job;
    char is[HD_HASH_TEXT_MAX];
    struct hd_job *job = NULL;
    enum hd_status st = cli_open_spec(status->spec, arena, &job);
    uint64_t hash = 0;

    if (st || job->checkpoint_base != HD_JOB_CHECKPOINT_BASE_OMIT || !job->train_count ||
        !hd_file_exists(job->train[0].path))
        return st;
    if (!hd_file_exists(job->init_from))
        return hd_err(HD_INVALID,
                      "the model that job %llu trains an adapter of is not in %s, and its "
                      "checkpoints leave it out; put it back, or name its folder: heddle resume "
                      "%llu --set model.from=DIR --set train.init_from=DIR",
                      number, job->init_from, number);
    if (hd_source_identity(job->init_from, &hash))
        return HD_OK;
    hd_hash_format(hash, is);
    if (!*job->init_identity || strcmp(is, job->init_identity) == 0)
        return HD_OK;
    return hd_err(
        HD_INVALID,
        "the weights in %s are not those with which job %llu began: they were changed, or "
        "it is another model; put them back, or name a folder that has them: heddle "
        "resume %llu --set model.from=DIR --set train.init_from=DIR",
        job->init_from, number, number);
}

/* Checks the job that is to continue. With changes, sets request->spec to the job's own spec with
 * these changes. */
static int prepare(struct cli *cli, const struct cli_list *overrides, struct hd_arena *arena,
                   Heddle__V1__ResumeJobRequest *request)
{
    Heddle__V1__GetJobResponse *response = NULL;
    struct hd_job *job = hd_arena_alloc(arena, sizeof *job);
    enum hd_status st = job ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a job");
    int code = cli_get_job(cli, request->job, &response);

    if (code != CLI_CONTINUE)
        return code;
    if (!st && (!response->job || !response->job->spec))
        st = hd_err(HD_CORRUPT, "the controller's answer has no job file");
    if (!st)
        st = overrides->count ? cli_change_spec(response->job, overrides, arena, job)
                              : check_base(response->job, arena);
    code = !st && overrides->count ? cli_find_after(cli, job) : CLI_CONTINUE;
    if (!st && overrides->count && code == CLI_CONTINUE)
        code = cli_pack_spec(job, arena, &request->spec);
    hd_rpc_message_free(&response->base);
    return st ? cli_fail(st) : code;
}

static int cli_resume(struct cli *cli, int argc, char **argv)
{
    struct cli_list overrides = {.count = 0};
    const struct cli_flag flags[] = {
        {"set", 0, CLI_FLAG_LIST, &overrides, "KEY=VALUE",
         .help = "change a key of the job file, such as train.steps=2000 or\n"
                 "train.lr.peak=1e-4. The model, the data, train.seed,\n"
                 "train.global_batch and train.init_from cannot change.\n"
                 "Warm-up and decay that the job file left to their defaults\n"
                 "follow the new train.steps."},
    };
    Heddle__V1__ResumeJobRequest request = HEDDLE__V1__RESUME_JOB_REQUEST__INIT;
    Heddle__V1__ResumeJobResponse *response = NULL;
    struct hd_arena arena;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    hd_arena_init(&arena, 0);
    if (code == CLI_CONTINUE)
        code = cli_find_job(cli, cli->args[0], &request.job);
    if (code == CLI_CONTINUE)
        code = prepare(cli, &overrides, &arena, &request);
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "ResumeJob", &request.base, &response);
    hd_arena_done(&arena);
    if (code != CLI_CONTINUE)
        return code;
    code = rows_print_one(cli, &rows_job_state, response->job);
    if (cli->format <= CLI_WIDE)
        cli_note("  next: heddle watch %llu | heddle logs -f %llu | heddle cancel %llu",
                 (unsigned long long)request.job, (unsigned long long)request.job,
                 (unsigned long long)request.job);
    hd_rpc_message_free(&response->base);
    return code;
}

const struct cli_body cli_body_resume = {
    .usage = "Usage: heddle resume JOB [--set KEY=VALUE]... [-o FORMAT]\n",
    .about = "Lets a job that failed, was cancelled or succeeded go on: a new attempt starts\n"
             "from its newest sound checkpoint. What a run that diverged has written after its\n"
             "last finite loss is not sound.\n",
    .examples = "heddle resume 7 --set train.steps=2000",
    .run = cli_resume,
};

static int cli_requeue(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__RequeueJobRequest request = HEDDLE__V1__REQUEUE_JOB_REQUEST__INIT;
    int code = cli_parse_job(cli, argc, argv, false, &request.job);

    return code == CLI_CONTINUE ? rows_ask(cli, "RequeueJob", &request.base, "job", &rows_job_state)
                                : code;
}

const struct cli_body cli_body_requeue = {
    .usage = "Usage: heddle requeue JOB [-o FORMAT]\n",
    .about = "Stops a running job at a checkpoint, frees its devices and queues it again. Its\n"
             "next attempt starts from that checkpoint.\n",
    .examples = "heddle requeue 7",
    .run = cli_requeue,
};

/* ---- the way on -------------------------------------------------------------------------------*/

/* Suggests a tenth of the learning rate: a run that diverged would diverge again. */
static void add_lower_rate(const Heddle__V1__JobStatus *status, struct hd_text *out)
{
    struct hd_arena arena;
    struct hd_job *job;

    hd_arena_init(&arena, 0);
    if (status->spec && !cli_open_spec(status->spec, &arena, &job)) {
        char peak[32];

        (void)snprintf(peak, sizeof peak, "%.3g", job->lr_peak / 10);
        hd_text_add(out, " --set train.lr.peak=%s", peak);
        /* the rules of a job file forbid lr_min above the peak */
        if (job->lr_min > strtod(peak, NULL))
            hd_text_add(out, " --set train.lr.min=%.3g", job->lr_peak / 100);
    }
    hd_arena_done(&arena);
}

static bool has_diverged(const Heddle__V1__JobStatus *status)
{
    const Heddle__V1__AttemptStatus *newest =
        status->n_attempts ? status->attempts[status->n_attempts - 1] : NULL;

    return status->state == HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED && newest && newest->end &&
           newest->end->cause == HEDDLE__V1__END_CAUSE__END_CAUSE_DIVERGED;
}

/* Says from which step the next attempt starts and, if steps were not saved, how many are lost. */
static void add_start(const Heddle__V1__JobStatus *status, struct hd_text *text)
{
    if (!status || !status->step)
        return;
    if (!status->checkpoint_step)
        hd_text_add(text, " from the start, as no checkpoint was written");
    else
        hd_text_add(text, " from the checkpoint of step %lld", (long long)status->checkpoint_step);
    if (status->checkpoint_step && status->step > status->checkpoint_step)
        hd_text_add(text, " (%lld later steps were not saved)",
                    (long long)(status->step - status->checkpoint_step));
}

/* Suggests what to change after a divergence; the data may be the cause of a spike. */
static void add_remedy(const Heddle__V1__JobStatus *status, struct hd_text *line)
{
    const char *message = status->attempts[status->n_attempts - 1]->end->message;

    if (strstr(message, HD_JOB_GUARD_STOPS)) {
        cli_note("heddle: to train on without the step of the spike, from the newest checkpoint "
                 "that is proven, or from the start if there is none:");
        hd_text_add(line, " --set train.guard.action=skip");
        return;
    }
    cli_note("heddle: to train on with a lower learning rate, from the newest checkpoint "
             "before it diverged, or from the start if there is none:");
    add_lower_rate(status, line);
}

void cli_print_next_commands_by(struct cli *cli, uint64_t job, const char *resume)
{
    Heddle__V1__GetJobRequest request = HEDDLE__V1__GET_JOB_REQUEST__INIT;
    Heddle__V1__GetJobResponse *response = NULL;
    struct hd_text line = {0}, from = {0};
    bool diverged, has_failed;

    request.job = job;
    if (!job || cli_try_call(cli, "GetJob", &request.base, &response))
        response = NULL;
    diverged = response && response->job && has_diverged(response->job);
    has_failed = response && response->job &&
                 response->job->state == HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED;
    hd_text_add(&line, "  %s", resume);
    if (diverged) {
        add_remedy(response->job, &line);
    } else {
        add_start(response ? response->job : NULL, &from);
        cli_note("heddle: to go on%s%s:", from.failed || !from.data ? "" : from.data,
                 has_failed ? ", once the cause is mended" : "");
        hd_text_free(&from);
    }
    cli_note_text(&line);
    if (response)
        hd_rpc_message_free(&response->base);
}

void cli_print_next_commands(struct cli *cli, uint64_t job, int code)
{
    const char *const flags[][2] = {{"--controller", cli->controller},
                                    {"--token-file", cli->token_file},
                                    {"--tls-ca", cli->tls_ca}};
    struct hd_text resume = {0};

    if (code != CLI_JOB_FAILED)
        return;
    hd_text_add(&resume, "heddle resume %llu", (unsigned long long)job);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (!flags[i][1])
            continue;
        hd_text_add(&resume, " %s ", flags[i][0]);
        cli_add_quoted(&resume, flags[i][1]);
    }
    if (!resume.failed)
        cli_print_next_commands_by(cli, job, resume.data);
    hd_text_free(&resume);
}
