#include "controller/cli/page.h"

#include <ctype.h>
#include <stdio.h>
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

/* Appends one flag to the page. joins: the text before it is this flag's letter. */
static void add_piece(struct page *page, const char *p, bool joins)
{
    const char *end = piece_end(p);
    const size_t word = strcspn(p, " ,\n");
    struct page_flag *flag;

    if (!joins) {
        if (page->flag_count == PAGE_FLAGS_MAX)
            return;
        page->flags[page->flag_count++] = (struct page_flag){0};
    }
    flag = &page->flags[page->flag_count - 1];
    if (p[1] == '-')
        (void)snprintf(flag->name, sizeof flag->name, "%.*s", (int)word - 2, p + 2);
    else
        flag->letter = p[1];
    if (p + word < end)
        (void)snprintf(flag->value, sizeof flag->value, "%.*s", (int)(end - p - (long)word - 1),
                       p + word + 1);
}

static void add_text(char *text, const char *from, const char *to)
{
    while (from < to && *from == ' ')
        from++;
    if (from < to && strlen(text) + (size_t)(to - from) + 2 < PAGE_TEXT_MAX)
        (void)sprintf(text + strlen(text), "%s%.*s", *text ? " " : "", (int)(to - from), from);
}

/* Parses the line of a flag and the continuation lines of its description; returns the line behind
 * them. */
static const char *read_flag(struct page *page, const char *line)
{
    const char *text = find_text(line), *p = line + 2;
    const size_t first = page->flag_count;
    char words[PAGE_TEXT_MAX] = "";
    bool joins = false;

    for (;;) {
        const char *end = piece_end(p);

        add_piece(page, p, joins);
        if (!goes_on(end))
            break;
        joins = end == p + 2 && strncmp(end, ", --", 4) == 0;
        p = end + 2;
    }
    add_text(words, text, line + line_len(line));
    for (line = next_line(line); strncmp(line, "    ", 4) == 0 && !is_blank(line);
         line = next_line(line))
        add_text(words, line, line + line_len(line));
    for (size_t i = first; i < page->flag_count; i++)
        memcpy(page->flags[i].text, words, sizeof words);
    return line;
}

/* ---- usage ---- */

static void add_subcommand(struct page *page, const char *word, size_t len)
{
    for (size_t i = 0; i < page->subcommand_count; i++)
        if (strlen(page->subcommands[i]) == len && memcmp(page->subcommands[i], word, len) == 0)
            return;
    if (page->subcommand_count < PAGE_SUBCOMMANDS_MAX && len < sizeof page->subcommands[0])
        (void)snprintf(page->subcommands[page->subcommand_count++], sizeof page->subcommands[0],
                       "%.*s", (int)len, word);
}

/* Parses a usage line; "save|verify" behind the command's name are two subcommands. */
static void read_usage(struct page *page, const char *name, const char *line)
{
    const char *p = line + strspn(line, " ");
    size_t len;

    if (strncmp(p, "Usage: ", 7) == 0)
        p += 7;
    if (strncmp(p, name, strlen(name)) != 0 || p[strlen(name)] != ' ')
        return;
    p += strlen(name) + 1;
    len = strcspn(p, " \n");
    for (size_t i = 0; i < len; i++)
        if (!islower((unsigned char)p[i]) && p[i] != '|' && p[i] != '-')
            return;
    if (*p == '-')
        return;
    while (len) {
        const size_t word = strcspn(p, "| \n") < len ? strcspn(p, "| \n") : len;

        add_subcommand(page, p, word);
        p += word + (word < len);
        len -= word + (word < len);
    }
}

void page_read(const char *name, const char *help, struct page *ret_page)
{
    const char *line = help;

    memset(ret_page, 0, sizeof *ret_page);
    ret_page->help = help;
    for (; *line && !is_blank(line); line = next_line(line))
        read_usage(ret_page, name, line);
    while (*line)
        line = begins_flag(line) ? read_flag(ret_page, line) : next_line(line);
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
