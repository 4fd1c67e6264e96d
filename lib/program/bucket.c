/* bucket: lays out what the registry has declared: parameters in buckets, their shards, and the offsets of each
 * state in the memory of a rank. */
#include "base/math.h"
#include "base/random.h"
#include "program/matrices.h"
#include "program/registry.h"
#include <assert.h>
#include <string.h>

/* ---- layout of a bucket ---- */

/* Treatments of parameters by tp: the rows of the table in registry.h, in the order of their
 * segments in a bucket. */
enum treatment { SPLIT, SPLIT_AND_COPIED, PARTIAL, WHOLE };

static enum treatment treatment_of(const struct hd_registry *registry, const struct hd_param *p)
{
    if (registry->mesh.sizes.tp == 1)
        return SPLIT;
    if (p->tp_axis >= 0)
        return p->tp_copies > 1 ? SPLIT_AND_COPIED : SPLIT;
    return p->partial ? PARTIAL : WHOLE;
}

static struct hd_segment segment_of(const struct hd_registry *registry, enum treatment treatment,
                                    int64_t begin)
{
    const int tp = registry->coord.tp, copies = registry->mesh.sizes.kv_replica;

    switch (treatment) {
    case SPLIT_AND_COPIED:
        return (struct hd_segment){begin, begin, HD_GROUP_KV_REPLICA, tp % copies == 0, 0};
    case PARTIAL:
        return (struct hd_segment){begin, begin, HD_GROUP_TP, tp == 0, 0};
    case WHOLE:
        return (struct hd_segment){begin, begin, HD_GROUP_COUNT, tp == 0, 0};
    case SPLIT:
        break;
    }
    return (struct hd_segment){begin, begin, HD_GROUP_COUNT, true, 0};
}

/* Places the unit's parameters with treatment `wanted` in the bucket, in the order of declaration.
 * A fused parameter follows the previous one, even if its own treatment differs. */
static void put_params(struct hd_registry *registry, int bucket_number, enum treatment wanted,
                       enum treatment *last, int *order, int *order_count)
{
    struct hd_bucket *bucket = &registry->buckets[bucket_number];
    const struct hd_unit *unit = &registry->units[bucket->unit];
    enum treatment leader = WHOLE;

    for (int i = unit->first_param; i < unit->first_param + unit->param_count; i++) {
        struct hd_param *p = &registry->params[i];
        const enum treatment own = treatment_of(registry, p);

        if (p->bucket != bucket_number)
            continue;
        if (!p->fused)
            leader = own;
        if (leader != wanted)
            continue;
        if (!p->fused && !p->quant)
            bucket->count =
                hd_round_up(bucket->count, p->block > HD_PARAM_ALIGN ? p->block : HD_PARAM_ALIGN);
        assert(!p->block || bucket->count % p->block == 0);
        if (!bucket->segment_count || *last != own) {
            if (bucket->segment_count)
                bucket->segments[bucket->segment_count - 1].end = bucket->count;
            bucket->segments[bucket->segment_count++] = segment_of(registry, own, bucket->count);
            *last = own;
        }
        p->offset = bucket->count;
        bucket->count += p->quant ? hd_param_matrices(p) * p->record_bytes : p->count;
        order[(*order_count)++] = i;
    }
}

/* Divides the bucket into ranges of adjacent parameters with equal decay, rate and block. An
 * alignment gap belongs to the range before it and is a whole number of its blocks, because the
 * next parameter begins at a multiple of a larger power of two. */
static void make_ranges(struct hd_registry *registry, struct hd_bucket *bucket, const int *order,
                        int order_count)
{
    struct hd_update_range *r = NULL;

    for (int i = 0; i < order_count; i++) {
        const struct hd_param *p = &registry->params[order[i]];
        float decay = p->decay ? 1 : 0;

        if (r && r->decay == decay && r->lr_scale == p->lr_scale && r->block == p->block) {
            r->end = p->offset + p->count;
            continue;
        }
        if (r)
            r->end = p->offset;
        r = &bucket->whole_ranges[bucket->whole_range_count++];
        *r = (struct hd_update_range){.begin = p->offset,
                                      .end = p->offset + p->count,
                                      .decay = decay,
                                      .lr_scale = p->lr_scale,
                                      .block = p->block};
    }
    if (r)
        r->end = bucket->count;
}

/* Sets the ranges of the part of the bucket that is in this rank's shard. Their offsets count from
 * the shard's begin. */
static void split_ranges(struct hd_bucket *bucket)
{
    int64_t count = 0;

    for (int64_t i = 0; i < bucket->whole_range_count; i++) {
        struct hd_update_range range = bucket->whole_ranges[i];

        if (range.begin < bucket->shard_begin)
            range.begin = bucket->shard_begin;
        if (range.end > bucket->shard_end)
            range.end = bucket->shard_end;
        if (range.begin >= range.end)
            continue;
        range.begin -= bucket->shard_begin;
        range.end -= bucket->shard_begin;
        bucket->ranges[count++] = range;
    }
    bucket->range_count = count;
}

