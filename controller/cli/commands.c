/* commands: the table of commands (commands.def), the text of heddle --help, and help texts. */
#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"

#define CLI_COMMAND(name) extern const struct cli_command cli_command_##name;
#include "controller/cli/commands.def"
#undef CLI_COMMAND

const struct cli_command *const cli_commands[] = {
#define CLI_COMMAND(name) &cli_command_##name,
#include "controller/cli/commands.def"
#undef CLI_COMMAND
};
const size_t cli_command_count = sizeof cli_commands / sizeof cli_commands[0];

void cli_overview(struct hd_text *out)
{
    hd_text_add(out, "Usage: heddle COMMAND [ARGUMENTS]\n"
                     "\n"
                     "Trains language models: hands jobs to a controller and shows how they fare.\n"
                     "\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        if (!i || strcmp(cli_commands[i]->group, cli_commands[i - 1]->group) != 0)
            hd_text_add(out, "%s%s:\n", i ? "\n" : "", cli_commands[i]->group);
        hd_text_add(out, "  %-11s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
    }
    hd_text_add(
        out, "\n"
             "A noun and a verb work, too: heddle job list, job show JOB, node drain NODE ...\n"
             "JOB is a job's number, or the name of one job alone. RUN is the folder of a run\n"
             "of heddle local.\n"
             "\n"
             "Flags of every command:\n"
             "  --controller ADDR  unix:PATH or HOST:PORT; else HEDDLE_CONTROLLER, else that of\n"
             "                     the context, else the user's and the system's socket\n"
             "  --context NAME     of the configuration file; else HEDDLE_CONTEXT\n"
             "  --token-file FILE  your token for HOST:PORT; else HEDDLE_TOKEN_FILE\n"
             "  --tls-ca FILE      the authority of a HOST:PORT elsewhere; else HEDDLE_TLS_CA\n"
             "  --tls-cert FILE    your certificate and key; else HEDDLE_TLS_CERT\n"
             "  -o FORMAT          table, wide, json or jsonl (not where raw text is printed)\n"
             "  --color WHEN       auto, always or never; NO_COLOR is honoured\n"
             "  -h, --help         what a command does, with an example\n"
             "\n"
             "Exit codes: 0 success, 1 the job failed or was cancelled, 2 usage or bad input,\n"
             "3 controller not reachable, 4 not found, 5 not permitted, 6 the command itself\n"
             "failed, 7 the cluster can never run it (submit --must-fit), 130 Ctrl-C,\n"
             "143 SIGTERM.\n"
             "\n"
             "Example:\n"
             "  heddle local job.yaml\n");
}

/* ---- help texts ---- */

enum {
    SCREEN_COLUMNS = 80,
    LABEL_MAX = 21, /* columns of a flag that moves the texts of all flags to the right */
};

/* Appends ", --top-k K" to the label of a line of help, on a further line where this one is full. */
static void add_label(struct hd_text *label, const struct cli_flag *f)
{
    const char *line = label->data ? strrchr(label->data, '\n') : NULL;
    struct hd_text one = {0};

    if (f->kind == CLI_FLAG_NOTE)
        hd_text_add(&one, "%s", f->name);
    else if (f->letter)
        hd_text_add(&one, "-%c, --%s", f->letter, f->name);
    else
        hd_text_add(&one, "--%s", f->name);
    if (f->word)
        hd_text_add(&one, " %s", f->word);
    if (label->len_bytes)
        hd_text_add(label, ",%s",
                    strlen(line ? line : label->data) + one.len_bytes + 5 > SCREEN_COLUMNS ? "\n  "
                                                                                           : " ");
    hd_text_add(label, "%s", one.failed ? "?" : one.data);
    hd_text_free(&one);
}

/* Returns the column in which the texts of the flags begin: behind the widest label, without those
 * that are wider than LABEL_MAX. Labels of several flags count if the texts then fit. */
static size_t text_column(const struct cli_described *d, bool with_several)
{
    struct hd_text label = {0};
    size_t widest = 0;
    bool several = false;

    for (size_t i = 0; i < d->own_count; i++) {
        if (d->flags[i].help || d->flags[i].joins)
            add_label(&label, &d->flags[i]);
        several |= d->flags[i].joins;
        if (d->flags[i].joins)
            continue;
        if (label.len_bytes <= LABEL_MAX && label.len_bytes > widest && (with_several || !several))
            widest = label.len_bytes;
        hd_text_clear(&label);
        several = false;
    }
    hd_text_free(&label);
    return 2 + widest + 2;
}

/* Returns whether the texts fit the screen if they begin in a column. */
static bool fits_at(const struct cli_described *d, size_t column)
{
    for (size_t i = 0; i < d->own_count; i++)
        for (const char *line = d->flags[i].help; line && *line;) {
            const size_t width = strcspn(line, "\n");

            if (column + width > SCREEN_COLUMNS)
                return false;
            line += width + (line[width] == '\n');
        }
    return true;
}

/* Appends the line of a flag, with its text from `column` on. */
static void add_flag_line(const char *label, const char *text, size_t column, struct hd_text *out)
{
    const char *last = strrchr(label, '\n');
    size_t at = last ? strlen(last + 1) : 2 + strlen(label);

    hd_text_add(out, "  %s", label);
    for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        hd_text_add(out, "%*s%.*s%s", (int)(at + 2 > column ? 2 : column - at), "",
                    (int)(end - line), line, *end ? "\n" : "");
        at = 0;
    }
    hd_text_add(out, "\n");
}

void cli_add_help(const struct cli_command *command, struct hd_text *out)
{
    struct cli_described d = {.count = 0};
    struct hd_text label = {0};
    size_t column;

    cli_describe(command, &d);
    column = text_column(&d, true);
    if (!fits_at(&d, column))
        column = text_column(&d, false);
    hd_text_add(out, "%s", command->usage);
    for (size_t i = 0; i < d.own_count; i++) {
        if (!d.flags[i].help && !d.flags[i].joins)
            continue;
        add_label(&label, &d.flags[i]);
        if (d.flags[i].joins)
            continue;
        add_flag_line(label.failed ? "?" : label.data, d.flags[i].help, column, out);
        hd_text_clear(&label);
    }
    hd_text_free(&label);
    hd_text_add(out, "%s", command->more);
}
