/* job_tokenizer: the tokenizer of a job, opened at its first use.
 *
 * Used by: token_cache, job_data, worker.   Uses: tokenizer, job.   Threads: one at a time. */
#ifndef HD_TRAIN_JOB_TOKENIZER_H
#define HD_TRAIN_JOB_TOKENIZER_H

#include <stdint.h>

#include "job/job.h"
#include "tokenizer/tokenizer.h"

struct hd_job_tokenizer { /* initialise with {0} */
    struct hd_tokenizer *opened;
};

/* The tokenizer, owned by `t`. HD_INVALID: model.vocab is smaller than its vocabulary. Error
 * messages begin with the key. */
enum hd_status hd_job_tokenizer_need(struct hd_job_tokenizer *t, const struct hd_job *job,
                                     const struct hd_tokenizer **ret_tokenizer);

/* The id that ends a document; -1: none. If data.end_of_text is auto it is the tokenizer's, which
 * is then opened. */
enum hd_status hd_job_tokenizer_end_of_text(struct hd_job_tokenizer *t, const struct hd_job *job,
                                            int64_t *ret_id);

void hd_job_tokenizer_close(struct hd_job_tokenizer *t);

#endif
