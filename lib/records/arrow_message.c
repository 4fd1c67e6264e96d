/* arrow_message: the schema and the batches of an Arrow IPC file or stream. */
#include <stdlib.h>
#include <string.h>

#include "arrow.h"
#include "unpack.h"

enum { HEADER_SCHEMA = 1, HEADER_DICTIONARY = 2, HEADER_BATCH = 3 };

struct message {
    struct flatbuffer b;
    int type;
    size_t header;
    const unsigned char *body;
    int64_t body_bytes;
};

/* Reading of one batch: its lists of nodes and buffers, and the next of each. */
struct batch {
    struct arrow_file *file;
    struct message *m;
    struct hd_arena *arena;
    bool keeps; /* whether unpacked buffers outlive the batch */
    size_t nodes, node_count, node;
    size_t buffers, buffer_count, buffer;
    size_t variadics, variadic_count, variadic;
    int codec; /* -1: not compressed */
};

enum hd_status arrow_damaged(void)
{
    return hd_err(HD_INVALID, "the Arrow file is damaged; write it again");
}

enum hd_status arrow_no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory to read an Arrow file");
}

/* ---- schema ---- */

/* Sets what the type of a field, number `type` of the format, says. */
static void read_type(struct flatbuffer *b, int64_t type, size_t table, struct arrow_field *f)
{
    static const struct {
        enum arrow_kind kind;
        int width, buffers;
    } types[] = {
        [1] = {ARROW_NULL, 0, 0},        [2] = {ARROW_INT, 0, 2},      [3] = {ARROW_REAL, 0, 2},
        [4] = {ARROW_STRING, 32, 3},     [5] = {ARROW_STRING, 32, 3},  [6] = {ARROW_BOOL, 0, 2},
        [7] = {ARROW_OTHER, 0, 2},       [8] = {ARROW_OTHER, 0, 2},    [9] = {ARROW_OTHER, 0, 2},
        [10] = {ARROW_OTHER, 0, 2},      [11] = {ARROW_OTHER, 0, 2},   [12] = {ARROW_LIST, 32, 2},
        [13] = {ARROW_STRUCT, 0, 1},     [14] = {ARROW_OTHER, 0, 0},   [15] = {ARROW_OTHER, 0, 2},
        [16] = {ARROW_FIXED_LIST, 0, 1}, [17] = {ARROW_MAP, 32, 2},    [18] = {ARROW_OTHER, 0, 2},
        [19] = {ARROW_STRING, 64, 3},    [20] = {ARROW_STRING, 64, 3}, [21] = {ARROW_LIST, 64, 2},
        [22] = {ARROW_OTHER, 0, 0},      [23] = {ARROW_VIEW, 0, 2},    [24] = {ARROW_VIEW, 0, 2},
        [25] = {ARROW_OTHER, 0, 3},      [26] = {ARROW_OTHER, 0, 3}};

    if (type < 1 || type >= (int64_t)(sizeof types / sizeof *types)) {
        b->failed = true;
        return;
    }
    f->kind = types[type].kind;
    f->width = types[type].width;
    f->own_buffers = types[type].buffers;
    f->is_variadic = f->kind == ARROW_VIEW;
    if (type == 2) {
        f->width = (int)flatbuffer_number(b, table, 0, 4, 0);
        f->is_signed = flatbuffer_number(b, table, 1, 1, 0) != 0;
        b->failed |= f->width != 8 && f->width != 16 && f->width != 32 && f->width != 64;
    } else if (type == 3) {
        f->width = 16 << (flatbuffer_number(b, table, 0, 2, 0) & 3);
        f->kind = f->width == 32 || f->width == 64 ? ARROW_REAL : ARROW_OTHER;
    } else if (type == 14) {
        f->own_buffers = flatbuffer_number(b, table, 0, 2, 0) ? 2 : 1; /* dense: also offsets */
    } else if (type == 16) {
        f->size = flatbuffer_number(b, table, 0, 4, 0);
        b->failed |= f->size < 0;
    }
}

