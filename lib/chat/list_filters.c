#include <string.h>

#include "chat/template_internal.h"

/* list_filters: filters that iterate over the items of a value. */

struct chat_walk {
    struct chat_run *run;
    const char *name;
    const struct chat_value *v;
    const struct chat_args *args;
    const struct chat_value *items;
    size_t count;
    struct chat_value *ret;
};

typedef enum hd_status walk_fn(struct chat_walk *w);

/* Sets *ret to the attribute `name` of an item; "a.b" is nested, digits are an index. */
static enum hd_status attribute_of(struct chat_run *run, const struct chat_value *item,
                                   const struct chat_value *name, struct chat_value *ret)
{
    struct chat_value part;
    enum hd_status st = HD_OK;

    *ret = *item;
    if (name->kind != CHAT_STRING)
        return chat_item(run, item, name, ret);
    for (size_t at = 0; !st && at <= name->count;) {
        const char *dot = memchr(name->text + at, '.', name->count - at);
        const size_t end = dot ? (size_t)(dot - name->text) : name->count;

        part = chat_part(name->text + at, end - at);
        if (part.count && strspn(part.text, "0123456789") >= part.count)
            return chat_unsupported(run, "an attribute that is a number");
        st = chat_item(run, ret, &part, ret);
        at = end + 1;
    }
    return st;
}

static enum hd_status join_items(struct chat_walk *w)
{
    struct chat_value a[2], item;
    struct hd_text out = {0};
    enum hd_status st = chat_take(w->run, "join", w->args, "d attribute", a);

    for (size_t i = 0; !st && i < w->count; i++) {
        item = w->items[i];
        if (i && a[0].kind != CHAT_UNDEFINED)
            st = chat_add_str(w->run, &out, &a[0]);
        if (!st && a[1].kind != CHAT_UNDEFINED)
            st = attribute_of(w->run, &w->items[i], &a[1], &item);
        if (!st)
            st = chat_add_str(w->run, &out, &item);
        if (out.len_bytes > w->run->limits.memory_bytes_max)
            st = chat_no_memory(w->run);
    }
    if (!st)
        return chat_take_text(w->run, &out, w->ret);
    hd_text_free(&out);
    return st;
}

static enum hd_status as_list(struct chat_walk *w)
{
    *w->ret = chat_list(w->items, w->count);
    return HD_OK;
}

static enum hd_status first_or_last(struct chat_walk *w)
{
    *w->ret = chat_undefined("an item of an empty list");
    if (w->count)
        *w->ret = w->items[*w->name == 'f' ? 0 : w->count - 1];
    return HD_OK;
}

static enum hd_status reverse(struct chat_walk *w)
{
    const struct chat_value bounds[3] = {{.kind = CHAT_NONE}, {.kind = CHAT_NONE}, chat_int(-1)};
    struct chat_value whole = chat_list(w->items, w->count);
    enum hd_status st =
        chat_slice(w->run, w->v->kind == CHAT_STRING ? w->v : &whole, bounds, w->ret);

    if (!st && w->v->kind != CHAT_STRING && w->v->kind != CHAT_LAZY) /* of these a list */
        st = chat_lazy(w->run, w->ret->items, w->ret->count, w->ret);
    return st;
}

static enum hd_status map(struct chat_walk *w)
{
    struct chat_args rest = *w->args;
    struct chat_value *out, attribute = {0}, otherwise = chat_undefined("attribute");
    enum hd_status st = chat_array(w->run, w->count, &out);

    for (size_t i = 0; !st && i < w->args->named_count; i++) {
        if (strcmp(w->args->named[i].name, "attribute") == 0)
            attribute = w->args->named[i].value;
        else if (strcmp(w->args->named[i].name, "default") == 0)
            otherwise = w->args->named[i].value;
    }
    if (!st && attribute.kind == CHAT_UNDEFINED) {
        if (!rest.count || rest.items[0].kind != CHAT_STRING)
            return chat_wrong(w->run, "map needs attribute=... or the name of a filter");
        rest.items++;
        rest.count--;
    }
    for (size_t i = 0; !st && i < w->count; i++) {
        if (attribute.kind == CHAT_UNDEFINED) {
            st = chat_filter(w->run, w->args->items[0].text, &w->items[i], &rest, &out[i]);
            continue;
        }
        st = attribute_of(w->run, &w->items[i], &attribute, &out[i]);
        if (!st && out[i].kind == CHAT_UNDEFINED)
            out[i] = otherwise;
    }
    if (!st)
        st = chat_lazy(w->run, out, w->count, w->ret);
    return st;
}

/* Runs the filter select, reject, selectattr or rejectattr: chooses items by the given test, or
 * else by the item's truth. */
static enum hd_status select_items(struct chat_walk *w)
{
    const bool wanted = *w->name == 's', attribute = strstr(w->name, "attr") != NULL;
    struct chat_args rest = *w->args;
    struct chat_value *out, subject;
    size_t n = 0;
    enum hd_status st = chat_array(w->run, w->count, &out);

