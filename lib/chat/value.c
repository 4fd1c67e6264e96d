#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template_internal.h"

const struct chat_value CHAT_EMPTY = {.kind = CHAT_STRING, .text = ""};

struct chat_value chat_bool(bool truth)
{
    return (struct chat_value){.kind = CHAT_BOOL, .truth = truth};
}

struct chat_value chat_int(int64_t integer)
{
    return (struct chat_value){.kind = CHAT_INT, .integer = integer};
}

struct chat_value chat_real(double real)
{
    return (struct chat_value){.kind = CHAT_REAL, .real = real};
}

struct chat_value chat_undefined(const char *name)
{
    return (struct chat_value){.kind = CHAT_UNDEFINED, .text = name};
}

struct chat_value chat_part(const char *text, size_t bytes)
{
    return (struct chat_value){.kind = CHAT_STRING, .text = text, .count = bytes};
}

struct chat_value chat_literal(const char *text)
{
    return chat_part(text, strlen(text));
}

struct chat_value chat_list(const struct chat_value *items, size_t count)
{
    return (struct chat_value){.kind = CHAT_LIST, .items = items, .count = count};
}

enum hd_status chat_lazy(struct chat_run *run, const struct chat_value *items, size_t count,
                         struct chat_value *ret)
{
    struct chat_value *copy;
    enum hd_status st = chat_array(run, count + 1, &copy);

    if (st)
        return st;
    copy[0] = chat_bool(false);
    if (count)
        memcpy(copy + 1, items, count * sizeof *items);
    *ret = (struct chat_value){.kind = CHAT_LAZY, .items = copy + 1, .count = count};
    return HD_OK;
}

enum hd_status chat_copy(struct chat_run *run, const char *text, size_t bytes,
                         struct chat_value *ret)
{
    char *copy = hd_arena_alloc(&run->arena, bytes + 1);

    if (!copy)
        return chat_no_memory(run);
    if (bytes)
        memcpy(copy, text, bytes);
    *ret = chat_part(copy, bytes);
    return HD_OK;
}

enum hd_status chat_take_text(struct chat_run *run, struct hd_text *text, struct chat_value *ret)
{
    enum hd_status st =
        text->failed ? chat_no_memory(run) : chat_copy(run, text->data, text->len_bytes, ret);

    hd_text_free(text);
    return st;
}

enum hd_status chat_array(struct chat_run *run, size_t count, struct chat_value **ret_items)
{
    enum hd_status st = chat_steps(run, count);

    if (st)
        return st;
    *ret_items = hd_arena_array(&run->arena, count + 1, sizeof **ret_items);
    return *ret_items ? HD_OK : chat_no_memory(run);
}

/* ---- dicts ---- */

enum hd_status chat_new_dict(struct chat_run *run, struct chat_value *ret)
{
    *ret = (struct chat_value){.kind = CHAT_DICT};
    ret->dict = hd_arena_alloc(&run->arena, sizeof *ret->dict);
    return ret->dict ? HD_OK : chat_no_memory(run);
}

enum hd_status chat_dict_find(struct chat_run *run, const struct chat_dict *dict,
                              const struct chat_value *key, const struct chat_value **ret)
{
    enum hd_status st = chat_steps(run, (size_t)dict->count / 16);

    *ret = NULL;
    for (int i = 0; !st && i < dict->count; i++) {
        bool same;

        st = chat_equal(run, &dict->pairs[i].key, key, &same);
        if (!st && same) {
            *ret = &dict->pairs[i].value;
            break;
        }
    }
    return st;
}

const struct chat_value *chat_dict_name(const struct chat_dict *dict, const char *name)
{
    for (int i = 0; i < dict->count; i++)
        if (chat_is(&dict->pairs[i].key, name))
            return &dict->pairs[i].value;
    return NULL;
}

