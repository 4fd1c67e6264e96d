#include "base/fields.h"

#include <stdio.h>
#include <string.h>

/* ---- integers of any size ---- */

static void store_int(const struct hd_json_field *f, void *member, int64_t value)
{
    const uint8_t byte = (uint8_t)value;
    const uint32_t word = (uint32_t)value;

    memcpy(member,
           f->size_bytes == 1   ? (const void *)&byte
           : f->size_bytes == 4 ? (const void *)&word
                                : (const void *)&value,
           f->size_bytes);
}

static int64_t load_int(const struct hd_json_field *f, const void *member)
{
    if (f->size_bytes == 1)
        return *(const uint8_t *)member;
    if (f->size_bytes == 8)
        return *(const int64_t *)member;
    return f->min < 0 ? *(const int32_t *)member : (int64_t) * (const uint32_t *)member;
}

/* ---- reading ---- */

static enum hd_status read_int(const struct hd_json_field *f, const struct hd_json *value,
                               void *member)
{
    int64_t number = 0;
    const enum hd_status st = hd_json_to_int64(value, f->min, f->max, &number);

    store_int(f, member, number);
    return st ? hd_err_prefix(st, "'%s'", f->key) : HD_OK;
}

static enum hd_status read_word(const struct hd_json_field *f, const struct hd_json *value,
                                char *member)
{
    if (strlen(value->text) >= f->size_bytes)
        return hd_err(HD_LIMIT, "'%s' has more than %zu bytes", f->key, f->size_bytes - 1);
    memcpy(member, value->text, strlen(value->text) + 1);
    return HD_OK;
}

static enum hd_status read_rows(const struct hd_json_field *f, const struct hd_json *list,
                                struct hd_arena *arena, char *at);

/* Reads a value into the struct at `base`. */
static enum hd_status read_value(const struct hd_json_field *f, const struct hd_json *value,
                                 struct hd_arena *arena, char *base)
{
    void *const member = base + f->offset;

    switch (f->kind) {
    case HD_JSON_FIELD_INT:
        return read_int(f, value, member);
    case HD_JSON_FIELD_REAL:
    case HD_JSON_FIELD_WHOLE:
        if (value->kind != HD_JSON_NUMBER ||
            hd_text_to_double(value->text, f->least, f->most, member))
            return hd_err(HD_INVALID, "'%s' is no number from %g to %g", f->key, f->least, f->most);
        return HD_OK;
    case HD_JSON_FIELD_TEXT:
    case HD_JSON_FIELD_WORD:
        if (value->kind != HD_JSON_STRING)
            return hd_err(HD_INVALID, "'%s' is no text", f->key);
        if (f->kind == HD_JSON_FIELD_WORD)
            return read_word(f, value, member);
        memcpy(member, &value->text, sizeof value->text);
        return HD_OK;
    case HD_JSON_FIELD_ROWS:
        return read_rows(f, value, arena, base);
    }
    return HD_OK;
}

/* Reads a value that is a list of its members. */
static enum hd_status read_members(const struct hd_json_field *fields, int count,
                                   const struct hd_json *list, struct hd_arena *arena, char *base)
{
    const struct hd_json *v = list->first;
    enum hd_status st = HD_OK;

    if (list->kind != HD_JSON_ARRAY || list->count != (size_t)count)
        return hd_err(HD_INVALID, "not a list of %d numbers", count);
    for (int i = 0; !st && i < count; i++, v = v->next)
        st = read_value(&fields[i], v, arena, base);
    return st;
}

static enum hd_status read_rows(const struct hd_json_field *f, const struct hd_json *list,
                                struct hd_arena *arena, char *base)
{
    char *values = base + f->offset;
    int n = 0;
    enum hd_status st = HD_OK;

