/* policy_feed: the packed completions of a step. Only for lib/train. */
#ifndef HD_TRAIN_POLICY_FEED_H
#define HD_TRAIN_POLICY_FEED_H

#include "data/data.h"
#include "train/policy.h"

struct hd_packed_completions; /* completions of the next step, and their windows */

void hd_packed_completions_free(struct hd_packed_completions *packed); /* NULL is fine */

/* Fills samples first .. first + count - 1 of the global batch of the next step. `from` is not used. */
enum hd_status hd_policy_fill(struct hd_trainer *trainer, const void *from, int64_t first,
                              int64_t count, const struct hd_data_batch *ret_batch);

/* Numbers of the step's completions, equal on all ranks. */
struct hd_policy_totals {
    int64_t tokens;  /* rows of all completions */
    int64_t targets; /* tokens that have a loss */
    int64_t terms;   /* terms of the mean that the loss is */
    int64_t dropped; /* tokens without a loss, because a log-probability of theirs is not finite */
};
struct hd_policy_totals hd_policy_count(const struct hd_trainer *trainer);

/* Returns the results of the step from the trainer's block, which step_finish has set. */
struct hd_policy_result hd_policy_read_result(const struct hd_trainer *trainer);

#endif
