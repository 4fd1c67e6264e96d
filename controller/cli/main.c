/* heddle: the command line. The first word chooses the command; each is a row of
 * commands.def. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/process.h"
#include "controller/cli/cli.h"
#include "controller/cli/run_control.h"
#include "version/version.h"

static int print_overview(FILE *to)
{
    struct hd_text text = {0};

    cli_overview(&text);
    (void)fputs(text.failed ? "heddle: no memory\n" : text.data, to);
    hd_text_free(&text);
    return to == stdout ? cli_out_end(CLI_OK) : CLI_USAGE;
}

static int print_help(const struct cli_command *command)
{
    struct hd_text text = {0};

    cli_add_help(command, &text);
    return cli_print(&text, CLI_OK);
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
    const char *habit = cli_habit(name), *nearest;
    struct hd_text verbs = {0};
    char word[CLI_NEAREST_MAX];

    if (*name == '-')
        return cli_usage("the command comes first, then its flags: heddle COMMAND %s",
                         cli_flag_habit(name) ? cli_flag_habit(name) : name);
    cli_add_verbs(name, &verbs);
    if (verbs.len_bytes && !verbs.failed)
        return cli_usage("%s: a verb is missing, or is none of these: %s", name, verbs.data);
    hd_text_free(&verbs);
    if (habit)
        return cli_usage("there is no command '%s'; %s", name, habit);
    nearest = cli_nearest(name, word);
    if (nearest && cli_habit(nearest))
        return cli_usage("there is no command '%s'; for '%s': %s", name, nearest,
                         cli_habit(nearest));
    if (nearest)
        return cli_usage("there is no command '%s'; did you mean heddle %s?", name, nearest);
    return cli_usage("there is no command '%s'; heddle --help lists them", name);
}

static bool is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* Ends the program without shutting gRPC down: joining its six threads takes a fifth of a short
 * command's time, and the kernel closes the connection as well. A build with sanitizers shuts it
 * down, so that leaks are found. */
static int end(struct cli *cli, int code)
{
    run_control_end(cli);
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
    char **words; /* words of the command, without the program's name and "help" */
    int count, code;
    bool help;

    if (!hd_process_prepare_or_tell("heddle", &(struct hd_process_needs){.files = 48}))
        return CLI_FAILED;
    (void)setlocale(LC_CTYPE, ""); /* character widths only; numbers keep the C format */
    (void)signal(SIGPIPE, SIG_IGN);
    hd_file_ignore_size_signal();
    if (argc < 2)
        return print_overview(stderr);
    if (is_help(argv[1]) && argc == 2)
        return print_overview(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("heddle %s\n", hd_version_text);
        return cli_out_end(CLI_OK);
    }
    help = is_help(argv[1]);
    words = argv + 1 + help;
    count = argc - 1 - help;
    if (count >= 2 && cli_replace_alias(words)) {
        words++;
        count--;
    }
    command = find_command(words[0]);
    if (!command)
        return unknown_command(words[0]);
    if (help)
        return print_help(command);
    cli.command = command;
    cli_add_verbs(command->name, &cli.verbs);
    code = end(&cli, command->body->run(&cli, count - 1, words + 1));
    hd_text_free(&cli.verbs);
    return code;
}
