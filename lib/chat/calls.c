#include "chat/calls.h"

#include <string.h>

enum { CALLS_MAX = 128 };

static const char tag_begin[] = HD_CALL_TAG, tag_end[] = HD_CALL_TAG_END;
static const char list_begin[] = HD_CALL_MARK, list_id[] = "[CALL_ID]", list_args[] = "[ARGS]";
static const char python_tag[] = "<|python_tag|>";
static const char blanks[] = " \t\r\n";

/* A text whose calls are being found. */
struct call_reading {
    struct hd_arena *arena;
    const struct hd_json *tools; /* NULL: calls of any name */
    struct hd_chat_call calls[CALLS_MAX];
    size_t count;
    struct hd_text outside; /* text outside the calls */
};

static const char *skip(const char *p)
{
    return p + strspn(p, blanks);
}

/* Returns the end of the JSON object or list that begins at p; NULL: it does not end. */
static const char *end_of_json(const char *p)
{
    int64_t depth = 0;
    bool in_text = false;

    for (; *p; p++) {
        if (in_text && *p == '\\' && p[1])
            p++;
        else if (*p == '"')
            in_text = !in_text;
        else if (!in_text && (*p == '{' || *p == '['))
            depth++;
        else if (!in_text && (*p == '}' || *p == ']') && --depth == 0)
            return p + 1;
    }
    return NULL;
}

/* Parses JSON; NULL: it is none. HD_NO_MEMORY is the only failure. */
static enum hd_status parse_call_json(struct call_reading *r, const char *text, size_t bytes,
                                      const struct hd_json **ret_value)
{
    static const struct hd_json_limits limits = {.values_max = 100000, .depth_max = 64};
    const enum hd_status st = hd_json_parse_repeated(r->arena, text, bytes, &limits, ret_value);

    if (st)
        *ret_value = NULL;
    return st == HD_NO_MEMORY ? st : HD_OK;
}

/* Returns the description of a tool, or of a call: the member `function`, or the object itself. */
static const struct hd_json *function_of(const struct hd_json *object)
{
    const struct hd_json *inner = hd_json_member(object, "function");

    return inner && inner->kind == HD_JSON_OBJECT ? inner : object;
}

static bool is_tool(const struct hd_json *tools, const char *name)
{
    for (const struct hd_json *t = tools ? tools->first : NULL; t; t = t->next) {
        const struct hd_json *known =
            t->kind == HD_JSON_OBJECT ? hd_json_member(function_of(t), "name") : NULL;

        if (known && known->kind == HD_JSON_STRING && strcmp(known->text, name) == 0)
            return true;
    }
    return !tools;
}

/* Adds a call; *ret_is false: it is none. arguments NULL: it has none. */
static enum hd_status add_call(struct call_reading *r, const char *name,
                               const struct hd_json *arguments, bool *ret_is)
{
    static const struct hd_json none = {.kind = HD_JSON_OBJECT};
    enum hd_status st = HD_OK;

    if (arguments && arguments->kind == HD_JSON_STRING)
        st = parse_call_json(r, arguments->text, strlen(arguments->text), &arguments);
    else if (!arguments || arguments->kind == HD_JSON_NULL)
        arguments = &none;
    *ret_is = !st && arguments && arguments->kind == HD_JSON_OBJECT && *name &&
              is_tool(r->tools, name) && r->count < CALLS_MAX;
    if (*ret_is)
        r->calls[r->count++] = (struct hd_chat_call){name, arguments};
    return st;
}

/* Adds a call written as an object. */
static enum hd_status add_object(struct call_reading *r, const struct hd_json *object, bool *ret_is)
{
    const struct hd_json *f, *name, *arguments;

    *ret_is = false;
    if (!object || object->kind != HD_JSON_OBJECT)
        return HD_OK;
    f = function_of(object);
    name = hd_json_member(f, "name");
    arguments = hd_json_member(f, "arguments");
    if (!arguments)
        arguments = hd_json_member(f, "parameters");
    return name && name->kind == HD_JSON_STRING ? add_call(r, name->text, arguments, ret_is)
                                                : HD_OK;
}

