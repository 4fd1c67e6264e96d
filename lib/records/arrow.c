#include "arrow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct arrow_rows {
    char *path;
    struct arrow_file file;
    int64_t rows; /* rows so far */
};

/* ---- values ---- */

static bool is_null(const struct arrow_array *a, int64_t i)
{
    const struct arrow_buffer *v = &a->buffers[0];

    if (a->field->kind == ARROW_NULL && a->field->dictionary < 0)
        return true;
    return v->count && ((uint64_t)i / 8 >= v->count || !(v->at[i / 8] >> (i % 8) & 1));
}

/* Reads item `i`, of `bytes` bytes, of a buffer, as a number with its sign. */
static enum hd_status read_item(const struct arrow_buffer *b, int64_t i, int bytes, int64_t *ret)
{
    struct flatbuffer f = {.bytes = b->at, .count = b->count};

    if ((uint64_t)i >= b->count / (size_t)bytes)
        return arrow_damaged();
    *ret = flatbuffer_read(&f, (size_t)i * (size_t)bytes, bytes);
    return HD_OK;
}

/* Reads the bounds of value `i` of a list or string. */
static enum hd_status read_bounds(const struct arrow_array *a, int64_t i, int64_t *ret_first,
                                  int64_t *ret_end)
{
    const int bytes = a->field->width / 8;
    enum hd_status st = read_item(&a->buffers[1], i, bytes, ret_first);

    if (!st)
        st = read_item(&a->buffers[1], i + 1, bytes, ret_end);
    return !st && (*ret_first < 0 || *ret_end < *ret_first) ? arrow_damaged() : st;
}

static void add_text(const struct arrow_field *f, const unsigned char *bytes, size_t count,
                     struct hd_text *out)
{
    if (f->is_json)
        records_add_json(out, (const char *)bytes, count);
    else
        records_add_string(out, (const char *)bytes, count);
}

static enum hd_status add_string(const struct arrow_array *a, int64_t i, struct hd_text *out)
{
    int64_t first = 0, end = 0;
    enum hd_status st = read_bounds(a, i, &first, &end);

    if (!st && (uint64_t)end > a->buffers[2].count)
        st = arrow_damaged();
    if (!st)
        add_text(a->field, end ? a->buffers[2].at + first : (const unsigned char *)"",
                 (size_t)(end - first), out);
    return st;
}

/* Appends a string of a view: its length, then up to 12 bytes of it, or a prefix, the number of a
 * buffer and an offset in it. */
static enum hd_status add_view(const struct arrow_array *a, int64_t i, struct hd_text *out)
{
    const struct arrow_buffer *views = &a->buffers[1];
    struct flatbuffer f = {.bytes = views->at, .count = views->count};
    int64_t length, buffer, offset;

    if ((uint64_t)i >= views->count / 16)
        return arrow_damaged();
    length = flatbuffer_read(&f, (size_t)i * 16, 4);
    if (length >= 0 && length <= 12) {
        add_text(a->field, views->at + i * 16 + 4, (size_t)length, out);
        return HD_OK;
    }
    buffer = flatbuffer_read(&f, (size_t)i * 16 + 8, 4);
    offset = flatbuffer_read(&f, (size_t)i * 16 + 12, 4);
    if (length < 0 || buffer < 0 || (uint64_t)buffer >= a->more_count || offset < 0 ||
        (uint64_t)(offset + length) > a->more[buffer].count)
        return arrow_damaged();
    add_text(a->field, a->more[buffer].at + offset, (size_t)length, out);
    return HD_OK;
}

static enum hd_status add_scalar(const struct arrow_array *a, int64_t i, struct hd_text *out)
{
    const struct arrow_field *f = a->field;
    const int64_t mask = f->width < 64 ? (INT64_C(1) << f->width) - 1 : -1;
    int64_t bits = 0;
    float single;
    double real;
    enum hd_status st = read_item(&a->buffers[1], i, f->width / 8, &bits);

