/* watch, wait: a job as it goes on, and its end. */
#include "controller/cli/watch.h"

int cli_watch(struct cli *cli, int argc, char **argv)
{
    struct watch_options options = {0};
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_parse_job(cli->args[0], &options.job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_watch_job(cli, &options);
    if (code == CLI_INTERRUPTED)
        cli_note("heddle: job %s goes on; heddle watch %s | heddle cancel %s", cli->args[0],
                 cli->args[0], cli->args[0]);
    return code;
}

int cli_wait(struct cli *cli, int argc, char **argv)
{
    struct watch_options options = {.quiet = true};
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_parse_job(cli->args[0], &options.job);
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_watch_job(cli, &options);
    if (code == CLI_INTERRUPTED)
        cli_note("heddle: job %s goes on", cli->args[0]);
    return code;
}
