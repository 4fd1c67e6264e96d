/* guard: keeps the text of messages from becoming special tokens.
 *
 * A message may contain the text of a special token, such as <|im_end|>, and must not become one.
 * So a guard, a character that occurs in no message, is put in front of each such text before a
 * template renders the messages, and is removed from the rendered text. The offsets of the guards
 * go to the tokenizer, which makes no special token there (hd_encoder_add_places). The beginning of
 * such a text at the end of a string gets a guard as well, because a template may join two strings.
 * Roles get none: templates make special tokens such as <|user|> of them.
 *
 * Used by: data, worker.   Uses: base, conversation, template.   Threads: any.
 */
#ifndef HD_CHAT_GUARD_H
#define HD_CHAT_GUARD_H

#include "chat/conversation.h"
#include "chat/template.h"

enum { HD_CHAT_GUARD_BYTES = 3 };

/* Callback that sets *at to the first offset >= *at at which the text of a special token begins, so
 * that a guard must be put there; false: there is none. */
typedef bool hd_chat_find_fn(const void *context, const char *text, size_t text_bytes, size_t *at);

struct hd_chat_guard {
    char text[HD_CHAT_GUARD_BYTES + 1]; /* guard character; "": no text needs a guard */
    /* set by hd_chat_unguard: offsets in the rendered text, bytes, from which guards were removed,
     * ascending */
    size_t *places;
    size_t count, capacity;
};

/* Puts guards into messages, tools, prompt and answer of the conversation where needed, in copies
 * in the arena. line: the JSON that the conversation was read from. HD_INVALID: `line` has every
 * character that could be a guard. */
enum hd_status hd_chat_guard_new(struct hd_arena *arena, const char *line, size_t line_bytes,
                                 hd_chat_find_fn *find, const void *context,
                                 struct hd_conversation *c, struct hd_chat_guard *guard);

/* Removes the guards from a rendered text, and moves its spans accordingly. */
enum hd_status hd_chat_unguard(struct hd_chat_guard *guard, struct hd_template_output *output);
void hd_chat_guard_free(struct hd_chat_guard *guard);

#endif