/* Adds the call, or list of calls, that begins at *p, and moves *p behind it. */
static enum hd_status add_json(struct call_reading *r, const char **p, bool *ret_is)
{
    const char *end = **p == '{' || **p == '[' ? end_of_json(*p) : NULL;
    const struct hd_json *value = NULL;
    enum hd_status st;

    *ret_is = false;
    if (!end)
        return HD_OK;
    st = parse_call_json(r, *p, (size_t)(end - *p), &value);
    *p = end;
    if (st || !value || value->kind == HD_JSON_OBJECT)
        return st ? st : add_object(r, value, ret_is);
    *ret_is = value->first != NULL;
    for (const struct hd_json *v = value->first; !st && *ret_is && v; v = v->next)
        st = add_object(r, v, ret_is);
    return st;
}

/* ---- the forms ---- */

/* Reads calls in tags; a tag at the end may lack its end. */
static enum hd_status read_tagged(struct call_reading *r, const char *p, bool *ret_is)
{
    const char *begin;
    enum hd_status st = HD_OK;

    *ret_is = strstr(p, tag_begin) != NULL;
    while (!st && *ret_is && (begin = strstr(p, tag_begin))) {
        hd_text_add_bytes(&r->outside, p, (size_t)(begin - p));
        p = skip(begin + sizeof tag_begin - 1);
        st = add_json(r, &p, ret_is);
        p = skip(p);
        if (hd_text_starts(p, tag_end))
            p += sizeof tag_end - 1;
        else
            *ret_is &= !*p;
    }
    hd_text_add(&r->outside, "%s", *ret_is ? p : "");
    return st;
}

/* Reads NAME[CALL_ID]ID[ARGS]{..}; the part with the id may be missing. */
static enum hd_status read_named(struct call_reading *r, const char **p, bool *ret_is)
{
    const char *args = strstr(*p, list_args), *id = strstr(*p, list_id), *end, *name;
    const struct hd_json *value = NULL;
    enum hd_status st;

    *ret_is = false;
    if (!args || strchr("{[", *skip(args + sizeof list_args - 1)) == NULL ||
        !(end = end_of_json(skip(args + sizeof list_args - 1))))
        return HD_OK;
    id = id && id < args ? id : args;
    name = hd_arena_printf(r->arena, "%.*s", (int)(id - *p), *p);
    *p = skip(args + sizeof list_args - 1);
    if (!name)
        return hd_err(HD_NO_MEMORY, "no memory for tool calls");
    st = parse_call_json(r, *p, (size_t)(end - *p), &value);
    *p = end;
    return st || !value ? st : add_call(r, name, value, ret_is);
}

static enum hd_status read_listed(struct call_reading *r, const char *p, bool *ret_is)
{
    const char *begin = strstr(p, list_begin);
    enum hd_status st = HD_OK;

    *ret_is = begin != NULL;
    if (!begin)
        return HD_OK;
    hd_text_add_bytes(&r->outside, p, (size_t)(begin - p));
    for (p = begin; !st && *ret_is && *(p = skip(p));) {
        if (hd_text_starts(p, list_begin))
            p = skip(p + sizeof list_begin - 1);
        st = *p == '[' || *p == '{' ? add_json(r, &p, ret_is) : read_named(r, &p, ret_is);
    }
    return st;
}

static enum hd_status read_bare(struct call_reading *r, const char *p, bool *ret_is)
{
    enum hd_status st = HD_OK;

    p = skip(p);
    if (hd_text_starts(p, python_tag))
        p = skip(p + sizeof python_tag - 1);
    *ret_is = *p == '{';
    while (!st && *ret_is && *p == '{') {
        st = add_json(r, &p, ret_is);
        p = skip(p);
        p = *p == ';' ? skip(p + 1) : p;
    }
    *ret_is &= !*p;
    return st;
}

/* ---- results ---- */

static enum hd_status take_calls(struct call_reading *r, const char *text, bool is,
                                 struct hd_chat_calls *ret)
{
    struct hd_chat_call *calls;
    const char *outside = r->outside.data ? skip(r->outside.data) : "";
    size_t n = strlen(outside);