/* Sets the offsets of the moments of the shard's ranges, one range behind the other, and the bytes
 * of all. */
static void place_moments(struct hd_bucket *bucket)
{
    bucket->moment_bytes = 0;
    bucket->in_blocks = false;
    for (int64_t i = 0; i < bucket->range_count; i++) {
        struct hd_update_range *r = &bucket->ranges[i];

        assert(!r->block || (r->begin % r->block == 0 && r->end % r->block == 0));
        r->moments = bucket->moment_bytes;
        bucket->moment_bytes += hd_encoding_bytes(r->end - r->begin, r->block);
        bucket->in_blocks |= r->block > 0;
    }
}

struct hd_moment_place hd_bucket_moment_place(const struct hd_bucket *bucket, int64_t element)
{
    const struct hd_update_range *r = bucket->ranges;
    struct hd_moment_place place;
    int64_t in_range;

    while (bucket->shard_begin + r->end <= element)
        r++;
    in_range = element - bucket->shard_begin - r->begin;
    place = (struct hd_moment_place){.block = r->block, .at = r->moments};
    if (!r->block) {
        place.at += in_range * (int64_t)sizeof(float);
        return place;
    }
    place.at += hd_encoding_scales_bytes(r->end - r->begin, r->block) + in_range;
    place.scale_at = r->moments + in_range / r->block * (int64_t)sizeof(float);
    return place;
}

/* ---- shards of ZeRO ---- */

/* Sets this rank's shard of the bucket. */
static void take_shard(const struct hd_registry *registry, struct hd_bucket *bucket)
{
    const struct hd_range shard = hd_bucket_range(registry, bucket, HD_STATE_GRAD, registry->rank);

    bucket->shard_begin = shard.begin;
    bucket->shard_end = shard.end;
    split_ranges(bucket);
    place_moments(bucket);
}

static void split_bucket(struct hd_registry *registry, struct hd_bucket *bucket)
{
    const int P = hd_mesh_find_group(&registry->mesh, bucket->shard_group, registry->rank).size;
    const int64_t chunks = (bucket->count + HD_GRAD_CHUNK - 1) / HD_GRAD_CHUNK;

    if (registry->zero && registry->trains && bucket->trainable && P > 1)
        bucket->shard_count = (chunks + P - 1) / P * HD_GRAD_CHUNK;
    bucket->zero = bucket->shard_count ? registry->zero : 0;
    take_shard(registry, bucket);
}

/* Returns the kind of state that collectives gather from the shards: the weights that kernels
 * read. */
static enum hd_state_kind gathered_kind(const struct hd_bucket *bucket)
{
    return bucket->copied ? HD_STATE_COPY : HD_STATE_WEIGHT;
}

int64_t hd_bucket_shards_count(const struct hd_registry *registry, const struct hd_bucket *bucket)
{
    return bucket->shard_count *
           hd_mesh_find_group(&registry->mesh, bucket->shard_group, registry->rank).size;
}

/* Returns the number of elements for which this rank has memory of a kind of state. State that is
 * gathered or scattered has memory for whole shards, the last of which may be beyond the bucket's
 * end. */
static int64_t state_elements(const struct hd_registry *registry, const struct hd_bucket *bucket,
                              enum hd_state_kind kind)
{
    if (!bucket->shard_count)
        return bucket->count;
    if (kind == HD_STATE_REFERENCE)
        kind = gathered_kind(bucket);
    if (!hd_bucket_is_of_shard(bucket, kind))
        return hd_bucket_shards_count(registry, bucket);
    return bucket->zero == 3 && kind == gathered_kind(bucket)
               ? bucket->shard_count
               : bucket->shard_end - bucket->shard_begin;
}

/* Returns true if this rank is the first member of its group of that name. */
static bool is_first_of(const struct hd_registry *registry, enum hd_group_name group)
{
    return hd_mesh_find_group(&registry->mesh, group, registry->rank).index == 0;
}

bool hd_bucket_owns_norm(const struct hd_registry *registry, const struct hd_bucket *bucket)
{
    return is_first_of(registry, bucket->reduce_group) && registry->coord.pp == bucket->stage;
}

int64_t hd_segment_chunk(const struct hd_segment *s, int64_t at)
{
    return s->first_chunk + at / HD_GRAD_CHUNK - s->begin / HD_GRAD_CHUNK;
}