/* Returns whether a field's metadata name it as JSON. */
static bool is_json(struct flatbuffer *b, size_t field)
{
    static const char key[] = "ARROW:extension:name", json[] = "arrow.json";
    size_t count, first = flatbuffer_list(b, flatbuffer_ref(b, field, 6), 4, &count), n, m;

    for (size_t i = 0; i < count && !b->failed; i++) {
        const size_t pair = flatbuffer_table(b, first, i);
        const char *name = flatbuffer_string(b, pair, 0, &n);
        const char *value = flatbuffer_string(b, pair, 1, &m);

        if (n == sizeof key - 1 && m == sizeof json - 1 && memcmp(name, key, n) == 0 &&
            memcmp(value, json, m) == 0)
            return true;
    }
    return false;
}

/* Reads a field of the schema and those below it. encoded: it is below a field with a dictionary,
 * and so may have none itself: dictionaries could name each other without end. */
static enum hd_status parse_field(struct arrow_file *file, struct flatbuffer *b, size_t table,
                                  int depth, bool encoded, size_t *left,
                                  struct arrow_field **ret_field)
{
    struct arrow_field *f = hd_arena_alloc(&file->arena, sizeof *f);
    const size_t encoding = flatbuffer_ref(b, table, 4);
    const char *name;
    size_t first;
    enum hd_status st = HD_OK;

    if (!f)
        return arrow_no_memory();
    if (!table || depth > ARROW_DEPTH_MAX || !*left || (encoding && encoded))
        return arrow_damaged();
    --*left;
    name = flatbuffer_string(b, table, 0, &f->name_bytes);
    f->name = hd_arena_printf(&file->arena, "%.*s", (int)f->name_bytes, name);
    f->name_bytes = f->name ? strlen(f->name) : 0;
    read_type(b, flatbuffer_number(b, table, 2, 1, 0), flatbuffer_ref(b, table, 3), f);
    f->is_json = is_json(b, table);
    f->dictionary = -1;
    if (encoding) {
        const size_t index = flatbuffer_ref(b, encoding, 1);

        f->dictionary = flatbuffer_number(b, encoding, 0, 8, 0);
        f->index_width = index ? (int)flatbuffer_number(b, index, 0, 4, 32) : 32;
        b->failed |=
            f->dictionary < 0 || f->index_width < 8 || f->index_width > 64 || f->index_width % 8;
    }
    first = flatbuffer_list(b, flatbuffer_ref(b, table, 5), 4, &f->child_count);
    if (b->failed || f->child_count > *left)
        return arrow_damaged();
    f->children = hd_arena_array(&file->arena, f->child_count + 1, sizeof *f->children);
    if (!f->children || !f->name)
        return arrow_no_memory();
    for (size_t i = 0; !st && i < f->child_count; i++)
        st = parse_field(file, b, flatbuffer_table(b, first, i), depth + 1, encoded || encoding,
                         left, &f->children[i]);
    if (!st && f->child_count != 1 &&
        (f->kind == ARROW_LIST || f->kind == ARROW_FIXED_LIST || f->kind == ARROW_MAP))
        st = arrow_damaged();
    if (!st && f->kind == ARROW_MAP &&
        (f->children[0]->kind != ARROW_STRUCT || f->children[0]->child_count != 2))
        st = arrow_damaged();
    *ret_field = f;
    return st;
}

static enum hd_status parse_schema(struct arrow_file *file, struct flatbuffer *b, size_t schema)
{
    struct arrow_field *root = hd_arena_alloc(&file->arena, sizeof *root);
    size_t left = ARROW_FIELDS_MAX, first;
    enum hd_status st = HD_OK;

    if (!root)
        return arrow_no_memory();
    if (!schema || flatbuffer_number(b, schema, 0, 2, 0))
        return b->failed || !schema ? arrow_damaged()
                                    : hd_err(HD_INVALID, "its numbers are big-endian, which is not "
                                                         "read; write the file again");
    first = flatbuffer_list(b, flatbuffer_ref(b, schema, 1), 4, &root->child_count);
    *root = (struct arrow_field){
        .name = "", .kind = ARROW_STRUCT, .dictionary = -1, .child_count = root->child_count};
    if (b->failed || root->child_count > left)
        return arrow_damaged();
    root->children = hd_arena_array(&file->arena, root->child_count + 1, sizeof *root->children);
    if (!root->children)
        return arrow_no_memory();
    for (size_t i = 0; !st && i < root->child_count; i++)
        st = parse_field(file, b, flatbuffer_table(b, first, i), 0, false, &left,
                         &root->children[i]);
    file->root = root;
    return st;
}

