/* builtin_reward: the rewards that need neither a program nor a model (job/rewards.h).
 *
 * Used by: worker, tests.   Uses: job, base.   Threads: an object belongs to one.
 */
#ifndef HD_TRAIN_BUILTIN_REWARD_H
#define HD_TRAIN_BUILTIN_REWARD_H

#include "job/rewards.h"

struct hd_rated_answer {
    const char *text;           /* UTF-8, without the token that ends it */
    int64_t tokens, max_tokens; /* with that token */
    const struct hd_json *row;  /* the prompt's record */
};

struct hd_builtin_reward;

/* Compiles a builtin. HD_INVALID: its pattern is none. */
enum hd_status hd_builtin_reward_new(const struct hd_reward *reward,
                                     struct hd_builtin_reward **ret_reward);
void hd_builtin_reward_free(struct hd_builtin_reward *reward); /* NULL is fine */

/* Returns the reward of an answer; NaN: the row lacks the field, or it is no number. */
double hd_builtin_reward_rate(const struct hd_builtin_reward *reward,
                              const struct hd_rated_answer *answer);

/* Finds the answer of a text as a number: in the last \boxed{..}, else the last number; commas
 * between digits, a currency sign and blanks in front, and a percent sign behind do not count.
 * Returns false: there is none. */
bool hd_find_last_number(const char *text, double *ret_number);

#endif
