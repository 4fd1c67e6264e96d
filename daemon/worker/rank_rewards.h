/* rank_rewards: rates answers of the model by a list of rewards (job/rewards.h), each group of answers
 * to one prompt on one rank, the first of a replica.
 *
 * Used by: rank_policy, rank_tasks.   Threads: the rank's.
 */
#ifndef HD_WORKER_RANK_REWARDS_H
#define HD_WORKER_RANK_REWARDS_H

#include "train/answer_texts.h"
#include "train/builtin_reward.h"
#include "train/policy.h"
#include "train/prompt_rows.h"
#include "train/rollout.h"
#include "worker/rank_internal.h"
#include "worker/reward_keeper.h"

struct rank_answer {
    struct hd_rollout_sequence *sequence;
    const struct hd_prompt_row *row;
    double reward; /* weighted sum; NaN: a reward could not rate it */
};

struct rank_rater { /* initialise with {0} */
    struct rank *r;
    const char *key; /* of the list of rewards, for messages */
    struct hd_rewards rewards;
    struct hd_builtin_reward *builtins[HD_REWARDS_MAX];
    struct reward_keeper *keeper;       /* NULL: no reward is a program, or another rank rates */
    struct hd_answer_texts model_texts; /* for the reward model, if there is one */
    int64_t too_long;                   /* answers so far that were too long for it */
    struct hd_job_tokenizer tokenizer;
    int64_t group;      /* answers to each prompt */
    int64_t max_tokens; /* most tokens of an answer */
    int64_t replicas;   /* dp x cp */
    bool rates;         /* this rank is the first of its replica */
    bool stopped;       /* all ranks end the rating, as one of them is to stop */
};

/* Reads the rewards of a key, JSON in memory that outlives the rater, and makes the keeper of programs on a
 * rank that rates, before rank_lock_in. group and max_tokens are the caller's. The caller calls
 * rank_rater_close, also after a failure. */
enum hd_status rank_rater_begin(struct rank *r, const char *key, const char *rewards,
                                struct rank_rater *rater);
/* Makes the builtin rewards, and opens what the reward model reads texts with. */
enum hd_status rank_rater_open(struct rank_rater *rater);
void rank_rater_close(struct rank_rater *rater);

/* Returns the rank that rates group `group`; the trainer must be open. */
int64_t rank_rater_of(const struct rank_rater *rater, int64_t group);

/* Rates answers: groups [count] of rater.group answers each; parts [groups, group, rewards]
 * gets the rewards of those groups for which `wanted` says so on this rank. The reward model rates all
 * answers of the call, so that its windows, and their bits, are those of a call of which nothing was recorded.
 * Collective: ranks wait for each other. */
enum hd_status rank_rate(struct rank_rater *rater, const struct rank_answer *answers,
                         int64_t groups, const bool *wanted, double *parts);
/* Gives the rewards of groups `first` .. first + groups - 1 to all ranks, each from the rank that rates it.
 * Collective. */
enum hd_status rank_share_rewards(const struct rank_rater *rater, int64_t first, int64_t groups,
                                  double *parts);
/* Appends the text of an answer, without the token that ends it, as UTF-8. */
enum hd_status rank_answer_text(struct rank_rater *rater, const struct hd_rollout_sequence *answer,
                                struct hd_text *out);

/* Returns whether this rank is to stop, and may: the weights of the start need no checkpoint, and have none.
 * rank: a struct rank. */
bool rank_is_to_stop(void *rank);

#endif
