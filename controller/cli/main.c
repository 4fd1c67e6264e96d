/* heddle: the command line. One word chooses the verb, each verb is a row here. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "controller/cli/cli.h"
#include "spec/spec.h"

static int print_overview(FILE *to)
{
    (void)fputs("Usage: heddle COMMAND [ARGUMENTS]\n"
                "\n"
                "Trains language models: hands jobs to a controller and shows how they fare.\n"
                "\n",
                to);
    for (size_t i = 0; i < cli_command_count; i++)
        (void)fprintf(to, "  %-11s %s\n", cli_commands[i].name, cli_commands[i].summary);
    (void)fputs("\n"
                "Flags of every command:\n"
                "  --controller ADDR  unix:PATH or HOST:PORT; else HEDDLE_CONTROLLER, else the\n"
                "                     user's and the system's socket\n"
                "  --token-file FILE  your token for HOST:PORT; else HEDDLE_TOKEN_FILE\n"
                "  --tls-ca FILE      the authority of a HOST:PORT elsewhere; else HEDDLE_TLS_CA\n"
                "  --tls-cert FILE    your certificate and key; else HEDDLE_TLS_CERT\n"
                "  -o FORMAT          table, wide, json or jsonl (not where raw text is printed)\n"
                "  --color WHEN       auto, always or never; NO_COLOR is honoured\n"
                "  -h, --help         what a command does, with an example\n"
                "\n"
                "Exit codes: 0 success, 1 the job failed or was cancelled, 2 usage or bad input,\n"
                "3 controller not reachable, 4 not found, 5 not permitted, 6 the command itself\n"
                "failed, 130 Ctrl-C.\n"
                "\n"
                "Example:\n"
                "  heddle local job.yaml\n",
                to);
    return to == stdout ? cli_out_end(CLI_OK) : CLI_USAGE;
}

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < cli_command_count; i++)
        if (strcmp(cli_commands[i].name, name) == 0)
            return &cli_commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[64], *nearest;

    for (size_t i = 0; i < cli_command_count; i++)
        names[i] = cli_commands[i].name;
    nearest = hd_text_nearest(name, names, cli_command_count);
    if (nearest)
        return cli_usage("there is no command %s; did you mean heddle %s?", name, nearest);
    return cli_usage("there is no command %s; heddle --help lists them", name);
}

static bool is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* Ends the program. To take gRPC down in order means to join six threads, a fifth of the time of a
 * short command, and the kernel closes the connection as well; a build with sanitizers does it, so
 * that leaks are found. */
static int end(struct cli *cli, int code)
{
#ifndef HEDDLE_SANITIZED
    if (fflush(NULL) == 0)
        _exit(code);
#endif
    cli_disconnect(cli);
    return code;
}

int main(int argc, char **argv)
{
    struct cli cli = {.format = CLI_TABLE};
    const struct cli_command *command;

    (void)setlocale(LC_CTYPE, ""); /* widths of characters; numbers stay as in C */
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 2)
        return print_overview(stderr);
    if (is_help(argv[1]) && argc == 2)
        return print_overview(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("heddle %s\n", HEDDLE_VERSION);
        return cli_out_end(CLI_OK);
    }
    command = find_command(argv[is_help(argv[1]) ? 2 : 1]);
    if (!command)
        return unknown_command(argv[is_help(argv[1]) ? 2 : 1]);
    if (is_help(argv[1])) {
        (void)fputs(command->help, stdout);
        return cli_out_end(CLI_OK);
    }
    cli.command = command;
    return end(&cli, command->run(&cli, argc - 2, argv + 2));
}
