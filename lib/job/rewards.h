/* rewards: the lists train.rewards and validate.tasks.check, which the job stores as JSON:
 *
 *     [{"name":"number","builtin":"number","weight":1,"field":"answer"},
 *      {"name":"judge","program":["/usr/bin/python3","/home/a/judge.py"],"weight":0.5,"timeout":30},
 *      {"name":"model","model":true,"weight":1}]
 *
 * The folder of the reward model, of which train.rewards has at most one, is in the key
 * train.rewards.folder.
 *
 * Used by: spec, train, worker.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_JOB_REWARDS_H
#define HD_JOB_REWARDS_H

#include "base/json.h"
#include "job/job.h"

enum { HD_REWARDS_MAX = 16, HD_REWARD_ARGUMENTS_MAX = 64 };

/* The rewards that need no program: name, and the keys that it has beside name and weight. */
#define HD_REWARD_LIST(X)                                                                         \
    X(EXACT, "exact", "field")   /* 1: the answer's text is the field's, without blanks around */ \
    X(NUMBER, "number", "field") /* 1: the last number of the answer is the field's */            \
    X(REGEX, "regex", "pattern") /* 1: the answer has a match of an extended POSIX pattern */     \
    X(FORMAT, "format", "")      /* 1: <think>..</think> comes once, first, and text behind it */ \
    X(LENGTH, "length", "")      /* tokens of the answer / max_tokens */                          \
    X(OVERLONG, "overlong", "buffer") /* 0, and down to -1 in the last `buffer` tokens (DAPO) */

enum hd_reward_kind {
#define X(code, name, keys) HD_REWARD_##code,
    HD_REWARD_LIST(X)
#undef X
        HD_REWARD_PROGRAM,
    HD_REWARD_MODEL,
};

struct hd_reward { /* the texts live in the arena */
    enum hd_reward_kind kind;
    const char *name;
    double weight;
    const char *field;   /* column of the row with the right answer */
    const char *pattern; /* regex */
    int64_t buffer;      /* overlong: tokens */
    /* program: arguments, NULL behind the last; seconds without any answer before one is given up; limits of
     * it and its children together, 0: none */
    const char *argv[HD_REWARD_ARGUMENTS_MAX + 1];
    double timeout_s;
    int64_t memory_bytes, processes;
    double cpus;
};

struct hd_rewards {
    struct hd_reward list[HD_REWARDS_MAX];
    int64_t count;
};

/* Returns the name of a kind, as in HD_REWARD_LIST. */
const char *hd_reward_kind_name(enum hd_reward_kind kind);
/* Returns whether there is a reward of this name, and sets *ret_kind to it. */
bool hd_reward_kind_find(const char *name, enum hd_reward_kind *ret_kind);
/* Returns the keys of a reward beside name and weight, separated by blanks. */
const char *hd_reward_kind_keys(enum hd_reward_kind kind);

/* Reads a list of the job. key: of the list, for messages. HD_INVALID: the text is no such list; the
 * message names the reward. */
enum hd_status hd_rewards_read(const char *key, const char *text, struct hd_arena *arena,
                               struct hd_rewards *ret_rewards);
/* Returns the weighted sum of an answer's values, one of each reward; NaN if one of them is. */
double hd_rewards_sum(const struct hd_rewards *rewards, const double *values);
/* Returns whether a list as the job has it names a program. */
bool hd_rewards_name_program(const char *text);
/* Returns the index of the first reward of a kind; -1: there is none. */
int64_t hd_rewards_find(const struct hd_rewards *rewards, enum hd_reward_kind kind);

#endif
