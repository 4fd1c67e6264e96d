/* columns: which members of a record have a meaning, and under which names a file has them. */
#include <stdlib.h>
#include <string.h>

#include "records_internal.h"

/* Members that some form of a record reads, or refuses. */
static const char *const KNOWN[] = {
    "messages",      "conversations", "conversation", "text",     "content",
    "prompt",        "completion",    "instruction",  "input",    "context",
    "output",        "response",      "question",     "query",    "problem",
    "answer",        "solution",      "chosen",       "rejected", "system",
    "system_prompt", "tools",         "history",      "margin",   "label"};

enum hd_status records_columns_parse(const char *text, struct records_columns *ret_columns)
{
    struct records_columns c = {.count = 0};
    char *rest, *pair;

    if (text && *text && !(c.text = strdup(text)))
        return hd_err(HD_NO_MEMORY, "no memory for the names of columns");
    rest = c.text;
    while (rest && (pair = strsep(&rest, ","))) {
        char *column = strchr(pair, '=');

        if (!column || column == pair || !column[1] || c.count == RECORDS_COLUMNS_MAX) {
            free(c.text);
            return hd_err(HD_INVALID,
                          "'%.80s' is no list of at most %d pairs NAME=COLUMN with commas between "
                          "them",
                          text, RECORDS_COLUMNS_MAX);
        }
        *column = '\0';
        c.pairs[c.count].name = pair;
        c.pairs[c.count++].column = column + 1;
    }
    *ret_columns = c;
    return HD_OK;
}

void records_columns_done(struct records_columns *c)
{
    free(c->text);
    c->text = NULL;
    c->count = 0;
}

bool records_columns_want(const struct records_columns *c, const char *name, size_t bytes)
{
    for (int i = 0; i < c->count; i++)
        if (strlen(c->pairs[i].column) == bytes && memcmp(c->pairs[i].column, name, bytes) == 0)
            return true;
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (strlen(KNOWN[i]) == bytes && memcmp(KNOWN[i], name, bytes) == 0)
            return true;
    return false;
}
