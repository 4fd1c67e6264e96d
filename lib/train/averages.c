/* averages: lets the programs compute with the moving averages of the weights (train.ema) in place of
 * the weights, between two steps.
 *
 *     weights --hd_trainer_take_averages(true)--> averages --validation--> the same losses of them
 *             <--hd_trainer_take_averages(false)--
 *
 * A bucket whose compute copies are memory of their own gets copies of its averages; the masters stay.
 * Where programs read the masters themselves (fp32), masters and averages change places, element by
 * element, so that a second exchange restores both bit for bit. Neither takes memory of the plan. While
 * the averages are taken there may be no step and no save.
 */
#include <stdlib.h>
#include <string.h>

#include "train/offload.h"
#include "train/trainer.h"

/* Lets `count` elements at two addresses change places, through `pieces`, two pieces of
 * HD_LOCAL_SHARD_CHUNK. */
static enum hd_status swap(struct hd_trainer *t, char *a, char *b, int64_t count, float *pieces)
{
    const int64_t size = (int64_t)sizeof *pieces;
    float *const other = pieces + HD_LOCAL_SHARD_CHUNK;
    enum hd_status st = HD_OK;

    for (int64_t at = 0, n; !st && at < count; at += n) {
        n = count - at < HD_LOCAL_SHARD_CHUNK ? count - at : HD_LOCAL_SHARD_CHUNK;
        st = hd_staging_read(&t->staging, pieces, a + at * size, n * size);
        if (!st)
            st = hd_staging_read(&t->staging, other, b + at * size, n * size);
        if (!st)
            st = hd_staging_write(&t->staging, a + at * size, other, n * size);
        if (!st)
            st = hd_staging_write(&t->staging, b + at * size, pieces, n * size);
    }
    return st;
}

static enum hd_status swap_bucket(struct hd_trainer *t, const struct hd_bucket *p, float *pieces)
{
    char *const weights =
        hd_trainer_state(t, p, HD_STATE_WEIGHT) +
        (p->shard_begin - hd_bucket_base(p, HD_STATE_WEIGHT)) * (int64_t)sizeof(float);

    return swap(t, weights, hd_trainer_state(t, p, HD_STATE_EMA), p->shard_end - p->shard_begin,
                pieces);
}

enum hd_status hd_trainer_take_averages(struct hd_trainer *t, bool take)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const enum hd_state_kind kind = take ? HD_STATE_EMA : HD_STATE_WEIGHT;
    float *pieces = calloc(2 * HD_LOCAL_SHARD_CHUNK, sizeof *pieces);
    enum hd_status st =
        pieces ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to validate the averages of weights");

    for (int i = 0; !st && i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];

        if (p->offset[HD_STATE_EMA] < 0)
            continue;
        if (!p->copied)
            st = swap_bucket(t, p, pieces);
        if (!st)
            st = hd_trainer_refresh_bucket(t, p, kind);
    }
    free(pieces);
    t->has_averages = take;
    if (!st)
        st = t->table->synchronize(hd_runner_stream(t->runner));
    return st;
}
