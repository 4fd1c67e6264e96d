/* start_weights: the reference of train.policy.kl, which has the weights with which the run began.
 *
 * A rank keeps what its programs read of the weights that train (HD_STATE_REFERENCE): copies in the
 * compute encoding or, with ZeRO 3, its shards of them. Weights that do not train are those of the
 * reference, too; with an adapter the reference so takes the adapter's memory alone. To compute with
 * the reference both change places, and so every layout has the programs of validation that it has
 * anyway.
 */
#include "train/policy.h"
#include "train/trainer.h"

/* Returns the address of what programs read of a bucket: copies, or the master weights themselves. */
static char *read_by_programs(const struct hd_trainer *t, const struct hd_bucket *p)
{
    return hd_trainer_state(t, p, p->copied ? HD_STATE_COPY : HD_STATE_WEIGHT);
}

static enum hd_status swap_buckets(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < r->bucket_count; i++)
        if (r->buckets[i].offset[HD_STATE_REFERENCE] >= 0)
            st = hd_trainer_swap(t, read_by_programs(t, &r->buckets[i]),
                                 hd_trainer_state(t, &r->buckets[i], HD_STATE_REFERENCE),
                                 hd_bucket_state_bytes(r, &r->buckets[i], HD_STATE_REFERENCE));
    return st;
}

enum hd_status hd_trainer_keep_reference(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];

        if (p->offset[HD_STATE_REFERENCE] >= 0)
            st = hd_staging_copy(&t->open.staging, hd_trainer_state(t, p, HD_STATE_REFERENCE),
                                 read_by_programs(t, p),
                                 hd_bucket_state_bytes(r, p, HD_STATE_REFERENCE));
    }
    return st;
}

enum hd_status hd_trainer_score_reference(struct hd_trainer *t,
                                          const struct hd_policy_completion *completions,
                                          int64_t count, float *const *ret_logp)
{
    enum hd_status st = swap_buckets(t);

    if (st)
        return st;
    st = hd_trainer_score_completions(t, completions, count, ret_logp);
    return st ? st : swap_buckets(t);
}
