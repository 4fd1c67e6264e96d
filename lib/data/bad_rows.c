#include "data/bad_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { COUNT_DIGITS_MAX = 12 };

enum hd_status hd_bad_rule_read(const char *text, struct hd_bad_rule *ret_rule)
{
    struct hd_bad_rule rule = {.skips = true, .count_max = -1};
    long long count = 0;
    size_t digits;

    if (!text || !*text || strcmp(text, "error") == 0)
        rule.skips = false;
    else if (strncmp(text, "skip:", 5) == 0) {
        digits = strspn(text + 5, "0123456789");
        if (!digits || digits > COUNT_DIGITS_MAX || text[5 + digits] ||
            sscanf(text + 5, "%lld", &count) != 1)
            return hd_err(HD_INVALID, "'%.40s' is no number of records; it has 1 to %d digits",
                          text + 5, COUNT_DIGITS_MAX);
        rule.count_max = count;
    } else if (strcmp(text, "skip") != 0) {
        return hd_err(HD_INVALID, "'%.40s' is not error, skip or skip: COUNT", text);
    }
    *ret_rule = rule;
    return HD_OK;
}

/* Returns the length of a reason without its advice, which is behind the first "; ", if the last
 * line has the same advice. */
static size_t length_to_show(const struct hd_bad_rows *rows, const char *reason)
{
    const char *advice = strstr(reason, "; ");
    const size_t all = strlen(reason), bytes = advice ? strlen(advice) : 0;
    const size_t have = rows->advice.len_bytes;

    return bytes && bytes == have && memcmp(rows->advice.data, advice, bytes) == 0 ? all - bytes
                                                                                   : all;
}

void hd_bad_rows_add(struct hd_bad_rows *rows)
{
    const char *reason = hd_err_message(), *advice = strstr(reason, "; ");
    const size_t bytes = length_to_show(rows, reason);

    if (rows->count++ >= HD_BAD_ROWS_SHOWN)
        return;
    for (size_t i = 0; i < bytes; i++) { /* a line each, nothing for a terminal */
        const char c = (unsigned char)reason[i] < ' ' || reason[i] == 0x7f ? '?' : reason[i];

        hd_text_add_bytes(&rows->reasons, &c, 1);
    }
    hd_text_add_bytes(&rows->reasons, "\n", 1);
    hd_text_clear(&rows->advice);
    hd_text_add(&rows->advice, "%s", advice ? advice : "");
}

void hd_bad_rows_join(struct hd_bad_rows *rows, const struct hd_bad_rows *more)
{
    const char *at = more->reasons.data;
    const int64_t have = rows->count < HD_BAD_ROWS_SHOWN ? rows->count : HD_BAD_ROWS_SHOWN;

    rows->records += more->records;
    rows->count += more->count;
    for (int64_t i = have; at && *at && i < HD_BAD_ROWS_SHOWN; i++) {
        const size_t n = strcspn(at, "\n");

        hd_text_add(&rows->reasons, "%.*s\n", (int)n, at);
        at += n + (at[n] == '\n');
    }
}

void hd_bad_rows_free(struct hd_bad_rows *rows)
{
    hd_text_free(&rows->reasons);
    hd_text_free(&rows->advice);
    *rows = (struct hd_bad_rows){.count = 0};
}

const char *hd_bad_rows_first(const struct hd_bad_rows *rows, char *ret_text, size_t size_bytes)
{
    const char *all = rows->reasons.data ? rows->reasons.data : "";

    (void)snprintf(ret_text, size_bytes, "%.*s", (int)strcspn(all, "\n"), all);
    return ret_text;
}

enum hd_status hd_bad_rows_judge(const struct hd_bad_rows *rows, const struct hd_bad_rule *rule,
                                 const char *where)
{
    const int64_t max = rule->count_max < 0 ? (rows->records + 99) / 100 : rule->count_max;
    char first[512];

    if (!rows->count || (rule->skips && rows->count <= max))
        return HD_OK;
    if (!rule->skips)
        return hd_err(HD_INVALID,
                      "%s: %s%" PRId64 " of %" PRId64 " record%s cannot be used; mend or remove "
                      "%s, or leave %s out: data.bad_rows: skip",
                      where, rows->count < HD_BAD_ROWS_SHOWN ? "" : "at least ", rows->count,
                      rows->records, rows->records == 1 ? "" : "s",
                      rows->count == 1 ? "it" : "them", rows->count == 1 ? "it" : "them");
    return hd_err(HD_INVALID,
                  "%s: %" PRId64 " of %" PRId64 " records cannot be used, and data.bad_rows leaves "
                  "out at most %" PRId64
                  "%s; mend the data, or write data.bad_rows: {skip: %" PRId64 "}; the first: %s",
                  where, rows->count, rows->records, max, rule->count_max < 0 ? ", 1 in 100" : "",
                  rows->count, hd_bad_rows_first(rows, first, sizeof first));
}
