/* conversation: reads one line of a JSONL file of conversations, in the forms that data sets use.
 *
 *   messages    {"messages": [{"role", "content", "weight": 0 or 1, ...}], "tools": [...]}
 *   sharegpt    {"conversations": [{"from": "human", "value": "..."}]}, with "system" beside it
 *   alpaca      {"instruction", "input", "output"}
 *   prompt_completion   {"prompt", "completion"}: two strings, or two lists of messages
 *   text        {"text"}
 *   preference  {"prompt", "chosen", "rejected"}: strings, or lists of messages. "prompt" may also
 *               be called "messages". Without it, the prompt is the messages that both lists share
 *               at their beginning.
 *   unpaired    any form of a conversation with "label": true or false beside it, which says whether
 *               its answer is desirable; or a line of the form preference, whose answers are then one
 *               desirable and one undesirable
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
    X(UNPAIRED, "unpaired")            \
    X(TEXT, "text")

enum hd_chat_form {
#define X(code, name) HD_CHAT_##code,
    HD_CHAT_FORM_LIST(X)
#undef X
};

const char *hd_chat_form_name(enum hd_chat_form form);
/* Sets *ret_form to the form of conversations with this name; returns false if there is none.
 * `preference` and `unpaired` are not found: train.objective says that lines are pairs, or rated. */
bool hd_chat_form_find(const char *name, enum hd_chat_form *ret_form);

/* Conversation of messages or, if messages.count is 0, a text `prompt` and its continuation
 * `answer`. */
struct hd_conversation {
    enum hd_chat_form form;  /* form of the line that the conversation was read from */
    struct hd_json messages; /* JSON array of message objects, each with a string `role` */
    /* [messages.count] whether the message is an answer of the assistant that counts for the
     * loss */
    const bool *counts;
    const struct hd_json *tools; /* JSON list of tools; NULL: none */
    /* text and its continuation; set if there are no messages; prompt: "" in the form text */
    const char *prompt, *answer;
    /* true: the line of a pair has a margin by which the chosen answer is better */
    bool has_margin;
};

/* The two conversations of a line of the form preference. */
enum { HD_CHAT_CHOSEN, HD_CHAT_REJECTED, HD_CHAT_PAIR };

/* Checks the text of data.roles: NAME=ROLE, separated by commas. HD_INVALID otherwise. */
enum hd_status hd_chat_check_roles(const char *roles);

/* Sets *ret from a line of any form but `preference` and `unpaired`. roles: text of data.roles;
 * NULL or "": only the usual names of roles. The strings live in the arena. HD_INVALID: the line is
 * not JSON or not of the form, a message has a wrong role, or an answer is empty or missing; the
 * message names the number of the faulty message. */
enum hd_status hd_conversation_read(struct hd_arena *arena, const char *line, size_t line_bytes,
                                    enum hd_chat_form form, const char *roles,
                                    struct hd_conversation *ret);

/* Makes a conversation from an array of messages to which a model is to answer; no message counts
 * for the loss (`counts` is NULL). HD_INVALID: `messages` is no array. */
enum hd_status hd_conversation_of_messages(struct hd_arena *arena, const struct hd_json *messages,
                                           struct hd_conversation *ret);

/* Reads a line of the form preference as two conversations, each the prompt with one answer; only
 * the answers count for the loss. HD_INVALID as hd_conversation_read, and if an answer is missing
 * or both are equal. */
enum hd_status hd_conversation_read_pair(struct hd_arena *arena, const char *line,
                                         size_t line_bytes, const char *roles,
                                         struct hd_conversation ret_pair[HD_CHAT_PAIR]);

/* Reads a line of the form unpaired. ret_has: which of the two conversations there are: a rated line
 * has one, the chosen if it is desirable. Of several answers of a rated conversation the last counts.
 * HD_INVALID as hd_conversation_read_pair, and without a label. */
enum hd_status hd_conversation_read_unpaired(struct hd_arena *arena, const char *line,
                                             size_t line_bytes, const char *roles,
                                             struct hd_conversation ret_pair[HD_CHAT_PAIR],
                                             bool ret_has[HD_CHAT_PAIR]);

#endif