    if (st)
        return st;
    if (f->kind == ARROW_INT && f->is_signed)
        records_add_int(out, f->width == 8 ? (signed char)bits : bits);
    else if (f->kind == ARROW_INT)
        records_add_unsigned(out, (uint64_t)(bits & mask));
    else if (f->width == 32) {
        const uint32_t low = (uint32_t)bits;

        memcpy(&single, &low, sizeof single);
        records_add_real(out, (double)single);
    } else {
        memcpy(&real, &bits, sizeof real);
        records_add_real(out, real);
    }
    return HD_OK;
}

static enum hd_status add_value(const struct arrow_file *file, const struct arrow_array *a,
                                int64_t i, struct hd_text *out, bool *ret_null);

/* Appends elements [first, end) of a list's child. */
static enum hd_status add_items(const struct arrow_file *file, const struct arrow_array *child,
                                int64_t first, int64_t end, struct hd_text *out)
{
    enum hd_status st = end > child->length ? arrow_damaged() : HD_OK;
    bool null;

    hd_text_add_bytes(out, "[", 1);
    for (int64_t i = first; !st && i < end; i++) {
        if (i > first)
            hd_text_add_bytes(out, ",", 1);
        st = add_value(file, child, i, out, &null);
        if (!st && null)
            hd_text_add_bytes(out, "null", 4);
    }
    hd_text_add_bytes(out, "]", 1);
    return st;
}

/* Appends entries [first, end) of a map, as an object. */
static enum hd_status add_entries(const struct arrow_file *file, const struct arrow_array *entries,
                                  int64_t first, int64_t end, struct hd_text *out)
{
    enum hd_status st = end > entries->length ? arrow_damaged() : HD_OK;
    const enum arrow_kind kind = entries->field->children[0]->kind;
    bool null;

    if (!st && kind != ARROW_STRING && kind != ARROW_VIEW)
        st = hd_err(HD_INVALID, "a map's keys are not text");
    hd_text_add_bytes(out, "{", 1);
    for (int64_t i = first; !st && i < end; i++) {
        if (i > first)
            hd_text_add_bytes(out, ",", 1);
        st = add_value(file, entries->children[0], i, out, &null);
        if (!st && null)
            st = arrow_damaged();
        hd_text_add_bytes(out, ":", 1);
        if (!st)
            st = add_value(file, entries->children[1], i, out, &null);
        if (!st && null)
            hd_text_add_bytes(out, "null", 4);
    }
    hd_text_add_bytes(out, "}", 1);
    return st;
}

static enum hd_status add_member(const struct arrow_file *file, const struct arrow_array *a,
                                 int64_t i, struct hd_text *out, bool *any)
{
    const size_t before = out->len_bytes;
    bool null = false;
    enum hd_status st;

    if (*any)
        hd_text_add_bytes(out, ",", 1);
    records_add_string(out, a->field->name, a->field->name_bytes);
    hd_text_add_bytes(out, ":", 1);
    st = i < a->length ? add_value(file, a, i, out, &null) : arrow_damaged();
    if (null && !out->failed)
        out->len_bytes = before;
    *any |= !null;
    return st;
}

static enum hd_status add_struct(const struct arrow_file *file, const struct arrow_array *a,
                                 int64_t i, struct hd_text *out)
{
    bool any = false;
    enum hd_status st = HD_OK;

    hd_text_add_bytes(out, "{", 1);
    for (size_t k = 0; !st && k < a->field->child_count; k++)
        st = add_member(file, a->children[k], i, out, &any);
    hd_text_add_bytes(out, "}", 1);
    return st;
}

/* Appends the value that an index into a dictionary names. */
static enum hd_status add_indexed(const struct arrow_file *file, const struct arrow_array *a,
                                  int64_t i, struct hd_text *out, bool *ret_null)
{
    const struct arrow_dictionary *d = arrow_find_dictionary(file, a->field);
    const struct arrow_chunk *c = d ? d->first : NULL;
    int64_t index = 0;
    enum hd_status st = read_item(&a->buffers[1], i, a->field->index_width / 8, &index);

    if (st)
        return st;
    for (; c && index >= c->array->length; c = c->next)
        index -= c->array->length;
    if (!c || index < 0)
        return arrow_damaged();
    return add_value(file, c->array, index, out, ret_null);
}

