#include "records/source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "records_internal.h"

enum { PENDING_BYTES = 64 << 10 /* bytes of records that are made at a time, at least */ };

struct hd_records {
    char *path;
    struct records_file file;
    int64_t size_bytes;
    struct records_stream *stream;       /* NULL: the reader opens the file itself */
    const struct records_reader *reader; /* NULL: the stream's bytes are the text or the lines */
    void *state;                         /* of the reader */
    struct hd_text pending;              /* records that the caller has not read yet */
    size_t taken;                        /* bytes of `pending` that it has */
    bool at_end;
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
        return records_parquet_open(s->path, columns, &s->state);
    case HD_DATA_ARROW:
        s->reader = &records_arrow;
        return records_arrow_open(s->path, columns, &s->state);
    default:
        return HD_OK;
    }
}

/* Reads the first bytes of lines, to drop a byte order mark. */
static enum hd_status skip_mark(struct hd_records *s)
{
    char first[3];
    size_t n;
    enum hd_status st;

    if (s->file.kind != HD_DATA_LINES)
        return HD_OK;
    st = records_stream_read(s->stream, first, sizeof first, &n);
    if (!st && !(n == 3 && memcmp(first, "\xef\xbb\xbf", 3) == 0))
        hd_text_add_bytes(&s->pending, first, n);
    return st;
}

enum hd_status hd_records_open(const char *path, const char *columns,
                               struct hd_records **ret_source)
{
    struct hd_records *s = calloc(1, sizeof *s);
    struct records_columns names = {.count = 0};
    struct stat info;
    enum hd_status st = HD_OK;

    if (!s || !(s->path = strdup(path))) {
        free(s);
        return hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    }
    st = records_columns_parse(columns, &names);
    if (!st)
        st = records_classify(path, &s->file);
    s->size_bytes = !st && stat(path, &info) == 0 ? info.st_size : 0;
    if (!st)
        st = records_stream_open(path, s->file.packing, &s->stream);
    if (!st)
        st = open_reader(s, &names);
    records_columns_done(&names);
    if (!st)
        st = skip_mark(s);
    if (st)
        hd_records_close(s);
    else
        *ret_source = s;
    return st;
}

void hd_records_close(struct hd_records *s)
{
    if (!s)
        return;
    if (s->state)
        s->reader->close(s->state);
    records_stream_close(s->stream);
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
    return s->reader ? " row " : "";
}

int64_t hd_records_place(const struct hd_records *s)
{
    if (s->at_end && s->taken == s->pending.len_bytes)
        return s->size_bytes;
    return s->reader && s->reader->place ? s->reader->place(s->state)
                                         : records_stream_place(s->stream);
}

/* Makes records until there are PENDING_BYTES of them, or the file ends. */
static enum hd_status make_pending(struct hd_records *s)
{
    enum hd_status st = HD_OK;
    bool there = true;

    hd_text_clear(&s->pending);
    s->taken = 0;
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

    if (!s->reader) {
        st = records_stream_read(s->stream, ret_bytes + have, bytes - have, &n);
        have += n;
        s->at_end = have < bytes;
    }
    while (!st && s->reader && have < bytes && !s->at_end) {
        st = make_pending(s);
        if (!st)
            have += take(s, ret_bytes + have, bytes - have);
    }
    *ret_count = have;
    return st;
}
