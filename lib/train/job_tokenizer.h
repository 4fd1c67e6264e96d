/* job_tokenizer: the tokenizer of a job, opened at first use, and the token that ends its
 * documents.
 *
 * Used by: token_cache, job_data, worker.   Uses: tokenizer, job.   Threads: one at a time.
 */
#ifndef HD_TRAIN_JOB_TOKENIZER_H
#define HD_TRAIN_JOB_TOKENIZER_H

#include <stdint.h>

#include "job/job.h"
#include "tokenizer/special.h"
#include "tokenizer/tokenizer.h"

struct hd_job_tokenizer { /* initialise with {0} */
    struct hd_tokenizer *opened;
    bool resolved;
    /* special tokens that the files name; valid once `resolved` is true */
    struct hd_special special;
};

/* Opens the job's tokenizer at the first call and sets *ret_tokenizer to it; `t` owns it.
 * HD_INVALID: model.vocab is smaller than the tokenizer's vocabulary. Error messages begin with the
 * job key. */
enum hd_status hd_job_tokenizer_need(struct hd_job_tokenizer *t, const struct hd_job *job,
                                     const struct hd_tokenizer **ret_tokenizer);

/* Sets *ret_id to the id of the token that ends a document; -1: there is none. If data.end_of_text
 * is auto, the id comes from the files of the tokenizer and of model.from (tokenizer/special.h).
 * HD_INVALID: the id is not below model.vocab. */
enum hd_status hd_job_tokenizer_end_of_text(struct hd_job_tokenizer *t, const struct hd_job *job,
                                            int64_t *ret_id);

/* Sets *ret_special to the special tokens that the files of the tokenizer and of model.from name. */
enum hd_status hd_job_tokenizer_special(struct hd_job_tokenizer *t, const struct hd_job *job,
                                        const struct hd_special **ret_special);

/* Appends lines for users about special tokens: contradictions between the files of the tokenizer
 * and of model.from; a missing end-of-document token, if neither the files nor the job name one;
 * and tokens that are outside the model's vocabulary. */
enum hd_status hd_job_tokenizer_notes(struct hd_job_tokenizer *t, const struct hd_job *job,
                                      struct hd_text *ret_text);

void hd_job_tokenizer_close(struct hd_job_tokenizer *t);

#endif
