#include "records/source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/pieces.h"
#include "records_internal.h"

enum {
    PENDING_BYTES = HD_PIECE(64 << 10, 61), /* bytes of records made at a time, at least */
    /* records, and their bytes, of which one must have the columns that data.columns names */
    FIRST_RECORDS = 1000,
    FIRST_BYTES = 1 << 20
};

struct hd_records {
    char *path;
    struct hd_data_facts file;
    int64_t size_bytes;
    struct records_stream *stream; /* NULL: the file is mapped */
    const unsigned char *mapped;   /* [mapped_bytes] a columnar file; NULL: not mapped */
    int64_t mapped_bytes;
    const struct records_reader *reader; /* NULL: the stream's bytes are the text or the lines */
    void *state;                         /* the reader's state */
    struct hd_text pending;              /* records that the caller has not read yet */
    size_t taken;                        /* bytes of `pending` that it has */
    bool at_end;
    /* if data.columns is given: the records with all columns, and the beginning of the next line */
    struct hd_records *inner;
    struct hd_text raw;
    bool began; /* whether a record was found that has the columns */
    struct records_columns columns;
};

static enum hd_status open_reader(struct hd_records *s, const struct records_columns *columns)
{
    switch (s->file.kind) {
    case HD_DATA_JSON:
        s->reader = &records_json;
        return records_json_open(s->path, s->stream, &s->state);
    case HD_DATA_CSV:
    case HD_DATA_TSV:
        s->reader = &records_csv;
        return records_csv_open(s->path, s->stream, s->file.kind == HD_DATA_CSV ? ',' : '\t',
                                &s->state);
    case HD_DATA_PARQUET:
        s->reader = &records_parquet;
        return records_parquet_open(s->path, s->mapped, s->mapped_bytes, columns, &s->state);
    case HD_DATA_ARROW:
        s->reader = &records_arrow;
        return records_arrow_open(s->path, s->mapped, s->mapped_bytes, columns, &s->state);
    default:
        return HD_OK;
    }
}

/* Reads the first bytes of lines or text, to drop a byte order mark. */
static enum hd_status skip_mark(struct hd_records *s)
{
    char first[3];
    size_t n;
    enum hd_status st;

    if (s->reader)
        return HD_OK;
    st = records_stream_read(s->stream, first, sizeof first, &n);
    if (!st && !(n == 3 && memcmp(first, "\xef\xbb\xbf", 3) == 0))
        hd_text_add_bytes(&s->pending, first, n);
    return st;
}

static enum hd_status open_file(struct hd_records *s, const struct records_columns *columns)
{
    struct stat info;
    enum hd_status st = records_classify(s->path, &s->file, &s->stream);

    s->size_bytes = !st && stat(s->path, &info) == 0 ? info.st_size : 0;
    if (!st && (s->file.kind == HD_DATA_PARQUET || s->file.kind == HD_DATA_ARROW)) {
        records_stream_close(s->stream);
        s->stream = NULL;
        st = records_map(s->path, &s->mapped, &s->mapped_bytes);
    }
    if (!st)
        st = open_reader(s, columns);
    return st ? st : skip_mark(s);
}

static enum hd_status new_records(const char *path, struct hd_records **ret_records)
{
    struct hd_records *s = calloc(1, sizeof *s);

    if (!s || !(s->path = strdup(path))) {
        free(s);
        return hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    }
    *ret_records = s;
    return HD_OK;
}

/* Puts records around `inner` that have the named columns alone; takes both over if it succeeds. */
static enum hd_status select_columns(struct hd_records *inner, struct records_columns *columns,
                                     struct hd_records **ret_records)
{
    struct hd_records *outer = NULL;
    const enum hd_status st = new_records(inner->path, &outer);

    if (st)
        return st;
    outer->file = inner->file;
    outer->inner = inner;
    outer->columns = *columns;
    *columns = (struct records_columns){.count = 0};
    *ret_records = outer;
    return HD_OK;
}

enum hd_status hd_records_open(const char *path, const char *columns,
                               struct hd_records **ret_records)
{
    struct records_columns names = {.count = 0};
    struct hd_records *s = NULL;
    enum hd_status st = records_columns_parse(columns, &names);

    if (st)
        return hd_err_prefix(st, "data.columns");
    st = new_records(path, &s);
    if (!st)
        st = open_file(s, &names);
    if (!st && names.count && hd_records_are_rows(s))
        st = select_columns(s, &names, &s);
    records_columns_done(&names);
    if (st)
        hd_records_close(s);
    else
        *ret_records = s;
    return st;
}

void hd_records_close(struct hd_records *s)
{
    if (!s)
        return;
    hd_records_close(s->inner);
    hd_text_free(&s->raw);
    records_columns_done(&s->columns);
    if (s->state)
        s->reader->close(s->state);
    records_stream_close(s->stream);
    records_unmap(s->mapped, s->mapped_bytes);
    hd_text_free(&s->pending);
    free(s->path);
    free(s);
}

bool hd_records_are_rows(const struct hd_records *s)
{
    return s->file.kind != HD_DATA_TEXT;
}

