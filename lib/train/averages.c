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
#include "train/offload.h"
#include "train/trainer.h"

static enum hd_status swap_bucket(struct hd_trainer *t, const struct hd_bucket *p)
{
    const int64_t size = (int64_t)sizeof(float);
    char *const weights = hd_trainer_state(t, p, HD_STATE_WEIGHT) +
                          (p->shard_begin - hd_bucket_base(p, HD_STATE_WEIGHT)) * size;

    return hd_trainer_swap(t, weights, hd_trainer_state(t, p, HD_STATE_EMA),
                           (p->shard_end - p->shard_begin) * size);
}

enum hd_status hd_trainer_take_averages(struct hd_trainer *t, bool take)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const enum hd_state_kind kind = take ? HD_STATE_EMA : HD_STATE_WEIGHT;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];

        if (p->offset[HD_STATE_EMA] < 0)
            continue;
        if (!p->copied)
            st = swap_bucket(t, p);
        if (!st)
            st = hd_trainer_refresh_bucket(t, p, kind);
    }
    t->has_averages = take;
    if (!st)
        st = t->open.table->synchronize(hd_runner_stream(t->open.runner));
    return st;
}
