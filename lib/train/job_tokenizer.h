/* job_tokenizer: the tokenizer that a job names, opened when it is first asked for, and once.
 *
 * Used by: token_cache, job_data, worker.   Uses: data, link.   Threads: one owner.
 */
#ifndef HD_TRAIN_JOB_TOKENIZER_H
#define HD_TRAIN_JOB_TOKENIZER_H

#include <stdint.h>

#include "job/job.h"
#include "tokenizer/tokenizer.h"

struct hd_job_tokenizer { /* start with {0} */
    struct hd_tokenizer *opened;
};

/* Lives as long as `t`. HD_INVALID when the model knows fewer tokens than there are; the story of a
 * failure begins with the key. */
enum hd_status hd_job_tokenizer_need(struct hd_job_tokenizer *t, const struct hd_job *job,
                                     const struct hd_tokenizer **ret_tokenizer);

/* The id that ends a document: the job's, or the tokenizer's where the job leaves it to that; -1:
 * none. Opens the tokenizer only in the latter case. */
enum hd_status hd_job_tokenizer_end_of_text(struct hd_job_tokenizer *t, const struct hd_job *job,
                                            int64_t *ret_id);

void hd_job_tokenizer_close(struct hd_job_tokenizer *t);

#endif
