#include "controller/cli/page.h"

#include <ctype.h>
#include <string.h>

static size_t line_len(const char *line)
{
    return strcspn(line, "\n");
}

static const char *next_line(const char *line)
{
    line += line_len(line);
    return *line ? line + 1 : line;
}

static bool is_blank(const char *line)
{
    return line_len(line) == strspn(line, " ");
}

static bool begins_flag(const char *line)
{
    return strncmp(line, "  -", 3) == 0;
}

/* ---- flags ---- */

/* Returns the end of one flag and its value, which begins at `p`: "-w, --watch" or "--set
 * KEY=VALUE"; the value is one word after one blank. */
static const char *piece_end(const char *p)
{
    p += strcspn(p, " ,\n");
    if (p[0] == ' ' && p[1] != ' ' && p[1] != '\n')
        p += 1 + strcspn(p + 1, " ,\n");
    return p;
}

static bool goes_on(const char *end)
{
    return strncmp(end, ", -", 3) == 0;
}

/* Returns the description in a flag's line of a help text. */
static const char *find_text(const char *line)
{
    const char *end = piece_end(line + 2);

    while (goes_on(end))
        end = piece_end(end + 2);
    return end;
}

/* ---- a manual page ---- */

/* Appends text for troff: special characters escaped, hyphens as ASCII minus signs that can be
 * copied. */
static void add_troff(struct hd_text *out, const char *text, size_t len)
{
    if (len && (*text == '.' || *text == '\''))
        hd_text_add(out, "\\&");
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\\')
            hd_text_add(out, "\\e");
        else if (text[i] == '-')
            hd_text_add(out, "\\-");
        else
            hd_text_add_bytes(out, text + i, 1);
    }
}

static void add_page_lines(struct hd_text *out, const char *line, size_t cut)
{
    add_troff(out, line + cut, line_len(line) - cut);
    hd_text_add(out, "\n");
}

/* Appends the usage lines unchanged. */
static const char *add_synopsis(struct hd_text *out, const char *line)
{
    hd_text_add(out, ".SH SYNOPSIS\n.nf\n");
    for (; *line && !is_blank(line); line = next_line(line))
        add_page_lines(out, line,
                       strncmp(line, "Usage: ", 7) == 0 || strncmp(line, "       ", 7) == 0 ? 7
                                                                                            : 0);
    hd_text_add(out, ".fi\n");
    return line;
}

static const char *add_flag(struct hd_text *out, const char *line)
{
    const char *text = find_text(line);
    const size_t blanks = strspn(text, " ");

    hd_text_add(out, ".TP\n\\fB");
    add_troff(out, line + 2, (size_t)(text - line - 2));
    hd_text_add(out, "\\fR\n");
    if (text[blanks] != '\n')
        add_page_lines(out, text, blanks);
    for (line = next_line(line); strncmp(line, "    ", 4) == 0 && !is_blank(line);
         line = next_line(line))
        add_page_lines(out, line, strspn(line, " "));
    return line;
}

static const char *add_example(struct hd_text *out, const char *line)
{
    hd_text_add(out, ".SH EXAMPLE\n.nf\n");
    for (line = next_line(line); *line; line = next_line(line))
        add_page_lines(out, line, strspn(line, " ") < 2 ? strspn(line, " ") : 2);
    hd_text_add(out, ".fi\n");
    return line;
}

/* Appends the rest of the help text: paragraphs refilled, indented lines unchanged. */
static void add_body(struct hd_text *out, const char *line)
{
    bool begins = true, in_flags = false;

    while (*line) {
        if (strncmp(line, "Example:", 8) == 0 || strncmp(line, "Examples:", 9) == 0) {
            line = add_example(out, line);
        } else if (begins_flag(line)) {
            if (!in_flags)
                hd_text_add(out, ".SH OPTIONS\n");
            in_flags = true;
            line = add_flag(out, line);
        } else if (is_blank(line)) {
            begins = true;
            line = next_line(line);
        } else {
            if (in_flags)
                hd_text_add(out, ".SH NOTES\n");
            else if (begins)
                hd_text_add(out, ".PP\n");
            in_flags = begins = false;
            if (*line == ' ') /* list or table */
                hd_text_add(out, ".br\n");
            add_page_lines(out, line, strspn(line, " "));
            line = next_line(line);
        }
    }
}

void page_manual(const char *name, int section, const char *summary, const char *help,
                 const char *see_also, const char *version, struct hd_text *out)
{
    hd_text_add(out, ".TH ");
    for (const char *c = name; *c; c++)
        hd_text_add(out, "%c", toupper((unsigned char)*c));
    hd_text_add(out, " %d \"\" \"Heddle %s\" \"Heddle\"\n.SH NAME\n", section, version);
    add_troff(out, name, strlen(name));
    hd_text_add(out, " \\- ");
    add_troff(out, summary, strlen(summary));
    hd_text_add(out, "\n");
    if (strncmp(help, "Usage: ", 7) == 0) {
        help = add_synopsis(out, help);
        hd_text_add(out, ".SH DESCRIPTION\n");
        add_body(out, help);
    } else { /* another form: unchanged */
        hd_text_add(out, ".SH DESCRIPTION\n.nf\n");
        for (; *help; help = next_line(help))
            add_page_lines(out, help, 0);
        hd_text_add(out, ".fi\n");
    }
    if (*see_also) {
        hd_text_add(out, ".SH SEE ALSO\n");
        add_page_lines(out, see_also, 0);
    }
}
