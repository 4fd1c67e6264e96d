/* job_data: opens and checks the training and validation data of a resolved job.
 *
 * Used by: trainer, evaluate, worker.   Uses: data, job.
 * Threads: immutable after hd_job_data_open.
 */
#ifndef HD_TRAIN_JOB_DATA_H
#define HD_TRAIN_JOB_DATA_H

#include <stdbool.h>

#include "base/arena.h"
#include "data/data.h"
#include "data/packing.h"
#include "job/data_stages.h"
#include "job/job.h"
#include "train/token_cache.h"

struct hd_job_data {
    /* files opened for training and for validation; val_corpus NULL: no validation data, or
     * data.val_split takes it from the end of train_corpus */
    struct hd_corpus *train_corpus, *val_corpus;
    /* part of train_corpus to train on: all, except the end that data.val_split reserves for
     * validation */
    struct hd_data_range train;
    /* packing of conversations into windows, for each source of training data; NULL: the source is
     * plain text */
    struct hd_packing *packings[HD_JOB_SOURCES_MAX];
    /* packing of the conversations of each validation set into windows; NULL: the set is plain
     * text */
    struct hd_packing *val_packings[HD_JOB_VAL_SETS_MAX];
    /* all sources of the span; without stages the run's sampler. With stages their weights in it are
     * equal */
    struct hd_sampler sampler;
    /* [stage_count], the stages and their samplers, of which those of the span are open;
     * stage_count 0: the job has none */
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    struct hd_sampler *stage_samplers;
    int64_t stage_count;
    /* [validation_count], the windows of the validation sets, in the order of data.val */
    struct hd_validation validations[HD_JOB_VAL_SETS_MAX];
    int64_t validation_count; /* 0: the job does not validate */
};

/* Opens the files, checks them against the job (sizes, vocabulary, windows), and finds the bounds
 * of documents if data.documents is bounded. tokenizer: the job's; NULL: opened for this call if
 * needed. cache: token files to read instead of text; NULL: none. `arena` is scratch. Error
 * messages begin with the job key. After a failure the caller may, but need not, close ret_data. */
enum hd_status hd_job_data_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                const struct hd_token_cache *cache, struct hd_arena *arena,
                                struct hd_job_data *ret_data);
/* Does the same for the stages of one span of data.stages, where hd_job_data_open takes the first one;
 * the job has the span's sizes (hd_job_at_step). The data have no samples for other steps than the span's. */
enum hd_status hd_job_data_open_span(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                     const struct hd_token_cache *cache,
                                     const struct hd_data_span *span, struct hd_arena *arena,
                                     struct hd_job_data *ret_data);
/* Opens the validation data alone, which the job must have, of one set: the first windows of
 * `context` tokens, at most window_limit (0: all of them). Error messages do not begin with
 * data.val. */
enum hd_status hd_job_data_open_validation(const struct hd_job *job,
                                           struct hd_job_tokenizer *tokenizer,
                                           const struct hd_token_cache *cache, int64_t context,
                                           int64_t window_limit, struct hd_arena *arena,
                                           struct hd_job_data *ret_data);
/* Returns the facts of packing, summed over all sources of conversations; `windows` is 0 if the job
 * has no conversations. */
struct hd_packing_facts hd_job_data_packing(const struct hd_job_data *data);
/* Returns the sampler of a step, counted from 1. */
const struct hd_sampler *hd_job_data_sampler(const struct hd_job_data *data, int64_t step);
/* Returns the number of windows of all validation sets. */
int64_t hd_job_data_validation_windows(const struct hd_job_data *data);
/* Appends a sentence for users about the opened data: files, kinds, tokens, windows, sources,
 * documents; and, of a run of `windows` windows in all, how often it goes over the data. */
void hd_job_data_describe(const struct hd_job_data *data, int64_t windows,
                          struct hd_text *ret_text);
void hd_job_data_close(struct hd_job_data *data);

/* Checks that no data file has changed since it was opened. HD_INVALID or HD_NOT_FOUND: a file has
 * changed or is gone; the message names it. */
enum hd_status hd_job_data_check(const struct hd_job_data *data);

#endif