static enum hd_status add_pair(struct chat_run *run, struct chat_dict *dict, struct chat_value key,
                               struct chat_value value)
{
    if (dict->count == dict->capacity) {
        const int capacity = dict->capacity ? 2 * dict->capacity : 4;
        struct chat_pair *pairs = hd_arena_array(&run->arena, (size_t)capacity, sizeof *pairs);

        if (!pairs)
            return chat_no_memory(run);
        if (dict->count)
            memcpy(pairs, dict->pairs, (size_t)dict->count * sizeof *pairs);
        dict->pairs = pairs;
        dict->capacity = capacity;
    }
    dict->pairs[dict->count++] = (struct chat_pair){key, value};
    return HD_OK;
}

enum hd_status chat_dict_set(struct chat_run *run, struct chat_dict *dict, struct chat_value key,
                             struct chat_value value)
{
    const struct chat_value *old;
    enum hd_status st = chat_dict_find(run, dict, &key, &old);

    if (st)
        return st;
    if (key.kind >= CHAT_LIST && key.kind != CHAT_TUPLE)
        return chat_wrong(run, "a %s cannot be a key", chat_kind_name(&key));
    if (old) {
        dict->pairs[(const struct chat_pair *)(const void *)((const char *)old -
                                                             offsetof(struct chat_pair, value)) -
                    dict->pairs]
            .value = value;
        return HD_OK;
    }
    return add_pair(run, dict, key, value);
}

/* ---- from JSON ---- */

static enum hd_status number_from(struct chat_run *run, const char *text, struct chat_value *ret)
{
    errno = 0;
    if (strpbrk(text, ".eE")) {
        *ret = chat_real(strtod(text, NULL));
        return HD_OK;
    }
    *ret = chat_int(strtoll(text, NULL, 10));
    return errno ? chat_unsupported(run, "the number %.40s, beyond 64 bits", text) : HD_OK;
}

static enum hd_status container_from(struct chat_run *run, const struct hd_json *json,
                                     struct chat_value *ret)
{
    struct chat_value *items = NULL;
    const struct hd_json *child = json->first;
    enum hd_status st;

    if (json->kind == HD_JSON_ARRAY)
        st = chat_array(run, json->count, &items);
    else
        st = chat_new_dict(run, ret);
    if (!st && items)
        *ret = chat_list(items, json->count);
    for (size_t i = 0; !st && i < json->count; i++, child = child->next) {
        struct chat_value value;

        st = chat_from_json(run, child, &value);
        if (!st && items)
            items[i] = value;
        else if (!st) /* the JSON parser has refused duplicate names */
            st = add_pair(run, ret->dict, chat_literal(child->key), value);
    }
    return st;
}

enum hd_status chat_from_json(struct chat_run *run, const struct hd_json *json,
                              struct chat_value *ret)
{
    enum hd_status st;

    switch (json->kind) {
    case HD_JSON_NULL:
        *ret = (struct chat_value){.kind = CHAT_NONE};
        return HD_OK;
    case HD_JSON_FALSE:
    case HD_JSON_TRUE:
        *ret = chat_bool(json->kind == HD_JSON_TRUE);
        return HD_OK;
    case HD_JSON_NUMBER:
        return number_from(run, json->text, ret);
    case HD_JSON_STRING:
        *ret = chat_literal(json->text);
        return HD_OK;
    default:
        break;
    }
    if (++run->depth > run->limits.depth_max)
        return chat_fail(run->at, HD_LIMIT, "values are nested deeper than %d",
                         run->limits.depth_max);
    st = container_from(run, json, ret);
    run->depth--;
    return st;
}

/* ---- what a value is ---- */

bool chat_is_number(const struct chat_value *v)
{
    return v->kind == CHAT_INT || v->kind == CHAT_REAL || v->kind == CHAT_BOOL;
}

int64_t chat_to_int(const struct chat_value *v)
{
    return v->kind == CHAT_BOOL ? v->truth : v->integer;
}

double chat_to_real(const struct chat_value *v)
{
    return v->kind == CHAT_REAL ? v->real : (double)chat_to_int(v);
}

bool chat_is(const struct chat_value *v, const char *text)
{
    return v->kind == CHAT_STRING && v->count == strlen(text) &&
           memcmp(v->text, text, v->count) == 0;
}

