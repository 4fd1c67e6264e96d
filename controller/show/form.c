#include "controller/show/form.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

const char *show_word(const ProtobufCEnumDescriptor *descriptor, int value,
                      char ret_word[SHOW_WORD_MAX])
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(descriptor, value);
    size_t prefix = 0, n = 0;

    if (!found) { /* a value that only a newer peer has */
        (void)snprintf(ret_word, SHOW_WORD_MAX, "unknown(%d)", value);
        return ret_word;
    }
    for (const char *c = descriptor->short_name; *c; c++) /* JobState: JOB_STATE_ */
        prefix += 1 + (*c >= 'A' && *c <= 'Z');
    for (const char *p = found->name + prefix; *p && n + 1 < SHOW_WORD_MAX; p++)
        ret_word[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    ret_word[n] = '\0';
    return ret_word;
}

void show_time(struct hd_json_writer *w, const char *key, int64_t unix_ms)
{
    char text[HD_CLOCK_TEXT_MAX];

    if (!unix_ms) {
        hd_json_add_null(w, key);
        return;
    }
    hd_clock_format_utc(unix_ms, text);
    hd_json_add_string(w, key, text);
}

/* ---- fields ---- */

struct show_field show_find(const ProtobufCMessage *message, const char *name)
{
    const char *at = (const char *)message;
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);

    assert(f); /* else a form names a field that the message does not have */
    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF &&
        *(const uint32_t *)(const void *)(at + f->quantifier_offset) != f->id)
        return (struct show_field){f, NULL, 0};
    return (struct show_field){f, at + f->offset,
                               f->label == PROTOBUF_C_LABEL_REPEATED
                                   ? *(const size_t *)(const void *)(at + f->quantifier_offset)
                                   : 0};
}

/* Returns a whole number of a field that has one. */
static int64_t whole_number(const struct show_field *f)
{
    switch (f->field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        return *(const protobuf_c_boolean *)f->at;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM:
        return *(const int32_t *)f->at;
    case PROTOBUF_C_TYPE_UINT32:
        return *(const uint32_t *)f->at;
    default:
        return *(const int64_t *)f->at;
    }
}

double show_number(const struct show_field *f)
{
    if (!f->at || f->field->label == PROTOBUF_C_LABEL_REPEATED)
        return (double)f->count;
    if (f->field->type == PROTOBUF_C_TYPE_DOUBLE)
        return *(const double *)f->at;
    if (f->field->type == PROTOBUF_C_TYPE_STRING)
        return **(char *const *)f->at != '\0';
    if (f->field->type == PROTOBUF_C_TYPE_MESSAGE)
        return *(ProtobufCMessage *const *)f->at != NULL;
    return (double)whole_number(f);
}

static void add_value(struct hd_json_writer *w, const char *key, const struct show_field *f)
{
    char word[SHOW_WORD_MAX];

    switch (f->field->type) {
    case PROTOBUF_C_TYPE_STRING:
        hd_json_add_string(w, key, *(char *const *)f->at);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        hd_json_add_bool(w, key, *(const protobuf_c_boolean *)f->at);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        hd_json_add_real(w, key, *(const double *)f->at);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        hd_json_add_string(w, key, show_word(f->field->descriptor, *(const int32_t *)f->at, word));
        break;
    default:
        hd_json_add_int64(w, key, whole_number(f));
    }
}

/* ---- items of a form ---- */

struct form_item {
    char name[40], field[40], inner[512]; /* inner: what the brackets or the mark has; "": none */
    char mark;                            /* '\0': none; of brackets the opening one */
    bool is_optional;                     /* '!' before brackets */
};

/* Returns the length of the first item of a form. */
static size_t item_length(const char *at)
{
    size_t n = 0;
    int depth = 0;

    for (; at[n] && (depth > 0 || at[n] != ' '); n++)
        depth += (at[n] == '(' || at[n] == '[' || at[n] == '{') -
                 (at[n] == ')' || at[n] == ']' || at[n] == '}');
    return n;
}

static void copy_part(char *ret_part, size_t size, const char *from, const char *end)
{
    const size_t len = (size_t)(end - from);

    assert(len < size);
    memcpy(ret_part, from, len);
    ret_part[len] = '\0';
}

