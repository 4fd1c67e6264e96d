/* guard: tells the text of messages from the text of a chat template.
 *
 * A message may spell a special token, such as <|im_end|>, and must not become one. So a guard, a
 * character that is in no message, is put in front of each such spelling before a template renders
 * the messages, and taken out of the text afterwards; its places go to the tokenizer, which makes
 * no special token there (hd_encoder_add_places). The beginning of a spelling at the end of a
 * string has a guard as well, because a template may put two strings together. Roles have none:
 * templates make
 * <|user|> of them.
 *
 * Used by: data, worker.   Uses: base, conversation, template.   Threads: any.
 */
#ifndef HD_CHAT_GUARD_H
#define HD_CHAT_GUARD_H

#include "chat/conversation.h"
#include "chat/template.h"

enum { HD_CHAT_GUARD_BYTES = 3 };

/* Finds the first place >= *at where a text spells what must be guarded. */
typedef bool hd_chat_find_fn(const void *context, const char *text, size_t text_bytes, size_t *at);

struct hd_chat_guard {
    char text[HD_CHAT_GUARD_BYTES + 1]; /* the character; "": nothing had to be guarded */
    size_t *places;                     /* after hd_chat_unguard: bytes of the text, ascending */
    size_t count, capacity;
};

/* Replaces messages, tools, prompt and answer of the conversation by guarded ones, if there is
 * anything to guard. `line`: the text it was read from. HD_INVALID: the text holds every character
 * that could be a guard. */
enum hd_status hd_chat_guard_new(struct hd_arena *arena, const char *line, size_t line_bytes,
                                 hd_chat_find_fn *find, const void *context,
                                 struct hd_conversation *c, struct hd_chat_guard *guard);

/* Takes the guards out of a rendered text, and moves its spans. */
enum hd_status hd_chat_unguard(struct hd_chat_guard *guard, struct hd_template_output *output);
void hd_chat_guard_free(struct hd_chat_guard *guard);

#endif
