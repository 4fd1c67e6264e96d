/* Parses flags: --name VALUE, --name=VALUE, -n VALUE, -nVALUE, at any position; after `--` no word
 * is a flag. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "controller/cli/cli.h"
#include "spec/spec.h"

enum { FLAGS_MAX = 40 };

/* Unparsed texts of the flags that every command has. */
struct shared {
    const char *output, *colour;
    bool help;
};

struct parse {
    struct cli_flag flags[FLAGS_MAX];
    /* flags given so far, except lists; a flag that is repeated is refused */
    bool given[FLAGS_MAX];
    size_t count;
    int argc;
    char **argv;
    int at;
};

static void add_shared(struct parse *p, struct cli *cli, struct shared *shared)
{
    const struct cli_flag flags[] = {
        {"controller", 0, CLI_FLAG_TEXT, &cli->controller, 0, 0},
        {"token-file", 0, CLI_FLAG_TEXT, &cli->token_file, 0, 0},
        {"tls-ca", 0, CLI_FLAG_TEXT, &cli->tls_ca, 0, 0},
        {"context", 0, CLI_FLAG_TEXT, &cli->context, 0, 0},

        {"tls-cert", 0, CLI_FLAG_TEXT, &cli->tls_cert, 0, 0},
        {"help", 'h', CLI_FLAG_BOOL, &shared->help, 0, 0},
        /* the last two are left out if is_raw */
        {"output", 'o', CLI_FLAG_TEXT, &shared->output, 0, 0},
        {"color", 0, CLI_FLAG_TEXT, &shared->colour, 0, 0},
    };
    size_t count = sizeof flags / sizeof flags[0] - (cli->command->is_raw ? 2 : 0);

    memcpy(p->flags + p->count, flags, count * sizeof flags[0]);
    p->count += count;
}

static int unknown_flag(const struct cli *cli, const struct parse *p, const char *word)
{
    const char *names[FLAGS_MAX], *nearest;
    char name[64];

    for (size_t i = 0; i < p->count; i++)
        names[i] = p->flags[i].name;
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 1 + (word[1] == '-'), "="),
                   word + 1 + (word[1] == '-'));
    nearest = hd_text_nearest(name, names, p->count);
    if (nearest)
        return cli_usage("%s: unknown flag %s; did you mean --%s?", cli->command->name, word,
                         nearest);
    return cli_usage("%s: unknown flag %s; see heddle %s --help", cli->command->name, word,
                     cli->command->name);
}

static int set_value(const struct cli *cli, const struct cli_flag *flag, const char *value)
{
    struct cli_list *list = flag->value;
    enum hd_status st;

    if (!*value && (flag->kind == CLI_FLAG_TEXT || flag->kind == CLI_FLAG_LIST))
        return cli_usage("%s: --%s has an empty value; leave it out, or give one",
                         cli->command->name, flag->name);
    switch (flag->kind) {
    case CLI_FLAG_BOOL:
        break;
    case CLI_FLAG_WORDS:
        if (!hd_text_is_utf8(value, strlen(value)))
            return cli_usage("%s: --%s: the text is not UTF-8", cli->command->name, flag->name);
        *(const char **)flag->value = value;
        break;
    case CLI_FLAG_TEXT:
        *(const char **)flag->value = value;
        break;
    case CLI_FLAG_INT:
        st = hd_text_to_int64(value, flag->min, flag->max, flag->value);
        if (st)
            return cli_usage("%s: --%s: %s", cli->command->name, flag->name, hd_err_message());
        break;
    case CLI_FLAG_LIST:
        if (list->count == sizeof list->items / sizeof list->items[0])
            return cli_usage("%s: more than %zu --%s", cli->command->name, list->count, flag->name);
        list->items[list->count++] = value;
        break;
    }
    return CLI_CONTINUE;
}