/* Appends value `i` of an array; sets *ret_null, and appends nothing, if it is null. */
static enum hd_status add_value(const struct arrow_file *file, const struct arrow_array *a,
                                int64_t i, struct hd_text *out, bool *ret_null)
{
    const struct arrow_field *f = a->field;
    int64_t first = 0, end = 0;
    enum hd_status st;

    *ret_null = is_null(a, i);
    if (*ret_null)
        return HD_OK;
    if (out->len_bytes > (size_t)RECORDS_BYTES_MAX + (1 << 20))
        return hd_err(HD_INVALID, "it has more than " RECORDS_MAX_TEXT);
    if (f->dictionary >= 0 && !a->is_dictionary)
        return add_indexed(file, a, i, out, ret_null);
    switch (f->kind) {
    case ARROW_INT:
    case ARROW_REAL:
        return add_scalar(a, i, out);
    case ARROW_BOOL:
        if ((uint64_t)i / 8 >= a->buffers[1].count)
            return arrow_damaged();
        hd_text_add(out, "%s", a->buffers[1].at[i / 8] >> (i % 8) & 1 ? "true" : "false");
        return HD_OK;
    case ARROW_STRING:
        return add_string(a, i, out);
    case ARROW_VIEW:
        return add_view(a, i, out);
    case ARROW_STRUCT:
        return add_struct(file, a, i, out);
    case ARROW_FIXED_LIST:
        return i > INT64_MAX / 4 / (f->size + 1)
                   ? arrow_damaged()
                   : add_items(file, a->children[0], i * f->size, (i + 1) * f->size, out);
    case ARROW_LIST:
    case ARROW_MAP:
        st = read_bounds(a, i, &first, &end);
        if (st)
            return st;
        return f->kind == ARROW_LIST ? add_items(file, a->children[0], first, end, out)
                                     : add_entries(file, a->children[0], first, end, out);
    default:
        return arrow_damaged();
    }
}

/* ---- rows ---- */

static enum hd_status add_record(struct arrow_file *file, struct hd_text *out)
{
    bool any = false;
    enum hd_status st = HD_OK;

    hd_text_add_bytes(out, "{", 1);
    for (size_t i = 0; !st && i < file->root->child_count; i++)
        if (file->root->children[i]->wanted)
            st = add_member(file, &file->columns[i], file->row, out, &any);
    hd_text_add_bytes(out, "}\n", 2);
    file->row++;
    file->rows_left--;
    return st;
}

static enum hd_status next_arrow(void *reader, struct hd_text *out, bool *ret_there)
{
    struct arrow_rows *r = reader;
    enum hd_status st = HD_OK;

    *ret_there = true;
    while (!st && *ret_there && !r->file.rows_left)
        st = arrow_next_batch(&r->file, ret_there);
    if (!st && *ret_there)
        st = add_record(&r->file, out);
    if (st)
        return hd_err_prefix(st, "%s: row %" PRId64, r->path, r->rows + 1);
    r->rows += *ret_there;
    return HD_OK;
}

static void close_arrow(void *reader)
{
    struct arrow_rows *r = reader;

    arrow_done(&r->file);
    free(r->path);
    free(r);
}

static int64_t place_in_arrow(const void *reader)
{
    const struct arrow_file *f = &((const struct arrow_rows *)reader)->file;

    if (f->is_stream)
        return f->at;
    return f->block_count ? (int64_t)((double)f->count * (double)f->block / (double)f->block_count)
                          : 0;
}

enum hd_status records_arrow_open(const char *path, const unsigned char *bytes, int64_t count,
                                  const struct records_columns *columns, void **ret_reader)
{
    struct arrow_rows *r = calloc(1, sizeof *r);
    enum hd_status st;

    if (!r || !(r->path = strdup(path))) {
        free(r);
        return hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    }
    r->file.bytes = bytes;
    r->file.count = count;
    st = arrow_begin(&r->file, columns);
    if (st) {
        close_arrow(r);
        return hd_err_prefix(st, "%s", path);
    }
    *ret_reader = r;
    return HD_OK;
}

const struct records_reader records_arrow = {next_arrow, close_arrow, place_in_arrow};
