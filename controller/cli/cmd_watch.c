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

int cli_watch(struct cli *cli, int argc, char **argv)
{
    struct watch_options options = {0};
    const struct cli_flag flags[] = {
        {"times", 0, CLI_FLAG_BOOL, &options.times, 0, 0},
        {"log-every", 0, CLI_FLAG_INT, &options.log_every, 0, INT32_MAX},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_find_job_or_run(cli, cli->args[0], &options.job);
    options.one_machine = cli->run != NULL;
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_watch_job(cli, &options);
    if (cli_is_interrupted(code) && cli->run)
        cli_note("heddle: the watching has ended; the run goes on if it has not ended");
    else if (cli_is_interrupted(code))
        cli_note("heddle: the watching has ended; job %s goes on if it has not ended; heddle watch "
                 "%s | heddle cancel %s",
                 cli->args[0], cli->args[0], cli->args[0]);
    print_next(cli, options.job, code);
    return code;
}

int cli_wait(struct cli *cli, int argc, char **argv)
{
    struct watch_options options = {.quiet = true};
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_find_job_or_run(cli, cli->args[0], &options.job);
    options.one_machine = cli->run != NULL;
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_watch_job(cli, &options);
    if (cli_is_interrupted(code))
        cli_note("heddle: the waiting has ended, %s %s goes on", cli->run ? "run" : "job",
                 cli->args[0]);
    print_next(cli, options.job, code);
    return code;
}