/* Reads the item from `at` to `end`. */
static void read_item(const char *at, const char *end, struct form_item *ret)
{
    const char *name = at + strcspn(at, "=?!~@-/|([{ "), *field = at, *mark = name;

    if (*name == '=') {
        field = name + 1;
        mark = field + strcspn(field, "?!~@-/|([{ ");
    }
    copy_part(ret->name, sizeof ret->name, at, name);
    copy_part(ret->field, sizeof ret->field, field, mark);
    ret->inner[0] = ret->mark = '\0';
    ret->is_optional = *mark == '!' && mark + 1 < end;
    mark += ret->is_optional;
    if (mark >= end)
        return;
    ret->mark = *mark;
    if (*mark == '(' || *mark == '[' || *mark == '{')
        end--;
    copy_part(ret->inner, sizeof ret->inner, mark + 1, end);
}

static void add_object(struct hd_json_writer *w, const char *key, const ProtobufCMessage *message,
                       const char *form)
{
    hd_json_begin(w, key, '{');
    show_members(w, message, form);
    hd_json_end(w, '}');
}

/* Adds an array of values, of objects, or of one field of each message. */
static void add_array(struct hd_json_writer *w, const struct form_item *item,
                      const struct show_field *list)
{
    const ProtobufCFieldDescriptor *field = list->field;
    const bool is_wide = field->type == PROTOBUF_C_TYPE_INT64 ||
                         field->type == PROTOBUF_C_TYPE_UINT64 ||
                         field->type == PROTOBUF_C_TYPE_DOUBLE;
    const size_t size =
        field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE
            ? sizeof(void *)
        : is_wide ? 8
                  : 4;
    const char *items = *(char *const *)list->at;

    hd_json_begin(w, item->name, '[');
    for (size_t i = 0; i < list->count; i++) {
        const struct show_field f = {field, items + i * size, 0};
        const ProtobufCMessage *one =
            field->type == PROTOBUF_C_TYPE_MESSAGE ? *(ProtobufCMessage *const *)f.at : NULL;
        struct show_field member;

        if (!one) {
            add_value(w, NULL, &f);
        } else if (item->mark == '(') {
            add_object(w, NULL, one, item->inner);
        } else {
            member = show_find(one, item->inner);
            add_value(w, NULL, &member);
        }
    }
    hd_json_end(w, ']');
}

/* Adds a field with a mark, or without one. */
static void add_marked(struct hd_json_writer *w, const ProtobufCMessage *message,
                       const struct form_item *item, const struct show_field *f)
{
    const double number = show_number(f);
    const bool has_other = item->mark == '/' || item->mark == '|';
    const struct show_field other = show_find(message, has_other ? item->inner : item->field);
    const bool is_null = item->mark == '?' || item->mark == '~' || item->mark == '(' ? !(number > 0)
                         : item->mark == '-'                                         ? number < 0
                         : item->mark == '/' ? !(show_number(&other) > 0)
                                             : !f->at;

    if ((item->mark == '!' || item->is_optional) && number == 0)
        return;
    if (is_null)
        hd_json_add_null(w, item->name);
    else if (item->mark == '@')
        show_time(w, item->name, whole_number(f));
    else if (item->mark == '~')
        hd_json_add_real(w, item->name, number);
    else if (item->mark == '|')
        hd_json_add_bool(w, item->name, number != 0 || show_number(&other) != 0);
    else if (item->mark == '(')
        add_object(w, item->name, *(ProtobufCMessage *const *)f->at, item->inner);
    else
        add_value(w, item->name, f);
}

void show_members(struct hd_json_writer *w, const ProtobufCMessage *message, const char *form)
{
    if (strcmp(form, "*") == 0) {
        for (unsigned i = 0; i < message->descriptor->n_fields; i++)
            show_members(w, message, message->descriptor->fields[i].name);
        return;
    }
    for (size_t len; *form; form += len + (form[len] == ' ')) {
        struct form_item item;
        struct show_field f;

        len = item_length(form);
        read_item(form, form + len, &item);
        if (item.mark == '{') {
            add_object(w, item.name, message, item.inner);
            continue;
        }
        f = show_find(message, item.field);
        if (f.field->label == PROTOBUF_C_LABEL_REPEATED)
            add_array(w, &item, &f);
        else
            add_marked(w, message, &item, &f);
    }
}

void show_item(struct hd_json_writer *w, const ProtobufCMessage *message, const char *form)
{
    hd_json_begin(w, NULL, '{');
    show_members(w, message, form);
    hd_json_end(w, '}');
}
