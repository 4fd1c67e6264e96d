#include <string.h>

#include "chat/template_internal.h"

static struct chat_value loop_attribute(const struct chat_loop *l, const char *name)
{
    const int64_t index = (int64_t)l->index, count = (int64_t)l->count;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"index", index + 1},        {"index0", index},
        {"revindex", count - index}, {"revindex0", count - index - 1},
        {"length", count},           {"depth", l->depth},
        {"depth0", l->depth - 1},
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0)
            return chat_int(numbers[i].value);
    if (strcmp(name, "first") == 0)
        return chat_bool(index == 0);
    if (strcmp(name, "last") == 0)
        return chat_bool(index == count - 1);
    if (strcmp(name, "previtem") == 0 && index > 0)
        return l->items[index - 1];
    if (strcmp(name, "nextitem") == 0 && index < count - 1)
        return l->items[index + 1];
    return chat_undefined(name);
}

static enum hd_status undefined_attribute(struct chat_run *run, const struct chat_value *v,
                                          const char *name)
{
    return chat_wrong(run, "'%s' is not defined, so it has no '%s'", v->text, name);
}

static enum hd_status method_of(struct chat_run *run, const struct chat_value *v, const char *name,
                                struct chat_value *ret)
{
    struct chat_method *method = hd_arena_alloc(&run->arena, sizeof *method);

    if (!method)
        return chat_no_memory(run);
    *method = (struct chat_method){.self = *v, .name = name};
    *ret = (struct chat_value){.kind = CHAT_METHOD, .method = method};
    return HD_OK;
}

/* Evaluates x.name: methods have precedence over keys, as in Jinja2. */
enum hd_status chat_attribute(struct chat_run *run, const struct chat_value *v, const char *name,
                              struct chat_value *ret)
{
    const struct chat_value *found = NULL;

    if (v->kind == CHAT_UNDEFINED)
        return undefined_attribute(run, v, name);
    if (chat_has_method(v->kind, name))
        return method_of(run, v, name, ret);
    if (chat_has_foreign_method(v->kind, name))
        return chat_unsupported(run, "'%s' of a %s", name, chat_kind_name(v));
    if (v->kind == CHAT_LOOP) {
        if (strcmp(name, "changed") == 0)
            return chat_unsupported(run, "loop.changed");
        *ret = loop_attribute(v->loop, name);
        return HD_OK;
    }
    if (v->kind == CHAT_MACRO)
        return chat_macro_attribute(run, v->macro, name, ret);
    if (v->kind == CHAT_FUNCTION && name[0] != '_')
        return chat_unsupported(run, "'%s' of the function %s", name, v->text);
    if (v->kind == CHAT_DICT || v->kind == CHAT_NAMESPACE)
        found = chat_dict_name(v->dict, name);
    if (v->kind == CHAT_DICT && chat_steps(run, (size_t)v->dict->count / 16))
        return HD_LIMIT;
    *ret = found ? *found : chat_undefined(name); /* `ret` may alias `v` */
    return HD_OK;
}

/* Evaluates x[key]: items have precedence over methods, as in Jinja2. */
enum hd_status chat_item(struct chat_run *run, const struct chat_value *v,
                         const struct chat_value *key, struct chat_value *ret)
{
    const struct chat_value *found = NULL;
    enum hd_status st = HD_OK;
    struct chat_value name;

    if (v->kind == CHAT_UNDEFINED)
        return undefined_attribute(run, v, key->kind == CHAT_STRING ? key->text : "[]");
    if (v->kind == CHAT_DICT)
        st = chat_dict_find(run, v->dict, key, &found);
    if (st)
        return st;
    if (found) {
        *ret = *found;
        return HD_OK;
    }
    if (key->kind == CHAT_STRING) {
        /* chat_attribute needs a NUL-terminated name */
        st = chat_copy(run, key->text, key->count, &name);
        return st ? st : chat_attribute(run, v, name.text, ret);
    }
    if ((key->kind == CHAT_INT || key->kind == CHAT_BOOL) &&
        (v->kind == CHAT_LIST || v->kind == CHAT_TUPLE || v->kind == CHAT_RANGE ||
         v->kind == CHAT_STRING)) {
        const int64_t count = v->kind == CHAT_STRING ? (int64_t)chat_code_points(v->text, v->count)
                                                     : (int64_t)v->count;
        int64_t at = chat_to_int(key);

        if (at < 0)
            at += count;
        if (at >= 0 && at < count) {
            size_t byte = 0;

            if (v->kind != CHAT_STRING) {
                *ret = v->items[at];
                return HD_OK;
            }
            for (; at > 0; at--)
                byte += chat_code_point_bytes(v->text + byte);
            *ret = chat_part(v->text + byte, chat_code_point_bytes(v->text + byte));
            return chat_steps(run, byte / 64);
        }
    }
    *ret = chat_undefined("an item that is not there");
    return HD_OK;
}

/* Computes start, stop and step of a slice as Python's slice.indices does. */
static enum hd_status bounds_of(struct chat_run *run, const struct chat_value bounds[3],
                                int64_t count, int64_t ret[3])
{
    int64_t step = 1;

    for (int i = 0; i < 3; i++)
        if (bounds[i].kind != CHAT_NONE && bounds[i].kind != CHAT_INT &&
            bounds[i].kind != CHAT_BOOL)
            return chat_wrong(run, "a slice by a %s", chat_kind_name(&bounds[i]));
    if (bounds[2].kind != CHAT_NONE)
        step = chat_to_int(&bounds[2]);
    if (step == 0)
        return chat_wrong(run, "a slice by steps of 0");
    if (step < -count - 1)
        step = -count - 1;
    if (step > count + 1)
        step = count + 1;
    for (int i = 0; i < 2; i++) {
        const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? count - 1 : count;
        int64_t at;

        if (bounds[i].kind == CHAT_NONE) {
            ret[i] = (i == 0) == (step > 0) ? low : high;
            continue;
        }
        at = chat_to_int(&bounds[i]);
        if (at < 0)
            at = at < -count ? low : at + count < low ? low : at + count;
        ret[i] = at > high ? high : at;
    }
    ret[2] = step;
    return HD_OK;
}

enum hd_status chat_slice(struct chat_run *run, const struct chat_value *v,
                          const struct chat_value bounds[3], struct chat_value *ret)
{
    const struct chat_value *items;
    struct chat_value *chosen;
    struct hd_text text = {0};
    int64_t range[3];
    size_t count, n = 0;
    enum hd_status st;

    if (v->kind == CHAT_UNDEFINED)
        return undefined_attribute(run, v, "[:]");
    if (v->kind != CHAT_STRING && v->kind != CHAT_LIST && v->kind != CHAT_TUPLE &&
        v->kind != CHAT_RANGE) {
        *ret = chat_undefined("a slice of what has no items"); /* as in Jinja2 */
        return HD_OK;
    }
    st = chat_iterate(run, v, &items, &count);
    if (!st)
        st = bounds_of(run, bounds, (int64_t)count, range);
    if (!st)
        st = chat_array(run, count, &chosen);
    if (st)
        return st;
    for (int64_t i = range[0]; range[2] > 0 ? i < range[1] : i > range[1]; i += range[2])
        chosen[n++] = items[i];
    if (v->kind != CHAT_STRING) {
        *ret = *v;
        ret->items = chosen;
        ret->count = n;
        return HD_OK;
    }
    for (size_t i = 0; i < n; i++)
        hd_text_add_bytes(&text, chosen[i].text, chosen[i].count);
    return chat_take_text(run, &text, ret);
}
