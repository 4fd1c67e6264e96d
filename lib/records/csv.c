/* csv: the rows of a table with commas or tabs, after RFC 4180.
 *
 * The first row has the names of the columns. A field in quotes may hold separators, line breaks
 * and doubled quotes. An empty field without quotes is null; every other field is a string, copied
 * as it is: NA is the text "NA", and 1 the text "1".
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pieces.h"
#include "records_internal.h"

enum { INPUT_BYTES = HD_PIECE(256 << 10, 61), COLUMNS_MAX = 4096 };

struct csv_field {
    size_t from, until; /* offsets in `row` */
    bool quoted;
};

struct csv_rows {
    const char *path;
    struct records_stream *stream;
    char separator;
    char *input;
    size_t from, until; /* offsets in `input` of the bytes that are not read yet */
    bool at_end;
    int64_t line, row_line; /* current line, and the line where the row began; from 1 */
    struct hd_text row;     /* fields of the row behind each other, without quotes */
    struct csv_field *fields;
    size_t field_count, field_room;
    struct hd_text names; /* the first row; offsets in `columns` */
    struct csv_field *columns;
    size_t column_count;
};

enum hd_status records_csv_open(const char *path, struct records_stream *stream, char separator,
                                void **ret_reader)
{
    struct csv_rows *r = calloc(1, sizeof *r);

    if (!r || !(r->input = malloc(INPUT_BYTES))) {
        free(r);
        return hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    }
    r->path = path;
    r->stream = stream;
    r->separator = separator;
    r->line = 1;
    *ret_reader = r;
    return HD_OK;
}

static void close_csv(void *reader)
{
    struct csv_rows *r = reader;

    free(r->input);
    hd_text_free(&r->row);
    hd_text_free(&r->names);
    free(r->fields);
    free(r->columns);
    free(r);
}

static enum hd_status no_memory_for_row(const struct csv_rows *r)
{
    return hd_err(HD_NO_MEMORY, "no memory for a row of %s", r->path);
}

/* Returns the next byte without moving; -1: the end of the file, or *st is set. */
static int peek(struct csv_rows *r, enum hd_status *st)
{
    if (r->from == r->until && !r->at_end && !*st) {
        r->from = 0;
        *st = records_stream_read(r->stream, r->input, INPUT_BYTES, &r->until);
        r->at_end = r->until < INPUT_BYTES;
        if (*st)
            r->from = r->until = 0;
    }
    return r->from < r->until && !*st ? (unsigned char)r->input[r->from] : -1;
}

static enum hd_status wrong_row(const struct csv_rows *r, const char *what)
{
    return hd_err(HD_INVALID, "%s:%" PRId64 ": %s", r->path, r->row_line, what);
}

static bool ends_field(const struct csv_rows *r, int c)
{
    return c < 0 || c == r->separator || c == '\n' || c == '\r';
}

/* Reads a field behind its opening quote. */
static enum hd_status read_quoted(struct csv_rows *r)
{
    enum hd_status st = HD_OK;
    bool backslash = false;
    int c;

    r->from++;
    for (;;) {
        const char *at, *quote;

        c = peek(r, &st);
        if (st)
            return st;
        if (c < 0)
            return wrong_row(r, "the row that begins here has a quote that is not closed");
        at = r->input + r->from;
        quote = memchr(at, '"', r->until - r->from);
        for (const char *p = at; p < (quote ? quote : r->input + r->until); p++)
            r->line += *p == '\n';
        hd_text_add_bytes(&r->row, at, (size_t)((quote ? quote : r->input + r->until) - at));
        r->from += (size_t)((quote ? quote : r->input + r->until) - at);
        if (r->row.len_bytes > RECORDS_BYTES_MAX)
            return wrong_row(r, "the row that begins here has more than " RECORDS_MAX_TEXT
                                "; is a quote open?");
        if (!quote)
            continue;
        backslash = r->row.len_bytes && r->row.data[r->row.len_bytes - 1] == '\\';
        r->from++;
        c = peek(r, &st);
        if (st || ends_field(r, c))
            return st;
        if (c != '"')
            return wrong_row(r, backslash
                                    ? "a quote inside a field in quotes is written twice (\"\"), "
                                      "not with a backslash"
                                    : "the closing quote of a field is followed by more text; "
                                      "write a quote inside a field in quotes twice (\"\")");
        hd_text_add_bytes(&r->row, "\"", 1);
        r->from++;
    }
}

static enum hd_status read_plain(struct csv_rows *r)
{
    enum hd_status st = HD_OK;
    int c;

    while (!ends_field(r, c = peek(r, &st))) {
        size_t n = r->from;

        while (n < r->until && !ends_field(r, (unsigned char)r->input[n]))
            n++;
        hd_text_add_bytes(&r->row, r->input + r->from, n - r->from);
        r->from = n;
        if (r->row.len_bytes > RECORDS_BYTES_MAX)
            return wrong_row(r, "a row of more than " RECORDS_MAX_TEXT);
    }
    return st;
}

static enum hd_status read_field(struct csv_rows *r)
{
    enum hd_status st = HD_OK;
    struct csv_field f = {.from = r->row.len_bytes};

    if (r->field_count == r->field_room) {
        const size_t room = r->field_room ? 2 * r->field_room : 16;
        struct csv_field *more = realloc(r->fields, room * sizeof *more);

        if (!more)
            return no_memory_for_row(r);
        r->fields = more;
        r->field_room = room;
    }
    f.quoted = peek(r, &st) == '"';
    if (!st)
        st = f.quoted ? read_quoted(r) : read_plain(r);
    if (!st && r->field_count == COLUMNS_MAX)
        st = wrong_row(r, "a row of more than 4096 fields");
    if (st)
        return st;
    f.until = r->row.len_bytes;
    r->fields[r->field_count++] = f;
    return r->row.failed ? no_memory_for_row(r) : HD_OK;
}

