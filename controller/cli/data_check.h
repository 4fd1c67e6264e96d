/* data_check: checks a job's data with heddle-worker, which has the tokenizers. Reading the job
 * file has already opened the token files; these functions check the remaining data.
 *
 * Used by: validate, plan, submit, local, data show.   Uses: process.
 * Threads: one; before other threads are started.
 */
#ifndef HD_CLI_DATA_CHECK_H
#define HD_CLI_DATA_CHECK_H

#include "base/arena.h"
#include "base/json.h"
#include "job/job.h"

/* Counts documents and tokens of every data file of the job. Sets *ret_data to {"tokenizer": {..},
 * "sources": [..]}, in `arena`; leaves it unchanged, with a note on stderr, if heddle-worker is not
 * installed. Returns CLI_CONTINUE, or an exit code after a message on stderr. */
int data_check_files(const struct hd_job *job, struct hd_arena *arena,
                     const struct hd_json **ret_data, struct hd_text *ret_problem);

/* Opens the job's tokenizer.json and compares it with model.vocab, with the messages of
 * data_check_files. Starts no program for the tokenizers `bytes` and `none`. */
int data_check_tokenizer(const struct hd_job *job);

/* If a file that the job names is wrong, data_check_files and data_check_epoch return CLI_USAGE
 * without a message and set ret_problem to "data.train: FILE: ..", for cli_print_problem. */

/* Makes the tokens of an epoch as the ranks will and describes them (heddle-worker samples
 * --facts). Sets *ret_epoch to NULL if heddle-worker is not installed, or the job has neither
 * conversations nor train.epochs. Returns CLI_CONTINUE, or an exit code after a message on stderr.
 */
int data_check_epoch(const struct hd_job *job, struct hd_arena *arena,
                     const struct hd_json **ret_epoch, struct hd_text *ret_problem);
/* Reads the questions of validate.choices, the prompts of validate.samples and, of a job that trains on its own
 * answers, those of data.train as the ranks will
 * (heddle-worker samples --questions), and appends a line about each file to ret_lines; nothing if
 * heddle-worker is not installed. Returns CLI_CONTINUE, or CLI_USAGE as data_check_epoch does, or
 * another exit code after a message. */
int data_check_questions(const struct hd_job *job, struct hd_text *ret_lines,
                         struct hd_text *ret_problem);
/* Returns the number of sequences in an epoch (result of data_check_epoch); 0: unknown. */
int64_t data_check_sequences(const struct hd_json *epoch);
/* Appends lines for people: data forms, conversations, how full the rows are, tokens that count for
 * the loss, steps. */
void data_check_describe(const struct hd_job *job, const struct hd_json *epoch,
                         struct hd_text *out);
/* Prints samples of the job's data by heddle-worker. Returns an exit code. */
int data_check_show(const struct hd_job *job, const char *first, const char *count, bool as_json,
                    bool colour);

#endif
