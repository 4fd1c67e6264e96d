/* turns: makes the messages that chat templates know of the turns of a record, tool calls and their
 * results among them.
 *
 * Used by: conversation.   Uses: base, calls, columns. */
#ifndef HD_CHAT_TURNS_H
#define HD_CHAT_TURNS_H

#include "chat/calls.h"

/* A line that is being read. */
struct chat_reading {
    struct hd_arena *arena; /* memory of the conversation */
    const char *roles;      /* text of data.roles; NULL: the usual names alone */
    /* true: the record has tools, so calls and results in tags, as Hermes writes them, are read */
    bool has_tools;
    /* calls in the messages so far, and how many of them have a result */
    size_t call_count, result_count;
};

/* Appends a copy of a value to an object or list of which *last is the last child; NULL: no memory. */
struct hd_json *chat_append(struct hd_arena *arena, struct hd_json *parent, struct hd_json **last,
                            const struct hd_json *value);
/* Adds a message to a list. weight NULL: none. */
enum hd_status chat_add_message(struct hd_arena *arena, struct hd_json *list, struct hd_json **last,
                                const char *role, const char *content,
                                const struct hd_json *weight);
/* Adds an assistant's message with tool calls. weight NULL: none. */
enum hd_status chat_add_calls(struct chat_reading *r, struct hd_json *list, struct hd_json **last,
                              const struct hd_chat_calls *calls, const struct hd_json *weight);
/* Adds a turn as the messages that chat templates know: a function_call, or a call in the tags of
 * Hermes, as tool_calls; an observation or tool as a result. A function_call whose value is no call
 * is an ordinary answer, as is one to which data.roles gives a role. */
enum hd_status chat_add_turn(struct chat_reading *r, const char *from, const char *value,
                             const struct hd_json *weight, struct hd_json *list,
                             struct hd_json **last);

#endif
