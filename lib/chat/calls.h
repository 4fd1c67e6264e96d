/* calls: tool calls as text: finds those that a model writes, and reads those of data sets.
 *
 *   tagged   <tool_call>{"name": .., "arguments": {..}}</tool_call>, of Hermes and Qwen; several
 *   listed   [TOOL_CALLS][{"name": .., "arguments": {..}}], of Mistral, also [TOOL_CALLS]NAME[ARGS]{..}
 *   bare     {"name": .., "parameters": {..}} as the whole answer, of Llama 3; several with ';'
 *
 * The form is the one that the model's chat template writes. A text in which anything looks like a
 * call and is none has no calls: it stays text, as a whole.
 *
 * Used by: conversation, generate, serve.   Uses: base, template.   Threads: pure.
 */
#ifndef HD_CHAT_CALLS_H
#define HD_CHAT_CALLS_H

#include "chat/model.h"

#define HD_CALL_TAG     "<tool_call>"
#define HD_CALL_TAG_END "</tool_call>"
#define HD_CALL_MARK    "[TOOL_CALLS]"

enum hd_call_form { HD_CALLS_TAGGED, HD_CALLS_LISTED, HD_CALLS_BARE };

struct hd_chat_call {
    const char *name;
    const struct hd_json *arguments; /* JSON object */
};

struct hd_chat_calls {
    const char *content; /* text outside the calls, without spaces around it; "": none */
    const struct hd_chat_call *calls;
    size_t count; /* 0: the text has no calls, and `content` is the text as it is */
};

/* Finds the calls in a text, which may have no NUL. tools: JSON list of the tools of which calls may
 * be; NULL: any. HD_NO_MEMORY. */
enum hd_status hd_chat_calls_find(struct hd_arena *arena, enum hd_call_form form, const char *text,
                                  const struct hd_json *tools, struct hd_chat_calls *ret_calls);
/* Reads the value of a turn `function_call` of a data set: a call or a list of calls as JSON, also
 * tagged, behind thoughts in <think> or not. */
enum hd_status hd_chat_calls_of_value(struct hd_arena *arena, const char *value,
                                      struct hd_chat_calls *ret_calls);
/* Returns the text with which a call begins, in the arena: up to the arguments of the tool `name`; NULL:
 * up to the name of a tool. NULL: no memory. */
const char *hd_chat_calls_begin(struct hd_arena *arena, enum hd_call_form form, const char *name);
/* Returns how many bytes at the beginning of an unfinished text belong to no call, whatever
 * follows; a stream may send these. */
size_t hd_chat_calls_safe(enum hd_call_form form, const char *text, size_t text_bytes);

/* ---- call_form.c ---- */

/* Sets *ret_form to the form in which the chat template writes calls. HD_UNSUPPORTED: it takes no
 * tools, or writes calls in another form; the message says which. */
enum hd_status hd_chat_calls_form(const struct hd_chat *chat, enum hd_call_form *ret_form);

#endif
