/* token_cache: tokenizes a job's text files once and caches the token files.
 *
 * Text with one token per byte is read directly. Other text, and every .jsonl, is tokenized into
 * the folder `tokens` of the job. A token file's name is a hash of the text file's path, size and
 * time of modification, the tokenizer's bytes, the end-of-text id, and for records of all settings
 * for conversations (job_chat.h), data.columns, data.roles and data.bad_rows, so that later
 * attempts reuse it. Each rank tokenizes a part of the files with all its threads, then waits for
 * the others. A token file is complete when its index exists, because the index is written last and
 * atomically.
 *
 * Rank 0 computes the names and writes them to a file in the same folder, because the time of
 * modification may differ on other nodes. Before that it removes partial files of killed ranks.
 *
 * Used by: worker, tests.   Uses: data, tokenizer, job, base.   Threads: one call per rank.
 */
#ifndef HD_TRAIN_TOKEN_CACHE_H
#define HD_TRAIN_TOKEN_CACHE_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/text.h"
#include "data/bad_rows.h"
#include "data/data.h"
#include "job/job.h"
#include "train/job_tokenizer.h"

struct hd_token_cache_watch {
    int rank, world;
    /* Callback, called often while this rank tokenizes or waits, to report that the rank is alive.
     * It returns false to stop with HD_ABORTED. May be NULL. */
    bool (*alive)(void *context, int64_t done_bytes, int64_t total_bytes);
    void *context;
    /* Collects the records that cannot be used. Where these are an error, it comes only after
     * HD_BAD_ROWS_SHOWN of them or at the end of a file. NULL: the first such record is the
     * error. */
    struct hd_bad_rows *bad;
};

/* Token files to read instead of the job's text files, in the same order and number. NULL: no file
 * of the list needs tokenizing. */
struct hd_token_cache {
    const struct hd_corpus_file *train, *val;
    int64_t made;         /* number of files that this rank tokenized in this hd_token_cache_fill */
    uint32_t train_forms; /* a bit for each enum hd_chat_form of those training files that have
                             records */
    /* conversations in the files that this rank tokenized whose text contains the spelling of a
     * special token */
    int64_t spelled;
    /* records in these files, and those that data.bad_rows leaves out; watch.bad has them if it is
     * given */
    int64_t records, left_out;
    char first_left_out[256]; /* first of them: FILE:ROW: REASON */
};

/* Tokenizes those of the job's files that need it and have no token file yet, and waits for the
 * other ranks. The result lives in `arena`. HD_INVALID: a file has changed since submission, or is
 * not text. */
enum hd_status hd_token_cache_fill(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                   const struct hd_token_cache_watch *watch, struct hd_arena *arena,
                                   struct hd_token_cache *ret_cache);

/* Appends JOB_DIR/tokens and `suffix`, such as "/reference"; JOB_DIR is the parent of the attempt's
 * folder. */
enum hd_status hd_token_cache_add_path(const struct hd_job *job, const char *suffix,
                                       struct hd_text *ret_path);

#endif
