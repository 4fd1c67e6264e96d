/* job_tokenizer: the tokenizer of a job, opened at its first use, and the token that ends its
 * documents.
 *
 * Used by: token_cache, job_data, worker.   Uses: tokenizer, job.   Threads: one at a time. */
#ifndef HD_TRAIN_JOB_TOKENIZER_H
#define HD_TRAIN_JOB_TOKENIZER_H

#include <stdint.h>

#include "job/job.h"
#include "tokenizer/special.h"
#include "tokenizer/tokenizer.h"

struct hd_job_tokenizer { /* initialise with {0} */
    struct hd_tokenizer *opened;
    bool resolved;
    struct hd_special special; /* if resolved */
};

/* The tokenizer, owned by `t`. HD_INVALID: model.vocab is smaller than its vocabulary, and the job
 * could have a larger one. Error messages begin with the key. */
enum hd_status hd_job_tokenizer_need(struct hd_job_tokenizer *t, const struct hd_job *job,
                                     const struct hd_tokenizer **ret_tokenizer);

/* The id that ends a document; -1: none. If data.end_of_text is auto it is what the files of the
 * tokenizer and of model.from say (tokenizer/special.h). HD_INVALID: the model has no row for it.
 */
enum hd_status hd_job_tokenizer_end_of_text(struct hd_job_tokenizer *t, const struct hd_job *job,
                                            int64_t *ret_id);

/* Appends lines for people: what those files contradict each other in; that none of them names the
 * token that ends a document, where the job does not either; and tokens without a row. */
enum hd_status hd_job_tokenizer_notes(struct hd_job_tokenizer *t, const struct hd_job *job,
                                      struct hd_text *ret_text);

void hd_job_tokenizer_close(struct hd_job_tokenizer *t);

#endif
