/* conversations: a line of a conversation file as token ids, and which of them count for the loss.
 *
 *     line --read--> messages --guard--> --template--> text and spans --unguard, tokenizer--> ids
 *
 * Special tokens come from the template alone (chat/guard.h), and nothing is added in front: a
 * template that wants the token that begins a text writes it. A prompt and completion as strings
 * begin with what the tokenizer's post_processor puts in front of a text, as in TRL. A token counts
 * if it holds a byte of a span (chat/render.h), as transformers marks them. A text without messages
 * (prompt and completion as strings) ends with the tokenizer's end-of-text token, which counts.
 *
 * Used by: tokenize, worker.   Uses: base, chat, tokenizer.   Threads: one encoder per thread.
 */
#ifndef HD_DATA_CONVERSATIONS_H
#define HD_DATA_CONVERSATIONS_H

#include "base/text.h"
#include "chat/model.h"
#include "chat/render.h"
#include "tokenizer/tokenizer.h"

struct hd_conversation_rules { /* the objects outlive their users */
    const struct hd_tokenizer *tokenizer;
    const struct hd_chat *chat; /* without a template: only for texts without messages */
    enum hd_chat_form form;
    enum hd_chat_loss loss;
    bool rewards;        /* of pairs: a reward model trains, whose loss a margin would change */
    int64_t end_of_text; /* -1: none */
};

struct hd_conversation_encoder;

enum hd_status hd_conversation_encoder_new(const struct hd_conversation_rules *rules,
                                           struct hd_conversation_encoder **ret_encoder);
void hd_conversation_encoder_free(struct hd_conversation_encoder *encoder); /* NULL is fine */

/* Appends the ids, and to `counts` a byte for each: 1 if it counts, else 0. ret_spelled: whether a
 * message spelled a special token, which became ordinary text. HD_INVALID: the line is no
 * conversation of the form, the template refuses it or shows no answer, or no token counts; the
 * message names no file and line: the caller does. After a failure both may have a part of it. */
enum hd_status hd_conversation_encode(struct hd_conversation_encoder *encoder, const char *line,
                                      size_t line_bytes, struct hd_id_list *ids,
                                      struct hd_text *counts, bool *ret_spelled);

/* The same of a line of the form `preference`: two documents, each the prompt with an answer,
 * chosen first; ret_second: where in `ids` the other one begins. HD_INVALID also: both are the same
 * ids. */
enum hd_status hd_conversation_encode_pair(struct hd_conversation_encoder *encoder,
                                           const char *line, size_t line_bytes,
                                           struct hd_id_list *ids, struct hd_text *counts,
                                           size_t *ret_second, bool *ret_spelled);

/* The ids of a prompt for an answer to `messages`, an array as in the form `messages`. */
enum hd_status hd_conversation_prompt(struct hd_conversation_encoder *encoder, const char *messages,
                                      size_t messages_bytes, struct hd_id_list *ids);

/* The token that ends an answer: the first special token of the template behind an answer; -1:
 * there is none. */
enum hd_status hd_conversation_find_end(struct hd_conversation_encoder *encoder, int32_t *ret_id);

#endif