/* Returns whether a row of the field can be written. */
static bool is_readable(const struct arrow_field *f)
{
    for (size_t i = 0; i < f->child_count; i++)
        if (!is_readable(f->children[i]))
            return false;
    return f->kind != ARROW_OTHER;
}

static enum hd_status want_columns(struct arrow_file *file, const struct records_columns *columns)
{
    struct arrow_field *root = file->root;
    bool any = false;

    for (size_t i = 0; i < root->child_count; i++) {
        struct arrow_field *f = root->children[i];
        const enum hd_status st = records_columns_refuse_media(columns, f->name, f->name_bytes);

        if (st)
            return st;
        f->wanted = records_columns_want(columns, f->name, f->name_bytes);
        any |= f->wanted;
        if (f->wanted && !is_readable(f))
            return hd_err(HD_INVALID,
                          "column '%.80s' is of a type that is not read, as dates or run ends; "
                          "write it as text or as a number",
                          f->name);
    }
    for (size_t i = 0; !any && i < root->child_count; i++)
        root->children[i]->wanted = is_readable(root->children[i]);
    return HD_OK;
}

/* ---- messages ---- */

/* Reads the message at an offset of the file. *ret_next: the offset behind it; m->type 0: the end
 * of the stream. */
static enum hd_status read_message(const struct arrow_file *file, int64_t at, struct message *m,
                                   int64_t *ret_next)
{
    struct flatbuffer head = {.bytes = file->bytes, .count = (size_t)file->count};
    int64_t size;
    size_t root;

    *m = (struct message){.type = 0};
    *ret_next = file->count;
    if (at == file->count)
        return HD_OK;
    if (at < 0 || at > file->count - 8 || flatbuffer_read(&head, (size_t)at, 4) != -1)
        return arrow_damaged();
    size = flatbuffer_read(&head, (size_t)at + 4, 4);
    if (!size)
        return HD_OK;
    if (size < 0 || size > file->count - at - 8)
        return hd_err(HD_INVALID, "the Arrow file was cut; fetch or write it again");
    m->b = (struct flatbuffer){.bytes = file->bytes + at + 8, .count = (size_t)size};
    root = flatbuffer_root(&m->b);
    m->type = (int)flatbuffer_number(&m->b, root, 1, 1, 0);
    m->header = flatbuffer_ref(&m->b, root, 2);
    m->body_bytes = flatbuffer_number(&m->b, root, 3, 8, 0);
    m->body = file->bytes + at + 8 + size;
    if (m->b.failed || !m->header || m->body_bytes < 0)
        return arrow_damaged();
    if (m->body_bytes > file->count - at - 8 - size)
        return hd_err(HD_INVALID, "the Arrow file was cut; fetch or write it again");
    *ret_next = at + 8 + size + m->body_bytes;
    return HD_OK;
}

/* ---- batches ---- */

static enum hd_status own(struct batch *b, unsigned char *bytes)
{
    unsigned char ***list = b->keeps ? &b->file->kept : &b->file->owned;
    size_t *count = b->keeps ? &b->file->kept_count : &b->file->owned_count;
    size_t *room = b->keeps ? &b->file->kept_room : &b->file->owned_room;

    if (*count == *room) {
        const size_t more = *room ? 2 * *room : 16;
        unsigned char **grown = realloc(*list, more * sizeof **list);

        if (!grown) {
            free(bytes);
            return arrow_no_memory();
        }
        *list = grown;
        *room = more;
    }
    (*list)[(*count)++] = bytes;
    return HD_OK;
}

