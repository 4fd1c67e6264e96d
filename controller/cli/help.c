/* help: the help text of a command, from its row and those of its flags. */
#include <string.h>

#include "controller/cli/cli.h"

enum {
    SCREEN_COLUMNS = 80,
    LABEL_MAX = 21, /* columns of a flag that moves the texts of all flags to the right */
};

void cli_describe(const struct cli_command *command, struct cli_described *ret_described)
{
    char *words[] = {NULL};
    struct cli cli = {.command = command, .described = ret_described};

    (void)command->body->run(&cli, 0, words);
}

/* Appends ", --top-k K" to the label of a line of help, on a further line where this one is full. */
static void add_label(struct hd_text *label, const struct cli_flag *f)
{
    const char *all = label->data ? label->data : "", *line = strrchr(all, '\n');
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
                    strlen(line ? line : all) + one.len_bytes + 5 > SCREEN_COLUMNS ? "\n  " : " ");
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

/* Appends a paragraph behind a blank line, each of its lines behind `indent`. */
static void add_paragraph(struct hd_text *out, const char *title, const char *indent,
                          const char *text)
{
    hd_text_add(out, "\n%s", title);
    for (size_t len; *text; text += len + (text[len] == '\n')) {
        len = strcspn(text, "\n");
        hd_text_add(out, "%s%.*s\n", len ? indent : "", (int)len, text);
    }
}

void cli_add_help(const struct cli_command *command, struct hd_text *out)
{
    const struct cli_body *body = command->body;
    struct cli_described d = {.count = 0};
    struct hd_text label = {0};
    const char *before = "\n"; /* what separates the first flag */
    size_t column;

    cli_describe(command, &d);
    column = text_column(&d, true);
    if (!fits_at(&d, column))
        column = text_column(&d, false);
    hd_text_add(out, "%s", body->usage);
    add_paragraph(out, "", "", body->about);
    for (size_t i = 0; i < d.own_count; i++) {
        if (!d.flags[i].help && !d.flags[i].joins)
            continue;
        add_label(&label, &d.flags[i]);
        if (d.flags[i].joins)
            continue;
        hd_text_add(out, "%s", before);
        before = "";
        add_flag_line(label.failed ? "?" : label.data, d.flags[i].help, column, out);
        hd_text_clear(&label);
    }
    hd_text_free(&label);
    if (body->notes)
        add_paragraph(out, "", "", body->notes);
    add_paragraph(out, "Example:\n", "  ", body->examples);
}
