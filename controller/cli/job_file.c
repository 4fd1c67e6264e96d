/* job_file: reads a job file for a command and reports its mistakes. */
#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/data_check.h"
#include "controller/cli/fetch.h"
#include "controller/cli/submit.h"
#include "hf/hf.h"
#include "plan/plan.h"
#include "spec/spec.h"

/* Notes features of the model folder's config.json that Heddle does not support. Reading the job
 * file has already read the folder. */
static void note_model(const struct hd_job *job)
{
    struct hd_text notes = {0};
    struct hd_arena arena;
    struct hd_job theirs;

    hd_arena_init(&arena, 0);
    hd_job_init(&theirs, &arena);
    if (*job->from_dir && !hd_source_is_checkpoint(job->from_dir) &&
        !hd_hf_read_config(job->from_dir, &theirs, &notes) && notes.len_bytes)
        cli_note("heddle: model.from: %s", notes.data);
    hd_text_free(&notes);
    hd_arena_done(&arena);
}

/* Purposes of reading a job file. */
enum purpose { TO_RUN, TO_VALIDATE, TO_PLAN, TO_BE_LAID_OUT };

/* Prints each line of a text on stderr behind a prefix. lines: NULL: none. */
static void note_lines(const char *prefix, const char *lines)
{
    for (const char *at = lines; at && *at; at += strspn(at, "\n")) {
        const size_t n = strcspn(at, "\n");

        cli_note("%s%.*s", prefix, (int)n, at);
        at += n;
    }
}

/* Reads the job file once and prints its mistakes. epoch_steps: steps of one epoch; problem: what
 * is wrong with the data (struct hd_spec_source); names: of the hub, the same for each reading. */
static int read_job_file(const char *path, const struct cli_list *overrides, enum purpose purpose,
                         struct hd_text *missing_data, int64_t epoch_steps, const char *problem,
                         struct fetch_names *names, struct hd_arena *arena, struct hd_job **ret_job)
{
    struct hd_text notes = {0}, mistakes = {0}, old_names = {0};
    const struct hd_spec_source options = {
        .mistakes = &mistakes,
        .notes = epoch_steps || problem ? NULL : &notes, /* a second reading would repeat them */
        .old_names = purpose == TO_VALIDATE && !epoch_steps && !problem ? &old_names : NULL,
        .overrides = overrides->items,
        .override_origins = overrides->origins,
        .only_planned = purpose == TO_PLAN,
        .layout_follows = purpose == TO_BE_LAID_OUT,
        .missing_data = missing_data,
        .override_count = overrides->count,
        .epoch_steps = epoch_steps,
        .problem = problem,
        .locate = fetch_locate,
        .locate_user = names,
        .check = purpose == TO_BE_LAID_OUT ? NULL : hd_plan_check_weights};
    struct hd_job *job = hd_arena_alloc(arena, sizeof *job);
    enum hd_status st = job ? hd_spec_read_file(path, &options, arena, job)
                            : hd_err(HD_NO_MEMORY, "no memory for a job");
    struct hd_text line = {0};

    if (!st) {
        note_lines("heddle: ", notes.data);
        note_lines("", old_names.data); /* "FILE:LINE:" first, for editors */
    }
    hd_text_free(&notes);
    hd_text_free(&old_names);
    if (!st) {
        hd_text_free(&mistakes);
        if (!epoch_steps && !problem)
            note_model(job);
        *ret_job = job;
        return CLI_CONTINUE;
    }
    cli_add_clean(&line, hd_err_message()); /* "FILE:LINE:" first, for editors */
    hd_text_add(&line, "\n");
    cli_add_clean_lines(&line, "", mistakes.data ? mistakes.data : "");
    hd_text_free(&mistakes);
    if (!line.failed)
        (void)fputs(line.data, stderr);
    hd_text_free(&line);
    return st == HD_NOT_FOUND ? CLI_USAGE : fetch_exit_of(st);
}

void cli_print_problem(const char *path, const struct cli_list *overrides, bool only_planned,
                       struct hd_text *problem)
{
    struct hd_job *job = NULL;
    struct hd_arena arena;
    struct fetch_names names = {.arena = &arena};

