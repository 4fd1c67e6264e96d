/* completion: prints completion scripts for shells, made from the rows of commands and flags. */
#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"

/* Appends text in single quotes for bash, zsh and fish, with the characters of `escaped` (for zsh
 * `:` and `[`) escaped. */
static void add_quoted(struct hd_text *out, const char *text, const char *escaped)
{
    for (; *text; text++) {
        if (*text == '\'')
            hd_text_add(out, "'\\''");
        else if (strchr(escaped, *text))
            hd_text_add(out, "\\%c", *text);
        else
            hd_text_add(out, "%c", *text);
    }
}

/* Prints the names of the recipes, one a line. */
#define RECIPE_NAMES \
    "heddle recipe ls -o jsonl 2>/dev/null | sed -n 's/.*\"name\": *\"\\([^\"]*\\)\".*/\\1/p'"

#define RECIPE_NAMES_FISH \
    "heddle recipe ls -o jsonl | string match -gr '\\\"name\\\": *\\\"([^\\\"]*)'"

/* ---- bash ---- */

static void add_bash_flags(const struct cli_flag *flags, size_t count, bool with_values,
                           struct hd_text *out)
{
    for (size_t i = 0; i < count; i++) {
        const struct cli_flag *f = &flags[i];

        if (f->kind == CLI_FLAG_NOTE || (with_values && f->kind == CLI_FLAG_BOOL))
            continue;
        hd_text_add(out, " --%s", f->name);
        if (f->letter)
            hd_text_add(out, " -%c", f->letter);
    }
}

