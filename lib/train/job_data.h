/* job_data: the data that a resolved job names, opened and checked: what is trained on and what is
 * validated on.
 *
 * Used by: trainer, worker.   Uses: data, link.
 * Threads: immutable after hd_job_data_open.
 */
#ifndef HD_TRAIN_JOB_DATA_H
#define HD_TRAIN_JOB_DATA_H

#include <stdbool.h>

#include "base/arena.h"
#include "data/data.h"
#include "job/job.h"
#include "train/token_cache.h"

struct hd_job_data {
    struct hd_corpus *train_corpus, *val_corpus; /* val_corpus NULL: none of its own */
    struct hd_data_range train;                  /* without what data.split holds back */
    struct hd_sampler sampler;
    struct hd_validation validation;
    bool can_validate;
};

/* Opens the files, checks them against the job (sizes, vocabulary, windows) and bounds documents if
 * the job says so. tokenizer: the job's, NULL: one of this call. cache: read these in place of text
 * (NULL: none). The story of a failure begins with the key. `arena` is scratch. After a failure
 * ret_data may be closed all the same. */
enum hd_status hd_job_data_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                const struct hd_token_cache *cache, struct hd_arena *arena,
                                struct hd_job_data *ret_data);
/* A sentence for people: files, kinds, tokens, windows, sources, documents. */
void hd_job_data_describe(const struct hd_job_data *data, struct hd_text *ret_text);
void hd_job_data_close(struct hd_job_data *data);

/* Are the files still those that were opened? HD_INVALID or HD_NOT_FOUND names one that is not. */
enum hd_status hd_job_data_check(const struct hd_job_data *data);

#endif