    hd_arena_init(&arena, 0);
    /* standard input cannot be read twice, and the file may have changed since */
    if (strcmp(path, "-") == 0 ||
        read_job_file(path, overrides, only_planned ? TO_PLAN : TO_RUN, NULL, 0, problem->data,
                      &names, &arena, &job) == CLI_CONTINUE)
        cli_note("%s: %s", path, problem->data);
    hd_arena_done(&arena);
    hd_text_free(problem);
}

/* Reads the job file; with train.epochs twice: the steps of an epoch are known only from its data.
 */
static int read_spec(const char *path, const struct cli_list *overrides, enum purpose purpose,
                     struct hd_text *missing_data, struct hd_arena *arena, struct hd_job **ret_job,
                     const struct hd_json **ret_epoch)
{
    const struct hd_json *epoch = NULL;
    const struct hd_job *job;
    struct hd_text problem = {0};
    /* a plan or a check needs no weights, so it does not download any */
    struct fetch_names names = {.arena = arena,
                                .downloads = purpose == TO_RUN || purpose == TO_BE_LAID_OUT};
    int code =
        read_job_file(path, overrides, purpose, missing_data, 0, NULL, &names, arena, ret_job);

    *ret_epoch = NULL;
    if (code != CLI_CONTINUE || (*ret_job)->epochs == 0)
        return code;
    job = *ret_job;
    if (strcmp(path, "-") == 0)
        return cli_usage(
            "train.epochs: a job file of standard input cannot be read twice; give it a "
            "name, or give train.steps");
    if (missing_data && missing_data->len_bytes)
        return cli_usage("train.epochs: cannot be counted without the data: %s; give train.steps",
                         missing_data->data);
    code = data_check_epoch(job, arena, &epoch, &problem);
    if (problem.len_bytes)
        cli_print_problem(path, overrides, purpose == TO_PLAN, &problem);
    if (code != CLI_CONTINUE)
        return code;
    *ret_epoch = epoch;
    return read_job_file(path, overrides, purpose, missing_data,
                         hd_spec_epoch_steps(job, data_check_sequences(epoch)), NULL, &names, arena,
                         ret_job);
}

int cli_read_spec(const char *path, const struct cli_list *overrides, struct hd_arena *arena,
                  struct hd_job **ret_job)
{
    const struct hd_json *epoch;

    return read_spec(path, overrides, TO_RUN, NULL, arena, ret_job, &epoch);
}

int cli_read_spec_to_lay_out(const char *path, const struct cli_list *overrides,
                             struct hd_arena *arena, struct hd_job **ret_job)
{
    const struct hd_json *epoch;

    return read_spec(path, overrides, TO_BE_LAID_OUT, NULL, arena, ret_job, &epoch);
}

int cli_read_spec_and_epoch(const char *path, const struct cli_list *overrides,
                            struct hd_arena *arena, struct hd_job **ret_job,
                            const struct hd_json **ret_epoch)
{
    return read_spec(path, overrides, TO_VALIDATE, NULL, arena, ret_job, ret_epoch);
}

int cli_read_spec_to_plan(const char *path, const struct cli_list *overrides,
                          struct hd_text *missing_data, struct hd_arena *arena,
                          struct hd_job **ret_job, const struct hd_json **ret_epoch)
{
    return read_spec(path, overrides, TO_PLAN, missing_data, arena, ret_job, ret_epoch);
}

enum hd_status cli_open_spec(const Heddle__V1__JobSpec *spec, struct hd_arena *arena,
                             struct hd_job **ret_job)
{
    *ret_job = hd_arena_alloc(arena, sizeof **ret_job);
    return *ret_job ? hd_spec_from_message(spec, arena, *ret_job)
                    : hd_err(HD_NO_MEMORY, "no memory for a job");
}

int cli_pack_spec(const struct hd_job *job, struct hd_arena *arena, Heddle__V1__JobSpec **ret_spec)
{
    *ret_spec = hd_spec_to_message(job, arena);
    return *ret_spec ? CLI_CONTINUE : cli_fail(hd_err(HD_NO_MEMORY, "no memory for a job"));
}
