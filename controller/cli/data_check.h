/* data_look: what heddle-worker, which has the tokenizers, says of a job's data. Reading the job
 * file has opened the token files; this is about the rest.
 *
 * Used by: validate, plan, submit, local, data show.   Uses: process.
 * Threads: one; before other threads are started.
 */
#ifndef HD_CLI_DATA_CHECK_H
#define HD_CLI_DATA_CHECK_H

#include "base/arena.h"
#include "base/json.h"
#include "job/job.h"

/* Counts documents and tokens of every file. CLI_CONTINUE, or an exit code, with the message on
 * stderr. ret_data: {"tokenizer": {..}, "sources": [..]}, in `arena`; left as it is, with a note on
 * stderr, if heddle-worker is not installed. */
int data_check_files(const struct hd_job *job, struct hd_arena *arena,
                     const struct hd_json **ret_data, struct hd_text *ret_problem);

/* Opens the tokenizer.json alone and compares it with model.vocab, in the same words. Starts
 * nothing for the tokenizers bytes and none. */
int data_check_tokenizer(const struct hd_job *job);

/* data_check_files and data_check_epoch: a file that the job names is wrong: CLI_USAGE, no
 * message yet, and ret_problem is "data.train: FILE: ..", for cli_print_problem. */

/* Makes the tokens of an epoch as the ranks will and says what it has (heddle-worker samples
 * --facts); *ret_epoch NULL: heddle-worker is not installed, or there are neither conversations nor
 * train.epochs. CLI_CONTINUE, or an exit code with the message on stderr. */
int data_check_epoch(const struct hd_job *job, struct hd_arena *arena,
                     const struct hd_json **ret_epoch, struct hd_text *ret_problem);
/* The sequences of an epoch; 0: not known. */
int64_t data_check_sequences(const struct hd_json *epoch);
/* Appends lines for people: forms, conversations, rows filled, tokens that count, steps. */
void data_check_describe(const struct hd_job *job, const struct hd_json *epoch,
                         struct hd_text *out);
/* Samples of the job, printed by heddle-worker. An exit code. */
int data_check_show(const struct hd_job *job, const char *first, const char *count, bool as_json,
                    bool colour);

#endif
