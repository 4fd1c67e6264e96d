/* data_look: what heddle-worker, which has the tokenizers, says of a job's data. Reading the job
 * file has opened the token files; this is about the rest.
 *
 * Used by: validate, submit, local.   Uses: process.
 * Threads: one; before other threads are started.
 */
#ifndef HD_CLI_DATA_LOOK_H
#define HD_CLI_DATA_LOOK_H

#include "base/arena.h"
#include "base/json.h"
#include "job/job.h"

/* Counts documents and tokens of every file. CLI_CONTINUE, or an exit code, with the message on
 * stderr. ret_data: {"tokenizer": {..}, "sources": [..]}, in `arena`; left as it is, with a note on
 * stderr, if heddle-worker is not installed. */
int data_look_at_files(const struct hd_job *job, struct hd_arena *arena,
                       const struct hd_json **ret_data);

/* Opens the tokenizer.json alone and compares it with model.vocab, in the same words. Starts
 * nothing for the tokenizers bytes and none. */
int data_look_at_tokenizer(const struct hd_job *job);

#endif
