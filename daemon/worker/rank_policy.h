/* rank_policy: the first phase of a step that trains on the model's own answers (train.objective:
 * grpo, gkd); the second is hd_trainer_step. With gkd there are no rewards and no numbers of them.
 *
 *     prompts of the step (prompt_rows.h) --hd_trainer_rollout--> answers --rewards--> numbers
 *         --hd_trainer_share--> every rank has all --advantage.h--> hd_trainer_set_completions
 *
 * Invariants:
 *  1. Prompts and seeds are functions of the job and the step, so the answers are functions of these
 *     and of the weights, whatever the order in which they end.
 *  2. A group is rated, and its answers and rewards are recorded (rollout_file.h), by one rank: the
 *     first of the replica group % replicas. An attempt that repeats a step takes what is recorded.
 *  3. All ranks take the same from the files, or nothing: they compare a hash.
 *
 * Used by: rank.   Threads: the rank's.
 */
#ifndef HD_WORKER_RANK_POLICY_H
#define HD_WORKER_RANK_POLICY_H

#include "train/advantage.h"
#include "train/policy.h"
#include "train/rollout_file.h"
#include "worker/rank_rewards.h"

struct rank_policy {
    struct rank_rater rater;
    struct hd_prompt_rows rows;
    char dir[HD_JOB_PATH_MAX]; /* of the files of answers */
    bool unrecorded;           /* the newest file could not be written, as was reported */
    bool unrated;              /* no answer of a step had a reward, as was reported */
    bool empty;                /* no answer of a step had a token, as was reported */

    /* of the newest step of this attempt; until there is one `fresh` is true */
    bool fresh;
    double loss, grad_norm, lr;

    /* answers that the step trains on; they live in `arena`, until the next rollout */
    struct hd_arena arena;
    int64_t rollout;             /* number of the rollout, from 0; -1: none */
    struct rank_answer *answers; /* [count] */
    double *parts;               /* [count, rewards] */
    float *advantages;
    float **references;  /* [count], log-probabilities of the reference; NULL: the job has none */
    double *divergences; /* [count], of each answer from the reference */
    struct hd_policy_completion *completions;
    int64_t count;

    /* of the newest rollout */
    struct hd_reward_numbers numbers;
    double rollout_ms, rewards_ms, reference_ms;
    double kl;            /* mean divergence of a token from the reference when it was drawn */
    int64_t drawn_tokens; /* tokens that were drawn, those of prompts that were replaced included */
    int64_t replaced;     /* prompts that were replaced (resample) */
};

/* Makes the keeper of reward programs on a rank that rates, before rank_lock_in. Does nothing for
 * other jobs, as the functions below. */
enum hd_status rank_policy_begin(struct rank *r);
/* Reads the prompts; the trainer must be open. */
enum hd_status rank_policy_open(struct rank *r);
void rank_policy_close(struct rank *r);

/* Writes and rates the answers of the next step, and sets them. Sets r->stopped on all ranks if one of them
 * is told to stop meanwhile: then there is no step, and what was recorded is read by the next attempt.
 * Collective. */
enum hd_status rank_policy_prepare(struct rank *r);
/* Notes the step's result, and shows numbers and some answers. */
void rank_policy_note(struct rank *r, const struct hd_step_result *s);
/* Sets the metrics of the step's answers. */
void rank_policy_metrics(const struct rank *r, const struct hd_step_result *s,
                         struct hd_step_metrics *metrics);

#endif
