/* jsonl: parses the lines of .jsonl files. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "data/data_internal.h"
#include "data/lines.h"
#include "records/kind.h"

enum {
    NAMES_SHOWN = 4,
    TRIES_MAX = 1000 /* bad records in front of the first good one, if bad ones are left out */
};

/* Returns HD_INVALID for a record without a member `text`; the message lists its members. */
static enum hd_status no_text(const struct hd_json *root)
{
    struct hd_text has = {0};
    enum hd_status st;
    int shown = 0;

    if (!root->first)
        return hd_err(HD_INVALID, "the record is empty: its text is null, or missing");
    for (const struct hd_json *m = root->first; m && shown < NAMES_SHOWN; m = m->next)
        hd_text_add(&has, "%s'%.40s'", shown++ ? ", " : "", m->key);
    st =
        hd_err(HD_INVALID,
               "'text' is missing, and there is %s; name the member with the text in the job file, "
               "as data.columns: {text: NAME}, or to heddle data tokenize by --key NAME",
               has.data ? has.data : "");
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
        return hd_err(HD_INVALID, "it has more than " HD_JSONL_LINE_TEXT);
    st = hd_records_check_row(line, bytes);
    if (!st)
        st = hd_json_parse_line(arena, line, bytes, &limits, &root);
    if (!st && !hd_json_member(root, "text"))
        return no_text(root);
    if (!st && hd_json_member(root, "text")->kind == HD_JSON_NULL)
        return hd_err(HD_INVALID, "its text is null");
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
    const char *roles;   /* text of data.roles */
    int tries;           /* hd_jsonl_look: records that may still be bad */
    struct hd_error bad; /* error of the first of them */
};

/* Checks the form of a line and sets look->found. */
static enum hd_status look_at_line(struct look *look, const char *line, size_t bytes)
{
    struct hd_conversation c = {.form = HD_CHAT_TEXT}, pair[HD_CHAT_PAIR];
    bool has[HD_CHAT_PAIR];
    const char *text = NULL;
    struct hd_arena arena;
    enum hd_status st;

    st = hd_records_check_row(line, bytes);
    if (st)
        return st;
    hd_arena_init(&arena, 0);
    if (look->wanted == HD_CHAT_TEXT) {
        st = hd_jsonl_text(&arena, line, bytes, &text);
    } else if (look->wanted == HD_CHAT_PREFERENCE) {
        st = hd_conversation_read_pair(&arena, line, bytes, look->roles, pair);
        c.form = HD_CHAT_PREFERENCE;
    } else if (look->wanted == HD_CHAT_UNPAIRED) {
        st = hd_conversation_read_unpaired(&arena, line, bytes, look->roles, pair, has);
        c.form = HD_CHAT_UNPAIRED;
    } else {
        st = hd_conversation_read(&arena, line, bytes, look->wanted, look->roles, &c);
    }
    look->found = c.form;
    hd_arena_done(&arena);
    return st;
}

static enum hd_status look_at_first(void *context, const char *line, size_t bytes, bool *ret_done)
{
    struct look *look = context;
    const enum hd_status st = look_at_line(look, line, bytes);

    *ret_done = !st;
    if (st == HD_INVALID && look->tries > 0 && !look->bad.status)
        hd_err_save(st, &look->bad);
    if (!st)
        look->bad.status = HD_OK;
    return st == HD_INVALID && look->tries-- > 0 ? HD_OK : st;
}

enum hd_status hd_jsonl_look(const char *path, const struct hd_row_rules *rows,
                             enum hd_chat_form form, enum hd_chat_form *ret_form)
{
    struct look look = {.wanted = form,
                        .found = form == HD_CHAT_AUTO ? HD_CHAT_TEXT : form,
                        .roles = rows ? rows->roles : NULL};
    struct hd_bad_rule rule;
    enum hd_status st = hd_bad_rule_read(rows ? rows->bad_rows : NULL, &rule);

    look.tries = !st && rule.skips ? TRIES_MAX : 0;
    if (!st)
        st = each_line(path, rows ? rows->columns : NULL, look_at_first, &look, NULL);
    if (!st && look.bad.status)
        st =
            hd_err_prefix(hd_err_restore(&look.bad), "%s: none of its first records is good", path);
    *ret_form = look.found;
    return st;
}

/* Checks one record, which becomes a bad one of `bad` if it is refused. */
static enum hd_status check_record(struct look *look, const struct hd_lines *l,
                                   const struct hd_text *line, int64_t number,
                                   struct hd_bad_rows *bad)
{
    enum hd_status st = look_at_line(look, line->data, line->len_bytes);

    if (bad)
        bad->records++;
    if (st)
        st = hd_err_prefix(st, "%s:%s%" PRId64, l->path, hd_lines_unit(l), number);
    if (st != HD_INVALID || !bad)
        return st;
    hd_bad_rows_add(bad);
    return HD_OK;
}

enum hd_status hd_jsonl_check(const char *path, const struct hd_row_rules *rows,
                              enum hd_chat_form form, struct hd_jsonl_sample sample,
                              struct hd_bad_rows *bad, int64_t *ret_documents)
{
    struct look look = {.wanted = form, .roles = rows ? rows->roles : NULL};
    struct hd_text held = {0}; /* the latest record that was not checked */
    struct hd_lines l;
    int64_t held_number = 0, documents = 0;
    bool there = true;
    enum hd_status st =
        hd_lines_open(&l, path, rows ? rows->columns : NULL, HD_JSONL_LINE_BYTES_MAX);

    while (!st && there) {
        st = hd_lines_next(&l, &there);
        if (st || !there || hd_lines_is_blank(&l))
            continue;
        if (sample.bytes > 0 && documents % sample.every == 0) {
            st = check_record(&look, &l, &l.line, l.number, bad);
            held_number = 0;
        } else if (sample.bytes > 0) {
            hd_text_clear(&held);
            hd_text_add_bytes(&held, l.line.data, l.line.len_bytes);
            held_number = l.number;
        }
        sample.bytes -= (int64_t)l.line.len_bytes + 1;
        if (bad && bad->count >= HD_BAD_ROWS_SHOWN) /* enough: the rest is only counted */
            sample.bytes = 0;
        documents++;
    }
    if (!st && held_number && held.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a line of %s", path);
    if (!st && held_number && sample.bytes > 0)
        st = check_record(&look, &l, &held, held_number, bad);
    hd_lines_close(&l);
    hd_text_free(&held);
    *ret_documents = documents;
    return st;
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
