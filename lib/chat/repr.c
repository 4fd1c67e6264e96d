#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template_internal.h"

/* Writes a float like Python's repr: the shortest digits that read back as the same number; with an
 * exponent from 1e16 on and below 1e-4. */
void chat_add_real(struct hd_text *out, double real)
{
    char text[40], digits[24];
    int precision = 1, exponent, n;

    if (!isfinite(real)) {
        hd_text_add(out, "%s", isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    do
        (void)snprintf(text, sizeof text, "%.*e", precision - 1, real);
    while (strtod(text, NULL) != real && ++precision <= 17);
    exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent >= -4 && exponent < 16) {
        n = precision - 1 - exponent;
        hd_text_add(out, "%.*f", n > 1 ? n : 1, real);
        return;
    }
    (void)snprintf(digits, sizeof digits, "%.*s", (int)(strchr(text, 'e') - text), text);
    hd_text_add(out, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
}

static void add_string_repr(struct hd_text *out, const struct chat_value *v)
{
    const bool single = !memchr(v->text, '\'', v->count) || memchr(v->text, '"', v->count);
    const char quote = single ? '\'' : '"';

    hd_text_add(out, "%c", quote);
    for (size_t i = 0, n; i < v->count; i += n) {
        const char c = v->text[i];
        const uint32_t code = chat_code_point(v->text + i);

        n = chat_code_point_bytes(v->text + i);
        if (c == quote || c == '\\')
            hd_text_add(out, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            hd_text_add(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (chat_is_printable(code))
            hd_text_add_bytes(out, v->text + i, n);
        else if (code < 0x100)
            hd_text_add(out, "\\x%02x", (unsigned)code);
        else if (code < 0x10000)
            hd_text_add(out, "\\u%04x", (unsigned)code);
        else
            hd_text_add(out, "\\U%08x", (unsigned)code);
    }
    hd_text_add(out, "%c", quote);
}

static enum hd_status add_container_repr(struct chat_run *run, struct hd_text *out,
                                         const struct chat_value *v)
{
    const bool dict = v->kind == CHAT_DICT;
    const size_t count = dict ? (size_t)v->dict->count : v->count;
    enum hd_status st = chat_steps(run, count);

    if (!st && ++run->depth > run->limits.depth_max)
        return chat_fail(run->at, HD_LIMIT, "values are nested deeper than %d",
                         run->limits.depth_max);
    hd_text_add(out, "%c", dict ? '{' : v->kind == CHAT_LIST ? '[' : '(');
    for (size_t i = 0; !st && i < count; i++) {
        if (i)
            hd_text_add(out, ", ");
        if (dict) {
            st = chat_add_repr(run, out, &v->dict->pairs[i].key);
            hd_text_add(out, ": ");
        }
        if (!st)
            st = chat_add_repr(run, out, dict ? &v->dict->pairs[i].value : &v->items[i]);
        if (out->len_bytes > run->limits.memory_bytes_max)
            return chat_no_memory(run);
    }
    hd_text_add(out, "%s", dict ? "}" : v->kind == CHAT_LIST ? "]" : count == 1 ? ",)" : ")");
    run->depth--;
    return st;
}

enum hd_status chat_add_repr(struct chat_run *run, struct hd_text *out, const struct chat_value *v)
{
    switch (v->kind) {
    case CHAT_NONE:
        hd_text_add(out, "None");
        return HD_OK;
    case CHAT_BOOL:
        hd_text_add(out, "%s", v->truth ? "True" : "False");
        return HD_OK;
    case CHAT_INT:
        hd_text_add(out, "%lld", (long long)v->integer);
        return HD_OK;
    case CHAT_REAL:
        chat_add_real(out, v->real);
        return HD_OK;
    case CHAT_STRING:
        if (v->safe)
            return chat_unsupported(run, "a list with a string behind `safe` as text");
        add_string_repr(out, v);
        return HD_OK;
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
        return add_container_repr(run, out, v);
    case CHAT_UNDEFINED:
        hd_text_add(out, "Undefined");
        return HD_OK;
    default:
        return chat_unsupported(run, "a %s as text", chat_kind_name(v));
    }
}

enum hd_status chat_add_str(struct chat_run *run, struct hd_text *out, const struct chat_value *v)
{
    if (v->kind == CHAT_UNDEFINED)
        return HD_OK;
    if (v->kind != CHAT_STRING)
        return chat_add_repr(run, out, v);
    if (v->count)
        hd_text_add_bytes(out, v->text, v->count);
    return HD_OK;
}

enum hd_status chat_str(struct chat_run *run, const struct chat_value *v, struct chat_value *ret)
{
    struct hd_text text = {0};
    enum hd_status st;

    if (v->kind == CHAT_STRING) {
        *ret = *v;
        return HD_OK;
    }
    st = chat_add_str(run, &text, v);
    if (!st)
        return chat_take_text(run, &text, ret);
    hd_text_free(&text);
    return st;
}
