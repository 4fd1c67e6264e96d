/* conversation: reads one line of a file of conversations (JSONL) in the forms that people publish.
 *
 *   messages    {"messages": [{"role", "content", "weight": 0 or 1, ...}], "tools": [...]}
 *   sharegpt    {"conversations": [{"from": "human", "value": "..."}]}, with "system" beside it
 *   alpaca      {"instruction", "input", "output"}
 *   prompt_completion   {"prompt", "completion"}: two strings, or two lists of messages
 *   text        {"text"}
 *   preference  {"prompt", "chosen", "rejected"}: strings, or lists of messages. "prompt" may also
 *               be called "messages". Without it, the prompt is the messages that both lists share
 *               at their beginning.
 *
 * Used by: chat, data, spec.   Uses: base.   Threads: a conversation is immutable; its arena has
 * one owner.
 */
#ifndef HD_CHAT_CONVERSATION_H
#define HD_CHAT_CONVERSATION_H

#include "base/json.h"

#define HD_CHAT_FORM_LIST(X)           \
    X(AUTO, "auto")                    \
    X(MESSAGES, "messages")            \
    X(SHAREGPT, "sharegpt")            \
    X(ALPACA, "alpaca")                \
    X(COMPLETION, "prompt_completion") \
    X(PREFERENCE, "preference")        \
    X(TEXT, "text")

enum hd_chat_form {
#define X(code, name) HD_CHAT_##code,
    HD_CHAT_FORM_LIST(X)
#undef X
};

const char *hd_chat_form_name(enum hd_chat_form form);
/* false: there is none. Not `preference`: train.objective says that lines are pairs. */
bool hd_chat_form_find(const char *name, enum hd_chat_form *ret_form);

/* Either messages, or (messages.count 0) the text `prompt` and what follows it, `answer`. */
struct hd_conversation {
    enum hd_chat_form form;      /* what was found */
    struct hd_json messages;     /* an array of objects with a string `role` */
    const bool *counts;          /* by message: an answer of the assistant that is to be learned */
    const struct hd_json *tools; /* or NULL */
    const char *prompt, *answer; /* prompt: "" for the form text */
    bool has_margin;             /* of a pair: the line says by how much the chosen one is better */
};

/* A line of the form preference has two. */
enum { HD_CHAT_CHOSEN, HD_CHAT_REJECTED, HD_CHAT_PAIR };

/* A line of any form but `preference`. The strings live in the arena. HD_INVALID: the line is not
 * JSON, not of the form, has a wrong role, or has an empty answer or none; the message says which
 * message it was. */
enum hd_status hd_conversation_read(struct hd_arena *arena, const char *line, size_t line_bytes,
                                    enum hd_chat_form form, struct hd_conversation *ret);

/* Makes a conversation of an array of messages that waits for an answer; no message counts
 * (`counts` is NULL). HD_INVALID: it is no array. */
enum hd_status hd_conversation_of_messages(struct hd_arena *arena, const struct hd_json *messages,
                                           struct hd_conversation *ret);

/* The two conversations of a line of the form preference, with the prompt in both; only the answers
 * count. HD_INVALID also: an answer is missing, or both are the same. */
enum hd_status hd_conversation_read_pair(struct hd_arena *arena, const char *line,
                                         size_t line_bytes,
                                         struct hd_conversation ret_pair[HD_CHAT_PAIR]);

#endif
