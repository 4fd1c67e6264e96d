/* render_internal: declarations shared by render.c and answers.c.
 *
 * Used by: the files of lib/chat alone.
 */
#ifndef HD_CHAT_RENDER_INTERNAL_H
#define HD_CHAT_RENDER_INTERNAL_H

#include "chat/render.h"

struct chat_rendering {
    const struct hd_template *t;
    const struct hd_conversation *c;
    const struct hd_template_input *input;
    bool last; /* true: HD_CHAT_LAST is set, so error messages need not advise it */
};

/* Renders the first `count` messages of `list`. prompt: also renders the text that the template
 * writes before an answer. */
enum hd_status chat_render_messages(const struct chat_rendering *r, const struct hd_json *list,
                                    size_t count, bool prompt, struct hd_template_output *output);

/* Sets the range of bytes that the answer messages[index] has in `whole`, the text of all messages.
 * HD_INVALID: the answer cannot be located. */
enum hd_status chat_find_answer(const struct chat_rendering *r, size_t index,
                                const struct hd_text *whole, struct hd_template_span *ret_span);

#endif
