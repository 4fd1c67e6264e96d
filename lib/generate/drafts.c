#include "generate/drafts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "generate/speculate.h"

struct hd_drafts {
    struct hd_decoder *decoder;
    struct slot_drafts {
        int64_t read; /* rows that the layer has read */
        int32_t tokens[HD_DECODER_DRAFTS_MAX];
        int count;
        float *weights; /* [most][drawn_max], the distribution of each draft of a sampled sequence;
                           NULL: no sequence in the slot was sampled yet */
    } * slots;
    struct hd_draft_rows *calls; /* [slots] */
    double *weights;             /* [drawn_max], the model's distribution */
    int64_t drawn_max;
    int slot_count, most;
    struct hd_draft_counts counts;
};

enum hd_status hd_drafts_new(struct hd_decoder *decoder, int64_t drawn_max,
                             struct hd_drafts **ret_drafts)
{
    struct hd_drafts *d = calloc(1, sizeof *d);

    if (d) {
        d->decoder = decoder;
        d->drawn_max = drawn_max;
        d->slot_count = hd_decoder_slots(decoder);
        d->most = hd_decoder_drafts(decoder);
        d->slots = calloc((size_t)d->slot_count, sizeof *d->slots);
        d->calls = calloc((size_t)d->slot_count, sizeof *d->calls);
        d->weights = calloc((size_t)drawn_max, sizeof *d->weights);
    }
    if (!d || !d->slots || !d->calls || !d->weights) {
        hd_drafts_free(d);
        return hd_err(HD_NO_MEMORY, "no memory for drafts");
    }
    *ret_drafts = d;
    return HD_OK;
}

void hd_drafts_free(struct hd_drafts *d)
{
    if (!d)
        return;
    for (int i = 0; d->slots && i < d->slot_count; i++)
        free(d->slots[i].weights);
    free(d->slots);
    free(d->calls);
    free(d->weights);
    free(d);
}

const int32_t *hd_drafts_of(const struct hd_drafts *d, int slot, int *ret_count)
{
    *ret_count = d->slots[slot].count;
    return d->slots[slot].tokens;
}

void hd_drafts_drop(struct hd_drafts *d, int slot)
{
    d->slots[slot].count = 0;
}

int64_t hd_drafts_read(const struct hd_drafts *d, int slot)
{
    return d->slots[slot].read;
}

void hd_drafts_discard(struct hd_drafts *d, int slot, int64_t rows)
{
    struct slot_drafts *s = &d->slots[slot];

    s->count = 0;
    s->read = rows < s->read ? rows : s->read;
}

struct hd_draft_counts hd_drafts_counts(const struct hd_drafts *d)
{
    return d->counts;
}

/* ---- deciding ---- */

/* Returns the uniform number of token `index` for one purpose. Numbers of different purposes are
 * independent, so it does not matter that a token is drafted again after an earlier one is refused. */
static double uniform(const struct hd_sampling *s, const char *purpose, uint64_t index)
{
    return hd_random_uniform(hd_random_key(s->seed, hd_random_hash(purpose)), index);
}

int32_t hd_drafts_decide(struct hd_drafts *d, int slot, int i, const float *logits,
                         const struct hd_sampling *sampling, uint64_t index, int32_t *order)
{
    const struct slot_drafts *s = &d->slots[slot];
    int32_t token;

    assert(i < s->count);
    if (sampling->temperature <= 0) {
        token = hd_sample_token(logits, d->drawn_max, sampling, index, order);
    } else {
        hd_sample_weights(logits, d->drawn_max, sampling, order, d->weights);
        token = hd_speculate_token(d->weights, s->weights + i * d->drawn_max, d->drawn_max,
                                   s->tokens[i], uniform(sampling, "accept", index),
                                   uniform(sampling, "refused", index));
    }
    d->counts.drafted++;
    d->counts.accepted += token == s->tokens[i];
    return token;
}

/* ---- drafting ---- */

/* Draws the next draft of a sequence from the layer's logits. Without memory for its distribution the
 * sequence drafts no further. */
static void draw_draft(struct hd_drafts *d, const struct hd_draft_request *r, const float *logits,
                       int32_t *order)
{
    struct slot_drafts *s = &d->slots[r->slot];
    const uint64_t index = r->index + (uint64_t)s->count;
    float *weights;

    if (r->sampling->temperature <= 0) {
        s->tokens[s->count] = hd_sample_token(logits, d->drawn_max, r->sampling, index, order);
        s->count++;
        return;
    }
    if (!s->weights)
        s->weights = calloc((size_t)(d->most * d->drawn_max), sizeof *s->weights);
    if (!s->weights)
        return;
    weights = s->weights + s->count * d->drawn_max;
    hd_sample_weights(logits, d->drawn_max, r->sampling, order, d->weights);
    for (int64_t v = 0; v < d->drawn_max; v++)
        weights[v] = (float)d->weights[v];
    s->tokens[s->count] =
        hd_speculate_draw(weights, d->drawn_max, uniform(r->sampling, "draft", index));
    s->count++;
}

/* Draws draft `round` of each sequence that drafts so many. Returns whether a sequence has got one. */
static enum hd_status draw_drafts(struct hd_drafts *d, const struct hd_draft_request *requests,
                                  int count, int round, int32_t *order, bool *ret_some)
{
    enum hd_status st = HD_OK;

    *ret_some = false;
    for (int i = 0; !st && i < count; i++) {
        const struct hd_draft_request *r = &requests[i];
        const float *logits;

        if (!d->calls[i].count || r->most < round)
            continue;
        st = hd_decoder_draft_logits(d->decoder, i, &logits);
        if (!st)
            draw_draft(d, r, logits, order);
        *ret_some = true;
    }
    return st;
}

/* Lets each sequence that drafts `round` tokens read the draft before that one; its row is overwritten
 * by the next call. */
static enum hd_status continue_drafts(struct hd_drafts *d, const struct hd_draft_request *requests,
                                      int count, int round)
{
    bool some = false;

    for (int i = 0; i < count; i++) {
        const struct hd_draft_request *r = &requests[i];
        const struct slot_drafts *s = &d->slots[r->slot];
        struct hd_draft_rows *call = &d->calls[i];
        const bool drafts = call->count && r->most >= round && s->count == round - 1;

        *call = (struct hd_draft_rows){.from = call->count - 1,
                                       .filled = s->read + round - 2,
                                       .tokens = &s->tokens[drafts ? s->count - 1 : 0],
                                       .count = drafts};
        if (!drafts)
            call->from = 0;
        some |= drafts;
    }
    return some ? hd_decoder_draft(d->decoder, d->calls, count) : HD_OK;
}

enum hd_status hd_drafts_run(struct hd_drafts *d, const struct hd_draft_request *requests,
                             int count, int32_t *order)
{
    bool some = false;
    enum hd_status st;

    for (int i = 0; i < count; i++) {
        const struct hd_draft_request *r = &requests[i];
        struct slot_drafts *s = &d->slots[r->slot];
        const bool drafts = r->count && s->read == r->filled;

        s->count = 0;
        d->calls[i] = (struct hd_draft_rows){
            .filled = r->filled, .tokens = r->tokens, .count = drafts ? r->count : 0};
        s->read += d->calls[i].count;
        some |= drafts;
    }
    if (!some)
        return HD_OK;
    st = hd_decoder_draft(d->decoder, d->calls, count);
    for (int round = 1; !st && some; round++) {
        if (round > 1)
            st = continue_drafts(d, requests, count, round);
        if (!st)
            st = draw_drafts(d, requests, count, round, order, &some);
    }
    return st;
}
