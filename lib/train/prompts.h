/* prompts: the prompts of validate.samples as token ids, and the tokens that end a sample.
 *
 * A prompt of a job with a chat template is one message of a user, or the messages of a line of the
 * file, and the sample is the answer; else it is a text, encoded as `heddle generate` does, and the
 * sample goes on with it.
 *
 * Used by: samples, prompt_rows, worker.   Uses: job_tokenizer, job_chat, questions, stops.   Threads: the
 * trainer's.
 */
#ifndef HD_TRAIN_PROMPTS_H
#define HD_TRAIN_PROMPTS_H

#include "base/json.h"
#include "job/sample_prompts.h"
#include "train/job_chat.h"
#include "train/job_tokenizer.h"
#include "train/questions.h"
#include "train/stops.h"

/* Encodes prompts of a job, and has the tokens that end what the model writes behind them. */
struct hd_prompt_encoder {
    struct hd_whole_encoder whole;
    struct hd_job_chat chat;
    struct hd_conversation_encoder *conversations; /* NULL: the job has no chat template */
    struct hd_stops stops;
    int32_t end;       /* token behind an answer in the job's data; -1: none */
    int64_t drawn_max; /* ids of the tokenizer's vocabulary */
};
/* Opens the encoder, whose members borrow from `tokenizer`. roles: text of data.roles, or NULL. The
 * caller closes it, also after a failure. */
enum hd_status hd_prompt_encoder_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                      const char *roles, struct hd_prompt_encoder *ret_encoder);
void hd_prompt_encoder_close(struct hd_prompt_encoder *encoder);
/* Appends the ids of a prompt: messages, or, if `messages` is NULL, a text. */
enum hd_status hd_prompt_encode(const struct hd_prompt_encoder *encoder,
                                const struct hd_json *messages, const char *text,
                                struct hd_id_list *ids);
/* Returns the text of the last message; "": it is not a text. */
const char *hd_prompt_last_message(const struct hd_json *messages);

struct hd_prompt {
    char *text; /* for people: the text, or the last message */
    int32_t *ids;
    int64_t count;
};

struct hd_prompts {
    struct hd_prompt list[HD_SAMPLE_PROMPTS_MAX];
    int64_t count; /* 0: the job has no validate.samples */
    struct hd_stops stops;
    int64_t drawn_max; /* ids of the tokenizer's vocabulary */
};

/* Reads and encodes the prompts. tokenizer: the job's; NULL: opened for this call. The caller calls
 * hd_prompts_close, also after a failure. HD_INVALID: a prompt cannot be encoded or is longer than
 * model.context, or the file has changed since the job was submitted; the message names the prompt,
 * or file and line. */
enum hd_status hd_prompts_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                               struct hd_prompts *ret_prompts);
void hd_prompts_close(struct hd_prompts *prompts);

#endif
