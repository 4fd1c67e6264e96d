/* shares: which elements of a bucket a rank has. */
#include "program/registry.h"

static struct hd_range shard_of(const struct hd_registry *registry, const struct hd_bucket *bucket,
                                int rank)
{
    struct hd_range range = {0, bucket->count};

    if (!bucket->shard_count)
        return range;
    range.begin =
        bucket->shard_count * hd_mesh_find_group(&registry->mesh, bucket->shard_group, rank).index;
    range.end = range.begin + bucket->shard_count;
    if (range.begin > bucket->count)
        range.begin = bucket->count;
    if (range.end > bucket->count)
        range.end = bucket->count;
    return range;
}

/* Without a separate compute copy kernels read the master weights, so these are whole below stage
 * 3. */
bool hd_bucket_is_of_shard(const struct hd_bucket *bucket, enum hd_state_kind kind)
{
    switch (kind) {
    case HD_STATE_MOMENT1:
    case HD_STATE_MOMENT2:
    case HD_STATE_EMA:
        return bucket->zero >= 1;
    case HD_STATE_WEIGHT:
        return bucket->zero >= (bucket->copied ? 1 : 3);
    case HD_STATE_GRAD:
        return bucket->zero >= 2;
    case HD_STATE_COPY:
    case HD_STATE_REFERENCE:
        return bucket->zero == 3;
    case HD_STATE_RANGES:
    case HD_STATE_KIND_COUNT:
        break;
    }
    return false;
}

struct hd_range hd_bucket_range(const struct hd_registry *registry, const struct hd_bucket *bucket,
                                enum hd_state_kind kind, int rank)
{
    const struct hd_range whole = {0, bucket->count};

    return hd_bucket_is_of_shard(bucket, kind) || kind == HD_STATE_GRAD
               ? shard_of(registry, bucket, rank)
               : whole;
}

int64_t hd_bucket_base(const struct hd_bucket *bucket, enum hd_state_kind kind)
{
    return hd_bucket_is_of_shard(bucket, kind) ? bucket->shard_begin : 0;
}