/* Reads a row; an empty line is none. Sets *ret_there to false at the end of the file. */
static enum hd_status read_row(struct csv_rows *r, bool *ret_there)
{
    enum hd_status st = HD_OK;
    int c;

    while ((c = peek(r, &st)) == '\n' || c == '\r') {
        r->line += c == '\n';
        r->from++;
    }
    *ret_there = !st && c >= 0;
    hd_text_clear(&r->row);
    r->field_count = 0;
    r->row_line = r->line;
    for (bool more = *ret_there; !st && more;) {
        st = read_field(r);
        c = st ? -1 : peek(r, &st);
        more = c == r->separator;
        r->from += more;
    }
    return st;
}

/* Refuses a single column whose name, not in quotes, has what separates columns elsewhere. */
static enum hd_status check_separator(const struct csv_rows *r)
{
    static const struct {
        char c;
        const char *name;
    } others[] = {{';', "semicolons"}, {'\t', "tabs"}, {'|', "bars"}, {',', "commas"}};
    const struct csv_field *f = &r->columns[0];

    if (r->column_count != 1 || f->quoted)
        return HD_OK;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i].c != r->separator &&
            memchr(r->names.data + f->from, others[i].c, f->until - f->from))
            return hd_err(HD_INVALID,
                          "%s:%" PRId64 ": the names of the columns are separated by %s, and the "
                          "file's suffix says %s; write it with commas as .csv, or with tabs as "
                          ".tsv",
                          r->path, r->row_line, others[i].name,
                          r->separator == ',' ? "commas" : "tabs");
    return HD_OK;
}

/* Refuses two columns of one name, since a record cannot have a name twice. */
static enum hd_status check_names(const struct csv_rows *r)
{
    enum { COMPARED = 1000 }; /* of more columns a record is refused for its second name */

    for (size_t i = 0; i < r->column_count && r->column_count <= COMPARED; i++)
        for (size_t k = 0; k < i; k++) {
            const struct csv_field *a = &r->columns[i], *b = &r->columns[k];
            const size_t len = a->until - a->from;

            if (len == b->until - b->from &&
                memcmp(r->names.data + a->from, r->names.data + b->from, len) == 0)
                return hd_err(HD_INVALID,
                              "%s:%" PRId64
                              ": columns %zu and %zu are both named '%.*s'; rename or "
                              "remove one",
                              r->path, r->row_line, k + 1, i + 1, (int)(len < 60 ? len : 60),
                              r->names.data + a->from);
        }
    return HD_OK;
}

/* Takes the first row as the names of the columns. */
static enum hd_status read_names(struct csv_rows *r, bool *ret_there)
{
    enum hd_status st = HD_OK;

    if (peek(r, &st) == 0xEF && r->until - r->from >= 3 &&
        memcmp(r->input + r->from, "\xef\xbb\xbf", 3) == 0)
        r->from += 3;
    if (!st)
        st = read_row(r, ret_there);
    if (st || !*ret_there)
        return st;
    r->names = r->row;
    r->columns = r->fields;
    r->column_count = r->field_count;
    r->row = (struct hd_text){0};
    r->fields = NULL;
    r->field_room = 0;
    for (size_t i = 0; i < r->column_count; i++)
        if (r->columns[i].from == r->columns[i].until)
            return hd_err(HD_INVALID,
                          "%s:%" PRId64 ": column %zu has no name; the first row has the names of "
                          "the columns; pandas leaves out its index with to_csv(NAME, index=False)",
                          r->path, r->row_line, i + 1);
    st = check_names(r);
    return st ? st : check_separator(r);
}

/* Appends the current row as one that is no record, since it lacks fields or has too many. */
static void refuse_width(const struct csv_rows *r, struct hd_text *out)
{
    char reason[192];

    (void)snprintf(reason, sizeof reason,
                   "the row, which begins in line %" PRId64 ", has %zu fields, and the first row "
                   "has %zu; put a field with a %s in it into quotes",
                   r->row_line, r->field_count, r->column_count,
                   r->separator == ',' ? "comma" : "tab");
    records_add_refused(out, reason);
}

static enum hd_status next_csv(void *reader, struct hd_text *out, bool *ret_there)
{
    struct csv_rows *r = reader;
    bool any = false;
    enum hd_status st = HD_OK;

    *ret_there = true;
    if (!r->columns)
        st = read_names(r, ret_there);
    if (!st && *ret_there)
        st = read_row(r, ret_there);
    if (st || !*ret_there)
        return st;
    if (r->field_count != r->column_count) {
        refuse_width(r, out);
        return HD_OK;
    }
    hd_text_add_bytes(out, "{", 1);
    for (size_t i = 0; i < r->field_count; i++) {
        const struct csv_field *f = &r->fields[i], *name = &r->columns[i];

        if (f->from == f->until && !f->quoted)
            continue;
        if (any)
            hd_text_add_bytes(out, ",", 1);
        records_add_string(out, r->names.data + name->from, name->until - name->from);
        hd_text_add_bytes(out, ":", 1);
        records_add_string(out, r->row.data ? r->row.data + f->from : "", f->until - f->from);
        any = true;
    }
    hd_text_add_bytes(out, "}\n", 2);
    return HD_OK;
}

const struct records_reader records_csv = {next_csv, close_csv, NULL};
