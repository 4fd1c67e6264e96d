/* jsonl: parses a line of a .jsonl file. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/data_internal.h"

enum { READ_BYTES = 256 << 10 };

bool hd_jsonl_is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

enum hd_status hd_jsonl_text(struct hd_arena *arena, const char *line, size_t bytes,
                             const char *key, const char **ret_text)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 20, .depth_max = 64};
    const struct hd_json *root = NULL;
    enum hd_status st;

    if (bytes > HD_JSONL_LINE_BYTES_MAX)
        return hd_err(HD_LIMIT, "a line of more than %d bytes", HD_JSONL_LINE_BYTES_MAX);
    st = hd_json_parse(arena, line, bytes, &limits, &root);
    return st ? st : hd_json_need_string(root, key, ret_text);
}

/* A file that is read by lines, of HD_JSONL_LINE_BYTES_MAX at most. */
struct jsonl_lines {
    FILE *file;
    const char *path;
    int64_t number; /* of the line, from 1 */
    struct hd_text line;
    char *bytes;        /* READ_BYTES */
    size_t from, until; /* of those, not taken yet */
};

static enum hd_status open_lines(struct jsonl_lines *l, const char *path)
{
    *l = (struct jsonl_lines){.path = path, .file = fopen(path, "re")};
    if (!l->file)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open %s: %s", path,
                      strerror(errno));
    l->bytes = malloc(READ_BYTES);
    return l->bytes ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read %s", path);
}

static void close_lines(struct jsonl_lines *l)
{
    if (l->file)
        (void)fclose(l->file);
    free(l->bytes);
    hd_text_free(&l->line);
}

/* Adds what there is of the line; *ret_whole: up to its end. */
static enum hd_status add_bytes(struct jsonl_lines *l, bool *ret_whole)
{
    const char *from = l->bytes + l->from;
    const char *end = memchr(from, '\n', l->until - l->from);
    const size_t count = end ? (size_t)(end - from) : l->until - l->from;

    if (count > HD_JSONL_LINE_BYTES_MAX - l->line.len_bytes)
        return hd_err(HD_LIMIT, "%s:%" PRId64 ": a line of more than %d bytes", l->path, l->number,
                      HD_JSONL_LINE_BYTES_MAX);
    hd_text_add_bytes(&l->line, from, count);
    l->from += count + (end != NULL);
    *ret_whole = end;
    return l->line.failed ? hd_err(HD_NO_MEMORY, "no memory for a line of %s", l->path) : HD_OK;
}

/* Reads the next line into l->line, without its end; *ret_there false: there is none. */
static enum hd_status read_line(struct jsonl_lines *l, bool *ret_there)
{
    enum hd_status st = HD_OK;
    bool whole = false;

    hd_text_clear(&l->line);
    l->number++;
    *ret_there = false;
    while (!st && !whole) {
        if (l->from == l->until) {
            l->from = 0;
            l->until = fread(l->bytes, 1, READ_BYTES, l->file);
        }
        if (!l->until)
            break;
        *ret_there = true;
        st = add_bytes(l, &whole);
    }
    if (!st && ferror(l->file))
        st = hd_err(HD_IO, "cannot read %s: %s", l->path, strerror(errno));
    return st;
}

/* Calls `take` for the lines that are not blank until it is done. */
typedef enum hd_status line_fn(void *context, const char *line, size_t bytes, bool *ret_done);

/* ret_line: the number of the last line, from 1. */
static enum hd_status each_line(const char *path, line_fn *take, void *context, int64_t *ret_line)
{
    struct jsonl_lines l;
    enum hd_status st = open_lines(&l, path);
    bool done = false, there = true;

    while (!st && !done && there) {
        st = read_line(&l, &there);
        if (st || !there || hd_jsonl_is_blank(l.line.data ? l.line.data : "", l.line.len_bytes))
            continue;
        st = take(context, l.line.data, l.line.len_bytes, &done);
        st = st ? hd_err_prefix(st, "%s:%" PRId64, path, l.number) : HD_OK;
    }
    *ret_line = l.number - !there;
    close_lines(&l);
    return st;
}

struct look {
    enum hd_chat_form wanted, found;
};

static enum hd_status look_at_line(void *context, const char *line, size_t bytes, bool *ret_done)
{
    struct look *look = context;
    struct hd_conversation c = {.form = HD_CHAT_TEXT}, pair[HD_CHAT_PAIR];
    const char *text = NULL;
    struct hd_arena arena;
    enum hd_status st;

    *ret_done = true;
    hd_arena_init(&arena, 0);
    if (look->wanted == HD_CHAT_TEXT) {
        st = hd_jsonl_text(&arena, line, bytes, "text", &text);
    } else if (look->wanted == HD_CHAT_PREFERENCE) {
        st = hd_conversation_read_pair(&arena, line, bytes, pair);
        c.form = HD_CHAT_PREFERENCE;
    } else {
        st = hd_conversation_read(&arena, line, bytes, look->wanted, &c);
    }
    look->found = c.form;
    hd_arena_done(&arena);
    return st;
}

enum hd_status hd_jsonl_look(const char *path, enum hd_chat_form form, enum hd_chat_form *ret_form)
{
    struct look look = {.wanted = form, .found = form == HD_CHAT_AUTO ? HD_CHAT_TEXT : form};
    int64_t line;
    const enum hd_status st = each_line(path, look_at_line, &look, &line);

    *ret_form = look.found;
    return st;
}

static enum hd_status count_up(void *context, const char *line, size_t bytes, bool *ret_done)
{
    (void)line, (void)bytes;
    *ret_done = false;
    ++*(int64_t *)context;
    return HD_OK;
}

enum hd_status hd_jsonl_count(const char *path, int64_t *ret_documents)
{
    int64_t line;

    *ret_documents = 0;
    return each_line(path, count_up, ret_documents, &line);
}

static enum hd_status count_down(void *context, const char *line, size_t bytes, bool *ret_done)
{
    (void)line, (void)bytes;
    *ret_done = --*(int64_t *)context < 0;
    return HD_OK;
}

enum hd_status hd_jsonl_find_line(const char *path, int64_t document, int64_t *ret_line)
{
    enum hd_status st = each_line(path, count_down, &document, ret_line);

    return st || document < 0 ? st : hd_err(HD_NOT_FOUND, "%s has fewer documents", path);
}