static void add_bash(struct hd_text *out)
{
    struct cli_described d = {.count = 0};

    hd_text_add(out,
                "# bash completion of heddle\n"
                "_heddle() {\n"
                "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
                "    local flags= values= words=\n"
                "    COMPREPLY=()\n"
                "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
                "        COMPREPLY=($(compgen -W '");
    for (size_t i = 0; i < cli_command_count; i++)
        hd_text_add(out, "%s ", cli_commands[i].name);
    hd_text_add(out, "help' -- \"$current\"))\n"
                     "        return\n"
                     "    fi\n"
                     "    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        cli_describe(&cli_commands[i], &d);
        hd_text_add(out, "    %s) flags='", cli_commands[i].name);
        add_bash_flags(d.flags, d.count, false, out);
        hd_text_add(out, "' values='");
        add_bash_flags(d.flags, d.count, true, out);
        hd_text_add(out, " ' words='");
        for (size_t v = 0; v < cli_commands[i].body->verb_count; v++)
            hd_text_add(out, " %s", cli_commands[i].body->verbs[v].name);
        hd_text_add(out, "' ;;\n");
    }
    hd_text_add(out, "    esac\n"
                     "    case \" $values \" in\n"
                     "    *\" $before \"*) compopt -o default; return ;;\n"
                     "    esac\n"
                     "    if [ \"${current#-}\" != \"$current\" ]; then\n"
                     "        COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n"
                     "    elif [ -n \"$words\" ] && [ \"$COMP_CWORD\" = 2 ]; then\n"
                     "        COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                     "    elif [ \"${COMP_WORDS[1]} $COMP_CWORD\" = \"recipe 3\" ]; then\n"
                     "        COMPREPLY=($(compgen -W \"$(" RECIPE_NAMES ")\" -- \"$current\"))\n"
                     "    else\n"
                     "        compopt -o default\n"
                     "    fi\n"
                     "}\n"
                     "complete -F _heddle heddle\n");
}

/* Appends the meaning of a flag on one line, in quotes. */
static void add_meaning(struct hd_text *out, const struct cli_flag *f, const char *escaped)
{
    while (f->joins)
        f++;
    for (const char *c = f->help ? f->help : ""; *c; c++) {
        const char one[] = {(char)(*c == '\n' ? ' ' : *c), '\0'};

        add_quoted(out, one, escaped);
    }
}

/* ---- zsh ---- */

static void add_zsh_flag(const struct cli_flag *f, const char *form, struct hd_text *out)
{
    hd_text_add(out, " \\\n            '*%s[", form);
    add_meaning(out, f, "[]:");
    hd_text_add(out, "]");
    if (f->kind != CLI_FLAG_BOOL) {
        hd_text_add(out, ":");
        add_quoted(out, f->word, "[]:");
        hd_text_add(out, ":_files");
    }
    hd_text_add(out, "'");
}

static void add_zsh_command(const struct cli_command *command, struct hd_text *out)
{
    struct cli_described d = {.count = 0};
    char form[48];

    cli_describe(command, &d);
    hd_text_add(out, "    %s)\n", command->name);
    if (command->body->verb_count) {
        hd_text_add(out, "        if (( CURRENT == 3 )); then\n            compadd");
        for (size_t v = 0; v < command->body->verb_count; v++)
            hd_text_add(out, " %s", command->body->verbs[v].name);
        hd_text_add(out, "\n            return\n        fi\n");
    }
    if (strcmp(command->name, "recipe") == 0)
        hd_text_add(out, "        if (( CURRENT == 4 )); then\n"
                         "            compadd ${(f)\"$(" RECIPE_NAMES ")\"}\n"
                         "            return\n        fi\n");
    hd_text_add(out, "        _arguments '*:file:_files'");
    for (size_t i = 0; i < d.count; i++) {
        if (d.flags[i].kind == CLI_FLAG_NOTE)
            continue;
        (void)snprintf(form, sizeof form, "--%s", d.flags[i].name);
        add_zsh_flag(&d.flags[i], form, out);
        (void)snprintf(form, sizeof form, "-%c", d.flags[i].letter);
        if (d.flags[i].letter)
            add_zsh_flag(&d.flags[i], form, out);
    }
    hd_text_add(out, "\n        ;;\n");
}

static void add_zsh(struct hd_text *out)
{
    hd_text_add(out, "#compdef heddle\n"
                     "# zsh completion of heddle\n"
                     "_heddle() {\n"
                     "    local -a verbs\n"
                     "    verbs=(");
    for (size_t i = 0; i < cli_command_count; i++) {
        hd_text_add(out, "\n        '%s:", cli_commands[i].name);
        add_quoted(out, cli_commands[i].summary, ":");
        hd_text_add(out, "'");
    }
    hd_text_add(out, ")\n"
                     "    if (( CURRENT == 2 )); then\n"
                     "        _describe command verbs\n"
                     "        return\n"
                     "    fi\n"
                     "    case $words[2] in\n");
    for (size_t i = 0; i < cli_command_count; i++)
        add_zsh_command(&cli_commands[i], out);
    hd_text_add(out, "    esac\n}\n_heddle \"$@\"\n");
}

/* ---- fish ---- */

static void add_fish_text(struct hd_text *out, const char *text)
{
    for (const char *c = text; *c; c++)
        hd_text_add(out, *c == '\'' || *c == '\\' ? "\\%c" : "%c", *c == '\n' ? ' ' : *c);
    hd_text_add(out, "'\n");
}

static void add_fish_flag(const struct cli_flag *f, const char *command, struct hd_text *out)
{
    if (f->kind == CLI_FLAG_NOTE)
        return;
    hd_text_add(out, "complete -c heddle -n '__fish_seen_subcommand_from %s' -l %s", command,
                f->name);
    if (f->letter)
        hd_text_add(out, " -s %c", f->letter);
    hd_text_add(out, "%s -d '", f->kind == CLI_FLAG_BOOL ? "" : " -r");
    while (f->joins)
        f++;
    add_fish_text(out, f->help ? f->help : "");
}

static void add_fish(struct hd_text *out)
{
    struct cli_described d = {.count = 0};

    hd_text_add(out, "# fish completion of heddle\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        const struct cli_command *command = &cli_commands[i];

        hd_text_add(out, "complete -c heddle -f -n __fish_use_subcommand -a %s -d '",
                    command->name);
        add_fish_text(out, command->summary);
        for (size_t v = 0; v < command->body->verb_count; v++)
            hd_text_add(out, "complete -c heddle -n '__fish_seen_subcommand_from %s' -a %s\n",
                        command->name, command->body->verbs[v].name);
        if (strcmp(command->name, "recipe") == 0)
            hd_text_add(out,
                        "complete -c heddle -f -n '__fish_seen_subcommand_from recipe; and "
                        "__fish_seen_subcommand_from show copy' -a \"(" RECIPE_NAMES_FISH ")\"\n");
        cli_describe(command, &d);
        for (size_t f = 0; f < d.count; f++)
            add_fish_flag(&d.flags[f], command->name, out);
    }
}

static int cli_completion(struct cli *cli, int argc, char **argv)
{
    struct hd_text out = {0};
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code != CLI_CONTINUE)
        return code;
    if (strcmp(cli->args[0], "bash") == 0)
        add_bash(&out);
    else if (strcmp(cli->args[0], "zsh") == 0)
        add_zsh(&out);
    else if (strcmp(cli->args[0], "fish") == 0)
        add_fish(&out);
    else
        return cli_usage("completion: %s is not bash, zsh or fish", cli->args[0]);
    return cli_print(&out, CLI_OK);
}

const struct cli_body cli_body_completion = {
    .usage = "Usage: heddle completion bash|zsh|fish\n",
    .about = "Prints what a shell needs to complete commands and flags of heddle. The packages\n"
             "install it; elsewhere source it from the shell's start-up file.\n",
    .examples = "heddle completion bash > ~/.local/share/bash-completion/completions/heddle",
    .run = cli_completion,
    .is_raw = true,
};
