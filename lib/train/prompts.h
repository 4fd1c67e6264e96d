/* prompts: the prompts of validate.samples as token ids, and the tokens that end a sample.
 *
 * A prompt of a job with a chat template is one message of a user, or the messages of a line of the
 * file, and the sample is the answer; else it is a text, encoded as `heddle generate` does, and the
 * sample goes on with it.
 *
 * Used by: samples, worker.   Uses: job_tokenizer, job_chat, questions, stops.   Threads: the
 * trainer's.
 */
#ifndef HD_TRAIN_PROMPTS_H
#define HD_TRAIN_PROMPTS_H

#include "job/sample_prompts.h"
#include "train/job_tokenizer.h"
#include "train/stops.h"

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
