#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "base/clock.h"
#include "base/uid.h"
#include "controller/cli/cli.h"
#include "controller/show/form.h"

_Static_assert((int)CLI_WORD_MAX == (int)SHOW_WORD_MAX, "words of one size");

#define CLI_WORD(name, type)                                                       \
    const char *cli_##name(Heddle__V1__##type value, char ret_word[CLI_WORD_MAX])  \
    {                                                                              \
        return show_word(&heddle__v1__##name##__descriptor, (int)value, ret_word); \
    }
CLI_WORD(job_state, JobState)
CLI_WORD(node_state, NodeState)
CLI_WORD(device_kind, DeviceKind)
CLI_WORD(precision, Precision)

void cli_add_layout(const struct hd_layout_sizes *sizes, struct hd_text *out)
{
    hd_text_add(out, "tp %lld x cp %lld x dp %lld x pp %lld", (long long)sizes->tp,
                (long long)sizes->cp, (long long)sizes->dp, (long long)sizes->pp);
    if (sizes->ep > 1)
        hd_text_add(out, ", ep %lld", (long long)sizes->ep);
    if (sizes->sequence)
        hd_text_add(out, ", sequence parallel");
    if (sizes->cp > 1)
        hd_text_add(out, ", cp exchange %s", hd_job_cp_exchange_words[sizes->cp_exchange]);
}

const char *cli_state_colour(Heddle__V1__JobState state)
{
    switch (state) {
    case HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING:
    case HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED:
        return "32";
    case HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED:
        return "31";
    case HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED:
    case HEDDLE__V1__JOB_STATE__JOB_STATE_STOPPING:
        return "33";
    default:
        return NULL;
    }
}

bool cli_job_ended(Heddle__V1__JobState state)
{
    return state == HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED ||
           state == HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED ||
           state == HEDDLE__V1__JOB_STATE__JOB_STATE_CANCELLED;
}

void cli_format_count(double count, char ret_text[32])
{
    static const char units[] = " kMGTP";
    int unit = 0;

    while (count >= 999.5 && units[unit + 1]) {
        count /= 1000;
        unit++;
    }
    if (unit)
        (void)snprintf(ret_text, 32, count < 99.95 ? "%.1f%c" : "%.0f%c", count, units[unit]);
    else
        (void)snprintf(ret_text, 32, count < 9.95 && count > 0 ? "%.1f" : "%.0f", count);
}

int64_t cli_now_ms(const struct cli *cli)
{
    return hd_clock_wall_ms() + cli->ahead_ms;
}

void cli_format_age(int64_t unix_ms, int64_t now_ms, char ret_text[HD_CLOCK_TEXT_MAX])
{
    hd_clock_format_span(now_ms > unix_ms ? now_ms - unix_ms : 0, ret_text);
}

void cli_add_deadline(const struct cli *cli, int64_t deadline_unix_ms, struct hd_text *out)
{
    char when[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(deadline_unix_ms, when);
    hd_text_add(out,
                deadline_unix_ms > cli_now_ms(cli) ? "its jobs leave it by %s"
                                                   : "its jobs were to leave it by %s",
                when);
}

void cli_format_when(const struct cli *cli, int64_t unix_ms, enum cli_format format,
                     char ret_text[HD_CLOCK_TEXT_MAX])
{
    ret_text[0] = '\0';
    if (!unix_ms)
        return;
    if (format == CLI_WIDE)
        hd_clock_format_utc(unix_ms, ret_text);
    else
        cli_format_age(unix_ms, cli_now_ms(cli), ret_text);
}

void cli_add_clean(struct hd_text *out, const char *text)
{
    bool harmless;

    for (size_t left = strlen(text), n; left; text += n, left -= n) {
        n = hd_text_character(text, left, &harmless);
        hd_text_add_bytes(out, harmless ? text : "?", harmless ? n : 1);
    }
}

void cli_add_clean_lines(struct hd_text *out, const char *indent, const char *text)
{
    for (size_t len; *text; text += len + (text[len] == '\n')) {
        char *line = strndup(text, len = strcspn(text, "\n"));

        hd_text_add(out, "%s", indent);
        cli_add_clean(out, line ? line : "");
        hd_text_add(out, "\n");
        free(line);
    }
}

/* Returns the code point at p, in well-formed UTF-8 (all output was checked), and sets *ret_bytes
 * to its length. */
static wchar_t decode(const unsigned char *p, int *ret_bytes)
{
    int n = p[0] < 0x80 ? 1 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    wchar_t c = n == 1 ? p[0] : p[0] & (0x7F >> n);

    for (int i = 1; i < n && (p[i] & 0xC0) == 0x80; i++)
        c = (c << 6) | (p[i] & 0x3F);
    for (*ret_bytes = 1; *ret_bytes < n && (p[*ret_bytes] & 0xC0) == 0x80;)
        (*ret_bytes)++;
    return c;
}

/* Returns the number of columns of the character at `text`, and sets *ret_bytes to its length. */
static int char_width(const char *text, int *ret_bytes)
{
    const int width = wcwidth(decode((const unsigned char *)text, ret_bytes));

    return width < 0 ? 1 : width; /* -1: unknown to the locale */
}

int cli_text_width(const char *text)
{
    int width = 0, n;

    for (; *text; text += n)
        width += char_width(text, &n);
    return width;
}

/* Cuts at a character boundary; the last three columns of a cut text are dots. */
void cli_add_cut(struct hd_text *out, const char *text, int columns)
{
    const int wanted = columns > 3 ? columns - 3 : 0;
    const char *end = text;
    int width = 0, n;

    if (cli_text_width(text) <= columns) {
        hd_text_add(out, "%s", text);
        return;
    }
    while (*end) {
        const int w = char_width(end, &n);

        if (width + w > wanted)
            break;
        width += w;
        end += n;
    }
    hd_text_add_bytes(out, text, (size_t)(end - text));
    hd_text_add(out, "%.*s", columns < 3 ? columns : 3, "...");
}

void cli_add_coloured(struct hd_text *out, const char *colour, const char *text)
{
    if (colour)
        hd_text_add(out, "\033[%sm%s\033[0m", colour, text);
    else
        hd_text_add(out, "%s", text);
}

void cli_add_people(struct hd_text *out, const char *text)
{
    static const char mark[] = "uid:";
    const char *at, *digits;
    struct hd_text part = {0};

    for (; (at = strstr(text, mark)); text = digits) {
        char name[HD_UID_NAME_MAX], *end;
        unsigned long uid;

        digits = at + strlen(mark);
        hd_text_add_bytes(&part, text, (size_t)(at - text));
        if (*digits < '0' || *digits > '9') { /* a longer word that only ends in "uid:" */
            hd_text_add(&part, "%s", mark);
            continue;
        }
        uid = strtoul(digits, &end, 10);
        digits = end;
        hd_text_add(&part, "uid %lu", uid);
        if (uid <= UINT32_MAX && hd_uid_name((uint32_t)uid, name))
            hd_text_add(&part, " (%s)", name);
    }
    hd_text_add(&part, "%s", text);
    cli_add_clean(out, part.failed ? "?" : part.data);
    hd_text_free(&part);
}

void cli_add_quoted(struct hd_text *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_@%+=:,./-";

    if (*word && !word[strspn(word, plain)]) {
        hd_text_add(out, "%s", word);
        return;
    }
    hd_text_add(out, "'");
    for (; *word; word++)
        hd_text_add(out, "%s%c", *word == '\'' ? "'\\'" : "", *word);
    hd_text_add(out, "'");
}
