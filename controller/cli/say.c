#include "controller/cli/say.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "controller/show/form.h"

enum { PLACE_MAX = 64 };

/* Finds the field that a path such as "end.node" names; `at` is NULL if its message is absent. */
static struct show_field find_path(const ProtobufCMessage *message, char *path)
{
    char *dot = strchr(path, '.');
    const ProtobufCMessage *inner;
    struct show_field f;

    if (!dot)
        return show_find(message, path);
    *dot = '\0';
    f = show_find(message, path);
    inner = *(ProtobufCMessage *const *)f.at;
    if (inner)
        return show_find(inner, dot + 1);
    return (struct show_field){
        .field = protobuf_c_message_descriptor_get_field_by_name(f.field->descriptor, dot + 1)};
}

static void add_texts(struct hd_text *out, const struct show_field *f)
{
    for (size_t i = 0; i < f->count; i++) {
        hd_text_add(out, "%s", i ? "," : "");
        cli_add_clean(out, (*(char **const *)f->at)[i]);
    }
}

/* Appends a number in a form. */
static void add_figure(struct hd_text *out, double number, const char *form)
{
    char text[HD_CLOCK_TEXT_MAX > 40 ? HD_CLOCK_TEXT_MAX : 40] = "";

    if (strcmp(form, "utc") == 0)
        hd_clock_format_utc((int64_t)number, text);
    else if (strcmp(form, "count") == 0)
        cli_format_count(number, text);
    else if (strcmp(form, "percent") == 0)
        (void)snprintf(text, sizeof text, "%.1f%%", 100 * number);
    else if (strcmp(form, "4") == 0)
        (void)snprintf(text, sizeof text, "%.4f", number);
    else
        (void)snprintf(text, sizeof text, "%.0f", number);
    hd_text_add(out, "%s", text);
}

/* A field of a text, and how it is written. */
struct said_field {
    struct show_field f;
    char path[PLACE_MAX];
    const char *form;  /* "": none */
    bool is_condition; /* it is only asked whether the field is empty */
};

static bool is_empty(const struct said_field *p)
{
    return !(show_number(&p->f) > 0);
}

/* Finds the field of the place from `at` to `end`: of "a|b" the first that is not empty. */
static void read_place(const ProtobufCMessage *message, const char *at, const char *end,
                       struct said_field *ret)
{
    const char *bar = memchr(at, '|', (size_t)(end - at));

    *ret = (struct said_field){.is_condition = end[-1] == '?', .form = ""};
    (void)snprintf(ret->path, sizeof ret->path, "%.*s", (int)((bar ? bar : end) - at), at);
    if (ret->path[strcspn(ret->path, ":?")]) {
        ret->form = ret->path + strcspn(ret->path, ":?") + 1;
        ret->path[strcspn(ret->path, ":?")] = '\0';
    }
    ret->f = find_path(message, ret->path);
    if (bar && is_empty(ret))
        read_place(message, bar + 1, end, ret);
}

static void add_place(struct hd_text *out, const struct said_field *p)
{
    const struct show_field *f = &p->f;
    const bool is_text = f->field->type == PROTOBUF_C_TYPE_STRING;
    char word[SHOW_WORD_MAX];

    if (p->is_condition || (!f->at && (is_text || f->field->type == PROTOBUF_C_TYPE_ENUM ||
                                       f->field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)))
        return;
    if (is_text && f->field->label == PROTOBUF_C_LABEL_REPEATED)
        add_texts(out, f);
    else if (is_text && strcmp(p->form, "people") == 0)
        cli_add_people(out, *(char *const *)f->at);
    else if (is_text)
        cli_add_clean(out, *(char *const *)f->at);
    else if (f->field->type == PROTOBUF_C_TYPE_ENUM)
        hd_text_add(out, "%s", show_word(f->field->descriptor, *(const int32_t *)f->at, word));
    else
        add_figure(out, show_number(f), p->form);
}

/* Appends the text up to `end`. Returns whether it is shown if it is in brackets. */
static bool add_said(struct hd_text *out, const ProtobufCMessage *message, const char *at,
                     const char *end)
{
    bool is_full = true, conditions = true, has_conditions = false;

    while (at < end) {
        const size_t plain =
            strcspn(at, "{[") < (size_t)(end - at) ? strcspn(at, "{[") : (size_t)(end - at);
        struct hd_text part = {0};
        struct said_field p;
        const char *close;

        hd_text_add(out, "%.*s", (int)plain, at);
        at += plain;
        if (at == end)
            break;
        close = strchr(at, *at == '{' ? '}' : ']');
        if (*at == '{') {
            read_place(message, at + 1, close, &p);
            add_place(out, &p);
            is_full &= !is_empty(&p);
            has_conditions |= p.is_condition;
            conditions &= !p.is_condition || !is_empty(&p);
        } else if (add_said(&part, message, at + 1, close)) {
            hd_text_add(out, "%s", part.data ? part.data : "");
        }
        hd_text_free(&part);
        at = close + 1;
    }
    return has_conditions ? conditions : is_full;
}

void cli_say(struct hd_text *out, const void *message, const char *form)
{
    hd_text_add(out, "%s", "");
    (void)add_said(out, message, form, form + strlen(form));
}

void cli_say_facts(struct hd_text *out, int width, const void *message,
                   const char *const facts[][2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct hd_text text = {0};

        cli_say(&text, message, facts[i][1]);
        if (text.len_bytes)
            hd_text_add(out, "%-*s%s\n", width, facts[i][0], text.data);
        hd_text_free(&text);
    }
}