    if (list->kind != HD_JSON_ARRAY)
        return hd_err(HD_INVALID, "'%s' is no list", f->key);
    if (list->count > (size_t)f->values_max)
        return hd_err(HD_LIMIT, "'%s' has more than %d values", f->key, f->values_max);
    if (f->allocated) {
        values = hd_arena_array(arena, list->count + 1, f->value_bytes);
        memcpy(base + f->offset, &values, sizeof values);
        if (!values)
            return hd_err(HD_NO_MEMORY, "no memory for '%s'", f->key);
    }
    for (const struct hd_json *v = list->first; !st && v; v = v->next) {
        char *value = values + (size_t)n++ * f->value_bytes;

        st = f->positional ? read_members(f->fields, f->field_count, v, arena, value)
                           : hd_fields_read(v, f->fields, f->field_count, arena, value);
    }
    memcpy(base + f->count_offset, &n, sizeof n);
    return st ? hd_err_prefix(st, "%s", f->key) : HD_OK;
}

enum hd_status hd_fields_read(const struct hd_json *object, const struct hd_json_field *fields,
                              int count, struct hd_arena *arena, void *ret_struct)
{
    enum hd_status st = HD_OK;

    if (object->kind != HD_JSON_OBJECT)
        return hd_err(HD_INVALID, "an object with '%s' is expected", fields[0].key);
    for (int i = 0; !st && i < count; i++) {
        const struct hd_json *value = hd_json_member(object, fields[i].key);

        if (value)
            st = read_value(&fields[i], value, arena, ret_struct);
        else if (!fields[i].optional)
            st = hd_err(HD_INVALID, "'%s' is missing", fields[i].key);
    }
    return st;
}

/* ---- writing ---- */

static void write_word(struct hd_json_writer *w, const char *key, const char *text)
{
    char copy[HD_ERR_MAX];

    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *c = copy; *c; c++)
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    hd_json_add_string(w, key, copy);
}

static void write_value(struct hd_json_writer *w, const struct hd_json_field *f, const char *key,
                        const char *base);

static void write_rows(struct hd_json_writer *w, const struct hd_json_field *f, const char *key,
                       const char *base)
{
    const char *values = base + f->offset;
    int n;

    if (f->allocated)
        memcpy(&values, base + f->offset, sizeof values);
    memcpy(&n, base + f->count_offset, sizeof n);
    hd_json_begin(w, key, '[');
    for (int i = 0; i < n; i++) {
        hd_json_begin(w, NULL, f->positional ? '[' : '{');
        for (int k = 0; k < f->field_count; k++)
            write_value(w, &f->fields[k], f->positional ? NULL : f->fields[k].key,
                        values + (size_t)i * f->value_bytes);
        hd_json_end(w, f->positional ? ']' : '}');
    }
    hd_json_end(w, ']');
}

static void write_value(struct hd_json_writer *w, const struct hd_json_field *f, const char *key,
                        const char *base)
{
    const void *const member = base + f->offset;
    const double real = f->kind == HD_JSON_FIELD_REAL || f->kind == HD_JSON_FIELD_WHOLE
                            ? *(const double *)member
                            : 0;

    switch (f->kind) {
    case HD_JSON_FIELD_INT:
        hd_json_add_int64(w, key, load_int(f, member));
        break;
    case HD_JSON_FIELD_REAL:
        hd_json_add_real(w, key, real);
        break;
    case HD_JSON_FIELD_WHOLE:
        hd_json_add_int64(w, key, real >= f->least && real <= f->most ? (int64_t)real : 0);
        break;
    case HD_JSON_FIELD_TEXT:
        hd_json_add_string(w, key, *(const char *const *)member);
        break;
    case HD_JSON_FIELD_WORD:
        write_word(w, key, member);
        break;
    case HD_JSON_FIELD_ROWS:
        write_rows(w, f, key, base);
    }
}

void hd_fields_write(struct hd_json_writer *w, const struct hd_json_field *fields, int count,
                     const void *from)
{
    for (int i = 0; i < count; i++)
        write_value(w, &fields[i], fields[i].key, from);
}
