/* parquet_footer: the schema and the row groups of a Parquet file. */
#include <string.h>

#include "parquet.h"
#include "thrift.h"

enum { ELEMENTS_MAX = 100000, NAME_BYTES_MAX = 4096 };

static enum hd_status damaged_footer(void)
{
    return hd_err(HD_INVALID, "the footer of the Parquet file is damaged; write the file again");
}

/* Returns what a converted type, the older annotation, means. */
static enum parquet_meaning meaning_of_converted(int64_t type)
{
    switch (type) {
    case 1:
    case 2:
        return PARQUET_MAP;
    case 3:
        return PARQUET_LIST;
    case 0: /* UTF8 */
    case 4: /* ENUM */
        return PARQUET_PLAIN;
    case 19:
        return PARQUET_JSON;
    default:
        return type >= 11 && type <= 14   ? PARQUET_UNSIGNED
               : type >= 15 && type <= 18 ? PARQUET_PLAIN
                                          : PARQUET_OTHER;
    }
}

/* Reads a logical type, the newer annotation: a union, whose field's number is the type. */
static enum parquet_meaning read_logical(struct thrift *t)
{
    struct thrift_field f = {.id = 0}, inner;
    enum parquet_meaning meaning = PARQUET_PLAIN;

    while (thrift_next(t, &f)) {
        meaning = f.id == 2                              ? PARQUET_MAP
                  : f.id == 3                            ? PARQUET_LIST
                  : f.id == 12                           ? PARQUET_JSON
                  : f.id == 1 || f.id == 4 || f.id == 11 ? PARQUET_PLAIN
                                                         : PARQUET_OTHER;
        if (f.id != 10 || f.type != THRIFT_STRUCT) {
            thrift_skip(t, f);
            continue;
        }
        meaning = PARQUET_PLAIN; /* an integer: field 2 says whether it has a sign */
        inner = (struct thrift_field){.id = 0};
        while (thrift_next(t, &inner)) {
            if (inner.id == 2)
                meaning = thrift_bool(t, inner) ? PARQUET_PLAIN : PARQUET_UNSIGNED;
            else
                thrift_skip(t, inner);
        }
    }
    return meaning;
}

static void read_element(struct thrift *t, struct parquet_element *e)
{
    struct thrift_field f = {.id = 0};
    bool has_logical = false;

    *e = (struct parquet_element){.name = "", .type = -1};
    while (thrift_next(t, &f)) {
        if (f.id == 1) {
            e->type = (int)thrift_int(t, f);
            t->failed |= e->type < 0 || e->type >= PARQUET_TYPES;
        } else if (f.id == 3) {
            e->repetition = (int)thrift_int(t, f);
            t->failed |= e->repetition < 0 || e->repetition > PARQUET_REPEATED;
        } else if (f.id == 4) {
            e->name = thrift_bytes(t, f, &e->name_bytes);
            t->failed |= e->name_bytes > NAME_BYTES_MAX;
        } else if (f.id == 5) {
            e->children = thrift_int(t, f);
        } else if (f.id == 6 && !has_logical) {
            e->meaning = meaning_of_converted(thrift_int(t, f));
        } else if (f.id == 10 && f.type == THRIFT_STRUCT) {
            e->meaning = read_logical(t);
            has_logical = true;
        } else {
            thrift_skip(t, f);
        }
    }
}

static void read_chunk_meta(struct thrift *t, struct parquet_chunk *c)
{
    struct thrift_field f = {.id = 0};
    int64_t data = 0, dictionary = 0;

    while (thrift_next(t, &f)) {
        if (f.id == 1)
            c->type = (int)thrift_int(t, f);
        else if (f.id == 4)
            c->codec = (int)thrift_int(t, f);
        else if (f.id == 5)
            c->values = thrift_int(t, f);
        else if (f.id == 9)
            data = thrift_int(t, f);
        else if (f.id == 11)
            dictionary = thrift_int(t, f);
        else
            thrift_skip(t, f);
    }
    /* old writers set no offset of a dictionary, or 0: then its page is the first at `data` */
    c->at = dictionary > 0 && dictionary < data ? dictionary : data;
    c->given = true;
}

static void read_chunk(struct thrift *t, struct parquet_chunk *c)
{
    struct thrift_field f = {.id = 0};

    while (thrift_next(t, &f)) {
        c->elsewhere |= f.id == 1;
        c->encrypted |= f.id == 8 || f.id == 9;
        if (f.id == 3 && f.type == THRIFT_STRUCT)
            read_chunk_meta(t, c);
        else
            thrift_skip(t, f);
    }
}

static enum hd_status read_group(struct thrift *t, struct hd_arena *arena, size_t leaf_count,
                                 struct parquet_group *g)
{
    struct thrift_field f = {.id = 0};

