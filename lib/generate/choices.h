/* choices: multiple choice by log-likelihood: finds which of several texts is the most likely
 * continuation of a prompt.
 *
 * A file has one question per line (JSON):
 *
 *     {"prompt": "The capital of France is", "choices": ["Paris", "Rome"], "answer": 0}
 *
 * answer: the index of the right choice, from 0, or its text. A choice follows the prompt behind a
 * space; "delimiter" sets another text. Prompt and choice are encoded together, and white space at
 * the end of the prompt, in any script, belongs to the choice, so that words keep their tokens. A
 * question of more than context + 1 tokens is cut at its beginning; its last token is not fed to
 * the model. Log-likelihoods are natural, summed over the choice's tokens alone.
 *
 *     acc        fraction of questions whose right choice has the largest log-likelihood
 *     acc_norm   the same fraction, with log-likelihoods divided by the characters of the choice
 *
 * These are the rules of lm-evaluation-harness (Gao et al. 2021); among equal choices the first one
 * is taken.
 *
 * Used by: worker.   Uses: generator, language, questions (train), base.   Threads: the generator's. */
#ifndef HD_GENERATE_CHOICES_H
#define HD_GENERATE_CHOICES_H

#include "generate/generator.h"
#include "generate/language.h"
#include "train/questions.h"

struct hd_choice_answer { /* Result of one question. */
    const char *file;
    int64_t line; /* line number of the question in its file, from 1 */
    int count, right, best, best_norm;
    const double *log_likelihoods; /* [count] */
    bool cut;                      /* true: the question was too long, and tokens at the beginning
                                      of the prompt were cut */
};

struct hd_choices_options {
    const char *const *files;
    size_t file_count;
    int64_t limit; /* number of questions to run, the first ones of all files; 0: all */
    /* called once per question with its result, in the order of the files; NULL: not called */
    void (*on_answer)(void *user, const struct hd_choice_answer *answer);
    void *user;
};

struct hd_choices {
    int64_t questions, cut;
    double acc, acc_norm;
    double acc_error, acc_norm_error; /* standard errors of the means; 0 with one question */
};

/* Checks all questions, then runs them and sets *ret_choices to the scores. HD_INVALID: a line is
 * not a valid question, or a choice has no token of its own; the message lists file and line of as
 * many mistakes as it can hold. No question is run unless all are valid. */
enum hd_status hd_choices_run(struct hd_generator *generator, const struct hd_decoder *decoder,
                              struct hd_language *language,
                              const struct hd_choices_options *options,
                              struct hd_choices *ret_choices);

#endif