/* Unpacks a buffer of a compressed batch: its size, -1 if it is stored, and its bytes. */
static enum hd_status unpack_buffer(struct batch *b, struct arrow_buffer *buffer)
{
    struct flatbuffer head = {.bytes = buffer->at, .count = buffer->count};
    unsigned char *out = NULL;
    int64_t size;
    enum hd_status st;

    if (b->codec < 0 || !buffer->count)
        return HD_OK;
    size = flatbuffer_read(&head, 0, 8);
    if (head.failed || size < -1 || size > INT64_MAX / 4)
        return arrow_damaged();
    buffer->at += 8;
    buffer->count -= 8;
    if (size < 0)
        return HD_OK;
    st = records_use_packed(&b->file->use, (int64_t)buffer->count, size);
    if (st)
        return st;
    st = records_unpack(b->codec ? RECORDS_ZSTANDARD : RECORDS_LZ4_FRAME, buffer->at, buffer->count,
                        (size_t)size, &out);
    if (!st)
        st = own(b, out);
    *buffer = (struct arrow_buffer){out, (size_t)size};
    return st;
}

/* Takes the next buffer of a batch; unpacks it if `wanted`. */
static enum hd_status take_buffer(struct batch *b, bool wanted, struct arrow_buffer *ret_buffer)
{
    struct flatbuffer *f = &b->m->b;
    int64_t offset, count;

    if (b->buffer == b->buffer_count)
        return arrow_damaged();
    offset = flatbuffer_read(f, b->buffers + 16 * b->buffer, 8);
    count = flatbuffer_read(f, b->buffers + 16 * b->buffer + 8, 8);
    b->buffer++;
    *ret_buffer = (struct arrow_buffer){NULL, 0};
    if (!wanted)
        return HD_OK;
    if (f->failed || offset < 0 || count < 0 || offset > b->m->body_bytes ||
        count > b->m->body_bytes - offset)
        return arrow_damaged();
    if (records_use_read(&b->file->use, count))
        return HD_INVALID;
    if (count)
        *ret_buffer = (struct arrow_buffer){b->m->body + offset, (size_t)count};
    return unpack_buffer(b, ret_buffer);
}

/* Takes the buffers of views that hold long strings. */
static enum hd_status take_variadic(struct batch *b, bool wanted, struct arrow_array *a)
{
    int64_t count;
    enum hd_status st = HD_OK;

    if (b->variadic == b->variadic_count)
        return arrow_damaged();
    count = flatbuffer_read(&b->m->b, b->variadics + 8 * b->variadic++, 8);
    if (count < 0 || (uint64_t)count > b->buffer_count - b->buffer)
        return arrow_damaged();
    a->more = hd_arena_array(b->arena, (size_t)count + 1, sizeof *a->more);
    if (!a->more)
        return arrow_no_memory();
    for (a->more_count = 0; !st && a->more_count < (size_t)count; a->more_count++)
        st = take_buffer(b, wanted, &a->more[a->more_count]);
    return st;
}

/* Takes the next array of a batch, with those below it. */
static enum hd_status take_array(struct batch *b, const struct arrow_field *f, bool wanted,
                                 bool is_value, struct arrow_array *a)
{
    const bool is_index = f->dictionary >= 0 && !is_value;
    const int buffers = is_index ? 2 : f->own_buffers;
    enum hd_status st = HD_OK;

    if (b->node == b->node_count)
        return arrow_damaged();
    *a = (struct arrow_array){.field = f,
                              .is_dictionary = is_value,
                              .length = flatbuffer_read(&b->m->b, b->nodes + 16 * b->node, 8)};
    b->node++;
    if (a->length < 0 || a->length > INT64_MAX / 64)
        return arrow_damaged();
    for (int i = 0; !st && i < buffers; i++)
        st = take_buffer(b, wanted, &a->buffers[i]);
    if (!st && f->is_variadic && !is_index)
        st = take_variadic(b, wanted, a);
    if (st || is_index)
        return st;
    a->children = hd_arena_array(b->arena, f->child_count + 1, sizeof *a->children);
    if (!a->children)
        return arrow_no_memory();
    for (size_t i = 0; !st && i < f->child_count; i++) {
        a->children[i] = hd_arena_alloc(b->arena, sizeof *a->children[i]);
        st = a->children[i] ? take_array(b, f->children[i], wanted, false, a->children[i])
                            : arrow_no_memory();
    }
    return st;
}

