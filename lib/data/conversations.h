/* conversations: encodes a line of a conversation file to token ids and marks those that count for
 * the loss.
 *
 *     line --read--> messages --guard--> --template--> text and spans --unguard, tokenizer--> ids
 *
 * Special tokens come from the template alone (chat/guard.h); none is added in front of its text: a
 * template that needs a begin-of-text token must write it. A prompt and completion as strings
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

struct hd_conversation_rules { /* the objects pointed to must outlive the encoder */
    const struct hd_tokenizer *tokenizer;
    /* chat template and special tokens; without a template only texts without messages can be
     * encoded */
    const struct hd_chat *chat;
    enum hd_chat_form form;
    const char *roles; /* text of data.roles; NULL: the usual names */
    enum hd_chat_loss loss;
    /* true: a reward model is trained on pairs, and a line with a margin is refused */
    bool rewards;
    int64_t end_of_text; /* id of the end-of-text token; -1: none */
};

struct hd_conversation_encoder;

enum hd_status hd_conversation_encoder_new(const struct hd_conversation_rules *rules,
                                           struct hd_conversation_encoder **ret_encoder);
void hd_conversation_encoder_free(struct hd_conversation_encoder *encoder); /* NULL is fine */

/* Appends the ids of a line, and to `counts` one byte per id: 1 if the token counts for the loss,
 * else 0. Sets *ret_spelled to whether a message contained the text of a special token, which was
 * encoded as ordinary text. HD_INVALID: the line is no conversation of the form, the template
 * refuses it or writes no answer, or no token counts. The message does not name file and line; the
 * caller adds them. After a failure `ids` and `counts` may have some of the line's. */
enum hd_status hd_conversation_encode(struct hd_conversation_encoder *encoder, const char *line,
                                      size_t line_bytes, struct hd_id_list *ids,
                                      struct hd_text *counts, bool *ret_spelled);

/* Appends the ids of a line of the form `preference`, or, by the encoder's rules, `unpaired`, like
 * hd_conversation_encode: two documents, each the prompt with one answer, the chosen one first. Sets
 * *ret_second to the index in `ids` at which the second document begins. The document of an answer
 * that a line of the form `unpaired` lacks has two tokens that do not count. HD_INVALID also if both
 * documents have the same ids. */
enum hd_status hd_conversation_encode_pair(struct hd_conversation_encoder *encoder,
                                           const char *line, size_t line_bytes,
                                           struct hd_id_list *ids, struct hd_text *counts,
                                           size_t *ret_second, bool *ret_spelled);

/* Appends the ids of a whole conversation, {"messages": [..], "tools": [..]}, or text, {"prompt": TEXT,
 * "completion": TEXT}, as the functions above do, but its answer may be empty, and nothing is marked. */
enum hd_status hd_conversation_whole(struct hd_conversation_encoder *encoder, const char *line,
                                     size_t line_bytes, struct hd_id_list *ids);

/* Appends the ids of a prompt that asks for an answer to `messages`, a JSON array as in the form
 * `messages`, or an object with members messages and tools. */
enum hd_status hd_conversation_prompt(struct hd_conversation_encoder *encoder, const char *messages,
                                      size_t messages_bytes, struct hd_id_list *ids);

/* Sets *ret_id to the token that ends an answer: the first special token that the template writes
 * after an answer; -1: it writes none. */
enum hd_status hd_conversation_find_end(struct hd_conversation_encoder *encoder, int32_t *ret_id);

#endif
