/* watch, wait: follow a job until it ends, with and without progress output. */
#include "controller/cli/submit.h"
#include "controller/cli/watch.h"

/* Prints the command that continues a job or run that failed. */
static void print_next(struct cli *cli, uint64_t job, int code)
{
    struct hd_text resume = {0};

    if (!cli->run) {
        cli_print_next_commands(cli, job, code);
        return;
    }
    hd_text_add(&resume, "heddle local --resume ");
    cli_add_quoted(&resume, cli->args[0]);
    if (code == CLI_JOB_FAILED && !resume.failed)
        cli_print_next_commands_by(cli, job, resume.data);
    hd_text_free(&resume);
}

/* Follows the job or run of the first argument to its end. */
static int follow_job(struct cli *cli, struct watch_options *options)
{
    const char *name = cli->args[0];
    int code = cli_find_job_or_run(cli, name, &options->job);

    options->one_machine = cli->run != NULL;
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_watch_job(cli, options);
    if (cli_is_interrupted(code) && options->quiet)
        cli_note("heddle: the waiting has ended, %s %s goes on", cli->run ? "run" : "job", name);
    else if (cli_is_interrupted(code) && cli->run)
        cli_note("heddle: the watching has ended; the run goes on if it has not ended");
    else if (cli_is_interrupted(code))
        cli_note("heddle: the watching has ended; job %s goes on if it has not ended; heddle watch "
                 "%s | heddle cancel %s",
                 name, name, name);
    print_next(cli, options->job, code);
    return code;
}

static int cli_watch(struct cli *cli, int argc, char **argv)
{
    struct watch_options options = {0};
    const struct cli_flag flags[] = {
        {"log-every", 0, CLI_FLAG_INT, &options.log_every, "N", .min = 0, .max = INT32_MAX,
         .help = "print every Nth step without a terminal; 0: about 100 lines"},
        {"times", 0, CLI_FLAG_BOOL, &options.times,
         .help = "lines of steps end with tokens per second, time and mfu"},
        {"-o jsonl", .kind = CLI_FLAG_NOTE,
         .help = "JSON, a line for each step, validation, event and the end:\n"
                 "\"type\" tells which"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    return code == CLI_CONTINUE ? follow_job(cli, &options) : code;
}

const struct cli_body cli_body_watch = {
    .usage = "Usage: heddle watch JOB|RUN [--log-every N] [--times] [-o FORMAT]\n",
    .about = "Follows a job to its end. Exit code 0 when it succeeded, 1 when it failed or\n"
             "was cancelled. Ctrl-C (130) and SIGTERM (143) end the watching, not the job.\n",
    .notes = "Without a terminal, standard output has steps, validations, checkpoints and the\n"
             "end, by step number. Without --times it is equal for equal runs of a job: diff\n"
             "compares them. Standard error says once a minute how far it is and how long yet.\n"
             "\n"
             "mfu = FLOPs per token x tokens per second / (peak x devices); FLOPs per token =\n"
             "6 x weights in matrices + 6 x layers x hidden x (context + 1); peak = what each\n"
             "rank measures at its start on its own threads.\n",
    .examples = "heddle watch 7 -o jsonl | jq 'select(.type == \"validation\").loss'",
    .run = cli_watch,
};

static int cli_wait(struct cli *cli, int argc, char **argv)
{
    struct watch_options options = {.quiet = true};
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    return code == CLI_CONTINUE ? follow_job(cli, &options) : code;
}

const struct cli_body cli_body_wait = {
    .usage = "Usage: heddle wait JOB|RUN\n",
    .about = "Waits for a job's end without showing its progress. Exit code 0 when it\n"
             "succeeded, 1 when it failed or was cancelled.\n",
    .examples = "heddle wait 7 && heddle generate 7 --prompt 'Once upon'",
    .run = cli_wait,
};