/* Numbers the chunks of the gradient norm of all counted segments, bucket by bucket. */
static void number_chunks(struct hd_registry *registry)
{
    for (int i = 0; i < registry->bucket_count; i++) {
        struct hd_bucket *bucket = &registry->buckets[i];

        for (int k = 0; bucket->trainable && bucket->is_local && k < bucket->segment_count; k++) {
            struct hd_segment *s = &bucket->segments[k];

            s->first_chunk = registry->chunk_count;
            if (s->owns_norm)
                registry->chunk_count = hd_segment_chunk(s, s->end - 1) + 1;
        }
    }
}

static enum hd_status lay_out_bucket(struct hd_registry *registry, int bucket_number)
{
    struct hd_bucket *bucket = &registry->buckets[bucket_number];
    const size_t most = (size_t)registry->units[bucket->unit].param_count;
    int *order = hd_arena_array(registry->arena, most, sizeof *order), order_count = 0;
    enum treatment last = SPLIT;

    bucket->segments = hd_arena_array(registry->arena, most, sizeof *bucket->segments);
    bucket->ranges = hd_arena_array(registry->arena, most, sizeof *bucket->ranges);
    bucket->whole_ranges = hd_arena_array(registry->arena, most, sizeof *bucket->whole_ranges);
    if (!order || !bucket->segments || !bucket->ranges || !bucket->whole_ranges)
        return hd_err(HD_NO_MEMORY, "no memory to lay out %s", registry->units[bucket->unit].name);
    for (int t = SPLIT; t <= WHOLE; t++)
        put_params(registry, bucket_number, (enum treatment)t, &last, order, &order_count);
    bucket->count = hd_round_up(bucket->count, HD_PARAM_ALIGN);
    bucket->segments[bucket->segment_count - 1].end = bucket->count;
    make_ranges(registry, bucket, order, order_count);
    split_bucket(registry, bucket);
    return HD_OK;
}

/* ---- state ---- */

bool hd_state_is_registered(const struct hd_bucket *bucket, enum hd_state_kind kind)
{
    return kind == HD_STATE_GRAD || (bucket->shard_count && kind == gathered_kind(bucket));
}

bool hd_state_is_on_host(const struct hd_bucket *bucket, enum hd_state_kind kind)
{
    return bucket->offloaded &&
           (kind == HD_STATE_WEIGHT || kind == HD_STATE_MOMENT1 || kind == HD_STATE_MOMENT2 ||
            kind == HD_STATE_EMA || kind == HD_STATE_RANGES);
}

bool hd_global_is_registered(enum hd_global global)
{
    return global == HD_GLOBAL_SUMS || global == HD_GLOBAL_RECORD || global == HD_GLOBAL_RECORDS ||
           global == HD_GLOBAL_ROUTES || global == HD_GLOBAL_AMAX || global == HD_GLOBAL_FURTHER ||
           global == HD_GLOBAL_SCORES;
}

static bool bucket_has_state(const struct hd_registry *registry, const struct hd_bucket *bucket,
                             enum hd_state_kind kind)
{
    if (!bucket->is_local)
        return false;
    if (kind == HD_STATE_WEIGHT)
        return true;
    if (kind == HD_STATE_COPY)
        return bucket->copied;
    if (kind == HD_STATE_EMA && !(registry->ema_rate > 0))
        return false;
    if (kind == HD_STATE_REFERENCE && !registry->reference)
        return false;
    if (kind == HD_STATE_MOMENT2 && hd_rule_row(bucket->rule)->moments < 2)
        return false;
    return registry->trains && bucket->trainable;
}

static enum hd_dtype kind_dtype(const struct hd_bucket *bucket, enum hd_state_kind kind)
{
    if (kind == HD_STATE_WEIGHT)
        return bucket->stored;
    return kind == HD_STATE_COPY || kind == HD_STATE_REFERENCE ? bucket->compute : HD_F32;
}

int64_t hd_bucket_state_bytes(const struct hd_registry *registry, const struct hd_bucket *bucket,
                              enum hd_state_kind kind)
{
    if (kind == HD_STATE_RANGES)
        return bucket->range_count * (int64_t)sizeof(struct hd_update_range);
    if (kind == HD_STATE_MOMENT1 || kind == HD_STATE_MOMENT2)
        return bucket->moment_bytes;
    return state_elements(registry, bucket, kind) *
           (int64_t)hd_dtype_size(kind_dtype(bucket, kind));
}

/* Reserves size_bytes at offset *end and moves *end behind them. Returns the offset. */
static int64_t take(int64_t *end, int64_t size_bytes)
{
    const int64_t offset = *end;

    *end += hd_tensor_align(size_bytes);
    return offset;
}

