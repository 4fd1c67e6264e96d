#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template_internal.h"

/* to_json: the filter tojson as in transformers: Python's json.dumps with ensure_ascii off, without
 * escaping for HTML. */

struct json_style {
    /* text by which each nesting level is indented; none: everything is on one line */
    struct chat_value indent;
    struct chat_value item, key; /* texts that separate items, and that follow a key */
    bool ascii, sorted;
};

static enum hd_status add_value(struct chat_run *run, struct hd_text *out,
                                const struct json_style *style, const struct chat_value *v,
                                int level);

static void add_string_json(struct hd_text *out, const struct chat_value *v, bool ascii)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";

    hd_text_add(out, "\"");
    for (size_t i = 0, n; i < v->count; i += n) {
        const unsigned char c = (unsigned char)v->text[i];
        const char *found = c ? strchr(plain, c) : NULL;
        const uint32_t code = chat_code_point(v->text + i);

        n = chat_code_point_bytes(v->text + i);
        if (found)
            hd_text_add(out, "\\%c", letters[found - plain]);
        else if (c < 0x20 || (ascii && code >= 0x7F && code < 0x10000 && code != 0x7F))
            hd_text_add(out, "\\u%04x", (unsigned)code);
        else if (ascii && code >= 0x10000)
            hd_text_add(out, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((code - 0x10000) >> 10)),
                        (unsigned)(0xDC00 + ((code - 0x10000) & 0x3FF)));
        else
            hd_text_add_bytes(out, v->text + i, n);
    }
    hd_text_add(out, "\"");
}

static void add_line(struct hd_text *out, const struct json_style *style, int level)
{
    if (style->indent.kind == CHAT_NONE)
        return;
    hd_text_add(out, "\n");
    for (int i = 0; i < level; i++)
        hd_text_add_bytes(out, style->indent.text, style->indent.count);
}

static enum hd_status add_key(struct chat_run *run, struct hd_text *out,
                              const struct json_style *style, const struct chat_value *key)
{
    enum hd_status st = HD_OK;

    if (key->kind == CHAT_STRING) {
        add_string_json(out, key, style->ascii);
        return HD_OK;
    }
    if (key->kind > CHAT_REAL || key->kind == CHAT_UNDEFINED)
        return chat_wrong(run, "tojson: a %s as a key", chat_kind_name(key));
    hd_text_add(out, "\"");
    st = add_value(run, out, style, key, 0);
    hd_text_add(out, "\"");
    return st;
}

static int compare_keys(const void *a, const void *b)
{
    const struct chat_value *x = &((const struct chat_pair *)a)->key,
                            *y = &((const struct chat_pair *)b)->key;
    const int order = memcmp(x->text, y->text, x->count < y->count ? x->count : y->count);

    return order ? order : (x->count > y->count) - (x->count < y->count);
}

/* Sorts the pairs of a dictionary by key. HD_UNSUPPORTED: a key is no string. */
static enum hd_status sort_pairs(struct chat_run *run, const struct chat_dict *dict,
                                 struct chat_pair **ret)
{
    struct chat_pair *pairs = hd_arena_array(&run->arena, (size_t)dict->count + 1, sizeof *pairs);

    if (!pairs)
        return chat_no_memory(run);
    for (int i = 0; i < dict->count; i++) {
        pairs[i] = dict->pairs[i];
        if (pairs[i].key.kind != CHAT_STRING)
            return chat_unsupported(run, "tojson with sorted keys that are not strings");
    }
    qsort(pairs, (size_t)dict->count, sizeof *pairs, compare_keys);
    *ret = pairs;
    return HD_OK;
}

