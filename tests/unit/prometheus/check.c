#include "tests/unit/prometheus/check.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 4096 };

struct reading {
    int line;
    char *problem;
    const struct hd_prom_row *row; /* of the family that is being read; NULL: none yet */
    bool seen[HD_PROM_COUNT], has_type;
    bool sampled;
    double bucket;        /* cumulative count of the last bucket */
    bool infinite, count; /* the family has had +Inf and _count */
};

static bool wrong(struct reading *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct reading *r, const char *fmt, ...)
{
    const int used = snprintf(r->problem, 512, "line %d: ", r->line);
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(r->problem + used, 512 - (size_t)used, fmt, ap);
    va_end(ap);
    return false;
}

static size_t name_length(const char *text, bool label)
{
    size_t n = 0;

    while (isalpha((unsigned char)text[n]) || text[n] == '_' || (!label && text[n] == ':') ||
           (n && isdigit((unsigned char)text[n])))
        n++;
    return n;
}

/* `word` is in a list with commas between its words. */
static bool lists(const char *list, const char *word, size_t length)
{
    while (*list) {
        const size_t n = strcspn(list, ",");

        if (n == length && strncmp(list, word, n) == 0)
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

/* Moves *text behind "{...}". ret_le: the bound of a bucket, NAN without one. */
static bool read_labels(struct reading *r, const char **text, bool bucket, double *ret_le)
{
    const char *p = *text + 1;
    int labels = 0, expected = 0;

    *ret_le = NAN;
    for (const char *c = r->row->labels; *c; c++)
        expected += c == r->row->labels || c[-1] == ',';
    while (*p != '}') {
        const size_t n = name_length(p, true);
        const bool le = bucket && n == 2 && strncmp(p, "le", 2) == 0;

        if (n == 0 || p[n] != '=' || p[n + 1] != '"')
            return wrong(r, "a label is malformed: %.40s", p);
        if (!le && !lists(r->row->labels, p, n))
            return wrong(r, "the label %.*s is not in the list", (int)n, p);
        labels += !le;
        p += n + 2;
        if (le)
            *ret_le = strncmp(p, "+Inf\"", 5) == 0 ? INFINITY : strtod(p, NULL);
        for (; *p != '"'; p++) {
            if (*p == '\\' && !strchr("\\\"n", *++p))
                return wrong(r, "an escape is not \\\\, \\\" or \\n");
            if (!*p)
                return wrong(r, "a label does not end");
        }
        p++;
        if (*p == ',')
            p++;
        else if (*p != '}')
            return wrong(r, "neither , nor } behind a label");
    }
    if (labels != expected)
        return wrong(r, "%d labels, the list has %d", labels, expected);
    *text = p + 1;
    return true;
}

static bool read_value(struct reading *r, const char *text, double *ret_value)
{
    char *end;

    if (*text != ' ')
        return wrong(r, "no space before the value");
    *ret_value = strtod(text + 1, &end);
    if (end == text + 1 || *end)
        return wrong(r, "\"%s\" is no number", text + 1);
    return true;
}

static bool close_family(struct reading *r)
{
    if (r->row && r->row->kind == HD_PROM_HISTOGRAM && !(r->infinite && r->count))
        return wrong(r, "%s has no +Inf bucket or no count", r->row->name);
    return true;
}

static bool read_help(struct reading *r, const char *name, enum hd_prom_program program)
{
    const size_t length = strcspn(name, " ");

    if (!close_family(r))
        return false;
    for (int i = 0; i < HD_PROM_COUNT; i++) {
        const struct hd_prom_row *row = &hd_prom_families[i];

        if (strlen(row->name) != length || strncmp(row->name, name, length) != 0)
            continue;
        if (r->seen[i])
            return wrong(r, "%s comes twice", row->name);
        if (row->program != program && row->program != HD_PROM_BOTH)
            return wrong(r, "%s belongs to another program", row->name);
        if (strcmp(name + length + 1, row->help) != 0)
            return wrong(r, "the help of %s is another one", row->name);
        r->seen[i] = true;
        r->row = row;
        r->has_type = r->infinite = r->count = false;
        r->bucket = 0;
        return true;
    }
    return wrong(r, "%.*s is not in the list of families", (int)length, name);
}

static bool read_type(struct reading *r, const char *text)
{
    static const char *const kinds[] = {"gauge", "counter", "histogram"};
    const size_t length = r->row ? strlen(r->row->name) : 0;

    if (!r->row || strncmp(text, r->row->name, length) != 0 || text[length] != ' ')
        return wrong(r, "TYPE without its HELP before it");
    if (strcmp(text + length + 1, kinds[r->row->kind]) != 0)
        return wrong(r, "%s is no %s", r->row->name, text + length + 1);
    r->has_type = true;
    return true;
}

static bool read_sample(struct reading *r, const char *text)
{
    const size_t length = r->row ? strlen(r->row->name) : 0;
    bool bucket = false;
    double value = NAN, le = NAN;

    if (!r->row || !r->has_type || strncmp(text, r->row->name, length) != 0)
        return wrong(r, "a sample outside of its family: %.60s", text);
    text += length;
    if (r->row->kind == HD_PROM_HISTOGRAM) {
        bucket = strncmp(text, "_bucket{", 8) == 0;
        r->count |= strncmp(text, "_count ", 7) == 0;
        if (!bucket && strncmp(text, "_sum ", 5) != 0 && strncmp(text, "_count ", 7) != 0)
            return wrong(r, "a histogram has no such sample");
        text += strcspn(text, "{ ");
    }
    if (*text == '{' ? !read_labels(r, &text, bucket, &le) : *r->row->labels && !bucket)
        return *r->problem ? false : wrong(r, "labels are missing");
    if (!read_value(r, text, &value))
        return false;
    if (bucket) {
        if (isnan(le) || value < r->bucket)
            return wrong(r, "buckets must have bounds and not fall");
        r->bucket = value;
        r->infinite |= isinf(le) != 0;
    }
    if (r->row->kind != HD_PROM_GAUGE && value < 0)
        return wrong(r, "a counter is negative");
    return true;
}

bool prom_check(const char *page, enum hd_prom_program program, char problem[512])
{
    struct reading r = {.problem = problem};
    char line[LINE_MAX_BYTES];

    problem[0] = '\0';
    while (*page) {
        const size_t length = strcspn(page, "\n");
        bool good;

        r.line++;
        if (length >= sizeof line || page[length] != '\n')
            return wrong(&r, "the line is too long or has no end");
        memcpy(line, page, length);
        line[length] = '\0';
        page += length + 1;
        good = strncmp(line, "# HELP ", 7) == 0   ? read_help(&r, line + 7, program)
               : strncmp(line, "# TYPE ", 7) == 0 ? read_type(&r, line + 7)
                                                  : read_sample(&r, line);
        if (!good)
            return false;
    }
    return close_family(&r);
}

double prom_find(const char *page, const char *name, const char *labels)
{
    char wanted[512];
    const size_t length =
        (size_t)snprintf(wanted, sizeof wanted, *labels ? "\n%s{%s} " : "\n%s%s ", name, labels);
    const char *at = strstr(page, wanted);

    return at ? strtod(at + length, NULL) : NAN;
}
