/* pairs: a token file of preferences, for tests: two answers to each prompt, of which the answers
 * count.
 *
 * Used by: objective_test, the grid of layouts.   Threads: one at a time for each folder.
 */
#ifndef HD_TESTS_TRAIN_PAIRS_H
#define HD_TESTS_TRAIN_PAIRS_H

#include "harness.h"

enum { PAIRS_WINDOW = 24, PAIRS_DOCUMENT_MAX = 16, PAIRS_PATH_MAX = 200 };
enum pairs_side { PAIRS_CHOSEN, PAIRS_REJECTED, PAIRS_BOTH };

/* Tokens of one answer of a pair behind its prompt, and which of them count; returns how many there
 * are. Pair k has a prompt of 2 + k % 3 letters and answers of 3 + k % 4 and 2 + k % 5: together at
 * most 20 tokens, so that a window holds one or two whole pairs. */
int pairs_document(int pair, enum pairs_side side, int32_t ids[PAIRS_DOCUMENT_MAX],
                   char counts[PAIRS_DOCUMENT_MAX]);

/* Writes pairs [first, first + count), or one side of them, into the folder of the test. `path` is
 * the caller's and must live as long as the file is used. The test fails when it cannot be written.
 */
void pairs_write(const struct harness *h, int first, int count, enum pairs_side side,
                 char path[PAIRS_PATH_MAX], struct hd_job_file *ret_file);

/* Removes the log-probabilities of the reference, so that the next run makes its own. */
void pairs_forget_reference(const struct harness *h);

/* Takes a step. Of a job with completions (train.objective: grpo) it is on those of the documents of 12
 * pairs, with advantages and log-probabilities by chance, the same in each step and on every rank. */
enum hd_status pairs_step(struct hd_trainer *t, struct hd_step_result *ret_result);

#endif