bool chat_true(const struct chat_value *v)
{
    switch (v->kind) {
    case CHAT_UNDEFINED:
    case CHAT_NONE:
        return false;
    case CHAT_BOOL:
        return v->truth;
    case CHAT_INT:
        return v->integer != 0;
    case CHAT_REAL:
        return v->real != 0;
    case CHAT_STRING:
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_RANGE:
    case CHAT_VIEW:
        return v->count > 0;
    case CHAT_DICT:
        return v->dict->count > 0;
    case CHAT_LOOP:
    case CHAT_NAMESPACE:
    case CHAT_MACRO:
    case CHAT_METHOD:
    case CHAT_FUNCTION:
    case CHAT_LAZY:
        break;
    }
    return true;
}

const char *chat_kind_name(const struct chat_value *v)
{
    static const char *const names[] = {
        [CHAT_UNDEFINED] = "value that is not defined",
        [CHAT_NONE] = "none",
        [CHAT_BOOL] = "boolean",
        [CHAT_INT] = "integer",
        [CHAT_REAL] = "number",
        [CHAT_STRING] = "string",
        [CHAT_LIST] = "list",
        [CHAT_TUPLE] = "tuple",
        [CHAT_DICT] = "mapping",
        [CHAT_NAMESPACE] = "namespace",
        [CHAT_LOOP] = "loop",
        [CHAT_MACRO] = "macro",
        [CHAT_METHOD] = "method",
        [CHAT_FUNCTION] = "function",
        [CHAT_RANGE] = "range",
        [CHAT_VIEW] = "view of a mapping (write |list)",
        [CHAT_LAZY] = "lazy list (write |list)",
    };

    return names[v->kind];
}

static enum hd_status equal_dicts(struct chat_run *run, const struct chat_dict *a,
                                  const struct chat_dict *b, bool *ret)
{
    enum hd_status st = HD_OK;

    *ret = a->count == b->count;
    for (int i = 0; !st && *ret && i < a->count; i++) {
        const struct chat_value *other;

        st = chat_dict_find(run, b, &a->pairs[i].key, &other);
        if (!st && !other)
            *ret = false;
        else if (!st)
            st = chat_equal(run, &a->pairs[i].value, other, ret);
    }
    return st;
}

static enum hd_status equal_containers(struct chat_run *run, const struct chat_value *a,
                                       const struct chat_value *b, bool *ret)
{
    enum hd_status st = chat_steps(run, 1);

    if (st)
        return st;
    if (++run->depth > run->limits.depth_max)
        return chat_fail(run->at, HD_LIMIT, "values are nested deeper than %d",
                         run->limits.depth_max);
    if (a->kind == CHAT_DICT) {
        st = equal_dicts(run, a->dict, b->dict, ret);
    } else {
        *ret = a->count == b->count;
        for (size_t i = 0; !st && *ret && i < a->count; i++)
            st = chat_equal(run, &a->items[i], &b->items[i], ret);
    }
    run->depth--;
    return st;
}

enum hd_status chat_equal(struct chat_run *run, const struct chat_value *a,
                          const struct chat_value *b, bool *ret)
{
    if (chat_is_number(a) && chat_is_number(b)) {
        *ret = a->kind == CHAT_REAL || b->kind == CHAT_REAL ? chat_to_real(a) == chat_to_real(b)
                                                            : chat_to_int(a) == chat_to_int(b);
        return HD_OK;
    }
    *ret = false;
    if (a->kind != b->kind)
        return HD_OK;
    switch (a->kind) {
    case CHAT_STRING:
        *ret = a->count == b->count && memcmp(a->text, b->text, a->count) == 0;
        return HD_OK;
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
    case CHAT_RANGE:
        return equal_containers(run, a, b, ret);
    case CHAT_VIEW:
        return chat_unsupported(run, "the comparison of a %s", chat_kind_name(a));
    case CHAT_UNDEFINED:
    case CHAT_NONE:
        *ret = true;
        return HD_OK;
    default: /* values of other kinds are equal only if they are the same object */
        *ret = a->text == b->text;
        return HD_OK;
    }
}