/* Finds the lists of a RecordBatch table. */
static enum hd_status begin_batch(struct batch *b, size_t table, int64_t *ret_length)
{
    struct flatbuffer *f = &b->m->b;
    const size_t compression = flatbuffer_ref(f, table, 3);

    *ret_length = flatbuffer_number(f, table, 0, 8, 0);
    b->nodes = flatbuffer_list(f, flatbuffer_ref(f, table, 1), 16, &b->node_count);
    b->buffers = flatbuffer_list(f, flatbuffer_ref(f, table, 2), 16, &b->buffer_count);
    b->variadics = flatbuffer_list(f, flatbuffer_ref(f, table, 4), 8, &b->variadic_count);
    b->codec = compression ? (int)flatbuffer_number(f, compression, 0, 1, 0) : -1;
    return f->failed || !table || b->codec > 1 || *ret_length < 0 || *ret_length > INT32_MAX
               ? arrow_damaged()
               : HD_OK;
}

static void drop_batch(struct arrow_file *file)
{
    for (size_t i = 0; i < file->owned_count; i++)
        free(file->owned[i]);
    file->owned_count = 0;
    hd_arena_done(&file->batch);
    hd_arena_init(&file->batch, 0);
}

static enum hd_status read_batch(struct arrow_file *file, struct message *m)
{
    struct batch b = {.file = file, .m = m, .arena = &file->batch};
    enum hd_status st;

    drop_batch(file);
    st = begin_batch(&b, m->header, &file->rows_left);
    file->row = 0;
    file->columns = hd_arena_array(b.arena, file->root->child_count + 1, sizeof *file->columns);
    if (!file->columns)
        return arrow_no_memory();
    for (size_t i = 0; !st && i < file->root->child_count; i++) {
        const struct arrow_field *f = file->root->children[i];

        st = take_array(&b, f, f->wanted, false, &file->columns[i]);
        if (!st && f->wanted && file->columns[i].length != file->rows_left)
            st = arrow_damaged();
    }
    return st;
}

/* ---- dictionaries ---- */

static const struct arrow_field *find_encoded(const struct arrow_field *f, int64_t number)
{
    const struct arrow_field *found = f->dictionary == number ? f : NULL;

    for (size_t i = 0; !found && i < f->child_count; i++)
        found = find_encoded(f->children[i], number);
    return found;
}

const struct arrow_dictionary *arrow_find_dictionary(const struct arrow_file *file,
                                                     const struct arrow_field *field)
{
    const struct arrow_dictionary *d = file->dictionaries;

    while (d && d->number != field->dictionary)
        d = d->next;
    return d;
}

static enum hd_status keep_dictionary(struct arrow_file *file, struct message *m)
{
    struct batch b = {.file = file, .m = m, .arena = &file->arena, .keeps = true};
    const int64_t number = flatbuffer_number(&m->b, m->header, 0, 8, 0);
    const bool is_delta = flatbuffer_number(&m->b, m->header, 2, 1, 0) != 0;
    const struct arrow_field *f = find_encoded(file->root, number);
    struct arrow_chunk *chunk = hd_arena_alloc(&file->arena, sizeof *chunk), **last;
    struct arrow_dictionary *d = f ? (void *)(uintptr_t)arrow_find_dictionary(file, f) : NULL;
    int64_t length = 0;
    enum hd_status st =
        f ? begin_batch(&b, flatbuffer_ref(&m->b, m->header, 1), &length) : arrow_damaged();

    if (st)
        return st;
    if (!d && (d = hd_arena_alloc(&file->arena, sizeof *d))) {
        *d = (struct arrow_dictionary){.next = file->dictionaries, .number = number};
        file->dictionaries = d;
    }
    if (chunk)
        chunk->array = hd_arena_alloc(&file->arena, sizeof *chunk->array);
    if (!d || !chunk || !chunk->array)
        return arrow_no_memory();
    st = take_array(&b, f, true, true, chunk->array);
    if (!is_delta)
        d->first = NULL;
    for (last = &d->first; *last;)
        last = &(*last)->next;
    *last = st ? NULL : chunk;
    return st;
}

