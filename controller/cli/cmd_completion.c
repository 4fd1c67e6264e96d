/* completion: prints completion scripts for shells, made from the help texts. */
#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/page.h"

/* Help text of the flags that cli_parse adds to every command. */
static const char shared_help[] =
    "Usage: heddle\n"
    "\n"
    "  --controller ADDR  address of the controller\n"
    "  --context NAME     a context of the configuration file\n"
    "  --token-file FILE  your token\n"
    "  --tls-ca FILE      the authority of the controller's certificate\n"
    "  --tls-cert FILE    your certificate and key\n"
    "  -o, --output FORMAT  table, wide, json or jsonl\n"
    "  --color WHEN       auto, always or never\n"
    "  -h, --help         what the command does\n";

static void read_command(const struct cli_command *command, struct page *ret_page)
{
    char name[64];

    (void)snprintf(name, sizeof name, "heddle %s", command->name);
    page_read(name, command->help, ret_page);
}

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

/* ---- bash ---- */

static void add_bash_flags(const struct page *page, bool with_values, struct hd_text *out)
{
    for (size_t i = 0; i < page->flag_count; i++) {
        const struct page_flag *f = &page->flags[i];

        if (with_values && !f->value[0])
            continue;
        if (f->name[0])
            hd_text_add(out, " --%s", f->name);
        if (f->letter)
            hd_text_add(out, " -%c", f->letter);
    }
}

static void add_bash(struct hd_text *out)
{
    struct page page, shared;

    page_read("heddle", shared_help, &shared);
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
        read_command(&cli_commands[i], &page);
        hd_text_add(out, "    %s) flags='", cli_commands[i].name);
        add_bash_flags(&page, false, out);
        hd_text_add(out, "' values='");
        add_bash_flags(&page, true, out);
        hd_text_add(out, " ' words='");
        for (size_t s = 0; s < page.subcommand_count; s++)
            hd_text_add(out, " %s", page.subcommands[s]);
        hd_text_add(out, "' ;;\n");
    }
    hd_text_add(out, "    esac\n    flags+='");
    add_bash_flags(&shared, false, out);
    hd_text_add(out, "' values+='");
    add_bash_flags(&shared, true, out);
    hd_text_add(out, " '\n"
                     "    case \" $values \" in\n"
                     "    *\" $before \"*) compopt -o default; return ;;\n"
                     "    esac\n"
                     "    if [ \"${current#-}\" != \"$current\" ]; then\n"
                     "        COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n"
                     "    elif [ -n \"$words\" ] && [ \"$COMP_CWORD\" = 2 ]; then\n"
                     "        COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                     "    else\n"
                     "        compopt -o default\n"
                     "    fi\n"
                     "}\n"
                     "complete -F _heddle heddle\n");
}

/* ---- zsh ---- */

static void add_zsh_flags(const struct page *page, struct hd_text *out)
{
    for (size_t i = 0; i < page->flag_count; i++) {
        const struct page_flag *f = &page->flags[i];

        for (int form = 0; form < 2; form++) {
            if (form == 0 ? !f->name[0] : !f->letter)
                continue;
            if (form == 0)
                hd_text_add(out, " \\\n            '*--%s[", f->name);
            else
                hd_text_add(out, " \\\n            '*-%c[", f->letter);
            add_quoted(out, f->text, "[]:");
            hd_text_add(out, "]");
            if (f->value[0]) {
                hd_text_add(out, ":");
                add_quoted(out, f->value, "[]:");
                hd_text_add(out, ":_files");
            }
            hd_text_add(out, "'");
        }
    }
}

static void add_zsh(struct hd_text *out)
{
    struct page page, shared;

    page_read("heddle", shared_help, &shared);
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
    for (size_t i = 0; i < cli_command_count; i++) {
        read_command(&cli_commands[i], &page);
        hd_text_add(out, "    %s)\n", cli_commands[i].name);
        if (page.subcommand_count) {
            hd_text_add(out, "        if (( CURRENT == 3 )); then\n            compadd");
            for (size_t s = 0; s < page.subcommand_count; s++)
                hd_text_add(out, " %s", page.subcommands[s]);
            hd_text_add(out, "\n            return\n        fi\n");
        }
        hd_text_add(out, "        _arguments '*:file:_files'");
        add_zsh_flags(&page, out);
        add_zsh_flags(&shared, out);
        hd_text_add(out, "\n        ;;\n");
    }
    hd_text_add(out, "    esac\n}\n_heddle \"$@\"\n");
}

/* ---- fish ---- */

static void add_fish_flags(const struct page *page, const char *command, struct hd_text *out)
{
    for (size_t i = 0; i < page->flag_count; i++) {
        const struct page_flag *f = &page->flags[i];

        hd_text_add(out, "complete -c heddle -n '__fish_seen_subcommand_from %s'", command);
        if (f->name[0])
            hd_text_add(out, " -l %s", f->name);
        if (f->letter)
            hd_text_add(out, " -s %c", f->letter);
        hd_text_add(out, "%s -d '", f->value[0] ? " -r" : "");
        for (const char *c = f->text; *c; c++)
            hd_text_add(out, *c == '\'' || *c == '\\' ? "\\%c" : "%c", *c);
        hd_text_add(out, "'\n");
    }
}

static void add_fish(struct hd_text *out)
{
    struct page page, shared;

    page_read("heddle", shared_help, &shared);
    hd_text_add(out, "# fish completion of heddle\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        read_command(&cli_commands[i], &page);
        hd_text_add(out, "complete -c heddle -f -n __fish_use_subcommand -a %s -d '",
                    cli_commands[i].name);
        for (const char *c = cli_commands[i].summary; *c; c++)
            hd_text_add(out, *c == '\'' || *c == '\\' ? "\\%c" : "%c", *c);
        hd_text_add(out, "'\n");
        for (size_t s = 0; s < page.subcommand_count; s++)
            hd_text_add(out, "complete -c heddle -n '__fish_seen_subcommand_from %s' -a %s\n",
                        cli_commands[i].name, page.subcommands[s]);
        add_fish_flags(&page, cli_commands[i].name, out);
        add_fish_flags(&shared, cli_commands[i].name, out);
    }
}

int cli_completion(struct cli *cli, int argc, char **argv)
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
    (void)cli_out(&out);
    hd_text_free(&out);
    return cli_out_end(CLI_OK);
}
