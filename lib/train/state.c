/* state: finds this rank's shard of each state (weights, moments) of each parameter, and reads and
 * writes it. */
#include <assert.h>

#include "base/math.h"
#include "train/trainer.h"

enum {
    SWAP_PIECE = HD_PIECE(32 * 1024, 768)
}; /* bytes of host memory that are swapped at a time */

static char *half_base(const struct hd_trainer *t, bool registered)
{
    return registered ? t->registered_base : t->private_base;
}

void *hd_trainer_global(const struct hd_trainer *t, enum hd_global global)
{
    return half_base(t, hd_global_is_registered(global)) +
           t->rank_program.registry.global_offset[global];
}

char *hd_trainer_state(const struct hd_trainer *t, const struct hd_bucket *bucket,
                       enum hd_state_kind kind)
{
    char *base = hd_state_is_on_host(bucket, kind)
                     ? t->host_base + t->rank_program.host_state
                     : half_base(t, hd_state_is_registered(bucket, kind));

    return base + bucket->offset[kind];
}

struct hd_local_shard hd_trainer_find(const struct hd_trainer *t, int param,
                                      enum hd_state_kind kind)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const struct hd_param *p = &r->params[param];
    const struct hd_bucket *bucket = &r->buckets[p->bucket];
    struct hd_moment_place place;
    struct hd_range range;
    struct hd_local_shard shard = {.dtype = HD_F32};

    assert(kind != HD_STATE_COPY && kind != HD_STATE_RANGES);
    if (!bucket->is_local || bucket->offset[kind] < 0)
        return shard;
    if (p->quant)
        return (struct hd_local_shard){
            .count = p->count, .at = hd_trainer_state(t, bucket, kind) + p->offset, .codes = p};
    range = hd_bucket_range(r, bucket, kind, t->rank_program.rank);
    if (range.begin < p->offset)
        range.begin = p->offset;
    if (range.end > p->offset + p->count)
        range.end = p->offset + p->count;
    if (range.begin >= range.end)
        return shard;
    shard.first = range.begin - p->offset;
    shard.count = range.end - range.begin;
    shard.at = hd_trainer_state(t, bucket, kind);
    if (kind != HD_STATE_MOMENT1 && kind != HD_STATE_MOMENT2) {
        shard.dtype = kind == HD_STATE_WEIGHT ? bucket->stored : HD_F32;
        shard.at +=
            (range.begin - hd_bucket_base(bucket, kind)) * (int64_t)hd_dtype_size(shard.dtype);
        return shard;
    }
    place = hd_bucket_moment_place(bucket, range.begin);
    shard.block = place.block;
    shard.scales = shard.at + place.scale_at;
    shard.map = hd_rule_row(p->rule)->map[kind == HD_STATE_MOMENT2];
    shard.at += place.at;
    return shard;
}

void hd_trainer_local_shard(const struct hd_trainer *t, int param, enum hd_state_kind kind,
                            int64_t *ret_first, int64_t *ret_count)
{
    const struct hd_local_shard shard = hd_trainer_find(t, param, kind);

    *ret_first = shard.first;
    *ret_count = shard.count;
}

enum hd_status hd_trainer_read_state(struct hd_trainer *t, int param, enum hd_state_kind kind,
                                     float *ret_values)
{
    const struct hd_local_shard shard = hd_trainer_find(t, param, kind);

    if (!shard.count)
        return HD_OK;
    return hd_local_shard_read(&t->open.staging, &shard, 0, shard.count, ret_values + shard.first);
}

enum hd_status hd_trainer_write_state(struct hd_trainer *t, int param, enum hd_state_kind kind,
                                      const float *values)
{
    const struct hd_local_shard shard = hd_trainer_find(t, param, kind);

    if (!shard.count || shard.codes)
        return HD_OK;
    return hd_local_shard_write(&t->open.staging, &shard, 0, shard.count, values + shard.first);
}

enum hd_status hd_trainer_swap(struct hd_trainer *t, char *a, char *b, int64_t size_bytes)
{
    /* programs leave nothing in the work region */
    char host[SWAP_PIECE], *const work = t->private_base + t->rank_program.work[0];
    const bool on_host = !hd_staging_is_on_device(&t->open.staging, a);
    char *const spare = on_host ? host : work;
    const int64_t spare_bytes = on_host ? SWAP_PIECE : t->rank_program.work_bytes;
    enum hd_status st = HD_OK;

    for (int64_t at = 0, n; !st && at < size_bytes; at += n) {
        n = hd_min(size_bytes - at, spare_bytes);
        st = hd_staging_copy(&t->open.staging, spare, a + at, n);
        if (!st)
            st = hd_staging_copy(&t->open.staging, a + at, b + at, n);
        if (!st)
            st = hd_staging_copy(&t->open.staging, b + at, spare, n);
    }
    return st;
}
