/* policy: the completions that a step trains on in place of samples of files (train.objective: grpo).
 *
 *     completions of all ranks --packed by their lengths alone--> windows of the step --fed--> batches
 *
 * A completion is packed whole: its prompt, whose tokens are no targets, then its tokens, all of which
 * are, an end token included. Its last token is never an input, so it takes prompt_count + count - 1 rows.
 * The longest goes first, each into the window with the fewest rows that has room; windows are those of
 * as few micro-batches as suffice, an eighth of the largest step's or a multiple, equally many on each dp
 * rank; the step computes no others. A window that stays empty has no targets.
 * Every rank packs all completions, and so knows every window without asking.
 *
 * Used by: worker, tests.   Uses: train.   Threads: the trainer's.
 */
#ifndef HD_TRAIN_POLICY_H
#define HD_TRAIN_POLICY_H

#include "train/train.h"

struct hd_policy_completion {
    const int32_t *prompt;
    int64_t prompt_count; /* at least 1 */
    const int32_t *ids;   /* [count], the sampled tokens, with the end token */
    int64_t count;
    /* [count], log-probabilities of the tokens when they were sampled, at the job's temperature. A token
     * whose value is not finite has no loss */
    const float *sampled;
    /* [count], log-probabilities under the reference model, at the job's temperature; NULL: none,
     * without train.policy.kl */
    const float *reference;
    float advantage;
    bool masked; /* true: it has no loss and is not counted; it takes no rows */
};

/* Sets the completions that the next hd_trainer_step trains on; the step forgets them. Collective: all
 * ranks give the same. `completions` and the arrays that it points to must live until the step has
 * returned. Without any that is not masked the step has no targets, and changes no weight. HD_INVALID:
 * they do not fit into the windows of a step, or one is longer than a window, has a token outside the
 * vocabulary, or lacks its reference. */
enum hd_status hd_trainer_set_completions(struct hd_trainer *trainer,
                                          const struct hd_policy_completion *completions,
                                          int64_t count);

/* Computes the log-probability of each token of the completions under the present weights, at the job's
 * temperature, by the programs of validation: ret_logp[i] is [count] of completion i, in memory of the
 * caller, untouched if it is masked. `sampled`, `reference` and `advantage` are not read. Collective,
 * between steps; all ranks give the same and get the same. HD_INVALID: as hd_trainer_set_completions.
 * HD_LIMIT: routers sent more rows than parallel.expert_rows allows. HD_UNSUPPORTED: the job has
 * validate.choices, whose programs these are, and a temperature. */
enum hd_status hd_trainer_score_completions(struct hd_trainer *trainer,
                                            const struct hd_policy_completion *completions,
                                            int64_t count, float *const *ret_logp);

/* A text for the reward model, whose reward is that of its last token. */
struct hd_rated_text {
    const int32_t *ids;
    int64_t count; /* 0: no text, and no reward */
};
/* Computes the rewards of texts by the reward model of the job; NaN: there is no text, or it has more tokens
 * than a window of that model. Collective, between steps; all ranks give the same texts and get the same
 * rewards. HD_CORRUPT: a reward is not finite. */
enum hd_status hd_trainer_rate_texts(struct hd_trainer *trainer, const struct hd_rated_text *texts,
                                     int64_t count, float *ret_rewards);

/* Keeps the present weights as the reference of train.policy.kl; does nothing for a job without one. */
enum hd_status hd_trainer_keep_reference(struct hd_trainer *trainer);
/* Computes as hd_trainer_score_completions, but under the weights that hd_trainer_keep_reference kept.
 * After a failure the trainer has those weights, and takes no further step. */
enum hd_status hd_trainer_score_reference(struct hd_trainer *trainer,
                                          const struct hd_policy_completion *completions,
                                          int64_t count, float *const *ret_logp);

#endif
