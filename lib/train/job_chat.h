/* job_chat: the chat template of a job, opened at first use, and the rules that turn its
 * conversations into tokens.
 *
 * Used by: token_cache, worker.   Uses: chat, data, job, job_tokenizer.   Threads: one at a time.
 */
#ifndef HD_TRAIN_JOB_CHAT_H
#define HD_TRAIN_JOB_CHAT_H

#include "data/conversations.h"
#include "train/job_tokenizer.h"

struct hd_job_chat { /* initialise with {0} */
    struct hd_chat *opened;
};

/* Sets *ret_rules to the rules that turn conversations of a file of `form` into tokens; the rules
 * borrow from `c` and `tokenizer`. Error messages begin with the job key. */
enum hd_status hd_job_chat_rules(struct hd_job_chat *c, struct hd_job_tokenizer *tokenizer,
                                 const struct hd_job *job, enum hd_chat_form form,
                                 struct hd_conversation_rules *ret_rules);
void hd_job_chat_close(struct hd_job_chat *c);

/* Returns how the job's records are read; borrows from the job. */
struct hd_row_rules hd_job_rows(const struct hd_job *job);
/* Sets *ret_form to the form of a data file's lines; HD_CHAT_TEXT if they are not conversations. */
enum hd_status hd_job_form(const struct hd_job *job, const char *path, enum hd_chat_form *ret_form);

#endif
