/* drafts: tokens that a generator's decoder drafts for its sequences, and the decision on each.
 *
 *   hd_decoder_run of a token and its drafts --> hd_drafts_decide for each of them --> hd_drafts_run
 *                    ^                                                                      |
 *                    '----------------------- the next drafts ------------------------------'
 *
 * A greedy sequence drafts the likeliest token, and keeps a draft that is the model's likeliest. A
 * sampled one draws drafts with its own settings and keeps each by the rule of speculate.h, so its
 * tokens have the model's distribution; they are others than those of the same seed without drafts.
 *
 * Only for lib/generate. Threads: the generator's. */
#ifndef HD_GENERATE_DRAFTS_H
#define HD_GENERATE_DRAFTS_H

#include "train/decoder.h"
#include "train/sample.h"

struct hd_drafts;

/* Sets *ret_drafts to the drafts of `decoder`, which drafts (hd_decoder_drafts); ids below drawn_max
 * are drafted. */
enum hd_status hd_drafts_new(struct hd_decoder *decoder, int64_t drawn_max,
                             struct hd_drafts **ret_drafts);
void hd_drafts_free(struct hd_drafts *drafts); /* NULL is ignored */

/* Returns the drafted tokens of a slot, to be read behind its last token, and sets *ret_count to their
 * number. */
const int32_t *hd_drafts_of(const struct hd_drafts *drafts, int slot, int *ret_count);
/* Forgets the drafts of a slot, but not the rows that the layer has read. */
void hd_drafts_drop(struct hd_drafts *drafts, int slot);

/* Returns token `index` of a sequence, where `logits` are the model's and draft i of the slot is
 * proposed, and counts whether it is that draft. order: workspace of hd_sample_token. */
int32_t hd_drafts_decide(struct hd_drafts *drafts, int slot, int i, const float *logits,
                         const struct hd_sampling *sampling, uint64_t index, int32_t *order);

/* Returns the number of rows at the beginning of a slot that the layer has read. A row depends on the
 * token behind it, too. */
int64_t hd_drafts_read(const struct hd_drafts *drafts, int slot);
/* Discards the rows of a slot from `rows` on. */
void hd_drafts_discard(struct hd_drafts *drafts, int slot, int64_t rows);

/* A request for drafts of one sequence of the last hd_decoder_run. */
struct hd_draft_request {
    int slot;
    const int32_t *tokens; /* the tokens behind the rows that the sequence keeps of the run */
    int64_t filled;        /* rows before these */
    int64_t count;         /* number of these rows; 0: the sequence does not draft */
    int64_t most;          /* most tokens to draft; 0: reads the rows only */
    const struct hd_sampling *sampling;
    uint64_t index; /* index of the sequence's next token, the first that is drafted */
};

/* Lets the layer read what each sequence of the last hd_decoder_run keeps, in their order, and drafts.
 * A sequence whose earlier rows the layer has not read is left out. */
enum hd_status hd_drafts_run(struct hd_drafts *drafts, const struct hd_draft_request *requests,
                             int count, int32_t *order);

/* Counts since hd_drafts_new. */
struct hd_draft_counts {
    /* drafts on which the model decided, and those that it kept; drafts behind one that is not kept
     * are in neither */
    int64_t drafted, accepted;
};
struct hd_draft_counts hd_drafts_counts(const struct hd_drafts *drafts);

#endif
