#include "chat/turns.h"

#include <string.h>

#include "chat/columns.h"

struct hd_json *chat_append(struct hd_arena *arena, struct hd_json *parent, struct hd_json **last,
                            const struct hd_json *value)
{
    struct hd_json *copy = hd_arena_alloc(arena, sizeof *copy);

    if (!copy)
        return NULL;
    *copy = *value;
    copy->next = NULL;
    if (*last)
        (*last)->next = copy;
    else
        parent->first = copy;
    *last = copy;
    parent->count++;
    return copy;
}

enum hd_status chat_add_message(struct hd_arena *arena, struct hd_json *list, struct hd_json **last,
                                const char *role, const char *content, const struct hd_json *weight)
{
    const struct hd_json empty = {.kind = HD_JSON_OBJECT};
    const struct hd_json a = {.kind = HD_JSON_STRING, .key = "role", .text = role};
    const struct hd_json b = {.kind = HD_JSON_STRING, .key = "content", .text = content};
    struct hd_json *message = chat_append(arena, list, last, &empty), *member = NULL;

    if (!message || !chat_append(arena, message, &member, &a) ||
        !chat_append(arena, message, &member, &b) ||
        (weight && !chat_append(arena, message, &member, weight)))
        return hd_err(HD_NO_MEMORY, "no memory for a conversation");
    return HD_OK;
}

/* Adds a member with a string to an object of which *last is the last member. */
static bool add_string(struct chat_reading *r, struct hd_json *object, struct hd_json **last,
                       const char *key, const char *text)
{
    const struct hd_json value = {.kind = HD_JSON_STRING, .key = key, .text = text};

    return text && chat_append(r->arena, object, last, &value);
}

/* Adds a call to the list tool_calls of a message. Its id has nine characters, as Mistral's
 * templates ask for. */
static bool add_tool_call(struct chat_reading *r, const struct hd_chat_call *call,
                          struct hd_json *calls, struct hd_json **last)
{
    const struct hd_json empty = {.kind = HD_JSON_OBJECT};
    const struct hd_json function = {.kind = HD_JSON_OBJECT, .key = "function"};
    struct hd_json *item = chat_append(r->arena, calls, last, &empty), *member = NULL,
                   *inner = NULL;
    struct hd_json arguments = *call->arguments, *described;

    arguments.key = "arguments";
    return item &&
           add_string(r, item, &member, "id",
                      hd_arena_printf(r->arena, "call%05zu", r->call_count++ % 100000)) &&
           add_string(r, item, &member, "type", "function") &&
           (described = chat_append(r->arena, item, &member, &function)) &&
           add_string(r, described, &inner, "name", call->name) &&
           chat_append(r->arena, described, &inner, &arguments);
}

enum hd_status chat_add_calls(struct chat_reading *r, struct hd_json *list, struct hd_json **last,
                              const struct hd_chat_calls *calls, const struct hd_json *weight)
{
    const struct hd_json array = {.kind = HD_JSON_ARRAY, .key = "tool_calls"};
    struct hd_json *message, *member, *all, *item = NULL;
    enum hd_status st = chat_add_message(r->arena, list, last, "assistant", calls->content, NULL);

    if (st)
        return st;
    message = *last;
    member = (struct hd_json *)hd_json_member(message, "content");
    all = chat_append(r->arena, message, &member, &array);
    for (size_t i = 0; all && i < calls->count; i++)
        if (!add_tool_call(r, &calls->calls[i], all, &item))
            return hd_err(HD_NO_MEMORY, "no memory for a conversation");
    return !all || (weight && !chat_append(r->arena, message, &member, weight))
               ? hd_err(HD_NO_MEMORY, "no memory for a conversation")
               : HD_OK;
}

/* Adds a tool's message; it answers the next call that has no result yet. */
static enum hd_status add_result(struct chat_reading *r, struct hd_json *list,
                                 struct hd_json **last, const char *content)
{
    struct hd_json *member;
    enum hd_status st = chat_add_message(r->arena, list, last, "tool", content, NULL);

    if (st || r->result_count >= r->call_count)
        return st;
    member = (struct hd_json *)hd_json_member(*last, "content");
    return add_string(r, *last, &member, "tool_call_id",
                      hd_arena_printf(r->arena, "call%05zu", r->result_count++ % 100000))
               ? HD_OK
               : hd_err(HD_NO_MEMORY, "no memory for a conversation");
}

/* Adds the results in a tool's turn: each text in <tool_response> of Hermes is one, if the record
 * has tools; else the turn is. */
static enum hd_status add_results(struct chat_reading *r, struct hd_json *list,
                                  struct hd_json **last, const char *value)
{
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    const char *p = value + strspn(value, " \t\r\n"), *stop;
    enum hd_status st = HD_OK;

    if (!r->has_tools || !hd_text_starts(p, begin))
        return add_result(r, list, last, value);
    for (const char *q = p; *q;
         q = stop + sizeof end - 1 + strspn(stop + sizeof end - 1, " \t\r\n"))
        if (!hd_text_starts(q, begin) || !(stop = strstr(q, end)))
            return add_result(r, list, last, value); /* the tags are not whole */
    while (!st && *p) {
        const char *text;
        size_t n;

        p += sizeof begin - 1;
        p += *p == '\n';
        stop = strstr(p, end);
        n = (size_t)(stop - p);
        n -= n && p[n - 1] == '\n';
        text = hd_arena_printf(r->arena, "%.*s", (int)n, p);
        st = text ? add_result(r, list, last, text)
                  : hd_err(HD_NO_MEMORY, "no memory for a conversation");
        p = stop + sizeof end - 1;
        p += strspn(p, " \t\r\n");
    }
    return st;
}

enum hd_status chat_add_turn(struct chat_reading *r, const char *from, const char *value,
                             const struct hd_json *weight, struct hd_json *list,
                             struct hd_json **last)
{
    const char *role = chat_columns_role(r->roles, from);
    struct hd_chat_calls calls = {.count = 0};
    enum hd_status st = HD_OK;

    if (chat_columns_is_call(r->roles, from))
        st = hd_chat_calls_of_value(r->arena, value, &calls);
    else if (r->has_tools && strcmp(role, "assistant") == 0)
        st = hd_chat_calls_find(r->arena, HD_CALLS_TAGGED, value, NULL, &calls);
    if (st)
        return st;
    if (calls.count)
        return chat_add_calls(r, list, last, &calls, weight);
    r->result_count = strcmp(role, "tool") == 0 ? r->result_count : r->call_count;
    return strcmp(role, "tool") == 0 ? add_results(r, list, last, value)
                                     : chat_add_message(r->arena, list, last, role, value, weight);
}
