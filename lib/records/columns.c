/* columns: which members of a record have a meaning, and under which names a file has them. */
#include <stdlib.h>
#include <string.h>

#include "records_internal.h"

/* Members that some form of a record reads, or refuses. */
static const char *const KNOWN[] = {"messages",        "conversations",
                                    "conversation",    "text",
                                    "prompt",          "completion",
                                    "instruction",     "input",
                                    "context",         "output",
                                    "response",        "question",
                                    "query",           "problem",
                                    "answer",          "solution",
                                    "chosen",          "rejected",
                                    "system",          "system_prompt",
                                    "tools",           "history",
                                    "margin",          "label",
                                    "chosen_response", "rejected_response",
                                    "kto_tag"};

/* Names that data.columns may give, and the member that each becomes. A prompt with an answer is a
 * user's message, and without one the beginning of a text. */
static const char *const NAMES[][2] = {
    {"messages", "messages"}, {"text", "text"},     {"prompt", "prompt"},
    {"input", "input"},       {"answer", "output"}, {"completion", "completion"},
    {"system", "system"},     {"tools", "tools"},   {"chosen", "chosen"},
    {"rejected", "rejected"}, {"label", "label"}};

static bool is_text(const char *name, const char *bytes, size_t count)
{
    return strlen(name) == count && memcmp(name, bytes, count) == 0;
}

static const char *member_of(const char *name)
{
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (strcmp(NAMES[i][0], name) == 0)
            return NAMES[i][1];
    return NULL;
}

/* Adds the pair NAME=COLUMN, which stays in place, cut in two. */
static enum hd_status add_pair(struct records_columns *c, char *pair)
{
    char *column = strchr(pair, '=');

    if (!column || column == pair || !column[1])
        return hd_err(HD_INVALID, "'%.80s' is not NAME=COLUMN", pair);
    *column++ = '\0';
    if (!member_of(pair))
        return hd_err(HD_INVALID,
                      "'%.80s' is not messages, text, prompt, input, answer, completion, system, "
                      "tools, chosen, rejected or label",
                      pair);
    if (strpbrk(column, "\"\\"))
        return hd_err(HD_INVALID, "'%.80s' has a quote or a backslash; rename the column", column);
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->pairs[i].name, pair) == 0 || strcmp(c->pairs[i].column, column) == 0)
            return hd_err(HD_INVALID, "'%.80s' is there twice",
                          strcmp(c->pairs[i].name, pair) == 0 ? pair : column);
    c->pairs[c->count].name = pair;
    c->pairs[c->count++].column = column;
    return HD_OK;
}

enum hd_status records_columns_parse(const char *text, struct records_columns *ret_columns)
{
    struct records_columns c = {.count = 0};
    char *rest, *pair;
    bool answers = false;
    enum hd_status st = HD_OK;

    if (text && *text && !(c.text = strdup(text)))
        return hd_err(HD_NO_MEMORY, "no memory for the names of columns");
    rest = c.text;
    while (!st && rest && (pair = strsep(&rest, ",")))
        st = add_pair(&c, pair); /* at most one of each of NAMES */
    for (int i = 0; i < c.count; i++)
        answers |= strcmp(c.pairs[i].name, "answer") == 0;
    for (int i = 0; i < c.count; i++)
        c.pairs[i].member = answers && strcmp(c.pairs[i].name, "prompt") == 0
                                ? "instruction"
                                : member_of(c.pairs[i].name);
    if (st)
        records_columns_done(&c);
    else
        *ret_columns = c;
    return st;
}

enum hd_status hd_records_check_columns(const char *columns)
{
    struct records_columns c;
    const enum hd_status st = records_columns_parse(columns, &c);

    if (!st)
        records_columns_done(&c);
    return st;
}

void records_columns_done(struct records_columns *c)
{
    free(c->text);
    c->text = NULL;
    c->count = 0;
}

const char *records_columns_name(const struct records_columns *c, const char *column, size_t bytes)
{
    for (int i = 0; i < c->count; i++)
        if (is_text(c->pairs[i].column, column, bytes))
            return c->pairs[i].member;
    return NULL;
}

enum hd_status records_columns_refuse_media(const struct records_columns *c, const char *name,
                                            size_t bytes)
{
    static const char *const media[] = {"image", "images", "video", "videos", "audio", "audios"};

    for (size_t i = 0; !c->count && i < sizeof media / sizeof *media; i++)
        if (is_text(media[i], name, bytes))
            return hd_err(HD_INVALID,
                          "it has a column '%s', and Heddle trains on text; to train on the text "
                          "beside it, name its columns, as data.columns: {text: NAME}",
                          media[i]);
    return HD_OK;
}

bool records_columns_want(const struct records_columns *c, const char *name, size_t bytes)
{
    if (c->count)
        return records_columns_name(c, name, bytes);
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (is_text(KNOWN[i], name, bytes))
            return true;
    return false;
}