static enum hd_status add_container_json(struct chat_run *run, struct hd_text *out,
                                         const struct json_style *style, const struct chat_value *v,
                                         int level)
{
    const bool is_dict = v->kind == CHAT_DICT;
    const size_t count = is_dict ? (size_t)v->dict->count : v->count;
    struct chat_pair *pairs = is_dict ? v->dict->pairs : NULL;
    enum hd_status st = chat_steps(run, count);

    if (!st && is_dict && style->sorted)
        st = sort_pairs(run, v->dict, &pairs);
    hd_text_add(out, "%c", is_dict ? '{' : '[');
    for (size_t i = 0; !st && i < count; i++) {
        if (i)
            hd_text_add_bytes(out, style->item.text, style->item.count);
        add_line(out, style, level + 1);
        if (is_dict) {
            st = add_key(run, out, style, &pairs[i].key);
            hd_text_add_bytes(out, style->key.text, style->key.count);
        }
        if (!st)
            st = add_value(run, out, style, is_dict ? &pairs[i].value : &v->items[i], level + 1);
        if (out->len_bytes > run->limits.memory_bytes_max)
            return chat_no_memory(run);
    }
    if (count)
        add_line(out, style, level);
    hd_text_add(out, "%c", is_dict ? '}' : ']');
    return st;
}

static enum hd_status add_value(struct chat_run *run, struct hd_text *out,
                                const struct json_style *style, const struct chat_value *v,
                                int level)
{
    enum hd_status st;

    switch (v->kind) {
    case CHAT_NONE:
        hd_text_add(out, "null");
        return HD_OK;
    case CHAT_BOOL:
        hd_text_add(out, "%s", v->truth ? "true" : "false");
        return HD_OK;
    case CHAT_REAL:
        if (isfinite(v->real))
            chat_add_real(out, v->real);
        else
            hd_text_add(out, "%s", isnan(v->real) ? "NaN" : v->real > 0 ? "Infinity" : "-Infinity");
        return HD_OK;
    case CHAT_INT:
        return chat_add_repr(run, out, v);
    case CHAT_STRING:
        add_string_json(out, v, style->ascii);
        return HD_OK;
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
        if (++run->depth > run->limits.depth_max)
            return chat_fail(run->at, HD_LIMIT, "values are nested deeper than %d",
                             run->limits.depth_max);
        st = add_container_json(run, out, style, v, level);
        run->depth--;
        return st;
    case CHAT_UNDEFINED:
        return chat_wrong(run, "tojson: '%s' is not defined", v->text);
    default:
        return chat_wrong(run, "tojson of a %s", chat_kind_name(v));
    }
}

static enum hd_status read_indent(struct chat_run *run, struct chat_value *indent)
{
    int64_t n;
    enum hd_status st;
    char *blanks;

    if (indent->kind == CHAT_UNDEFINED || indent->kind == CHAT_NONE) {
        indent->kind = CHAT_NONE;
        return HD_OK;
    }
    if (indent->kind == CHAT_STRING)
        return HD_OK;
    st = chat_need_int(run, "the indent of tojson", indent, &n);
    if (st)
        return st;
    if (n < 0)
        n = 0;
    if (n > 64)
        return chat_fail(run->at, HD_LIMIT, "tojson with an indent beyond 64");
    blanks = hd_arena_alloc(&run->arena, (size_t)n + 1);
    if (!blanks)
        return chat_no_memory(run);
    memset(blanks, ' ', (size_t)n);
    *indent = chat_part(blanks, (size_t)n);
    return HD_OK;
}

enum hd_status chat_to_json(struct chat_run *run, const struct chat_value *v,
                            const struct chat_args *args, struct chat_value *ret)
{
    struct chat_value a[4];
    struct json_style style;
    struct hd_text text = {0};
    enum hd_status st =
        chat_take(run, "tojson", args, "ensure_ascii indent separators sort_keys", a);

    if (!st)
        st = read_indent(run, &a[1]);
    if (st)
        return st;
    style = (struct json_style){
        .indent = a[1],
        .item = chat_literal(a[1].kind == CHAT_NONE ? ", " : ","),
        .key = chat_literal(": "),
        .ascii = chat_true(&a[0]),
        .sorted = chat_true(&a[3]),
    };
    if (a[2].kind == CHAT_TUPLE || a[2].kind == CHAT_LIST) {
        if (a[2].count != 2 || a[2].items[0].kind != CHAT_STRING ||
            a[2].items[1].kind != CHAT_STRING)
            return chat_wrong(run, "the separators of tojson are two strings");
        style.item = a[2].items[0];
        style.key = a[2].items[1];
    }
    st = add_value(run, &text, &style, v, 0);
    if (!st)
        return chat_take_text(run, &text, ret);
    hd_text_free(&text);
    return st;
}