/* Finds the flag at argv[at] and takes its value from the same word or the next one. */
static int take_flag(const struct cli *cli, struct parse *p)
{
    const char *word = p->argv[p->at], *value = NULL;
    const struct cli_flag *flag = NULL;

    for (size_t i = 0; i < p->count && !flag; i++) {
        size_t len = strlen(p->flags[i].name);

        if (word[1] == '-' && strncmp(word + 2, p->flags[i].name, len) == 0 &&
            (word[2 + len] == '\0' || word[2 + len] == '=')) {
            flag = &p->flags[i];
            value = word[2 + len] == '=' ? word + 3 + len : NULL;
        } else if (word[1] != '-' && p->flags[i].letter && word[1] == p->flags[i].letter) {
            flag = &p->flags[i];
            value = word[2] ? word + 2 : NULL;
        }
    }
    if (!flag)
        return unknown_flag(cli, p, word);
    p->at++;
    if (flag->kind == CLI_FLAG_BOOL) {
        if (value)
            return cli_usage("%s: --%s takes no value", cli->command->name, flag->name);
        *(bool *)flag->value = true;
        return CLI_CONTINUE;
    }
    if (!value && p->at == p->argc)
        return cli_usage("%s: --%s needs a value", cli->command->name, flag->name);
    if (p->given[flag - p->flags])
        return cli_usage("%s: --%s is given twice; give it once", cli->command->name, flag->name);
    p->given[flag - p->flags] = flag->kind != CLI_FLAG_LIST;
    return set_value(cli, flag, value ? value : p->argv[p->at++]);
}

static int take_format(struct cli *cli, const char *text)
{
    static const char *const names[] = {"table", "wide", "json", "jsonl"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            cli->format = (enum cli_format)i;
            return CLI_CONTINUE;
        }
    }
    return cli_usage("%s: -o %s is not table, wide, json or jsonl", cli->command->name, text);
}

static int take_colour(struct cli *cli, const char *text)
{
    /* indexed by enum cli_colour_when */
    static const char *const names[] = {"auto", "always", "never"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            cli_set_colour((enum cli_colour_when)i);
            cli->colour = cli_has_colour(STDOUT_FILENO);
            return CLI_CONTINUE;
        }
    }
    return cli_usage("%s: --color %s is not auto, always or never", cli->command->name, text);
}

/* Reports too few or too many arguments, with the usage of the command. */
static int wrong_count(const struct cli *cli, int min_args)
{
    const char *help = cli->command->help, *end = strstr(help, "\n\n");
    int code;

    if (cli->arg_count < min_args)
        code = cli_usage("%s: an argument is missing", cli->command->name);
    else
        code = cli_usage("%s: unexpected argument: %s", cli->command->name,
                         cli->args[cli->arg_count - 1]);
    (void)fprintf(stderr, "%.*s\n", (int)(end ? end - help : 0), help);
    return code;
}

int cli_parse(struct cli *cli, int argc, char **argv, const struct cli_flag *flags,
              size_t flag_count, int min_args, int max_args)
{
    struct parse p = {.argc = argc, .argv = argv};
    struct shared shared = {.output = "table", .colour = "auto"};
    bool only_args = false;
    int code = CLI_CONTINUE;

    if (cli->print_flags) {
        cli->print_flags(flags, flag_count);
        return CLI_OK;
    }
    if (flag_count)
        memcpy(p.flags, flags, flag_count * sizeof flags[0]);
    p.count = flag_count;
    add_shared(&p, cli, &shared);
    cli->args = argv;
    cli->arg_count = 0;
    while (p.at < argc && code == CLI_CONTINUE) {
        char *word = argv[p.at];

        if (!only_args && strcmp(word, "--") == 0) {
            only_args = true;
            p.at++;
        } else if (!only_args && word[0] == '-' && word[1]) {
            code = take_flag(cli, &p);
        } else if (!*word) {
            code = cli_usage("%s: argument %d is empty; is a variable of the shell not set?",
                             cli->command->name, cli->arg_count + 1);
        } else {
            argv[cli->arg_count++] = word; /* writes behind the parser's read position */
            p.at++;
        }
    }
    if (code == CLI_CONTINUE && shared.help) {
        (void)fputs(cli->command->help, stdout);
        return cli_out_end(CLI_OK);
    }
    if (code == CLI_CONTINUE)
        code = take_format(cli, shared.output);
    if (code == CLI_CONTINUE)
        code = take_colour(cli, shared.colour);
    if (code == CLI_CONTINUE && (cli->arg_count < min_args || cli->arg_count > max_args))
        code = wrong_count(cli, min_args);
    return code;
}
