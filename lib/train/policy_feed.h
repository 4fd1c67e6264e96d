/* policy_feed: the packed completions of a step. Only for lib/train. */
#ifndef HD_TRAIN_POLICY_FEED_H
#define HD_TRAIN_POLICY_FEED_H

#include "data/data.h"
#include "train/policy.h"

/* Numbers of a step's completions, equal on all ranks. */
struct hd_policy_totals {
    int64_t tokens;  /* rows of all completions */
    int64_t targets; /* tokens that have a loss */
    int64_t terms;   /* terms of the mean that the loss is */
    int64_t dropped; /* tokens without a loss, because a log-probability of theirs is not finite */
};

/* Completions and their windows. */
struct hd_packed_completions {
    const struct hd_policy_completion *all; /* the caller's */
    bool scores; /* true: log-probabilities are wanted, of all tokens; false: a step is to train */
    bool has_reference;
    int64_t micro_batches; /* micro-batches of each rank in the step */
    int64_t windows;       /* windows of these micro-batches on all dp ranks */
    struct hd_policy_totals totals;
    int64_t *begins; /* [windows + 1], index in `order` of a window's first completion */
    int64_t *order;  /* indices of completions, window after window */
};

/* Packs completions (policy.h). scores: as above. */
enum hd_status hd_policy_pack(const struct hd_trainer *trainer,
                              const struct hd_policy_completion *completions, int64_t count,
                              bool scores, struct hd_packed_completions **ret_packed);
void hd_packed_completions_free(struct hd_packed_completions *packed); /* NULL is fine */

/* Returns the number of rows that a completion takes; its first token is the target of row
 * prompt_count - 1. */
static inline int64_t hd_policy_rows(const struct hd_policy_completion *c)
{
    return c->prompt_count + c->count - 1;
}

/* Fills windows first .. first + count - 1; `packed` is a struct hd_packed_completions. Windows behind its
 * last one are empty. */
enum hd_status hd_policy_fill_windows(struct hd_trainer *trainer, const void *packed, int64_t first,
                                      int64_t count, const struct hd_data_batch *ret_batch);

/* Fills samples first .. first + count - 1 of the global batch of the next step. `from` is not used. */
enum hd_status hd_policy_fill(struct hd_trainer *trainer, const void *from, int64_t first,
                              int64_t count, const struct hd_data_batch *ret_batch);

/* Returns the numbers of the next step. */
struct hd_policy_totals hd_policy_count(const struct hd_trainer *trainer);

/* Returns the results of the step from the trainer's block, which step_finish has set. */
struct hd_policy_result hd_policy_read_result(const struct hd_trainer *trainer);

#endif
