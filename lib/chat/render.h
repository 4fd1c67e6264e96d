/* render: the text of a conversation, and which of its bytes count for the loss.
 *
 * A template with {% generation %} says itself what the model writes. For another one the answer i
 * is what messages[0..i] have more than messages[0..i) with the prompt for an answer: the text of
 * the answer and what the template puts behind it, the token that ends it among that. Where these
 * texts are not beginnings of the whole one, the template rewrites history (it leaves out earlier
 * thoughts, for instance); then the place of the answer in the whole text is found by marks
 * (answers.c), and an error says where that fails. With HD_CHAT_LAST only the last answer is
 * looked for.
 *
 * A template is given what transformers gives it: messages, tools and documents (none where there
 * are none), add_generation_prompt, and the names of special tokens.
 *
 * Used by: data, worker.   Uses: base.   Threads: as template.
 */
#ifndef HD_CHAT_RENDER_H
#define HD_CHAT_RENDER_H

#include "chat/conversation.h"
#include "chat/template.h"

enum hd_chat_loss {
    HD_CHAT_ANSWERS, /* each answer that counts */
    HD_CHAT_LAST,    /* the last one of them */
    HD_CHAT_ALL,     /* the whole text */
};

/* output->spans become the bytes that count. `input` has further variables (bos_token, eos_token)
 * and the clock; t may be NULL for a conversation without messages. HD_INVALID: the template stops
 * with an error, or does not tell where an answer is; HD_LIMIT. */
enum hd_status hd_chat_render(const struct hd_template *t, const struct hd_conversation *c,
                              enum hd_chat_loss loss, const struct hd_template_input *input,
                              struct hd_template_output *output);

/* The text of all messages; prompt: and what the template writes in front of an answer to them. */
enum hd_status hd_chat_render_prompt(const struct hd_template *t, const struct hd_conversation *c,
                                     bool prompt, const struct hd_template_input *input,
                                     struct hd_template_output *output);

#endif
