/* jsonl: parses the lines of .jsonl files. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "data/data_internal.h"
#include "data/lines.h"
#include "records/kind.h"

enum { NAMES_SHOWN = 4 };

/* Returns HD_INVALID for a record without a member `text`; the message has the members that it has. */
static enum hd_status no_text(const struct hd_json *root)
{
    struct hd_text has = {0};
    enum hd_status st;
    int shown = 0;

    for (const struct hd_json *m = root->first; m && shown < NAMES_SHOWN; m = m->next)
        hd_text_add(&has, "%s'%.40s'", shown++ ? ", " : "", m->key);
    st =
        hd_err(HD_INVALID,
               "'text' is missing, and there is %s; name the member with the text in the job file, "
               "as data.columns: {text: NAME}, or to heddle data tokenize by --key NAME",
               has.data ? has.data : "no member");
    hd_text_free(&has);
    return st;
}

enum hd_status hd_jsonl_text(struct hd_arena *arena, const char *line, size_t bytes,
                             const char **ret_text)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 20, .depth_max = 64};
    const struct hd_json *root = NULL;
    enum hd_status st;

    if (bytes > HD_JSONL_LINE_BYTES_MAX)
        return hd_err(HD_INVALID, "a line of more than %d bytes", HD_JSONL_LINE_BYTES_MAX);
    st = hd_json_parse_line(arena, line, bytes, &limits, &root);
    if (!st && !hd_json_member(root, "text"))
        return no_text(root);
    return st ? st : hd_json_need_string(root, "text", ret_text);
}

/* Callback for one line that is not blank; sets *ret_done to end the iteration. */
typedef enum hd_status line_fn(void *context, const char *line, size_t bytes, bool *ret_done);

struct line_place {
    const char *unit; /* word in front of the number (hd_records_unit) */
    int64_t number;   /* from 1 */
};

/* Calls `take` for each line of a file that is not blank, or each record as a line, until it sets
 * its *ret_done. Sets *ret_last to the last line read; NULL: the caller does not need it. */
static enum hd_status each_line(const char *path, const char *columns, line_fn *take, void *context,
                                struct line_place *ret_last)
{
    struct hd_lines l;
    enum hd_status st = hd_lines_open(&l, path, columns, HD_JSONL_LINE_BYTES_MAX);
    bool done = false, there = true;

    while (!st && !done && there) {
        st = hd_lines_next(&l, &there);
        if (st || !there || hd_lines_is_blank(&l))
            continue;
        st = take(context, l.line.data, l.line.len_bytes, &done);
        st = st ? hd_err_prefix(st, "%s:%s%" PRId64, path, hd_lines_unit(&l), l.number) : HD_OK;
    }
    if (!st && ret_last)
        *ret_last = (struct line_place){hd_lines_unit(&l), l.number - !there};
    hd_lines_close(&l);
    return st;
}

struct look {
    enum hd_chat_form wanted, found;
    /* hd_jsonl_check: bytes of lines that are still to be checked; lines so far */
    int64_t left, documents;
};

/* Checks the form of a line and sets look->found. */
static enum hd_status look_at_line(struct look *look, const char *line, size_t bytes)
{
    struct hd_conversation c = {.form = HD_CHAT_TEXT}, pair[HD_CHAT_PAIR];
    const char *text = NULL;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    if (look->wanted == HD_CHAT_TEXT) {
        st = hd_jsonl_text(&arena, line, bytes, &text);
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

static enum hd_status look_at_first(void *context, const char *line, size_t bytes, bool *ret_done)
{
    *ret_done = true;
    return look_at_line(context, line, bytes);
}

enum hd_status hd_jsonl_look(const char *path, const char *columns, enum hd_chat_form form,
                             enum hd_chat_form *ret_form)
{
    struct look look = {.wanted = form, .found = form == HD_CHAT_AUTO ? HD_CHAT_TEXT : form};
    /* checks the first bytes before any line, as its messages are better */
    enum hd_status st = hd_data_look(path);

    if (!st)
        st = each_line(path, columns, look_at_first, &look, NULL);
    *ret_form = look.found;
    return st;
}

static enum hd_status check_and_count(void *context, const char *line, size_t bytes, bool *ret_done)
{
    struct look *look = context;

    *ret_done = false;
    look->documents++;
    if (look->left <= 0)
        return HD_OK;
    look->left -= (int64_t)bytes + 1;
    return look_at_line(look, line, bytes);
}

enum hd_status hd_jsonl_check(const char *path, const char *columns, enum hd_chat_form form,
                              int64_t bytes, int64_t *ret_documents)
{
    struct look look = {.wanted = form, .left = bytes};
    enum hd_status st = each_line(path, columns, check_and_count, &look, NULL);

    *ret_documents = look.documents;
    return st;
}

static enum hd_status count_up(void *context, const char *line, size_t bytes, bool *ret_done)
{
    (void)line, (void)bytes;
    *ret_done = false;
    ++*(int64_t *)context;
    return HD_OK;
}

enum hd_status hd_jsonl_count(const char *path, const char *columns, int64_t *ret_documents)
{
    *ret_documents = 0;
    return each_line(path, columns, count_up, ret_documents, NULL);
}

static enum hd_status count_down(void *context, const char *line, size_t bytes, bool *ret_done)
{
    (void)line, (void)bytes;
    *ret_done = --*(int64_t *)context < 0;
    return HD_OK;
}

enum hd_status hd_jsonl_find_line(const char *path, int64_t document, const char **ret_unit,
                                  int64_t *ret_line)
{
    struct line_place last;
    const enum hd_status st = each_line(path, NULL, count_down, &document, &last);

    if (st)
        return st;
    *ret_unit = last.unit;
    *ret_line = last.number;
    return document < 0 ? HD_OK : hd_err(HD_NOT_FOUND, "%s has fewer documents", path);
}
