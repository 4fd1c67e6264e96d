/* questions: multiple-choice questions: how a line of a file is read, how a choice becomes token
 * ids, and which choice is the answer. generate/choices.h has the rules.
 *
 * Used by: exam, choices (generate).   Uses: tokenizer, base.   Threads: an encoder is used by one
 * at a time.
 */
#ifndef HD_TRAIN_QUESTIONS_H
#define HD_TRAIN_QUESTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/text.h"
#include "tokenizer/tokenizer.h"

enum { HD_CHOICES_MAX = 64, HD_CHOICES_LINE_BYTES_MAX = 4 << 20 };

/* Encodes whole texts as transformers and lm-evaluation-harness do; the caller opens and closes
 * tokenizer and encoder. */
struct hd_whole_encoder {
    const struct hd_tokenizer *tokenizer;
    struct hd_encoder *encoder;
    int32_t begin; /* token with which a text without a prompt begins; -1: none */
    int64_t vocab; /* rows of the model's embedding */
};
/* Checks that the ids from index `first` on are rows of the embedding. */
enum hd_status hd_whole_encoder_check(const struct hd_whole_encoder *encoder,
                                      const struct hd_id_list *ids, size_t first);
/* Appends the ids of a text, without a special token in front. HD_INVALID: the text cannot be
 * encoded, or one of its tokens is outside the model's vocabulary. */
enum hd_status hd_whole_encoder_plain(const struct hd_whole_encoder *encoder, const char *text,
                                      size_t text_bytes, struct hd_id_list *ids);
/* Encodes like hd_whole_encoder_plain, and adds the special tokens that the tokenizer puts around a
 * text, but none if the text begins with the text of `begin`. */
enum hd_status hd_whole_encoder_add(const struct hd_whole_encoder *encoder, const char *text,
                                    size_t text_bytes, struct hd_id_list *ids);

struct hd_question {
    const char *prompt, *delimiter;
    const char *choices[HD_CHOICES_MAX];
    int count, right; /* number of choices; index of the right one */
};

/* Reads a question from a line of JSON; its texts are in the arena. HD_INVALID: the line is no
 * question, and the message says why. */
enum hd_status hd_question_read(struct hd_arena *arena, const char *line, size_t bytes,
                                struct hd_question *ret_question);
/* Appends the ids of the prompt and of choice `index` to an empty list; *ret_first: index of the
 * choice's first id. context: that of the model. HD_INVALID: the choice has no token of its own, or
 * more than `context`. */
enum hd_status hd_question_encode(const struct hd_whole_encoder *encoder,
                                  const struct hd_question *question, int index, int64_t context,
                                  struct hd_id_list *ids, int64_t *ret_first);

/* Returns the number of characters of a UTF-8 text. */
int32_t hd_question_characters(const char *text);

/* Finds the choice with the largest log-likelihood, and that with the largest one per character;
 * among equal choices the first. */
void hd_question_answer(const double *log_likelihoods, const int32_t *characters, int count,
                        int *ret_best, int *ret_best_norm);

/* Messages about the first wrong lines of a file, as many as an error has room for; initialise with
 * {0}. */
struct hd_question_mistakes {
    struct hd_text text; /* messages with "; " between them */
    int64_t count, left; /* number of wrong lines; number of those that are not in `text` */
};
/* Adds the current error message, about a line of a file. */
void hd_question_mistake(struct hd_question_mistakes *mistakes, const char *file, int64_t line);
/* Returns HD_OK if there are no mistakes, else HD_INVALID with their messages; frees them. */
enum hd_status hd_question_judge(struct hd_question_mistakes *mistakes, int64_t questions);

#endif