    if (!st && rest.count < (size_t)attribute)
        return chat_wrong(w->run, "%s needs the name of an attribute", w->name);
    rest.items += attribute;
    rest.count -= attribute;
    if (rest.count && rest.items[0].kind != CHAT_STRING)
        return chat_wrong(w->run, "%s needs the name of a test", w->name);
    for (size_t i = 0; !st && i < w->count; i++) {
        bool is = false;

        subject = w->items[i];
        if (attribute)
            st = attribute_of(w->run, &w->items[i], &w->args->items[0], &subject);
        if (!st && rest.count) {
            struct chat_args args = {.items = rest.items + 1, .count = rest.count - 1};

            st = chat_test(w->run, rest.items[0].text, &subject, &args, &is);
        } else if (!st) {
            is = chat_true(&subject);
        }
        if (!st && is == wanted)
            out[n++] = w->items[i];
    }
    if (!st)
        st = chat_lazy(w->run, out, n, w->ret);
    return st;
}

/* Lowers the case of a string unless `exact`, as sort, unique, min, max and dictsort of Jinja2
 * compare by default. */
static enum hd_status fold(struct chat_run *run, struct chat_value *v, bool exact)
{
    return v->kind == CHAT_STRING && !exact ? chat_change_case(run, v, CHAT_LOWER, v) : HD_OK;
}

/* Sorts keys[] stably, by binary insertion, and moves items[] in the same way. */
static enum hd_status sort_by(struct chat_run *run, struct chat_value *keys,
                              struct chat_value *items, size_t count, bool down)
{
    enum hd_status st = HD_OK;

    for (size_t i = 1; !st && i < count; i++) {
        const struct chat_value key = keys[i], item = items[i];
        size_t low = 0, high = i;

        while (!st && low < high) {
            const size_t middle = low + (high - low) / 2;
            int order;

            st = chat_order(run, &key, &keys[middle], &order);
            if (down ? order > 0 : order < 0)
                high = middle;
            else
                low = middle + 1;
        }
        memmove(keys + low + 1, keys + low, (i - low) * sizeof *keys);
        memmove(items + low + 1, items + low, (i - low) * sizeof *items);
        keys[low] = key;
        items[low] = item;
        if (!st)
            st = chat_steps(run, 1 + (i - low) / 16);
    }
    return st;
}

static enum hd_status sort_items(struct chat_walk *w)
{
    struct chat_value a[3], *keys, *out;
    enum hd_status st = chat_take(w->run, "sort", w->args, "reverse case_sensitive attribute", a);

    if (!st)
        st = chat_array(w->run, w->count, &keys);
    if (!st)
        st = chat_array(w->run, w->count, &out);
    for (size_t i = 0; !st && i < w->count; i++) {
        keys[i] = out[i] = w->items[i];
        if (a[2].kind != CHAT_UNDEFINED && a[2].kind != CHAT_NONE)
            st = attribute_of(w->run, &w->items[i], &a[2], &keys[i]);
        if (!st)
            st = fold(w->run, &keys[i], chat_true(&a[1]));
    }
    if (!st)
        st = sort_by(w->run, keys, out, w->count, chat_true(&a[0]));
    if (!st)
        *w->ret = chat_list(out, w->count);
    return st;
}

static enum hd_status unique(struct chat_walk *w)
{
    struct chat_value a[2], *keys, *out;
    size_t n = 0;
    enum hd_status st = chat_take(w->run, "unique", w->args, "case_sensitive attribute", a);

    if (!st)
        st = chat_array(w->run, w->count, &keys);
    if (!st)
        st = chat_array(w->run, w->count, &out);
    for (size_t i = 0; !st && i < w->count; i++) {
        struct chat_value seen;
        bool is = false;

        keys[n] = out[n] = w->items[i];
        if (a[1].kind != CHAT_UNDEFINED && a[1].kind != CHAT_NONE)
            st = attribute_of(w->run, &w->items[i], &a[1], &keys[n]);
        if (!st)
            st = fold(w->run, &keys[n], chat_true(&a[0]));
        seen = chat_list(keys, n);
        if (!st)
            st = chat_contains(w->run, &seen, &keys[n], &is);
        n += !is;
    }
    if (!st)
        st = chat_lazy(w->run, out, n, w->ret);
    return st;
}

static enum hd_status items_of(struct chat_walk *w)
{
    const struct chat_method items = {.self = *w->v, .name = "items"};
    const struct chat_args none = {0};

    enum hd_status st;

    if (w->v->kind == CHAT_UNDEFINED)
        return chat_lazy(w->run, NULL, 0, w->ret);
    if (w->v->kind != CHAT_DICT)
        return chat_wrong(w->run, "%s needs a mapping, not a %s", w->name, chat_kind_name(w->v));
    st = chat_call_method(w->run, &items, &none, w->ret);
    return st ? st : chat_lazy(w->run, w->ret->items, w->ret->count, w->ret);
}

