/* json_rows: the objects of a JSON file that has no object per line: elements of an array, alone
 * or as the only member of an object ({"data": [..]}), or objects behind each other.
 *
 * Splits at brackets outside strings and reads no further into an object: the caller parses each,
 * and refuses what is no JSON. Line breaks between an object's members become blanks.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/pieces.h"
#include "records_internal.h"

enum { INPUT_BYTES = HD_PIECE(256 << 10, 61), DEPTH_MAX = 1000 };

struct json_rows {
    const char *path;
    struct records_stream *stream;
    char *input;
    size_t from, until; /* offsets in `input` of the bytes that are not read yet */
    bool at_end;
    bool began, in_array, in_object; /* in_object: the array is a member of an object */
    bool ended;                      /* whether the array's end was read */
    int64_t rows;                    /* objects so far */
};

enum hd_status records_json_open(const char *path, struct records_stream *stream, void **ret_reader)
{
    struct json_rows *r = calloc(1, sizeof *r);

    if (!r || !(r->input = malloc(INPUT_BYTES))) {
        free(r);
        return hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    }
    r->path = path;
    r->stream = stream;
    *ret_reader = r;
    return HD_OK;
}

static void close_json(void *reader)
{
    struct json_rows *r = reader;

    free(r->input);
    free(r);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

size_t records_count_blanks(const char *text, size_t bytes)
{
    size_t n = 0;

    while (n < bytes && is_blank(text[n]))
        n++;
    return n;
}

size_t records_find_wrapped(const char *text, size_t bytes)
{
    static const char *const keys[] = {"data",    "train",    "rows",     "items",
                                       "records", "examples", "instances"};
    size_t at = records_count_blanks(text, bytes), length;

    if (at == bytes || text[at] != '{')
        return 0;
    at++;
    at += records_count_blanks(text + at, bytes - at);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        length = strlen(keys[i]);
        if (bytes - at < length + 2 || text[at] != '"' || text[at + length + 1] != '"' ||
            memcmp(text + at + 1, keys[i], length) != 0)
            continue;
        at += length + 2;
        at += records_count_blanks(text + at, bytes - at);
        if (at == bytes || text[at] != ':')
            return 0;
        at++;
        at += records_count_blanks(text + at, bytes - at);
        return at < bytes && text[at] == '[' ? at + 1 : 0;
    }
    return 0;
}

/* Reads more bytes if there are none; afterwards there are none only at the end of the file. */
static enum hd_status need_bytes(struct json_rows *r)
{
    enum hd_status st;

    if (r->from < r->until || r->at_end)
        return HD_OK;
    r->from = 0;
    st = records_stream_read(r->stream, r->input, INPUT_BYTES, &r->until);
    r->at_end = !st && r->until < INPUT_BYTES;
    return st;
}

/* Skips blanks; sets *ret_next to the byte behind them, '\0' at the end of the file. */
static enum hd_status skip_blanks(struct json_rows *r, char *ret_next)
{
    enum hd_status st = need_bytes(r);

    while (!st && r->from < r->until && is_blank(r->input[r->from])) {
        r->from++;
        st = need_bytes(r);
    }
    *ret_next = st || r->from == r->until ? '\0' : r->input[r->from];
    return st;
}

static enum hd_status begin(struct json_rows *r)
{
    char next;
    size_t array;
    enum hd_status st = need_bytes(r);

    if (!st && r->until >= 3 && memcmp(r->input, "\xef\xbb\xbf", 3) == 0)
        r->from = 3;
    if (!st)
        st = skip_blanks(r, &next);
    if (st)
        return st;
    r->began = true;
    array = records_find_wrapped(r->input + r->from, r->until - r->from);
    r->in_array = next == '[' || array;
    r->in_object = array;
    r->from += array ? array : next == '[';
    return HD_OK;
}

static enum hd_status wrong_json(const struct json_rows *r, const char *what)
{
    return hd_err(HD_INVALID, "%s: row %" PRId64 ": %s", r->path, r->rows + 1, what);
}

/* Reads what is behind the array: nothing, or the end of the object that holds it. */
static enum hd_status end_array(struct json_rows *r)
{
    char next;
    enum hd_status st;

    r->from++;
    r->ended = true;
    st = skip_blanks(r, &next);
    if (!st && r->in_object && next == '}') {
        r->from++;
        st = skip_blanks(r, &next);
    } else if (!st && r->in_object) {
        return hd_err(
            HD_INVALID,
            "%s: its object has other members beside its array of rows; write the rows as "
            "a .jsonl: jq -c '.data[]'",
            r->path);
    }
    if (!st && next)
        return hd_err(HD_INVALID, "%s: more text follows the end of its JSON array; remove it",
                      r->path);
    return st;
}

/* Moves to the next object; sets *ret_there to false at the end. */
static enum hd_status find_object(struct json_rows *r, bool *ret_there)
{
    char next;
    enum hd_status st = skip_blanks(r, &next);

    *ret_there = false;
    if (!st && r->in_array && r->rows && next == ',') {
        r->from++;
        st = skip_blanks(r, &next);
        if (!st && next == ']')
            return wrong_json(r, "a comma is before the end of the array; remove it");
    } else if (!st && r->in_array && r->rows && next != ']') {
        return wrong_json(r, next ? "a comma is missing in front of it"
                                  : "the file ends inside its array: it was cut");
    }
    if (st)
        return st;
    if (r->in_array && next == ']')
        return end_array(r);
    if (!next)
        return r->in_array ? wrong_json(r, "the file ends inside its array: it was cut") : HD_OK;
    if (next != '{')
        return wrong_json(r, "it is no JSON object; write {..}");
    *ret_there = true;
    return HD_OK;
}

/* Appends the object at which the reader is. */
static enum hd_status add_object(struct json_rows *r, struct hd_text *out)
{
    const size_t begin_at = out->len_bytes;
    bool in_string = false, escaped = false;
    int depth = 0;
    enum hd_status st = HD_OK;

    do {
        size_t first = r->from, at = first;

        for (; at < r->until; at++) {
            char *c = &r->input[at];

            if (in_string) {
                if (*c == '\n')
                    return wrong_json(r, "a line break inside a string; write it \\n");
                in_string = escaped || *c != '"';
                escaped = !escaped && *c == '\\';
                continue;
            }
            if (*c == '\n')
                *c = ' ';
            in_string = *c == '"';
            depth += *c == '{' || *c == '[';
            depth -= *c == '}' || *c == ']';
            if (depth <= 0 || depth > DEPTH_MAX) {
                at++;
                break;
            }
        }
        hd_text_add_bytes(out, r->input + first, at - first);
        r->from = at;
        if (out->len_bytes - begin_at > RECORDS_BYTES_MAX)
            return wrong_json(r, "it has more than " RECORDS_MAX_TEXT);
        if (depth > DEPTH_MAX)
            return wrong_json(r, "its brackets are nested too deeply");
        st = depth ? need_bytes(r) : HD_OK;
        if (!st && depth && r->from == r->until)
            return wrong_json(r, "the file ends inside it: it was cut");
    } while (!st && depth);
    hd_text_add_bytes(out, "\n", 1);
    return st;
}

static enum hd_status next_json(void *reader, struct hd_text *out, bool *ret_there)
{
    struct json_rows *r = reader;
    enum hd_status st = r->began ? HD_OK : begin(r);

    *ret_there = false;
    if (st || r->ended)
        return st;
    st = find_object(r, ret_there);
    if (!st && *ret_there)
        st = add_object(r, out);
    r->rows += !st && *ret_there;
    return st;
}

const struct records_reader records_json = {next_json, close_json, NULL};