    while (thrift_next(t, &f)) {
        enum thrift_type of;
        size_t count;

        if (f.id == 3)
            g->rows = thrift_int(t, f);
        if (f.id != 1) {
            if (f.id != 3)
                thrift_skip(t, f);
            continue;
        }
        count = thrift_list(t, f, &of);
        if (t->failed || of != THRIFT_STRUCT || count != leaf_count || g->chunks)
            return damaged_footer();
        g->chunks = hd_arena_array(arena, count + 1, sizeof *g->chunks);
        if (!g->chunks)
            return hd_err(HD_NO_MEMORY, "no memory for the footer of a Parquet file");
        for (size_t i = 0; i < count; i++)
            read_chunk(t, (struct parquet_chunk *)&g->chunks[i]);
    }
    return t->failed || g->rows < 0 || g->rows > INT64_MAX / 4 || !g->chunks ? damaged_footer()
                                                                             : HD_OK;
}

static enum hd_status read_schema(struct thrift *t, struct thrift_field f, struct hd_arena *arena,
                                  struct parquet_footer *footer)
{
    enum thrift_type of;
    const size_t count = thrift_list(t, f, &of);

    if (t->failed || of != THRIFT_STRUCT || !count || count > ELEMENTS_MAX || footer->elements)
        return damaged_footer();
    footer->elements = hd_arena_array(arena, count, sizeof *footer->elements);
    if (!footer->elements)
        return hd_err(HD_NO_MEMORY, "no memory for the footer of a Parquet file");
    footer->element_count = count;
    for (size_t i = 0; i < count; i++) {
        read_element(t, &footer->elements[i]);
        footer->leaf_count += footer->elements[i].type >= 0;
    }
    return t->failed ? damaged_footer() : HD_OK;
}

static enum hd_status read_groups(struct thrift *t, struct thrift_field f, struct hd_arena *arena,
                                  struct parquet_footer *footer)
{
    enum thrift_type of;
    const size_t count = thrift_list(t, f, &of);
    enum hd_status st = HD_OK;

    if (t->failed || (count && of != THRIFT_STRUCT) || footer->groups || !footer->elements)
        return damaged_footer();
    footer->groups = hd_arena_array(arena, count + 1, sizeof *footer->groups);
    if (!footer->groups)
        return hd_err(HD_NO_MEMORY, "no memory for the footer of a Parquet file");
    for (size_t i = 0; !st && i < count; i++) {
        st = read_group(t, arena, footer->leaf_count, &footer->groups[i]);
        footer->rows += st ? 0 : footer->groups[i].rows;
        if (!st && footer->rows > INT64_MAX / 4)
            st = damaged_footer();
    }
    footer->group_count = count;
    return st;
}

static enum hd_status encrypted(void)
{
    return hd_err(HD_INVALID, "the Parquet file is encrypted; write it without encryption");
}

static enum hd_status read_meta(struct thrift *t, struct hd_arena *arena,
                                struct parquet_footer *footer)
{
    struct thrift_field f = {.id = 0};
    enum hd_status st = HD_OK;

    while (!st && thrift_next(t, &f)) {
        if (f.id == 2)
            st = read_schema(t, f, arena, footer);
        else if (f.id == 4)
            st = read_groups(t, f, arena, footer);
        else if (f.id == 8)
            return encrypted();
        else
            thrift_skip(t, f);
    }
    if (!st && (t->failed || !footer->elements || !footer->groups))
        st = damaged_footer();
    for (size_t g = 0; !st && g < footer->group_count; g++)
        for (size_t i = 0; !st && i < footer->leaf_count; i++)
            if (footer->groups[g].chunks[i].encrypted)
                st = encrypted();
    return st;
}

enum hd_status parquet_read_footer(const unsigned char *file, int64_t file_bytes,
                                   struct hd_arena *arena, struct parquet_footer *ret_footer)
{
    const unsigned char *tail;
    struct parquet_footer footer = {.file = file, .file_bytes = file_bytes};
    struct thrift t;
    int64_t bytes;
    enum hd_status st;

    if (file_bytes < 12 || memcmp(file, "PAR1", 4) != 0)
        return hd_err(HD_INVALID, "the Parquet file is cut, or no such file; write it again");
    tail = file + file_bytes - 8;
    if (memcmp(tail + 4, "PARE", 4) == 0)
        return encrypted();
    bytes = (int64_t)((uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 |
                      (uint32_t)tail[3] << 24);
    if (memcmp(tail + 4, "PAR1", 4) != 0 || bytes > file_bytes - 12)
        return hd_err(HD_INVALID,
                      "the Parquet file was cut: its footer is missing; fetch or write it again");
    footer.end = file_bytes - 8 - bytes;
    t = (struct thrift){.at = file + footer.end, .end = tail};
    st = read_meta(&t, arena, &footer);
    if (!st)
        *ret_footer = footer;
    return st;
}
