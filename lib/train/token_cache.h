/* token_cache: a job's text as token files, made once by its ranks.
 *
 * Text that is one token per byte is read as it is. Any other text, and every .jsonl, goes through
 * the tokenizer first, into the folder `tokens` of the job, under a name that is a hash of the
 * file's path, size and time of change, the tokenizer's bytes and the id behind documents: later
 * attempts find it there. The ranks share the files out and wait for each other; a file counts as
 * there when its index is, which comes last and whole. Rank 0 names the files for all, in
 * ATTEMPT_DIR/tokens: on other nodes the same text may have another time of change. Before that it
 * removes what earlier ranks, which were killed, had half made.
 * A rank uses all of its threads for each file.
 *
 * Used by: worker, tests.   Uses: data, link, base.   Threads: one call per rank.
 */
#ifndef HD_TRAIN_TOKEN_CACHE_H
#define HD_TRAIN_TOKEN_CACHE_H

#include <stdbool.h>

#include "base/arena.h"
#include "data/data.h"
#include "job/job.h"
#include "train/job_tokenizer.h"

struct hd_token_cache_watch {
    int rank, world;
    /* Called often while this rank works or waits: a sign of life. false: give up. May be NULL. */
    bool (*alive)(void *context, int64_t done_bytes, int64_t total_bytes);
    void *context;
};

/* What to read in place of the job's lists; same order, same length. */
struct hd_token_cache {
    const struct hd_corpus_file *train, *val;
    int64_t made; /* files that this rank turned into tokens in this call */
};

/* Lives in `arena`. HD_INVALID: a file is not what it was at submission, or is no text. */
enum hd_status hd_token_cache_fill(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                   const struct hd_token_cache_watch *watch, struct hd_arena *arena,
                                   struct hd_token_cache *ret_cache);

#endif
