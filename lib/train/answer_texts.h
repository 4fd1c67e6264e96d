/* answer_texts: answers with their prompts as token ids for the reward model of a job (train.rewards: {model:
 * ..}), by the template and the tokenizer of that model.
 *
 * A row of messages, or any row of a job whose prompts go through a chat template, becomes a conversation
 * that ends with the answer; another one is the prompt's text and the answer's behind it, and the token that
 * ends a text. So the reward model reads what an answer of a pair of its training was.
 *
 * Used by: worker, tests.   Uses: job_chat, data.   Threads: one at a time.
 */
#ifndef HD_TRAIN_ANSWER_TEXTS_H
#define HD_TRAIN_ANSWER_TEXTS_H

#include "train/job_chat.h"

struct hd_answer_texts { /* initialise with {0} */
    struct hd_arena arena;
    struct hd_job job; /* of the reward model */
    struct hd_job_tokenizer tokenizer;
    struct hd_job_chat chat;
    struct hd_conversation_encoder *encoder;
    bool talks;          /* prompts of texts are messages of a user, too */
    struct hd_text line; /* scratch */
};

/* Opens tokenizer and template of the reward model of `job`. The caller closes it, also after a failure. */
enum hd_status hd_answer_texts_open(const struct hd_job *job, struct hd_answer_texts *ret_texts);
void hd_answer_texts_close(struct hd_answer_texts *texts);

/* Appends the ids of a row (JSON with `prompt` or `messages`) and an answer to it, which may be empty.
 * HD_INVALID: the row has messages, and the reward model no chat template, or that refuses them. */
enum hd_status hd_answer_texts_encode(struct hd_answer_texts *texts, const char *row,
                                      const char *answer, struct hd_id_list *ids);

#endif