const char *hd_records_unit(const struct hd_records *s)
{
    return s->inner ? hd_records_unit(s->inner) : s->reader ? " row " : "";
}

int64_t hd_records_place(const struct hd_records *s)
{
    if (s->inner)
        return hd_records_place(s->inner);
    if (s->at_end && s->taken == s->pending.len_bytes)
        return s->size_bytes;
    return s->reader && s->reader->place ? s->reader->place(s->state)
                                         : records_stream_place(s->stream);
}

/* Looks for a record that has the named columns, as those in front may have nulls. *ret_decided
 * false: more lines must be read. The error tells of the first record. */
static enum hd_status find_first(const struct hd_records *s, bool is_last, bool *ret_decided)
{
    struct hd_error first = {.status = HD_OK};
    const char *line = s->raw.data, *end;
    size_t left = s->raw.len_bytes;

    *ret_decided = is_last || left > FIRST_BYTES;
    for (int i = 0; left && i < FIRST_RECORDS; i++) {
        const size_t n = (end = memchr(line, '\n', left)) ? (size_t)(end - line) : left;
        enum hd_status st;

        if (!end && !is_last)
            return HD_OK;
        st = n > 2 ? records_check_first(&s->columns, line, n) : HD_OK;
        if (!st && n > 2) {
            *ret_decided = true;
            return HD_OK;
        }
        if (!first.status && st)
            hd_err_save(st, &first);
        line += n + (end != NULL);
        left -= n + (end != NULL);
        *ret_decided |= i + 1 == FIRST_RECORDS;
    }
    return *ret_decided && first.status ? hd_err_restore(&first) : HD_OK;
}

/* Selects the columns of the whole lines in s->raw; of its rest too at the end of the file. */
static enum hd_status select_lines(struct hd_records *s, bool is_last)
{
    enum hd_status st = s->began ? HD_OK : find_first(s, is_last, &s->began);
    size_t from = 0;

    while (!st && s->began && from < s->raw.len_bytes) {
        const char *line = s->raw.data + from;
        const char *end = memchr(line, '\n', s->raw.len_bytes - from);
        const size_t n = end ? (size_t)(end - line) : s->raw.len_bytes - from;

        if (!end && !is_last)
            break;
        records_select(&s->columns, line, n, &s->pending);
        from += n + (end != NULL);
    }
    if (from)
        memmove(s->raw.data, s->raw.data + from, s->raw.len_bytes - from);
    s->raw.len_bytes -= from;
    return st ? hd_err_prefix(st, "%s", s->path) : HD_OK;
}

/* Makes records with the named columns alone. */
static enum hd_status make_selected(struct hd_records *s)
{
    char *buffer = malloc(PENDING_BYTES);
    size_t n = 0;
    enum hd_status st = buffer ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read %s", s->path);

    if (!st)
        st = hd_records_read(s->inner, buffer, PENDING_BYTES, &n);
    s->at_end = n < PENDING_BYTES;
    if (!st) {
        hd_text_add_bytes(&s->raw, buffer, n);
        st = select_lines(s, s->at_end);
    }
    if (!st && s->raw.len_bytes > RECORDS_BYTES_MAX)
        st = hd_err(HD_INVALID, "%s: a record of more than " RECORDS_MAX_TEXT, s->path);
    if (!st && (s->raw.failed || s->pending.failed))
        st = hd_err(HD_NO_MEMORY, "no memory for a record of %s", s->path);
    free(buffer);
    return st;
}

/* Makes records until there are PENDING_BYTES of them, or the file ends. */
static enum hd_status make_pending(struct hd_records *s)
{
    enum hd_status st = HD_OK;
    bool there = true;

    hd_text_clear(&s->pending);
    s->taken = 0;
    if (s->inner)
        return make_selected(s);
    while (!st && there && s->pending.len_bytes < PENDING_BYTES)
        st = s->reader->next(s->state, &s->pending, &there);
    s->at_end = !there;
    if (!st && s->pending.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a record of %s", s->path);
    return st;
}

/* Moves pending bytes to the buffer. */
static size_t take(struct hd_records *s, char *bytes, size_t count)
{
    const size_t left = s->pending.len_bytes - s->taken, n = left < count ? left : count;

    if (n)
        memcpy(bytes, s->pending.data + s->taken, n);
    s->taken += n;
    return n;
}

enum hd_status hd_records_read(struct hd_records *s, char *ret_bytes, size_t bytes,
                               size_t *ret_count)
{
    size_t have = take(s, ret_bytes, bytes), n = 0;
    enum hd_status st = HD_OK;

    if (!s->reader && !s->inner) {
        st = records_stream_read(s->stream, ret_bytes + have, bytes - have, &n);
        have += n;
        s->at_end = have < bytes;
    }
    while (!st && (s->reader || s->inner) && have < bytes && !s->at_end) {
        st = make_pending(s);
        if (!st)
            have += take(s, ret_bytes + have, bytes - have);
    }
    *ret_count = have;
    return st;
}