    *ret = (struct hd_chat_calls){.content = text};
    if (!is || !r->count)
        return HD_OK;
    while (n && strchr(blanks, outside[n - 1]))
        n--;
    calls = hd_arena_array(r->arena, r->count, sizeof *calls);
    ret->content = hd_arena_printf(r->arena, "%.*s", (int)n, outside);
    if (!calls || !ret->content || r->outside.failed)
        return hd_err(HD_NO_MEMORY, "no memory for tool calls");
    memcpy(calls, r->calls, r->count * sizeof *calls);
    ret->calls = calls;
    ret->count = r->count;
    return HD_OK;
}

enum hd_status hd_chat_calls_find(struct hd_arena *arena, enum hd_call_form form, const char *text,
                                  const struct hd_json *tools, struct hd_chat_calls *ret_calls)
{
    struct call_reading r = {.arena = arena, .tools = tools};
    bool is = false;
    enum hd_status st = form == HD_CALLS_TAGGED   ? read_tagged(&r, text, &is)
                        : form == HD_CALLS_LISTED ? read_listed(&r, text, &is)
                                                  : read_bare(&r, text, &is);

    if (!st)
        st = take_calls(&r, text, is, ret_calls);
    hd_text_free(&r.outside);
    return st;
}

enum hd_status hd_chat_calls_of_value(struct hd_arena *arena, const char *value,
                                      struct hd_chat_calls *ret_calls)
{
    static const char thought_end[] = "</think>";
    struct call_reading r = {.arena = arena};
    const char *p = value, *thought = strstr(value, thought_end);
    bool is = false;
    enum hd_status st;

    if (thought && hd_text_starts(skip(value), "<think>")) {
        p = thought + sizeof thought_end - 1;
        hd_text_add_bytes(&r.outside, value, (size_t)(p - value));
    }
    p = skip(p);
    if (hd_text_starts(p, tag_begin)) {
        st = read_tagged(&r, p, &is);
    } else {
        st = add_json(&r, &p, &is);
        is &= !*skip(p);
    }
    if (!st)
        st = take_calls(&r, value, is, ret_calls);
    hd_text_free(&r.outside);
    return st;
}

/* Returns the offset of a mark in a text, or of the beginning of one that the end of the text cuts
 * off; text_bytes: there is none. */
static size_t find_call_mark(const char *text, size_t text_bytes, const char *mark)
{
    const size_t n = strlen(mark);

    for (size_t at = 0; at < text_bytes; at++) {
        const size_t left = text_bytes - at;

        if (memcmp(text + at, mark, left < n ? left : n) == 0)
            return at;
    }
    return text_bytes;
}

const char *hd_chat_calls_begin(struct hd_arena *arena, enum hd_call_form form, const char *name)
{
    const char *front = form == HD_CALLS_TAGGED   ? HD_CALL_TAG "\n"
                        : form == HD_CALLS_LISTED ? HD_CALL_MARK "["
                                                  : "";
    const char *arguments = form == HD_CALLS_BARE ? "parameters" : "arguments";
    struct hd_text quoted = {0};
    struct hd_json_writer w = {.out = &quoted};
    const char *text = NULL;

    if (!name)
        return hd_arena_printf(arena, "%s{\"name\": \"", front);
    hd_json_add_string(&w, NULL, name);
    if (!quoted.failed)
        text = hd_arena_printf(arena, "%s{\"name\": %s, \"%s\":", front, quoted.data, arguments);
    hd_text_free(&quoted);
    return text;
}

size_t hd_chat_calls_safe(enum hd_call_form form, const char *text, size_t text_bytes)
{
    size_t at = 0, n, mark;

    if (form != HD_CALLS_BARE) {
        at = find_call_mark(text, text_bytes, form == HD_CALLS_TAGGED ? tag_begin : list_begin);
        while (at && strchr(blanks, text[at - 1])) /* blanks in front of a call are left out */
            at--;
        return at;
    }
    while (at < text_bytes && strchr(blanks, text[at]))
        at++;
    n = text_bytes - at;
    mark = sizeof python_tag - 1;
    return n == 0 || text[at] == '{' || memcmp(text + at, python_tag, n < mark ? n : mark) == 0
               ? 0
               : text_bytes;
}
