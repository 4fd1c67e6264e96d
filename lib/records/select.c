/* select: keeps the members of a record, a line of JSON, that data.columns names, and renames them
 * as the forms of records have them. A line that is no JSON object stays as it is, for the code that
 * parses it to refuse. */
#include <string.h>

#include "base/json.h"
#include "records_internal.h"

/* A place in a line. */
struct line_cursor {
    const char *at, *end;
};

static void skip_blanks_in(struct line_cursor *c)
{
    while (c->at < c->end && strchr(" \t\r", *c->at) && *c->at)
        c->at++;
}

/* Moves over a character that must come next, and the blanks around it. */
static bool take_char(struct line_cursor *c, char wanted)
{
    skip_blanks_in(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    skip_blanks_in(c);
    return true;
}

/* Moves over a string. */
static bool take_quoted(struct line_cursor *c)
{
    if (c->at == c->end || *c->at != '"')
        return false;
    for (c->at++; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\' && ++c->at == c->end)
            return false;
    return c->at < c->end && *c->at++ == '"';
}

/* Moves over a value: to the comma or bracket that ends it. */
static bool take_value(struct line_cursor *c)
{
    int depth = 0;

    while (c->at < c->end) {
        if (*c->at == '"') {
            if (!take_quoted(c))
                return false;
            continue;
        }
        depth += *c->at == '{' || *c->at == '[';
        if (!depth && (*c->at == ',' || *c->at == '}'))
            return true;
        depth -= *c->at == '}' || *c->at == ']';
        if (depth < 0)
            return false;
        c->at++;
    }
    return false;
}

/* Returns the member that a key of the line becomes. key: the text between its quotes, which may
 * have escapes such as \\u00e4. NULL: data.columns does not name it. */
static const char *find_name(const struct records_columns *columns, const char *key, size_t bytes)
{
    static const struct hd_json_limits limits = {.values_max = 1, .depth_max = 1};
    const struct hd_json *root = NULL;
    const char *name = NULL;
    struct hd_arena arena;

    if (!memchr(key, '\\', bytes))
        return records_columns_name(columns, key, bytes);
    hd_arena_init(&arena, 0);
    if (!hd_json_parse(&arena, key - 1, bytes + 2, &limits, &root) && root->kind == HD_JSON_STRING)
        name = records_columns_name(columns, root->text, strlen(root->text));
    hd_arena_done(&arena);
    return name;
}

/* Appends the members of the line's object that are wanted; returns false if it is none. Appends
 * the names of all members to `keys`, if not NULL, and marks those found in `found`. */
static bool select_members(const struct records_columns *columns, struct line_cursor c,
                           struct hd_text *out, struct hd_text *keys, uint64_t *found)
{
    bool any = false;

    if (!take_char(&c, '{'))
        return false;
    hd_text_add_bytes(out, "{", 1);
    if (take_char(&c, '}')) {
        hd_text_add_bytes(out, "}", 1);
        return c.at == c.end;
    }
    do {
        const char *key = c.at, *name, *value;
        size_t key_bytes;

        if (!take_quoted(&c))
            return false;
        key_bytes = (size_t)(c.at - key) - 2;
        if (!take_char(&c, ':'))
            return false;
        value = c.at;
        if (!take_value(&c) || c.at == value)
            return false;
        name = find_name(columns, key + 1, key_bytes);
        if (keys)
            hd_text_add(keys, "%s%.*s", keys->len_bytes ? ", " : "",
                        (int)(key_bytes < 80 ? key_bytes : 80), key + 1);
        for (int i = 0; name && i < columns->count; i++)
            *found |= (uint64_t)(columns->pairs[i].member == name) << i;
        if (!name)
            continue;
        hd_text_add(out, "%s\"%s\":", any ? "," : "", name);
        hd_text_add_bytes(out, value, (size_t)(c.at - value));
        any = true;
    } while (take_char(&c, ','));
    hd_text_add_bytes(out, "}", 1);
    return take_char(&c, '}') && c.at == c.end;
}

/* Refuses a first record that lacks a column, unless records may be without: it names those that
 * the record has. */
static enum hd_status need_columns(const struct records_columns *columns, uint64_t found,
                                   const struct hd_text *keys)
{
    for (int i = 0; i < columns->count; i++) {
        const char *name = columns->pairs[i].name;

        if (found >> i & 1 || strcmp(name, "system") == 0 || strcmp(name, "input") == 0 ||
            strcmp(name, "tools") == 0)
            continue;
        return hd_err(
            HD_INVALID,
            "data.columns: the first record has nothing in column '%.80s'; it has: %.400s",
            columns->pairs[i].column, keys->data ? keys->data : "no column");
    }
    return HD_OK;
}

enum hd_status records_check_first(const struct records_columns *columns, const char *line,
                                   size_t bytes)
{
    struct hd_text out = {0}, keys = {0};
    uint64_t found = 0;
    enum hd_status st = HD_OK;

    if (select_members(columns, (struct line_cursor){line, line + bytes}, &out, &keys, &found))
        st = need_columns(columns, found, &keys);
    hd_text_free(&out);
    hd_text_free(&keys);
    return st;
}

void records_select(const struct records_columns *columns, const char *line, size_t bytes,
                    struct hd_text *out)
{
    const size_t before = out->len_bytes;
    uint64_t found = 0;

    if (!select_members(columns, (struct line_cursor){line, line + bytes}, out, NULL, &found) &&
        !out->failed) {
        out->len_bytes = before;
        hd_text_add_bytes(out, line, bytes);
    }
    hd_text_add_bytes(out, "\n", 1);
}