/* ---- files and streams ---- */

/* Reads the message of block `i` of a list of blocks in the footer. */
static enum hd_status read_block(struct arrow_file *file, size_t first, size_t i, struct message *m)
{
    const int64_t at = flatbuffer_read(&file->footer, first + 24 * i, 8);
    int64_t next;

    return file->footer.failed ? arrow_damaged() : read_message(file, at, m, &next);
}

static enum hd_status begin_file(struct arrow_file *file, const struct records_columns *columns)
{
    const unsigned char *tail;
    struct flatbuffer size = {.bytes = file->bytes, .count = (size_t)file->count};
    size_t root, first, count;
    int64_t footer_bytes;
    enum hd_status st;

    if (file->count < 32 || memcmp(file->bytes + file->count - 6, "ARROW1", 6) != 0)
        return hd_err(HD_INVALID, "the Arrow file was cut; fetch or write it again");
    tail = file->bytes + file->count - 10;
    footer_bytes = flatbuffer_read(&size, (size_t)file->count - 10, 4);
    if (footer_bytes <= 0 || footer_bytes > file->count - 18)
        return arrow_damaged();
    file->footer = (struct flatbuffer){.bytes = tail - footer_bytes, .count = (size_t)footer_bytes};
    root = flatbuffer_root(&file->footer);
    st = parse_schema(file, &file->footer, flatbuffer_ref(&file->footer, root, 1));
    if (!st)
        st = want_columns(file, columns);
    first = flatbuffer_list(&file->footer, flatbuffer_ref(&file->footer, root, 2), 24, &count);
    for (size_t i = 0; !st && i < count; i++) {
        struct message m;

        st = read_block(file, first, i, &m);
        if (!st)
            st = m.type == HEADER_DICTIONARY ? keep_dictionary(file, &m) : arrow_damaged();
    }
    file->blocks = flatbuffer_list(&file->footer, flatbuffer_ref(&file->footer, root, 3), 24,
                                   &file->block_count);
    return st || !file->footer.failed ? st : arrow_damaged();
}

enum hd_status arrow_begin(struct arrow_file *file, const struct records_columns *columns)
{
    struct message m;
    enum hd_status st;

    file->use.file_bytes = file->count;
    hd_arena_init(&file->arena, 0);
    hd_arena_init(&file->batch, 0);
    if (file->count >= 8 && memcmp(file->bytes, "ARROW1", 6) == 0)
        return begin_file(file, columns);
    file->is_stream = true;
    st = read_message(file, 0, &m, &file->at);
    if (!st && m.type != HEADER_SCHEMA)
        st = arrow_damaged();
    if (!st)
        st = parse_schema(file, &m.b, m.header);
    return st ? st : want_columns(file, columns);
}

enum hd_status arrow_next_batch(struct arrow_file *file, bool *ret_there)
{
    struct message m;
    enum hd_status st;

    *ret_there = false;
    if (!file->is_stream) {
        if (file->block == file->block_count)
            return HD_OK;
        st = read_block(file, file->blocks, file->block++, &m);
        if (!st && m.type != HEADER_BATCH)
            st = arrow_damaged();
        *ret_there = !st;
        return st ? st : read_batch(file, &m);
    }
    for (;;) {
        st = read_message(file, file->at, &m, &file->at);
        if (st || !m.type)
            return st;
        if (m.type == HEADER_BATCH)
            break;
        if (m.type != HEADER_DICTIONARY)
            return arrow_damaged();
        st = keep_dictionary(file, &m);
        if (st)
            return st;
    }
    *ret_there = true;
    return read_batch(file, &m);
}

void arrow_done(struct arrow_file *file)
{
    drop_batch(file);
    for (size_t i = 0; i < file->kept_count; i++)
        free(file->kept[i]);
    free(file->kept);
    free(file->owned);
    hd_arena_done(&file->batch);
    hd_arena_done(&file->arena);
}
