/* choices: multiple choice by log-likelihood: which of several texts is the most likely one behind
 * a prompt.
 *
 * A file has a question in each line (JSON):
 *
 *     {"prompt": "The capital of France is", "choices": ["Paris", "Rome"], "answer": 0}
 *
 * answer: the index of the right choice, from 0, or its text. A choice follows the prompt behind a
 * space; "delimiter": another text. Prompt and choice are encoded together, and white space at the
 * end of the prompt, in any script, belongs to the choice, so that words keep their tokens. A
 * question of more than context + 1 tokens loses those at its beginning; the last one is not fed.
 * Log-likelihoods are natural, of the choice's tokens alone.
 *
 *     acc        share of questions whose right choice has the largest log-likelihood
 *     acc_norm   the same with log-likelihoods divided by the characters of the choice
 *
 * These are the rules of lm-evaluation-harness (Gao et al. 2021); of equals the first one is taken.
 *
 * Used by: worker.   Uses: generator, language, base.   Threads: the generator's.
 */
#ifndef HD_GENERATE_CHOICES_H
#define HD_GENERATE_CHOICES_H

#include "generate/generator.h"
#include "generate/language.h"

enum { HD_CHOICES_MAX = 64, HD_CHOICES_LINE_BYTES_MAX = 4 << 20 };

struct hd_choice_answer { /* of one question */
    const char *file;
    int64_t line; /* from 1 */
    int count, right, best, best_norm;
    const double *log_likelihoods; /* [count] */
    bool cut;                      /* too long: the prompt's beginning was left out */
};

struct hd_choices_options {
    const char *const *files;
    size_t file_count;
    int64_t limit; /* the first so many questions of all files; 0: all */
    /* In the order of the files; may be NULL. */
    void (*on_answer)(void *user, const struct hd_choice_answer *answer);
    /* Called often. False: stop with HD_ABORTED. May be NULL. */
    bool (*progress)(void *user, int64_t done);
    void *user;
};

struct hd_choices {
    int64_t questions, cut;
    double acc, acc_norm;
    double acc_error, acc_norm_error; /* standard errors of the means; 0 of one question */
};

/* HD_INVALID: a line is no question, or a choice has no token of its own; the message has file and
 * line of each, as many as it holds, and the first question is asked when none is wrong. */
enum hd_status hd_choices_run(struct hd_generator *generator, const struct hd_decoder *decoder,
                              struct hd_language *language,
                              const struct hd_choices_options *options,
                              struct hd_choices *ret_choices);

#endif
