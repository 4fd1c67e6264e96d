/* render: renders a conversation as text, and finds the bytes that count for the loss.
 *
 * A template with {% generation %} marks what the model writes. For other templates, answer i is
 * the difference of two renderings: messages[0..i] minus messages[0..i) with the prompt for an
 * answer. It includes what the template writes after the answer, such as the token that ends it. If
 * these renderings do not begin the whole text, the template rewrites history (it drops earlier
 * thinking, for instance). Then the answer is located by marks (answers.c); if that fails, an error
 * names the answer. With HD_CHAT_LAST only the last answer is located.
 *
 * A template gets the variables that transformers passes: messages, tools and documents (none if
 * missing), add_generation_prompt, and the names of special tokens.
 *
 * Used by: data, worker.   Uses: base.   Threads: as template.
 */
#ifndef HD_CHAT_RENDER_H
#define HD_CHAT_RENDER_H

#include "chat/conversation.h"
#include "chat/template.h"

enum hd_chat_loss {
    HD_CHAT_ANSWERS, /* each answer with `counts` true counts for the loss */
    HD_CHAT_LAST,    /* the last answer with `counts` true counts for the loss */
    HD_CHAT_ALL,     /* the whole text counts for the loss */
};

/* Renders a conversation; output->spans are the bytes that count for the loss. input: further
 * variables (bos_token, eos_token) and the date. t may be NULL for a conversation without messages.
 * HD_INVALID: the template fails, or an answer cannot be located in the text. HD_LIMIT: the text
 * exceeds a limit of the template. */
enum hd_status hd_chat_render(const struct hd_template *t, const struct hd_conversation *c,
                              enum hd_chat_loss loss, const struct hd_template_input *input,
                              struct hd_template_output *output);

/* Renders all messages of a conversation; prompt: also the text that the template writes before an
 * answer to them. */
enum hd_status hd_chat_render_prompt(const struct hd_template *t, const struct hd_conversation *c,
                                     bool prompt, const struct hd_template_input *input,
                                     struct hd_template_output *output);

#endif