static enum hd_status dict_sort(struct chat_walk *w)
{
    struct chat_value a[3], pairs, *keys, *out;
    enum hd_status st = chat_take(w->run, "dictsort", w->args, "case_sensitive by reverse", a);

    if (!st && w->v->kind != CHAT_DICT)
        return chat_wrong(w->run, "dictsort needs a mapping, not a %s", chat_kind_name(w->v));
    if (!st)
        st = items_of(w);
    pairs = *w->ret;
    if (!st)
        st = chat_array(w->run, pairs.count, &keys);
    if (!st)
        st = chat_array(w->run, pairs.count, &out);
    for (size_t i = 0; !st && i < pairs.count; i++) {
        out[i] = pairs.items[i];
        keys[i] = pairs.items[i].items[chat_is(&a[1], "value")];
        st = fold(w->run, &keys[i], chat_true(&a[0]));
    }
    if (!st)
        st = sort_by(w->run, keys, out, pairs.count, chat_true(&a[2]));
    if (!st)
        *w->ret = chat_list(out, pairs.count);
    return st;
}

static enum hd_status batch(struct chat_walk *w)
{
    struct chat_value a[2], *out, *row;
    int64_t size = 0;
    size_t n = 0;
    enum hd_status st = chat_take(w->run, "batch", w->args, "linecount fill_with", a);

    if (!st)
        st = chat_need_int(w->run, "batch", &a[0], &size);
    if (!st && size < 1)
        st = chat_wrong(w->run, "batch needs a size above 0");
    if (!st)
        st = chat_array(w->run, w->count, &out);
    for (size_t at = 0; !st && at < w->count; at += (size_t)size) {
        const size_t left = w->count - at < (size_t)size ? w->count - at : (size_t)size;
        const bool fills = a[1].kind != CHAT_UNDEFINED && a[1].kind != CHAT_NONE;
        const size_t width = fills ? (size_t)size : left;

        st = chat_array(w->run, width, &row);
        for (size_t i = 0; !st && i < width; i++)
            row[i] = i < left ? w->items[at + i] : a[1];
        if (!st)
            out[n++] = chat_list(row, width);
    }
    if (!st)
        st = chat_lazy(w->run, out, n, w->ret);
    return st;
}

static enum hd_status sum(struct chat_walk *w)
{
    struct chat_value a[2], total = chat_int(0), item;
    enum hd_status st = chat_take(w->run, "sum", w->args, "attribute start", a);

    if (!st && a[1].kind != CHAT_UNDEFINED)
        total = a[1];
    for (size_t i = 0; !st && i < w->count; i++) {
        item = w->items[i];
        if (a[0].kind != CHAT_UNDEFINED && a[0].kind != CHAT_NONE)
            st = attribute_of(w->run, &w->items[i], &a[0], &item);
        if (!st)
            st = chat_binary(w->run, "+", &total, &item, &total);
    }
    *w->ret = total;
    return st;
}

static enum hd_status least_or_most(struct chat_walk *w)
{
    struct chat_value a[2], best = chat_undefined("an item of an empty list"), best_key = best, key;
    enum hd_status st = chat_take(w->run, w->name, w->args, "case_sensitive attribute", a);
    int order = 0;

    for (size_t i = 0; !st && i < w->count; i++) {
        key = w->items[i];
        if (a[1].kind != CHAT_UNDEFINED && a[1].kind != CHAT_NONE)
            st = attribute_of(w->run, &w->items[i], &a[1], &key);
        if (!st)
            st = fold(w->run, &key, chat_true(&a[0]));
        if (!st && i)
            st = chat_order(w->run, &key, &best_key, &order);
        if (i && (w->name[1] == 'i' ? order >= 0 : order <= 0))
            continue;
        best = w->items[i];
        best_key = key;
    }
    *w->ret = best;
    return st;
}

enum hd_status chat_list_filter(struct chat_run *run, const char *name, const struct chat_value *v,
                                const struct chat_args *args, struct chat_value *ret, bool *found)
{
    static const struct {
        const char *name;
        walk_fn *walk;
    } filters[] = {
        {"join", join_items},
        {"list", as_list},
        {"first", first_or_last},
        {"reverse", reverse},
        {"last", first_or_last},
        {"map", map},
        {"select", select_items},
        {"reject", select_items},
        {"selectattr", select_items},
        {"sort", sort_items},
        {"rejectattr", select_items},
        {"unique", unique},
        {"items", items_of},
        {"dictsort", dict_sort},
        {"batch", batch},
        {"sum", sum},
        {"min", least_or_most},
        {"max", least_or_most},
    };
    struct chat_walk w = {.run = run, .name = name, .v = v, .args = args, .ret = ret};
    enum hd_status st;

    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strcmp(name, filters[i].name) == 0) {
            *found = true;
            st = chat_iterate(run, v, &w.items, &w.count);
            if (!st)
                st = chat_steps(run, w.count);
            return st ? st : filters[i].walk(&w);
        }
    return HD_OK;
}