int64_t hd_global_bytes(const struct hd_registry *registry, enum hd_global global)
{
    const int64_t record = HD_EXCHANGE_WORDS * (int64_t)sizeof(double);
    const int64_t bytes[HD_GLOBAL_COUNT] = {
        [HD_GLOBAL_STEP_STATE] = sizeof(struct hd_step_state),
        [HD_GLOBAL_SUMS] = registry->chunk_count * (int64_t)sizeof(double),
        [HD_GLOBAL_RECORD] = record,
        [HD_GLOBAL_RECORDS] = record * registry->mesh.world,
        [HD_GLOBAL_ROUTES] =
            registry->routers * (HD_ROUTE_WORDS + registry->experts) * (int64_t)sizeof(double),
        [HD_GLOBAL_BUFFERS] = hd_registry_buffers_count(registry) * (int64_t)sizeof(float),
        [HD_GLOBAL_AMAX] = registry->buffer_count * HD_AMAX_COUNT * (int64_t)sizeof(float),
        [HD_GLOBAL_FURTHER] = registry->further * HD_FURTHER_WORDS * (int64_t)sizeof(double),
        [HD_GLOBAL_MATRICES] = registry->matrices ? registry->matrices->table_bytes : 0,
        [HD_GLOBAL_SCORES] =
            registry->qk_clip.threshold > 0
                ? registry->unit_count * registry->qk_clip.heads * (int64_t)sizeof(float)
                : 0,
    };

    return bytes[global];
}

static void lay_out_globals(struct hd_registry *registry)
{
    for (int g = 0; g < HD_GLOBAL_COUNT; g++) {
        registry->global_offset[g] = -1;
        if (g == HD_GLOBAL_STEP_STATE || registry->trains)
            registry->global_offset[g] =
                take(hd_global_is_registered((enum hd_global)g) ? &registry->registered_bytes
                                                                : &registry->private_bytes,
                     hd_global_bytes(registry, (enum hd_global)g));
    }
}

enum hd_status hd_registry_finish(struct hd_registry *registry, enum hd_dtype compute_dtype,
                                  bool trains)
{
    if (registry->status)
        return hd_err(registry->status, "%s", registry->error);
    if (registry->offload && hd_rule_row(registry->optimizer.matrices)->matrices)
        return hd_err(HD_INVALID,
                      "parallel.offload: optimizer does not go with train.optimizer: %s",
                      hd_rule_row(registry->optimizer.matrices)->name);
    registry->compute_dtype = compute_dtype;
    registry->trains = trains;
    for (int i = 0; i < registry->bucket_count; i++) {
        struct hd_bucket *bucket = &registry->buckets[i];
        enum hd_status st;

        bucket->compute = bucket->keep_fp32 ? HD_F32 : compute_dtype;
        bucket->offloaded = registry->offload && trains && bucket->trainable;
        bucket->stored = bucket->quant                 ? HD_U8
                         : trains && bucket->trainable ? HD_F32
                                                       : bucket->compute;
        bucket->copied = (bucket->compute != bucket->stored && !bucket->quant) || bucket->offloaded;
        st = lay_out_bucket(registry, i);

        if (st)
            return st;
        for (int k = 0; k < HD_STATE_KIND_COUNT; k++) {
            enum hd_state_kind kind = (enum hd_state_kind)k;

            bucket->offset[k] = -1;
            if (bucket_has_state(registry, bucket, kind))
                bucket->offset[k] =
                    take(hd_state_is_on_host(bucket, kind)      ? &registry->host_bytes
                         : hd_state_is_registered(bucket, kind) ? &registry->registered_bytes
                                                                : &registry->private_bytes,
                         hd_bucket_state_bytes(registry, bucket, kind));
        }
        if (bucket->offset[HD_STATE_COPY] < 0)
            bucket->offset[HD_STATE_COPY] = bucket->offset[HD_STATE_WEIGHT];
    }
    number_chunks(registry);
    if (trains && hd_rule_row(registry->optimizer.matrices)->matrices) {
        const enum hd_status st =
            hd_matrix_plan_make(registry, registry->rank, &registry->matrices);

        if (st)
            return st;
    }
    lay_out_globals(registry);
    return HD_OK;
}

void hd_registry_move(struct hd_registry *registry, int rank)
{
    const struct hd_mesh_coord coord = hd_mesh_coord_of(&registry->mesh, rank);

    assert(coord.tp == registry->coord.tp);
    registry->rank = rank;
    registry->coord = coord;
    for (int i = 0; i < registry->param_count; i++) {
        struct hd_param *p = &registry->params[i];

        if (p->experts)
            hd_param_box(p, hd_param_shard_index(p, &registry->mesh, rank), p->start, p->real);
    }
    for (int i = 0; i < registry->bucket_count; i++) {
        struct hd_bucket *bucket = &registry->buckets[i];

        bucket->is_local = hd_bucket_is_held_by(registry, bucket, rank);
        take_shard(registry, bucket);
    }
}
